package tokenize

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// TestWordCache compares small caches with a map, on words that differ in little, from several goroutines.
func TestWordCache(t *testing.T) {
	for _, vocab := range []int{1, 100, 100000} {
		cache := newWordCache(vocab)
		// The ids of a word tell which one it is.
		ids := func(word []byte) []int32 {
			all := []int32{int32(len(word))}
			for i, b := range word {
				all = append(all, int32(i)<<8|int32(b))
			}
			return all[:1+len(word)%8]
		}
		var hits [4]int
		var group sync.WaitGroup
		for g := range hits {
			group.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), uint64(vocab)))
				for range 5000 {
					// Most words lie in a longer text; that at its end has no 32 bytes of its own.
					buffer := make([]byte, 64)
					for i := range buffer {
						buffer[i] = byte(rng.IntN(2) * rng.IntN(256))
					}
					start := rng.IntN(64)
					word := buffer[start : start+rng.IntN(min(64-start, 40)+1)]
					for i := range word {
						word[i] = "\x00a"[rng.IntN(20)/19]
					}
					prefix := []int32{1, 2}
					got, free, ok := cache.find(prefix, word)
					if !ok {
						if len(got) != 2 {
							t.Errorf("%q isn't there, but has ids %v", word, got)
						}
						free.put(word, ids(word))
						continue
					}
					hits[g]++
					if want := append(slices.Clone(prefix), ids(word)...); !slices.Equal(got, want) {
						t.Errorf("%q has ids %v, want %v", word, got, want)
						return
					}
				}
			})
		}
		group.Wait()
		if slices.Min(hits[:]) == 0 {
			t.Errorf("a cache for %d tokens was never hit", vocab)
		}
	}
}
