package ref_test

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
)

func TestConformance(t *testing.T) {
	devicetest.Run(t, func() (gpustage.Device, error) { return ref.New(), nil })
}
