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
// A block of 128 queries against 1,024 keys is 512 KiB of scores; shorter sequences are one block. Smaller blocks of longer
// sequences would stay in the cache, but products of fewer rows lose more. In GFLOP/s per second of one processor with AVX2
// (BenchmarkAttention; its products alone do 95), forward and backward:
//
//	            128      64       32       16 queries
//	512 keys    59  63   55  57   49  51   39  42
//	2,048       65  68   58  59   51  53   47  45
//	8,192       62  59   55  57   50  52   48  41
//
// PyTorch 2.9's scaled_dot_product_attention did 53 and 50, 66 and 60, 64 and 62 beside it.
const queryBlock = 128

// head is one sequence and one head: the work of a task.
type head struct {
	s       *Stream
	o       *gpustage.Attention
	w       *worker
	lo, n   int // the sequence's first token and its length
	seen    int // how many of its tokens are keys
	row     int
	h, kv   int
	drop    vec.Dropout
	scratch []float32
	biases  []float32 // with Bias: of key - query from -(n-1) to n-1
	dBiases []float32 // their gradient

	at       byDistance // with Positions
	firstRow int        // of them, in at.dRow
}

// eachHead runs f for each sequence and key-value head; f sees to the query heads that share it. sums, if not nil, are for gradients of positions.
func (s *Stream) eachHead(o *gpustage.Attention, buffers int, sums []float32, f func(h *head)) {
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
	group := headsOfTask(o, units)
	tasks := (units + group - 1) / group
	one := func(h head, w, b int) {
		h.s, h.o, h.w, h.lo, h.n, h.row, h.drop = s, o, &s.workers[w], int(cu[b]), int(cu[b+1]-cu[b]), b, drop
		if h.seen = h.n; !o.Seen.IsZero() {
			h.seen = int(ints(o.Seen)[b])
		}
		if keys != nil {
			h.drop.Key = keys[b]
		}
		blocks, spread := buffers*min(queryBlock, h.n)*h.n, 0
		if !o.Bias.IsZero() {
			spread = max(0, 2*h.n-1)
		}
		buf := h.w.take(blocks + 2*spread + positionElements(o, h.n))
		h.scratch, h.biases, h.dBiases, buf = buf[:blocks], buf[blocks:][:spread], buf[blocks+spread:][:spread], buf[blocks+2*spread:]
		for g := range o.Heads / kv {
			h.h = h.kv*(o.Heads/kv) + g
			h.spreadBias()
			h.spreadPositions(buf[:positionElements(o, h.n)])
			f(&h)
		}
	}
	if sums != nil { // a part's sequences one behind the other
		parts := min(positionParts, o.Seqs.Rows)
		first, _ := positionRows(o)
		s.d.pool.Run(parts*kv, func(w, task int) {
			part, each := task/kv, len(sums)/parts
			for b := part * o.Seqs.Rows / parts; b < (part+1)*o.Seqs.Rows/parts; b++ {
				one(head{kv: task % kv, firstRow: first, at: byDistance{dRow: sums[part*each : (part+1)*each]}}, w, b)
			}
		})
		return
	}
	run := func(w, task int) {
		for u := task * group; u < min(units, (task+1)*group); u++ {
			one(head{kv: u % kv}, w, u/kv)
		}
	}
	if tasks == 1 {
		run(0, 0)
		return
	}
	s.d.pool.Run(tasks, run)
}

// headsOfTask is how many of so many heads of sequences make one task. Short sequences' do together: forking costs about what a head of 16 tokens does. On
// two cores of an EPYC with AVX-512, 12 heads of 32 features of 512 texts of 16 tokens took 12.3 ms forward and 20.7 backward, and 16.6 and 28.8 in tasks of 4,096 heads.
func headsOfTask(o *gpustage.Attention, units int) int {
	work := o.Seqs.Tokens / max(1, o.Seqs.Rows) * o.Seqs.MaxLen * o.HeadDim // of a head
	return max(1, min(units, (1<<16)/max(1, work)))
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
		b.k1 = min(b.k1, h.seen)
		b.k0 = min(b.k0, b.k1)
		f(b)
	}
}

// visible is the keys that one query sees, relative to the block's first. There may be none.
func (h *head) visible(b block, q int) (lo, hi int) {
	lo, hi = b.k0, b.k1
	if w := h.o.Window; w > 0 {
		lo, hi = max(lo, q-w), min(hi, q+w+1)
	}
	if h.o.Causal {
		hi = min(hi, q+1)
	}
	return min(lo, hi) - b.k0, hi - b.k0
}

// spreadBias gives each distance that the sequence has its bias, so that a query's keys have theirs side by side.
func (h *head) spreadBias() {
	if len(h.biases) == 0 {
		return
	}
	for i := range h.biases {
		h.biases[i] = row(h.o.Bias, h.distance(i))[h.h]
	}
	clear(h.dBiases)
}

// distance is Bias's row for element i of biases.
func (h *head) distance(i int) int {
	reach := h.o.Reach()
	return reach + max(-reach, min(reach, i-(h.n-1)))
}

// gatherBias is spreadBias's backward: it adds up the gradient of the distances that share a bias.
func (h *head) gatherBias(sum []float32) {
	total := grow(&h.w.wide, len(sum))
	clear(total)
	for i, d := range h.dBiases {
		total[h.distance(i)] += float64(d)
	}
	for i, d := range total {
		sum[i] = float32(d)
	}
}

// of is the part of biases or dBiases that belongs to keys from lo on, relative to the block's first, for query q.
func (h *head) of(biases []float32, b block, q, lo, n int) []float32 {
	return biases[h.n-1+b.k0+lo-q:][:n]
}

// score finishes the scores x of query q and its keys from lo on: soft cap and bias. Where there is a cap, th, if it is not
// nil, receives tanh(x/SoftCap).
func (h *head) score(b block, x, th []float32, q, lo int) {
	if limit := float32(h.o.SoftCap); limit > 0 {
		if th == nil {
			th = x
		}
		v := h.s.v
		v.Scale(x, x, 1/limit)
		v.Act(gpustage.Tanh, th, x)
		v.Scale(x, th, limit)
	}
	if len(h.biases) > 0 {
		h.s.v.Add(x, x, h.of(h.biases, b, q, lo, len(x)))
	}
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

func (h *head) clear(t gpustage.Tensor) {
	for i := range t.Rows {
		clear(row(t, i))
	}
}

// Attention computes ctx and keeps lse.
func (s *Stream) Attention(ctx, lse, q, k, v gpustage.Tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention", ctx, lse, q, k, v, o)) || s.Refuse(gpustage.CheckInside("attention", o)) {
		return
	}
	if !isF32(q) {
		s.bySequence(o, func(r *ref.Stream, one gpustage.Attention, lo, hi int) {
			r.Attention(ctx.Span(lo, hi), lse.Columns(lo, hi), q.Span(lo, hi), k.Span(lo, hi), v.Span(lo, hi), one)
		})
		return
	}
	s.eachHead(&o, 1, nil, func(h *head) {
		lses := row(lse, h.h)
		h.eachBlock(func(b block) {
			qs, ks, vs, out := h.queries(q, b), h.keys(k, b), h.keys(v, b), h.queries(ctx, b)
			m, n := b.q1-b.q0, b.k1-b.k0
			p := h.scratch
			if n == 0 {
				h.clear(out)
				for q := b.q0; q < b.q1; q++ {
					lses[h.lo+q] = float32(math.Inf(-1))
				}
				return
			}
			h.product(p, n, f32(qs), q.Stride, false, f32(ks), k.Stride, true, m, n, o.HeadDim, float32(o.Scale), false)
			h.addPositions(b, p, f32(qs), q.Stride, f32(ks), k.Stride)
			for i := range m {
				x := p[i*n : (i+1)*n]
				lo, hi := h.visible(b, b.q0+i)
				clear(x[:lo])
				clear(x[hi:])
				x = x[lo:hi]
				if lo == hi {
					lses[h.lo+b.q0+i] = float32(math.Inf(-1))
					continue
				}
				h.score(b, x, nil, b.q0+i, lo)
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
		s.Refuse(gpustage.CheckAttention("attention backward", ctx, lse, q, k, v, o)) || s.Refuse(gpustage.CheckInside("attention backward", o)) {
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
		buffers++ // probabilities before and after dropout
	}
	if o.SoftCap > 0 {
		buffers++
	}
	var dBias []float32 // [B*H, 2R+1]: each sequence's and head's
	if !o.DBias.IsZero() {
		dBias = grow(&s.sums, o.Seqs.Rows*o.DBias.Len())
	}
	at := o.Positions
	var sums []float32 // of positions
	parts := min(positionParts, o.Seqs.Rows)
	firstRow, endRow := 0, 0
	if !at.DKeys.IsZero() || !at.DQueries.IsZero() {
		firstRow, endRow = positionRows(&o)
		sums = grow(&s.places, parts*2*(endRow-firstRow)*q.Cols)
		clear(sums)
	}
	s.eachHead(&o, buffers, sums, func(h *head) {
		hidden := block{k0: h.seen, k1: h.n}
		first := !shared || h.h%(o.Heads/o.KVHeads) == 0
		all := !o.Causal && o.Window == 0 // each block reaches all keys: the first one may set what others add to
		if first {
			if !all {
				hidden.k0 = 0 // what all add to, too
			}
			h.clear(h.keys(dk, hidden))
			h.clear(h.keys(dv, hidden))
		}
		lses := row(lse, h.h)
		h.eachBlock(func(b block) {
			add := !(first && all && b.q0 == 0)
			m, n, d := b.q1-b.q0, b.k1-b.k0, o.HeadDim
			if n == 0 {
				h.clear(h.queries(dq, b))
				return
			}
			p, dp := h.scratch[:m*n], h.scratch[m*n:2*m*n]
			pd := p
			if o.Dropout.Active() {
				pd = h.scratch[2*m*n : 3*m*n]
			}
			var ths []float32 // tanh of capped scores, then the cap's slope
			if o.SoftCap > 0 {
				ths = h.scratch[(buffers-1)*m*n : buffers*m*n]
			}
			qs, ks, vs := f32(h.queries(q, b)), f32(h.keys(k, b)), f32(h.keys(v, b))
			douts := h.queries(dctx, b)
			h.product(p, n, qs, q.Stride, false, ks, k.Stride, true, m, n, d, float32(o.Scale), false)
			h.addPositions(b, p, qs, q.Stride, ks, k.Stride)
			h.product(dp, n, f32(douts), dctx.Stride, false, vs, v.Stride, true, m, n, d, 1, false)
			for i := range m {
				lo, hi := h.visible(b, b.q0+i)
				x, dx, xd := p[i*n:(i+1)*n], dp[i*n:(i+1)*n], pd[i*n:(i+1)*n]
				for _, r := range [...][]float32{x, dx, xd} {
					clear(r[:lo])
					clear(r[hi:])
				}
				if lo == hi {
					continue
				}
				x, dx, xd = x[lo:hi], dx[lo:hi], xd[lo:hi]
				var th []float32
				if ths != nil {
					th = ths[i*n+lo : i*n+hi]
				}
				h.score(b, x, th, b.q0+i, lo)
				s.v.Scale(x, x, 1/s.v.ExpSum(x, x, lses[h.lo+b.q0+i])) // see ref
				if o.Dropout.Active() {
					h.drop.Pos, h.drop.Head = uint32(b.q0+i), uint32(h.h)
					s.v.Dropout(xd, x, nil, b.k0+lo, h.drop)
					s.v.Dropout(dx, dx, nil, b.k0+lo, h.drop)
				}
				delta := s.v.Dot(x, dx) // see ref
				if th == nil && dBias == nil {
					s.v.SoftmaxBackward(dx, x, dx, delta, float32(o.Scale))
					continue
				}
				s.v.SoftmaxBackward(dx, x, dx, delta, 1)
				if dBias != nil {
					d := h.of(h.dBiases, b, b.q0+i, lo, len(dx))
					s.v.Add(d, d, dx)
				}
				if th != nil { // the slope is 1 - tanh²
					s.v.Mul(th, th, th)
					s.v.Mul(th, th, dx)
					s.v.Axpy(dx, th, -1)
				}
				s.v.Scale(dx, dx, float32(o.Scale))
			}
			h.product(f32(h.keys(dv, b)), dv.Stride, pd, n, true, f32(douts), dctx.Stride, false, n, d, m, 1, add)
			h.product(f32(h.queries(dq, b)), dq.Stride, dp, n, false, ks, k.Stride, false, m, d, n, 1, false)
			h.product(f32(h.keys(dk, b)), dk.Stride, dp, n, true, qs, q.Stride, false, n, d, m, 1, add)
			h.positionsBackward(b, dp, qs, q.Stride, ks, k.Stride, f32(h.queries(dq, b)), dq.Stride, f32(h.keys(dk, b)), dk.Stride)
		})
		h.gatherPositions()
		if dBias != nil {
			r := o.DBias.Rows
			h.gatherBias(dBias[(h.row*o.Heads+h.h)*r:][:r])
		}
	})
	if sums != nil {
		s.sumPositions(at, sums, parts, firstRow, endRow-firstRow)
	}
	if dBias == nil {
		return
	}
	for i := range o.DBias.Rows {
		for h, sum := range row(o.DBias, i) {
			acc := float64(sum)
			for b := range o.Seqs.Rows {
				acc += float64(dBias[(b*o.Heads+h)*o.DBias.Rows+i])
			}
			row(o.DBias, i)[h] = float32(acc)
		}
	}
}

// bySequence lets ref compute one sequence per task: attention in f64 is most of a verification's time. Gradients of positions are as large as the
// positions: sequences share them within each of a few parts.
func (s *Stream) bySequence(o gpustage.Attention, f func(r *ref.Stream, one gpustage.Attention, lo, hi int)) {
	cu, n := ints(o.Seqs.Cu), o.Seqs.Rows
	parts := n
	if !o.Positions.None() {
		parts = min(n, positionParts)
	}
	errs := make([]error, parts)
	sums := make([][3]gpustage.Tensor, parts) // each part's DBias, DKeys and DQueries
	defer func() {
		for _, of := range sums {
			for _, sum := range of {
				if !sum.IsZero() {
					s.Fail(sum.Mem.Free())
				}
			}
		}
	}()
	s.d.pool.Run(parts, func(_, part int) {
		of := o
		for i, d := range gradientSums(&of) {
			if d.IsZero() {
				continue
			}
			if sums[part][i], errs[part] = gpustage.NewTensor(s.d, d.DType, d.Rows, d.Cols); errs[part] != nil {
				return
			}
			*d = sums[part][i]
		}
		for b := part * n / parts; b < (part+1)*n/parts; b++ {
			lo, hi := int(cu[b]), int(cu[b+1])
			one, err := s.sequence(of, b, lo, hi)
			if err != nil {
				errs[part] = err
				return
			}
			r := ref.NewStream(s.d)
			f(r, one, lo, hi)
			if errs[part] = r.Sync(); errs[part] != nil {
				return
			}
		}
	})
	s.Fail(errors.Join(errs...))
	for _, of := range sums {
		for i, d := range gradientSums(&o) {
			if !of[i].IsZero() {
				s.Stream.Add(*d, *d, of[i])
			}
		}
	}
}

// sequence is an attention call of one sequence.
func (s *Stream) sequence(o gpustage.Attention, b, lo, hi int) (gpustage.Attention, error) {
	bounds, err := gpustage.NewTensor(s.d, gpustage.I32, 1, 2)
	if err != nil {
		return o, err
	}
	ints(bounds)[1] = int32(hi - lo)
	row, err := gpustage.NewTensor(s.d, gpustage.I32, 1, hi-lo) // zeros: its only row
	if err != nil {
		return o, err
	}
	seqs := gpustage.Sequences{Rows: 1, Tokens: hi - lo, MaxLen: hi - lo, Cu: bounds, Row: row}
	if !o.Seqs.Pos.IsZero() {
		seqs.Pos = o.Seqs.Pos.Columns(lo, hi)
	}
	if !o.Seqs.Keys.IsZero() {
		seqs.Keys = o.Seqs.Keys.Columns(b, b+1)
	}
	if !o.Seen.IsZero() {
		o.Seen = o.Seen.Columns(b, b+1)
	}
	o.Seqs, o.Dropout.Seqs = seqs, seqs
	return o, nil
}

// gradientSums are the gradients that sequences share.
func gradientSums(o *gpustage.Attention) [3]*gpustage.Tensor {
	return [...]*gpustage.Tensor{&o.DBias, &o.Positions.DKeys, &o.Positions.DQueries}
}
