package stages

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// Update is how a step changes the parameters.
type Update struct {
	Optimizer   optim.Optimizer
	LR          float64
	Schedule    optim.Schedule // nil: constant
	WarmupSteps int
	TotalSteps  int     // of the run, such as Plan.Steps: where schedules that end have fallen
	MaxGradNorm float64 // 0: no clipping
	OnNaN       OnNaN
	Help        string // what helps where a step is not finite, said with the error of one; may be ""
	Missed      int    // steps before the first one whose update the parameters do not have: a run that goes on knows them from StepResult.Skipped
	Groups      []Group

	// LayerDecay makes learning rates smaller towards the input: each layer's is that of the layer above it times this. The last layer and what
	// comes after it have LR; what is before the first layer counts as one more; a group's parameters have their own. 0 and 1: none.
	LayerDecay float64
}

// Group is parameters with a learning rate of their own, which the schedule multiplies as it does the others'. A parameter is in the
// first group that has a part of its name.
type Group struct {
	Params []string // parts of names: "lora_B", "embeddings.", "layer.11."
	LR     float64
}

// rates are the multiples of LR with which parameters train.
func (u Update) rates(l *transformer.Layout) ([]float64, error) {
	last := -1
	for _, p := range l.Params {
		last = max(last, p.Layer)
	}
	ps := l.Training()
	out := make([]float64, len(ps))
	used := make([]bool, len(u.Groups))
	for i, p := range ps {
		out[i] = 1
		if u.LayerDecay > 0 && (p.Layer >= 0 || p.Below && !p.Head) { // a head of its own is behind the last layer
			out[i] = math.Pow(u.LayerDecay, float64(last-p.Layer)) // below, Layer is Outside, -1
		}
		g := slices.IndexFunc(u.Groups, func(g Group) bool {
			return slices.ContainsFunc(g.Params, func(part string) bool { return strings.Contains(p.Name, part) })
		})
		if g >= 0 {
			out[i], used[g] = u.Groups[g].LR/u.LR, true
		}
	}
	if g := slices.Index(used, false); g >= 0 {
		var parts []string
		for _, part := range u.Groups[g].Params {
			parts = append(parts, strconv.Quote(part))
		}
		return nil, fmt.Errorf("optimizer.groups[%d]: of what trains, no name that is not in a group before has %s in it; names are like %q and %q",
			g, strings.Join(parts, " or "), ps[0].Name, ps[len(ps)-1].Name)
	}
	return out, nil
}

// Check finds groups in which nothing of the layout is that trains.
func (u Update) Check(l *transformer.Layout) error {
	_, err := u.rates(l)
	return err
}

// ends tells that the schedule says nothing of steps from TotalSteps on.
func (u Update) ends() bool {
	s, ok := u.Schedule.(interface{ Ends() bool }) // one of one's own need not have it
	return ok && s.Ends()
}

// Factor is what the schedule multiplies learning rates by in a step, counted from 0.
func (u Update) Factor(step int) float64 {
	if u.Schedule == nil {
		return optim.Constant.Factor(step, u.WarmupSteps, u.TotalSteps)
	}
	return u.Schedule.Factor(step, u.WarmupSteps, u.TotalSteps)
}

// check finds what would train nothing, or something else than was meant.
func (u Update) check() error {
	type checked interface{ Check() error } // one of one's own need not have it
	if s, ok := u.Schedule.(checked); ok {
		if err := s.Check(); err != nil {
			return fmt.Errorf("the update's schedule: %w", err)
		}
	}
	switch {
	case u.Optimizer == nil:
		return errors.New("the update has no optimizer")
	case u.LR <= 0 || !finite(u.LR):
		return fmt.Errorf("the update's learning rate is %v, want a positive number", u.LR)
	case u.ends() && u.TotalSteps <= 0:
		return fmt.Errorf("the update's schedule is %v, and TotalSteps %d: it would be at its end from the first step on (Plan.Steps says how many there are)", Settings(u.Schedule), u.TotalSteps)
	case u.OnNaN != "" && !slices.Contains(onNaN, u.OnNaN):
		return fmt.Errorf("the update's OnNaN is %q, want one of %q", u.OnNaN, onNaN)
	case u.WarmupSteps < 0 || !(u.MaxGradNorm >= 0) || !(u.LayerDecay >= 0):
		return fmt.Errorf("the update has %d warm-up steps, a largest norm of %v and a layer decay of %v: none can be negative or NaN", u.WarmupSteps, u.MaxGradNorm, u.LayerDecay)
	}
	if o, ok := u.Optimizer.(checked); ok {
		if err := o.Check(); err != nil {
			return fmt.Errorf("the update's optimizer: %w", err)
		}
	}
	return nil
}

// OnNaN says what to do with a step whose loss or gradient is NaN or infinite.
type OnNaN string

const (
	StopOnNaN     OnNaN = "stop"     // the run ends with an error that names what is not finite
	SkipOnNaN     OnNaN = "skip"     // the step changes nothing; after 10 of them in a row the run ends
	RollbackOnNaN OnNaN = "rollback" // the run ends with the step and a *RollbackError, for the last checkpoint's state to go on with the data after it
)

var onNaN = []OnNaN{StopOnNaN, SkipOnNaN, RollbackOnNaN}

const maxSkipped = 10

// RollbackError ends a run at a step that is not finite, as RollbackOnNaN asks for: the step has changed nothing, and all that comes after its update
// is done. [Encoder.Restore] and [Plan.ResumeAfter] are what a new graph goes on with.
type RollbackError struct{ Result StepResult }

func (e *RollbackError) Error() string {
	return fmt.Sprintf("step %d is not finite (its loss is %v, its gradient's norm %v): it has changed nothing, and the run ends with it (Update.OnNaN: %s); "+
		"to go on, build a new graph with the last checkpoint's state (Encoder.Restore) and the data after this step (Plan.ResumeAfter)",
		e.Result.Step+1, e.Result.Loss, e.Result.GradNorm, RollbackOnNaN)
}

// StepResult is what a step did.
type StepResult struct {
	Step      int
	Epoch     int
	Loss      float64 // weighted mean over the step's rows
	GradNorm  float64 // before clipping
	LR        float64
	Pairs     int       // rows of all ranks
	Negatives int       // that rows have
	Tokens    int       // real tokens of all columns
	Batches   int       // contrastive batches
	Sources   []int     // [Batches] the dataset of each
	Losses    []float64 // [Batches] weighted mean over each one's rows; NaN without any that count
	Weights   []float64 // [Batches] by how much each one's rows count
	Truncated int       // sequences that lost tokens
	Padding   int       // tokens that padding each sub-batch to its longest sequence would have added
	Fewer     int       // rows that got fewer documents of other rows than [InBatch] says, or of all none
	Bare      int       // of these, rows of one document that got none: nothing is learned of them

	Sparsity *loss.Sparsity // of the step's batches on average, where the loss has found it: as this rank has; nil otherwise

	Skipped bool // the gradient was not finite, and nothing was changed

	Asked Asked           // what ranks want to be done after the step
	Next  *dataset.Cursor // where the data goes on
	Place any             // likewise, of a source of one's own ([Chunk].Place)
}

// Apply adds the stage that divides the step's gradient by the rows' weight, clips it, and updates the parameters.
func Apply(g *pipeline.Graph, contributions pipeline.Port[Contribution], grads pipeline.Port[Gradient], e *Encoder, u Update) (pipeline.Port[StepResult], error) {
	if err := errors.Join(u.check(), e.checkWired()); err != nil {
		return pipeline.Port[StepResult]{}, fmt.Errorf("stages: %w", err)
	}
	if e.applied {
		return pipeline.Port[StepResult]{}, errors.New("stages: the encoder has an update already: Train, or Apply, is called once for each")
	}
	e.ranks.tell("the update", Settings(u))
	s := g.Stage(StepStages.End, e.on(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	losses := pipeline.Collect(s, "losses", grads)
	totals := pipeline.In(s, "totals", e.totals(g, grads))
	e.AfterSync(s)
	var weights pipeline.Output[Weights]
	if !e.ranks.sharded() {
		weights = pipeline.Out[Weights](s, "weights")
	}
	out := pipeline.Out[StepResult](s, "result")
	results := out.Port
	if e.ranks.sharded() {
		results = e.spread(g, out.Port)
	} else {
		pipeline.Bind(e.weights, weights)
	}

	m := e.Model
	states := make([]gpustage.Tensor, u.Optimizer.States())
	rates, err := u.rates(m.Layout)
	if err != nil {
		return out.Port, err
	}
	segs, n := e.owned(rates)
	e.optimizerState = optimizerState{states: states, owns: n}
	for i := range states {
		var err error
		if states[i], err = gpustage.NewTensor(m.Device, m.DType, 1, n); err != nil {
			return out.Port, fmt.Errorf("optimizer state: %w", err)
		}
		e.hold(int64(states[i].Mem.Bytes()))
	}
	norm, err := gpustage.NewTensor(m.Device, gpustage.F64, 1, 1)
	if err != nil {
		return out.Port, err
	}
	e.norm = norm
	e.squares(g, contributions, norm, s)
	e.applied = true

	e.update = u
	skipped := 0 // in a row
	missed := u.Missed
	s.Do(func(t *pipeline.Task) error {
		if err := e.claim(t); err != nil { // the loss may be a stage of one's own
			return err
		}
		stream := Stream(t)
		r := StepResult{Step: t.Index.Step}
		if u.ends() && r.Step >= u.TotalSteps {
			return fmt.Errorf("step %d is beyond the update's TotalSteps, %d, at which its schedule (%s) ends: Plan.Steps says how many there are", r.Step+1, u.TotalSteps, Settings(u.Schedule))
		}
		sum := totals.Get(t)
		weight := sum.Weight
		for _, l := range losses.All(t) {
			r.Epoch = l.Batch.Epoch
			r.Next, r.Place = l.Batch.Next, l.Batch.Place
			r.Batches++
			r.Sources = append(r.Sources, l.Batch.Source)
			r.Sparsity = r.Sparsity.Plus(l.Sparsity)
		}
		r.Sparsity = r.Sparsity.Over(r.Batches)
		r.Fewer, r.Bare, r.Negatives = sum.Drawn.Fewer, sum.Drawn.Bare, sum.Negatives
		r.Losses, r.Weights, r.Pairs, r.Tokens, r.Truncated, r.Padding, r.Asked = sum.Losses, sum.Weights, sum.Pairs, sum.Tokens, sum.Truncated, sum.Padding, sum.Asked
		r.Loss = sum.Loss / weight
		var err error
		if e.ranks.sharded() {
			r.GradNorm, err = optim.Root(stream, norm, 1/weight)
		} else {
			r.GradNorm, err = optim.Norm(stream, e.grads, norm, 1/weight)
		}
		if err != nil {
			return err
		}
		if r.LR = u.LR * u.Factor(r.Step); !(r.LR >= 0) || !finite(r.LR) { // of a schedule of one's own
			return fmt.Errorf("step %d: the schedule's factor, %v, makes the learning rate %v", r.Step+1, u.Factor(r.Step), r.LR)
		}
		r.Skipped = !finite(r.GradNorm) || !finite(r.Loss)
		if r.Skipped {
			skipped, missed = skipped+1, missed+1
			if u.OnNaN != SkipOnNaN && u.OnNaN != RollbackOnNaN || skipped > maxSkipped {
				err := fmt.Errorf("step %d: %w: %v, although its gradient is", r.Step+1, loss.ErrNotFinite, r.Loss) // of a loss of one's own
				if !finite(r.GradNorm) {
					err = e.gradientNotFinite(stream, r.Step+1)
				}
				if skipped > maxSkipped {
					err = fmt.Errorf("%w; the %d steps before were skipped, as they were not finite either", err, maxSkipped)
				}
				return u.helped(err)
			}
		} else {
			skipped = 0
			scale := optim.Clip(r.GradNorm, u.MaxGradNorm) / weight
			m.Change(stream, func() {
				u.Optimizer.Update(stream, m.Trained(), e.grads, states, segs, r.LR, scale, r.Step+1-missed)
			})
		}
		stream.Fill(e.grads, 0)
		switch {
		case r.Skipped && u.OnNaN == RollbackOnNaN:
			t.EndRun(&RollbackError{r})
		case r.Asked.Stop || r.Asked.Finish:
			t.EndRun(nil)
		}
		if !e.ranks.sharded() {
			weights.Put(t, Weights{})
		}
		out.Put(t, r)
		return nil
	})
	return results, nil
}

func finite[T float32 | float64](v T) bool { return v-v == 0 }

// helped is the error of a step that is not finite, with what helps.
func (u Update) helped(err error) error {
	if u.Help == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, u.Help)
}

// gradientNotFinite names the first parameter whose gradient is NaN or infinite, as far as this rank holds its sum, in a step counted
// from 1.
func (e *Encoder) gradientNotFinite(s gpustage.Stream, step int) error {
	ranges, parts := [][2]int{{0, e.Model.Layout.Trained()}}, []gpustage.Tensor{e.grads}
	if e.ranks.sharded() {
		ranges, parts = nil, nil
		for _, x := range e.shares {
			if x.len() == 0 {
				continue
			}
			own := e.grads.Columns(x.lo, x.hi)
			if e.ranks.early() {
				own = e.grads.Columns(x.at, x.at+x.len())
			}
			ranges, parts = append(ranges, [2]int{x.lo, x.hi}), append(parts, own)
		}
	}
	for i, r := range ranges {
		vs, err := e.Model.ReadVector(s, parts[i])
		if err != nil {
			return err
		}
		for k, v := range vs {
			if !finite(v) {
				return fmt.Errorf("step %d: the gradient is not finite, first in %s", step, e.Model.Layout.Owner(r[0]+k).Name)
			}
		}
	}
	return fmt.Errorf("step %d: the gradient's norm is not finite: its entries are too large to be squared, or another rank's are not finite", step)
}
