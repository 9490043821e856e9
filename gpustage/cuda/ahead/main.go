//go:build cuda

// Command ahead compiles the kernels for GPUs that are not here, and prints the folder that has them. Such a folder, put into the one that CONTRAFLOW_KERNELS
// names where the GPU is, as a folder of its own within it, saves the first program there the 10 to 20 s that this takes:
//
//	source <(gpustage/cuda/toolkit.sh DIR)
//	CONTRAFLOW_NVRTC=.../libnvrtc.so.13 go run -tags cuda ./gpustage/cuda/ahead sm_90
//
// NVRTC is to be of the version that is found there; the code of others is left aside, and compiled again (package nvrtc).
package main

import (
	"fmt"
	"io"
	"os"

	"contraflow/gpustage/cuda"
)

const usage = `ahead ARCHITECTURE: compiles the CUDA kernels for GPUs of it, sm_90 say, by the NVRTC that CONTRAFLOW_NVRTC names, and prints the folder
that has them. It belongs into the folder that CONTRAFLOW_KERNELS names where such a GPU is.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the command, and its exit code.
func run(args []string, out, errs io.Writer) int {
	switch {
	case len(args) != 1:
		fmt.Fprint(errs, usage)
		return 2
	case args[0] == "-h" || args[0] == "--help":
		fmt.Fprint(out, usage)
		return 0
	}
	dir, said, err := cuda.CompileAhead(args[0])
	if err != nil {
		fmt.Fprintln(errs, "ahead:", err)
		return 1
	}
	fmt.Fprintf(errs, "kernels for %s: %s\n", args[0], said)
	fmt.Fprintln(out, dir)
	return 0
}
