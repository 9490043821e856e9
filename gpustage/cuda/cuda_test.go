//go:build cuda

package cuda

import (
	"errors"
	"os"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/devicetest"
	"contraflow/testdata/harness"
)

// driver tells that this machine has NVIDIA's driver; a container may show only its device.
func driver() bool {
	for _, file := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}

// On a machine with a GPU, and where CI is true, the suite runs, and whatever keeps the GPU from being used is a failure.
func TestConformance(t *testing.T) {
	t.Setenv("CONTRAFLOW_CUDA", "try")
	d, err := New(gpustage.Share{})
	if !driver() && errors.Is(err, gpustage.ErrAbsent) {
		harness.Missing(t, "%v", err)
	}
	devicetest.Run(t, func() (gpustage.Device, error) { return d, err })
}

// Without a GPU, opening one says that there is none, so that "auto" looks further.
func TestAbsent(t *testing.T) {
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	if _, err := New(gpustage.Share{}); !errors.Is(err, gpustage.ErrAbsent) {
		t.Errorf("error %v", err)
	}
}
