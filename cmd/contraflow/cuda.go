//go:build cuda

package main

import "contraflow/gpustage/cuda"

func init() { onDevice = cuda.MakeCurrent }
