package recipe

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"contraflow/stages"
	"contraflow/stages/optim"
	"contraflow/testdata/harness"
)

// A run that is given more steps is told how its learning rate jumps, by what the steps then have; one that goes on as it was is not.
func TestRateJumps(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	rates := map[string]map[int]float64{} // by run, step
	run := func(out string, stopAt int, resume bool, sets ...string) string {
		t.Helper()
		o, err := j.run(t, out, nil, stopAt, resume, append([]string{"batch.accumulate=1", "save.every=1", "optimizer.warmup_ratio=0"}, sets...)...)
		if err != nil {
			t.Fatal(err)
		}
		rates[out] = map[int]float64{}
		for _, m := range o.metrics {
			rates[out][m.Step] = m.LR
		}
		var found []string
		for _, n := range o.notes {
			if strings.Contains(n, "learning rate") {
				found = append(found, n)
			}
		}
		return strings.Join(found, "; ")
	}
	if note := run("more", 0, false, "train.max_steps=6"); note != "" {
		t.Error(note)
	}
	last := rates["more"][6]
	note := run("more", 0, true, "train.max_steps=9")
	if want := fmt.Sprintf("the learning rate jumps from %.3g in step 6 to %.3g in step 7, for optimizer.schedule: linear is now over 9 steps, with optimizer.lr: 0.001", last, rates["more"][7]); note != want || rates["more"][7] < 1.5*last {
		t.Errorf("%q, want %q", note, want)
	}
	run("lower", 3, false, "train.max_steps=9")
	if note := run("lower", 0, true, "train.max_steps=9"); note != "" {
		t.Errorf("going on as it was: %s", note)
	}
	run("rate", 3, false, "train.max_steps=9", "optimizer.schedule=constant")
	if note := run("rate", 0, true, "train.max_steps=9", "optimizer.schedule=constant", "optimizer.lr=5e-4"); !strings.Contains(note, "jumps from 0.001 in step ") || !strings.Contains(note, " to 0.0005 in step ") {
		t.Errorf("another rate: %q", note)
	}
	warming := []string{"train.max_steps=9", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "optimizer.warmup_steps=8"}
	run("warming", 3, false, warming...)
	had := rates["warming"]
	last, was := had[len(had)], had[len(had)-1]
	same := fmt.Sprintf("optimizer.lr=%.9g", 1e-3*last/(2*last-was)) // by which the next step has what the last one had
	if note := run("warming", 0, true, append(warming, same)...); note != "" || !(math.Abs(rates["warming"][len(had)+1]-last) < 1e-6*last) {
		t.Errorf("a rate that stays where it was: %q, %v after %v", note, rates["warming"], had)
	}
	if note := run("over", 0, false, "train.max_steps=4"); note != "" {
		t.Error(note)
	}
	if note := run("over", 0, true, "train.max_steps=4", "optimizer.lr=5e-4"); note != "" { // and no step is made
		t.Errorf("over already: %q", note)
	}
}

// What a recipe says of its optimizer is what updates the weights, each number in its own place.
func TestUpdateOfRecipe(t *testing.T) {
	for set, want := range map[string]stages.Update{
		"{name: sgd, momentum: 0.7, weight_decay: 0.03, lr: 0.5, max_grad_norm: 3, warmup_ratio: 0.07, layer_decay: 0.8}": {
			Optimizer: optim.SGD{Momentum: 0.7, WeightDecay: 0.03}, LR: 0.5, MaxGradNorm: 3, WarmupSteps: 8, LayerDecay: 0.8, // of 7.07 steps
		},
		"{betas: [0.8, 0.95], eps: 1e-6, weight_decay: 0.04, lr: 1e-3, max_grad_norm: 0, warmup_steps: 5, groups: [{params: [bias], lr: 2e-3}]}": {
			Optimizer: optim.AdamW{Betas: []float64{0.8, 0.95}, Eps: 1e-6, WeightDecay: 0.04}, LR: 1e-3, WarmupSteps: 5,
		},
		"{}": {Optimizer: optim.AdamW{Betas: []float64{0.9, 0.999}, Eps: 1e-8, WeightDecay: 0.01}, LR: 2e-5, MaxGradNorm: 1, WarmupSteps: 11},
	} {
		r, err := Parse("r", []byte(minimal), []string{"optimizer=" + set, "train.on_nan=skip"})
		if err != nil {
			t.Fatal(err)
		}
		got := r.update(101)
		if groups := strings.Contains(set, "groups"); len(got.Groups) != 0 != groups || groups && got.Groups[0].LR != 2e-3 {
			t.Errorf("%s: groups %+v", set, got.Groups)
		}
		want.TotalSteps, want.OnNaN, want.Schedule = 101, stages.SkipOnNaN, optim.Linear
		got.Groups, got.Help = nil, ""
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v, want\n%+v", set, got, want)
		}
	}
}

// A decay's ratio is of all steps, rounded up, and of few steps one at least.
func TestDecayRatio(t *testing.T) {
	for _, c := range []struct {
		ratio       float64
		steps, want int
	}{{0.2, 100, 20}, {0.07, 101, 8}, {0.01, 5, 1}, {1, 7, 7}} {
		if got := (Schedule{Name: "linear", DecayRatio: c.ratio}).of(c.steps).(optim.Curve).DecaySteps; got != c.want {
			t.Errorf("%v of %d steps: %d", c.ratio, c.steps, got)
		}
	}
}
