package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/tokenize"
)

// What a run says of itself before its first step: of a reranker pairs, and that its head is new; of datasets the span of their texts; and the precision.
func TestDescribeRows(t *testing.T) {
	j := newJob(t, 30)
	data := filepath.Join(j.dir, "data.jsonl")
	pairs, triplets := fmt.Sprintf("{path: %q, query: q, positive: p}", data), fmt.Sprintf("{path: %q, query: q, positive: p, negatives: [q]}", data)
	lists := func(name string, n int) string { // of one to three negatives
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"q": "%d", "p": "b", "n": ["c"%s]}`+"\n", i, strings.Repeat(`, "d"`, i%3))
		}
		path := filepath.Join(j.dir, name)
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all}]", path)
	}
	for _, c := range []struct {
		sets []string
		want []string
		not  string
	}{
		{[]string{lists("few.jsonl", 30)}, []string{"30 rows, 3 to 5 texts each, cut"}, "first rows"},
		{[]string{lists("many.jsonl", 5000)}, []string{"5000 rows, 3 to 5 texts each in the first rows, cut"}, "up to"}, // later ones are not looked at
		{[]string{lists("few.jsonl", 30), "model.kind=reranker", "loss={name: mnrl, num_negatives: 2}"}, []string{"30 rows, a query and 2 to 4 documents each and 2 of other rows, pairs cut"}, "texts each"},
		{nil, []string{"30 rows, 2 texts each, cut at 32 (queries) and 32 tokens", "device  cpu:", ", f32: ", "memory  at most "}, "on each device"},
		{[]string{"train.precision=bf16", "data.train=[" + pairs + ", " + triplets + "]"}, []string{"60 rows in 2 datasets, proportional, 2 to 3 texts each, cut", ", bf16: "}, "f32: "},
		{[]string{"model.kind=reranker", "data.train=[" + triplets + "]"}, []string{"30 rows, a query and 2 documents each, pairs cut at 32 tokens"}, "texts each"},
		{[]string{"model.kind=reranker", "loss=bce", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, label: y}, %s]", labelled(t, j), triplets), "data.train.1.loss=cross_entropy"}, []string{"a query and 1 to 2 documents each, pairs cut at 32 tokens"}, "texts each"},
	} {
		var notes []string
		r, err := Parse("job", []byte(j.text), append(c.sets, "save.dir="+filepath.Join(j.dir, "run")))
		if err != nil {
			t.Fatal(err)
		}
		x, err := Open(t.Context(), r, Observer{Note: func(s string) { notes = append(notes, s) }})
		if err != nil {
			t.Fatal(err)
		}
		text := x.Describe()
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", c.sets, want, text)
			}
		}
		if strings.Contains(text, c.not) {
			t.Errorf("%v: %q in\n%s", c.sets, c.not, text)
		}
		if fresh := strings.Contains(fmt.Sprint(notes), "has no head that scores: a new one, on cls pooling, begins at random"); fresh != (r.Model.Kind == "reranker") {
			t.Errorf("%v: %q", c.sets, notes)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	r, err := Parse("job", []byte(j.text), []string{"mesh.replicate=3", "save.dir=" + filepath.Join(j.dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	err = OnRanks(t.Context(), r, Place{}, Observer{}, func(x *Run) error {
		if text := x.Describe(); !strings.Contains(text, "device  cpu on each of 3 ranks, f32: ") || x.Facts().Device != "cpu on each of 3 ranks" {
			return fmt.Errorf("%s\n%+v", text, x.Facts())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// A reranker that has its head says nothing of it, and a folder with checkpoints is found before anything is read.
	first, err := j.run(t, "reranker", nil, 0, false, "model.kind=reranker", "data.train=["+triplets+"]", "train.max_steps=2", "save.every=1")
	if err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "again", nil, 0, false, "model.kind=reranker", "data.train=["+triplets+"]", "train.max_steps=1", "model.path="+first.summary.Model)
	if err != nil || strings.Contains(fmt.Sprint(o.notes), "has no head") {
		t.Errorf("%v: %q", err, o.notes)
	}
	if err := os.WriteFile(filepath.Join(j.dir, "reranker", "config.json"), []byte("{}"), 0o600); err != nil { // beside which a run that has checkpoints goes on
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"reranker": "has checkpoints of an earlier run, up to step 2", "again/model": "has a model's files (config.json)", "nowhere": ""} {
		r := Default()
		r.Save.Dir = filepath.Join(j.dir, dir)
		if err := r.CheckSaving(false); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
		if err := r.CheckSaving(true); (err != nil) != (dir == "again/model") { // which has nothing to go on with
			t.Errorf("%s, to go on: %v", dir, err)
		}
		if r.Save.Dir = "/proc/new/run"; runtime.GOOS == "linux" { // not even root can write there
			for _, again := range []bool{false, true} {
				if err := r.CheckSaving(again); err == nil || !strings.HasPrefix(err.Error(), "save.dir: /proc can't be written to: ") {
					t.Error(err)
				}
			}
		}
	}
}

// What is in the place of a run's models or checkpoints is told before the run, and not at its end.
func TestInThePlaceOfModels(t *testing.T) {
	j := newJob(t, 40)
	for out, c := range map[string]struct {
		make func(dir string) error
		want string
		sets []string
	}{
		"notes":       {func(dir string) error { return os.MkdirAll(filepath.Join(dir, "model", "notes"), 0o700) }, "model is not empty and holds no model", nil},
		"file":        {func(dir string) error { return os.WriteFile(filepath.Join(dir, "model"), nil, 0o600) }, "model: not a directory", nil},
		"link":        {func(dir string) error { return os.Symlink("../gone", filepath.Join(dir, "model")) }, "model is a link to ../gone, and nothing is there", nil},
		"best":        {func(dir string) error { return os.MkdirAll(filepath.Join(dir, "best", "notes"), 0o700) }, "best is not empty and holds no model", j.measured(t)},
		"no best":     {func(dir string) error { return os.MkdirAll(filepath.Join(dir, "best", "notes"), 0o700) }, "", nil},
		"empty":       {func(dir string) error { return os.MkdirAll(filepath.Join(dir, "model"), 0o700) }, "", nil},
		"checkpoints": {func(dir string) error { return os.Symlink("../gone", filepath.Join(dir, checkpointsDir)) }, "checkpoints is a link to ../gone, and nothing is there", nil},
		"itself": {func(dir string) error {
			if err := os.Remove(dir); err != nil {
				return err
			}
			return os.Symlink("gone", dir)
		}, "itself is a link to gone, and nothing is there", nil},
	} {
		dir := filepath.Join(j.dir, out)
		if err := errors.Join(os.Mkdir(dir, 0o700), c.make(dir)); err != nil {
			if runtime.GOOS == "windows" { // may make no links
				continue
			}
			t.Fatal(err)
		}
		told := func(err error) bool {
			return (err == nil) == (c.want == "") && (err == nil || strings.HasPrefix(err.Error(), "save.dir: ") && strings.Contains(err.Error(), c.want))
		}
		r, err := Parse("job", []byte(j.text), append([]string{"save.dir=" + dir}, c.sets...))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.CheckSaving(false); runtime.GOOS != "windows" && !told(err) {
			t.Errorf("%s: %v, want %q", out, err, c.want)
		}
		if l, _ := j.lookOver(t, append(c.sets, "save.dir="+dir)...); runtime.GOOS != "windows" && !told(l.Err()) {
			t.Errorf("%s, looked over: %v, want %q", out, l.Err(), c.want)
		}
		if out == "notes" || out == "best" {
			if o, err := j.run(t, out, nil, 0, false, append(c.sets, "train.max_steps=1")...); !told(err) || len(o.losses) > 0 {
				t.Errorf("%s: %v after %d steps", out, err, len(o.losses))
			}
		}
	}
}

// labelled writes pairs with a label.
func labelled(t *testing.T, j *job) string {
	t.Helper()
	path := filepath.Join(j.dir, "labelled.jsonl")
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, "{\"q\": %q, \"p\": %q, \"y\": %d}\n", j.words[i], j.words[i+1], i%2)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A tokenizer without padding is told of, with a token that could be it; static embeddings fill nothing up.
func TestNotePadding(t *testing.T) {
	for _, c := range []struct{ vocabulary, config, kind, want string }{
		{`{"a": 0, "</s>": 1}`, `{"eos_token": "</s>"}`, "llama", `has no padding token, and so sentence-transformers will take no texts of what is saved: before training write one of its tokens, such as "</s>", as pad_token`},
		{`{"a": 0}`, `{}`, "llama", "write one of its tokens as pad_token"},
		{`{"a": 0, "</s>": 1}`, `{"pad_token": "</s>"}`, "llama", ""},
		{`{"a": 0}`, `{}`, hfmodel.StaticType, ""},
	} {
		dir := t.TempDir()
		if err := errors.Join(
			os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"version": "1.0", "model": {"type": "WordPiece", "vocab": `+c.vocabulary+`, "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}}`), 0o600),
			os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(c.config), 0o600)); err != nil {
			t.Fatal(err)
		}
		tok, err := tokenize.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		notes := ""
		x := &Run{tok: tok, folder: &hfmodel.Folder{TokenizerDir: dir, ModelType: c.kind}, obs: Observer{Note: func(s string) { notes += s }}}
		if x.notePadding(); !strings.Contains(notes, c.want) || (c.want == "") != (notes == "") {
			t.Errorf("%s: %q, want %q", c.config, notes, c.want)
		}
	}
}
