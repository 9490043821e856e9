package transformer

import (
	"fmt"
	"testing"

	"contraflow/gpustage"
)

// Slopes are those of the paper: 2^-1 to 2^-8 for 8 heads, and for 12 those and every other one of 16's; texts may be longer than any the model has seen.
func TestSlopes(t *testing.T) {
	for heads, want := range map[int]string{
		1: "[0.003906]", 2: "[0.0625 0.003906]", 3: "[0.0625 0.003906 0.25]", 8: "[0.5 0.25 0.125 0.0625 0.03125 0.01562 0.007812 0.003906]",
		12: "[0.5 0.25 0.125 0.0625 0.03125 0.01562 0.007812 0.003906 0.7071 0.3536 0.1768 0.08839]",
	} {
		if got := fmt.Sprintf("%.4g", slopes(heads)); got != want {
			t.Errorf("%d heads: %s, want %s", heads, got, want)
		}
	}
	m, _ := loadFamily(t, "jina-v2", nil, fastDevice(t), Options{DType: gpustage.F32})
	if c := m.Config; c.MaxPositions != 0 || c.UsualLength != 40 {
		t.Errorf("texts of up to %d tokens, cut at %d; want any number, 40", c.MaxPositions, c.UsualLength)
	}
	if got, want := m.Config.dropout(gpustage.SiteFeedForward), 0.0; got != want {
		t.Errorf("what feed-forward layers add is dropped with %v", got)
	}
}
