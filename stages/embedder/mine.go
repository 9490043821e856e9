package embedder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"contraflow/stages/evaluate"
	"contraflow/stages/mine"
)

// Mining says how Mine finds hard negatives.
type Mining struct {
	mine.Options
	Prompts *[2]string         // go before queries and before documents; nil: RolePrompts'
	Weights map[string]float64 // of the parts of a model that has some, as Weights makes them; nil: its embeddings alone

	// Progress is told now and then how many "queries" and "documents" have been embedded, and how much has been "searched"; it may be nil. With Weights queries
	// are embedded all at once. It must not call the embedder, which may be mining's own at that moment: the call would wait for itself.
	Progress func(what string, done, total int64)
}

// How many documents are embedded at once: of parts fewer, which at 256 tokens of 1,024 features take 512 MiB. A test sets them.
var mineRows, minePartRows = 8192, 512

// Mine finds hard negatives for pairs among their corpus, by what the model says of the texts. short is how many pairs got too few, and have no row.
// The embeddings of all texts are in memory, of sparse ones the active features, or with Weights the parts of all queries. Scores are cosines, also where the
// folder says dot, as in sentence-transformers' mine_hard_negatives, and of sparse embeddings their products, which margins and bounds are then of.
func (e *Embedder) Mine(ctx context.Context, p mine.Pairs, m Mining) (rows []mine.Row, short int, err error) {
	if err := m.check(); err != nil {
		return nil, 0, err
	}
	if m.Progress == nil {
		m.Progress = func(string, int64, int64) {}
	}
	if m.Prompts == nil {
		query, document := e.RolePrompts()
		m.Prompts = &[2]string{query, document}
	}
	if m.Weights == nil && e.VectorsAlone() {
		m.Weights = onlyVectors
	}
	if m.Weights != nil {
		return e.mineParts(ctx, p, m)
	}
	if e.Sparse() {
		return e.mineSparse(ctx, p, m)
	}
	queries, corpus, err := bothSides(p, m, func(role Role, prompt string, texts []string) ([]float32, error) {
		return e.mined(ctx, role, m, prompt, texts)
	})
	if err != nil {
		return nil, 0, err
	}
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer give()
	return p.Mine(ctx, e.device, m.Options, queries, corpus, e.Size(), m.searched)
}

func (m Mining) check() error {
	if m.Weights != nil {
		if err := checkWeights(m.Weights); err != nil {
			return err
		}
	}
	return m.Options.Check()
}

func (m Mining) searched(done, total int64) { m.Progress("searched", done, total) }

// mined are embeddings of length 1, [len(texts), Size], of queries or documents.
func (e *Embedder) mined(ctx context.Context, role Role, m Mining, prompt string, texts []string) ([]float32, error) {
	size := e.Size()
	out := make([]float32, len(texts)*size)
	err := e.minedInto(ctx, role, m, prompt, texts, mineRows, func(from, n int) []float32 { return out[from*size:][:n*size] }, func(vecs []float32) { evaluate.Normalize(vecs, size) })
	return out, err
}

// bothSides embeds queries and documents.
func bothSides[T any](p mine.Pairs, m Mining, embed func(role Role, prompt string, texts []string) (T, error)) (queries, corpus T, err error) {
	if queries, err = embed(Query, m.Prompts[0], p.Queries); err == nil {
		corpus, err = embed(Document, m.Prompts[1], p.Corpus)
	}
	return queries, corpus, err
}

// minedInto embeds so many rows of texts at a time: room gives the place of n from one on, done gets it with their embeddings.
func (e *Embedder) minedInto(ctx context.Context, role Role, m Mining, prompt string, texts []string, rows int, room func(from, n int) []float32, done func(vecs []float32)) error {
	from := 0
	for some := range slices.Chunk(texts, rows) {
		vecs := room(from, len(some))
		if _, err := e.embedAs(ctx, role, prompt, some, vecs, func(done int) {
			if done%tellEvery == 0 && done < len(some) { // the last ones are said to be when they have been looked at
				m.Progress(role.String(), int64(from+done), int64(len(texts)))
			}
		}); err != nil {
			return lost(role, texts, from, err)
		}
		done(vecs)
		from += len(some)
		m.Progress(role.String(), int64(from), int64(len(texts)))
	}
	return nil
}

// lost names the text, of some that begin at a place, whose embedding an error is of.
func lost(role Role, texts []string, from int, err error) error {
	if text, what, ok := OfText(err); ok {
		return fmt.Errorf("%s: %.60q: %w", role, texts[from+text], what)
	}
	return err
}

// prompted is texts behind a prompt.
func prompted(prompt string, texts []string) []string {
	if prompt == "" {
		return texts
	}
	all := make([]string, len(texts))
	for i, t := range texts {
		all[i] = prompt + t
	}
	return all
}

// mineParts mines by lexical weights, tokens' vectors or a sum; the queries' are in memory, the documents' come in blocks.
func (e *Embedder) mineParts(ctx context.Context, p mine.Pairs, m Mining) (rows []mine.Row, short int, err error) {
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer give()
	embed := func(role Role, prompt string, texts []string) (*Parts, error) {
		parts, _, err := e.embedParts(ctx, role, prompt, texts, m.Weights)
		return parts, lost(role, texts, 0, err)
	}
	queries, err := embed(Query, m.Prompts[0], p.Queries)
	if err != nil {
		return nil, 0, err
	}
	m.Progress("queries", int64(len(p.Queries)), int64(len(p.Queries)))
	s, err := e.device.OpenStream()
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	search, err := NewPartSearch(s, queries, len(p.Corpus), m.Weights, p.Depth(m.Options), nil, m.searched)
	if err != nil {
		return nil, 0, err
	}
	pairs := slices.SortedFunc(slices.Values(p.Rows), func(a, b [2]int) int { return a[1] - b[1] }) // by document
	of := map[[2]int]float32{}
	for from := 0; from < len(p.Corpus); from += minePartRows {
		docs, err := embed(Document, m.Prompts[1], p.Corpus[from:min(len(p.Corpus), from+minePartRows)])
		if err != nil {
			return nil, 0, err
		}
		m.Progress("documents", int64(from+docs.Len()), int64(len(p.Corpus)))
		if err := search.Add(ctx, from, docs); err != nil {
			return nil, 0, err
		}
		var own [][2]int
		for ; len(pairs) > 0 && pairs[0][1] < from+docs.Len(); pairs = pairs[1:] {
			own = append(own, [2]int{pairs[0][0], pairs[0][1] - from})
		}
		scores, err := PairScores(s, queries, docs, m.Weights, own)
		if err != nil {
			return nil, 0, err
		}
		for i, r := range own {
			of[[2]int{r[0], r[1] + from}] = scores[i]
		}
	}
	return p.Choose(ctx, m.Options, search.Run(), func(query, doc int) float32 { return of[[2]int{query, doc}] })
}
