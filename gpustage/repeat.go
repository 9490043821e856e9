package gpustage

// A pass through a small model is hundreds of launches that take longer to issue than to run. A GPU can record them and run the recording at
// the cost of one (a CUDA graph), if the very same launches come again: same kernels, sizes, places in memory, numbers. So who issues
// work of many ops tells where it begins and ends (Repeat), copies what differs to fixed places before, and on such devices (Repeats)
// rounds shapes up, that there be few of them.

// Repeater is a device that may have use for the same work again.
type Repeater interface {
	// Repeats tells whether it has, and whether shapes should be rounded up for it.
	Repeats() bool
}

// Repeats is d's answer; a device that is no Repeater has no use for it.
func Repeats(d Device) bool {
	r, ok := d.(Repeater)
	return ok && r.Repeats()
}

// Repeat has f issue ops to s that are likely to come again as they are. Everything that the stream is given is done as without, and in its
// order; only the moment differs: a stream that has its own Repeat may wait for f's end before it begins.
func Repeat(s Stream, f func()) {
	if r, ok := s.(interface{ Repeat(f func()) }); ok {
		r.Repeat(f)
		return
	}
	f()
}
