//go:build linux && amd64

package onhost

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/devicetest"
)

// The kernels pass the conformance suite in package launch as they are launched on a GPU, and here with a processor's numbers, nothing fused with
// products, warpgroups that multiply in attention, and vectors of more than 8,192 elements as long ones. Attention in f32, which none of that changes,
// takes the most time: once is enough in Go's tests, and its numbers are a processor's in testdata/peers/gpu.sh --processor.
func TestConformanceSeparate(t *testing.T) {
	d := Open(t, Plain)
	d.Launched = map[string]int{}
	d.Separate, d.Warpgroups, d.Piece, d.Apart = true, true, 8192, true
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil }, "Attention", "Positions", "Large")
	for _, k := range kernels.Names("hopper.cu") {
		if d.Launched[k] == 0 {
			t.Errorf("%s has not run", k)
		}
	}
}
