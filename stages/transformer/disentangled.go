package transformer

import (
	"math"
	"slices"

	"contraflow/gpustage"
)

// Disentangled is attention that sees distances (gpustage.Positions; He et al., arXiv 2006.03654): one table of embeddings of distances for all
// layers, of which each layer makes keys that its queries see ("c2p") and queries that its keys see ("p2c").
//
// A layer computes them twice, in the forward pass and on the way back, of the rows alone that the longest text reaches: nothing of it is kept. With
// keys and queries from the same projections as tokens' (share_att_key), those projections, and LoRA's factors on them, get a part of their gradient
// from here. LoRA's dropout leaves distances alone: a mask would belong to no row.
type Disentangled struct {
	Span          int  // the table has twice as many rows, distance 0 in the middle
	Buckets       int  // distances share rows beyond half as many, as a logarithm; 0: each has its own up to Span
	Longest       int  // the distance up to which rows are shared out
	Keys, Queries bool // distances have keys; they have queries
	Norm          bool // their embeddings are normalized
	Own           bool // layers have projections of their own for them; otherwise those of tokens
}

// products is how many there are in a score.
func (d Disentangled) products() int {
	n := 1
	for _, there := range []bool{d.Keys, d.Queries} {
		if there {
			n++
		}
	}
	return n
}

// row is the table's for a query so many tokens behind its key. The arithmetic is float32's, as PyTorch's is: it decides on which side of a boundary
// a distance lies.
func (d Disentangled) row(distance int) int32 {
	mid := d.Buckets / 2
	if n := max(distance, -distance); d.Buckets > 0 && n > mid {
		log := func(x float32) float32 { return float32(math.Log(float64(x))) }
		scale := log(float32(float64(d.Longest-1) / float64(mid)))
		far := int(math.Ceil(float64(log(float32(n)/float32(mid))/scale*float32(mid-1)))) + mid
		distance = far * (distance / n)
	}
	return int32(max(0, min(2*d.Span-1, distance+d.Span)))
}

// reached is the part of the table that a sub-batch reaches, and what becomes of it.
type reached struct {
	from, to int             // rows of the table
	rows     gpustage.Tensor // i32 [1, 2N-1], as Positions has them
	x        gpustage.Tensor // [R, C]: normalized, as an operand
	stats    stats
	gradient gpustage.Tensor // [R, C]: x's, in a backward pass, if what it is made of trains
}

// reach makes what all layers take of the embeddings of distances, at the arena's bottom, for texts of up to so many tokens.
func (m *Model) reach(s gpustage.Stream, a *gpustage.Arena, longest int) (r reached) {
	d := m.Config.Disentangled
	if d == nil {
		return r
	}
	rows := make([]int32, 2*max(1, longest)-1)
	for i := range rows {
		rows[i] = d.row(len(rows)/2 - i) // Positions count from the query
	}
	r.from, r.to = int(slices.Min(rows)), int(slices.Max(rows))+1
	for i := range rows {
		rows[i] -= int32(r.from)
	}
	r.rows = a.Keep(s, gpustage.I32, 1, len(rows))
	s.CopyIn(r.rows, gpustage.Bytes(rows))
	table := m.w.distances.Span(r.from, r.to)
	n := m.w.distancesNorm
	switch {
	case !n.absent():
		r.x = a.Keep(s, m.operands, table.Rows, table.Cols)
		r.stats = stats{mean: a.Keep(s, m.DType, 1, table.Rows), rstd: a.Keep(s, m.DType, 1, table.Rows)}
		s.LayerNorm(r.x, r.stats.mean, r.stats.rstd, table, n.gamma, n.beta, m.Config.NormEps)
	case m.operands != m.DType:
		r.x = a.Keep(s, m.operands, table.Rows, table.Cols)
		s.Copy(r.x, table)
	default:
		r.x = table
	}
	return r
}

// reachBackward adds the gradient of the embeddings of distances, which all layers have added to, to g.
func (p *Pass) reachBackward(g *weights) {
	r, m := p.in.reached, p.m
	if r.gradient.IsZero() {
		return
	}
	if n := m.w.distancesNorm; !n.absent() {
		p.normBackward(n, g.distancesNorm, r.gradient, r.gradient, r.stats, m.w.distances.Span(r.from, r.to))
	}
	if !g.distances.IsZero() {
		to := g.distances.Span(r.from, r.to)
		p.s.Add(to, to, r.gradient)
	}
}

// ofDistances is the projection that makes a layer's queries and keys of distances, in this order, of the same parameters as l's or of the layer's own.
func (c Config) ofDistances(v viewer, prefix string, n names, qkv linear) linear {
	d := c.Disentangled
	switch {
	case d == nil:
		return linear{}
	case d.Own:
		return v.linear(prefix, c.ownDistances(n)...).still()
	}
	lo, hi := 0, 2*c.queries()
	if !d.Queries {
		lo = c.queries()
	}
	if !d.Keys {
		hi = c.queries()
	}
	return qkv.features(lo, hi).still()
}

// ownDistances are the names of a layer's own projections of distances.
func (c Config) ownDistances(n names) (list []string) {
	d := c.Disentangled
	if d == nil || !d.Own {
		return nil
	}
	if d.Queries {
		list = append(list, n.distanceQueries)
	}
	if d.Keys {
		list = append(list, n.distanceKeys)
	}
	return list
}

// features is the projection's part that gives features lo to hi, and those of its factors that do.
func (l linear) features(lo, hi int) (part linear) {
	if !l.w.IsZero() {
		part.w = l.w.Span(lo, hi)
	}
	if !l.b.IsZero() {
		part.b = l.b.Columns(lo, hi)
	}
	for _, f := range l.factors {
		if f.lo >= lo && f.hi <= hi {
			f.lo, f.hi = f.lo-lo, f.hi-lo
			part.factors = append(part.factors, f)
		}
	}
	return part
}

// still is the projection without LoRA's dropout.
func (l linear) still() linear {
	for i := range l.factors {
		l.factors[i].still = true
	}
	return l
}

// positions are what layer l's attention sees of distances, in scratch memory; none in families without.
func (p *Pass) positions(w layerWeights) (o gpustage.Positions) {
	d, r := p.m.Config.Disentangled, p.in.reached
	if d == nil {
		return o
	}
	y := p.operand(r.x.Rows, (d.products()-1)*p.m.Config.queries())
	mark := p.a.Mark()
	p.forward(w.distances, y, r.x, gpustage.MatMul{})
	p.a.ReleaseScratch(mark)
	o.Rows = r.rows
	o.Queries, o.Keys = d.halves(y)
	return o
}

// halves are the columns of queries and of keys.
func (d Disentangled) halves(x gpustage.Tensor) (queries, keys gpustage.Tensor) {
	switch {
	case !d.Keys:
		return x, gpustage.Tensor{}
	case !d.Queries:
		return gpustage.Tensor{}, x
	}
	return x.Columns(0, x.Cols/2), x.Columns(x.Cols/2, x.Cols)
}

// openPositions takes room for the gradient of o's queries and keys, if anybody wants it, and lets the attention add to it.
func (p *Pass) openPositions(o *gpustage.Positions, g layerWeights) (dy gpustage.Tensor) {
	d, r := p.m.Config.Disentangled, p.in.reached
	if d == nil || !g.distances.trains() && r.gradient.IsZero() {
		return dy
	}
	dy = p.scratch(r.x.Rows, (d.products()-1)*p.m.Config.queries())
	p.s.Fill(dy, 0)
	o.DQueries, o.DKeys = d.halves(dy)
	return dy
}

// positionsBackward adds what comes of dy, the gradient of queries and keys of distances, to g and to that of the embeddings of distances.
func (p *Pass) positionsBackward(w, g layerWeights, dy gpustage.Tensor) {
	if dy.IsZero() {
		return
	}
	c, r := p.m.Config, p.in.reached
	mark := p.a.Mark()
	l := p.narrow(w.distances, dy)
	if g.distances.trains() {
		p.gradients(l, g.distances, dy, r.x)
		if d := c.Disentangled; d.Own && d.Keys && !g.distances.b.IsZero() {
			p.s.Fill(g.distances.b.Columns(dy.Cols-c.queries(), dy.Cols), 0) // of all keys of distances: exactly zero, as in doc.go
		}
	}
	if !r.gradient.IsZero() {
		p.backward(l, r.gradient, dy, gpustage.MatMul{Add: true})
	}
	p.a.ReleaseScratch(mark)
}
