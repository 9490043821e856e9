//go:build !linux

package gemm

// mayUseTiles is not known how to be asked here.
func mayUseTiles() bool { return false }
