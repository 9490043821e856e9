package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/testdata/goldens"
)

// An encoder becomes a model of three parts, which is measured by all of them, saved, embeds, mines and trains on; ranks and shards
// give the same run.
func TestM3(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf(`model: {path: %q, kind: m3, vector_dim: 16, max_length: 40}
data:
  train:
    - {path: %q, query: query, positive: positive, negatives: [negative]}
batch: {global_size: 8, sub_batch: {rows: 5}}
loss: {self_distill: true, self_distill_from: 2}
optimizer: {lr: 1e-3}
train: {epochs: 1, device: cpu, precision: f32}
eval: {every: 0, retrieval: {queries: %q, corpus: %q, qrels: %q}}
save: {dir: %q}
`, goldens.Path(t, "bert/minilm-tiny"), at("train.parquet"), at("queries.parquet"), at("corpus.parquet"), at("qrels.tsv"), at("run"))
	recipe := at("m3.yaml")
	if err := os.WriteFile(recipe, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	succeed(t, "train", "-c", recipe)
	lines := metricLines(t, at("run/metrics.jsonl"))
	want, _ := lines[len(lines)-1]["value"].(float64)
	f, err := hfmodel.Open(at("run/model"))
	if err != nil {
		t.Fatal(err)
	}
	if f.M3 == nil || f.M3.Dim != 16 {
		t.Errorf("the folder has the heads %+v", f.M3)
	}
	f.Close()

	task := []string{"eval", "--model", at("run/model"), "--max-length", "40", "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--json"}
	seen := map[string]bool{}
	for part, same := range map[string]bool{"fused": true, "dense": false, "sparse": false, "multi_vector": false} {
		r := succeed(t, append(task, "--part", part)...)
		var res map[string]any
		if err := json.Unmarshal([]byte(r.stdout), &res); err != nil {
			t.Fatal(err)
		}
		ndcg, _ := res["ndcg@10"].(float64)
		if same && !(math.Abs(ndcg-want) <= 1e-9) {
			t.Errorf("nDCG@10 was %v in training, now %v", want, ndcg)
		}
		seen[r.stdout] = true
	}
	if len(seen) < 4 {
		t.Errorf("only %d of 4 ways to rank give results of their own", len(seen))
	}
	if a, b := succeed(t, append(task, "--part", "fused")...), succeed(t, task...); a.stdout != b.stdout {
		t.Errorf("--part fused %s, without %s", a.stdout, b.stdout)
	}
	if a, b := succeed(t, append(task, "--weights", "0,0,2")...), succeed(t, append(task, "--part", "multi_vector")...); a.stdout != b.stdout {
		t.Errorf("--weights 0,0,2 %s, multi_vector %s", a.stdout, b.stdout)
	}
	// So are pairs, triplets and candidates, of which those with scores are two queries.
	var rows strings.Builder
	for i, p := range [][2]string{{"a reader of files", "it reads a file"}, {"it reads a file", "a writer"}, {"a writer", "a reader"}, {"a file", "a reader of files"}, {"a", "files"}} {
		fmt.Fprintf(&rows, "{\"a\": %q, \"b\": %q, \"c\": \"it writes\", \"s\": %d, \"y\": %d}\n", p[0], p[1], i*i%5, i%2)
	}
	if err := os.WriteFile(at("pairs.jsonl"), []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, columns := range map[string]string{"--sts": "a,b,s", "--pair-classification": "a,b,y", "--triplets": "a,b,c", "--candidates": "a,b,c"} {
		args := []string{"eval", "--model", at("run/model"), flag, at("pairs.jsonl"), "--columns", columns, "--json"}
		figures := func(more ...string) (res map[string]float64) {
			if err := json.Unmarshal([]byte(succeed(t, append(args, more...)...).stdout), &res); err != nil {
				t.Fatal(err)
			}
			return res
		}
		plain := figures()
		for name, v := range figures("--part", "fused") {
			if v != plain[name] {
				t.Errorf("%s: %s is %v by --part fused, and %v without", flag, name, v, plain[name])
			}
		}
		if name := map[string]string{"--sts": "pearson", "--pair-classification": "accuracy_threshold"}[flag]; name != "" { // which tells of more than an order
			dense, vectors, all := figures("--part", "dense")[name], figures("--part", "multi_vector")[name], plain[name]
			if math.Abs(dense-vectors) < 1e-4 || math.Abs(dense-all) < 1e-4 || math.Abs(vectors-all) < 1e-4 {
				t.Errorf("%s: %s is %v by the embeddings, %v by tokens' vectors and %v by all", flag, name, dense, vectors, all)
			}
			if r := contraflow(t, "", append(args, "--part", "fused", "--document-prompt", "x")...); r.code != 2 || !strings.Contains(r.stderr, "both texts of "+flag+" are read as queries are") {
				t.Errorf("%s with --document-prompt: exit %d, %s", flag, r.code, r.stderr)
			}
		}
	}

	succeed(t, "embed", "--model", at("run/model"), "--input", at("train.parquet"), "--column", "positive", "--output", at("parts.parquet"), "--parts")
	parts, err := dataset.OpenTable(t.Context(), []string{at("parts.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(parts.Columns(), " "); !strings.HasSuffix(got, "embedding lexical_ids lexical_weights token_vectors") {
		t.Errorf("columns %s", got)
	}
	parts.Close()
	var one struct {
		IDs     []int       `json:"lexical_ids"`
		Weights []float64   `json:"lexical_weights"`
		Vectors [][]float64 `json:"token_vectors"`
	}
	if err := json.Unmarshal([]byte(succeed(t, "embed", "--model", at("run/model"), "--text", "a reader of files", "--parts").stdout), &one); err != nil || len(one.IDs) != len(one.Weights) || len(one.Vectors) < 2 || len(one.Vectors[0]) != 16 {
		t.Errorf("%+v, %v", one, err)
	}
	succeed(t, "mine", "--model", at("run/model"), "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1", "--part", "fused")

	// The same run as two ranks, by shards, replayed, and cached: one loss.
	losses1 := losses(t, at("run/metrics.jsonl"))
	for name, sets := range map[string][]string{
		"two": {"mesh.replicate=2"}, "three": {"mesh.replicate=3", "batch.sub_batch={tokens: 60}"}, "shards": {"mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"},
		"replayed": {"batch.replay_budget=0", "model.activation_checkpointing=true"},
	} {
		args := []string{"train", "-c", recipe, "--out", at(name)}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		succeed(t, args...)
		for i, l := range losses(t, at(name+"/metrics.jsonl")) {
			if a, b := losses1[i].(float64), l.(float64); !(math.Abs(a-b) <= 2e-4*math.Abs(a)) {
				t.Errorf("%s: step %d has loss %v, want %v", name, i+1, b, a)
			}
		}
	}

	verify := []string{"verify-grads", "-c", recipe, "--set", "loss={scale: 10}", "--rows", "6", "--accumulate", "1", "--sub-batch", "5", "--replicas", "1,2"}
	if r := contraflow(t, "", verify...); r.code != 0 {
		t.Errorf("verify-grads: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for _, fault := range []string{"factor", "remote"} {
		if r := contraflow(t, "", append(verify[:len(verify)-2:len(verify)-2], "--plant", fault)...); r.code == 0 {
			t.Errorf("verify-grads did not find the planted fault %s:\n%s", fault, r.stdout)
		}
	}

	// With LoRA the heads train as a whole, and what is saved is merged: it is measured as in training, by the heads as they have become.
	succeed(t, "train", "-c", recipe, "--out", at("lora"), "--set", "model.path="+at("run/model"), "--set", "model.vector_dim=0", "--set", "model.lora={rank: 4}", "--set", "optimizer.lr=5e-3")
	lines = metricLines(t, at("lora/metrics.jsonl"))
	r := succeed(t, "eval", "--model", at("lora/model"), "--max-length", "40", "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--json", "--part", "fused")
	var measured map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &measured); err != nil {
		t.Fatal(err)
	}
	ndcg, _ := measured["ndcg@10"].(float64)
	if want, _ := lines[len(lines)-1]["value"].(float64); want == 0 || !(math.Abs(ndcg-want) <= 1e-9) {
		t.Errorf("nDCG@10 with LoRA was %v in training, now %s", want, r.stdout)
	}
	weights := func(dir, name string) []byte {
		f, err := hfmodel.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, err := f.Tensor(name)
		if err != nil || f.M3 == nil {
			t.Fatalf("%s: heads %+v, %v", dir, f.M3, err)
		}
		return bytes.Clone(x.Data)
	}
	for name, same := range map[string]bool{
		"embeddings.word_embeddings.weight": true, "encoder.layer.0.attention.self.query.weight": false, "colbert_linear.weight": false, "sparse_linear.bias": false,
	} {
		if bytes.Equal(weights(at("run/model"), name), weights(at("lora/model"), name)) != same {
			t.Errorf("with LoRA, %s has changed: %v, want %v", name, same, !same)
		}
	}
	// An adapter of the dense part alone, merged into a model with heads, leaves these there.
	succeed(t, "train", "-c", recipe, "--out", at("adapter"), "--set", "model={path: '"+at("run/model")+"', lora: {rank: 4}, max_length: 40}", "--set", "loss={}", "--set", "train.max_steps=1")
	succeed(t, "merge", "--adapter", at("adapter/model"), "--out", at("merged"))
	if !bytes.Equal(weights(at("run/model"), "colbert_linear.weight"), weights(at("merged"), "colbert_linear.weight")) {
		t.Error("merged, the heads are others")
	}

	// It trains on from its own heads, each alone.
	for _, part := range []string{"dense", "sparse", "multi_vector"} {
		succeed(t, "train", "-c", recipe, "--out", at("on-"+part), "--set", "model.path="+at("run/model"), "--set", "loss={parts: ["+part+"]}", "--set", "train.max_steps=2", "--set", "eval.part="+part)
	}
	for want, sets := range map[string][]string{
		"model.vector_dim: is 8, and the heads that the model has give 16": {"model.path=" + at("run/model"), "model.vector_dim=8"},
		"loss.name: mnrl is not for model.kind: m3":                        {"loss.name=mnrl", "loss.self_distill=false", "loss.self_distill_from=0"},
		"eval.part: is for model.kind: m3":                                 {"model.kind=embedder", "model.vector_dim=0", "loss={}", "eval.part=sparse"},
		"loss.parts: self-distillation is from the ensemble":               {"loss.parts=[dense]"},
		"data.train[0].scores: is missing: loss.distillation":              {"loss.distillation=kl_div"},
	} {
		args := []string{"train", "-c", recipe, "--out", at("refused")}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("exit %d, %s, want %q", r.code, r.stderr, want)
		}
	}
	if r := contraflow(t, "", "embed", "--model", goldens.Path(t, "bert/minilm-tiny"), "--text", "x", "--parts"); r.code == 0 || !strings.Contains(r.stderr, "models of kind m3") {
		t.Error(r.stderr)
	}
}
