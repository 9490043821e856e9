package ref

import (
	"math"

	"contraflow/gpustage"
)

// Embed is its steps.
func (s *Stream) Embed(y, sum, mean, rstd tensor, o gpustage.Embed) {
	if !s.Refuse(gpustage.CheckEmbed(y, sum, mean, rstd, o)) {
		o.Steps(s, y, sum, mean, rstd)
	}
}

// LayerNorm (Ba, Kiros and Hinton, arXiv 1607.06450): y = (x - mean) * rstd * gamma + beta, with the biased variance.
func (s *Stream) LayerNorm(y, mean, rstd, x, gamma, beta tensor, eps float64) {
	if s.Refuse(gpustage.CheckLayerNorm("layer norm", y, x, gamma, beta, mean, rstd)) {
		return
	}
	s.run("layer norm", y, func() { layerNorm[float32](y, mean, rstd, x, gamma, beta, eps) },
		func() { layerNorm[float64](y, mean, rstd, x, gamma, beta, eps) })
}

func layerNorm[T float](y, mean, rstd, x, gamma, beta tensor, eps float64) {
	g, b := vec[T](gamma), vec[T](beta)
	for t := range x.Rows {
		x, y := row[T](x, t), row[T](y, t)
		n := float64(len(x))
		m, v := 0.0, 0.0
		for _, e := range x {
			m += float64(e)
		}
		m /= n
		for _, e := range x {
			d := float64(e) - m
			v += d * d
		}
		r := 1 / math.Sqrt(v/n+eps)
		vec[T](mean)[t], vec[T](rstd)[t] = T(m), T(r)
		normalized(y, x, m, r, g, b)
	}
}

// normalized is y = (x - m) * r * gamma + beta of a row.
func normalized[T float](y, x []T, m, r float64, gamma, beta []T) {
	for j, e := range x {
		v := (float64(e) - m) * r * float64(gamma[j])
		if beta != nil {
			v += float64(beta[j])
		}
		y[j] = T(v)
	}
}

// LayerNormWith is a layer norm whose statistics are there.
func (s *Stream) LayerNormWith(y, x, mean, rstd, gamma, beta tensor) {
	if s.Refuse(gpustage.CheckLayerNorm("layer norm with", y, x, gamma, beta, mean, rstd)) {
		return
	}
	s.run("layer norm with", y, func() { layerNormWith[float32](y, x, mean, rstd, gamma, beta) },
		func() { layerNormWith[float64](y, x, mean, rstd, gamma, beta) })
}

func layerNormWith[T float](y, x, mean, rstd, gamma, beta tensor) {
	for t := range x.Rows {
		normalized(row[T](y, t), row[T](x, t), float64(vec[T](mean)[t]), float64(vec[T](rstd)[t]), vec[T](gamma), vec[T](beta))
	}
}

// LayerNormBackward: with n = (x - mean) * rstd and e = dy * gamma, averages over the row,
//
//	dx = rstd * (e - avg(e) - n * avg(e * n));  dGamma += sum over rows of dy * n;  dBeta += sum over rows of dy
func (s *Stream) LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma tensor, then gpustage.Dropped) {
	if s.Refuse(gpustage.CheckLayerNorm("layer norm backward", dx, x, gamma, dGamma, mean, rstd)) ||
		s.Refuse(gpustage.CheckColumns("layer norm backward", dy, dBeta)) || s.Refuse(gpustage.CheckPair("layer norm backward", x, dy)) {
		return
	}
	s.run("layer norm backward", x, func() { layerNormBackward[float32](dx, dGamma, dBeta, dy, x, mean, rstd, gamma) },
		func() { layerNormBackward[float64](dx, dGamma, dBeta, dy, x, mean, rstd, gamma) })
	then.Of(s, dx)
}

func layerNormBackward[T float](dx, dGamma, dBeta, dy, x, mean, rstd, gamma tensor) {
	g := vec[T](gamma)
	sumG, sumB := make([]float64, x.Cols), make([]float64, x.Cols)
	norm := make([]float64, x.Cols)
	for t := range x.Rows {
		dx, dy, x := row[T](dx, t), row[T](dy, t), row[T](x, t)
		m, r := float64(vec[T](mean)[t]), float64(vec[T](rstd)[t])
		avgE, avgEN := 0.0, 0.0
		for j := range x {
			norm[j] = (float64(x[j]) - m) * r
			d := float64(dy[j])
			sumG[j] += d * norm[j]
			sumB[j] += d
			avgE += d * float64(g[j])
			avgEN += d * float64(g[j]) * norm[j]
		}
		n := float64(len(x))
		for j := range x {
			dx[j] = T(r * (float64(dy[j])*float64(g[j]) - avgE/n - norm[j]*avgEN/n))
		}
	}
	accumulate(vec[T](dGamma), sumG)
	accumulate(vec[T](dBeta), sumB)
}

func accumulate[T float](dst []T, sum []float64) {
	for j := range dst {
		dst[j] += T(sum[j])
	}
}

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467), of each group of D features: y = x * rstd * (gamma + offset), with
// rstd = 1 / sqrt(avg(x*x) + eps).
func (s *Stream) RMSNorm(y, rstd, x, gamma tensor, eps, offset float64) {
	if s.Refuse(gpustage.CheckRMSNorm("rms norm", y, x, rstd, gamma, tensor{})) {
		return
	}
	s.run("rms norm", x, func() { rmsNorm[float32](y, rstd, x, gamma, eps, offset) },
		func() { rmsNorm[float64](y, rstd, x, gamma, eps, offset) })
}

func rmsNorm[T float](y, rstd, x, gamma tensor, eps, offset float64) {
	g, rs := vec[T](gamma), vec[T](rstd)
	d, groups := len(g), x.Cols/len(g)
	for k := range rs {
		x, y := row[T](x, k/groups)[k%groups*d:][:d], row[T](y, k/groups)[k%groups*d:][:d]
		sum := 0.0
		for _, e := range x {
			sum += float64(e) * float64(e)
		}
		r := 1 / math.Sqrt(sum/float64(d)+eps)
		rs[k] = T(r)
		for j, e := range x {
			y[j] = T(float64(e) * r * (float64(g[j]) + offset))
		}
	}
}

// RMSNormBackward: with n = x * rstd and e = dy * (gamma + offset), averages over the group,
//
//	dx = rstd * (e - n * avg(e * n));  dGamma += sum over rows and groups of dy * n
func (s *Stream) RMSNormBackward(dx, dGamma, dy, x, rstd, gamma tensor, offset float64) {
	if s.Refuse(gpustage.CheckRMSNorm("rms norm backward", dx, x, rstd, gamma, dGamma)) || s.Refuse(gpustage.CheckPair("rms norm backward", x, dy)) {
		return
	}
	s.run("rms norm backward", x, func() { rmsNormBackward[float32](dx, dGamma, dy, x, rstd, gamma, offset) },
		func() { rmsNormBackward[float64](dx, dGamma, dy, x, rstd, gamma, offset) })
}

func rmsNormBackward[T float](dx, dGamma, dy, x, rstd, gamma tensor, offset float64) {
	g := vec[T](gamma)
	d, groups := len(g), x.Cols/len(g)
	sum := make([]float64, d)
	for k, rs := range vec[T](rstd) {
		part := func(t tensor) []T { return row[T](t, k/groups)[k%groups*d:][:d] }
		dx, dy, x, r := part(dx), part(dy), part(x), float64(rs)
		avg := 0.0
		for j := range x {
			n := float64(x[j]) * r
			sum[j] += float64(dy[j]) * n
			avg += float64(dy[j]) * (float64(g[j]) + offset) * n
		}
		avg /= float64(d)
		for j := range x {
			dx[j] = T(r * (float64(dy[j])*(float64(g[j])+offset) - float64(x[j])*r*avg))
		}
	}
	accumulate(vec[T](dGamma), sum)
}

// Pool reduces each sequence to a vector.
func (s *Stream) Pool(y, x tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if s.Refuse(gpustage.CheckPool("pool", y, x, q)) {
		return
	}
	s.run("pool", y, func() { pool[float32](y, x, q, mode) }, func() { pool[float64](y, x, q, mode) })
}

func pool[T float](y, x tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	cu := vec[int32](q.Cu)
	for b := range q.Rows {
		lo, hi := int(cu[b]), int(cu[b+1])
		y := row[T](y, b)
		switch mode {
		case gpustage.CLSPooling:
			copy(y, row[T](x, lo))
		case gpustage.LastPooling:
			copy(y, row[T](x, hi-1))
		default:
			for j := range y {
				sum := 0.0
				for t := lo; t < hi; t++ {
					sum += float64(row[T](x, t)[j])
				}
				y[j] = T(sum / float64(max(1, hi-lo)))
			}
		}
	}
}

// PoolBackward spreads each row's gradient over its sequence.
func (s *Stream) PoolBackward(dx, dy tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if s.Refuse(gpustage.CheckPool("pool backward", dy, dx, q)) {
		return
	}
	s.run("pool backward", dx, func() { poolBackward[float32](dx, dy, q, mode) }, func() { poolBackward[float64](dx, dy, q, mode) })
}

func poolBackward[T float](dx, dy tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	cu := vec[int32](q.Cu)
	for b := range q.Rows {
		lo, hi := int(cu[b]), int(cu[b+1])
		for t := lo; t < hi; t++ {
			w := 0.0
			switch {
			case mode == gpustage.MeanPooling:
				w = 1 / float64(hi-lo)
			case mode == gpustage.CLSPooling && t == lo, mode == gpustage.LastPooling && t == hi-1:
				w = 1
			}
			for j, d := range row[T](dy, b) {
				row[T](dx, t)[j] = T(w * float64(d))
			}
		}
	}
}

// Bag is Pool of the table's rows.
func (s *Stream) Bag(y, table, index tensor, q gpustage.Sequences) {
	if s.Refuse(gpustage.CheckBag(y, table, index, q)) || s.Refuse(gpustage.CheckIndex("bag", table, index)) {
		return
	}
	s.run("bag", y, func() { bag[float32](y, table, index, q) }, func() { bag[float64](y, table, index, q) })
}

func bag[T float](y, table, index tensor, q gpustage.Sequences) {
	cu, ids := vec[int32](q.Cu), vec[int32](index)
	for b := range q.Rows {
		ids, y := ids[cu[b]:cu[b+1]], row[T](y, b)
		for j := range y {
			sum := 0.0
			for _, id := range ids {
				sum += float64(row[T](table, int(id))[j])
			}
			y[j] = T(sum / float64(max(1, len(ids))))
		}
	}
}

// BagBackward adds each row's gradient to the table's rows of its tokens.
func (s *Stream) BagBackward(dTable, dy, index tensor, q gpustage.Sequences) {
	if s.Refuse(gpustage.CheckBagBackward(dTable, dy, index, q)) || s.Refuse(gpustage.CheckIndex("bag backward", dTable, index)) {
		return
	}
	s.run("bag backward", dy, func() { bagBackward[float32](dTable, dy, index, q) }, func() { bagBackward[float64](dTable, dy, index, q) })
}

func bagBackward[T float](dTable, dy, index tensor, q gpustage.Sequences) {
	cu, ids := vec[int32](q.Cu), vec[int32](index)
	for b := range q.Rows {
		lo, hi := int(cu[b]), int(cu[b+1])
		for t := lo; t < min(hi, len(ids)); t++ {
			d := row[T](dTable, int(ids[t]))
			for j, v := range row[T](dy, b) {
				d[j] += T(float64(v) / float64(hi-lo))
			}
		}
	}
}

// normFloor is the smallest norm that Normalize divides by, as torch.nn.functional.normalize has it.
const normFloor = 1e-12

// Normalize is y = x / max(|x|, 1e-12).
func (s *Stream) Normalize(y, norm, x tensor) {
	if s.Refuse(gpustage.CheckRows("normalize", x, norm)) || s.Refuse(gpustage.CheckPair("normalize", x, y)) {
		return
	}
	s.run("normalize", y, func() { normalize[float32](y, norm, x) }, func() { normalize[float64](y, norm, x) })
}

func normalize[T float](y, norm, x tensor) {
	for i := range x.Rows {
		x, y := row[T](x, i), row[T](y, i)
		sum := 0.0
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		n := max(math.Sqrt(sum), normFloor)
		vec[T](norm)[i] = T(n)
		for j, v := range x {
			y[j] = T(float64(v) / n)
		}
	}
}

// NormalizeBackward is dx = (dy - y * <dy, y>) / norm.
func (s *Stream) NormalizeBackward(dx, dy, y, norm tensor) {
	if s.Refuse(gpustage.CheckRows("normalize backward", y, norm)) || s.Refuse(gpustage.CheckPair("normalize backward", y, dx, dy)) {
		return
	}
	s.run("normalize backward", y, func() { normalizeBackward[float32](dx, dy, y, norm) }, func() { normalizeBackward[float64](dx, dy, y, norm) })
}

func normalizeBackward[T float](dx, dy, y, norm tensor) {
	for i := range y.Rows {
		dx, dy, y := row[T](dx, i), row[T](dy, i), row[T](y, i)
		dot := 0.0
		for j := range y {
			dot += float64(dy[j]) * float64(y[j])
		}
		n := float64(vec[T](norm)[i])
		for j := range y {
			dx[j] = T((float64(dy[j]) - float64(y[j])*dot) / n)
		}
	}
}
