package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync/atomic"
	"time"

	"contraflow/io/checkpoint"
	"contraflow/pipeline"
	"contraflow/stages"
)

// Control asks a run in progress for something from another goroutine: a signal handler's.
type Control struct {
	save, stop atomic.Bool
	running    atomic.Bool
}

// Save asks for a checkpoint after the step at hand, or, as Stop does, after the next one.
func (c *Control) Save() bool {
	c.save.Store(true)
	return c.running.Load()
}

// Stop asks for a checkpoint, and for the run to end with it: after the step at hand, or, since ranks agree on it in a step's backward pass, after
// the next one. It returns false if no run has begun:
// then there is nothing to save.
func (c *Control) Stop() bool {
	if !c.running.Load() {
		return false
	}
	c.stop.Store(true)
	return true
}

// checkpoints is a run's saving.
type checkpoints struct {
	store   *checkpoint.Store
	control *Control
	first   int       // the step that the run begins with
	last    time.Time // of the last checkpoint, or the beginning

	progress  progress           // changes on the compute lane
	best      *Evaluation        // of this process, if any was the best
	kept      bool               // the model is the best evaluation's, which was not the last
	rolled    *stages.StepResult // the step that is to be rolled back from
	rollbacks int
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
	Enough     bool     `json:"enough,omitempty"`     // the run is to stop early
	Over       bool     `json:"over,omitempty"`       // the run has, and its model is saved
	Unmeasured bool     `json:"unmeasured,omitempty"` // the run was stopped instead of making the evaluation after the step: who goes on makes it
	Missed     int      `json:"missed,omitempty"`     // steps whose update the weights do not have: they were skipped, or rolled back
	Counts
}

// measured takes note of an evaluation and tells whether it is the best so far. That is so however little better it is; min_delta is patience's.
func (p *progress) measured(ev *Evaluation, stop *EarlyStopping) bool {
	if p.Mark == nil {
		p.Mark = p.Best
	}
	if p.Mark == nil || ev.Value > *p.Mark+stop.delta() {
		p.Mark, p.Worse = &ev.Value, 0
	} else {
		p.Worse++
		p.Enough = stop != nil && p.Worse >= stop.Patience
	}
	better := p.Best == nil || ev.Value > *p.Best
	if better {
		p.Best, p.BestStep = &ev.Value, ev.Step
	}
	return better
}

func (x *Run) openCheckpoints(c *Control) *checkpoints {
	fs := x.fs
	if fs == nil {
		fs = checkpoint.Disk{}
	}
	if c == nil {
		c = new(Control)
	}
	return &checkpoints{store: checkpoint.Open(filepath.Join(x.Recipe.Save.Dir, "checkpoints"), fs), control: c, last: time.Now()}
}

// noteRoom tells of a disk that has no room for the checkpoints of a run, of which one more than save.keep are there while one is written, before
// the hours that come before them.
func (x *Run) noteRoom() {
	save, most := x.Recipe.Save, x.Recipe.Save.Keep+1
	switch every := save.Every; {
	case every.Steps > 0:
		most = min(most, x.Steps/every.Steps)
	case every.Time == 0:
		return
	}
	free, known := x.saves.store.Room()
	have, err := x.saves.store.Steps()
	if !x.Main() || !known || err != nil { // an error comes again when the first is written
		return
	}
	one := int64(x.model.Layout.Trained()*x.model.DType.Size()) * int64(1+x.Recipe.update(1).Optimizer.States())
	if need := one * int64(most-len(have)); free < need {
		x.obs.note("%s has room for %s, and checkpoints take %s each, up to %d at a time: free %s, or lower save.keep", x.saves.store.Dir(), Size(free), Size(one), most, Size(need-free))
	}
}

// asked is what this rank wants done after the step at hand. The clock is rank 0's.
func (x *Run) asked() stages.Asked {
	c := x.saves
	a := stages.Asked{Save: c.control.save.Swap(false), Stop: c.control.stop.Load(), Finish: c.progress.Enough}
	if every := x.Recipe.Save.Every.Time; every > 0 && x.Main() && time.Since(c.last) >= every {
		c.last = time.Now()
		a.Save = true
	}
	return a
}

// due tells whether the state after a step is to be saved, and what the run remembers then. Runs that are over before their
// first checkpoint leave none.
func (x *Run) due(r stages.StepResult) (note any, save bool) {
	x.saves.progress.add(r)
	if r.Skipped {
		x.saves.progress.Missed++
	}
	p := x.saves.progress
	p.Over = x.over(r)
	every, done := x.Recipe.Save.Every, r.Step+1
	save = r.Asked.Save || r.Asked.Stop || every.Steps > 0 && (done%every.Steps == 0 || p.Over && done > every.Steps)
	return p, save && !x.rollsBack(r)
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
	// What bounds this edge is the memory for one state: steps without one put nil, and must not wait for a checkpoint of steps ago.
	in := pipeline.In(s, "state", states, pipeline.Capacity(math.MaxInt))
	pipeline.In(s, "recorded", recorded, pipeline.Capacity(math.MaxInt))
	s.Do(func(t *pipeline.Task) error {
		st := in.Get(t)
		if st == nil {
			return nil
		}
		defer st.Release()
		return x.writeCheckpoint(t.Context(), enc, st)
	})
}

// writeCheckpoint is one rank's part in writing a checkpoint. A rank that fails tells the others; all return when the
// checkpoint is complete, or is known not to be.
func (x *Run) writeCheckpoint(ctx context.Context, enc *stages.Encoder, st *stages.State) error {
	store, done := x.saves.store, st.Result.Step+1
	bytes := int64(0)
	for _, p := range st.Pieces {
		bytes += int64(len(p.Data))
	}
	_, err := x.inTurn(ctx, func() (checkpoint.Part, error) {
		if !x.Main() {
			return checkpoint.Part{}, nil
		}
		return checkpoint.Part{}, store.Begin(done, bytes*int64(x.ranks.Size())+1<<20)
	})
	if err != nil {
		return err
	}
	parts, err := x.inTurn(ctx, func() (checkpoint.Part, error) {
		return store.WritePart(done, x.ranks.Rank(), enc.DTypeName(), st.Pieces)
	})
	if err != nil {
		if x.Main() {
			err = errors.Join(err, store.Abandon(done))
		}
		return err
	}
	_, err = x.inTurn(ctx, func() (checkpoint.Part, error) {
		if !x.Main() {
			return checkpoint.Part{}, nil
		}
		state, err := x.state(enc, st)
		if err != nil {
			return checkpoint.Part{}, err
		}
		state.Parts = parts
		return checkpoint.Part{}, store.Commit(state, x.Recipe.Save.Keep)
	})
	return err
}

// inTurn makes every rank do something, and gives all of them what came of it on each, or the first rank's error.
func (x *Run) inTurn(ctx context.Context, do func() (checkpoint.Part, error)) ([]checkpoint.Part, error) {
	type outcome struct {
		Part   checkpoint.Part
		Failed string
	}
	part, err := do()
	mine := outcome{Part: part}
	if err != nil {
		mine.Failed = err.Error()
	}
	all, exchanged := stages.Consult(ctx, x.ranks, mine)
	if err != nil || exchanged != nil {
		return nil, errors.Join(err, exchanged)
	}
	var parts []checkpoint.Part
	for rank, o := range all {
		if o.Failed != "" {
			return nil, fmt.Errorf("rank %d: %s", rank, o.Failed)
		}
		parts = append(parts, o.Part)
	}
	return parts, nil
}

// state is what a checkpoint knows besides its tensors.
func (x *Run) state(enc *stages.Encoder, st *stages.State) (checkpoint.State, error) {
	text, err := x.Recipe.YAML()
	if err != nil {
		return checkpoint.State{}, err
	}
	data, err := json.Marshal(st.Result.Next)
	if err != nil {
		return checkpoint.State{}, err
	}
	files, err := json.Marshal(x.files())
	if err != nil {
		return checkpoint.State{}, err
	}
	remembered, err := json.Marshal(st.Note)
	if err != nil {
		return checkpoint.State{}, err
	}
	mesh := "1 rank"
	if x.ranks != nil {
		mesh = x.ranks.Comm.Mesh.String()
	}
	return checkpoint.State{
		Step: st.Result.Step + 1, Written: time.Now().UTC().Truncate(time.Second),
		Vectors: enc.Vectors(), DType: string(enc.DTypeName()), Parameters: enc.Parameters(),
		Seed: x.Recipe.Train.Seed, Mesh: mesh, Recipe: string(text), Data: data, Files: files, Progress: remembered, Contents: x.content,
	}, nil
}
