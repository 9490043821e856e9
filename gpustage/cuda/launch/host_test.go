package launch_test

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/devicetest"
)

// The kernels, as launched on a GPU, pass the conformance suite on the processor.
func TestConformance(t *testing.T) {
	d := onhost.Open(t, onhost.Recorded)
	d.Apart = true
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
	if c := d.Counts(); c.Replayed < 2 {
		t.Errorf("%+v: nothing was recorded and replayed", c)
	}
}

// So they do where nothing is fused with products, which attention never is.
func TestConformanceSeparate(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	d.Separate = true
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil }, "Attention", "AttentionNaN", "AttentionBF16")
}
