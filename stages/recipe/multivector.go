package recipe

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// A model of kind multi_vector gives a vector for each token and nothing else, as ColBERT does: see transformer.TokenHeads and
// loss.LateInteraction.

// vectorKinds are its losses: those of lossKinds by the same names, of vectors of tokens.
var vectorKinds = []lossKind{
	{names: []string{"mnrl", "infonce", "multiple_negatives_ranking"}, options: []string{"scale", "temperature", "similarity", "mask_duplicates"}, similarity: string(loss.MaxSim), vectors: true},
	{names: []string{"margin_mse"}, options: []string{"similarity"}, similarity: string(loss.MaxSim), readsLabel: true, readsScores: true, negatives: true, vectors: true},
	{names: []string{"distill_kl", "kl_div"}, options: []string{"similarity", "temperature", "student_temperature", "teacher_temperature"}, similarity: string(loss.MaxSim), scores: true, negatives: true, vectors: true},
}

// defaultVectorDim is sentence-transformers'.
const defaultVectorDim = 128

// newProjection is what it calls the module.
const newProjection = "1_Dense"

// Skiplist are tokens without a vector: a list, or the word punctuation.
type Skiplist []string

func (s *Skiplist) decode(d *decoder, path string, n *node) {
	if n.kind == scalar && n.text == "punctuation" {
		*s = hfmodel.Punctuation()
		return
	}
	if n.kind != list {
		d.fail(n.at, path, "want punctuation, or a list of tokens such as [\".\", \",\"], which may be empty, got %s", describe(n))
		return
	}
	*s = Skiplist{}
	d.slice(path, n, reflect.ValueOf((*[]string)(s)).Elem())
}

// QueryExpansion fills short queries up: none, or what hfmodel.Expansion has.
type QueryExpansion struct {
	None     bool   `yaml:"-"`
	Strategy string `yaml:"strategy"`
	Length   int    `yaml:"length"`
	Attend   bool   `yaml:"attend"`
	Token    string `yaml:"token,omitempty"`
}

// MarshalYAML writes what decode reads.
func (e QueryExpansion) MarshalYAML() (any, error) {
	if e.None {
		return "none", nil
	}
	type plain QueryExpansion
	return plain(e), nil
}

func (e *QueryExpansion) decode(d *decoder, path string, n *node) {
	*e = QueryExpansion{Strategy: "fixed"}
	if n.kind == scalar {
		e.None = d.oneOf(path, n, "none")
		return
	}
	d.structure(path, n, reflect.ValueOf(e).Elem())
}

func (e QueryExpansion) expansion() *hfmodel.Expansion {
	if e.None {
		return nil
	}
	return &hfmodel.Expansion{Strategy: e.Strategy, Length: e.Length, Attend: e.Attend, Token: e.Token}
}

// openMultiVector finds out how a model of this kind reads texts, and what its projection is, and its heads.
func (x *Run) openMultiVector() (heads transformer.TokenHeads, err error) {
	m, f, c := x.Recipe.Model, x.folder, &x.config
	x.vectors = &hfmodel.MultiVector{SkipTasks: []string{"document"}}
	if f.MultiVector != nil {
		own := *f.MultiVector
		x.vectors = &own
	}
	if m.Skiplist != nil {
		x.vectors.Skiplist = *m.Skiplist
	}
	if m.QueryExpansion != nil {
		if x.vectors.Expansion = m.QueryExpansion.expansion(); x.vectors.Expansion != nil && x.vectors.Expansion.Strategy == "fixed" {
			x.vectors.QueryLength = 0
		}
	}
	fresh := false
	switch n := len(c.Dense); {
	case n > 0 && m.VectorDim != 0 && m.VectorDim != c.Dense[n-1].Out:
		return heads, fmt.Errorf("model.vector_dim: is %d, and the projection that the model has gives %d", m.VectorDim, c.Dense[n-1].Out)
	case n == 0 && (f.MultiVector == nil || m.VectorDim != 0):
		fresh, c.Dense = true, []transformer.Dense{{Name: newProjection, Out: cmp.Or(m.VectorDim, defaultVectorDim)}}
	}
	x.Recipe = x.Recipe.compared(f)
	heads = c.ColBERT(fresh, x.Recipe.Train.Seed)
	heads.Mean = !slices.ContainsFunc(x.Recipe.terms(), func(l stated) bool { return l.Similarity != string(loss.MeanMaxSim) })
	if heads.Query, heads.Document, err = embedder.Readings(f, x.vectors, *c, x.tok); err != nil {
		return heads, fmt.Errorf("model.path: %w", err)
	}
	return heads, nil
}

// compares is a loss's similarity: of vectors of tokens the usual one where neither the recipe nor a folder says another.
func (l Loss) compares() string {
	if l.Similarity == "" && l.vectors {
		return l.kind().similarity
	}
	return l.Similarity
}

// compared is the recipe with losses that compare as a folder's model does, where they do not say how.
func (r Recipe) compared(f *hfmodel.Folder) Recipe {
	return r.withLosses(func(l *Loss, _ bool) {
		if l.Similarity == "" && f.MultiVector != nil && f.Similarity == embedder.MeanMaxSim {
			l.Similarity = string(loss.MeanMaxSim)
		}
		l.Similarity = l.compares()
	})
}

// savedVectors completes what is written of such a model.
func (x *Run) savedVectors(spec *hfmodel.Spec) {
	m := *x.vectors
	m.QueryLength, m.DocumentLength = x.text.QueryLength, x.text.DocumentLength
	if e := m.Expansion; e != nil && e.Strategy == "fixed" { // which says it
		m.QueryLength = 0
	}
	spec.MultiVector = &m
}

// amplified is what a loss multiplies products of vectors of length 1 by: its scale, and of a MaxSim, which sums them, the number of a query's.
func (x *Run) amplified(l Loss) float64 {
	if l.vectors && l.compares() == string(loss.MaxSim) {
		return l.Scale * float64(max(1, x.text.QueryLength))
	}
	return l.Scale
}
