package recipe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "contraflow/gpustage/cpu"
	"contraflow/io/checkpoint"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/newmodel"
	"contraflow/testdata/harness"
)

// job is a small training job whose rows are counted.
type job struct {
	dir, text string
	words     []string
	rows      int
	opts      []TrainOption // more of them
	stopOn    string        // a note on which the run is asked to end
}

// newJob makes rows of random words, many of which share a text, and a model for them.
func newJob(t testing.TB, rows int) *job {
	t.Helper()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(11, 12))
	words := make([]string, 200)
	for i := range words {
		for range 2 + rng.IntN(6) {
			words[i] += string(rune('a' + rng.IntN(26)))
		}
	}
	text := func(n int) string { return sentence(rng, words, n) }
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	for range rows {
		q := text(1 + rng.IntN(12))
		if rng.IntN(4) == 0 {
			q = words[rng.IntN(5)]
		}
		enc.Encode(map[string]string{"q": q, "p": text(1 + rng.IntN(20))})
	}
	if err := os.WriteFile(filepath.Join(dir, "data.jsonl"), data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(dir, "model")
	err := newmodel.Create(t.Context(), model, newmodel.Spec{Hidden: 32, Layers: 2, Heads: 4, MaxLength: 32, Vocab: 300, Lowercase: true}, func(yield func(string, error) bool) {
		for _, w := range words {
			if !yield(w, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return &job{dir: dir, words: words, rows: rows, text: fmt.Sprintf(`
model: {path: %q, max_length: 32, dropout: 0.1}
data: {train: [{path: %q, query: q, positive: p}]}
batch: {global_size: 13, sub_batch: {rows: 5}, accumulate: 2, drop_last: false}
optimizer: {lr: 1e-3}
train: {epochs: 3, device: cpu}
`, model, filepath.Join(dir, "data.jsonl"))}
}

// sentence is n of the words, at random.
func sentence(rng *rand.Rand, words []string, n int) string {
	var s []string
	for range n {
		s = append(s, words[rng.IntN(len(words))])
	}
	return strings.Join(s, " ")
}

// outcome is what a run came to.
type outcome struct {
	summary *Summary
	losses  map[int]float64         // by step
	rows    map[int]map[int][]int64 // by step and rank
	epochs  map[int]int             // by step
	metrics []Metrics
	notes   []string
	said    map[int]error // by rank: what it has ended with
}

// run trains until the step after which stop says so, or to the end.
func (j *job) run(t testing.TB, out string, fs checkpoint.FS, stopAt int, resume bool, sets ...string) (outcome, error) {
	t.Helper()
	r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, out)))
	if err != nil {
		t.Fatal(err)
	}
	o := outcome{losses: map[int]float64{}, rows: map[int]map[int][]int64{}, epochs: map[int]int{}, said: map[int]error{}}
	var mu sync.Mutex
	control := new(Control)
	var passed, of int64 // of an evaluation
	obs := Observer{
		Measured: func(done, total int64) {
			if done > total || done <= passed && passed < of {
				t.Errorf("%d of %d texts are through after %d of %d", done, total, passed, of)
			}
			passed, of = done, total
		},
		Note: func(m string) {
			o.notes = append(o.notes, m)
			if j.stopOn != "" && strings.Contains(m, j.stopOn) && !control.Stop() {
				t.Errorf("a run that is asked to end on %q is not at its steps", m)
			}
		},
		Step: func(m Metrics) {
			o.losses[m.Step-1] = m.Loss
			o.metrics = append(o.metrics, m)
			if m.Step == stopAt {
				control.Stop()
			}
		},
	}
	err = OnRanks(context.Background(), r, Place{}, obs, func(x *Run) error {
		x.fs = fs
		x.ledger = func(t *pipeline.Task, b *stages.Batch) {
			mu.Lock()
			defer mu.Unlock()
			step := t.Index.Step
			if o.rows[step] == nil {
				o.rows[step] = map[int][]int64{}
			}
			o.rows[step][x.ranks.Rank()] = append(o.rows[step][x.ranks.Rank()], b.Rows...)
			o.epochs[step] = b.Epoch
		}
		opts := append([]TrainOption{Controlled(control)}, j.opts...)
		if resume {
			opts = append(opts, Resuming())
		}
		s, err := x.Train(context.Background(), opts...)
		mu.Lock()
		defer mu.Unlock()
		if o.said[x.ranks.Rank()] = err; x.Main() {
			o.summary = s
		}
		return err
	})
	if err == nil && passed != of {
		t.Errorf("the last evaluation ends with %d of %d texts", passed, of)
	}
	return o, err
}

func (j *job) model(t *testing.T, out string) []byte { return j.saved(t, out, "model.safetensors") }

// saved is the bits of the files of a run's model that have such a name.
func (j *job) saved(t *testing.T, out, pattern string) (bits []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(j.dir, out, "model", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bits = append(bits, b...)
	}
	return bits
}

// A run that is stopped and goes on, on the same mesh or another, trains each row of each epoch once, in the same batches; on the same
// mesh it ends with the same bits.
func TestResumeOnAnyMesh(t *testing.T) {
	t.Parallel()
	j := newJob(t, 100)
	mesh := func(replicate, shard int) []string {
		return []string{fmt.Sprint("mesh.replicate=", replicate), fmt.Sprint("mesh.shard=", shard)}
	}
	whole := map[string]outcome{}
	reference := func(m []string) outcome {
		key := fmt.Sprint(m)
		if _, ok := whole[key]; !ok {
			o, err := j.run(t, "whole "+strings.Join(m, " "), nil, 0, false, m...)
			if err != nil {
				t.Fatal(err)
			}
			whole[key] = o
		}
		return whole[key]
	}
	one := reference(mesh(1, 1))
	steps := len(one.losses)
	if steps < 12 {
		t.Fatalf("only %d steps", steps)
	}
	streamed := append(mesh(2, 2), "mesh.parameters=streamed", "mesh.gradients=early")
	for i, c := range []struct{ before, after []string }{
		{streamed, streamed}, {streamed, mesh(3, 1)}, {mesh(1, 1), streamed},
		{mesh(1, 1), mesh(1, 1)}, {mesh(2, 1), mesh(2, 1)}, {mesh(2, 2), mesh(2, 2)},
		{mesh(4, 1), mesh(2, 1)}, {mesh(4, 1), mesh(1, 1)}, {mesh(4, 1), mesh(3, 1)}, {mesh(2, 2), mesh(1, 1)}, {mesh(2, 1), mesh(1, 3)}, {mesh(1, 1), mesh(2, 2)},
	} {
		if testing.Short() && i%3 != 1 { // ranks meet in these as in the others
			continue
		}
		name := fmt.Sprintf("%v, then %v", c.before, c.after)
		out := fmt.Sprint("run", i)
		first, err := j.run(t, out, nil, 5, false, c.before...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		at := first.summary.Steps
		if !first.summary.Stopped || at < 5 || at >= steps {
			t.Fatalf("%s: stopped after step %d", name, at)
		}
		second, err := j.run(t, out, nil, 0, true, c.after...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if told := strings.Contains(fmt.Sprint(second.notes), "changed since then: the mesh was "); told != !slices.Equal(c.before[:2], c.after[:2]) {
			t.Errorf("%s: %q", name, second.notes)
		}
		seen := map[int]map[int64]int{}
		for step := range steps {
			o := first
			if step >= at {
				o = second
			}
			if a, b := one.losses[step], o.losses[step]; !(math.Abs(a-b) <= 1e-4*a) {
				t.Errorf("%s: step %d has loss %v, %v on one rank", name, step, b, a)
			}
			var got, want []int64
			for _, rows := range o.rows[step] {
				got = append(got, rows...)
			}
			want = append(want, one.rows[step][0]...)
			e := o.epochs[step]
			if seen[e] == nil {
				seen[e] = map[int64]int{}
			}
			for _, r := range got {
				seen[e][r]++
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: step %d trains rows %v, %v on one rank", name, step, got, want)
			}
		}
		for e := range 3 {
			for r := range int64(j.rows) {
				if seen[e][r] != 1 {
					t.Errorf("%s: epoch %d trains row %d %d times", name, e, r, seen[e][r])
				}
			}
		}
		if slices.Equal(c.before, c.after) {
			reference(c.before)
			if !bytes.Equal(j.model(t, out), j.model(t, "whole "+strings.Join(c.before, " "))) {
				t.Errorf("%s: the weights differ from those of a run that was not stopped", name)
			}
		}
	}
}

// failing is the disk until an operation on a path that has a word in it.
type failing struct {
	checkpoint.Disk
	word string
	err  error
}

func (f failing) Create(path string) (checkpoint.File, error) {
	if strings.Contains(path, f.word) {
		return nil, f.err
	}
	return f.Disk.Create(path)
}

// A disk that is full when a rank saves ends the run on all of them; the checkpoint before is what it goes on from.
func TestFullDisk(t *testing.T) {
	j := newJob(t, 60)
	sets := []string{"mesh.replicate=2", "save.every=2"}
	for i, file := range []string{"rank-00001", "checkpoint.json"} {
		_, err := j.run(t, "run", failing{word: ".step-00000004.partial/" + file, err: syscall.ENOSPC}, 0, i > 0, sets...)
		if err == nil || !strings.Contains(err.Error(), "the disk is full") || !strings.Contains(err.Error(), "the one of step 2 is unchanged") {
			t.Fatalf("a full disk: %v", err)
		}
		if left, err := filepath.Glob(filepath.Join(j.dir, "run", checkpointsDir, ".step-*")); err != nil || len(left) > 0 {
			t.Errorf("what was written until %s is left on the disk: %v, %v", file, left, err)
		}
	}
	o, err := j.run(t, "run", nil, 0, true, sets...)
	if err != nil || !strings.Contains(fmt.Sprint(o.notes), "going on after step 2") {
		t.Fatalf("afterwards: %v, %v", o.notes, err)
	}
	if _, err := j.run(t, "whole", nil, 0, false, sets...); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run that was not stopped")
	}
	o, err = j.run(t, "run", nil, 0, true, sets...)
	if err != nil || !o.summary.Over {
		t.Errorf("resumed when it was over: %+v, %v", o.summary, err)
	}
}

func TestCompareRecipes(t *testing.T) {
	r, err := Parse("r", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	was, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ set, changed, refused string }{
		{"optimizer.lr=3e-5", "optimizer.lr was 2e-05 and is 3e-05", ""},
		{"save.every=10m", "save.every was 500 and is 10m", ""},
		{"train.epochs=2", "train.epochs was 1 and is 2", ""},
		{"data.train=[{path: other.parquet, query: q, positive: p}]", "data.train[0].path[0] was d.parquet and is other.parquet", ""},
		{"model.max_length=17", "", "model.max_length.document was not set and is 17; model.max_length.query was not set and is 17"},
		{"data.train=[{path: d.parquet, query: other, positive: p}]", "", "data.train[0].query was q and is other"},
		{"batch.no_duplicates=false", "", "batch.no_duplicates was true and is false"},
		{"data.on_error=skip", "data.on_error was stop and is skip", ""},
		{"train.seed=1", "", "train.seed was 42 and is 1"},
		{"optimizer.schedule={name: linear}", "", ""},
		{"optimizer.schedule=cosine", "", "optimizer.schedule.name was linear and is cosine; put"},
		{"optimizer.schedule={name: linear, min_ratio: 0.1}", "", "changed since the checkpoint: optimizer.schedule.min_ratio was not set and is 0.1; put"},
		{"save.every=epoch", "save.every was 500 and is epoch", ""},
		{"eval.every=0.1", "eval.every was 500 and is 0.1", ""},
	} {
		now, err := Parse("r", []byte(minimal), []string{c.set})
		if err != nil {
			t.Fatal(err)
		}
		changed, err := compareRecipes(string(was), now)
		if got := strings.Join(changed, "; "); got != c.changed {
			t.Errorf("%s: changed %q, want %q", c.set, got, c.changed)
		}
		if (err != nil) != (c.refused != "") || err != nil && (!errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: refused %v, want %q", c.set, err, c.refused)
		}
	}
}

// lines are the lines of metrics.jsonl.
func (j *job) lines(t *testing.T, out string) (all []map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(j.dir, out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range bytes.Split(bytes.TrimSpace(raw), []byte("\n")) {
		var m map[string]any
		if err := json.Unmarshal(l, &m); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		all = append(all, m)
	}
	return all
}

// A row whose weight makes the gradient overflow ends the run, or costs a step, or takes the run back, as train.on_nan says.
func TestNotFinite(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for i := range lines {
		w := "1"
		if i == 7 {
			w = "3e38"
		}
		lines[i] = strings.TrimSuffix(lines[i], "}") + `,"w":` + w + "}"
	}
	if err := os.WriteFile(filepath.Join(j.dir, "data.jsonl"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"data.train.0.weight=w", "save.every=1", "loss.scale=100", "mesh.replicate=2"}
	_, err = j.run(t, "stop", nil, 0, false, sets...)
	if err == nil || strings.Count(err.Error(), "not finite") != 1 || strings.Count(err.Error(), "a lower optimizer.lr (it is 0.001) or optimizer.max_grad_norm (1; 0 is none) may help, and train.on_nan: skip (the step) or rollback") != 1 {
		t.Errorf("stop: %v", err)
	}
	if r, wrong := ReadRecord(filepath.Join(j.dir, "stop")); wrong != nil || r.Error == "" || r.Done || r.Stopped || r.Made != len(j.lines(t, "stop")) {
		t.Errorf("the record says %+v (%v), the error is %v", r, wrong, err)
	}
	skip, err := j.run(t, "skip", nil, 0, false, append(sets, "train.on_nan=skip")...)
	if err != nil {
		t.Fatal(err)
	}
	if skip.summary.NotFinite != 3 {
		t.Errorf("%d steps were skipped, want one in each of 3 epochs", skip.summary.NotFinite)
	}
	if _, err := j.run(t, "skip in two", nil, skip.summary.Steps/2, false, append(sets, "train.on_nan=skip")...); err != nil {
		t.Fatal(err)
	}
	two, err := j.run(t, "skip in two", nil, 0, true, append(sets, "train.on_nan=skip")...)
	if err != nil || two.summary.Counts != skip.summary.Counts {
		t.Errorf("stopped and gone on, it counts %+v (%v), in one go %+v", two.summary, err, skip.summary)
	}
	if !bytes.Equal(j.model(t, "skip in two"), j.model(t, "skip")) {
		t.Error("stopped and gone on, the weights differ from those in one go")
	}
	skipped := 0
	for _, m := range j.lines(t, "skip") {
		if m["skipped"] == true {
			skipped++
			if m["grad_norm"] != nil {
				t.Errorf("a skipped step has a gradient's norm of %v", m["grad_norm"])
			}
		}
	}
	if skipped != 3 {
		t.Errorf("metrics.jsonl has %d skipped steps", skipped)
	}
	back, err := j.run(t, "back", nil, 0, false, append(sets, "train.on_nan=rollback")...)
	if err != nil {
		t.Fatal(err)
	}
	// The step before the one that is not finite is the last checkpoint, so rolling back comes to what skipping does.
	if !bytes.Equal(j.model(t, "back"), j.model(t, "skip")) {
		t.Error("rollback: the weights differ from those of a run that skips the steps")
	}
	notes := strings.Join(back.notes, "\n")
	if back.summary.Steps != skip.summary.Steps || !strings.Contains(notes, "going on with the state of step") {
		t.Errorf("rollback: %+v\n%s", back.summary, notes)
	}
	j.stopOn = "going on with the state of step"
	if o, err := j.run(t, "asked", nil, 0, false, append(sets, "train.on_nan=rollback", "mesh.replicate=1")...); err != nil || !o.summary.Stopped || o.summary.Steps >= back.summary.Steps {
		t.Errorf("asked to end while it rolls back: %+v, %v", o.summary, err)
	}
	j.stopOn = ""
	if _, err := j.run(t, "nowhere", nil, 0, false, append(sets, "train.on_nan=rollback", "save.every=0")...); err == nil || !strings.Contains(err.Error(), "nothing to roll back to") || !strings.Contains(err.Error(), "save.every makes checkpoints") {
		t.Errorf("no checkpoint to roll back to: %v", err)
	}

	// A step that has changed nothing is none to AdamW, as it is none to PyTorch's: what is left are the bits of a run without its data, and
	// without that of steps that were undone.
	const size = 10
	sets = append(sets, "data.shuffle=false", "model.dropout=0", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "batch.accumulate=1", "batch.no_duplicates=false",
		fmt.Sprint("batch.global_size=", size), "train.epochs=1")
	for i, l := range lines {
		lines[i] = strings.Replace(l, "3e38", "1", 1)
	}
	batches := func(out string, bad int, sets []string, which ...int) []byte {
		t.Helper()
		var some []string
		for _, b := range which {
			some = append(some, lines[b*size:(b+1)*size]...)
			if b == bad {
				some[len(some)-size] = strings.Replace(some[len(some)-size], `"w":1`, `"w":3e38`, 1)
			}
		}
		file := filepath.Join(j.dir, out+".jsonl")
		if err := os.WriteFile(file, []byte(strings.Join(some, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := j.run(t, out, nil, 0, false, append(sets, "data.train.0.path="+file)...); err != nil {
			t.Fatal(err)
		}
		return j.model(t, out)
	}
	if !bytes.Equal(batches("with", 0, append(sets, "train.on_nan=skip"), 0, 1, 2, 3, 4), batches("without", -1, sets, 1, 2, 3, 4)) {
		t.Error("skip: the weights differ from those of a run without the step")
	}
	if !bytes.Equal(batches("undone", 3, append(sets, "train.on_nan=rollback", "save.every=2"), 0, 1, 2, 3, 4, 5), batches("left", -1, sets, 0, 1, 4, 5)) {
		t.Error("rollback: the weights differ from those of a run without the steps that were undone")
	}
	if !bytes.Equal(batches("at the end", 2, append(sets, "train.on_nan=rollback", "save.every=0"), 0, 1, 2), batches("before it", -1, sets, 0, 1)) {
		t.Error("rollback: the weights differ from those of a run without its last step, which needs no checkpoint")
	}
}

// A run whose weights are of no use at its end says so.
func TestBrokenAtEnd(t *testing.T) {
	j := newJob(t, 60)
	for lr, broken := range map[string]bool{"1e30": true, "1e-3": false} {
		o, err := j.run(t, lr, nil, 0, false, "train.max_steps=6", "train.on_nan=skip", "optimizer.lr="+lr)
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(o.notes, "\n"), "the last step's loss is NaN"); said != broken {
			t.Errorf("a learning rate of %s: loss %v, notes %q", lr, o.summary.Loss, o.notes)
		}
	}
}

// Errors of the data's order and of weights name the recipe's keys.
func TestKeysOfData(t *testing.T) {
	j := newJob(t, 40)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(j.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	two := func(one, other string) string {
		return fmt.Sprintf("data.train=[{path: %q, query: q, positive: p%s}, {path: %[1]q, query: q, positive: p%[3]s}]", filepath.Join(j.dir, "data.jsonl"), one, other)
	}
	_, err = Parse("job", []byte(j.text), []string{two(", sampling_weight: 1e308", ", sampling_weight: 1e308"), "data.mixing=weighted", "save.dir=out"})
	if want := "data.train[1].sampling_weight: is 1e+308, and with those before it infinite"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	r, err := Parse("job", []byte(j.text), []string{"save.dir=out"})
	if err != nil {
		t.Fatal(err)
	}
	r.Optimizer.Eps, r.Optimizer.WeightDecay = math.Inf(1), math.Inf(1) // as a program may
	if _, err = r.Resolve(); err == nil || !strings.Contains(err.Error(), "optimizer.eps: is +Inf, want") || !strings.Contains(err.Error(), "optimizer.weight_decay: is +Inf, want") {
		t.Error(err)
	}
	weightless := file("weightless.jsonl", strings.ReplaceAll(string(raw), "}", `,"w":0}`))
	for want, sets := range map[string][]string{
		"data.mixing.temperature: is 0.001, which is too small: data.train[0] has 40 rows": {two("", ""), "data.mixing={temperature: 0.001}"},
		"data.train[0]: none of the 2 rows can be used":                                    {"data.train.0.path=" + file("bad.jsonl", `{"q": "a"}`+"\n"+`{"p": "b"}`+"\n"), "data.on_error=skip"},
		"have weight 0 (data.train[].weight, ":                                             {"data.train.0.path=" + weightless, "data.train.0.weight=w"},
	} {
		if _, err := j.run(t, "run", nil, 0, false, sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", sets, err, want)
		}
	}
}

// What a run can't do is known before it has touched the folder of the run before.
func TestKnownBefore(t *testing.T) {
	j := newJob(t, 40)
	if _, err := j.run(t, "run", nil, 0, false, "train.max_steps=1"); err != nil {
		t.Fatal(err)
	}
	for want, sets := range map[string][]string{
		"optimizer.groups[0]: of what trains":         {"optimizer.groups=[{params: [lora_B], lr: 1}]", "data.train.0.path=none.jsonl"}, // before data is looked for
		"save.best: not yet with streamed parameters": {j.sts(t), "save.best=true", "mesh.shard=2", "mesh.parameters=streamed"},
	} {
		if _, err := j.run(t, "run", nil, 0, false, sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", sets, err, want)
		}
		if left, err := filepath.Glob(filepath.Join(j.dir, "run", "*"+previous)); err != nil || len(left) > 0 {
			t.Errorf("%v: the run before was set aside: %v %v", sets, left, err)
		}
	}
}

// A checkpoint of a LoRA run holds the factors alone, and goes on with them, whatever ranks hold of the base model; on another base
// model it is refused.
func TestResumeLoRA(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	sets := []string{"model.lora={rank: 2, alpha: 4, targets: all-linear}", "mesh.replicate=2", "mesh.shard=2"}
	if _, err := j.run(t, "whole", nil, 0, false, sets...); err != nil {
		t.Fatal(err)
	}
	streamed := append(slices.Clone(sets), "mesh.parameters=streamed", "mesh.gradients=late")
	if _, err := j.run(t, "run", nil, 3, false, streamed...); err != nil {
		t.Fatal(err)
	}
	other := newJob(t, 60)
	if err := newmodel.Create(t.Context(), filepath.Join(other.dir, "other"), newmodel.Spec{Hidden: 32, Layers: 2, Heads: 4, MaxLength: 32, Vocab: 300, Lowercase: true, Seed: 5}, func(yield func(string, error) bool) {
		for _, w := range j.words {
			if !yield(w, nil) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, sets := range [][]string{sets, streamed} {
		_, err := j.run(t, "run", nil, 0, true, append(slices.Clone(sets), fmt.Sprintf("model.path=%q", filepath.Join(other.dir, "other")))...)
		if err == nil || !strings.Contains(err.Error(), "changed: the frozen parameters") {
			t.Errorf("another base model: %v", err)
		}
	}
	if _, err := j.run(t, "run", nil, 5, true, streamed...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, true, sets...); err != nil {
		t.Fatal(err)
	}
	adapter := func(out string) []byte {
		b, err := os.ReadFile(filepath.Join(j.dir, out, "model", "adapter_model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !bytes.Equal(adapter("run"), adapter("whole")) {
		t.Error("the adapter differs from that of a run that was not stopped")
	}
}

// A reranker goes on as if it had not been stopped, its new head's bits among them, as a whole or with LoRA.
func TestResumeReranker(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	for name, more := range map[string]string{"all": "train.seed=42", "lora": "model.lora={rank: 2, alpha: 4, targets: all-linear}"} {
		sets := []string{"model.kind=reranker", "mesh.replicate=2", "data.train=" + fmt.Sprintf("[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")), more}
		if _, err := j.run(t, name+" whole", nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		first, err := j.run(t, name, nil, 3, false, sets...)
		if err != nil || !first.summary.Stopped {
			t.Fatalf("%s: %+v, %v", name, first.summary, err)
		}
		if _, err := j.run(t, name, nil, 0, true, sets...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(j.model(t, name), j.model(t, name+" whole")) {
			t.Errorf("%s: the weights differ from those of a run that was not stopped", name)
		}
	}
}

// A run that has ended may be given more steps: it goes on as if it had been meant to make them from the beginning.
func TestResumeWithMoreSteps(t *testing.T) {
	j := newJob(t, 120)
	sets := []string{"optimizer.schedule=constant", "optimizer.warmup_ratio=0", "save.every=2", "log.tensorboard=true"}
	if _, err := j.run(t, "whole", nil, 0, false, append(sets, "train.max_steps=9")...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, false, append(sets, "train.max_steps=5")...); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 0, true, append(sets, "train.max_steps=9")...)
	if err != nil || o.summary.Over || o.summary.Steps != 9 || !strings.Contains(fmt.Sprint(o.notes), "going on after step 5") {
		t.Fatalf("%+v, %v, %v", o.summary, o.notes, err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run of nine steps")
	}
	if n := len(j.lines(t, "run")); n != 9 {
		t.Errorf("metrics.jsonl has %d lines, want 9", n)
	}
	events, err := filepath.Glob(filepath.Join(j.dir, "run", "tensorboard", "*"))
	if err != nil || len(events) != 2 {
		t.Fatalf("event files %q, %v", events, err)
	}
	discards, anew := 0, 0
	for _, file := range events {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		discards += bytes.Count(raw, []byte{16, 6, 58, 2, 8, 1}) // Event.step = 6 with tensorboard.Writer.Discard's SessionLog
		anew += bytes.Count(raw, []byte{16, 0, 58, 2, 8, 1})     // of all steps, by the run that did not go on
	}
	if discards != 1 || anew != 1 {
		t.Errorf("the event files take back what is behind step 5 %d times, and all steps %d times", discards, anew)
	}
}

// TestRecord: the record of a run tells while it runs how far it has come and where the time went, and at its end what was left out.
func TestRecord(t *testing.T) {
	defer func(every time.Duration) { recordEvery = every }(recordEvery)
	recordEvery = 0
	j := newJob(t, 60)
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), "batch.drop_last=true", "batch.no_duplicates=false", "batch.accumulate=1", "train.epochs=1"})
	if err != nil {
		t.Fatal(err)
	}
	var between []*Record
	var sum *Summary
	err = OnRanks(t.Context(), r, Place{}, Observer{Step: func(Metrics) {
		rec, err := ReadRecord(r.Save.Dir)
		if err != nil {
			t.Error(err)
		}
		between = append(between, rec)
	}}, func(x *Run) (err error) {
		sum, err = x.Train(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, rec := range between {
		if rec.Done || rec.Stopped || rec.Made < i || len(rec.Stages) == 0 || len(rec.Step) == 0 || rec.Steps != 4 {
			t.Errorf("in step %d: %+v", i+1, rec)
		}
	}
	rec, err := ReadRecord(r.Save.Dir)
	if err != nil || len(between) != 4 {
		t.Fatal(err, len(between))
	}
	if !rec.Done || rec.Made != 4 || rec.Dropped != 60-4*13 || rec.Dropped != sum.Dropped || rec.DroppedBy == "" || rec.Tokens != sum.Tokens || rec.Tokens == 0 || rec.PeakBytes != sum.PeakBytes {
		t.Errorf("%+v, of %+v", rec, sum)
	}
}

// counting is a file system that counts metrics.jsonl's lines when a checkpoint gets its name.
type counting struct {
	checkpoint.Disk
	metrics string
	lines   map[string]int // by the checkpoint's folder
}

func (c counting) Rename(from, to string) error {
	raw, _ := os.ReadFile(c.metrics)
	c.lines[filepath.Base(to)] = bytes.Count(raw, []byte("\n"))
	return c.Disk.Rename(from, to)
}

// A checkpoint is there when its step's line of metrics.jsonl is, however slow what writes it may be: a run that was killed between the two would
// go on behind the step and never write it.
func TestCheckpointAfterItsLine(t *testing.T) {
	j := newJob(t, 100)
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "out"), "save.every=1", "eval.every=0"})
	if err != nil {
		t.Fatal(err)
	}
	fs := counting{metrics: filepath.Join(j.dir, "out", "metrics.jsonl"), lines: map[string]int{}}
	steps := 0
	slow := Observer{Step: func(m Metrics) {
		if steps = m.Step; steps == 3 { // the next line comes after it, and that step's checkpoint could come before
			time.Sleep(500 * time.Millisecond)
		}
	}}
	if err := OnRanks(t.Context(), r, Place{}, slow, func(x *Run) error {
		x.fs = fs
		_, err := x.Train(t.Context())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for step := 1; step < steps; step++ { // behind the last one there may be an evaluation
		folder := fmt.Sprintf("step-%08d", step)
		if n, ok := fs.lines[folder]; !ok || n < step {
			t.Errorf("%s was made (%t) with %d lines of metrics.jsonl", folder, ok, n)
		}
	}
	if steps < 10 {
		t.Errorf("only %d steps", steps)
	}
}

// little is a disk with so many bytes left.
type little struct {
	checkpoint.Disk
	left int64
}

func (l little) FreeSpace(string) (int64, bool) { return l.left, true }

// A disk without room for the run's checkpoints, or for its model, is told of before it trains; one with room is not.
func TestNoRoom(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	for _, c := range []struct {
		left int64
		sets []string
		want string
	}{
		{2 << 20, []string{"save.every=1", "save.keep=1000"}, "has room for 2 MiB; the model takes 121 KiB, and checkpoints 363 KiB each, up to 12 at a time: free 2 MiB, or lower save.keep"},
		{1 << 40, []string{"save.every=1", "save.keep=1000"}, ""},
		{2<<20 + 1, []string{"save.every=1", "save.keep=5"}, "has room for 2 MiB; the model takes 121 KiB, and checkpoints 363 KiB each, up to 6 at a time: free "},
		{2<<20 + 2, []string{"save.every=10m", "save.keep=5"}, "checkpoints 363 KiB each, up to 6 at a time: free "},
		{2<<20 + 3, []string{"save.every=1", "save.keep=3"}, ""},
		{100 << 10, []string{"save.every=0"}, "has room for 100 KiB; the model takes 121 KiB: free 21 KiB"},
		{100 << 10, []string{"save.every=0", "save.precision=bf16"}, ""},
	} {
		o, err := j.run(t, fmt.Sprint(c.left), little{left: c.left}, 0, false, append(c.sets, "train.max_steps=40", "eval.every=0")...)
		if err != nil {
			t.Error(err)
		}
		said := slices.ContainsFunc(o.notes, func(n string) bool { return strings.Contains(n, "has room for") })
		if said != (c.want != "") || said && !strings.Contains(strings.Join(o.notes, "\n"), c.want) {
			t.Errorf("%d bytes left: notes %q, want %q", c.left, o.notes, c.want)
		}
	}
}

// Equal runs have sent equally much in each step, wherever the next one's communication was when the step was recorded.
func TestBytesOfSteps(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 120)
	sent := func(out string, sets ...string) string {
		t.Helper()
		if _, err := j.run(t, out, nil, 0, false, append(sets, "train.max_steps=9")...); err != nil {
			t.Fatal(err)
		}
		var all []any
		for _, m := range j.lines(t, out) {
			all = append(all, m["comm_bytes"])
		}
		return fmt.Sprint(all)
	}
	for _, sets := range [][]string{{"mesh.replicate=2"}, {"mesh.shard=2"}, {"mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"}} {
		want := sent("first", sets...)
		for range 4 {
			if got := sent("again", sets...); got != want {
				t.Errorf("%v: the steps of an equal run have sent %s and %s", sets, got, want)
			}
			if err := os.RemoveAll(filepath.Join(j.dir, "again")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(filepath.Join(j.dir, "first")); err != nil {
			t.Fatal(err)
		}
	}
}

// README lists what may change while a run is stopped, all of it.
func TestReadmeMayChange(t *testing.T) {
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "What may change in between are ")
	section, _, ok := strings.Cut(section, "\n\n")
	if !ok {
		t.Fatal("README says nothing of it")
	}
	for _, key := range mayChange {
		if !strings.Contains(section, "`"+key+"`") {
			t.Errorf("README.md does not say that %s may change", key)
		}
	}
}
