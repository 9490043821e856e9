package gemm

//go:generate go run ./internal/gen -kernels avx2 -out kernels_avx2_amd64.s -stubs kernels_avx2_amd64.go -pkg gemm
//go:generate go run ./internal/gen -kernels avx512 -out kernels_avx512_amd64.s -stubs kernels_avx512_amd64.go -pkg gemm
//go:generate go run ./internal/gen -kernels avx512bf16 -out kernels_avx512bf16_amd64.s -stubs kernels_avx512bf16_amd64.go -pkg gemm
//go:generate go run ./internal/gen -kernels amx -out kernels_amx_amd64.s -stubs kernels_amx_amd64.go -pkg gemm
//go:generate go run ./internal/genneon -out kernels_neon_arm64.s -stubs kernels_neon_arm64.go
