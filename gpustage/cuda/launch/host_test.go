package launch_test

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/devicetest"
)

// The kernels, as launched on a GPU and as far off as they may be there, pass the conformance suite on the processor. Package onhost has the suite
// for what is launched in other ways.
func TestConformance(t *testing.T) {
	d := onhost.OpenRounding(t, onhost.Recorded)
	d.Apart = true
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
	if c := d.Counts(); c.Replayed < 2 {
		t.Errorf("%+v: nothing was recorded and replayed", c)
	}
}
