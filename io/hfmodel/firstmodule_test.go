package hfmodel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// Settings of the first module that would have texts read, or the model's output taken, otherwise than is done here are refused; those that change nothing, and
// those of images, are not.
func TestFirstModule(t *testing.T) {
	for _, c := range []struct{ settings, want string }{
		{`{"processor_kwargs": {"use_fast": true, "model_max_length": 7}}`, "processor_kwargs: model_max_length 7 is not supported"},
		{`{"tokenizer_args": {"do_lower_case": true}}`, "tokenizer_args: do_lower_case true is not supported"},
		{`{"config_kwargs": {"num_hidden_layers": 1}}`, "config_kwargs: num_hidden_layers 1"},
		{`{"config_args": {"num_hidden_layers": 1}}`, "config_args: num_hidden_layers 1"},
		{`{"model_args": {"variant": "fp16"}}`, `model_args: variant "fp16"`},
		{`{"model_kwargs": {"attn_implementation": "sdpa", "torch_dtype": "bfloat16"}, "config_args": {"unpad_inputs": false, "reference_compile": false}, "tokenizer_args": {}, "model_args": null}`, ""},
		{`{"processing_kwargs": {"text": {"max_length": 5}}}`, "processing_kwargs: max_length of text, 5, is not supported"},
		{`{"processing_kwargs": {"common": {"add_special_tokens": false}}}`, "add_special_tokens of common"},
		{`{"processing_kwargs": {"text": {"truncation": "only_second"}}}`, "truncation of text"},
		{`{"processing_kwargs": {"text": {"padding": "max_length", "truncation": true}, "common": {"return_tensors": "pt", "truncation": "longest_first"}, "image": {"max_length": 5}, "chat_template": {"x": 1}}}`, ""},
		{`{"query_length": 5}`, "query_length 5 is only supported of a MultiVectorEncoder"},
		{`{"document_length": 5}`, "document_length 5 is only"},
		{`{"query_expansion": {"strategy": "fixed"}}`, "query_expansion {"},
		{`{"tokenizer_name_or_path": "org/name"}`, `tokenizer_name_or_path "org/name" is not supported`},
		{`{"query_length": null, "document_length": null, "query_expansion": null}`, ""},
		{`{"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}`, `modality_config: of texts "pooler_output" of the method "forward" is not supported; last_hidden_state of forward is`},
		{`{"modality_config": {"text": {"method": "get_text_features", "method_output_name": "last_hidden_state"}}}`, `"get_text_features" is not supported`},
		{`{"modality_config": {"text": {"method": "forward", "method_output_name": ["last_hidden_state"]}, "image": {"method": "x"}}}`, ""},
		{`{"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}, "message": {"method": "forward"}}}`, "chat template (message), which is not supported"},
	} {
		dir := copyGolden(t, "st6")
		var keys map[string]any
		if err := json.Unmarshal([]byte(c.settings), &keys); err != nil {
			t.Fatal(err)
		}
		edit(t, dir, "sentence_bert_config.json", map[string]any{"modality_config": nil})
		edit(t, dir, "sentence_bert_config.json", keys)
		f, err := Open(dir)
		if err == nil {
			if f.Reranker != nil {
				t.Errorf("%s: it is a reranker", c.settings)
			}
			f.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), "sentence_bert_config.json: ") || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.settings, err, c.want)
		}
	}
	// Of a reranker that scores pairs in a chat template it is said, and its default prompt would be a message there.
	dir := copyGolden(t, "st6")
	edit(t, dir, "sentence_bert_config.json", map[string]any{
		"transformer_task": "text-generation", "modality_config": map[string]any{"message": map[string]any{"method": "forward"}, "text": map[string]any{"method": "forward", "method_output_name": "logits"}},
	})
	if f := open(t, dir); f.Reranker == nil || !f.Reranker.Chat || f.Reranker.QueryPrompt != "" || f.Prompts[f.DefaultPromptName] == "" {
		t.Errorf("%+v", f.Reranker)
	}
}

// Without modules.json neither the first module's file nor config_sentence_transformers.json counts; what that calls a CrossEncoder is no embedder, whatever its
// modules are.
func TestUnlisted(t *testing.T) {
	dir := copyGolden(t, "st6")
	edit(t, dir, "sentence_bert_config.json", map[string]any{"max_seq_length": 7})
	edit(t, dir, modelFile, map[string]any{"model_type": "CrossEncoder", "truncate_dim": 3})
	if f := open(t, dir); f.MaxSeqLength != 7 || f.TruncateDim != 3 || f.Prompts == nil || f.Reranker == nil {
		t.Errorf("%+v", f)
	}
	if err := os.Remove(filepath.Join(dir, "modules.json")); err != nil {
		t.Fatal(err)
	}
	if f := open(t, dir); f.MaxSeqLength == 7 || f.TruncateDim != 0 || f.Prompts != nil || f.DefaultPromptName != "" || f.Reranker != nil {
		t.Errorf("without modules.json: %+v", f)
	}
}

// An adapter of a sparse encoder, as PEFT saves it, is one too, and its embeddings have as many features.
func TestSparseAdapter(t *testing.T) {
	base := t.TempDir()
	if err := os.CopyFS(base, os.DirFS(goldens.Path(t, "splade/encoder"))); err != nil {
		t.Fatal(err)
	}
	edit(t, base, modelFile, map[string]any{"max_active_dims": 3})
	dir := copyAdapter(t, "bert-qv", func(c map[string]any) { c["base_model_name_or_path"] = base })
	f := open(t, dir)
	if f.Splade == nil || f.Splade != f.Base.Splade || f.MaxActive != 3 || f.Adapter == nil {
		t.Errorf("%+v", f)
	}
}
