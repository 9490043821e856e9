//go:build linux && amd64

package launch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// A table's gradient has each index's tokens added in their order, however many they are and wherever the indices lie.
func TestScatterAddOrder(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(6, 6))
	for _, c := range []struct{ tokens, rows, cols, shift int }{
		{5, 9, 3, 0}, {777, 40, 260, 1}, {4100, 9, 12, 4}, {4608, 4500, 4, 0}, {8200, 700, 4, 2},
	} {
		all, err := gpustage.NewTensor(d, gpustage.I32, 1, c.tokens+c.shift)
		if err != nil {
			t.Fatal(err)
		}
		index := all.Columns(c.shift, c.tokens+c.shift)
		ids := gpustage.Slice[int32](index)
		for i := range ids {
			ids[i] = int32(r.IntN(c.rows) * r.IntN(3) / 2) // the first row has a third of them
		}
		table, dy := random(t, d, r, c.rows, c.cols, 1), random(t, d, r, c.tokens, c.cols, 3)
		want := make([][]float32, c.rows)
		for i := range want {
			want[i] = slices.Clone(gpustage.Slice[float32](table.Span(i, i+1)))
		}
		for i, id := range ids {
			for j, v := range gpustage.Slice[float32](dy.Span(i, i+1)) {
				want[id][j] += v
			}
		}
		s.ScatterAdd(table, dy, index)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got := gpustage.Slice[float32](table.Span(i, i+1)); !slices.Equal(got, want[i]) {
				t.Fatalf("%+v: row %d is %v, want %v", c, i, got, want[i])
			}
		}
	}
}

// Sums of columns of bf16 have the same bits eight columns at a time as four.
func TestColumnSumsWide(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(10, 10))
	for _, c := range []struct{ rows, cols int }{{2, 8}, {63, 128}, {129, 136}, {300, 264}} {
		of, start := random(t, d, r, c.rows, c.cols, 0), random(t, d, r, 1, c.cols, 0)
		var bits [2][]float32
		for i, gap := range []int{8, 4} {
			x, err := gpustage.NewTensor(d, gpustage.BF16, c.rows+1, c.cols+gap)
			if err != nil {
				t.Fatal(err)
			}
			x = x.Columns(gap, c.cols+gap).Span(1, c.rows+1)
			sum := random(t, d, r, 1, c.cols, 0)
			s.Copy(x, of)
			s.Copy(sum, start)
			d.Launched = map[string]int{}
			s.ColumnSum(sum, x)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if wide, narrow := d.Launched["column_sums_wide"], d.Launched["column_sums"]; wide != 1-i || narrow != i {
				t.Fatalf("%+v: rows %d elements further than their columns: %v", c, gap, d.Launched)
			}
			bits[i] = gpustage.Slice[float32](sum)
		}
		if !slices.Equal(bits[0], bits[1]) {
			t.Errorf("%+v: other bits", c)
		}
	}
}

// streamOf opens a stream.
func streamOf(t *testing.T, d *onhost.Device) gpustage.Stream {
	t.Helper()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// makers are functions for tensors of random numbers whose rows have a gap behind them, and for copies of others.
func makers(t *testing.T, d *onhost.Device, s gpustage.Stream, r *rand.Rand) (made func(kind gpustage.DType, rows, cols, gap int) gpustage.Tensor,
	copied func(kind gpustage.DType, x gpustage.Tensor, gap int) gpustage.Tensor) {
	made = func(kind gpustage.DType, rows, cols, gap int) gpustage.Tensor {
		t.Helper()
		x, err := gpustage.NewTensor(d, kind, rows, cols+gap)
		if err != nil {
			t.Fatal(err)
		}
		s.Copy(x, random(t, d, r, rows, cols+gap, 0))
		return x.Columns(0, cols)
	}
	copied = func(kind gpustage.DType, x gpustage.Tensor, gap int) gpustage.Tensor {
		t.Helper()
		y := made(kind, x.Rows, x.Cols, gap)
		s.Copy(y, x)
		return y
	}
	return made, copied
}

// The gradient behind an activation has the same bits eight columns at a time as four, and so have its columns' sums, in place too, and the activation.
func TestGradientSumsWide(t *testing.T) {
	for act := gpustage.GELU; act <= gpustage.Tanh; act++ {
		t.Run(fmt.Sprint(act), func(t *testing.T) { testGradientSumsWide(t, act) })
	}
}

func testGradientSumsWide(t *testing.T, act gpustage.Activation) {
	d := onhost.Open(t, onhost.Plain)
	d.NoEpilogues = true
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(7, 7))
	made, copied := makers(t, d, s, r)
	for _, c := range []struct{ rows, cols int }{{2, 8}, {129, 136}, {145, 8}, {203, 384}} {
		a, b := made(gpustage.BF16, c.rows, 16, 0), made(gpustage.BF16, 16, c.cols, 0)
		pre, start := made(gpustage.BF16, c.rows, c.cols, 0), random(t, d, r, 1, c.cols, 0)
		for _, inPlace := range []bool{false, true} {
			var bits [2][4][]float32
			for i, gap := range []int{8, 4} {
				y, g, sum := made(gpustage.BF16, c.rows, c.cols, gap), copied(gpustage.BF16, pre, gap), copied(gpustage.F32, start, 0)
				again := g
				if !inPlace {
					again = made(gpustage.BF16, c.rows, c.cols, gap)
				}
				d.Launched = map[string]int{}
				s.MatMul(y, a, b, gpustage.MatMul{BF16: true, GradOf: g, Again: again, Act: act, ResultSum: sum})
				of := made(gpustage.BF16, c.rows, c.cols, gap)
				s.Activate(of, copied(gpustage.BF16, pre, gap), act)
				out := [4]gpustage.Tensor{copied(gpustage.F32, y, 0), copied(gpustage.F32, again, 0), sum, copied(gpustage.F32, of, 0)}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				if wide, narrow := d.Launched["gradient_sums_wide"], d.Launched["gradient_sums"]; wide != 1-i || narrow != i || d.Launched["activation_wide"] != 1-i {
					t.Fatalf("%+v: rows %d elements further than their columns: %v", c, gap, d.Launched)
				}
				for k, x := range out {
					bits[i][k] = slices.Clone(gpustage.Slice[float32](x))
				}
			}
			for k, what := range []string{"result", "activation", "sum", "activation by itself"} {
				if !slices.Equal(bits[0][k], bits[1][k]) {
					t.Errorf("%+v, in place %v: the %s has other bits", c, inPlace, what)
				}
			}
		}
	}
}

// Rows with gaps have the sum of squares of a vector without, to its bits.
func TestSumSquaresOfRows(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(8, 8))
	x := random(t, d, r, 70, 301, 2)
	sums, err := gpustage.NewTensor(d, gpustage.F64, 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	together, err := gpustage.NewTensor(d, gpustage.F32, 1, x.Len()+1)
	if err != nil {
		t.Fatal(err)
	}
	s.SumSquares(sums.Columns(0, 1), x)
	for i := range 2 { // the second time from an address that is no multiple of 16
		vector := together.Columns(i, x.Len()+i)
		for row := range x.Rows {
			s.Copy(vector.Columns(row*x.Cols, (row+1)*x.Cols), x.Span(row, row+1))
		}
		s.SumSquares(sums.Columns(1+i, 2+i), vector)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	want := 0.
	for row := range x.Rows {
		for _, v := range gpustage.Slice[float32](x.Span(row, row+1)) {
			want += float64(v) * float64(v)
		}
	}
	got := gpustage.Slice[float64](sums)
	if got[0] != got[1] || got[0] != got[2] || !(got[0] > want*(1-1e-12) && got[0] < want*(1+1e-12)) {
		t.Errorf("%v, want about %v", got, want)
	}
}

// A norm behind a product has the same bits by a block for some rows as by a warp a row, in place too, and those of the norm on its own.
func TestEpilogueNormWide(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	d.Multiprocessors = 1 // a block then has up to five turns
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(9, 9))
	made, copied := makers(t, d, s, r)
	names := [5]string{"norm", "operand", "mean", "deviation", "sum"}
	for _, c := range []struct {
		rows, cols int
		kind       gpustage.DType // of the sum
		drop, add  bool           // dropout; a bias, a residual and a beta
		wide       bool
	}{
		{3, 4, gpustage.BF16, true, true, true}, {90, 384, gpustage.BF16, true, true, true}, {150, 388, gpustage.F32, true, true, true},
		{9, 768, gpustage.BF16, false, false, true}, {6, 1028, gpustage.F32, true, false, true}, {5, 2048, gpustage.BF16, true, true, true},
		{5, 2052, gpustage.F32, true, true, false}, {5, 766, gpustage.BF16, true, true, false},
	} {
		a, b := made(gpustage.BF16, c.rows, 16, 0), made(gpustage.BF16, 16, c.cols, 0)
		res, bias, gamma, beta := made(gpustage.F32, c.rows, c.cols, 0), gpustage.Tensor{}, made(gpustage.F32, 1, c.cols, 0), gpustage.Tensor{}
		if c.add {
			bias, beta = made(gpustage.F32, 1, c.cols, 0), made(gpustage.F32, 1, c.cols, 0)
		}
		drop := gpustage.Dropout{}
		if c.drop {
			drop = gpustage.Dropout{P: 0.2, Seqs: lines(t, d, r, c.rows), Layer: 1, Site: gpustage.SiteFeedForward}
		}
		var outside [2][5][]float32 // what is not in place, rounded or not
		for mode := range 4 {
			inPlace, ofRounded := mode%2 != 0, mode/2 != 0
			var bits [2][5][]float32
			for i, gap := range []int{4, 3} {
				sum, y, operand := made(c.kind, c.rows, c.cols, 4), made(gpustage.F32, c.rows, c.cols, gap), made(gpustage.BF16, c.rows, c.cols, 4)
				mean, rstd, from := made(gpustage.F32, 1, c.rows, 0), made(gpustage.F32, 1, c.rows, 0), gpustage.Tensor{}
				switch {
				case c.add && !inPlace:
					from = copied(gpustage.F32, res, gap)
				case c.add && c.kind == gpustage.F32:
					s.Copy(sum, res)
					from = sum
				case c.add:
					s.Copy(y, res)
					from = y
				}
				d.Launched = map[string]int{}
				norm := gpustage.Norm{Y: y, Mean: mean, Rstd: rstd, Gamma: gamma, Beta: beta, Eps: 0.5, Operand: operand, OfRounded: ofRounded}
				s.MatMul(sum, a, b, gpustage.MatMul{BF16: true, Bias: bias, Dropout: drop, Residual: from, Norm: norm})
				again := [3]gpustage.Tensor{made(gpustage.F32, c.rows, c.cols, 0), made(gpustage.F32, 1, c.rows, 0), made(gpustage.F32, 1, c.rows, 0)}
				rounded := copied(gpustage.BF16, y, gap)
				if ofRounded {
					s.Copy(rounded, sum)
					s.LayerNormWith(rounded, rounded, mean, rstd, gamma, beta)
				}
				remade := copied(gpustage.F32, rounded, 0)
				if c.kind == gpustage.F32 {
					s.LayerNorm(again[0], again[1], again[2], sum, gamma, beta, 0.5)
				}
				out := [5]gpustage.Tensor{copied(gpustage.F32, y, 0), copied(gpustage.F32, operand, 0), mean, rstd, copied(gpustage.F32, sum, 0)}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				want := int(map[bool]int{true: 1}[c.wide && i == 0])
				if wide, narrow := d.Launched["epilogue_norm_wide"], d.Launched["epilogue_norm"]; wide != want || narrow != 1-want {
					t.Fatalf("%+v: rows %d elements further than their columns: %v", c, gap, d.Launched)
				}
				for k, x := range out {
					bits[i][k] = slices.Clone(gpustage.Slice[float32](x))
				}
				if !slices.Equal(bits[i][1], gpustage.Slice[float32](remade)) {
					t.Errorf("%+v, in place %v, rows %d elements further than their columns: made again the operand has other bits", c, inPlace, gap)
				}
				for k, x := range []int{0, 2, 3} {
					if c.kind == gpustage.F32 && !slices.Equal(bits[i][x], gpustage.Slice[float32](again[k])) {
						t.Errorf("%+v, in place %v, rows %d elements further than their columns: on its own the %s has other bits", c, inPlace, gap, names[x])
					}
				}
			}
			if !inPlace {
				outside[mode/2] = bits[0]
			}
			for k, what := range names {
				if !slices.Equal(bits[0][k], bits[1][k]) || !slices.Equal(bits[0][k], outside[mode/2][k]) {
					t.Errorf("%+v, in place %v: the %s has other bits", c, inPlace, what)
				}
			}
		}
	}
}

// Embeddings have the same bits by a block for some rows as by a warp a row, in place too.
func TestEmbedWide(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	d.Multiprocessors = 1 // a block then has up to five turns
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(11, 11))
	for _, c := range []struct {
		rows, cols int
		all, wide  bool // dropout, a scale, a beta and three tables, or words alone
	}{{3, 4, true, true}, {150, 388, true, true}, {9, 768, false, true}, {5, 2048, true, true}, {5, 2052, true, false}, {5, 766, false, false}} {
		lookup := func(rows int) gpustage.Lookup {
			index, err := gpustage.NewTensor(d, gpustage.I32, 1, c.rows)
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.rows {
				gpustage.Slice[int32](index)[i] = int32(r.IntN(rows))
			}
			return gpustage.Lookup{Table: random(t, d, r, rows, c.cols, 4), Index: index}
		}
		o := gpustage.Embed{Words: lookup(40), Gamma: random(t, d, r, 1, c.cols, 0), Eps: 1e-5}
		if c.all {
			o.Positions, o.Kinds, o.Scale, o.Beta = lookup(17), lookup(2), 3, random(t, d, r, 1, c.cols, 0)
			o.Dropout = gpustage.Dropout{P: 0.2, Seqs: lines(t, d, r, c.rows), Site: gpustage.SiteEmbeddings}
		}
		for _, inPlace := range []bool{false, true} {
			var bits [2][5][]float32
			for i, gap := range []int{4, 3} {
				y, mean, rstd := random(t, d, r, c.rows, c.cols, gap), random(t, d, r, 1, c.rows, 0), random(t, d, r, 1, c.rows, 0)
				sum := y
				if !inPlace {
					sum = random(t, d, r, c.rows, c.cols, gap)
				}
				var err error
				if o.Operand, err = gpustage.NewTensor(d, gpustage.BF16, c.rows, c.cols); err != nil {
					t.Fatal(err)
				}
				d.Launched = map[string]int{}
				s.Embed(y, sum, mean, rstd, o)
				want := int(map[bool]int{true: 1}[c.wide && i == 0])
				if wide, narrow := d.Launched["embed_wide"], d.Launched["embed"]; wide != want || narrow != 1-want {
					t.Fatalf("%+v: rows %d elements further than their columns: %v", c, gap, d.Launched)
				}
				for k, x := range []gpustage.Tensor{y, sum, mean, rstd, o.Operand} {
					flat := random(t, d, r, x.Rows, x.Cols, 0)
					s.Copy(flat, x)
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					bits[i][k] = gpustage.Slice[float32](flat)
				}
			}
			for k, what := range []string{"result", "sum", "mean", "deviation", "operand"} {
				if !slices.Equal(bits[0][k], bits[1][k]) {
					t.Errorf("%+v, in place %v: the %s has other bits", c, inPlace, what)
				}
			}
		}
	}
}

// lines are sequences of one token each, with positions and keys of any kind.
func lines(t *testing.T, d gpustage.Device, r *rand.Rand, rows int) gpustage.Sequences {
	q := gpustage.Sequences{Rows: rows, Tokens: rows, MaxLen: 1}
	for x, kind := range map[*gpustage.Tensor]gpustage.DType{&q.Row: gpustage.I32, &q.Pos: gpustage.I32, &q.Keys: gpustage.U64} {
		var err error
		if *x, err = gpustage.NewTensor(d, kind, 1, rows); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rows {
		gpustage.Slice[int32](q.Row)[i], gpustage.Slice[int32](q.Pos)[i], gpustage.Slice[uint64](q.Keys)[i] = int32(i), int32(i%7), r.Uint64()
	}
	return q
}

// More parts than a block adds up at once: of columns' sums, and of a square's.
func TestManyParts(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(12, 12))
	const rows = 1100*128 - 5 // 1,100 parts
	x, sum := random(t, d, r, rows, 2, 0), random(t, d, r, 1, 2, 0)
	want := []float64{float64(gpustage.Slice[float32](sum)[0]), float64(gpustage.Slice[float32](sum)[1])}
	for i, v := range gpustage.Slice[float32](x) {
		want[i%2] += float64(v)
	}
	s.ColumnSum(sum, x)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	for i, got := range gpustage.Slice[float32](sum) {
		if !(math.Abs(float64(got)-want[i]) <= 0.01) {
			t.Errorf("column %d sums to %v, want %v", i, got, want[i])
		}
	}
	const squares = 20000
	mem, err := gpustage.NewTensor(d, gpustage.F64, 1, 1+squares) // the sum, and the parts
	if err != nil {
		t.Fatal(err)
	}
	all, square := gpustage.Slice[float64](mem), 0.0
	for i := range all {
		all[i] = r.Float64()
		square += all[i]
	}
	at := uint64(uintptr(unsafe.Pointer(&all[0])))
	if err := s.(*onhost.Stream).Launch("square_finish", [3]int{1, 1, 1}, [3]int{1024, 1, 1}, 0, []uint64{at, at + 8, squares}, []int32{0, 1, 2}); err != nil {
		t.Fatal(err)
	}
	if got := gpustage.Slice[float64](mem)[0]; !(math.Abs(got-square) <= 1e-8) {
		t.Errorf("the parts add up to %v, want %v", got, square)
	}
}
