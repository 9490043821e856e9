package transformer

import (
	"encoding/json"

	"contraflow/gpustage"
)

// ModernBERT (Warner et al., arXiv 2412.13663): pre-norm, layer norms without biases, gated feed-forward layers, and rotary
// positions, of which two layers in three see a window and turn faster. The first layer's input is not normalized: the embeddings
// are.

func init() {
	register(family{
		parse: parseModernBERT,
		names: names{
			prefixes: []string{"model."},
			word:     "embeddings.tok_embeddings", embedNorm: "embeddings.norm", finalNorm: "final_norm",
			layer:  "layers.%d.",
			attnIn: "attn_norm", firstPlain: true, qkv: []string{"attn.Wqkv"}, out: "attn.Wo",
			ffnIn: "mlp_norm", up: []string{"mlp.Wi"}, down: "mlp.Wo",
		},
		drops: drops{attentionOut: attentionRate, activation: hiddenRate, feedForward: noRate},
		keys:  map[string]string{"hidden_dropout_prob": "mlp_dropout", "attention_probs_dropout_prob": "attention_dropout"},

		classifier: modernbertClassifier, mlm: modernbertMLM,
	}, "modernbert")
}

func parseModernBERT(raw []byte) (Config, error) {
	pad := 50283
	c := struct {
		ropeConfig
		VocabSize        int      `json:"vocab_size"`
		HiddenSize       int      `json:"hidden_size"`
		IntermediateSize int      `json:"intermediate_size"`
		Layers           int      `json:"num_hidden_layers"`
		Heads            int      `json:"num_attention_heads"`
		Activation       string   `json:"hidden_activation"`
		MaxPositions     int      `json:"max_position_embeddings"`
		InitRange        float64  `json:"initializer_range"`
		NormEps          float64  `json:"norm_eps"`
		NormBias         bool     `json:"norm_bias"`
		PadID            *int     `json:"pad_token_id"`
		AttentionBias    bool     `json:"attention_bias"`
		AttentionDropout float64  `json:"attention_dropout"`
		MLPBias          bool     `json:"mlp_bias"`
		EmbedDropout     float64  `json:"embedding_dropout"`
		MLPDropout       float64  `json:"mlp_dropout"`
		Local            int      `json:"local_attention"`
		LayerTypes       []string `json:"layer_types"`
		GlobalEvery      int      `json:"global_attn_every_n_layers"`
		GlobalTheta      float64  `json:"global_rope_theta"`
		LocalTheta       float64  `json:"local_rope_theta"`
	}{
		MaxPositions: 8192, VocabSize: 50368, HiddenSize: 768, IntermediateSize: 1152, Layers: 22, Heads: 12,
		Activation: "gelu", InitRange: 0.02, NormEps: 1e-5, PadID: &pad, Local: 128, GlobalEvery: 3, GlobalTheta: 160000, LocalTheta: 10000,
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	act, err := parseActivation("hidden_activation", c.Activation)
	if err != nil {
		return Config{}, err
	}
	out := Config{
		Vocab: c.VocabSize, Hidden: c.HiddenSize, Layers: c.Layers, Heads: c.Heads, FeedForward: c.IntermediateSize, MaxPositions: c.MaxPositions,
		PadID: orNone(c.PadID), NormEps: c.NormEps, Activation: act, AttentionDropout: c.AttentionDropout, InitRange: c.InitRange, Gated: true,
	}
	for part, has := range map[Parts]bool{QKVPart | OutPart: c.AttentionBias, UpPart | DownPart: c.MLPBias, NormParts: c.NormBias} {
		if !has {
			out.NoBias |= part
		}
	}
	if err := out.hiddenDropouts("embedding_dropout", c.EmbedDropout, "mlp_dropout", c.MLPDropout, sites(gpustage.SiteActivation)); err != nil {
		return out, err
	}
	half := c.Local / 2 // on each side
	if err := out.localLayers(c.LayerTypes, &half, func(l int) bool { return c.GlobalEvery > 0 && l%c.GlobalEvery != 0 }); err != nil {
		return out, err
	}
	if out.Heads > 0 {
		out.Rotary, out.LocalRotary, out.MaxPositions, err = c.two(out.HeadDim(), c.GlobalTheta, c.LocalTheta, c.MaxPositions, true)
	}
	return out, err
}

func modernbertClassifier(_ Config, k scorerConfig, h *Scorer) (err error) {
	h.Dense, h.DenseBias, h.Norm, h.DropoutOut = "head.dense", k.ClassifierBias, "head.norm", or(k.ClassifierDropout, 0)
	if k.ClassifierPooling == "mean" {
		h.Pooling = gpustage.MeanPooling
	}
	h.Act, err = parseActivation("classifier_activation", k.ClassifierAct)
	return err
}

func modernbertMLM(k mlmConfig, h *MLMHead) (_ string, err error) {
	h.Dense, h.DenseBias, h.Norm = "head.dense", k.ClassifierBias, "head.norm"
	if or(k.DecoderBias, true) {
		h.Bias = "decoder.bias"
	}
	h.Act, err = parseActivation("classifier_activation", k.ClassifierAct)
	return "decoder", err
}
