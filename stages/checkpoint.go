package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/pipeline"
)

// Checkpoints says where states become checkpoints, and how many stay.
type Checkpoints struct {
	Store *checkpoint.Store
	Keep  int // complete ones; below 1: 1
	// State adds what the program knows besides to the first rank's: a recipe, files, contents. May be nil.
	State func(*checkpoint.State) error
}

// Checkpoint adds the stage that writes snapshots into a store, while later steps compute. What Snapshot's due has said of a step is the checkpoint's
// Progress, as JSON. A run goes on from it with [Plan.Resume] and [Encoder.Restore].
func Checkpoint(g *pipeline.Graph, states pipeline.Port[*State], e *Encoder, to Checkpoints) {
	s := g.Stage("checkpoint", pipeline.At(pipeline.Step))
	in := Snapshots(s, states)
	if to.Store == nil {
		s.Refuse(errNoStore)
	}
	s.Do(func(t *pipeline.Task) error { return e.Checkpoint(t.Context(), in.Get(t), to) })
}

var errNoStore = errors.New("Checkpoints.Store is nil: checkpoint.Open makes one of a folder")

// Snapshots connects a stage of one's own that writes them. What bounds this edge is the memory for one state: steps without one put nil, and must
// not wait for a checkpoint of steps ago.
func Snapshots(s *pipeline.Stage, states pipeline.Port[*State]) pipeline.Input[*State] {
	return pipeline.In(s, "state", states, pipeline.Capacity(math.MaxInt))
}

// Save writes a checkpoint of the state as the step with result r has left it, outside of a run: of one that has ended with a [RowsError], say. note is the
// checkpoint's Progress. All ranks call it.
func (e *Encoder) Save(ctx context.Context, s gpustage.Stream, r StepResult, note any, to Checkpoints) error {
	st := &State{Result: r, Note: note}
	if err := e.copyState(s, st); err != nil {
		return err
	}
	return e.Checkpoint(ctx, st, to)
}

// Checkpoint is one rank's part in writing a state; of nil there is nothing to write. A rank that fails tells the others: all return when the
// checkpoint is complete, or is known not to be.
func (e *Encoder) Checkpoint(ctx context.Context, st *State, to Checkpoints) error {
	if st == nil {
		return nil
	}
	ctx = collective.For(ctx, fmt.Sprintf("the checkpoint of step %d", st.Result.Step+1))
	done, bytes := st.Result.Step+1, int64(0)
	for _, p := range st.Pieces {
		bytes += int64(len(p.Data))
	}
	first := func(do func() error) func() (checkpoint.Part, error) { // rank 0's part
		return func() (none checkpoint.Part, err error) {
			if e.ranks.Rank() == 0 {
				err = do()
			}
			return none, err
		}
	}
	if _, err := e.inTurn(ctx, first(func() error { return to.Store.Begin(done, bytes*int64(e.ranks.Size())+1<<20) })); err != nil {
		return err
	}
	parts, err := e.inTurn(ctx, func() (checkpoint.Part, error) {
		part, err := to.Store.WritePart(done, e.ranks.Rank(), e.DTypeName(), st.Pieces)
		if err == nil && st.gone.Load() {
			err = fmt.Errorf("the state of step %d has been given back while it was written: it is there until the stages that read Snapshot's port return, and no longer for a stage behind them", done)
		}
		return part, err
	})
	if err == nil {
		_, err = e.inTurn(ctx, first(func() error {
			state, err := e.manifest(st)
			if err == nil && to.State != nil {
				err = to.State(&state)
			}
			if err != nil {
				return err
			}
			state.Parts = parts
			return to.Store.Commit(state, max(1, to.Keep))
		}))
	}
	if err != nil && e.ranks.Rank() == 0 { // a disk that was full is to have the room again
		err = errors.Join(err, to.Store.Abandon(done))
	}
	return err
}

// inTurn makes every rank do something, and gives all of them what came of it on each, or the first rank's error.
func (e *Encoder) inTurn(ctx context.Context, do func() (checkpoint.Part, error)) ([]checkpoint.Part, error) {
	type outcome struct {
		Part   checkpoint.Part
		Failed string
	}
	part, err := do()
	mine := outcome{Part: part}
	if err != nil {
		mine.Failed = err.Error()
	}
	all, exchanged := Consult(ctx, e.ranks, mine)
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

// manifest is what a checkpoint knows of a state besides its tensors.
func (e *Encoder) manifest(st *State) (checkpoint.State, error) {
	place := any(st.Result.Next)
	if st.Result.Next == nil {
		place = st.Result.Place
	}
	data, err := json.Marshal(place)
	if err != nil {
		return checkpoint.State{}, fmt.Errorf("the place in the data after step %d: %w", st.Result.Step+1, err)
	}
	remembered, err := json.Marshal(st.Note)
	if err != nil {
		return checkpoint.State{}, err
	}
	return checkpoint.State{
		Step: st.Result.Step + 1, Written: time.Now().UTC().Truncate(time.Second),
		Vectors: e.Vectors(), DType: string(e.DTypeName()), Parameters: e.Parameters(),
		Seed: e.Seed, Mesh: e.ranks.MeshName(), Data: data, Progress: remembered,
	}, nil
}

// ResumeLatest puts the plan where the newest checkpoint's run has left it, as Resume does, and returns the checkpoint, for [Encoder.Restore], to be closed
// then; nil if the store has none. One that is damaged is an error: without its folder the plan goes on from the one before.
func (p *Plan) ResumeLatest(s *checkpoint.Store) (*checkpoint.Checkpoint, error) {
	var damaged error
	c, err := s.Latest(func(folder string, err error) {
		damaged = errors.Join(damaged, fmt.Errorf("%s is damaged: %w", folder, err))
	})
	switch {
	case damaged != nil && err == nil:
		return nil, errors.Join(fmt.Errorf("%w; without this folder the run goes on from step %d", damaged, c.Step), c.Close())
	case errors.Is(err, checkpoint.ErrNone) && damaged == nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := p.Resume(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Resume puts the plan where a checkpoint's run has left it. The run begins with that step ([pipeline.FirstStep]); its state comes with
// [Encoder.Restore], and what its program remembers is c.Progress. A source of one's own has no plan: it goes on behind the [Chunk].Place in c.Data, and
// its run begins with step c.Step.
func (p *Plan) Resume(c *checkpoint.Checkpoint) error {
	var at dataset.Cursor
	if err := json.Unmarshal(c.Data, &at); err != nil {
		return fmt.Errorf("the checkpoint's place in the data: %w", err)
	}
	if err := p.resume(&at, c.Step); err != nil {
		return fmt.Errorf("the checkpoint's place in the data: %w", err)
	}
	return nil
}

// ResumeAfter puts the plan behind a step, whatever becomes of what it and steps before it have changed: the data goes on there with a
// checkpoint's state ([RollbackError]). Those steps since the checkpoint's are missed then: the update is to know how many ([Update].Missed).
func (p *Plan) ResumeAfter(r StepResult) error {
	if r.Next == nil {
		return fmt.Errorf("step %d does not know where the data goes on: its rows are not Ingest's", r.Step+1)
	}
	return p.resume(r.Next, r.Step+1)
}

// resume puts the plan behind so many steps.
func (p *Plan) resume(at *dataset.Cursor, steps int) error {
	if err := p.check(); err != nil {
		return err
	}
	if err := p.Sampler.Restore(*at); err != nil {
		return err
	}
	p.FirstStep = steps
	return nil
}
