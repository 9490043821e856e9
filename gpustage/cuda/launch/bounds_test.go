package launch

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
)

// taken is what a kernel's blocks take at most.
type taken struct{ threads, shared, y, z int }

// recorder is a driver that only notes what blocks take, and a device of memory that is not there.
type recorder struct {
	gpustage.Dry
	used  map[string]taken
	fuses bool
}

func (r recorder) Launch(kernel string, grid, block [3]int, shared int, _ []uint64, _ []int32) error {
	u := r.used[kernel]
	r.used[kernel] = taken{max(u.threads, block[0]*block[1]*block[2]), max(u.shared, shared), max(u.y, grid[1]), max(u.z, grid[2])}
	return nil
}
func (recorder) Multiply(Product) error { return nil }
func (r recorder) Fuses(p Product) (bool, error) {
	return r.fuses || p.Epilogue == NoEpilogue && p.Bias == 0, nil
}
func (recorder) Address(m gpustage.Memory) uintptr {
	if n, ok := m.(*nowhere); ok {
		return n.at
	}
	return 256
}
func (recorder) Alloc(b int) (gpustage.Memory, error) {
	n := &nowhere{bytes: b, at: next}
	next += uintptr(b+255)&^255 + 256
	return n, nil
}

var next uintptr = 1 << 20 // where memory begins that is asked for

type nowhere struct {
	bytes int
	at    uintptr
}

func (n *nowhere) Bytes() int { return n.bytes }
func (*nowhere) Free() error  { return nil }

// everyKernel launches all kernels, at the sizes with which their blocks are largest.
func everyKernel(t *testing.T) map[string]taken {
	t.Helper()
	used := map[string]taken{}
	for _, way := range []struct{ fuses, warpgroups, separate bool }{{}, {fuses: true}, {warpgroups: true}, {separate: true}} {
		d := recorder{used: used, fuses: way.fuses}
		s := NewStream(d, d)
		s.Warpgroups, s.Separate = way.warpgroups, way.separate
		l := launcher{t, s, d}
		for _, dim := range []int{16, 32, 48, 64, 80, 96, 128, 160, 256} {
			for _, n := range []int{50, 100, 129, 400, 8192} {
				l.attention(dim, n, gpustage.F32)
				l.attention(dim, n, gpustage.BF16)
			}
		}
		for _, rows := range []int{1, 3, 200, 16384} {
			for _, cols := range []int{1, 4, 30, 384, 766, 768, 1024, 1280, 1284, 1408, 1536, 1920, 2048, 2052, 4096, 250_002} {
				for _, gap := range []int{0, 3, 8} {
					l.rows(rows, cols, gap)
				}
			}
		}
		for _, m := range []int{2, 300, 16384} {
			for _, n := range []int{30, 768, 1536, 2048, 8192} {
				l.products(m, n)
			}
		}
		l.vectors()
		if err := s.Err(); err != nil {
			t.Fatalf("%+v: %v", way, err)
		}
	}
	return used
}

// launcher issues ops.
type launcher struct {
	t *testing.T
	s *Stream
	d gpustage.Device
}

func (l launcher) made(kind gpustage.DType, rows, cols, gap int) gpustage.Tensor {
	x, err := gpustage.NewTensor(l.d, kind, rows, cols+gap)
	if err != nil {
		l.t.Fatal(err)
	}
	return x.Columns(0, cols)
}

func (l launcher) f32(rows, cols int) gpustage.Tensor { return l.made(gpustage.F32, rows, cols, 0) }
func (l launcher) ints(n int) gpustage.Tensor         { return l.made(gpustage.I32, 1, n, 0) }

// seqs are texts of so many tokens together, of which dropout drops.
func (l launcher) seqs(rows, tokens, longest int) gpustage.Sequences {
	return gpustage.Sequences{Rows: rows, Tokens: tokens, MaxLen: longest, Cu: l.ints(rows + 1), Row: l.ints(tokens), Pos: l.ints(tokens), Keys: l.made(gpustage.U64, 1, rows, 0)}
}

func (l launcher) attention(dim, n int, kind gpustage.DType) {
	s, made := l.s, func(rows, cols int) gpustage.Tensor { return l.made(kind, rows, cols, 0) }
	q := l.seqs(1, n, n)
	for _, kv := range []int{2, 1} {
		x, y, lse := made(n, 2*dim), made(n, kv*dim), l.f32(2, n)
		o := gpustage.Attention{Seqs: q, Heads: 2, KVHeads: kv, HeadDim: dim, Scale: 1, BF16: kind == gpustage.BF16}
		at := gpustage.Positions{Keys: made(5, 2*dim), Queries: made(5, 2*dim), Rows: l.ints(2*n - 1), DKeys: l.f32(5, 2*dim), DQueries: l.f32(5, 2*dim)}
		for i, bias := range []gpustage.Tensor{{}, l.f32(9, 2), l.f32(mostBias, 2), l.f32(mostBias+2, 2), {}, {}} {
			o.Bias, o.DBias, o.Positions, o.Seen, o.Dropout = bias, bias, gpustage.Positions{}, gpustage.Tensor{}, gpustage.Dropout{}
			switch {
			case i == 4 && (dim > maxFarDim || kv == 1):
				continue
			case i == 4:
				o.Positions = at
			case i == 5:
				o.Seen = l.ints(1)
			}
			for range 2 {
				s.Attention(x, lse, x, y, y, o)
				s.AttentionBackward(x, y, y, x, x, lse, x, y, y, o)
				o.Dropout = gpustage.Dropout{P: 0.1, Seqs: q}
			}
		}
	}
}

// rows are ops on [rows, cols].
func (l launcher) rows(rows, cols, gap int) {
	s, x := l.s, func(kind gpustage.DType) gpustage.Tensor { return l.made(kind, rows, cols, gap) }
	f, h := func() gpustage.Tensor { return x(gpustage.F32) }, func() gpustage.Tensor { return x(gpustage.BF16) }
	q, per, gamma := l.seqs(1, rows, rows), l.f32(1, rows), l.f32(1, cols)
	drop := gpustage.Dropout{P: 0.1, Seqs: q, Site: gpustage.SiteFeedForward}
	s.Copy(h(), f())
	s.Copy(f(), h())
	s.Copy(x(gpustage.F64), f())
	s.Fill(f(), 1)
	s.Add(f(), f(), f())
	s.Add(x(gpustage.F64), x(gpustage.F64), x(gpustage.F64))
	s.Scale(f(), f(), 2)
	s.Activate(f(), f(), gpustage.GELU)
	s.Activate(h(), h(), gpustage.GELU)
	s.ActivateBackward(f(), f(), f(), gpustage.GELU)
	s.Gate(h(), h(), h(), gpustage.SiLU)
	s.GateBackward(h(), h(), h(), h(), h(), h(), gpustage.SiLU)
	s.Dropout(f(), f(), f(), drop)
	s.SGD(f(), f(), f(), gpustage.SGD{Momentum: 0.9})
	table, index := l.made(gpustage.F32, 7, cols, gap), l.ints(rows)
	s.Gather(f(), table, index, true)
	s.ScatterAdd(table, f(), index)
	s.ScatterAdd(table.Span(0, 2), f(), index)
	s.Embed(f(), f(), per, per, gpustage.Embed{Words: gpustage.Lookup{Table: table, Index: index}, Gamma: gamma, Beta: gamma, Dropout: drop, Operand: h()})
	s.Embed(f(), gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Embed{Words: gpustage.Lookup{Table: table, Index: index}})
	s.LayerNorm(f(), per, per, f(), gamma, gamma, 1e-5)
	for _, of := range []func() gpustage.Tensor{f, h} {
		s.LayerNormWith(h(), of(), per, per, gamma, gamma)
		s.LayerNormBackward(f(), gamma, gamma, f(), of(), per, per, gamma, gpustage.Dropped{Y: h(), Dropout: drop, Sum: l.f32(1, cols)})
		s.ColumnSum(l.f32(1, cols), of())
	}
	s.LayerNormBackward(f(), gpustage.Tensor{}, gpustage.Tensor{}, f(), f(), per, per, gamma, gpustage.Dropped{})
	s.RMSNorm(h(), per, f(), gamma, 1e-5, 0)
	s.RMSNormBackward(f(), gamma, f(), f(), per, gamma, 0)
	if half := cols / 2; cols%2 == 0 {
		groups := l.f32(1, 2*rows)
		s.RMSNorm(f(), groups, f(), l.f32(1, half), 1e-5, 0)
		s.RMSNormBackward(f(), l.f32(1, half), f(), f(), groups, l.f32(1, half), 0)
		for _, dim := range []int{2, 64} {
			if cols%dim == 0 {
				s.Rotary(f(), f(), gpustage.Rotary{Table: l.f32(rows, dim), Index: index, HeadDim: dim})
			}
		}
	}
	one := l.f32(1, cols)
	s.Pool(one, f(), q, gpustage.MeanPooling)
	s.PoolBackward(f(), one, q, gpustage.MeanPooling)
	s.Normalize(f(), per, f())
	s.NormalizeBackward(f(), f(), f(), per)
	s.RowDot(per, f(), f(), 1)
	s.RowAxpy(f(), f(), per, 1)
	s.Mask(f(), gpustage.Mask{{Row: index, Col: l.ints(cols)}})
	s.MaskAbove(f(), f(), per)
	s.OnlineLSE(per, l.f32(1, rows), f())
	s.SoftmaxTile(f(), l.f32(1, rows), per, l.f32(1, rows))
	s.CountActive(per, f())
	s.SumSquares(l.made(gpustage.F64, 1, 1, 0), f())
	if rows <= 200 { // a vocabulary's tile, of as many texts as cols where it is not a vocabulary
		s.SegmentMax(f(), x(gpustage.I32), l.f32(rows, 4*cols), l.ints(cols+1))
		s.Splade(l.f32(cols, rows), x(gpustage.I32), f(), l.f32(1, rows), true)
		s.SpladeBackward(f(), l.f32(1, rows), l.f32(cols, rows), l.f32(cols, rows), true)
	}
	s.MaxSimBackward(f(), l.f32(900, cols), l.f32(rows, 3), l.made(gpustage.I32, rows, 3, 0), f(), l.f32(900, cols))
}

// products are products of [m, n], with what surrounds them.
func (l launcher) products(m, n int) {
	const k = 64
	s := l.s
	q := l.seqs(1, m, m)
	bias, per, gamma := l.f32(1, n), l.f32(1, m), l.f32(1, n)
	drop := gpustage.Dropout{P: 0.1, Seqs: q}
	for _, kind := range []gpustage.DType{gpustage.F32, gpustage.BF16} {
		c := func() gpustage.Tensor { return l.made(kind, m, n, 0) }
		a, b := l.made(kind, m, k, 0), l.f32(k, n)
		for _, o := range []gpustage.MatMul{
			{}, {Bias: bias}, {Bias: bias, Act: gpustage.GELU, PreAct: c()}, {Bias: bias, Act: gpustage.GELUTanh, PreAct: c()},
			{GradOf: c(), Act: gpustage.GELU, Again: c(), ResultSum: gamma}, {Bias: bias, Dropout: drop, Residual: l.f32(m, n)},
			{Bias: bias, Dropout: drop, Residual: l.f32(m, n), Norm: gpustage.Norm{Y: l.f32(m, n), Mean: per, Rstd: per, Gamma: gamma, Beta: gamma}},
			{Bias: bias, Residual: l.f32(m, n), Norm: gpustage.Norm{Y: l.f32(m, n), Mean: per, Rstd: per, Gamma: gamma, Beta: gamma, Operand: l.made(gpustage.BF16, m, n, 0)}},
			{ColumnSum: l.f32(1, k)}, {Pairs: true},
		} {
			o.BF16 = kind == gpustage.BF16
			s.MatMul(c(), a, b, o)
		}
	}
	s.MatMul(l.f32(k, n), l.f32(m, k), l.f32(m, n), gpustage.MatMul{TransA: true, BF16: true, Add: true, ColumnSum: l.f32(1, k)})
}

// vectors are updates, of as many runs as a launch takes and of more.
func (l launcher) vectors() {
	const n = 1 << 28
	p := l.f32(1, n)
	for _, runs := range []int{0, 1, mostRuns + 1} {
		h := gpustage.AdamW{Step: 1, Runs: make([]gpustage.Run, runs)}
		if runs == 0 {
			h.Runs = nil
		}
		for i := range h.Runs {
			h.Runs[i] = gpustage.Run{P: i << 10, State: i << 10, G: i << 10, Len: 1 << 10}
		}
		l.s.AdamW(p, p, p, p, h)
	}
	l.s.SumSquares(l.made(gpustage.F64, 1, 1, 0), p)
}

// A GPU refuses blocks of more threads than a kernel's launch bounds say, of more shared memory than it has for one, or than 64 K registers, and grids
// of 65,536 blocks or more in y or z, which a processor does not know of. kernels/resources.txt says how much each kernel declares and what registers
// it takes; limits are those of the CUDA C++ programming guide's table of technical specifications per compute capability.
func TestLaunchBounds(t *testing.T) {
	used := everyKernel(t)
	for _, module := range kernels.Modules() {
		for _, kernel := range kernels.Names(module) {
			switch u, most := used[kernel], kernels.Bound(kernel); {
			case u.threads == 0:
				t.Errorf("%s was not launched", kernel)
			case most > 0 && u.threads > most:
				t.Errorf("%s is launched with %d threads, its bounds are %d", kernel, u.threads, most)
			case most == 0 && u.threads > 256: // then the compiler may take 255 registers for each
				t.Errorf("%s is launched with %d threads, and has no bounds", kernel, u.threads)
			case max(u.y, u.z) > mostBlocks:
				t.Errorf("%s is launched with a grid of %d by %d blocks in y and z", kernel, u.y, u.z)
			}
		}
	}
	for _, r := range resources(t) {
		u := used[r.kernel]
		// Of GPUs that run code of the row: sm_86 and sm_89 that of sm_80 by its limits, sm_120 that of sm_100. A block has 1 KB less than the multiprocessor.
		most := 99 << 10
		if kernels.ModuleOf(r.kernel) == "hopper.cu" {
			most = 227 << 10
		}
		if n := u.shared + r.shared; n > most {
			t.Errorf("%s, %s: a block has %d bytes of shared memory, %d of them declared; a GPU has %d for it", r.kernel, r.arch, n, r.shared, most)
		}
		// A multiprocessor has four parts of 16 K registers, which give them to warps 256 at a time.
		if n := ceil(ceil(u.threads, 32), 4) * ceil(32*r.registers, 256) * 256; n > 16<<10 {
			t.Errorf("%s, %s: a block of %d threads takes %d of the %d registers of each quarter of a multiprocessor", r.kernel, r.arch, u.threads, n, 16<<10)
		}
	}
}

// resource is a row of kernels/resources.txt.
type resource struct {
	kernel, arch      string
	registers, shared int
}

func resources(t *testing.T) (all []resource) {
	t.Helper()
	file := filepath.Join("..", "kernels", "resources.txt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	row, seen := regexp.MustCompile(`^(\w+) +(sm_\w+) +(\d+) +\d+ +\d+ +(\d+)$`), map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("%s: %q is no row", file, line)
		}
		registers, err := strconv.Atoi(m[3])
		shared, err2 := strconv.Atoi(m[4])
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		all, seen[m[1]] = append(all, resource{m[1], m[2], registers, shared}), true
	}
	for _, module := range kernels.Modules() {
		for _, k := range kernels.Names(module) {
			if !seen[k] {
				t.Errorf("%s has no row of %s", file, k)
			}
		}
	}
	return all
}
