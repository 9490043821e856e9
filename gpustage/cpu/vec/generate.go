package vec

//go:generate go run ./internal/gen avx2 -out kernels_avx2_amd64.s -stubs kernels_avx2_amd64.go -pkg vec
//go:generate go run ./internal/gen avx512 -out kernels_avx512_amd64.s -stubs kernels_avx512_amd64.go -pkg vec
//go:generate go run ./internal/genneon -out kernels_neon_arm64.s -stubs kernels_neon_arm64.go
