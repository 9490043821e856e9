//go:build !linux || !amd64

package onhost

import (
	"testing"

	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/ref"
)

// Here tells whether the system can have one.
const Here = false

// Product is what a library would be asked for.
type Product = launch.Product

// Device is not to be had on this system.
type Device struct {
	ref.Device
	Separate        bool
	Warpgroups      bool
	Apart           bool
	Piece           int
	Multiprocessors int
	Refuses         bool
	NoSums          bool
	Asked           func(Product)
	Launched        map[string]int
}

// Open skips the test.
func Open(t testing.TB, _ Mode) *Device {
	t.Skip("the kernels run on the processor of x86-64 Linux alone")
	return nil
}

// OpenUnchecked skips the test.
func OpenUnchecked(t testing.TB, m Mode) *Device { return Open(t, m) }

// OpenRounding skips the test.
func OpenRounding(t testing.TB, m Mode) *Device { return Open(t, m) }

func (d *Device) As(Mode) *Device { return d }

func (*Device) Counts() Counts { return Counts{} }

func (d *Device) Traffic(func()) map[string]Traffic { return nil }
