package dataset

import (
	"bytes"
	"strings"
)

// A text may be made of several columns: "{title} {text}" is the row's title, a space and its text. A part that is null counts as
// empty, and the whole loses white space at its ends, as BEIR's documents are read.

// joined is a text column that is made of others.
type joined struct {
	name  string
	parts []joinedPart
}

// joinedPart is some characters as they stand, and then a column's text.
type joinedPart struct {
	before string
	source int // -1: the end
}

// isTemplate tells a template from a column's name.
func isTemplate(name string) bool { return strings.ContainsAny(name, "{}") }

// parseTemplate cuts "{title} {text}" up; use gives a column's place.
func parseTemplate(s string, use func(column string) int) (j joined, err error) {
	j.name = s
	rest := s
	for {
		before, after, ok := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return j, fail(ErrMissingColumn, "the template %q has a } without {: columns stand in braces, as in \"{title} {text}\"", s)
		}
		if !ok {
			j.parts = append(j.parts, joinedPart{before, -1})
			return j, nil
		}
		column, after, ok := strings.Cut(after, "}")
		if !ok || column == "" || strings.Contains(column, "{") {
			return j, fail(ErrMissingColumn, "the template %q has a { without a column and }: columns stand in braces, as in \"{title} {text}\"", s)
		}
		j.parts = append(j.parts, joinedPart{before, use(column)})
		rest = after
	}
}

// join makes the block's joined texts of the columns that were read.
func (b *Block) join() {
	first := b.d.firstNumber
	for k, j := range b.d.joins {
		t := &b.texts[first+k]
		for row := range b.Rows {
			from := len(t.arena)
			for _, p := range j.parts {
				t.arena = append(t.arena, p.before...)
				if p.source < 0 {
					continue
				}
				part := &b.texts[p.source]
				if s := part.spans[row]; s.n != null {
					t.arena = append(t.arena, part.bytes(s)...)
				}
			}
			text := t.arena[from:]
			trimmed := bytes.TrimRight(text, " \t\r\n")
			lead := len(trimmed) - len(bytes.TrimLeft(trimmed, " \t\r\n"))
			t.spans = append(t.spans, span{uint32(from + lead), uint32(len(trimmed) - lead)})
		}
	}
}
