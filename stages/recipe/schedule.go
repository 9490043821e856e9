package recipe

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"contraflow/io/spelling"
	"contraflow/stages/optim"
)

// Schedule is the learning rate's: a name, or a mapping of the name and its options, which are those of [optim.Curve].
type Schedule struct {
	Name        string  `yaml:"name"`
	MinRatio    float64 `yaml:"min_ratio,omitempty"`
	Cycles      float64 `yaml:"cycles,omitempty"`
	Waves       float64 `yaml:"waves,omitempty"`
	Power       float64 `yaml:"power,omitempty"`
	Timescale   int     `yaml:"timescale,omitempty"`
	StableSteps *int    `yaml:"stable_steps,omitempty"`
	DecaySteps  int     `yaml:"decay_steps,omitempty"`
	DecayRatio  float64 `yaml:"decay_ratio,omitempty"` // of the run's steps, in DecaySteps' place
	Warmup      string  `yaml:"warmup,omitempty"`
	WarmupFrom  float64 `yaml:"warmup_from,omitempty"`
	Ahead       bool    `yaml:"ahead,omitempty"`
}

// schedule has Schedule's keys and not its forms.
type schedule Schedule

func (s *Schedule) decode(d *decoder, path string, n *node) {
	*s = Schedule{Name: s.Name}
	if n.kind == mapping {
		d.structure(path, n, reflect.ValueOf((*schedule)(s)).Elem())
		return
	}
	d.scalar(path, n, reflect.ValueOf(&s.Name).Elem())
}

// MarshalYAML writes the name alone where there is nothing else.
func (s Schedule) MarshalYAML() (any, error) {
	if s == (Schedule{Name: s.Name}) {
		return s.Name, nil
	}
	return schedule(s), nil
}

// of is the schedule of a run of so many steps.
func (s Schedule) of(steps int) optim.Schedule {
	c := optim.Curve{
		Shape: optim.Shape(s.Name), MinRatio: s.MinRatio, Power: s.Power, Cycles: s.Cycles, Waves: s.Waves, Timescale: s.Timescale, DecaySteps: s.DecaySteps,
		Warmup: optim.Shape(s.Warmup), WarmupFrom: s.WarmupFrom, Ahead: s.Ahead,
	}
	if n := s.StableSteps; n != nil && *n == 0 {
		c.StableSteps = -1
	} else if n != nil {
		c.StableSteps = *n
	}
	if s.DecayRatio > 0 {
		c.DecaySteps = max(1, int(math.Ceil(s.DecayRatio*float64(steps))))
	}
	if c == (optim.Curve{Shape: c.Shape}) {
		return c.Shape
	}
	return c
}

// scheduleOptions are the options that not all schedules have, and whose they are.
var scheduleOptions = []struct {
	key string
	of  []optim.Shape
}{
	{"min_ratio", falling}, {"stable_steps", falling}, {"decay_steps", falling}, {"decay_ratio", falling},
	{"cycles", []optim.Shape{optim.Cosine}}, {"waves", []optim.Shape{optim.Cosine}},
	{"power", []optim.Shape{optim.Polynomial}}, {"timescale", []optim.Shape{optim.InverseSqrt}},
}

var falling = []optim.Shape{optim.Linear, optim.Cosine, optim.Polynomial, optim.OneMinusSqrt}

// foreignSchedules are transformers' names of what has options here.
var foreignSchedules = map[string]string{
	"constant_with_warmup":      "constant, with optimizer.warmup_ratio or optimizer.warmup_steps",
	"cosine_with_restarts":      "{name: cosine, cycles: 2}",
	"cosine_with_min_lr":        "{name: cosine, min_ratio: 0.1}",
	"cosine_warmup_with_min_lr": "{name: cosine, min_ratio: 0.1, ahead: true}",
	"warmup_stable_decay":       "{name: linear, decay_ratio: 0.1}",
}

func (c *checker) checkSchedule(o *Optimizer) {
	const at = "optimizer.schedule"
	s, name := o.Schedule, at
	if n := c.find(at); n != nil && n.kind == mapping {
		name += ".name"
	}
	if ours, known := foreignSchedules[s.Name]; known {
		c.fail(name, "%s is another program's name: here it is %s", s.Name, ours)
		return
	}
	before := len(c.d.errs)
	if c.words(name, texts(optim.Shapes)...); len(c.d.errs) > before {
		return
	}
	for _, x := range scheduleOptions {
		key := at + "." + x.key
		c.require(c.find(key) == nil || slices.Contains(x.of, optim.Shape(s.Name)), key, "is of %s, not of %s", strings.Join(texts(x.of), ", "), s.Name)
	}
	part := func(key string, v float64) { c.require(v >= 0 && v <= 1, at+"."+key, "is %v, want a part, 0 to 1", v) }
	part("min_ratio", s.MinRatio)
	part("warmup_from", s.WarmupFrom)
	part("decay_ratio", s.DecayRatio)
	for _, x := range []struct {
		key string
		v   float64
	}{{"cycles", s.Cycles}, {"waves", s.Waves}, {"power", s.Power}, {"timescale", float64(s.Timescale)}, {"decay_steps", float64(s.DecaySteps)}, {"decay_ratio", s.DecayRatio}} {
		key := at + "." + x.key
		c.require(c.find(key) == nil || x.v > 0, key, "is %v, want a positive number", x.v)
	}
	if s.StableSteps != nil {
		c.require(*s.StableSteps >= 0, at+".stable_steps", "is negative")
	}
	c.require(s.DecaySteps == 0 || s.DecayRatio == 0, at+".decay_steps", "and %s.decay_ratio say the same: give one of them", at)
	c.words(at+".warmup", texts(optim.WarmupShapes)...)
}

// notePhases tells of a decay that has no room after the warm-up, or does not begin.
func (x *Run) notePhases() {
	u := x.Recipe.update(x.Steps)
	c, ok := u.Schedule.(optim.Curve)
	if !ok || u.WarmupSteps >= x.Steps {
		return
	}
	begin := u.WarmupSteps + max(0, c.StableSteps)
	switch {
	case c.StableSteps == 0 && u.WarmupSteps+c.DecaySteps > x.Steps:
		x.obs.note("a warm-up of %d steps and a decay of %d are more than the run's %d steps: the decay has begun within the warm-up, and after it the learning rate goes on at %.3g of its highest; lower optimizer.schedule.decay_steps or decay_ratio", u.WarmupSteps, c.DecaySteps, x.Steps, u.Factor(u.WarmupSteps))
	case c.StableSteps > 0 && begin >= x.Steps:
		x.obs.note("a warm-up of %d steps and %d at the full learning rate are all of the run's %d steps: it does not fall; lower optimizer.schedule.stable_steps", u.WarmupSteps, c.StableSteps, x.Steps)
	case c.StableSteps != 0 && c.DecaySteps > 0 && begin+c.DecaySteps < x.Steps && c.MinRatio == 0:
		x.obs.note("the learning rate is 0 from step %d on, of %d: optimizer.schedule.stable_steps and decay_steps are fewer than the run has; min_ratio keeps it above 0", begin+c.DecaySteps+1, x.Steps)
	}
}

// describeSchedule says in words how the learning rate goes.
func (x *Run) describeSchedule() string {
	u := x.Recipe.update(x.Steps)
	o := x.Recipe.Optimizer.Schedule
	text := fmt.Sprintf("%.3g, %s", u.LR, o.Name)
	for _, option := range []struct {
		name string
		v    float64
	}{{"cycles", o.Cycles}, {"waves", o.Waves}, {"power", o.Power}, {"min_ratio", o.MinRatio}} {
		if option.v != 0 {
			text += fmt.Sprintf(" (%s %v)", option.name, option.v)
		}
	}
	if u.WarmupSteps > 0 {
		text += " after " + spelling.Count(u.WarmupSteps, "step of warm-up", "steps of warm-up")
	}
	if c, ok := u.Schedule.(optim.Curve); ok && c.Ends() {
		stable := c.StableSteps
		if stable == 0 && c.DecaySteps > 0 {
			stable = x.Steps - u.WarmupSteps - c.DecaySteps
		}
		if stable > 0 {
			text += fmt.Sprintf(" and %d at the full rate", stable)
		}
	}
	return fmt.Sprintf("%s; the last step's is %.3g", text, u.LR*u.Factor(x.Steps-1))
}
