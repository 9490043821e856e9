package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// A run into a folder with a run's model says so at its start, and replaces it: the same command may be given twice. What commands write for people
// replaces what is of its kind, by whatever name, and never a file of another kind. A run's folder stands for its traces, and what is no checkpoint among
// those of a run is told with those that are.
func TestKept(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	config, run := at("recipe.yaml"), at("run")
	train := []string{"train", "-c", config, "--log", "human", "--set", "train.max_steps=2", "--set", "mesh.replicate=2", "--set", "eval=null", "--out", run}
	note := "note: " + filepath.Join(run, "model") + " is the model of a run before this one, which takes its place at its end"
	if r := succeed(t, append(train, "--trace")...); strings.Contains(r.stderr, note) {
		t.Errorf("says %s", r.stderr)
	}
	if r := succeed(t, append(train, "--set", "save.every=1", "--trace")...); strings.Count(r.stderr, note) != 1 || strings.Index(r.stderr, note) > strings.Index(r.stderr, "step 1/2") {
		t.Errorf("says %s", r.stderr)
	}
	if r := contraflow(t, "", "train", "-c", config, "--out", run); r.code != 1 || !strings.Contains(r.stderr, "--resume goes on") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	task := []string{"--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")}
	model := goldens.Path(t, "bert/minilm-tiny")
	for _, c := range []struct {
		flag, kind string
		args       []string
	}{
		{"--run", "ranking", append([]string{"eval", "--model", model}, task...)},
		{"--out", "page of HTML", []string{"report", run}},
		{"--out", "drawing in svg", []string{"graph", "-c", config, "--format", "svg"}},
		{"--out", "drawing in dot", []string{"graph", "-c", config, "--format", "dot"}},
		{"--out", "drawing in mermaid", []string{"graph", "-c", config}},
		{"--cpu-profile", "profile", []string{"bench", "gemm", "--shape", "4,4,4", "--seconds", "0"}},
	} {
		out := at("notes.txt")
		if err := os.WriteFile(out, []byte(`{"q": "my data"}`+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%s %s is a file already, and no %s", c.flag, out, c.kind)
		if r := contraflow(t, "", append(c.args, c.flag, out)...); r.code != 2 || !strings.Contains(r.stderr, want) || mustRead(t, out) != `{"q": "my data"}`+"\n" {
			t.Errorf("exit code %d, want %q in %s", r.code, want, r.stderr)
		}
		if err := os.Truncate(out, 0); err != nil { // as mktemp makes one
			t.Fatal(err)
		}
		for range 2 {
			succeed(t, append(c.args, c.flag, out)...)
		}
	}
	one := succeed(t, "trace", "summary", filepath.Join(run, "trace.json")).stdout
	if all := succeed(t, "trace", "summary", run).stdout; !strings.Contains(all, one) || !strings.Contains(all, filepath.Join(run, "trace.1.json")+"\n") {
		t.Errorf("%s of rank 0, %s of the folder", one, all)
	}
	if r := contraflow(t, "", "trace", "summary", dir); r.code != 1 || !strings.Contains(r.stderr, dir+" has no trace.json: train --trace") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	checkpoints := filepath.Join(run, "checkpoints")
	for path, want := range map[string]string{
		filepath.Join(checkpoints, "step-00000054"):             checkpoints + " has step-00000001, step-00000002",
		filepath.Join(dir, "other/checkpoints/step-00000001"):   filepath.Join(dir, "other/checkpoints") + " has none",
		filepath.Join(checkpoints, "step-00000001", "..", "st"): checkpoints + " has step-00000001, step-00000002",
	} {
		if r := contraflow(t, "", "mix", path, filepath.Join(checkpoints, "step-00000002"), "--out", at("mixed")); r.code != 1 || !strings.Contains(r.stderr, " is no checkpoint: "+want) || strings.Contains(r.stderr, "Next:") {
			t.Errorf("exit code %d, want %q in %s", r.code, want, r.stderr)
		}
	}
	if r := contraflow(t, "", "train", config); r.code != 2 || !strings.Contains(r.stderr, fmt.Sprintf("unexpected argument %q; a recipe is named by -c %s", config, config)) {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	quiet := append([]string{"eval", "--model", model}, task...)
	if loud, r := succeed(t, quiet...), succeed(t, append(quiet, "--quiet")...); !strings.Contains(loud.stderr, "embedded") || r.stderr != "" || r.stdout != loud.stdout {
		t.Errorf("%s and quietly %s", loud.stderr, r.stderr)
	}
	mine := []string{"mine", "--model", model, "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1"}
	if loud, r := succeed(t, mine...), succeed(t, append(mine, "--quiet")...); !strings.Contains(loud.stderr, "embedded") || r.stderr != "" {
		t.Errorf("%s and quietly %s", loud.stderr, r.stderr)
	}
}

// Commands that write what they compute of texts refuse, before they open the model, a file that they read, under any of its names, and one that
// contraflow has not written; their own they write anew. One parquet file may be both input and output, whoever wrote it.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("rows.parquet"), []string{"query", "positive", "text"}, []string{"the cat", "the dog", "the bird"}, []string{"a river", "a road", "a house"}, []string{"a river", "a road", "a house"})
	foreign, err := os.ReadFile("../../testdata/golden/dataset/bag.parquet") // of another program
	if err != nil {
		t.Fatal(err)
	}
	mine := []byte(`{"text": "my data"}` + "\n")
	for name, content := range map[string][]byte{"theirs.parquet": foreign, "lines.parquet": mine, "lines.npy": mine, "empty.parquet": nil, "empty.npy": nil, "lines.jsonl": mine} {
		if err := os.WriteFile(at(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"link.parquet", "link.npy"} {
		if err := os.Link(at("lines.jsonl"), at(to)); err != nil {
			t.Fatal(err)
		}
	}
	const unwritten = " is a file already, and not written by contraflow: give another name, or remove it"
	embedder, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	for _, c := range []struct {
		ending, model string
		args          []string
	}{
		{".parquet", embedder, []string{"embed", "--prompt", ""}},
		{".npy", embedder, []string{"embed", "--prompt", ""}},
		{".parquet", embedder, []string{"mine", "--num-negatives", "1", "--range-max", "2"}},
		{".parquet", embedder, []string{"distill"}},
		{".parquet", cross, []string{"rerank", "--document-column", "text"}},
	} {
		for name, want := range map[string]string{"theirs.parquet": unwritten, "lines.parquet": unwritten, "lines.npy": " is a file already, and no array of NumPy: ", "link" + c.ending: " is a file that is read: it would be replaced"} {
			if filepath.Ext(name) != c.ending {
				continue
			}
			was := mustRead(t, at(name))
			r := contraflow(t, "", append(c.args, "--model", at("nowhere"), "--input", at("rows.parquet"), "--input", at("lines.jsonl"), "--output", at(name))...)
			if r.code != 2 || !strings.Contains(r.stderr, "--output "+at(name)+want) || mustRead(t, at(name)) != was {
				t.Errorf("%v to %s: exit code %d, want %q in %s", c.args, name, r.code, want, r.stderr)
			}
		}
		for range 2 {
			succeed(t, append(c.args, "--model", c.model, "--input", at("rows.parquet"), "--output", at("empty"+c.ending))...)
		}
		if err := os.Remove(at("empty" + c.ending)); err != nil {
			t.Fatal(err)
		}
	}
	succeed(t, "embed", "--model", embedder, "--prompt", "", "--column", "query", "--input", at("theirs.parquet"), "--output", at("theirs.parquet"))
}

// init says what it has made of how many texts, and has as many tokens as a config.json says, unless --vocab says otherwise.
func TestInitFigures(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	lines := `{"text": ""}` + "\n"
	for i := range 60 {
		lines += fmt.Sprintf(`{"text": "%c%c word%d other%d"}`+"\n", 'a'+i%26, 'a'+i%7, i*7, i*11)
	}
	for name, text := range map[string]string{
		"texts.jsonl": lines,
		"config.json": `{"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32, "type_vocab_size": 2, "vocab_size": 90}`,
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for out, c := range map[string]struct {
		more []string
		want string
	}{
		"shape": {[]string{"--config", at("config.json")}, "a vocabulary of 90 tokens, from 61 texts\n1 text is empty\na new model of 0.0136 million parameters is in "},
		"said":  {[]string{"--config", at("config.json"), "--vocab", "100"}, "a vocabulary of 100 tokens, from 61 texts\n"},
		"few":   {[]string{"--static", "--hidden", "8"}, " tokens, and not 30000: the texts give no more, from 61 texts\n"},
	} {
		if r := succeed(t, append([]string{"init", "--out", at(out), "--input", at("texts.jsonl")}, c.more...)...); !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: says %s, want %q", out, r.stderr, c.want)
		}
	}
}
