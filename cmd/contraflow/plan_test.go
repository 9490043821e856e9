package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"contraflow/testdata/goldens"
)

const mistral7B = `{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
	"vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "sliding_window": 4096, "hidden_act": "silu"}`

// settingsOf7B is the folder of such a model, without its weights, and with a small tokenizer.
func settingsOf7B(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(mustRead(t, filepath.Join(goldens.Path(t, "bert/minilm-tiny"), name))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(mistral7B), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A model of 7 billion parameters is planned from its settings alone, in seconds, on machines that would never hold it; and what is said to make it fit does.
func TestPlanOf7B(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	recipe := fmt.Sprintf(`
model: {path: %q, pooling: last, normalize: true, max_length: 64, lora: {rank: 16}}
data: {train: [{path: %q, query: query, positive: positive, negatives: [negative]}]}
batch: {global_size: 16}
train: {precision: bf16}
save: {dir: %q}
`, settingsOf7B(t), at("train.parquet"), at("run"))
	if err := os.WriteFile(at("7b.yaml"), []byte(recipe), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := func(args ...string) string {
		t.Helper()
		began := time.Now()
		out := succeed(t, append([]string{"plan", "-c", at("7b.yaml"), "--gpus", "8"}, args...)...).stdout
		if took := time.Since(began); took > 20*time.Second { // a second on a quiet machine
			t.Errorf("%v took %v", args, took)
		}
		return out
	}
	// 7,110,660,096 parameters, of LoRA 41,943,040 more, in f32 (as transformers and PEFT count them).
	if out := plan("--memory", "80GiB"); !strings.Contains(out, "memory   at most ") || !strings.Contains(out, ": model 26.6 GiB, packed weights 512 MiB, gradients 160 MiB, optimizer 320 MiB, ") || !strings.Contains(out, "fits     into 80.0 GiB: ") ||
		!strings.Contains(out, " may go to kept activations (the replay budget)") || strings.Contains(out, "rows/s") {
		t.Errorf("into 80 GiB:\n%s", out)
	}
	out := plan("--memory", "12GiB", "--tokens-per-s", "5000")
	_, way, ok := strings.Cut(out, "; it fits with ")
	if !ok || !strings.Contains(out, "fits     not into 12.0 GiB: the run needs ") || !strings.Contains(out, "compute  5000 tokens/s on each rank, of a device as given") || !strings.Contains(out, " rows/s") {
		t.Fatalf("into 12 GiB:\n%s", out)
	}
	way, _, _ = strings.Cut(way, "\n")
	args := []string{"--memory", "12GiB"}
	for _, s := range strings.Split(way, " and ") {
		key, value, _ := strings.Cut(s, ": ")
		args = append(args, "--set", key+"="+value)
	}
	if out := plan(args...); !strings.Contains(way, "mesh.parameters: streamed") || !strings.Contains(out, "fits     into 12.0 GiB: ") || !strings.Contains(out, "parameters streamed") {
		t.Errorf("with %s:\n%s", way, out)
	}
	var object struct {
		Ranks  int
		Fits   bool
		Memory map[string]int64 `json:"memory_bytes"`
	}
	if err := json.Unmarshal([]byte(plan("--memory", "80GiB", "--json")), &object); err != nil || object.Ranks != 8 || !object.Fits || object.Memory["model"] != 4*(7110660096+41943040) {
		t.Errorf("%v: %+v", err, object)
	}
	r := contraflow(t, "", "plan", "-c", at("7b.yaml"))
	if r.code != 1 || !strings.Contains(r.stderr, "has neither model.safetensors nor model.safetensors.index.json; --memory or --tokens-per-s plan without weights\n") {
		t.Errorf("measured without weights: exit code %d\n%s", r.code, r.stderr)
	}
}

// What the page on LLMs shows of plan is what plan prints.
func TestPlanOfPage(t *testing.T) {
	page := mustRead(t, filepath.Join("..", "..", "stages", "recipe", "llm", "README.md"))
	text := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page)[1]
	dir := t.TempDir()
	var rows strings.Builder
	long := strings.Repeat(" a", 512)
	for i := range 2048 {
		fmt.Fprintf(&rows, "{\"query\": \"q %d%s\", \"pos\": \"p %d%s\", \"neg\": [\"n %d%s\"]}\n", i, long, i, long, i, long)
	}
	data, config := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "recipe.yaml")
	text = strings.NewReplacer("intfloat/e5-mistral-7b-instruct", settingsOf7B(t), "data/*.jsonl", data).Replace(text)
	for file, text := range map[string]string{data: rows.String(), config: text} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shown := regexp.MustCompile("(?s)```sh\ncontraflow (plan [^\n]*)\n```\n\n```text\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(shown) != 3 {
		t.Fatalf("the page shows %d plans", len(shown))
	}
	for _, s := range shown {
		out := "\n" + succeed(t, strings.Fields(strings.ReplaceAll(s[1], "recipe.yaml", config))...).stdout
		for line := range strings.Lines(s[2]) {
			if !strings.Contains(out, "\n"+strings.TrimSuffix(line, "\n")) {
				t.Errorf("%s: the page has\n%splan says%s", s[1], line, out)
			}
		}
	}
}
