package gpustage

import "fmt"

// Run is a stretch of parameters that an optimizer updates alike: Len elements that begin at P in the parameters, at State in each of
// the moments and at G in the gradient. A shard's moments and gradients lie otherwise than its parameters.
type Run struct {
	P, State, G, Len int
	LR, WeightDecay  float64
}

// EachRun calls f with the vectors' parts and the settings of each run, or once with all there is.
func (h AdamW) EachRun(p, m, v, g Tensor, f func(p, m, v, g Tensor, h AdamW)) {
	if h.Runs == nil {
		f(p, m, v, g, h)
		return
	}
	runs := h.Runs
	h.Runs = nil
	for _, r := range runs {
		h.LR, h.WeightDecay = r.LR, r.WeightDecay
		f(p.Columns(r.P, r.P+r.Len), m.Columns(r.State, r.State+r.Len), v.Columns(r.State, r.State+r.Len), g.Columns(r.G, r.G+r.Len), h)
	}
}

// CheckAdamW checks the vectors, and that runs lie in them.
func CheckAdamW(p, m, v, g Tensor, h AdamW) error {
	if h.Runs == nil {
		return CheckPair("adamw", p, m, v, g)
	}
	c := checker{op: "adamw"}
	c.float("p", p)
	for i, t := range []Tensor{p, m, v, g} {
		c.shape([]string{"p", "m", "v", "g"}[i], t, p.DType, 1, t.Cols)
	}
	if c.err != nil {
		return c.err
	}
	for i, r := range h.Runs {
		if min(r.P, r.State, r.G, r.Len) < 0 || r.P+r.Len > p.Cols || r.State+r.Len > min(m.Cols, v.Cols) || r.G+r.Len > g.Cols {
			return fmt.Errorf("adamw: run %d is %+v, beyond vectors of %d parameters, %d and %d moments, %d gradients", i, r, p.Cols, m.Cols, v.Cols, g.Cols)
		}
	}
	return nil
}
