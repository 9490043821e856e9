package recipe

import (
	"fmt"
	"strings"
	"testing"
)

// A run that is given more steps is told how its learning rate jumps, by what the steps then have; one that goes on as it was is not.
func TestRateJumps(t *testing.T) {
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
	if note := run("over", 0, false, "train.max_steps=4"); note != "" {
		t.Error(note)
	}
	if note := run("over", 0, true, "train.max_steps=4", "optimizer.lr=5e-4"); note != "" { // and no step is made
		t.Errorf("over already: %q", note)
	}
}
