// Package spelling finds which of the names that there are was meant by somebody who wrote another one: of columns, tensors, keys, flags. It also
// has the words that stand with a number of things, and takes texts as Windows writes them.
package spelling

import (
	"slices"
	"strings"
)

// Near are the names that a slip makes a word of, the likeliest first: those that are at most a third of its letters away, or one, but not all of
// them. Capitals don't count, nor what only one of them has in front of a dot: "bert." in "bert.encoder.x".
func Near(word string, names []string) []string {
	type scored struct {
		name  string
		edits int
	}
	limit := min(max(1, len(word)/3), len(word)-1)
	var near []scored
	for _, n := range names {
		e := limit + 1
		switch {
		case strings.HasSuffix(n, "."+word) || strings.HasSuffix(word, "."+n):
			e = 0
		case len(n)-len(word) <= limit && len(word)-len(n) <= limit: // or there are more edits than that
			e = edits(strings.ToLower(word), strings.ToLower(n))
		}
		if e <= limit {
			near = append(near, scored{n, e})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.edits - b.edits })
	var out []string
	for _, s := range near {
		out = append(out, s.name)
	}
	return out
}

// Nearest is the first of them, if there is one.
func Nearest(word string, names []string) string {
	if near := Near(word, names); len(near) > 0 {
		return near[0]
	}
	return ""
}

// edits is the number of insertions, deletions, changes and swaps of neighbours between two words (optimal string alignment).
func edits(a, b string) int {
	var before []int // the rows of a's beginnings, two letters shorter and one
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
