package transformer

import "encoding/json"

// Decoders as embedding models: Llama and what came after it are one architecture with small differences, which their own
// files have. What they share: pre-norm with RMS norms, rotary positions, grouped heads, a gated feed-forward layer, a final
// norm, and tokens that don't see later ones unless the configuration says otherwise.

var decoderNames = names{
	prefixes: []string{"model."},
	word:     "embed_tokens", finalNorm: "norm",
	layer:  "layers.%d.",
	attnIn: "input_layernorm", qkv: []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, out: "self_attn.o_proj",
	ffnIn: "post_attention_layernorm", up: []string{"mlp.gate_proj", "mlp.up_proj"}, down: "mlp.down_proj",
}

// decoderDrops: only the attention's probabilities drop.
var decoderDrops = drops{embeddings: noRate, attentionOut: noRate, feedForward: noRate}

// decoderConfig is config.json. Each family sets its defaults before it reads it; null means that there is none.
type decoderConfig struct {
	ropeConfig
	VocabSize        int      `json:"vocab_size"`
	HiddenSize       int      `json:"hidden_size"`
	Layers           int      `json:"num_hidden_layers"`
	Heads            int      `json:"num_attention_heads"`
	KVHeads          *int     `json:"num_key_value_heads"`
	HeadDim          *int     `json:"head_dim"`
	IntermediateSize int      `json:"intermediate_size"`
	HiddenAct        string   `json:"hidden_act"`
	InitRange        float64  `json:"initializer_range"`
	MaxPositions     int      `json:"max_position_embeddings"`
	NormEps          float64  `json:"rms_norm_eps"`
	PadID            *int     `json:"pad_token_id"`
	AttentionBias    bool     `json:"attention_bias"`
	MLPBias          bool     `json:"mlp_bias"`
	AttentionDropout *float64 `json:"attention_dropout"`

	IsCausal        *bool    `json:"is_causal"`
	SlidingWindow   *int     `json:"sliding_window"`
	UseWindow       *bool    `json:"use_sliding_window"`
	MaxWindowLayers int      `json:"max_window_layers"`
	LayerTypes      []string `json:"layer_types"`

	// Gemma's.
	HiddenActivation string   `json:"hidden_activation"`
	QueryScalar      float64  `json:"query_pre_attn_scalar"`
	SoftCap          *float64 `json:"attn_logit_softcapping"`
	Bidirectional    *bool    `json:"use_bidirectional_attention"`
	LocalTheta       float64  `json:"rope_local_base_freq"`
	Pattern          int      `json:"sliding_window_pattern"`
}

func parseDecoder(raw []byte, d decoderConfig, more func(d decoderConfig, c *Config) error) (Config, error) {
	causal := true
	d.InitRange, d.IsCausal = 0.02, &causal
	if err := json.Unmarshal(raw, &d); err != nil {
		return Config{}, err
	}
	c, err := d.config()
	if err == nil {
		err = more(d, &c)
	}
	return c, err
}

// config is everything but rotary positions and windows.
func (d decoderConfig) config() (Config, error) {
	act, err := parseActivation("hidden_act", d.HiddenAct)
	c := Config{
		Vocab: d.VocabSize, Hidden: d.HiddenSize, Layers: d.Layers, Heads: d.Heads, KVHeads: or(d.KVHeads, 0), HeadSize: or(d.HeadDim, 0),
		FeedForward: d.IntermediateSize, MaxPositions: d.MaxPositions, PadID: orNone(d.PadID), NormEps: d.NormEps, Activation: act,
		AttentionDropout: or(d.AttentionDropout, 0), InitRange: d.InitRange,
		Norm: RMSNorm, Gated: true, Causal: or(d.IsCausal, false), // null is false, as in transformers' masks; of texts without padding, which have none there, most families' attention is causal all the same
	}
	if !d.AttentionBias {
		c.NoBias |= QKVPart | OutPart
	}
	if !d.MLPBias {
		c.NoBias |= UpPart | DownPart
	}
	return c, err
}

// oneRotary is for families in which all layers turn alike.
func (d decoderConfig) oneRotary(c *Config, theta float64) (err error) {
	if c.Heads < 1 {
		return nil // check will say so
	}
	c.Rotary, c.MaxPositions, err = d.one(c.HeadDim(), theta, d.MaxPositions)
	return err
}
