package transformer

import "encoding/json"

// RoBERTa (Liu et al., arXiv 1907.11692), XLM-RoBERTa (BGE-M3, multilingual E5) and CamemBERT are BERT with positions that begin
// behind the padding token's, so that the position table is longer than the longest text.

func init() {
	n := bertNames
	n.prefixes = []string{"roberta."}
	register(family{parse: parseRoBERTa, names: n}, "roberta", "xlm-roberta", "camembert")
}

func parseRoBERTa(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		ModelType string `json:"model_type"`
	}{bertConfig: bertDefaults()}
	*c.PadID = 1
	if err := json.Unmarshal(raw, &c); err != nil { // for the model type
		return Config{}, err
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
