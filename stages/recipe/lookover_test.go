package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/gpustage"
)

// lookOver is what LookOver finds of a job's recipe, and what it notes.
func (j *job) lookOver(t *testing.T, sets ...string) (*Lookover, []string) {
	t.Helper()
	r, err := Parse("job", []byte(j.text), append([]string{"save.dir=" + filepath.Join(j.dir, "run")}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	device, err := gpustage.Open("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	var notes []string
	l, err := LookOver(t.Context(), r, device, Observer{Note: func(m string) { notes = append(notes, m) }})
	if err != nil {
		t.Fatal(err)
	}
	return l, notes
}

// all tells whether an error has a line with each of these, and none besides.
func all(err error, wants ...string) bool {
	var lines []string
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	for _, want := range wants {
		i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, want) })
		if i < 0 {
			return false
		}
		lines = slices.Delete(lines, i, i+1)
	}
	return len(lines) == 0
}

// Of a dataset of several files all that can't be read are named, and the rows of the others are looked at.
func TestLookOverFiles(t *testing.T) {
	j := newJob(t, 30)
	at := func(name string) string { return filepath.Join(j.dir, name) }
	for name, text := range map[string]string{
		"some[1].jsonl": `{"q": "one", "p": "two"}` + "\n" + `{"q": "three", "p": ""}` + "\n", "c.csv": "q,other\na,b\n", "broken.parquet": "PAR1 and so on", "broken.jsonl.gz": "no gzip", "nothing.txt": "q p\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths := strings.Join([]string{at("data.jsonl"), at("none.jsonl"), at("some*"), at("no*match.jsonl"), at("broken*"), at("c.csv"), at("nothing.txt")}, ", ")
	wrong := []string{"none.jsonl", "no*match.jsonl matches no file", "broken.parquet: ", "broken.jsonl.gz: ", "c.csv has no column", "nothing.txt: not known as data"}
	l, _ := j.lookOver(t, "data.train.0.path=["+paths+"]")
	if p := l.Parts[0]; len(p.Bad) != 1 || p.Bad[0].Location.File != at("some[1].jsonl") || !strings.HasPrefix(p.Said, "32 rows, 1 that can't be used") || l.Plan != "" || l.Wrong != nil {
		t.Errorf("%+v", l)
	}
	if err := l.Err(); !all(err, append(wrong, "1 row to train on can't be used")...) || strings.Count(err.Error(), "data.train[0]: ") != len(wrong) {
		t.Errorf("%v", err)
	}
	l, _ = j.lookOver(t, "eval.loss={path: ["+paths+"], query: q, positive: p}")
	if p := l.Parts[1]; len(p.Bad) != 1 || !all(l.Err(), append(wrong, "1 row to measure the model on can't be used")...) {
		t.Errorf("%+v: %v", p, l.Err())
	}
	l, _ = j.lookOver(t, "data.train.0.path=["+at("none.jsonl")+", "+at("broken.parquet")+"]")
	if !all(l.Err(), "none.jsonl", "broken.parquet: ") || l.Parts[0].Said != "" {
		t.Errorf("%+v: %v", l, l.Err())
	}
	if l, _ = j.lookOver(t, "data.on_error=skip", "data.train.0.path=["+at("data.jsonl")+", "+at("some*")+"]"); len(l.Parts[0].Bad) != 1 || l.Err() != nil {
		t.Errorf("where such rows are skipped: %+v: %v", l, l.Err())
	}
	var many, named []string
	for i := range 23 {
		many = append(many, at(fmt.Sprintf("gone%d.jsonl", i)))
	}
	for range 20 {
		named = append(named, "gone")
	}
	l, _ = j.lookOver(t, "data.train.0.path=["+strings.Join(many, ", ")+"]")
	if !all(l.Err(), append(named, "data.train[0]: 3 files more can't be read either")...) {
		t.Errorf("many: %v", l.Err())
	}
}

// A guide that can't be opened, and a folder in which the run neither begins nor goes on, are found beside what is wrong with the data.
func TestLookOverBesides(t *testing.T) {
	j := newJob(t, 30)
	at := func(name string) string { return filepath.Join(j.dir, name) }
	if _, err := j.run(t, "run", nil, 0, false, "train.max_steps=1", "save.every=1"); err != nil {
		t.Fatal(err)
	}
	guided := func(path string) string { return "loss={name: gist, guide: " + path + "}" }
	for _, c := range []struct {
		sets  []string
		wants []string
		note  string
	}{
		{sets: []string{"train.max_steps=1", "save.every=1", "train.epochs=4"}, note: "save.dir: " + at("run/checkpoints") + " has checkpoints, up to step 1: train --resume goes on"},
		{sets: []string{"train.seed=7"}, wants: []string{"the recipe has changed since the checkpoint: train.seed was "}},
		{sets: []string{"save.dir=" + at("new/run"), guided(at("nowhere"))}, wants: []string{"loss.guide: "}},
		{sets: []string{"save.dir=" + at("new/run"), guided(at("model"))}},
		{sets: []string{"save.dir=" + at("data.jsonl"), guided(at("nowhere")), "data.train.0.path=" + at("none.jsonl")}, wants: []string{"loss.guide: ", "save.dir: ", "none.jsonl"}},
		{sets: []string{"save.dir=" + at("data.jsonl/run")}, wants: []string{"save.dir: "}},
		{sets: []string{"save.dir=" + at("new/run"), "data.train.0.path=" + at("same.jsonl"), "batch.drop_last=true", "batch.global_size=3", "eval.loss={path: " + at("one.jsonl") + ", query: q, positive: p}"}, wants: []string{
			"batch.global_size is 3, but so many rows share texts", "eval.loss: there is one row, and "}},
	} {
		for name, text := range map[string]string{"one.jsonl": `{"q": "one", "p": "two"}`, "same.jsonl": `{"q": "one", "p": "two"}` + "\n" + `{"q": "one", "p": "three"}` + "\n" + `{"q": "two", "p": "two"}`} {
			if err := os.WriteFile(at(name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, notes := j.lookOver(t, c.sets...)
		if !all(l.Err(), c.wants...) || c.note != "" && !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, c.note) }) {
			t.Errorf("%v: %v, want %q; notes %q", c.sets, l.Err(), c.wants, notes)
		}
	}
	if runtime.GOOS == "linux" { // has a folder in which not even root can write
		if l, _ := j.lookOver(t, "save.dir=/proc/new/run"); !all(l.Err(), "save.dir: /proc can't be written to: ") {
			t.Errorf("%v", l.Err())
		}
	}
	parts, err := filepath.Glob(at("run/checkpoints/step-*/*.safetensors"))
	if err != nil || len(parts) == 0 {
		t.Fatal(parts, err)
	}
	if err := os.Truncate(parts[0], 9); err != nil {
		t.Fatal(err)
	}
	if l, _ := j.lookOver(t, "train.max_steps=1", "save.every=1"); l.Err() == nil || !strings.HasPrefix(l.Err().Error(), "save.dir: no run begins where there are checkpoints, and none goes on with these: ") {
		t.Errorf("a damaged checkpoint: %v", l.Err())
	}
	if left, err := filepath.Glob(at("*/.check-*")); err != nil || left != nil {
		t.Error(left, err)
	}
	if _, err := os.Stat(at("new")); err == nil {
		t.Error("the folder is made")
	}
}

// The file of a task of several numbers of dimensions is looked at once, and each number is one that the model has.
func TestLookOverDimensions(t *testing.T) {
	j := newJob(t, 30)
	sts := j.stsFile(t)
	good, err := os.ReadFile(sts)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(j.dir, "bad.jsonl")
	if err := os.WriteFile(bad, append(good, `{"a": "one", "b": "two", "s": "many"}`...), 0o600); err != nil {
		t.Fatal(err)
	}
	set := func(path string) string {
		return fmt.Sprintf("{path: %q, a: a, b: b, score: s, dimensions: [4, 33, 0]}", path)
	}
	l, _ := j.lookOver(t, "eval.sts=["+set(sts)+", "+set(bad)+"]")
	var keys []string
	rows := 0
	for _, p := range l.Parts {
		if strings.HasPrefix(p.Key, "eval.sts") {
			keys = append(keys, p.Key)
			rows += len(p.Bad)
		}
	}
	if want := []string{"eval.sts[0]", "eval.sts[1]"}; !slices.Equal(keys, want) || rows != 1 {
		t.Errorf("%d rows of %q can't be used, want one of %q", rows, keys, want)
	}
	if !all(l.Err(), "eval.sts[0]: dimensions: is 33, and the model's embeddings have 32", "eval.sts[1]: dimensions: is 33", "1 row to measure the model on can't be used") {
		t.Error(l.Err())
	}
}

// A plan does not download what the model is measured on: it says so, and still tells when evaluations are made.
func TestPlanPassesOver(t *testing.T) {
	j := newJob(t, 30)
	at := "nowhere://data/" // fetching it is an error
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), "eval.every=2", "eval.loss={path: " + at + "dev.jsonl, query: q, positive: p}",
		"eval.retrieval={queries: " + at + "q.jsonl, corpus: " + at + "c.jsonl, qrels: elsewhere.tsv}", "eval.sts={path: " + at + "sts.jsonl, a: a, b: b, score: s}", "eval.nanobeir=true"})
	if err != nil {
		t.Fatal(err)
	}
	device, err := gpustage.Open("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for name, open := range map[string]func(Observer) (*Run, error){
		"on paper": func(o Observer) (*Run, error) {
			return OpenOnPaper(t.Context(), r, Target{Mesh: collective.Mesh{Replicate: 1, Shard: 1}, Device: device}, o)
		},
		"here": func(o Observer) (*Run, error) { return OpenToPlan(t.Context(), r, o) },
	} {
		var notes []string
		x, err := open(Observer{Note: func(m string) { notes = append(notes, m) }})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		for _, key := range []string{"eval.loss", "eval.retrieval", "eval.sts", "eval.nanobeir"} {
			said := 0
			for _, n := range notes {
				if strings.HasPrefix(n, key+" is not downloaded for a plan") {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%s: %d notes of %s: %q", name, said, key, notes)
			}
		}
		if said := x.when(); !slices.ContainsFunc(said, func(l [2]string) bool { return l[0] == "eval" && strings.Contains(l[1], "2") }) || x.Memory.Evaluation == 0 {
			t.Errorf("%s: %q, %d bytes", name, said, x.Memory.Evaluation)
		}
		if !x.paper {
			if _, err := x.Calibrate(t.Context(), 1, 1); err != nil {
				t.Error(err)
			}
		}
		if _, err := x.Train(t.Context()); err == nil || !strings.Contains(err.Error(), "was opened to be planned") {
			t.Errorf("%s: it trains, without what it is measured on: %v", name, err)
		}
	}
	if x, err := Open(t.Context(), r, Observer{}); err == nil || !strings.Contains(err.Error(), "elsewhere.tsv") {
		t.Errorf("a run without them: %v, %v", x, err)
	}
}

// Texts that the tokenizer does not know are told of, with their share of the tokens, before training and by check; a few are not.
func TestUnknownTexts(t *testing.T) {
	j := newJob(t, 30)
	for name, c := range map[string]struct {
		row  string
		said string
	}{
		"cyrillic": {`{"q": "река", "p": "a b город"}`, "50 % of the tokens of its first rows are [UNK]"},
		"a few":    {`{"q": "река", "p": "` + strings.Repeat("a b ", 15) + `"}`, ""},
	} {
		path := filepath.Join(j.dir, "rows.jsonl")
		if err := os.WriteFile(path, []byte(strings.Repeat(c.row+"\n", 300)), 0o600); err != nil {
			t.Fatal(err)
		}
		source := fmt.Sprintf("{path: %q, query: q, positive: p}", path)
		sets := []string{"data.train=[" + source + "]", "batch.no_duplicates=false", "train.max_steps=1", "eval.loss=" + source}
		o, err := j.run(t, "run", nil, 0, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		_, notes := j.lookOver(t, sets...)
		for _, notes := range [][]string{o.notes, notes} {
			for _, key := range []string{"data.train[0]: ", "eval.loss: "} {
				if has := slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, key) && strings.Contains(n, "[UNK]") }); has != (c.said != "") || has && !strings.Contains(strings.Join(notes, "\n"), key+c.said) {
					t.Errorf("%s, %s%q: %q", name, key, c.said, notes)
				}
			}
		}
	}
}
