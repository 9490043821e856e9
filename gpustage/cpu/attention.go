package cpu

import (
	"errors"
	"math"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/vec"
	"contraflow/gpustage/ref"
)

// Attention is computed for one sequence and head at a time, by one thread, in blocks of queries: a block's scores against all the
// keys that it sees are queryBlock x keys in the second-level cache, never T x T. The backward pass computes each block's
// probabilities again from the log-sum-exp, and adds to dk and dv block by block in order.
//
// A block of 128 queries against 1,024 keys is 512 KiB of scores; shorter sequences are one block.
const queryBlock = 128

// head is one sequence and one head: the work of a task.
type head struct {
	s       *Stream
	o       *gpustage.Attention
	w       *worker
	lo, n   int // the sequence's first token and its length
	row     int
	h, kv   int
	drop    vec.Dropout
	scratch []float32
}

// eachHead runs f for each sequence and key-value head; f sees to the query heads that share it.
func (s *Stream) eachHead(o *gpustage.Attention, buffers int, f func(h *head)) {
	kv := o.KVHeads
	if kv == 0 {
		kv = o.Heads
	}
	cu := ints(o.Seqs.Cu)
	var drop vec.Dropout
	var keys []uint64
	if o.Dropout.Active() {
		drop, keys = vec.NewDropout(o.Dropout), gpustage.Slice[uint64](o.Dropout.Seqs.Keys)
	}
	units := o.Seqs.Rows * kv
	// Several short sequences' heads make one task: forking costs about what a head of 16 tokens does.
	work := o.Seqs.Tokens * o.Seqs.MaxLen / max(1, o.Seqs.Rows) * o.HeadDim / max(1, o.Seqs.Rows)
	group := max(1, min(units, (1<<19)/max(1, work)/8))
	tasks := (units + group - 1) / group
	run := func(w, task int) {
		for u := task * group; u < min(units, (task+1)*group); u++ {
			b := u / kv
			h := head{s: s, o: o, w: &s.workers[w], lo: int(cu[b]), n: int(cu[b+1] - cu[b]), row: b, kv: u % kv, drop: drop}
			if keys != nil {
				h.drop.Key = keys[b]
			}
			h.scratch = h.w.take(buffers * min(queryBlock, h.n) * h.n)
			for g := range o.Heads / kv {
				h.h = h.kv*(o.Heads/kv) + g
				f(&h)
			}
		}
	}
	if tasks == 1 {
		run(0, 0)
		return
	}
	s.d.pool.Run(tasks, run)
}

// block is some queries of a head with the keys that any of them sees.
type block struct {
	q0, q1 int // queries, positions in the sequence
	k0, k1 int // keys
}

func (h *head) eachBlock(f func(b block)) {
	for q0 := 0; q0 < h.n; q0 += queryBlock {
		b := block{q0: q0, q1: min(h.n, q0+queryBlock), k1: h.n}
		if w := h.o.Window; w > 0 {
			b.k0, b.k1 = max(0, b.q0-w), min(h.n, b.q1+w)
		}
		if h.o.Causal {
			b.k1 = b.q1
		}
		f(b)
	}
}

// visible is the keys that one query sees, relative to the block's first.
func (h *head) visible(b block, q int) (lo, hi int) {
	lo, hi = b.k0, b.k1
	if w := h.o.Window; w > 0 {
		lo, hi = max(lo, q-w), min(hi, q+w+1)
	}
	if h.o.Causal {
		hi = q + 1
	}
	return lo - b.k0, hi - b.k0
}

// queries and keys are a block's part of a tensor.
func (h *head) queries(t gpustage.Tensor, b block) gpustage.Tensor {
	d := h.o.HeadDim
	return t.Span(h.lo+b.q0, h.lo+b.q1).Columns(h.h*d, (h.h+1)*d)
}

func (h *head) keys(t gpustage.Tensor, b block) gpustage.Tensor {
	d := h.o.HeadDim
	return t.Span(h.lo+b.k0, h.lo+b.k1).Columns(h.kv*d, (h.kv+1)*d)
}

// product is c = op(a) x op(b) on this thread; c's rows are ldc apart.
func (h *head) product(c []float32, ldc int, a []float32, lda int, ta bool, b []float32, ldb int, tb bool, m, n, k int, alpha float32, add bool) {
	if err := h.w.gemm.Small(&gemm.Job[float32]{
		M: m, N: n, K: k, Alpha: alpha, A: a, LDA: lda, TransA: ta, B: b, LDB: ldb, TransB: tb, C: c, LDC: ldc, Add: add, BF16: h.o.BF16,
	}); err != nil {
		panic(err) // the tensors were checked: sizes that don't fit are this package's mistake
	}
}

// Attention computes ctx and keeps lse.
func (s *Stream) Attention(ctx, lse, q, k, v gpustage.Tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention", ctx, lse, q, k, v, o)) {
		return
	}
	if !isF32(q) {
		s.bySequence(o, func(r *ref.Stream, one gpustage.Attention, lo, hi int) {
			r.Attention(ctx.Span(lo, hi), lse.Columns(lo, hi), q.Span(lo, hi), k.Span(lo, hi), v.Span(lo, hi), one)
		})
		return
	}
	s.eachHead(&o, 1, func(h *head) {
		lses := row(lse, h.h)
		h.eachBlock(func(b block) {
			qs, ks, vs, out := h.queries(q, b), h.keys(k, b), h.keys(v, b), h.queries(ctx, b)
			m, n := b.q1-b.q0, b.k1-b.k0
			p := h.scratch
			h.product(p, n, f32(qs), q.Stride, false, f32(ks), k.Stride, true, m, n, o.HeadDim, float32(o.Scale), false)
			for i := range m {
				x := p[i*n : (i+1)*n]
				lo, hi := h.visible(b, b.q0+i)
				clear(x[:lo])
				clear(x[hi:])
				x = x[lo:hi]
				top := s.v.Max(x)
				z := s.v.ExpSum(x, x, top)
				lses[h.lo+b.q0+i] = top + float32(math.Log(float64(z)))
				s.v.Scale(x, x, 1/z)
				if o.Dropout.Active() {
					h.drop.Pos, h.drop.Head = uint32(b.q0+i), uint32(h.h)
					s.v.Dropout(x, x, nil, b.k0+lo, h.drop)
				}
			}
			h.product(f32(out), ctx.Stride, p, n, false, f32(vs), v.Stride, false, m, o.HeadDim, n, 1, false)
		})
	})
}

// AttentionBackward computes dq, dk and dv.
func (s *Stream) AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v gpustage.Tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention backward", dctx, lse, dq, dk, dv, o)) ||
		s.Refuse(gpustage.CheckAttention("attention backward", ctx, lse, q, k, v, o)) {
		return
	}
	if !isF32(q) {
		s.bySequence(o, func(r *ref.Stream, one gpustage.Attention, lo, hi int) {
			r.AttentionBackward(dq.Span(lo, hi), dk.Span(lo, hi), dv.Span(lo, hi), dctx.Span(lo, hi), ctx.Span(lo, hi), lse.Columns(lo, hi),
				q.Span(lo, hi), k.Span(lo, hi), v.Span(lo, hi), one)
		})
		return
	}
	shared := o.KVHeads > 0 && o.KVHeads < o.Heads
	buffers := 2
	if o.Dropout.Active() {
		buffers = 3 // probabilities before and after dropout
	}
	s.eachHead(&o, buffers, func(h *head) {
		whole := block{k1: h.n}
		if first := !shared || h.h%(o.Heads/o.KVHeads) == 0; first {
			for _, t := range [...]gpustage.Tensor{h.keys(dk, whole), h.keys(dv, whole)} {
				for i := range t.Rows {
					clear(row(t, i))
				}
			}
		}
		lses := row(lse, h.h)
		h.eachBlock(func(b block) {
			m, n, d := b.q1-b.q0, b.k1-b.k0, o.HeadDim
			p, dp := h.scratch[:m*n], h.scratch[m*n:2*m*n]
			pd := p
			if o.Dropout.Active() {
				pd = h.scratch[2*m*n : 3*m*n]
			}
			qs, ks, vs := f32(h.queries(q, b)), f32(h.keys(k, b)), f32(h.keys(v, b))
			douts, outs := h.queries(dctx, b), h.queries(ctx, b)
			h.product(p, n, qs, q.Stride, false, ks, k.Stride, true, m, n, d, float32(o.Scale), false)
			h.product(dp, n, f32(douts), dctx.Stride, false, vs, v.Stride, true, m, n, d, 1, false)
			for i := range m {
				lo, hi := h.visible(b, b.q0+i)
				x, dx, xd := p[i*n:(i+1)*n], dp[i*n:(i+1)*n], pd[i*n:(i+1)*n]
				for _, r := range [...][]float32{x, dx, xd} {
					clear(r[:lo])
					clear(r[hi:])
				}
				x, dx, xd = x[lo:hi], dx[lo:hi], xd[lo:hi]
				s.v.ExpScale(x, x, lses[h.lo+b.q0+i], 1)
				if o.Dropout.Active() {
					h.drop.Pos, h.drop.Head = uint32(b.q0+i), uint32(h.h)
					s.v.Dropout(xd, x, nil, b.k0+lo, h.drop)
					s.v.Dropout(dx, dx, nil, b.k0+lo, h.drop)
				}
				s.v.SoftmaxBackward(dx, x, dx, s.v.Dot(row(douts, i), row(outs, i)), float32(o.Scale))
			}
			h.product(f32(h.keys(dv, b)), dv.Stride, pd, n, true, f32(douts), dctx.Stride, false, n, d, m, 1, true)
			h.product(f32(h.queries(dq, b)), dq.Stride, dp, n, false, ks, k.Stride, false, m, d, n, 1, false)
			h.product(f32(h.keys(dk, b)), dk.Stride, dp, n, true, qs, q.Stride, false, n, d, m, 1, true)
		})
	})
}

// bySequence lets ref compute one sequence per task: attention in f64 is most of a verification's time.
func (s *Stream) bySequence(o gpustage.Attention, f func(r *ref.Stream, one gpustage.Attention, lo, hi int)) {
	cu := ints(o.Seqs.Cu)
	errs := make([]error, o.Seqs.Rows)
	s.d.pool.Run(o.Seqs.Rows, func(_, b int) {
		lo, hi := int(cu[b]), int(cu[b+1])
		bounds, err := gpustage.NewTensor(s.d, gpustage.I32, 1, 2)
		if err != nil {
			errs[b] = err
			return
		}
		ints(bounds)[1] = int32(hi - lo)
		row, err := gpustage.NewTensor(s.d, gpustage.I32, 1, hi-lo) // zeros: its only row
		if err != nil {
			errs[b] = err
			return
		}
		one := o
		one.Seqs = gpustage.Sequences{Rows: 1, Tokens: hi - lo, MaxLen: hi - lo, Cu: bounds, Row: row}
		if !o.Seqs.Pos.IsZero() {
			one.Seqs.Pos = o.Seqs.Pos.Columns(lo, hi)
		}
		if !o.Seqs.Keys.IsZero() {
			one.Seqs.Keys = o.Seqs.Keys.Columns(b, b+1)
		}
		one.Dropout.Seqs = one.Seqs
		r := ref.NewStream(s.d)
		f(r, one, lo, hi)
		errs[b] = r.Sync()
	})
	s.Fail(errors.Join(errs...))
}
