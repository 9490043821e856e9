package optim

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// Every step's factor of every case is that of transformers' get_scheduler.
func TestGoldenSchedules(t *testing.T) {
	const tolerance = 16 * 0x1p-52 // factors are at most 1, sums of a few terms, and of a cosine of at most 3 pi
	g := goldens.Load(t, "ops/schedules")
	var meta struct {
		Cases []struct {
			Name          string
			Options       Curve
			Warmup, Total int
			Kwargs        json.RawMessage
		}
	}
	g.Meta(t, &meta)
	shapes := map[Shape]int{}
	for _, c := range meta.Cases {
		if err := c.Options.Check(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		schedules := []Schedule{c.Options}
		if c.Options == (Curve{Shape: c.Options.Shape}) {
			schedules = append(schedules, c.Options.Shape)
		}
		want := g.F64(t, c.Name)
		if len(want) != c.Total {
			t.Fatalf("%s: %d steps, want %d", c.Name, len(want), c.Total)
		}
		shapes[c.Options.Shape]++
		for _, s := range schedules {
			for step, want := range want {
				if got := s.Factor(step, c.Warmup, c.Total); !(math.Abs(got-want) <= tolerance) {
					t.Errorf("%s %s, step %d: %v, want %v", c.Name, c.Kwargs, step, got, want)
				}
			}
		}
	}
	if len(shapes) != len(Shapes) || len(meta.Cases) < 180 {
		t.Errorf("%d cases of %v", len(meta.Cases), shapes)
	}
}

// What transformers has no case of: each follows from one that it has.
func TestCurves(t *testing.T) {
	const warmup, total = 5, 47
	near := func(what string, step int, got, want float64) {
		if !(math.Abs(got-want) <= 16*0x1p-52) {
			t.Errorf("%s, step %d: %v, want %v", what, step, got, want)
		}
	}
	for step := range total {
		at := func(c Curve) float64 { return c.Factor(step, warmup, total) }
		near("ahead "+string(InverseSqrt), step, at(Curve{Shape: InverseSqrt, Ahead: true}), InverseSqrt.Factor(step+1, warmup, total))
		for _, s := range []Shape{Linear, Cosine, Polynomial, OneMinusSqrt} {
			if step < total-1 { // ahead is the next step's
				near("ahead "+string(s), step, at(Curve{Shape: s, Ahead: true}), s.Factor(step+1, warmup, total))
			} else {
				near("the last ahead "+string(s), step, at(Curve{Shape: s, Ahead: true, MinRatio: 0.25}), 0.25)
			}
			if step >= warmup { // so many steps at 1 are as many more of warm-up; the decay has the rest
				near("stable "+string(s), step, at(Curve{Shape: s, StableSteps: 10}), func() float64 {
					if step < warmup+10 {
						return 1
					}
					return s.Factor(step, warmup+10, total)
				}())
				near("lowest "+string(s), step, at(Curve{Shape: s, MinRatio: 0.2}), 0.2+0.8*s.Factor(step, warmup, total))
			} else {
				near("warm-up "+string(s), step, at(Curve{Shape: s, MinRatio: 0.2}), float64(step)/warmup)
			}
		}
		if begin := warmup + (total-warmup)/3; step >= warmup && step < begin { // the first of three cycles is a whole run's
			near("cycles", step, at(Curve{Shape: Cosine, Cycles: 3, MinRatio: 0.1}), Curve{Shape: Cosine, MinRatio: 0.1}.Factor(step, warmup, begin))
		}
	}
	if got := (Curve{Shape: Cosine, Cycles: 3, Ahead: true}).Factor(total-1, warmup, total); got != 0 {
		t.Errorf("the last step of the last cycle ends with %v", got)
	}
	near("the last ahead of 1.2 waves", total-1, Curve{Shape: Cosine, Waves: 1.2, Ahead: true}.Factor(total-1, warmup, total), 0.5*(1+math.Cos(2.4*math.Pi)))
	for step, want := range []float64{0.25, 1} { // a warm-up of two steps has its first and its last factor
		near("two steps from a quarter", step, Curve{Shape: Cosine, WarmupFrom: 0.25, Ahead: true}.Factor(step, 2, total), want)
	}
	for step, want := range []float64{0, 1, 1, 1, 0} { // a decay of one step begins at 1
		near("a decay of one step", step, Curve{Shape: Linear, DecaySteps: 1}.Factor(step, 1, 4), want)
		near("a decay of one step behind two", step, Curve{Shape: Linear, StableSteps: 2, DecaySteps: 1}.Factor(step, 1, 9), want)
	}
}

func TestCheckCurve(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, s := range map[string]Schedule{
		`Shape is "cosin"`: Shape("cosin"), `Warmup is "polynomial"`: Curve{Warmup: Polynomial}, "MinRatio is 1.5": Curve{Shape: Linear, MinRatio: 1.5},
		"MinRatio is NaN": Curve{Shape: Linear, MinRatio: nan}, "MinRatio is of linear, cosine, polynomial, 1-sqrt, and the shape is inverse_sqrt": Curve{Shape: InverseSqrt, MinRatio: 0.1},
		"MinRatio is of linear, cosine, polynomial, 1-sqrt, and the shape is constant": Curve{MinRatio: 0.1}, "WarmupFrom is -1": Curve{WarmupFrom: -1}, "Power is +Inf": Curve{Shape: Polynomial, Power: inf},
		"Power is of polynomial, and the shape is linear": Curve{Shape: Linear, Power: 2}, "Cycles is NaN": Curve{Shape: Cosine, Cycles: nan}, "Cycles is of cosine": Curve{Shape: Linear, Cycles: 0.5},
		"Cycles is +Inf": Curve{Shape: Cosine, Cycles: inf}, "Waves is +Inf": Curve{Shape: Cosine, Waves: inf}, "Cycles is -1": Curve{Shape: Cosine, Cycles: -1}, "DecaySteps is of linear, cosine": Curve{DecaySteps: 1},
		"Waves is -2": Curve{Shape: Cosine, Waves: -2}, "Waves is of cosine": Curve{Shape: OneMinusSqrt, Waves: 2}, "Timescale is -1": Curve{Shape: InverseSqrt, Timescale: -1},
		"Timescale is of inverse_sqrt": Curve{Shape: Linear, Timescale: 5}, "DecaySteps is -1": Curve{Shape: Linear, DecaySteps: -1}, "DecaySteps is of linear": Curve{Shape: InverseSqrt, DecaySteps: 3},
		"StableSteps is of linear, cosine, polynomial, 1-sqrt, and the shape is inverse_sqrt": Curve{Shape: InverseSqrt, StableSteps: -1},
		"StableSteps is -2": Curve{Shape: Linear, StableSteps: -2}, "StableSteps is of linear": Curve{Shape: Constant, StableSteps: 3},
	} {
		if err := s.(interface{ Check() error }).Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, s := range Shapes {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	if err := (Curve{Shape: Linear, MinRatio: 1, WarmupFrom: 1, StableSteps: -1}).Check(); err != nil {
		t.Error(err)
	}
}

func ExampleCurve() {
	cooldown := Curve{Shape: OneMinusSqrt, DecaySteps: 3, MinRatio: 0.1}
	for step := range 8 {
		fmt.Printf("%.2f %.2f, ", Linear.Factor(step, 2, 8), cooldown.Factor(step, 2, 8))
	}
	fmt.Println()
	// Output: 0.00 0.00, 0.50 0.50, 1.00 1.00, 0.83 1.00, 0.67 1.00, 0.50 1.00, 0.33 0.48, 0.17 0.27,
}
