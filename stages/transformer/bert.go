package transformer

import (
	"encoding/json"
	"fmt"

	"contraflow/gpustage"
)

// BERT (Devlin et al., arXiv 1810.04805) and the many embedding models of its shape: MiniLM, BGE v1, E5 v1 and v2, GTE.

func init() {
	register(family{parse: parseBERT, names: bertNames, classifier: bertClassifier, mlm: bertMLM}, "bert")
}

var bertNames = names{
	prefixes: []string{"bert."},
	word:     "embeddings.word_embeddings", position: "embeddings.position_embeddings", kind: "embeddings.token_type_embeddings",
	embedNorm: "embeddings.LayerNorm",
	layer:     "encoder.layer.%d.",
	qkv:       []string{"attention.self.query", "attention.self.key", "attention.self.value"},
	out:       "attention.output.dense", attnSum: "attention.output.LayerNorm",
	up: []string{"intermediate.dense"}, down: "output.dense", ffnSum: "output.LayerNorm",
}

// bertConfig has transformers' defaults for keys that config.json leaves out.
type bertConfig struct {
	VocabSize        int     `json:"vocab_size"`
	HiddenSize       int     `json:"hidden_size"`
	Layers           int     `json:"num_hidden_layers"`
	Heads            int     `json:"num_attention_heads"`
	IntermediateSize int     `json:"intermediate_size"`
	HiddenAct        string  `json:"hidden_act"`
	HiddenDropout    float64 `json:"hidden_dropout_prob"`
	AttentionDropout float64 `json:"attention_probs_dropout_prob"`
	MaxPositions     int     `json:"max_position_embeddings"`
	TypeVocab        int     `json:"type_vocab_size"`
	InitRange        float64 `json:"initializer_range"`
	NormEps          float64 `json:"layer_norm_eps"`
	PadID            *int    `json:"pad_token_id"`
	PositionType     string  `json:"position_embedding_type"`
	IsDecoder        bool    `json:"is_decoder"`
	CrossAttention   bool    `json:"add_cross_attention"`
}

// bertDefaults are BERT's, and of the families that took them over.
func bertDefaults() bertConfig {
	return bertConfig{
		VocabSize: 30522, HiddenSize: 768, Layers: 12, Heads: 12, IntermediateSize: 3072, HiddenAct: "gelu",
		HiddenDropout: 0.1, AttentionDropout: 0.1, MaxPositions: 512, TypeVocab: 2, InitRange: 0.02, NormEps: 1e-12,
		PadID: new(int), PositionType: "absolute",
	}
}

func (c bertConfig) config() (Config, error) {
	if c.PositionType != "absolute" {
		return Config{}, fmt.Errorf("position_embedding_type %q is %w", c.PositionType, ErrUnsupported)
	}
	if c.IsDecoder || c.CrossAttention {
		return Config{}, fmt.Errorf("a BERT decoder is %w", ErrUnsupported)
	}
	act, err := parseActivation("hidden_act", c.HiddenAct)
	return Config{
		Vocab: c.VocabSize, Hidden: c.HiddenSize, Layers: c.Layers, Heads: c.Heads, FeedForward: c.IntermediateSize,
		MaxPositions: c.MaxPositions, TypeVocab: c.TypeVocab, PadID: orNone(c.PadID), NormEps: c.NormEps, Activation: act,
		HiddenDropout: c.HiddenDropout, AttentionDropout: c.AttentionDropout, InitRange: c.InitRange,
	}, err
}

// orNone is -1 for null.
func orNone(id *int) int {
	if id == nil {
		return -1
	}
	return *id
}

func parseBERT(raw []byte) (Config, error) {
	if other := jinaFamily(raw); other != "" {
		c, err := families[other].parse(raw)
		c.Family = other
		return c, err
	}
	c := bertDefaults()
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	return c.config()
}

// bertClassifier goes on from the pooler.
func bertClassifier(_ Config, _ scorerConfig, h *Scorer) error {
	h.Dense, h.DenseBias, h.Act = "pooler.dense", true, gpustage.Tanh
	return nil
}

func bertMLM(_ mlmConfig, h *MLMHead) (string, error) {
	h.Dense, h.Norm, h.Bias = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
	return "cls.predictions.decoder", nil
}

// NewBERT is the config.json of a new model of BERT's shape.
func NewBERT(c Config) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"architectures": []string{"BertModel"}, "model_type": "bert", "vocab_size": c.Vocab, "hidden_size": c.Hidden,
		"num_hidden_layers": c.Layers, "num_attention_heads": c.Heads, "intermediate_size": c.FeedForward, "hidden_act": "gelu",
		"hidden_dropout_prob": c.HiddenDropout, "attention_probs_dropout_prob": c.AttentionDropout,
		"max_position_embeddings": c.MaxPositions, "type_vocab_size": c.TypeVocab, "initializer_range": c.InitRange,
		"layer_norm_eps": c.NormEps, "pad_token_id": c.PadID, "position_embedding_type": "absolute", "torch_dtype": "float32",
	}, "", "  ")
}
