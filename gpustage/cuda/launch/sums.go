package launch

import (
	"slices"
	"unsafe"

	"contraflow/gpustage"
)

// A sum over rows is made in two passes: one over the rows, which leaves parts, and one that adds them up. The second has next to nothing to do, 5 us
// on an H200 by itself, and a backward pass has four for each layer. So within Repeat's function sums wait for each other, and one launch adds up the
// parts of many. Elsewhere each op adds up its own.
//
// A sum that waits is as good as made: whatever is launched meanwhile and has to do with it, which is seen by where its arguments lie, has it made
// before. That is nothing in a backward pass, where each sum is a parameter's gradient, until the next one adds to the same. Zeros wait too, in the
// place of columns that are filled with them: a key's bias has no gradient, and is part of a sum with the query's and the value's.

const (
	mostSums  = 64       // SUMS of reduce.cu
	mostParts = 32 << 20 // bytes that wait, when an op ends: BERT-base's parts of a layer are 16 MB at 12,000 tokens. Up to twice as many are allocated
)

// sum and sumArgs have the layout of reduce.cu's Sum and Sums.
type sum struct {
	out, parts uintptr // [1, dim]; [n, dim]
	n, dim     int32   // without parts, zeros
	stride     int64   // of the parts
}

type sumArgs struct{ sum [mostSums]sum }

// sums are those that wait.
type sums struct {
	args   sumArgs
	n      int
	lo, hi uintptr // between which all are
	pool   pool    // of their parts; what one op takes is free again when nothing waits
}

// addUp has parts, of which each row's columns are one or several of sum's length dim, added to sum, if there is one.
func (s *Stream) addUp(to, parts tensor, dim int) {
	n := parts.Rows * (parts.Cols / max(1, dim))
	if to.IsZero() || n == 0 || dim == 0 || s.err != nil {
		return
	}
	w := &s.sums
	at := s.address(to)
	end := at + uintptr(4*dim)
	if w.n == mostSums || s.waits(at, end) {
		s.addSums()
	}
	if w.n == 0 {
		w.lo, w.hi = at, end
	}
	w.args.sum[w.n] = sum{at, s.address(parts), int32(n), int32(dim), int64(dim)}
	w.n++
	w.lo, w.hi = min(w.lo, at), max(w.hi, end)
}

// zeros has part of a sum that waits filled with zeros, if that is what dst is.
func (s *Stream) zeros(dst tensor) bool {
	w := &s.sums
	at := s.address(dst)
	end := at + uintptr(4*dst.Cols)
	if dst.DType != gpustage.F32 || dst.Rows != 1 || dst.Cols == 0 || w.n+2 > mostSums || !s.waits(at, end) {
		return false
	}
	i := slices.IndexFunc(w.args.sum[:w.n], func(x sum) bool { return at >= x.out && end <= x.out+uintptr(4*x.dim) })
	if i < 0 {
		return false
	}
	x := &w.args.sum[i]
	left, all := int32(at-x.out)/4, x.dim
	right := sum{end, x.parts + uintptr(4*(left+int32(dst.Cols))), x.n, all - left - int32(dst.Cols), x.stride}
	x.dim = left
	w.args.sum[w.n], w.args.sum[w.n+1] = sum{out: at, dim: int32(dst.Cols)}, right // one without columns is no harm
	w.n += 2
	return true
}

// added ends an op with sums: outside of Repeat's function, or where many wait, they are made.
func (s *Stream) added() {
	if !s.repeats.inside || s.sums.pool.bytes() > mostParts {
		s.addSums()
	}
}

// bytes is what has been taken.
func (r *pool) bytes() (n int) {
	for _, m := range r.chunks[:min(r.chunk, len(r.chunks))] {
		n += m.Bytes()
	}
	return n + r.used
}

// addSums makes the sums that wait.
func (s *Stream) addSums() {
	w := &s.sums
	if w.n == 0 {
		return
	}
	n, longest, most := w.n, int32(0), int32(0)
	for _, x := range w.args.sum[:n] {
		longest, most = max(longest, x.dim), max(most, x.n)
	}
	clear(w.args.sum[n:])
	w.n = 0
	s.launch("column_finish", [3]int{ceil(int(longest), 32), n, 1}, [3]int{32 * min(int(most), 32), 1, 1}, 0, &w.args)
}

// waits tells whether a sum that waits lies between two addresses, in part.
func (s *Stream) waits(lo, hi uintptr) bool {
	w := &s.sums
	if w.n == 0 || hi <= w.lo || lo >= w.hi {
		return false
	}
	for _, x := range w.args.sum[:w.n] {
		if lo < x.out+uintptr(4*x.dim) && hi > x.out {
			return true
		}
	}
	return false
}

// settle makes the sums that wait if a launch's arguments touch one.
func (s *Stream) settle(args ...any) {
	if s.sums.n == 0 {
		return
	}
	touches := func(t tensor) bool {
		lo := s.address(t)
		return !t.IsZero() && t.Len() > 0 && s.waits(lo, lo+uintptr(((t.Rows-1)*t.Stride+t.Cols)*t.DType.Size()))
	}
	for _, a := range args {
		touch := false
		switch v := a.(type) {
		case tensor:
			touch = touches(v)
		case flat:
			touch = touches(tensor(v))
		case *attentionArgs: // of which a word that is an address is where a tensor begins that no sum is a part of
			for _, word := range unsafe.Slice((*uintptr)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8) {
				touch = touch || s.waits(word, word+1)
			}
		case *farArgs:
			touch = s.waits(v.keys, v.keys+1) || s.waits(v.queries, v.queries+1)
		case *updateArgs:
			touch = true // of all parameters
		}
		if touch {
			s.addSums()
			return
		}
	}
}

// settleProduct does so for a product.
func (s *Stream) settleProduct(p Product) {
	if s.sums.n == 0 {
		return
	}
	for _, m := range []Matrix{p.C, p.A, p.B, p.D, p.Aux, {At: p.Bias, Rows: 1, Cols: max(p.C.Rows, p.C.Cols)}} {
		// Four bytes an element are enough for all of them.
		if m.At != 0 && m.Rows > 0 && s.waits(m.At, m.At+uintptr(4*((m.Rows-1)*m.Stride+m.Cols))) {
			s.addSums()
			return
		}
	}
}
