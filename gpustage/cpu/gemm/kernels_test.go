package gemm

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestSelect(t *testing.T) {
	all := Available()
	t.Logf("this processor runs %v", all)
	if last := all[len(all)-1]; last != Portable {
		t.Errorf("the last of %v is not portable", all)
	}
	for _, k := range all {
		if got, err := Select(string(k)); got != k || err != nil {
			t.Errorf("Select(%q) = %q, %v", k, got, err)
		}
	}
	if got, err := Select(""); got != all[0] || err != nil {
		t.Errorf("Select of nothing = %q, %v; want %q", got, err, all[0])
	}
	if _, err := Select("avx3"); err == nil {
		t.Error(`Select("avx3") is no error`)
	} else {
		t.Log(err)
	}
	for _, k := range []Kernels{NEON, AVX2, AVX512, AVX512BF16, AMX} {
		if _, err := Select(string(k)); (err == nil) != slices.Contains(all, k) {
			t.Errorf("Select(%q): %v", k, err)
		}
	}
}

// Every choice has kernels of its own for bf16, and the fastest comes first: TestPeakOfPairs is about AVX-512's two.
func TestAvailable(t *testing.T) {
	order := []Kernels{AMX, AVX512BF16, AVX512, AVX2, NEON, Portable}
	if slices.Index(Available(), AVX512) < slices.Index(Available(), AVX512BF16) {
		order[1], order[2] = order[2], order[1]
	}
	all := Available()
	if !slices.IsSortedFunc(all, func(a, b Kernels) int { return slices.Index(order, a) - slices.Index(order, b) }) {
		t.Errorf("%v are not in the order of %v", all, order)
	}
	for _, k := range all {
		if wide := setOf[float64](k, false); runtime.GOARCH == "amd64" && (wide == portable64) != (k == Portable) {
			t.Errorf("%s multiplies float64 in tiles of %d x %d", k, wide.rows, wide.cols)
		}
	}
	sets := map[*set[float32]]Kernels{}
	for _, k := range all {
		s := setOf[float32](k, true)
		if other, ok := sets[s]; ok {
			t.Errorf("%s multiplies in bf16 as %s does", k, other)
		}
		sets[s] = k
	}
}

func TestNewWorkspacePanics(t *testing.T) {
	defer func() {
		if got, want := recover(), `gemm: this processor can't run the kernels "avx3"`; got != want {
			t.Errorf("panic of %v, want %q", got, want)
		}
	}()
	NewWorkspace[float32]("avx3")
}

// A product with 1 shows how A and B are rounded to bf16.
func TestRounding(t *testing.T) {
	inf := float32(math.Inf(1))
	values := []float32{0, 1, -1, 3.14159274, 1e30, -1e-30, inf, -inf, math.MaxFloat32, -math.MaxFloat32}
	for _, x := range []float32{1, 1.0078125, 1.9921875, -1.0234375, 1e20} { // bf16 and what lies between it and the next
		bits := math.Float32bits(x) &^ 0xffff
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			values = append(values, math.Float32frombits(bits|low), math.Float32frombits(bits+0x10000|low))
		}
	}
	forEachKernel(t, func(t *testing.T, k Kernels) {
		ws := NewWorkspace[float32](k)
		n := len(values)
		for side := range 4 {
			ones := make([]float32, n)
			for i := range ones {
				ones[i] = 1
			}
			c := make([]float32, n)
			j := &Job[float32]{M: n, N: 1, K: 1, A: values, LDA: 1, B: ones, LDB: 1, C: c, LDC: 1, BF16: true}
			if side >= 2 { // B's elements
				j.M, j.N, j.A, j.B, j.LDB, j.LDC = 1, n, ones, values, n, n
			}
			if side == 1 {
				j.TransA, j.LDA = true, n
			} else if side == 3 {
				j.TransB, j.LDB = true, 1
			}
			if err := ws.Small(j); err != nil {
				t.Fatal(err)
			}
			for i, x := range values {
				want := x
				if !math.IsInf(float64(x), 0) {
					want = float32(nearestBF16(float64(x)))
				}
				if c[i] != want {
					t.Errorf("side %d: %v (%#08x) became %v, want %v", side, x, math.Float32bits(x), c[i], want)
				}
			}
		}
		nan, ones := make([]float32, 20), make([]float32, 20) // as many as vectors round at a time, and more
		for i := range nan {
			nan[i], ones[i] = math.Float32frombits(0x7f800001), 1
		}
		for _, j := range []*Job[float32]{{M: 1, A: nan, B: ones}, {M: 2, A: ones, B: nan}} {
			j.N, j.K, j.LDA, j.LDB, j.LDC, j.BF16 = 20/j.M, 1, 1, 20/j.M, 20/j.M, true
			j.C = make([]float32, 20)
			if err := ws.Small(j); err != nil {
				t.Fatal(err)
			}
			for i, c := range j.C {
				if c == c {
					t.Errorf("a NaN whose upper half is infinity became %v, element %d of %d x %d", c, i, j.M, j.N)
				}
			}
		}
	})
}

// Packing must write its panels' rows and nothing else: threads pack neighbouring panels at the same time.
func TestPacking(t *testing.T) {
	type packer = func(dst []float32, ps int, src []float32, ld, k, n int)
	forEachKernel(t, func(t *testing.T, kernels Kernels) {
		r := newRand(t)
		for _, bf16 := range []bool{false, true} {
			s := setOf[float32](kernels, bf16)
			w := new(worker[float32])
			for what, c := range map[string]struct {
				pack         packer
				trans        bool
				width, panel int
			}{
				"B":            {func(d []float32, ps int, x []float32, ld, k, n int) { s.packB(w, d, ps, x, ld, k, n) }, false, s.cols, s.cols},
				"transposed B": {func(d []float32, ps int, x []float32, ld, k, n int) { s.packBT(w, d, ps, x, ld, k, n) }, true, s.cols, s.cols},
				"A":            {func(d []float32, ps int, x []float32, ld, k, n int) { s.packA(d, ps, x, ld, n, k) }, true, 1, 1},
				"transposed A": {func(d []float32, ps int, x []float32, ld, k, n int) { s.packAT(w, d, ps, x, ld, k, n) }, false, max(1, s.aWidth), s.rows},
			} {
				beyond := 0 // rows of A that may be written, too
				if what == "transposed A" && s.aWidth == 0 {
					c.panel, beyond = 1, 15
				}
				for range 300 {
					k, n := 1+r.IntN(70), 1+r.IntN(100)
					rows, cols := k, n
					if c.trans {
						rows, cols = n, k
					}
					ld := cols + r.IntN(3)
					src := matrix[float32](r, rows, cols, ld)
					ps := s.panelSize(k, c.width)
					dst := make([]float32, (ceil(n, c.panel)+beyond)*ps+100)
					const untouched = 0x7fc0dead // NaN: rounding it to bf16 would show as well
					for i := range dst {
						dst[i] = math.Float32frombits(untouched)
					}
					c.pack(dst, ps, src, ld, k, n)
					for i, got := range dst {
						panel, step, lane := i/ps, i%ps/c.width, i%c.width
						col := panel*c.panel + lane
						if panel >= n && panel < ceil(n, 16)*16 && beyond > 0 {
							continue
						}
						if panel >= ceil(n, c.panel) || step >= s.steps(k) {
							if got == got || panel >= ceil(n, c.panel) && math.Float32bits(got) != untouched {
								t.Fatalf("bf16 %t, %s of %d x %d: element %d lies beyond the panels and was written", bf16, what, k, n, i)
							}
							continue
						}
						if lane >= c.panel || col >= n {
							continue // what no column of C comes of
						}
						at := func(p int) float32 {
							if p >= k {
								return 0
							}
							i := p*ld + col
							if c.trans {
								i = col*ld + p
							}
							if bf16 {
								return float32(nearestBF16(float64(src[i])))
							}
							return src[i]
						}
						pair, left := step, 0
						if s.group > s.span { // pieces: so many pairs of one, as many of what rounding to it leaves, ...
							pair, left = step/s.group*s.span/2+step%(s.span/2), step%s.group/(s.span/2)
						}
						piece := func(p int) float32 {
							x := float64(at(p))
							for range left {
								x -= nearestBF16(x)
							}
							return float32(nearestBF16(x))
						}
						want := at(step)
						if s.span > 1 {
							want = math.Float32frombits(math.Float32bits(piece(2*pair+1))&^0xffff | math.Float32bits(piece(2*pair))>>16)
						}
						if math.Float32bits(got) != math.Float32bits(want) {
							t.Fatalf("bf16 %t, %s of %d x %d: step %d of column %d is %#08x, want %#08x", bf16, what, k, n, step, col,
								math.Float32bits(got), math.Float32bits(want))
						}
					}
				}
			}
		}
	})
}

// PackedSize is what Pack takes: memory of that size is used, and of one element less is not.
func TestPackedSize(t *testing.T) {
	forEachKernel(t, func(t *testing.T, kernels Kernels) {
		ws := NewWorkspace[float32](kernels)
		for _, d := range [][2]int{{1, 1}, {63, 33}, {64, 33}, {400, 50}, {768, 32}} {
			for _, bf16 := range []bool{false, true} {
				k, n := d[0], d[1]
				size := ws.PackedSize(k, n, bf16)
				for less := range 2 {
					buf := make([]float32, size-less)
					p := NewPacked(buf)
					if err := ws.Pack(p, make([]float32, k*n), n, false, k, n, bf16, serial{}); err != nil {
						t.Fatal(err)
					}
					if used := &p.data[0] == &buf[0]; used != (less == 0) {
						t.Errorf("%d x %d, bf16 %t: memory of %d elements is used: %t, PackedSize is %d", k, n, bf16, size-less, used, size)
					}
				}
			}
		}
	})
}

// Tiles must cover C exactly once for any shape and number of threads, and those that pack for themselves are of bounded height.
func TestPlan(t *testing.T) {
	r := newRand(t)
	for range 20000 {
		s := setOf[float32](Available()[r.IntN(len(Available()))], r.IntN(2) == 0)
		j := &Job[float32]{M: 1 + r.IntN(5000), N: 1 + r.IntN(5000), K: 1 + r.IntN(5000), TransA: r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			j.M = 1 + r.IntN(100)
		}
		if r.IntN(2) == 0 {
			j.N = 1 + r.IntN(100)
		}
		j.LDA = j.K
		if r.IntN(2) == 0 {
			j.Packed = new(Packed[float32])
		}
		threads := 1 + r.IntN(130)
		p := s.plan(j, threads)
		what := fmt.Sprintf("%d x %d x %d, transposed %t, %d threads: %+v", j.M, j.N, j.K, j.TransA, threads, p)
		if p.depth < 1 || p.depth < j.K && p.depth%s.kc != 0 {
			t.Fatalf("%s: the depth is no number of blocks of %d", what, s.kc)
		}
		row := 0
		for tm := range p.tilesM {
			r0, r1 := p.tileRows(tm*p.tilesN, s.rows, j.M)
			col := 0
			for tn := range p.tilesN {
				c0, c1 := p.tileCols(tm*p.tilesN+tn, s.cols, j.N)
				if c0 != col || c1 < c0 {
					t.Fatalf("%s: columns %d to %d after %d", what, c0, c1, col)
				}
				col = c1
			}
			if r0 != row || r1 < r0 || col != j.N {
				t.Fatalf("%s: rows %d to %d after %d, columns to %d", what, r0, r1, row, col)
			}
			if p.private && r1-r0 >= mostRows+s.rows { // it packs all of them at once
				t.Fatalf("%s: a tile of %d rows, want %d at most", what, r1-r0, mostRows)
			}
			row = r1
		}
		if row != j.M {
			t.Fatalf("%s: rows to %d", what, row)
		}
	}
}

func TestPeak(t *testing.T) {
	for _, k := range Available() {
		for _, bf16 := range []bool{false, true} {
			for _, r := range []Runner{serial{}, threads(2)} {
				// From a slow phone to several times of what a core can do today.
				if p := Peak[float32](k, bf16, time.Millisecond, r) / 1e9; p < 0.01 || p > 100000 {
					t.Errorf("%s, bf16 %t: %.3g GFLOP/s", k, bf16, p)
				}
			}
		}
	}
}

// Processors differ by four times in which of the two is faster, so ten tries tell it on a machine that does other things too.
func TestPeakOfPairs(t *testing.T) {
	all := Available()
	float, pairs := slices.Index(all, AVX512), slices.Index(all, AVX512BF16)
	if float < 0 || pairs < 0 {
		t.Skip("this processor has one way, or none, to multiply in bf16 with AVX-512")
	}
	var peak [2]float64
	for range 10 {
		for i, k := range []Kernels{AVX512, AVX512BF16} {
			peak[i] = max(peak[i], Peak[float32](k, true, time.Millisecond, serial{}))
		}
	}
	if (pairs < float) != (peak[1] > peak[0]) {
		t.Errorf("%v are said to be in order of speed; %s reaches %.0f GFLOP/s in bf16, %s %.0f", all, AVX512, peak[0]/1e9, AVX512BF16, peak[1]/1e9)
	}
}
