package dataset

import (
	"bytes"
	"cmp"
	"slices"
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

// appendTo appends a row's text to an arena, where it stands at off and has n bytes. part is what a column has, nothing where it is null.
func (j *joined) appendTo(arena []byte, part func(source int) []byte) (_ []byte, off, n int) {
	off = len(arena)
	for _, p := range j.parts {
		if arena = append(arena, p.before...); p.source >= 0 {
			arena = append(arena, part(p.source)...)
		}
	}
	trimmed := bytes.TrimRight(arena[off:], " \t\r\n")
	lead := len(trimmed) - len(bytes.TrimLeft(trimmed, " \t\r\n"))
	return arena, off + lead, len(trimmed) - lead
}

// join makes the block's joined texts of the columns that were read.
func (b *Block) join() {
	first := b.d.firstNumber
	for k := range b.d.joins {
		j, t := &b.d.joins[k], &b.texts[first+k]
		for row := range b.Rows {
			arena, off, n := j.appendTo(t.arena, func(source int) []byte {
				part := &b.texts[source]
				if s := part.values[row]; s.n != null {
					return part.bytes(s)
				}
				return nil
			})
			t.arena, t.values = arena, append(t.values, span{uint32(off), uint32(n)})
		}
	}
}

// tableText is a text column of a table: a leaf, or a template of some.
type tableText struct {
	name   string
	leaves []int
	joined *joined // nil: the one leaf
}

// textColumn finds a column of strings, or the columns of a template.
func (t *Table) textColumn(name string) (c tableText, err error) {
	c.name = name
	if !isTemplate(name) {
		leaf, err := t.textLeaf(name)
		c.leaves = []int{leaf}
		return c, err
	}
	var missing error
	j, err := parseTemplate(name, func(column string) int {
		leaf, err := t.textLeaf(column)
		missing = cmp.Or(missing, err)
		if !slices.Contains(c.leaves, leaf) {
			c.leaves = append(c.leaves, leaf)
		}
		return leaf
	})
	c.joined = &j
	return c, cmp.Or(err, missing)
}

// text is a row's, and whether it is null, which a template's never is. A template's is valid as long as the arena.
func (c *tableText) text(chunk *Chunk, row int, arena *[]byte) (text []byte, null bool) {
	if c.joined == nil {
		v := chunk.leaves[c.leaves[0]].list[row]
		if v.IsNull() {
			return nil, true
		}
		return v.ByteArray(), false
	}
	joined, off, n := c.joined.appendTo((*arena)[:0], func(leaf int) []byte {
		if v := chunk.leaves[leaf].list[row]; !v.IsNull() {
			return v.ByteArray()
		}
		return nil
	})
	*arena = joined
	return joined[off : off+n], false
}
