package launch

import (
	"cmp"

	"contraflow/gpustage"
)

// SegmentMax is the largest of each segment of a row, and its place. A tile of a vocabulary has few rows, for 16,384 tokens 512, and many segments: warps
// share those of a row, so that each multiprocessor has 32.
func (s *Stream) SegmentMax(top, at, x, cu tensor) {
	if s.Refuse(gpustage.CheckSegmentMax(top, at, x, cu)) || !s.f32("segment max", x) {
		return
	}
	warps := min(top.Cols, ceil(32*cmp.Or(s.Multiprocessors, 132), max(1, x.Rows)))
	s.launch("segment_max", [3]int{ceil(x.Rows, rowBlock/32), warps, 1}, [3]int{rowBlock, 1, 1}, 0, top, at, x, flat(cu), top.Cols, x.Rows)
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
