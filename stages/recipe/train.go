package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
)

// Metrics is a line of metrics.jsonl: one optimizer step.
type Metrics struct {
	Step         int     `json:"step"` // from 1
	Epoch        int     `json:"epoch"`
	Loss         float64 `json:"loss"`
	GradNorm     float64 `json:"grad_norm"`
	LR           float64 `json:"lr"`
	Pairs        int     `json:"pairs"`
	Tokens       int     `json:"tokens"`
	PairsPerS    float64 `json:"pairs_per_s"`
	TokensPerS   float64 `json:"tokens_per_s"`
	PeakMemBytes int64   `json:"peak_mem_bytes"`

	// With several ranks, of this one: what it sent, how long it communicated, and the share of that time in which it computed
	// as well.
	CommBytes  int64    `json:"comm_bytes,omitempty"`
	CommS      float64  `json:"comm_s,omitempty"`
	CommHidden *float64 `json:"comm_hidden,omitempty"`
}

// Evaluation is another kind of line: a measurement after a step.
type Evaluation struct {
	Step   int            `json:"step"`
	Metric string         `json:"metric"`
	Value  float64        `json:"value"`
	Eval   json.Marshaler `json:"eval"`
}

// Summary is what a run came to.
type Summary struct {
	Steps     int
	Loss      float64 // of the last step
	Pairs     int
	Tokens    int
	Truncated int // texts that lost tokens
	Dropped   int64
	Seconds   float64
	PeakBytes int64 // of the process
	Eval      *Evaluation
	Model     string // folder

	Communication pipeline.Communication // of this rank
}

// Graph builds the run's training graph. Train runs it; others may draw it.
func (x *Run) Graph() (*pipeline.Graph, error) {
	g, _, err := x.graph(nil)
	return g, err
}

// graph builds the training graph; log may be nil if it will not run.
func (x *Run) graph(log *journal) (*pipeline.Graph, *stages.Encoder, error) {
	g, enc, results, err := x.steps()
	if err != nil {
		return nil, nil, err
	}
	evaluated := x.evaluateStage(g, enc, results)
	saved := x.saveStage(g, enc, results)
	record := g.Stage("record")
	result := pipeline.In(record, "result", results)
	evaluation := pipeline.In(record, "evaluation", evaluated)
	pipeline.In(record, "saved", saved)
	record.Do(func(t *pipeline.Task) error { return log.step(result.Get(t), evaluation.Get(t), enc) })
	return g, enc, nil
}

// trainingGraph is the graph without evaluation, saving and reports.
func (x *Run) trainingGraph() (*pipeline.Graph, *stages.Encoder, error) {
	g, enc, results, err := x.steps()
	if err != nil {
		return nil, nil, err
	}
	pipeline.Sink(g, "record", results, func(*pipeline.Task, stages.StepResult) error { return nil })
	return g, enc, nil
}

// steps is the graph up to each step's result.
func (x *Run) steps() (*pipeline.Graph, *stages.Encoder, pipeline.Port[stages.StepResult], error) {
	r := x.Recipe
	g := pipeline.New("train")
	var none pipeline.Port[stages.StepResult]
	enc, err := stages.NewEncoder(g, x.model, 0, x.budget(x.Memory), r.Train.Seed, stages.With(x.ranks))
	if err != nil {
		return nil, nil, none, err
	}
	chunks := stages.Ingest(g, x.plan)
	tokens := stages.Tokenize(g, chunks, x.text)
	batches := stages.Header(g, stages.Assemble(g, tokens), x.size(), x.ranks)
	subs := stages.Split(g, batches, x.size())
	embedded := stages.Gather(g, stages.Embed(g, subs, enc), enc)
	grads := stages.Scatter(g, stages.Loss(g, batches, embedded, enc, r.loss()), enc)
	contributions := stages.Sync(g, stages.Backward(g, subs, grads, enc), enc)
	results, err := stages.Apply(g, contributions, grads, enc, r.update(x.Steps))
	if err != nil {
		return nil, nil, none, err
	}
	return g, enc, results, nil
}

// last tells whether a step is the run's last one.
func (x *Run) last(step int) bool { return step == x.Steps-1 }

// evaluateStage measures the model every so often, and at the end.
func (x *Run) evaluateStage(g *pipeline.Graph, enc *stages.Encoder, results pipeline.Port[stages.StepResult]) pipeline.Port[*Evaluation] {
	e := x.Recipe.Eval
	s := g.Stage("evaluate", pipeline.On(0, pipeline.Compute), pipeline.When(func(step int) bool {
		due := e.Every > 0 && (step+1)%e.Every == 0 || x.last(step)
		return due && (x.task != nil || x.sts != nil)
	}))
	in := pipeline.In(s, "result", results)
	out := pipeline.Out[*Evaluation](s, "evaluation")
	engine, together := &embedder.Engine{Model: x.model}, enc.NewTogether()
	if together != nil {
		engine.Model, engine.Ranks = together.Model(), together
	}
	s.Do(func(t *pipeline.Task) error {
		engine.Stream = stages.Stream(t)
		ev, err := x.evaluate(t.Context(), engine)
		if err != nil {
			return err
		}
		if ev != nil {
			ev.Step = in.Get(t).Step + 1
		}
		if x.last(t.Index.Step) {
			if err := errors.Join(engine.Close(), together.Close()); err != nil {
				return err
			}
		}
		out.Put(t, ev)
		return nil
	})
	return out.Port
}

// evaluate embeds together with the other ranks, and measures on rank 0: on others it returns nil.
func (x *Run) evaluate(ctx context.Context, engine *embedder.Engine) (*Evaluation, error) {
	ev := &Evaluation{Metric: x.Recipe.Eval.Metric}
	if x.sts != nil {
		sims, err := x.evalText().Similarity(ctx, engine, x.sts.A, x.sts.B)
		if err != nil || !x.Main() {
			return nil, err
		}
		res, err := evaluate.EvaluateSTS(sims, x.sts.Scores)
		if err != nil {
			return nil, fmt.Errorf("eval.sts: %w", err)
		}
		ev.Metric, ev.Value = "spearman", res.Spearman
		ev.Eval, err = raw(res)
		return ev, err
	}
	measure, err := evaluate.ParseMeasure(ev.Metric)
	if err != nil {
		return nil, err
	}
	measures := evaluate.Standard()
	known := false
	for _, m := range measures {
		known = known || m == measure
	}
	if !known {
		measures = append(measures, measure)
	}
	res, err := x.task.Evaluate(ctx, engine, measures...)
	if err != nil || !x.Main() {
		return nil, err
	}
	ev.Value, _ = res.Mean(measure)
	ev.Eval = res
	return ev, nil
}

func raw(v any) (json.RawMessage, error) { return json.Marshal(v) }

// saveStage writes the model folder after the last step.
func (x *Run) saveStage(g *pipeline.Graph, enc *stages.Encoder, results pipeline.Port[stages.StepResult]) pipeline.Port[string] {
	s := g.Stage("save", pipeline.On(0, pipeline.Compute), pipeline.When(func(step int) bool { return x.last(step) && (x.Main() || x.model.Partial()) }))
	pipeline.In(s, "result", results)
	out := pipeline.Out[string](s, "folder")
	s.Do(func(t *pipeline.Task) error {
		dir := filepath.Join(x.Recipe.Save.Dir, "model")
		if err := x.Save(stages.Stream(t), dir); err != nil {
			return fmt.Errorf("saving the model: %w", err)
		}
		if err := forget(x.Recipe.Save.Dir); err != nil {
			return fmt.Errorf("save.dir: %w", err)
		}
		out.Put(t, dir)
		return nil
	})
	return out.Port
}

// journal writes metrics.jsonl and tells the observer.
type journal struct {
	enc     *json.Encoder
	obs     Observer
	last    time.Time
	began   time.Time
	summary Summary

	mu    sync.Mutex
	spans []pipeline.Span // of the step so far
	comm  pipeline.Communication
}

// span collects what a step's communication is measured by.
func (j *journal) span(s pipeline.Span) {
	if s.Lane == pipeline.Compute.String() || s.Lane == pipeline.Comm.String() || s.Lane == pipeline.Fetch.String() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.spans = append(j.spans, s)
	}
}

// communicated is what the step communicated.
func (j *journal) communicated() pipeline.Communication {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := pipeline.Communicated(j.spans)
	j.spans = j.spans[:0]
	j.comm.Total, j.comm.Hidden, j.comm.Bytes = j.comm.Total+c.Total, j.comm.Hidden+c.Hidden, j.comm.Bytes+c.Bytes
	return c
}

func (j *journal) step(r stages.StepResult, ev *Evaluation, enc *stages.Encoder) error {
	now := time.Now()
	took := now.Sub(j.last).Seconds()
	j.last = now
	peak := gpustage.HostPeakMemory()
	if peak == 0 {
		peak = enc.PeakBytes()
	}
	m := Metrics{
		Step: r.Step + 1, Epoch: r.Epoch + 1, Loss: r.Loss, GradNorm: r.GradNorm, LR: r.LR, Pairs: r.Pairs, Tokens: r.Tokens,
		PairsPerS: float64(r.Pairs) / took, TokensPerS: float64(r.Tokens) / took, PeakMemBytes: peak,
	}
	if c := j.communicated(); c.Total > 0 {
		share := c.HiddenShare()
		m.CommBytes, m.CommS, m.CommHidden = int64(c.Bytes), c.Total.Seconds(), &share
	}
	s := &j.summary
	s.Steps, s.Loss, s.PeakBytes = m.Step, m.Loss, peak
	s.Pairs, s.Tokens, s.Truncated = s.Pairs+m.Pairs, s.Tokens+m.Tokens, s.Truncated+r.Truncated
	if err := j.enc.Encode(m); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	if j.obs.Step != nil {
		j.obs.Step(m)
	}
	if ev == nil {
		return nil
	}
	s.Eval = ev
	if err := j.enc.Encode(ev); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	if j.obs.Eval != nil {
		j.obs.Eval(*ev)
	}
	return nil
}

// TrainOption configures Train.
type TrainOption func(*trainOptions)

type trainOptions struct{ trace bool }

// WithTrace writes trace.json into the run's folder.
func WithTrace() TrainOption { return func(o *trainOptions) { o.trace = true } }

// Train runs the recipe. The run's folder then holds metrics.jsonl, recipe.yaml, model/ and, if asked for, trace.json.
func (x *Run) Train(ctx context.Context, opts ...TrainOption) (_ *Summary, err error) {
	var o trainOptions
	for _, f := range opts {
		f(&o)
	}
	dir := x.Recipe.Save.Dir
	now := time.Now()
	log := &journal{enc: json.NewEncoder(io.Discard), obs: x.obs, last: now, began: now}
	if x.Main() {
		defer func() {
			if err != nil {
				err = errors.Join(err, leftBehind(dir))
			}
		}()
		file, err := x.begin(dir)
		if err != nil {
			return nil, fmt.Errorf("save.dir: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		log.enc = json.NewEncoder(file)
	}

	g, _, err := x.graph(log)
	if err != nil {
		return nil, err
	}
	p, err := g.Build(pipeline.Devices(stages.OnDevice(x.device)))
	if err != nil {
		return nil, err
	}
	runOpts := []pipeline.RunOption{pipeline.WithSpans(log.span)}
	if o.trace {
		name := "trace.json"
		if !x.Main() {
			name = fmt.Sprintf("trace.%d.json", x.ranks.Rank())
		}
		if err := os.MkdirAll(dir, 0o777); err != nil { // rank 0 may not have come so far
			return nil, fmt.Errorf("save.dir: %w", err)
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("save.dir: %w", err)
		}
		tracer := pipeline.NewTracer(f)
		defer func() { err = errors.Join(err, tracer.Close(), f.Close()) }()
		runOpts = append(runOpts, pipeline.WithTrace(tracer))
	}
	if err := p.Run(ctx, runOpts...); err != nil {
		return nil, err
	}
	s := &log.summary
	s.Seconds = time.Since(log.began).Seconds()
	s.Communication = log.comm
	if exposed := (log.comm.Total - log.comm.Hidden).Seconds(); exposed > 0.05*s.Seconds {
		x.obs.note("%.0f %% of the time went into communication that nothing hid: larger batches (batch.accumulate, batch.global_size), mesh.wire: bf16, or more than one sub-batch per step hide more", 100*exposed/s.Seconds)
	}
	s.Dropped = x.sampler.Stats().Dropped
	s.Model = filepath.Join(dir, "model")
	return s, nil
}

// A run into a folder that holds the model of another one replaces it at its end only. Until then the other run's recipe and metrics, which
// belong to that model, have this suffix.
const previous = ".previous"

var runFiles = []string{"metrics.jsonl", "recipe.yaml"}

// setAside gives the files of the run whose model is in the folder their suffix. If they have it, what is without is that of a
// run that failed.
func setAside(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "recipe.yaml"+previous)); err == nil || !hfmodel.IsModel(filepath.Join(dir, "model")) {
		return nil
	}
	for _, name := range runFiles { // the recipe last: it tells that both are done
		path := filepath.Join(dir, name)
		if err := os.Rename(path, path+previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// forget removes what was set aside: its model has been replaced.
func forget(dir string) error {
	for _, name := range runFiles {
		if err := os.Remove(filepath.Join(dir, name+previous)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// leftBehind tells, after a failure, whose the folder's model is.
func leftBehind(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "recipe.yaml"+previous)); err != nil {
		return nil
	}
	return fmt.Errorf("%s is still that of the run before: recipe.yaml%s and metrics.jsonl%s belong to it", filepath.Join(dir, "model"), previous, previous)
}

// begin makes the run's folder, with the recipe and an empty metrics.jsonl.
func (x *Run) begin(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	if err := setAside(dir); err != nil {
		return nil, err
	}
	text, err := x.Recipe.YAML()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "recipe.yaml"), text, 0o666); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(dir, "metrics.jsonl"))
}

// Evaluate measures the model as it is on the recipe's retrieval task.
func (x *Run) Evaluate(ctx context.Context) (*evaluate.Result, error) {
	if x.task == nil {
		return nil, errors.New("the recipe has no eval.retrieval")
	}
	if x.model.Partial() {
		return nil, errors.New("this rank holds a part of the model: with mesh.parameters: streamed it is evaluated while it is trained")
	}
	engine := &embedder.Engine{Model: x.model, Stream: x.stream}
	res, err := x.task.Evaluate(ctx, engine, evaluate.Standard()...)
	return res, errors.Join(err, engine.Close())
}

// BM25 measures BM25 on the recipe's retrieval task.
func (x *Run) BM25(ctx context.Context) (*evaluate.Result, error) {
	if x.task == nil {
		return nil, errors.New("the recipe has no eval.retrieval")
	}
	return x.task.BM25(ctx, evaluate.Standard()...)
}
