package ref

import (
	"math"
	"slices"

	"contraflow/gpustage"
)

// Attention (Vaswani et al., arXiv 1706.03762), for each sequence, head and query i of the sequence:
//
//	c_j = cap(Scale * (<q_i, k_j> + <q_i, PK_r> + <k_j, PQ_r>)) over the keys j that i sees, cap(c) = SoftCap * tanh(c/SoftCap) if there is one,
//	PK and PQ Positions.Keys and Queries if there are such, r = Positions.Rows[N-1 + j-i]
//	s_j = c_j + Bias_(j-i);  lse = log sum_j exp(s_j);  P_j = exp(s_j - lse)
//	ctx_i = sum_j dropout(P)_j * v_j
func (s *Stream) Attention(ctx, lse, q, k, v tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention", ctx, lse, q, k, v, o)) || s.Refuse(gpustage.CheckInside("attention", o)) {
		return
	}
	s.run("attention", q, func() { attention[float32](ctx, lse, q, k, v, o) }, func() { attention[float64](ctx, lse, q, k, v, o) })
}

func attention[T float](ctx, lse, q, k, v tensor, o gpustage.Attention) {
	vs := factorsOf[T](v, o)
	eachQuery(factorsOf[T](q, o), factorsOf[T](k, o), o, func(a *query[T]) {
		out := a.head(ctx, a.t, a.h)
		sum := make([]float64, o.HeadDim)
		p := make([]float64, len(a.s))
		top := math.Inf(-1)
		for _, s := range a.s {
			top = max(top, s)
		}
		z := 0.0
		for j, s := range a.s {
			p[j] = math.Exp(s - top)
			z += p[j]
		}
		row[T](lse, a.h)[a.t] = T(top + math.Log(z))
		for j := range p {
			w := factor(p[j]/z*a.keep(j), o)
			for d, e := range vs.head(a.key(j), a.kv) {
				sum[d] += w * e
			}
		}
		for d := range out {
			out[d] = T(sum[d])
		}
	})
}

// AttentionBackward, with P recomputed from lse, m the dropout's factors and delta = <dctx_i, ctx_i> = sum_j P_j dP_j:
//
//	dv_j += m_j P_j dctx_i;  dP_j = m_j <dctx_i, v_j>;  ds_j = P_j (dP_j - delta);  dBias_(j-i) += ds_j
//	dc_j = ds_j (1 - (c_j/SoftCap)^2), or ds_j;  dq_i = Scale * sum_j dc_j (k_j + PK_r);  dk_j += Scale * dc_j (q_i + PQ_r)
//	dPK_r += Scale * dc_j q_i;  dPQ_r += Scale * dc_j k_j
func (s *Stream) AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention backward", dctx, lse, dq, dk, dv, o)) ||
		s.Refuse(gpustage.CheckAttention("attention backward", ctx, lse, q, k, v, o)) || s.Refuse(gpustage.CheckInside("attention backward", o)) {
		return
	}
	s.run("attention backward", q, func() { attentionBackward[float32](dq, dk, dv, dctx, ctx, lse, q, k, v, o) },
		func() { attentionBackward[float64](dq, dk, dv, dctx, ctx, lse, q, k, v, o) })
}

func attentionBackward[T float](dq, dk, dv, dctx, ctx, lse, q, k, v tensor, o gpustage.Attention) {
	// Sums over queries in float64: [T, KVHeads*D].
	sumK := make([]float64, k.Rows*k.Cols)
	sumV := make([]float64, k.Rows*k.Cols)
	sumBias := make([]float64, o.Bias.Len())
	sumPK, sumPQ := make([]float64, o.Positions.Keys.Len()), make([]float64, o.Positions.Queries.Len())
	qs, ks, vs, douts := factorsOf[T](q, o), factorsOf[T](k, o), factorsOf[T](v, o), factorsOf[T](dctx, o)
	eachQuery(qs, ks, o, func(a *query[T]) {
		dout, qi := douts.head(a.t, a.h), qs.head(a.t, a.h)
		// delta is <dctx, ctx>, summed over keys from the same rounded products that it is subtracted from: taken from dctx and
		// ctx themselves it would leave bf16's rounding in every score's gradient, three times as much as PyTorch's eager attention.
		// Likewise the probabilities are made to sum to one: lse has the type's rounding, and gradients of scores are small
		// differences.
		dps, ps, delta, z := make([]float64, len(a.s)), make([]float64, len(a.s)), 0.0, 0.0
		dqi := make([]float64, o.HeadDim)
		l := float64(row[T](lse, a.h)[a.t])
		for j, s := range a.s {
			ps[j] = math.Exp(s - l)
			z += ps[j]
		}
		for j := range a.s {
			ps[j] /= z
			p, m := ps[j], a.keep(j)
			vj := vs.head(a.key(j), a.kv)
			at := a.key(j)*k.Cols + a.kv*o.HeadDim
			dp, w := 0.0, factor(m*p, o)
			for d := range vj {
				sumV[at+d] += w * dout[d]
				dp += dout[d] * vj[d]
			}
			dps[j] = m * dp
			delta += p * dps[j]
		}
		for j := range a.s {
			kj := ks.head(a.key(j), a.kv)
			at := a.key(j)*k.Cols + a.kv*o.HeadDim
			ds := ps[j] * (dps[j] - delta)
			if !o.Bias.IsZero() {
				sumBias[a.distance(j)*o.Heads+a.h] += ds
			}
			ds = factor(ds*a.slope(j)*o.Scale, o)
			for d := range kj {
				dqi[d] += ds * kj[d]
				sumK[at+d] += ds * qi[d]
			}
			if pk := a.position(a.pk, j); pk != nil {
				sum := sumPK[a.place(j)*k.Cols+a.h*o.HeadDim:]
				for d := range kj {
					dqi[d] += ds * pk[d]
					sum[d] += ds * qi[d]
				}
			}
			if pq := a.position(a.pq, j); pq != nil {
				sum := sumPQ[a.place(j)*k.Cols+a.h*o.HeadDim:]
				for d := range kj {
					sumK[at+d] += ds * pq[d]
					sum[d] += ds * kj[d]
				}
			}
		}
		for d, out := 0, a.head(dq, a.t, a.h); d < len(out); d++ {
			out[d] = T(dqi[d])
		}
	})
	for t := range k.Rows {
		dk, dv := row[T](dk, t), row[T](dv, t)
		for j := range dk {
			dk[j], dv[j] = T(sumK[t*k.Cols+j]), T(sumV[t*k.Cols+j])
		}
	}
	if !o.DBias.IsZero() {
		for i := range o.DBias.Rows {
			accumulate(row[T](o.DBias, i), sumBias[i*o.Heads:][:o.Heads])
		}
	}
	for i := range o.Positions.DKeys.Rows {
		accumulate(row[T](o.Positions.DKeys, i), sumPK[i*k.Cols:][:k.Cols])
	}
	for i := range o.Positions.DQueries.Rows {
		accumulate(row[T](o.Positions.DQueries, i), sumPQ[i*k.Cols:][:k.Cols])
	}
}

// query is one query of one head, with the scores of the keys it sees.
type query[T float] struct {
	o     *gpustage.Attention
	t     int // the query's token
	h, kv int // its head, and the key-value head that serves it
	first int // token of the first key it sees
	start int // token at which the sequence starts
	mask  func(element int) float64
	s     []float64

	capped []float64 // s before Bias
	pk, pq factors   // of Positions; without numbers if there are none
}

// key is the token of the j-th visible key.
func (a *query[T]) key(j int) int { return a.first + j }

// distance is Bias's row for the j-th visible key.
func (a *query[T]) distance(j int) int {
	r := a.o.Reach()
	return r + max(-r, min(r, a.key(j)-a.t))
}

// place is the row of Positions' keys and queries for the j-th visible key.
func (a *query[T]) place(j int) int {
	p := a.o.Positions
	return int(vec[int32](p.Rows)[p.Reach()-1+a.key(j)-a.t])
}

// position is the head's part of that row, nil if there is none.
func (a *query[T]) position(of factors, j int) []float64 {
	if len(of.v) == 0 {
		return nil
	}
	return of.head(a.place(j), a.h)
}

// slope is the soft cap's derivative for the j-th visible key.
func (a *query[T]) slope(j int) float64 {
	if a.o.SoftCap == 0 {
		return 1
	}
	c := a.capped[j] / a.o.SoftCap
	return 1 - c*c
}

// head is one head of one token.
func (a *query[T]) head(x tensor, token, h int) []T {
	return row[T](x, token)[h*a.o.HeadDim : (h+1)*a.o.HeadDim]
}

// keep is the dropout's factor for the j-th visible key.
func (a *query[T]) keep(j int) float64 { return a.mask(a.key(j) - a.start) }

// factor is v as a product takes it.
func factor(v float64, o gpustage.Attention) float64 {
	if o.BF16 {
		return float64(gpustage.RoundBF16(float32(v)))
	}
	return v
}

// factors are a tensor's numbers as products take them.
type factors struct {
	v         []float64
	cols, dim int
}

func factorsOf[T float](x tensor, o gpustage.Attention) factors {
	f := factors{make([]float64, x.Rows*x.Cols), x.Cols, o.HeadDim}
	for t := range x.Rows {
		for j, v := range row[T](x, t) {
			f.v[t*x.Cols+j] = factor(float64(v), o)
		}
	}
	return f
}

// head is one head of one token.
func (f factors) head(token, h int) []float64 { return f.v[token*f.cols+h*f.dim:][:f.dim] }

// eachQuery visits every query of every head with its scores.
func eachQuery[T float](q, k factors, o gpustage.Attention, visit func(*query[T])) {
	kvHeads := o.KVHeads
	if kvHeads == 0 {
		kvHeads = o.Heads
	}
	cu := vec[int32](o.Seqs.Cu)
	pk, pq := factorsOf[T](o.Positions.Keys, o), factorsOf[T](o.Positions.Queries, o)
	for b := range o.Seqs.Rows {
		lo, hi := int(cu[b]), int(cu[b+1])
		for t := lo; t < hi; t++ {
			first, last := lo, hi-1
			if o.Window > 0 {
				first, last = max(first, t-o.Window), min(last, t+o.Window)
			}
			if o.Causal {
				last = t
			}
			if !o.Seen.IsZero() {
				last = min(last, lo+int(vec[int32](o.Seen)[b])-1)
			}
			for h := range o.Heads {
				a := &query[T]{o: &o, t: t, h: h, kv: h * kvHeads / o.Heads, first: first, start: lo, mask: elementMask(o.Dropout, b, t-lo, h), pk: pk, pq: pq}
				qi := q.head(t, h)
				a.s = make([]float64, max(0, last-first+1))
				for j := range a.s {
					s := 0.0
					for d, e := range k.head(a.key(j), a.kv) {
						s += qi[d] * e
					}
					for d, e := range a.position(pk, j) {
						s += qi[d] * e
					}
					for d, e := range a.position(pq, j) {
						s += k.head(a.key(j), a.kv)[d] * e
					}
					a.s[j] = s * o.Scale
					if o.SoftCap > 0 {
						a.s[j] = o.SoftCap * math.Tanh(a.s[j]/o.SoftCap)
					}
				}
				a.capped = a.s
				if !o.Bias.IsZero() {
					a.s = slices.Clone(a.s)
					for j := range a.s {
						a.s[j] += float64(row[T](o.Bias, a.distance(j))[h])
					}
				}
				visit(a)
			}
		}
	}
}
