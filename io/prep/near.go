package prep

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// Near-duplicates.
//
// A text is its set of shingles: runs of words, in lower case, hashed. Two texts' similarity is their sets' Jaccard
// coefficient. Comparing all pairs is out of the question, so:
//
//  1. Of each set Bands x Rows minima are taken under as many hash functions. Two sets agree in one minimum with a probability of
//     their similarity J, so they agree in a whole band with 1-(1-J^Rows)^Bands: with 20 bands of 6 rows 0.998 at J = 0.8, 0.27 at 0.5.
//  2. Rows that agree in a band meet in a bucket, in the order of their ids. A row that is similar to an earlier representative of the
//     bucket is dropped; one that isn't becomes a representative. Similarity is that of the sketches below, not that of the minima: a
//     bucket decides who is compared, never who is dropped.
//  3. A row is dropped if a bucket drops it. What it is similar to has a smaller id, so of a cluster the smallest id stays.
//
// Equal texts are no near-duplicates. A document is often the positive of several queries, and each of these rows is worth training on: what may not
// repeat exactly is for Dedupe.Exact to say. Rows of equal texts meet in the same buckets, and share the fate of the first of them.
//
// A bucket's decision depends on its members alone, and a row's on its buckets: any engine that groups by key gives the same rows.
//
// A sketch holds the sketchSize smallest shingle hashes. Sets up to that size are complete and compare exactly; of larger ones the smallest
// hashes of the union are a random sample of it, and the estimate has a standard deviation of at most 0.03.

const (
	sketchSize = 256
	sketchHead = 12 // bytes of a sketch before its hashes
)

// mostRepresentatives bounds a bucket's comparisons. Beyond it, rows are compared with the first ones alone.
const mostRepresentatives = 64

// Shingles returns the sorted, distinct hashes of text's runs of n words. A text of fewer words is one shingle; one without
// words is one of its bytes.
func Shingles(dst []uint32, text string, n int) []uint32 {
	dst = dst[:0]
	var words [64]uint64
	ring := words[:min(n, 64)]
	if n > 64 {
		ring = make([]uint64, n)
	}
	count := 0
	Words(text, func(w []byte) {
		ring[count%n] = xxh3.Hash(w)
		if count++; count >= n {
			dst = append(dst, runHash(ring, count-n, n))
		}
	})
	if count == 0 {
		return append(dst, uint32(xxh3.HashString(text)>>32))
	}
	if count < n {
		dst = append(dst, runHash(ring, 0, count))
	}
	slices.Sort(dst)
	return slices.Compact(dst)
}

// runHash hashes n words from the ring, the oldest first.
func runHash(ring []uint64, from, n int) uint32 { return uint32(runHash64(ring, from, n) >> 32) }

func runHash64(ring []uint64, from, n int) uint64 {
	h := uint64(n)
	for i := range n {
		h = mix64(h ^ ring[(from+i)%len(ring)])
	}
	return h
}

// mix64 is splitmix64's finalizer, after an odd multiple of the golden ratio.
func mix64(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Sketch is a set of shingles as it is compared: its size and its smallest hashes.
type Sketch struct {
	Text   uint64 // its hash: equal texts have the same
	Size   int
	Hashes []uint32 // ascending, all of them if Size is at most 256
}

// NewSketch makes the sketch of a text of its sorted, distinct shingles, which it keeps.
func NewSketch(text string, shingles []uint32) Sketch {
	return Sketch{xxh3.HashString(text), len(shingles), shingles[:min(len(shingles), sketchSize)]}
}

// Jaccard is the similarity of two sets of shingles: exact if both sketches are complete.
func Jaccard(a, b Sketch) float64 {
	most := sketchSize
	if a.Size <= sketchSize && b.Size <= sketchSize {
		most = math.MaxInt
	}
	i, j, union, common := 0, 0, 0, 0
	for union < most && (i < len(a.Hashes) || j < len(b.Hashes)) {
		switch {
		case j == len(b.Hashes) || i < len(a.Hashes) && a.Hashes[i] < b.Hashes[j]:
			i++
		case i == len(a.Hashes) || b.Hashes[j] < a.Hashes[i]:
			j++
		default:
			common++
			i++
			j++
		}
		union++
	}
	if union == 0 {
		return 1
	}
	return float64(common) / float64(union)
}

// Append appends a sketch as ParseSketch reads it.
func (s Sketch) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.Text)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(s.Size))
	for _, h := range s.Hashes {
		dst = binary.LittleEndian.AppendUint32(dst, h)
	}
	return dst
}

// ParseSketch reads what Append has written, into the memory of hashes.
func ParseSketch(b []byte, hashes []uint32) Sketch {
	s := Sketch{Text: binary.LittleEndian.Uint64(b), Size: int(binary.LittleEndian.Uint32(b[8:])), Hashes: hashes[:0]}
	for b = b[sketchHead:]; len(b) >= 4; b = b[4:] {
		s.Hashes = append(s.Hashes, binary.LittleEndian.Uint32(b))
	}
	return s
}

// hashFamily are the functions whose minima are taken: x -> mix(x) * odd + offset, by their high bits.
type hashFamily struct {
	rows             int
	factors, offsets []uint64
}

func newHashFamily(n Near, seed uint64) hashFamily {
	f := hashFamily{rows: n.Rows}
	for i := range uint64(n.Bands * n.Rows) {
		f.factors = append(f.factors, mix64(seed^mix64(2*i))|1)
		f.offsets = append(f.offsets, mix64(seed^mix64(2*i+1)))
	}
	return f
}

// Bands appends the key of each band: rows of one key meet.
func (f hashFamily) bands(dst []uint64, shingles []uint32, minima []uint64) ([]uint64, []uint64) {
	minima = minima[:0]
	for range f.factors {
		minima = append(minima, math.MaxUint64)
	}
	for _, s := range shingles {
		x := mix64(uint64(s))
		for i, m := range f.factors {
			minima[i] = min(minima[i], x*m+f.offsets[i])
		}
	}
	for from := 0; from < len(minima); from += f.rows {
		h := mix64(uint64(from))
		for _, m := range minima[from : from+f.rows] {
			h = mix64(h ^ m)
		}
		dst = append(dst, h)
	}
	return dst, minima
}

// Member is a row in a bucket.
type Member struct {
	ID     int64
	Sketch Sketch
}

// Bucket compares the rows that agree in a band. It holds representatives, not rows: a text that a million rows share takes no more than one.
type Bucket struct {
	Threshold float64
	kept      []Member
}

// Add takes the next row, in ascending order of ids, and tells the first representative that it is similar, and not equal, to. What the sketch's memory holds
// may change afterwards.
func (b *Bucket) Add(id int64, s Sketch) (of int64, similar bool) {
	for _, k := range b.kept {
		if k.Sketch.Text == s.Text {
			return -1, false
		}
		if float64(min(k.Sketch.Size, s.Size))/float64(max(k.Sketch.Size, s.Size)) < b.Threshold {
			continue // sizes alone rule it out: a quotient, as the similarity is, so that one of just the threshold stays in whatever way it is rounded
		}
		if Jaccard(k.Sketch, s) >= b.Threshold {
			return k.ID, true
		}
	}
	if len(b.kept) < mostRepresentatives {
		b.kept = append(b.kept, Member{id, Sketch{s.Text, s.Size, slices.Clone(s.Hashes)}})
	}
	return -1, false
}

// Reset forgets the bucket's rows.
func (b *Bucket) Reset() { b.kept = b.kept[:0] }
