package dataset

import (
	"context"
	"fmt"
	"slices"
)

// Candidates are queries with texts to rank: of each those that are relevant, and others.
type Candidates struct {
	Queries  []string
	Texts    [][]string // [query][candidate]; one may be there twice
	Relevant [][]bool
	Given    [][]bool `json:",omitempty"` // Relevant in the order that the file has them in, relevant ones that are not among them last; nil: it has them in none
}

// CandidateColumns are those of a file of candidates, a row per query. All but the query's may be lists, or a text each.
type CandidateColumns struct {
	Query, Positive string
	Negative        string // those that are not relevant; "": Documents
	Documents       string // all candidates, in an order of theirs: those of them that are no positives are not relevant
	Found           bool   // positives that are not among the documents are no candidates: what has found these has missed them
}

// LoadCandidates reads the named columns of files as [OpenTableOf] does what is [HeldOut]; those of texts may be templates. Null or empty texts are errors.
// A query without positives, or without other candidates, tells nothing of a model: it is left out, and a note of the context says how many are.
func LoadCandidates(ctx context.Context, path string, columns CandidateColumns) (*Candidates, error) {
	others := columns.Negative
	if others == "" {
		others = columns.Documents
	}
	// Raw as it gives all of a list.
	d, err := Open(ctx, Source{Paths: []string{path}, Splits: HeldOut, Query: columns.Query, Positive: columns.Positive, Negatives: []string{others}, Raw: true, InOrder: true})
	if err != nil {
		return nil, measured(err)
	}
	defer d.Close()
	for _, r := range d.roles[1:] {
		d.listed(r.source).ragged = true // an empty list is no bad row here
	}
	c, without, alone := &Candidates{}, 0, 0
	for row, err := range d.Each(ctx) {
		if err != nil {
			return nil, measured(err)
		}
		positives, texts := row.Column(nil, 1), row.Column(nil, 2)
		relevant := make([]bool, len(texts))
		if columns.Documents != "" {
			for i, x := range texts {
				relevant[i] = slices.Contains(positives, x)
			}
		}
		given := slices.Clone(relevant)
		if found := counted(relevant); found > 0 {
			given = append(given, trues(len(positives)-found)...)
		}
		if !columns.Found || columns.Documents == "" {
			rest := slices.Clone(positives)
			for i, x := range texts {
				if !relevant[i] {
					rest = append(rest, x)
				}
			}
			texts, relevant = rest, append(trues(len(positives)), make([]bool, len(rest)-len(positives))...)
		}
		switch {
		case len(positives) == 0:
			without++
			continue
		case len(texts) == len(positives) && !columns.Found:
			alone++
			continue
		}
		c.Queries, c.Texts, c.Relevant = append(c.Queries, row.Column(nil, 0)[0]), append(c.Texts, texts), append(c.Relevant, relevant)
		if columns.Documents != "" {
			c.Given = append(c.Given, given)
		}
	}
	if note := Note(ctx); without+alone > 0 && note != nil {
		note(fmt.Sprintf("%s: of %d queries %d have no positive and %d no other candidate: they are left out, for they tell nothing of a model", path, d.Rows(), without, alone))
	}
	return c, nil
}

// trues are n of true; none where n is below 0.
func trues(n int) []bool { return slices.Repeat([]bool{true}, max(0, n)) }

func counted(yes []bool) (n int) {
	for _, y := range yes {
		if y {
			n++
		}
	}
	return n
}
