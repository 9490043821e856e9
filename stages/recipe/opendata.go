package recipe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/loss"
)

// trainingData is what a run has opened of data.train.
type trainingData struct {
	data    []*dataset.Dataset
	parts   []dataset.Part      // the same as batches take them
	skipped []*dataset.RowError // all of them, and why
	longest int                 // bytes of the longest text; 0: nobody has looked
	sampler *dataset.Mixer
	plan    stages.Plan
}

func (t *trainingData) close() error {
	var errs []error
	for _, d := range t.data {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// rows is how many there are.
func (t *trainingData) rows() (n int64) {
	for _, d := range t.data {
		n += d.Rows()
	}
	return n
}

// usable is how many rows of a dataset can be used.
func (t *trainingData) usable(source int) int64 {
	return t.data[source].Rows() - int64(len(t.parts[source].Skip))
}

// files are each dataset's.
func (t *trainingData) files() (out [][]dataset.File) {
	for _, d := range t.data {
		out = append(out, d.Files())
	}
	return out
}

// undrawn tells whether one of several datasets has had no batch yet.
func (t *trainingData) undrawn(source int) bool {
	parts := t.sampler.Cursor().Parts
	return source < len(parts) && parts[source].Epoch == 0 && parts[source].Batch == 0
}

func (x *Run) openData(ctx context.Context) error {
	for i := range x.Recipe.Data.Train {
		p, err := x.openSource(ctx, i)
		if err != nil {
			return fmt.Errorf("data.train[%d]: %w", i, err)
		}
		x.parts = append(x.parts, p)
	}
	err := x.planBatches()
	if errors.Is(err, dataset.ErrBatchTooLarge) || errors.Is(err, dataset.ErrBadRow) {
		return x.leftOut(err)
	}
	return err
}

// planBatches makes batches of all datasets.
func (x *Run) planBatches() error {
	r := x.Recipe
	order := dataset.SamplerConfig{
		Seed: r.Train.Seed, GlobalSize: r.Batch.GlobalSize, Epochs: int(math.Ceil(float64(r.Train.Epochs))), Shuffle: r.Data.Shuffle, NoDuplicates: r.Batch.NoDuplicates, DropLast: r.Batch.DropLast,
		Counting: x.obs.Counting,
	}
	if x.shared.ranks > 1 {
		order.Counts = &x.shared.counts
	}
	var err error
	x.sampler, err = dataset.NewMixer(x.parts, order, r.mixing())
	if m, of := r.mixing(), (*dataset.WeightError)(nil); m.Kind == dataset.Tempered && errors.As(err, &of) {
		return fmt.Errorf("data.mixing.temperature: is %v, which is too small: data.train[%d] has %d rows, and rows^(1/temperature) is its weight", m.Temperature, of.Part, x.data[of.Part].Rows())
	}
	if len(x.parts) == 1 && (errors.Is(err, dataset.ErrNoFiles) || errors.Is(err, dataset.ErrBadRow)) {
		err = &dataset.PartError{Err: err} // of the only one it is the error itself
	}
	if err != nil {
		return byKey(err)
	}
	x.plan = stages.Plan{Data: x.data, Sampler: x.sampler, Accumulate: r.Batch.Accumulate, MaxSteps: r.Train.MaxSteps, Rank: x.ranks.Rank(), Ranks: x.ranks.Size()}
	if e := float64(r.Train.Epochs); e != math.Trunc(e) {
		x.plan.MaxSteps = x.plan.StepsOf(e)
	}
	return x.openInBatch()
}

// skipRows is the way out where a row can't be used.
const skipRows = "data.on_error: skip lists rows that can't be used in skipped.jsonl and goes on without them"

// orSkip goes on from an error, of a row that can't be used, if it is one, with the way out.
func (x *Run) orSkip(err error) error {
	if x.Recipe.Data.OnError == "stop" && errors.Is(err, dataset.ErrBadRow) {
		return fmt.Errorf("%w; %s", err, skipRows)
	}
	return err
}

// sourceError is a mixer's error about one of several datasets, by the key of that.
type sourceError struct{ *dataset.PartError }

func (e *sourceError) Error() string { return fmt.Sprintf("data.train[%d]: %v", e.Part, e.Err) }

func byKey(err error) error {
	if of := (*dataset.PartError)(nil); errors.As(err, &of) {
		return &sourceError{of}
	}
	return err
}

// openSource opens a dataset and makes the first pass over it, if something needs it.
func (x *Run) openSource(ctx context.Context, i int) (p dataset.Part, err error) {
	r := x.Recipe
	d, err := x.openFiles(ctx, i, r.Data.Train[i])
	if err != nil {
		return p, err
	}
	x.data = append(x.data, d)
	if !r.Batch.NoDuplicates && !r.Batch.ByLength && r.Data.OnError != "skip" {
		return dataset.Part{Layout: d.Layout()}, nil
	}
	index, err := x.firstPass(ctx, i, d)
	if err != nil {
		return p, x.orSkip(err)
	}
	return x.part(d, index), nil
}

// shared is what the ranks of a process have in common, for it takes memory for each text: the first passes over the datasets, and the texts that rows
// name by ids, which rank 0 reads while the others wait for it; and the numbers of batches of epochs.
type shared struct {
	ranks  int
	passes []*firstPass
	mu     sync.Mutex
	texts  map[string]*sharedTexts
	counts dataset.Counts
}

type firstPass struct {
	done  chan struct{}
	of    dataset.Hash128 // the data
	index *dataset.Index  // until all ranks have taken it
	err   error
	left  atomic.Int32 // ranks
}

func newShared(datasets, ranks int) *shared {
	s := &shared{ranks: ranks, texts: map[string]*sharedTexts{}}
	for range datasets {
		p := &firstPass{done: make(chan struct{})}
		p.left.Store(int32(ranks))
		s.passes = append(s.passes, p)
	}
	return s
}

// firstPass looks at all rows of a dataset. In a process of several ranks rank 0 does, and the others wait for it.
func (x *Run) firstPass(ctx context.Context, i int, d *dataset.Dataset) (*dataset.Index, error) {
	of := d.Layout().Fingerprint
	read := func() (*dataset.Index, error) {
		return d.Index(ctx, dataset.IndexConfig{Progress: x.obs.Index, SkipBad: x.Recipe.Data.OnError == "skip"})
	}
	if x.shared.ranks == 1 {
		return read()
	}
	p := x.shared.passes[i]
	if x.ranks.Rank() == 0 {
		p.of = of
		p.index, p.err = read()
		close(p.done)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	index := p.index
	if p.left.Add(-1) == 0 {
		p.index = nil
	}
	if p.of != of { // the files have changed meanwhile, which agree will say
		return read()
	}
	return index, p.err
}

// openFiles opens a dataset, which is src.
func (x *Run) openFiles(ctx context.Context, i int, src Source) (*dataset.Dataset, error) {
	r := x.Recipe
	ctx = x.noting(ctx, fmt.Sprintf("data.train[%d]", i))
	tokens, err := x.prepared(ctx, i, src)
	if err != nil {
		return nil, err
	}
	files := src.files(r.lossOf(i), tokens)
	files.CheckNegatives = x.ofRecipe(files.CheckNegatives, r.lossKey(i))
	text := x.text
	if r.Data.OnError == "skip" {
		text.TooLong = "" // a list of reasons needs no ways out
	}
	files.CheckText = text.CheckText(i)
	if err := x.openTexts(ctx, fmt.Sprintf("data.train[%d]", i), src, &files); err != nil {
		return nil, err
	}
	d, err := dataset.Open(ctx, files)
	if err != nil {
		return nil, err
	}
	x.noteFiles(ctx, fmt.Sprintf("data.train[%d]", i), d)
	if err := x.checkTeacher(r.lossOf(i), r.lossKey(i), d.TeacherSize()); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// noteFiles tells what a dataset has noted of its files, and of a tokenizer that does not know their texts.
func (x *Run) noteFiles(ctx context.Context, key string, d *dataset.Dataset) {
	if x.Main() {
		for _, n := range d.Notes() {
			x.obs.note("%s: %s", key, n)
		}
		if share, token := x.unknown(ctx, d); share > mostUnknown {
			x.obs.note("%s: %.0f %% of the tokens of its first rows are %s, which stands for all that the tokenizer does not know: a model whose vocabulary is of their language, or writing, reads them", key, 100*share, token)
		}
	}
}

// mostUnknown is the share of unknown tokens from which on it is told, unknownRows of how many rows.
const mostUnknown, unknownRows = 0.05, 256

// unknown is the share of a dataset's first rows' tokens that are the unknown one, and its text. What can't be read is for others to tell.
func (x *Run) unknown(ctx context.Context, d *dataset.Dataset) (share float64, token string) {
	id, ok := x.tok.UnknownID()
	if !ok || d.Tokens() != nil {
		return 0, ""
	}
	b, err := d.ReadBlock(ctx, 0)
	if err != nil {
		return 0, ""
	}
	all, unknown := 0, 0
	var texts []string
	var ids []int32
	_, rows := d.BlockRows(0)
	for row := range min(rows, unknownRows) {
		if b.Check(row) != nil {
			continue
		}
		for column := range d.Lists() {
			texts = b.Texts(texts[:0], row, column)
			for _, text := range texts {
				ids, _ = x.tok.Append(ids[:0], text, 0)
				all += len(ids) - x.tok.Specials(false)
				for _, t := range ids {
					if t == id {
						unknown++
					}
				}
			}
		}
	}
	return float64(unknown) / float64(max(1, all)), x.tok.Token(id)
}

// part is a dataset as batches take it, after the first pass.
func (x *Run) part(d *dataset.Dataset, index *dataset.Index) dataset.Part {
	p := dataset.Part{Layout: d.Layout(), Skip: index.Skip()}
	if x.Recipe.Batch.NoDuplicates {
		p.Texts = index
	}
	if x.Recipe.Batch.ByLength {
		p.Lengths = index
	}
	x.skipped = append(x.skipped, index.Bad()...)
	x.longest = max(x.longest, index.Longest())
	return p
}

// files is a source as package dataset has it, for a loss; tokens: ids that prep has made are read in the texts' place.
func (s Source) files(l Loss, tokens bool) dataset.Source {
	margins, others := false, false // who reads scores
	for _, l := range l.each("") {
		_, scores, _ := l.reads()
		margins, others = margins || l.Name == "margin_mse", others || scores && l.Name != "margin_mse"
	}
	return dataset.Source{
		Margins: margins && !others, Paths: s.Path, Query: s.Query, Positive: s.Positive, Negatives: s.Negatives, NegativesPerQuery: int(s.NegativesPerQuery), Documents: s.Documents,
		Relevance: s.Relevance, Weight: s.Weight, Label: s.Label, Scores: s.Scores, Teacher: s.Teacher, Tokens: tokens,
		CheckLabel: asking(l, loss.CheckLabel), CheckScore: asking(l, loss.CheckScore), CheckNegatives: asking(l, loss.CheckNegatives),
	}
}

// checkDims finds a matryoshka that is wider than the model's embeddings, of the loss at a key.
func (x *Run) checkDims(l Loss, at string) error {
	for key, l := range l.each(at) {
		if m := l.Matryoshka; m != nil && slices.Max(m.Dims) > x.model.EmbeddingSize() {
			return fmt.Errorf("%s.matryoshka.dims: are %v, and the model's embeddings have %d dimensions", key, m.Dims, x.model.EmbeddingSize())
		}
	}
	return nil
}

// checkTeacher finds a teacher whose embeddings are not of the size that the loss compares: the model's, or of matryoshka's first features.
func (x *Run) checkTeacher(l Loss, at string, size int) error {
	for key, l := range l.each(at) {
		want := []int{x.model.EmbeddingSize()}
		if size == 0 || size == want[0] || !l.kind().teacher {
			continue
		}
		if m := l.Matryoshka; m != nil {
			want = m.Dims
		}
		for _, n := range want {
			if n != size {
				return fmt.Errorf("teacher: its embeddings have %d dimensions, and the loss compares them with %d; %s.matryoshka: {dims: [%d]} takes that many of the model's", size, n, key, size)
			}
		}
	}
	return nil
}

// prepared reports whether a dataset's token ids were made by contraflow prep, just as they would be made here: ids of another tokenizer,
// length or prompt are an error.
func (x *Run) prepared(ctx context.Context, i int, src Source) (bool, error) {
	wanted := src.IDs != nil && *src.IDs
	if src.IDs != nil && !wanted || src.Queries != nil || src.Corpus != nil {
		return false, nil
	}
	ours, missing := x.text.Prepared(i, len(src.Negatives) > 0)
	if missing != nil {
		if wanted {
			return false, fmt.Errorf("ids: %w", missing)
		}
		return false, nil
	}
	for _, name := range append([]string{src.Query, src.Positive}, src.Negatives...) {
		if strings.ContainsAny(name, "{}") && !wanted {
			return false, nil
		}
	}
	info, err := dataset.PreparedTokens(ctx, src.Path)
	if err != nil || info == nil {
		if wanted && err == nil {
			err = fmt.Errorf("ids: %s has no token ids: contraflow prep writes them, with tokenize.model", strings.Join(src.Path, ", "))
		}
		return false, err
	}
	if err := stages.CheckTokens(*info, ours, "this recipe"); err != nil {
		return false, fmt.Errorf("%w. Run contraflow prep again with tokenize.model, max_length and prompts of this recipe, or set data.train[%d].ids: false to tokenize the texts here", err, i)
	}
	return true, nil
}

// mixing is how datasets take turns.
func (r Recipe) mixing() dataset.Mixing {
	m := dataset.Mixing{Kind: r.Data.Mixing.Kind, Temperature: r.Data.Mixing.Temperature}
	if m.Kind == dataset.Weighted {
		for _, s := range r.Data.Train {
			m.Weights = append(m.Weights, s.weight())
		}
	}
	return m
}

// batchRows is how many rows a batch has at most, over all ranks.
func (x *Run) batchRows() int64 { return min(int64(x.Recipe.Batch.GlobalSize), x.rows()) }

// columns is how many texts a row has at most.
func (x *Run) columns() (n int) {
	for i, d := range x.data {
		n = max(n, d.MostTexts()+x.inBatch(i))
	}
	return n
}
