package embedder

import (
	"context"
	"fmt"
	"slices"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Sparse encoders whose queries are weights of tokens, and whose documents alone go through the transformer: see transformer.QueryWeights.

// WeighsQueries tells whether the model's queries are weights of their tokens.
func (e *Embedder) WeighsQueries() bool { return e.model.Config.Queries.There }

// A Role is what a text is to a model. Where queries are weights of tokens they are read otherwise than documents.
type Role uint8

const (
	Document Role = iota // as a text of which nobody says what it is
	Query
)

// String names texts of the role.
func (r Role) String() string {
	if r == Query {
		return "queries"
	}
	return "documents"
}

// weighs tells whether a model's texts of a role are weights of tokens.
func weighs(m *transformer.Model, role Role) bool { return role == Query && m.Config.Queries.There }

// EmbedAs is Embed of texts of a role, which all begin with a prompt of so many tokens: see EmbedPrompted. Queries that are weights of tokens have each token once, in ascending order, and no special ones, as a [Text] has them.
func (e *Engine) EmbedAs(ctx context.Context, role Role, prompt int, texts [][]int32, yield func(i int, vec []float32)) error {
	if weighs(e.Model, role) {
		return e.embedOne(ctx, reading{texts: texts, weighed: true}, yield)
	}
	var prompts []int32
	if prompt > 0 {
		prompts = slices.Repeat([]int32{int32(prompt)}, len(texts))
	}
	return e.EmbedPrompted(ctx, texts, prompts, yield)
}

// distinct makes weights of tokens of what a tokenizer without special tokens gives.
func distinct(ids [][]int32) {
	for i := range ids {
		ids[i] = transformer.Distinct(ids[i], 0)
	}
}

// CheckWeights refuses weights of queries' tokens for a model whose vocabulary is not as large as its tokenizer's: sentence-transformers makes as many weights
// as the tokenizer has tokens, and could not compare a query's features with a document's, which are as many as config.json's vocab_size.
func CheckWeights(f *hfmodel.Folder, tok *tokenize.Tokenizer, c transformer.Config) error {
	if n := tok.VocabSize(); n != c.Vocab {
		return fmt.Errorf("%s: queries that are weights of tokens have %d features, as many as the tokenizer has tokens, and documents %d, config.json's vocab_size: their products would compare nothing; they must be as many",
			f.TokenizerDir, n, c.Vocab)
	}
	return nil
}

// queriesOf are the weights of queries' tokens in a folder. Those of a file of token to weight are read with its tokenizer.
func queriesOf(f *hfmodel.Folder, c transformer.Config) (q transformer.QueryWeights, err error) {
	if f.Queries == nil {
		return q, nil
	}
	q = transformer.QueryWeights{There: true, Frozen: f.Queries.Frozen}
	file := f.Queries.WeightsFile()
	if file == "" {
		return q, nil
	}
	tok, err := tokenize.Load(f.TokenizerDir)
	if err == nil {
		q.First, err = hfmodel.TokenWeights(file, c.Vocab, tok.ID)
	}
	return q, err
}
