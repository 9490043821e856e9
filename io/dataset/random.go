package dataset

import "math/bits"

// stream is a sequence of random numbers that depends on nothing but the numbers it was keyed with: splitmix64 (Steele,
// Lea and Flood, "Fast splittable pseudorandom number generators", 2014). The order of the data, and with it every
// checkpoint's meaning, hangs on these few lines: they must never change. testdata/golden/dataset/order.py says the same in Python.
type stream uint64

// What a stream is for. Streams of different purposes are unrelated even when the rest of their keys is equal.
const (
	forBlocks  uint64 = iota + 1 // the order of the blocks in an epoch
	forWindow                    // the order of the rows in a window
	forChoices                   // which texts of a list column a row uses
	forMixture                   // the order of several datasets' batches in an epoch
	forParts                     // the seeds of several datasets
	forLengths                   // the order of batches and rows of similar length
	forOthers                    // which documents of other rows a row gets as negatives
)

// keyed starts a stream. Each part passes through the mixer before the next one joins, so that (1, 2) and (2, 1) differ.
func keyed(parts ...uint64) stream {
	var s stream
	for _, p := range parts {
		s = stream(mix(uint64(s)+weyl) ^ p)
	}
	return stream(mix(uint64(s) + weyl))
}

const weyl = 0x9e3779b97f4a7c15 // 2^64 / weyl ratio

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	*s += weyl
	return mix(uint64(*s))
}

// below returns a uniform number in [0, n): Lemire's multiplication with rejection (arXiv 1805.10941).
func (s *stream) below(n uint64) uint64 {
	hi, lo := bits.Mul64(s.next(), n)
	if lo < n {
		for threshold := -n % n; lo < threshold; {
			hi, lo = bits.Mul64(s.next(), n)
		}
	}
	return hi
}

// permutation returns a uniform permutation of 0..n-1 in p's memory (Fisher-Yates, from the end).
func (s *stream) permutation(p []uint32, n int) []uint32 {
	p = p[:0]
	for i := range n {
		p = append(p, uint32(i))
	}
	for i := n - 1; i > 0; i-- {
		j := s.below(uint64(i + 1))
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// choose appends k of 0..n-1 to dst, without repetition while k <= n; beyond that the same sequence starts again. It is
// keyed by everything that names a choice, so that any rank, at any time, chooses the same texts.
func choose(dst []int, seed uint64, epoch int, row int64, column, n, k int) []int {
	if n == 1 || k == 0 {
		for range k {
			dst = append(dst, 0)
		}
		return dst
	}
	s := keyed(seed, forChoices, uint64(epoch), uint64(row), uint64(column))
	first := len(dst)
	dst = s.some(dst, n, min(k, n))
	for i := min(k, n); i < k; i++ {
		dst = append(dst, dst[first+i%n])
	}
	return dst
}

// some appends k of 0..n-1 to dst, in random order: Fisher-Yates stopped after k steps, without the array, as k is small and n may be large. Step i
// swaps places i and swaps[i]; what the place holds is found by walking back through the earlier swaps.
func (s *stream) some(dst []int, n, k int) []int {
	first := len(dst)
	for i := range k {
		dst = append(dst, i+int(s.below(uint64(n-i))))
	}
	picked := dst[first:]
	for i := len(picked) - 1; i > 0; i-- {
		for t := i - 1; t >= 0; t-- {
			if picked[t] == picked[i] {
				picked[i] = t
			}
		}
	}
	return dst
}
