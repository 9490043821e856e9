package mine

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"contraflow/io/dataset"
)

// A Teacher scores texts for others to learn from: package reranker's Reranker, which reads a pair together, or package embedder's Teacher, which
// compares embeddings.
type Teacher interface {
	// ScorePairs scores documents[i] with queries[i]. cut is how many texts or pairs were longer than the teacher takes.
	ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error)
}

// Distillation is what a teacher scores, and where to its scores are written: a parquet file with the input's columns and a column of lists beside
// them, the scores of each row's documents in their order.
type Distillation struct {
	Source dataset.Source // Paths, Query, and Positive with Negatives, or Documents; of lists each text is scored
	Output string         // a parquet file; without Bad it may be the one parquet file of Source, which then gets the column in place
	Column string         // a name that the input has no column of

	// Bad is told of each row that can't be used. nil leaves the row out, any other error ends the run; without Bad the row's does.
	Bad      func(err error) error
	Note     func(message string)    // what a user should know of the data; may be nil
	Progress func(done, total int64) // rows; may be nil
}

// Distilled is what a teacher has scored.
type Distilled struct {
	Rows, Scores int
	Cut          int    // texts or pairs
	Lists        []bool // of the query and each column of documents: rows have lists of texts
}

// ErrNoRow is the error of a distillation of whose rows Bad has left out all.
var ErrNoRow = errors.New("none of the rows can be used")

// distillRows is how many rows are scored at a time: with their documents, sorted by length, they fill passes well.
const distillRows = 1024

// Run scores all rows. What it writes is there when it is complete, or not at all.
func (x Distillation) Run(ctx context.Context, t Teacher) (out Distilled, err error) {
	if err := x.check(); err != nil {
		return out, err
	}
	x.Source.Raw, x.Source.InOrder = true, true
	d, err := dataset.Open(ctx, x.Source)
	if err != nil {
		return out, err
	}
	defer d.Close()
	for _, n := range d.Notes() {
		if x.Note != nil {
			x.Note(n)
		}
	}
	open := dataset.OpenTableWithBad
	if x.Bad == nil {
		open = dataset.OpenTable // which finds lines that are no JSON before anything is computed
	}
	table, err := open(ctx, x.Source.Paths)
	if err != nil {
		return out, err
	}
	defer table.Close()
	w, err := table.NewWriter(x.Output, dataset.OutColumn{Name: x.Column, Type: dataset.NumbersOut})
	if err != nil {
		return out, err
	}
	defer w.Abort()
	out.Lists = d.Lists()
	next, stop := iter.Pull2(d.Each(ctx))
	defer stop()
	for c, err := range table.Chunks(ctx, "", distillRows) {
		if err != nil {
			return out, err
		}
		last := c.First + int64(c.Rows) - 1
		rows, err := x.take(c, next, len(out.Lists))
		if err != nil {
			return out, err
		}
		if c.Rows == 0 {
			continue
		}
		scores, cut, err := t.ScorePairs(ctx, rows.queries, rows.documents)
		if err == nil && len(scores) != len(rows.documents) {
			err = fmt.Errorf("the teacher has given %d scores of %d documents", len(scores), len(rows.documents))
		}
		if err != nil {
			return out, fmt.Errorf("rows %d to %d: %w", c.First, last, err)
		}
		out.Rows, out.Scores, out.Cut = out.Rows+c.Rows, out.Scores+len(scores), out.Cut+cut
		lists, err := rows.lists(scores)
		if err != nil {
			return out, err
		}
		if err := w.Write(c, lists); err != nil {
			return out, err
		}
		if x.Progress != nil {
			x.Progress(last+1, table.Rows())
		}
	}
	if out.Rows == 0 {
		return out, ErrNoRow
	}
	return out, w.Close()
}

// check finds what can't be meant, before anything is read.
func (x Distillation) check() error {
	if x.Source.Positive == "" && x.Source.Documents == "" {
		return errors.New("a distillation scores documents: Source needs a column of them, Positive or Documents")
	}
	if err := dataset.CheckBeside(x.Output, x.Source.Paths...); err != nil {
		return fmt.Errorf("the distillation's Output %w", err)
	}
	if x.Bad != nil && dataset.IsInput(x.Output, x.Source.Paths...) {
		return fmt.Errorf("the distillation's Output %s is its Source, which would lose the rows that Bad leaves out: give another, or no Bad", x.Output)
	}
	return nil
}

// scoredRows are the rows of a chunk that a teacher scores, and all their documents, one after the other, each with its query.
type scoredRows struct {
	queries, documents []string
	ids                []int64
	counts             []int // documents of each row
}

// take takes the chunk's rows from next, and drops those that can't be used.
func (x Distillation) take(c *dataset.Chunk, next func() (dataset.Row, error, bool), columns int) (s scoredRows, err error) {
	var out []int
	for i := range c.Rows {
		id := c.First + int64(i)
		row, err, ok := next()
		if !ok {
			return s, fmt.Errorf("row %d: the file has changed while it was read", id)
		}
		if bad := c.Bad[i]; err == nil && bad != nil {
			err = bad
		}
		if err != nil {
			if x.Bad != nil {
				err = x.Bad(err)
			}
			if err != nil {
				return s, err
			}
			out = append(out, i)
			continue
		}
		before := len(s.documents)
		for column := 1; column < columns; column++ {
			s.documents = row.Column(s.documents, column)
		}
		n := len(s.documents) - before
		query := row.Column(nil, 0)[0]
		for range n {
			s.queries = append(s.queries, query)
		}
		s.counts, s.ids = append(s.counts, n), append(s.ids, id)
	}
	c.Drop(out)
	return s, nil
}

// lists gives each row its scores.
func (s scoredRows) lists(scores []float32) ([][]float32, error) {
	lists := make([][]float32, len(s.counts))
	for i, n := range s.counts {
		lists[i], scores = scores[:n:n], scores[n:]
		for k, v := range lists[i] {
			if v-v != 0 {
				return nil, fmt.Errorf("row %d: the teacher's score of document %d is %v: its weights, or what it computes of them, are not finite", s.ids[i], k, v)
			}
		}
	}
	return lists, nil
}
