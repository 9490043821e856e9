package stages

import (
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// What CheckText says of a row's texts is what Tokenize says of the row, and of texts that give something neither says anything.
func TestCheckText(t *testing.T) {
	tok := words(t, "c")
	ids := func(text string) []int32 { return tok.Encode(text, 0) }
	skips := func(text string) transformer.Reading { return transformer.Reading{Skip: ids(text)} } // the special tokens, too
	filled := transformer.Reading{Skip: ids("a b"), Length: 9, Fill: ids("c")[1]}
	bodies := transformer.Reading{Skip: ids("a b")[1:3]}
	second, err := tok.NewPairs(tokenize.PairOptions{MaxLength: 6, Truncation: tokenize.OnlySecond})
	if err != nil {
		t.Fatal(err)
	}
	longest, err := tok.NewPairs(tokenize.PairOptions{MaxLength: 6})
	if err != nil {
		t.Fatal(err)
	}
	vectors := func(query, document transformer.Reading) Text {
		return Text{Tokenizer: tok, Heads: transformer.TokenHeads{Alone: true, Query: query, Document: document}}
	}
	const none = "no token of the text has a vector"
	columns := []dataset.Column{{Role: dataset.Query, Source: "q"}, {Role: dataset.Positive, Source: "p"}}
	for _, c := range []struct {
		name         string
		text         Text
		query, doc   string
		column, want string
		nothing      bool // CheckText is nil
	}{
		{"embeddings", Text{Tokenizer: tok}, "a", "b", "", "", true},
		{"special tokens have vectors", vectors(bodies, bodies), "a", "b", "", "", true},
		{"as many embeddings as tokens", Text{Tokenizer: tok, Vocab: tok.VocabSize()}, "a", "c", "", "", true},
		{"a token without an embedding", Text{Tokenizer: tok, Vocab: tok.VocabSize() - 1}, "a", "b c", "p", `the token "c" has id `, false},
		{"one that is not there", Text{Tokenizer: tok, Vocab: tok.VocabSize() - 1}, "a", "b", "", "", false},
		{"one in a pair", Text{Tokenizer: tok, Vocab: tok.VocabSize() - 1, Pairs: []*tokenize.Pairs{longest}}, "a", "b", "", "", true},
		{"another token", vectors(transformer.Reading{}, skips("a b")), "a", "a c b", "", "", false},
		{"document", vectors(transformer.Reading{}, skips("a b")), "a", "b a", "p", none, false},
		{"a document's tokens in a query", vectors(transformer.Reading{}, skips("c")), "c", "b", "", "", false},
		{"query", vectors(skips("a b"), transformer.Reading{}), "a a", "b", "q", none, false},
		{"a query that is filled up", vectors(filled, transformer.Reading{}), "a", "b", "", "", true},
		{"the longer one is cut", Text{Pairs: []*tokenize.Pairs{longest}}, "a b a b a b a b", "b", "", "", true},
		{"room for one token", Text{Pairs: []*tokenize.Pairs{second}}, "a b", "b b b b", "", "", false},
		{"no room", Text{Pairs: []*tokenize.Pairs{second}, TooLong: "way out"}, "a b a", "b b", "q", "the text that is not to be cut has 3 ids, of 3 for both; truncation longest_first cuts either; way out", false},
	} {
		check := c.text.CheckText(0)
		if (check == nil) != c.nothing {
			t.Errorf("%s: is there a check? %t", c.name, check != nil)
		}
		column, reason := "", ""
		for i, text := range []string{c.query, c.doc} {
			if check == nil || reason != "" {
				continue
			}
			if reason = check(columns[i].Role, text, nil); reason != "" {
				column = columns[i].Source
			}
			if c.text.Pairs == nil && check(columns[i].Role, "", ids(text)) != reason { // made beforehand
				t.Errorf("%s: of its ids it says something else", c.name)
			}
		}
		if column != c.column || !strings.Contains(reason, c.want) || (reason == "") != (c.want == "") {
			t.Errorf("%s: column %q: %s", c.name, column, reason)
		}
		chunk := &Chunk{Data: Described{Name: "mine", Texts: columns}, Examples: []dataset.Example{{Row: 7, Texts: []string{c.query, c.doc}, Hashes: make([]dataset.Hash128, 2)}}}
		want := ""
		if c.want != "" {
			want = `mine: row 7, column "` + c.column + `": ` + reason
		}
		refuses := func(what string) {
			t.Helper()
			if got := refusal(t, c.text, chunk); !strings.HasSuffix(got, want) || want == "" && got != "" {
				t.Errorf("%s, %s: %s, want %s", c.name, what, got, want)
			}
		}
		refuses("texts")
		if c.text.Pairs != nil {
			continue
		}
		made, err := c.text.Prepared(0, false)
		if err != nil {
			t.Fatal(err)
		}
		chunk.Data, chunk.Examples[0].Texts = prepared{Described{Name: "mine", Texts: columns}, made}, nil
		chunk.Examples[0].IDs = [][]int32{ids(c.query), ids(c.doc)}
		refuses("ids made beforehand")
	}
}

// A pair, or a text that a guide reads, with a token that the model or the guide has no embedding for is refused by its row and column.
func TestTokensWithoutEmbeddings(t *testing.T) {
	tok := words(t, "c")
	pairs, err := tok.NewPairs(tokenize.PairOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limited := Text{Tokenizer: tok, Vocab: tok.VocabSize() - 1}
	scored := limited
	scored.Pairs = []*tokenize.Pairs{pairs}
	for want, x := range map[string]Text{`"p": the token "c" has id 7`: scored, `"q": the guide: the token "c" has id 7`: {Tokenizer: tok, Guide: &limited}} {
		columns := []dataset.Column{{Role: dataset.Query, Source: "q"}, {Role: dataset.Positive, Source: "p"}}
		chunk := &Chunk{Data: Described{Name: "mine", Texts: columns}, Examples: []dataset.Example{{Row: 7, Texts: []string{"a", "b"}, Hashes: make([]dataset.Hash128, 2)}}}
		if got := refusal(t, x, chunk); got != "" {
			t.Error(got)
		}
		chunk.Examples[0].Texts[0] = "c"
		if got := refusal(t, x, chunk); !strings.Contains(got, "mine: row 7, column "+want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// taught are rows with a teacher's embeddings of two numbers.
type taught struct{ Described }

func (taught) TeacherSize() int { return 2 }

// A teacher's embedding has as many numbers as the dataset says, where it does, and else as many as other rows'.
func TestCheckTeacherSize(t *testing.T) {
	e := &dataset.Example{Weight: 1, Teacher: []float32{1}}
	if err := checkNumbers(e, taught{}, 1); err == nil || err.Error() != "the teacher's embedding has 1 numbers, those of other rows have 2" {
		t.Error(err)
	}
	if err := checkNumbers(e, Described{}, 1); err != nil {
		t.Error(err)
	}
	if err := checkNumbers(e, Described{}, 3); err == nil {
		t.Error("1 number beside 3 is taken")
	}
}
