package gemm

import "unsafe"

// Packed is a matrix B in the order in which the kernels read it. Weights are packed once for all products until they
// change. Any number of workspaces with the same kernels may use it at the same time.
//
// Blocks of kc rows follow one another; a block is panels of the kernels' width, a panel is steps of k.
type Packed[T Float] struct {
	k, n int
	bf16 bool
	set  *set[T]
	data []T
}

type packing[T Float] struct {
	dst   *Packed[T]
	src   []T
	ld    int
	trans bool
	width int // columns that one task packs
}

// NewPacked makes a Packed in the caller's memory, at least PackedSize elements.
func NewPacked[T Float](buf []T) *Packed[T] { return &Packed[T]{data: buf} }

// PackedSize is how many elements a packed B[K, N] takes.
func (ws *Workspace[T]) PackedSize(k, n int, bf16 bool) int {
	return ws.setFor(k, bf16).packedSize(k, n)
}

// Pack packs op(B)[K, N] into p, whose buffer is used again. bf16 must be what the products' BF16 will be.
func (ws *Workspace[T]) Pack(p *Packed[T], b []T, ldb int, trans bool, k, n int, bf16 bool, r Runner) error {
	if bf16 && isFloat64[T]() {
		return errBF16
	}
	if err := checkMatrix("B", b, ldb, k, n, trans); err != nil {
		return err
	}
	ws.pack(p, ws.setFor(k, bf16), b, ldb, trans, k, n, bf16, r)
	return nil
}

// pack packs for kernels s: where a product's B is packed a part of K at a time, K and not the part decides which.
func (ws *Workspace[T]) pack(p *Packed[T], s *set[T], b []T, ldb int, trans bool, k, n int, bf16 bool, r Runner) {
	p.k, p.n, p.bf16, p.set = k, n, bf16, s
	p.data = atLeast(p.data, s.packedSize(k, n))
	if k == 0 || n == 0 {
		return
	}
	ws.grow(r.Threads())
	// A few tasks for each thread, and no wider than a block: a row of it at a time is what a copy reads.
	blocks, panels := ceil(k, s.kc), ceil(n, s.cols)
	width := min(s.nc/s.cols, max(1, blocks*panels/(4*r.Threads())))
	ws.set, ws.packing = s, packing[T]{p, b, ldb, trans, width * s.cols}
	r.Run(blocks*ceil(panels, width), ws.packTask)
	ws.packing = packing[T]{}
}

// packPart is task i of packing: some columns of one block.
func (ws *Workspace[T]) packPart(worker, i int) {
	s, q := ws.set, &ws.packing
	parts := ceil(q.dst.n, q.width)
	k0, c0 := i/parts*s.kc, i%parts*q.width
	k, n := min(s.kc, q.dst.k-k0), min(q.width, q.dst.n-c0)
	s.pack(ws.workers[worker], q.dst.block(s, k0, k, c0), opB(q.src, q.ld, q.trans, k0, c0), q.ld, q.trans, k, n)
}

// opB is b from row k and column c of op(B) on.
func opB[T Float](b []T, ld int, trans bool, k, c int) []T {
	if trans {
		return b[c*ld+k:]
	}
	return b[k*ld+c:]
}

// pack packs k x n elements of op(B).
func (s *set[T]) pack(w *worker[T], dst, src []T, ld int, trans bool, k, n int) {
	if trans {
		s.packBT(w, dst, s.panelSize(k, s.cols), src, ld, k, n)
	} else {
		s.packB(w, dst, s.panelSize(k, s.cols), src, ld, k, n)
	}
}

func (s *set[T]) packedSize(k, n int) int {
	return ceil(n, s.cols) * (k/s.kc*s.panelSize(s.kc, s.cols) + s.panelSize(k%s.kc, s.cols))
}

// block is the panels from column c on of the block of k rows at k0.
func (p *Packed[T]) block(s *set[T], k0, k, c int) []T {
	return p.data[k0/s.kc*s.panelSize(s.kc, s.cols)*ceil(p.n, s.cols)+c/s.cols*s.panelSize(k, s.cols):]
}

// atLeast is x, or a new slice at the start of a cache line, of at least n elements.
func atLeast[T Float](x []T, n int) []T {
	if len(x) >= n {
		return x
	}
	const line = 64
	size := int(unsafe.Sizeof(*new(T)))
	x = make([]T, n+line/size)
	skip := int(-uintptr(unsafe.Pointer(&x[0])) % line / uintptr(size))
	return x[skip : skip+n]
}
