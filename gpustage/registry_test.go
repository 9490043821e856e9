package gpustage

import "testing"

// Ranks of one process divide a processor's threads: together they never have more than there are, unless there are more ranks.
func TestShare(t *testing.T) {
	for _, c := range []struct{ ranks, threads, want int }{{0, 8, 8}, {1, 8, 8}, {2, 8, 4}, {3, 8, 2}, {8, 8, 1}, {9, 8, 1}, {2, 1, 1}} {
		if got := (Share{Ranks: c.ranks}).Of(c.threads); got != c.want {
			t.Errorf("%d ranks with %d threads have %d each, want %d", c.ranks, c.threads, got, c.want)
		}
	}
}
