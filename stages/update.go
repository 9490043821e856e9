package stages

import (
	"fmt"
	"math"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/optim"
)

// Update is how a step changes the parameters.
type Update struct {
	Optimizer   optim.Optimizer
	LR          float64
	Schedule    optim.Schedule
	WarmupSteps int
	TotalSteps  int
	MaxGradNorm float64 // 0: no clipping
}

// StepResult is what a step did.
type StepResult struct {
	Step      int
	Epoch     int
	Loss      float64 // weighted mean over the step's rows
	GradNorm  float64 // before clipping
	LR        float64
	Pairs     int // rows of all ranks
	Tokens    int // real tokens of all columns
	Batches   int // contrastive batches
	Truncated int // sequences that lost tokens
}

// Apply adds the stage that divides the step's gradient by the rows' weight, clips it, and updates the parameters.
func Apply(g *pipeline.Graph, contributions pipeline.Port[Contribution], grads pipeline.Port[Gradient], e *Encoder, u Update) (pipeline.Port[StepResult], error) {
	s := g.Stage("update", e.on(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	losses := pipeline.Collect(s, "losses", grads)
	totals := pipeline.In(s, "totals", e.totals(g, grads))
	e.AfterSync(s)
	var weights pipeline.Output[Weights]
	if !e.sharded() {
		weights = pipeline.Out[Weights](s, "weights")
	}
	out := pipeline.Out[StepResult](s, "result")
	results := out.Port
	if e.sharded() {
		results = e.spread(g, out.Port)
	} else {
		pipeline.Bind(e.weights, weights)
	}

	m := e.Model
	states := make([]gpustage.Tensor, u.Optimizer.States())
	var segs []optim.Segment
	for _, p := range m.Layout.Training() {
		segs = append(segs, optim.Segment{Off: m.Layout.At(p), Len: p.Len(), Decay: p.Decay()})
	}
	segs, n := optim.Owned(segs, e.owned())
	for i := range states {
		var err error
		if states[i], err = gpustage.NewTensor(m.Device, m.DType, 1, n); err != nil {
			return out.Port, fmt.Errorf("optimizer state: %w", err)
		}
		e.held += int64(states[i].Mem.Bytes())
	}
	norm, err := gpustage.NewTensor(m.Device, gpustage.F64, 1, 1)
	if err != nil {
		return out.Port, err
	}
	e.squares(g, contributions, norm, s)

	s.Do(func(t *pipeline.Task) error {
		stream := Stream(t)
		r := StepResult{Step: t.Index.Step}
		sum := totals.Get(t)
		weight := sum.Weight
		for _, l := range losses.All(t) {
			r.Epoch = l.Batch.Epoch
			r.Batches++
		}
		r.Pairs, r.Tokens, r.Truncated = sum.Pairs, sum.Tokens, sum.Truncated
		r.Loss = sum.Loss / weight
		var err error
		if e.sharded() {
			r.GradNorm, err = optim.Root(stream, norm, 1/weight)
		} else {
			r.GradNorm, err = optim.Norm(stream, e.grads, norm, 1/weight)
		}
		if err != nil {
			return err
		}
		if math.IsNaN(r.GradNorm) || math.IsInf(r.GradNorm, 0) {
			return e.gradientNotFinite(stream, r.Step)
		}
		r.LR = u.LR * u.Schedule.Factor(r.Step, u.WarmupSteps, u.TotalSteps)
		scale := optim.Clip(r.GradNorm, u.MaxGradNorm) / weight
		u.Optimizer.Update(stream, m.Trained(), e.grads, states, segs, r.LR, scale, r.Step+1)
		stream.Fill(e.grads, 0)
		if !e.sharded() {
			m.Changed()
			weights.Put(t, Weights{})
		}
		out.Put(t, r)
		return nil
	})
	return results, nil
}

// gradientNotFinite names the parameters whose gradient is NaN or infinite.
func (e *Encoder) gradientNotFinite(s gpustage.Stream, step int) error {
	for _, p := range e.Model.Layout.Training() {
		vs, err := e.Model.Read(s, e.grads, p)
		if err != nil {
			return err
		}
		for _, v := range vs {
			if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
				return fmt.Errorf("the gradient of step %d is not finite, first in %s", step, p.Name)
			}
		}
	}
	return fmt.Errorf("the gradient's norm of step %d is not finite: its entries are too large to be squared", step)
}
