package transformer

import (
	"encoding/json"
	"fmt"
)

// BERT (Devlin et al., arXiv 1810.04805) and the many embedding models of its shape: MiniLM, BGE v1, E5 v1 and v2, GTE.

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
	PadID            int     `json:"pad_token_id"`
	PositionType     string  `json:"position_embedding_type"`
	IsDecoder        bool    `json:"is_decoder"`
	CrossAttention   bool    `json:"add_cross_attention"`
}

func parseBERT(raw []byte) (Config, error) {
	c := bertConfig{
		VocabSize: 30522, HiddenSize: 768, Layers: 12, Heads: 12, IntermediateSize: 3072, HiddenAct: "gelu",
		HiddenDropout: 0.1, AttentionDropout: 0.1, MaxPositions: 512, TypeVocab: 2, InitRange: 0.02, NormEps: 1e-12,
		PositionType: "absolute",
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	if c.PositionType != "absolute" {
		return Config{}, fmt.Errorf("position_embedding_type %q is %w", c.PositionType, ErrUnsupported)
	}
	if c.IsDecoder || c.CrossAttention {
		return Config{}, fmt.Errorf("a BERT decoder is %w", ErrUnsupported)
	}
	act, err := parseActivation(c.HiddenAct)
	if err != nil {
		return Config{}, err
	}
	return Config{
		Family: "bert", Vocab: c.VocabSize, Hidden: c.HiddenSize, Layers: c.Layers, Heads: c.Heads, FeedForward: c.IntermediateSize,
		MaxPositions: c.MaxPositions, TypeVocab: c.TypeVocab, PadID: c.PadID, NormEps: c.NormEps, Activation: act,
		HiddenDropout: c.HiddenDropout, AttentionDropout: c.AttentionDropout, InitRange: c.InitRange,
	}, nil
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

// bertNames lists the parameters of a BERT model in the order in which they lie in memory: the embeddings, then layer by
// layer. Query, key and value projections lie side by side, so that one product computes all three.
func bertNames(c Config) []Param {
	var ps []Param
	add := func(layer int, name string, rows, cols int, kind paramKind) {
		ps = append(ps, Param{Name: name, Layer: layer, Rows: rows, Cols: cols, kind: kind})
	}
	norm := func(layer int, name string) {
		add(layer, name+".weight", 1, c.Hidden, normWeight)
		add(layer, name+".bias", 1, c.Hidden, bias)
	}
	add(-1, "embeddings.word_embeddings.weight", c.Vocab, c.Hidden, table)
	add(-1, "embeddings.position_embeddings.weight", c.MaxPositions, c.Hidden, table)
	add(-1, "embeddings.token_type_embeddings.weight", c.TypeVocab, c.Hidden, table)
	norm(-1, "embeddings.LayerNorm")
	for l := range c.Layers {
		p := fmt.Sprintf("encoder.layer.%d.", l)
		for _, x := range []string{"query", "key", "value"} {
			add(l, p+"attention.self."+x+".weight", c.Hidden, c.Hidden, weight)
		}
		for _, x := range []string{"query", "key", "value"} {
			add(l, p+"attention.self."+x+".bias", 1, c.Hidden, bias)
		}
		add(l, p+"attention.output.dense.weight", c.Hidden, c.Hidden, weight)
		add(l, p+"attention.output.dense.bias", 1, c.Hidden, bias)
		norm(l, p+"attention.output.LayerNorm")
		add(l, p+"intermediate.dense.weight", c.FeedForward, c.Hidden, weight)
		add(l, p+"intermediate.dense.bias", 1, c.FeedForward, bias)
		add(l, p+"output.dense.weight", c.Hidden, c.FeedForward, weight)
		add(l, p+"output.dense.bias", 1, c.Hidden, bias)
		norm(l, p+"output.LayerNorm")
	}
	return ps
}
