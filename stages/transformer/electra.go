package transformer

import (
	"encoding/json"
	"fmt"

	"contraflow/gpustage"
)

// ELECTRA (Clark et al., arXiv 2003.10555; ms-marco-electra-base) is BERT, whose embeddings may have fewer features than its hidden states: a
// projection lies between.

func init() {
	n := bertNames
	n.prefixes, n.project = []string{"electra."}, "embeddings_project"
	register(family{parse: parseELECTRA, names: n, classifier: electraClassifier}, "electra")
}

func parseELECTRA(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		EmbeddingSize int `json:"embedding_size"`
	}{bertDefaults(), 128}
	c.HiddenSize, c.Heads, c.IntermediateSize = 256, 4, 1024
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	if c.EmbeddingSize < 1 {
		return Config{}, fmt.Errorf("embedding_size is %d, want a positive number", c.EmbeddingSize)
	}
	out, err := c.config()
	out.WordSize = c.EmbeddingSize
	return out, err
}

// electraClassifier is RoBERTa's with another activation, whatever hidden_act says.
func electraClassifier(c Config, k scorerConfig, h *Scorer) error {
	err := robertaClassifier(c, k, h)
	h.Act = gpustage.GELU
	return err
}
