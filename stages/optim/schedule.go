package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Schedule says how the learning rate changes over a run's steps: a [Shape], a [Curve], or one of one's own. One that has a method Check() error is
// asked before the first step whether its settings can be used, and one that has a method Ends() bool whether it says nothing of steps from total
// on.
type Schedule interface {
	// Factor is what the learning rate is multiplied by in the given step, counted from 0, of a run of total steps, the first warmup of which are
	// warm-up.
	Factor(step, warmup, total int) float64
}

// Shape is the way in which the learning rate falls after the warm-up. As a Schedule it is the Curve of that shape: a linear warm-up from 0, and then
// down to 0 at the end of the run.
type Shape string

const (
	Constant     Shape = "constant"     // it stays
	Linear       Shape = "linear"       // a straight line
	Cosine       Shape = "cosine"       // half a wave of the cosine
	Polynomial   Shape = "polynomial"   // (what is left of the steps)^Power
	OneMinusSqrt Shape = "1-sqrt"       // 1 - the square root of the steps' part that is done
	InverseSqrt  Shape = "inverse_sqrt" // 1 / the square root of the steps since the warm-up's end: it has no end
)

// Shapes lists them.
var Shapes = []Shape{Constant, Linear, Cosine, Polynomial, OneMinusSqrt, InverseSqrt}

// WarmupShapes are those that a warm-up may have.
var WarmupShapes = []Shape{Linear, Cosine, OneMinusSqrt}

// Factor is a Curve's of that shape.
func (s Shape) Factor(step, warmup, total int) float64 {
	return Curve{Shape: s}.Factor(step, warmup, total)
}

// Check refuses a word that is no shape's.
func (s Shape) Check() error { return Curve{Shape: s}.Check() }

// Ends tells whether it falls until the end of the run.
func (s Shape) Ends() bool { return Curve{Shape: s}.Ends() }

// Curve is a schedule of three phases, as transformers' get_scheduler makes them: the warm-up, in which the factor rises to 1, steps in which it
// stays there, and the decay, in which it falls from 1 to MinRatio. What transformers gives names of their own are settings of it:
//
//	cosine_with_restarts       Curve{Shape: Cosine, Cycles: num_cycles}
//	cosine_with_min_lr         Curve{Shape: Cosine, MinRatio: min_lr_rate}
//	cosine_warmup_with_min_lr  Curve{Shape: Cosine, MinRatio: min_lr_rate, WarmupFrom: warmup_lr_rate, Ahead: true}
//	polynomial                 Curve{Shape: Polynomial, Power: power, MinRatio: lr_end / learning_rate}
//	inverse_sqrt               Curve{Shape: InverseSqrt, Timescale: timescale}
//	warmup_stable_decay        Curve{Shape: decay_type, DecaySteps: num_decay_steps, MinRatio: min_lr_ratio, Warmup: warmup_type, WarmupFrom: min_lr_ratio}
type Curve struct {
	Shape    Shape   // of the decay; "": Constant
	MinRatio float64 // the lowest factor, of shapes that end: f becomes MinRatio + (1 - MinRatio)*f
	Power    float64 // of Polynomial; 0: 1, a straight line
	Cycles   float64 // of Cosine: how often it falls from 1, beginning anew at 1 each time; 0: 1
	Waves    float64 // of Cosine: how many waves a fall has, at whose wholes it is 1 again; 0: 0.5, which is straight down

	Timescale int // of InverseSqrt: how many steps after the warm-up the factor is 1/sqrt(2); 0: as many as the warm-up has, or 10,000 without one

	// Of shapes that end. 0 of either is what the other leaves of the steps after the warm-up; of both, the decay has all of them. After the decay
	// the factor is MinRatio.
	StableSteps int // at 1, between warm-up and decay; -1: none, whatever the decay leaves
	DecaySteps  int

	Warmup     Shape   // of WarmupShapes; "": Linear
	WarmupFrom float64 // the first warm-up step's factor; 0: 0, or with Ahead 1/warmup
	Ahead      bool    // each step has the factor that the next one has otherwise: the first one's is not 0, and the last one's is the lowest
}

// Ends tells whether it falls until the end of the run.
func (c Curve) Ends() bool { return c.Shape != "" && c.Shape != Constant && c.Shape != InverseSqrt }

// Check refuses words that are none of a shape, settings that the shape does not have, and such as make no schedule.
func (c Curve) Check() error {
	fail := func(format string, args ...any) error { return fmt.Errorf("Curve."+format, args...) }
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	of := func(what string, shapes ...Shape) error {
		var names []string
		for _, s := range shapes {
			names = append(names, string(s))
		}
		return fail("%s is of %s, and the shape is %s", what, strings.Join(names, ", "), c.shape())
	}
	ending := []Shape{Linear, Cosine, Polynomial, OneMinusSqrt}
	switch {
	case !slices.Contains(Shapes, c.shape()):
		return fail("Shape is %q, want one of %q", c.Shape, Shapes)
	case c.Warmup != "" && !slices.Contains(WarmupShapes, c.Warmup):
		return fail("Warmup is %q, want one of %q", c.Warmup, WarmupShapes)
	case !(c.MinRatio >= 0 && c.MinRatio <= 1):
		return fail("MinRatio is %v, want a part of the learning rate, 0 to 1", c.MinRatio)
	case c.MinRatio > 0 && !c.Ends():
		return of("MinRatio", ending...)
	case !(c.WarmupFrom >= 0 && c.WarmupFrom <= 1):
		return fail("WarmupFrom is %v, want a part of the learning rate, 0 to 1", c.WarmupFrom)
	case !(c.Power >= 0) || !finite(c.Power):
		return fail("Power is %v, want a positive number", c.Power)
	case c.Power > 0 && c.Shape != Polynomial:
		return of("Power", Polynomial)
	case !(c.Cycles >= 0) || !finite(c.Cycles):
		return fail("Cycles is %v, want a positive number", c.Cycles)
	case c.Cycles > 0 && c.Shape != Cosine:
		return of("Cycles", Cosine)
	case !(c.Waves >= 0) || !finite(c.Waves):
		return fail("Waves is %v, want a positive number", c.Waves)
	case c.Waves > 0 && c.Shape != Cosine:
		return of("Waves", Cosine)
	case c.Timescale < 0:
		return fail("Timescale is %d, want a number of steps", c.Timescale)
	case c.Timescale > 0 && c.Shape != InverseSqrt:
		return of("Timescale", InverseSqrt)
	case c.DecaySteps < 0:
		return fail("DecaySteps is %d, want a number of steps", c.DecaySteps)
	case c.DecaySteps > 0 && !c.Ends():
		return of("DecaySteps", ending...)
	case c.StableSteps < -1:
		return fail("StableSteps is %d, want a number of steps, or -1 for none", c.StableSteps)
	case c.StableSteps != 0 && !c.Ends():
		return of("StableSteps", ending...)
	}
	return nil
}

func (c Curve) shape() Shape {
	if c.Shape == "" {
		return Constant
	}
	return c.Shape
}

// Factor is transformers' of the settings. Its very first warm-up step's is 0, unless WarmupFrom or Ahead say otherwise.
func (c Curve) Factor(step, warmup, total int) float64 {
	if step < warmup {
		return c.rise(step, warmup)
	}
	switch c.shape() {
	case Constant:
		return 1
	case InverseSqrt:
		scale := c.Timescale
		if scale == 0 {
			scale = warmup
		}
		if scale == 0 {
			scale = 10_000
		}
		return 1 / math.Sqrt(float64(c.at(step)-warmup+scale)/float64(scale))
	}
	stable, decay := c.phases(warmup, total)
	begin := warmup + stable
	switch {
	case step < begin:
		return 1
	case step >= begin+decay:
		return c.MinRatio
	}
	return c.MinRatio + (1-c.MinRatio)*c.fall(c.at(step)-begin, decay)
}

// at is the step whose factor a step has.
func (c Curve) at(step int) int {
	if c.Ahead {
		return step + 1
	}
	return step
}

// phases are how many steps the factor stays at 1, and how many it falls.
func (c Curve) phases(warmup, total int) (stable, decay int) {
	left := total - warmup
	switch {
	case c.DecaySteps > 0 && c.StableSteps == 0:
		return left - c.DecaySteps, c.DecaySteps
	case c.DecaySteps > 0:
		return max(0, c.StableSteps), c.DecaySteps
	}
	stable = max(0, c.StableSteps)
	return stable, left - stable
}

// rise is the factor of a warm-up step.
func (c Curve) rise(step, warmup int) float64 {
	x := float64(c.at(step)) / float64(warmup)
	if c.Ahead && c.WarmupFrom > 0 {
		x = float64(step) / float64(max(1, warmup-1))
	}
	switch c.Warmup {
	case Cosine:
		x = 0.5 * (1 - math.Cos(math.Pi*x))
	case OneMinusSqrt:
		x = 1 - math.Sqrt(1-x)
	}
	return c.WarmupFrom + (1-c.WarmupFrom)*x
}

// fall is the factor after so many of the decay's steps, from 1 to 0.
func (c Curve) fall(done, steps int) float64 {
	x, left := float64(done)/float64(steps), float64(steps-done)/float64(steps)
	switch c.Shape {
	case Linear:
		return left
	case Polynomial:
		if c.Power == 0 {
			return left
		}
		return math.Pow(left, c.Power)
	case OneMinusSqrt:
		return 1 - math.Sqrt(x)
	}
	cycles, waves := c.Cycles, c.Waves
	if cycles == 0 {
		cycles = 1
	}
	if waves == 0 {
		waves = 0.5
	}
	if y := cycles * x; x < 1 {
		x = math.Mod(y, 1)
	} else { // the end of the last cycle, not the next one's beginning
		x = y - math.Ceil(y) + 1
	}
	return 0.5 * (1 + math.Cos(2*math.Pi*waves*x))
}
