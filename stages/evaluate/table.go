package evaluate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Row is a line of a table: a result and whose it is.
type Row struct {
	Name   string
	Result *Result
}

// Table sets results side by side, a line per row and a column per measure of any of them ("-" where a row lacks it).
// Names come first, aligned left; figures have four digits after the point, aligned right. Under the lines stands what
// each result counted as 0 or left out, if it did.
func Table(rows ...Row) string {
	var measures []Measure
	for _, row := range rows {
		for _, m := range row.Result.Measures {
			if !slices.Contains(measures, m) {
				measures = append(measures, m)
			}
		}
	}
	lines := [][]string{{""}}
	for _, m := range measures {
		lines[0] = append(lines[0], m.String())
	}
	lines[0] = append(lines[0], "queries")
	for _, row := range rows {
		line := []string{row.Name}
		for _, m := range measures {
			cell := "-"
			if mean, ok := row.Result.Mean(m); ok {
				cell = fmt.Sprintf("%.4f", mean)
			}
			line = append(line, cell)
		}
		lines = append(lines, append(line, fmt.Sprint(len(row.Result.Queries))))
	}
	var b strings.Builder
	for _, line := range lines {
		for column, cell := range line {
			width := 0
			for _, other := range lines {
				width = max(width, utf8.RuneCountInString(other[column]))
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			switch {
			case width == 0: // nobody has a name
			case column == 0:
				b.WriteString(cell + pad + "  ")
			case column == len(line)-1:
				b.WriteString(pad + cell)
			default:
				b.WriteString(pad + cell + "  ")
			}
		}
		b.WriteByte('\n')
	}
	for _, row := range rows {
		if note := row.Result.note(); note != "" {
			b.WriteString(strings.TrimPrefix(row.Name+": ", ": ") + note + "\n")
		}
	}
	return b.String()
}

// String is the result as a table of one line.
func (r *Result) String() string { return Table(Row{Result: r}) }

func (r *Result) note() string {
	var notes []string
	for _, n := range []struct {
		count int
		text  string
	}{
		{r.Unjudged, "left out, no document is judged"},
		{r.Irrelevant, "counted as 0, no document is relevant"},
		{r.Unanswered, "counted as 0, the ranking is empty"},
	} {
		if n.count > 0 {
			notes = append(notes, fmt.Sprintf("%d (%s)", n.count, n.text))
		}
	}
	if notes == nil {
		return ""
	}
	return "queries to note: " + strings.Join(notes, ", ")
}

// MarshalJSON gives the means by their measures' names, in their order, those of the order before with base_ before them, then the counts:
// {"ndcg@10": 0.31, "mrr@10": 0.27, "recall@100": 0.8, "map": 0.28, "queries": 2000, "queries_without_judgments": 0, ...}.
func (r Result) MarshalJSON() ([]byte, error) {
	means, err := meansJSON(r.Measures, r.Means, r.Before)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(means, `"queries":%d,"queries_without_judgments":%d,"queries_without_relevant":%d,"queries_without_ranking":%d}`,
		len(r.Queries), r.Unjudged, r.Irrelevant, r.Unanswered), nil
}

// meansJSON is the beginning of an object: the means, and those of the order before.
func meansJSON(measures []Measure, means, before []float64) ([]byte, error) {
	b := []byte{'{'}
	add := func(prefix string, values []float64) error {
		for i, v := range values {
			js, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("%s: %w", measures[i], err)
			}
			b = fmt.Appendf(b, "%q:%s,", prefix+measures[i].String(), js)
		}
		return nil
	}
	err := errors.Join(add("", means), add("base_", before))
	return b, err
}
