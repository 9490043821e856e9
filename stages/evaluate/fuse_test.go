package evaluate

import (
	"math"
	"testing"
)

// By hand: the first run's scores 9, 5, 1 have mean 5 and deviation sqrt(32/3), the second's 0.2 and 0.1 have mean 0.15 and deviation 0.05.
func TestFuse(t *testing.T) {
	ids, err := NewIDs([]string{"a", "b", "c", "d"})
	if err != nil {
		t.Fatal(err)
	}
	got := Fuse(ids.TieOrder(), 3, Run{{{0, 9}, {2, 5}, {1, 1}}, {{3, 1}}, nil}, Run{{{3, 0.2}, {2, 0.1}}})
	z := 4 / math.Sqrt(32./3)
	for i, want := range []Hit{{0, float32(z - 1)}, {3, float32(1 - z)}, {2, -1}} { // the fourth would be 1, with -z - 1
		if h := got[0][i]; len(got[0]) != 3 || h.Doc != want.Doc || !(math.Abs(float64(h.Score-want.Score)) <= 1e-6) {
			t.Errorf("place %d: %v, want %v", i, h, want)
		}
	}
	if len(got) != 3 || len(got[1]) != 1 || got[1][0] != (Hit{3, 0}) || len(got[2]) != 0 {
		t.Errorf("a query with one document, and one with none: %v", got[1:])
	}
	// Reranked runs are in their first stage's order, so the least score is anywhere. Of equal sums the greater id is first.
	got = Fuse(ids.TieOrder(), 4, Run{{{0, 2}, {1, 0}, {2, 4}}}, Run{{{3, 4}, {0, 0}, {2, 2}}})
	z = math.Sqrt(1.5) // of 2 and 4 among 0, 2, 4: 0 and z
	for i, want := range []Hit{{2, float32(z)}, {3, 0}, {0, float32(-z)}, {1, float32(-2 * z)}} {
		if h := got[0][i]; h.Doc != want.Doc || !(math.Abs(float64(h.Score-want.Score)) <= 1e-6) {
			t.Errorf("unsorted, place %d: %v, want %v", i, h, want)
		}
	}
	if got = Fuse(ids.TieOrder(), 2, Run{{{0, 1}, {1, 1}, {2, 1}}}); got[0][0].Doc != 2 || got[0][1].Doc != 1 {
		t.Errorf("equal sums: %v", got[0])
	}
}
