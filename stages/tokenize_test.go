package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
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

// words is a tokenizer of words.
func words(t *testing.T, more ...string) *tokenize.Tokenizer {
	t.Helper()
	tok, err := tokenize.FromVocab(append([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"}, more...), tokenize.VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// refusal is what a graph that tokenizes a chunk ends with; "" if it takes it.
func refusal(t *testing.T, x Text, c *Chunk) string {
	t.Helper()
	g, given := pipeline.New("refusal"), false
	tokens := Tokenize(g, pipeline.Source(g, "mine", func(context.Context) (*Chunk, error) {
		if given {
			return nil, io.EOF
		}
		given = true
		return c, nil
	}), x)
	pipeline.Sink(g, "end", tokens, func(*pipeline.Task, *TokenChunk) error { return nil })
	p, err := g.Build()
	if err == nil {
		err = p.Run(t.Context())
	}
	var bug *pipeline.PanicError
	if errors.As(err, &bug) {
		t.Errorf("a panic: %v", err)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// prepared are rows that come as token ids.
type prepared struct {
	Described
	made dataset.TokenInfo
}

func (p prepared) Tokens() *dataset.TokenInfo { return &p.made }

// Token ids that something else has made than Text are refused with the first chunk, in any graph.
func TestTokenizeForeignIDs(t *testing.T) {
	tok := words(t)
	x := Text{Tokenizer: tok, QueryLength: 8, DocumentLength: 16, QueryPrompt: "a "}
	ours := dataset.TokenInfo{Tokenizer: tok.Hash(), Query: dataset.TokenRole{MaxLength: 8, Prompt: "a "}, Document: dataset.TokenRole{MaxLength: 16}}
	columns := []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}}
	for want, change := range map[string]func(made *dataset.TokenInfo, x *Text){
		"":                                    func(*dataset.TokenInfo, *Text) {},
		"made with tokenizer other":           func(made *dataset.TokenInfo, _ *Text) { made.Tokenizer = "other" },
		"max_length {query: 9, document: 16}": func(made *dataset.TokenInfo, _ *Text) { made.Query.MaxLength = 9 },
		`Text has tokenizer`:                  func(made *dataset.TokenInfo, _ *Text) { made.Document.Prompt = "b " },
		`prompts {query: "b ", document: ""}`: func(_ *dataset.TokenInfo, x *Text) { x.Prompts = []Prompts{{Query: "b "}} },
		"dataset 0 (dataset.Source.Tokens): loss.guide":   func(_ *dataset.TokenInfo, x *Text) { x.Guide = &Text{Tokenizer: tok} },
		"pairs of texts, which prep has no ids of":        func(_ *dataset.TokenInfo, x *Text) { x.Pairs = []*tokenize.Pairs{{}} },
		"rows of dataset 0: Text.Prompts are of 0":        func(_ *dataset.TokenInfo, x *Text) { x.Prompts = []Prompts{} },
		"rows of dataset 0: Text.Pairs are of 0 datasets": func(_ *dataset.TokenInfo, x *Text) { x.Pairs = []*tokenize.Pairs{} },
	} {
		made, text := ours, x
		change(&made, &text)
		c := &Chunk{Data: prepared{Described{Name: "mine", Texts: columns}, made}, Examples: []dataset.Example{{IDs: [][]int32{{2, 3}, {2, 3}}, Hashes: make([]dataset.Hash128, 2)}}}
		if got := refusal(t, text, c); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Rows that a stage of one's own has broken are errors with their place, not panics or texts that are left out.
func TestTokenizeBrokenRows(t *testing.T) {
	inf := float32(math.Inf(1))
	text := Text{Tokenizer: words(t)}
	columns := []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}, {Role: dataset.Negative, Ragged: true}}
	for want, change := range map[string]func(c *Chunk, e *dataset.Example){
		"": func(*Chunk, *dataset.Example) {},
		"mine: row 7: the row has 3 Texts, and its columns are of 4": func(_ *Chunk, e *dataset.Example) { e.Texts = e.Texts[:3] },
		"the row has 5 Texts, and its columns are of 4":              func(_ *Chunk, e *dataset.Example) { e.Texts = append(e.Texts, "b") },
		"the row has 0 Hashes, and 4 Texts":                          func(_ *Chunk, e *dataset.Example) { e.Hashes = nil },
		"the row has 1 IDs, and its columns are of 4":                func(_ *Chunk, e *dataset.Example) { e.IDs = [][]int32{{2, 3}} },
		"the row has 3 Starts, and 3 columns":                        func(_ *Chunk, e *dataset.Example) { e.Starts = e.Starts[:3] },
		"are those of column 1 (positive)":                           func(_ *Chunk, e *dataset.Example) { e.Starts = []int32{0, 1, 3, 4} },
		"are those of column 0 (query)":                              func(_ *Chunk, e *dataset.Example) { e.Starts = []int32{1, 2, 3, 4} },
		"a chunk has Next and Place":                                 func(c *Chunk, _ *dataset.Example) { c.Next, c.Place = new(dataset.Cursor), 1 },
		"a chunk is nil, or its Data are":                            func(c *Chunk, _ *dataset.Example) { c.Data = nil },
		"mine: row 7: the weight is -1":                              func(_ *Chunk, e *dataset.Example) { e.Weight = -1 },
		"the weight is +Inf: it must be a number >= 0":               func(_ *Chunk, e *dataset.Example) { e.Weight = inf },
		"the label is NaN: it must be a number":                      func(_ *Chunk, e *dataset.Example) { e.Label = inf - inf },
		"score 2 is +Inf: it must be a number":                       func(_ *Chunk, e *dataset.Example) { e.Scores[2] = inf },
		"the row has 2 scores for its 3 documents":                   func(_ *Chunk, e *dataset.Example) { e.Scores = e.Scores[:2] },
		"number 1 of the teacher's embedding is NaN":                 func(_ *Chunk, e *dataset.Example) { e.Teacher[1] = inf - inf },
		"mine: row 8: the teacher's embedding has 0 numbers, those of other rows have 2": func(c *Chunk, e *dataset.Example) {
			other := *e
			other.Row, other.Teacher = 8, nil
			c.Examples = append(c.Examples, other)
		},
	} {
		c := &Chunk{Data: Described{Name: "mine", Texts: columns, Labels: true, Scores: true}, Examples: []dataset.Example{
			{Row: 7, Texts: []string{"a", "b", "a", "a"}, Hashes: make([]dataset.Hash128, 4), Starts: []int32{0, 1, 2, 4}, Scores: []float32{1, 2, 3}, Teacher: []float32{1, 2}},
		}}
		change(c, &c.Examples[0])
		if got := refusal(t, text, c); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := refusal(t, text, nil); !strings.Contains(got, "a chunk is nil") {
		t.Error(got)
	}
}
