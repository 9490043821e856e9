package dataset

import (
	"fmt"
	"slices"
)

// Others are the documents of a batch's rows, of which each row may have those of other rows for negatives: rerankers' in-batch negatives. A row's candidates
// are the texts of the batch's documents, positives and negatives, but for
//
//   - its own documents, the positive first of all;
//   - the positives of rows with the same query, which are this row's as well;
//   - its query's own text.
//
// Two texts are the same when their hashes are, and one that several rows have is one candidate. sentence-transformers' losses of CrossEncoders take all
// documents of other rows, without these exceptions. What a row gets follows from the seed, the epoch, the row's id and the batch, whoever asks and whenever.
type Others struct {
	rows      []Example
	texts     []string // distinct ones, in the order of rows
	hashes    []Hash128
	at        map[Hash128]int   // where each is in texts
	positives map[Hash128][]int // likewise those of each query
}

// NewOthers takes the rows of a whole batch, and changes none of them. A row's first text is its query, its second one the positive, and all others are
// negatives.
func NewOthers(batch []Example) (*Others, error) {
	o := &Others{rows: batch, at: map[Hash128]int{}, positives: map[Hash128][]int{}}
	for i := range batch {
		e := &batch[i]
		if len(e.Texts) < 2 || len(e.Hashes) != len(e.Texts) {
			return nil, fmt.Errorf("a row has %d texts and %d hashes: negatives of other rows are for rows with a query and documents, and a hash of each", len(e.Texts), len(e.Hashes))
		}
		for k := 1; k < len(e.Texts); k++ {
			if _, ok := o.at[e.Hashes[k]]; !ok {
				o.at[e.Hashes[k]] = len(o.texts)
				o.texts, o.hashes = append(o.texts, e.Texts[k]), append(o.hashes, e.Hashes[k])
			}
		}
		o.positives[e.Hashes[0]] = append(o.positives[e.Hashes[0]], o.at[e.Hashes[1]])
	}
	return o, nil
}

// not are the texts that are no candidates of a row, ascending.
func (o *Others) not(row int) []int {
	e := &o.rows[row]
	out := slices.Clone(o.positives[e.Hashes[0]])
	for _, h := range e.Hashes {
		if at, ok := o.at[h]; ok { // a query may be no document
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// With is a row, by its place in the batch, with n of its candidates behind its own texts, as one more column. Any n of them are as likely as any others, in
// any order; if there are no more than n, or n is AllNegatives, it gets all, in the order of the batch. It has no Scores, which are of its own documents.
func (o *Others) With(row, n int, seed uint64, epoch int) Example {
	e := o.rows[row]
	not := o.not(row)
	all := len(o.texts) - len(not)
	var picked []int // candidates
	if n != AllNegatives && n < all {
		s := keyed(seed, forOthers, uint64(epoch), uint64(e.Row))
		picked = s.some(nil, all, n)
	} else {
		for k := range all {
			picked = append(picked, k)
		}
	}
	if e.Starts == nil {
		for k := range len(e.Texts) + 1 {
			e.Starts = append(e.Starts, int32(k))
		}
	}
	e.Starts = append(slices.Clip(e.Starts), int32(len(e.Texts)+len(picked)))
	e.Texts, e.Hashes, e.Scores = slices.Clip(e.Texts), slices.Clip(e.Hashes), nil
	for _, at := range picked { // with at others before it
		for _, no := range not {
			if no > at {
				break
			}
			at++
		}
		e.Texts, e.Hashes = append(e.Texts, o.texts[at]), append(e.Hashes, o.hashes[at])
	}
	return e
}
