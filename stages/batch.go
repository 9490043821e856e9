package stages

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Batch is one contrastive batch, tokenized. Its sequences are numbered column by column: first the query of each row, then
// the positive of each, then the negatives of each further column. A ragged column has the texts of the first row, if it has any,
// then those of the second, and so on.
type Batch struct {
	Epoch    int
	EndsStep bool
	Rows     []int64         // [B] row ids: this rank's slice of the global batch
	First    int             // the first of them's place in the global batch
	Total    int             // rows of the global batch
	Next     *dataset.Cursor // where the data goes on, if the batch ends a step
	Place    any             // likewise, of a source of one's own

	Weights []float64 // [B]; nil if every row has weight 1
	Labels  []float64 // [B]; nil without labels
	Scores  []float64 // [N-B] a teacher's, of sequences B to N-1; nil without scores
	Teacher []float32 // [B*D] a teacher's embeddings; nil without
	Texts   []loss.TextID
	IDs     []int32   // tokens of all sequences, back to back
	Cu      []int32   // [N+1]: sequence n is IDs[Cu[n]:Cu[n+1]]
	Kinds   []int32   // types of the tokens in IDs; nil: all 0
	Guide   [][]int32 // [N] a guide's tokens of each sequence; nil without a guide
	// Prompt [C] is how many tokens the prompt before each column's texts has, and GuidePrompt [C] the guide's: see TokenChunk. nil: none.
	Prompt, GuidePrompt []int32

	// Seen [N] is how many of each sequence's tokens the others attend to; nil: all.
	Seen []int32

	// Shown are the tokens, by their places in IDs, that have rows in parts of tokens, and ShownCu [N+1] where each sequence's begin among
	// them. nil: all but each sequence's first.
	Shown, ShownCu []int32

	// Weighed tells that queries are weights of their tokens, each of which a query has once and in ascending order: see transformer.QueryWeights.
	Weighed bool

	// Pairs tells that documents are sequences with their queries in front, for a model that scores. The queries, sequences 0 to B-1, are
	// empty then and in no sub-batch: what is computed of them stays zero.
	Pairs bool
	Head  []int32 // tokens whose word embeddings the model's head reads besides

	Source    int              // the dataset that the rows are from
	Data      Rows             // the same
	Offset    int64            // of Rows beyond the dataset's own ids
	Columns   []dataset.Column // [C]
	Starts    []int            // [C+1] column c's sequences are Starts[c] to Starts[c+1]-1
	Owner     []int32          // [N-2B] which of Rows each negative belongs to
	nth       []int32          // [N-2B] each negative's place among the texts of its row; nil: that is its column
	Truncated int              // sequences that lost tokens
	drawn                      // counts of rows
	Subs      []SubBatch       // set by Split, or by Header
	Global    *Global          // set by Header: what all ranks have; nil without replicas
	last      lastRows         // set by Header, if the batch ends its step
	plan      *planned         // of a Plan's rows
	bad       *RowsError       // of one that is none, which Header ends the run before
	distinct  []lastRows       // of each sub-batch; set by Header, where word embeddings travel with every sub-batch

	memory []transformer.Memory // of each sub-batch
	budget int64                // of what of it is kept, as Encoder has it
}

// N is the number of sequences.
func (b *Batch) N() int { return len(b.Cu) - 1 }

// first is the first sequence that goes through the model.
func (b *Batch) first() int {
	if b.Pairs {
		return len(b.Rows)
	}
	return 0
}

// Length is sequence n's number of tokens.
func (b *Batch) Length(n int) int { return int(b.Cu[n+1] - b.Cu[n]) }

// Origin is the row id of sequence n, and its place among that row's texts: its column, if no column is ragged.
func (b *Batch) Origin(n int) (row int64, place int) {
	if k := n - 2*len(b.Rows); k >= 0 && b.nth != nil {
		return b.Rows[b.Owner[k]], int(b.nth[k])
	}
	return b.Rows[n%len(b.Rows)], n / len(b.Rows)
}

// Column is the column of sequence n.
func (b *Batch) Column(n int) dataset.Column { return b.Columns[b.column(n)] }

func (b *Batch) column(n int) int {
	return sort.Search(len(b.Columns), func(c int) bool { return b.Starts[c+1] > n })
}

// prompts are by column how many tokens a prompt has, of sequences lo to hi-1; nil: none has one.
func (b *Batch) prompts(columns []int32, lo, hi int) (out []int32) {
	if !slices.ContainsFunc(columns, func(n int32) bool { return n > 0 }) {
		return nil
	}
	for n := lo; n < hi; n++ {
		out = append(out, columns[b.column(n)])
	}
	return out
}

// Assemble adds the stage that joins chunks of tokenized rows into batches and says where steps end.
func Assemble(g *pipeline.Graph, chunks pipeline.Port[*TokenChunk]) pipeline.Port[*Batch] {
	s := g.Stage("batch")
	in := pipeline.In(s, "chunks", chunks)
	out := pipeline.Batches[*Batch](s, "batches")
	var open []*TokenChunk
	failed := false
	s.Do(func(t *pipeline.Task) error {
		if t.Ended() && len(open) > 0 {
			rows := 0
			for _, c := range open {
				rows += len(c.Rows)
			}
			return fmt.Errorf("the rows end within a batch: the last %d are of none, as no chunk with EndsBatch follows them", rows)
		}
		if t.Ended() {
			return nil
		}
		if failed {
			return nil // what has been read ahead
		}
		c := in.Get(t)
		if c != nil && c.bad != nil {
			open, failed = nil, true
			if c.plan.ranks > 1 { // the others are to hear of it
				out.Put(t, &Batch{bad: c.bad, plan: c.plan}, false)
			} else {
				t.EndBefore(c.bad)
			}
			return nil
		}
		if err := c.check(); err != nil {
			return err
		}
		open = append(open, c)
		if c.EndsBatch {
			b := assemble(open)
			if err := b.checkIDs(); err != nil {
				return err
			}
			out.Put(t, b, c.EndsStep)
			open = nil
		}
		return nil
	})
	return out.Port
}

// errNil is for who means to leave rows out.
var errNil = errors.New("a stage before has put nil in the place of rows: rows are left out with dataset.Part.Skip, or by a source of one's own before it makes a chunk of them")

// check finds what Tokenize would not have made.
func (c *TokenChunk) check() error {
	if c == nil {
		return errNil
	}
	if c.Data == nil {
		return errors.New("a stage before has put a TokenChunk without Data, which says what its columns are")
	}
	columns := c.Data.Columns()
	for _, prompts := range [][]int32{c.Prompt, c.GuidePrompt} {
		if n := len(prompts); n > 0 && n != len(columns) {
			return fmt.Errorf("a stage before has put a TokenChunk whose Prompt or GuidePrompt is of %d columns, and the rows' Data have %d", n, len(columns))
		}
	}
	for col, column := range columns {
		if want := dataset.Role(min(col, int(dataset.Negative))); column.Role != want {
			return fmt.Errorf("column %d of the rows' Data is a %s, want a %s: columns are the query, then the positive if there is one, then negatives, and an example's texts are in their order", col, column.Role, want)
		}
		texts := len(c.Rows)
		if column.Ragged && col < len(c.Counts) {
			texts = 0
			for _, n := range c.Counts[col] {
				texts += int(n)
			}
		}
		if len(c.IDs) != len(columns) || len(c.Texts) != len(columns) || len(c.IDs[col]) != texts || len(c.Texts[col]) != texts ||
			column.Ragged && (col >= len(c.Counts) || len(c.Counts[col]) != len(c.Rows)) || c.Seen != nil && (col >= len(c.Seen) || len(c.Seen[col]) != texts) {
			return fmt.Errorf("a stage before has put a TokenChunk of %d rows whose IDs, Texts, Seen or Counts of column %d are not those of its rows: rows are left out with dataset.Part.Skip, or by a source of one's own before it makes a chunk of them", len(c.Rows), col)
		}
	}
	return nil
}

// checkIDs refuses rows that have an id, and not their texts, in common: what is drawn at random for a row follows from its id, so that dropout would be
// the same for all of these.
func (b *Batch) checkIDs() error {
	first := make(map[int64]int, len(b.Rows))
	for i, id := range b.Rows {
		k, ok := first[id]
		if !ok {
			first[id] = i
			continue
		}
		for c, column := range b.Columns {
			if !column.Ragged && b.Texts[b.Starts[c]+i] != b.Texts[b.Starts[c]+k] {
				return fmt.Errorf("rows %d and %d of a batch are different ones, and both have the id %d: number a source's rows in Example.Row, for what is drawn for a row, dropout above all, follows from it", k, i, id-b.Offset)
			}
		}
	}
	return nil
}

// check tells whether there is a batch.
func (b *Batch) check() error {
	switch {
	case b == nil:
		return errNil
	case b.bad != nil: // and Header has not come first
		return b.bad
	}
	return nil
}

func assemble(chunks []*TokenChunk) *Batch {
	end := chunks[len(chunks)-1]
	b := &Batch{Epoch: chunks[0].Epoch, EndsStep: end.EndsStep, First: end.First, Total: end.Total, Next: end.Next, Place: end.Place, plan: end.plan, Source: end.Source, Data: chunks[0].Data, Offset: end.Offset, Columns: chunks[0].Data.Columns()}
	b.Pairs, b.Head, b.Weighed, b.Prompt, b.GuidePrompt = end.Pairs, end.Head, end.Weighed, end.Prompt, end.GuidePrompt
	weighted := false
	for _, c := range chunks {
		b.Rows = append(b.Rows, c.Rows...)
		b.Truncated += c.Truncated
		b.drawn = b.drawn.plus(c.drawn)
		for _, w := range c.Weights {
			b.Weights = append(b.Weights, float64(w))
			weighted = weighted || w != 1
		}
	}
	if !weighted {
		b.Weights = nil
	}
	var owners, places []int32 // of all sequences
	next := make([]int32, len(b.Rows))
	ragged := false
	scores := make([][]float32, 0, len(b.Rows)) // by row: what is left of them
	tokens, texts := 0, 0
	for _, c := range chunks {
		for _, column := range c.IDs {
			texts += len(column)
			for _, ids := range column {
				tokens += len(ids)
			}
		}
		for _, l := range c.Labels {
			b.Labels = append(b.Labels, float64(l))
		}
		b.Teacher = append(b.Teacher, c.Teacher...)
		scores = append(scores, c.Scores...)
	}
	b.IDs, b.Cu, b.Texts = make([]int32, 0, tokens), append(make([]int32, 0, texts+1), 0), make([]loss.TextID, 0, texts)
	if end.Seen != nil {
		b.Seen = make([]int32, 0, texts)
	}
	if end.Shown != nil {
		b.Shown, b.ShownCu = []int32{}, append(make([]int32, 0, texts+1), 0)
	}
	for col, column := range b.Columns {
		ragged = ragged || column.Ragged
		b.Starts = append(b.Starts, len(b.Texts))
		first := int32(0) // row of the chunk
		for _, c := range chunks {
			b.Texts = append(b.Texts, c.Texts[col]...)
			if c.Kinds != nil {
				b.Kinds = append(b.Kinds, c.Kinds[col]...)
			}
			if c.Seen != nil {
				b.Seen = append(b.Seen, c.Seen[col]...)
			}
			if c.Guide != nil {
				b.Guide = append(b.Guide, c.Guide[col]...)
			}
			for _, ids := range c.IDs[col] {
				if c.Shown != nil {
					for _, at := range c.Shown(column.Role, ids) {
						b.Shown = append(b.Shown, int32(len(b.IDs))+at)
					}
					b.ShownCu = append(b.ShownCu, int32(len(b.Shown)))
				}
				b.IDs = append(b.IDs, ids...)
				b.Cu = append(b.Cu, int32(len(b.IDs)))
			}
			for i := range c.Rows {
				row, n := first+int32(i), int32(1)
				if column.Ragged {
					n = c.Counts[col][i]
				}
				for range n {
					owners, places = append(owners, row), append(places, next[row])
					next[row]++
					if len(scores) > 0 && column.Role != dataset.Query {
						b.Scores = append(b.Scores, float64(scores[row][0]))
						scores[row] = scores[row][1:]
					}
				}
			}
			first += int32(len(c.Rows))
		}
	}
	b.Starts = append(b.Starts, len(b.Texts))
	if n := 2 * len(b.Rows); len(owners) > n {
		b.Owner = owners[n:]
		if ragged {
			b.nth = places[n:]
		}
	}
	return b
}
