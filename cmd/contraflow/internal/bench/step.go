package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/recipe"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// TrainingOptions choose what a training step is.
type TrainingOptions struct {
	Input  *Input
	Device string // a kind; "": the processor
	// Recipe has the batch, precision, maximum length, loss and optimizer. Its model, data and order are the Input's: rows in
	// the files' order, so that another program can take the same ones.
	Recipe recipe.Recipe
}

// Step is one measured step, or one round of embedding.
type Step struct {
	Seconds       float64 `json:"seconds"`
	Pairs         int     `json:"pairs,omitempty"`
	Texts         int     `json:"texts"`
	Tokens        int     `json:"tokens"`                     // real ones
	Replayed      int     `json:"replayed_tokens,omitempty"`  // of them, those that went forward again
	SubBatches    int     `json:"sub_batches,omitempty"`      // of a training step
	Kept          int     `json:"kept_sub_batches,omitempty"` // of these, those that were not replayed
	Lean          int     `json:"lean_sub_batches,omitempty"` // and of these, those that computed a part again
	Loss          float64 `json:"loss,omitempty"`
	GFLOP         float64 `json:"gflop"` // by Work
	PeakGFLOPS    float64 `json:"peak_gflop_per_s"`
	ResidentBytes int64   `json:"peak_resident_bytes"`         // of the process so far
	DeviceBytes   int64   `json:"peak_device_bytes,omitempty"` // of a GPU's memory, so far
}

// Training is a graph that waits before each step until it is asked for one.
//
// The graph is a recipe's, with two stages more. "gate" stands before tokenization and lets a step's rows through when the step is
// asked for: nothing of a step is done ahead of its measurement, and between steps the processor is free for the probe or another
// program. On a GPU it stands behind tokenization, which in a run is hidden behind the GPU's work. "measure" takes the result.
type Training struct {
	o      TrainingOptions
	device gpustage.Device
	model  *transformer.Model
	tok    *tokenize.Tokenizer
	data   *dataset.Dataset
	enc    *stages.Encoder
	plan   *pipeline.Plan
	work   *Work
	probe  *probe
	bf16   bool

	permits chan struct{}
	results chan Step
	ended   chan struct{} // closed when the graph has
	err     error         // of the graph; read after ended
	cancel  context.CancelCauseFunc
	mu      sync.Mutex // of what follows
	spans   []pipeline.Span
	since   Step // since the last step: what was replayed, what was kept
}

// errDone stops the graph.
var errDone = errors.New("measured")

// NewTraining loads the model and the data, and starts the graph.
func NewTraining(ctx context.Context, o TrainingOptions) (_ *Training, err error) {
	t := &Training{o: o, permits: make(chan struct{}), results: make(chan Step), ended: make(chan struct{}), bf16: o.Recipe.Train.Precision == "bf16"}
	defer func() {
		if err != nil {
			close(t.ended)
			err = errors.Join(err, t.Close())
		}
	}()
	if t.device, t.probe, err = openDevice(o.Device); err != nil {
		return nil, err
	}
	if err := o.Recipe.Train.CheckPrecision(t.device); err != nil {
		return nil, fmt.Errorf("--precision: %w", err)
	}
	text, err := t.load(o)
	if err != nil {
		return nil, err
	}
	if t.data, err = o.Input.open(ctx); err != nil {
		return nil, err
	}
	if err := t.build(o.Recipe, text); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancelCause(ctx)
	t.cancel = cancel
	go func() {
		defer close(t.ended)
		t.err = t.plan.Run(run, pipeline.WithSpans(t.ran))
	}()
	return t, nil
}

func (t *Training) ran(s pipeline.Span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, s)
	if s.Stage == stages.StepStages.Last {
		t.since.SubBatches++
		again := s.Notes[stages.Replayed]
		t.since.Replayed += int(again)
		if again < s.Notes[stages.Tokens] {
			t.since.Kept++
			if again > 0 {
				t.since.Lean++
			}
		}
	}
}

// load loads the model and its tokenizer.
func (t *Training) load(o TrainingOptions) (stages.Text, error) {
	text := stages.Text{Threads: max(1, runtime.GOMAXPROCS(0)/2)}
	f, err := hfmodel.Open(o.Input.Model)
	if err != nil {
		return text, err
	}
	defer f.Close()
	if t.tok, err = embedder.LoadTokenizer(f); err != nil {
		return text, err
	}
	head, err := embedder.HeadOf(f, "", nil)
	if err != nil {
		return text, err
	}
	s, err := t.device.OpenStream()
	if err != nil {
		return text, err
	}
	defer s.Close()
	if t.model, err = embedder.LoadModel(f, t.device, s, head, o.Recipe.Train.Rounding(), nil); err != nil {
		return text, err
	}
	if t.work, err = NewWork(t.model.Config); err != nil {
		return text, err
	}
	text.Tokenizer = t.tok
	if text.QueryLength, err = embedder.MaxLengthOf(f, t.model.Config, o.Recipe.Model.MaxLength.Query); err != nil {
		return text, err
	}
	if text.DocumentLength, err = embedder.MaxLengthOf(f, t.model.Config, o.Recipe.Model.MaxLength.Document); err != nil {
		return text, err
	}
	return text, embedder.CheckVocabulary(t.tok, t.model.Config)
}

// budget is the recipe's replay budget, or the device's share of the memory that state and passes over texts of the longest size leave.
func (t *Training) budget(b recipe.Batch, longest int) int64 {
	return b.Budget(func() int64 {
		i, m := t.device.Info(), t.model
		free, _ := t.device.FreeMemory() // 0 where that is not known
		pass := m.Memory(slices.Repeat([]int{longest}, max(1, b.SubBatch.Size(t.device).Tokens/longest)))
		state := 3*m.Params.Mem.Bytes() + int(m.PackedBytes(true)) // gradients, AdamW's moments, weights packed
		return i.ReplayBudget(max(0, free-i.Besides-int64(state+max(pass.Backward, pass.LeanBackward))))
	})
}

// build makes the graph.
func (t *Training) build(r recipe.Recipe, text stages.Text) error {
	order := dataset.SamplerConfig{GlobalSize: r.Batch.GlobalSize, Epochs: 1 << 20, DropLast: true}
	sampler, err := dataset.NewMixer([]dataset.Part{{Layout: t.data.Layout()}}, order, dataset.Mixing{})
	if errors.Is(err, dataset.ErrBatchTooLarge) {
		return fmt.Errorf("--batch is %d, and the data has %d rows: want no more than these", r.Batch.GlobalSize, t.data.Rows())
	}
	if err != nil {
		return err
	}
	g := pipeline.New("bench")
	if t.enc, err = stages.NewEncoder(g, t.model, 0, t.budget(r.Batch, cmp.Or(max(text.QueryLength, text.DocumentLength), 512)), r.Train.Seed); err != nil {
		return err
	}
	chunks := stages.Ingest(g, stages.Plan{Data: []*dataset.Dataset{t.data}, Sampler: sampler, Accumulate: 1})
	inStep := false
	gate := func(task *pipeline.Task, endsStep bool) error {
		if !inStep {
			select {
			case <-t.permits:
			case <-task.Context().Done():
				return task.Context().Err()
			}
		}
		inStep = !endsStep
		return nil
	}
	gpu := t.device.Info().Threads == 0
	if !gpu {
		chunks = pipeline.Map(g, "gate", chunks, func(task *pipeline.Task, c *stages.Chunk) (*stages.Chunk, error) {
			return c, gate(task, c.EndsStep)
		})
	}
	batches := stages.Assemble(g, stages.Tokenize(g, chunks, text))
	if gpu {
		batches = pipeline.Map(g, "gate", batches, func(task *pipeline.Task, b *stages.Batch) (*stages.Batch, error) {
			return b, gate(task, b.EndsStep)
		})
	}
	subs := stages.Split(g, batches, r.Batch.SubBatch.Size(t.device))
	embedded := stages.Embed(g, subs, t.enc)
	grads := stages.Loss(g, batches, embedded, t.enc, loss.InfoNCE{Scale: r.Loss.Scale, Directions: r.Loss.Directions, MaskDuplicates: r.Loss.MaskDuplicates})
	contributions := stages.Backward(g, subs, grads, t.enc)
	opt := r.Optimizer
	results, err := stages.Apply(g, contributions, grads, t.enc, stages.Update{
		Optimizer: optim.AdamW{Betas: opt.Betas, Eps: opt.Eps, WeightDecay: opt.WeightDecay},
		LR:        opt.LR, Schedule: optim.Constant, MaxGradNorm: opt.MaxGradNorm,
	})
	if err != nil {
		return err
	}
	s := g.Stage("measure")
	result := pipeline.In(s, "result", results)
	lengths := pipeline.Collect(s, "batches", batches)
	s.Do(func(task *pipeline.Task) error {
		res := result.Get(task)
		step := Step{Pairs: res.Pairs, Tokens: res.Tokens, Loss: res.Loss}
		for _, b := range lengths.All(task) {
			ns := make([]int, b.N())
			for i := range ns {
				ns[i] = b.Length(i)
			}
			step.Texts += b.N()
			step.GFLOP += t.work.Step(ns) / 1e9
		}
		select {
		case t.results <- step:
			return nil
		case <-task.Context().Done():
			return task.Context().Err()
		}
	})
	// One host worker more than a run has: one waits at the gate.
	t.plan, err = g.Build(pipeline.Devices(stages.OnDevice(t.device)), pipeline.Workers(max(2, runtime.GOMAXPROCS(0))+1))
	return err
}

// probeFor is how long the probe runs before and after a step.
const probeFor = 50 * time.Millisecond

// Step runs one training step, the probe before and after it. It must not be called twice at a time.
func (t *Training) Step(ctx context.Context) (Step, error) {
	before := t.probe.gflops(t.bf16, probeFor)
	start := time.Now()
	select {
	case t.permits <- struct{}{}:
	case <-t.ended:
		return Step{}, cmp.Or(t.err, errDone)
	case <-ctx.Done():
		return Step{}, context.Cause(ctx)
	}
	var s Step
	select {
	case s = <-t.results:
	case <-t.ended:
		return Step{}, cmp.Or(t.err, errDone)
	case <-ctx.Done():
		return Step{}, context.Cause(ctx)
	}
	s.Seconds = time.Since(start).Seconds()
	t.mu.Lock()
	s.Replayed, s.SubBatches, s.Kept, s.Lean = t.since.Replayed, t.since.SubBatches, t.since.Kept, t.since.Lean // the graph waits: all of them are the step's
	t.since = Step{}
	t.mu.Unlock()
	s.PeakGFLOPS = (before + t.probe.gflops(t.bf16, probeFor)) / 2
	s.ResidentBytes, s.DeviceBytes = gpustage.HostPeakMemory(), t.device.Info().PeakAllocated
	return s, nil
}

// Report is what `bench step` prints for the given steps, which are the last ones that Step ran. It ends the graph.
func (t *Training) Report(steps []Step) (*StepReport, error) {
	t.stop()
	b := t.o.Recipe.Batch
	r := newStepReport("train", t.model.Config, t.o.Input, t.device, steps)
	r.Precision, r.Batch, r.Cache, r.BudgetBytes = t.o.Recipe.Train.Precision, b.GlobalSize, b.Cache, t.enc.Budget
	r.Stages = t.breakdown(len(steps))
	var err error
	r.Machine, err = ThisMachine()
	return r, err
}

// stop ends the graph. Its error, if there was one, is Step's to return.
func (t *Training) stop() {
	if t.cancel != nil {
		t.cancel(errDone)
		<-t.ended
	}
}

// StageTime is a stage's part of a step.
type StageTime struct {
	Stage        string  `json:"stage"`
	Lane         string  `json:"lane"`
	MsPerStep    float64 `json:"ms_per_step"`
	TasksPerStep float64 `json:"tasks_per_step"`
}

// breakdown sums the last n steps by stage. What streams before there are batches has no step: it is summed over all of them.
func (t *Training) breakdown(n int) []StageTime {
	var out []StageTime
	index, steps := map[string]int{}, 0
	step := func(s pipeline.Span) (step int, ok bool) {
		_, err := fmt.Sscan(strings.SplitN(s.Item, ".", 2)[0], &step)
		return step, err == nil // not for "#12"
	}
	for _, s := range t.spans {
		if i, ok := step(s); ok && s.Stage == stages.StepStages.End { // on a GPU others are a batch ahead
			steps = max(steps, i+1)
		}
	}
	for _, s := range t.spans {
		of, inStep := step(s)
		if s.Stage == "gate" || s.Stage == "measure" || inStep && (of < steps-n || of >= steps) {
			continue
		}
		i, ok := index[s.Stage]
		if !ok {
			i, index[s.Stage] = len(out), len(out)
			out = append(out, StageTime{Stage: s.Stage, Lane: s.Lane})
		}
		per := float64(n)
		if !inStep {
			per = float64(steps)
		}
		out[i].MsPerStep += float64((s.End - s.Start).Microseconds()) / 1e3 / per
		out[i].TasksPerStep += 1 / per
	}
	return out
}

// Close ends the graph and gives everything back.
func (t *Training) Close() error {
	t.stop()
	var errs []error
	if t.enc != nil {
		errs = append(errs, t.enc.Close())
	}
	if t.data != nil {
		errs = append(errs, t.data.Close())
	}
	if t.model != nil {
		errs = append(errs, t.model.Free())
	}
	if t.probe != nil {
		t.probe.close()
	}
	if t.device != nil {
		errs = append(errs, t.device.Close())
	}
	return errors.Join(errs...)
}

// Measure runs warm-up steps and then n more, of training or embedding.
func Measure(ctx context.Context, warmup, n int, step func(context.Context) (Step, error)) ([]Step, error) {
	var out []Step
	for i := range warmup + n {
		s, err := step(ctx)
		if err != nil {
			return nil, err
		}
		if i >= warmup {
			out = append(out, s)
		}
	}
	return out, nil
}

// StepReport is what `bench step` prints. Rates have their spread over steps.
type StepReport struct {
	Bench   string  `json:"bench"`
	What    string  `json:"what"` // train or embed
	Machine Machine `json:"machine"`
	Model   string  `json:"model"`
	Data    string  `json:"data"`

	Precision   string `json:"precision"`
	Threads     int    `json:"threads"`
	Batch       int    `json:"batch"` // rows; of embed, texts
	Cache       string `json:"cache,omitempty"`
	BudgetBytes int64  `json:"replay_budget_bytes,omitempty"` // -1: none
	// KeptPercent is of sub-batches whose activations were kept; the others went forward again. LeanPercent is of those that kept the smaller
	// part of them.
	KeptPercent float64 `json:"kept_percent,omitempty"`
	LeanPercent float64 `json:"lean_percent,omitempty"`
	Steps       int     `json:"steps"`

	Seconds       Spread  `json:"seconds_per_step"`
	PairsPerS     Spread  `json:"pairs_per_s,omitzero"`
	TextsPerS     Spread  `json:"texts_per_s"`
	TokensPerS    Spread  `json:"tokens_per_s"` // real ones
	TokensPerText float64 `json:"tokens_per_text"`
	GFLOPS        Spread  `json:"gflop_per_s"`      // by Work
	PeakGFLOPS    Spread  `json:"peak_gflop_per_s"` // the probe's; a GPU has none
	// PercentOfPeak is the median over steps of a step's rate over the probe's before and after it.
	PercentOfPeak float64 `json:"percent_of_peak,omitempty"`
	ResidentBytes int64   `json:"peak_resident_bytes"`
	DeviceBytes   int64   `json:"peak_device_bytes,omitempty"` // of a GPU's memory

	Stages []StageTime `json:"stages,omitempty"`
}

func newStepReport(what string, c transformer.Config, in *Input, d gpustage.Device, steps []Step) *StepReport {
	r := &StepReport{Bench: "step", What: what, Model: in.Model, Data: in.name(), Threads: d.Info().Threads, Steps: len(steps)}
	if in.made(in.Model) {
		r.Model = fmt.Sprintf("random weights, %d layers of %d, %d tokens", c.Layers, c.Hidden, c.Vocab)
	}
	tokens, texts, subs, kept, lean := 0, 0, 0, 0, 0
	var percent []float64
	rate := func(of func(Step) float64) Spread {
		var vs []float64
		for _, s := range steps {
			vs = append(vs, of(s))
		}
		return SpreadOf(vs)
	}
	for _, s := range steps {
		tokens, texts, subs, kept, lean = tokens+s.Tokens, texts+s.Texts, subs+s.SubBatches, kept+s.Kept, lean+s.Lean
		if s.PeakGFLOPS > 0 {
			percent = append(percent, 100*s.GFLOP/s.Seconds/s.PeakGFLOPS)
		}
		r.ResidentBytes, r.DeviceBytes = max(r.ResidentBytes, s.ResidentBytes), max(r.DeviceBytes, s.DeviceBytes)
	}
	r.Seconds = rate(func(s Step) float64 { return s.Seconds })
	r.PairsPerS = rate(func(s Step) float64 { return float64(s.Pairs) / s.Seconds })
	r.TextsPerS = rate(func(s Step) float64 { return float64(s.Texts) / s.Seconds })
	r.TokensPerS = rate(func(s Step) float64 { return float64(s.Tokens) / s.Seconds })
	r.GFLOPS = rate(func(s Step) float64 { return s.GFLOP / s.Seconds })
	r.PeakGFLOPS = rate(func(s Step) float64 { return s.PeakGFLOPS })
	r.PercentOfPeak = SpreadOf(percent).Median
	r.TokensPerText = float64(tokens) / float64(max(1, texts))
	r.KeptPercent, r.LeanPercent = 100*float64(kept)/float64(max(1, subs)), 100*float64(lean)/float64(max(1, subs))
	return r
}

// Print writes a table for people.
func (r *StepReport) Print(w io.Writer) error {
	p := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-14s "+format+"\n", append([]any{name}, args...)...)
	}
	p("machine", "%s", r.Machine)
	p("model", "%s", r.Model)
	p("data", "%s, %.1f tokens a text", r.Data, r.TokensPerText)
	if r.What == "train" {
		budget := "everything kept"
		if r.BudgetBytes >= 0 {
			budget = fmt.Sprintf("%s kept at most: %.0f %% of sub-batches", recipe.Size(r.BudgetBytes), r.KeptPercent)
			if r.LeanPercent > 0 {
				budget += fmt.Sprintf(", %.0f %% lean", r.LeanPercent)
			}
		}
		p("step", "%s, %s, cache %s (%s), %s", spelling.Count(r.Batch, "pair", "pairs"), r.Precision, r.Cache, budget, threads(r.Threads))
	} else {
		p("round", "%s, %s, %s", spelling.Count(r.Batch, "text", "texts"), r.Precision, threads(r.Threads))
	}
	p("measured", "%s after a warm-up: median (least to most)", spelling.Count(r.Steps, "step", "steps"))
	fmt.Fprintln(w)
	p("seconds", "%s", r.Seconds)
	if r.What == "train" {
		p("pairs/s", "%s", r.PairsPerS)
	}
	p("texts/s", "%s", r.TextsPerS)
	p("tokens/s", "%s", r.TokensPerS)
	p("GFLOP/s", "%s, for real tokens", r.GFLOPS)
	if r.PercentOfPeak > 0 {
		p("probe", "%s: %.1f %% of it", r.PeakGFLOPS, r.PercentOfPeak)
	}
	if r.ResidentBytes > 0 {
		p("peak memory", "%s resident", recipe.Size(r.ResidentBytes))
	}
	if r.DeviceBytes > 0 {
		p("", "%s of the device's", recipe.Size(r.DeviceBytes))
	}
	if len(r.Stages) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%-10s %-8s %10s %8s\n", "stage", "", "ms/step", "tasks")
	for _, s := range slices.SortedFunc(slices.Values(r.Stages), func(a, b StageTime) int { return int(b.MsPerStep*1e3) - int(a.MsPerStep*1e3) }) {
		fmt.Fprintf(w, "%-10s %-8s %10.2f %8.1f\n", s.Stage, s.Lane, s.MsPerStep, s.TasksPerStep)
	}
	return nil
}
