package transformer

import (
	"encoding/json"

	"contraflow/gpustage"
)

// DistilBERT (Sanh et al., arXiv 1910.01108) is BERT without token types, under other names.

func init() {
	register(family{
		parse: parseDistilBERT,
		names: names{
			prefixes: []string{"distilbert."},
			word:     "embeddings.word_embeddings", position: "embeddings.position_embeddings", embedNorm: "embeddings.LayerNorm",
			layer: "transformer.layer.%d.",
			qkv:   []string{"attention.q_lin", "attention.k_lin", "attention.v_lin"}, out: "attention.out_lin", attnSum: "sa_layer_norm",
			up: []string{"ffn.lin1"}, down: "ffn.lin2", ffnSum: "output_layer_norm",
		},
		drops: drops{attentionOut: noRate},
		keys: map[string]string{
			"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim",
			"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
		},
		classifier: distilbertClassifier, mlm: distilbertMLM,
	}, "distilbert")
}

func parseDistilBERT(raw []byte) (Config, error) {
	c := struct {
		VocabSize        int     `json:"vocab_size"`
		Dim              int     `json:"dim"`
		Layers           int     `json:"n_layers"`
		Heads            int     `json:"n_heads"`
		HiddenDim        int     `json:"hidden_dim"`
		Activation       string  `json:"activation"`
		Dropout          float64 `json:"dropout"`
		AttentionDropout float64 `json:"attention_dropout"`
		MaxPositions     int     `json:"max_position_embeddings"`
		InitRange        float64 `json:"initializer_range"`
		PadID            *int    `json:"pad_token_id"`
	}{30522, 768, 6, 12, 4 * 768, "gelu", 0.1, 0.1, 512, 0.02, new(int)}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	act, err := parseActivation("activation", c.Activation)
	return Config{
		Vocab: c.VocabSize, Hidden: c.Dim, Layers: c.Layers, Heads: c.Heads, FeedForward: c.HiddenDim, MaxPositions: c.MaxPositions,
		PadID: orNone(c.PadID), NormEps: 1e-12, Activation: act, HiddenDropout: c.Dropout, AttentionDropout: c.AttentionDropout, InitRange: c.InitRange,
	}, err
}

func distilbertClassifier(_ Config, k scorerConfig, h *Scorer) error {
	h.Dense, h.DenseBias, h.Act, h.DropoutOut = "pre_classifier", true, gpustage.ReLU, or(k.SeqDropout, 0.2)
	return nil
}

func distilbertMLM(_ mlmConfig, h *MLMHead) (string, error) {
	h.Dense, h.Norm, h.Bias = "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"
	return "vocab_projector", nil
}
