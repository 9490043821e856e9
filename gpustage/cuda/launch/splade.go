package launch

import "contraflow/gpustage"

// Splade is what SPLADE makes of texts' largest logits.
func (s *Stream) Splade(y, at, top, bias tensor, twice bool) {
	if !s.Refuse(gpustage.CheckSplade(y, at, top, bias)) && s.f32("splade", top) {
		s.pointwise("splade", 1, y.Rows, y.Cols, y, at, top, flat(bias), int(flag(twice)))
	}
}

// SpladeBackward gives g and adds to dBias.
func (s *Stream) SpladeBackward(g, dBias, dy, y tensor, twice bool) {
	if !s.Refuse(gpustage.CheckSpladeBackward(g, dBias, dy, y)) && s.f32("splade backward", y) {
		s.launch("splade_backward", [3]int{ceil(y.Cols, 128), 1, 1}, [3]int{128, 1, 1}, 0, g, flat(dBias), dy, y, int(flag(twice)), y.Rows, y.Cols)
	}
}

// CountActive counts each row's elements that are not 0.
func (s *Stream) CountActive(out, x tensor) {
	if !s.Refuse(gpustage.CheckRows("count active", x, out)) && s.f32("count active", x) {
		s.eachRow("count_active", x.Rows, flat(out), x, x.Rows, x.Cols)
	}
}
