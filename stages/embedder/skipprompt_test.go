package embedder

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/mine"
	"contraflow/testdata/goldens"
)

// A folder whose pooling has no include_prompt is read in all ways of embedding without its prompts: queries and documents, each behind its own, have
// the embeddings of tokens behind the special token in front and the prompt, and those are what pairs, tasks, teachers and mining compare.
func TestSkipPrompt(t *testing.T) {
	ctx, dir := t.Context(), filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1_Pooling/config.json", `{"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": false}`)
	write("config_sentence_transformers.json", `{"prompts": {"query": "river stone ", "document": "bread "}}`)
	e, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := []string{"wind and rain", "a road", "the cat reads a file of rows"}
	as := func(prompt string, tokens int32) (vecs [][]float32) {
		ids, err := e.tok.EncodeAll(ctx, prompted(prompt, texts), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		vecs = make([][]float32, len(texts))
		if err := e.engine.EmbedPrompted(ctx, ids, slices.Repeat([]int32{tokens}, len(ids)), func(i int, vec []float32) { vecs[i] = slices.Clone(vec) }); err != nil {
			t.Fatal(err)
		}
		return vecs
	}
	queries, docs := as("river stone ", 3), as("bread ", 2)
	for name, want := range map[string][][]float32{"query": queries, "document": docs, "": as("", 0)} {
		if got, err := e.EmbedPrompt(ctx, name, texts); err != nil || !slices.EqualFunc(got, want, slices.Equal[[]float32]) {
			t.Errorf("prompt %q: embeddings are others (%v)", name, err)
		}
	}
	if slices.Equal(queries[0], as("river stone ", 0)[0]) {
		t.Error("leaving the prompt out makes no difference")
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-5) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	both, err := e.Relevance(ctx, "river stone ", "bread ", texts, texts)
	if err != nil {
		t.Fatal(err)
	}
	alike, err := e.Similarity(ctx, "bread ", texts[:1], texts[1:2])
	if err != nil {
		t.Fatal(err)
	}
	near("a pair", alike[0], cosine(docs[0], docs[1]))
	taught, _, err := (&Teacher{Embedder: e, Query: "river stone ", Document: "bread "}).ScorePairs(ctx, texts, texts)
	if err != nil {
		t.Fatal(err)
	}
	for i := range texts {
		near("relevance", both[i], cosine(queries[i], docs[i]))
		near("a teacher's score", float64(taught[i]), cosine(queries[i], docs[i]))
	}
	rows, _, err := e.Mine(ctx, mine.Pair(texts[:1], texts[:1], texts[1:]), Mining{Options: mine.Options{Negatives: 2}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range rows[0].Negatives { // of Pairs' corpus: two texts, and then the positive that it lacks
		near("a mined score", float64(h.Score), cosine(queries[0], docs[1+h.Doc]))
	}

	m := trainable(t, dir)
	r := &dataset.Retrieval{QueryIDs: []string{"q"}, Queries: texts[:1], DocIDs: []string{"a", "b", "c"}, Docs: texts, Judgements: []dataset.Judgement{{Relevance: 1}}}
	task, err := m.NewTask(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	run, err := task.Rank(ctx, &e.engine, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range run[0] {
		near("a task's score", float64(h.Score), cosine(queries[0], docs[h.Doc]))
	}
	if len(run[0]) != 3 || len(rows[0].Negatives) != 2 {
		t.Errorf("%d documents are ranked, and %d mined", len(run[0]), len(rows[0].Negatives))
	}

	if got := (Text{Tokenizer: e.tok, QueryPrompt: "river stone ", QueryLength: 3, DocumentPrompt: "bread "}).prompts(); got != [2]int{Document: 2, Query: 2} {
		t.Errorf("queries that are cut to 3 tokens, and documents, have prompts of %v tokens", got)
	}

	// Where texts are cut within the prompt, what is left behind it is the special token at the end.
	ids, err := e.tok.EncodeAll(ctx, prompted("river stone ", texts[:1]), 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []float32
	if err := e.engine.EmbedPrompted(ctx, ids, []int32{2}, func(_ int, vec []float32) { want = slices.Clone(vec) }); err != nil {
		t.Fatal(err)
	}
	e.maxLength = 3
	if got, err := e.EmbedPrompt(ctx, "query", texts[:1]); err != nil || !slices.Equal(got[0], want) {
		t.Errorf("cut within the prompt: other embeddings: %v", err)
	}
}
