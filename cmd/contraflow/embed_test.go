package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

// diverged is a copy of a golden model that makes nothing finite of texts with a word, of which all weights are numbers.
func diverged(t *testing.T, golden, dir, word string) string {
	t.Helper()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, golden))); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizerOf(newTokenize(), dir)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := tok.ID(word)
	if !ok {
		t.Fatalf("the vocabulary has no %q", word)
	}
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []safetensors.Tensor
	found := false
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		x.Data = bytes.Clone(x.Data)
		if strings.HasSuffix(name, "embeddings.word_embeddings.weight") {
			numbers := make([]float32, x.Len())
			if err := x.Float32s(numbers); err != nil {
				t.Fatal(err)
			}
			for i := range x.Shape[1] {
				numbers[int(id)*x.Shape[1]+i] = 3e38
			}
			if x, err = safetensors.FromFloat32s(name, x.Shape, numbers); err != nil {
				t.Fatal(err)
			}
			found = true
		}
		tensors = append(tensors, x)
	}
	if err := f.Close(); err != nil || !found {
		t.Fatalf("word embeddings found: %v, %v", found, err)
	}
	if err := safetensors.Write(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A prompt that the model does not have is answered with those that it has, and with no rows.
func TestEmbedNoPrompt(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(in, []byte("text\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `contraflow: --prompt: no such prompt: "foo"; the model has "document", "query"; --prompt-text puts a text of yours before each` + "\n"
	for _, args := range [][]string{{"--text", "a"}, {"--input", in, "--output", filepath.Join(dir, "x.npy")}} {
		if r := contraflow(t, "", append([]string{"embed", "--model", goldens.Path(t, "bert/minilm-tiny"), "--prompt", "foo"}, args...)...); r.code != 2 || !strings.HasPrefix(r.stderr, want) {
			t.Errorf("%v: exit code %d\n%s", args, r.code, r.stderr)
		}
	}
}

// A model that has diverged is an error that names the first row of whose text it makes nothing finite, and leaves what was there.
func TestEmbedNotFinite(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	model := diverged(t, "bert/minilm-tiny", at("model"), "river")
	texts := []string{"the cat", "a dog", "the river", "a bird", "river"}
	var lines strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&lines, "{\"text\": %q}\n", text)
	}
	if err := os.WriteFile(at("a.jsonl"), []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, at("a.parquet"), []string{"text"}, texts)
	const why = "the embedding is not finite: the model's weights are broken"
	for _, c := range []struct{ input, output, where string }{
		{at("a.jsonl"), at("out.npy"), at("a.jsonl:3")}, {at("a.jsonl"), at("out.parquet"), at("a.jsonl:3")},
		{at("a.parquet"), at("out.parquet"), at("a.parquet: row group 0, row 2")},
	} {
		r := contraflow(t, "", "embed", "--model", model, "--input", c.input, "--output", c.output)
		if r.code != 1 || !strings.Contains(r.stderr, "contraflow: "+c.where+": "+why) {
			t.Errorf("%s to %s: exit code %d\n%s", c.input, c.output, r.code, r.stderr)
		}
	}
	if r := contraflow(t, "", "embed", "--model", model, "--text", "a cat", "--text", "a river"); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, `--text "a river": `+why) {
		t.Errorf("--text: exit code %d, %q\n%s", r.code, r.stdout, r.stderr)
	}
	if r := contraflow(t, "", "mine", "--model", model, "--input", at("a.jsonl"), "--query", "text", "--positive", "text", "--output", at("out.parquet")); r.code != 1 || !strings.Contains(r.stderr, `queries: "the river": `+why) {
		t.Errorf("mine: exit code %d\n%s", r.code, r.stderr)
	}
	if r := contraflow(t, "", "distill", "--model", model, "--input", at("a.jsonl"), "--query", "text", "--positive", "text", "--output", at("out.parquet")); r.code != 1 || !strings.Contains(r.stderr, "row 2: the teacher's score of document 0 is NaN") {
		t.Errorf("distill: exit code %d\n%s", r.code, r.stderr)
	}
	cross := diverged(t, "rerank/cross", at("cross"), "river")
	if r := contraflow(t, "", "rerank", "--model", cross, "--input", at("a.jsonl"), "--query-column", "text", "--document-column", "text", "--output", at("out.parquet")); r.code != 1 || !strings.Contains(r.stderr, at("a.jsonl")+":3: the score is NaN: the model's weights,") {
		t.Errorf("rerank: exit code %d\n%s", r.code, r.stderr)
	}
	// The row is the right one too behind rows that are left out, and in a later chunk, as a further file begins one.
	for name, text := range map[string]string{"b.jsonl": `{"text": "the cat"}` + "\n" + `{"text": 1}` + "\n", "c.jsonl": `{"text": "a dog"}` + "\n" + `{"text": null}` + "\nno json\n" + `{"text": ""}` + "\n" + `{"text": "river"}` + "\n"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"embed", "--model", model}, {"rerank", "--model", cross, "--query-column", "text", "--document-column", "text"}} {
		r := contraflow(t, "", append(args, "--input", at("b.jsonl"), "--input", at("c.jsonl"), "--output", at("out.parquet"), "--on-error", "skip")...)
		if r.code != 1 || !strings.Contains(r.stderr, at("c.jsonl")+":5: the ") {
			t.Errorf("%s: exit code %d\n%s", args[0], r.code, r.stderr)
		}
	}
	if left, _ := filepath.Glob(at("*out*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Of a tokenizer without special tokens an empty text has no tokens: the row is named.
func TestNoTokens(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, []byte(`{"text": "a cat"}`+"\n"+`{"text": ""}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const why = ": the tokenizer makes no tokens of it, and the model reads at least one"
	for command, golden := range map[string]string{"embed": "bert/minilm-tiny", "rerank": "rerank/cross"} {
		model := filepath.Join(dir, command)
		if err := os.CopyFS(model, os.DirFS(goldens.Path(t, golden))); err != nil {
			t.Fatal(err)
		}
		var tokenizer map[string]any
		path := filepath.Join(model, "tokenizer.json")
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &tokenizer)
		}
		if err != nil {
			t.Fatal(err)
		}
		tokenizer["post_processor"] = nil
		if data, err = json.Marshal(tokenizer); err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		args := []string{command, "--model", model, "--input", in, "--output", "-"}
		if command == "rerank" {
			args = append(args, "--query-column", "text", "--document-column", "text")
		} else if r := contraflow(t, "", command, "--model", model, "--text", "a", "--text", ""); r.code != 1 || !strings.Contains(r.stderr, `--text ""`+why) {
			t.Errorf("--text: exit code %d\n%s", r.code, r.stderr)
		}
		if r := contraflow(t, "", args...); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, in+":2"+why) {
			t.Errorf("%s: exit code %d, %q\n%s", command, r.code, r.stdout, r.stderr)
		}
		if r := contraflow(t, "", append(args, "--on-error", "skip")...); command == "rerank" && (r.code != 0 || !strings.HasSuffix(r.stdout, "\nnull\n") || strings.Count(r.stdout, "\n") != 2) {
			t.Errorf("%s, skipping: exit code %d, %q\n%s", command, r.code, r.stdout, r.stderr)
		}
	}
}
