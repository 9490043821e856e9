package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"contraflow/testdata/goldens"
)

// benchJSON runs a benchmark and decodes what it prints.
func benchJSON(t *testing.T, stdin string, args ...string) []map[string]any {
	t.Helper()
	r := contraflow(t, stdin, append([]string{"bench"}, args...)...)
	if r.code != 0 {
		t.Fatalf("%v: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	var out []map[string]any
	for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
		var v map[string]any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%v: %v in %s", args, err, r.stdout)
		}
		out = append(out, v)
	}
	if r.stderr != "" {
		t.Errorf("%v said %s", args, r.stderr)
	}
	return out
}

// Each benchmark, as small as can be: a JSON object, and a table for people.
func TestBench(t *testing.T) {
	dir := workspace(t)
	model := goldens.Path(t, "bert/minilm-tiny")
	data := []string{"--data", filepath.Join(dir, "train.parquet")}
	step := append([]string{"step", "--model", model, "--batch", "8", "--max-length", "16", "--steps", "2", "--warmup", "1"}, data...)
	short := append([]string{"step", "--model", model, "--batch", "8", "--steps", "1", "--warmup", "0"}, data...)
	with := func(args []string, more ...string) []string { return append(args[:len(args):len(args)], more...) }
	several := "scaling" // that of one thread to more
	if runtime.GOMAXPROCS(0) == 1 {
		several = "8x16x8"
	}
	for _, c := range []struct {
		args  []string
		keys  string
		table string
	}{
		{[]string{"gemm", "--shape", "30,20,10", "--shape", "8,16,8", "--seconds", "0"}, "machine rounds cases", several},
		{[]string{"gemm", "--shape", "30,20,10", "--seconds", "0", "--threads", "1"}, "machine rounds cases", "30x20x10"},
		{[]string{"ops", "--pairs", "1", "--rows", "20", "--only", "ga", "--seconds", "0"}, "ops threads precision peak_resident_bytes", "gather"},
		{step, "seconds_per_step pairs_per_s tokens_per_s gflop_per_s peak_gflop_per_s percent_of_peak peak_resident_bytes stages", "backward"},
		{with(step, "--precision", "bf16", "--cache", "always", "--sub-batch", "30"), "precision stages", "bf16, cache always (0 KiB kept at most: 0 % of sub-batches)"},
		{with(step, "--cache", "never"), "cache stages", "everything kept"},
		{with(step, "--replay-budget", "1MiB", "--threads", "1"), "replay_budget_bytes kept_percent", "1 MiB kept at most: 100 % of sub-batches), 1 thread"},
		{with(step, "--embed"), "texts_per_s tokens_per_text", "texts/s"},
		{short, "tokens_per_s", "pairs/s"}, // a model of fewer positions than the default's 128
		{with(short, "--embed"), "texts_per_s", "texts/s"},
		{with(step, "--embed", "--precision", "bf16"), "texts_per_s tokens_per_text", "bf16"},
		{with([]string{"tokenize", "--model", model, "--seconds", "0"}, data...), "ways tokens text_bytes", "MB/s"},
		{with([]string{"read", "--seconds", "0"}, data...), "ways rows text_bytes", "shuffled"},
	} {
		rs := benchJSON(t, "", with(c.args, "--json")...)
		if len(rs) != 1 || rs[0]["bench"] != c.args[0] {
			t.Errorf("%v printed %v", c.args, rs)
		}
		for _, k := range strings.Fields(c.keys) {
			if _, ok := rs[0][k]; !ok {
				t.Errorf("%v has no %s: %v", c.args, k, rs[0])
			}
		}
		if out := succeed(t, with([]string{"bench"}, c.args...)...).stdout; !strings.Contains(out, c.table) {
			t.Errorf("%v printed no %q:\n%s", c.args, c.table, out)
		}
	}
}

// What flags say is what is measured, and nothing is left of what a benchmark has made for itself.
func TestBenchFlags(t *testing.T) {
	data := filepath.Join(workspace(t), "train.parquet")
	tmp, profile := t.TempDir(), filepath.Join(t.TempDir(), "cpu.pprof")
	t.Setenv("TMPDIR", tmp)
	tokens := func(more ...string) float64 {
		args := append([]string{"bench", "tokenize", "--data", data, "--seconds", "0", "--json"}, more...)
		var v struct{ Tokens float64 }
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &v); err != nil {
			t.Fatal(err)
		}
		return v.Tokens
	}
	if all, cut := tokens(), tokens("--max-length", "3"); cut != 2*3*160 || all <= cut {
		t.Errorf("%v tokens, cut to 3 a text %v", all, cut)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	r := benchJSON(t, "", "layers", "--layers", "1,2", "--rounds", "1", "--rows", "2", "--tokens", "5", "--hidden", "64", "--lora", "3", "--threads", "1", "--json")[0]
	if depths, _ := r["depths"].([]any); r["lora_rank"] != 3.0 || r["rows"] != 2.0 || r["tokens"] != 5.0 || r["hidden"] != 64.0 || r["threads"] != 1.0 || len(depths) != 2 {
		t.Errorf("%v", r)
	}
	r = benchJSON(t, "", "step", "--model", goldens.Path(t, "bert/minilm-tiny"), "--data", data, "--batch", "8", "--max-length", "16", "--steps", "1", "--warmup", "2", "--json")[0]
	if r["steps"] != 1.0 || r["batch"] != 8.0 {
		t.Errorf("%v", r)
	}
	if r := contraflow(t, "", "bench", "ops", "--only", "warp", "--cpu-profile", profile); r.code != 1 || !strings.HasPrefix(mustRead(t, profile), "\x1f\x8b") {
		t.Errorf("exit code %d, and no profile\n%s", r.code, r.stderr)
	}
	for embed, want := range map[bool]int{false: 64, true: 512} {
		o := stepFlags{embed: embed, steps: 1, maxLength: 9, precision: "f32", cache: "auto"}
		if r, err := o.recipe(); err != nil || r.Batch.GlobalSize != want || o.batch != want {
			t.Errorf("embed %t: %d rows, want %d (%v)", embed, o.batch, want, err)
		}
	}
	gemm, _, err := newRoot().Find([]string{"bench", "gemm"})
	if err == nil {
		err = gemm.ParseFlags([]string{"--seconds", "2.5"})
	}
	if d := duration(gemm); err != nil || d != 2500*time.Millisecond {
		t.Errorf("%v, %v", d, err)
	}
}

// A script drives it: a line in, a line out.
func TestBenchPaced(t *testing.T) {
	rs := benchJSON(t, "\n\n\n", "step", "--paced", "--model", goldens.Path(t, "bert/minilm-tiny"), "--data", filepath.Join(workspace(t), "train.parquet"),
		"--batch", "8", "--max-length", "16", "--warmup", "0")
	if len(rs) != 5 || rs[0]["ready"] != true || rs[4]["bench"] != "step" || rs[4]["steps"] != 3.0 {
		t.Fatalf("%v", rs)
	}
	for _, r := range rs[1:4] {
		if r["pairs"] != 8.0 || r["tokens"].(float64) < 16 || r["peak_resident_bytes"] == 0.0 {
			t.Errorf("%v", r)
		}
	}
	rs = benchJSON(t, "\n\n", "gemm", "--paced", "--shape", "8,16,8")
	if len(rs) != 3 || rs[2]["rounds"] != 2.0 {
		t.Errorf("%v", rs)
	}
}

// Without --data the Go sources serve.
func TestBenchOwnData(t *testing.T) {
	r := benchJSON(t, "", "read", "--seconds", "0", "--json")[0]
	if rows := r["rows"].(float64); rows < 1000 || !strings.Contains(r["data"].(string), "Go sources") {
		t.Errorf("%v", r)
	}
}

func TestBenchUsage(t *testing.T) {
	model, data := goldens.Path(t, "bert/minilm-tiny"), filepath.Join(workspace(t), "train.parquet")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 0, "contraflow bench step"},
		{"gem", 2, `unknown benchmark "gem"; did you mean gemm?`},
		{"gemm extra", 2, `unexpected argument "extra"`},
		{"gemm --shape 1,2", 2, `--shape is "1,2", want M,N,K`},
		{"gemm --shape 1,2,3,4", 2, `--shape is "1,2,3,4"`},
		{"gemm --shape 1,0,3", 2, "want M,N,K"},
		{"gemm --shape 3037000500,3037000500,2", 1, "of memory are available"},
		{"gemm --shape 9223372036854775807,1,1", 1, "of memory are available"},
		{"ops --only gather --pairs 1000000", 1, "of memory are available"},
		{"gemm --threads 0", 2, "--threads is 0"},
		{"gemm --seconds NaN", 2, "--seconds is NaN, want 0 to 999,999"},
		{"gemm --seconds -1", 2, "--seconds is -1, want 0 to 999,999"},
		{"step --batch 0", 2, "--batch is 0, want at least 1"},
		{"step --batch 100000 --model " + model + " --data " + data, 1, "contraflow: --batch is 100000, and the data has 160 rows: want no more than these"},
		{"ops --precision f16", 2, `--precision is "f16", want f32 or bf16`},
		{"gemm --threads 10000", 2, "--threads is 10000"},
		{"ops --rows 0", 2, "--pairs and --rows want 1 to 1,000,000"},
		{"ops --pairs 100000000", 2, "--pairs and --rows want 1 to 1,000,000"},
		{"tokenize --max-length -3", 2, "--max-length is -3"},
		{"ops --only warp", 1, "no op has \"warp\" in its name; there are: gather"},
		{"step --precision auto", 2, `--precision is "auto", want f32, bf16 or tf32`},
		{"step --embed --precision tf32", 2, `--precision is "tf32", want f32 or bf16`},
		{"step --precision tf32 --model " + model + " --data " + data, 1, "--precision: tf32 is how NVIDIA's GPUs multiply"},
		{"step --cache sometimes", 2, `--cache is "sometimes", want auto, always or never`},
		{"step --replay-budget much", 2, "want an amount of memory such as 8GiB"},
		{"step --sub-batch none", 2, "batch.sub_batch"},
		{"step --steps 0", 2, "--steps and --batch want 1 or more"},
		{"step --model ./nowhere --data " + data, 1, "nowhere"},
		{"step --model " + model + " --data " + data + " --max-length 16 --query question", 1, `"question"`},
		{"step --model " + model + " --data " + data + " --batch 5000 --max-length 16", 1, "--batch"},
		{"step --model " + model + " --data " + data + " --max-length 4000", 1, "4000 tokens is beyond the model's 48 positions"},
		{"read --data nothing.parquet", 1, "nothing.parquet"},
		{"tokenize --model ./nowhere --data " + data, 1, "nowhere"},
	} {
		r := contraflow(t, "", append([]string{"bench"}, strings.Fields(c.args)...)...)
		if out := r.stdout + r.stderr; r.code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("bench %s: exit code %d, want %d and %q in\n%s", c.args, r.code, c.code, c.want, out)
		}
	}
}
