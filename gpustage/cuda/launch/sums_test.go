//go:build linux && amd64

package launch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// Sums that wait for each other have the bits of sums that don't, and what has to do with one of them comes after it. What finishes them is launched as
// often as it has to be.
func TestSumsWait(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	r := rand.New(rand.NewPCG(13, 13))
	const rows, cols = 300, 8
	type work struct {
		x, wide, table, grad, other, index, norm gpustage.Tensor
	}
	all := func(w work) []gpustage.Tensor {
		return []gpustage.Tensor{w.x, w.wide, w.table, w.grad, w.other, w.norm}
	}
	sum := func(w work, i int) gpustage.Tensor { return w.grad.Columns(i*cols, (i+1)*cols) }
	for _, c := range []struct {
		name    string
		finally int // launches that finish sums
		issue   func(s gpustage.Stream, w work)
	}{
		{"several, of several lengths", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.ColumnSum(w.other.Columns(0, 3*cols), w.wide)
			s.ColumnSum(sum(w, 0), w.x.Span(0, 5)) // one part
			s.ColumnSum(sum(w, 7), w.x.Span(0, 0)) // none
		}},
		{"twice the same", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.ColumnSum(sum(w, 0), w.x)
			s.ColumnSum(sum(w, 1), w.wide.Columns(0, cols))
		}},
		{"partly the same", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.grad.Columns(4, 4+cols), w.x)
			s.ColumnSum(sum(w, 1), w.x)
		}},
		{"read", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.Copy(sum(w, 3), sum(w, 1))
		}},
		{"read from before its beginning", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.Copy(w.other.Columns(0, 4*cols), w.grad.Columns(0, 4*cols))
		}},
		{"read, and begun before the others", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 5), w.x)
			s.ColumnSum(sum(w, 1), w.x)
			s.Copy(sum(w, 3), sum(w, 1))
		}},
		{"overwritten", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.Fill(w.grad, 3)
		}},
		{"partly zero: its middle, its ends, all of it, and part of what is zero", 1, func(s gpustage.Stream, w work) {
			for i := range 4 {
				s.ColumnSum(w.grad.Columns(100*i, 100*i+3*cols), w.wide)
			}
			s.Fill(w.grad.Columns(cols, 2*cols), 0)
			s.Fill(w.grad.Columns(100, 100+3), 0)
			s.Fill(w.grad.Columns(100+2*cols+1, 100+3*cols), 0)
			s.Fill(w.grad.Columns(200, 200+3*cols), 0)
			s.Fill(w.grad.Columns(205, 210), 0)
		}},
		{"zero, and added to", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.grad.Columns(0, 3*cols), w.wide)
			s.Fill(sum(w, 1), 0)
			s.ColumnSum(sum(w, 1), w.x)
		}},
		{"zero, and read", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.grad.Columns(0, 3*cols), w.wide)
			s.Fill(sum(w, 1), 0)
			s.Copy(sum(w, 5), sum(w, 1))
		}},
		{"partly no zeros", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.grad.Columns(0, 3*cols), w.wide)
			s.Fill(sum(w, 1), 1)
		}},
		{"zero beyond its end", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.grad.Columns(0, 3*cols), w.wide)
			s.Fill(w.grad.Columns(2*cols, 4*cols), 0)
		}},
		{"zeros of several rows", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.table.Span(1, 2), w.x)
			s.Fill(w.table.Span(1, 3), 0)
		}},
		{"read from a row before it", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.table.Span(1, 2), w.x)
			s.Copy(w.wide.Span(0, 3).Columns(0, cols), w.table.Span(0, 3))
		}},
		{"more zeros than one launch takes", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 60), w.x) // so that there comes to be room for one more, and zeros take two
			s.ColumnSum(sum(w, 61), w.x)
			for i := range 40 {
				s.ColumnSum(sum(w, i), w.x)
				s.Fill(sum(w, i).Columns(1, 3), 0)
			}
		}},
		{"beside what is read", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.Copy(sum(w, 4), sum(w, 0))
			s.Copy(sum(w, 5), sum(w, 2))
			s.ColumnSum(sum(w, 3), w.x)
		}},
		{"a row of a product's operand", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.table.Span(1, 2), w.x)
			s.MatMul(w.wide.Span(0, 4).Columns(0, 4), w.table.Span(0, 4), w.table.Span(0, 4), gpustage.MatMul{TransB: true})
			s.ColumnSum(sum(w, 3), w.wide.Columns(0, cols))
		}},
		{"a row of a product's result", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.table.Span(1, 2), w.x)
			s.MatMul(w.table.Span(0, 3), w.wide.Span(0, 3).Columns(0, 4), w.wide.Span(3, 7).Columns(0, cols), gpustage.MatMul{Add: true})
		}},
		{"a product's bias", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 1), w.x)
			s.MatMul(w.table.Span(0, 3), w.wide.Span(0, 3).Columns(0, 4), w.wide.Span(3, 7).Columns(0, cols), gpustage.MatMul{Bias: sum(w, 1)})
		}},
		{"a product's residual", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(w.table.Span(1, 2), w.x)
			s.MatMul(w.wide.Span(9, 12).Columns(0, cols), w.wide.Span(0, 3).Columns(0, 4), w.wide.Span(3, 7).Columns(0, cols), gpustage.MatMul{Residual: w.table.Span(0, 3)})
		}},
		{"an update's gradient", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 2), w.x)
			n := w.grad.Cols
			flat := func(i int) gpustage.Tensor { return w.norm.Columns(i*n, (i+1)*n) }
			s.AdamW(flat(0), flat(1), flat(2), w.grad, gpustage.AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1, GradScale: 1})
		}},
		{"few rows of a table, and a norm", 1, func(s gpustage.Stream, w work) {
			s.ScatterAdd(w.table.Span(0, 3), w.x, w.index)
			mean, rstd := w.other.Columns(0, rows), w.other.Columns(rows, 2*rows)
			s.LayerNormBackward(w.wide.Columns(cols, 2*cols), sum(w, 0), sum(w, 1), w.x, w.wide.Columns(0, cols), mean, rstd, w.norm.Columns(0, cols), gpustage.Dropped{})
		}},
		{"parts of an odd length before a norm's, which are moved four elements at a time", 1, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 5).Columns(0, cols-1), w.x.Columns(0, cols-1))
			mean, rstd := w.other.Columns(0, rows), w.other.Columns(rows, 2*rows)
			s.LayerNormBackward(w.wide.Columns(cols, 2*cols), sum(w, 0), sum(w, 1), w.x, w.wide.Columns(0, cols), mean, rstd, w.norm.Columns(0, cols), gpustage.Dropped{})
		}},
		{"more than one launch takes", 2, func(s gpustage.Stream, w work) {
			for i := range 70 {
				s.ColumnSum(sum(w, i), w.x)
			}
		}},
		{"a copy from the host between", 2, func(s gpustage.Stream, w work) {
			s.ColumnSum(sum(w, 0), w.x)
			s.CopyIn(sum(w, 2), make([]byte, 4*cols))
			s.ColumnSum(sum(w, 2), w.x)
		}},
	} {
		var bits [2][][]float32
		start := work{x: random(t, d, r, rows, cols, 0), wide: random(t, d, r, rows, 3*cols, 0), table: random(t, d, r, 5, cols, 0), grad: random(t, d, r, 1, 70*cols, 0),
			other: random(t, d, r, 1, 2*rows, 0), norm: random(t, d, r, 1, 210*cols, 0)}
		for i, v := range gpustage.Slice[float32](start.norm) {
			gpustage.Slice[float32](start.norm)[i] = v * v // second moments are never below 0
		}
		for way := range bits {
			s := streamOf(t, d)
			w := work{}
			for i, to := range []*gpustage.Tensor{&w.x, &w.wide, &w.table, &w.grad, &w.other, &w.norm} {
				of := all(start)[i]
				*to = random(t, d, r, of.Rows, of.Cols, 0)
				s.Copy(*to, of)
			}
			var err error
			if w.index, err = gpustage.NewTensor(d, gpustage.I32, 1, rows); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				gpustage.Slice[int32](w.index)[i] = int32(i * i % 3)
			}
			d.Launched = map[string]int{}
			if way == 0 {
				c.issue(s, w)
			} else {
				gpustage.Repeat(s, func() { c.issue(s, w) })
			}
			if err := s.Sync(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got := d.Launched["column_finish"]; way == 1 && got != c.finally {
				t.Errorf("%s: sums are finished by %d launches, want %d", c.name, got, c.finally)
			}
			for _, x := range all(w) {
				bits[way] = append(bits[way], slices.Clone(gpustage.Slice[float32](x)))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range bits[0] {
			if !slices.Equal(bits[1][i], want) {
				t.Errorf("%s: tensor %d has other bits when sums wait", c.name, i)
			}
		}
	}
}
