package recipe

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/prep"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
)

// TestPreparedTokens: a run on the ids that prep has written is the run on the texts, to the bit, and says how many were cut. Other ids are refused.
func TestPreparedTokens(t *testing.T) {
	t.Parallel()
	j := newJob(t, 90)
	c := prep.Default()
	c.Normalize, c.Dedupe.Exact = prep.Normalize{}, "none"
	c.Input = []prep.Input{{Path: []string{filepath.Join(j.dir, "data.jsonl")}, Query: "q", Positive: "p"}}
	c.Output.Dir = filepath.Join(j.dir, "prepared")
	c.Tokenize = prep.Tokenize{Model: filepath.Join(j.dir, "model"), MaxLength: prep.Lengths{Query: 32, Document: 32}}
	made, err := prep.Run(t.Context(), c, prep.Options{})
	if err != nil {
		t.Fatal(err)
	}
	path := "data.train.0.path=" + filepath.Join(c.Output.Dir, "train-*.parquet")
	ids, err := j.run(t, "ids", nil, 0, false, path, "data.train.0.ids=true")
	if err != nil {
		t.Fatal(err)
	}
	texts, err := j.run(t, "texts", nil, 0, false, path, "data.train.0.ids=false")
	if err != nil {
		t.Fatal(err)
	}
	if len(ids.losses) < 6 || len(ids.losses) != len(texts.losses) {
		t.Fatalf("%d and %d steps", len(ids.losses), len(texts.losses))
	}
	for step, loss := range texts.losses {
		if ids.losses[step] != loss {
			t.Errorf("step %d: loss %v with ids, %v with texts", step, ids.losses[step], loss)
		}
	}
	if !bytes.Equal(j.model(t, "ids"), j.model(t, "texts")) {
		t.Error("the models differ")
	}
	const epochs = 3
	note := fmt.Sprintf("data.train[0]: %d texts were longer than max_length {query: 32, document: 32} when contraflow prep made the token ids, and cut", made.Cut())
	if record, err := ReadRecord(filepath.Join(j.dir, "ids")); err != nil || made.Cut() == 0 || record.Cut != made.Cut() || int64(texts.summary.Truncated) != epochs*made.Cut() || !slices.Contains(ids.notes, note) {
		t.Errorf("%d texts are cut, and %d in %d epochs where the run tokenizes; notes %q, record %+v, %v", made.Cut(), texts.summary.Truncated, epochs, ids.notes, record, err)
	}
	if l, _ := j.lookOver(t, path); !strings.Contains(l.Parts[0].Said, fmt.Sprintf(", %d texts longer than max_length and cut by prep", made.Cut())) || l.Err() != nil {
		t.Errorf("%q, %v", l.Parts[0].Said, l.Err())
	}
	for set, want := range map[string]string{
		"model.max_length=16":                    "max_length {query: 32, document: 32}; this recipe has tokenizer",
		`data.train.0.prompts={query: "ask: "}`:  `prompts {query: "ask: ", document: ""}`,
		`data.train.0.prompts={positive: "d: "}`: `prompts {query: "", document: "d: "}`,
	} {
		_, err := j.run(t, "other", nil, 0, false, path, set)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "data.train[0].ids: false") {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	other := newJobModel(t, j)
	guided := []string{path, "loss.name=gist", "loss.guide=" + other}
	if _, err := j.run(t, "guided", nil, 0, false, guided...); err != nil {
		t.Errorf("a guide, which needs the texts: %v", err)
	}
	if _, err := j.run(t, "other", nil, 0, false, append(guided, "data.train.0.ids=true")...); err == nil || !strings.Contains(err.Error(), "ids: loss.guide reads the texts") {
		t.Errorf("ids and a guide: %v", err)
	}
	if _, err := j.run(t, "other", nil, 0, false, path, "model.path="+other); err == nil || !strings.Contains(err.Error(), "its token ids were made with tokenizer") {
		t.Errorf("another tokenizer: %v", err)
	}
	if _, err := j.run(t, "other", nil, 0, false, "data.train.0.ids=true"); err == nil || !strings.Contains(err.Error(), "has no token ids") {
		t.Errorf("files without ids: %v", err)
	}
	j.opts = []TrainOption{WithRow(func(*dataset.Example) error { return nil })}
	if _, err := j.run(t, "other", nil, 0, false, path, "data.train.0.ids=true"); err == nil || !strings.Contains(err.Error(), "the row comes as token ids, whose texts can't be changed: data.train[0].ids: false takes its texts") {
		t.Errorf("ids, and a program that changes texts: %v", err)
	}
}

// newJobModel is a model with another vocabulary.
func newJobModel(t *testing.T, j *job) string {
	t.Helper()
	dir := filepath.Join(j.dir, "other-model")
	err := newmodel.Create(t.Context(), dir, newmodel.Spec{Hidden: 32, Layers: 1, Heads: 4, MaxLength: 32, Vocab: 200, Lowercase: true}, func(yield func(string, error) bool) {
		for _, w := range j.words[:150] {
			if !yield(w, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Documents are evaluated and saved with the prompt that positives train with, however it was said, and where others train with another one that is told.
func TestPromptsOfEvaluation(t *testing.T) {
	j := newJob(t, 60)
	for _, c := range []struct {
		prompts, document, note string
	}{
		{`{query: "q: ", document: "d: "}`, "d: ", ""},
		{`{query: "q: ", positive: "d: ", negative: "d: "}`, "d: ", ""},
		{`{query: "q: ", positive: "d: "}`, "d: ", ""},
		{`{query: "q: ", document: "x: ", positive: "d: "}`, "d: ", ""},
		{`{query: "q: ", document: "d: ", negative: "n: "}`, "d: ", `other prompts for negatives ("n: ") than for positives`},
	} {
		sets := []string{"train.max_steps=1", "data.train.0.prompts=" + c.prompts}
		if c.note != "" {
			sets = append(sets, "data.train.0.negatives=[p]")
		}
		o, err := j.run(t, "out", checkpoint.Disk{}, 0, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		e, err := embedder.Load(filepath.Join(j.dir, "out", "model"))
		if err != nil {
			t.Fatal(err)
		}
		if query, document := e.RolePrompts(); query != "q: " || document != c.document {
			t.Errorf("%s: the model has %q and %q", c.prompts, query, document)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		said := slices.ContainsFunc(o.notes, func(n string) bool { return strings.Contains(n, "other prompts for negatives") })
		if said != (c.note != "") || said && !strings.Contains(strings.Join(o.notes, "\n"), c.note) {
			t.Errorf("%s: notes %q", c.prompts, o.notes)
		}
	}
	more, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(j.dir, "other.jsonl")
	if err := os.WriteFile(other, more, 0o600); err != nil {
		t.Fatal(err)
	}
	row := func(path, prompts string) string {
		return fmt.Sprintf("{path: %q, query: q, positive: p, prompts: %s}", path, prompts)
	}
	o, err := j.run(t, "two", checkpoint.Disk{}, 0, false, "train.max_steps=1", "data.train=["+row(filepath.Join(j.dir, "data.jsonl"), `{query: "q: "}`)+", "+row(other, `{query: "q: ", positive: "d: "}`)+"]")
	if err != nil || !strings.Contains(strings.Join(o.notes, "\n"), `data.train[1] has other prompts than data.train[0]`) {
		t.Errorf("%v, notes %q", err, o.notes)
	}
}
