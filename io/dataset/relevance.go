package dataset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"contraflow/io/spelling"
)

// Rows that are judgements: those that call a document irrelevant are left out as if the files did not have them.

// recogniseJudgements finds the relevance in files of judgements, by the names that their columns have, where the source does not say which it is.
func (d *Dataset) recogniseJudgements() error {
	if !d.judgements() {
		return nil
	}
	names, f, err := d.names()
	for _, name := range judgementColumns[2] {
		if d.src.Relevance == "" && slices.Contains(names, name) && !slices.Contains(append(d.src.Scores, d.src.Label, d.src.Weight), name) {
			d.src.Relevance = name
			d.notes = append(d.notes, fmt.Sprintf("%s: by the names of its columns its rows are judgements, and %q says how relevant each is: those of 0 or less are left out", f.path(), name))
		}
	}
	return err
}

// judgements tells whether the columns of ids are called as those of judgements are.
func (d *Dataset) judgements() bool {
	return d.src.Queries != nil && d.src.Corpus != nil && slices.Contains(judgementColumns[0], d.src.Query) && slices.Contains(judgementColumns[1], d.src.Positive)
}

// leaveOut finds the rows of each block whose relevance is 0 or less. Of a line that can't be read that is not known, and it stays.
func (d *Dataset) leaveOut(ctx context.Context) error {
	k := d.number.relevance
	if k < 0 {
		return nil
	}
	err := forEach(runtime.GOMAXPROCS(0), len(d.blocks), func(i int) error {
		r, b, ref := d.NewScanner(), new(Block), &d.blocks[i]
		defer r.Close()
		r.atRest = true
		if err := r.Read(ctx, i, b); errors.Is(err, ErrCorrupt) {
			return nil // told where its rows are asked for
		} else if err != nil {
			return err
		}
		for row, v := range b.numbers[k].values {
			if v <= 0 {
				ref.out = append(ref.out, int32(row))
			}
		}
		ref.rows -= int32(len(ref.out))
		return nil
	})
	if err != nil {
		return err
	}
	first, out := int64(0), 0
	for i := range d.blocks {
		b := &d.blocks[i]
		b.first = first
		first, out = first+int64(b.rows), out+len(b.out)
	}
	d.blocks = slices.DeleteFunc(d.blocks, func(b blockRef) bool { return b.rows == 0 })
	said := fmt.Sprintf("%s %q is 0 or less", spelling.Count(out, "row is left out, whose", "rows are left out, whose"), d.src.Relevance)
	if first == 0 && out > 0 {
		return fail(ErrNoFiles, "%s: %s: none remains", d.files[0].path(), said)
	}
	if out > 0 {
		d.notes = append(d.notes, fmt.Sprintf("%s; %s", said, spelling.Count(first, "remains", "remain")))
	}
	return nil
}

// atRest is the place among the block's rows at rest of one that was not left out.
func (b *blockRef) atRest(row int64) int64 {
	for _, out := range b.out {
		if int64(out) > row {
			break
		}
		row++
	}
	return row
}

// drop takes rows (ascending) out of a block that has been read.
func (b *Block) drop(out []int32) {
	if len(out) == 0 {
		return
	}
	for i := range b.d.firstNumber {
		b.texts[i].drop(out, b.Rows)
	}
	for i := range b.numbers {
		b.numbers[i].drop(out, b.Rows)
	}
	bad := map[int]badRow{}
	for row, why := range b.bad {
		if before, is := slices.BinarySearch(out, int32(row)); !is {
			bad[row-before] = why
		}
	}
	b.bad = bad
	b.Rows -= len(out)
}

// mostRelevant is what the relevance in a column without a name can be. More is the id of a negative, as in MS MARCO's triples.
const mostRelevant = 100

// bare names the columns of rows in a .tsv file that does not: of ids and texts, of ids alone, or of judgements.
func (d *Dataset) bare(first []string) []string {
	value, bad := parseNumber(first[len(first)-1])
	relevance, ids := d.src.Relevance, append([]string{d.src.Query, d.src.Positive}, d.src.Negatives...)
	if relevance == "" && d.judgements() && value <= mostRelevant {
		relevance = judgementColumns[2][0]
	}
	switch n := len(first); {
	case d.src.Positive != "" && d.src.Relevance == "" && n == len(ids) && d.areIDs(first):
		return ids
	case d.src.texts && n == 2 && isNumber(first[0]):
		return []string{cmp.Or(d.src.Query, "id"), cmp.Or(d.src.Positive, "text")}
	case relevance != "" && n == 3 && bad == nil:
		return []string{d.src.Query, d.src.Positive, relevance}
	case relevance != "" && n == 4 && bad == nil:
		return []string{d.src.Query, "iteration", d.src.Positive, relevance}
	}
	return nil
}

// areIDs tells whether a query and documents have these ids.
func (d *Dataset) areIDs(fields []string) bool {
	of := d.src.Queries
	for _, f := range fields {
		if of == nil || *of.slot([]byte(f)) == 0 {
			return false
		}
		of = d.src.Corpus
	}
	return true
}
