package recipe

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"contraflow/io/tensorboard"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// A model of kind sparse gives sparse embeddings, by its head for masked language modelling: see transformer.MLMHead for what they are and loss.Flops for
// what keeps them sparse. Its losses are those of any embedder, with the defaults of sentence-transformers' sparse ones.

// Flops is what is added to a loss of sparse embeddings; see loss.Flops.
type Flops struct {
	Query             float64 `yaml:"query"`
	Document          float64 `yaml:"document"`
	QueryThreshold    int     `yaml:"query_threshold,omitempty"` // texts with no more active features are left out; 0: none are
	DocumentThreshold int     `yaml:"document_threshold,omitempty"`
	DocumentOnly      bool    `yaml:"document_only,omitempty"` // queries are documents too
	Schedule          string  `yaml:"schedule"`                // quadratic or linear: how the weights grow
	WarmupRatio       float64 `yaml:"warmup_ratio"`            // a part of the run's steps, in which they do; 0: they are what they are from the first step on
}

// defaultFlops are those of sentence-transformers' trainer.
func defaultFlops() Flops { return Flops{Schedule: "quadratic", WarmupRatio: 1. / 3} }

func (f *Flops) decode(d *decoder, path string, n *node) {
	*f = defaultFlops()
	d.structure(path, n, reflect.ValueOf(f).Elem())
}

// steps is how many of a run's the weights grow in, as the peer counts them: at least one.
func (f *Flops) steps(all int) int {
	if f.WarmupRatio == 0 || all == 0 {
		return 0
	}
	return max(1, int(f.WarmupRatio*float64(all)))
}

// added is a loss with it.
func (f *Flops) added(l loss.RowSplitter, o driving) loss.RowSplitter {
	return loss.Flops{
		Loss: l.(loss.RowMean), Query: f.Query, Document: f.Document, QueryAbove: f.QueryThreshold, DocumentAbove: f.DocumentThreshold,
		Together: f.DocumentOnly, Warmup: f.steps(o.steps), Linear: f.Schedule == "linear",
	}
}

// defaultSparse are the defaults that are otherwise for sparse embeddings: sentence-transformers'.
func (c *checker) defaultSparse(l *Loss, at string) {
	k := l.kind()
	c.require(l.Matryoshka == nil, at+".matryoshka", "is not for model.kind: sparse, whose features are tokens: the first of them are as good as any others")
	if k.names[0] == "mnrl" {
		if c.find(at+".similarity") == nil {
			l.Similarity = "dot"
		}
		if c.find(at+".scale") == nil && c.find(at+".temperature") == nil {
			l.Scale = 1
		}
	}
	if k.names[0] == "distill_kl" && c.find(at+".temperature") == nil {
		l.Temperature = 2
	}
}

func (c *checker) checkFlops(r *Recipe, l *Loss, at string) {
	f, key := l.Flops, at+".flops"
	if f == nil {
		return
	}
	c.require(r.Model.Kind == "sparse", key, "is for model.kind: sparse")
	c.words(key+".schedule", "quadratic", "linear")
	for _, x := range []struct {
		key string
		v   float64
	}{{"query", f.Query}, {"document", f.Document}} {
		c.require(x.v >= 0, key+"."+x.key, "is %v, want a number of at least 0, such as 5e-5 for queries and 3e-5 for documents", x.v)
	}
	c.require(f.QueryThreshold >= 0, key+".query_threshold", "is negative; 0 leaves out none")
	c.require(f.DocumentThreshold >= 0, key+".document_threshold", "is negative; 0 leaves out none")
	c.require(f.WarmupRatio >= 0 && f.WarmupRatio <= 1, key+".warmup_ratio", "is %v, want a part of the steps, 0 to 1", f.WarmupRatio)
	c.require(!f.DocumentOnly || f.Query == 0 && f.QueryThreshold == 0, key+".document_only", "makes all texts documents, and needs %s.query and query_threshold to be 0, or left out", key)
	c.require(!r.singleTexts(l) || f.DocumentOnly || f.Document == 0, key+".document", "%s.name: %s takes single texts, which are queries: with %s.document_only: true they are documents", at, l.Name, key)
}

// openSparse finds the head for masked language modelling, and the weights of queries' tokens.
func (x *Run) openSparse() (head transformer.MLMHead, queries transformer.QueryWeights, err error) {
	m, f, c := x.Recipe.Model, x.folder, x.config
	twice := m.ActivationFunction == "log1p_relu"
	if s := f.Splade; s != nil {
		if m.ActivationFunction != "" && twice != s.Twice {
			return head, queries, fmt.Errorf("model.activation_function: is %s, and the model was trained with another: leave it out", m.ActivationFunction)
		}
		twice = s.Twice
	}
	if err = f.CheckSparse(); err == nil {
		head, err = c.MLM(f.Config, twice)
	}
	if err != nil {
		return head, queries, fmt.Errorf("model.path: %w", err)
	}
	c.MLMHead = head
	if queries, err = x.openQueries(c); err != nil {
		return head, queries, err
	}
	if c.TiedDecoder() {
		err = x.Recipe.Mesh.refuses("is not for sparse embeddings whose decoder is the word embeddings, all of which have a gradient in every sub-batch")
	}
	return head, queries, err
}

// noteSparse says which datasets' losses have nothing that keeps embeddings sparse.
func (x *Run) noteSparse() {
	r := &x.Recipe
	if r.Model.Kind != "sparse" || x.own.loss != nil {
		return
	}
	missing := map[string][]string{} // datasets, by their losses' keys
	n := 0
	for i := range r.Data.Train {
		if !slices.ContainsFunc(r.termsOf(i), func(l stated) bool { return l.Flops.keeps(x.config.Queries.There) }) {
			missing[r.lossKey(i)] = append(missing[r.lossKey(i)], fmt.Sprintf("data.train[%d]", i))
			n++
		}
	}
	for i := range r.Data.Train {
		sources := missing[r.lossKey(i)]
		if len(sources) == 0 || sources[0] != fmt.Sprintf("data.train[%d]", i) { // it was said of the first
			continue
		}
		terms := r.termsOf(i)
		at, of, weights, why := terms[0], "embeddings", "{query: 5e-5, document: 3e-5}", ""
		if k := slices.IndexFunc(terms, func(l stated) bool { return l.Flops != nil }); k >= 0 {
			at, why = terms[k], fmt.Sprintf(", as the weights of %s.flops are 0", terms[k].key)
		}
		if x.config.Queries.There {
			if at.Flops != nil {
				why = fmt.Sprintf(", as %s.flops.document is 0", at.key)
			}
			weights = "{document: 3e-5}"
		}
		if at.Flops != nil && at.Flops.DocumentOnly || r.singleTexts(&at.Loss) {
			weights = "{document: 3e-5, document_only: true}"
		}
		if n < len(r.Data.Train) || len(missing) > 1 {
			of = "embeddings of " + strings.Join(sources, ", ")
		}
		x.obs.note("nothing keeps %s sparse%s: %s.flops: %s does", of, why, at.key, weights)
	}
}

// keeps tells whether it keeps a model's embeddings sparse. Queries that are weights of tokens have no more features than tokens, and what is added for them
// changes nothing of documents.
func (f *Flops) keeps(weighed bool) bool {
	return f != nil && (f.Document > 0 || f.Query > 0 && !weighed)
}

// singleTexts tells whether the rows of a loss are single texts, which are queries.
func (r *Recipe) singleTexts(l *Loss) bool {
	k := l.kind()
	return k.single || k.takesSingle && !slices.ContainsFunc(r.Data.Train, func(s Source) bool { return s.Positive != "" })
}

// pooled says how a model makes an embedding of hidden states.
func pooled(m *transformer.Model) string {
	if !m.Config.MLMHead.None() {
		of := ""
		if q := m.Config.Queries; q.There {
			of = ", queries' by weights of tokens alone" + map[bool]string{true: ", which are frozen"}[q.Frozen]
		}
		return fmt.Sprintf("sparse embeddings of %d features%s", m.Config.Vocab, of)
	}
	return m.Head.Pooling.String() + " pooling" + map[bool]string{true: " without the prompt's tokens"}[m.Head.SkipPrompt]
}

// sparsity takes over what a step has found, as far as it is there.
func (m *Metrics) sparsity(s *loss.Sparsity) {
	if s == nil {
		return
	}
	figure := func(v float64, batches int) *float64 {
		if batches == 0 {
			return nil
		}
		return &v
	}
	has := s.Batches
	m.QueryActive, m.DocumentActive = figure(s.QueryActive, has.QueryActive), figure(s.DocumentActive, has.DocumentActive)
	m.QueryFlops, m.DocumentFlops = figure(s.QueryFlops, has.QueryFlops), figure(s.DocumentFlops, has.DocumentFlops)
	m.Regularizer = &s.Added
}

// sparseScalars are a step's figures of sparse embeddings for TensorBoard.
func (m *Metrics) sparseScalars() (out []tensorboard.Scalar) {
	for _, x := range []struct {
		tag string
		v   *float64
	}{
		{"query_active", m.QueryActive}, {"document_active", m.DocumentActive}, {"query_flops", m.QueryFlops}, {"document_flops", m.DocumentFlops}, {"regularizer", m.Regularizer},
	} {
		if x.v != nil {
			out = append(out, tensorboard.Scalar{Tag: "sparse/" + x.tag, Value: *x.v})
		}
	}
	return out
}

// watchSparse says once that no text has an active feature: embeddings of 0 have no gradient.
func (j *journal) watchSparse(m Metrics) {
	if m.QueryActive == nil || *m.QueryActive > 0 || m.DocumentActive != nil && *m.DocumentActive > 0 || j.watched.zero {
		return
	}
	j.watched.zero = true
	j.obs.note("all embeddings are 0: no text of step %d has an active feature, and what is 0 has no gradient; begin again with smaller weights in loss.flops or a smaller optimizer.lr", m.Step)
}
