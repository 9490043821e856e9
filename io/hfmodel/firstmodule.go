package hfmodel

import (
	"encoding/json"
	"fmt"
	"slices"
)

// passedOn are the keys under which a first module's file has arguments of transformers' loaders, as they are called now and as they were, and the
// arguments that change no number but by its rounding, or are the loader's own.
var passedOn = map[string][]string{
	"model_kwargs": {"attn_implementation", "torch_dtype", "dtype", "device_map", "low_cpu_mem_usage", "use_safetensors", "add_pooling_layer", "trust_remote_code"},
	"config_kwargs": {
		"attn_implementation", "torch_dtype", "dtype", "use_cache", "use_memory_efficient_attention", "unpad_inputs", "output_hidden_states", "output_attentions", "reference_compile", "trust_remote_code",
	},
	"processor_kwargs": {"use_fast", "padding_side", "trust_remote_code"},
}

var passedOnOnce = map[string]string{"model_args": "model_kwargs", "config_args": "config_kwargs", "tokenizer_args": "processor_kwargs"}

// calledWith are the arguments of a tokenizer's call (processing_kwargs) that change no text's tokens.
var calledWith = []string{"padding", "pad_to_multiple_of", "return_tensors", "return_attention_mask", "logits_to_keep"}

// asRead finds settings in the first module's file with which sentence-transformers reads texts, or takes what the model gives, otherwise than is done
// here.
func (f *Folder) asRead(o *object, task string) error {
	for _, key := range o.keys {
		harmless, ok := passedOn[key]
		if !ok {
			harmless, ok = passedOn[passedOnOnce[key]]
		}
		if !ok {
			continue
		}
		var given map[string]json.RawMessage
		if _, err := o.get(key, &given); err != nil {
			return err
		}
		for _, name := range sortedKeys(given) {
			if !slices.Contains(harmless, name) {
				return fmt.Errorf("%s: %s %s is not supported: write it into config.json or the tokenizer's files, or remove it", key, name, short(given[name]))
			}
		}
	}
	if err := f.roleSettings(o); err != nil {
		return err
	}
	var tokenizer string
	if ok, err := o.get("tokenizer_name_or_path", &tokenizer); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("tokenizer_name_or_path %q is not supported: put that tokenizer's files beside config.json, and remove it", tokenizer)
	}
	var calls map[string]map[string]json.RawMessage
	if _, err := o.get("processing_kwargs", &calls); err != nil {
		return err
	}
	for _, of := range []string{"common", "text"} {
		for _, name := range sortedKeys(calls[of]) {
			raw := string(calls[of][name])
			if f.Reranker != nil && of == "text" && name == "truncation" && raw == `"`+onlySecond+`"` {
				f.Reranker.Truncation = onlySecond
				continue
			}
			if !slices.Contains(calledWith, name) && !(name == "truncation" && (raw == "true" || raw == `"longest_first"`)) {
				return fmt.Errorf("processing_kwargs: %s of %s, %s, is not supported: remove it; where texts are cut max_seq_length says", name, of, short(calls[of][name]))
			}
		}
	}
	return f.modalities(o, task)
}

// roleSettings refuses lengths of queries and documents, and what fills queries up, of models that are no MultiVectorEncoder.
func (f *Folder) roleSettings(o *object) error {
	if f.MultiVector != nil {
		return nil
	}
	for _, key := range []string{"query_length", "document_length", "query_expansion"} {
		var raw json.RawMessage
		if ok, err := o.get(key, &raw); err != nil {
			return err
		} else if ok {
			return fmt.Errorf("%s %s is only supported of a MultiVectorEncoder: remove it, and say at embedding or training how long queries and documents are", key, short(raw))
		}
	}
	return nil
}

// modalities reads modality_config: what of the model's output is taken, and whether pairs of texts go through a chat template.
func (f *Folder) modalities(o *object, task string) error {
	var all map[string]struct {
		Method string
		Output json.RawMessage `json:"method_output_name"`
	}
	if _, err := o.get("modality_config", &all); err != nil {
		return err
	}
	want := "logits"
	if task == "" || task == "feature-extraction" {
		want = "last_hidden_state"
	}
	if text, ok := all["text"]; ok {
		if out := string(compact(text.Output)); text.Method != "forward" || out != `"`+want+`"` && out != `["`+want+`"]` {
			return fmt.Errorf("modality_config: of texts %s of the method %q is not supported; %s of forward is", short(text.Output), text.Method, want)
		}
	}
	if _, chat := all["message"]; chat && f.Reranker == nil {
		return fmt.Errorf("modality_config: texts go through the tokenizer's chat template (message), which is not supported; without message they are read as they are")
	} else if chat {
		f.Reranker.Chat = true
	}
	return nil
}
