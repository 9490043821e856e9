package goldens

import (
	"math"
	"testing"
)

// What the arrays say must follow from what they say of each other, with no code but this file's.
func TestReader(t *testing.T) {
	g := Load(t, "ops/rows")
	shape, x, y, norm := g.Shape(t, "normalize/x"), g.F64(t, "normalize/x"), g.F64(t, "normalize/y"), g.F64(t, "normalize/norm")
	if len(shape) != 2 || shape[0] != 6 || shape[1] != 11 || len(x) != 66 {
		t.Fatalf("normalize/x is %v with %d values, want [6 11]", shape, len(x))
	}
	for i := range x {
		if got := x[i] / norm[i/11]; !(math.Abs(got-y[i]) <= 1e-15) {
			t.Errorf("y[%d] = %v, want %v", i, y[i], got)
		}
	}
	for i, v := range g.F32(t, "normalize/x") {
		if float64(v) != x[i] {
			t.Errorf("x[%d] = %v is not exact in float32", i, x[i])
		}
	}

	var meta struct {
		Outputs, Texts []string
		Layers         int
	}
	bert := Load(t, "bert/minilm-tiny")
	bert.Meta(t, &meta)
	tokens := 0
	for _, n := range bert.Ints(t, "lengths") {
		tokens += n
	}
	if got := len(bert.Ints(t, "ids")); got != tokens || tokens != 90 {
		t.Errorf("%d ids for lengths that add up to %d, want 90", got, tokens)
	}
	if len(meta.Outputs) != 6 || len(meta.Texts) != 8 || meta.Layers != 3 {
		t.Errorf("meta is %+v", meta)
	}
	weights := Load(t, "bert/minilm-tiny/model")
	for _, name := range weights.Names("encoder.") {
		for _, output := range meta.Outputs {
			if grad := output + "/grad/" + name; !bert.Has(grad) {
				t.Errorf("no %s", grad)
			} else if len(bert.F64(t, grad)) != len(weights.F32(t, name)) {
				t.Errorf("%s is %v, the parameter %v", grad, bert.Shape(t, grad), weights.Shape(t, name))
			}
		}
	}
	steps := Load(t, "steps/texts")
	sum := 0
	for _, n := range steps.Ints(t, "lengths") { // int32
		sum += n
	}
	if got := len(steps.Ints(t, "ids")); got != sum {
		t.Errorf("steps: %d ids for lengths that add up to %d", got, sum)
	}
}

func TestParseRefuses(t *testing.T) {
	header := func(s string) []byte { return append([]byte{byte(len(s)), 0, 0, 0, 0, 0, 0, 0}, s...) }
	for name, data := range map[string][]byte{
		"empty":             {},
		"header too long":   {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
		"header not JSON":   header("{"),
		"data too short":    header(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`),
		"offsets and shape": append(header(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`), 0, 0, 0, 0),
		"unknown type":      append(header(`{"a":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]}}`), 0),
	} {
		if _, err := parse(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
