package stages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/safetensors"
	"contraflow/pipeline"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// A run's state after a step is its parameters and the optimizer's vectors. Saving it has two stages: snapshot copies this rank's part of
// it to host memory, on the compute lane between two steps, and a stage in the host pool writes it while training goes on.
//
// Every rank keeps a part: along the shard axis what it updates, and of that, along the replicate axis, an equal part each, for
// replicas have the same. So all of it is copied and written once, by all ranks side by side. Restoring takes from all
// parts what the new mesh needs, by the names of parameters.

// Asked is what is to be done after a step besides what its number says.
type Asked struct {
	Save   bool // make a checkpoint
	Stop   bool // end the run with this step, to go on later
	Finish bool // end the run with this step, for good
}

func (a Asked) or(b Asked) Asked {
	return Asked{a.Save || b.Save, a.Stop || b.Stop, a.Finish || b.Finish}
}

// optimizerState is what Apply keeps.
type optimizerState struct {
	states   []gpustage.Tensor
	owns     int             // elements of each state
	norm     gpustage.Tensor // the gradient's sum of squares
	snapshot *gpustage.HostMemory
}

func (o *optimizerState) close() error {
	var errs []error
	for _, t := range append(o.states, o.norm) {
		if !t.IsZero() {
			errs = append(errs, t.Mem.Free())
		}
	}
	if o.snapshot != nil {
		errs = append(errs, o.snapshot.Free())
	}
	*o = optimizerState{}
	return errors.Join(errs...)
}

// Vectors names what a checkpoint has of every parameter that is trained.
func (e *Encoder) Vectors() []string {
	names := []string{"weights"}
	for i := range e.states {
		names = append(names, fmt.Sprint("moment ", i+1))
	}
	return names
}

// stretch is a run of a parameter's elements that lie side by side in the gradient and in the states.
type stretch struct {
	param transformer.Param
	from  int // of the parameter
	n     int
	state int // the first one's place in the states
}

// stretches is what lies in [lo, hi) of the states, cut by parameters.
func (e *Encoder) stretches(lo, hi int) []stretch {
	blocks := []share{{hi: e.owns}}
	if e.ranks.sharded() {
		blocks = e.shares
	}
	var out []stretch
	for _, x := range blocks {
		off := x.lo - x.at // from the states to the gradient
		for _, p := range e.Model.Layout.Training() {
			at := e.Model.Layout.At(p)
			from, to := max(lo+off, x.lo, at), min(hi+off, x.hi, at+p.Len())
			if from < to {
				out = append(out, stretch{p, from - at, to - from, from - off})
			}
		}
	}
	return out
}

// writes is the range of the states that this rank writes.
func (e *Encoder) writes() (lo, hi int) {
	if e.ranks == nil {
		return 0, e.owns
	}
	return Slice(e.owns, e.ranks.Comm.Replicate.Rank(), e.ranks.Comm.Replicate.Size())
}

// vector is a stretch of one of Vectors.
func (e *Encoder) vector(i int, s stretch) gpustage.Tensor {
	switch {
	case i > 0:
		return e.states[i-1].Columns(s.state, s.state+s.n)
	case e.ranks.streams(): // parameters lie as states do
		return e.Model.Trained().Columns(s.state, s.state+s.n)
	default:
		at := e.Model.Layout.At(s.param) + s.from
		return e.Model.Trained().Columns(at, at+s.n)
	}
}

// State is a rank's part of a run's state after a step, in host memory, which it has until the stages that read Snapshot's port have returned.
type State struct {
	Result StepResult
	Note   any // what due has said of the step
	Pieces []checkpoint.Piece

	gone atomic.Bool // the next snapshot may have the memory
}

// SnapshotBytes is the host memory that snapshots take on each of so many ranks, for a model with so many bytes of
// parameters that train.
func SnapshotBytes(parameters int64, o optim.Optimizer, ranks int) int64 {
	return parameters * int64(1+o.States()) / int64(max(1, ranks))
}

// Snapshot adds the stage that copies this rank's part of the state to host memory after the steps that are due, and puts nil after
// others. [Checkpoint] writes them. due runs on the compute lane, between two steps. There is memory for one state: a stage that reads it and returns
// later than the step of the next snapshot makes that one wait. Who needs it for longer copies it.
func Snapshot(g *pipeline.Graph, results pipeline.Port[StepResult], e *Encoder, due func(StepResult) (note any, save bool)) pipeline.Port[*State] {
	s := g.Stage("snapshot", e.on())
	in := pipeline.In(s, "result", results)
	out := pipeline.Lent[*State](s, "state")
	free := make(chan struct{}, 1)
	free <- struct{}{}
	if due == nil {
		s.Refuse(errors.New("nothing says after which steps there is to be a snapshot: due is nil"))
	}
	s.Do(func(t *pipeline.Task) error {
		r := in.Get(t)
		note, save := due(r)
		if !save {
			out.Put(t, nil, nil)
			return nil
		}
		select {
		case <-free:
		case <-t.Context().Done():
			return context.Cause(t.Context())
		}
		st := &State{Result: r, Note: note}
		back := func() {
			st.gone.Store(true)
			free <- struct{}{}
		}
		if err := e.copyState(Stream(t), st); err != nil {
			back()
			return err
		}
		out.Put(t, st, back)
		return nil
	})
	return out.Port
}

// copyState copies this rank's part of the state.
func (e *Encoder) copyState(s gpustage.Stream, st *State) error {
	lo, hi := e.writes()
	size := e.Model.DType.Size()
	if e.snapshot == nil {
		var err error
		if e.snapshot, err = gpustage.AllocHost((hi - lo) * size * (1 + len(e.states))); err != nil {
			return fmt.Errorf("memory for a snapshot: %w", err)
		}
	}
	rest := e.snapshot.Data()
	for i, vector := range e.Vectors() {
		for _, x := range e.stretches(lo, hi) {
			p := checkpoint.Piece{Vector: vector, Name: x.param.Name, From: x.from, Data: rest[:x.n*size]}
			rest = rest[x.n*size:]
			s.CopyOut(p.Data, e.vector(i, x))
			st.Pieces = append(st.Pieces, p)
		}
	}
	return s.Sync()
}

// DTypeName is the type of the state's elements, as checkpoints spell it.
func (e *Encoder) DTypeName() safetensors.DType {
	if e.Model.DType == gpustage.F64 {
		return safetensors.F64
	}
	return safetensors.F32
}

// Parameters lists what is trained.
func (e *Encoder) Parameters() []checkpoint.Parameter {
	var out []checkpoint.Parameter
	for _, p := range e.Model.Layout.Training() {
		out = append(out, checkpoint.Parameter{Name: p.Name, Shape: p.Shape()})
	}
	return out
}

// Restore makes the state what a checkpoint says, whatever mesh has written it, and has Run begin with the checkpoint's step; of nil ([Plan.ResumeLatest])
// nothing changes. It comes after Apply, which knows the optimizer's state, and before the graph runs.
func (e *Encoder) Restore(c *checkpoint.Checkpoint) (err error) {
	if c == nil {
		return nil
	}
	if !e.applied {
		return errors.New("stages: the encoder has no optimizer yet whose state Restore could put back: Restore comes after Train, or Apply")
	}
	if err := e.fits(c); err != nil {
		return err
	}
	if e.Model.DType != gpustage.F32 {
		return fmt.Errorf("the model computes in %v: checkpoints are gone on from in f32 and bf16", e.Model.DType)
	}
	s, err := e.Model.Device.OpenStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	names := e.Vectors()
	if err := e.Model.LoadTrained(s, func(p transformer.Param, dst []float32) error {
		return c.Read(names[0], p.Name, 0, gpustage.Bytes(dst))
	}); err != nil {
		return err
	}
	var buf []float32
	for i := range e.states {
		for _, x := range e.stretches(0, e.owns) {
			buf = slices.Grow(buf[:0], x.n)[:x.n]
			if err := c.Read(names[i+1], x.param.Name, x.from, gpustage.Bytes(buf)); err != nil {
				return err
			}
			s.CopyIn(e.vector(i+1, x), gpustage.Bytes(buf))
		}
	}
	e.restored = c.Step
	return s.Sync()
}

// fits compares a checkpoint's parameters with the model's.
func (e *Encoder) fits(c *checkpoint.Checkpoint) error {
	shapes := map[string]string{}
	for _, p := range c.Parameters {
		shapes[p.Name] = fmt.Sprint(p.Shape)
	}
	for _, p := range e.Parameters() {
		have, ok := shapes[p.Name]
		if want := fmt.Sprint(p.Shape); !ok {
			return fmt.Errorf("the checkpoint has no parameter %q, which the model trains", p.Name)
		} else if have != want {
			return fmt.Errorf("parameter %q has shape %s in the checkpoint, want %s", p.Name, have, want)
		}
		delete(shapes, p.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		return fmt.Errorf("the checkpoint has a parameter %q, which the model does not train", name)
	}
	if got, want := fmt.Sprint(c.Vectors), fmt.Sprint(e.Vectors()); got != want {
		return fmt.Errorf("the checkpoint has %s, want %s: it was made with another optimizer", got, want)
	}
	if got, want := c.DType, string(e.DTypeName()); got != want {
		return fmt.Errorf("the checkpoint's numbers are %s, want %s", got, want)
	}
	return nil
}

// Consult gives every rank everyone's value, through a group that is for saving alone. One goroutine at a time calls it, all ranks in the
// same order.
func Consult[T any](ctx context.Context, r *Replicas, v T) ([]T, error) {
	if r == nil {
		return []T{v}, nil
	}
	return exchange(ctx, r.saves, v)
}
