package recipe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync/atomic"
	"time"

	"contraflow/collective"
	"contraflow/io/checkpoint"
	"contraflow/pipeline"
	"contraflow/stages"
)

// Control asks a run in progress for something from another goroutine: a signal handler's.
type Control struct {
	save, stop atomic.Bool
	running    atomic.Int32 // ranks that train
}

// Save asks for a checkpoint after the step at hand, or, as Stop does, after the next one.
func (c *Control) Save() bool {
	c.save.Store(true)
	return c.running.Load() > 0
}

// Stop asks for a checkpoint, and for the run to end with it: after the step at hand, or, since ranks agree on it in a step's backward pass, after
// the next one. It returns false while no run is at its steps: then there is nothing to save.
func (c *Control) Stop() bool {
	if c.running.Load() == 0 {
		return false
	}
	c.stop.Store(true)
	return true
}

// begin has the control know that the run is at its steps, until end: between its passes as well.
func (c *checkpoints) begin() {
	if !c.running {
		c.running = true
		c.control.running.Add(1)
	}
}

func (c *checkpoints) end() {
	if c.running {
		c.running = false
		c.control.running.Add(-1)
	}
}

// checkpoints is a run's saving.
type checkpoints struct {
	store   *checkpoint.Store
	control *Control
	running bool      // as control knows it
	first   int       // the step that the run begins with
	last    time.Time // of the last checkpoint, or the beginning

	progress  progress    // changes on the compute lane
	best      *Evaluation // of this process, if any was the best
	kept      bool        // the model is the best evaluation's, which was not the last
	rollbacks int

	at    stages.StepResult // of the last step of this process
	steps int               // of the newest checkpoint, as far as this process knows
}

// progress is what a run remembers besides its state: part of a checkpoint.
type progress struct {
	First      *float64 `json:"first,omitempty"` // the value before the first step (eval.at_start)
	Best       *float64 `json:"best,omitempty"`  // the best evaluation's value
	BestStep   int      `json:"best_step,omitempty"`
	BestBy     string   `json:"best_by,omitempty"`    // what has measured it
	BestModel  string   `json:"best_model,omitempty"` // with save.best: the hash of its weights
	Mark       *float64 `json:"mark,omitempty"`       // the last value that was better by min_delta: nil in old checkpoints, where it is Best
	Worse      int      `json:"worse,omitempty"`      // evaluations since
	Spent      int      `json:"spent,omitempty"`      // Worse when it had the run end early, 0 if it has not: the step that was under way then may be measured as better
	Over       bool     `json:"over,omitempty"`       // the run has, and its model is saved
	Unmeasured bool     `json:"unmeasured,omitempty"` // the run was stopped instead of making the evaluation after the step: who goes on makes it
	Missed     int      `json:"missed,omitempty"`     // steps whose update the weights do not have: they were skipped, or rolled back
	LR         *float64 `json:"lr,omitempty"`         // the last step's learning rate; nil in old checkpoints
	Own        *ownMark `json:"own,omitempty"`        // of Train's options; what an old checkpoint does not say of it is what they are now
	Counts
}

// ownMark is what is known of what a program has put in the place of a recipe's: the loss, and that rows are changed, not how.
type ownMark struct {
	Loss     string `json:"loss"`               // its type; "": the recipe's
	Settings string `json:"settings,omitempty"` // stages.Settings of it; "" in old checkpoints
	Row      bool   `json:"row"`
}

func (o own) mark() *ownMark {
	m := &ownMark{Row: o.row != nil}
	if o.loss != nil {
		m.Loss, m.Settings = fmt.Sprintf("%T", o.loss), stages.Settings(o.loss)
	}
	return m
}

// check refuses to go on with another loss, or other rows, than a run began with.
func (now *ownMark) check(began *ownMark) error {
	was := *began
	if was.Settings == "" {
		was.Settings = now.Settings
	}
	if *now == was {
		return nil
	}
	loss := func(m *ownMark) string {
		if m.Loss == "" {
			return "the recipe's loss"
		}
		return "recipe.WithLoss of a " + cmp.Or(m.Settings, m.Loss)
	}
	row := func(m *ownMark) string {
		if m.Row {
			return "with recipe.WithRow"
		}
		return "without recipe.WithRow"
	}
	return fmt.Errorf("%w in what a program puts in its place: the run began with %s, %s, and is to go on with %s, %s; give Train the options that it began with, or start anew in another save.dir",
		ErrRecipeChanged, loss(began), row(began), loss(now), row(now))
}

// enough tells whether the run is to end early.
func (p *progress) enough() bool { return p.Spent > 0 }

// weigh takes note of an evaluation and tells whether it is the best so far. That is so however little better it is; min_delta is patience's.
func (p *progress) weigh(ev *Evaluation, stop *EarlyStopping) bool {
	if p.Mark == nil {
		p.Mark = p.Best
	}
	if p.Mark == nil || ev.better(*p.Mark, stop.delta()) {
		p.Mark, p.Worse = &ev.Value, 0
	} else {
		p.Worse++
		if stop != nil && p.Worse >= stop.Patience {
			p.Spent = p.Worse
		}
	}
	better := p.Best == nil || ev.better(*p.Best, 0)
	if better {
		p.Best, p.BestStep, p.BestModel = &ev.Value, ev.Step, "" // what best/ has is not its model until keepBest says so
	}
	return better
}

// checkpointsDir is where in save.dir they are.
const checkpointsDir = "checkpoints"

func (x *Run) openCheckpoints(c *Control) *checkpoints {
	fs := x.fs
	if fs == nil {
		fs = checkpoint.Disk{}
	}
	if c == nil {
		c = new(Control)
	}
	return &checkpoints{
		store: checkpoint.Open(filepath.Join(x.Recipe.Save.Dir, checkpointsDir), fs), control: c, last: time.Now(), progress: progress{Own: x.own.mark()},
	}
}

// noteRoom tells of a disk that has no room for what a run leaves, before the hours that come before it: the model, with save.best the best one too,
// and checkpoints, of which one more than save.keep are there while one is written.
func (x *Run) noteRoom() {
	save, most := x.Recipe.Save, 0
	free, known := x.saves.store.Room()
	have, err := x.saves.store.Steps()
	switch n := x.dues(save.Every); {
	case save.Every.Time > 0:
		most = save.Keep + 1
	case n > 0 && !x.due(save.Every, x.Steps) || n == 0 && len(have) > 0: // there is one of the last step, too
		most = min(save.Keep+1, max(n, len(have))+1)
	default:
		most = min(save.Keep+1, n)
	}
	if !x.Main() || !known || err != nil { // an error comes again when the first is written
		return
	}
	one := int64(x.model.Layout.Trained()*x.model.DType.Size()) * int64(1+x.Recipe.update(1).Optimizer.States())
	model, models, size := x.model.Layout.Len, int64(1), int64(4)
	if x.Recipe.Model.LoRA != nil && !x.merges() {
		model = x.model.Layout.Trained()
	}
	if save.Best {
		models = 2
	}
	if save.Precision != "f32" {
		size = 2
	}
	need := models*int64(model)*size + one*int64(max(0, most-len(have)))
	if free >= need {
		return
	}
	checkpoints, lower := "", ""
	if most > 0 {
		checkpoints, lower = fmt.Sprintf(", and checkpoints %s each, up to %d at a time", Size(one), most), ", or lower save.keep"
	}
	x.obs.note("%s has room for %s; the model takes %s%s: free %s%s", x.Recipe.Save.Dir, Size(free), Size(int64(model)*size), checkpoints, Size(need-free), lower)
}

// asked is what this rank wants done after the step at hand. The clock is rank 0's.
func (x *Run) asked() stages.Asked {
	c := x.saves
	a := stages.Asked{Save: c.control.save.Swap(false), Stop: c.control.stop.Load(), Finish: c.progress.enough()}
	if every := x.Recipe.Save.Every.Time; every > 0 && x.Main() && time.Since(c.last) >= every {
		c.last = time.Now()
		a.Save = true
	}
	return a
}

// saved tells whether the state after a step is to be saved, and what the run remembers then. Runs that are over before their
// first checkpoint leave none; others leave one of their last step, so that nothing is trained again by who goes on.
func (x *Run) saved(r stages.StepResult) (note any, save bool) {
	x.saves.progress.add(r)
	x.saves.progress.LR = &r.LR
	if r.Skipped {
		x.saves.progress.Missed++
	}
	p := x.saves.progress
	p.Over = x.over(r)
	every, done := x.Recipe.Save.Every, r.Step+1
	x.saves.at = r
	save = r.Asked.Save || r.Asked.Stop || x.due(every, done) || p.Over && x.saves.steps > 0
	save = save && !x.rollsBack(r)
	if save {
		x.saves.steps = done
	}
	return p, save
}

// over tells that the run ends with a step for good.
func (x *Run) over(r stages.StepResult) bool { return x.last(r.Step) || r.Asked.Finish }

// rollsBack tells that the run goes on from the last checkpoint instead of from a step. The last step changes nothing, then.
func (x *Run) rollsBack(r stages.StepResult) bool {
	return r.Skipped && x.Recipe.Train.OnNaN == string(stages.RollbackOnNaN) && !x.over(r)
}

// checkpointStage writes the state after the steps that are due, while later steps compute. It first waits for the step's line in metrics.jsonl,
// which a run that goes on from the checkpoint would not write any more; and so after the last step for the model's folder: a run whose checkpoint
// says that it is over has nothing left to do.
func (x *Run) checkpointStage(g *pipeline.Graph, enc *stages.Encoder, states pipeline.Port[*stages.State], recorded pipeline.Port[int]) {
	s := g.Stage("checkpoint", pipeline.At(pipeline.Step))
	in := stages.Snapshots(s, states)
	pipeline.In(s, "recorded", recorded, pipeline.Capacity(math.MaxInt))
	s.Do(func(t *pipeline.Task) error {
		return enc.Checkpoint(t.Context(), in.Get(t), x.checkpoints())
	})
}

func (x *Run) checkpoints() stages.Checkpoints {
	return stages.Checkpoints{Store: x.saves.store, Keep: x.Recipe.Save.Keep, State: x.remember}
}

// saveBefore makes a checkpoint of what a run has come to that rows have ended, if it has made steps since the last one, and returns its error with the way on.
func (x *Run) saveBefore(ctx context.Context, enc *stages.Encoder, rows *stages.RowsError, err error) error {
	c := x.saves
	done := max(c.at.Step+1, c.first)
	skips := rows.Row && x.Recipe.Data.OnError == "stop"
	switch {
	case c.at.Next == nil && c.first == 0 && skips:
		return fmt.Errorf("%w; no step came before it, and nothing is saved: %s", err, skipRows)
	case c.at.Next == nil && c.first == 0:
		return fmt.Errorf("%w; no step came before it, and nothing is saved", err)
	}
	way, without := "--resume", ", if the row can be used then"
	if skips {
		way, without = way+" --set data.on_error=skip", ", without such rows, and lists them in skipped.jsonl"
	}
	if done > c.steps {
		// A cancel ends other ranks' part in it, and by the job's end this one's: with the rows' error, which it would else hide.
		if x.ending != nil {
			before := "the beginning"
			if c.steps > 0 {
				before = fmt.Sprintf("step %d", c.steps)
			}
			x.ending.Store(&ending{err, fmt.Sprintf("%s goes on from step %d if %s has that, or else from %s%s", way, done, c.store.Dir(), before, without)})
		}
		if failed := enc.Save(context.WithoutCancel(ctx), x.stream, c.at, c.progress, x.checkpoints()); failed != nil {
			return errors.Join(err, fmt.Errorf("saving what the %d steps before it came to: %w", done, failed))
		}
	}
	return fmt.Errorf("%w; %s has step %d, the last one before it: %s goes on from there%s", err, c.store.Dir(), done, way, without)
}

// ending is why a run ends whose steps are being saved, and the way on where it is stopped meanwhile: nobody knows then how far all ranks have come.
type ending struct {
	err error
	way string
}

// stoppedBy is why the job ends where ctx has ended; what had ended the run before comes first.
func (x *Run) stoppedBy(ctx context.Context) error {
	err := fmt.Errorf("stopped: %w", collective.Stopped(ctx))
	if before := x.ending.Load(); before != nil {
		return fmt.Errorf("%w; %w while what came before it was saved: %s", before.err, err, before.way)
	}
	return err
}

// remember adds the recipe, and what the run relies on, to a checkpoint.
func (x *Run) remember(state *checkpoint.State) error {
	text, err := x.Recipe.YAML()
	if err != nil {
		return err
	}
	state.Recipe, state.Contents = string(text), x.content
	state.Files, err = json.Marshal(x.files())
	return err
}
