package onhost

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
)

// A GPU on paper has the habits of one that is there, with recordings: all that a model's memory depends on.
func TestPaper(t *testing.T) {
	var paper, real gpustage.Device = launch.Paper{}, Idle(Recorded)
	for name, habit := range map[string]func(gpustage.Device) any{
		"repeats": func(d gpustage.Device) any { return gpustage.Repeats(d) }, "bags": func(d gpustage.Device) any { return gpustage.Bags(d) },
		"keeps bf16": func(d gpustage.Device) any { return gpustage.KeepsBF16(d) }, "takes bf16": func(d gpustage.Device) any { return gpustage.TakesBF16(d) },
		"packed": func(d gpustage.Device) any { return d.(gpustage.Packer).PackedBytes(33, 17, true) }, "packed in f32": func(d gpustage.Device) any { return d.(gpustage.Packer).PackedBytes(33, 17, false) },
		"rounded": func(d gpustage.Device) any { return d.(gpustage.Rounder).RoundedCols(33) }, "tokens": func(d gpustage.Device) any { return d.Info().PassTokens() },
		"budget": func(d gpustage.Device) any { return d.Info().ReplayBudget(40 << 30) },
	} {
		dry := gpustage.Dry{Like: paper, Free: 1}
		if got, want := habit(paper), habit(real); got != want || habit(dry) != want {
			t.Errorf("%s: %v on paper, %v where it is like that, on a GPU %v", name, got, habit(dry), want)
		}
	}
}
