// Package optim turns an accumulated gradient into a step: normalization, clipping by the global norm, a learning rate
// from a schedule, AdamW or SGD.
//
// Gradients arrive as the sum over all rows of a step and are never rescaled in memory. What remains to be divided by (the
// rows' total weight) and the clipping coefficient become one factor that the update multiplies with as it reads the
// gradient.
package optim

import (
	"cmp"
	"fmt"
	"math"

	"contraflow/gpustage"
)

// Segment is a run of parameters that are updated alike.
type Segment struct {
	Off, Len int
	Grad     int // where their gradients begin: Off, unless a rank keeps those of its own alone
	State    int // where the optimizer's states of these parameters begin: Off, unless a rank keeps those of its own alone
	Decay    bool
	LR       float64 // a multiple of the step's learning rate; 0: 1
}

// Segments joins neighbours that are updated alike.
func Segments(all []Segment) []Segment {
	var out []Segment
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].follows(s) {
			out[n-1].Len += s.Len
			continue
		}
		out = append(out, s)
	}
	return out
}

// follows tells whether next lies behind s everywhere and is updated alike.
func (s Segment) follows(next Segment) bool {
	return s.Decay == next.Decay && s.LR == next.LR && s.Off+s.Len == next.Off && s.Grad+s.Len == next.Grad && s.State+s.Len == next.State
}

// Owned is what lies in the given ranges of the flat vector, with states side by side, and their length.
func Owned(all []Segment, ranges [][2]int) (owned []Segment, states int) {
	for _, s := range all {
		for _, r := range ranges {
			lo, hi := max(s.Off, r[0]), min(s.Off+s.Len, r[1])
			if lo < hi {
				owned = append(owned, Segment{Off: lo, Grad: s.Grad + lo - s.Off, Len: hi - lo, State: states, Decay: s.Decay, LR: s.LR})
				states += hi - lo
			}
		}
	}
	return Segments(owned), states
}

// rate is its learning rate.
func (s Segment) rate(lr float64) float64 { return lr * cmp.Or(s.LR, 1) }

func (s Segment) of(t gpustage.Tensor) gpustage.Tensor    { return t.Columns(s.Off, s.Off+s.Len) }
func (s Segment) grad(t gpustage.Tensor) gpustage.Tensor  { return t.Columns(s.Grad, s.Grad+s.Len) }
func (s Segment) state(t gpustage.Tensor) gpustage.Tensor { return t.Columns(s.State, s.State+s.Len) }

// Optimizer updates parameters from gradients. All vectors are flat. One that has a method Check() error is asked before the first step whether its
// settings can be used.
type Optimizer interface {
	// States is how many vectors like the parameters it keeps.
	States() int
	// Update applies one step to p with gradient gradScale*g at learning rate lr. states are its vectors, zeroed before the
	// first step; step counts from 1.
	Update(s gpustage.Stream, p, g gpustage.Tensor, states []gpustage.Tensor, segments []Segment, lr, gradScale float64, step int)
}

// AdamW is Adam with decoupled weight decay. The zero value has PyTorch's defaults, but no weight decay.
type AdamW struct {
	Betas       []float64 // of the two moments; nil means 0.9, 0.999
	Eps         float64   // 0 means 1e-8
	WeightDecay float64
}

// States is 2: the moments.
func (AdamW) States() int { return 2 }

// Check refuses settings with which it would not be AdamW.
func (o AdamW) Check() error {
	in := func(b float64) bool { return b >= 0 && b < 1 }
	switch {
	case o.Betas != nil && (len(o.Betas) != 2 || !in(o.Betas[0]) || !in(o.Betas[1])):
		return fmt.Errorf("AdamW.Betas are %v, want two numbers of at least 0 and less than 1, or nil", o.Betas)
	case !atLeastZero(o.Eps):
		return fmt.Errorf("AdamW.Eps is %v, want a number of at least 0", o.Eps)
	case !atLeastZero(o.WeightDecay):
		return fmt.Errorf("AdamW.WeightDecay is %v, want a number of at least 0", o.WeightDecay)
	}
	return nil
}

func atLeastZero(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// Update applies gpustage's AdamW to all segments at once.
func (o AdamW) Update(s gpustage.Stream, p, g gpustage.Tensor, states []gpustage.Tensor, segments []Segment, lr, gradScale float64, step int) {
	betas := o.Betas
	if betas == nil {
		betas = []float64{0.9, 0.999}
	}
	runs := make([]gpustage.Run, len(segments))
	for i, seg := range segments {
		runs[i] = gpustage.Run{P: seg.Off, State: seg.State, G: seg.Grad, Len: seg.Len, LR: seg.rate(lr)}
		if seg.Decay {
			runs[i].WeightDecay = o.WeightDecay
		}
	}
	s.AdamW(p, states[0], states[1], g, gpustage.AdamW{Beta1: betas[0], Beta2: betas[1], Eps: cmp.Or(o.Eps, 1e-8), Step: step, GradScale: gradScale, Runs: runs})
}

// SGD is stochastic gradient descent.
type SGD struct{ Momentum, WeightDecay float64 }

// States is 1 with momentum.
func (o SGD) States() int {
	if o.Momentum == 0 {
		return 0
	}
	return 1
}

// Check refuses settings with which it would not come to rest.
func (o SGD) Check() error {
	switch {
	case !(o.Momentum >= 0 && o.Momentum < 1):
		return fmt.Errorf("SGD.Momentum is %v, want at least 0 and less than 1", o.Momentum)
	case !atLeastZero(o.WeightDecay):
		return fmt.Errorf("SGD.WeightDecay is %v, want a number of at least 0", o.WeightDecay)
	}
	return nil
}

// Update applies gpustage's SGD to each segment.
func (o SGD) Update(s gpustage.Stream, p, g gpustage.Tensor, states []gpustage.Tensor, segments []Segment, lr, gradScale float64, _ int) {
	for _, seg := range segments {
		h := gpustage.SGD{LR: seg.rate(lr), Momentum: o.Momentum, GradScale: gradScale}
		if seg.Decay {
			h.WeightDecay = o.WeightDecay
		}
		var v gpustage.Tensor
		if len(states) > 0 {
			v = seg.state(states[0])
		}
		s.SGD(seg.of(p), v, seg.grad(g), h)
	}
}

// Clip is the factor that brings a gradient of the given norm to at most maxNorm, as torch.nn.utils.clip_grad_norm_ has
// it; 1 where maxNorm is 0.
func Clip(norm, maxNorm float64) float64 {
	if maxNorm == 0 {
		return 1
	}
	return min(1, maxNorm/(norm+1e-6))
}

// Norm is the Euclidean norm of scale*g. out is an F64 [1, 1] of scratch.
func Norm(s gpustage.Stream, g, out gpustage.Tensor, scale float64) (float64, error) {
	s.Fill(out, 0)
	s.SumSquares(out, g)
	return Root(s, out, scale)
}

// Root is |scale| times the square root of a sum of squares, an F64 [1, 1].
func Root(s gpustage.Stream, squares gpustage.Tensor, scale float64) (float64, error) {
	out := squares
	var sum [1]float64
	s.CopyOut(gpustage.Bytes(sum[:]), out)
	if err := s.Sync(); err != nil {
		return 0, fmt.Errorf("the gradient's norm: %w", err)
	}
	return math.Abs(scale) * math.Sqrt(sum[0]), nil
}
