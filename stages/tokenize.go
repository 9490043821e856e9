package stages

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Text says how the texts of each role become tokens.
type Text struct {
	Tokenizer      *tokenize.Tokenizer
	QueryLength    int // tokens, special ones included; what is longer is cut and counted; 0: nothing is
	DocumentLength int
	Positions      int                    // that the model was trained with, beyond which no length may be; 0: there is no such bound
	Vocab          int                    // tokens that the model has embeddings for: with a Tokenizer a text that has another is refused; 0: none is
	QueryPrompt    string                 // put before every query
	DocumentPrompt string                 // put before every positive and negative
	Prompts        []Prompts              // of each dataset, instead; may be nil
	Threads        int                    // that tokenize at once; 0 means 1
	Guide          *Text                  // how a guide reads the same texts; nil: there is none
	Heads          transformer.TokenHeads // of the model, which say what its tokens' vectors are of: its Config.Tokens

	// Weighed tells that the model's queries are weights of tokens (its Config.Queries): they are read without special tokens, and each token once.
	Weighed bool

	// Pairs, if not nil, are how each dataset's documents become tokens with their rows' queries in front, for models that score. The
	// queries themselves have none then, and the rest of the settings does not count.
	Pairs   []*tokenize.Pairs
	Head    []int32 // what such a model's Scorer.Tied says
	TooLong string  // what to do about a pair that can't be cut to fit, said with the error of one; may be ""
}

// Prompts are put before a dataset's texts. Positive and Negative, where they are not empty, take the place of Document.
type Prompts struct{ Query, Document, Positive, Negative string }

// of is the prompt of a role.
func (p Prompts) of(r dataset.Role) string {
	switch r {
	case dataset.Query:
		return p.Query
	case dataset.Positive:
		return cmp.Or(p.Positive, p.Document)
	}
	return cmp.Or(p.Negative, p.Document)
}

// TokenChunk is a Chunk after tokenization.
type TokenChunk struct {
	Chunk // but for its Examples, which are nil

	Rows    []int64
	Weights []float32
	Labels  []float32   // [rows]; nil without labels
	Scores  [][]float32 // by row, document; nil without scores
	Teacher []float32   // the rows' teacher embeddings, back to back; nil without
	IDs     [][][]int32 // by column, text: row by row
	Kinds   [][]int32   // by column, the types of all its tokens; nil: all 0
	Guide   [][][]int32 // like IDs, for a guide; nil: there is none
	// Prompt is by column how many tokens the prompt before its texts has, for models that don't pool those (transformer.Head.SkipPrompt), and GuidePrompt
	// likewise for a guide; nil: none.
	Prompt, GuidePrompt []int32
	Pairs               bool // queries have no tokens; see Batch
	Head                []int32
	Weighed             bool            // queries are weights of tokens; see Batch
	Texts               [][]loss.TextID // by column, text
	Counts              [][]int32       // by column, row: how many of the column's texts are the row's; nil of columns that are not ragged

	// Seen is like IDs how many of a text's tokens the others attend to, the first so many; nil: all. See transformer.Reading.
	Seen [][]int32

	// Shown are the places of a text's tokens that have rows in parts of tokens; nil: all but the first.
	Shown func(role dataset.Role, ids []int32) []int32

	Truncated int

	drawn // of the rows, with InBatch
}

// Tokenize adds the stage that turns texts into token ids.
func Tokenize(g *pipeline.Graph, chunks pipeline.Port[*Chunk], x Text) pipeline.Port[*TokenChunk] {
	threads, wrong := max(1, x.Threads), x.check()
	return pipeline.Map(g, "tokenize", chunks, func(t *pipeline.Task, c *Chunk) (*TokenChunk, error) {
		if wrong != nil {
			return nil, wrong
		}
		if err := x.takes(c); err != nil {
			return nil, err
		}
		if c.bad != nil {
			return &TokenChunk{Chunk: *c}, nil
		}
		c, drawn, err := c.draw()
		if err != nil {
			return nil, err
		}
		out, wrong := x.tokenize(c)
		if wrong == nil {
			out.drawn = drawn
			return out, nil
		}
		bad, err := c.Unusable(t, wrong)
		if err != nil {
			return nil, err
		}
		return &TokenChunk{Chunk: *bad}, nil
	}, pipeline.Parallel(threads))
}

// takes refuses a chunk that a stage of one's own has broken, a dataset that x says nothing of, and one whose token ids are not x's.
func (x Text) takes(c *Chunk) error {
	if c == nil || c.Data == nil {
		return errors.New("a chunk is nil, or its Data are: a stage before stages.Tokenize has given it so")
	}
	if c.Next != nil && c.Place != nil {
		return errors.New("a chunk has Next and Place: where the data goes on Next says of a Plan's rows, and Place of those of a source of one's own")
	}
	if c.InBatch != nil && x.Pairs == nil {
		return fmt.Errorf("dataset %d: its rows get documents of other rows (Plan.InBatch, NewHeldOutInBatch), which are for models that score (Text.Pairs): in an embedder's batch all documents are each other's negatives as it is", c.Source)
	}
	if n := len(x.Pairs); x.Pairs != nil && c.Source >= n {
		return fmt.Errorf("rows of dataset %d: Text.Pairs are of %d datasets", c.Source, n)
	}
	for _, t := range []*Text{&x, x.Guide} {
		if t != nil && x.Pairs == nil && t.Prompts != nil && c.Source >= len(t.Prompts) {
			return fmt.Errorf("rows of dataset %d: Text.Prompts are of %d datasets", c.Source, len(t.Prompts))
		}
	}
	columns := c.Data.Columns()
	if d, ok := c.Data.(interface{ Tokens() *dataset.TokenInfo }); ok && d.Tokens() != nil {
		negatives := slices.ContainsFunc(columns, func(c dataset.Column) bool { return c.Role == dataset.Negative })
		want, err := x.Prepared(c.Source, negatives)
		if err == nil {
			err = CheckTokens(*d.Tokens(), want, "Text")
		}
		if err != nil {
			return fmt.Errorf("dataset %d (dataset.Source.Tokens): %w", c.Source, err)
		}
	}
	for i := range c.Examples {
		if err := x.takesRow(&c.Examples[i], columns); err != nil {
			return fmt.Errorf("%v: %w", c.Data.Locate(c.Examples[i].Row-c.Offset), err)
		}
	}
	return nil
}

// takesRow refuses a row whose texts are not those of its columns, or have no hashes.
func (x Text) takesRow(e *dataset.Example, columns []dataset.Column) error {
	if e.Starts != nil && len(e.Starts) != len(columns)+1 {
		return fmt.Errorf("the row has %d Starts, and %d columns: want one more than these", len(e.Starts), len(columns))
	}
	n := 0
	for i, c := range columns {
		lo, hi := e.Column(i)
		if lo != n || hi < lo || !c.Ragged && hi != lo+1 {
			return fmt.Errorf("the row's texts %d to %d are those of column %d (%s) by its Starts, %v", lo, hi, i, c.Role, e.Starts)
		}
		n = hi
	}
	what, have := "Texts", len(e.Texts)
	if e.IDs != nil && x.Pairs == nil && x.Guide == nil { // made beforehand
		what, have = "IDs", len(e.IDs)
	}
	if have != n {
		return fmt.Errorf("the row has %d %s, and its columns are of %d: a stage before stages.Tokenize may change texts, not their number", have, what, n)
	}
	if len(e.Hashes) != n {
		return fmt.Errorf("the row has %d Hashes, and %d %s: dataset.HashText makes that of a text", len(e.Hashes), n, what)
	}
	return nil
}

// Prepared is what must have made a dataset's token ids (dataset.Source.Tokens) for them to be those that x makes of its texts: an error, if no ids
// could be. negatives tells whether the dataset has any.
func (x Text) Prepared(source int, negatives bool) (info dataset.TokenInfo, err error) {
	if x.Pairs != nil {
		return info, errors.New("a reranker's sequences are pairs of texts, which prep has no ids of")
	}
	query, n := x.reading(source, dataset.Query)
	document, m := x.reading(source, dataset.Positive)
	switch other, _ := x.reading(source, dataset.Negative); {
	case x.Guide != nil:
		return info, errors.New("loss.guide reads the texts")
	case x.Weighed:
		return info, errors.New("queries that are weights of tokens (model.queries) are read without special tokens, and prep reads all texts with them")
	case negatives && other != document:
		return info, errors.New("positives and negatives have prompts of their own, and prep gives documents one")
	}
	return dataset.TokenInfo{
		Tokenizer: x.Tokenizer.Hash(), Query: dataset.TokenRole{MaxLength: n, Prompt: query}, Document: dataset.TokenRole{MaxLength: m, Prompt: document},
	}, nil
}

// CheckTokens refuses token ids that something else has made than who wants: other ids of the same texts train without a word.
func CheckTokens(made, want dataset.TokenInfo, who string) error {
	if made == want {
		return nil
	}
	return fmt.Errorf("its token ids were made with %s; %s has %s", describeTokens(made), who, describeTokens(want))
}

func describeTokens(t dataset.TokenInfo) string {
	s := fmt.Sprintf("tokenizer %.12s, max_length {query: %d, document: %d}", t.Tokenizer, t.Query.MaxLength, t.Document.MaxLength)
	if t.Query.Prompt != "" || t.Document.Prompt != "" {
		s += fmt.Sprintf(", prompts {query: %q, document: %q}", t.Query.Prompt, t.Document.Prompt)
	}
	return s
}

// check refuses lengths at which nothing of a text is left, and those that the model has no positions for: else the first long text would be
// an error, hours after the first step maybe.
func (x Text) check() error {
	switch {
	case x.Pairs != nil && slices.Contains(x.Pairs, nil):
		return errors.New("one of Text.Pairs is nil")
	case x.Guide != nil && x.Guide.Tokenizer == nil:
		return errors.New("Text.Guide has no Tokenizer")
	case x.Pairs != nil:
		return nil
	case x.Tokenizer == nil:
		return errors.New("Text has no Tokenizer (nor Pairs): stages.TextOf has a model's")
	}
	for _, l := range []struct {
		name  string
		limit int
	}{{"QueryLength", x.QueryLength}, {"DocumentLength", x.DocumentLength}, {"Heads.Query.Length", x.Heads.Query.Length}} {
		if l.name == "QueryLength" && x.Weighed { // no positions bound them
			continue
		}
		if x.Positions > 0 && l.limit > x.Positions {
			return fmt.Errorf("Text.%s is %d tokens, and the model was trained with %d positions: at most that many can be read", l.name, l.limit, x.Positions)
		}
	}
	return embedder.CheckLengths(x.Tokenizer, x.QueryLength, x.DocumentLength, x.Weighed)
}

// sees notes how many tokens a column's next text has before it is filled up.
func (c *TokenChunk) sees(col, tokens int) {
	if c.Seen != nil {
		c.Seen[col] = append(c.Seen[col], int32(tokens))
	}
}

// reading is what is put before a dataset's texts of a role, and how many tokens they may have.
func (x Text) reading(source int, role dataset.Role) (prompt string, limit int) {
	prompts := Prompts{Query: x.QueryPrompt, Document: x.DocumentPrompt}
	if x.Prompts != nil && x.Pairs == nil {
		prompts = x.Prompts[source]
	}
	if limit = x.DocumentLength; role == dataset.Query {
		limit = x.QueryLength
	}
	return prompts.of(role), limit
}

func (x Text) tokenize(c *Chunk) (*TokenChunk, error) {
	out := &TokenChunk{Chunk: *c, Pairs: x.Pairs != nil, Head: x.Head, Weighed: x.Weighed}
	out.Examples = nil
	if x.Heads.Alone {
		out.Shown = func(role dataset.Role, ids []int32) []int32 { return x.Heads.Shown(role == dataset.Query, ids) }
	}
	columns := c.Data.Columns()
	for i := range c.Examples {
		e := &c.Examples[i]
		if err := checkNumbers(e, c.Data, len(c.Examples[0].Teacher)); err != nil {
			return nil, fmt.Errorf("%v: %w", c.Data.Locate(e.Row-c.Offset), err)
		}
	}
	out.IDs, out.Texts, out.Counts = make([][][]int32, len(columns)), make([][]loss.TextID, len(columns)), make([][]int32, len(columns))
	for _, e := range c.Examples {
		out.Rows, out.Weights = append(out.Rows, e.Row), append(out.Weights, e.Weight)
		out.Teacher = append(out.Teacher, e.Teacher...)
		if c.Data.HasLabels() {
			out.Labels = append(out.Labels, e.Label)
		}
		if c.Data.HasScores() {
			out.Scores = append(out.Scores, e.Scores)
		}
	}
	var flat, kinds []int32
	var ends []int // of each text of each column
	bare := x.bare(c.Source)
	if x.Guide != nil {
		out.Guide = make([][][]int32, len(columns))
	}
	if x.Heads.Unseen() {
		out.Seen = make([][]int32, len(columns))
	}
	for col, column := range columns {
		out.Texts[col] = make([]loss.TextID, 0, len(c.Examples))
		out.IDs[col] = make([][]int32, 0, len(c.Examples))
		prompt, limit := x.reading(c.Source, column.Role)
		reading := x.Heads.Reading(column.Role == dataset.Query)
		tok, weighed := x.Tokenizer, x.Weighed && column.Role == dataset.Query
		if weighed {
			tok = tok.Bare()
		}
		if x.Pairs == nil {
			out.Prompt = append(out.Prompt, int32(tok.PromptTokens(prompt, limit)))
		}
		if x.Guide != nil {
			prompt, limit := x.Guide.reading(c.Source, column.Role)
			out.GuidePrompt = append(out.GuidePrompt, int32(x.Guide.Tokenizer.PromptTokens(prompt, limit)))
			for i := range c.Examples {
				e := &c.Examples[i]
				lo, hi := e.Column(col)
				for _, text := range e.Texts[lo:hi] {
					ids := x.Guide.Tokenizer.Encode(prompt+text, limit)
					if reason := x.Guide.unknown(ids); reason != "" {
						return nil, c.refused(e, column, "the guide: "+reason)
					}
					out.Guide[col] = append(out.Guide[col], ids)
				}
			}
		}
		for i := range c.Examples {
			e := &c.Examples[i]
			lo, hi := e.Column(col)
			for k := lo; k < hi; k++ {
				h := e.Hashes[k]
				out.Texts[col] = append(out.Texts[col], loss.TextID{h.Hi, h.Lo})
				if e.IDs != nil && x.Pairs == nil { // made beforehand
					ids := e.IDs[k]
					if reason := x.unknown(ids); reason != "" {
						return nil, c.refused(e, column, reason)
					}
					out.sees(col, len(ids))
					ids = reading.Expand(ids[:len(ids):len(ids)], 0)
					if bare[column.Role] {
						if reason := x.vectorless(column.Role, ids); reason != "" {
							return nil, c.refused(e, column, reason)
						}
					}
					out.IDs[col] = append(out.IDs[col], ids)
					continue
				}
				start := len(flat)
				var cut bool
				switch {
				case x.Pairs == nil:
					if flat, cut = tok.Append(flat, prompt+e.Texts[k], limit); weighed {
						flat = transformer.Distinct(flat, start)
					}
					out.sees(col, len(flat)-start)
					flat = reading.Expand(flat, start)
					if bare[column.Role] {
						if reason := x.vectorless(column.Role, flat[start:]); reason != "" {
							return nil, c.refused(e, column, reason)
						}
					}
				case column.Role != dataset.Query:
					var err error
					if flat, kinds, cut, err = x.Pairs[c.Source].Append(flat, kinds, e.Texts[0], e.Texts[k]); err != nil {
						return nil, c.refused(e, columns[0], x.tooLong(err))
					}
				}
				if reason := x.unknown(flat[start:]); reason != "" {
					return nil, c.refused(e, column, reason)
				}
				if cut {
					out.Truncated++
				}
				ends = append(ends, len(flat))
			}
			if column.Ragged {
				out.Counts[col] = append(out.Counts[col], int32(hi-lo))
			}
		}
	}
	from, i := 0, 0
	for col := range columns {
		for len(out.IDs[col]) < len(out.Texts[col]) {
			out.IDs[col] = append(out.IDs[col], flat[from:ends[i]:ends[i]])
			from = ends[i]
			i++
		}
	}
	from = 0
	for col := range out.IDs { // by column, as chunks are joined
		n := 0
		for _, ids := range out.IDs[col] {
			n += len(ids)
		}
		if kinds != nil {
			out.Kinds = append(out.Kinds, kinds[from:from+n:from+n])
		}
		from += n
	}
	return out, nil
}
