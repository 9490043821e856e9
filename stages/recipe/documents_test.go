package recipe

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
)

// A reranker's rows of all documents with a label of each train as those of a positive and its negatives do, bit by bit, on any ranks; one document
// is a row too. (What the losses are of such rows testdata/peers/reranker_steps.py compares with sentence-transformers'.)
func TestDocuments(t *testing.T) {
	j := newJob(t, 30)
	var lists strings.Builder
	for i := range 12 {
		var docs []string
		var labels []int
		for k := range 1 + i%4 {
			docs, labels = append(docs, strings.Join(j.words[(i+k)%9:(i+k)%9+3], " ")), append(labels, (i+2*k)%3)
		}
		row := map[string]any{"q": j.words[i], "docs": docs, "p": docs[0], "n": docs[1:], "labels": labels}
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lists.Write(append(text, '\n'))
	}
	path := filepath.Join(j.dir, "lists.jsonl")
	if err := os.WriteFile(path, []byte(lists.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	train := func(name, columns string, sets ...string) ([]float64, error) {
		_, err := j.run(t, name, checkpoint.Disk{}, 0, false, append([]string{
			"model.kind=reranker", "train.max_steps=3", "batch.global_size=4", "loss.name=lambda", fmt.Sprintf("data.train=[{path: %q, query: q, %s, scores: labels}]", path, columns),
			fmt.Sprintf("eval.loss={path: %q, query: q, %s, scores: labels}", path, columns),
		}, sets...)...)
		if err != nil {
			return nil, err
		}
		var losses []float64 // steps' and the evaluation's
		for _, line := range j.lines(t, name) {
			if v, ok := line["loss"].(float64); ok {
				losses = append(losses, v)
			}
		}
		return losses, nil
	}
	want, err := train("parts", "positive: p, negatives: [n], negatives_per_query: all")
	if err != nil {
		t.Fatal(err)
	}
	got, err := train("lists", "documents: docs")
	if err != nil {
		t.Fatal(err)
	}
	if len(want) < 3 || !slices.Equal(got, want) {
		t.Errorf("losses %v of lists of documents, %v of their parts", got, want)
	}
	got, err = train("ranks", "documents: docs", "mesh.replicate=2", "batch.sub_batch={rows: 3}", "model.dropout=0")
	if err != nil {
		t.Fatal(err)
	}
	if want, err = train("one", "documents: docs", "model.dropout=0"); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("losses %v of two ranks, %v of one", got, want)
	}
	for i := range want { // but for the order of sums
		if !(math.Abs(got[i]-want[i]) <= 64*0x1p-23*want[i]) {
			t.Errorf("losses %v of two ranks, %v of one", got, want)
		}
	}
	card, err := os.ReadFile(filepath.Join(j.dir, "lists", "model", "README.md"))
	if err != nil || !strings.Contains(string(card), "lists.jsonl | q, docs | 12 |") {
		t.Errorf("the model card does not name the columns: %v\n%s", err, card)
	}
}

func TestDocumentsKeys(t *testing.T) {
	const text = "model: {path: m, kind: %s}\ndata:\n  train:\n    - {path: d, query: q, %s}\nloss: %s\nsave: {dir: s}\n"
	for _, c := range []struct{ kind, columns, loss, want string }{
		{"reranker", "documents: docs, scores: labels", "lambda", ""},
		{"reranker", "documents: docs, scores: labels", "bce", ""},
		{"reranker", "documents: docs", "cross_entropy", ""},
		{"reranker", "documents: docs", "list_net", "data.train[0].scores: are missing"},
		{"reranker", "documents: docs", "list_mle", ""},
		{"reranker", "documents: docs", "{name: list_mle, by_label: true}", "data.train[0].scores: are missing: loss.name: list_mle with by_label"},
		{"reranker", "documents: docs", "{name: p_list_mle, by_label: true}", "data.train[0].scores: are missing"},
		{"reranker", "documents: docs", "bce", "data.train[0].scores: are missing: loss.name: bce learns from a label of each document"},
		{"reranker", "documents: docs", "mse", "data.train[0].scores: are missing"},
		{"reranker", "documents: docs", "lambda", "data.train[0].scores: are missing: loss.name: lambda learns from a label of each document, and scores: names the column"},
		{"reranker", "documents: docs", "rank_net", "data.train[0].scores: are missing"},
		{"reranker", "documents: docs, ids: true, scores: labels", "lambda", "data.train[0].ids: are not of documents"},
		{"reranker", "documents: docs, ids: false, scores: labels", "lambda", ""},
		{"reranker", "documents: docs, label: labels", "lambda", "data.train[0].label: is for pairs: of documents, scores: labels names the column with a label of each"},
		{"reranker", "documents: docs, positive: p, scores: labels", "lambda", "data.train[0].positive: is among the documents already"},
		{"reranker", "documents: docs, negatives: [n], scores: labels", "lambda", "data.train[0].negatives: are among the documents already"},
		{"reranker", "positive: docs, label: labels", "lambda", "documents: names a column with a list of them, of which scores: names one with a label of each"},
		{"reranker", "positive: p, negatives: [n], label: l", "margin_mse", ""},
		{"reranker", "positive: p, negatives: [n]", "margin_mse", "data.train[0].scores: are missing: loss.name: margin_mse learns from a score of each document, or from their difference as label"},
		{"reranker", "positive: p, negatives: [n], label: l, scores: s", "margin_mse", "data.train[0].label: is for pairs, or margin_mse without scores"},
		{"reranker", "positive: p, negatives: [n], label: l", "[margin_mse, bce]", "data.train[0].label: is for pairs, or margin_mse without scores"},
		{"reranker", "documents: docs", "margin_mse", "data.train[0].scores: are missing"},
		{"reranker", "documents: docs, label: l", "margin_mse", "data.train[0].label: is for pairs: of documents, scores: l names the column with a label of each"},
		{"embedder", "documents: docs, scores: labels", "distill_kl", "data.train[0].documents: is for model.kind: reranker"},
	} {
		_, err := Parse("recipe", []byte(fmt.Sprintf(text, c.kind, c.columns, c.loss)), nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %s: %v, want %q", c.columns, c.loss, err, c.want)
		}
		if err != nil && c.columns == "documents: docs, label: l" && strings.Count(err.Error(), "data.train[0]") != 1 {
			t.Errorf("%s, %s: %v, want one error", c.columns, c.loss, err)
		}
	}
}
