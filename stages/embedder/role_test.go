package embedder

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/io/dataset"
)

// Where queries are weights of tokens a text is read by its role alone: a default prompt that is called query goes before documents, and a text that stands on
// both sides, cut at one length, is a query here and a document there, for pairs, a teacher and a task of a model in training.
func TestRoles(t *testing.T) {
	ctx := t.Context()
	dir, weights := weighedFolder(t, true)
	_, _, texts := sparseGolden(t)
	const n = 12 // tokens
	const file, prompt = "config_sentence_transformers.json", "a cat "
	prompts := fmt.Sprintf(`{"model_type": "SparseEncoder", "prompts": {"query": %q, "document": ""}, "default_prompt_name": "query", "similarity_fn_name": null}`, prompt)
	if err := os.WriteFile(filepath.Join(dir, file), []byte(prompts), 0o666); err != nil {
		t.Fatal(err)
	}
	e, err := Load(dir, MaxLength(n), QueryMaxLength(n))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	as := func(role Role, prompt string) (vecs [][]float32) {
		flat := make([]float32, len(texts)*e.Size())
		if _, err := e.EmbedAs(ctx, role, "", prompted(prompt, texts), flat); err != nil {
			t.Fatal(err)
		}
		return slices.Collect(slices.Chunk(flat, e.Size()))
	}
	queries, docs := as(Query, ""), as(Document, "")
	for i := range queries {
		for id, w := range queries[i] {
			if w != 0 && w != weights[id] {
				t.Fatalf("query %d has the weight %v for token %d, want %v", i, w, id, weights[id])
			}
		}
	}
	got, err := e.Embed(ctx, texts)
	if err != nil || !slices.EqualFunc(got, as(Document, prompt), slices.Equal[[]float32]) {
		t.Errorf("with the default prompt query texts are no documents behind it: %v", err)
	}
	if got, err = e.EmbedPrompt(ctx, "query", texts); err != nil || !slices.EqualFunc(got, as(Query, prompt), slices.Equal[[]float32]) {
		t.Errorf("with the prompt query texts are no queries behind it: %v", err)
	}
	both, err := e.Relevance(ctx, "", "", texts, texts)
	if err != nil {
		t.Fatal(err)
	}
	taught, _, err := (&Teacher{Embedder: e, Dot: true}).ScorePairs(ctx, texts, texts)
	if err != nil {
		t.Fatal(err)
	}
	for i := range texts {
		want := product(queries[i], docs[i])
		if !(math.Abs(both[i]-want) <= 1e-5*want) || !(math.Abs(float64(taught[i])-want) <= 1e-5*want) {
			t.Errorf("text %d as a query and as a document: %v of a pair and %v of a teacher, want %v", i, both[i], taught[i], want)
		}
	}

	m := trainable(t, dir)
	r := &dataset.Retrieval{QueryIDs: []string{"q"}, Queries: texts[:1], DocIDs: []string{"d"}, Docs: texts[:1], Judgements: []dataset.Judgement{{Relevance: 1}}}
	task, err := m.NewTask(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	ids := e.tok.Bare().Encode(prompt+texts[0], m.QueryLength())
	if want := slices.Compact(slices.Sorted(slices.Values(ids))); !slices.Equal(task.queries[0], want) || slices.Equal(task.docs[0], want) {
		t.Errorf("a task of a model in training has the query %v and the document %v, want the query %v", task.queries[0], task.docs[0], want)
	}
}
