package stages

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// Each role has its own prompt and its own length.
func TestTokenizeRoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(`{"q": "a b c d", "p": "a b c d", "n": "b"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p", Negatives: []string{"n"}})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	reader := data.NewReader(dataset.ReaderConfig{})
	defer reader.Close()
	examples, err := reader.Read(t.Context(), 0, []int64{0})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenize.FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "x", "y"}, tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		query, document int
		want            string // of [CLS] 2, [SEP] 3, a 5, b 6, c 7, d 8, x 9, y 10
		cut             int
	}{
		{10, 10, "[[[2 9 5 6 7 8 3]] [[2 10 5 6 7 8 3]] [[2 10 6 3]]]", 0},
		{4, 10, "[[[2 9 5 3]] [[2 10 5 6 7 8 3]] [[2 10 6 3]]]", 1},
		{10, 4, "[[[2 9 5 6 7 8 3]] [[2 10 5 3]] [[2 10 6 3]]]", 1},
		{4, 3, "[[[2 9 5 3]] [[2 10 3]] [[2 10 3]]]", 3},
	} {
		x := Text{Tokenizer: tok, QueryLength: c.query, DocumentLength: c.document, QueryPrompt: "x ", DocumentPrompt: "y "}
		got, err := x.tokenize(&Chunk{Data: data, Examples: examples})
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got.IDs) != c.want || got.Truncated != c.cut {
			t.Errorf("lengths %d and %d: %v, %d cut, want %s, %d", c.query, c.document, got.IDs, got.Truncated, c.want, c.cut)
		}
	}
	// A dataset may have a prompt for each column; a guide reads the same texts with its own tokenizer, prompts and lengths.
	other, err := tokenize.FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "a", "z"}, tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := Text{
		Tokenizer: tok, QueryLength: 4, DocumentLength: 10, Prompts: []Prompts{{Query: "x ", Document: "y ", Negative: "c "}},
		Guide: &Text{Tokenizer: other, QueryLength: 5, DocumentLength: 4, Prompts: []Prompts{{Document: "z ", Positive: "b "}}},
	}
	got, err := x.tokenize(&Chunk{Data: data, Examples: examples})
	if err != nil {
		t.Fatal(err)
	}
	if want := "[[[2 9 5 3]] [[2 10 5 6 7 8 3]] [[2 7 6 3]]]"; fmt.Sprint(got.IDs) != want {
		t.Errorf("prompts by column: %v, want %s", got.IDs, want)
	}
	if want := "[[[2 6 5 1 3]] [[2 5 6 3]] [[2 7 5 3]]]"; fmt.Sprint(got.Guide) != want {
		t.Errorf("the guide reads %v, want %s", got.Guide, want)
	}
}
