//go:build linux && amd64

// Command driver makes a CUDA driver that runs on the processor, and its library of products, for tests: see onhost.Driver.
//
//	source <(gpustage/cuda/toolkit.sh DIR)
//	go run ./gpustage/cuda/onhost/driver OUT
//	LD_LIBRARY_PATH=OUT CONTRAFLOW_CUBLASLT=OUT/libcublasLt.so.13 CONTRAFLOW_CUDA=try contraflow doctor
package main

import (
	"fmt"
	"os"

	"contraflow/gpustage/cuda/onhost"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "driver OUT: makes libcuda.so.1 and libcublasLt.so.13 in the folder OUT")
		os.Exit(2)
	}
	err := os.MkdirAll(os.Args[1], 0o755)
	if err == nil {
		err = onhost.Driver(os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
