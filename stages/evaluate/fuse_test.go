package evaluate

import (
	"math"
	"testing"
)

// Reciprocal ranks by hand: document 2 is second in both runs, document 0 first in one and absent from the other.
func TestFuse(t *testing.T) {
	ids, err := NewIDs([]string{"a", "b", "c", "d"})
	if err != nil {
		t.Fatal(err)
	}
	got := Fuse(ids.TieOrder(), Run{{{0, 9}, {2, 5}, {1, 1}}, {{3, 1}}}, Run{{{3, 0.2}, {2, 0.1}}})
	if len(got) != 2 || len(got[0]) != 4 || len(got[1]) != 1 {
		t.Fatalf("%v", got)
	}
	for i, want := range []Hit{{2, 2. / 62}, {0, 1. / 61}, {3, 1. / 61}, {1, 1. / 63}} {
		h := got[0][i]
		if i == 1 || i == 2 { // tied: whichever the tie order puts first
			want.Doc = h.Doc
			if h.Doc != 0 && h.Doc != 3 {
				t.Errorf("document %d is at place %d", h.Doc, i)
			}
		}
		if h.Doc != want.Doc || math.Abs(float64(h.Score-want.Score)) > 1e-7 {
			t.Errorf("place %d: %v, want %v", i, h, want)
		}
	}
	if got[1][0] != (Hit{3, float32(1. / 61)}) {
		t.Errorf("%v", got[1])
	}
}
