package stages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// Queries that are weights of tokens have each token once, none that is special, and as many as their length lets through, which no position bounds; they
// and documents are in no sub-batch together.
func TestWeighedText(t *testing.T) {
	tok, err := tokenize.FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "x"}, tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(`{"q": "d a d a b", "p": "a a b"}`+"\n"+`{"q": "x", "p": "c"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	reader := data.NewReader(dataset.ReaderConfig{})
	defer reader.Close()
	examples, err := reader.Read(t.Context(), 0, []int64{0, 1})
	if err != nil {
		t.Fatal(err)
	}
	for length, want := range map[int]string{0: "[[[5 6 8 9] [9]] [[2 5 5 6 3] [2 7 3]]]", 4: "[[[5 8 9] [9]] [[2 5 5 6 3] [2 7 3]]]"} {
		x := Text{Tokenizer: tok, QueryLength: length, QueryPrompt: "x ", Weighed: true, Positions: 3}
		c, err := x.tokenize(&Chunk{Data: data, Examples: examples})
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(c.IDs) != want || c.Truncated != length/4 {
			t.Errorf("queries of %d tokens: %v, %d cut, want %s", length, c.IDs, c.Truncated, want)
		}
		if err := x.check(); err != nil {
			t.Error(err)
		}
		if _, err := x.Prepared(0, false); err == nil || !strings.Contains(err.Error(), "without special tokens") {
			t.Errorf("ids made beforehand: %v", err)
		}
		c.Chunk.EndsBatch = true
		b := assemble([]*TokenChunk{c})
		subs := Size{}.Cut(b)
		if len(subs) != 2 || !subs[0].weighed() || subs[0].Hi != 2 || subs[1].weighed() || !subs[0].rows(1, 1).Weighed || subs[1].rows(1, 1).Weighed {
			t.Errorf("sub-batches %+v", subs)
		}
	}
	// Queries without tokens, whose embeddings take memory, are no more in a sub-batch than it may have tokens.
	b := &Batch{Rows: make([]int64, 5), Cu: []int32{0, 0, 0, 0, 0, 0, 2}, Weighed: true}
	if subs := (Size{Tokens: 3}).Cut(b); len(subs) != 3 || subs[0].Hi != 3 || subs[1].Hi != 5 {
		t.Errorf("of five queries without tokens: %+v", subs)
	}
}
