package recipe

import (
	"fmt"
	"slices"

	"contraflow/io/dataset"
)

// A reranker's loss mnrl gives rows documents of other rows of their batch (stages.InBatch).

// inBatch is how many a row of a dataset has at most.
func (x *Run) inBatch(source int) int {
	n := x.Recipe.lossOf(source).inBatch()
	if n == dataset.AllNegatives {
		d := x.data[source]
		n = (min(x.Recipe.Batch.GlobalSize, int(d.Rows())) - 1) * (d.MostTexts() - 1)
	}
	return n
}

// openInBatch has the plan draw them. A batch that has not so many for each row, whatever its texts, is an error.
func (x *Run) openInBatch() error {
	for i, d := range x.data {
		l, at := x.Recipe.lossOf(i), x.Recipe.lossKey(i)
		n := l.inBatch()
		x.plan.InBatch = append(x.plan.InBatch, n)
		size, documents := x.Recipe.Batch.GlobalSize, len(d.Columns())-1
		ragged := slices.ContainsFunc(d.Columns(), func(c dataset.Column) bool { return c.Ragged })
		if most := (size - 1) * documents; n > most && !ragged {
			return fmt.Errorf("%s.num_negatives: is %d, and in a batch of %d rows (batch.global_size) of data.train[%d] the others have %d documents: want at most that many, or all", at, n, size, i, most)
		}
	}
	if !slices.ContainsFunc(x.plan.InBatch, func(n int) bool { return n != 0 }) {
		x.plan.InBatch = nil
	}
	return nil
}

// noteAlone tells of rows that have nothing to be told from.
func (x *Run) noteAlone() {
	size := int64(x.Recipe.Batch.GlobalSize)
	for i, d := range x.data {
		rows := d.Rows() - int64(len(x.skips[i]))
		if src := x.Recipe.Data.Train[i]; x.Recipe.lossOf(i).inBatch() != 0 && !x.Recipe.Batch.DropLast && rows%size == 1 && len(src.Negatives) == 0 && src.Documents == "" {
			x.obs.note("data.train[%d]: the last of %d rows is alone in its batch (batch.global_size is %d), without documents of others, and teaches nothing; batch.drop_last: true leaves it out", i, rows, size)
		}
	}
}

// textsOfRows says how many texts a row has.
func (x *Run) textsOfRows() string {
	own, others := 0, 0
	for i, d := range x.data {
		own, others = max(own, d.MostTexts()), max(others, x.inBatch(i))
	}
	text := fmt.Sprintf("%d texts each", own)
	if others > 0 {
		text += fmt.Sprintf(" and %d of other rows", others)
	}
	return text
}
