package gemm

// Workspace multiplies. It owns the buffers that operands are packed into, which grow to what the largest product needs
// and are used again: in a steady state nothing is allocated. One goroutine may use it at a time.
type Workspace[T Float] struct {
	plain   *set[T]
	bf16    *set[T] // nil for float64
	small   *set[T] // plain for Small
	workers []*worker[T]
	shared  Packed[T] // B, packed for one product

	// The product or packing in progress, and what its tasks run: method values made once, as making one allocates.
	job      *Job[T]
	set      *set[T]
	plan     plan
	k0, k1   int        // the part of K that is being worked on
	b        *Packed[T] // that part of B, or all of it if it came packed; nil if each tile packs its own
	packing  packing[T]
	tileTask func(worker, i int)
	packTask func(worker, i int)
}

// worker is what one goroutine needs for itself.
type worker[T Float] struct {
	strip strip[T]
	rows  [16]*T
	a, b  []T // packed blocks
	pairs []T // pieces that are to be transposed
	_     [64]byte
}

// NewWorkspace makes a workspace with kernels that come from Select or Available; it panics if this processor can't run
// them. Products of float64 are AVX2's on amd64, and portable elsewhere.
func NewWorkspace[T Float](k Kernels) *Workspace[T] {
	ws := &Workspace[T]{plain: setOf[T](k, false)}
	if ws.small = ws.plain.small; ws.small == nil {
		ws.small = ws.plain
	}
	if !isFloat64[T]() {
		ws.bf16 = setOf[T](k, true)
	}
	ws.tileTask, ws.packTask = ws.tile, ws.packPart
	ws.grow(1)
	return ws
}

func (ws *Workspace[T]) grow(threads int) {
	for len(ws.workers) < threads {
		ws.workers = append(ws.workers, new(worker[T]))
	}
}

// setFor is the kernels of Multiply's products over k elements.
func (ws *Workspace[T]) setFor(k int, bf16 bool) *set[T] {
	switch {
	case bf16:
		return ws.bf16
	case k < ws.plain.leastK:
		return ws.small
	}
	return ws.plain
}

// Multiply computes j with the threads of r. The bits of an element of C depend on its row of A, its column of B, K,
// Alpha and the kernels: not on M, N, the threads, or whether B was packed before.
func (ws *Workspace[T]) Multiply(j *Job[T], r Runner) error {
	if err := ws.check(j, ws.setFor(j.K, j.BF16)); err != nil || j.M == 0 || j.N == 0 {
		return err
	}
	ws.grow(r.Threads())
	ws.job, ws.plan, ws.b = j, ws.set.plan(j, r.Threads()), j.Packed
	for ws.k0, ws.k1 = 0, -1; ws.k1 < j.K; ws.k0 = ws.k1 {
		ws.k1 = min(ws.k0+ws.plan.depth, j.K)
		if j.Packed == nil && !ws.plan.private {
			ws.b = &ws.shared
			ws.pack(ws.b, ws.set, opB(j.B, j.LDB, j.TransB, ws.k0, 0), j.LDB, j.TransB, ws.k1-ws.k0, j.N, j.BF16, r)
		}
		r.Run(ws.plan.tilesM*ws.plan.tilesN, ws.tileTask)
	}
	ws.job, ws.b = nil, nil
	return nil
}

// Small computes j on the calling goroutine, with little to do before and after: for products that take microseconds,
// as those of attention do. The epilogue's worker is 0. In float32 AMX's workspace takes AVX-512 for it, so that its bits differ from Multiply's, and
// what Pack has made for a large product is refused: splitting the operands would take longer than it gains (BenchmarkSmall, 136 tokens: 96, 26 and
// 42 GFLOP/s against 93, 110 and 115).
func (ws *Workspace[T]) Small(j *Job[T]) error {
	s := ws.small
	if j.BF16 {
		s = ws.bf16
	}
	if err := ws.check(j, s); err != nil || j.M == 0 || j.N == 0 {
		return err
	}
	ws.job, ws.b, ws.k0, ws.k1 = j, j.Packed, 0, j.K
	ws.plan = plan{tilesM: 1, tilesN: 1, threads: 1, packA: ws.set.packsA(j)}
	ws.tile(0, 0)
	ws.job, ws.b = nil, nil
	return nil
}

// tile computes task number task: one tile of C, over k from ws.k0 to ws.k1.
func (ws *Workspace[T]) tile(worker, task int) {
	j, s, p := ws.job, ws.set, &ws.plan
	w := ws.workers[worker]
	r0, r1 := p.tileRows(task, s.rows, j.M)
	c0, c1 := p.tileCols(task, s.cols, j.N)
	if r0 == r1 || c0 == c1 {
		return
	}
	if j.K == 0 {
		ws.empty(worker, r0, r1, c0, c1)
		return
	}
	st := &w.strip
	st.ldc = j.LDC
	if st.alpha = j.Alpha; st.alpha == 0 {
		st.alpha = 1
	}
	for k0 := ws.k0; k0 < ws.k1; k0 += s.kc {
		k := min(s.kc, ws.k1-k0)
		st.k = s.steps(k)
		st.pb = s.panelSize(k, s.cols)
		st.add = j.Add || k0 > 0
		last := k0+k == j.K
		a, perStrip := ws.blockA(w, r0, r1, k0, k)
		for col := c0; col < c1; col += s.nc {
			end := min(col+s.nc, c1)
			st.cols = end - col
			st.b = ws.blockB(w, k0, k, col, end)
			for row := r0; row < r1; row += s.rows {
				st.rows = min(s.rows, r1-row)
				st.a = a[(row-r0)/s.rows*perStrip:]
				st.c = j.C[row*j.LDC+col:]
				ws.fetch(st, task, row-r0, k0+k, col == c0)
				s.strip(st)
				if last && j.Epilogue != nil {
					j.Epilogue(worker, row, row+st.rows, col, end)
				}
			}
		}
	}
	st.a, st.b, st.c, st.fetch = nil, nil, nil, nil
}

// empty is a tile of a product with K = 0, in the blocks of any other.
func (ws *Workspace[T]) empty(worker, r0, r1, c0, c1 int) {
	j, s := ws.job, ws.set
	if !j.Add {
		for i := r0; i < r1; i++ {
			clear(j.C[i*j.LDC+c0 : i*j.LDC+c1])
		}
	}
	if j.Epilogue == nil {
		return
	}
	for col := c0; col < c1; col += s.nc {
		for row := r0; row < r1; row += s.rows {
			j.Epilogue(worker, row, min(row+s.rows, r1), col, min(col+s.nc, c1))
		}
	}
}

// blockA is rows r0 to r1 and elements k0 to k0+k of op(A), as it lies or packed into w.a, and how many elements it is
// from one strip to the next. It sets the strip's strides.
func (ws *Workspace[T]) blockA(w *worker[T], r0, r1, k0, k int) ([]T, int) {
	j, s, st := ws.job, ws.set, &w.strip
	strips := ceil(r1-r0, s.rows)
	switch {
	case j.TransA && !ws.plan.packA:
		st.rs, st.ks = 1, j.LDA
		return j.A[k0*j.LDA+r0:], s.rows
	case j.TransA && s.aWidth > 0:
		ps := s.panelSize(k, s.aWidth)
		w.a = atLeast(w.a, strips*ps)
		s.packAT(w, w.a, ps, j.A[k0*j.LDA+r0:], j.LDA, k, r1-r0)
		st.rs, st.ks = 1, s.aWidth
		return w.a, ps
	case !ws.plan.packA:
		st.rs, st.ks = j.LDA, 1
		return j.A[r0*j.LDA+k0:], s.rows * j.LDA
	default:
		// Whole cache lines, an odd number of them: see panelSize.
		ds := (st.k+15)/16*16 | 16
		w.a = atLeast(w.a, strips*s.rows*ds)
		if j.TransA {
			s.packAT(w, w.a, ds, j.A[k0*j.LDA+r0:], j.LDA, k, r1-r0)
		} else {
			s.packA(w.a, ds, j.A[r0*j.LDA+k0:], j.LDA, r1-r0, k)
		}
		st.rs, st.ks = ds, 1
		return w.a, s.rows * ds
	}
}

// blockB is rows k0 to k0+k and columns from c0, to c1 at least, of op(B), packed.
func (ws *Workspace[T]) blockB(w *worker[T], k0, k, c0, c1 int) []T {
	j, s := ws.job, ws.set
	switch ws.b {
	case nil:
		w.b = atLeast(w.b, ceil(c1-c0, s.cols)*s.panelSize(k, s.cols))
		s.pack(w, w.b, opB(j.B, j.LDB, j.TransB, k0, c0), j.LDB, j.TransB, k, c1-c0)
		return w.b
	case &ws.shared:
		k0 -= ws.k0
	}
	return ws.b.block(s, k0, k, c0)
}

// fetch lets a strip fetch what its worker will read of A later. Where A is used as it lies, that is the next strip. Where
// its rows are packed, it is the rows for the same place in the next block of k, or in the next tile: packing them later
// then finds them in the cache (bf16 at 4096 x 384 x 1536: 89 % of the peak, 83 % without). Where A is transposed, a
// strip is a few elements of many rows; fetching them costs more than it gains.
func (ws *Workspace[T]) fetch(st *strip[T], task, row, k1 int, firstColumns bool) {
	j, s, p := ws.job, ws.set, &ws.plan
	if !s.fetches {
		return
	}
	st.fetch, st.fetchRow, st.fetchStep = st.a, 0, 0
	switch {
	case j.TransA || p.packA && !firstColumns:
		return
	case !p.packA:
		st.fetch = st.a[min(s.rows*j.LDA, len(st.a)):]
	default:
		if k1 == ws.k1 {
			task, k1 = task+p.tilesN*p.threads, ws.k0
		}
		r0, _ := p.tileRows(task, s.rows, j.M)
		st.fetch = j.A[min((r0+row)*j.LDA+k1, len(j.A)):]
	}
	st.fetchRow, st.fetchStep = j.LDA, s.span
}
