package recipe

import (
	"fmt"
	"math"
	"slices"

	"contraflow/io/dataset"
)

// A reranker's loss mnrl gives rows documents of other rows of their batch (stages.InBatch).

// inBatch is how many a row of a dataset has at most. A loss may ask for more than a batch has: a row gets all there are then.
func (x *Run) inBatch(source int) int {
	n, most := x.Recipe.lossOf(source).inBatch(), x.mostOthers(source)
	if n == dataset.AllNegatives {
		return most
	}
	return min(n, most)
}

// mostOthers is how many documents the other rows of a batch have, whatever their texts: at most as many as those in the first block, where a column is ragged.
func (x *Run) mostOthers(source int) int {
	d := x.data[source]
	return (min(x.Recipe.Batch.GlobalSize, int(d.Rows())) - 1) * (d.MostTexts() - 1)
}

// openInBatch has the plan draw them.
func (x *Run) openInBatch() error {
	any := false
	for i, d := range x.data {
		n := x.Recipe.lossOf(i).inBatch()
		if n != 0 && alone(d) && x.usable(i) == 1 {
			return fmt.Errorf("data.train[%d]: there is one row, and %s.name: mnrl tells a row's document from those of others: it takes a file of more, or rows with negatives", i, x.Recipe.lossKey(i))
		}
		any = any || n != 0
		x.plan.InBatch = append(x.plan.InBatch, n)
	}
	if !any {
		x.plan.InBatch = nil
	}
	return nil
}

// alone tells whether a row has one document at most, so that of itself it has nothing to be told from.
func alone(d *dataset.Dataset) bool { return d.MostTexts() <= 2 }

// ragged tells whether a row has any number of texts, all that its lists have.
func ragged(d *dataset.Dataset) bool {
	return slices.ContainsFunc(d.Columns(), func(c dataset.Column) bool { return c.Ragged })
}

// noteInBatch tells of rows that get fewer documents than the recipe says, and of one that has nothing to be told from.
func (x *Run) noteInBatch() {
	size := int64(x.Recipe.Batch.GlobalSize)
	for i, d := range x.data {
		n, key := x.Recipe.lossOf(i).inBatch(), x.Recipe.lossKey(i)
		if n == 0 {
			continue
		}
		rows := x.usable(i)
		if most := x.mostOthers(i); n > most && !ragged(d) { // of lists nobody knows before they are read
			x.obs.note("%s.num_negatives: is %d, and the other rows of a batch of data.train[%d] have %d documents (batch.global_size is %d): a row gets all of them", key, n, i, most, size)
		}
		if !x.Recipe.Batch.DropLast && rows%size == 1 && alone(d) {
			x.obs.note("data.train[%d]: the last of %d rows is alone in its batch (batch.global_size is %d), without documents of others, and teaches nothing; batch.drop_last: true leaves it out", i, rows, size)
		}
	}
}

// textsOfRows says how many texts a row has.
func (x *Run) textsOfRows() string {
	own, least, others, first := 0, math.MaxInt, 0, false
	for i, d := range x.data {
		own, least, others = max(own, d.MostTexts()), min(least, d.FewestTexts()), max(others, x.inBatch(i))
		first = first || d.Blocks() > 1 && ragged(d)
	}
	span := func(from, to int) string {
		if from < to {
			return fmt.Sprintf("%d to %d", from, to)
		}
		return fmt.Sprint(to)
	}
	text := span(least, own) + " texts each"
	if x.reranker != nil { // the first is the query
		documents := "documents"
		if own == 2 {
			documents = "document"
		}
		text = fmt.Sprintf("a query and %s %s each", span(least-1, own-1), documents)
	}
	if first {
		text += " in the first rows"
	}
	if others > 0 {
		text += fmt.Sprintf(" and %d of other rows", others)
	}
	return text
}
