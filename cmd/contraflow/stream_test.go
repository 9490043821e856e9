package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// Between --input - and --output - embed prints for each row what it prints for its text with --text, and nothing else on
// standard output; a row that can't be used is null with --on-error skip. Rows of files are printed as those of standard input.
func TestEmbedStreams(t *testing.T) {
	rows := `{"text": "a cat", "id": 1}` + "\r\n" + `{"text": null}` + "\n\n" + `{"id": 7, "text": "the river and the bird"}` + "\nno json\n" + `{"text": "a dog"}`
	file := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(file, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{{"--model", goldens.Path(t, "bert/minilm-tiny"), "--prompt", "query"}, {"--model", goldens.Path(t, "bert/minilm-tiny"), "--prompt-text", "", "--dimensions", "5"}} {
		texts := append([]string{"embed", "--text", "a cat", "--text", "the river and the bird", "--text", "a dog"}, more...)
		of := strings.Split(strings.TrimSuffix(succeed(t, texts...).stdout, "\n"), "\n")
		if len(of) != 3 {
			t.Fatalf("%d lines of 3 texts", len(of))
		}
		want := numbersIn(t, of[0], "null", of[1], "null", of[2])
		for _, input := range []string{"-", file} {
			r := contraflow(t, rows, append([]string{"embed", "--input", input, "--output", "-", "--on-error", "skip"}, more...)...)
			lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
			if r.code != 0 || len(lines) != 5 {
				t.Fatalf("exit code %d, %d lines\n%s", r.code, len(lines), r.stderr)
			}
			for i, got := range numbersIn(t, lines...) {
				if len(got) != len(want[i]) {
					t.Fatalf("row %d: %s, want %s", i, lines[i], of[i/2])
				}
				for k := range got {
					if d := got[k] - want[i][k]; !(math.Abs(d) <= 1e-5) { // the texts may stand in other passes: some epsilons of float32
						t.Errorf("row %d: %s, want %s", i, lines[i], of[i/2])
						break
					}
				}
			}
			name := input
			if input == "-" {
				name = "standard input"
			}
			if !strings.Contains(r.stderr, "3 embeddings of ") || !strings.Contains(r.stderr, "2 rows of --input can't be used and are null (--on-error skip); the first: "+name+":2, column \"text\": the text is null") {
				t.Errorf("says %s", r.stderr)
			}
		}
	}
}

// numbersIn are the numbers of each line, a list of JSON or null.
func numbersIn(t *testing.T, lines ...string) (all [][]float64) {
	t.Helper()
	for _, line := range lines {
		var numbers []float64
		if err := json.Unmarshal([]byte(line), &numbers); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, numbers)
	}
	return all
}

// rerank prints the scores that it writes to a file.
func TestRerankStreams(t *testing.T) {
	cross, out := goldens.Path(t, "rerank/cross"), filepath.Join(t.TempDir(), "scores.parquet")
	rows := `[{"query": "a bird", "document": "The cat sees a bird."}, {"query": "a bird", "document": "open the file"}, {"query": "a bird"}, {"query": "a bird", "document": ""}]`
	args := []string{"rerank", "--model", cross, "--input", "-", "--on-error", "skip", "--output"}
	printed := contraflow(t, rows, append(args, "-")...)
	if r := contraflow(t, rows, append(args, out)...); r.code != 0 || r.stdout != "" {
		t.Fatalf("exit code %d, prints %q\n%s", r.code, r.stdout, r.stderr)
	}
	want := ""
	scores := floats(t, dataset.Source{Paths: []string{out}, Query: "query", Positive: "query", Scores: []string{"score"}})
	if len(scores) != 3 {
		t.Fatalf("%d scores, want 3", len(scores))
	}
	for i, s := range scores {
		if i == 2 {
			want += "null\n"
		}
		want += fmt.Sprintln(s)
	}
	if printed.code != 0 || printed.stdout != want {
		t.Errorf("exit code %d, prints %q, want %q\n%s", printed.code, printed.stdout, want, printed.stderr)
	}
	if want := "standard input: element 3, column \"document\": "; !strings.Contains(printed.stderr, want) {
		t.Errorf("says %s, want %q", printed.stderr, want)
	}
	// What --on-error skip does is to print null, or to leave rows out of a file, and so the error and the count of them say.
	for output, of := range map[string]struct{ stop, skip string }{
		"-": {"--on-error skip writes null for rows that can't be used", "1 row of --input can't be used and is null (--on-error skip)"},
		out: {"--on-error skip leaves out rows that can't be used", "1 row of --input can't be used and is left out (--on-error skip)"},
	} {
		for policy, want := range map[string]string{"stop": of.stop, "skip": of.skip} {
			r := contraflow(t, rows, "rerank", "--model", cross, "--input", "-", "--output", output, "--on-error", policy)
			if (r.code == 0) != (policy == "skip") || !strings.Contains(r.stderr, want) {
				t.Errorf("--output %s --on-error %s: exit code %d, want %q in\n%s", output, policy, r.code, want, r.stderr)
			}
		}
	}
}

// A pair whose query leaves no room for its document is a row that can't be used, and the others' scores are what they are without it.
func TestRerankNoRoom(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "rerank/cross"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "reranker.json"), []byte(`{"truncation": "only_second"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	first, last := `{"query": "a bird", "document": "a cat"}`+"\n", `{"query": "a cat", "document": "open the file"}`+"\n"
	rows := first + `{"query": "` + strings.Repeat("bird ", 200) + `", "document": "a cat"}` + "\n" + last
	args := []string{"rerank", "--model", dir, "--input", "-", "--output", "-", "--on-error"}
	const why = `standard input:2: max length too short: `
	if r := contraflow(t, rows, append(args, "stop")...); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, why) || !strings.Contains(r.stderr, "reranker.json") {
		t.Errorf("exit code %d, %q\n%s", r.code, r.stdout, r.stderr)
	}
	want := strings.Split(contraflow(t, first+last, append(args, "stop")...).stdout, "\n")
	if r := contraflow(t, rows, append(args, "skip")...); r.code != 0 || len(want) != 3 || r.stdout != want[0]+"\nnull\n"+want[1]+"\n" || !strings.Contains(r.stderr, why) {
		t.Errorf("exit code %d, %q, want %q with null between\n%s", r.code, r.stdout, want, r.stderr)
	}
	later := strings.Repeat(first, embedRows) + rows // of which the row is among those that are read next
	if r := contraflow(t, later, append(args, "stop")...); r.code != 1 || !strings.Contains(r.stderr, fmt.Sprintf("standard input:%d: max length too short: ", embedRows+2)) {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := contraflow(t, "", "rerank", "--model", dir, "--query-text", strings.Repeat("bird ", 200), "--text", "a cat"); r.code != 1 || !strings.Contains(r.stderr, `: --query-text "bird bird `) || !strings.Contains(r.stderr, `, --text "a cat": max length too short: `) {
		t.Errorf("--query-text: exit code %d\n%s", r.code, r.stderr)
	}
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	args = []string{"distill", "--model", dir, "--input", in, "--positive", "document", "--output", filepath.Join(dir, "out.parquet"), "--on-error"}
	for _, more := range [][]string{{"stop"}, {"skip"}, {"skip", "--sigmoid"}} {
		r := contraflow(t, "", append(args, more...)...)
		if skips := more[0] == "skip"; skips != (r.code == 0) || !strings.Contains(r.stderr, in+`:2, column "query": max length too short: `) || skips && !strings.Contains(r.stderr, "2 scores of 2 rows") {
			t.Errorf("distill %v: exit code %d\n%s", more, r.code, r.stderr)
		}
	}
	mine := []string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--cross-encoder", dir, "--input", in, "--query", "query", "--positive", "document", "--num-negatives", "1", "--max-score", "100", "--output", filepath.Join(dir, "mined.parquet")}
	if r := contraflow(t, "", mine...); r.code != 1 || !strings.Contains(r.stderr, `--cross-encoder: query "bird bird `) || !strings.Contains(r.stderr, "max length too short") {
		t.Errorf("mine: exit code %d\n%s", r.code, r.stderr)
	}
}

// What can't be read ends the command without a line, and what does not go together is a mistake in the command line.
func TestStreamErrors(t *testing.T) {
	model := goldens.Path(t, "bert/minilm-tiny")
	for _, c := range []struct {
		code  int
		stdin string
		args  []string
		want  string
	}{
		{1, `{"text": "a"}` + "\n" + `{"text": 5}`, []string{"--output", "-"}, `standard input:2, column "text": it is a number, want a string; --on-error skip writes null for rows`},
		{1, "", []string{"--output", "-"}, "standard input: no rows"},
		{1, `[{"text": "a"}`, []string{"--output", "-"}, "standard input ends after 1 elements of its JSON array"},
		{1, "text,id\na,1\n", []string{"--output", "-", "--on-error", "skip"}, "standard input: none of 2 rows is an object of JSON; the first line looks like CSV or TSV, where JSON lines are read"},
		{1, "\x1f\x8b\x08", []string{"--output", "-"}, "standard input is compressed, by gzip, where JSON lines are read: unpack it first (gzip -dc)"},
		{1, `{"txt": "a"}`, []string{"--output", "-"}, `standard input has no column "text" (did you mean "txt"?)`},
		{2, "", []string{"--output", "-", "--input", "a.jsonl"}, "--input - is standard input, and the only input"},
		{2, "", []string{"--output", "-", "--output-column", "x"}, "--output-column is for files: --output - writes lines to standard output"},
	} {
		r := contraflow(t, c.stdin, append([]string{"embed", "--model", model, "--input", "-"}, c.args...)...)
		if r.code != c.code || r.stdout != "" || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d, prints %q, want %q in\n%s", c.args, r.code, c.code, r.stdout, c.want, r.stderr)
		}
	}
}

// A text of whose tokens none has a weight has empty lists, as in parquet, and a row that is out is null.
func TestEmptyLists(t *testing.T) {
	cmd, out := newEmbed(), new(strings.Builder)
	cmd.SetOut(out)
	if err := newLines(cmd, lexical).lines(1, []any{[][]int32{nil}, [][]float32{nil}}, []int{0}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "null\n"+`{"lexical_ids":[],"lexical_weights":[]}`+"\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
