package transformer

import (
	"encoding/json"
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// RoBERTa (Liu et al., arXiv 1907.11692), XLM-RoBERTa (BGE-M3, multilingual E5), CamemBERT and data2vec's model of texts (Baevski et al., arXiv
// 2202.03555) are BERT with positions that begin behind the padding token's, so that the position table is longer than the longest text.

func init() {
	n := bertNames
	n.prefixes = []string{"roberta."}
	register(family{parse: parseRoBERTa, names: n, classifier: robertaClassifier, mlm: robertaMLM}, "roberta", "xlm-roberta", "camembert")
	n.prefixes = []string{"data2vec_text."}
	register(family{parse: parseRoBERTa, names: n, classifier: robertaClassifier}, "data2vec-text")
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
	if err == nil && (c.PadID == nil || out.PadID < -1) {
		err = errors.New("pad_token_id is null or below -1: positions begin behind it in this family")
	}
	out.padPositions(out.PadID)
	return out, err
}

// robertaClassifier has a layer of its own in the pooler's place, and drops what goes into it too.
func robertaClassifier(_ Config, _ scorerConfig, h *Scorer) error {
	h.Dense, h.DenseBias, h.Act, h.Out, h.DropoutIn = "classifier.dense", true, gpustage.Tanh, "classifier.out_proj", h.DropoutOut
	return nil
}

func robertaMLM(_ mlmConfig, h *MLMHead) (string, error) {
	h.Dense, h.Norm, h.Bias, h.Act = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", gpustage.GELU // whatever hidden_act says
	return "lm_head.decoder", nil
}

// padPositions takes the positions up to the padding's from those that tokens have.
func (c *Config) padPositions(pad int) {
	c.PadID, c.PadPositions = pad, pad+1
	c.MaxPositions -= pad + 1
}
