package stages

import (
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// Each sequence of a sub-batch, and each that a guide reads, has as many tokens of a prompt as its column's prompt of its dataset has, with the special token in front.
func TestPromptTokens(t *testing.T) {
	vocab := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"}
	tok, err := tokenize.FromVocab(vocab, tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pieces, err := tokenize.FromVocab(append(vocab, "##b"), tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := Text{
		Tokenizer: tok, QueryLength: 8, DocumentLength: 4, Prompts: []Prompts{{}, {Query: "a a ", Document: "b ", Negative: "c c c c c "}},
		Guide: &Text{Tokenizer: pieces, QueryLength: 4, Prompts: []Prompts{{}, {Positive: "ab ", Query: "a a a "}}},
	}
	data := Described{Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}, {Role: dataset.Negative, Ragged: true}}}
	c := &Chunk{Data: data, Source: 1}
	for i, texts := range [][]string{{"a", "b c", "d"}, {"a b c d a", "b", "c d", "d"}, {"", "a b c"}} {
		c.Examples = append(c.Examples, dataset.Example{Row: int64(i), Texts: texts, Hashes: make([]dataset.Hash128, len(texts)), Starts: []int32{0, 1, 2, int32(len(texts))}, Weight: 1})
	}
	out, err := x.tokenize(c)
	if err != nil {
		t.Fatal(err)
	}
	b := assemble([]*TokenChunk{out})
	all, guide := []int32{3, 3, 3, 2, 2, 2, 3, 3, 3}, []int32{3, 3, 3, 3, 3, 3, 0, 0, 0} // of what is cut to 4 at most 3
	for _, sub := range (Size{Rows: 4}).Cut(b) {
		if got, want := sub.rows(1, 2).Prompt, all[sub.Lo:sub.Hi]; !slices.Equal(got, want) {
			t.Errorf("sequences %d to %d have prompts of %v tokens, want %v", sub.Lo, sub.Hi, got, want)
		}
	}
	if got := b.prompts(b.GuidePrompt, 0, b.N()); !slices.Equal(got, guide) {
		t.Errorf("a guide reads prompts of %v tokens, want %v", got, guide)
	}

	// What measures a loss, and what guides it, leave them out.
	model, err := embedder.LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), ref.New())
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	model.Model.Head.SkipPrompt = true
	stream, err := model.Model.Device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	e := &embedder.Engine{Model: model.Model, Stream: stream}
	defer e.Close()
	embedded := func(texts [][]int32, prompts []int32) []float32 {
		out := make([]float32, len(texts)*e.Size())
		if err := e.EmbedPrompted(t.Context(), texts, prompts, func(i int, vec []float32) { copy(out[i*e.Size():], vec) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	var texts [][]int32
	for n := range b.N() {
		texts = append(texts, b.IDs[b.Cu[n]:b.Cu[n+1]])
	}
	if got, err := embedBatch(t.Context(), e, b); err != nil || !slices.Equal(got[0], embedded(texts, all)) {
		t.Errorf("a loss is measured on other embeddings: %v", err)
	}
	want := embedded(b.Guide, guide)
	evaluate.Normalize(want, e.Size())
	if got, err := b.look(t.Context(), e); err != nil || !slices.Equal(got, want) {
		t.Errorf("a guide has other embeddings: %v", err)
	}

	out.GuidePrompt = out.GuidePrompt[:2]
	if err := out.check(); err == nil || !strings.Contains(err.Error(), "is of 2 columns, and the rows' Data have 3") {
		t.Error(err)
	}
	c.Source = 0
	if out, err = x.tokenize(c); err != nil {
		t.Fatal(err)
	}
	if b = assemble([]*TokenChunk{out}); b.prompts(b.Prompt, 0, b.N()) != nil || b.prompts(b.GuidePrompt, 0, b.N()) != nil {
		t.Error("a dataset without prompts has some")
	}
}
