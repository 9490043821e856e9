package quickstart

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "contraflow/gpustage/cpu"
	"contraflow/io/safetensors"
	"contraflow/stages/gopairs"
	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

// A run of a few steps has not seen its pairs as often as its recipe says.
func TestEpochs(t *testing.T) {
	var r recipe.Recipe
	r.Train.Epochs = 3
	s := &recipe.Summary{Steps: 5}
	s.Pairs = 320
	if got := epochsOf(r, s, 110); got != 3 { // rows were dropped
		t.Errorf("all epochs are %v", got)
	}
	r.Train.MaxSteps = 5
	for pairs, want := range map[int]float64{1000: 0.32, 100: 3, 200: 1.6} {
		if got := epochsOf(r, s, pairs); got != want {
			t.Errorf("320 of %d pairs are %v epochs, want %v", pairs, got, want)
		}
	}
}

// A few steps on a part of the Go sources: everything is written, and the model is better than before already.
func TestRun(t *testing.T) {
	harness.Thorough(t) // its parts run with the race detector in their packages
	root, err := gopairs.DefaultRoot(context.Background())
	if err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "q")
	rep, err := Run(context.Background(), Options{
		Out: out, Source: filepath.Join(root, "net"), Seed: 1, Sets: []string{"train.epochs=4", "batch.global_size=64"},
		Reranker: true, RerankSteps: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	data, err := os.ReadFile(filepath.Join(out, "quickstart.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"mrr@10", "ndcg@10"} {
		values, _ := file[m].(map[string]any)
		for _, k := range []string{"before", "after", "bm25"} {
			if v, ok := values[k].(float64); !ok || v <= 0 || v > 1 {
				t.Errorf("%s %s is %v", m, k, values[k])
			}
		}
	}
	if rep.MRR.After < 1.5*rep.MRR.Before {
		t.Errorf("MRR@10 went from %v to %v", rep.MRR.Before, rep.MRR.After)
	}
	if s := rep.Rerank.Summary; s.Steps != 5 || s.Model != filepath.Join(out, "reranker", "model") || s.Truncated == 0 {
		t.Errorf("the reranker's run: %v", s)
	}
	ndcg := rep.Rerank.NDCG
	for _, of := range []string{"bm25", "encoder", "first", "reranker", "fused", "all"} {
		if v, ok := ndcg[of]; !ok || v <= 0 || v > 1 {
			t.Errorf("nDCG@10 of %s is %v", of, v)
		}
	}
	if ndcg["encoder"] != rep.NDCG.After || ndcg["bm25"] != rep.NDCG.BM25 || ndcg["first"] <= ndcg["bm25"] {
		t.Errorf("%v, and without a reranker %+v", ndcg, rep.NDCG)
	}
	if !strings.Contains(rep.Rerank.Table, "map@20") || strings.Contains(rep.Table, "map@20") || file["steps"] != float64(rep.Summary.Steps) {
		t.Errorf("%v steps\n%s\n%s", file["steps"], rep.Table, rep.Rerank.Table)
	}
	if file["pairs"] != float64(rep.Pairs) || rep.Pairs == 0 || file["seconds"] == 0.0 {
		t.Errorf("%s", data)
	}
	r, err := recipe.Load(filepath.Join(out, "recipe.yaml"), nil)
	if err != nil || r.Train.Epochs != 4 || r.Batch.GlobalSize != 64 || file["epochs"] != 4.0 {
		t.Errorf("the recipe left behind is not the one that was run: %v, %+v", err, r)
	}
	// The reranker's head begins with the encoder's pooler, which embeddings don't train: were it zeros, little could be learned behind it.
	f, err := safetensors.Open(filepath.Join(out, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pooler, err := f.Tensor("pooler.dense.weight")
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, pooler.Len())
	if err := pooler.Float32s(values); err != nil || slices.Max(values) < 0.04 || slices.Min(values) > -0.04 {
		t.Errorf("the pooler's weights are from %v to %v, %v", slices.Min(values), slices.Max(values), err)
	}
	for _, name := range []string{"model/model.safetensors", "model/tokenizer.json", "recipe.yaml", "train.parquet", "queries.parquet", "corpus.parquet", "qrels.parquet", "metrics.jsonl", "rerank.parquet", "rerank.yaml", "reranker/model/model.safetensors"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
}
