package transformer

import (
	"math"
	"sync"

	"contraflow/gpustage"
)

// Rotary is how rotary positions turn with a token's place. Of each head's D features the first 2*len(Frequencies) are turned.
type Rotary struct {
	Frequencies []float64 // radians per position, one for each pair of features
	Factor      float64   // multiplies cosines and sines; 0: 1

	// Long, if not nil, are the frequencies of sequences of more than LongFrom tokens (LongRoPE). Whatever else is in a batch
	// does not matter, unlike in transformers, where the longest sequence decides for all.
	Long     []float64
	LongFrom int
}

// turns is a rotary on the device, for a sub-batch.
type turns struct {
	table gpustage.Tensor // [P, R]
	index gpustage.Tensor // i32 [1, T]
}

// turns uploads the angles of as many positions as the sub-batch has, to the arena's bottom: for each pass again, which takes a
// thousandth of a pass's time, and its memory shows in predictions.
func (m *Model) turns(s gpustage.Stream, a *gpustage.Arena, r *Rotary, rows Rows, seqs gpustage.Sequences) turns {
	n := seqs.MaxLen
	all := n
	long := r.Long != nil && n > r.LongFrom
	if long {
		all = 2 * n // those of short sequences, then those of long ones
	}
	t := turns{table: a.Keep(s, m.DType, all, 2*len(r.Frequencies)), index: seqs.Pos}
	if long {
		index := make([]int32, 0, seqs.Tokens)
		for b := range rows.Len() {
			length, from := rows.Cu[b+1]-rows.Cu[b], int32(0)
			if int(length) > r.LongFrom {
				from = int32(n)
			}
			for p := range length {
				index = append(index, from+p)
			}
		}
		t.index = a.Keep(s, gpustage.I32, 1, len(index))
		s.CopyIn(t.index, gpustage.Bytes(index))
	}
	if _, dry := m.Device.(gpustage.Dry); dry {
		return t
	}
	s.CopyIn(t.table.Span(0, n), m.angles.of(r, false, n, m.DType))
	if long {
		s.CopyIn(t.table.Span(n, 2*n), m.angles.of(r, true, n, m.DType))
	}
	return t
}

// turn turns the heads of x [T, n*D] in place, or turns them back.
func (p *Pass) turn(l int, x gpustage.Tensor, back bool) {
	r := p.in.rotary
	if p.m.Config.local(l) && !p.in.localRotary.table.IsZero() {
		r = p.in.localRotary
	}
	if r.table.IsZero() {
		return
	}
	p.s.Rotary(x, x, gpustage.Rotary{Table: r.table, Index: r.index, HeadDim: p.m.Config.HeadDim(), Inverse: back})
}

// angles are the rows of gpustage.Rotary's table that have been needed so far, in the model's type: 8,192 positions of 64
// pairs take 20 ms to compute, once.
type angles struct {
	mu    sync.Mutex
	kinds map[angleKind][]byte
}

type angleKind struct {
	r    *Rotary
	long bool
}

// of is the first n positions' rows.
func (a *angles) of(r *Rotary, long bool, n int, dtype gpustage.DType) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	freqs, factor := r.Frequencies, r.Factor
	if long {
		freqs = r.Long
	}
	if factor == 0 {
		factor = 1
	}
	if a.kinds == nil {
		a.kinds = map[angleKind][]byte{}
	}
	kind := angleKind{r, long}
	have, size := a.kinds[kind], 2*len(freqs)*dtype.Size()
	if len(have) < n*size {
		wide := make([]float64, n*2*len(freqs))
		for p := range n {
			row := wide[p*2*len(freqs):]
			for j, f := range freqs {
				sin, cos := math.Sincos(float64(p) * f)
				row[j], row[len(freqs)+j] = cos*factor, sin*factor
			}
		}
		have = inType(wide, dtype)
		a.kinds[kind] = have
	}
	return have[:n*size]
}

// inType is numbers as a device has them that computes in f32 or f64.
func inType(wide []float64, dtype gpustage.DType) []byte {
	if dtype != gpustage.F32 {
		return gpustage.Bytes(wide)
	}
	narrow := make([]float32, len(wide))
	for i, v := range wide {
		narrow[i] = float32(v)
	}
	return gpustage.Bytes(narrow)
}
