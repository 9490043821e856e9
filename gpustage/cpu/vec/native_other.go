//go:build !amd64 && !arm64

package vec

func native() []*Kernels { return nil }
