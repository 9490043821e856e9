package ref

import "contraflow/gpustage"

// SegmentMax is top[t, d] = max of s[t, cu[d]:cu[d+1]], and at[t, d] its column.
func (s *Stream) SegmentMax(top, at, x, cu tensor) {
	if s.Refuse(gpustage.CheckSegmentMax(top, at, x, cu)) {
		return
	}
	s.run("segment max", x, func() { segmentMax[float32](top, at, x, cu, s.jump) }, func() { segmentMax[float64](top, at, x, cu, s.jump) })
}

func segmentMax[T float](top, at, s, cu tensor, jump Jump) {
	ends, scale := vec[int32](cu), 0.0
	if jump != nil {
		scale = rms[T](s)
	}
	for t := range s.Rows {
		x, best, place := row[T](s, t), row[T](top, t), row[int32](at, t)
		for d := range best {
			best[d], place[d] = 0, -1
			for n := ends[d]; n < ends[d+1]; n++ {
				if place[d] < 0 || x[n] > best[d] || x[n] != x[n] && best[d] == best[d] {
					best[d], place[d] = x[n], n
				}
			}
		}
		if jump != nil {
			others(place, best, x, ends, scale, jump)
		}
	}
}

// others puts the place of another value in that of each segment's largest, where a Jump says so: the last that it does.
func others[T float](place []int32, best, x []T, ends []int32, scale float64, jump Jump) {
	for d, largest := range place {
		for n := ends[d]; n < ends[d+1]; n++ {
			if n != largest && jump(float64(x[n]), float64(best[d]-x[n])/scale) {
				place[d] = n
			}
		}
	}
}

// MaxSimBackward is dx[t] += g[t, d] y[at[t, d]], dy[at[t, d]] += g[t, d] x[t].
func (s *Stream) MaxSimBackward(dx, dy, g, at, x, y tensor) {
	if s.Refuse(gpustage.CheckMaxSimBackward(dx, dy, g, at, x, y)) {
		return
	}
	s.run("MaxSim's backward", x, func() { maxSimBackward[float32](dx, dy, g, at, x, y) }, func() { maxSimBackward[float64](dx, dy, g, at, x, y) })
}

func maxSimBackward[T float](dx, dy, g, at, x, y tensor) {
	for t := range x.Rows {
		xt, dxt, gt := row[T](x, t), row[T](dx, t), row[T](g, t)
		for d, n := range row[int32](at, t) {
			if n < 0 {
				continue
			}
			yn, dyn := row[T](y, int(n)), row[T](dy, int(n))
			for j := range xt {
				dxt[j] += gt[d] * yn[j]
				dyn[j] += gt[d] * xt[j]
			}
		}
	}
}
