package transformer

import (
	"fmt"
	"testing"

	"contraflow/testdata/goldens"
)

// The rows of the table of distances are transformers', for DeBERTa v3's buckets and others.
func TestDistances(t *testing.T) {
	g := goldens.Load(t, "families/deberta-v2")
	names := g.Names("rows/")
	for _, name := range names {
		var d Disentangled
		if _, err := fmt.Sscanf(name, "rows/%d/%d", &d.Buckets, &d.Longest); err != nil {
			t.Fatal(err)
		}
		d.Span = d.Buckets
		for i, want := range g.Ints(t, name) {
			want = max(0, min(2*d.Span-1, want+d.Span))
			if got := d.row(i - 600); int(got) != want {
				t.Errorf("%s: a query %d behind its key has row %d, want %d", name, i-600, got, want)
			}
		}
	}
	if len(names) != 7 {
		t.Errorf("%d tables", len(names))
	}
	d := Disentangled{Span: 5} // without buckets
	for distance, want := range map[int]int32{-9: 0, -5: 0, -4: 1, 0: 5, 4: 9, 5: 9, 20: 9} {
		if got := d.row(distance); got != want {
			t.Errorf("a query %d behind its key has row %d, want %d", distance, got, want)
		}
	}
}
