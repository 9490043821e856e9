//go:build !amd64 && !arm64

package gemm

func native() []Kernels { return nil }

func nativeSet64() *set[float64] { return portable64 }

func nativeSet(Kernels, bool) *set[float32] { panic("gemm: no assembly for this processor") }
