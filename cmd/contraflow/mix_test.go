package main

import (
	little "encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/hfmodel"
	"contraflow/testdata/goldens"
)

// A run's model and its base are mixed, and two of its checkpoints, and what comes of it embeds and goes on training. The weights by loss are in the order of the losses,
// which are those that eval.loss measures.
func TestMix(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	base := goldens.Path(t, "bert/minilm-tiny")
	rows := fmt.Sprintf("{path: %s, query: query, positive: positive, negatives: [negative]}", at("train.parquet"))
	succeed(t, "train", "--log", "human", "-c", at("recipe.yaml"), "--set", "train.max_steps=6", "--set", "save.every=2", "--set", "save.keep=2",
		"--set", "eval={at_start: true, metric: loss, loss: "+rows+"}", "--set", "batch.global_size=16")
	model := at("run/model")

	succeed(t, "mix", model, base, "--weights", "0.7,0.3", "--out", at("mixed"))
	succeed(t, "embed", "--model", at("mixed"), "--text", "the cat sat")
	a, b, m := parameters(t, model), parameters(t, base), parameters(t, at("mixed"))
	for name, vs := range m {
		for i, v := range vs {
			if want := float32(0.7*float64(a[name][i]) + 0.3*float64(b[name][i])); !(math.Abs(float64(v-want)) <= 0x1p-23*math.Abs(float64(want))) {
				t.Fatalf("%s[%d] is %v, want %v", name, i, v, want)
			}
		}
	}
	if len(m) != len(a) || len(m) == 0 {
		t.Errorf("%d tensors of %d", len(m), len(a))
	}
	succeed(t, "train", "--log", "human", "-c", at("recipe.yaml"), "--set", "train.max_steps=1", "--set", "eval.every=0", "--set", "model.path="+at("mixed"), "--out", at("on"))

	// Checkpoints: their parameters as package checkpoint reads them, and the last one's are those of the model.
	steps := []string{at("run/checkpoints/step-00000004"), at("run/checkpoints/step-00000006")}
	succeed(t, "mix", steps[0], steps[1], "--out", at("soup"))
	soup := parameters(t, at("soup"))
	first, last := checkpointOf(t, steps[0]), checkpointOf(t, steps[1])
	if len(first) == 0 || len(first) > len(soup) {
		t.Errorf("%d parameters in the checkpoint, %d tensors in the model", len(first), len(soup))
	}
	moved := 0.0
	for name, vs := range soup {
		if first[name] == nil { // the pooler, which does not train
			if fmt.Sprint(vs) != fmt.Sprint(a[name]) {
				t.Errorf("%s is not the model's", name)
			}
			continue
		}
		for i, v := range vs {
			x, y := float64(first[name][i]), float64(last[name][i])
			moved = max(moved, math.Abs(x-y))
			if v != float32((x+y)/2) || last[name][i] != a[name][i] {
				t.Fatalf("%s[%d] is %v, want the mean of %v and %v, which is the model's %v", name, i, v, x, y, a[name][i])
			}
		}
	}
	if !(moved >= 1e-5) {
		t.Errorf("between its checkpoints the run moved by %v", moved)
	}

	// By loss, of which the run has measured those of the base and of the model; it has masked nothing else.
	lines := metricLines(t, at("run/metrics.jsonl"))
	var losses []float64
	for _, l := range lines {
		if v, ok := l["value"].(float64); ok && l["metric"] == "loss" {
			losses = append(losses, v)
		}
	}
	if len(losses) < 2 {
		t.Fatalf("the run has measured %v", losses)
	}
	r := succeed(t, "mix", base, model, "--by-loss", at("train.parquet"), "--negatives", "negative", "--batch", "16", "--temperature", "0.5", "--out", at("by"))
	l, k := losses[0], losses[len(losses)-1]
	w := 1 / (1 + math.Exp((l-k)/0.5))
	for _, want := range []string{fmt.Sprintf("loss %.4f, weight %.4f: ", l, w), fmt.Sprintf("loss %.4f, weight %.4f: ", k, 1-w), "mixed model saved in " + at("by")} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	for name, vs := range parameters(t, at("by")) { // with the weights that it prints
		for i, v := range vs {
			x, y := float64(b[name][i]), float64(a[name][i])
			if want := w*x + (1-w)*y; !(math.Abs(float64(v)-want) <= 1e-6*(math.Abs(x)+math.Abs(y))+0.01*math.Abs(x-y)*math.Abs(1-2*w)) { // the losses are those that the run has printed
				t.Fatalf("%s[%d] is %v, want %v", name, i, v, want)
			}
		}
	}
	card, err := os.ReadFile(at("by/README.md"))
	if want := "Their weights are softmax(-loss / 0.5) of their losses on the rows of `" + filepath.ToSlash(at("train.parquet")) + "`, InfoNCE of cosines times 20 in batches of 16."; err != nil || !strings.Contains(string(card), want) {
		t.Errorf("%v: no %q in\n%s", err, want, card)
	}
	// Rows come in the order in which the files are named.
	var texts []string
	for i := range 4 {
		texts = append(texts, fmt.Sprintf(`{"query": "%s", "positive": "%s"}`+"\n", strings.Repeat("a cat ", i+1), strings.Repeat("the dog ", 2*i+1)))
	}
	write := func(name string, rows ...string) {
		if err := os.WriteFile(at(name), []byte(strings.Join(rows, "")), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("z.jsonl", texts[0])
	write("a.jsonl", texts[1:]...)
	write("in.jsonl", texts...)
	write("sorted.jsonl", append(texts[1:4:4], texts[0])...)
	measured := func(files ...string) string {
		args := []string{"mix", base, model, "--batch", "2", "--force", "--out", at("by")}
		for _, name := range files {
			args = append(args, "--by-loss", at(name))
		}
		return succeed(t, args...).stdout
	}
	if got, want, other := measured("z.jsonl", "a.jsonl"), measured("in.jsonl"), measured("sorted.jsonl"); got != want || got == other {
		t.Errorf("%s, want %s, and sorted %s", got, want, other)
	}
	if l == k {
		t.Errorf("both losses are %v", l)
	}

	twoPairs(t, at("by/dev.jsonl")) // in a model's folder, which --force replaces
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{model, base, "--out", at("mixed")}, 1, "holds a model already: --force replaces it"},
		{[]string{model, base, "--out", at("mixed"), "--force", "--precision", "bf16", "--method", "slerp"}, 0, "mixed model saved"},
		{[]string{model, base, "--out", model, "--force"}, 1, "would replace " + model + ", which is being mixed"},
		{[]string{steps[0], base, "--out", at("run/model"), "--force"}, 1, "would replace"},
		{[]string{model, base}, 2, "--out is missing"},
		{[]string{model, "--out", at("x")}, 2, "want at least two models to mix, and there is one\nNext: contraflow mix runs/x/model"},
		{[]string{model, base, "--out", at("x"), "--weights", "0.5"}, 2, "--weights has 1 numbers for 2 models: want one for each"},
		{[]string{model, base, "--out", at("x"), "--weights", "0.5,0.6"}, 2, "the weights sum to 1.1, want 1"},
		{[]string{model, base, "--out", at("x"), "--weights", "0.5,a"}, 2, `--weights is "0.5,a", want numbers, such as 0.7,0.3`},
		{[]string{model, base, "--out", at("x"), "--weights", "0.5,0.5", "--by-loss", "x.parquet"}, 2, "give one or the other"},
		{[]string{model, base, "--out", at("x"), "--temperature", "1"}, 2, "--temperature is of --by-loss"},
		{[]string{model, base, "--out", at("x"), "--by-loss", at("train.parquet"), "--temperature", "0"}, 2, "--temperature: a temperature of 0, want a number above 0"},
		{[]string{model, steps[0], "--out", at("x"), "--by-loss", at("none.parquet")}, 1, "is a checkpoint: losses are measured of models' folders"},
		{[]string{model, base, "--out", at("x"), "--by-loss", at("train.parquet"), "--batch", "1"}, 1, "no other document of its batch of 1 rows is a negative for it"},
		{[]string{model, base, "--out", at("x"), "--by-loss", at("train.parquet"), "--batch", "0"}, 2, "--batch"},
		{[]string{model, base, "--out", at("by"), "--force", "--by-loss", at("by/dev.jsonl")}, 1, "would replace " + at("by/dev.jsonl") + ", with which losses are measured"},
		{[]string{model, base, "--out", dir, "--by-loss", at("train.parquet")}, 1, "is not empty and holds no model"},
		{[]string{model, base, "--out", model, "--force", "--by-loss", at("train.parquet")}, 1, "would replace " + model + ", which is being mixed"},
		{[]string{model, goldens.Path(t, "bert/odd-sizes"), "--out", at("x"), "--by-loss", at("train.parquet")}, 1, "they pool otherwise"},
		{[]string{model, at("run"), "--out", at("x")}, 1, "the model is in " + model},
		{[]string{model, base, "--out", at("x"), "--by-loss", at("train.parquet"), "--positive", "pos"}, 1, `"pos"`},
	} {
		r := contraflow(t, "", append([]string{"mix"}, c.args...)...)
		if out := r.stdout + r.stderr; r.code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q in\n%s", c.args, r.code, c.code, c.want, out)
		}
		if strings.Contains(r.stdout, "weight ") {
			t.Errorf("%v: losses are measured of models that are not mixed:\n%s", c.args, r.stdout)
		}
	}
	if _, err := os.Stat(at("x")); err == nil {
		t.Error("a refused mix has written a folder")
	}

	if _, err := os.Stat(at("by/dev.jsonl")); err != nil {
		t.Error(err)
	}

	// A run that has no model yet, a damaged checkpoint, and one of another run.
	if err := os.Rename(model, at("moved")); err != nil {
		t.Fatal(err)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if r := contraflow(t, "", append([]string{"mix", "--out", at("x")}, args...)...); r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("exit code %d, want %q in\n%s", r.code, want, r.stderr)
		}
	}
	refused("has no model yet, whose tokenizer and configuration belong to them: let the run end", steps[0], steps[1])
	if err := os.CopyFS(model, os.DirFS(goldens.Path(t, "hfmodel/st6"))); err != nil {
		t.Fatal(err)
	}
	refused("they are not of one run", steps[0], steps[1])
	if err := os.Truncate(filepath.Join(steps[1], "rank-00000.safetensors"), 100); err != nil {
		t.Fatal(err)
	}
	refused("rank-00000.safetensors has 100 bytes, want", steps[1], steps[0])
}

// twoPairs writes two rows of queries and positives.
func twoPairs(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(`{"query": "a", "positive": "b"}`+"\n"+`{"query": "c", "positive": "d"}`+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
}

// parameters are a model's tensors of floats.
func parameters(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]float32{}
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = make([]float32, x.Len())
		if err := x.Float32s(out[name]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func checkpointOf(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	c, err := checkpoint.LoadFolder(dir, checkpoint.Disk{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out := map[string][]float32{}
	for _, p := range c.Parameters {
		raw := make([]byte, 4*p.Len())
		if err := c.Read("weights", p.Name, 0, raw); err != nil {
			t.Fatal(err)
		}
		for i := range p.Len() {
			out[p.Name] = append(out[p.Name], math.Float32frombits(little.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return out
}
