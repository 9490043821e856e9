//go:build amd64 || arm64

package pool

// pause tells the processor that this is a loop that waits: its other hardware thread may go ahead.
func pause()
