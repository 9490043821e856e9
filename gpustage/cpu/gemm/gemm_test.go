package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
)

// serial runs tasks one after another; threads runs them on so many goroutines.
type serial struct{}

func (serial) Threads() int { return 1 }

func (serial) Run(n int, f func(worker, i int)) {
	for i := range n {
		f(0, i)
	}
}

type threads int

func (t threads) Threads() int { return int(t) }

func (t threads) Run(n int, f func(worker, i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	var fault atomic.Pointer[any] // a test with guard pages names the product
	for w := range int(t) {
		wg.Go(func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				if err := recover(); err != nil {
					fault.Store(&err)
				}
			}()
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(w, i)
			}
		})
	}
	wg.Wait()
	if err := fault.Load(); err != nil {
		panic(*err)
	}
}

// thorough is a workspace in which kernels for large products do those over few elements of k, too.
func thorough[T Float](k Kernels) *Workspace[T] {
	ws := NewWorkspace[T](k)
	s := *ws.plain
	s.leastK = 0
	ws.plain = &s
	if s.small == nil {
		ws.small = ws.plain
	}
	return ws
}

// forEachKernel runs a test with everything that this processor can run.
func forEachKernel(t *testing.T, f func(t *testing.T, k Kernels)) {
	for _, k := range Available() {
		t.Run(string(k), func(t *testing.T) { f(t, k) })
	}
}

func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// matrix is rows of cols random elements, ld apart, within a slice whose other elements are NaN: what reads them gives
// NaN, and what writes them is seen.
func matrix[T Float](r *rand.Rand, rows, cols, ld int) []T {
	x := make([]T, max(0, (rows-1)*ld+cols))
	for i := range x {
		x[i] = T(math.NaN())
	}
	for i := range rows {
		for j := range cols {
			x[i*ld+j] = T(r.NormFloat64())
		}
	}
	return x
}

// randomJob makes a product with everything about it but the shape drawn at random.
func randomJob[T Float](r *rand.Rand, m, n, k int) *Job[T] {
	j := &Job[T]{M: m, N: n, K: k, TransA: r.IntN(2) == 0, TransB: r.IntN(2) == 0, Add: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		j.Alpha = T(r.NormFloat64())
	}
	gap := func() int { return max(0, r.IntN(12)-6) }
	stored := func(rows, cols int, trans bool) ([]T, int) {
		if trans {
			rows, cols = cols, rows
		}
		ld := cols + gap()
		return matrix[T](r, rows, cols, ld), ld
	}
	j.A, j.LDA = stored(m, k, j.TransA)
	j.B, j.LDB = stored(k, n, j.TransB)
	j.C, j.LDC = stored(m, n, false)
	if !j.Add {
		for i := range j.C {
			j.C[i] = T(math.NaN())
		}
	}
	return j
}

// nearestBF16 rounds by comparing distances: the independent truth for rounding.
func nearestBF16(x float64) float64 {
	if x == 0 {
		return x
	}
	_, exp := math.Frexp(x)
	ulp := math.Ldexp(1, exp-8) // 8 bits of precision
	return math.RoundToEven(x/ulp) * ulp
}

// expect is what j will give, computed in float64, and how far an element may be off.
func expect[T Float](j *Job[T]) (want, tolerance []float64) {
	eps := math.Ldexp(1, -24)
	if isFloat64[T]() {
		eps = math.Ldexp(1, -53)
	}
	wide := func(x []T, ld, rows, cols int, trans bool) []float64 {
		y := make([]float64, 0, rows*cols)
		for i := range rows {
			for k := range cols {
				at := i*ld + k
				if trans {
					at = k*ld + i
				}
				v := float64(x[at])
				if j.BF16 {
					v = nearestBF16(v)
				}
				y = append(y, v)
			}
		}
		return y
	}
	a, b := wide(j.A, j.LDA, j.M, j.K, j.TransA), wide(j.B, j.LDB, j.K, j.N, j.TransB)
	alpha := float64(j.Alpha)
	if alpha == 0 {
		alpha = 1
	}
	for i := range j.M {
		for n := range j.N {
			var sum, abs float64
			for k := range j.K {
				p := a[i*j.K+k] * b[k*j.N+n]
				sum += p
				abs += math.Abs(p)
			}
			x, size := alpha*sum, math.Abs(alpha)*abs
			if j.Add {
				x += float64(j.C[i*j.LDC+n])
				size += math.Abs(float64(j.C[i*j.LDC+n]))
			}
			want = append(want, x)
			// Each of K sums and as many products rounds once; bf16 instructions round twice a pair, and the truth as well.
			tolerance = append(tolerance, 2*float64(j.K+2)*eps*size)
		}
	}
	return want, tolerance
}

// verify runs a product and compares it with the triple loop, and that nothing else in C has changed.
func verify[T Float](j *Job[T], run func() error) error {
	want, tolerance := expect(j)
	var gap []bool // what belongs to no column of C
	for i := range j.C {
		gap = append(gap, i%j.LDC >= j.N)
	}
	before := append([]T(nil), j.C...)
	if err := run(); err != nil {
		return err
	}
	for i := range j.C {
		if gap[i] && math.Float64bits(float64(before[i])) != math.Float64bits(float64(j.C[i])) {
			return fmt.Errorf("%s: wrote between the rows of C, at element %d", describe(j), i)
		}
	}
	for i := range j.M {
		for n := range j.N {
			got, want, tol := float64(j.C[i*j.LDC+n]), want[i*j.N+n], tolerance[i*j.N+n]
			if !(math.Abs(got-want) <= tol) {
				return fmt.Errorf("%s: element [%d %d] is %g, want %g within %g", describe(j), i, n, got, want, tol)
			}
		}
	}
	return nil
}

func describe[T Float](j *Job[T]) string {
	return fmt.Sprintf("M %d N %d K %d, transposed %t %t, strides %d %d %d, add %t, alpha %g, bf16 %t, packed %t",
		j.M, j.N, j.K, j.TransA, j.TransB, j.LDA, j.LDB, j.LDC, j.Add, j.Alpha, j.BF16, j.Packed != nil)
}

// run computes j in one of the ways there are.
func run[T Float](ws *Workspace[T], j *Job[T], way int) error {
	switch way % 4 {
	case 0:
		return ws.Small(j)
	case 1:
		return ws.Multiply(j, serial{})
	case 2:
		return ws.Multiply(j, threads(3))
	}
	j.Packed = new(Packed[T])
	if err := ws.Pack(j.Packed, j.B, j.LDB, j.TransB, j.K, j.N, j.BF16, threads(2)); err != nil {
		return err
	}
	return ws.Multiply(j, threads(2))
}

func TestShapes(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float32](k)
		try := func(m, n, kk int) {
			j := randomJob[float32](r, m, n, kk)
			j.BF16 = r.IntN(2) == 0
			if err := verify(j, func() error { return run(ws, j, r.IntN(4)) }); err != nil {
				t.Fatal(err)
			}
		}
		for x := range 41 { // each dimension through every value
			for range 6 {
				try(x, r.IntN(41), r.IntN(41))
				try(r.IntN(41), x, r.IntN(41))
				try(r.IntN(41), r.IntN(41), x)
			}
		}
		for range 1000 {
			try(r.IntN(41), r.IntN(41), r.IntN(41))
		}
		for range 5 { // across the blocks of every dimension
			try(1+r.IntN(250), 1+r.IntN(250), 1+r.IntN(1000))
		}
		for way := range 4 { // packed by several threads, several panels and a column more to a task
			j := randomJob[float32](r, 3, 9*64+33, 900)
			if err := verify(j, func() error { return run(ws, j, way) }); err != nil {
				t.Fatal(err)
			}
		}
		try(1, 700, 900)
		try(700, 1, 900)
		try(20, 30, 2000)
	})
}

// A NaN or an infinity of A reaches its row of C, one of B its column, and nothing else: not what shares its strip, its
// panel or its pair. Numbers below the smallest normal one are numbers, in float32, but for large products with AMX.
func TestExtremes(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float32](k)
		for range 300 {
			j := randomJob[float32](r, 1+r.IntN(50), 1+r.IntN(70), 1+r.IntN(40))
			j.BF16 = r.IntN(2) == 0
			row, col := r.IntN(j.M), -1
			x, ld, i, l, trans := j.A, j.LDA, row, r.IntN(j.K), j.TransA
			if r.IntN(2) == 0 {
				row, col = -1, r.IntN(j.N)
				x, ld, i, l, trans = j.B, j.LDB, l, col, j.TransB
			}
			if trans {
				i, l = l, i
			}
			x[i*ld+l] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[r.IntN(3)]
			if err := run(ws, j, r.IntN(4)); err != nil {
				t.Fatal(err)
			}
			for i := range j.M {
				for n := range j.N {
					if c := j.C[i*j.LDC+n]; (c-c == 0) == (i == row || n == col) {
						t.Fatalf("%s: element [%d %d] is %v, with row %d of A or column %d of B not finite", describe(j), i, n, c, row, col)
					}
				}
			}
		}
		tiny, c := math.Float32frombits(0x1234), []float32{0}
		if err := ws.Small(&Job[float32]{M: 1, N: 1, K: 1, A: []float32{tiny}, LDA: 1, B: []float32{2}, LDB: 1, C: c, LDC: 1}); err != nil || c[0] != 2*tiny {
			t.Errorf("2 * %v is %v, %v", tiny, c[0], err)
		}
		for _, x := range []struct{ a, b, amx float32 }{
			{tiny, 2, 0},
			{0x1.fffffep-103, 1, 0x1.fffffep-103}, // the smallest of which AMX keeps all bits
			{0x1.fffffep-104, 1, 0x1p-103},
			{0x1.fefffep+127, 0.5, 0x1.fefffep+126}, // the largest that are not infinite in bf16
			{0x1.ffp+127, 0.5, float32(math.NaN())},
		} {
			want := x.a * x.b
			if k == AMX {
				want = x.amx
			}
			err := ws.Multiply(&Job[float32]{M: 1, N: 1, K: 1, A: []float32{x.a}, LDA: 1, B: []float32{x.b}, LDB: 1, C: c, LDC: 1}, serial{})
			if err != nil || c[0] != want && (c[0] == c[0] || want == want) {
				t.Errorf("a large product makes of %v * %v %v, want %v: %v", x.a, x.b, c[0], want, err)
			}
		}
	})
}

// B that is too large to be packed at once.
func TestDeep(t *testing.T) {
	defer func(n int) { mostB = n }(mostB)
	mostB = 1
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float32](k)
		for range 4 {
			j := randomJob[float32](r, 20, 30, 800+r.IntN(500))
			j.BF16 = r.IntN(2) == 0
			var finished atomic.Int32
			j.Epilogue = func(_, row0, row1, col0, col1 int) { finished.Add(int32((row1 - row0) * (col1 - col0))) }
			if err := verify(j, func() error { return ws.Multiply(j, threads(2)) }); err != nil {
				t.Fatal(err)
			}
			if n := finished.Load(); n != 20*30 {
				t.Fatalf("%s: epilogues of %d elements", describe(j), n)
			}
		}
	})
}

func TestFloat64(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float64](k)
		for range 1500 {
			j := randomJob[float64](r, r.IntN(41), r.IntN(41), r.IntN(41))
			if err := verify(j, func() error { return run(ws, j, r.IntN(4)) }); err != nil {
				t.Fatal(err)
			}
		}
		for way := range 4 { // across the blocks of every dimension
			j := randomJob[float64](r, 150, 150, 600)
			if err := verify(j, func() error { return run(ws, j, way) }); err != nil {
				t.Fatal(err)
			}
		}
		j := randomJob[float64](r, 3, 4, 5)
		j.BF16 = true
		if ws.Small(j) == nil {
			t.Error("float64 was rounded to bf16")
		}
	})
}

// Each element's bits must depend on its row, its column and K alone; where Small has other kernels, Multiply's are compared.
func TestSameBits(t *testing.T) {
	forEachKernel(t, sameBits[float32])
	forEachKernel(t, sameBits[float64])
}

func sameBits[T Float](t *testing.T, k Kernels) {
	r := newRand(t)
	ws := thorough[T](k)
	for range 20 { // tiles of every kind
		j := randomJob[T](r, 1+r.IntN(200), 1+r.IntN(200), 1+r.IntN(1500))
		j.Add = false
		if err := run(ws, j, firstWay(ws, false)); err != nil {
			t.Fatal(err)
		}
		want := append([]T(nil), j.C...)
		n := 1 + r.IntN(16)
		if err := ws.Multiply(j, threads(n)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if i%j.LDC < j.N && j.C[i] != want[i] {
				t.Fatalf("%s: element %d with %d threads is %v, was %v", describe(j), i, n, j.C[i], want[i])
			}
		}
	}
	for _, bf16 := range []bool{false, !isFloat64[T]()} {
		for _, d := range [][3]int{{203, 230, 900}, {37, 70, 33}, {1, 200, 500}, {64, 3, 2000}} {
			j := randomJob[T](r, d[0], d[1], d[2])
			j.BF16, j.Add = bf16, false
			if err := run(ws, j, 1); err != nil {
				t.Fatal(err)
			}
			want := append([]T(nil), j.C...)
			same := func(what string, part *Job[T], row, col int) {
				t.Helper()
				for i := range part.M {
					for n := range part.N {
						if got, want := part.C[i*part.LDC+n], want[(row+i)*j.LDC+col+n]; got != want {
							t.Fatalf("%s: %s: element [%d %d] is %v, was %v", describe(j), what, row+i, col+n, got, want)
						}
					}
				}
			}
			for way := firstWay(ws, bf16); way < 4; way++ {
				clear(j.C)
				if err := run(ws, j, way); err != nil {
					t.Fatal(err)
				}
				same(fmt.Sprintf("way %d", way), j, 0, 0)
			}
			j.Packed = nil
			for range 5 { // some rows and columns of it
				part := *j
				row, col := r.IntN(j.M), r.IntN(j.N)
				part.M, part.N = 1+r.IntN(j.M-row), 1+r.IntN(j.N-col)
				first := func(x []T, ld, i int, along bool) []T {
					if along {
						return x[i*ld:]
					}
					return x[i:]
				}
				part.A = first(j.A, j.LDA, row, !j.TransA)
				part.B = first(j.B, j.LDB, col, j.TransB)
				part.C = make([]T, len(j.C))
				if err := run(ws, &part, max(firstWay(ws, bf16), r.IntN(4))); err != nil {
					t.Fatal(err)
				}
				same(fmt.Sprintf("rows %d and columns %d from [%d %d]", part.M, part.N, row, col), &part, row, col)
			}
		}
	}
}

// firstWay is run's first way with the bits of the others.
func firstWay[T Float](ws *Workspace[T], bf16 bool) int {
	if ws.small != ws.plain && !bf16 {
		return 1
	}
	return 0
}

func TestEpilogue(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float32](k)
		for _, d := range [][3]int{{1, 1, 1}, {5, 7, 0}, {100, 500, 0}, {150, 210, 500}, {17, 33, 1000}, {100, 1, 3}} {
			for way := range 4 {
				j := randomJob[float32](r, d[0], d[1], d[2])
				want, tolerance := expect(j)
				calls := make([]int32, d[0]*d[1])
				j.Epilogue = func(worker, row0, row1, col0, col1 int) {
					if worker < 0 || worker > 2 {
						t.Errorf("worker %d", worker)
					}
					if row1-row0 > 32 || col1-col0 > 384 {
						t.Errorf("%s: a block of %d x %d", describe(j), row1-row0, col1-col0)
					}
					for i := row0; i < row1; i++ {
						for n := col0; n < col1; n++ {
							calls[i*d[1]+n]++
							x := &j.C[i*j.LDC+n]
							if !(math.Abs(float64(*x)-want[i*d[1]+n]) <= tolerance[i*d[1]+n]) {
								t.Errorf("%s: the epilogue sees %g at [%d %d], want %g", describe(j), *x, i, n, want[i*d[1]+n])
							}
							*x = 7
						}
					}
				}
				if err := run(ws, j, way); err != nil {
					t.Fatal(err)
				}
				for i, n := range calls {
					if n != 1 || j.C[i/d[1]*j.LDC+i%d[1]] != 7 {
						t.Fatalf("%s: element %d had %d epilogues, or was written after", describe(j), i, n)
					}
				}
			}
		}
	})
}

func TestErrors(t *testing.T) {
	ws := thorough[float32](Portable)
	x := make([]float32, 100)
	packed := new(Packed[float32])
	if err := ws.Pack(packed, x, 4, false, 5, 4, false, serial{}); err != nil {
		t.Fatal(err)
	}
	foreign := *packed // as if other kernels had packed it
	foreign.set = portableRound
	good := Job[float32]{M: 3, N: 4, K: 5, A: x, LDA: 5, B: x, LDB: 4, C: make([]float32, 12), LDC: 4}
	for _, c := range []struct {
		change func(j *Job[float32])
		want   string
	}{
		{func(j *Job[float32]) {}, ""},
		{func(j *Job[float32]) { j.Packed, j.B = packed, nil }, ""},
		{func(j *Job[float32]) { j.M = -1 }, "gemm: a product of [-1 5] and [5 4]"},
		{func(j *Job[float32]) { j.N = -1 }, "gemm: a product of [3 5] and [5 -1]"},
		{func(j *Job[float32]) { j.K = -1 }, "gemm: a product of [3 -1] and [-1 4]"},
		{func(j *Job[float32]) { j.LDA = 4 }, "gemm: A of [3 5] has rows 4 elements apart"},
		{func(j *Job[float32]) { j.A = x[:14] }, "gemm: A of [3 5], rows 5 elements apart, needs 15 elements and has 14"},
		{func(j *Job[float32]) { j.B = nil }, "gemm: B of [5 4], rows 4 elements apart, needs 20 elements and has 0"},
		{func(j *Job[float32]) { j.TransB = true }, "gemm: B of [4 5] has rows 4 elements apart"},
		{func(j *Job[float32]) { j.LDC = 5 }, "gemm: C of [3 4], rows 5 elements apart, needs 14 elements and has 12"},
		{func(j *Job[float32]) { j.Packed, j.BF16 = packed, true },
			"gemm: the product needs B of [5 4], bf16 true; the packed one is [5 4], bf16 false"},
		{func(j *Job[float32]) { j.Packed, j.N = packed, 3 }, "gemm: the product needs B of [5 3], bf16 false; the packed one is [5 4], bf16 false"},
		{func(j *Job[float32]) { j.Packed, j.K = packed, 4 }, "gemm: the product needs B of [4 4], bf16 false; the packed one is [5 4], bf16 false"},
		{func(j *Job[float32]) { j.Packed = &foreign }, "gemm: B was packed for other kernels than the product's"},
	} {
		j := good
		c.change(&j)
		got := ""
		if err := ws.Multiply(&j, serial{}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// Pack refuses what a product would.
func TestPackErrors(t *testing.T) {
	p, b := new(Packed[float32]), make([]float32, 20)
	ws := NewWorkspace[float32](Portable)
	for want, err := range map[string]error{
		"gemm: B of [6 4], rows 4 elements apart, needs 24 elements and has 20": ws.Pack(p, b, 4, false, 6, 4, false, serial{}),
		"gemm: B of [5 4] has rows 3 elements apart":                            ws.Pack(p, b, 3, false, 5, 4, false, serial{}),
		"gemm: B of [4 5] has rows 4 elements apart":                            ws.Pack(p, b, 4, true, 5, 4, true, serial{}),
		errBF16.Error(): NewWorkspace[float64](Portable).Pack(new(Packed[float64]), nil, 4, false, 0, 0, true, serial{}),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestNothingAllocated(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r := newRand(t)
		ws := thorough[float32](k)
		packed := new(Packed[float32])
		for bits := range 8 { // each form of A and B is packed in a way of its own
			bf16 := bits&1 != 0
			j := &Job[float32]{M: 70, N: 50, K: 400, TransA: bits&2 != 0, TransB: bits&4 != 0, BF16: bf16, LDA: 400, LDB: 400, LDC: 50}
			j.A, j.B, j.C = matrix[float32](r, 400, 400, 400), matrix[float32](r, 400, 400, 400), make([]float32, 70*50)
			var runner Runner = serial{}
			n := testing.AllocsPerRun(3, func() {
				j.Packed = nil
				if err := ws.Multiply(j, runner); err != nil {
					t.Fatal(err)
				}
				if err := ws.Small(j); err != nil {
					t.Fatal(err)
				}
				if err := ws.Pack(packed, j.B, j.LDB, j.TransB, j.K, j.N, bf16, runner); err != nil {
					t.Fatal(err)
				}
				j.Packed = packed
				if err := ws.Multiply(j, runner); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("%s: %v allocations", describe(j), n)
			}
		}
	})
}

// Tiles of several rows and columns each pack their own part of A's transpose and of B.
func TestTransposedTiles(t *testing.T) {
	forEachKernel(t, func(t *testing.T, k Kernels) {
		r, ws := newRand(t), thorough[float32](k)
		for _, bf16 := range []bool{false, true} {
			j := randomJob[float32](r, 150, 100, 700)
			for !j.TransA {
				j = randomJob[float32](r, 150, 100, 700)
			}
			j.BF16 = bf16
			if err := verify(j, func() error { return ws.Multiply(j, threads(3)) }); err != nil {
				t.Fatal(err)
			}
		}
	})
}
