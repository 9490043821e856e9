package loss

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// faulty is the sum of w_i (q_i . p_i)^2 in float64, with a fault.
type faulty struct{ fault func(f faultyCall) error }

type faultyCall struct {
	b     *Batch
	a     *gpustage.Arena
	s     gpustage.Stream
	x, dx []float64
	r     *Result
}

// rows is how many are asked for, of 3.
func (f faultyCall) rows() int {
	lo, hi := f.b.Own()
	return hi - lo
}

func (faulty) SplitsRows()     {}
func (faulty) Memory(Size) int { return 1 << 12 }
func (l faulty) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (r Result, err error) {
	x, dx, e := gpustage.Slice[float64](b.Embeddings), gpustage.Slice[float64](b.Gradient), b.Embeddings.Cols
	lo, hi := b.Own()
	for i := lo; i < hi; i++ {
		q, p, dot := x[i*e:(i+1)*e], x[(b.Rows+i)*e:(b.Rows+i+1)*e], 0.0
		for k := range q {
			dot += q[k] * p[k]
		}
		for k := range q {
			dx[i*e+k] += 2 * b.Weight(i) * dot * p[k]
			dx[(b.Rows+i)*e+k] += 2 * b.Weight(i) * dot * q[k]
		}
		r.Sum, r.Weight = r.Sum+b.Weight(i)*dot*dot, r.Weight+b.Weight(i)
	}
	if l.fault != nil {
		err = l.fault(faultyCall{b, a, s, x, dx, &r})
	}
	return r, err
}

// A right loss passes, and each kind of fault is named.
func TestCheckGradient(t *testing.T) {
	s, _ := ref.New().OpenStream()
	calls := 0
	for want, fault := range map[string]func(f faultyCall) error{
		"": nil,
		"loss.faulty: the gradient of Embeddings[1, 2] is ": func(f faultyCall) error { f.dx[1*4+2] *= 1.00001; return nil },
		"1 of 48 numbers are further apart than 1e-06":      func(f faultyCall) error { f.dx[47] += 1e-4 * float64(f.rows()); return nil }, // a negative's, which has none
		"the difference quotient of Result.Sum ":            func(f faultyCall) error { f.r.Sum *= 2; return nil },
		"24 of 48 numbers":                                  func(f faultyCall) error { clear(f.dx[12:24]); clear(f.dx[:12]); return nil },
		"the loss has changed Embeddings[0, 3]":             func(f faultyCall) error { f.x[3] /= 2; return nil },
		"computed again, the loss is ":                      func(f faultyCall) error { calls++; f.r.Sum += float64(calls); return nil },
		"of the batch computed again, and ":                 func(f faultyCall) error { calls++; f.dx[5] += float64(calls); return nil },
		"bytes of the arena were not given back":            func(f faultyCall) error { f.a.Scratch(f.s, gpustage.F64, 1, 1); return nil },
		"row by row (Batch.Only) the loss is ":              func(f faultyCall) error { f.r.Sum += 0.1; return nil },
		"the gradient of Embeddings[0, 0] is ":              func(f faultyCall) error { f.dx[0] += float64(f.rows() % 3); return nil },
		"rows 0 to 1 alone (Batch.Only): no":                func(f faultyCall) error { return [...]error{nil, errors.New("no"), nil, nil}[f.rows()] },
		"rows 3 to 3 alone (Batch.Only): no":                func(f faultyCall) error { return [...]error{errors.New("no"), nil, nil, nil}[f.rows()] },
		" and as a whole ":                                  func(f faultyCall) error { f.r.Weight += 0.1; return nil },
		"Result.Weight -1":                                  func(f faultyCall) error { f.r.Weight = -1; return nil },
	} {
		b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 3, 6, 4)
		err := CheckGradient(s, faulty{fault}, b, GradientCheck{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
		if b.Only != nil {
			t.Error("the batch is asked for some rows afterwards")
		}
	}
	if err := CheckGradient(s, InfoNCE{}, &Batch{Teacher: []float32{1}}, GradientCheck{}); err == nil || !strings.Contains(err.Error(), "has no rows") {
		t.Error(err)
	}
	narrow := randomBatch(t, s, gpustage.F32, rand.New(rand.NewPCG(1, 1)), 3, 6, 4)
	if err := CheckGradient(s, InfoNCE{}, narrow, GradientCheck{}); err == nil || !strings.Contains(err.Error(), "want both of float64") {
		t.Error(err)
	}
	zero := newBatch(t, s, gpustage.F64, 0, 2, 3, nil)
	if err := CheckGradient(s, faulty{}, zero, GradientCheck{}); err == nil || !strings.Contains(err.Error(), "all embeddings are 0") {
		t.Error(err)
	}
	small := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 3, 6, 4)
	for i, x := 0, gpustage.Slice[float64](small.Embeddings); i < len(x); i++ {
		x[i] /= 1 << 8
	}
	if err := CheckGradient(s, faulty{func(f faultyCall) error { clear(f.dx); return nil }}, small, GradientCheck{}); err == nil || !strings.Contains(err.Error(), "no gradient at all would be near enough") {
		t.Error(err)
	}
	few := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 3, 6, 4)
	if err := CheckGradient(s, faulty{func(f faultyCall) error { f.r.Sum *= 2; return nil }}, few, GradientCheck{Elements: 12}); err == nil || !strings.Contains(err.Error(), "of 12 numbers") {
		t.Error(err)
	}
}

// A function that sums up float32s has a value of seven digits: large steps see whether its gradient is right, also where it bends within one.
func TestCheckGradientOfFloat32(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for factor, right := range map[float32]bool{1: true, 1.02: false} {
		l := Host(func(b *Batch, x, g [][]float32) (Result, error) {
			sum := float32(0)
			for i := range b.Rows {
				dot := float32(0)
				for k, q := range x[i] {
					dot += q * x[b.Rows+i][k]
				}
				e := math.Exp(-20 * float64(dot))
				slope := factor * float32(20/(1+e))
				for k, q := range x[i] {
					g[i][k], g[b.Rows+i][k] = slope*x[b.Rows+i][k], slope*q
				}
				sum += 20*dot + float32(math.Log1p(e))
			}
			return Result{Sum: float64(sum), Weight: float64(b.Rows)}, nil
		})
		b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 4, 0, 5)
		if err := CheckGradient(s, l, b, GradientCheck{Step: 1. / 64, Limit: 1e-3}); (err == nil) != right {
			t.Errorf("%v: %v", factor, err)
		}
	}
}
