package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
)

// writeTask writes a retrieval task of a few texts in BEIR's layout.
func writeTask(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "qrels"), 0o777); err != nil {
		t.Fatal(err)
	}
	var queries, corpus strings.Builder
	qrels := "query-id\tcorpus-id\tscore\n"
	for i, w := range strings.Fields("cat dog bird fish tree") {
		fmt.Fprintf(&queries, "{\"_id\": \"q%d\", \"text\": \"find the %s\"}\n", i, w)
		fmt.Fprintf(&corpus, "{\"_id\": \"d%d\", \"text\": \"a %s of the house\"}\n", i, w)
		qrels += fmt.Sprintf("q%d\td%d\t1\n", i, i)
	}
	for file, text := range map[string]string{"queries.jsonl": queries.String(), "corpus.jsonl": corpus.String(), "qrels/test.tsv": qrels} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// An empty prompt on the command line is one: it takes the place of the model's.
func TestEvalEmptyPrompts(t *testing.T) {
	plain, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeTask(t, at("task"))
	if err := os.CopyFS(at("model"), os.DirFS(plain)); err != nil {
		t.Fatal(err)
	}
	config := at("model/config_sentence_transformers.json")
	text := strings.Replace(mustRead(t, config), `"document": ""`, `"document": "water and stone : "`, 1)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(model string, more ...string) string {
		t.Helper()
		succeed(t, append([]string{"eval", "--model", model, "--queries", at("task"), "--run", at("run")}, more...)...)
		return mustRead(t, at("run"))
	}
	want := run(plain)
	if run(at("model")) == want {
		t.Fatal("the document prompt changes nothing: what overrides it would not show")
	}
	if got := run(at("model"), "--document-prompt", ""); got != want {
		t.Errorf("without the document prompt\n%swant\n%s", got, want)
	}
	if got := run(at("model"), "--document-prompt", "", "--query-prompt", ""); got == want {
		t.Error("an empty --query-prompt changes nothing")
	}
}

// A task's folder is called mean without its figures being in the place of the mean over tasks; one folder under two names is given twice.
func TestEvalTaskCalledMean(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	for _, name := range []string{"mean", "a"} {
		writeTask(t, filepath.Join(dir, name))
	}
	t.Chdir(dir)
	for _, names := range [][]string{{"mean", "a"}, {"./mean", "a"}, {filepath.Join(dir, "mean"), "a"}} {
		args := []string{"eval", "--model", model, "--json"}
		for _, n := range names {
			args = append(args, "--queries", n)
		}
		var all map[string]map[string]float64
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &all); err != nil {
			t.Fatal(err)
		}
		if len(all) != 3 || all["mean"]["queries"] != 10 || all["a"]["queries"] != 5 {
			t.Errorf("%v: %v", names, all)
		}
	}
	for _, twice := range [][]string{{"mean", "./mean"}, {"a", "a/"}} {
		r := contraflow(t, "", "eval", "--model", model, "--queries", twice[0], "--queries", twice[1])
		if r.code != 2 || !strings.Contains(r.stderr, "is given twice") {
			t.Errorf("%v: exit code %d\n%s%s", twice, r.code, r.stdout, r.stderr)
		}
	}
}

// withMean gives every task a name of its own.
func TestWithMeanNames(t *testing.T) {
	for _, c := range []struct{ paths, want []string }{
		{[]string{"beir/a", "beir/b"}, []string{"a", "b", "mean"}},
		{[]string{"x/a", "y/a", "b"}, []string{"x/a", "y/a", "b", "mean"}},
		{[]string{"mean", "x/mean"}, []string{"./mean", "x/mean", "mean"}},
	} {
		var tasks []taskResult
		for _, p := range c.paths {
			tasks = append(tasks, taskResult{name: p, model: new(evaluate.Result)})
		}
		tasks, err := withMean(tasks)
		var got []string
		for _, m := range tasks {
			got = append(got, m.name)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, %v, want %v", c.paths, got, err, c.want)
		}
	}
}
