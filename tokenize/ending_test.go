package tokenize

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A tokenizer that puts its EOS token behind texts gives the ids of the one it is made of with the token behind them, also where texts are cut, and so does what
// it saves; one that ends so already stays as it is. The rows are tokenizers as models have them, with what Hugging Face makes of texts.
func TestEnding(t *testing.T) {
	eos := map[string]string{"llama2": "</s>", "llama3": "<|end_of_text|>", "mistral": "</s>", "qwen2": "<|endoftext|>", "gemma": "<eos>"}
	seen := 0
	for row := range familyRows(t, "families.jsonl.gz") {
		var probe struct {
			Added []struct {
				Content string
				ID      int32
			} `json:"added_tokens"`
		}
		if err := json.Unmarshal(row.File, &probe); err != nil {
			t.Fatal(err)
		}
		token, id := eos[row.Name], int32(-1)
		for _, a := range probe.Added {
			if a.Content == token || token == "" && id < 0 { // of others any special token does
				token, id = a.Content, a.ID
			}
		}
		if id < 0 {
			continue
		}
		config, err := json.Marshal(map[string]any{"eos_token": token})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := fromFiles(map[string][]byte{fileTokenizer: row.File, fileConfig: config})
		if err != nil {
			t.Fatal(err)
		}
		ending, err := plain.Ending()
		if err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		if ending == plain {
			continue // it ends so
		}
		seen++
		if string(plain.files[fileTokenizer]) != string(row.File) || string(plain.files[fileConfig]) != string(config) {
			t.Errorf("%s: the files of the tokenizer that it is made of have changed", row.Name)
		}
		dir := t.TempDir()
		if err := ending.Save(dir); err != nil {
			t.Fatal(err)
		}
		again, err := Load(dir)
		if err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		if same, err := again.Ending(); err != nil || same != again || !again.Ends() || ending.Hash() == plain.Hash() {
			t.Errorf("%s: what is saved does not end in its EOS token: %v", row.Name, err)
		}
		texts := 0
		for text, ids := range row.texts(t) {
			if texts++; texts > 20 {
				break
			}
			_, types, _, err := ending.AppendPair(nil, nil, "a", "b", 0, LongestFirst)
			if _, before, _, _ := plain.AppendPair(nil, nil, "a", "b", 0, LongestFirst); err != nil || types[len(types)-1] != before[len(before)-1] {
				t.Errorf("%s: types of a pair %v and %v, %v", row.Name, before, types, err)
			}
			want := append(slices.Clone(ids), id)
			short := append(plain.Encode(text, 6), id)
			for name, tok := range map[string]*Tokenizer{"as it is": ending, "saved": again} {
				if got := tok.Encode(text, 0); !slices.Equal(got, want) {
					t.Fatalf("%s, %s: %q is %v, want %v", row.Name, name, text, got, want)
				}
				if got := tok.Encode(text, 7); !slices.Equal(got, short) {
					t.Fatalf("%s, %s: %q cut at 7 is %v, want %v", row.Name, name, text, got, short)
				}
			}
		}
		var saved map[string]any
		if data, err := os.ReadFile(filepath.Join(dir, fileConfig)); err != nil || json.Unmarshal(data, &saved) != nil || fmt.Sprint(saved["add_eos_token"]) != "true" || saved["eos_token"] != token {
			t.Errorf("%s: %s is %s, %v", row.Name, fileConfig, data, err)
		}
	}
	if seen < 3 {
		t.Errorf("%d tokenizers", seen)
	}

	const file = `{"version": "1.0", "post_processor": null, "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 1}, "merges": []}}`
	bare, err := fromFiles(map[string][]byte{fileTokenizer: []byte(file), fileConfig: []byte(`{}`)})
	if err == nil {
		_, err = bare.Ending()
	}
	if err == nil || !strings.Contains(err.Error(), "names no eos_token") {
		t.Errorf("without an eos_token: %v", err)
	}
	// A template may leave texts out: there are no ids then, as with Hugging Face.
	const nothing = `{"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}`
	out, err := fromFiles(map[string][]byte{fileTokenizer: []byte(strings.Replace(file, "null", nothing, 1)), fileConfig: []byte(`{"eos_token": "</s>"}`)})
	if err != nil || out.Ends() || len(out.Encode("a", 0)) > 0 {
		t.Fatalf("a template without pieces: %v", err)
	}
	if out, err = out.Ending(); err != nil || !out.Ends() || fmt.Sprint(out.Encode("a", 0)) != "[1]" {
		t.Errorf("a template without pieces: %v", err)
	}
	// transformers 5's classes of BERT, RoBERTa and others put their own tokens around texts, whatever the file says: it then says to be read alone.
	for class, want := range map[string]string{
		"":                        "PreTrainedTokenizerFast [input_ids attention_mask token_type_ids]",
		"BertTokenizerFast":       "PreTrainedTokenizerFast [input_ids attention_mask token_type_ids]",
		"DistilBertTokenizer":     "PreTrainedTokenizerFast [input_ids attention_mask]",
		"RobertaTokenizerFast":    "PreTrainedTokenizerFast [input_ids attention_mask]",
		"LlamaTokenizerFast":      "LlamaTokenizerFast <nil>",
		"PreTrainedTokenizerFast": "PreTrainedTokenizerFast <nil>",
	} {
		config, err := json.Marshal(map[string]string{"eos_token": "</s>", "tokenizer_class": class})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := fromFiles(map[string][]byte{fileTokenizer: []byte(file), fileConfig: config})
		if err == nil {
			tok, err = tok.Ending()
		}
		var saved map[string]any
		if err != nil || json.Unmarshal(tok.files[fileConfig], &saved) != nil || fmt.Sprint(saved["tokenizer_class"], " ", saved["model_input_names"]) != want {
			t.Errorf("%q: %s, %v; want %s", class, tok.files[fileConfig], err, want)
			continue
		}
		if again, err := fromFiles(tok.files); err != nil || again.typed != tok.typed {
			t.Errorf("%q: read again, types are given: %v, were %v, %v", class, again.typed, tok.typed, err)
		}
	}
	tok, err := fromFiles(map[string][]byte{fileVocab: []byte("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nend\n"), fileConfig: []byte(`{"eos_token": "end"}`)})
	if err == nil {
		_, err = tok.Ending()
	}
	if err == nil || !strings.Contains(err.Error(), "there is no tokenizer.json") {
		t.Errorf("vocab.txt: %v", err)
	}
}
