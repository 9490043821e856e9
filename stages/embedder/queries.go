package embedder

import (
	"context"
	"fmt"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Sparse encoders whose queries are weights of tokens, and whose documents alone go through the transformer: see transformer.QueryWeights.

// WeighsQueries tells whether the model's queries are weights of their tokens.
func (e *Embedder) WeighsQueries() bool { return e.model.Config.Queries.There }

// EmbedQueries is Embed of queries, which differ where a model's are weights of tokens: they are given as [QueryIDs] has them.
func (e *Engine) EmbedQueries(ctx context.Context, texts [][]int32, yield func(i int, vec []float32)) error {
	if !e.Model.Config.Queries.There {
		return e.Embed(ctx, texts, yield)
	}
	return e.embed(ctx, reading{texts: texts, weighed: true}, 1, func(i int, parts [][]float32) { yield(i, parts[0][:e.Size()]) })
}

// QueryIDs are the tokens of queries that are weights of tokens: without special ones, each once.
func QueryIDs(ctx context.Context, tok *tokenize.Tokenizer, texts []string, limit int) ([][]int32, error) {
	ids, err := tok.Bare().EncodeAll(ctx, texts, limit, 0)
	for i := range ids {
		ids[i] = transformer.Distinct(ids[i], 0)
	}
	return ids, err
}

// CheckWeights tells whether sentence-transformers could load weights of queries' tokens: it has as many as the tokenizer has tokens, and compares these
// features with those of documents, as many as the model's vocabulary.
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
