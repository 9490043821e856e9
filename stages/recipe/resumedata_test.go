package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/harness"
)

// Several datasets, bad rows among them, train and go on; what was skipped is listed.
func TestSeveralDatasets(t *testing.T) {
	j := newJob(t, 60)
	other, data := filepath.Join(j.dir, "other.csv"), filepath.Join(j.dir, "data.jsonl")
	rows, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data, append(rows, `{"q":null,"p":"x"}`+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte("a,b\nx,y\none,\ntwo,z z\nthree,z,z\nfour,zzz\n"+strings.Repeat("five,zzzz\n", 30)), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{
		"data.mixing=weighted", "data.on_error=skip", "batch.by_length=true", "batch.global_size=4",
		fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}, {path: %q, query: a, positive: b, negatives: [b], sampling_weight: 2, prompts: {query: 'ask '}}]", data, other),
	}
	if _, err := j.run(t, "stop", nil, 0, false, append(sets, "data.on_error=stop")...); err == nil || !strings.Contains(err.Error(), `data.jsonl:61, column "q": the text is null; data.on_error: skip lists`) {
		t.Errorf("data.on_error: stop: %v", err)
	}
	whole, err := j.run(t, "whole", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	if whole.summary.Skipped != 3 {
		t.Errorf("%d rows were skipped, want 3", whole.summary.Skipped)
	}
	raw, err := os.ReadFile(filepath.Join(j.dir, "whole", "skipped.jsonl"))
	want := fmt.Sprintf(`{"file":%q,"row":60,"line":61,"column":"q","reason":"the text is null"}`+"\n", data) +
		fmt.Sprintf(`{"file":%q,"row":1,"line":3,"column":"b","reason":"the text is null"}`+"\n", other) +
		fmt.Sprintf(`{"file":%q,"row":3,"line":5,"reason":"the row has 3 fields where the first line names 2 columns: one with a comma in it needs quotes"}`+"\n", other)
	if err != nil || string(raw) != want {
		t.Errorf("skipped.jsonl has %s (%v), want %s", raw, err, want)
	}
	log, err := os.ReadFile(filepath.Join(j.dir, "whole", "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	both := map[string]int{}
	for line := range bytes.Lines(log) {
		var m Metrics
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		var want []int // the first dataset's rows are 0 to 60
		for _, row := range whole.rows[m.Step-1][0] {
			want = append(want, int(min(1, row/61)))
		}
		want = slices.Compact(want)
		if !slices.Equal(slices.Compact(m.Datasets), want) {
			t.Errorf("step %d has batches of datasets %v, and rows of %v", m.Step, m.Datasets, want)
		}
		both[fmt.Sprint(want)]++
	}
	if len(both) < 3 {
		t.Errorf("steps have batches of %v alone", both)
	}
	if _, err := j.run(t, "run", nil, 7, false, sets...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, true, sets...); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run that was not stopped")
	}
	if _, err := j.run(t, "run", nil, 0, true, append(sets, "train.epochs=1")...); err == nil || !strings.HasPrefix(err.Error(), "the run is to make ") || !strings.Contains(err.Error(), fmt.Sprintf(" steps, and has made %d: ", whole.summary.Steps)) {
		t.Errorf("fewer epochs than were made: %v", err)
	}
}

// A bad row that ends a run says what goes on without it; the run then ends as if it had skipped the row from its beginning.
func TestResumeSkipping(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 390)
	sets := []string{
		"batch.accumulate=1", "batch.no_duplicates=false", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "train.epochs=2", "save.every=1", "mesh.replicate=2",
	}
	good, err := j.run(t, "good", nil, 0, false, append(sets, "train.max_steps=26")...)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(raw, []byte("\n"))
	bad := good.rows[24][1][2]
	lines[bad] = []byte(`{"q":null,"p":"x"}`)
	if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	skip := append(sets, "data.on_error=skip")
	if _, err := j.run(t, "whole", nil, 0, false, skip...); err != nil {
		t.Fatal(err)
	}
	_, err = j.run(t, "run", nil, 0, false, sets...)
	if want := fmt.Sprintf("data.jsonl:%d, column %q: the text is null; ", bad+1, "q"); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %q", err, want)
	}
	o, err := j.run(t, "run", nil, 0, true, skip...)
	if err != nil || o.summary.from == 0 || o.summary.from >= 25 || o.summary.Skipped != 1 || !strings.Contains(fmt.Sprint(o.notes), "changed since then: "+beginsToSkip) {
		t.Fatalf("%+v, %q, %v", o.summary, o.notes, err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run that skipped the row from its beginning")
	}
	if _, err = j.run(t, "whole", nil, 0, true, append(sets, "train.epochs=3")...); err == nil || !strings.Contains(err.Error(), "data.on_error was skip and is stop") {
		t.Errorf("the other way round: %v", err)
	}
}

// A run that goes on with another model's folder has the checkpoint's weights, and says so.
func TestResumeOtherModel(t *testing.T) {
	j := newJob(t, 60)
	sets := []string{"train.max_steps=4", "save.every=2"}
	if _, err := j.run(t, "whole", nil, 0, false, sets...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 2, false, sets...); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(j.dir, "other")
	if err := errors.Join(os.CopyFS(other, os.DirFS(filepath.Join(j.dir, "model"))), os.WriteFile(filepath.Join(other, "model.safetensors"), j.model(t, "whole"), 0o600)); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 0, true, append(sets, fmt.Sprintf("model.path=%q", other))...)
	if want := "and is " + other + "; training goes on with the checkpoint's weights"; err != nil || !strings.Contains(fmt.Sprint(o.notes), want) {
		t.Fatalf("%v, want %q (%v)", o.notes, want, err)
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run that was not stopped")
	}
}

// Data that isn't the checkpoint's is refused, by the key that has changed if one has, with what to do.
func TestResumeOtherData(t *testing.T) {
	j := newJob(t, 60)
	if _, err := j.run(t, "run", nil, 2, false); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(j.dir, "other.jsonl")
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRecord(filepath.Join(j.dir, "run")); err != nil || r.From != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = j.run(t, "run", nil, 0, true, "data.train.0.path="+other)
	for _, want := range []string{"the data (its files' names, columns or rows) was", fmt.Sprintf("data.train[0].path[0] was %s and is %s; put that back, or start anew", filepath.Join(j.dir, "data.jsonl"), other)} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := j.run(t, "run", nil, 0, true); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRecord(filepath.Join(j.dir, "run")); err != nil || r.From < 2 {
		t.Errorf("the step after which it was resumed: %+v, %v", r, err)
	}
}

// Files that have changed under a run that is to go on are named, with what has changed of them.
func TestResumeOtherFiles(t *testing.T) {
	j := newJob(t, 60)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	at := func(name string) string { return filepath.Join(j.dir, "parts", name) }
	write := func(name string, lines ...[]byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(at(""), 0o777), os.WriteFile(at(name), bytes.Join(lines, nil), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		write(fmt.Sprintf("part%d.jsonl", i), lines[10*i:10*i+10]...)
	}
	set := "data.train.0.path=" + at("*.jsonl")
	if _, err := j.run(t, "run", nil, 2, false, set); err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		if _, err := j.run(t, "run", nil, 0, true, set); err == nil || !strings.Contains(err.Error(), " now; "+want+"; put that back, or start anew") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	write("part0.jsonl", lines[1:10]...)
	write("part1.jsonl", append(slices.Clone(lines[11:20]), lines[10])...)
	refused("data.train[0]: part0.jsonl had 10 rows and has 9; data.train[0]: part1.jsonl has other rows")
	write("part7.jsonl", lines[0])
	if err := os.Remove(at("part2.jsonl")); err != nil {
		t.Fatal(err)
	}
	refused("data.train[0]: part0.jsonl had 10 rows and has 9; data.train[0]: part1.jsonl has other rows; data.train[0]: part2.jsonl is gone; data.train[0]: part7.jsonl is new")
	for i, rest := range []string{"data.train[0]: part7.jsonl is new", "and 2 other files"} {
		if err := os.Remove(at(fmt.Sprintf("part%d.jsonl", 3+i))); err != nil {
			t.Fatal(err)
		}
		refused("data.train[0]: part0.jsonl had 10 rows and has 9; data.train[0]: part1.jsonl has other rows; data.train[0]: part2.jsonl is gone; data.train[0]: part3.jsonl is gone; " + rest)
	}
	for i := range 6 {
		write(fmt.Sprintf("part%d.jsonl", i), lines[10*i:10*i+10]...)
	}
	refused("data.train[0]: part7.jsonl is new")
	if err := os.Remove(at("part7.jsonl")); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, true, set); err != nil {
		t.Error(err)
	}
}

// Files that come in another order are said to, also where they have one name.
func TestResumeOtherOrder(t *testing.T) {
	j := newJob(t, 20)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	paths := func(folders ...string) string {
		var names []string
		for i, folder := range folders {
			path := filepath.Join(j.dir, folder, "part.jsonl")
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, bytes.Join(lines[10*i:10*i+10], nil), 0o600)); err != nil {
				t.Fatal(err)
			}
			names = append(names, path)
		}
		return "data.train.0.path=[" + strings.Join(names, ", ") + "]"
	}
	if _, err := j.run(t, "run", nil, 2, false, paths("a", "b")); err != nil {
		t.Fatal(err)
	}
	_, err = j.run(t, "run", nil, 0, true, paths("d", "c"))
	if want := "; data.train[0]: the files are in another order: they are read in that of their full paths; "; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "other rows") {
		t.Errorf("%v, want %q", err, want)
	}
	if _, err := j.run(t, "run", nil, 0, true, paths("c", "d")); err != nil {
		t.Error(err)
	}
}

// What is wrong with the order of one of several datasets is said by the key of that dataset.
func TestOrderByKey(t *testing.T) {
	j := newJob(t, 40)
	other := filepath.Join(j.dir, "other.jsonl")
	write := func(rows int) {
		t.Helper()
		var b strings.Builder
		for i := range rows {
			fmt.Fprintf(&b, `{"q": "one %d", "p": "two %d"}`+"\n", i, i)
		}
		if err := os.WriteFile(other, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(resume bool, stopAt int) error {
		_, err := j.run(t, "run", nil, stopAt, resume, "batch.drop_last=true",
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}, {path: %q, query: q, positive: p}]", filepath.Join(j.dir, "data.jsonl"), other))
		return err
	}
	write(5)
	if err := run(false, 0); err == nil || !strings.Contains(err.Error(), "data.train[1]: batch.global_size is 13, but the data has only 5 rows") || strings.Contains(err.Error(), "dataset 1") {
		t.Errorf("a batch larger than the data: %v", err)
	}
	write(40)
	if err := run(false, 1); err != nil {
		t.Fatal(err)
	}
	write(41)
	if err := run(true, 0); err == nil || !strings.Contains(err.Error(), "data.train[1]: the order of the data can't be continued") {
		t.Errorf("other data: %v", err)
	}
}

// Datasets are drawn from by their weights, 1 where nothing is said, and rows come by length and without duplicates where the recipe says so.
func TestOrderOfRecipe(t *testing.T) {
	j := newJob(t, 30)
	data := filepath.Join(j.dir, "data.jsonl")
	train := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, sampling_weight: 3}, {path: %q, query: q, positive: p}]", data, data)
	for _, on := range []bool{true, false} {
		x := j.opened(t, []string{train, "data.mixing=weighted", fmt.Sprint("batch.by_length=", on), fmt.Sprint("batch.no_duplicates=", !on), "save.dir=" + filepath.Join(j.dir, "out")})
		if m := x.Recipe.mixing(); m.Kind != dataset.Weighted || !slices.Equal(m.Weights, []float64{3, 1}) {
			t.Errorf("%+v", m)
		}
		for i, p := range x.parts {
			if (p.Lengths != nil) != on || (p.Texts != nil) == on {
				t.Errorf("by_length: %t, dataset %d has lengths %t, texts %t", on, i, p.Lengths != nil, p.Texts != nil)
			}
		}
	}
}
