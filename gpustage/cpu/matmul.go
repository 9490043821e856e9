package cpu

import (
	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/vec"
)

// MatMul is gemm's product with the epilogue fused.
func (s *Stream) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	m, n, k, err := gpustage.CheckMatMul(c, a, b, o)
	if s.Refuse(err) {
		return
	}
	if c.IsZero() {
		s.Stream.MatMul(c, a, b, o) // refuses
		return
	}
	if !o.ColumnSum.IsZero() {
		s.ColumnSum(o.ColumnSum, a)
		o.ColumnSum = gpustage.Tensor{}
	}
	if sum := o.ResultSum; !sum.IsZero() {
		defer s.ColumnSum(sum, c)
		o.ResultSum = gpustage.Tensor{}
	}
	if n := o.Norm; !n.Y.IsZero() {
		defer n.Of(s, c)
		o.Norm = gpustage.Norm{}
	}
	plain := o.Linear() && o.Bias.IsZero() && o.Residual.IsZero()
	switch {
	case c.DType == gpustage.F32:
		s.matmul32(c, a, b, m, n, k, o, plain)
	case c.DType == gpustage.F64 && plain && !o.BF16:
		s.Fail(s.f64.Multiply(&gemm.Job[float64]{
			M: m, N: n, K: k, Alpha: o.Alpha, TransA: o.TransA, TransB: o.TransB, Add: o.Add,
			A: gpustage.Slice[float64](a), LDA: a.Stride, B: gpustage.Slice[float64](b), LDB: b.Stride, C: gpustage.Slice[float64](c), LDC: c.Stride,
		}, s.d.pool))
	case c.DType == gpustage.F64 && !o.BF16:
		s.matmul64(c, a, b, o)
	default:
		s.Stream.MatMul(c, a, b, o)
	}
}

// matmul64 computes the product fast and lets ref do the epilogue.
func (s *Stream) matmul64(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	acc, err := gpustage.NewTensor(s.d, gpustage.F64, c.Rows, c.Cols)
	if s.Refuse(err) {
		return
	}
	defer acc.Mem.Free()
	s.MatMul(acc, a, b, gpustage.MatMul{TransA: o.TransA, TransB: o.TransB, Alpha: o.Alpha})
	s.Epilogue(c, acc, o)
}

func (s *Stream) matmul32(c, a, b gpustage.Tensor, m, n, k int, o gpustage.MatMul, plain bool) {
	j := gemm.Job[float32]{
		M: m, N: n, K: k, Alpha: float32(o.Alpha), TransA: o.TransA, TransB: o.TransB, Add: o.Add, BF16: o.BF16,
		A: f32(a), LDA: a.Stride, B: f32(b), LDB: b.Stride, C: f32(c), LDC: c.Stride,
	}
	if !plain {
		e := epilogue{v: s.v, o: o, c: j.C, ldc: j.LDC, preAct: s.rowsOf(o.PreAct), gradOf: s.rowsOf(o.GradOf), again: s.rowsOf(o.Again), residual: s.rowsOf(o.Residual)}
		if o.Add || c.SamePlace(o.Residual) || c.SamePlace(o.GradOf) { // c is read after the product: that goes elsewhere first
			e.out, e.ldout = j.C, j.LDC
			j.C, j.LDC, j.Add = grow(&s.scratch, m*n), n, false
			e.c, e.ldc = j.C, j.LDC
		}
		if o.Dropout.Active() {
			e.drop = vec.NewDropout(o.Dropout)
			e.rowOf, e.pos, e.keys = ints(o.Dropout.Seqs.Row), ints(o.Dropout.Seqs.Pos), gpustage.Slice[uint64](o.Dropout.Seqs.Keys)
		}
		j.Epilogue = e.block
	}
	if o.Forms != nil {
		p, err := s.packed(o.Forms, &j)
		if s.Refuse(err) {
			return
		}
		j.Packed = p
	}
	s.Fail(s.f32.Multiply(&j, s.d.pool))
}

// packed is a parameter packed for j's kernels; nil if there is no room to keep it. Against packing for each product (AVX2,
// one thread, 1536 x 384 both ways), it takes 1.4 to 1.9 times off a product of 16 rows, 1.1 to 1.2 off one of 64, 1.05 off
// one of 256, and little beyond.
func (s *Stream) packed(f *gpustage.Forms, j *gemm.Job[float32]) (*gemm.Packed[float32], error) {
	type key struct{ trans, bf16 bool }
	size := s.f32.PackedSize(j.K, j.N, j.BF16)
	made, err := f.Get(s.d, key{j.TransB, j.BF16}, 4*size,
		func(m gpustage.Memory) any {
			return gemm.NewPacked(f32(gpustage.Tensor{Mem: m, Rows: 1, Cols: size, Stride: size}))
		},
		func(p any) error {
			return s.f32.Pack(p.(*gemm.Packed[float32]), j.B, j.LDB, j.TransB, j.K, j.N, j.BF16, s.d.pool)
		})
	p, _ := made.(*gemm.Packed[float32])
	return p, err
}

// epilogue finishes blocks of a product.
type epilogue struct {
	v     *vec.Kernels
	o     gpustage.MatMul
	c     []float32
	ldc   int
	out   []float32 // where the result goes, or what it is added to; nil if it stays in c
	ldout int

	preAct, gradOf, again, residual vec.Rows

	drop       vec.Dropout
	rowOf, pos []int32
	keys       []uint64
}

func (e *epilogue) block(_, row0, row1, col0, col1 int) {
	o := &e.o
	var bias []float32
	if !o.Bias.IsZero() {
		bias = f32(o.Bias)[col0:col1]
	}
	for i := row0; i < row1; i++ {
		y := e.c[i*e.ldc+col0 : i*e.ldc+col1]
		x := y
		if !o.PreAct.IsZero() {
			x = e.preAct.Part(i, col0, col1)
		}
		if bias != nil {
			e.v.Add(x, y, bias)
		} else if !o.PreAct.IsZero() {
			copy(x, y)
		}
		switch {
		case !o.GradOf.IsZero():
			pre := e.gradOf.Part(i, col0, col1)
			e.v.ActBackward(o.Act, y, x, pre)
			if !o.Again.IsZero() {
				e.v.Act(o.Act, e.again.Part(i, col0, col1), pre)
			}
		case o.Act != gpustage.Identity:
			e.v.Act(o.Act, y, x)
		case !o.PreAct.IsZero() && bias != nil:
			copy(y, x)
		}
		var residual []float32
		if !o.Residual.IsZero() {
			residual = e.residual.Part(i, col0, col1)
		}
		if o.Dropout.Active() {
			d := e.drop
			d.Key, d.Pos = e.keys[e.rowOf[i]], uint32(e.pos[i])
			e.v.Dropout(y, y, residual, col0, d)
		} else if residual != nil {
			e.v.Add(y, y, residual)
		}
		if e.out == nil {
			continue
		}
		if z := e.out[i*e.ldout+col0 : i*e.ldout+col1]; o.Add {
			e.v.Add(z, z, y)
		} else {
			copy(z, y)
		}
	}
}

// rowsOf is t's rows, for who asks for so many of them that finding each in a tensor would cost a fiftieth of a step; none if t is absent.
func (s *Stream) rowsOf(t gpustage.Tensor) vec.Rows {
	if t.IsZero() {
		return vec.Rows{}
	}
	return s.layout(t, 0, t.Rows)
}

// part is columns lo to hi of row i.
func part(t gpustage.Tensor, i, lo, hi int) []float32 { return row(t, i)[lo:hi] }
