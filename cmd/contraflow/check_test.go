package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/testdata/goldens"
)

// check finds every row that can't be used, of what trains and of what the model is measured on, where train ends with the first. Without the rows that it
// lists a run trains, and cuts as many texts as it has said.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var good []string
	for i := range 24 {
		good = append(good, fmt.Sprintf(`{"q": "query %d of them", "p": "document number %d%s"}`, i, i, strings.Repeat(" and so on", i)))
	}
	rows := slices.Concat(good[:3], []string{`{"q": "x", "p": null}`, `no json`}, good[3:12], []string{good[11], `{"q": "", "p": "x"}`}, good[12:], []string{`{"q": "only"}`, `{"q": "query 3 of them", "p": "another document"}`})
	files := map[string][]string{
		"a.jsonl":                rows,
		"b.jsonl":                {good[0], `{"q": "one", "p": 3}`, good[1], `{"p": "no query"}`, good[2]},
		"dev.jsonl":              {`{"q": " ", "p": "y"}`, good[20], good[21], `{`},
		"task/queries.jsonl":     {`{"_id": "1", "text": "a b"}`, `{"_id": "2", "text": ""}`, `nope`, `{"_id": "3", "text": "c"}`, `{"_id": "1", "text": "again"}`},
		"task/corpus.jsonl":      {`{"_id": "a", "text": "a b"}`, `{"_id": "b", "text": null}`, `{"_id": "c", "text": "z"}`},
		"task/qrels/test.tsv":    {"query-id\tcorpus-id\tscore", "1\ta\t1", "1\ta\t2", "3\tc\tx", "3\tc\t1"},
		"bare.tsv":               {"1\tsome words", "1\tother words", "2\tmore"},
		"bare.qrels.tsv":         {"1\ta\t1", "1\ta\t0", "2\tc\t1"},
		"sts.jsonl":              {`{"a": "x", "b": "y", "s": 1}`, `{"a": "", "b": "y", "s": 2}`, `{"a": "z", "b": "y", "s": "w"}`, `{"a": "k", "b": "v", "s": 3}`},
		"triplets.csv":           {"a,b,c", "one,two,three", "four,,five", "six,seven", "eight,nine,ten"},
		"candidates.jsonl":       {`{"q": "x", "p": ["y"], "n": ["z"]}`, `{"q": "x", "p": ["y"], "n": ["z", ""]}`, `{"q": "", "p": ["y"], "n": ["z"]}`},
		"classified/pairs.jsonl": {`{"a": "x", "b": "y", "l": 1}`, `{"a": "x", "b": "z", "l": 0}`, `{"a": "x", "b": "y", "l": 7}`},
	}
	want := []string{ // by file, line
		"a.jsonl 4 p: the text is null", "a.jsonl 5 : not JSON", "a.jsonl 16 q: the text is empty", "a.jsonl 29 p: the text is missing",
		"b.jsonl 2 p: it is a number, want a string", "b.jsonl 4 q: the text is missing",
		"dev.jsonl 1 q: the text is blank", "dev.jsonl 4 : not JSON",
		"task/queries.jsonl 2 text: the query is null or empty", "task/queries.jsonl 3 : not JSON", `task/queries.jsonl 5 _id: "1" comes a second time`, "task/corpus.jsonl 2 text: the text is null",
		`task/qrels/test.tsv 3 : query "1": document "a" is judged a second time`, `task/qrels/test.tsv 4 : query "3", document "c", relevance "x"`,
		`bare.tsv 2 id: "1" comes a second time`, `task/corpus.jsonl 2 text: the text is null`, `bare.qrels.tsv 2 : query "1": document "a" is judged a second time`,
		"sts.jsonl 2 a: the text is null or empty", `sts.jsonl 3 s: a score of "w": want a number`,
		`classified/pairs.jsonl 3 l: a label of "7"`,
		"triplets.csv 3 b: the text is null or empty", "triplets.csv 4 : the row has 2 fields where the first line names 3",
		"candidates.jsonl 2 n: text 1 of the list is empty", "candidates.jsonl 3 q: the text is empty",
	}
	save := func() {
		for name, lines := range files {
			if err := os.MkdirAll(filepath.Dir(at(name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	save()
	text := `model: {path: MODEL, max_length: 16}
data: {train: [{path: DIR/a.jsonl, query: q, positive: p}, {path: DIR/b.jsonl, query: q, positive: p}]}
batch: {global_size: 2, drop_last: false}
eval:
  loss: {path: DIR/dev.jsonl, query: q, positive: p}
  retrieval: [{queries: DIR/task}, {name: bare, queries: DIR/bare.tsv, corpus: DIR/task/corpus.jsonl, qrels: DIR/bare.qrels.tsv}]
  sts: {path: DIR/sts.jsonl, a: a, b: b, score: s}
  pair_classification: {path: DIR/classified/pairs.jsonl, a: a, b: b, label: l}
  triplets: {path: DIR/triplets.csv, query: a, positive: b, negative: c}
  candidates: {path: DIR/candidates.jsonl, query: q, positive: p, negative: n}
save: {dir: DIR/run}
`
	text = strings.NewReplacer("MODEL", goldens.Path(t, "bert/minilm-tiny"), "DIR", dir).Replace(text)
	if err := os.WriteFile(at("recipe.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at("settings"), os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("settings/model.safetensors")); err != nil { // which nobody needs
		t.Fatal(err)
	}
	for _, on := range []string{"stop", "skip"} {
		r := contraflow(t, "", "check", "-c", at("recipe.yaml"), "--json", "--set", "model.path="+at("settings"), "--set", "data.on_error="+on)
		var got []recipe.SkippedRow
		for line := range strings.Lines(r.stdout) {
			var row recipe.SkippedRow
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatal(err)
			}
			got = append(got, row)
		}
		if r.code != 1 || len(got) != len(want) {
			t.Fatalf("%s: exit code %d, %d rows, want %d:\n%s%s", on, r.code, len(got), len(want), r.stdout, r.stderr)
		}
		for i, row := range got {
			name, _ := filepath.Rel(dir, row.File)
			if is := fmt.Sprintf("%s %d %s: %s", filepath.ToSlash(name), row.Line, row.Column, row.Reason); !strings.HasPrefix(is, want[i]) {
				t.Errorf("%s: row %d is %s, want %s", on, i, is, want[i])
			}
			if file := filepath.ToSlash(name); on == "skip" && files[file][row.Line-1] != "" {
				files[file][row.Line-1] = "" // which is no row
			}
		}
		for _, want := range []string{
			"data.train[0]: 30 rows, 4 that can't be used, 1 with the query and the document of an earlier one, the first: " + at("a.jsonl") + ":15, as " + at("a.jsonl") + ":14, ",
			"data.train[1]: 5 rows, 2 that can't be used\n", "looking for rows that repeat: 30 of 30 rows\n", "looking for texts that are cut: 26 of 26 rows\n", "18 rows to measure the model on can't be used",
		} {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%s: want %q in\n%s", on, want, r.stderr)
			}
		}
		if strings.Contains(r.stderr, "6 rows to train on can't be used; data.on_error: skip lists") != (on == "stop") {
			t.Errorf("%s:\n%s", on, r.stderr)
		}
	}
	if r := contraflow(t, "", "check", "-c", at("recipe.yaml"), "--set", "eval=null", "--set", "data.on_error=skip"); r.code != 0 || strings.Count(r.stdout, "\n") != 6 {
		t.Errorf("with rows that are skipped: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := contraflow(t, "", "train", "-c", at("recipe.yaml"), "--set", "batch.no_duplicates=true"); r.code != 1 || !strings.Contains(r.stderr, at("a.jsonl")+":4, ") || !strings.Contains(r.stderr, "\nNext: contraflow check -c "+at("recipe.yaml")+" lists all rows") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	r := contraflow(t, "", "check", "-c", at("recipe.yaml"), "--set", "data.train.1.path="+at("none.jsonl"), "--quiet")
	for _, want := range []string{"data.train[1]: ", "no such file", "4 rows to train on", "18 rows to measure"} {
		if r.code != 1 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stdout, at("a.jsonl")+`:4, column "p": the text is null`+"\n") || strings.Contains(r.stderr, "data.train[0]:") {
			t.Errorf("exit code %d, want %q in\n%s%s", r.code, want, r.stdout, r.stderr)
		}
	}
	for name := range files {
		files[name] = slices.DeleteFunc(files[name], func(line string) bool { return line == "" })
	}
	save()
	said := succeed(t, "check", "-c", at("recipe.yaml"))
	trained := succeed(t, "train", "-c", at("recipe.yaml"), "--log", "human")
	if _, cut, _ := strings.Cut(said.stderr, "earlier one, "); said.stdout != "" || !strings.Contains(said.stderr, "training: 15 steps of 1 x 2 rows\n") || !strings.Contains(trained.stderr, "\n15 steps in ") {
		t.Errorf("said:\n%s%strained:\n%s", said.stdout, said.stderr, trained.stderr)
	} else if n, _, _ := strings.Cut(cut[strings.Index(cut, ", ")+2:], " of 52 texts longer"); !strings.Contains(trained.stderr, "\n"+n[strings.LastIndex(n, " ")+1:]+" texts were longer than model.max_length and cut") {
		t.Errorf("%q: said:\n%strained:\n%s", n, said.stderr, trained.stderr)
	}
	// A recipe whose folder train's --out will set lacks nothing for this.
	if r := succeed(t, "check", "-c", at("recipe.yaml"), "--set", "save.dir=null"); strings.Contains(r.stderr, "save.dir") || !strings.Contains(r.stderr, "training: 15 steps") {
		t.Errorf("without save.dir:\n%s", r.stderr)
	}
	if r := contraflow(t, "", "check", "-c", at("recipe.yaml"), "--set", "save.dir=null", "--set", "batch.global_size=0"); r.code != 1 || !strings.Contains(r.stderr, "batch.global_size") || strings.Contains(r.stderr, "save.dir") {
		t.Errorf("without save.dir, and with what is wrong: exit code %d\n%s", r.code, r.stderr)
	}
	for set, want := range map[string]string{
		"batch={global_size: 100, drop_last: true}":             "batch.global_size is 100, but the data has only 26 rows",
		"loss={name: mnrl, matryoshka: {dims: [4096]}}":         "4096",
		"optimizer.groups=[{params: [nothing of it], lr: 0.1}]": "nothing of it",
	} {
		if r := contraflow(t, "", "check", "-c", at("recipe.yaml"), "--set", "eval=null", "--set", set); r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: exit code %d\n%s", set, r.code, r.stderr)
		}
	}
}
