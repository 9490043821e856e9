package embedder

import (
	"context"
	"errors"

	"contraflow/stages/evaluate"
	"contraflow/stages/mine"
)

// Teacher is an embedding model that scores pairs, by the cosines of their embeddings (mine.Distillation). Of a model that gives vectors of tokens alone
// there is none.
type Teacher struct {
	*Embedder
	Query, Document string // prompts, put before queries and before documents
	Dot             bool   // products of embeddings as they are, as sparse encoders' are compared
}

// ScorePairs scores documents[i] with queries[i], and tells how many texts were cut: each is embedded once, however often it comes. Scores of an
// embedding that is not finite are NaN.
func (t *Teacher) ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error) {
	place := map[string]int{}
	var texts []string
	number := func(prompt string, of []string) (places []int) {
		for _, text := range prompted(prompt, of) {
			if _, ok := place[text]; !ok {
				place[text] = len(texts)
				texts = append(texts, text)
			}
			places = append(places, place[text])
		}
		return places
	}
	q, d := number(t.Query, queries), number(t.Document, documents)
	x := make([]float32, len(texts)*t.Size())
	if cut, err = t.EmbedInto(ctx, "", texts, x); err != nil && !errors.Is(err, ErrNotFinite) { // who has the pair names it
		return nil, 0, err
	}
	if !t.Dot {
		evaluate.Normalize(x, t.Size())
	}
	for i := range q {
		scores = append(scores, mine.Score(x, x, t.Size(), q[i], d[i]))
	}
	return scores, cut, nil
}
