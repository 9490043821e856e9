package mix

var Slerp = slerp

// SetChunk changes how many elements are in memory at once, until restore.
func SetChunk(n int) (restore func()) {
	was := chunk
	chunk = n
	return func() { chunk = was }
}
