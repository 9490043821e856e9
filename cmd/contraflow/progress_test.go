package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// What shows how far a command has come ends with all of it, also of several files.
func TestProgressEnds(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	model, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	two := []string{"--input", at("train.parquet"), "--input", at("train.parquet")}
	for what, args := range map[string][]string{
		" pairs reranked": {"rerank", "--model", cross, "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--top", "5"},
		" pairs":          append([]string{"rerank", "--model", cross, "--document-column", "positive", "--output", at("scores.parquet")}, two...),
		" texts":          append([]string{"embed", "--model", model, "--column", "query", "--output", at("x.parquet")}, two...),
		"texts":           append([]string{"embed", "--model", model, "--column", "query", "--output", at("x.npy")}, two...),
		" rows":           append([]string{"distill", "--model", cross, "--output", at("scored.parquet")}, two...),
		"documents":       append([]string{"mine", "--model", model, "--output", at("mined.parquet")}, two...),
	} {
		r := succeed(t, args...)
		done, all := "", ""
		for line := range strings.Lines(r.stderr) {
			line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  ") // behind it, if that took long, how fast it was
			f := strings.Fields(line)
			if len(f) > 2 && f[1] == "of" && strings.HasSuffix(line, what) {
				done, all = f[0], f[2]
			} else if args[0] == "mine" && strings.HasPrefix(line, "100 % of ") {
				done, all = "100", "100"
			}
		}
		if done == "" || done != all {
			t.Errorf("%s ends with %q of %q %s\n%s", args[0], done, all, what, r.stderr)
		}
	}
}

// embed says how far it is before the first of the chunks in which it reads is done.
func TestProgressWithin(t *testing.T) {
	dir := t.TempDir()
	texts, out := filepath.Join(dir, "t.jsonl"), filepath.Join(dir, "x")
	if err := os.WriteFile(texts, []byte(strings.Repeat(`{"text": "a river of stone and a house of light"}`+"\n", 3000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"dense": {"--model", goldens.Path(t, "bert/minilm-tiny"), "--output", out + ".npy"}, "sparse": {"--model", goldens.Path(t, "splade/encoder"), "--output", out + ".parquet"},
		"lines": {"--model", goldens.Path(t, "bert/minilm-tiny"), "--output", "-"},
	} {
		said := succeed(t, append([]string{"embed", "--input", texts}, args...)...).stderr
		first := regexp.MustCompile(`\n(\d+) of 3000 texts`).FindStringSubmatch(said)
		if first == nil || first[1] == "3000" || strings.Count(said, "\n3000 of 3000 texts") != 1 {
			t.Errorf("%s: embed says\n%s", name, said)
		}
	}
}

// What a log keeps is a line in ten seconds, a terminal's one each second, and the last line is said at any time.
func TestDue(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		ago      time.Duration
		done     bool
		want     bool
	}{
		{false, 2 * time.Second, false, false}, {false, 11 * time.Second, false, true}, {false, 0, true, true},
		{true, 2 * time.Second, false, true}, {true, time.Second / 2, false, false}, {true, 0, true, true},
	} {
		u := &ui{terminal: c.terminal, said: time.Now().Add(-c.ago)}
		if got := u.due(c.done); got != c.want || got && u.due(false) {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// Every command says how much of the data that is elsewhere has arrived, unless it is quiet.
func TestProgressOfDownloads(t *testing.T) {
	for quiet, want := range map[string]string{"false": "downloading a.jsonl: 4 KiB of 4 KiB\n", "true": ""} {
		root := newRoot()
		reads := &cobra.Command{Use: "reads", RunE: func(cmd *cobra.Command, _ []string) error {
			dataset.Progress(cmd.Context())("a.jsonl", 4096, 4096)
			return nil
		}}
		addQuiet(reads, "errors")
		root.AddCommand(reads)
		var said strings.Builder
		root.SetErr(&said)
		root.SetArgs([]string{"reads", "--quiet=" + quiet})
		if err := root.Execute(); err != nil || said.String() != want {
			t.Errorf("quiet %s: %q, %v; want %q", quiet, said.String(), err, want)
		}
	}
}
