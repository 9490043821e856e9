package dataset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// Candidates are queries with texts to rank: of each those that are relevant, and others.
type Candidates struct {
	Queries  []string
	Texts    [][]string // [query][candidate]; one may be there twice
	Relevant [][]bool
	Given    [][]bool `json:",omitempty"` // Relevant in the order that the file has them in, relevant ones that are not among them last; nil: it has them in none
	Missed   []int    `json:",omitempty"` // [query]: how many relevant ones are no candidates; nil: none

	Without, Alone int `json:"-"` // how many queries have been left out: those without positives, and those without other candidates
}

// CandidateColumns are those of a file of candidates, a row per query. All but the query's may be lists, or a text each.
type CandidateColumns struct {
	Query, Positive string
	Negative        string // those that are not relevant; "": Documents
	Documents       string // all candidates, in an order of theirs: those of them that are no positives are not relevant
	Found           bool   // of Documents: positives that are not among them are no candidates, for what has found these has missed them
}

// LoadCandidates reads the named columns of files as [OpenTableOf] does what is [HeldOut]; those of texts may be templates. Null or empty texts are errors.
// A list that is null is an empty one. A query without positives, or without other candidates, tells nothing of a model: it is left out, and a note of the
// context says how many are. Where [CandidateColumns.Found] is set that says how well the documents have been found, so those without positives alone are.
func LoadCandidates(ctx context.Context, path string, columns CandidateColumns) (*Candidates, error) {
	ranked := columns.Documents != ""
	others, foundAlone := cmp.Or(columns.Documents, columns.Negative), columns.Found && ranked
	c := &Candidates{}
	rows, err := rawRows(ctx, Source{Paths: []string{path}, Query: columns.Query, Positive: columns.Positive, Negatives: []string{others}}, func(r Row) error {
		c.add(r.Column(nil, 0)[0], r.Column(nil, 1), r.Column(nil, 2), ranked, foundAlone)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if note := Note(ctx); note != nil {
		c.noteLeftOut(path, rows, note)
	}
	return c, nil
}

// rawRows yields the rows of what is [HeldOut], all of their lists' texts, which may be none, and returns how many rows there are.
func rawRows(ctx context.Context, src Source, row func(r Row) error) (rows int64, err error) {
	src.Splits, src.Raw = HeldOut, true
	d, err := Open(ctx, src)
	if err != nil {
		return 0, measured(err)
	}
	defer d.Close()
	for _, role := range d.roles[1:] {
		d.listed(role.source).ragged = true
	}
	for r, err := range d.Each(ctx) {
		if err == nil {
			err = row(r)
		}
		if err := goOn(ctx, err); err != nil {
			return 0, measured(err)
		}
	}
	return d.Rows(), nil
}

// add adds a query with its positives and others; ranked ones are all candidates, in an order, and with foundAlone no others are. It is counted where it tells nothing.
func (c *Candidates) add(query string, positives, texts []string, ranked, foundAlone bool) {
	relevant := make([]bool, len(texts))
	if ranked {
		for i, x := range texts {
			relevant[i] = slices.Contains(positives, x)
		}
	}
	found := counted(relevant)
	missed := max(0, len(positives)-found) // documents may have one twice
	given := slices.Clone(relevant)
	if found > 0 {
		given = append(given, trues(missed)...)
	}
	if !foundAlone {
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
		c.Without++
		return
	case len(texts) == len(positives) && !foundAlone:
		c.Alone++
		return
	}
	c.Queries, c.Texts, c.Relevant = append(c.Queries, query), append(c.Texts, texts), append(c.Relevant, relevant)
	if ranked {
		c.Given = append(c.Given, given)
	}
	if foundAlone {
		c.Missed = append(c.Missed, missed)
	}
}

// noteLeftOut tells of the queries that are left out of so many.
func (c *Candidates) noteLeftOut(path string, of int64, note func(string)) {
	var why []string
	if c.Without > 0 {
		why = append(why, spelling.Count(c.Without, "has no positive", "have no positive"))
	}
	if c.Alone > 0 {
		why = append(why, spelling.Count(c.Alone, "has no other candidate", "have no other candidate"))
	}
	if why != nil {
		note(fmt.Sprintf("%s: of %s %s: left out, for such a query tells nothing of a model", path, spelling.Count(of, "query", "queries"), strings.Join(why, " and ")))
	}
}

func trues(n int) []bool { return slices.Repeat([]bool{true}, n) }

func counted(yes []bool) (n int) {
	for _, y := range yes {
		if y {
			n++
		}
	}
	return n
}
