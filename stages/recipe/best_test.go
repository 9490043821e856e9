package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage/ref"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

// measured are settings under which evaluations soon get worse.
func (j *job) measured(t *testing.T) []string {
	t.Helper()
	return []string{
		j.sts(t), "eval.every=1", "save.best=true", "save.every=2", "optimizer.lr=2e-2", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "train.epochs=9",
	}
}

func said(t *testing.T, o outcome, err error, want string) {
	t.Helper()
	if err != nil || !strings.Contains(strings.Join(o.notes, "\n"), want) {
		t.Fatalf("error %v, notes %q, want %q", err, o.notes, want)
	}
}

// The last checkpoint of a run with save.best has the last step's weights, though its model is another's: given more steps, the run makes them as if
// it had been meant to from the beginning.
func TestBestAndMoreSteps(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	sets := append(j.measured(t), "train.seed=49") // whose best step is neither the first nor the last
	whole, err := j.run(t, "whole", nil, 0, false, append(sets, "train.max_steps=11")...)
	if err != nil {
		t.Fatal(err)
	}
	best, last := fmt.Sprintf("| %.4f |", whole.summary.Best), fmt.Sprintf("| %.4f |", whole.summary.Eval.Value)
	if text := j.card(t, "whole"); best == last || !strings.Contains(text, best) || strings.Contains(text, last) {
		t.Errorf("the card is not that of the best evaluation, %s, but of the last, %s:\n%s", best, last, text)
	}
	first, err := j.run(t, "run", nil, 0, false, append(sets, "train.max_steps=7")...)
	said(t, first, err, "the model is that of step")
	o, err := j.run(t, "run", nil, 0, true, append(sets, "train.max_steps=11")...)
	said(t, o, err, "going on after step 7 of 11")
	for step := 7; step < 11; step++ {
		if o.losses[step] != whole.losses[step] {
			t.Errorf("step %d has loss %v, in one go %v", step, o.losses[step], whole.losses[step])
		}
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run in one go")
	}
	if o.summary.Counts != whole.summary.Counts || o.summary.Pairs == 0 {
		t.Errorf("counted %+v, in one go %+v", o.summary.Counts, whole.summary.Counts)
	}

	// A run that is over and has no model gets it from its last checkpoint: the best one's, or without best/ the last step's.
	want := j.model(t, "run")
	for _, gone := range []string{"model", "best"} {
		if err := os.RemoveAll(filepath.Join(j.dir, "run", gone)); err != nil {
			t.Fatal(err)
		}
	}
	o, err = j.run(t, "run", nil, 0, true, append(sets, "train.max_steps=11")...)
	said(t, o, err, "it is saved anew from the checkpoint")
	if !o.summary.Over || bytes.Equal(j.model(t, "run"), want) {
		t.Errorf("%+v, or the model is that of best/, which is gone", o.summary)
	}
	if err := os.RemoveAll(filepath.Join(j.dir, "whole", "model")); err != nil {
		t.Fatal(err)
	}
	o, err = j.run(t, "whole", nil, 0, true, append(sets, "train.max_steps=11")...)
	said(t, o, err, "it is saved anew from the checkpoint")
	if !bytes.Equal(j.model(t, "whole"), want) {
		t.Error("the model saved anew is not the best one")
	}
	kept := filepath.Join(j.dir, "whole", "best") // another model than the checkpoint knows of
	if err := errors.Join(os.RemoveAll(filepath.Join(j.dir, "whole", "model")), os.RemoveAll(kept), os.CopyFS(kept, os.DirFS(filepath.Join(j.dir, "model")))); err != nil {
		t.Fatal(err)
	}
	o, err = j.run(t, "whole", nil, 0, true, append(sets, "train.max_steps=11")...)
	said(t, o, err, "does not hold the model of step")
	if other, err := os.ReadFile(filepath.Join(kept, "model.safetensors")); err != nil || bytes.Equal(j.model(t, "whole"), other) {
		t.Errorf("the model is the one that best/ was given: %v", err)
	}
	if _, err = j.run(t, "whole", nil, 0, true, append(sets, "train.max_steps=6")...); err == nil || !strings.Contains(err.Error(), "is to make 6 steps, and has made 11") {
		t.Errorf("fewer steps than were made: %v", err)
	}
}

// min_delta is what patience asks for; the best model is the best evaluation's, however little better it is.
func TestBestIsAnyBetter(t *testing.T) {
	p, stop := progress{}, &EarlyStopping{Patience: 3, MinDelta: 0.1}
	lower := progress{} // of a loss
	for i, c := range []struct {
		value  float64
		better bool
		worse  int
	}{{0.5, true, 0}, {0.55, true, 1}, {0.52, false, 2}, {0.61, true, 0}, {0.6, false, 1}, {0.62, true, 2}, {0.63, true, 3}} {
		if better := p.weigh(&Evaluation{Step: i + 1, Value: c.value}, stop); better != c.better || p.Worse != c.worse || p.enough() != (i == 6) {
			t.Errorf("%v: better %v, %+v, want %+v", c.value, better, p, c)
		}
		if better := lower.weigh(&Evaluation{Step: i + 1, Metric: lossMetric, Value: -c.value}, stop); better != c.better || lower.Worse != c.worse || lower.enough() != (i == 6) {
			t.Errorf("a loss of %v: better %v, %+v, want %+v", -c.value, better, lower, c)
		}
	}
	if *p.Best != 0.63 || p.BestStep != 7 || *lower.Best != -0.63 {
		t.Errorf("%+v, %+v", p, lower)
	}
	p.BestModel = "hash"
	if p.weigh(&Evaluation{Step: 8, Value: 0.62}, stop); p.BestModel != "hash" {
		t.Errorf("after one that is no better: %+v", p)
	}
	if p.weigh(&Evaluation{Step: 9, Value: 0.64}, stop); p.BestModel != "" { // best/ has step 7's until it is kept
		t.Errorf("after a better one: %+v", p)
	}
	for _, delta := range []float64{0, 0.125} { // a value that is better by min_delta and no more is no better, and one that is the same is not the best
		for _, metric := range []string{"ndcg@10", lossMetric} {
			p, stop := progress{}, &EarlyStopping{Patience: 2, MinDelta: delta}
			for i := range 3 {
				ev := &Evaluation{Step: i + 1, Metric: metric, Value: 0.5}
				if i == 2 && metric == lossMetric {
					ev.Value -= delta
				} else if i == 2 {
					ev.Value += delta
				}
				if better := p.weigh(ev, stop); better != (i == 0 || i == 2 && delta > 0) {
					t.Errorf("%s with min_delta %v: evaluation %d is the best: %v", metric, delta, i, better)
				}
			}
			if p.Worse != 2 || p.Spent != 2 || !p.enough() {
				t.Errorf("%s with min_delta %v: %+v", metric, delta, p)
			}
		}
	}
	old := progress{Best: new(float64), BestStep: 1} // of a checkpoint from before marks
	if old.weigh(&Evaluation{Step: 2, Value: 0.05}, stop); old.Worse != 1 || *old.Best != 0.05 {
		t.Errorf("%+v", old)
	}
}

// What is in best/ counts only if the checkpoint knows it, and its value only where it can be compared.
func TestBestBelongsToTheRun(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	sets := slices.Clip(append(j.measured(t), "train.max_steps=8", "train.seed=2")) // whose best step is the seventh
	stopped := func(out string, more ...string) (best string) {
		if _, err := j.run(t, out, nil, 4, false, append(append(sets, "eval.early_stopping={patience: 40}"), more...)...); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(j.dir, out, "best", "model.safetensors")
	}
	abandoned, err := os.ReadFile(filepath.Join(j.dir, "model", "model.safetensors")) // as if a step that is not made again had been better
	if err != nil {
		t.Fatal(err)
	}
	again := slices.Clip(append(sets, "eval.early_stopping={patience: 40}"))

	if err := os.WriteFile(stopped("lr"), abandoned, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "lr", nil, 0, true, append(again, "optimizer.lr=1e-7")...)
	said(t, o, err, "best and patience begin anew")
	if bytes.Equal(j.model(t, "lr"), abandoned) {
		t.Error("the model is that of a run that was abandoned")
	}

	stopped("none")
	o, err = j.run(t, "none", nil, 0, true, append(sets, "save.best=false")...)
	said(t, o, err, "nothing asks any more which evaluation is the best (save.best, eval.early_stopping): that one, ")
	if strings.Contains(fmt.Sprint(o.notes), "has changed: the best") || strings.Contains(fmt.Sprint(o.notes), "begin anew") {
		t.Errorf("%q, and eval measures what it did", o.notes)
	}

	// A run that was killed after it had kept a better one goes on to make that again.
	whole, err := j.run(t, "whole", nil, 0, false, again...)
	if err != nil || whole.summary.BestStep != 7 {
		t.Fatalf("%+v, %v", whole.summary, err)
	}
	if err := os.WriteFile(stopped("same"), j.model(t, "whole"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err = j.run(t, "same", nil, 0, true, append(again, "save.keep=4")...)
	if err != nil || strings.Contains(fmt.Sprint(o.notes), "begin anew") {
		t.Errorf("nothing has changed in what is computed: %v, %v", err, o.notes)
	}
	if o.summary.BestStep != 7 || !bytes.Equal(j.model(t, "same"), j.model(t, "whole")) {
		t.Errorf("the model of step %d differs from that of a run in one go", o.summary.BestStep)
	}

	if err := os.RemoveAll(filepath.Dir(stopped("gone"))); err != nil {
		t.Fatal(err)
	}
	o, err = j.run(t, "gone", nil, 0, true, again...)
	said(t, o, err, "best and patience begin anew")

	stopped("eval", "eval.at_start=true")
	first := func() *float64 {
		c, err := checkpoint.Open(filepath.Join(j.dir, "eval", checkpointsDir), checkpoint.Disk{}).Latest(nil)
		if err != nil {
			t.Fatal(err)
		}
		var p progress
		if err := errors.Join(json.Unmarshal(c.Progress, &p), c.Close()); err != nil {
			t.Fatal(err)
		}
		return p.First
	}
	if first() == nil {
		t.Error("the value before the first step is not in the checkpoint")
	}
	unkept := slices.Clip(append(again, "save.best=false"))
	if _, err := j.run(t, "unkept", nil, 4, false, unkept...); err != nil {
		t.Fatal(err)
	}
	sts := filepath.Join(j.dir, "sts.jsonl")
	raw, err := os.ReadFile(sts)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sts, bytes.ReplaceAll(raw, []byte(`"s":4`), []byte(`"s":-4`)), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err = j.run(t, "eval", nil, 0, true, again...)
	said(t, o, err, "what eval measures has changed")
	if v := first(); v != nil {
		t.Errorf("the model before its training is remembered with %v, which was measured otherwise", *v)
	}
	o, err = j.run(t, "unkept", nil, 0, true, unkept...)
	said(t, o, err, "what eval measures has changed")
}

// Where all that trains are weights of a module in a folder of its own, best/ is known by these.
func TestBestOfModules(t *testing.T) {
	j := newJob(t, 60)
	sets := append(j.measured(t), "train.max_steps=8", "model.kind=multi_vector", "model.vector_dim=4", "loss={name: mnrl, scale: 1}", "optimizer.lr=0.01", "model.freeze={layers: 1, embeddings: true}")
	if _, err := j.run(t, "run", nil, 4, false, sets...); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(j.dir, "run", "best", "1_Dense", "model.safetensors")
	abandoned, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	abandoned[len(abandoned)-1] ^= 1 // a sign
	if err := os.WriteFile(path, abandoned, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 0, true, append(sets, "optimizer.lr=1e-7")...)
	said(t, o, err, "best and patience begin anew")
}

// A model's folder that is not what it was is named and refused, whichever of its files it is.
func TestModelFolderChanged(t *testing.T) {
	j := newJob(t, 60)
	if _, err := j.run(t, "run", nil, 2, false); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"config.json":           {`"layer_norm_eps": `, `"layer_norm_eps": 1`},
		"tokenizer.json":        {"{", "{ "},
		"1_Pooling/config.json": {"{", "{ "},
		"modules.json":          {"[", "[ "},
		"vocab.txt":             {"", "came since"},
	} {
		path := filepath.Join(j.dir, "model", filepath.FromSlash(name))
		before, err := os.ReadFile(path)
		if err != nil && change[0] != "" {
			t.Fatal(err)
		}
		after := bytes.Replace(before, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(before, after) {
			t.Fatalf("%s has no %s: %s", name, change[0], before)
		}
		if err := os.WriteFile(path, after, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := j.run(t, "run", nil, 0, true); err == nil || !strings.Contains(err.Error(), "changed: "+name+";") {
			t.Errorf("%s changed: %v", name, err)
		}
		if before == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, before, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if o, err := j.run(t, "run", nil, 0, true); err != nil || o.summary.Steps < 3 {
		t.Errorf("with the folder as it was: %v", err)
	}
}

// A log that can't be rewritten is left as it was.
func TestTrimLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	const text = "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(filepath.Dir(path), ".metrics.jsonl.partial")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := trimLog(path, 2, false); err == nil {
		t.Error("the log was rewritten in place")
	}
	if got, err := os.ReadFile(path); string(got) != text {
		t.Errorf("the log is %q now (%v)", got, err)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := trimLog(path, 2, false); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); string(got) != "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n" {
		t.Errorf("the log is %q now (%v)", got, err)
	}
	if err := trimLog(path, 0, false); err != nil { // a run that begins anew measures anew, too
		t.Error(err)
	}
	if got, err := os.ReadFile(path); len(got) > 0 || err != nil {
		t.Errorf("the log of a run that begins is %q (%v)", got, err)
	}
	// An evaluation that is yet to be made goes, where it is there, and its step stays.
	const step, evaluation = "{\"step\":2,\"loss\":1}\n", "{\"step\":2,\"metric\":\"m\"}\n"
	for unmeasured, want := range map[bool]string{false: step + evaluation, true: step} {
		if err := os.WriteFile(path, []byte(step+evaluation), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := trimLog(path, 2, unmeasured); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("unmeasured %t: the log is %q now (%v)", unmeasured, got, err)
		}
	}
}

func TestSkippedRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "skipped.jsonl")
	rows := []*dataset.RowError{{Row: 9, Location: dataset.Location{File: "b.parquet", RowGroup: 0, Row: 7}, Column: "q", Reason: "the text is null"}}
	if err := writeSkipped(path, rows); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); string(got) != `{"file":"b.parquet","row_group":0,"row":7,"column":"q","reason":"the text is null"}`+"\n" {
		t.Errorf("%s (%v)", got, err)
	}
}

func TestWatch(t *testing.T) {
	var notes []string
	j := &journal{obs: Observer{Note: func(m string) { notes = append(notes, m) }}}
	for step := 1; step <= 60; step++ {
		m := Metrics{Step: step, Loss: 2 + 0.1*math.Sin(float64(step)), PeakMemBytes: 1 << 30}
		if step == 40 {
			m.Loss = 5
		}
		if step >= 30 { // an evaluation's, once and for all: it is a peak
			m.PeakMemBytes = 3 << 30
		}
		if step > 50 { // a leak, which evaluations don't hide
			m.PeakMemBytes += int64(step-50) << 29
		}
		j.watch(m, step%5 == 0)
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "the loss of step 40 is 5") || !strings.Contains(notes[1], "at step 59") {
		t.Errorf("notes: %q", notes)
	}
}

// A dataset's losses are compared with its own.
func TestWatchDatasets(t *testing.T) {
	var notes []string
	j := &journal{obs: Observer{Note: func(m string) { notes = append(notes, m) }}}
	for step := 1; step <= 3000; step++ {
		noise := 0.1 * math.Sin(float64(step))
		m := Metrics{Step: step, Losses: map[int]float64{0: 2 + noise}}
		switch {
		case step%60 == 0:
			m.Losses = map[int]float64{1: 9 + noise}
		case step%60 == 1:
			m.Losses[1] = 9 + noise
		}
		switch step {
		case 1860:
			m.Losses[1] = 12
		case 2521:
			m.Losses[0] = 4
		}
		j.watch(m, false)
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "the loss of step 1860, on data.train[1], is 12, after a mean of 9") || !strings.Contains(notes[1], "the loss of step 2521, on data.train[0], is 4, after a mean of 1.998") {
		t.Errorf("notes: %q", notes)
	}
}

// Rows that a batch can't have, and datasets that an epoch can't have, are told of before the run.
func TestNotesOnData(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	same := filepath.Join(j.dir, "same.jsonl")
	if err := os.WriteFile(same, []byte(strings.Repeat(`{"q": "one", "p": "two"}`+"\n", 30)+strings.Repeat(`{"q": "three", "p": "four"}`+"\n", 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	lists := filepath.Join(j.dir, "lists.jsonl")
	if err := os.WriteFile(lists, []byte(`{"q": "one", "p": "two"}`+"\n"+`{"q": "three", "p": "['four', 'five']"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	both := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}, {path: %q, query: q, positive: p, sampling_weight: 0.0001}]", filepath.Join(j.dir, "data.jsonl"), filepath.Join(j.dir, "data.jsonl"))
	one := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}]", same)
	for want, sets := range map[string][]string{
		"data.train[0]: " + lists + `:2, column "p": the text is a list, ['four', 'five']`: {strings.Replace(one, same, lists, 1), "batch.drop_last=false"},

		"data.train[1] is never seen":                    {both, "data.mixing=weighted"},
		"a batch of one row has none":                    {one, "batch.drop_last=false"},
		"27 of 33 can't come into full batches":          {one, "batch.drop_last=true", "batch.global_size=2"},
		`those of data.train[0] (query "", document "")`: {strings.Replace(both, "sampling_weight: 0.0001", `prompts: {query: "q: "}`, 1)},
		"(data.mixing: round_robin)":                     {strings.Replace(both, ", sampling_weight: 0.0001", "", 1), "data.mixing=round_robin", "batch.global_size=7"},
	} {
		o, err := j.run(t, strings.NewReplacer(" ", "", "/", "").Replace(want), nil, 0, false, append(sets, "train.max_steps=1")...)
		if want == "(data.mixing: round_robin)" {
			if err != nil || !strings.Contains(o.summary.DroppedBy, want) {
				t.Errorf("%v, %+v", err, o.summary)
			}
			continue
		}
		said(t, o, err, want)
	}
}

// An evaluation's time is not its step's.
func TestRateWithoutEvaluation(t *testing.T) {
	for _, c := range []struct {
		ev   *Evaluation
		want float64
	}{{nil, 10}, {&Evaluation{took: 8 * time.Second}, 50}} {
		var got Metrics
		j := &journal{enc: json.NewEncoder(io.Discard), obs: Observer{Step: func(m Metrics) { got = m }}, last: time.Now().Add(-10 * time.Second), totals: new(pipeline.Totals)}
		if err := j.step(stages.StepResult{Pairs: 100, Tokens: 200}, c.ev, &stages.Encoder{Model: &transformer.Model{Device: ref.New()}}); err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(got.PairsPerS/c.want-1) <= 0.1) || !(math.Abs(got.TokensPerS/c.want/2-1) <= 0.1) {
			t.Errorf("100 pairs in 10 s, with the evaluation %+v in them: %v pairs/s, %v tokens/s, want %v pairs/s", c.ev, got.PairsPerS, got.TokensPerS, c.want)
		}
	}
}

// A checkpoint is asked for when its time has come, by rank 0's clock, and then not until it has come again; and once, when somebody asks for one.
func TestAskedByTime(t *testing.T) {
	x := &Run{saves: &checkpoints{control: new(Control), last: time.Now().Add(-time.Hour)}}
	x.Recipe.Save.Every.Time = time.Minute
	y := &Run{Recipe: x.Recipe, saves: &checkpoints{control: new(Control), last: x.saves.last}, ranks: &stages.Replicas{Comm: &collective.Comm{World: local.New(2)[1]}}}
	for i, want := range []bool{true, false, true, false} {
		if i == 2 {
			x.saves.control.Save()
		}
		if got := x.asked().Save; got != want {
			t.Errorf("step %d asks for a checkpoint: %t, want %t", i, got, want)
		}
		if y.asked().Save {
			t.Errorf("step %d: rank 1 asks for a checkpoint by its own clock", i)
		}
	}
}

// Steps and seconds of a run that went on belong together, as its rates do.
func TestSummaryOfResumed(t *testing.T) {
	s := Summary{Steps: 14, from: 6, Counts: Counts{Pairs: 140, Tokens: 1400}, before: Counts{Pairs: 60, Tokens: 600}, Seconds: 2}
	if text := s.String(); !strings.HasPrefix(text, "14 steps, the last 8 of them in 2.0 s: loss 0.0000, 40 pairs/s, 400 tokens/s") {
		t.Error(text)
	}
	s.Evaluating = 1.5
	if text := s.String(); !strings.HasPrefix(text, "14 steps, the last 8 of them in 2.0 s, 1.5 s of them evaluations: loss 0.0000, 160 pairs/s, 1600 tokens/s") {
		t.Error(text)
	}
}

// A run that ends before its last step counts the rows that were left out up to there, however far ahead the data was read.
func TestDroppedSoFar(t *testing.T) {
	j := newJob(t, 62)                   // 15 steps of 4 rows
	for _, stop := range []int{12, 16} { // or later, by as many steps as it makes before it has heard of it
		o, err := j.run(t, fmt.Sprint("run", stop), nil, stop, false, "batch.global_size=4", "batch.accumulate=1", "batch.drop_last=true", "batch.no_duplicates=false", "train.epochs=40")
		n := o.summary.Steps
		if err != nil || !o.summary.Stopped || n < stop || o.summary.Model != "" {
			t.Fatalf("%+v, %v", o.summary, err)
		}
		if want := int64((n - 1) / 15 * (62 - 15*4)); o.summary.Dropped != want {
			t.Errorf("after %d steps of 4 of 62 rows, 15 an epoch, %d are said to be left out, want %d", n, o.summary.Dropped, want)
		}
	}
	if o, err := j.run(t, "whole", nil, 0, false, "batch.global_size=4", "batch.accumulate=1", "batch.drop_last=true", "batch.no_duplicates=false", "train.epochs=2"); err != nil || o.summary.Dropped != 2*2 {
		t.Errorf("two epochs leave out %d rows, want 2 each: %v", o.summary.Dropped, err)
	}
}

// What is measured before the first step is the model that the recipe names, on every mesh; the steps have the bits that they have without it,
// and a run that goes on keeps its line.
func TestEvalAtStart(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	sets := append(j.measured(t), "save.best=false", "train.max_steps=4", "eval.every=0")
	without, err := j.run(t, "without", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	e, err := embedder.Load(filepath.Join(j.dir, "model"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var a, b []string
	var scores, sims []float64
	for i := range 12 { // as j.sts has them
		a, b, scores = append(a, j.words[i]+" "+j.words[2*i]), append(b, j.words[3*i+1]), append(scores, float64(i%5))
	}
	av, err := e.Embed(t.Context(), a)
	bv, err2 := e.Embed(t.Context(), b)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	for i := range av {
		var dot, aa, bb float64
		for k, v := range av[i] {
			w := bv[i][k]
			dot, aa, bb = dot+float64(v*w), aa+float64(v*v), bb+float64(w*w)
		}
		sims = append(sims, dot/math.Sqrt(aa*bb))
	}
	want, err := evaluate.EvaluateSTS(sims, scores)
	if err != nil {
		t.Fatal(err)
	}
	for name, mesh := range map[string][]string{"alone": nil, "replicas": {"mesh.replicate=2"}, "streamed": {"mesh.shard=2", "mesh.parameters=streamed"}} {
		t.Run(name, func(t *testing.T) {
			o, err := j.run(t, name, nil, 3, false, append(append(sets, "eval.at_start=true"), mesh...)...)
			if err != nil {
				t.Fatal(err)
			}
			if f := o.summary.First; f == nil || f.Step != 0 || !(math.Abs(f.Value-want.Spearman) <= 1e-9) {
				t.Fatalf("measured %+v before the first step, want %v", f, want.Spearman)
			} else if e := o.summary.Evaluating; f.took <= 0 || e < f.took.Seconds() || e >= o.summary.Seconds {
				t.Errorf("%v s of %v went into evaluations, of which the first took %v", e, o.summary.Seconds, f.took)
			}
			for step, loss := range o.losses {
				if mesh == nil && loss != without.losses[step] {
					t.Errorf("step %d has loss %v, without the first evaluation %v", step, loss, without.losses[step])
				}
			}
			again, err := j.run(t, name, nil, 0, true, append(append(sets, "eval.at_start=true"), mesh...)...)
			if err != nil || again.summary.First != nil {
				t.Fatalf("%v: a run that went on measured %+v before the first step", err, again.summary)
			}
			log, err := os.ReadFile(filepath.Join(j.dir, name, "metrics.jsonl"))
			if n := strings.Count(string(log), `{"step":0,"metric":"spearman"`); err != nil || n != 1 || !strings.HasPrefix(string(log), `{"step":0,`) {
				t.Errorf("%v: %d lines of what was before the first step in\n%s", err, n, log)
			}
		})
	}
	const noBetter = "the model is no better than before its training: spearman"
	still := append(sets[:len(sets):len(sets)], "eval.at_start=true", "optimizer.lr=1e-30")
	o, err := j.run(t, "none better", nil, 0, false, still...)
	said(t, o, err, noBetter)
	if o, err = j.run(t, "resumed", nil, 2, false, append(still, "train.max_steps=8")...); err != nil || !o.summary.Stopped {
		t.Fatalf("%+v, %v", o.summary, err)
	}
	o, err = j.run(t, "resumed", nil, 0, true, append(still, "train.max_steps=8")...)
	said(t, o, err, noBetter)
	o, err = j.run(t, "best", nil, 0, false, append(still, "eval.every=1", "save.best=true")...) // the first of four, all as good
	said(t, o, err, "the model is that of step 1")
	said(t, o, err, noBetter)
	// After another evaluation, here of the opposite, there is nothing to compare with.
	more := append(still, "train.max_steps=8")
	if o, err = j.run(t, "opposite", nil, 2, false, more...); err != nil || !o.summary.Stopped {
		t.Fatalf("%+v, %v", o.summary, err)
	}
	file := filepath.Join(j.dir, "sts.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.ReplaceAll(raw, []byte(`"s":`), []byte(`"s":-`))
	if want.Spearman <= 0 {
		t.Fatalf("%v: the opposite is not worse", want.Spearman)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if o, err = j.run(t, "opposite", nil, 0, true, more...); err != nil || o.summary.Eval == nil || strings.Contains(fmt.Sprint(o.notes), noBetter) {
		t.Errorf("after another evaluation: %+v, %q, %v", o.summary, o.notes, err)
	}
}

// A stopped run with save.best keeps the best evaluation's model: that one, not the last, is compared with the model before training.
func TestStoppedIsItsBest(t *testing.T) {
	j := newJob(t, 60)
	o, err := j.run(t, "run", nil, 4, false, append(j.measured(t), "eval.at_start=true", "train.seed=1", "train.max_steps=10")...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecord(filepath.Join(j.dir, "run"))
	if s := o.summary; err != nil || !s.Stopped || r.Best == nil || *r.Best <= s.First.Value || s.Eval.Value > s.First.Value {
		t.Fatalf("%v: nothing was tested: %+v, %+v", err, s, r)
	}
	if want := fmt.Sprintf("spearman %.4f at step %d, whose model is kept in best/; %.4f at last", *r.Best, r.BestStep, o.summary.Eval.Value); !strings.Contains(o.summary.String(), want) {
		t.Errorf("%s\nwant %s", o.summary, want)
	}
	if notes := fmt.Sprint(o.notes); strings.Contains(notes, "no better than before its training") {
		t.Errorf("best %v at step %d, before the first step %v: %s", *r.Best, r.BestStep, o.summary.First.Value, notes)
	}
}

// A model whose embeddings have become all alike has no correlation: the run says so, goes on, and ends with its model.
func TestNoFigure(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "same.jsonl")
	if err := os.WriteFile(file, []byte(`{"a":"x","b":"y","s":1}`+"\n"+`{"a":"x","b":"y","s":2}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mesh := range []string{"mesh.replicate=1", "mesh.replicate=2"} {
		o, err := j.run(t, mesh, nil, 0, false, fmt.Sprintf("eval={sts: {path: %q, a: a, b: b, score: s}, every: 1, at_start: true, early_stopping: {patience: 2}}", file), "save.best=true", mesh)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(fmt.Sprint(o.notes), "eval.sts has no figure this time: "+file+": correlation: all 2 values of the first list are "); n != 1+len(o.losses) {
			t.Errorf("%s: %d notes in %d steps: %s", mesh, n, len(o.losses), o.notes)
		}
		if o.summary.Eval != nil || o.summary.First != nil || !hfmodel.IsModel(filepath.Join(j.dir, mesh, "model")) {
			t.Errorf("%s: %+v", mesh, o.summary)
		}
	}
}

// sts writes scored pairs and is the setting that evaluates on them.
func (j *job) sts(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("eval.sts={path: %q, a: a, b: b, score: s}", j.stsFile(t))
}

func (j *job) stsFile(t *testing.T) string {
	t.Helper()
	var pairs bytes.Buffer
	enc := json.NewEncoder(&pairs)
	for i := range 12 {
		enc.Encode(map[string]any{"a": j.words[i] + " " + j.words[2*i], "b": j.words[3*i+1], "s": i % 5})
	}
	sts := filepath.Join(j.dir, "sts.jsonl")
	if err := os.WriteFile(sts, pairs.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return sts
}

// The best evaluation's model is kept of a run that trains a part of it, too.
func TestBestTuned(t *testing.T) {
	harness.Thorough(t)
	for tuning, file := range map[string]string{
		"model.lora={rank: 2, targets: query, modules_to_save: [LayerNorm]}": "adapter_model.safetensors",
		"model.freeze={layers: 1, embeddings: true}":                         "model.safetensors",
	} {
		j := newJob(t, 60)
		run, err := j.run(t, "run", nil, 0, false, tuning, j.sts(t), "eval.every=1", "save.best=true",
			"train.epochs=9", "train.max_steps=12", "optimizer.lr=2e-2", "train.seed=7") // whose best step is neither the first nor the last
		if err != nil {
			t.Fatal(err)
		}
		best, bestStep := math.Inf(-1), 0
		for _, m := range j.lines(t, "run") {
			if v, ok := m["value"].(float64); ok && v > best {
				best, bestStep = v, int(m["step"].(float64))
			}
		}
		if bestStep >= run.summary.Steps || !strings.Contains(strings.Join(run.notes, "\n"), fmt.Sprintf("the model is that of step %d", bestStep)) {
			t.Errorf("%s: best at step %d of %d, notes: %v", tuning, bestStep, run.summary.Steps, run.notes)
		}
		kept, err := os.ReadFile(filepath.Join(j.dir, "run", "best", file))
		if err != nil {
			t.Fatal(err)
		}
		model, err := os.ReadFile(filepath.Join(j.dir, "run", "model", file))
		if err != nil || !bytes.Equal(kept, model) {
			t.Errorf("%s: the model is not the best one (%v)", tuning, err)
		}
	}
}

// Pairs that no similarities correlate with are known before the first step, not when the model is trained.
func TestScoresThatSayNothing(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "same.jsonl")
	pair := `{"a":"x","b":"y","s":1}` + "\n"
	for text, want := range map[string]string{
		strings.Repeat(pair, 3): "all 3 scores are 1: nothing correlates with that",
		pair:                    "two pairs at least, and there are 1",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), fmt.Sprintf("eval.sts={path: %q, a: a, b: b, score: s}", file)})
		if err != nil {
			t.Fatal(err)
		}
		x, err := Open(t.Context(), r, Observer{})
		if err == nil {
			x.Close()
		}
		for _, want := range []string{fmt.Sprintf("eval.sts: %s, column %q: ", file, "s"), want, "another file (eval.sts.path)"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// A reranker or an m3 with LoRA, whose factors are merged when it is saved, ends as its best evaluation's too.
func TestBestMerged(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	write := func(name string, rows []map[string]any) string {
		var data bytes.Buffer
		enc := json.NewEncoder(&data)
		for _, r := range rows {
			enc.Encode(r)
		}
		path := filepath.Join(j.dir, name)
		if err := os.WriteFile(path, data.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var queries, docs, qrels []map[string]any
	for i := range 20 {
		id := fmt.Sprint(i)
		queries = append(queries, map[string]any{"id": id, "text": j.words[0] + " " + j.words[i+1]})
		docs = append(docs, map[string]any{"id": id, "text": j.words[0] + " " + j.words[60-i]})
		qrels = append(qrels, map[string]any{"query_id": id, "doc_id": id, "relevance": 1})
	}
	data := fmt.Sprintf("{queries: %q, corpus: %q, qrels: %q}", write("q.jsonl", queries), write("c.jsonl", docs), write("r.jsonl", qrels))
	for kind, sets := range map[string][]string{
		"reranker": {fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")), "eval.rerank=" + data},
		"m3":       {"eval.retrieval=" + data, "optimizer.lr=0.3"},
	} {
		for seed := 0; ; seed++ { // which evaluation is the best depends on the processor's rounding too
			run, err := j.run(t, kind, nil, 0, false, append([]string{"model.kind=" + kind, "model.lora={rank: 2, targets: all-linear}", "eval.every=1", "save.best=true", "train.epochs=9",
				"train.max_steps=12", "optimizer.lr=2e-2", fmt.Sprint("train.seed=", seed)}, sets...)...)
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(run.notes, "\n")
			if strings.Contains(notes, "the best evaluation's") {
				break
			}
			if seed == 4 {
				t.Fatalf("%s: the last evaluation is the best: nothing was tested; notes: %s", kind, notes)
			}
			if err := os.RemoveAll(filepath.Join(j.dir, kind)); err != nil {
				t.Fatal(err)
			}
		}
		kept, err := os.ReadFile(filepath.Join(j.dir, kind, "best", "model.safetensors"))
		if err != nil || !bytes.Equal(kept, j.model(t, kind)) {
			t.Errorf("%s: the model is not the best one (%v)", kind, err)
		}
	}
}
