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
	"slices"
	"strings"
	"time"

	"contraflow/gpustage"
	"contraflow/io/atomicfile"
	"contraflow/io/checkpoint"
	"contraflow/io/hfmodel"
	"contraflow/io/tensorboard"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
)

// Summary is what a run came to.
type Summary struct {
	Steps int
	Loss  float64 // of the last step
	Counts
	Dropped    int64
	DroppedBy  string // why, by the recipe's keys
	Skipped    int    // rows that can't be used: skipped.jsonl
	Seconds    float64
	Evaluating float64     // seconds of them
	PeakBytes  int64       // of the process, or on a GPU of its memory
	First      *Evaluation // before the first step (eval.at_start)
	Eval       *Evaluation // the last
	Best       float64     // with save.best: the value, and step, of the model that is saved, or of a stopped run kept in best/
	BestStep   int
	Model      string // folder; "" of a run that was stopped
	Over       bool   // when it was resumed: no step was made
	Early      bool   // it ended before its last step: evaluations got no better (eval.early_stopping)
	Stopped    bool   // before the last step, because it was asked to: a checkpoint has the rest

	Communication pipeline.Communication // of this rank

	from   int    // steps that had been made when the run was resumed
	before Counts // what had been counted then
	peakOf string // what PeakBytes are of, before the number
}

// Counts are summed over all steps, those before the run was resumed included: checkpoints have them.
type Counts struct {
	Pairs     int `json:"pairs"`
	Tokens    int `json:"tokens"`
	Negatives int `json:"negatives,omitempty"`
	Truncated int `json:"truncated"`  // texts that lost tokens
	Padding   int `json:"padding"`    // tokens that padding each sub-batch to its longest text would have added: they were not computed
	NotFinite int `json:"not_finite"` // steps that changed nothing because their gradient was not finite

	// Of a reranker's mnrl, rows that got fewer documents of other rows than num_negatives, or of all none, and of these rows of one document that got none.
	Fewer int `json:"fewer_negatives,omitempty"`
	Bare  int `json:"no_negatives,omitempty"`
}

func (c *Counts) add(r stages.StepResult) {
	c.Pairs, c.Tokens, c.Truncated, c.Padding = c.Pairs+r.Pairs, c.Tokens+r.Tokens, c.Truncated+r.Truncated, c.Padding+r.Padding
	c.Fewer, c.Bare, c.Negatives = c.Fewer+r.Fewer, c.Bare+r.Bare, c.Negatives+r.Negatives
	if r.Skipped {
		c.NotFinite++
	}
}

// Graph builds the run's training graph. Train runs it; others may draw it: run by them it is an error.
func (x *Run) Graph() (*pipeline.Graph, error) {
	if x.closed {
		return nil, errClosed
	}
	g, enc, _, err := x.graph(nil)
	if err != nil {
		return nil, err
	}
	return g, enc.Close() // it does not run: what its steps would need is for whoever trains
}

// graph builds the training graph, and what evaluates in it; without a log it does not run.
func (x *Run) graph(log *journal) (*pipeline.Graph, *stages.Encoder, *embedder.Engine, error) {
	ingest := stages.Ingest
	if log == nil {
		ingest = func(g *pipeline.Graph, _ stages.Plan) pipeline.Port[*stages.Chunk] {
			return pipeline.Source(g, "ingest", func(context.Context) (*stages.Chunk, error) {
				return nil, errors.New("the graph of recipe.Run.Graph is to be drawn, with neither checkpoints nor a journal: Train runs it")
			})
		}
	}
	g, ports, err := x.stepGraph(ingest)
	if err != nil {
		return nil, nil, nil, err
	}
	enc, results := ports.Encoder, ports.Results
	engine := enc.Engine()
	evaluated := x.evaluateStage(g, enc, engine, results)
	ports.Evaluations = evaluated
	states := stages.Snapshot(g, results, enc, x.saved)
	saved := x.saveStage(g, enc, results, states)
	record := g.Stage("record")
	result := pipeline.In(record, "result", results)
	evaluation := pipeline.In(record, "evaluation", evaluated)
	pipeline.In(record, "saved", saved)
	recorded := pipeline.Out[int](record, "recorded")
	record.Do(func(t *pipeline.Task) error {
		r := result.Get(t)
		if err := log.step(r, evaluation.Get(t), enc); err != nil {
			return err
		}
		recorded.Put(t, r.Step)
		return nil
	})
	x.checkpointStage(g, enc, states, recorded.Port)
	if x.own.stages != nil {
		if err := x.own.stages(g, ports); err != nil {
			return nil, nil, nil, errors.Join(fmt.Errorf("recipe.WithStages: %w", err), enc.Close())
		}
	}
	return g, enc, engine, nil
}

// Ports are where stages of one's own may begin in a recipe's graph, whose parameters belong to the compute lane of device 0.
type Ports struct {
	Encoder     *stages.Encoder
	Chunks      pipeline.Port[*stages.Chunk] // rows, as WithRow has left them; the one before which the run ends (Chunk.Bad) has none
	Batches     pipeline.Port[*stages.Batch] // what of each is this rank's
	Results     pipeline.Port[stages.StepResult]
	Evaluations pipeline.Port[*Evaluation] // nil after steps without one, and on ranks but the main one
}

// trainingGraph is the encoder of a graph without evaluation, saving and reports.
func (x *Run) trainingGraph() (*stages.Encoder, error) {
	g, ports, err := x.stepGraph(stages.Ingest)
	if err != nil {
		return nil, err
	}
	pipeline.Sink(g, "record", ports.Results, func(*pipeline.Task, stages.StepResult) error { return nil })
	return ports.Encoder, nil
}

// stepGraph is the graph up to each step's result, of the rows that ingest's stage reads.
func (x *Run) stepGraph(ingest func(*pipeline.Graph, stages.Plan) pipeline.Port[*stages.Chunk]) (g *pipeline.Graph, ports Ports, err error) {
	r := x.Recipe
	g = pipeline.New("train")
	enc, err := stages.NewEncoder(g, x.model, 0, x.budget(x.Memory), r.Train.Seed, stages.With(x.ranks))
	if err != nil {
		return nil, Ports{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, enc.Close())
		}
	}()
	chunks := ingest(g, x.plan)
	if x.own.row != nil || x.own.checks() {
		chunks = stages.MapRows(g, "own", chunks, x.ownRow)
	}
	var objective loss.Loss = r.objective(driving{steps: x.Steps})
	if x.own.loss != nil {
		objective = x.own.loss
	}
	update := r.update(x.Steps)
	if x.saves != nil {
		update.Missed = x.saves.progress.Missed
	}
	c, err := stages.Train(g, chunks, enc, x.step(objective, x.size(), enc.Model.Device), update)
	if err != nil {
		return nil, Ports{}, err
	}
	if x.ledger != nil {
		pipeline.Sink(g, "ledger", c.Batches, func(t *pipeline.Task, b *stages.Batch) error {
			x.ledger(t, b)
			return nil
		})
	}
	return g, Ports{Encoder: enc, Chunks: chunks, Batches: c.Batches, Results: c.Results}, nil
}

// step is how a step with a loss goes from rows to a gradient, with a model that is on a device.
func (x *Run) step(l loss.Loss, size stages.Size, d gpustage.Device) stages.Step {
	return stages.Step{Text: x.text, Size: size, Loss: l, Guide: x.guided(d)}
}

// last tells whether a step is the run's last one.
func (x *Run) last(step int) bool { return step == x.Steps-1 }

// evaluateStage measures the model every so often, and at the end.
func (x *Run) evaluateStage(g *pipeline.Graph, enc *stages.Encoder, engine *embedder.Engine, results pipeline.Port[stages.StepResult]) pipeline.Port[*Evaluation] {
	e := x.Recipe.Eval
	s := g.Stage("evaluate", pipeline.On(0, pipeline.Compute), pipeline.When(func(step int) bool {
		return x.evaluates() && (x.due(e.Every, step+1) || x.last(step))
	}))
	in := pipeline.In(s, "result", results)
	out := pipeline.Out[*Evaluation](s, "evaluation")
	s.Do(func(t *pipeline.Task) error {
		if x.putsOff(in.Get(t)) {
			x.saves.progress.Unmeasured = true
			out.Put(t, nil)
			return nil
		}
		defer enc.For(t)()
		x.tell(engine, t.Alive)
		ev, err := x.evaluateAfter(t.Context(), engine, stages.Stream(t), in.Get(t).Step+1)
		if err != nil {
			return err
		}
		out.Put(t, ev)
		return nil
	})
	return out.Port
}

// evaluateAfter measures the model as it is, after so many steps, and does what follows from that: the best one is kept, and the run told to end when
// it gets no better. The evaluation is nil on ranks but the main one, and where it has no figure.
func (x *Run) evaluateAfter(ctx context.Context, engine *embedder.Engine, s gpustage.Stream, steps int) (*Evaluation, error) {
	engine.Stream = s
	began := time.Now()
	ev, err := x.evaluate(ctx, engine)
	if err != nil {
		return nil, err
	}
	x.measured = ev // of the model as it is now: what an earlier evaluation found is not its card's
	if ev == nil {
		return nil, nil
	}
	ev.Step, ev.took = steps, time.Since(began)
	p, stop := &x.saves.progress, x.Recipe.Eval.EarlyStopping
	told := p.enough() // one more step may have been under way
	better := p.weigh(ev, stop)
	if better {
		x.saves.best = ev
	}
	if p.enough() && !told && steps < x.Steps {
		x.obs.note("the run ends early: %d evaluations in a row were no better than %s %.4f by more than %g (eval.early_stopping)", p.Worse, ev.what(), *p.Mark, stop.MinDelta)
	}
	if x.Recipe.Save.Best {
		if better {
			if err := x.keepBest(s); err != nil {
				return nil, fmt.Errorf("saving the best model: %w", err)
			}
		}
		ev.best, ev.bestStep = p.Best, p.BestStep
	}
	return ev, nil
}

// putsOff tells whether the evaluation after a step is left to the run that goes on from it, so that who has asked for the end need not wait for it.
// One that the best model or an early end depend on is not: the run may go on with fewer steps, and so end with this one.
func (x *Run) putsOff(r stages.StepResult) bool {
	return r.Asked.Stop && !x.over(r) && !x.rollsBack(r) && !x.Recipe.Save.Best && x.Recipe.Eval.EarlyStopping == nil
}

// evaluateUnmeasured makes the evaluation that was put off when the run was stopped.
func (x *Run) evaluateUnmeasured(ctx context.Context, engine *embedder.Engine, log *journal) error {
	x.saves.progress.Unmeasured = false
	if !x.evaluates() {
		return nil
	}
	x.tell(engine, nil)
	ev, err := x.evaluateAfter(ctx, engine, x.stream, x.saves.first)
	if err != nil {
		return err
	}
	log.summary.Eval = ev
	return log.beside(ev)
}

// evaluateFirst measures the model as it is before the first step.
func (x *Run) evaluateFirst(ctx context.Context, engine *embedder.Engine, log *journal) error {
	engine.Stream = x.stream
	x.tell(engine, nil)
	began := time.Now()
	ev, err := x.evaluate(ctx, engine)
	if err != nil {
		return fmt.Errorf("eval.at_start: %w", err)
	}
	if ev != nil {
		ev.took = time.Since(began)
		log.summary.First, x.saves.progress.First = ev, &ev.Value
	}
	return log.beside(ev)
}

// saveStage writes the model folder after the last step. The state is copied before it: the best model then takes the place of the last
// step's, which the run may be given more steps after.
func (x *Run) saveStage(g *pipeline.Graph, enc *stages.Encoder, results pipeline.Port[stages.StepResult], states pipeline.Port[*stages.State]) pipeline.Port[struct{}] {
	s := g.Stage("save", pipeline.On(0, pipeline.Compute))
	in := pipeline.In(s, "result", results)
	pipeline.In(s, "state", states)
	out := pipeline.Out[struct{}](s, "saved")
	s.Do(func(t *pipeline.Task) error {
		if r := in.Get(t); x.over(r) {
			defer enc.For(t)()
			if err := x.saveOver(stages.Stream(t), r.Step+1); err != nil {
				return err
			}
		}
		out.Put(t, struct{}{})
		return nil
	})
	return out.Port
}

// TrainOption configures Train.
type TrainOption func(*trainOptions)

type trainOptions struct {
	trace   bool
	resume  bool
	control *Control
	own     own
}

// WithTrace writes trace.json into the run's folder.
func WithTrace() TrainOption { return func(o *trainOptions) { o.trace = true } }

// Resuming goes on from the newest complete checkpoint in the run's folder, if there is one.
func Resuming() TrainOption { return func(o *trainOptions) { o.resume = true } }

// Controlled lets a control ask the run for checkpoints and for its end.
func Controlled(c *Control) TrainOption { return func(o *trainOptions) { o.control = c } }

// Train runs the recipe. The run's folder then holds metrics.jsonl, recipe.yaml, run.json, model/ and, if
// asked for, trace.json. A Run trains once: what it holds then is the trained model.
func (x *Run) Train(ctx context.Context, opts ...TrainOption) (_ *Summary, err error) {
	var o trainOptions
	for _, f := range opts {
		f(&o)
	}
	switch {
	case x.closed:
		return nil, errClosed
	case x.planned:
		return nil, errors.New("this Run was opened to be planned: Open opens the recipe to train")
	case x.began:
		return nil, errors.New("this Run has trained already, and would go on from the weights that it has now: open the recipe anew")
	case x.Recipe.Save.Dir == "":
		return nil, errors.New("save.dir: " + noDir)
	}
	x.own = o.own
	if err := x.checkOwnHeldOut(ctx); err != nil {
		return nil, err
	}
	dir := x.Recipe.Save.Dir
	x.saves = x.openCheckpoints(o.control)
	if x.content, err = x.contents(); err != nil {
		return nil, err
	}
	if x.saves.progress.BestBy, err = x.judge(); err != nil {
		return nil, err
	}
	if x.Main() {
		unlock, failed := x.saves.store.Lock() // err is what the deferred function adds to
		if failed != nil {
			return nil, fmt.Errorf("save.dir: %w", failed)
		}
		defer func() { err = errors.Join(err, unlock()) }()
		if err := x.Recipe.replaceable(); err != nil { // not after hours
			return nil, fmt.Errorf("save.dir: %w", err)
		}
	}
	x.began = true
	from, err := x.resume(ctx, o.resume)
	if err != nil {
		return nil, err
	}
	x.noteRoom()
	x.noteUnread()
	if from == nil {
		x.noteReplaced(dir)
	}
	defer func() { // which pass may not have come to
		if from != nil {
			err = errors.Join(err, from.Close())
		}
	}()
	if p := x.saves.progress; from != nil && (from.Step == x.Steps || p.Over && p.enough()) && !p.Unmeasured { // what has made its last step may be given more of them
		return x.finish(from)
	}
	if x.Main() {
		defer func() {
			if err != nil {
				err = errors.Join(err, leftBehind(dir))
			}
		}()
	}
	log, endLog, err := x.openJournal(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endLog()) }()
	runOpts := []pipeline.RunOption{pipeline.WhenStalled(stalledAfter, func(report string) { x.obs.note("%s", report) })}
	if o.trace {
		tracer, endTrace, failed := x.openTrace(dir)
		if failed != nil {
			return nil, fmt.Errorf("save.dir: %w", failed)
		}
		defer func() { err = errors.Join(err, endTrace()) }()
		runOpts = append(runOpts, pipeline.WithTrace(tracer))
	}
	defer x.saves.end()
	for {
		back, err := x.pass(ctx, from, log, runOpts)
		if err == nil && back == nil {
			break
		}
		if err == nil {
			from, err = x.rollBack(ctx, back.Result)
		}
		if err != nil {
			return nil, errors.Join(err, log.record.fail(&log.summary, err))
		}
	}
	s := x.summarize(log)
	return s, log.record.end(s)
}

// openJournal opens what a run writes down as it goes, which end closes: rank 0's metrics, record and events.
func (x *Run) openJournal(dir string) (log *journal, end func() error, err error) {
	now := time.Now()
	log = &journal{enc: json.NewEncoder(io.Discard), obs: x.obs, last: now, began: now, several: len(x.data) > 1}
	if told := x.obs.Step; told != nil {
		log.obs.Step = func(m Metrics) {
			m.Due = x.tells(m.Step)
			told(m)
		}
	}
	log.summary.Counts, log.summary.before = x.saves.progress.Counts, x.saves.progress.Counts
	log.summary.from = x.saves.first
	if !x.Main() {
		return log, func() error { return nil }, nil
	}
	file, err := x.begin(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("save.dir: %w", err)
	}
	log.enc = json.NewEncoder(file)
	log.record = x.newRecord()
	if !x.Recipe.Log.TensorBoard {
		return log, file.Close, nil
	}
	if log.events, err = tensorboard.Create(filepath.Join(dir, "tensorboard")); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("log.tensorboard: %w", err), file.Close())
	}
	behind := 0 // of a run that begins: all that one before it in this folder has
	if x.saves.first > 0 {
		behind = x.saves.first + 1
	}
	if err := log.events.Discard(behind); err != nil { // as metrics.jsonl is cut
		return nil, nil, errors.Join(fmt.Errorf("log.tensorboard: %w", err), log.events.Close(), file.Close())
	}
	return log, func() error { return errors.Join(log.events.Close(), file.Close()) }, nil
}

// traceOf is what a rank's trace is called.
func traceOf(rank int) string {
	if rank == 0 {
		return "trace.json"
	}
	return fmt.Sprintf("trace.%d.json", rank)
}

// openTrace opens a rank's trace, which end closes.
func (x *Run) openTrace(dir string) (tracer *pipeline.Tracer, end func() error, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil { // rank 0 may not have come so far
		return nil, nil, err
	}
	if x.Main() { // of a run before this, which had more ranks
		for k := x.ranks.Size(); ; k++ {
			if err := os.Remove(filepath.Join(dir, traceOf(k))); errors.Is(err, fs.ErrNotExist) {
				break
			} else if err != nil {
				return nil, nil, err
			}
		}
	}
	f, err := os.Create(filepath.Join(dir, traceOf(x.ranks.Rank())))
	if err != nil {
		return nil, nil, err
	}
	tracer = pipeline.NewTracer(f)
	return tracer, func() error { return errors.Join(tracer.Close(), f.Close()) }, nil
}

// summarize says what a run has come to, and what a user should know of that.
func (x *Run) summarize(log *journal) *Summary {
	s := &log.summary
	p := x.saves.progress
	s.Early = log.over && s.Steps < x.Steps
	s.Stopped = x.saves.control.stop.Load() && !s.Early && s.Steps < x.Steps
	best, bestStep := x.bestOf(s)
	if best != nil {
		s.Best, s.BestStep = *best, bestStep
	}
	if first, e := p.First, s.Eval; first != nil && e != nil {
		end := *e
		if best != nil {
			end.Value = *best
		}
		if !end.better(*first, 0) {
			x.obs.note("the model is no better than before its training: %s %.4f, and %.4f then", e.what(), end.Value, *first)
		}
	}
	if s.Loss-s.Loss != 0 {
		x.obs.note("the last step's loss is %v, and its update was left out: if its rows are sound, the weights are not, and the model gives nothing but NaN (contraflow embed tells); a lower optimizer.lr may help", s.Loss)
	}
	x.noteNoNegatives(s.Counts)
	s.Seconds = time.Since(log.began).Seconds()
	s.Communication = log.comm
	if exposed := (log.comm.Total - log.comm.Hidden).Seconds(); exposed > 0.05*s.Seconds {
		x.obs.note("%.0f %% of the time went into communication that nothing hid: %s", 100*exposed/s.Seconds, x.hideMore())
	}
	s.Skipped = len(x.skipped)
	s.Dropped, s.DroppedBy = x.sampler.Stats().Dropped, x.Recipe.leavesOut()
	if log.next != nil && s.Steps < x.Steps { // reading was ahead of the steps, maybe by an epoch's end
		s.Dropped = log.next.Stats.Dropped
	}
	if !s.Stopped {
		if text := x.reads(); text != "" {
			x.obs.note("%s", text)
		}
		s.Model = x.modelDir()
	}
	if log.record != nil {
		log.record.Best, log.record.BestStep = best, bestStep
	}
	return s
}

// hideMore says what would leave less communication exposed, as far as the recipe leaves it to do. What hides gradients is the last sub-batch's
// backward pass, once a step: the longer it is, the more. (Larger contrastive batches would do that as well, but they change the loss.)
func (x *Run) hideMore() string {
	r := x.Recipe
	switch {
	case !r.Mesh.Overlap:
		return "mesh.overlap: true communicates beside computing"
	case r.Train.Sync == "every":
		return "train.sync: last reduces gradients once a step"
	}
	var help []string
	if x.sharding != (sharding{}) {
		help = append(help, "mesh.parameters: resident and mesh.gradients: late send less, if there is memory")
	} else if x.predictedSubs() > 1 {
		help = append(help, "larger sub-batches (batch.sub_batch) give gradients a longer backward pass to travel beside")
	}
	if alone := x.device.Info().Threads > 0 && x.share.Ranks == x.ranks.Size(); alone { // no wire is between them
		help = append(help, "the ranks share this machine's processors and wait for each other, so that fewer of them may take no longer")
	} else if r.Mesh.Wire == "f32" {
		help = append(help, "mesh.wire: bf16 sends half")
	}
	if !x.sharding.early {
		help = append(help, "batch.accumulate sends gradients once for several batches")
	}
	return strings.Join(append(help, "contraflow plan --link tells what another link would hide"), "; ")
}

// A run into a folder that holds the model of another one replaces it at its end only. Until then the other run's recipe and metrics, which
// belong to that model, have this suffix.
const previous = ".previous"

var runFiles = []string{"metrics.jsonl", recordFile, "recipe.yaml"}

// noteReplaced tells of a model that the run will take the place of.
func (x *Run) noteReplaced(dir string) {
	if model := filepath.Join(dir, modelFolder); x.Main() && hfmodel.IsModel(model) {
		x.obs.note("%s is the model of a run before this one, which takes its place at its end; another save.dir (--out) keeps both", model)
	}
}

// setAside gives the files of the run whose model is in the folder their suffix. If they have it, what is without is that of a
// run that failed.
func setAside(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "recipe.yaml"+previous)); err == nil || !hfmodel.IsModel(filepath.Join(dir, modelFolder)) {
		return nil
	}
	for _, name := range runFiles { // the recipe last: it tells that all are done
		path := filepath.Join(dir, name)
		if err := os.Rename(path, path+previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// forget removes what was set aside: its model has been replaced. The recipe goes first: as long as it is there, what is without the suffix is not
// the model's.
func forget(dir string) error {
	for _, name := range slices.Backward(runFiles) {
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
	return fmt.Errorf("%s is still that of the run before: recipe.yaml%s and metrics.jsonl%s belong to it", filepath.Join(dir, modelFolder), previous, previous)
}

// pass builds the graph and runs it, from a checkpoint's state if there is one, which it closes once it has it: save.keep may remove the files, whose room
// on the disk would be taken as long as they are open. back is where the run is to roll back from.
func (x *Run) pass(ctx context.Context, from *checkpoint.Checkpoint, log *journal, opts []pipeline.RunOption) (back *stages.RollbackError, err error) {
	g, enc, engine, err := x.graph(log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, enc.Close()) }()
	enc.Ask = x.asked
	if from != nil {
		if err := enc.Restore(from); err != nil {
			return nil, fmt.Errorf("%s: %w", x.saves.store.Dir(), err)
		}
		if err := from.Close(); err != nil {
			return nil, err
		}
	}
	if from != nil && x.saves.progress.Unmeasured {
		if err := x.evaluateUnmeasured(ctx, engine, log); err != nil {
			return nil, fmt.Errorf("the evaluation after step %d: %w", x.saves.first, err)
		}
	}
	if from == nil && x.Recipe.Eval.AtStart {
		if err := x.evaluateFirst(ctx, engine, log); err != nil {
			return nil, err
		}
	}
	p, err := enc.Build()
	if err != nil {
		return nil, err
	}
	log.totals = &pipeline.Totals{By: stages.StepStages}
	if err := log.record.begin(g, log.totals); err != nil {
		return nil, fmt.Errorf("save.dir: %w", err)
	}
	opts = append(opts[:len(opts):len(opts)], pipeline.WithSpans(log.totals.Span), pipeline.WithDepths(log.totals.Depth), pipeline.FirstStep(x.saves.first))
	if x.ranks != nil { // a lane of a rank that has failed may wait for one that waits for this rank
		w := x.ranks.Comm.World
		opts = append(opts, pipeline.WhenFailed(failedTakes, func(err error) { abort(ctx, w, err) }))
	}
	if x.saves.first == x.Steps { // stopped there, with an evaluation to make, and given no more steps
		log.summary.Steps, log.summary.Over = x.Steps, true
		return nil, x.saveAnew(x.Steps, "")
	}
	x.saves.begin()
	err = p.Run(ctx, opts...)
	var rows *stages.RowsError
	switch {
	case errors.As(err, &rows):
		return nil, x.saveBefore(ctx, enc, rows, err)
	case !errors.As(err, &back):
		return nil, err
	case x.over(back.Result): // the last step changes nothing, then
		return nil, nil
	}
	return back, nil
}

var failedTakes = stages.FailedTakes // shorter in tests

// stalledAfter is how long nothing may happen before the run says what it waits for.
const stalledAfter = 3 * time.Minute

// begin makes the run's folder, with the recipe and metrics.jsonl: empty, or what it was at the checkpoint's step.
func (x *Run) begin(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	if x.saves.first == 0 {
		if err := setAside(dir); err != nil {
			return nil, err
		}
	}
	if err := x.writeRecipe(dir); err != nil {
		return nil, err
	}
	if err := writeSkipped(filepath.Join(dir, skippedFile), x.skipped); err != nil {
		return nil, err
	}
	if err := writeSkipped(filepath.Join(dir, skippedFile+notBegun), nil); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "metrics.jsonl")
	if err := trimLog(path, x.saves.first, x.saves.progress.Unmeasured); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
}

// writeRecipe writes a run's recipe.yaml.
func (x *Run) writeRecipe(dir string) error {
	text, err := x.Recipe.YAML()
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, "recipe.yaml"), x.own.says(text))
}
