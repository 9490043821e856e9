package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Texts that are lists. pandas writes lists so after a round trip through CSV: the text ['a', 'b'], as Python prints a list. Trained on as it is, such
// a text is one document with brackets and quotes in it. Where most of a file's first texts are lists its column is one of lists, and that is an error;
// fewer may be what people wrote (an answer that is a line of Python), and that is a note. A template of the column takes them as they are.

// checkLists looks at the first rows of each file.
func (d *Dataset) checkLists(ctx context.Context) error {
	var columns []int // one role of each source
	for i, r := range d.roles {
		same := func(c int) bool { return d.roles[c].source == r.source }
		if r.source < d.firstNumber && !d.sources[r.source].list && !d.sources[r.source].id && !slices.ContainsFunc(columns, same) {
			columns = append(columns, i)
		}
	}
	if len(columns) == 0 || d.tokens != nil { // prep has looked at the texts
		return nil
	}
	few := make([]listTexts, len(columns))
	file := int32(-1)
	for n, ref := range d.blocks {
		if ref.file == file {
			continue
		}
		file = ref.file
		b, err := d.ReadBlock(ctx, n)
		if errors.Is(err, ErrCorrupt) {
			continue // told where its rows are asked for, or left out
		}
		if err != nil {
			return err
		}
		for i, c := range columns {
			r := d.roles[c]
			if f := &d.files[file]; f.parquet != nil && len(f.parquet.root.find(d.sources[r.source].name+HashSuffix)) > 0 {
				continue // prep has
			}
			found := b.listTexts(r.source)
			if found.most() {
				return fail(ErrColumnType, "%s", d.sayLists(&found, c, "would be"))
			}
			few[i].add(&found)
		}
	}
	for i, c := range columns {
		if f := &few[i]; f.lists > 0 {
			d.notes = append(d.notes, d.sayLists(f, c, "is"))
		}
	}
	return nil
}

// listTexts counts the texts of a column that has some, and those of them that are lists.
type listTexts struct {
	all, lists int
	empty      int    // lists of nothing, which are lists where others are
	first      string // the first list's beginning
	row        int64  // and its row
}

func (t *listTexts) most() bool { return t.lists > 0 && 2*(t.lists+t.empty) > t.all }

func (t *listTexts) add(o *listTexts) {
	if t.lists == 0 {
		t.first, t.row = o.first, o.row
	}
	t.all, t.lists = t.all+o.all, t.lists+o.lists
}

func (b *Block) listTexts(source int) (found listTexts) {
	t := &b.texts[source]
	for row, s := range t.values {
		if s.n == null || s.n == 0 {
			continue
		}
		found.all++
		text := bytes.TrimSpace(t.bytes(s))
		if string(text) == "[]" {
			found.empty++
		}
		if !listOfStrings(text) {
			continue
		}
		if found.lists++; found.lists == 1 {
			const most = 40
			found.row = b.First + int64(row)
			first := bytes.Join(bytes.Fields(text[:min(len(text), most)]), []byte(" ")) // NumPy breaks lines
			if found.first = strings.ToValidUTF8(string(first), ""); len(text) > most {
				found.first += "..."
			}
		}
	}
	return found
}

// sayLists says where the first list of a role's column is, what it would be, or is, here, and what to do about it.
func (d *Dataset) sayLists(t *listTexts, role int, is string) string {
	write := "Write lists in every row (ast.literal_eval or json.loads makes them of such texts)"
	if d.roles[role].role == Query {
		write = "A query is one text: write a row for each (ast.literal_eval or json.loads makes lists of such texts)"
	} else if more := d.cellsOfLists(""); more != "" {
		write += more
	}
	what := fmt.Sprintf("%sa list, %s, as pandas prints them (%d of the first %d texts are), and %s one text, with brackets and quotes", theText, t.first, t.lists, t.all, is)
	return fmt.Sprintf(`%v. %s; if texts really look like that, name the column as a template, "{%s}"`, d.rowError(t.row, d.ColumnName(role), what), write, d.ColumnName(role))
}

// listOfStrings tells whether the whole of a text is a list of strings as Python, NumPy or JSON prints it: what only begins and ends as one is not.
func listOfStrings(text []byte) bool {
	n := len(text)
	if n < 4 || text[0] != '[' || text[n-1] != ']' {
		return false
	}
	const between = ", \t\r\n"
	found := false
	for rest := bytes.Trim(text[1:n-1], between); len(rest) > 0; rest = bytes.TrimLeft(rest, between) {
		if c := rest[0]; c == '"' || c == '\'' {
			end := 1
			for end < len(rest) && rest[end] != c {
				if rest[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(rest) {
				return false
			}
			rest, found = rest[end+1:], true
			if len(rest) > 0 && !strings.ContainsRune(between, rune(rest[0])) {
				return false
			}
			continue
		}
		word := len(rest)
		if end := bytes.IndexAny(rest, between); end >= 0 {
			word = end
		}
		if !slices.Contains([]string{"None", "null", "nan", "..."}, string(rest[:word])) {
			return false
		}
		rest = rest[word:]
	}
	return found
}
