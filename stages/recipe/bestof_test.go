package recipe

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

// After another way of measuring nothing of the best evaluation is left, nor of patience: the next evaluation is the best, and patience counts from it.
func TestForgotten(t *testing.T) {
	best, mark := 0.9, 0.8
	for by, why := range map[string]string{"": "nothing asked which evaluation is the best", "another": "what eval measures has changed"} {
		var notes []string
		x := &Run{saves: &checkpoints{progress: progress{Best: &best, BestStep: 3, BestBy: by}}, obs: Observer{Note: func(m string) { notes = append(notes, m) }}}
		x.Recipe.Save.Best = true
		if err := x.checkBest(nil); err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], why) {
			t.Errorf("measured by %q: %q, %v", by, notes, err)
		}
	}
	x := &Run{saves: &checkpoints{progress: progress{Best: &best, BestStep: 3, BestBy: "another", BestModel: "hash", Mark: &mark, Worse: 4, Spent: 4, First: &mark}}}
	x.Recipe.Eval.EarlyStopping = &EarlyStopping{Patience: 4}
	if err := x.checkBest(nil); err != nil {
		t.Fatal(err)
	}
	p := &x.saves.progress
	if p.Best != nil || p.BestStep != 0 || p.BestModel != "" || p.Mark != nil || p.Worse != 0 || p.enough() || p.First != nil {
		t.Errorf("%+v is left", *p)
	}
	for i := range 5 {
		if better := p.weigh(&Evaluation{Step: 4 + i, Value: 0.1}, x.Recipe.Eval.EarlyStopping); better != (i == 0) || p.enough() != (i == 4) {
			t.Errorf("evaluation %d: better %v, %+v", i, better, *p)
		}
	}
}

// A run that goes on where its evaluations have used up patience ends, be it that patience came later, and says so.
func TestPatienceUsedUp(t *testing.T) {
	for patience, ends := range map[int]bool{4: true, 3: true, 5: false, 0: false} {
		var notes []string
		mark := 0.8
		x := &Run{obs: Observer{Note: func(m string) { notes = append(notes, m) }}}
		x.Recipe.Save.Best = true
		if patience > 0 {
			x.Recipe.Eval.EarlyStopping = &EarlyStopping{Patience: patience, MinDelta: 0.01}
		}
		x.saves = &checkpoints{progress: progress{Best: &mark, BestBy: " on " + stages.Digest(xxh3.New()), Mark: &mark, Worse: 4}}
		if !ends {
			x.saves.progress.Spent = 4
		}
		if err := x.checkBest(nil); err != nil || x.saves.progress.enough() != ends || x.saves.progress.Worse != 4 {
			t.Errorf("patience of %d: %+v, %v", patience, x.saves.progress, err)
		}
		if said := fmt.Sprint(notes); strings.Contains(said, "4 evaluations in a row were no better than the best before them by more than 0.01, so that the run ends") != ends || !ends && len(notes) > 0 {
			t.Errorf("patience of %d: %s", patience, said)
		}
	}
}

// A run that is to end is over, although the step that was under way when that was decided is measured as better: resumed, it does not go on, but with more
// patience, which then counts from that step.
func TestLateBetter(t *testing.T) {
	for patience, ends := range map[int]bool{2: true, 1: true, 3: false} {
		x := &Run{}
		x.Recipe.Eval.EarlyStopping = &EarlyStopping{Patience: 2}
		x.saves = &checkpoints{progress: progress{BestBy: " on " + stages.Digest(xxh3.New())}}
		p := &x.saves.progress
		for i, value := range []float64{0.5, 0.4, 0.3, 0.6} {
			p.weigh(&Evaluation{Step: i + 1, Value: value}, x.Recipe.Eval.EarlyStopping)
		}
		if !p.enough() || p.Worse != 0 || *p.Best != 0.6 {
			t.Errorf("%+v", p)
		}
		x.Recipe.Eval.EarlyStopping = &EarlyStopping{Patience: patience}
		if err := x.checkBest(nil); err != nil || p.enough() != ends {
			t.Errorf("patience of %d: %+v, %v", patience, p, err)
		}
		if p.weigh(&Evaluation{Step: 5, Value: 0.5}, x.Recipe.Eval.EarlyStopping); p.Worse != 1 || p.enough() != ends {
			t.Errorf("patience of %d, a step later: %+v", patience, p)
		}
	}
}

// A best evaluation whose model was not kept, since save.best was not asked for then, is not that of the model in best/.
func TestNotKept(t *testing.T) {
	best := 0.9
	x := &Run{saves: &checkpoints{}}
	x.Recipe.Save.Best, x.Recipe.Save.Dir = true, t.TempDir()
	if err := os.Mkdir(x.bestDir(), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(x.bestDir(), "model.safetensors"), []byte("that of step 2"), 0o600); err != nil {
		t.Fatal(err)
	}
	for hash, left := range map[string]int{"": 0, "of step 3": 3} { // which the run makes again
		x.saves.progress = progress{Best: &best, BestStep: 3, BestBy: " on " + stages.Digest(xxh3.New()), BestModel: hash}
		if err := x.checkBest([]string{"save.best was false and is true"}); err != nil || x.saves.progress.BestStep != left {
			t.Errorf("%q: step %d is the best, want %d: %v", hash, x.saves.progress.BestStep, left, err)
		}
	}
}

// The best evaluation's value is told where its model is the one that there is: saved, or of a stopped run in best/.
func TestBestOf(t *testing.T) {
	value := 0.5
	for _, c := range []struct{ keeps, stopped, kept, last, want bool }{
		{true, true, false, false, true}, {true, false, true, false, true}, {true, false, false, true, true},
		{true, false, false, false, false}, // best/ has lost it, and the last step's model is saved
		{false, true, true, true, false},
	} {
		x := &Run{saves: &checkpoints{progress: progress{Best: &value, BestStep: 3}, kept: c.kept}}
		x.Recipe.Save.Best = c.keeps
		s := &Summary{Steps: 5, Stopped: c.stopped}
		if c.last {
			s.Steps = 3
		}
		if best, step := x.bestOf(s); (best != nil) != c.want || (step == 3) != c.want {
			t.Errorf("%+v: %v at step %d", c, best, step)
		}
	}
}

// A loss is better where it is lower, any other metric where it is higher, by more than asked for.
func TestBetter(t *testing.T) {
	for _, c := range []struct {
		metric    string
		value, by float64
		want      bool
	}{
		{"loss", 0.75, 0, true}, {"loss", 1, 0, false}, {"loss", 1.25, 0, false}, {"loss", 0.75, 0.25, false}, {"loss", 0.5, 0.25, true},
		{"map", 1.25, 0, true}, {"map", 1, 0, false}, {"map", 0.75, 0, false}, {"map", 1.25, 0.25, false}, {"map", 1.5, 0.25, true},
	} {
		if got := (Evaluation{Metric: c.metric, Value: c.value}).better(1, c.by); got != c.want {
			t.Errorf("%+v, after 1: better %t", c, got)
		}
	}
}

// JSON has no numbers that are not finite, as a rate is of a step that took no time by the clock.
func TestMetricsNotFinite(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		text, err := json.Marshal(Metrics{Step: 3, Loss: v, GradNorm: v, PairsPerS: perSecond(5, 0), TokensPerS: perSecond(5, -time.Second)})
		if err != nil || !strings.HasPrefix(string(text), `{"step":3,"epoch":0,"loss":null,"grad_norm":null,`) {
			t.Errorf("%v: %s, %v", v, text, err)
		}
	}
}

// An evaluation without a figure takes that of the one before from the model's card: it was of other parameters.
func TestNoFigureOfBefore(t *testing.T) {
	x := &Run{measured: &Evaluation{Step: 1, Value: 0.5}, saves: &checkpoints{}}
	if ev, err := x.evaluateAfter(t.Context(), &embedder.Engine{}, nil, 2); ev != nil || err != nil || x.measured != nil {
		t.Errorf("%v, %v: the card has %v", ev, err, x.measured)
	}
}

// An evaluation is put off where the run that goes on will make it, and nothing depends on it.
func TestPutsOff(t *testing.T) {
	asked := stages.StepResult{Step: 1, Asked: stages.Asked{Stop: true}}
	last, skipped, finishes, going := asked, asked, asked, asked
	last.Step, skipped.Skipped, finishes.Asked.Finish, going.Asked.Stop = 2, true, true, false
	x := &Run{Steps: 3}
	for name, c := range map[string]struct {
		r      stages.StepResult
		change func(*Recipe)
		want   bool
	}{
		"stopped": {asked, func(*Recipe) {}, true}, "going on": {going, func(*Recipe) {}, false}, "the last step": {last, func(*Recipe) {}, false},
		"ends early": {finishes, func(*Recipe) {}, false}, "skipped": {skipped, func(*Recipe) {}, true},
		"goes back": {skipped, func(r *Recipe) { r.Train.OnNaN = "rollback" }, false}, "the best is kept": {asked, func(r *Recipe) { r.Save.Best = true }, false},
		"patience": {asked, func(r *Recipe) { r.Eval.EarlyStopping = &EarlyStopping{Patience: 1} }, false},
	} {
		x.Recipe = Recipe{}
		c.change(&x.Recipe)
		if got := x.putsOff(c.r); got != c.want {
			t.Errorf("%s: put off %t", name, got)
		}
	}
}

// From a step that is not finite a run with train.on_nan: rollback goes back, and saves nothing of it; but the last one is the run's end, which is saved.
func TestLastIsNotRolledBack(t *testing.T) {
	for step, want := range map[int]bool{1: false, 2: true} {
		x := &Run{Steps: 3, saves: &checkpoints{steps: 1}}
		x.Recipe.Train.OnNaN, x.Recipe.Save.Every.Steps = "rollback", 1
		if _, save := x.saved(stages.StepResult{Step: step, Skipped: true}); save != want {
			t.Errorf("step %d of 3 is saved: %t", step+1, save)
		}
	}
}

// What evaluations measure is another thing with other documents to rerank, or other weights of a model's parts.
func TestIdentity(t *testing.T) {
	seen := map[string]int{}
	ranks, scores := task{retrieval: &embedder.Task{}}, task{scored: &scoring.Task{Kind: scoring.STS}}
	reranks := func(top int) task {
		return task{retrieval: &embedder.Task{}, first: evaluate.Run{{}}, rerank: &Rerank{Top: top}}
	}
	one, two := map[string]float64{"dense": 1}, map[string]float64{"dense": 2}
	for i, x := range []struct {
		task
		fusion map[string]float64
	}{{ranks, nil}, {reranks(10), nil}, {reranks(20), nil}, {ranks, one}, {ranks, two}, {scores, nil}, {task{scored: &scoring.Task{Kind: scoring.PairClassification}}, nil}, {scores, one}, {scores, two}} {
		name, _ := x.identity("map", x.fusion)
		if other, ok := seen[name]; ok {
			t.Errorf("task %d is measured as task %d is: %s", i, other, name)
		}
		seen[name] = i
	}
}

// Room is asked for two models where the best one is kept, and for no more checkpoints than those that are yet to come.
func TestRoomThatIsLeft(t *testing.T) {
	j := newJob(t, 60)
	note := func(o outcome, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range o.notes {
			if _, said, ok := strings.Cut(n, "has room for "); ok {
				return said
			}
		}
		return ""
	}
	if got := note(j.run(t, "best", little{left: 200 << 10}, 0, false, "train.max_steps=4", "save.every=0", "save.best=true", j.sts(t), "eval.every=4")); got != "200 KiB; the model takes 121 KiB: free 42 KiB" {
		t.Errorf("with the best one: %q", got)
	}
	sets := []string{"save.every=1", "save.keep=1000"} // one of each of 12 steps
	o, err := j.run(t, "run", nil, 2, false, sets...)
	if got := note(o, err); got != "" {
		t.Error(got)
	}
	for _, more := range []int{100, -100} { // KiB
		need := 121 + 363*(12-o.summary.Steps)
		o, err = j.run(t, "run", little{left: int64(need+more) << 10}, 1, true, sets...)
		if got := note(o, err); (got != "") != (more < 0) {
			t.Errorf("%d KiB are left of %d: %q", need+more, need, got)
		}
	}
	for i, c := range []struct {
		free  int64 // KiB
		every string
		room  bool
	}{{121 + 2*363 - 1, "3", false}, {121 + 2*363 + 1, "3", true}, {121 + 363 + 1, "2", false}, {121 + 363 + 1, "4", true}} { // of 4 steps: 3 and 4, 2 and 4, or 4
		o, _ := j.run(t, fmt.Sprint("to the end", i), little{left: c.free << 10}, 0, false, "train.max_steps=4", "save.every="+c.every) // for which it may be too little
		if got := note(o, nil); (got == "") != c.room {
			t.Errorf("%+v: %q", c, got)
		}
	}
	sets = []string{"train.max_steps=5", "save.every=0"}
	if o, err := j.run(t, "stopped", nil, 1, false, sets...); err != nil || !o.summary.Stopped {
		t.Fatalf("%+v, %v", o.summary, err)
	}
	for _, more := range []int{1, -1} {
		o, _ := j.run(t, "stopped", little{left: int64(121+363+more) << 10}, 0, true, sets...)
		if got := note(o, nil); (got != "") != (more < 0) {
			t.Errorf("%d KiB more than it takes: %q", more, got)
		}
	}
}

// A run that has a checkpoint, by whatever it was made, ends with one of its last step: what goes on then trains nothing again.
func TestLastIsSaved(t *testing.T) {
	j := newJob(t, 60)
	for i, every := range []string{"0", "10m", "epoch", "11"} {
		out, sets := fmt.Sprint("run", i), []string{"train.max_steps=5", "save.every=" + every, "save.keep=1", "batch.no_duplicates=false"}
		o, err := j.run(t, out, nil, 1, false, sets...)
		if err != nil || !o.summary.Stopped {
			t.Fatalf("%s: %+v, %v", every, o.summary, err)
		}
		if o, err = j.run(t, out, nil, 0, true, sets...); err != nil || o.summary.Over || o.summary.Steps != 5 {
			t.Fatalf("%s: %+v, %v", every, o.summary, err)
		}
		if o, err = j.run(t, out, nil, 0, true, sets...); err != nil || !o.summary.Over || len(o.losses) > 0 {
			t.Errorf("%s: trained again: %v, %v", every, o.losses, err)
		}
	}
	if _, err := j.run(t, "none", nil, 0, false, "train.max_steps=5", "save.every=11"); err != nil {
		t.Fatal(err)
	}
	if made, err := os.ReadDir(filepath.Join(j.dir, "none", checkpointsDir)); err != nil || len(made) > 1 { // the lock
		t.Errorf("a run without a checkpoint has %v, %v", made, err)
	}
}
