package recipe

import (
	"math/rand/v2"
	"testing"

	"contraflow/io/dataset"
)

// Rows that repeat others are those that a map finds, whichever keys they have and whichever rows are left out.
func TestRepeated(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for trial := range 400 {
		n, kinds := rng.IntN(60), 1+rng.IntN(200)
		var rows []int64
		var keys []dataset.Hash128
		for row := range n {
			if rng.IntN(5) > 0 {
				rows = append(rows, int64(row))
				k := uint64(rng.IntN(kinds))
				keys = append(keys, dataset.Hash128{Hi: k / 3, Lo: k % 3})
			}
		}
		wantN, wantFirst, wantOf := 0, int64(0), int64(0)
		seen := map[dataset.Hash128]int64{}
		for i, key := range keys {
			earlier, there := seen[key]
			if !there {
				seen[key] = rows[i]
			} else if wantN++; wantN == 1 {
				wantFirst, wantOf = rows[i], earlier
			}
		}
		told := 0
		got, first, of := repeated(func(yield func(int64, dataset.Hash128) bool) {
			for i := range rows {
				if !yield(rows[i], keys[i]) {
					return
				}
			}
		}, int64(n), func(int64) { told++ })
		if got != wantN || first != wantFirst || of != wantOf || told != len(rows) {
			t.Errorf("trial %d: %d rows repeat others, the first is %d, of %d; want %d, %d, %d", trial, got, first, of, wantN, wantFirst, wantOf)
		}
	}
}
