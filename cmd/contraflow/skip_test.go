package main

import (
	"bytes"
	bits "encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// npyOf reads an array of float32 as NumPy's format has it: a header of so many bytes, a Python dictionary, and the numbers.
func npyOf(t *testing.T, path string) (rows [][]float32) {
	t.Helper()
	data := []byte(mustRead(t, path))
	from := 10 + int(bits.LittleEndian.Uint16(data[8:]))
	var n, dim int
	at := bytes.Index(data, []byte("'shape': ("))
	if _, err := fmt.Sscanf(string(data[at:from]), "'shape': (%d, %d)", &n, &dim); err != nil {
		t.Fatal(err)
	}
	for range n {
		row := make([]float32, dim)
		if _, err := bits.Decode(data[from:], bits.LittleEndian, row); err != nil {
			t.Fatal(err)
		}
		rows, from = append(rows, row), from+4*dim
	}
	return rows
}

// Where too few rows are left to train, those that can't be used are listed nevertheless, beside the list of a run that the folder has already, and by one rank of several, of which none is named.
func TestSkippedTooMany(t *testing.T) {
	dir := workspace(t)
	rows := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(rows, []byte(`{"q": "one", "p": "two"}`+"\n"+`{"q": "three", "p": ""}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ out, file, ranks string }{{"new", "skipped.jsonl", "1"}, {"old", "skipped.jsonl.failed", "2"}} {
		out := filepath.Join(dir, c.out)
		if c.out == "old" {
			for _, err := range []error{os.Mkdir(out, 0o700), os.WriteFile(filepath.Join(out, "recipe.yaml"), nil, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		r := contraflow(t, "", resumable(t, dir, c.out, "data.on_error=skip", "mesh.replicate="+c.ranks, fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}]", rows))...)
		file := filepath.Join(out, c.file)
		if r.code != 1 || strings.Contains(r.stderr, "rank ") || !strings.Contains(r.stderr, "data.on_error: skip has left out 1 row that can't be used, the first one: "+rows+":2, ") || !strings.Contains(r.stderr, file+" says which and why") {
			t.Errorf("%s: exit code %d: %s", c.out, r.code, r.stderr)
		}
		if got := mustRead(t, file); !strings.Contains(got, `"line":2,"column":"p","reason":"the text is empty"`) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", c.out, got)
		}
	}
}

// Rows whose texts can't be used end embed and rerank before anything is computed, with the flag that leaves them out: then the others come out as they
// do without them, and in an .npy, whose rows are the input's, they are NaN.
func TestSkipTexts(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	model, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	all := []string{`{"id": 0, "query": "the cat", "text": "a river"}`, `{"id": 1, "query": "the dog", "text": null}`, `no json`, `{"id": 3, "query": "the bird", "text": ""}`, `{"id": 4, "query": "the fish"}`, `{"id": 5, "query": "the tree", "text": "a house"}`, `{"id": 6, "query": "the stone", "text": ["a", 1]}`}
	good := []string{all[0], all[3], all[5]}
	for name, lines := range map[string][]string{"all.jsonl": all, "good.jsonl": good, "null.jsonl": all[1:2], "nulls.jsonl": slices.Concat(all[:2], all[3:]), "list.jsonl": slices.Concat(good, all[6:])} {
		if err := os.WriteFile(at(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		output string
		args   []string
	}{
		{"e.parquet", []string{"embed", "--model", model, "--prompt", ""}},
		{"e.npy", []string{"embed", "--model", model, "--prompt", ""}},
		{"r.parquet", []string{"rerank", "--model", cross, "--document-column", "text"}},
	} {
		npy := strings.HasSuffix(c.output, ".npy")
		run := func(in, out string, more ...string) result {
			return contraflow(t, "", append(append(slices.Clone(c.args), "--input", at(in), "--output", at(out)), more...)...)
		}
		way := "; --on-error skip leaves out rows that can't be used"
		if npy {
			way = "; --on-error skip writes NaN for rows that can't be used"
		}
		for in, why := range map[string]string{"all.jsonl": ":3: not JSON", "nulls.jsonl": `:2, column "text": the text is null` + way, "null.jsonl": way, "list.jsonl": `:4, column "text": it is a list, want a string` + way} {
			if r := run(in, "bad-"+c.output); r.code != 1 || !strings.Contains(r.stderr, why) || strings.Contains(r.stderr, "Next:") {
				t.Errorf("%s of %s: exit code %d, want %q in\n%s", c.args[0], in, r.code, why, r.stderr)
			}
		}
		if r := run("null.jsonl", "bad-"+c.output, "--on-error", "skip"); r.code != 1 || !strings.Contains(r.stderr, "none of 1 row can be used; the first: ") {
			t.Errorf("%s: exit code %d\n%s", c.args[0], r.code, r.stderr)
		}
		if r := run("all.jsonl", "bad-"+c.output, "--on-error", "go"); r.code != 2 || !strings.Contains(r.stderr, `--on-error is "go", want stop or skip`) {
			t.Errorf("%s: exit code %d\n%s", c.args[0], r.code, r.stderr)
		}
		if left, _ := filepath.Glob(at("*bad-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		r := run("all.jsonl", c.output, "--on-error", "skip")
		are := map[bool]string{true: "NaN", false: "left out"}[npy]
		for _, want := range []string{
			"4 rows of --input can't be used and are " + are + " (--on-error skip); the first: " + at("all.jsonl") + `:2, column "text": the text is null` + "\n",
			"\n  " + at("all.jsonl") + ":3: not JSON", "\n  " + at("all.jsonl") + `:5, column "text": the text is null` + "\n", "\n  " + at("all.jsonl") + `:7, column "text": it is a list, want a string` + "\n", "7 of 7 ", "1 " + map[string]string{"embed": "text is", "rerank": "pair with an"}[c.args[0]] + " empty",
		} {
			if r.code != 0 || !strings.Contains(r.stderr, want) {
				t.Errorf("%s to %s: exit code %d, want %q in\n%s", c.args[0], c.output, r.code, want, r.stderr)
			}
		}
		if r := run("all.jsonl", "quiet-"+c.output, "--on-error", "skip", "--quiet"); r.code != 0 || !strings.HasPrefix(r.stderr, "4 rows of --input can't be used") {
			t.Errorf("%s --quiet: exit code %d\n%s", c.args[0], r.code, r.stderr)
		}
		if r := run("good.jsonl", "want-"+c.output); r.code != 0 {
			t.Fatal(r.stderr)
		}
		if !npy {
			column := map[string]string{"embed": "embedding", "rerank": "score"}[c.args[0]]
			if got, want := numbersOf(t, at(c.output), column), numbersOf(t, at("want-"+c.output), column); got != want || strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, "0 ") || !strings.Contains(got, "\n3 ") {
				t.Errorf("%s to %s:\n%s\nwant\n%s", c.args[0], c.output, got, want)
			}
			continue
		}
		got, want := npyOf(t, at(c.output)), npyOf(t, at("want-"+c.output))
		for i, from := range []int{0, -1, -1, 1, -1, 2, -1} {
			nan := !slices.ContainsFunc(got[i], func(v float32) bool { return v == v })
			if len(got) != 7 || from < 0 && !nan || from >= 0 && !slices.Equal(got[i], want[from]) {
				t.Errorf("row %d of %d is %v, want row %d of the good ones (-1: NaN)", i, len(got), got[i], from)
			}
		}
	}
	write(t, at("in.parquet"), []string{"query", "document", "text"}, []string{"a"}, []string{"b"}, []string{"c"})
	for _, args := range [][]string{{"embed", "--model", model}, {"rerank", "--model", cross}} {
		if r := contraflow(t, "", append(args, "--input", at("in.parquet"), "--output", at("in.parquet"), "--on-error", "skip")...); r.code != 2 || !strings.Contains(r.stderr, "without --on-error skip, which leaves out rows,") {
			t.Errorf("%s in place: exit code %d\n%s", args[0], r.code, r.stderr)
		}
	}
}

// numbersOf are a line for each row with its id and what a column has, as bits.
func numbersOf(t *testing.T, path, column string) string {
	t.Helper()
	src := dataset.Source{Paths: []string{path}, Query: "query", Weight: "id", Label: column}
	if column == "embedding" {
		src.Label, src.Teacher = "", column
	}
	d, err := dataset.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var ids []int64
	for i := range d.Rows() {
		ids = append(ids, i)
	}
	rows, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, ids)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%v %x", r.Weight, math.Float32bits(r.Label))
		for _, v := range r.Teacher {
			fmt.Fprintf(&b, " %x", math.Float32bits(v))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// embed, rerank, init and eval take columns joined by a template, and compute what they do of a column that has the whole text.
func TestTextTemplates(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	title, text := []string{"the cat", "", "the tree"}, []string{"sits by a river", "a road", ""}
	write(t, at("a.parquet"), []string{"title", "text", "whole", "query", "gold"}, title, text, []string{"the cat sits by a river", "a road", "the tree"}, []string{"a dog", "a bird", "a fish"}, []string{"0.1", "0.9", "0.5"})
	model, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	for flag, args := range map[string][]string{
		"--column":          {"embed", "--model", model, "--prompt", "", "--output", at("x.npy")},
		"--document-column": {"rerank", "--model", cross, "--output", at("x.parquet")},
		"--query":           {"rerank", "--model", cross, "--output", at("x.parquet"), "--document", "query"},
	} {
		var out [2]string
		for i, column := range []string{"{title} {text}", "whole"} {
			succeed(t, append(args, "--input", at("a.parquet"), flag, column)...)
			out[i] = mustRead(t, args[slices.Index(args, "--output")+1])
		}
		if out[0] != out[1] {
			t.Errorf("%s %s: another file than of the whole texts", args[0], flag)
		}
	}
	var vocab [2]string
	for i, column := range []string{"{title} {text}", "whole"} {
		succeed(t, "init", "--out", at(fmt.Sprint("model", i)), "--input", at("a.parquet"), "--column", column, "--hidden", "32", "--layers", "1", "--vocab", "60", "--max-length", "24")
		vocab[i] = mustRead(t, at(fmt.Sprintf("model%d/tokenizer.json", i)))
	}
	if vocab[0] != vocab[1] {
		t.Error("init: another vocabulary than of the whole texts")
	}
	joined := succeed(t, "eval", "--model", model, "--sts", at("a.parquet"), "--columns", "{title} {text},query,gold").stdout
	if whole := succeed(t, "eval", "--model", model, "--sts", at("a.parquet"), "--columns", "whole,query,gold").stdout; joined != whole {
		t.Errorf("eval: %q, want %q", joined, whole)
	}
	if r := contraflow(t, "{}", "init", "--out", at("none"), "--input", "-"); r.code != 1 || !strings.Contains(r.stderr, "not from standard input: write it to one, such as data.jsonl") {
		t.Errorf("init --input -: exit code %d\n%s", r.code, r.stderr)
	}
}

// Of many rows that are left out the first ten are named, and how many more there are. What is empty of a template is not what is bad.
func TestSkipMany(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	lines := `{"text": "a river"}` + "\n" + `{"text": ""}` + "\n" + strings.Repeat("no json\n", 13)
	if err := os.WriteFile(at("a.jsonl"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	said := succeed(t, "embed", "--model", goldens.Path(t, "bert/minilm-tiny"), "--prompt", "", "--column", "{text}", "--input", at("a.jsonl"), "--output", at("a.parquet"), "--on-error", "skip").stderr
	if !strings.Contains(said, "13 rows of --input can't be used") || !strings.Contains(said, at("a.jsonl")+":12: not JSON") || strings.Contains(said, ":13:") || !strings.Contains(said, "\n  and 3 more\n") || !strings.Contains(said, "\n1 text is empty") {
		t.Errorf("says %s", said)
	}
}

// --text has no rows.
func TestEmbedTextAlone(t *testing.T) {
	for flag, value := range map[string]string{"--on-error": "skip", "--column": "text", "--output-column": "x"} {
		if r := contraflow(t, "", "embed", "--model", "none", "--text", "a", flag, value); r.code != 2 || !strings.Contains(r.stderr, flag+" goes with --input") {
			t.Errorf("%s: exit code %d\n%s", flag, r.code, r.stderr)
		}
	}
}
