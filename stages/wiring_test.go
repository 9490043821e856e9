package stages_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// plain is an update that trains.
var plain = stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3}

// wiring is what a graph is to lack, or has instead.
type wiring struct {
	header, gather, scatter, sync bool
	with                          bool // stages.With
	size                          stages.Size
	first, accumulate             int // Plan.FirstStep and Accumulate
	seed                          uint64
	order                         dataset.SamplerConfig
	run                           []pipeline.RunOption

	// Stages of one's own behind Ingest, Tokenize and Assemble; nil: none.
	rows   func(*stages.Chunk) *stages.Chunk
	tokens func(*stages.TokenChunk) *stages.TokenChunk
	batch  func(*stages.Batch) *stages.Batch
}

// own adds a stage of one's own, if there is one.
func own[T any](g *pipeline.Graph, name string, in pipeline.Port[T], f func(T) T) pipeline.Port[T] {
	if f == nil {
		return in
	}
	return pipeline.Map(g, name, in, func(_ *pipeline.Task, x T) (T, error) { return f(x), nil })
}

// wire makes a training graph of what there is, and runs it.
func wire(ctx context.Context, p parts, ranks *stages.Replicas, lacks wiring, text stages.Text, u stages.Update, l loss.Loss, more ...func(*pipeline.Graph, pipeline.Port[stages.StepResult], *stages.Encoder)) (norms []float64, err error) {
	g := pipeline.New("wired")
	var opts []stages.EncoderOption
	if !lacks.with {
		opts = append(opts, stages.With(ranks))
	}
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1+lacks.seed, opts...)
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return nil, err
	}
	defer data.Close()
	order := lacks.order
	order.GlobalSize, order.Epochs = 4, max(1, order.Epochs)
	sampler, err := dataset.NewMixer([]dataset.Part{{Layout: data.Layout()}}, order, dataset.Mixing{})
	if err != nil {
		return nil, err
	}
	size := lacks.size
	if size == (stages.Size{}) {
		size.Rows = 2
	}
	chunks := own(g, "own rows", stages.Ingest(g, stages.Plan{Data: []*dataset.Dataset{data}, Sampler: sampler, Rank: ranks.Rank(), Ranks: ranks.Size(), FirstStep: lacks.first, Accumulate: lacks.accumulate}), lacks.rows)
	batches := own(g, "own batches", stages.Assemble(g, own(g, "own tokens", stages.Tokenize(g, chunks, text), lacks.tokens)), lacks.batch)
	if !lacks.header {
		batches = stages.Header(g, batches, size, ranks)
	}
	subs := stages.Split(g, batches, size)
	embedded := stages.Embed(g, subs, enc)
	if !lacks.gather {
		embedded = stages.Gather(g, embedded, enc)
	}
	grads := stages.Loss(g, batches, embedded, enc, l)
	if !lacks.scatter {
		grads = stages.Scatter(g, grads, enc)
	}
	sums := stages.Backward(g, subs, grads, enc)
	if !lacks.sync {
		sums = stages.Sync(g, sums, enc)
	}
	steps, err := stages.Apply(g, sums, grads, enc, u)
	if err != nil {
		return nil, err
	}
	pipeline.Sink(g, "norms", steps, func(_ *pipeline.Task, s stages.StepResult) error {
		norms = append(norms, s.GradNorm)
		return nil
	})
	for _, add := range more {
		add(g, steps, enc)
	}
	plan, err := g.Build(pipeline.Devices(stages.OnDevice(p.device)))
	if err != nil {
		return nil, err
	}
	err = plan.Run(ctx, lacks.run...)
	return norms, err
}

// Who has forgotten what trains hears of that, not of a port.
func TestTrainsNothing(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	g := pipeline.New("embeds")
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	batches := stages.Assemble(g, stages.Tokenize(g, stages.Ingest(g, stages.Plan{}), p.text))
	pipeline.Sink(g, "look", stages.Embed(g, stages.Split(g, batches, stages.Size{Rows: 2}), enc), func(*pipeline.Task, stages.Embedded) error { return nil })
	if _, err = g.Build(pipeline.Devices(stages.OnDevice(p.device))); err == nil || !strings.Contains(err.Error(), "the graph trains nothing: stages.Loss, Backward and Apply do") {
		t.Error(err)
	}
}

// A stage measures the model after the steps that it is asked to, on one rank as on two, where the first one knows, and as the model is then.
func TestEvaluateStage(t *testing.T) {
	judged := &dataset.Retrieval{QueryIDs: []string{"1", "2"}, Queries: []string{"what barks", "what swims"}, DocIDs: []string{"a", "b", "c", "d"}, Docs: []string{"fish swim", "a frog hops", "a dog barks", "a cat"},
		Judgements: []dataset.Judgement{{Query: 0, Doc: 2, Relevance: 1}, {Query: 1, Doc: 0, Relevance: 1}}}
	u := plain
	u.LR = 0.1
	measured := func(ranks *stages.Replicas) (all []*evaluate.Result, end *evaluate.Result) {
		p, err := openParts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		task, err := embedder.NewTask(t.Context(), judged, embedder.Text{Tokenizer: p.text.Tokenizer})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire(t.Context(), p, ranks, wiring{}, p.text, u, loss.InfoNCE{}, func(g *pipeline.Graph, steps pipeline.Port[stages.StepResult], enc *stages.Encoder) {
			pipeline.Sink(g, "look twice", stages.Evaluate(g, steps, enc, task, func(step int) bool { return step == 1 }), func(*pipeline.Task, *evaluate.Result) error { return nil })
			pipeline.Sink(g, "look", stages.Evaluate(g, steps, enc, task, func(step int) bool { return step == 1 }), func(_ *pipeline.Task, r *evaluate.Result) error {
				all = append(all, r)
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		s, err := p.device.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		e := &embedder.Engine{Model: p.model, Stream: s}
		if end, err = task.Evaluate(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Close(), e.CloseStream()); err != nil {
			t.Fatal(err)
		}
		return all, end
	}
	one, end := measured(nil)
	if len(one) != 2 || one[0] != nil || one[1] == nil || !slices.Equal(one[1].Means, end.Means) {
		t.Fatalf("%+v, and the model has %+v in the end", one, end)
	}
	err := local.Run(2, func(w collective.World) error {
		comm, err := collective.Connect(t.Context(), w, collective.Mesh{Replicate: 1, Shard: 2})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(t.Context(), comm, stages.Exchanging{})
		if err != nil {
			return err
		}
		two, _ := measured(ranks)
		if len(two) != 2 || two[0] != nil || (two[1] != nil) != (ranks.Rank() == 0) || two[1] != nil && !slices.Equal(two[1].Means, end.Means) {
			return fmt.Errorf("%+v, want %+v", two, end)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A graph of one of several ranks that lacks what ranks need would train something else, or nothing: it is refused. Alone it lacks nothing.
func TestWiredForRanks(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := wire(t.Context(), p, nil, wiring{header: true, gather: true, scatter: true, sync: true}, p.text, plain, loss.InfoNCE{}); err != nil {
		t.Errorf("alone: %v", err)
	}
	for want, lacks := range map[string]wiring{
		"":                                   {},
		"stages.Header belongs between":      {header: true},
		"no stages.Gather (of Embed's port)": {gather: true},
		"no stages.Scatter (of Loss's)":      {scatter: true},
		"no stages.Sync (of Backward's)":     {sync: true},
		"the batch has rows of 2 ranks, and the encoder is alone":                           {with: true},
		"Plan.Ranks is 2, and the encoder is alone":                                         {with: true, header: true},
		"no stages.Gather (of Embed's port), no stages.Scatter (of Loss's), no stages.Sync": {gather: true, scatter: true, sync: true},
	} {
		err := asRanks(t.Context(), 2, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer p.Close()
			_, err = wire(t.Context(), p, ranks, lacks, p.text, plain, loss.InfoNCE{})
			return err
		})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", lacks, err, want)
		}
	}
}

// always is a schedule of one's own.
type always float64

func (a always) Factor(_, _, _ int) float64 { return float64(a) }

// What would train nothing, or something else than was meant, is an error.
func TestUpdateChecked(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for want, change := range map[string]func(*stages.Update, *stages.Text){
		"":                           func(*stages.Update, *stages.Text) {},
		"no optimizer":               func(u *stages.Update, _ *stages.Text) { u.Optimizer = nil },
		"learning rate is 0":         func(u *stages.Update, _ *stages.Text) { u.LR = 0 },
		"learning rate is -1":        func(u *stages.Update, _ *stages.Text) { u.LR = -1 },
		`Shape is "cosin"`:           func(u *stages.Update, _ *stages.Text) { u.Schedule = optim.Shape("cosin") },
		`"linear", and TotalSteps 0`: func(u *stages.Update, _ *stages.Text) { u.Schedule = optim.Linear },
		"step 1: the schedule's factor, NaN, makes the learning rate NaN": func(u *stages.Update, _ *stages.Text) { u.Schedule = always(math.NaN()) },
		"step 1: the schedule's factor, -1, makes the learning rate -":    func(u *stages.Update, _ *stages.Text) { u.Schedule = always(-1) },
		"MinRatio is 2":                                func(u *stages.Update, _ *stages.Text) { u.Schedule = optim.Curve{Shape: optim.Linear, MinRatio: 2} },
		"learning rate is +Inf":                        func(u *stages.Update, _ *stages.Text) { u.LR = math.Inf(1) },
		"a largest norm of -1":                         func(u *stages.Update, _ *stages.Text) { u.MaxGradNorm = -1 },
		"a largest norm of NaN":                        func(u *stages.Update, _ *stages.Text) { u.MaxGradNorm = math.NaN() },
		"a layer decay of NaN":                         func(u *stages.Update, _ *stages.Text) { u.LayerDecay = math.NaN() },
		`OnNaN is "ignore"`:                            func(u *stages.Update, _ *stages.Text) { u.OnNaN = "ignore" },
		"step 2 is beyond the update's TotalSteps, 1,": func(u *stages.Update, _ *stages.Text) { u.Schedule, u.TotalSteps = optim.Cosine, 1 },
		"AdamW.Betas are [0.9]":                        func(u *stages.Update, _ *stages.Text) { u.Optimizer = optim.AdamW{Betas: []float64{0.9}} },
		"Text has no Tokenizer":                        func(_ *stages.Update, x *stages.Text) { x.Tokenizer = nil },
		"Text.Guide has no Tokenizer":                  func(_ *stages.Update, x *stages.Text) { x.Guide = &stages.Text{} },
		"one of Text.Pairs is nil":                     func(_ *stages.Update, x *stages.Text) { x.Pairs = make([]*tokenize.Pairs, 1) },
		"-2 warm-up steps":                             func(u *stages.Update, _ *stages.Text) { u.WarmupSteps = -2 },
		"a layer decay of -0.5":                        func(u *stages.Update, _ *stages.Text) { u.LayerDecay = -0.5 },
		"a maximum length of 2 tokens leaves no room":  func(_ *stages.Update, x *stages.Text) { x.QueryLength = 2 },
		"Text.DocumentLength is 17 tokens, and the model was trained with 16 positions": func(_ *stages.Update, x *stages.Text) { x.Positions, x.DocumentLength = 16, 17 },
		"Text.QueryLength is 64 tokens": func(_ *stages.Update, x *stages.Text) { x.Positions, x.QueryLength = 16, 64 },
		"a maximum length of -1 tokens": func(_ *stages.Update, x *stages.Text) { x.DocumentLength = -1 },
	} {
		u, text := plain, p.text
		change(&u, &text)
		_, err := wire(t.Context(), p, nil, wiring{}, text, u, loss.InfoNCE{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, tt := range []struct {
		loss loss.Loss
		want string // of Build
	}{
		{nil, `graph "wired": stage "loss": stages.Loss has been given no loss: it is nil`},
		{loss.Triplet{Margin: -1}, `graph "wired": stage "loss": margin is -1, want 0 or more`},
		{loss.Groups{Name: "lisst_mle"}, `graph "wired": stage "loss": there is no loss "lisst_mle" for rerankers: want cross_entropy, `},
	} {
		if _, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, tt.loss); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	if _, err := stages.NewEncoder(pipeline.New("none"), nil, 0, 0, 0); err == nil || !strings.Contains(err.Error(), "no model") {
		t.Error(err)
	}
}

// A run that rolls back ends with an error that says at which step, whose result is enough to go on behind it.
func TestRollback(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	u := plain
	u.OnNaN = stages.RollbackOnNaN
	heavy := func(b *stages.Batch) *stages.Batch {
		b.Weights = slices.Repeat([]float64{math.Inf(1)}, len(b.Rows))
		return b
	}
	norms, err := wire(t.Context(), p, nil, wiring{order: dataset.SamplerConfig{Epochs: 2}}, p.text, u, loss.InfoNCE{})
	if err != nil || len(norms) < 3 {
		t.Fatalf("a run in which nothing is not finite ends after %d steps: %v", len(norms), err)
	}
	norms, err = wire(t.Context(), p, nil, wiring{batch: heavy}, p.text, u, loss.InfoNCE{})
	var back *stages.RollbackError
	if !errors.As(err, &back) || back.Result.Step != 0 || !back.Result.Skipped || len(norms) != 1 || !strings.Contains(err.Error(), `stage "update", item 0: step 1 is not finite`) {
		t.Fatalf("%v after %d steps", err, len(norms))
	}
	data, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	sampler, err := dataset.NewMixer([]dataset.Part{{Layout: data.Layout()}}, dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, dataset.Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	plan := stages.Plan{Data: []*dataset.Dataset{data}, Sampler: sampler}
	if err := plan.ResumeAfter(stages.StepResult{Step: 1}); err == nil || !strings.Contains(err.Error(), "step 2 does not know where the data goes on") {
		t.Error(err)
	}
	if err := plan.ResumeAfter(back.Result); err != nil || plan.FirstStep != 1 {
		t.Fatalf("%v, going on after %d steps", err, plan.FirstStep)
	}
	if next, ok := sampler.Next(); !ok || next.Index != 1 {
		t.Errorf("the data goes on with batch %d (%v)", next.Index, ok)
	}
}

// Steps that are not finite are skipped, up to ten in a row: one that is between them begins the count anew.
func TestSkippedInARow(t *testing.T) {
	for _, c := range []struct {
		finite, steps int // the step that is finite, and how many there are
		want          string
	}{{6, 14, ""}, {-1, 10, `stage "update", item 10: step 11: `}} {
		p, err := openParts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		u := plain
		u.OnNaN = stages.SkipOnNaN
		step := -1
		heavy := func(b *stages.Batch) *stages.Batch {
			if step++; step != c.finite {
				b.Weights = slices.Repeat([]float64{math.Inf(1)}, len(b.Rows))
			}
			return b
		}
		norms, err := wire(t.Context(), p, nil, wiring{batch: heavy, order: dataset.SamplerConfig{Epochs: 7}}, p.text, u, loss.InfoNCE{})
		if c.want == "" && err != nil || len(norms) != c.steps ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "the 10 steps before were skipped")) {
			t.Errorf("%+v: %v after %d steps", c, err, len(norms))
		}
	}
}

// What a loss draws at random differs from batch to batch, and so within a step of several.
func TestDraws(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var draws []uint64
	l := loss.Host(func(b *loss.Batch, _, _ [][]float32) (loss.Result, error) {
		draws = append(draws, b.Draw)
		return loss.Result{Weight: float64(b.Rows)}, nil
	})
	norms, err := wire(t.Context(), p, nil, wiring{accumulate: 2, order: dataset.SamplerConfig{Epochs: 2}}, p.text, plain, l)
	if err != nil || len(norms) != 2 || len(draws) != 4 {
		t.Fatalf("%v after %d steps with the draws %v", err, len(norms), draws)
	}
	slices.Sort(draws)
	if len(slices.Compact(draws)) != 4 {
		t.Errorf("some draws of 4 batches are the same")
	}
}

// A negative bound of sub-batches is an error, and not no bound, in Split as in Header.
func TestSizeChecked(t *testing.T) {
	for _, c := range []struct {
		stage string
		ranks int
		size  stages.Size
	}{{"split", 1, stages.Size{Rows: -1}}, {"split", 1, stages.Size{Tokens: -5}}, {"header", 2, stages.Size{Rows: 2, Tokens: -5}}} {
		err := asRanks(t.Context(), c.ranks, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer p.Close()
			_, err = wire(t.Context(), p, ranks, wiring{size: c.size}, p.text, plain, loss.InfoNCE{})
			return err
		})
		want := fmt.Sprintf("the sub-batches' Size has Tokens %d and Rows %d: none can be negative", c.size.Tokens, c.size.Rows)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("stage %q", c.stage)) {
			t.Errorf("%+v on %d ranks: %v, want %q of %s", c.size, c.ranks, err, want, c.stage)
		}
	}
}

// A run that goes on counts steps as its plan does, or its schedule would start over or be at its end.
func TestFirstSteps(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, c := range []struct {
		plan, run int
		want      string
	}{
		{5, 5, ""}, {5, 0, "the plan has 5 steps before this one, and the run has 0: set Plan.FirstStep and pipeline.FirstStep both"},
		{0, 5, "the plan has 0 steps before this one, and the run has 5"},
	} {
		norms, err := wire(t.Context(), p, nil, wiring{first: c.plan, run: []pipeline.RunOption{pipeline.FirstStep(c.run)}}, p.text, plain, loss.InfoNCE{})
		if c.want == "" && (err != nil || len(norms) != 2) || c.want != "" && (err == nil || len(norms) > 0 || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v after %d steps", c, err, len(norms))
		}
	}
}

// A stage of one's own that leaves rows out works alone; ranks whose rows do not make one batch any more are told why.
func TestRowsApart(t *testing.T) {
	for _, c := range []struct {
		leave, ranks int // the row of each chunk of rank 0 or 1 that is left out
		want         string
	}{
		{0, 1, ""},
		{0, 2, "rank 1 has rows 2 to 4 of the batch, want rows from 1; each rank's are to be those that its plan gives it: rows are left out with dataset.Part.Skip, not by a stage behind Ingest"},
		{1, 2, "the ranks have 3 of the batch's 4 rows; each rank's are to be"},
	} {
		err := asRanks(t.Context(), c.ranks, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer p.Close()
			_, err = wire(t.Context(), p, ranks, wiring{rows: func(x *stages.Chunk) *stages.Chunk {
				if ranks.Rank() == c.leave {
					x.Examples = x.Examples[1:]
				}
				return x
			}}, p.text, plain, loss.InfoNCE{})
			return err
		})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A step without a mean is an error that says why it has none: no rows, rows of no weight, or a loss that counts none.
func TestWithoutWeight(t *testing.T) {
	weighing := func(w float64) loss.Loss {
		return loss.Host(func(*loss.Batch, [][]float32, [][]float32) (loss.Result, error) { return loss.Result{Weight: w}, nil })
	}
	nothing := weighing(0)
	sum, err := loss.Sum(loss.Term{Factor: 1, Loss: loss.InfoNCE{}}, loss.Term{Factor: 1, Loss: weighing(-1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ranks int
		rows  func(*stages.Chunk) *stages.Chunk
		loss  loss.Loss
		want  string
	}{
		{1, func(x *stages.Chunk) *stages.Chunk { x.Examples = nil; return x }, loss.InfoNCE{}, "step 1 has no rows"},
		{1, unweighted, loss.InfoNCE{}, "all rows of step 1 have weight 0 (data.train[].weight, in Go Example.Weight): some row of each step needs a weight above 0"},
		{2, unweighted, loss.InfoNCE{}, "all rows of step 1 have weight 0"},
		{1, nil, nothing, "the loss has counted none of step 1's rows, which weigh 4"},
		{2, nil, nothing, "the loss has counted none of step 1's rows, which weigh 4"},
		{1, nil, weighing(-1), "step 1: the loss has returned Result.Weight -1: a step's loss, and gradient, is divided by it, want"},
		{2, nil, weighing(-1e-300), "step 1: the loss has returned Result.Weight -1e-300"},
		{1, nil, sum, "term 1, loss.Host: the loss has returned Result.Weight -1"},
	} {
		err := asRanks(t.Context(), c.ranks, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer p.Close()
			_, err = wire(t.Context(), p, ranks, wiring{rows: c.rows}, p.text, plain, c.loss)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("on %d ranks: %v, want %q", c.ranks, err, c.want)
		}
	}
}

func unweighted(x *stages.Chunk) *stages.Chunk {
	for i := range x.Examples {
		x.Examples[i].Weight = 0
	}
	return x
}

// as says that rows have columns of these roles.
func as(roles ...dataset.Role) func(*stages.Chunk) *stages.Chunk {
	d := stages.Described{Name: "mine"}
	for _, r := range roles {
		d.Texts = append(d.Texts, dataset.Column{Role: r})
	}
	return func(x *stages.Chunk) *stages.Chunk {
		x.Data = d
		return x
	}
}

// numbered gives a chunk's rows these ids.
func numbered(ids ...int64) func(*stages.Chunk) *stages.Chunk {
	return func(x *stages.Chunk) *stages.Chunk {
		for i := range x.Examples {
			x.Examples[i].Row = ids[i]
		}
		return x
	}
}

// A row may be in a batch twice: its id is the same as its texts are.
func TestRowTwice(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	twice := func(x *stages.Chunk) *stages.Chunk {
		x.Examples[3] = x.Examples[1]
		return x
	}
	if norms, err := wire(t.Context(), p, nil, wiring{rows: twice}, p.text, plain, loss.InfoNCE{}); err != nil || len(norms) != 2 {
		t.Errorf("%v after %d steps", err, len(norms))
	}
}

// What a stage of one's own has broken between Tokenize and Embed is an error of the stage that gets it, not a panic.
func TestBroken(t *testing.T) {
	noTokens := func(*stages.TokenChunk) *stages.TokenChunk { return nil }
	noBatch := func(*stages.Batch) *stages.Batch { return nil }
	for _, c := range []struct {
		ranks       int
		stage, want string
		wiring
	}{
		{1, "batch", "a stage before has put nil in the place of rows: rows are left out with dataset.Part.Skip", wiring{tokens: noTokens}},
		{1, "batch", "a TokenChunk without Data", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.Data = nil; return c }}},
		{1, "batch", "a TokenChunk of 3 rows whose IDs, Texts, Seen or Counts of column 0", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.Rows = c.Rows[1:]; return c }}},
		{1, "batch", "whose IDs, Texts, Seen or Counts of column 0", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.Seen = make([][]int32, len(c.IDs)); return c }}},
		{1, "batch", "Counts of column 0", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.IDs = c.IDs[:1]; return c }}},
		{1, "batch", "Counts of column 1", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.IDs[1] = c.IDs[1][1:]; return c }}},
		{1, "batch", "Counts of column 1", wiring{tokens: func(c *stages.TokenChunk) *stages.TokenChunk { c.Texts[1] = nil; return c }}},
		{1, "batch", "column 0 of the rows' Data is a positive, want a query: columns are the query, then", wiring{rows: as(dataset.Positive, dataset.Query)}},
		{1, "batch", "column 1 of the rows' Data is a negative, want a positive", wiring{rows: as(dataset.Query, dataset.Negative)}},
		{1, "batch", "rows 0 and 1 of a batch are different ones, and both have the id 0: number a source's rows in Example.Row", wiring{rows: numbered(0, 0, 0, 0)}},
		{1, "batch", "rows 1 and 3 of a batch are different ones, and both have the id 5", wiring{rows: numbered(4, 5, 6, 5)}},
		{1, "split", "a stage before has put nil", wiring{batch: noBatch}},
		{2, "header", "a stage before has put nil", wiring{batch: noBatch}},
	} {
		err := asRanks(t.Context(), c.ranks, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer p.Close()
			_, err = wire(t.Context(), p, ranks, c.wiring, p.text, plain, loss.InfoNCE{})
			return err
		})
		if err == nil || strings.Contains(err.Error(), "panic") || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), fmt.Sprintf("stage %q", c.stage)) {
			t.Errorf("%v, want %q of %s", err, c.want, c.stage)
		}
	}
}

// asRanks does something as each of several replicas; a single one is alone, with nil.
func asRanks(ctx context.Context, n int, do func(*stages.Replicas) error) error {
	if n == 1 {
		return do(nil)
	}
	return local.Run(n, func(w collective.World) error {
		comm, err := collective.Connect(ctx, w, collective.Mesh{Replicate: n, Shard: 1})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(ctx, comm, stages.Exchanging{})
		if err != nil {
			return err
		}
		return do(ranks)
	})
}

// Rows that no batch ends after are an error, not rows that are left out.
func TestRowsWithoutEnd(t *testing.T) {
	for every, want := range map[int]string{2: "", 4: "the last 2 are of none", 100: "the last 10 are of none"} {
		var steps int
		err := trainWith(func(_ context.Context, g *pipeline.Graph, _ parts) (pipeline.Port[*stages.Chunk], func() error, error) {
			described := stages.Described{Name: "mine", Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}}}
			next := 0
			return pipeline.Source(g, "mine", func(context.Context) (*stages.Chunk, error) {
				if next == 10 {
					return nil, io.EOF
				}
				next++
				q, d := fmt.Sprint("what ", next), fmt.Sprint("a dog ", next)
				end := next%every == 0
				return &stages.Chunk{Data: described, EndsBatch: end, EndsStep: end, Total: every, Examples: []dataset.Example{
					{Row: int64(next), Texts: []string{q, d}, Hashes: []dataset.Hash128{dataset.HashText(q), dataset.HashText(d)}, Weight: 1},
				}}, nil
			}), func() error { return nil }, nil
		}, loss.InfoNCE{Scale: 20}, func(g *pipeline.Graph, _ pipeline.Port[*stages.Batch], results pipeline.Port[stages.StepResult]) {
			pipeline.Sink(g, "count", results, func(*pipeline.Task, stages.StepResult) error {
				steps++
				return nil
			})
		})
		if want == "" && (err != nil || steps != 5) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a batch ends every %d rows: %v after %d steps, want %q", every, err, steps, want)
		}
	}
}

// A loss of one's own may put its gradient in the place of the rows that it is given; one of another length is an error.
func TestHostGradientReplaced(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	distance := func(write func(grad [][]float32, i int, v []float32)) loss.Loss {
		return loss.Host(func(b *loss.Batch, emb, grad [][]float32) (r loss.Result, err error) {
			for i := range b.Rows {
				q, d := make([]float32, len(emb[i])), make([]float32, len(emb[i]))
				for k := range q {
					x := emb[i][k] - emb[b.Rows+i][k]
					r.Sum += float64(x * x)
					q[k], d[k] = 2*x, -2*x
				}
				write(grad, i, q)
				write(grad, b.Rows+i, d)
				r.Weight++
			}
			return r, nil
		})
	}
	start := snapshot(t, p)
	var want []float64
	for name, l := range map[string]loss.Loss{
		"written":  distance(func(grad [][]float32, i int, v []float32) { copy(grad[i], v) }),
		"replaced": distance(func(grad [][]float32, i int, v []float32) { grad[i] = v }),
	} {
		start()
		norms, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, l)
		if err != nil || len(norms) != 2 || norms[0] == 0 {
			t.Fatalf("%s: %v, %v", name, norms, err)
		}
		if want == nil {
			want = norms
		}
		if !slices.Equal(norms, want) {
			t.Errorf("%s: %v, want %v", name, norms, want)
		}
	}
	start()
	none := distance(func(grad [][]float32, i int, _ []float32) { grad[i][0] = 1; grad[i] = nil })
	if norms, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, none); err != nil || norms[0] != 0 {
		t.Errorf("rows that are nil: %v, %v", norms, err)
	}
	short := distance(func(grad [][]float32, i int, v []float32) { grad[i] = v[1:] })
	if _, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, short); err == nil || !strings.Contains(err.Error(), "the gradient of sequence 0 has 31 numbers, its embedding has 32") {
		t.Error(err)
	}
	if _, err := dataset.NewMixer(nil, dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, dataset.Mixing{}); err == nil {
		t.Error("a mixer of no datasets")
	}
}

// snapshot returns what takes a model's parameters back.
func snapshot(t *testing.T, p parts) func() {
	t.Helper()
	s, err := p.device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	was, err := p.model.ReadVector(s, p.model.Params)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		p.model.Change(s, func() { s.CopyIn(p.model.Params, gpustage.Bytes(was)) })
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}

// A model's folder says what is put before its texts, and where they are cut.
func TestTextOf(t *testing.T) {
	d := processor(t)
	m, err := embedder.LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	x := stages.TextOf(m)
	if x.Tokenizer != m.Tokenizer || x.QueryPrompt != "find : " || x.DocumentPrompt != "" || x.QueryLength != m.MaxLength() || x.DocumentLength != m.MaxLength() || m.MaxLength() == 0 ||
		x.Positions != m.Model.Config.MaxPositions || x.Positions == 0 {
		t.Errorf("%+v of %d tokens", x, m.MaxLength())
	}
}

// A state stays as it is while a stage that reads it runs, and nobody needs to give it back: the next one then has its memory.
func TestSnapshotsComeBack(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	states := 0
	if _, err := wire(ctx, p, nil, wiring{}, p.text, plain, loss.InfoNCE{}, func(g *pipeline.Graph, steps pipeline.Port[stages.StepResult], enc *stages.Encoder) {
		port := stages.Snapshot(g, steps, enc, func(stages.StepResult) (any, bool) { return nil, true })
		pipeline.Sink(g, "glance", port, func(*pipeline.Task, *stages.State) error { return nil })
		pipeline.Sink(g, "look", port, func(_ *pipeline.Task, s *stages.State) error {
			was := slices.Clone(s.Pieces[0].Data)
			time.Sleep(100 * time.Millisecond)
			if states++; !slices.Equal(was, s.Pieces[0].Data) {
				return errors.New("it has changed meanwhile")
			}
			return nil
		})
	}); err != nil || states != 2 {
		t.Errorf("%d states: %v", states, err)
	}
	// Behind those stages it is somebody else's: that must not become a checkpoint.
	_, err = wire(ctx, p, nil, wiring{}, p.text, plain, loss.InfoNCE{}, func(g *pipeline.Graph, steps pipeline.Port[stages.StepResult], enc *stages.Encoder) {
		once := stages.Snapshot(g, steps, enc, func(r stages.StepResult) (any, bool) { return nil, r.Step == 0 })
		passed := pipeline.Map(g, "pass on", once, func(_ *pipeline.Task, s *stages.State) (*stages.State, error) { return s, nil })
		pipeline.Sink(g, "write", passed, func(t *pipeline.Task, s *stages.State) error {
			time.Sleep(100 * time.Millisecond)
			return enc.Checkpoint(t.Context(), s, stages.Checkpoints{Store: checkpoint.Open(p.dir+"/late", checkpoint.Disk{})})
		})
	})
	if err == nil || !strings.Contains(err.Error(), `stage "write", item 0: the state of step 1 has been given back while it was written`) {
		t.Error(err)
	}
}

// A model that a graph trains is not another's to train, nor to be measured from outside, until the run has ended, however it did.
func TestModelInTraining(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m := embedder.Trainable{Model: p.model}
	inside := 0
	broken := errors.New("broken")
	during := func(g *pipeline.Graph, steps pipeline.Port[stages.StepResult], _ *stages.Encoder) {
		pipeline.Sink(g, "meanwhile", steps, func(*pipeline.Task, stages.StepResult) error {
			inside++
			if _, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, loss.InfoNCE{}); err == nil || !strings.Contains(err.Error(), `the model is in training by graph "wired"`) {
				t.Errorf("a second graph: %v", err)
			}
			if _, err := m.Evaluate(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `in training by graph "wired": within a graph stages.Evaluate`) {
				t.Errorf("evaluated meanwhile: %v", err)
			}
			return broken
		})
	}
	for range 2 {
		if _, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, loss.InfoNCE{}, during); !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	if inside != 2 {
		t.Errorf("looked %d times", inside)
	}
	if _, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, loss.InfoNCE{}); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
}
