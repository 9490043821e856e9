package stages_test

import (
	"testing"

	"contraflow/pipeline"
	"contraflow/stages"
)

// A device that is nil is found by Build, behind OnDevice too.
func TestOnNoDevice(t *testing.T) {
	g := pipeline.New("g")
	if _, err := g.Build(pipeline.Devices(stages.OnDevice(nil))); err == nil || err.Error() != `graph "g": Devices: device 0 is nil` {
		t.Error(err)
	}
}
