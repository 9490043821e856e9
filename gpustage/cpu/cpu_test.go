package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
)

// Every set of kernels that this processor has passes the suite, on one thread and on several; CONTRAFLOW_CPU limits the
// test to one.
func TestConformance(t *testing.T) {
	only := os.Getenv("CONTRAFLOW_CPU")
	if _, err := gemm.Select(only); err != nil {
		t.Fatal(err)
	}
	for i, k := range gemm.Available() {
		if only != "" && only != string(k) {
			continue
		}
		for _, threads := range []int{1, 3} {
			if threads == 1 && i > 0 {
				continue // threads divide work alike whatever the kernels
			}
			t.Run(string(k)+map[int]string{1: "/1 thread", 3: "/3 threads"}[threads], func(t *testing.T) {
				devicetest.Run(t, func() (gpustage.Device, error) { return New(Kernels(string(k)), Threads(threads)) })
			})
		}
	}
}

func TestUnknownKernels(t *testing.T) {
	if _, err := New(Kernels("sse9")); err == nil {
		t.Error("accepted")
	}
	if _, err := New(Threads(0)); err == nil {
		t.Error("no threads were accepted")
	}
}

// Attention in f64, which several threads share by sequences, is ref's to the bit.
func TestAttention64(t *testing.T) {
	d, err := New(Threads(3))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	run := func(dev gpustage.Device, positions bool) (all, sums []float64) {
		s, _ := dev.OpenStream()
		tensor := func(dt gpustage.DType, rows, cols int) gpustage.Tensor {
			x, err := gpustage.NewTensor(dev, dt, rows, cols)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		rng := rand.New(rand.NewPCG(1, 2))
		normal := func(rows, cols int) gpustage.Tensor {
			x := tensor(gpustage.F64, rows, cols)
			for i := range gpustage.Slice[float64](x) {
				gpustage.Slice[float64](x)[i] = rng.NormFloat64()
			}
			return x
		}
		cu, row, pos, keys := tensor(gpustage.I32, 1, 4), tensor(gpustage.I32, 1, 12), tensor(gpustage.I32, 1, 12), tensor(gpustage.U64, 1, 3)
		copy(ints(cu), []int32{0, 5, 6, 12})
		copy(ints(row), []int32{0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2})
		copy(ints(pos), []int32{0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5})
		copy(gpustage.Slice[uint64](keys), []uint64{7, 8, 9})
		q := gpustage.Sequences{Rows: 3, Tokens: 12, MaxLen: 6, Cu: cu, Row: row, Pos: pos, Keys: keys}
		o := gpustage.Attention{Seqs: q, Heads: 4, KVHeads: 2, HeadDim: 3, Scale: 0.5, Causal: true, Dropout: gpustage.Dropout{P: 0.3, Seqs: q, Layer: 1, Site: gpustage.SiteAttention}}
		o.SoftCap = 2
		e := 18 // of queries and keys
		if !positions {
			o.Bias, o.DBias, o.Seen = normal(7, 4), tensor(gpustage.F64, 7, 4), tensor(gpustage.I32, 1, 3)
			copy(ints(o.Seen), []int32{3, 1, 4})
		} else {
			e, o.KVHeads = 24, 4
			o.Positions = gpustage.Positions{Rows: tensor(gpustage.I32, 1, 11), Keys: normal(5, 12), Queries: normal(5, 12), DKeys: normal(5, 12), DQueries: normal(5, 12)}
			copy(ints(o.Positions.Rows), []int32{0, 0, 1, 1, 2, 2, 4, 4, 3, 3, 3})
		}
		x, ctx, lse, d, dctx := normal(12, 2*e-12), tensor(gpustage.F64, 12, 12), tensor(gpustage.F64, 4, 12), tensor(gpustage.F64, 12, 2*e-12), normal(12, 12)
		s.Attention(ctx, lse, x.Columns(0, 12), x.Columns(12, e), x.Columns(e, 2*e-12), o)
		s.AttentionBackward(d.Columns(0, 12), d.Columns(12, e), d.Columns(e, 2*e-12), dctx, ctx, lse, x.Columns(0, 12), x.Columns(12, e), x.Columns(e, 2*e-12), o)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if p := o.Positions; positions {
			sums = slices.Concat(gpustage.Slice[float64](p.DKeys), gpustage.Slice[float64](p.DQueries))
		} else {
			sums = slices.Clone(gpustage.Slice[float64](o.DBias))
		}
		return slices.Concat(gpustage.Slice[float64](ctx), gpustage.Slice[float64](lse), gpustage.Slice[float64](d)), sums
	}
	for _, positions := range []bool{false, true} {
		got, gotSums := run(d, positions)
		want, wantSums := run(ref.New(), positions)
		if !slices.Equal(got, want) {
			t.Errorf("positions %v: they differ", positions)
		}
		for i, w := range wantSums { // summed over sequences, which ref does not round on the way
			if !(math.Abs(gotSums[i]-w) <= 1e-14) {
				t.Errorf("positions %v: gradient %d of what sequences share is %v, want %v", positions, i, gotSums[i], w)
			}
		}
	}
}

// mapped is this process's mapped memory in MiB.
func mapped(t *testing.T) (pages int) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	fmt.Sscan(string(b), &pages)
	return pages * os.Getpagesize() >> 20
}

// What gradients of positions are summed in, in f64, is mapped memory of its own for each part of a sub-batch: it is given back.
func TestAttention64GivesBack(t *testing.T) {
	h := newSheet(t, open(t, Threads(2)))
	q := h.sequences(slices.Repeat([]int{1}, positionParts))
	x, lse := h.in(gpustage.F64, q.Tokens, 64), h.in(gpustage.F64, 1, q.Tokens)
	far := h.in(gpustage.F64, 4096, 64) // 2 MiB
	o := gpustage.Attention{Seqs: q, Heads: 1, HeadDim: 64, Scale: 0.2, Positions: gpustage.Positions{Rows: h.ints([]int32{3}), Keys: far, DKeys: h.in(gpustage.F64, 4096, 64)}}
	before := 0
	for i := range 14 {
		if i == 4 {
			before = mapped(t)
		}
		d := func() gpustage.Tensor { return h.in(gpustage.F64, q.Tokens, 64) }
		h.s.AttentionBackward(d(), d(), d(), x, x, lse, x, x, x, o)
	}
	if err := h.s.Sync(); err != nil {
		t.Fatal(err)
	}
	if grown := mapped(t) - before; grown > 80 { // otherwise by 160
		t.Errorf("10 backward passes have left %d MiB", grown)
	}
}

// So is what a product in f64 is in before its epilogue.
func TestMatMul64GivesBack(t *testing.T) {
	h := newSheet(t, open(t, Threads(2)))
	a, b, c := h.in(gpustage.F64, 512, 1), h.in(gpustage.F64, 1, 512), h.in(gpustage.F64, 512, 512) // 2 MiB
	o := gpustage.MatMul{Bias: h.in(gpustage.F64, 1, 512)}
	before := 0
	for i := range 54 {
		if i == 4 {
			before = mapped(t)
		}
		h.s.MatMul(c, a, b, o)
	}
	if err := h.s.Sync(); err != nil {
		t.Fatal(err)
	}
	if grown := mapped(t) - before; grown > 50 { // otherwise by 100
		t.Errorf("50 products have left %d MiB", grown)
	}
}

// A large sub-batch's short sequences are work for many threads, a long one's heads a task each.
func TestHeadsOfTask(t *testing.T) {
	for _, c := range []struct{ rows, n, least, most int }{
		{1, 1, 1, 1}, {1024, 8, 64, 1024 * 12}, {512, 16, 64, 512 * 12}, {64, 128, 64 * 12, 64 * 12}, {2, 8192, 24, 24}, {0, 0, 0, 0}, {3, 0, 1, 1},
	} {
		units := c.rows * 12
		o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: c.rows, Tokens: c.rows * c.n, MaxLen: c.n}, HeadDim: 32}
		group := headsOfTask(&o, units)
		if tasks := (units + group - 1) / group; tasks < c.least || tasks > c.most {
			t.Errorf("%d sequences of %d tokens are %d tasks, want %d to %d", c.rows, c.n, tasks, c.least, c.most)
		}
	}
}

// A device whose memory is the host's sees that a sequence can't have so many keys.
func TestSeenInside(t *testing.T) {
	for _, dev := range []gpustage.Device{open(t, Threads(2)), ref.New()} {
		for want, seen := range map[string][]int32{
			"attention: Seen has 6 tokens of sequence 0, which has 5":           {6, 2},
			"attention backward: Seen has -1 tokens of sequence 1, which has 2": {5, -1},
		} {
			h := newSheet(t, dev)
			cu, row, counts := h.empty(gpustage.I32, 1, 3), h.empty(gpustage.I32, 1, 7), h.empty(gpustage.I32, 1, 2)
			copy(ints(cu), []int32{0, 5, 7})
			copy(ints(counts), seen)
			x, lse := h.empty(gpustage.F32, 7, 8), h.empty(gpustage.F32, 2, 7)
			o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: 2, Tokens: 7, MaxLen: 5, Cu: cu, Row: row}, Heads: 2, HeadDim: 4, Scale: 0.3, Seen: counts}
			if seen[0] > 5 {
				h.s.Attention(x, lse, x, x, x, o)
			} else {
				h.s.AttentionBackward(x, x, x, x, x, lse, x, x, x, o)
			}
			if err := h.s.Sync(); err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		}
	}
}

// Sums over many rows that nearly cancel, as gradients of biases do, keep what is left of them: each part of 32 rows here is a number that
// f32 has exactly, and their sums on the way are not.
func TestColumnSumCancels(t *testing.T) {
	for _, k := range gemm.Available() {
		h := newSheet(t, open(t, Kernels(string(k)), Threads(2)))
		const rows, cols = 1 << 16, 3
		numbers, want := make([]float64, rows*cols), make([]float64, cols)
		for i := range numbers {
			numbers[i] = 1024 + float64(i%7)/64
			if i >= len(numbers)/2 {
				numbers[i] = -numbers[i] + float64(i%5)/64
			}
			want[i%cols] += numbers[i]
		}
		x, sum := h.empty(gpustage.F32, rows, cols), h.empty(gpustage.F32, 1, cols)
		gpustage.Upload(h.s, x, numbers)
		h.s.Fill(sum, 0)
		h.s.ColumnSum(sum, x)
		if err := h.s.Sync(); err != nil {
			t.Fatal(err)
		}
		for j, v := range f32(sum) {
			if v != float32(want[j]) {
				t.Errorf("%s: column %d sums to %v, want %v", k, j, v, want[j])
			}
		}
	}
}
