package transformer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

func TestFamilyConfigErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`{"model_type":"distilbert","dim":-3}`:                                                                                                                  "dim is -3, want a positive number",
		`{"model_type":"roberta","max_position_embeddings":2}`:                                                                                                  "max_position_embeddings is 2, of which padding takes 2",
		`{"model_type":"roberta","pad_token_id":null}`:                                                                                                          "pad_token_id is null or below -1",
		`{"model_type":"xlm-roberta","pad_token_id":-2}`:                                                                                                        "pad_token_id is null or below -1",
		`{"model_type":"qwen3","num_key_value_heads":5}`:                                                                                                        "num_attention_heads 32 is not a multiple of num_key_value_heads 5",
		`{"model_type":"qwen3","head_dim":0,"hidden_size":30}`:                                                                                                  "0 features of a head are turned",
		`{"model_type":"qwen2","rope_scaling":{"type":"mrope","mrope_section":[1]}}`:                                                                            `rotary positions of type "mrope" are not supported (supported: default`,
		`{"model_type":"llama","partial_rotary_factor":0.5}`:                                                                                                    `partial_rotary_factor "0.5" is not supported`,
		`{"model_type":"gemma3_text","rope_parameters":{"full_attention":{"partial_rotary_factor":0.25}}}`:                                                      `partial_rotary_factor "0.25" is not supported`,
		`{"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":8}}`:                                                                               "want low_freq_factor below high_freq_factor",
		`{"model_type":"llama","rope_scaling":{"rope_type":"linear"}}`:                                                                                          "factor is 0, want at least 1",
		`{"model_type":"llama","rope_theta":0}`:                                                                                                                 "rope_theta is 0",
		`{"model_type":"llama","head_dim":7}`:                                                                                                                   "7 features of a head are turned, want an even number",
		`{"model_type":"llama","rope_parameters":{"full_attention":{}}}`:                                                                                        "by layer type are not supported",
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["full_attention","chunked_attention"]}`:                                                     `layer_types: "chunked_attention" is not supported`,
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["sliding_attention","sliding_attention"]}`:                                                  "sliding_window is not set",
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["full_attention"]}`:                                                                         "layer_types has 1 layers, num_hidden_layers is 2",
		`{"model_type":"mistral","sliding_window":1}`:                                                                                                           "see 0 tokens on each side",
		`{"model_type":"gemma2","use_bidirectional_attention":true}`:                                                                                            `use_bidirectional_attention "true" is not supported`,
		`{"model_type":"gemma3_text","hidden_activation":"mish"}`:                                                                                               `hidden_activation "mish" is not supported`,
		`{"model_type":"gemma2","query_pre_attn_scalar":0}`:                                                                                                     "query_pre_attn_scalar is 0, want a positive number",
		`{"model_type":"gemma2","attn_logit_softcapping":-1}`:                                                                                                   "attn_logit_softcapping gives -1",
		`{"model_type":"gemma3_text","attn_logit_softcapping":50.0}`:                                                                                            `attn_logit_softcapping "50" is not supported`,
		`{"model_type":"llama","rope_scaling":{"type":"ntk","factor":2}}`:                                                                                       `rotary positions of type "ntk": it is not supported in this family`,
		`{"model_type":"gte","rope_scaling":{"type":"ntk","factor":2}}`:                                                                                         `rotary positions of type "ntk": it is not supported in this family`,
		`{"model_type":"modernbert","head_dim":32}`:                                                                                                             "head_dim 32 is not supported in this family, whose heads are hidden_size/num_attention_heads = 64",
		`{"model_type":"mistral","num_hidden_layers":1,"layer_types":["chunked_attention"]}`:                                                                    `layer_types: "chunked_attention" is not supported`,
		`{"model_type":"nomic_bert","num_experts":8}`:                                                                                                           "num_experts is not supported",
		`{"model_type":"nomic_bert","activation_function":"gelu"}`:                                                                                              `activation_function "gelu" is not supported`,
		`{"model_type":"new","position_embedding_type":"absolute"}`:                                                                                             `position_embedding_type "absolute" is not supported`,
		`{"model_type":"new","layer_norm_type":"rms_norm"}`:                                                                                                     `layer_norm_type "rms_norm" is not supported`,
		`{"model_type":"modernbert","embedding_dropout":0.1,"mlp_dropout":0.2}`:                                                                                 "embedding_dropout 0.1 with mlp_dropout 0.2 is not supported",
		`{"model_type":"modernbert","num_attention_heads":0}`:                                                                                                   "num_attention_heads is 0",
		`{"model_type":"mpnet","relative_attention_num_buckets":64}`:                                                                                            "relative_attention_num_buckets 64 is not supported in this family, want 32",
		`{"model_type":"t5","relative_attention_num_buckets":3}`:                                                                                                "relative_attention_num_buckets is 3, want 4 to",
		`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":0}}`:                                                                                 `rotary positions of type "yarn": its numbers give the frequency`,
		`{"model_type":"llama","rope_theta":1,"rope_scaling":{"rope_type":"yarn","factor":2}}`:                                                                  `rotary positions of type "yarn": its numbers give the frequency`,
		`{"model_type":"llama","head_dim":2,"rope_scaling":{"rope_type":"longrope","short_factor":[-1],"long_factor":[1]}}`:                                     `rotary positions of type "longrope": its numbers give the frequency -1`,
		`{"model_type":"llama","head_dim":2,"rope_scaling":{"rope_type":"longrope","short_factor":[1],"long_factor":[0]}}`:                                      `rotary positions of type "longrope": its numbers give the frequency`,
		`{"model_type":"llama","head_dim":2,"rope_scaling":{"rope_type":"longrope","short_factor":[1],"long_factor":[1],"original_max_position_embeddings":1}}`: "its numbers multiply cosines and sines by +Inf",
		`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"attention_factor":0}}`:                                                            "attention_factor is 0, want a positive number",
		`{"model_type":"gemma3_text","rope_parameters":{"sliding_attention":{"rope_type":"yarn","factor":2,"truncate":false}}}`:                                 `truncate "false" is not supported`,
		`{"model_type":"t5","relative_attention_max_distance":8}`:                                                                                               "relative_attention_max_distance is 8, want more than a quarter of the 32 buckets",
		`{"model_type":"t5","is_decoder":true}`:                                                                                                                 `is_decoder "true" is not supported`,
		`{"model_type":"t5","d_kv":0}`:                                                                                                                          "d_kv is 0",
		`{"model_type":"t5","d_model":-1}`:                                                                                                                      "d_model is -1",
		`{"model_type":"t5","feed_forward_proj":"gated-mish"}`:                                                                                                  `feed_forward_proj "mish" is not supported`,
		`{"model_type":"electra","embedding_size":0}`:                                                                                                           "embedding_size is 0",
		`{"model_type":"xlm-roberta","lora_adaptations":["separation"]}`:                                                                                        "jinaai/jina-embeddings-v3-hf is the model without them",
		`{"model_type":"bert","position_embedding_type":"alibi"}`:                                                                                               `feed_forward_type "original" is not supported`,
		`{"model_type":"jina_bert","feed_forward_type":"geglu"}`:                                                                                                `position_embedding_type "absolute" is not supported`,
		`{"model_type":"ernie","use_task_id":true,"task_type_vocab_size":0}`:                                                                                    "task_type_vocab_size is 0",
		`{"model_type":"gemma","use_bidirectional_attention":true}`:                                                                                             `use_bidirectional_attention "true" is not supported`,
		`{"model_type":"mpnet","relative_attention_num_buckets":"x"}`:                                                                                           "relative_attention_num_buckets",
		`{"model_type":"deberta-v2","conv_kernel_size":3}`:                                                                                                      "conv_kernel_size 3 is not supported",
		`{"model_type":"deberta-v2","embedding_size":128}`:                                                                                                      "embedding_size 128 is not supported",
		`{"model_type":"deberta-v2","attention_head_size":32}`:                                                                                                  "attention_head_size 32 is not supported",
		`{"model_type":"deberta-v2","pooler_hidden_size":32}`:                                                                                                   "pooler_hidden_size 32 is not supported",
		`{"model_type":"deberta-v2","pos_att_type":"c2p|p2p"}`:                                                                                                  `pos_att_type "p2p" is not supported`,
		`{"model_type":"deberta-v2","pos_att_type":7}`:                                                                                                          "pos_att_type: ",
		`{"model_type":"deberta-v2","relative_attention":true}`:                                                                                                 "relative_attention without c2p or p2c in pos_att_type is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":1}`:                                                       "position_buckets 1 with max_relative_positions 512 is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":80,"max_relative_positions":41}`:                          "position_buckets 80 with max_relative_positions 41 is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":33554432,"max_relative_positions":33554432}`:              "position_buckets, or without it max_relative_positions, is 33554432",
	} {
		_, err := ParseConfig([]byte(raw))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "config.json: ") {
			t.Errorf("%s: error %v, want %q", raw, err, want)
		}
	}
	if _, err := ParseConfig([]byte(`{"model_type":"llama","rope_scaling":{"rope_type":"proportional"}}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

// Configurations as the hub has them, for models whose code was not in transformers when they appeared.
func TestHubConfigs(t *testing.T) {
	for name, raw := range map[string][2]string{
		"nomic-embed-text-v1.5": {
			`{"model_type":"nomic_bert","activation_function":"swiglu","attn_pdrop":0.0,"causal":false,"embd_pdrop":0.0,"layer_norm_epsilon":1e-12,
			"max_trained_positions":2048,"mlp_fc1_bias":false,"mlp_fc2_bias":false,"n_embd":768,"n_head":12,"n_inner":3072,"n_layer":12,"n_positions":8192,
			"pad_vocab_size_multiple":64,"parallel_block":false,"prenorm":false,"qkv_proj_bias":false,"resid_pdrop":0.0,"rotary_emb_base":1000,
			"rotary_emb_fraction":1.0,"rotary_emb_interleaved":false,"rotary_emb_scale_base":null,"rotary_scaling_factor":null,"type_vocab_size":2,
			"use_rms_norm":false,"vocab_size":30528}`,
			`{"model_type":"nomic_bert","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"silu",
			"max_position_embeddings":2048,"layer_norm_eps":1e-12,"vocab_size":30528,"rope_parameters":{"rope_theta":1000.0,"rope_type":"default"}}`,
		},
		"an inner size that the code of such configurations rounds up": {
			`{"model_type":"nomic_bert","activation_function":"swiglu","n_inner":2900}`, `{"model_type":"nomic_bert","intermediate_size":3072,"hidden_act":"silu"}`,
		},
		"mxbai-rerank-base-v1": {
			`{"model_type":"deberta-v2","architectures":["DebertaV2ForSequenceClassification"],"attention_probs_dropout_prob":0.1,"hidden_act":"gelu","hidden_dropout_prob":0.1,
			"hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-07,"max_position_embeddings":512,"max_relative_positions":-1,
			"norm_rel_ebd":"layer_norm","num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":0,"pooler_dropout":0,"pooler_hidden_act":"gelu",
			"pooler_hidden_size":768,"pos_att_type":["p2c","c2p"],"position_biased_input":false,"position_buckets":256,"relative_attention":true,
			"share_att_key":true,"type_vocab_size":0,"vocab_size":128100}`,
			`{"model_type":"deberta-v2","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"norm_rel_ebd":"NONE | Layer_Norm",
			"pos_att_type":"C2P|p2c","position_biased_input":false,"position_buckets":256,"max_relative_positions":512,"relative_attention":true,"share_att_key":true,
			"attention_head_size":64,"embedding_size":768,"conv_kernel_size":0}`,
		},
		"jina-embeddings-v2-base-code": {
			`{"_name_or_path":"jinaai/jina-bert-v2-qk-post-norm","model_type":"bert","position_embedding_type":"alibi","feed_forward_type":"geglu","vocab_size":61056}`,
			`{"auto_map":{"AutoModel":"jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},"model_type":"bert","position_embedding_type":"alibi","feed_forward_type":"geglu","vocab_size":61056,
			"hidden_act":"relu"}`,
		},
		"jina-embeddings-v2-base-en": {
			`{"_name_or_path":"jinaai/jina-bert-implementation","model_max_length":8192,"architectures":["JinaBertForMaskedLM"],"attention_probs_dropout_prob":0.0,
			"auto_map":{"AutoConfig":"jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig","AutoModel":"jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
			"hidden_act":"gelu","hidden_dropout_prob":0.1,"hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-12,
			"max_position_embeddings":8192,"model_type":"bert","num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":0,"position_embedding_type":"alibi",
			"type_vocab_size":2,"vocab_size":30528,"feed_forward_type":"geglu","emb_pooler":"mean"}`,
			`{"model_type":"bert","position_embedding_type":"alibi","feed_forward_type":"geglu","vocab_size":30528,"max_position_embeddings":8192,"attention_probs_dropout_prob":0}`,
		},
		"truncate null, which is false": {
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64,"truncate":null}}`,
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64,"truncate":false}}`,
		},
		"no truncate, which is true": {
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64}}`,
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64,"truncate":true}}`,
		},
		"truncate where the layers' types have no use for it": {
			`{"model_type":"modernbert","rope_parameters":{"full_attention":{"rope_type":"linear","factor":4,"truncate":false}}}`,
			`{"model_type":"modernbert","rope_parameters":{"full_attention":{"rope_type":"linear","factor":4}}}`,
		},
		"is_causal null, which is false":      {`{"model_type":"qwen3","is_causal":null}`, `{"model_type":"qwen3","is_causal":false}`},
		"a window of an odd number of tokens": {`{"model_type":"modernbert","local_attention":7}`, `{"model_type":"modernbert","local_attention":6}`},
		"rope_scaling of ModernBERT, which is of local layers, too": {
			`{"model_type":"modernbert","rope_scaling":{"rope_type":"linear","factor":4}}`,
			`{"model_type":"modernbert","rope_parameters":{"full_attention":{"rope_type":"linear","factor":4},"sliding_attention":{"rope_type":"linear","factor":4}}}`,
		},
		"original_max_position_embeddings twice, of which the outer one counts": {
			`{"model_type":"llama","original_max_position_embeddings":64,"rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":256}}`,
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64}}`,
		},
		"betas of 0, which are as none": {
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64,"beta_fast":0,"beta_slow":0}}`,
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64,"beta_fast":32,"beta_slow":1}}`,
		},
		"gte-base-en-v1.5": {
			`{"model_type":"new","hidden_size":768,"type_vocab_size":0,"vocab_size":30528,"max_position_embeddings":8192,"rope_theta":500000,
			"rope_scaling":{"factor":1.0,"type":"ntk"},"layer_norm_type":"layer_norm","position_embedding_type":"rope","pack_qkv":true,"hidden_dropout_prob":0.1}`,
			`{"model_type":"gte","hidden_size":768,"type_vocab_size":0,"vocab_size":30528,"pad_token_id":0,"rope_parameters":{"rope_theta":500000.0}}`,
		},
	} {
		a, errA := ParseConfig([]byte(raw[0]))
		b, errB := ParseConfig([]byte(raw[1]))
		if err := errors.Join(errA, errB); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a.Family = b.Family
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if !bytes.Equal(x, y) {
			t.Errorf("%s:\n%s\n%s", name, x, y)
		}
	}
}

// defaultConfigs are transformers' configurations of each family that say nothing.
func defaultConfigs(t *testing.T) map[string]map[string]any {
	t.Helper()
	raw, err := os.ReadFile(goldens.Path(t, "families/defaults.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Configs map[string]map[string]any
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file.Configs
}

// What config.json leaves out is what transformers takes, and of what transformers writes nothing is overlooked: another value of
// any key gives another Config, or an error about the value; but for keys that don't concern embeddings.
func TestDefaults(t *testing.T) {
	configs := defaultConfigs(t)
	aside := map[string]bool{}
	for key := range strings.FieldsSeq(`transformers_version architectures output_hidden_states output_attentions return_dict dtype _name_or_path
		chunk_size_feed_forward is_encoder_decoder id2label label2id problem_type use_cache pretraining_tp deterministic_flash_attn
		bos_token_id eos_token_id cls_token_id sep_token_id mask_token_id tie_word_embeddings final_logit_softcapping
		classifier_dropout qa_dropout seq_classif_dropout classifier_pooling classifier_bias classifier_activation decoder_bias
		sparse_prediction sparse_pred_ignore_index initializer_cutoff_factor sinusoidal_pos_embds pooler_dropout pooler_hidden_act legacy
		summary_type summary_use_proj summary_activation summary_last_dropout num_decoder_layers decoder_start_token_id scale_decoder_outputs`) {
		aside[key] = true
	}
	for _, family := range Families() {
		if family == "new" || family == "minicpm" || family == jinaBERT || family == jinaBERTNormed || family == Static {
			continue // is not in transformers
		}
		all := configs[family]
		if all == nil {
			t.Errorf("%s is not in defaults.json", family)
			continue
		}
		parse := func(config map[string]any) (string, error) {
			raw, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseConfig(raw)
			if err != nil {
				return "", err
			}
			c.KVHeads, c.HeadSize = c.kvHeads(), c.HeadDim()
			text, err := json.Marshal(c)
			return string(text), err
		}
		few, errFew := parse(map[string]any{"model_type": family})
		full, errFull := parse(all)
		if err := errors.Join(errFew, errFull); err != nil || few != full {
			t.Errorf("%s: %v\nof nothing:  %s\nof defaults: %s", family, err, few, full)
			continue
		}
		base := maps.Clone(all)
		if _, ok := base["use_sliding_window"]; ok { // without, window and layers have no consequence
			base["use_sliding_window"], base["sliding_window"] = true, 8.0
			delete(base, "layer_types")
		}
		delete(base, "_sliding_window_pattern") // it makes layer_types
		if _, ok := base["use_task_id"]; ok {   // without, the number of tasks has no consequence
			base["use_task_id"] = true
		}
		if _, ok := base["relative_attention"]; ok { // without, distances have no consequence
			base["relative_attention"], base["pos_att_type"], base["max_relative_positions"] = true, []any{"c2p"}, 30.0
		}
		plain, err := parse(base)
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range base {
			if aside[key] || family == "mpnet" && key == "pad_token_id" { // of MPNet padding is 1 whatever it says
				continue
			}
			others := []any{true, 3, "other"} // for null
			switch v := value.(type) {
			case bool:
				others = []any{!v}
			case float64:
				others = []any{2*v + 2, v / 2}
			case string:
				others = []any{"other"}
			case []any:
				others = []any{[]any{}, append([]any{"full_attention"}, v[1:]...)}
			case map[string]any:
				others = []any{map[string]any{"rope_type": "linear", "factor": 2}}
			}
			none := maps.Clone(base)
			none[key] = nil
			parse(none) // which may be an error, and is no panic
			read := false
			for _, other := range others {
				changed := maps.Clone(base)
				if key == "feed_forward_proj" { // which these two come from, if they are not there
					delete(changed, "dense_act_fn")
					delete(changed, "is_gated_act")
				}
				changed[key] = other
				got, err := parse(changed)
				var wrongType *json.UnmarshalTypeError
				read = read || err != nil && !errors.As(err, &wrongType) || err == nil && got != plain
			}
			if !read {
				t.Errorf("%s: nothing reads %s, which is %v by default", family, key, value)
			}
		}
	}
}

// Keys of other families are ignored, as they are in transformers, or an error.
func TestForeignKeys(t *testing.T) {
	configs := defaultConfigs(t)
	read := map[string]bool{
		"qwen2 head_dim": true, "mistral layer_types": true, // in transformers, too
		"nomic_bert layer_norm_epsilon": true, // its first configurations have it
	}
	all := map[string]any{"hidden_act": "relu"}
	for _, config := range configs {
		for key, value := range config {
			if all[key] == nil {
				all[key] = value
			}
		}
	}
	for family, own := range configs {
		parse := func(change map[string]any) string {
			config := map[string]any{"model_type": family}
			maps.Copy(config, change)
			raw, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseConfig(raw)
			if err != nil {
				return ""
			}
			c.HeadSize = c.HeadDim()
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		plain := parse(nil)
		for key, value := range all {
			if _, ok := own[key]; ok || read[family+" "+key] {
				continue
			}
			for _, v := range []any{value, true, 3, 0.5} {
				if got := parse(map[string]any{key: v}); got != "" && got != plain {
					t.Errorf("%s: %s %v, which is of other families, changes\n%s\nto\n%s", family, key, v, plain, got)
				}
			}
		}
	}
}

// Of Qwen's layers those from max_window_layers on see a window, if there is to be one: of 8 tokens, the own one among them.
func TestMaxWindowLayers(t *testing.T) {
	for _, family := range []string{"qwen2", "qwen3"} {
		for use, want := range map[bool]string{true: "[false false true true] 7", false: "[] 0"} {
			c, err := ParseConfig(fmt.Appendf(nil, `{"model_type":%q,"num_hidden_layers":4,"max_window_layers":2,"sliding_window":8,"use_sliding_window":%v}`, family, use))
			if got := fmt.Sprint(c.Local, c.Window); err != nil || got != want {
				t.Errorf("%s, use_sliding_window %v: %s, %v, want %s", family, use, got, err, want)
			}
		}
	}
}

// YaRN makes more positions good, and never fewer.
func TestYaRNPositions(t *testing.T) {
	for original, want := range map[int]int{64: 2048, 1024: 2048, 2000: 4000} {
		c, err := ParseConfig(fmt.Appendf(nil, `{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":%d}}`, original))
		if err != nil || c.MaxPositions != want {
			t.Errorf("%d original positions: %d, %v, want %d", original, c.MaxPositions, err, want)
		}
	}
}

// Of heads of 64 half of the features turned are 16 pairs.
func TestPartlyTurned(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"nomic_bert","rotary_emb_fraction":0.5}`))
	if err != nil {
		t.Fatal(err)
	}
	if f := c.Rotary.Frequencies; len(f) != 16 || !(math.Abs(f[8]-math.Pow(1000, -0.5)) <= 1e-15) {
		t.Errorf("frequencies %v", f)
	}
}

// RoBERTa's positions begin behind the padding's id: with -1, which is none, at the table's first row.
func TestNoPadding(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"roberta","pad_token_id":-1}`))
	if err != nil || c.PadPositions != 0 || c.MaxPositions != 512 {
		t.Errorf("%d positions of padding, %d of texts, %v", c.PadPositions, c.MaxPositions, err)
	}
}
