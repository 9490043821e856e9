package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
	"contraflow/tokenize"
)

// idfFile has a weight for every third token of testdata/golden/splade/encoder.
func idfFile(t *testing.T, dir string) (file string, weights []float32) {
	t.Helper()
	tok, err := tokenize.Load(goldens.Path(t, "splade/encoder"))
	if err != nil {
		t.Fatal(err)
	}
	weights, idf := make([]float32, tok.VocabSize()), map[string]float32{}
	for id := 0; id < len(weights); id += 3 {
		weights[id] = float32(id+8) / 32
		idf[tok.Token(int32(id))] = weights[id]
	}
	data, err := json.Marshal(idf)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "idf.json")
	if err := os.WriteFile(file, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return file, weights
}

// savedWeights are those of queries' tokens in the model that a run has left.
func savedWeights(t *testing.T, run string) []float32 {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(run, "model", "query_0_SparseStaticEmbedding", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := f.Tensor("weight")
	if err != nil {
		t.Fatal(err)
	}
	vs := make([]float32, x.Len())
	if err := x.Float32s(vs); err != nil {
		t.Fatal(err)
	}
	return vs
}

// A run trains the weights of queries' tokens with the documents' transformer, or leaves them as they are, goes on with the same bits, is measured, has
// the same losses on two ranks as on one but for rounding, and begins again with the folder that it leaves.
func TestTrainQueries(t *testing.T) {
	harness.Thorough(t)
	j := sparseJob(t, 40)
	file, weights := idfFile(t, j.dir)
	j.text = strings.Replace(j.text, "query: 0.02, ", "", 1)
	sets := sparseSets(t, "model.queries="+file, "train.epochs=2", "save.every=2")
	want, err := j.run(t, "whole", checkpoint.Disk{}, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = j.run(t, "parts", checkpoint.Disk{}, 2, false, sets...); err != nil {
		t.Fatal(err)
	}
	got, err := j.run(t, "parts", checkpoint.Disk{}, 0, true, sets...)
	if err != nil {
		t.Fatal(err)
	}
	ranks, err := j.run(t, "ranks", checkpoint.Disk{}, 0, false, append(slices.Clone(sets), "mesh.replicate=2", "batch.sub_batch={rows: 3}", "batch.cache=always")...)
	if err != nil {
		t.Fatal(err)
	}
	for step, l := range want.losses {
		if r, ok := got.losses[step]; ok && r != l {
			t.Errorf("resumed, step %d has the loss %v, not %v", step, r, l)
		}
		if r := ranks.losses[step]; !(r >= l*(1-1e-4) && r <= l*(1+1e-4)) {
			t.Errorf("on two ranks step %d has the loss %v, alone %v", step, r, l)
		}
	}
	after := savedWeights(t, filepath.Join(j.dir, "whole"))
	if !slices.Equal(after, savedWeights(t, filepath.Join(j.dir, "parts"))) || slices.Equal(after, weights) || len(after) != len(weights) {
		t.Errorf("the weights have become %v, of %v", after, weights)
	}
	again := sparseSets(t, "train.max_steps=2")
	again[1] = "model.path=" + filepath.Join(j.dir, "whole", "model")
	if _, err := j.run(t, "frozen", checkpoint.Disk{}, 0, false, append(again, "model.queries.frozen=true", "model.lora={rank: 2, alpha: 4, targets: [query]}")...); err != nil {
		t.Fatal(err)
	}
	// A file of frozen weights may not change before the run goes on.
	sets = sparseSets(t, "model.queries={weights: "+file+", frozen: true}", "save.every=2")
	if _, err = j.run(t, "idf", checkpoint.Disk{}, 2, false, sets...); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"[CLS]": 2}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err = j.run(t, "idf", checkpoint.Disk{}, 0, true, sets...); !errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), "model.queries.weights: changed") {
		t.Errorf("with another file of frozen weights: %v", err)
	}
	guided := fmt.Sprintf("loss={name: gist, guide: {path: %q}}", filepath.Join(j.dir, "whole", "model"))
	if _, err = j.run(t, "guided", checkpoint.Disk{}, 0, false, sparseSets(t, guided)...); err == nil || !strings.Contains(err.Error(), "such a model is no guide") {
		t.Errorf("as a guide: %v", err)
	}
	if !slices.Equal(savedWeights(t, filepath.Join(j.dir, "frozen")), after) {
		t.Error("frozen weights have changed")
	}
	if _, err := j.run(t, "ones", checkpoint.Disk{}, 0, false, append(again, "model.queries={weights: ones, frozen: true}")...); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(savedWeights(t, filepath.Join(j.dir, "ones")), func(w float32) bool { return w != 1 }) {
		t.Error("weights are not ones")
	}
}

// The loss on held-out rows, and the product of a held-out query and its document, are those of training.
func TestHeldOutQueries(t *testing.T) {
	j := sparseJob(t, 13)
	file, _ := idfFile(t, j.dir)
	rows := filepath.Join(j.dir, "data.jsonl")
	for _, ranks := range []string{"1", "2"} {
		o, err := j.run(t, "held"+ranks, checkpoint.Disk{}, 0, false, sparseSets(t, "model.queries="+file, "model.dropout=0", "loss.flops={document: 0.01, warmup_ratio: 0}", "batch={global_size: 13, accumulate: 1, drop_last: false, no_duplicates: false, sub_batch: {rows: 5}}", "data.shuffle=false",
			"train={max_steps: 1, device: cpu}", "mesh.replicate="+ranks, fmt.Sprintf("eval={at_start: true, every: 0, loss: {path: %q, query: q, positive: p}}", rows))...)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := j.heldOutLosses(t, "held"+ranks)[0], o.losses[0]; !(relative(got, want) < 5e-6) {
			t.Errorf("on %s ranks the held-out loss is %v, in training %v", ranks, got, want)
		}
	}
}

func TestQueriesErrors(t *testing.T) {
	j := sparseJob(t, 30)
	for want, sets := range map[string][]string{
		"model.queries.weights: is missing":                sparseSets(t, "model.queries={frozen: true}"),
		"no such file":                                     sparseSets(t, "model.queries=nowhere.json"),
		"loss.flops.query: is 0.02":                        sparseSets(t, "model.queries={weights: ones, frozen: true}"),
		"mesh.parameters: streamed is not for queries":     sparseSets(t, "model.queries=ones", "mesh.shard=2", "mesh.parameters=streamed"),
		"mesh.gradients: early is not for queries":         sparseSets(t, "model.queries=ones", "mesh.shard=2", "mesh.gradients=early"),
		"takes single texts, which are queries":            sparseSets(t, "model.queries=ones", "loss={name: batch_hard_triplet}", "data.train=[{path: x.jsonl, query: query, label: label}]"),
		"weights of tokens (model.queries) are read witho": sparseSets(t, "model.queries=ones", "data.train=[{path: x.jsonl, query: query, positive: positive, ids: true}]"),
	} {
		if _, err := j.run(t, "r", checkpoint.Disk{}, 0, false, sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", sets, err, want)
		}
	}
}

func TestQueriesKeys(t *testing.T) {
	for set, want := range map[string]string{
		"model.kind=embedder":                 "model.queries: is for model.kind: sparse",
		"model.queries={weight: a.json}":      "weights",
		"model.queries={frozen: ones}":        "model.queries.frozen",
		"model.queries={weights: [idf.json]}": "model.queries.weights",
	} {
		if _, err := parseSparse(t, "mnrl", "model.queries=idf.json", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	r, err := parseSparse(t, "mnrl", "model.queries=idf.json")
	if err != nil || r.Model.Queries.Weights != "idf.json" || r.Model.Queries.Frozen != nil {
		t.Errorf("%+v, %v", r.Model.Queries, err)
	}
}

// All ways of training them have the gradient, and a fault is found.
func TestVerifyQueries(t *testing.T) {
	harness.Thorough(t)
	for _, fault := range []Fault{"", FaultRemote} {
		verifySparse(t, fault, "model.queries=ones")
	}
}
