package recipe

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A run that gets no better ends early, with the model of its best evaluation; so does one that was stopped and went on.
func TestEarlyStopping(t *testing.T) {
	j := newJob(t, 60)
	sets := []string{
		j.sts(t), "eval.every=1", "eval.early_stopping={patience: 3, min_delta: 0.001}", "save.best=true",
		"train.epochs=40", "save.every=2", "mesh.replicate=2",
	}
	whole, err := j.run(t, "whole", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	best, bestStep, mark, worse := math.Inf(-1), 0, math.Inf(-1), 0
	for _, m := range j.lines(t, "whole") {
		v, ok := m["value"].(float64)
		if !ok {
			continue
		}
		if worse == 3 && int(m["step"].(float64)) < whole.summary.Steps {
			t.Fatalf("the run went on after 3 evaluations that were no better")
		}
		if worse++; v > mark+0.001 {
			mark, worse = v, 0
		}
		if v > best {
			best, bestStep = v, int(m["step"].(float64))
		}
	}
	if n := whole.summary.Steps; n > 100 || bestStep >= n || whole.summary.Stopped {
		t.Fatalf("%d steps, best at %d: %+v", n, bestStep, whole.summary)
	}
	if !strings.Contains(strings.Join(whole.notes, "\n"), fmt.Sprintf("the model is that of step %d", bestStep)) {
		t.Errorf("best at step %d, notes: %v", bestStep, whole.notes)
	}
	if strings.Count(strings.Join(whole.notes, "\n"), "the run ends early: 3 evaluations in a row were no better than spearman") != 1 || strings.Count(strings.Join(whole.notes, "\n"), "ends early") != 1 {
		t.Errorf("why it ended is not said once: %v", whole.notes)
	}
	if want := fmt.Sprintf("spearman %.4f at step %d, whose model is saved; %.4f at last", best, bestStep, whole.summary.Eval.Value); !strings.Contains(whole.summary.String(), want) {
		t.Errorf("%s\nwant %s", whole.summary, want)
	}
	if r, err := ReadRecord(filepath.Join(j.dir, "whole")); err != nil || r.Best == nil || *r.Best != best || r.BestStep != bestStep || !r.Early || !r.Done {
		t.Errorf("%v: run.json has %+v, best %v at step %d", err, r, best, bestStep)
	}
	kept, err := os.ReadFile(filepath.Join(j.dir, "whole", "best", "model.safetensors"))
	if err != nil || !bytes.Equal(kept, j.model(t, "whole")) {
		t.Errorf("the model is not the best one (%v)", err)
	}
	first, err := j.run(t, "run", nil, bestStep, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRecord(filepath.Join(j.dir, "run")); err != nil || r.Best == nil || r.Early || !r.Stopped {
		t.Errorf("%v: stopped, run.json has %+v", err, r)
	}
	if _, err := j.run(t, "run", nil, first.summary.Steps+1, true, sets...); err != nil { // patience has begun to run out
		t.Fatal(err)
	}
	again, err := j.run(t, "run", nil, 0, true, sets...)
	if err != nil {
		t.Fatal(err)
	}
	if again.summary.Steps != whole.summary.Steps || !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Errorf("stopped and gone on: %d steps, in one go %d", again.summary.Steps, whole.summary.Steps)
	}
	if text := j.card(t, "run"); strings.Contains(text, "value:") { // the best evaluation was before that, and its figures are not kept
		t.Errorf("the card is that of another evaluation:\n%s", text)
	}
	if o, err := j.run(t, "run", nil, 0, true, sets...); err != nil || !o.summary.Over {
		t.Errorf("resumed when it was over: %+v, %v", o.summary, err)
	}
}

// card is the card of a run's model.
func (j *job) card(t *testing.T, out string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, out, "model", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A run that is asked to end when its evaluations are no longer better has ended early, with its model, if its last step is made, and was stopped if
// it would make one more.
func TestStopAsItEnds(t *testing.T) {
	j := newJob(t, 60)
	sets := slices.Clip(append(j.measured(t), "train.seed=40", "eval.early_stopping={patience: 1}", "train.max_steps=8")) // whose first evaluation is the best
	check := func(out string, stopAt int) {
		t.Helper()
		o, err := j.run(t, out, nil, stopAt, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		early := o.summary.Steps == 3
		r, err := ReadRecord(filepath.Join(j.dir, out))
		if s := o.summary; err != nil || s.Steps > 3 || s.Early != early || s.Stopped == early || (s.Model != "") != early || r.Early != early || r.Done != early || r.Stopped == early {
			t.Errorf("%s: after %d steps early %t, stopped %t, model %q; run.json has early %t, stopped %t, done %t, %v", out, s.Steps, s.Early, s.Stopped, s.Model, r.Early, r.Stopped, r.Done, err)
		}
		if o, err = j.run(t, out, nil, 0, true, sets...); err != nil || o.summary.Over != early || o.summary.Steps != 3 || !o.summary.Early && !early {
			t.Errorf("%s, gone on: over %t, early %t, %d steps, %v", out, o.summary.Over, o.summary.Early, o.summary.Steps, err)
		}
	}
	check("whole", 0)
	check("before", 1) // soon enough to make one step more, or two
	j.stopOn = "the run ends early"
	check("at last", 0)
	j.stopOn = ""
	for _, steps := range []int{2, 3} { // its evaluations end it no sooner than it ends
		o, err := j.run(t, fmt.Sprint(steps, " steps"), nil, 0, false, append(sets, fmt.Sprint("train.max_steps=", steps))...)
		if s := o.summary; err != nil || s.Steps != steps || s.Early || s.Stopped || strings.Contains(fmt.Sprint(o.notes), "ends early") != (steps == 3) {
			t.Errorf("of %d steps %d are made, early %t, notes %q: %v", steps, s.Steps, s.Early, o.notes, err)
		}
	}
	if o, err := j.run(t, "none", nil, 0, false, append(sets, "save.every=7")...); err != nil || o.summary.Steps != 3 {
		t.Fatal(o.summary, err)
	}
	if left, err := filepath.Glob(filepath.Join(j.dir, "none", "checkpoints", "step*")); err != nil || len(left) > 0 {
		t.Errorf("over before its first checkpoint it leaves %v (%v)", left, err)
	}
}

// A stopped run that is given no more steps is over: its model is the last checkpoint's, and not one that an earlier run has left in the folder.
func TestOverWhereItStopped(t *testing.T) {
	j := newJob(t, 60)
	sets := []string{"optimizer.schedule=constant", "optimizer.warmup_ratio=0", "save.every=1"}
	if _, err := j.run(t, "run", nil, 0, false, "train.max_steps=1", "save.every=0"); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 1, false, sets...)
	if err != nil || !o.summary.Stopped {
		t.Fatal(o.summary, err)
	}
	sets = append(sets, fmt.Sprint("train.max_steps=", o.summary.Steps))
	if o, err = j.run(t, "run", nil, 0, true, sets...); err != nil || !o.summary.Over {
		t.Fatal(o.summary, err)
	}
	if _, err = j.run(t, "whole", nil, 0, false, sets...); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the model is not that of a run in one go")
	}
}

// A run that is stopped doesn't make the evaluation after its last step; the one that goes on from there does, once, and both together end with the
// bits and the evaluations of one that was not stopped.
func TestStopBeforeEvaluation(t *testing.T) {
	j := newJob(t, 100)
	values := func(out string) (all []string) {
		for _, m := range j.lines(t, out) {
			if m["metric"] != nil {
				all = append(all, fmt.Sprint(m["step"], m["value"]))
			}
		}
		return all
	}
	for name, mesh := range map[string]string{"alone": "mesh.replicate=1", "replicas": "mesh.replicate=2", "streamed": "mesh={shard: 2, parameters: streamed}"} {
		if testing.Short() && name != "replicas" {
			continue
		}
		sets := []string{j.sts(t), "eval.every=1", mesh}
		if _, err := j.run(t, name+" whole", nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		o, err := j.run(t, name, nil, 3, false, sets...)
		if err != nil || !o.summary.Stopped {
			t.Fatalf("%s: %+v, %v", name, o.summary, err)
		}
		want, at := values(name+" whole"), o.summary.Steps
		if got := values(name); !slices.Equal(got, want[:at-1]) {
			t.Errorf("%s: stopped after step %d it has evaluations %v, want %v", name, at, got, want[:at-1])
		}
		metrics := filepath.Join(j.dir, name, "metrics.jsonl")
		file, err := os.OpenFile(metrics, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(file, `{"step":%d,"metric":"spearman","value":0}`+"\n", at) // of a run that has gone on from here, and was killed
		file.Close()
		if _, err := j.run(t, name, nil, 0, true, sets...); err != nil {
			t.Fatal(err)
		}
		if got := values(name); !slices.Equal(got, want) {
			t.Errorf("%s: evaluations %v, want %v", name, got, want)
		}
		if !bytes.Equal(j.saved(t, name, "*.safetensors"), j.saved(t, name+" whole", "*.safetensors")) {
			t.Errorf("%s: the weights differ from those of a run that was not stopped", name)
		}
		if o, err = j.run(t, name, nil, 0, true, sets...); err != nil || !o.summary.Over || o.summary.Eval != nil {
			t.Errorf("%s: over, it has made the evaluation after its stop again: %+v, %v", name, o.summary, err)
		}
		short := name + " short" // stopped, and given no more steps
		if o, err = j.run(t, short, nil, 3, false, sets...); err != nil {
			t.Fatal(err)
		}
		at = o.summary.Steps
		for range 2 { // the second finds nothing to do but that
			o, err = j.run(t, short, nil, 0, true, append(sets, fmt.Sprint("train.max_steps=", at))...)
			if err != nil || !o.summary.Over || o.summary.Eval == nil || o.summary.Steps != at || !slices.Equal(values(short), want[:at]) {
				t.Errorf("%s: stopped after step %d and ended there: %+v with evaluations %v, want %v: %v", name, at, o.summary, values(short), want[:at], err)
			}
			if card, err := os.ReadFile(filepath.Join(o.summary.Model, "README.md")); err != nil || !strings.Contains(string(card), fmt.Sprintf("%.4f", o.summary.Eval.Value)) {
				t.Errorf("%s: the model's card lacks its evaluation (%v)", name, err)
			}
		}
		if name == "streamed" {
			continue // not yet with save.best
		}
		best := append(sets, "save.best=true")
		if o, err = j.run(t, name+" best", nil, 3, false, best...); err != nil || len(values(name+" best")) != o.summary.Steps {
			t.Errorf("%s: with save.best a stopped run has evaluations %v of %d steps: %v", name, values(name+" best"), o.summary.Steps, err)
		}
	}
}
