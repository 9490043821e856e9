package transformer

import (
	"encoding/json"
	"fmt"
)

// RoBERTa (Liu et al., arXiv 1907.11692), XLM-RoBERTa (BGE-M3, multilingual E5), CamemBERT and data2vec's model of texts (Baevski et al., arXiv
// 2202.03555) are BERT with positions that begin behind the padding token's, so that the position table is longer than the longest text.

func init() {
	n := bertNames
	n.prefixes = []string{"roberta."}
	register(family{parse: parseRoBERTa, names: n}, "roberta", "xlm-roberta", "camembert")
	n.prefixes = []string{"data2vec_text."}
	register(family{parse: parseRoBERTa, names: n}, "data2vec-text")
}

func parseRoBERTa(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		ModelType string          `json:"model_type"`
		Adapters  json.RawMessage `json:"lora_adaptations"`
	}{bertConfig: bertDefaults()}
	*c.PadID = 1
	if err := json.Unmarshal(raw, &c); err != nil { // for the model type
		return Config{}, err
	}
	if a := string(c.Adapters); a != "" && a != "null" {
		return Config{}, fmt.Errorf("lora_adaptations, of jina-embeddings-v3's own code, are %w: jinaai/jina-embeddings-v3-hf is the model without them", ErrUnsupported)
	}
	if c.ModelType == "roberta" {
		c.VocabSize = 50265
		if err := json.Unmarshal(raw, &c); err != nil {
			return Config{}, err
		}
	}
	out, err := c.config()
	out.padPositions(out.PadID)
	return out, err
}

// padPositions takes the positions up to the padding's from those that tokens have.
func (c *Config) padPositions(pad int) {
	c.PadID, c.PadPositions = pad, pad+1
	c.MaxPositions -= pad + 1
}
