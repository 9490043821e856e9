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

// gpu opens one. On a machine with a GPU, and where CI is true, whatever keeps the GPU from being used is a failure.
func gpu(t *testing.T) *Device {
	t.Helper()
	t.Setenv("CONTRAFLOW_CUDA", "try")
	d, err := New(gpustage.Share{})
	if !driver() && errors.Is(err, gpustage.ErrAbsent) {
		harness.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	d := gpu(t)
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
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

// What a stream could not do, a stream that waits for it does not go on without.
func TestConformanceErrors(t *testing.T) {
	d := gpu(t)
	defer d.Close()
	var streams [2]gpustage.Stream
	for i := range streams {
		var err error
		if streams[i], err = d.OpenStream(); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
	}
	streams[0].Add(gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Tensor{})
	event := streams[0].Record()
	streams[1].Wait(event)
	if streams[1].Sync() == nil || event.Sync() == nil {
		t.Error("work that an event stands for has failed, and who waits for the event does not know")
	}
}
