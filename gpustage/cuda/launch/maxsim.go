package launch

import "contraflow/gpustage"

// SegmentMax is the largest of each segment of a row, and its place.
func (s *Stream) SegmentMax(top, at, x, cu tensor) {
	if !s.Refuse(gpustage.CheckSegmentMax(top, at, x, cu)) && s.f32("segment max", x) {
		s.eachRow("segment_max", x.Rows, top, at, x, flat(cu), top.Cols, x.Rows)
	}
}

// MaxSimBackward adds to dx and dy.
func (s *Stream) MaxSimBackward(dx, dy, g, at, x, y tensor) {
	const op = "MaxSim's backward"
	if s.Refuse(gpustage.CheckMaxSimBackward(dx, dy, g, at, x, y)) || !s.f32(op, x) {
		return
	}
	columns := ceil(x.Cols, 128)
	s.launch("maxsim_dx", [3]int{x.Rows, columns, 1}, [3]int{128, 1, 1}, 0, dx, g, at, y, g.Cols, x.Cols)
	s.launch("maxsim_dy", [3]int{g.Cols, columns, 1}, [3]int{128, 1, 1}, 0, dy, g, at, x, x.Rows, x.Cols)
}
