package recipe

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/tokenize"
)

// HeldOut are rows that nothing trains on, of which the loss is measured where evaluations are due: in batches of batch.global_size in the files'
// order, the last one with what remains.
type HeldOut struct {
	Name              string   `yaml:"name,omitempty"` // "": by its path
	Path              []string `yaml:"path" path:"~"`
	Query             string   `yaml:"query"`
	Positive          string   `yaml:"positive"`
	Negatives         []string `yaml:"negatives,omitempty"`
	NegativesPerQuery Count    `yaml:"negatives_per_query,omitempty"` // of lists: the same ones each time
	Documents         string   `yaml:"documents,omitempty"`
	Queries           *Texts   `yaml:"queries,omitempty"`
	Corpus            *Texts   `yaml:"corpus,omitempty"`
	Relevance         string   `yaml:"relevance,omitempty"`
	Weight            string   `yaml:"weight,omitempty"`
	Label             string   `yaml:"label,omitempty"`
	Scores            []string `yaml:"scores,omitempty"`
	Teacher           string   `yaml:"teacher,omitempty"`
	Prompts           *Prompts `yaml:"prompts,omitempty"` // nil: data.train[0]'s
	Loss              *Loss    `yaml:"loss,omitempty"`    // nil: the recipe's
}

// source is what a dataset that trains would be.
func (h HeldOut) source() Source {
	s := Source{
		Path: h.Path, Query: h.Query, Positive: h.Positive, Negatives: h.Negatives, NegativesPerQuery: h.NegativesPerQuery, Documents: h.Documents,
		Queries: h.Queries, Corpus: h.Corpus, Relevance: h.Relevance, Weight: h.Weight, Label: h.Label, Scores: h.Scores, Teacher: h.Teacher, Prompts: h.Prompts,
	}
	s.judgements()
	return s
}

func (h HeldOut) name() string {
	if len(h.Path) == 0 {
		return h.Name
	}
	return taskName(h.Name, h.Path[0], 0)
}

// heldOut gives the datasets that the loss is measured on, with their keys.
func (e Eval) heldOut() iter.Seq2[string, HeldOut] {
	return func(yield func(string, HeldOut) bool) {
		for i, h := range e.Loss {
			if !yield(taskKey("loss", i, len(e.Loss)), h) {
				return
			}
		}
	}
}

// lossMetric is the metric of an evaluation whose value is the loss on held-out rows.
const lossMetric = "loss"

// byLoss tells whether that loss decides which evaluation is the best.
func (e Eval) byLoss() bool {
	return len(e.Loss) > 0 && (e.Metric == lossMetric || len(e.tasks()) == 0)
}

// ranks is the metric of tasks of ranking documents.
func (e Eval) ranks() string {
	if e.Metric == lossMetric {
		return Default().Eval.Metric
	}
	return e.Metric
}

// heldOutLoss is the loss on the held-out rows at a key, and where the recipe says it.
func (r Recipe) heldOutLoss(h HeldOut, key string) (Loss, string) {
	if h.Loss != nil {
		return *h.Loss, key + ".loss"
	}
	return r.Loss, "loss"
}

// checkHeldOut checks what the loss is measured on as what trains is checked.
func (c *checker) checkHeldOut(r *Recipe) {
	names := map[string]string{}
	for key, h := range r.Eval.heldOut() {
		if name := h.name(); name != "" {
			if other, ok := names[name]; ok {
				c.fail(key+".name", "%q is that of %s too: several are told apart by their names", name, other)
			}
			names[name] = key
		}
		s := h.source()
		c.checkSource(s, key)
		reranks, known := r.Model.Kind == "reranker", true
		switch {
		case h.Loss != nil && reranks:
			c.checkGroupTerms(h.Loss, key+".loss")
		case h.Loss != nil:
			known = c.checkOwn(r, h.Loss, key+".loss")
		case len(r.Data.Train) > 0 && !slices.ContainsFunc(r.Data.Train, func(s Source) bool { return s.Loss == nil }):
			c.fail(key+".loss", "is missing: no dataset trains with the recipe's loss, as each has its own")
			continue
		}
		l, at := r.heldOutLoss(h, key)
		if reranks {
			c.checkGroupColumns(s, l, key+".", at)
			continue
		}
		for at, t := range l.each(at) {
			if !known || slices.Contains(c.d.failed, at+".name") {
				continue
			}
			c.checkColumns(s, *t, key+".", at)
			if t.kind().m3 {
				c.checkDistilled(s, *t, key+".")
			}
		}
	}
}

// heldOut are held-out rows that a run has read.
type heldOut struct {
	key, name string
	from      string // the files, for the model card
	data      *dataset.Dataset
	text      stages.Text     // how they are read
	rows      *stages.HeldOut // as tokens

	loss Loss   // what is measured
	at   string // where the recipe says it
	own  bool   // it is theirs alone, not what trains
}

func (x *Run) openHeldOut(ctx context.Context) error {
	for key, h := range x.Recipe.Eval.heldOut() {
		if x.passedOver(key, h.source().paths()...) {
			continue
		}
		if err := x.openHeldOutRows(ctx, key, h); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// openHeldOutFiles opens them without reading their rows.
func (x *Run) openHeldOutFiles(ctx context.Context, key string, h HeldOut) (*heldOut, error) {
	l, at := x.Recipe.heldOutLoss(h, key)
	if err := x.checkDims(l, at); err != nil {
		return nil, err
	}
	if x.reranker != nil {
		if err := x.checkLayers(l, at); err != nil {
			return nil, err
		}
	}
	text, err := x.heldOutText(h)
	if err != nil {
		return nil, err
	}
	files := h.source().files(l, false)
	files.CheckText, files.Splits = text.CheckText(0), dataset.HeldOut
	if err := x.openTexts(ctx, key, h.source(), &files); err != nil {
		return nil, err
	}
	d, err := dataset.Open(x.noting(ctx, key), files)
	if err != nil {
		return nil, err
	}
	x.noteFiles(ctx, key, d)
	if err := x.checkTeacher(l, at, d.TeacherSize()); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &heldOut{key: key, name: h.name(), from: shortNames(h.Path), data: d, own: h.Loss != nil, text: text, loss: l, at: at}, nil
}

func (x *Run) openHeldOutRows(ctx context.Context, key string, h HeldOut) error {
	r := x.Recipe
	held, err := x.openHeldOutFiles(ctx, key, h)
	if err != nil {
		return err
	}
	x.heldOut = append(x.heldOut, held)
	d, l := held.data, held.loss
	held.rows, err = stages.NewHeldOutInBatch(ctx, d, held.text, r.Batch.GlobalSize, r.Train.Seed, l.inBatch())
	if errors.Is(err, dataset.ErrBadRow) {
		return fmt.Errorf("%w; none of the rows that a loss is measured on is left out, so it takes a file without this one", err)
	}
	if err != nil {
		return err
	}
	if err := x.checkLonely(key, d, l, held.at); err != nil {
		return err
	}
	if x.guide != nil && h.Loss == nil {
		held.rows.Guide = x.guide.model
	}
	return nil
}

// checkLonely finds rows that a loss which compares them with each other is not measured on, for they are alone in their batch, and tells of those that have
// fewer others than training's.
func (x *Run) checkLonely(key string, d *dataset.Dataset, l Loss, at string) error {
	by, rows := "", int(d.Rows())
	for at, t := range l.each(at) {
		if x.reranker == nil && !t.kind().rowwise() || t.inBatch() != 0 {
			by = fmt.Sprintf("%s.name: %s", at, t.Name)
		}
	}
	size := x.Recipe.Batch.GlobalSize
	switch alone := alone(d); {
	case by == "":
	case alone && rows == 1:
		return fmt.Errorf("there is one row, and %s compares a row with others: it takes a file of more", by)
	case alone && size == 1:
		return fmt.Errorf("batch.global_size is 1, and %s compares a row with others of its batch", by)
	case alone && rows%size == 1:
		x.obs.note("%s: the last of %d rows is alone in its batch (batch.global_size is %d), where %s finds nothing to compare it with and is 0: the figure is a little lower for it", key, rows, size, by)
	case rows < size:
		x.obs.note("%s: there %s, fewer than batch.global_size, %d: a row has fewer others to be told from than in training, and a lower loss for it", key, spelling.Form(rows, "is", "are")+" "+spelling.Count(rows, "row", "rows"), size)
	}
	return nil
}

// heldOutText says how held-out rows become tokens: as those of data.train[0], but for prompts of their own.
func (x *Run) heldOutText(h HeldOut) (stages.Text, error) {
	text := x.text
	if x.reranker != nil {
		text.Pairs = text.Pairs[:1]
		if h.Prompts != nil {
			spec, err := x.describeReranker(h.Prompts)
			if err != nil {
				return text, err
			}
			text.Pairs = []*tokenize.Pairs{spec.Pairs}
		}
		return text, nil
	}
	text.Prompts = text.Prompts[:1]
	if h.Prompts != nil {
		text.Prompts = []stages.Prompts{stages.Prompts(*h.Prompts)}
	}
	if h.Loss != nil {
		text.Guide = nil // it is the recipe's loss's
	}
	return text, nil
}

// lossOn is what is measured on held-out rows. Of matryoshka it has all dimensions, whatever a step takes.
func (x *Run) lossOn(h *heldOut) loss.Loss {
	if x.own.loss != nil && !h.own {
		return x.own.loss
	}
	return h.loss.objective(driving{all: true})
}

// measureLosses measures the loss on held-out rows, on rank 0. One that is not finite is no figure: a note says so.
func (x *Run) measureLosses(ctx context.Context, engine *embedder.Engine, ev *Evaluation) error {
	sum, all := 0.0, map[string]float64{}
	for _, h := range x.heldOut {
		r, err := h.rows.Loss(ctx, engine, x.lossOn(h))
		if errors.Is(err, loss.ErrNotFinite) {
			x.obs.note("%s has no figure this time: %v", h.key, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.key, err)
		}
		if r == nil {
			continue
		}
		v := r.Mean()
		sum, all[h.name] = sum+v, v
		ev.results = append(ev.results, hfmodel.Metric{Dataset: h.from, Name: lossMetric, Value: v})
	}
	if n := len(x.heldOut); n == 0 || len(all) < n {
		return nil
	} else if mean := sum / float64(n); n > 1 {
		ev.Loss, ev.Losses = &mean, all
	} else {
		ev.Loss = &mean
	}
	return nil
}

// lossIdentity names what the loss is measured on, and what it is.
func (x *Run) lossIdentity() (string, error) {
	h := xxh3.New()
	for _, held := range x.heldOut {
		fmt.Fprint(h, stages.Settings(x.lossOn(held)), " ")
		if held.rows.Guide != nil {
			fmt.Fprint(h, x.guide.hash, " ")
		}
		fmt.Fprint(h, held.rows.Digest(), " ")
	}
	return lossMetric + " on " + stages.Digest(h), nil
}

// better tells whether the value is better than another one by more than so much: a loss that is lower, any other metric that is higher.
func (e Evaluation) better(than, by float64) bool {
	if e.Metric == lossMetric {
		return e.Value < than-by
	}
	return e.Value > than+by
}

// what is the metric's name among a run's other figures, one of which is a loss as well.
func (e Evaluation) what() string {
	if e.Metric == lossMetric {
		return "held-out loss"
	}
	return e.Metric
}

// lossText is the loss on held-out rows, and of several datasets each one's.
func (e Evaluation) lossText() string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(e.Losses)) {
		each = append(each, fmt.Sprintf("%s %.4f", name, e.Losses[name]))
	}
	text := fmt.Sprintf("held-out loss %.4f", *e.Loss)
	if each != nil {
		text += " (" + strings.Join(each, ", ") + ")"
	}
	return text
}

// Figures are what an evaluation has besides its value: those of several tasks, and the loss on held-out rows, which has no name but its metric where
// it is that of all datasets.
func (e Evaluation) Figures() []TaskValue {
	all := slices.Clone(e.Tasks)
	if e.Loss != nil && e.Metric != lossMetric {
		all = append(all, TaskValue{Metric: lossMetric, Value: *e.Loss})
	}
	for _, name := range slices.Sorted(maps.Keys(e.Losses)) {
		all = append(all, TaskValue{Name: name, Metric: lossMetric, Value: e.Losses[name]})
	}
	return all
}
