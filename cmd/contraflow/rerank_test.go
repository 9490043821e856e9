package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// rerankRecipe writes a recipe that trains a reranker on a workspace's rows.
func rerankRecipe(t *testing.T, dir, model, more string) string {
	t.Helper()
	text := fmt.Sprintf(`model: {path: %q, kind: reranker, max_length: 40%s}
data:
  train:
    - {path: %q, query: query, positive: positive, negatives: [negative]}
batch: {global_size: 8, sub_batch: {rows: 5}}
optimizer: {lr: 1e-3}
train: {epochs: 1, device: cpu}
eval:
  every: 10
  rerank: {queries: %q, corpus: %q, qrels: %q, top: 20}
save: {dir: %q}
`, model, more, filepath.Join(dir, "train.parquet"), filepath.Join(dir, "queries.parquet"), filepath.Join(dir, "corpus.parquet"), filepath.Join(dir, "qrels.tsv"), filepath.Join(dir, "run"))
	path := filepath.Join(dir, "rerank.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// An embedder becomes a reranker, which is measured, resumed, saved and used.
func TestReranker(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	recipe := rerankRecipe(t, dir, goldens.Path(t, "bert/minilm-tiny"), "")
	if r := succeed(t, "train", "-c", recipe); strings.Count(r.stderr, `"base":0.6`) != 2 || !strings.Contains(r.stderr, " from 0.6") {
		t.Errorf("not every evaluation has BM25's figure beside the model's:\n%s", r.stderr)
	}
	task := []string{"--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")}
	// LoRA's factors are merged into what is saved.
	succeed(t, "train", "-c", recipe, "--out", at("lora"), "--set", "model.lora={rank: 4, targets: all-linear}", "--set", "optimizer.lr=5e-3")
	for _, run := range []string{"run", "lora"} {
		lines := metricLines(t, at(run+"/metrics.jsonl"))
		want, _ := lines[len(lines)-1]["value"].(float64)
		var scores map[string]map[string]float64
		r := succeed(t, append([]string{"rerank", "--model", at(run + "/model"), "--top", "20", "--json"}, task...)...)
		if err := json.Unmarshal([]byte(r.stdout), &scores); err != nil || want == 0 || !(math.Abs(scores["reranker"]["ndcg@10"]-want) <= 1e-9) {
			t.Errorf("%s: nDCG@10 was %v in training, now %s, %v", run, want, r.stdout, err)
		}
		base, _ := lines[len(lines)-1]["base"].(float64) // what BM25 had before
		all, _ := lines[len(lines)-1]["eval"].(map[string]any)
		if b := scores["bm25"]; base == 0 || base == want || base != b["ndcg@10"] || all["base_map"] != b["map"] || all["base_mrr@10"] != b["mrr@10"] {
			t.Errorf("%s: BM25's figures were %v and %v in training, now %v", run, base, all, b)
		}
	}
	if r := succeed(t, append([]string{"rerank", "--model", at("run/model"), "--first", goldens.Path(t, "bert/minilm-tiny")}, task...)...); strings.Count(r.stdout, "\n") < 5 || !strings.Contains(r.stdout, "fused with BM25") || !strings.Contains(r.stderr, "queries embedded\n") || !strings.Contains(r.stderr, " pairs reranked\n") {
		t.Errorf("the table:\n%s", r.stdout)
	}
	succeed(t, "rerank", "--model", at("run/model"), "--input", at("train.parquet"), "--document-column", "negative", "--output", at("scores.parquet"), "--sigmoid")

	// The same run on two ranks, by shards, cut in half and resumed, in other sub-batches: one gradient.
	one := losses(t, at("run/metrics.jsonl"))
	for name, sets := range map[string][]string{
		"two": {"mesh.replicate=2"}, "shards": {"mesh.shard=2"}, "subs": {"batch.sub_batch={tokens: 60}", "batch.replay_budget=0"}, "checkpointing": {"model.activation_checkpointing=true"},
		"early": {"mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"},
	} {
		args := []string{"train", "-c", recipe, "--out", at(name)}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		succeed(t, args...)
		for i, l := range losses(t, at(name+"/metrics.jsonl")) {
			if a, b := one[i].(float64), l.(float64); !(math.Abs(a-b) <= 1e-4*math.Abs(a)) {
				t.Errorf("%s: step %d has loss %v, want %v", name, i+1, b, a)
			}
		}
	}
	if r := succeed(t, "plan", "-c", recipe, "--gpus", "2", "--link", "1Gb 50us"); !strings.Contains(r.stdout, "2 x 1 (replicate x shard), 2 ranks") || strings.Contains(r.stdout, "gather") {
		t.Errorf("a plan in which groups stay on their rank:\n%s", r.stdout)
	}
	for i, loss := range []string{"bce", "list_mle", "p_list_mle", "rank_net", "lambda, weighting: ndcg_loss2, k: 2"} {
		succeed(t, "train", "-c", recipe, "--out", at(fmt.Sprint("loss", i)), "--set", "loss={name: "+loss+"}", "--set", "train.max_steps=2", "--set", "mesh.replicate=2")
	}
	for set, want := range map[string]string{
		"loss.name=gist":                         `loss.name: is "gist", want one of adr_mse, bce`,
		"loss.scale=3":                           "loss.scale: is for mnrl; the options of cross_entropy are name, self_distill",
		"loss.margin=3":                          "loss.margin: is for embedders' gist",
		"loss={name: bce, k: 3}":                 "loss.k: is for rank_net, lambda; the options of bce are name, pos_weight",
		"loss.name=kl":                           "data.train[0].scores: are missing",
		"model.max_length={query: 3}":            "is one number for a reranker",
		"model.instruction=judge":                "an instruction has its place in a template",
		"model.head=tokens":                      "tokens' logits need a language model",
		"eval.retrieval={queries: a, corpus: b}": "a reranker is measured by eval.rerank",
	} {
		if r := contraflow(t, "", "train", "-c", recipe, "--out", at("x"), "--set", set); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("--set %s: exit code %d, want %q\n%s", set, r.code, want, r.stderr)
		}
	}
}

// What teaches a reranker nothing, or what it can't mean, is an error where it stands.
func TestRerankerData(t *testing.T) {
	dir := workspace(t)
	recipe := rerankRecipe(t, dir, goldens.Path(t, "bert/minilm-tiny"), "")
	rows := filepath.Join(dir, "rows.jsonl")
	for name, x := range map[string]struct{ columns, loss, rows, want string }{
		"one document":          {"", "cross_entropy", "", "data.train[0].negatives: are missing: loss.name: cross_entropy compares a row's documents"},
		"pairs without labels":  {"", "bce", "", "data.train[0].label: is missing: to loss.name: bce all pairs would be equally right"},
		"label and negatives":   {", label: label, negatives: [n]", "bce", "", "of rows with negatives, scores say"},
		"a label of 7":          {", label: label", "bce", `{"q": "a", "p": "b", "label": 7}`, "rows.jsonl:2, column \"label\": the label is 7: bce takes labels from 0 to 1"},
		"a teacher's score":     {", negatives: [n], negatives_per_query: all, scores: s", "lambda", `{"q": "a", "p": "b", "n": ["c"], "s": [1e30, 0]}`, "rows.jsonl:2, column \"s\": score 0 of the list is 1e+30: lambda takes degrees of relevance"},
		"only empty candidates": {", negatives: [n], negatives_per_query: all", "cross_entropy", `{"q": "a", "p": "b", "n": []}`, ""},
	} {
		text := `{"q": "a b", "p": "c", "label": 1, "n": ["d"], "s": [1, 0]}` + "\n" + x.rows + "\n"
		if err := os.WriteFile(rows, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := contraflow(t, "", "train", "-c", recipe, "--out", filepath.Join(dir, "x", name), "--set", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p%s}]", rows, x.columns),
			"--set", "loss={name: "+x.loss+"}", "--set", "batch.global_size=2", "--set", "eval.every=0", "--set", "data.shuffle=false")
		if (r.code == 0) != (x.want == "") || !strings.Contains(r.stderr, x.want) {
			t.Errorf("%s: exit code %d, want %q\n%s", name, r.code, x.want, r.stderr)
		}
	}
}

// narrowDecoder writes a random decoder with layers of 16: with a last-token head, or one that is scored by the logits of two tokens, which are
// word embeddings.
func narrowDecoder(t *testing.T, dir string, layers int, tokens bool) {
	t.Helper()
	tiny := goldens.Path(t, "bert/minilm-tiny")
	config := fmt.Appendf(nil, `{"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"], "vocab_size": 120, "hidden_size": 16, "num_hidden_layers": %d,
"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0,
"id2label": {"0": "LABEL_0"}, "initializer_range": 0.2, "tie_word_embeddings": true}`, layers)
	c, err := transformer.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	spec := reranker.Spec{MaxLength: 40}
	if tokens {
		spec.Folder.TrueID, spec.Folder.FalseID = new(int32), new(int32)
		*spec.Folder.TrueID, *spec.Folder.FalseID = 17, 23
		c.Scorer, err = c.TokenScorer(config, 17, 23)
	} else {
		c.Scorer, err = c.Classifier(config, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	m, err := transformer.New(d, c, transformer.Head{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	if err := m.Init(s, 7); err != nil {
		t.Fatal(err)
	}
	tensors, err := embedder.Read(m, s, m.Layout.Params)
	if err != nil {
		t.Fatal(err)
	}
	base, err := hfmodel.Open(tiny)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	spec.Scorer = c.Scorer
	base.Config = config
	if err := reranker.Save(dir, base, m, tensors, &spec, hfmodel.Card{}); err != nil {
		t.Fatal(err)
	}
}

const narrowTensors = 40*4 + 1 // q, k, v, o of each layer, and the head

const narrowTuning = `, lora: {rank: 4, alpha: 8, targets: [q_proj, k_proj, v_proj, o_proj]}, activation_checkpointing: true`

func narrowTraining(recipe, out string, more ...string) []string {
	args := []string{"train", "--log", "human", "-c", recipe, "--out", out, "--set", "batch.accumulate=2", "--set", "train.max_steps=2", "--set", "eval.every=0",
		"--set", "optimizer={name: sgd, lr: 0.5, max_grad_norm: 0, schedule: constant, warmup_ratio: 0, weight_decay: 0}"}
	for _, s := range more {
		args = append(args, "--set", s)
	}
	return args
}

// changes are what two steps of gradient descent have added to a model's parameters: their gradients' sum, in effect.
func changes(t *testing.T, from, to string) map[string][]float64 {
	t.Helper()
	a, b := parameters(t, from), parameters(t, to)
	out := map[string][]float64{}
	for name, vs := range a {
		for i, v := range vs {
			out[name] = append(out[name], float64(b[name][i])-float64(v))
		}
	}
	return out
}

// same compares two runs' changes as transformer.GradientError compares gradients.
func same(t *testing.T, name string, got, want map[string][]float64, tensors int) {
	t.Helper()
	largest, trained := 0.0, 0
	for _, vs := range want {
		m := 0.0
		for _, v := range vs {
			m = max(m, math.Abs(v))
		}
		if largest = max(largest, m); m > 0 {
			trained++
		}
	}
	if trained != tensors {
		t.Errorf("%d tensors have changed", trained)
	}
	for tensor, vs := range want {
		top, worst := 1e-4*largest, 0.0
		for i, v := range vs {
			top, worst = max(top, math.Abs(v)), max(worst, math.Abs(got[tensor][i]-v))
		}
		// Weights around 1 are saved in f32, and changes are read off their difference.
		if !(worst <= 1e-4*top+2e-7) {
			t.Errorf("%s: %s differs by %.3g of %.3g", name, tensor, worst, top)
		}
	}
}

// A decoder of 40 layers with LoRA on q, k, v, o, activation checkpointing and accumulation: four ranks have one's gradients.
func TestNarrowDecoderReranker(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	narrowDecoder(t, at("decoder"), 40, false)
	recipe := rerankRecipe(t, dir, at("decoder"), narrowTuning)
	succeed(t, narrowTraining(recipe, at("one"))...)
	want := changes(t, at("decoder"), at("one/model"))
	for name, sets := range map[string][]string{"four": {"mesh.replicate=4"}, "shards": {"mesh.replicate=2", "mesh.shard=2"}, "subs": {"batch.sub_batch={rows: 3}", "model.activation_checkpointing=false"}} {
		succeed(t, narrowTraining(recipe, at(name), sets...)...)
		same(t, name, changes(t, at("decoder"), at(name+"/model")), want, narrowTensors)
	}
	if r, err := reranker.Load(at("one/model")); err != nil {
		t.Error(err)
	} else {
		r.Close()
	}
	if ls := losses(t, at("one/metrics.jsonl")); len(ls) != 2 || slices.Contains(ls, ls[0]) && ls[0] == ls[1] {
		t.Errorf("losses %v", ls)
	}
}

// A decoder that trains as a whole, scored by two rows of its word embeddings, whose gradient then has two sources.
func TestTiedReranker(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	narrowDecoder(t, at("decoder"), 2, true)
	recipe := rerankRecipe(t, dir, at("decoder"), "")
	gentle := "optimizer.lr=0.05"
	succeed(t, narrowTraining(recipe, at("one"), gentle)...)
	want := changes(t, at("decoder"), at("one/model"))
	for name, sets := range map[string][]string{"two": {"mesh.replicate=2"}, "early": {"mesh.shard=2", "mesh.gradients=early", "mesh.parameters=resident"}, "subs": {"batch.sub_batch={rows: 3}", "batch.replay_budget=0"}} {
		succeed(t, narrowTraining(recipe, at(name), append(sets, gentle)...)...)
		same(t, name, changes(t, at("decoder"), at(name+"/model")), want, len(want))
	}
	r := contraflow(t, "", narrowTraining(recipe, at("streamed"), "mesh.shard=2", "mesh.parameters=streamed")...)
	if r.code == 0 || !strings.Contains(r.stderr, "streamed parameters (mesh.parameters) are not for a score that is the logits of word embeddings") {
		t.Errorf("exit code %d:\n%s", r.code, r.stderr)
	}
}

// The same with four processes.
func TestMPINarrowDecoderReranker(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	narrowDecoder(t, at("decoder"), 40, false)
	recipe := rerankRecipe(t, dir, at("decoder"), narrowTuning)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if text, err := mpirun(t, ctx, append([]string{"4"}, narrowTraining(recipe, at("mpi"))...)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	succeed(t, narrowTraining(recipe, at("one"))...)
	same(t, "mpi", changes(t, at("decoder"), at("mpi/model")), changes(t, at("decoder"), at("one/model")), narrowTensors)
}
