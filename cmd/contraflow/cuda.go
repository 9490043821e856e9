//go:build cuda

package main

import "contraflow/gpustage/cuda"

func init() { onDevice, driverVersion = cuda.MakeCurrent, cuda.DriverVersion }
