//go:build linux && amd64

package launch_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/devicetest"
)

// Products that the library refuses when it is to multiply, with what it has said that it has, pass the conformance suite, also in work that is recorded
// when it comes again.
func TestRefusedProducts(t *testing.T) {
	d := onhost.Open(t, onhost.Recorded)
	d.Refuses, d.Apart = true, true
	refused := map[launch.Epilogue]int{}
	d.Asked = func(p launch.Product) {
		if p.Epilogue != launch.NoEpilogue || p.Bias != 0 {
			refused[p.Epilogue]++
		}
	}
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil },
		"Memory", "Streams", "Errors", "Empty", "Basic", "MatMul", "Pairs", "Rounded", "Forms", "FormsOfBothPasses", "Gather", "Embed", "LayerNorm", "RMSNorm", "Gate",
		"Rotary", "Activation", "Dropout", "Attention", "AttentionNaN", "Positions", "Seen", "AttentionBF16", "Pool", "Bag", "Normalize", "Scores", "ScoresNaN", "MaxSim",
		"Splade", "Update", "Runs", "Deterministic", "OperandsBF16", "ProductsBF16", "Large")
	if len(refused) < 3 {
		t.Errorf("refused are %v, want biases, GELU and its derivative", refused)
	}
}

// They are what the library's are: results in bf16 rounded once, behind the bias, and the same bits whether they are issued, recorded or started again.
func TestRefusedHalves(t *testing.T) {
	const bf16 = 1.0 / (1 << 8) // its spacing at 1
	library, refusing := onhost.Open(t, onhost.Plain), onhost.Open(t, onhost.Recorded)
	refusing.Refuses, refusing.Apart = true, true
	refused := map[launch.Epilogue]int{}
	refusing.Asked = func(p launch.Product) {
		if p.Epilogue != launch.NoEpilogue || p.Bias != 0 {
			refused[p.Epilogue]++
		}
	}
	set := func(x gpustage.Tensor, v []float32) {
		for i, v := range v {
			if x.DType == gpustage.BF16 {
				gpustage.Slice[uint16](x)[i] = gpustage.ToBF16(v)
			} else {
				gpustage.Slice[float32](x)[i] = v
			}
		}
	}
	values := func(x gpustage.Tensor) (v []float64) {
		if x.DType == gpustage.BF16 {
			for _, u := range gpustage.Slice[uint16](x) {
				v = append(v, float64(gpustage.FromBF16(u)))
			}
			return v
		}
		for _, u := range gpustage.Slice[float32](x) {
			v = append(v, float64(u))
		}
		return v
	}
	for _, size := range [][3]int{{20, 24, 16}, {150, 40, 9}} {
		m, n, k := size[0], size[1], size[2]
		for _, kind := range []gpustage.DType{gpustage.BF16, gpustage.F32} {
			run := func(d *onhost.Device) (names []string, got [][]float64) {
				r := rand.New(rand.NewPCG(6, 6))
				s := streamOf(t, d)
				numbers := func(x gpustage.Tensor) (v []float32) {
					for range (x.Rows-1)*x.Stride + x.Cols {
						v = append(v, float32(r.NormFloat64()))
					}
					return v
				}
				filled := func(kind gpustage.DType, rows, cols, gap int) gpustage.Tensor {
					x, err := gpustage.NewTensor(d, kind, rows, cols+gap)
					if err != nil {
						t.Fatal(err)
					}
					set(x, numbers(x))
					return x.Columns(0, cols)
				}
				a, b, bias := filled(gpustage.BF16, m, k, -k&7), filled(gpustage.F32, n, k, 1), filled(gpustage.F32, 1, n, 0)
				type product struct {
					name  string
					o     gpustage.MatMul
					c     gpustage.Tensor
					start []float32
				}
				products := []product{
					{name: "a bias", o: gpustage.MatMul{Bias: bias}}, {name: "a bias, added", o: gpustage.MatMul{Bias: bias, Add: true}},
					{name: "a bias, scaled", o: gpustage.MatMul{Bias: bias, Alpha: 0.5}},
					{name: "GELU", o: gpustage.MatMul{Bias: bias, Act: gpustage.GELUTanh, PreAct: filled(kind, m, n, 8)}},
					{name: "GELU without a bias", o: gpustage.MatMul{Act: gpustage.GELUTanh, PreAct: filled(kind, m, n, 0)}},
					{name: "GELU's derivative", o: gpustage.MatMul{GradOf: filled(kind, m, n, 0), Act: gpustage.GELUTanh}},
				}
				for i := range products {
					p := &products[i]
					p.o.BF16, p.o.TransB, p.c = true, true, filled(kind, m, n, 8)
					p.start = numbers(p.c)
				}
				for turn := range 3 {
					for _, p := range products {
						set(p.c, p.start)
					}
					gpustage.Repeat(s, func() {
						for _, p := range products {
							s.MatMul(p.c, a, b, p.o)
						}
					})
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					for i, p := range products {
						all := values(p.c)
						if !p.o.PreAct.IsZero() {
							all = append(all, values(p.o.PreAct)...)
						}
						if turn == 0 {
							names, got = append(names, p.name), append(got, all)
						} else if !slices.Equal(all, got[i]) {
							t.Errorf("%v of %v, %s: other bits in turn %d", size, kind, p.name, turn)
						}
					}
				}
				return names, got
			}
			names, want := run(library)
			_, got := run(refusing)
			limit := 1e-5
			if kind == gpustage.BF16 {
				limit = 2 * bf16 // an input of the activation that is rounded beside one that is not, and the rounding of the result
			}
			for i, name := range names {
				for j, w := range want[i] {
					if g := got[i][j]; !(math.Abs(g-w) <= limit*(1+math.Abs(w))) {
						t.Fatalf("%v of %v, %s: element %d is %v, the library's %v", size, kind, name, j, g, w)
					}
				}
			}
		}
	}
	if c := refusing.Counts(); len(refused) != 3 || c.Recorded != 4 || c.Replayed != 8 {
		t.Errorf("refused are %v, and %+v", refused, c)
	}
}

// So are the sums of columns beside a product.
func TestRefusedSums(t *testing.T) {
	for _, rows := range []int{2, 300} {
		var want []float32
		for _, refuses := range []bool{false, true} {
			d := onhost.Open(t, onhost.Plain)
			d.Refuses, d.Apart = refuses, true
			refused := 0
			d.Asked = func(p launch.Product) { refused += int(p.Epilogue / launch.ColumnSums) }
			r := rand.New(rand.NewPCG(7, 7))
			s := streamOf(t, d)
			dy, err := gpustage.NewTensor(d, gpustage.BF16, rows, 48)
			if err != nil {
				t.Fatal(err)
			}
			for i := range gpustage.Slice[uint16](dy) {
				gpustage.Slice[uint16](dy)[i] = gpustage.ToBF16(float32(r.NormFloat64()))
			}
			x, dw, db := random(t, d, r, rows, 40, 0), random(t, d, r, 48, 40, 0), random(t, d, r, 1, 48, 0)
			s.MatMul(dw, dy, x, gpustage.MatMul{TransA: true, Add: true, BF16: true, ColumnSum: db})
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			got := slices.Concat(gpustage.Slice[float32](db), gpustage.Slice[float32](dw))
			if refuses && refused != 1 {
				t.Errorf("%d rows: %d products with sums", rows, refused)
			}
			if want == nil {
				want = got
			}
			for i, g := range got {
				if w := want[i]; !(math.Abs(float64(g-w)) <= 2e-5*(1+math.Abs(float64(w)))) {
					t.Fatalf("%d rows: number %d is %v, the library's %v", rows, i, g, w)
				}
			}
		}
	}
}
