package transformer

import (
	"encoding/json"
	"fmt"
)

// NomicBERT (Nussbaum et al., arXiv 2402.01613; nomic-embed-text v1 and v1.5) is BERT with rotary positions, gated feed-forward
// layers and no biases but the norms'. Its first configurations have GPT-2's keys, transformers' own have BERT's, some have both.

func init() {
	register(family{parse: parseNomicBERT, names: names{
		prefixes: []string{"nomic_bert.", "bert."},
		word:     "embeddings.word_embeddings", kind: "embeddings.token_type_embeddings", optionalKind: true, embedNorm: "emb_ln",
		layer: "encoder.layers.%d.",
		qkv:   []string{"attn.Wqkv"}, out: "attn.out_proj", attnSum: "norm1",
		up: []string{"mlp.fc12", "mlp.fc11"}, down: "mlp.fc2", ffnSum: "norm2",
	}, mlm: nomicbertMLM}, "nomic_bert")
}

func nomicbertMLM(_ mlmConfig, h *MLMHead) (string, error) {
	h.Dense, h.Norm, h.Bias = "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.bias"
	return "cls.predictions.decoder", nil
}

func parseNomicBERT(raw []byte) (Config, error) {
	var c struct {
		ropeConfig
		VocabSize        *int     `json:"vocab_size"`
		HiddenSize       *int     `json:"hidden_size"`
		Layers           *int     `json:"num_hidden_layers"`
		Heads            *int     `json:"num_attention_heads"`
		IntermediateSize *int     `json:"intermediate_size"`
		HiddenAct        *string  `json:"hidden_act"`
		HiddenDropout    *float64 `json:"hidden_dropout_prob"`
		AttentionDropout *float64 `json:"attention_probs_dropout_prob"`
		MaxPositions     *int     `json:"max_position_embeddings"`
		TypeVocab        *int     `json:"type_vocab_size"`
		InitRange        *float64 `json:"initializer_range"`
		NormEps          *float64 `json:"layer_norm_eps"`
		PadID            *int     `json:"pad_token_id"`

		Embd           *int     `json:"n_embd"`
		Layer          *int     `json:"n_layer"`
		Head           *int     `json:"n_head"`
		Inner          *int     `json:"n_inner"`
		Trained        *int     `json:"max_trained_positions"`
		Activation     *string  `json:"activation_function"`
		Epsilon        *float64 `json:"layer_norm_epsilon"`
		AttnDrop       *float64 `json:"attn_pdrop"`
		ResidDrop      *float64 `json:"resid_pdrop"`
		RotaryBase     *float64 `json:"rotary_emb_base"`
		RotaryFraction *float64 `json:"rotary_emb_fraction"`
		QKVBias        bool     `json:"qkv_proj_bias"`
		FC1Bias        bool     `json:"mlp_fc1_bias"`
		FC2Bias        bool     `json:"mlp_fc2_bias"`

		// What is not here.
		Prenorm     bool     `json:"prenorm"`
		Parallel    bool     `json:"parallel_block"`
		Causal      bool     `json:"causal"`
		Interleaved bool     `json:"rotary_emb_interleaved"`
		RMS         bool     `json:"use_rms_norm"`
		ScaleBase   *float64 `json:"rotary_emb_scale_base"`
		Experts     int      `json:"num_experts"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	for _, x := range []struct {
		key string
		on  bool
	}{
		{"prenorm", c.Prenorm}, {"parallel_block", c.Parallel}, {"causal", c.Causal}, {"rotary_emb_interleaved", c.Interleaved},
		{"use_rms_norm", c.RMS}, {"rotary_emb_scale_base", c.ScaleBase != nil}, {"num_experts", c.Experts > 0},
	} {
		if x.on {
			return Config{}, fmt.Errorf("%s is %w in this family", x.key, ErrUnsupported)
		}
	}
	gates := map[string]string{"swiglu": "silu", "geglu": "gelu"}
	act := or(c.HiddenAct, "silu")
	if c.Activation != nil {
		gated, ok := gates[*c.Activation]
		if !ok {
			return Config{}, fmt.Errorf("activation_function %q is %w in this family (supported: swiglu, geglu)", *c.Activation, ErrUnsupported)
		}
		act = gated
	}
	f, err := parseActivation("hidden_act", act)
	if err != nil {
		return Config{}, err
	}
	out := Config{
		Vocab: or(c.VocabSize, 30528), Hidden: or(first(c.HiddenSize, c.Embd), 768), Layers: or(first(c.Layers, c.Layer), 12),
		Heads: or(first(c.Heads, c.Head), 12), FeedForward: or(c.IntermediateSize, 3072), TypeVocab: or(c.TypeVocab, 2), PadID: or(c.PadID, 0),
		NormEps: or(first(c.NormEps, c.Epsilon), 1e-12), Activation: f, HiddenDropout: or(first(c.HiddenDropout, c.ResidDrop), 0),
		AttentionDropout: or(first(c.AttentionDropout, c.AttnDrop), 0), InitRange: or(c.InitRange, 0.02), Gated: true,
	}
	if c.IntermediateSize == nil && c.Inner != nil {
		out.FeedForward = (*c.Inner + 255) / 256 * 256 // so the code that reads such configurations has it
	}
	for part, has := range map[Parts]bool{QKVPart | OutPart: c.QKVBias, UpPart: c.FC1Bias, DownPart: c.FC2Bias} {
		if !has {
			out.NoBias |= part
		}
	}
	if out.Heads > 0 {
		turned := int(float64(out.HeadDim()) * or(c.RotaryFraction, 1))
		out.Rotary, out.MaxPositions, err = c.one(turned, or(c.RotaryBase, 1000), or(first(c.Trained, c.MaxPositions), 2048))
	}
	return out, err
}
