package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, "contraflow quickstart --out q"},
		{[]string{"version"}, 0, "contraflow "},
		{[]string{"doctor", "--seconds", "0"}, 0, "GFLOP/s"},
		{[]string{"trian"}, 2, `unknown command "trian"; did you mean train?`},
		{[]string{"tran", "-c", "recipe.yaml", "--resume"}, 2, `unknown command "tran"; did you mean train?`},
		{[]string{"--confg"}, 2, "unknown flag: --confg"},
		{[]string{"embed", "--model", "m", "--text", "a\xffb"}, 2, `--text "a\xffb" is not valid UTF-8`},
		{[]string{"--version"}, 0, "contraflow "},
		{[]string{"help", "trian"}, 2, `unknown command "trian"; did you mean train?`},
		{[]string{"help", "bench", "gemm"}, 0, "contraflow bench gemm"},
		{[]string{"train"}, 2, "--config is missing\nNext: contraflow train -c recipe.yaml\nSee 'contraflow train --help'."},
		{[]string{"train", "-c", "."}, 1, ". is a folder, want a YAML file; contraflow recipe embedder > recipe.yaml"},
		{[]string{"trace", "summary"}, 2, "Next: contraflow trace summary runs/x\n"},
		{[]string{"doctor", "--seconds", "-1"}, 2, "--seconds is -1, want 0 to 3600"},
		{[]string{"train", "--confg", "x"}, 2, "unknown flag: --confg; did you mean --config?"},
		{[]string{"train", "--output", "x"}, 2, "unknown flag: --output; did you mean --out?\n"},
		{[]string{"embed", "--out", "x"}, 2, "unknown flag: --out; did you mean --output?\n"},
		{[]string{"train", "--lr", "1e-5"}, 2, "unknown flag: --lr; a recipe has optimizer.lr, which --set overrides\n"},
		{[]string{"train", "--gradient_accumulation_steps", "4"}, 2, "; a recipe has batch.accumulate, which --set overrides\n"},
		{[]string{"embed", "--batch_size", "32"}, 2, "; texts go through the model in passes of the size that the device likes\n"},
		{[]string{"mine", "--margin", "0.1"}, 2, "unknown flag: --margin; did you mean --absolute-margin or --relative-margin?\n"},
		{[]string{"rerank", "--top-k", "3"}, 2, "unknown flag: --top-k; did you mean --top?\n"},
		{[]string{"train", "--device", "cpu"}, 2, "; a recipe has train.device, which --set overrides\n"},
		{[]string{"train", "--resume_from_checkpoint", "x"}, 2, "; did you mean --resume?\n"},
		{[]string{"train", "-r"}, 2, "unknown shorthand flag: 'r' in -r\n"},
		{[]string{"quickstart", "--lr", "1e-5"}, 2, "; a recipe has optimizer.lr, which --set overrides\n"},
		{[]string{"init", "--device", "cpu"}, 2, "unknown flag: --device\n"},
		{[]string{"bench", "step", "--batch-size", "8"}, 2, "; did you mean --batch?\n"},
		{[]string{"tokenize", "--batch-size", "8"}, 2, "unknown flag: --batch-size\n"},
		{[]string{"rerank", "--model", "m", "--input", "x.parquet", "--output", "x.npy"}, 2, "--output x.npy: what is written is parquet"},
		{[]string{"train", "nowhere.yaml"}, 2, `unexpected argument "nowhere.yaml"; a recipe is named by -c nowhere.yaml` + "\n"},
		{[]string{"recipe"}, 2, "which one?"},
		{[]string{"quickstart", "--out", "q", "--reranker-steps", "3"}, 2, "--reranker-steps are of --reranker, which is not given"},
		{[]string{"quickstart", "--out", "q", "--reranker", "--reranker-steps", "-3"}, 2, "--reranker-steps is -3, want at least 1"},
		{[]string{"recipe", "embeder"}, 2, "did you mean embedder?"},
		{[]string{"recipe", "lora"}, 0, "targets:"},
		{[]string{"train", "-c", "nothing.yaml"}, 1, "contraflow recipe embedder > recipe.yaml"},
		{[]string{"embed", "--model", "./nowhere", "--text", "a"}, 1, "Next: contraflow init"},
		{[]string{"rerank", "--model", "m", "--input", "a.parquet", "--output", "b.parquet", "--first", "e"}, 2, "--first goes with --queries"},
		{[]string{"rerank", "--model", "m", "--queries", "beir", "--sigmoid"}, 2, "--sigmoid goes with --input"},
		{[]string{"report"}, 2, "which run?"},
		{[]string{"report", "/nowhere"}, 1, "Next: contraflow train -c recipe.yaml makes one"},
		{[]string{"report", binary}, 1, "not a run's folder"},
		{[]string{"import"}, 2, "want one FILE"},
		{[]string{"import", "--", "torchrun", "--nproc_per_node", "2", "-m", "FlagEmbedding.x", "--model_name_or_path", "a b", "--query_max_len", "9"}, 0, "path: \"a b\""},
		{[]string{"train", "--bogus"}, 2, "unknown flag: --bogus"},
		{[]string{"train", "-c", "x.yaml", "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"train", "-c", "b.yaml", "--config", "a.yaml"}, 2, `--config is given twice, as "b.yaml" and as "a.yaml": want one` + "\n"},
		{[]string{"embed", "--model", "m", "--input", "main.go", "train.go", "--output", "x"}, 2, `unexpected argument "train.go"; a glob is quoted, so that the shell leaves it alone: --input '*.go'; or --input comes before each file` + "\n"},
		{[]string{"eval", "--model", "m", "--queries", "main.go", "train.go"}, 2, "leaves it alone: --queries '*.go'\n"},
		{[]string{"embed", "--model", "m", "--input", "main.go", "nowhere.go"}, 2, `unexpected argument "nowhere.go"` + "\n"},
		{[]string{"embed", "--model", "m"}, 2, "give --input, --column and --output, or --text"},
		{[]string{"graph", "-c", "nowhere.yaml"}, 1, "nowhere.yaml: no such file or directory; contraflow recipe embedder"},
		{[]string{"tokenize", "--model", "./nowhere"}, 1, "nowhere"},
		{[]string{"train", "-c", "r.yaml", "--out", ""}, 2, "--out is empty"},
		{[]string{"init", "--out", "", "--input", "x", "--column", "y"}, 2, "--out is empty"},
		{[]string{"eval", "--model", "m"}, 2, "give --queries (with --corpus and --qrels, or a folder in BEIR's layout), --nanobeir, --sts, --pair-classification, --triplets or --candidates"},
		{[]string{"eval", "--model", "m", "--queries", "nofile"}, 2, "give --queries, --corpus and --qrels"},
		{[]string{"eval", "--model", "m", "--queries", "q", "--corpus", "c"}, 2, "give --queries, --corpus and --qrels"},
		{[]string{"embed", "--model", "m", "--text", "x", "--input", "y"}, 2, "give one or the other"},
		{[]string{"embed", "--model", "m", "--text", "x", "--max-length", "-1"}, 2, "--max-length is -1, want at least 1"},
		{[]string{"tokenize", "--model", "m", "--max-length", "-3"}, 2, "--max-length is -3, want at least 1"},
		{[]string{"tokenize", "--model", "m", "--max-length", "x"}, 2, `contraflow: --max-length is "x", want a whole number` + "\n"},
		{[]string{"tokenize", "--model", "m", "--max-length", "1" + strings.Repeat("0", 30)}, 2, "which is too large a number\n"},
		{[]string{"verify-grads", "-c", "r.yaml", "--replicas", "1,a"}, 2, `contraflow: --replicas is "1,a", want whole numbers, such as 1,2` + "\n"},
		{[]string{"plan", "-c", "r.yaml", "--tokens-per-s", "a"}, 2, `contraflow: --tokens-per-s is "a", want a number` + "\n"},
	} {
		r := contraflow(t, "", c.args...)
		if out := r.stdout + r.stderr; r.code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q in\n%s", c.args, r.code, c.code, c.want, out)
		}
	}
	// A run's folder has a model: no advice to make one.
	run := t.TempDir()
	if err := os.CopyFS(filepath.Join(run, "model"), os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	if r := contraflow(t, "", "embed", "--model", run, "--text", "a"); r.code != 1 || r.stderr != fmt.Sprintf("contraflow: %s has no config.json: the model is in %s, give that\n", run, filepath.Join(run, "model")) {
		t.Errorf("a run's folder: exit code %d\n%s", r.code, r.stderr)
	}
}

// Bad input is an error that says where, with exit code 1, and nothing that was there is lost.
func TestBadInput(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	good, err := os.ReadFile(at("train.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) string {
		if err := os.WriteFile(at(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	put("cut.parquet", good[:len(good)*2/3])
	broken := append([]byte(nil), good...)
	for i := 100; i < 400; i++ {
		broken[i] ^= 0x5A
	}
	put("broken.parquet", broken)
	put("null.jsonl", []byte(`{"query": "a", "positive": "b", "negative": "c"}`+"\n"+`{"query": "d", "positive": null, "negative": "e"}`+"\n"))
	put("blank.jsonl", []byte(`{"query": "a", "positive": "b", "negative": "c"}`+"\n\n"+`{"query": " ", "positive": "x", "negative": "e"}`+"\n"))
	put("syntax.jsonl", []byte(`{"query": "a", "positive": "b", "negative": "c"}`+"\n"+`{"query": `+"\n"))
	put("one.jsonl", []byte(`{"query": "a", "positive": "b", "negative": "c"}`+"\n"))
	put("weight.jsonl", []byte(`{"query": "a", "positive": "b", "negative": "c", "w": 1}`+"\n"+`{"query": "d", "positive": "e", "negative": "f", "w": null}`+"\n"))
	put("ragged.jsonl", []byte(`{"query": "a", "positive": "b", "negative": ["c"]}`+"\n"+`{"query": "d", "positive": "e", "negative": ["f", "g"]}`+"\n"))
	put("numbers.jsonl", []byte(`{"query": 3, "positive": "b", "negative": "c"}`+"\n"))

	succeed(t, "train", "-c", at("recipe.yaml"), "--set", "train.max_steps=1", "--out", at("out"), "--quiet")
	before, err := os.ReadFile(at("out/model/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string][]byte{}
	for _, name := range []string{"recipe.yaml", "metrics.jsonl"} {
		if mine[name], err = os.ReadFile(at("out/" + name)); err != nil {
			t.Fatal(err)
		}
	}
	levels := copyModel(t, at("levels"))
	put("levels/tokenizer.json", []byte(`{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}`))
	longer := copyModel(t, at("longer"))
	truncated := copyModel(t, at("truncated"))
	weights, err := os.ReadFile(filepath.Join(truncated, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	put("truncated/model.safetensors", weights[:len(weights)-100])

	data := func(name string) string { return "data.train.0.path=" + at(name) }
	for _, c := range []struct {
		name string
		sets []string
		want []string
	}{
		{"truncated parquet", []string{data("cut.parquet")}, []string{"cut.parquet"}},
		{"corrupt parquet", []string{data("broken.parquet")}, []string{"broken.parquet", "row group 0"}},
		{"no files", []string{data("*.csv")}, []string{"*.csv matches no file", "Next: contraflow quickstart"}},
		{"no file", []string{data("nothing.parquet")}, []string{"nothing.parquet: no such file", "Next: contraflow quickstart"}},
		{"missing column", []string{"data.train.0.positive=positives"}, []string{"train.parquet", `"positives"`, "positive"}},
		{"null text", []string{data("null.jsonl")}, []string{"null.jsonl:2", "positive"}},
		{"blank text", []string{data("blank.jsonl")}, []string{"blank.jsonl:3", "query"}},
		{"JSON syntax", []string{data("syntax.jsonl")}, []string{"syntax.jsonl:2"}},
		{"column of numbers", []string{data("numbers.jsonl")}, []string{"numbers.jsonl", "query"}},
		{"unknown key", []string{"train.epoch=2"}, []string{"--set train.epoch=2", "did you mean train.epochs?"}},
		{"wrong type", []string{"train.epochs=many"}, []string{"want a number"}},
		{"no model", []string{"model.path=" + at("nowhere")}, []string{"model.path", "nowhere"}},
		{"unsupported tokenizer", []string{"model.path=" + levels}, []string{"tokenizer.json", `model: type "WordLevel" is not supported yet`}},
		{"truncated safetensors", []string{"model.path=" + truncated}, []string{"truncated", "model.safetensors"}},
		{"too long", []string{"model.max_length=4000", "model.path=" + longer}, []string{"model.max_length", "4000 tokens", "48 positions"}},
		{"batch too large", []string{"batch.global_size=1000"}, []string{"batch.global_size", "160", "1000"}},
		{"unknown device", []string{"train.device=tpu"}, []string{`no device "tpu"`, "cpu"}},
		{"another device's precision", []string{"train.device=cpu", "train.precision=tf32"}, []string{"train.precision: tf32", "cpu:0 has f32 and bf16"}},
		{"loss not finite", []string{"optimizer.lr=1e30", "optimizer.max_grad_norm=0", "optimizer.warmup_ratio=0"}, []string{"step 2: ", "not finite", "sub-batch 0", "train.parquet: row group 0, row", "model is still that of the run before: recipe.yaml.previous"}},
		{"scale too large", []string{"loss.scale=1e39"}, []string{"step 1: the loss is not finite, first of ", "train.parquet: row group 0, row", "loss.scale"}},
		{"one row", []string{data("one.jsonl")}, []string{"1 row, which has no negatives"}},
		{"null weight", []string{data("weight.jsonl"), "data.train[0].weight=w"}, []string{"weight.jsonl:2", "it is null"}},
		{"ragged negatives", []string{data("ragged.jsonl")}, []string{"ragged.jsonl:2", "negatives_per_query"}},
		{"no room for text", []string{"model.max_length=2"}, []string{"model.max_length", "no room for text"}},
		{"qrels of another task", []string{"eval.retrieval.qrels=" + put("other.tsv", []byte("query_id\tdoc_id\trelevance\nx\ty\t1\n"))}, []string{"eval.retrieval"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"train", "-c", at("recipe.yaml"), "--out", at("out"), "--quiet"}
			for _, s := range c.sets {
				args = append(args, "--set", s)
			}
			r := contraflow(t, "", args...)
			if r.code != 1 {
				t.Errorf("exit code %d, want 1", r.code)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("the message lacks %q:\n%s", w, r.stderr)
				}
			}
			after, err := os.ReadFile(at("out/model/model.safetensors"))
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the previous model is gone or changed: %v", err)
			}
		})
	}

	// The run whose loss was not finite had begun: its report shows that it failed.
	if p := mustRead(t, at("out/report.html")); !strings.Contains(p, "with an error: ") || !strings.Contains(p, "not finite") {
		t.Error("the report of the run that failed does not say so")
	}
	// What belongs to the model is set aside, and goes when the model does.
	for name, want := range mine {
		if got, err := os.ReadFile(at("out/" + name + ".previous")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s of the model's run is gone or changed: %v", name, err)
		}
	}
	succeed(t, "train", "-c", at("recipe.yaml"), "--set", "train.max_steps=2", "--out", at("out"), "--quiet")
	for name := range mine {
		if _, err := os.Stat(at("out/" + name + ".previous")); err == nil {
			t.Errorf("%s.previous is still there", name)
		}
	}
}

// A recipe is often run from its own folder, from which its paths do not count.
func TestRunFrom(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	copyModel(t, at("q/start"))
	for name, text := range map[string]string{
		"q/recipe.yaml": "model: {path: q/start}\ndata: {train: [{path: q/train.jsonl, query: a, positive: b}]}\nsave: {dir: q}\n",
		"q/train.jsonl": `{"a": "x", "b": "y"}` + "\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(at("q"))
	t.Setenv("HF_HUB_OFFLINE", "1")
	want := "\nNext: cd " + top + " && contraflow check -c " + filepath.Join("q", "recipe.yaml") + ": a recipe's paths count from the folder in which the program runs\n"
	for _, set := range []string{"train.epochs=2", "model.path=../q/start"} { // the model is missed, and then the data
		if r := contraflow(t, "", "check", "-c", "recipe.yaml", "--set", set); r.code != 1 || !strings.HasSuffix(r.stderr, want) {
			t.Errorf("--set %s: exit code %d, %s\nwant %s", set, r.code, r.stderr, want)
		}
	}
	if r := contraflow(t, "", "check", "-c", "recipe.yaml", "--set", "model.path=../q/start", "--set", "data.train.0.path=nothing.jsonl"); r.code != 1 || !strings.Contains(r.stderr, "\nNext: contraflow quickstart") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	if r := contraflow(t, "", "embed", "--model", "nowhere/x", "--text", "a"); r.code != 1 || strings.Contains(r.stderr, "Next: cd") {
		t.Errorf("without a recipe: exit code %d, %s", r.code, r.stderr)
	}
}
