//go:build !amd64

package vec

func native() []*Kernels { return nil }
