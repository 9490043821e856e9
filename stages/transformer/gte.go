package transformer

import (
	"encoding/json"
	"fmt"

	"contraflow/gpustage"
)

// GTE v1.5 and mGTE (Zhang et al., arXiv 2407.19669; gte-large-en-v1.5, gte-multilingual-base, Snowflake's arctic-embed-m v2) is
// BERT with rotary positions and gated feed-forward layers. Its model_type is "new" where the code lies beside the model, "gte" in
// transformers.

func init() {
	n := names{
		word: "embeddings.word_embeddings", kind: "embeddings.token_type_embeddings", optionalKind: true, embedNorm: "embeddings.LayerNorm",
		layer: "encoder.layer.%d.",
		qkv:   []string{"attention.qkv_proj"}, out: "attention.o_proj", attnSum: "attn_ln",
		up: []string{"mlp.up_gate_proj"}, down: "mlp.down_proj", ffnSum: "mlp_ln",
	}
	for kind, prefixes := range map[string][]string{"new": {"new.", "gte."}, "gte": {"gte.", "new."}} {
		n.prefixes = prefixes
		register(family{parse: parseGTE, names: n, drops: drops{activation: hiddenRate}, classifier: bertClassifier, mlm: gteMLM}, kind)
	}
}

func gteMLM(_ mlmConfig, h *MLMHead) (string, error) {
	h.Dense, h.Norm, h.Bias, h.Act = "lm_head.dense", "lm_head.norm", "lm_head.decoder.bias", gpustage.GELU // whatever hidden_act says
	return "lm_head.decoder", nil
}

func parseGTE(raw []byte) (Config, error) {
	var of struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(raw, &of); err != nil {
		return Config{}, err
	}
	c := struct {
		bertConfig
		ropeConfig
		NormType string `json:"layer_norm_type"`
		LogScale bool   `json:"logn_attention_scale"`
		PackQKV  bool   `json:"pack_qkv"`
	}{bertConfig: bertDefaults(), NormType: "layer_norm", PackQKV: true}
	c.AttentionDropout, c.TypeVocab, c.PositionType = 0, 1, "rope"
	theta := 10000.0
	if c.MaxPositions = 2048; of.ModelType == "gte" {
		c.VocabSize, c.MaxPositions, *c.PadID, theta = 250048, 8192, 1, 160000
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	c.ntk = of.ModelType == "new"
	for _, x := range []struct{ key, got, want string }{
		{"position_embedding_type", c.PositionType, "rope"}, {"layer_norm_type", c.NormType, "layer_norm"},
		{"logn_attention_scale", fmt.Sprint(c.LogScale), "false"}, {"pack_qkv", fmt.Sprint(c.PackQKV), "true"},
	} {
		if x.got != x.want {
			return Config{}, unsupported(x.key, x.got)
		}
	}
	c.PositionType = "absolute"
	out, err := c.config()
	if err != nil {
		return out, err
	}
	out.Gated, out.UpFirst, out.NoBias = true, true, UpPart
	if out.Heads > 0 {
		out.Rotary, out.MaxPositions, err = c.one(out.HeadDim(), theta, c.MaxPositions)
	}
	return out, err
}
