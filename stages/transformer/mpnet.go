package transformer

import (
	"encoding/json"
	"fmt"
)

// MPNet (Song et al., arXiv 2004.09297; all-mpnet-base-v2) is BERT with RoBERTa's positions, a relative attention bias and no
// token types.

func init() {
	register(family{parse: parseMPNet, names: names{
		prefixes: []string{"mpnet."},
		word:     "embeddings.word_embeddings", position: "embeddings.position_embeddings", embedNorm: "embeddings.LayerNorm",
		relative: "encoder.relative_attention_bias",
		layer:    "encoder.layer.%d.",
		qkv:      []string{"attention.attn.q", "attention.attn.k", "attention.attn.v"}, out: "attention.attn.o", attnSum: "attention.LayerNorm",
		up: []string{"intermediate.dense"}, down: "output.dense", ffnSum: "output.LayerNorm",
	}, classifier: mpnetClassifier, mlm: robertaMLM}, "mpnet")
}

func parseMPNet(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		Buckets int `json:"relative_attention_num_buckets"`
	}{bertDefaults(), 32}
	c.VocabSize = 30527
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	out, err := c.config()
	if err == nil && c.Buckets != 32 { // transformers has a table of so many rows, and looks up 32 whatever it has
		err = fmt.Errorf("relative_attention_num_buckets %d is %w in this family, want 32", c.Buckets, ErrUnsupported)
	}
	out.TypeVocab, out.RelativeBuckets, out.RelativeReach = 0, c.Buckets, 128
	out.padPositions(1) // whatever pad_token_id says
	return out, err
}

// mpnetClassifier is RoBERTa's, which drops as hidden states do.
func mpnetClassifier(c Config, k scorerConfig, h *Scorer) error {
	h.DropoutOut = c.HiddenDropout
	return robertaClassifier(c, k, h)
}
