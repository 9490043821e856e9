package launch

import (
	"fmt"
	"math"

	"contraflow/gpustage"
)

// What pointwise.cu's adamw takes: RUNS, RUN_BLOCK, Run and Updates.
const (
	mostRuns = 140
	runBlock = 4096
)

type updateRun struct {
	block, n, p, state, g uint32
	keep, step            float32
}

type updateArgs struct {
	p, m, v, g                                       uintptr
	gradScale, beta1, rest1, beta2, rest2, root, eps float32
	runs                                             int32
	run                                              [mostRuns]updateRun
}

// shortRuns are runs as they are, or in parts that kernels can count.
func (s *Stream) shortRuns(runs []gpustage.Run) (short []gpustage.Run) {
	most := s.longest()
	for _, r := range runs {
		for ; r.Len > most; r.P, r.State, r.G, r.Len = r.P+most, r.State+most, r.G+most, r.Len-most {
			part := r
			part.Len = most
			short = append(short, part)
		}
		short = append(short, r)
	}
	return short
}

// AdamW updates all runs of parameters in one launch, or in several if they are more than mostRuns.
func (s *Stream) AdamW(p, m, v, g tensor, h gpustage.AdamW) {
	if s.Refuse(gpustage.CheckAdamW(p, m, v, g, h)) || !s.f32("adamw", p) {
		return
	}
	all := h.Runs
	if all == nil {
		if !p.Contiguous() || !m.Contiguous() || !v.Contiguous() || !g.Contiguous() {
			s.Fail(fmt.Errorf("adamw: %v, %v, %v, %v: rows with gaps between them are not supported on this device", p, m, v, g))
			return
		}
		all = []gpustage.Run{{Len: p.Len(), LR: h.LR, WeightDecay: h.WeightDecay}}
	}
	c1, c2 := 1-math.Pow(h.Beta1, float64(h.Step)), 1-math.Pow(h.Beta2, float64(h.Step))
	var a updateArgs
	blocks := 0
	issue := func() {
		s.launch("adamw", [3]int{blocks, 1, 1}, [3]int{block, 1, 1}, 0, &a)
		a.runs, blocks = 0, 0
	}
	var first gpustage.Run
	for _, r := range s.shortRuns(all) {
		// Places are 32 bits wide, counted from the launch's first run.
		near := func(at, first int) bool { return at >= first && at-first < math.MaxUint32 }
		if a.runs == mostRuns || a.runs > 0 && !(near(r.P, first.P) && near(r.State, first.State) && near(r.G, first.G)) {
			issue()
		}
		if a.runs == 0 {
			first = r
			a = updateArgs{
				p: s.address(p.Columns(r.P, p.Cols)), m: s.address(m.Columns(r.State, m.Cols)), v: s.address(v.Columns(r.State, v.Cols)),
				g: s.address(g.Columns(r.G, g.Cols)), gradScale: float32(h.GradScale), beta1: float32(h.Beta1), rest1: float32(1 - h.Beta1),
				beta2: float32(h.Beta2), rest2: float32(1 - h.Beta2), root: float32(1 / math.Sqrt(c2)), eps: float32(h.Eps),
			}
		}
		a.run[a.runs] = updateRun{
			block: uint32(blocks), n: uint32(r.Len), p: uint32(r.P - first.P), state: uint32(r.State - first.State), g: uint32(r.G - first.G),
			keep: float32(1 - r.LR*r.WeightDecay), step: float32(r.LR / c1),
		}
		a.runs++
		blocks += ceil(r.Len, runBlock)
	}
	issue()
}
