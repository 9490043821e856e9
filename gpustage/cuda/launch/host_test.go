package launch_test

import (
	"testing"

	"contraflow/gpustage"
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

// So they do with a processor's numbers, nothing fused with products, and vectors of more than 8,192 elements as long ones. Attention, which is
// never fused, takes the most time: once is enough here, and its numbers are a processor's in testdata/peers/gpu.sh --processor.
func TestConformanceSeparate(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	d.Separate, d.Piece = true, 8192
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil }, "Attention", "AttentionNaN", "AttentionBF16", "Large")
}
