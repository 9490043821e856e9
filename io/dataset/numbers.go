package dataset

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Columns of numbers: weights, labels, teachers' scores and embeddings.

// numberRoles says which columns of numbers mean what; -1 or nil: none does.
type numberRoles struct {
	weight, label, teacher, relevance int
	scores                            []int
}

// takeNumbers appends values as parquet has them.
func takeNumbers(c *rowsOf[float32], v *values, leaf column) {
	for _, x := range v.list {
		if c.list && x.RepetitionLevel() == 0 {
			c.begin()
		}
		if c.list && x.DefinitionLevel() < int(leaf.listDef) {
			continue
		}
		c.values = append(c.values, float32(number(x, leaf.leaf)))
	}
}

// Label returns the row's label, 0 if the source names no column for it.
func (b *Block) Label(row int) float32 {
	if b.d.number.label < 0 {
		return 0
	}
	return b.numbers[b.d.number.label].values[row]
}

// teacher is the row's teacher embedding.
func (b *Block) teacher(row int) []float32 {
	if b.d.number.teacher < 0 {
		return nil
	}
	return b.numbers[b.d.number.teacher].row(row)
}

// Scores appends the row's scores: one per text of its document columns, in their order.
func (b *Block) Scores(dst []float32, row int) []float32 {
	sign := float32(1)
	if b.d.margins {
		dst, sign = append(dst, 0), -1
	}
	for _, k := range b.d.number.scores {
		for _, s := range b.numbers[k].row(row) {
			dst = append(dst, sign*s)
		}
	}
	return dst
}

// scoreCount is how many scores a row has.
func (b *Block) scoreCount(row int) (n int) {
	for _, k := range b.d.number.scores {
		n += len(b.numbers[k].row(row))
	}
	return n
}

// margins tells whether a row's scores are as many as differences to the positive's are, which is one alone.
func (b *Block) margins(row int) bool {
	d := b.d
	for _, k := range d.number.scores {
		if len(b.numbers[k].row(row)) == 0 { // such as pos_scores, which a row may lack
			return false
		}
	}
	return b.scoreCount(row) == b.documents(row)-1 && len(b.texts[d.roles[1].source].row(row)) == 1
}

// Score appends the row's numbers of one of the source's Scores.
func (b *Block) Score(dst []float32, row, column int) []float32 {
	return append(dst, b.numbers[b.d.number.scores[column]].row(row)...)
}

// documents is how many texts the row's document columns hold.
func (b *Block) documents(row int) (n int) {
	for i, r := range b.d.roles {
		if r.role != Query && b.d.firstText(i) == 0 { // or else its list is counted already
			n += len(b.texts[r.source].row(row))
		}
	}
	return n
}

// scored says what has a score each.
func (d *Dataset) scored() string {
	if d.src.Documents != "" {
		return "each document, in their order"
	}
	return "the positive and one for each negative, in the order of their columns"
}

// checkNumbers tells what is wrong with a row's numbers.
func (b *Block) checkNumbers(row int) (column, reason string) {
	d := b.d
	name := func(k int) string { return d.sources[d.firstNumber+k].name }
	if w := b.Weight(row); math.IsNaN(float64(w)) {
		return d.src.Weight, "the weight is null or NaN: it must be a number >= 0"
	} else if !(w >= 0 && w <= math.MaxFloat32) {
		return d.src.Weight, fmt.Sprintf("a weight of %s: it must be a number >= 0", numberName(w))
	}
	if k := d.number.relevance; k >= 0 && !finite(b.numbers[k].values[row]) {
		return name(k), fmt.Sprintf("the relevance is %s: it must be a number", numberName(b.numbers[k].values[row]))
	}
	if k := d.number.label; k >= 0 && !finite(b.Label(row)) {
		return name(k), fmt.Sprintf("the label is %s: it must be a number", numberName(b.Label(row)))
	}
	if k := d.number.label; k >= 0 && d.src.CheckLabel != nil {
		if err := d.src.CheckLabel(float64(b.Label(row))); err != nil {
			return name(k), fmt.Sprintf("the label is %v: %v", b.Label(row), err)
		}
	}
	for _, k := range d.number.scores {
		list := b.numbers[k].row(row)
		for i, s := range list {
			wrong := func(what string, why any) (column, reason string) {
				which := "the score"
				if b.numbers[k].list {
					which = fmt.Sprintf("score %d of the list", i)
				}
				return name(k), fmt.Sprintf("%s is %s: %v", which, what, why)
			}
			if !finite(s) {
				return wrong(numberName(s), "it must be a number")
			}
			if d.src.CheckScore != nil {
				if err := d.src.CheckScore(float64(s)); err != nil {
					return wrong(fmt.Sprint(s), err)
				}
			}
		}
	}
	switch n, docs := b.scoreCount(row), b.documents(row); {
	case d.margins && !b.margins(row):
		return name(d.number.scores[0]), fmt.Sprintf("the row has %d scores for its %d documents, and the first row one fewer than documents: as there, they must be by how much one positive's score is above each negative's", n, docs)
	case len(d.number.scores) > 0 && !d.margins && n != docs:
		reason = fmt.Sprintf("the row has %d scores for its %d documents: scores are one for %s", n, docs, d.scored())
		if n == 1 && d.src.Documents == "" {
			reason += "; one number for both is a label, such as the difference of two scores (margin_mse)"
		}
		if n == docs-1 && (n > 1 || b.numbers[d.number.scores[0]].list) { // rows with a list may have more negatives than this one
			reason += "; if they are differences to the positive's score, d1, d2, ... (margin_mse), the scores are 0, -d1, -d2, ..."
		}
		return name(d.number.scores[0]), reason
	}
	if k := d.number.teacher; k >= 0 {
		list := b.teacher(row)
		if len(list) == 0 {
			return name(k), "the list is null or empty"
		}
		if len(list) != d.dim {
			return name(k), fmt.Sprintf("the list has %d numbers, the first one has %d: a teacher's embeddings all have one length", len(list), d.dim)
		}
		for i, v := range list {
			if !finite(v) {
				return name(k), fmt.Sprintf("number %d of the list is %s", i, numberName(v))
			}
		}
	}
	return "", ""
}

// parseNumber reads a number that a text says, with spaces around it or not.
func parseNumber(text string) (float64, error) {
	return strconv.ParseFloat(strings.TrimSpace(text), 64)
}

// truth is a label that is true or false.
func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func finite(v float32) bool { return v-v == 0 }

func numberName(v float32) string {
	if math.IsNaN(float64(v)) {
		return "null or NaN"
	}
	if !finite(v) { // as written, or as float32
		return fmt.Sprintf("%v, infinite or beyond the %v of float32", v, float32(math.Copysign(math.MaxFloat32, float64(v))))
	}
	return fmt.Sprint(v)
}
