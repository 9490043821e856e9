//go:build linux && amd64

package launch_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
)

// What may be one call of the library is asked for as one, what may not is not, and the result is the op's either way: also where the
// library turns out to lack the epilogue, and where nothing is fused.
func TestFusedProducts(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	var asked []launch.Product
	d.Asked = func(p launch.Product) { asked = append(asked, p) }
	const m, n, k = 20, 24, 33
	r := rand.New(rand.NewPCG(3, 3))
	host := streamOf(t, d)
	truth := ref.NewStream(d)
	// tensor has a stride, and values from a standard normal distribution.
	tensorOf := func(rows, cols, stride, off int) gpustage.Tensor {
		all, err := gpustage.NewTensor(d, gpustage.F32, 1, rows*stride+off)
		if err != nil {
			t.Fatal(err)
		}
		for i := range gpustage.Slice[float32](all) {
			gpustage.Slice[float32](all)[i] = float32(r.NormFloat64())
		}
		return gpustage.Tensor{Mem: all.Mem, Off: off, Rows: rows, Cols: cols, Stride: stride, DType: gpustage.F32}
	}
	a, b, bias := tensorOf(m, k, k, 0), tensorOf(n, k, k, 0), tensorOf(1, n, n, 0)
	kept, odd, shifted := tensorOf(m, n, 32, 0), tensorOf(m, n, n+1, 0), tensorOf(m, n, 32, 1)
	pre, x, c := tensorOf(m, n, n, 0), tensorOf(m, n, n, 0), tensorOf(m, n, n, 0)
	keys, err := gpustage.NewTensor(d, gpustage.U64, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	places, err := gpustage.NewTensor(d, gpustage.I32, 1, m)
	if err != nil {
		t.Fatal(err)
	}
	drop := gpustage.Dropout{P: 0.2, Site: gpustage.SiteFeedForward, Seqs: gpustage.Sequences{Rows: 1, Tokens: m, Keys: keys, Row: places, Pos: places}}
	type matmul = gpustage.MatMul
	const tanh = gpustage.GELUTanh
	for _, e := range []struct {
		name string
		o    matmul
		want launch.Epilogue
	}{
		{"GELU", matmul{BF16: true, Bias: bias, PreAct: pre, Act: tanh}, launch.GELU},
		{"GELU without a bias", matmul{BF16: true, PreAct: pre, Act: tanh}, launch.GELU},
		{"GELU of an input with gaps", matmul{BF16: true, Bias: bias, PreAct: kept, Act: tanh, Alpha: 0.5}, launch.GELU},
		{"GELU in TF32", matmul{TF32: true, Bias: bias, PreAct: pre, Act: tanh}, launch.GELU},
		{"its derivative", matmul{BF16: true, GradOf: x, Act: tanh}, launch.DGELU},
		{"its derivative in TF32", matmul{TF32: true, GradOf: x, Act: tanh, Alpha: 2}, launch.DGELU},
		{"exact GELU", matmul{BF16: true, Bias: bias, PreAct: pre, Act: gpustage.GELU}, launch.NoEpilogue},
		{"the exact one's derivative", matmul{BF16: true, GradOf: x, Act: gpustage.GELU}, launch.NoEpilogue},
		{"GELU in f32", matmul{Bias: bias, PreAct: pre, Act: tanh}, launch.NoEpilogue},
		{"its derivative in f32", matmul{GradOf: x, Act: tanh}, launch.NoEpilogue},
		{"GELU whose input nobody wants", matmul{BF16: true, Bias: bias, Act: tanh}, launch.NoEpilogue},
		{"GELU of an input with rows of an odd length", matmul{BF16: true, Bias: bias, PreAct: odd, Act: tanh}, launch.NoEpilogue},
		{"GELU of an input at an odd place", matmul{BF16: true, Bias: bias, PreAct: shifted, Act: tanh}, launch.NoEpilogue},
		{"GELU and a residual", matmul{BF16: true, Bias: bias, PreAct: pre, Act: tanh, Residual: x}, launch.NoEpilogue},
		{"GELU that is added", matmul{BF16: true, Bias: bias, PreAct: pre, Act: tanh, Add: true}, launch.NoEpilogue},
		{"GELU and dropout", matmul{BF16: true, Bias: bias, PreAct: pre, Act: tanh, Dropout: drop}, launch.NoEpilogue},
		{"its derivative, with a bias", matmul{BF16: true, Bias: bias, GradOf: x, Act: tanh}, launch.NoEpilogue},
		{"its derivative in place", matmul{BF16: true, GradOf: c, Act: tanh}, launch.NoEpilogue},
		{"ReLU", matmul{BF16: true, Bias: bias, PreAct: pre, Act: gpustage.ReLU}, launch.NoEpilogue},
		{"no activation", matmul{BF16: true, Bias: bias}, launch.NoEpilogue},
	} {
		e.o.TransB = true
		start := append([]float32(nil), gpustage.Slice[float32](c)...)
		values := func(s gpustage.Stream) [2][]float32 {
			copy(gpustage.Slice[float32](c), start)
			s.MatMul(c, a, b, e.o)
			if err := s.Sync(); err != nil {
				t.Fatalf("%s: %v", e.name, err)
			}
			var out [2][]float32
			for i, x := range []gpustage.Tensor{c, e.o.PreAct} {
				if !x.IsZero() {
					out[i] = append(out[i], gpustage.Slice[float32](x)...)
				}
			}
			return out
		}
		want := values(truth)
		for _, way := range []struct{ plain, separate bool }{{}, {plain: true}, {separate: true}} {
			asked = nil
			d.NoEpilogues, host.(*onhost.Stream).Separate = way.plain, way.separate
			got := values(host)
			var epilogues []launch.Epilogue
			for _, p := range asked {
				epilogues = append(epilogues, p.Epilogue)
				if p.TF32 != e.o.TF32 || p.BF16 != e.o.BF16 {
					t.Errorf("%s: asked for a product in TF32 %v, bf16 %v", e.name, p.TF32, p.BF16)
				}
			}
			expected := e.want
			if way.separate || way.plain {
				expected = launch.NoEpilogue
			}
			if len(epilogues) != 1 || epilogues[0] != expected {
				t.Errorf("%s, %+v: products with %v, want one with %v", e.name, way, epilogues, expected)
			}
			limit := 2e-5
			if e.o.TF32 {
				limit = 6 * math.Sqrt(k) / (1 << 10)
			}
			for i := range want {
				for j, w := range want[i] {
					if g := got[i][j]; !(math.Abs(float64(g-w)) <= limit*(1+math.Abs(float64(w)))) {
						t.Fatalf("%s, %+v: element %d of output %d is %v, want %v", e.name, way, j, i, g, w)
					}
				}
			}
		}
	}
}

// random is of a standard normal distribution, with a gap between rows.
func random(t *testing.T, d gpustage.Device, r *rand.Rand, rows, cols, gap int) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(d, gpustage.F32, rows, cols+gap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range gpustage.Slice[float32](x) {
		gpustage.Slice[float32](x)[i] = float32(r.NormFloat64())
	}
	return x.Columns(0, cols)
}

// A bias's gradient is summed while bf16 is made of what it is the sum of: one pass instead of two, and the bits of the op on its own.
func TestColumnSumOfRounded(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(4, 4))
	for _, separate := range []bool{false, true} {
		d.Launched = map[string]int{}
		s.(*onhost.Stream).Separate = separate
		made := func(rows, cols int) gpustage.Tensor { return random(t, d, r, rows, cols, 0) }
		dy, x, dw := made(300, 150), made(300, 40), made(150, 40)
		with, alone := made(1, 150), made(1, 150)
		copy(gpustage.Slice[float32](alone), gpustage.Slice[float32](with))
		s.MatMul(dw, dy, x, gpustage.MatMul{TransA: true, Add: true, BF16: true, ColumnSum: with})
		rounding := 1 // x's
		if separate {
			rounding = 2
		}
		if n := d.Launched["to_bf16"]; n != rounding {
			t.Errorf("separate %v: %d passes that round and do not sum", separate, n)
		}
		if n := d.Launched["column_sums"]; n != 1 {
			t.Errorf("separate %v: %d passes that sum", separate, n)
		}
		s.ColumnSum(alone, dy)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		for i, v := range gpustage.Slice[float32](with) {
			if w := gpustage.Slice[float32](alone)[i]; v != w {
				t.Fatalf("separate %v: column %d sums to %v with a product, to %v alone", separate, i, v, w)
			}
		}
	}
}

// Of an a in bf16 the library sums the columns while it multiplies, if it can, and adds nothing to them that was there before.
func TestSumsBesideProducts(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	var asked []launch.Product
	d.Asked = func(p launch.Product) { asked = append(asked, p) }
	s := streamOf(t, d)
	r := rand.New(rand.NewPCG(4, 5))
	const rows, cols, other = 300, 48, 40
	for _, c := range []struct {
		name     string
		change   func(o *gpustage.MatMul)
		separate bool
		none     bool // the library has no sums
		beside   bool
	}{
		{name: "a weight's gradient", beside: true},
		{name: "the first of several", change: func(o *gpustage.MatMul) { o.Add = false }, beside: true},
		{name: "scaled", change: func(o *gpustage.MatMul) { o.Alpha = 0.5 }},
		{name: "separate", separate: true},
		{name: "a library without", none: true},
	} {
		dy, err := gpustage.NewTensor(d, gpustage.BF16, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		x, dw, db := random(t, d, r, rows, other, 0), random(t, d, r, cols, other, 0), random(t, d, r, 1, cols, 0)
		want, wantW := make([]float64, cols), make([]float64, cols*other)
		for j, v := range gpustage.Slice[float32](db) {
			want[j] = float64(v)
		}
		for i, u := range gpustage.Slice[uint16](dy) {
			u = gpustage.ToBF16(float32(r.NormFloat64()))
			gpustage.Slice[uint16](dy)[i] = u
			v := float64(gpustage.FromBF16(u))
			want[i%cols] += v
			for j, y := range gpustage.Slice[float32](x)[i/cols*other:][:other] {
				wantW[i%cols*other+j] += v * float64(gpustage.FromBF16(gpustage.ToBF16(y)))
			}
		}
		o := gpustage.MatMul{TransA: true, Add: true, BF16: true, ColumnSum: db}
		if c.change != nil {
			c.change(&o)
		}
		for i, v := range gpustage.Slice[float32](dw) {
			if !o.Add {
				gpustage.Slice[float32](dw)[i] = float32(math.NaN())
				continue
			}
			if o.Alpha != 0 {
				wantW[i] *= o.Alpha
			}
			wantW[i] += float64(v)
		}
		asked, d.Launched, d.NoEpilogues = nil, map[string]int{}, c.none
		s.(*onhost.Stream).Separate = c.separate
		s.MatMul(dw, dy, x, o)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if beside := len(asked) == 1 && asked[0].Epilogue == launch.ColumnSums; beside != c.beside || beside != (d.Launched["column_sums"]+d.Launched["column_sums_wide"] == 0) {
			t.Errorf("%s: products %+v, kernels %v", c.name, asked, d.Launched)
		}
		limit := 2 * rows * math.Pow(2, -24) * math.Sqrt(rows)
		for j, v := range gpustage.Slice[float32](db) {
			if !(math.Abs(float64(v)-want[j]) <= limit) {
				t.Fatalf("%s: column %d sums to %v, want %v", c.name, j, v, want[j])
			}
		}
		for i, v := range gpustage.Slice[float32](dw) {
			if !(math.Abs(float64(v)-wantW[i]) <= limit) {
				t.Fatalf("%s: element %d of the product is %v, want %v", c.name, i, v, wantW[i])
			}
		}
	}
}

// Products that share what they round round it once.
func TestRoundedOnce(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	made := func(rows, cols int, kind gpustage.DType) gpustage.Tensor {
		x, err := gpustage.NewTensor(d, kind, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	dy, x, w, dw, dx := made(20, 12, gpustage.F32), made(20, 8, gpustage.F32), made(12, 8, gpustage.F32), made(12, 8, gpustage.F32), made(20, 8, gpustage.F32)
	for _, c := range []struct {
		rounded *gpustage.Rounded
		want    int
	}{
		{nil, 4},
		{&gpustage.Rounded{Room: made(20, 16, gpustage.BF16)}, 3},
		{&gpustage.Rounded{Room: made(20, 12, gpustage.BF16)}, 4}, // rows that tensor cores' fast paths don't take
	} {
		d.Launched = map[string]int{}
		s.MatMul(dw, dy, x, gpustage.MatMul{TransA: true, BF16: true, Rounded: c.rounded})
		s.MatMul(dx, dy, w, gpustage.MatMul{BF16: true, Rounded: c.rounded})
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if n := d.Launched["to_bf16"]; n != c.want {
			t.Errorf("%+v: %d matrices rounded, want %d", c.rounded, n, c.want)
		}
	}
	s.MatMul(dw, dy, x, gpustage.MatMul{TransA: true, BF16: true, Rounded: &gpustage.Rounded{Room: made(19, 16, gpustage.BF16)}})
	if err := s.Sync(); err == nil {
		t.Error("room for fewer rows than a has was accepted")
	}
}

// The library is not asked to add a bias to a product in bf16 whose rows begin at odd places: it would round twice.
func TestBiasOfOddRows(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	var asked []launch.Product
	d.Asked = func(p launch.Product) { asked = append(asked, p) }
	s := streamOf(t, d)
	half := func(rows, cols, gap, lead int) gpustage.Tensor {
		x, err := gpustage.NewTensor(d, gpustage.BF16, rows, lead+cols+gap)
		if err != nil {
			t.Fatal(err)
		}
		return x.Columns(lead, lead+cols)
	}
	r := rand.New(rand.NewPCG(8, 8))
	a, b, bias := half(20, 16, 0, 0), half(16, 24, 0, 0), random(t, d, r, 1, 24, 0)
	for _, c := range []struct {
		gap, lead int
		even      bool
	}{{0, 0, true}, {8, 0, true}, {8, 8, true}, {4, 0, false}, {7, 1, false}, {4, 4, false}} {
		for name, o := range map[string]gpustage.MatMul{
			"a bias": {}, "GELU": {Act: gpustage.GELUTanh, PreAct: half(20, 24, 0, 0)},
		} {
			asked, o.BF16, o.Bias = nil, true, bias
			s.MatMul(half(20, 24, c.gap, c.lead), a, b, o)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if len(asked) != 1 || asked[0].C.Cols != 24 {
				t.Fatalf("%s: asked for %+v", name, asked)
			}
			p := asked[0]
			if own := p.C.Stride == 24+c.gap+c.lead; own && p.Half && (p.Bias != 0) != c.even || c.even && !(own && p.Bias != 0) {
				t.Errorf("%s, %d elements between rows from element %d: asked for %+v", name, c.gap, c.lead, p)
			}
		}
	}
}
