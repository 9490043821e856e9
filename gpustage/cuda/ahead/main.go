//go:build cuda

// Command ahead compiles the kernels for GPUs that are not here, and prints the folder that has them. Such a folder, put into the one that CONTRAFLOW_KERNELS
// names where the GPU is, saves the first program there the 10 to 20 s that this takes:
//
//	source <(gpustage/cuda/toolkit.sh DIR)
//	CONTRAFLOW_NVRTC=.../libnvrtc.so.13 go run -tags cuda ./gpustage/cuda/ahead sm_90
//
// NVRTC is to be of the version that is found there; the code of others is left aside, and compiled again (package nvrtc).
package main

import (
	"fmt"
	"os"

	"contraflow/gpustage/cuda"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "ahead ARCHITECTURE: compiles the CUDA kernels for GPUs of it, sm_90 say")
		os.Exit(2)
	}
	dir, said, err := cuda.CompileAhead(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "kernels for %s: %s\n", os.Args[1], said)
	fmt.Println(dir)
}
