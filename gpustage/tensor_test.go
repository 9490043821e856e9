package gpustage_test

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

func TestSamePlace(t *testing.T) {
	x, err := gpustage.NewTensor(ref.New(), gpustage.F32, 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	other, err := gpustage.NewTensor(ref.New(), gpustage.F32, 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	none := gpustage.Tensor{}
	if !x.SamePlace(x.Span(0, 1)) || x.SamePlace(x.Span(1, 2)) || x.SamePlace(other) || x.SamePlace(none) || none.SamePlace(none) {
		t.Error("tensors begin in one place that don't, or the other way round")
	}
}
