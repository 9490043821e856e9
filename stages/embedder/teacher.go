package embedder

import (
	"context"
	"errors"

	"contraflow/stages/evaluate"
)

// Teacher is an embedding model that scores pairs (mine.Distillation), by the cosines of their embeddings, or where its folder says dot by their inner
// products. Of a model that gives vectors of tokens alone there is none.
type Teacher struct {
	*Embedder
	Query, Document string // prompts, put before queries and before documents
	Dot             bool   // products of embeddings as they are, as sparse encoders' are compared
}

// ScorePairs scores documents[i] with queries[i], and tells how many texts were cut: each query and each document is embedded once, however often it
// comes. Scores of an embedding that is not finite are NaN.
func (t *Teacher) ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error) {
	q, ofQuery, cut, err := t.embedOnce(ctx, Query, t.Query, queries)
	if err != nil {
		return nil, 0, err
	}
	d, ofDocument, more, err := t.embedOnce(ctx, Document, t.Document, documents)
	if err != nil {
		return nil, 0, err
	}
	size := t.Size()
	for i := range ofQuery {
		scores = append(scores, float32(evaluate.Product(q[ofQuery[i]*size:][:size], d[ofDocument[i]*size:][:size])))
	}
	return scores, cut + more, nil
}

// embedOnce embeds each distinct text once, [distinct texts, Size], and tells the place of each.
func (t *Teacher) embedOnce(ctx context.Context, role Role, prompt string, texts []string) (x []float32, places []int, cut int, err error) {
	place := map[string]int{}
	var distinct []string
	for _, text := range texts {
		if _, ok := place[text]; !ok {
			place[text] = len(distinct)
			distinct = append(distinct, text)
		}
		places = append(places, place[text])
	}
	x = make([]float32, len(distinct)*t.Size())
	cut, err = t.embedAs(ctx, role, prompt, distinct, x, func(int) {})
	if err != nil && !errors.Is(err, ErrNotFinite) { // who has the pair names it
		return nil, nil, 0, err
	}
	if !t.Dot && !t.model.Head.Dot {
		evaluate.Normalize(x, t.Size())
	}
	return x, places, cut, nil
}
