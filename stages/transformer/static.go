package transformer

import (
	"encoding/json"
	"fmt"

	"contraflow/gpustage"
)

// Static is the family of sentence-transformers' StaticEmbedding and of model2vec: an embedding per token and nothing else, so that a text
// is the mean of its tokens' embeddings. There are no layers, no special tokens and no bound on a text's length; a text without tokens
// is zero. Its folders have no config.json: package hfmodel makes one of the weights' shape.
const Static = "static_embedding"

func init() {
	register(family{
		parse: parseStatic,
		names: names{word: "embedding"},
		drops: drops{embeddings: noRate},
	}, Static)
}

func parseStatic(raw []byte) (Config, error) {
	var c struct {
		VocabSize  int `json:"vocab_size"`
		HiddenSize int `json:"hidden_size"`
	}
	err := json.Unmarshal(raw, &c)
	// New embeddings are torch's: of a standard deviation of 1.
	return Config{Vocab: c.VocabSize, Hidden: c.HiddenSize, Heads: 1, PadID: -1, InitRange: 1}, err
}

// static tells whether there are no layers.
func (c Config) static() bool { return c.Family == Static }

// checkStatic is check where there are no layers.
func (c Config) checkStatic() error {
	switch {
	case c.Vocab < 1 || c.Hidden < 1 || c.Vocab > 1<<30 || c.Hidden > 1<<30:
		return fmt.Errorf("static embeddings of %d tokens, %d features each: want positive numbers", c.Vocab, c.Hidden)
	case c.HiddenDropout != 0 || c.AttentionDropout != 0:
		return wrong("dropout", "static embeddings drop nothing: leave it out")
	case !c.Tokens.None() || !c.Scorer.None() || !c.MLMHead.None():
		return fmt.Errorf("static embeddings have heads of nothing but embeddings: a reranker, or a model of kind m3 or sparse, is %w", ErrUnsupported)
	}
	return c.checkDense()
}

// bagger pools the rows of the table where they lie, if that is all there is to do and the device can; nil otherwise.
func (m *Model) bagger(s gpustage.Stream) gpustage.Bagger {
	if !m.Config.static() || !gpustage.Bags(m.Device) {
		return nil
	}
	return s.(gpustage.Bagger)
}

// checkHead finds a pooling that a model without layers does not have.
func (c Config) checkHead(h Head) error {
	if c.static() && h.Pooling != gpustage.MeanPooling {
		return fmt.Errorf("static embeddings are pooled by their mean; %v is %w", h.Pooling, ErrUnsupported)
	}
	if h.SkipPrompt && (c.static() || !c.Tokens.None() || !c.MLMHead.None()) {
		return fmt.Errorf("pooling without the prompt's tokens (include_prompt: false) is %w in a model of static or sparse embeddings or with vectors of tokens", ErrUnsupported)
	}
	return nil
}
