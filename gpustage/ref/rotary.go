package ref

import "contraflow/gpustage"

// Rotary (Su et al., arXiv 2104.09864), with the halves of a head's first R features as pairs, as GPT-NeoX has them:
//
//	y_j = x_j cos a_j - x_(j+R/2) sin a_j;  y_(j+R/2) = x_(j+R/2) cos a_j + x_j sin a_j;  y_j = x_j from R on
//
// A rotation's transpose turns back, so the backward is Inverse, the same with -sin.
func (s *Stream) Rotary(y, x tensor, o gpustage.Rotary) {
	if s.Refuse(gpustage.CheckRotary(y, x, o)) || s.Refuse(gpustage.CheckIndex("rotary", o.Table, o.Index)) {
		return
	}
	s.run("rotary", x, func() { rotary[float32](y, x, o) }, func() { rotary[float64](y, x, o) })
}

func rotary[T float](y, x tensor, o gpustage.Rotary) {
	half := o.Table.Cols / 2
	for t, p := range vec[int32](o.Index) {
		angles := row[T](o.Table, int(p))
		for h := 0; h < x.Cols; h += o.HeadDim {
			x, y := row[T](x, t)[h:h+o.HeadDim], row[T](y, t)[h:h+o.HeadDim]
			copy(y[2*half:], x[2*half:])
			for j := range half {
				a, b, cos, sin := float64(x[j]), float64(x[j+half]), float64(angles[j]), float64(angles[j+half])
				if o.Inverse {
					sin = -sin
				}
				y[j], y[j+half] = T(a*cos-b*sin), T(b*cos+a*sin)
			}
		}
	}
}
