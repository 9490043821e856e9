package recipe

import (
	"fmt"
	"reflect"
	"slices"

	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
)

// Queries are weights of tokens that make the embeddings of a sparse encoder's queries without its transformer: see transformer.QueryWeights.
type Queries struct {
	Weights string `yaml:"weights,omitempty" path:"~"` // a JSON file of token to weight, or ones; empty: what the folder has
	Frozen  *bool  `yaml:"frozen,omitempty"`           // they do not train; nil: what the folder says, or that they do
}

// allOnes are weights that are all alike.
const allOnes = "ones"

func (q *Queries) decode(d *decoder, path string, n *node) {
	*q = Queries{}
	d.structureOr(&q.Weights, path, n, reflect.ValueOf(q).Elem())
}

// openQueries makes the weights of queries' tokens of what the recipe and the folder, whose configuration is c, say.
func (x *Run) openQueries(c transformer.Config) (q transformer.QueryWeights, err error) {
	q = c.Queries
	if said := x.Recipe.Model.Queries; said != nil {
		q.There = true
		if said.Frozen != nil {
			q.Frozen = *said.Frozen
		}
		switch said.Weights {
		case "":
			if x.folder.Queries == nil {
				return q, fmt.Errorf("model.queries.weights: is missing: a JSON file of token to weight, such as OpenSearch's idf.json, or %s, as %s has none", allOnes, x.folder.Dir)
			}
		case allOnes:
			q.First = slices.Repeat([]float32{1}, c.Vocab)
		default:
			if q.First, err = hfmodel.TokenWeights(said.Weights, c.Vocab, x.tok.ID); err != nil {
				return q, fmt.Errorf("model.queries.weights: %w", err)
			}
		}
	}
	if !q.There {
		return q, nil
	}
	if err := embedder.CheckWeights(x.folder, x.tok, c); err != nil {
		return q, fmt.Errorf("model.path: %w", err)
	}
	if err := x.Recipe.Mesh.refuses("is not for queries that are weights of tokens (model.queries), whose sub-batches go through no layer"); err != nil {
		return q, err
	}
	for _, t := range x.Recipe.terms() {
		switch f := t.Flops; {
		case x.Recipe.singleTexts(&t.Loss):
			return q, fmt.Errorf("%s.name: %s takes single texts, which are queries, and queries are weights of tokens (model.queries): no text would go through the transformer", t.key, t.Name)
		case f != nil && f.Query > 0 && q.Frozen:
			return q, fmt.Errorf("%s.flops.query: is %v, and the weights of queries' tokens are frozen (model.queries.frozen): nothing would change by it; leave it out", t.key, f.Query)
		}
	}
	return q, nil
}
