package stages

import (
	"contraflow/gpustage"
	"contraflow/pipeline"
)

// Captured is a step's gradient on the host.
type Captured struct {
	Loss     float64
	Gradient []float64 // in the layout of the model's parameters, divided as Apply divides it
	Passes   Passes    // of this rank's sub-batches
}

// Capture adds a stage in Apply's place that copies the step's gradient to the host and leaves the parameters alone.
func Capture(g *pipeline.Graph, contributions pipeline.Port[Contribution], grads pipeline.Port[Gradient], e *Encoder) pipeline.Port[Captured] {
	s := g.Stage("capture", e.OnComm(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	totals := pipeline.In(s, "totals", e.totals(g, grads))
	e.AfterSync(s)
	weights := pipeline.Out[Weights](s, "weights")
	out := pipeline.Out[Captured](s, "gradient")
	pipeline.Bind(e.weights, weights)
	s.Do(func(t *pipeline.Task) error {
		sum := totals.Get(t)
		weight := sum.Weight
		stream := Stream(t)
		wide, err := e.Complete(stream)
		if err != nil {
			return err
		}
		n := wide.Len()
		c := Captured{Loss: sum.Loss / weight, Gradient: make([]float64, n), Passes: e.passes}
		e.passes = Passes{}
		if wide.DType != gpustage.F64 {
			narrow := wide
			if wide, err = gpustage.NewTensor(e.Model.Device, gpustage.F64, 1, n); err != nil {
				return err
			}
			defer wide.Mem.Free()
			stream.Copy(wide, narrow)
		}
		stream.CopyOut(gpustage.Bytes(c.Gradient), wide)
		if err := stream.Sync(); err != nil {
			return err
		}
		for i := range c.Gradient {
			c.Gradient[i] /= weight
		}
		stream.Fill(e.grads, 0)
		weights.Put(t, Weights{})
		out.Put(t, c)
		return nil
	})
	return out.Port
}
