package optim

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// Against torch.nn.utils.clip_grad_norm_.
func TestGoldenClip(t *testing.T) {
	g := goldens.Load(t, "ops/clip")
	var meta struct {
		Cases []struct {
			Name         string
			MaxNorm      float64 `json:"max_norm"`
			Factor, Norm float64
			Coefficient  float64
		}
	}
	g.Meta(t, &meta)
	s, _ := ref.New().OpenStream()
	for _, c := range meta.Cases {
		var flat []float64
		for _, n := range []string{"g0", "g1", "g2"} {
			flat = append(flat, g.F64(t, n)...)
		}
		x, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 1, len(flat))
		out, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 1, 1)
		s.CopyIn(x, gpustage.Bytes(flat))
		s.Fill(out, 7) // what it has held before does not count
		norm, err := Norm(s, x, out, c.Factor)
		if err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(norm-c.Norm) <= 1e-12*c.Norm) {
			t.Errorf("%s: norm %v, want %v", c.Name, norm, c.Norm)
		}
		if got := Clip(norm, c.MaxNorm); !(math.Abs(got-c.Coefficient) <= 1e-12) {
			t.Errorf("%s: coefficient %v, want %v", c.Name, got, c.Coefficient)
		}
	}
	if Clip(1e9, 0) != 1 {
		t.Error("a maximum of 0 means no clipping")
	}
}

// Decay acts on its segments only, the gradient's scale on all.
func TestSegments(t *testing.T) {
	segs := Segments([]Segment{{0, 2, 0, 0, true, 0}, {2, 1, 2, 2, true, 0}, {3, 2, 3, 3, false, 0}, {5, 1, 5, 5, true, 0}})
	if fmt.Sprint(segs) != "[{0 3 0 0 true 0} {3 2 3 3 false 0} {5 1 5 5 true 0}]" {
		t.Error(segs)
	}
	s, _ := ref.New().OpenStream()
	vec := func(v float64) gpustage.Tensor {
		x, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 1, 6)
		s.Fill(x, v)
		return x
	}
	for _, o := range []Optimizer{AdamW{WeightDecay: 0.5}, SGD{WeightDecay: 0.5}, SGD{WeightDecay: 0.5, Momentum: 0.9}} {
		p := vec(1)
		var states []gpustage.Tensor
		for range o.States() {
			states = append(states, vec(0))
		}
		o.Update(s, p, vec(0), states, segs, 0.1, 1, 1)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(gpustage.Slice[float64](p)); got != "[0.95 0.95 0.95 1 1 0.95]" {
			t.Errorf("%T: %s", o, got)
		}
	}
	if n := (SGD{WeightDecay: 0.5}).States(); n != 0 {
		t.Errorf("SGD without momentum keeps %d vectors", n)
	}
	p := vec(1)
	SGD{}.Update(s, p, vec(3), nil, segs, 0.1, 0.5, 1)
	if got := gpustage.Slice[float64](p)[0]; !(math.Abs(got-0.85) <= 1e-15) {
		t.Errorf("scaled gradient: %v", got)
	}
}

// A segment's learning rate is a multiple of the step's, for the decay as well; neighbours with others stay apart.
func TestSegmentRates(t *testing.T) {
	segs := Segments([]Segment{{Off: 0, Len: 2, State: 0, Decay: true}, {Off: 2, Len: 2, State: 2, Decay: true, LR: 3}})
	if len(segs) != 2 {
		t.Fatal(segs)
	}
	s, _ := ref.New().OpenStream()
	vec := func(v float64) gpustage.Tensor {
		x, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 1, 4)
		s.Fill(x, v)
		return x
	}
	p, whole, thrice := vec(1), vec(1), vec(1)
	AdamW{WeightDecay: 0.5}.Update(s, p, vec(2), []gpustage.Tensor{vec(0), vec(0)}, segs, 0.1, 1, 1)
	one := []Segment{{Len: 4, Decay: true}}
	AdamW{WeightDecay: 0.5}.Update(s, whole, vec(2), []gpustage.Tensor{vec(0), vec(0)}, one, 0.1, 1, 1)
	AdamW{WeightDecay: 0.5}.Update(s, thrice, vec(2), []gpustage.Tensor{vec(0), vec(0)}, one, 0.3, 1, 1)
	got, a, b := gpustage.Slice[float64](p), gpustage.Slice[float64](whole)[0], gpustage.Slice[float64](thrice)[0]
	for i, want := range []float64{a, a, b, b} {
		if !(math.Abs(got[i]-want) <= 1e-15) {
			t.Errorf("element %d is %v, want %v", i, got[i], want)
		}
	}
	q := vec(1)
	SGD{}.Update(s, q, vec(1), nil, segs, 0.1, 1, 1)
	if got := fmt.Sprintf("%.3g", gpustage.Slice[float64](q)); got != "[0.9 0.9 0.7 0.7]" {
		t.Error(got)
	}
}

// Three steps of two groups, of which a rank keeps the second's states and gradients first, are PyTorch's (2.9): AdamW(lr=0.01, betas=(0.8, 0.95)) and
// SGD(lr=0.01, momentum=0.9) with a weight_decay of 0.1, and half the rate and no decay in the second group. The second gradient is as small as eps.
func TestStepsOfPyTorch(t *testing.T) {
	s, _ := ref.New().OpenStream()
	vec := func(vs ...float64) gpustage.Tensor {
		x, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 1, len(vs))
		s.CopyIn(x, gpustage.Bytes(vs))
		return x
	}
	segs := []Segment{{Off: 0, Len: 2, Grad: 2, State: 2, Decay: true}, {Off: 2, Len: 2, Grad: 0, State: 0, LR: 0.5}}
	for _, c := range []struct {
		o    Optimizer
		want []float64
	}{
		{AdamW{Betas: []float64{0.8, 0.95}, WeightDecay: 0.1}, []float64{0.9786905115303837, -1.9839994067688442, 0.49082887930437646, 3.0091711205795266}},
		{SGD{Momentum: 0.9, WeightDecay: 0.1}, []float64{0.9856342965000001, -1.9887895976495797, 0.4649, 3.008775}},
	} {
		for own, want := range [][]float64{append([]float64{1, -2}, c.want[2:]...), c.want} { // of the second group alone, and of both
			p := vec(1, -2, 0.5, 3)
			states := []gpustage.Tensor{vec(0, 0, 0, 0), vec(0, 0, 0, 0)}[:c.o.States()]
			for step, k := range []float64{1, 2, -3} {
				c.o.Update(s, p, vec(2*k*2, 2*k*-0.5, 2*k*0.25, 2*k*-1e-8), states, segs[1-own:], 0.01, 0.5, step+1)
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			for i, got := range gpustage.Slice[float64](p) {
				if !(math.Abs(got-want[i]) <= 1e-15) {
					t.Errorf("%T: element %d is %v, want %v", c.o, i, got, want[i])
				}
			}
			for i, v := range gpustage.Slice[float64](states[0]) {
				if (v != 0) != (i < 2+2*own) {
					t.Errorf("%T: state %d is %v", c.o, i, v)
				}
			}
		}
	}
}

// Neighbours are joined where they lie behind each other everywhere and are updated alike, and nowhere else.
func TestSegmentsApart(t *testing.T) {
	first := Segment{Off: 4, Len: 2, Grad: 10, State: 20, Decay: true, LR: 2}
	behind := Segment{Off: 6, Len: 3, Grad: 12, State: 22, Decay: true, LR: 2}
	if got := Segments([]Segment{first, behind}); len(got) != 1 || got[0].Len != 5 {
		t.Errorf("what lies behind each other is %v", got)
	}
	for what, change := range map[string]func(*Segment){
		"Off": func(s *Segment) { s.Off++ }, "Grad": func(s *Segment) { s.Grad++ }, "State": func(s *Segment) { s.State++ }, "Decay": func(s *Segment) { s.Decay = false }, "LR": func(s *Segment) { s.LR = 1 },
	} {
		next := behind
		change(&next)
		if got := Segments([]Segment{first, next}); len(got) != 2 {
			t.Errorf("of another %s: %v", what, got)
		}
	}
}

// A rank's own parameters are updated as all would be, from states of its own.
func TestOwned(t *testing.T) {
	all := []Segment{{0, 4, 0, 0, true, 0}, {4, 3, 4, 4, false, 2}, {7, 5, 7, 7, true, 0}}
	owned, n := Owned(all, [][2]int{{1, 3}, {6, 9}})
	if got := fmt.Sprint(owned, n); got != "[{1 2 1 0 true 0} {6 1 6 2 false 2} {7 2 7 3 true 0}] 5" {
		t.Error(got)
	}
}

// Settings that would not be the optimizer's are errors that name the field; the zero values are none.
func TestCheck(t *testing.T) {
	type checked interface{ Check() error }
	for _, o := range []checked{AdamW{}, SGD{}, AdamW{Betas: []float64{0, 0.999}, Eps: 1e-6, WeightDecay: 0.1}, SGD{Momentum: 0.9, WeightDecay: 0.1}} {
		if err := o.Check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for want, os := range map[string][]checked{
		"AdamW.Betas":       {AdamW{Betas: []float64{}}, AdamW{Betas: []float64{0.9}}, AdamW{Betas: []float64{0.9, 1}}, AdamW{Betas: []float64{-0.1, 0.9}}, AdamW{Betas: []float64{0.9, math.NaN()}}},
		"AdamW.Eps":         {AdamW{Eps: -1e-8}, AdamW{Eps: math.NaN()}},
		"AdamW.WeightDecay": {AdamW{WeightDecay: -1}, AdamW{WeightDecay: math.Inf(1)}},
		"SGD.Momentum":      {SGD{Momentum: 1}, SGD{Momentum: -0.1}, SGD{Momentum: math.NaN()}},
		"SGD.WeightDecay":   {SGD{WeightDecay: -1}},
	} {
		for _, o := range os {
			if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", o, err, want)
			}
		}
	}
}
