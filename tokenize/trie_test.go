package tokenize

import (
	"math/rand/v2"
	"testing"
)

// TestTrie compares the double array with a map: keys of all bytes (0 and 255 too), prefixes of one another, long ones.
func TestTrie(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, alphabet := range []int{2, 5, 256} {
		word := func() string {
			b := make([]byte, rng.IntN(7))
			for i := range b {
				b[i] = byte(rng.IntN(alphabet) * 255 / (alphabet - 1))
			}
			return string(b)
		}
		want := map[string]int32{string(make([]byte, 3000)): 7}
		for range 20000 {
			if w := word(); w != "" {
				want[w] = int32(rng.IntN(maxTrieID + 1))
			}
		}
		keys := []trieKey{{"", 3}}
		for text, id := range want {
			keys = append(keys, trieKey{text, id}, trieKey{text, min(id+1, maxTrieID)}) // the lower id wins
		}
		trie, err := newTrie(keys)
		if err != nil {
			t.Fatal(err)
		}
		check := func(text string) {
			id, ok := trie.walk(trie.root(), text).id()
			if wantID, wantOK := want[text]; ok != wantOK || ok && id != wantID {
				t.Fatalf("alphabet %d: %q is %d, %v; want %d, %v", alphabet, text, id, ok, wantID, wantOK)
			}
		}
		for text := range want {
			check(text)
			check(text + "\x00")
			check(text + "\xff")
		}
		for range 50000 {
			check(word())
		}
	}
	empty, err := newTrie(nil)
	if err != nil {
		t.Fatal(err)
	}
	for c := range 256 {
		if _, ok := empty.child(empty.root(), byte(c)); ok {
			t.Errorf("the empty trie has a child for %d", c)
		}
	}
}
