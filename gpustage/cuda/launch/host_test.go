package launch_test

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/devicetest"
)

// The kernels, as launched on a GPU and as far off as they may be there, pass the conformance suite on the processor.
func TestConformance(t *testing.T) {
	d := onhost.OpenRounding(t, onhost.Recorded)
	d.Apart = true
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
	if c := d.Counts(); c.Replayed < 2 {
		t.Errorf("%+v: nothing was recorded and replayed", c)
	}
}

// So they do with a processor's numbers, nothing fused with products, warpgroups that multiply in attention, and vectors of more than 8,192
// elements as long ones. Attention in f32, which none of that changes, takes the most time: once is enough here, and its numbers are a processor's in
// testdata/peers/gpu.sh --processor.
func TestConformanceSeparate(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	d.Launched = map[string]int{}
	d.Separate, d.Warpgroups, d.Piece = true, true, 8192
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil }, "Attention", "Positions", "Large")
	for _, k := range kernels.Names("hopper.cu") {
		if d.Launched[k] == 0 {
			t.Errorf("%s has not run", k)
		}
	}
}
