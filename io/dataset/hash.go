package dataset

import (
	"fmt"

	"github.com/zeebo/xxh3"
)

// Hash128 identifies a text: XXH3-128 of its bytes, seed 0. Two texts are the same when their hashes are. Among a
// billion texts the chance that any two different ones share a hash is below 2e-21.
type Hash128 struct{ Hi, Lo uint64 }

// HashText returns the identity of text.
func HashText(text string) Hash128 {
	return Hash128(xxh3.HashString128(text))
}

func hashBytes(b []byte) Hash128 {
	return Hash128(xxh3.Hash128(b))
}

// String returns 32 hexadecimal digits, the high half first, as xxhsum -H2 prints them.
func (h Hash128) String() string { return fmt.Sprintf("%016x%016x", h.Hi, h.Lo) }
