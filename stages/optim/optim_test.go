package optim

import (
	"fmt"
	"math"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// Against transformers' schedules.
func TestGoldenSchedules(t *testing.T) {
	g := goldens.Load(t, "ops/schedules")
	var meta struct {
		Cases []struct {
			Name, Schedule string
			Warmup, Total  int
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		for step, want := range g.F64(t, c.Name) {
			if got := Schedule(c.Schedule).Factor(step, c.Warmup, c.Total); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s, step %d: %v, want %v", c.Name, step, got, want)
			}
		}
	}
	if len(meta.Cases) < 9 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

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
		norm, err := Norm(s, x, out, c.Factor)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(norm-c.Norm) > 1e-12*c.Norm {
			t.Errorf("%s: norm %v, want %v", c.Name, norm, c.Norm)
		}
		if got := Clip(norm, c.MaxNorm); math.Abs(got-c.Coefficient) > 1e-12 {
			t.Errorf("%s: coefficient %v, want %v", c.Name, got, c.Coefficient)
		}
	}
	if Clip(1e9, 0) != 1 {
		t.Error("a maximum of 0 means no clipping")
	}
}

// Decay acts on its segments only, the gradient's scale on all.
func TestSegments(t *testing.T) {
	segs := Segments([]Segment{{0, 2, 0, true}, {2, 1, 2, true}, {3, 2, 3, false}, {5, 1, 5, true}})
	if fmt.Sprint(segs) != "[{0 3 0 true} {3 2 3 false} {5 1 5 true}]" {
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
	p := vec(1)
	SGD{}.Update(s, p, vec(3), nil, segs, 0.1, 0.5, 1)
	if got := gpustage.Slice[float64](p)[0]; math.Abs(got-0.85) > 1e-15 {
		t.Errorf("scaled gradient: %v", got)
	}
}

func ExampleSchedule_Factor() {
	for step := range 6 {
		fmt.Printf("%.2f ", Linear.Factor(step, 2, 6))
	}
	fmt.Println()
	// Output: 0.00 0.50 1.00 0.75 0.50 0.25
}

// A rank's own parameters are updated as all would be, from states of its own.
func TestOwned(t *testing.T) {
	all := []Segment{{0, 4, 0, true}, {4, 3, 4, false}, {7, 5, 7, true}}
	owned, n := Owned(all, [][2]int{{1, 3}, {6, 9}})
	if got := fmt.Sprint(owned, n); got != "[{1 2 0 true} {6 1 2 false} {7 2 3 true}] 5" {
		t.Error(got)
	}
}
