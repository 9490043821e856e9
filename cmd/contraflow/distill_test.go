package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// What distill's help shows is what to type: its command, after mine, prints the entry for data.train that the help has, and training takes that. A run that
// takes the miner's own scores for a teacher's is told so, also of what distill has passed on; but of a reranker's, which mine writes as well, it is not.
func TestDistillEntry(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	model, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	mine := []string{"mine", "--model", model, "--input", at("train.parquet"), "--num-negatives", "2", "--output"}
	succeed(t, append(mine, at("mined.parquet"))...)

	help := newDistill()
	entry := regexp.MustCompile(`\{path: .*\}`).FindString(help.Long)
	args := commandLine(help.Example)
	for flag, value := range map[string]string{"--model": cross, "--input": at("mined.parquet"), "--output": at("scored.parquet")} {
		args[slices.Index(args, flag)+1] = value
	}
	said := succeed(t, args...).stderr
	if want := strings.Replace(entry, "scored.parquet", inYAML(at("scored.parquet")), 1); !strings.Contains(said, "data.train takes as "+want+"\n") {
		t.Errorf("distill says %q, want %q", said, want)
	}
	succeed(t, append(mine, at("cross.parquet"), "--cross-encoder", cross, "--max-score", "100")...)
	train := func(entry string) string {
		recipe := fmt.Sprintf("model: {path: %q}\ndata: {train: [%s]}\nbatch: {global_size: 8}\nloss: {name: margin_mse}\ntrain: {max_steps: 1}\nsave: {dir: %q}\n", model, entry, at("run"))
		if err := os.WriteFile(at("recipe.yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
		return succeed(t, "train", "-c", at("recipe.yaml"), "--log", "human").stderr
	}
	for _, c := range []struct {
		file, scores string
		note         bool
	}{
		{"scored.parquet", "teacher", false}, {"scored.parquet", "scores", true}, {"mined.parquet", "scores", true}, {"cross.parquet", "scores", false},
	} {
		entry := strings.NewReplacer("scored.parquet", inYAML(at(c.file)), "scores: teacher", "scores: "+c.scores).Replace(entry)
		want := "note: data.train[0]: " + at(c.file) + `: the scores in column "scores" are those of the model by which contraflow mine has found the negatives`
		if said := train(entry); strings.Contains(said, want) != c.note {
			t.Errorf("%s: says so %v, want %v\n%s", entry, !c.note, c.note, said)
		}
	}
	// Names that YAML would take for something else are quoted, columns that are no lists have no number of negatives.
	r := succeed(t, "distill", "--model", cross, "--input", at("train.parquet"), "--positive", "{positive} {negative}", "--negatives", "negative", "--output", at("b.parquet"), "--output-column", "yes")
	if want := `, query: query, positive: "{positive} {negative}", negatives: [negative], scores: "yes"}` + "\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("says %q, want %q", r.stderr, want)
	}
	train(regexp.MustCompile(`\{path: .*\}`).FindString(r.stderr))
	// Without negatives the entry is for few losses, which is said.
	const alone = "note: these are scores of positives alone: margin_mse, distill_kl"
	bare := succeed(t, "distill", "--model", cross, "--input", at("train.parquet"), "--output", at("c.parquet"), "--output-column", "scores")
	if !strings.Contains(bare.stderr, alone) || strings.Contains(r.stderr, alone) {
		t.Errorf("without negatives says %q, with them %q", bare.stderr, r.stderr)
	}
}
