package recipe

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/stages/optim"
	"contraflow/stages/recipe/imports"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// Settings of transformers, imported, make the learning rates that transformers makes of them, in every step.
func TestImportedSchedules(t *testing.T) {
	const tolerance = 20 * 0x1p-52 // of the factors, as optim's, and of options that are printed with 15 digits
	g := goldens.Load(t, "ops/schedules")
	var meta struct {
		Cases []struct {
			Name, Kind    string
			Warmup, Total int
			Kwargs        map[string]any
			LR            float64
		}
	}
	g.Meta(t, &meta)
	kinds := map[string]bool{}
	for _, c := range meta.Cases {
		kinds[c.Kind] = true
		res, err := imports.Convert(imports.SentenceTransformers, imports.Settings{
			"lr_scheduler_type": c.Kind, "lr_scheduler_kwargs": c.Kwargs, "learning_rate": c.LR, "warmup_steps": float64(c.Warmup), "max_steps": float64(c.Total),
		}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%s: %q, %q", c.Name, res.Without, res.Unknown)
		}
		r, err := Parse(c.Name, []byte(res.Recipe), nil)
		if err != nil {
			t.Fatal(err)
		}
		u := r.update(c.Total)
		for step, want := range g.F64(t, c.Name) {
			if got := u.LR * u.Factor(step); !(math.Abs(got-want*c.LR) <= tolerance*c.LR) {
				t.Errorf("%s %v, step %d: a learning rate of %v, want %v", c.Name, c.Kwargs, step, got, want*c.LR)
			}
		}
	}
	if len(kinds) != 9 {
		t.Errorf("of %v", kinds)
	}
}

// A run that goes on has the learning rates of one that was not stopped, and ends with its bits.
func TestResumeSchedule(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 100)
	for i, schedule := range []string{
		"{name: cosine, cycles: 2, min_ratio: 0.1}", "{name: 1-sqrt, decay_ratio: 0.4, warmup: cosine, warmup_from: 0.2}", "{name: inverse_sqrt, timescale: 3}", "{name: polynomial, power: 2, ahead: true}",
	} {
		if testing.Short() && i > 0 {
			break
		}
		sets := []string{"optimizer.schedule=" + schedule, "optimizer.warmup_steps=3", "batch.no_duplicates=false"}
		out := fmt.Sprint("run", i)
		if _, err := j.run(t, "whole"+out, nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		if first, err := j.run(t, out, nil, 4, false, sets...); err != nil || !first.summary.Stopped {
			t.Fatalf("%v, %+v", err, first.summary)
		}
		if _, err := j.run(t, out, nil, 0, true, sets...); err != nil {
			t.Fatal(err)
		}
		r, err := Parse("job", []byte(j.text), append(sets, "save.dir=x"))
		if err != nil {
			t.Fatal(err)
		}
		lines := j.lines(t, out)
		u := r.update(len(lines))
		for step, m := range lines {
			if want := u.LR * u.Factor(step); m["lr"] != want {
				t.Errorf("%s: step %d has a learning rate of %v, want %v", schedule, step, m["lr"], want)
			}
		}
		if len(lines) != 12 || !bytes.Equal(j.model(t, out), j.model(t, "whole"+out)) {
			t.Errorf("%s: %d steps, or the weights differ from those of a run that was not stopped", schedule, len(lines))
		}
		if _, err := j.run(t, out, nil, 0, true, "optimizer.schedule=linear", "optimizer.warmup_steps=3", "batch.no_duplicates=false"); err == nil || !strings.Contains(err.Error(), "optimizer.schedule.name was ") {
			t.Errorf("another schedule: %v", err)
		}
	}
}

// What a schedule's steps do not leave room for is said when the run is opened.
func TestSchedulePhases(t *testing.T) {
	j := newJob(t, 100) // 12 steps
	const one, two = "train.max_steps=1 optimizer.warmup_steps=0", "train.max_steps=2 optimizer.warmup_steps=0"
	for set, want := range map[string]string{
		"{ahead: true} " + one:                              "the one step has a learning rate of 0, to which optimizer.schedule falls: nothing trains",
		"{ahead: true, min_ratio: 0.1} " + one:              "",
		"{ahead: true} " + two:                              "",
		"linear " + one:                                     "",
		"{decay_steps: 10}":                                 "a warm-up of 3 steps and a decay of 10 are more than the run's 12 steps: the decay has begun within the warm-up, and after it the learning rate goes on at 0.9 of its highest",
		"{stable_steps: 9}":                                 "a warm-up of 3 steps and 9 at the full learning rate are all of the run's 12 steps",
		"{stable_steps: 2, decay_steps: 4}":                 "the learning rate is 0 from step 10 on, of 12",
		"{stable_steps: 2, decay_steps: 7}":                 "",
		"{decay_steps: 9}":                                  "",
		"{decay_steps: 5, stable_steps: 0}":                 "the learning rate is 0 from step 9 on, of 12",
		"{stable_steps: 2, decay_steps: 4, min_ratio: 0.1}": "",
	} {
		var notes []string
		schedule, more, _ := strings.Cut(set, " train.")
		sets := []string{"save.dir=" + filepath.Join(j.dir, "out"), "batch.no_duplicates=false", "optimizer.warmup_steps=3", "optimizer.schedule=" + schedule}
		if more != "" {
			sets = append(sets, strings.Fields("train."+more)...)
		}
		r, err := Parse("job", []byte(j.text), sets)
		if err != nil {
			t.Fatal(err)
		}
		x, err := Open(t.Context(), r, Observer{Note: func(m string) { notes = append(notes, m) }})
		if err != nil {
			t.Fatal(err)
		}
		x.Close()
		if all := strings.Join(notes, "\n"); want == "" && strings.Contains(all, "learning rate") || !strings.Contains(all, want) {
			t.Errorf("%s: %q, want %q", set, notes, want)
		}
	}
}

// Schedules with options in README and templates are such as recipes take, and together they have every option and every name.
func TestDocumentedSchedules(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	template, _ := Template("embedder")
	shown := ""
	for _, s := range regexp.MustCompile(`\{name: [^{}]*\}`).FindAllString(string(readme)+template, -1) {
		if _, err := Parse("shown", []byte(minimal), []string{"optimizer.schedule=" + s}); err == nil {
			shown += s
		} else if !strings.Contains(err.Error(), "optimizer.schedule.name: is ") { // something else's name
			t.Errorf("%s: %v", s, err)
		}
	}
	words := append(fieldNames(reflect.TypeFor[Schedule]()), texts(optim.Shapes)...)
	for _, w := range words {
		if !strings.Contains(shown, w+":") && !strings.Contains(string(readme), "`"+w) {
			t.Errorf("nothing says %s", w)
		}
	}
	if n := strings.Count(shown, "name: "); n < 7 {
		t.Errorf("%d schedules are shown", n)
	}
}

// evaluated and kept are the steps after which a run was evaluated, and of which it has checkpoints.
func (j *job) evaluated(t *testing.T, out string) (steps []int, values []any) {
	for _, m := range j.lines(t, out) {
		if v, ok := m["value"]; ok {
			steps, values = append(steps, int(m["step"].(float64))), append(values, v)
		}
	}
	return steps, values
}

func (j *job) kept(t *testing.T, out string) (steps []int) {
	dirs, err := os.ReadDir(filepath.Join(j.dir, out, "checkpoints"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, d := range dirs {
		var n int
		if _, err := fmt.Sscanf(d.Name(), "step-%d", &n); err == nil {
			steps = append(steps, n)
		}
	}
	return steps
}

// ends are the steps, counted from 1, with which epochs end: those that have an epoch's last row, by a count of the rows that the batches had.
func (o outcome) ends(t *testing.T, rows int) (ends []int) {
	seen := map[int]map[int64]bool{}
	for step := range len(o.rows) {
		e := o.epochs[step]
		if seen[e] == nil {
			seen[e] = map[int64]bool{}
		}
		for _, ranks := range o.rows[step] {
			for _, row := range ranks {
				if seen[e][row] {
					t.Errorf("row %d comes twice in epoch %d", row, e)
				}
				seen[e][row] = true
			}
		}
		if len(seen[e]) == rows {
			ends = append(ends, step+1)
		}
	}
	return ends
}

// With every: epoch a run is evaluated and saved after the steps that have an epoch's last row, and after its last one; one that was stopped and went on
// does the same.
func TestEveryEpoch(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 100)
	every := []string{j.sts(t), "eval.every=epoch", "save.every=epoch", "save.keep=100", "batch.no_duplicates=false"}
	for i, c := range []struct {
		sets  []string
		epoch int // steps
	}{
		{[]string{"batch.no_duplicates=true"}, 5}, // or fewer, where fewer rows that share a text are left at the end
		{nil, 4},
		{[]string{"batch.accumulate=3"}, 3}, // 8 batches: two steps of three and one of two
		{[]string{"batch.accumulate=20"}, 1},
		{[]string{"batch.accumulate=1", "mesh.replicate=2", "train.epochs=2"}, 8},
		{[]string{"batch.accumulate=3", "train.epochs=2.5"}, 3},  // a step and a half, rounded up
		{[]string{"batch.accumulate=3", "train.max_steps=2"}, 3}, // no epoch's end
		{[]string{"batch.accumulate=3", "train.epochs=1"}, 3},
	} {
		sets := slices.Concat(every, c.sets)
		out := fmt.Sprint("run", i)
		whole, err := j.run(t, "whole "+out, nil, 0, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		steps, ends := whole.summary.Steps, whole.ends(t, j.rows)
		if i > 0 && len(ends) != steps/c.epoch || len(ends) > 0 && ends[0] != c.epoch {
			t.Fatalf("%v: epochs end with %v of %d steps", c.sets, ends, steps)
		}
		if slices.Contains(c.sets, "train.epochs=2.5") && steps != 8 {
			t.Errorf("two epochs and a half of 3 steps are %d", steps)
		}
		want := ends
		if len(ends) == 0 || ends[len(ends)-1] < steps {
			want = append(slices.Clone(ends), steps)
		}
		saves := want
		if len(ends) == 0 {
			saves = nil // over before its first checkpoint
		}
		evaluated, values := j.evaluated(t, "whole "+out)
		if !slices.Equal(evaluated, want) || !slices.Equal(j.kept(t, "whole "+out), saves) {
			t.Errorf("%v: evaluated after %v, saved after %v, want %v", c.sets, evaluated, j.kept(t, "whole "+out), want)
		}
		if steps < c.epoch+2 {
			continue
		}
		first, err := j.run(t, out, nil, c.epoch, false, sets...) // stops with a step that ends an epoch, or the next one
		if err != nil || !first.summary.Stopped {
			t.Fatalf("%v, %+v", err, first.summary)
		}
		at := first.summary.Steps
		if _, err := j.run(t, out, nil, 0, true, sets...); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(want, at) {
			saves = append(slices.Clone(saves), at)
			slices.Sort(saves)
		}
		again, valuesAgain := j.evaluated(t, out)
		if !slices.Equal(again, want) || !slices.Equal(valuesAgain, values) || !slices.Equal(j.kept(t, out), saves) || !bytes.Equal(j.model(t, out), j.model(t, "whole "+out)) {
			t.Errorf("%v, stopped after %d: evaluated after %v, %v, saved after %v; in one go after %v, %v", c.sets, at, again, valuesAgain, j.kept(t, out), want, values)
		}
	}
}

// Early stopping counts epochs' evaluations, and the best model is one epoch's.
func TestBestEpoch(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	sets := []string{j.sts(t), "eval.every=epoch", "eval.early_stopping={patience: 3, min_delta: 0.001}", "save.best=true", "save.every=epoch", "train.epochs=40", "optimizer.lr=2e-2"}
	o, err := j.run(t, "run", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	ends := o.ends(t, j.rows)
	evaluated, values := j.evaluated(t, "run")
	best := slices.MaxFunc(values, func(a, b any) int { return int(math.Copysign(1, a.(float64)-b.(float64))) })
	if s := o.summary; !s.Early || !slices.Contains(ends, s.BestStep) || s.Best != best || !slices.Equal(evaluated, ends) || ends[len(ends)-1] < s.Steps-1 { // ranks agree on it in the next step
		t.Errorf("%+v, evaluated after %v, epochs end with %v", s, evaluated, ends)
	}
	first, err := j.run(t, "again", nil, 4, false, sets...)
	if err != nil || !first.summary.Stopped {
		t.Fatal(err)
	}
	if again, err := j.run(t, "again", nil, 0, true, sets...); err != nil || again.summary.Steps != o.summary.Steps || again.summary.BestStep != o.summary.BestStep || !bytes.Equal(j.model(t, "again"), j.model(t, "run")) {
		t.Errorf("%v: stopped and gone on %+v, in one go %+v", err, again.summary, o.summary)
	}
}

// A share of the run is of its steps, rounded up.
func TestEveryShare(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 100) // 12 steps
	if _, err := j.run(t, "run", nil, 0, false, "batch.no_duplicates=false", j.sts(t), "eval.every=0.1", "save.every=0.25", "save.keep=9"); err != nil {
		t.Fatal(err)
	}
	if got, _ := j.evaluated(t, "run"); !slices.Equal(got, []int{2, 4, 6, 8, 10, 12}) { // 1.2 is nearer to 1
		t.Errorf("evaluated after %v", got)
	}
	if got := j.kept(t, "run"); !slices.Equal(got, []int{3, 6, 9, 12}) {
		t.Errorf("saved after %v", got)
	}
}

// What a run is about to do says when.
func TestWhen(t *testing.T) {
	j := newJob(t, 100)
	for _, c := range []struct {
		sets []string
		want string
	}{
		{nil, "steps   12, of 2 x 13 rows\nrate    0.001, linear after 2 steps of warm-up; the last step's is 0.0001\neval    every 500 steps, which are more than the run has, and after the last step\nsave    every 500 steps, which are more than the run has\n"},
		{[]string{"eval.every=epoch", "save.every=epoch", "train.epochs=4"}, "eval    at each epoch's end, after step 4, 8, 12, 16, and after the last step\nsave    at each epoch's end, after step 4, 8, 12, 16\n"},
		{[]string{"eval.every=epoch", "save.every=10m", "train.epochs=9"}, "eval    at each epoch's end, after step 4, 8, 12, ..., 36, and after the last step\nsave    every 10m\n"},
		{[]string{"eval.every=0.25", "save.every=epoch", "train.max_steps=3"}, "eval    every step, and after the last step\nsave    at each epoch's end, which none has within 3 steps\n"},
		{[]string{"eval.every=0", `save.every="1h30m"`, "optimizer.schedule={name: linear, stable_steps: 3}"}, "rate    0.001, linear after 2 steps of warm-up and 3 at the full rate; the last step's is 0.000143\neval    after the last step\nsave    every 1h30m\n"},
		{[]string{"eval.every=0", "save.every=0", "optimizer.schedule={name: cosine, decay_steps: 4, min_ratio: 0.25}"}, "rate    0.001, cosine (min_ratio 0.25) after 2 steps of warm-up and 6 at the full rate; the last step's is 0.00036\neval    after the last step\ndevice"},
	} {
		x := j.opened(t, append(c.sets, j.sts(t), "batch.no_duplicates=false", "save.dir="+filepath.Join(j.dir, "out")))
		if text := x.Describe(); !strings.Contains(text, c.want) {
			t.Errorf("%s\nwant\n%s", text, c.want)
		}
	}
}

// Steps that measure are as many as they are asked to be, whatever the run has: a schedule that ends does not end them.
func TestCalibrateBeyondTheRun(t *testing.T) {
	j := newJob(t, 40)
	x := j.opened(t, []string{"train.max_steps=1", "optimizer.warmup_ratio=0", "optimizer.schedule={name: cosine, cycles: 2}", "save.dir=" + filepath.Join(j.dir, "out")})
	at := x.sampler.Cursor()
	if _, err := x.Calibrate(t.Context(), 1, 3); err != nil {
		t.Error(err)
	}
	if now := x.sampler.Cursor(); !reflect.DeepEqual(now, at) {
		t.Errorf("the run's own batches are taken: it is at %+v and was at %+v", now, at)
	}
}

// Steps that a line is due of are those of log.every, the first and the last.
func TestLogEvery(t *testing.T) {
	j := newJob(t, 40)
	for every, want := range map[string][]int{"0.3": {1, 3, 6, 8}, "epoch": {1, 4, 8}, "5": {1, 5, 8}, "0": {1, 8}} {
		o, err := j.run(t, every, nil, 0, false, "log.every="+every, "batch.global_size=10", "batch.accumulate=1", "batch.no_duplicates=false", "train.epochs=2")
		if err != nil {
			t.Fatal(err)
		}
		var due []int
		for _, m := range o.metrics {
			if m.Due {
				due = append(due, m.Step)
			}
		}
		if !slices.Equal(due, want) {
			t.Errorf("log.every %s: %v, want %v", every, due, want)
		}
	}
}

// A time is written as a recipe has it, and the steps of a period are counted as they come.
func TestPeriods(t *testing.T) {
	for _, text := range []string{"30s", "10m", "1h", "1h30m", "1h0m5s", "100h", "1m30s", "epoch", "0.1", "500", "0"} {
		r, err := Parse("r", []byte(minimal), []string{"save.every=" + text})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Save.Every.MarshalYAML(); err != nil || fmt.Sprint(got) != text {
			t.Errorf("%s is written as %v (%v)", text, got, err)
		}
	}
	x := &Run{Steps: 11, epochs: []int{4, 8}}
	for _, c := range []struct {
		p   Period
		due []int
	}{
		{Period{Epoch: true}, []int{4, 8}}, {Period{Steps: 3}, []int{3, 6, 9}}, {Period{Share: 0.2}, []int{3, 6, 9}}, // of 2.2 steps
		{Period{Steps: 12}, nil}, {Period{Time: time.Minute}, nil}, {Period{}, nil},
	} {
		var due []int
		for done := 1; done <= x.Steps; done++ {
			if x.due(c.p, done) {
				due = append(due, done)
			}
		}
		if n := x.dues(c.p); n != len(c.due) || !slices.Equal(due, c.due) {
			t.Errorf("%+v: %d steps, %v; want %+v", c.p, n, due, c)
		}
	}
}
