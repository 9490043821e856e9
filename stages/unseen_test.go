package stages

import (
	"fmt"
	"slices"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Of queries that are filled up with what the others do not attend to, the tokens before that are counted, whether ids are made here or beforehand, and a
// batch of several chunks has the numbers in the order of its sequences: by column, row by row.
func TestTokenizeUnseen(t *testing.T) {
	tok, err := tokenize.FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"}, tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := Text{Tokenizer: tok, QueryLength: 8, DocumentLength: 8, Heads: transformer.TokenHeads{Alone: true, Query: transformer.Reading{Length: 6, Fill: 4, Unseen: true}}}
	data := Described{Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}, {Role: dataset.Negative, Ragged: true}}}
	rows := [][]string{{"a", "b c", "d"}, {"a b c d a", "b", "c d", "d"}, {"", "a b c"}}
	for _, beforehand := range []bool{false, true} {
		var all, before []int32 // a dataset's ids, back to back
		chunk := func(from, to int) *TokenChunk {
			c := &Chunk{Data: data}
			for row := from; row < to; row++ {
				texts := rows[row]
				e := dataset.Example{Row: int64(row), Texts: texts, Hashes: make([]dataset.Hash128, len(texts)), Starts: []int32{0, 1, 2, int32(len(texts))}, Weight: 1}
				if beforehand {
					e.Texts = nil
					for _, text := range texts {
						n := len(all)
						all = append(all, tok.Encode(text, 8)...)
						e.IDs = append(e.IDs, all[n:])
					}
				}
				c.Examples = append(c.Examples, e)
			}
			all = append(all, 99)
			before = slices.Clone(all)
			out, err := x.tokenize(c)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(all, before) {
				t.Errorf("the dataset's ids were %v, now %v", before, all)
			}
			return out
		}
		all = make([]int32, 0, 1000) // with room behind each text
		b := assemble([]*TokenChunk{chunk(0, 2), chunk(2, 3)})
		var texts [][]int32
		for n := range b.N() {
			texts = append(texts, b.IDs[b.Cu[n]:b.Cu[n+1]])
		}
		if want := "[[2 5 3 4 4 4] [2 5 6 7 8 5 3] [2 3 4 4 4 4] [2 6 7 3] [2 6 3] [2 5 6 7 3] [2 8 3] [2 7 8 3] [2 8 3]]"; fmt.Sprint(texts) != want {
			t.Errorf("beforehand %v: texts are %v, want %s", beforehand, texts, want)
		}
		if want := []int32{3, 7, 2, 4, 3, 5, 3, 4, 3}; !slices.Equal(b.Seen, want) {
			t.Errorf("beforehand %v: %v tokens are attended to, want %v", beforehand, b.Seen, want)
		}
	}
}
