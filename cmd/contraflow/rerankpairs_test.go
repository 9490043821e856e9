package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/testdata/goldens"
)

// A reranker is measured on pairs and triplets by its scores.
func TestRerankPairs(t *testing.T) {
	dir, model := t.TempDir(), goldens.Path(t, "rerank/cross")
	at := func(name string) string { return filepath.Join(dir, name) }
	texts := []string{"the cat", "a dog in the house", "river", "what flies", "snow and rain", "the tree by the road"}
	var lines strings.Builder
	var a, b []string
	var gold []float64
	var together []bool
	for i, x := range texts {
		row := map[string]any{"sentence1": x, "sentence2": texts[(i+2)%6], "score": i * i % 5, "label": i%3 == 1, "anchor": x, "positive": texts[(i+2)%6], "negative": texts[(i+3)%6],
			"ranked": []string{texts[(i+3)%6], texts[(i+1)%6], texts[(i+2)%6]}, "query": x, "one": 1}
		js, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(js, '\n'))
		a, b = append(a, x), append(b, texts[(i+2)%6])
		gold, together = append(gold, float64(i*i%5)), append(together, i%3 == 1)
	}
	if err := os.WriteFile(at("rows.jsonl"), []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := reranker.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	scores := func(a, b []string) (wide []float64) {
		s, _, err := r.ScorePairs(t.Context(), a, b)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range s {
			wide = append(wide, float64(x))
		}
		return wide
	}
	far := append(append([]string{}, texts[3:]...), texts[:3]...)
	sts, err1 := evaluate.EvaluateSTS(scores(a, b), gold)
	classes, err2 := evaluate.ClassifyPairs(scores(a, b), together)
	triplets, err3 := evaluate.CompareTriplets(scores(a, b), scores(a, far), 0)
	var of [][]float64
	var relevant [][]bool
	near, further := scores(a, far), scores(a, append(append([]string{}, texts[1:]...), texts[0]))
	for i, s := range scores(a, b) {
		of, relevant = append(of, []float64{s, near[i], further[i]}), append(relevant, []bool{true, false, false})
	}
	ranked, err4 := evaluate.RankCandidates(of, relevant, nil)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	var figures map[string]float64
	if err := json.Unmarshal([]byte(succeed(t, "rerank", "--model", model, "--candidates", at("rows.jsonl"), "--documents", "ranked", "--json").stdout), &figures); err != nil || len(figures) != 7 {
		t.Fatal(err, figures)
	}
	for name, w := range map[string]float64{"ndcg@10": ranked.Means[0], "mrr@10": ranked.Means[1], "map": ranked.Means[2], "base_mrr@10": 1. / 3, "base_map": 1. / 3, "base_ndcg@10": 0.5, "queries": 6} {
		if g := figures[name]; !(math.Abs(g-w) <= 1e-5) {
			t.Errorf("--candidates: %s is %v, want %v", name, g, w)
		}
	}
	for flag, want := range map[string]map[string]float64{
		"--sts": {"spearman": sts.Spearman, "pearson": sts.Pearson}, "--pair-classification": {"ap": classes.AP, "f1_threshold": classes.F1Threshold}, "--triplets": {"accuracy": triplets.Accuracy},
	} {
		var got map[string]float64
		if err := json.Unmarshal([]byte(succeed(t, "rerank", "--model", model, flag, at("rows.jsonl"), "--json").stdout), &got); err != nil {
			t.Fatal(err)
		}
		for name, w := range want {
			if g, ok := got[name]; !ok || !(math.Abs(g-w) <= 1e-5) {
				t.Errorf("%s: %s is %v, want %v", flag, name, g, w)
			}
		}
	}
	for want, args := range map[string][]string{
		"--sts and --triplets: give one at a time":        {"rerank", "--model", model, "--sts", at("rows.jsonl"), "--triplets", at("rows.jsonl")},
		"--queries and --triplets: give one at a time":    {"rerank", "--model", model, "--queries", dir, "--triplets", at("rows.jsonl")},
		"--top does not go with --triplets":               {"rerank", "--model", model, "--triplets", at("rows.jsonl"), "--top", "3"},
		"--sigmoid does not go with --sts":                {"rerank", "--model", model, "--sts", at("rows.jsonl"), "--sigmoid"},
		"--columns is for --sts":                          {"rerank", "--model", model, "--input", at("rows.jsonl"), "--output", at("x.parquet"), "--columns", "a,b,c"},
		"--documents is for --candidates":                 {"rerank", "--model", model, "--triplets", at("rows.jsonl"), "--documents", "x"},
		"--found is of --documents":                       {"rerank", "--model", model, "--candidates", at("rows.jsonl"), "--found"},
		"--columns has 3 names, want 2 as in --columns q": {"rerank", "--model", model, "--candidates", at("rows.jsonl"), "--documents", "ranked", "--columns", "a,b,c"},
		"it takes another file (--sts) or column (--col":  {"rerank", "--model", model, "--sts", at("rows.jsonl"), "--columns", "sentence1,sentence2,one"},
		"contraflow rerank does, and measures it":         {"eval", "--model", model, "--triplets", at("rows.jsonl")},
		"--columns has 2 names, want 3 as in --columns a": {"rerank", "--model", model, "--triplets", at("rows.jsonl"), "--columns", "a,b"},
	} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
}
