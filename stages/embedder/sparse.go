package embedder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
)

// Sparse tells whether embeddings are: of as many features as the vocabulary has tokens, few of which a text has.
func (e *Engine) Sparse() bool { return !e.Model.Config.MLMHead.None() }

// Sparse tells whether the model gives sparse embeddings, which [Active] makes lists of.
func (e *Embedder) Sparse() bool { return e.engine.Sparse() }

// Active are the features of a sparse embedding that are not 0, which are ids of tokens, and their weights: in the order of the ids.
func Active(vec []float32) (ids []int32, weights []float32) {
	for id, w := range vec {
		if w != 0 {
			ids, weights = append(ids, int32(id)), append(weights, w)
		}
	}
	return ids, weights
}

// strongest sets all features of an embedding but n to 0: those with the largest weights, whatever their sign, and of equal ones the first, stay.
func strongest(n int, vec []float32) {
	ids, _ := Active(vec)
	if len(ids) <= n {
		return
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(max(vec[b], -vec[b]), max(vec[a], -vec[a])) })
	for _, id := range ids[n:] {
		vec[id] = 0
	}
}

// sparseBlock is how many numbers of documents' embeddings are in memory at once: 128 MiB, 1,099 documents of a vocabulary of 30,522. Tests change it.
var sparseBlock = 32 << 20

// rankSparse ranks by products of embeddings as they are, block by block of the documents.
func (t *Task) rankSparse(ctx context.Context, e *Engine, k int) (evaluate.Run, error) {
	q, err := t.embedSome(ctx, e, Query, t.queries, e.Size(), 0, len(t.queries))
	if err != nil {
		return nil, err
	}
	top, err := evaluate.NewTopK(len(t.queries), min(k, max(1, len(t.docs))), t.tie)
	if err != nil {
		return nil, err
	}
	block := max(1, sparseBlock/e.Size())
	for from := 0; from < len(t.docs); from += block {
		to := min(len(t.docs), from+block)
		d, err := t.embedSome(ctx, e, Document, t.docs[from:to], e.Size(), from, len(t.docs))
		if err != nil {
			return nil, err
		}
		if !e.first() {
			continue
		}
		if err := evaluate.SearchInto(ctx, e.Stream, top, q, d, e.Size(), from, nil); err != nil {
			return nil, err
		}
	}
	if !e.first() {
		return nil, nil
	}
	return top.Run(), nil
}

// embedSome computes embeddings as they are, the first dimensions of each, [n, size], of which so many are done of a total.
func (t *Task) embedSome(ctx context.Context, e *Engine, role Role, texts [][]int32, size, done, total int) ([]float32, error) {
	out := make([]float32, len(texts)*size)
	err := e.EmbedAs(ctx, role, t.prompts[role], texts, func(i int, vec []float32) {
		copy(out[i*size:(i+1)*size], vec)
		done++
		t.tell(e, role.String(), done, total)
	})
	return out, err
}

// MaskedNames are the names that parameters have in a file of transformers' model for masked language modelling: all but the head's have a prefix.
func MaskedNames(m *transformer.Model) func(string) string {
	prefix := m.Config.Prefixes()[0]
	return func(name string) string {
		if p, ok := m.Layout.Find(name); ok && p.Head {
			return name
		}
		return prefix + name
	}
}

// CheckMLMHead is the error for a folder without the head that sparse embeddings are made by, if the model makes such.
func CheckMLMHead(f *hfmodel.Folder, m *transformer.Model) error {
	if m.Config.MLMHead.None() {
		return nil
	}
	var names []string
	var missing error
	for _, p := range m.Layout.Params {
		if !p.Head || p.Name == transformer.QueryWeight {
			continue
		}
		names = append(names, p.Name)
		if _, err := f.Tensor(p.Name, m.Config.Prefixes()...); errors.Is(err, safetensors.ErrNoTensor) {
			missing = cmp.Or(missing, err)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w: sparse embeddings are made by the head for masked language modelling (%s), which %s does not have; begin with a model as it was pretrained, such as distilbert/distilbert-base-uncased, or with a SparseEncoder",
		missing, strings.Join(names, ", "), f.Dir)
}
