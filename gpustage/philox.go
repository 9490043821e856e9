package gpustage

import (
	"math"
	"math/bits"
)

// Philox is Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): seven rounds of a keyed
// bijection on 128-bit counters. The same key and counter give the same bits everywhere, which is all that dropout needs to be
// independent of sub-batches, ranks, threads and replays. The paper finds seven rounds enough for all of BigCrush. The usual ten
// add a margin that masks don't need, and cost a third of the time. (philox.h of the authors' Random123 tells of tests longer than
// BigCrush where seven rounds once looked suspicious, and no longer so when the test was longer still.)
func Philox(key uint64, counter [4]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57
		w0, w1 = 0x9E3779B9, 0xBB67AE85
	)
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := uint32(key), uint32(key>>32)
	for range 7 {
		h0, l0 := bits.Mul32(m0, c0)
		h1, l1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// RowKey is the dropout key of one row (an example's text in one column) in one optimizer step. It does not depend on where
// the row is computed; the same text in two columns has two keys, as SimCSE needs.
func RowKey(seed uint64, step int, row int64, column int) uint64 {
	h := uint64(0)
	for _, v := range [...]uint64{seed, uint64(step), uint64(row), uint64(column)} {
		h = mix64(h + 0x9E3779B97F4A7C15 ^ mix64(v))
	}
	return h
}

// mix64 is SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// Threshold is P as a multiple of 2^-16: an element whose number (Element) is below it is dropped. More than 255/256 count as that.
func (d Dropout) Threshold() uint32 { return uint32(math.Round(min(d.P, 255.0/256) * 65536)) }

// KeepScale is what a kept element is multiplied by: 1 / (1-P), with P as Threshold rounds it.
func (d Dropout) KeepScale() float64 { return 65536 / float64(65536-d.Threshold()) }

// Active tells whether anything drops.
func (d Dropout) Active() bool { return d.P > 0 }

// Element is the random number of one element of a vector: of a token's features (pos is its position, head 0) or of a query's keys (pos is the query's
// position). One call of Philox serves 16 elements. The upper byte of a number is the element's own, the lower one all 16 share: so each is below a
// threshold with exactly its probability (of bytes alone 0.1 would be 0.1016), and two of them at once with one that is at most 2^-18 above the product.
// That is a correlation of at most 1/256, and felt where P is below 1/256: with 0.001 something drops only where the common byte is below 66, two are dropped
// together 4 times as often as independent ones, and the variance of how many of 16 are is 4 % above theirs (with 0.1 it is 0.06 %). See DropoutNumber.
// What attention drops is 200 instructions of 659 for 64 keys of 16 queries where 8 elements with 16 bits of their own take a call, and 140 of some 600
// with 16 (forward, sm_90).
func (d Dropout) Element(key uint64, element, pos, head int) uint32 {
	return DropoutNumber(Philox(key, [4]uint32{uint32(element / 16), uint32(pos), uint32(head), uint32(d.Layer)<<8 | uint32(d.Site)}), element%16)
}

// DropoutNumber is number i of the 16 that four random words make: byte i/4 of word i%4, and below it the upper byte of the first three words' exclusive
// or, which any two of the 16 bytes are independent of. (With two words the numbers whose bytes it is made of would give it away: with a P of 0.001 these
// two would drop together 15 times as often as they should.)
func DropoutNumber(w [4]uint32, i int) uint32 {
	return w[i%4]>>(i/4*8)&0xFF<<8 | (w[0]^w[1]^w[2])>>24
}
