package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// The encoder of T5 (Raffel et al., arXiv 1910.10683; sentence-t5, gtr-t5) and of mT5: pre-norm, RMS norms, no biases, scores
// that are not scaled, and no positions but a relative attention bias that all layers share, which the first one has in its files. One rate
// drops everywhere, the last layer's output among it. T5 1.1 and mT5 have gates.

func init() {
	const attn, ffn = "layer.0.SelfAttention.", "layer.1.DenseReluDense."
	f := family{
		parse: parseT5,
		names: names{
			prefixes: []string{"transformer."},
			word:     "shared", finalNorm: "encoder.final_layer_norm", relative: "encoder.block.0." + attn + "relative_attention_bias",
			layer:  "encoder.block.%d.",
			attnIn: "layer.0.layer_norm", qkv: []string{attn + "q", attn + "k", attn + "v"}, out: attn + "o",
			ffnIn: "layer.1.layer_norm", up: []string{ffn + "wi_0", ffn + "wi_1"}, upPlain: []string{ffn + "wi"}, down: ffn + "wo",
		},
		drops: drops{attention: hiddenRate, activation: hiddenRate, output: hiddenRate},
		keys: map[string]string{
			"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "intermediate_size": "d_ff", "head_dim": "d_kv",
			"hidden_dropout_prob": "dropout_rate",
		},
	}
	register(f, "t5", "mt5")
}

func parseT5(raw []byte) (Config, error) {
	c := struct {
		ModelType  string  `json:"model_type"`
		VocabSize  int     `json:"vocab_size"`
		Model      int     `json:"d_model"`
		KV         int     `json:"d_kv"`
		FF         int     `json:"d_ff"`
		Layers     int     `json:"num_layers"`
		Heads      int     `json:"num_heads"`
		Buckets    int     `json:"relative_attention_num_buckets"`
		Reach      int     `json:"relative_attention_max_distance"`
		Dropout    float64 `json:"dropout_rate"`
		NormEps    float64 `json:"layer_norm_epsilon"`
		InitFactor float64 `json:"initializer_factor"`
		Proj       string  `json:"feed_forward_proj"`
		PadID      *int    `json:"pad_token_id"`
		IsDecoder  bool    `json:"is_decoder"`
		NPositions int     `json:"n_positions"` // no bound: the length that it was trained with
		Gated      *bool   `json:"is_gated_act"`
		DenseAct   *string `json:"dense_act_fn"`
	}{
		VocabSize: 32128, Model: 512, KV: 64, FF: 2048, Layers: 6, Heads: 8, Buckets: 32, Reach: 128, Dropout: 0.1, NormEps: 1e-6, InitFactor: 1,
		Proj: "relu", PadID: new(int), NPositions: 512,
	}
	if err := json.Unmarshal(raw, &c); err != nil { // for the model type
		return Config{}, err
	}
	if c.ModelType == "mt5" {
		c.VocabSize, c.FF, c.Layers, c.Heads, c.Proj = 250112, 1024, 8, 6, "gated-gelu"
		if err := json.Unmarshal(raw, &c); err != nil {
			return Config{}, err
		}
	}
	if c.IsDecoder {
		return Config{}, unsupported("is_decoder", "true")
	}
	if c.KV < 1 {
		return Config{}, fmt.Errorf("d_kv is %d, want a positive number", c.KV)
	}
	if c.InitFactor < 0 || !finite(c.InitFactor) {
		return Config{}, fmt.Errorf("initializer_factor is %v, want a number that is not negative", c.InitFactor)
	}
	name, gated := strings.CutPrefix(c.Proj, "gated-")
	if gated && name == "gelu" {
		name = "gelu_new"
	}
	// Configurations that transformers writes have both besides, and where they differ from what feed_forward_proj says it goes by them.
	gated, name = or(c.Gated, gated), or(c.DenseAct, name)
	act, err := parseActivation("feed_forward_proj", name)
	return Config{
		Vocab: c.VocabSize, Hidden: c.Model, Layers: c.Layers, Heads: c.Heads, HeadSize: c.KV, FeedForward: c.FF, UsualLength: max(2, c.NPositions), PadID: orNone(c.PadID),
		NormEps: c.NormEps, Activation: act, HiddenDropout: c.Dropout, InitRange: c.InitFactor / math.Sqrt(float64(max(1, c.Model))),
		QueryScale: 1, Norm: RMSNorm, NoBias: QKVPart | OutPart | UpPart | DownPart, Gated: gated, RelativeBuckets: c.Buckets, RelativeReach: c.Reach,
	}, err
}
