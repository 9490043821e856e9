package launch

import (
	"cmp"
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// MatMul is a product and what surrounds it: in one call of the library where that can do all of it, else with a kernel after.
func (s *Stream) MatMul(c, a, b tensor, o gpustage.MatMul) {
	as := o
	as.PreAct, as.GradOf, as.Again = as32(o.PreAct), as32(o.GradOf), as32(o.Again)
	m, n, k, err := gpustage.CheckMatMul(as32(c), as32(a), as32(b), as)
	if err == nil && !o.BF16 && halves(c, a, b, o.PreAct, o.GradOf, o.Again) != 0 {
		err = fmt.Errorf("matmul: tensors of bf16, where it is not to round a and b")
	}
	if s.Refuse(err) || !s.f32("matmul", as32(a)) {
		return
	}
	if o.Pairs && !o.BF16 && !s.Separate && m > 0 && n > 0 && k > 0 && bare(o) && o.ColumnSum.IsZero() && o.ResultSum.IsZero() {
		s.ofPairs(c, a, b, o)
		return
	}
	// Sums of c's rows, unless the last pass makes them as well, which is found out on the way.
	rowSum, summed := o.ResultSum, false
	if of := c; !rowSum.IsZero() {
		o.ResultSum = tensor{}
		defer func() {
			if !summed {
				s.columnSums(rowSum, tensor{}, of)
			}
		}()
	}
	var beside tensor
	if m > 0 && n > 0 && k > 0 && s.canSumBeside(a, c, o) {
		beside, o.ColumnSum = o.ColumnSum, tensor{}
	}
	a, b = s.inputs(a, b, o)
	if s.err != nil || m == 0 || n == 0 {
		return
	}
	if then := o.Norm; !then.Y.IsZero() && !s.joinsNorm(c, o) {
		if rounded := c; half(rounded) { // the norm is of what is rounded into c
			if c = then.Y; o.Add {
				s.convert(c, rounded)
			}
			defer func() {
				s.convert(rounded, then.Y)
				then.Of(s, then.Y)
			}()
		} else {
			defer then.Of(s, c)
		}
		o.Norm = gpustage.Norm{}
	}
	p := Product{A: s.matrix(a), B: s.matrix(b), TransA: o.TransA, TransB: o.TransB, BF16: o.BF16, TF32: o.TF32 && !o.BF16, Alpha: float32(o.Alpha)}
	if o.Alpha == 0 {
		p.Alpha = 1
	}
	if c.IsZero() { // PreAct alone
		if k > 0 && o.Act != gpustage.GELUTanh && s.takesBias(p, o.PreAct, o) {
			s.multiply(s.into(p, o.PreAct, o.Bias, o.BiasForms))
			return
		}
		// The library may make both, and PreAct by itself have other bits.
		c = s.scratch(o.PreAct.DType, m, BF16Cols(n)).Columns(0, n)
		if s.err != nil {
			return
		}
	}
	if !beside.IsZero() {
		s.productAndSums(p, c, a, beside, o.Add)
		return
	}
	if k > 0 {
		if fused, ok := s.fused(p, c, o); ok {
			s.multiply(fused)
			if !o.Again.IsZero() {
				s.activate(o.Again, o.GradOf, o.Act)
			}
			return
		}
	}
	plain := o.Linear() && o.Norm.Y.IsZero() && (o.Residual.IsZero() || !half(c)) && !(o.Add && !o.Residual.IsZero())
	refused := (plain || !o.PreAct.IsZero()) && k > 0 && !s.takesBias(p, c, o)
	if plain && !refused {
		p = s.into(p, c, o.Bias, o.BiasForms)
		if !o.Residual.IsZero() {
			p.D = s.matrix(o.Residual)
		}
		p.Beta = float32(flag(o.Add || !o.Residual.IsZero()))
		s.sum(c, p, k)
		return
	}
	summed = s.surrounded(p, c, m, n, k, refused, rowSum, o)
}

// ofPairs is a product of f32 as three of bf16, the small ones first. By arithmetic, for an H200 and 4,096 x 4,096 scores of 384 features: 95 us and
// 30 to take a tile apart, where a product of f32 takes 250.
func (s *Stream) ofPairs(c, a, b tensor, o gpustage.MatMul) {
	p := Product{TransA: o.TransA, TransB: o.TransB, BF16: true, Alpha: float32(cmp.Or(o.Alpha, 1))}
	aHi, aLo := s.toPairs(a)
	bHi, bLo := s.toPairs(b)
	if s.err != nil {
		return
	}
	for i, x := range [][2]tensor{{aLo, bHi}, {aHi, bLo}, {aHi, bHi}} {
		p.A, p.B = s.matrix(x[0]), s.matrix(x[1])
		p.Beta = float32(flag(o.Add || i > 0))
		s.multiply(s.into(p, c, tensor{}, nil))
	}
}

// surrounded is a product, and one kernel for what surrounds it. It goes where that kernel reads it: to PreAct, which is to have it (with the bias,
// unless the library has refused it), to c, or where c still has to say something, to scratch memory. It tells whether rowSum has been added to.
func (s *Stream) surrounded(p Product, c tensor, m, n, k int, refused bool, rowSum tensor, o gpustage.MatMul) (summed bool) {
	acc, bias, added := c, o.Bias, tensor{}
	switch {
	case !o.PreAct.IsZero() && !refused:
		acc, bias, added = o.PreAct, tensor{}, o.Bias
	case half(c) && !o.Norm.Y.IsZero() && !refused && !o.Norm.Y.SamePlace(o.Residual):
		acc = o.Norm.Y
	case refused || o.Add || c.SamePlace(o.Residual) || c.SamePlace(o.GradOf) || half(c) && !o.Norm.Y.IsZero():
		acc = s.scratch(gpustage.F32, m, n)
	}
	if s.err != nil {
		return false
	}
	s.sum(acc, s.into(p, acc, added, o.BiasForms), k)
	if refused && !o.PreAct.IsZero() {
		args := append([]any{o.PreAct, acc, flat(bias), tensor{}, tensor{}, int(gpustage.Identity)}, drops(gpustage.Dropout{})...)
		s.pointwise("epilogue", 4, m, n, append(args, tensor{}, false, halves(o.PreAct, acc), s.wide(o.PreAct, acc, bias))...)
		acc, bias = o.PreAct, tensor{}
	}
	if !o.Norm.Y.IsZero() {
		s.epilogueNorm(c, acc, bias, o)
		return false
	}
	if !rowSum.IsZero() && !s.Separate && !o.GradOf.IsZero() && bias.IsZero() && !o.Dropout.Active() && o.Residual.IsZero() && !o.Add {
		parts := s.parts(rowSum, c)
		grid, ts := [3]int{ceil(n, 128), ceil(m, chunkRows), 1}, []tensor{c, acc, o.GradOf, o.Again}
		narrow := func(t tensor) bool { return !t.IsZero() && !(half(t) && s.eights(t)) }
		if n%8 == 0 && !slices.ContainsFunc(ts, narrow) {
			s.launch("gradient_sums_wide", grid, [3]int{128, 1, 1}, 0, c, acc, o.GradOf, o.Again, int(o.Act), flat(parts), m, n)
		} else {
			s.launch("gradient_sums", grid, [3]int{block, 1, 1}, 0, c, acc, o.GradOf, o.Again, int(o.Act), flat(parts), halves(ts...), s.wide(ts...), m, n)
		}
		s.addUp(rowSum, parts, n)
		s.added()
		return true
	}
	if half(c) && half(acc) && bias.IsZero() && o.GradOf.IsZero() && !o.Dropout.Active() && o.Residual.IsZero() && !o.Add {
		s.activate(c, acc, o.Act)
		return false
	}
	args := append([]any{c, acc, flat(bias), o.GradOf, o.Again, int(o.Act)}, drops(o.Dropout)...)
	args = append(args, o.Residual, o.Add, halves(c, acc, o.GradOf, o.Again), s.wide(c, acc, bias, o.GradOf, o.Again, o.Residual))
	s.pointwise("epilogue", 4, m, n, args...)
	return false
}

// roundsTwice tells whether the library would round a product c in bf16 before it adds a bias, and again: cuBLASLt 13.0 on an H200 does where rows don't
// begin at multiples of 16 bytes.
func (s *Stream) roundsTwice(c tensor) bool { return half(c) && !s.eights(c) }

// takesBias tells whether the library adds o's bias to a product of this shape, if there is a bias. PyTorch keeps from asking where a side is 1,
// which some of the library's versions call an invalid value (aten/src/ATen/native/cuda/Blas.cpp).
func (s *Stream) takesBias(p Product, c tensor, o gpustage.MatMul) bool {
	if o.Bias.IsZero() {
		return true
	}
	if !o.PreAct.IsZero() {
		c = o.PreAct
	}
	p.C, p.D, p.Half, p.Bias = s.matrix(c), s.matrix(c), half(c), s.address(o.Bias)
	if s.roundsTwice(c) {
		return false
	}
	if p.Half {
		p.Bias = 16 // it will be rounded, into scratch memory: no worse aligned
	}
	if !o.Residual.IsZero() {
		p.D = s.matrix(o.Residual)
	}
	ok, err := s.driver.Fuses(p)
	if err != nil {
		s.Fail(fmt.Errorf("matmul: %w", err))
	}
	return ok
}

// into is a product that goes to c, with a bias in c's type: the library has no other one for bf16.
func (s *Stream) into(p Product, c, bias tensor, forms *gpustage.Forms) Product {
	p.C, p.D, p.Half = s.matrix(c), s.matrix(c), half(c)
	if p.Half && !bias.IsZero() {
		bias = s.parameter(bias, forms)
	}
	p.Bias = s.address(bias)
	return p
}

// joinsNorm tells whether a product's last pass is one of ours, and one that can end in a norm: dropout, with a residual or without, or the rounding
// of a sum. A norm that leaves an operand, too, is of a sum that is rounded where it is kept: both are made of the same product, and so of the same bits.
func (s *Stream) joinsNorm(c tensor, o gpustage.MatMul) bool {
	return !s.Separate && (o.Dropout.Active() || half(c) || !o.Norm.Operand.IsZero()) && o.PreAct.IsZero() && o.GradOf.IsZero() && o.Act == gpustage.Identity && !o.Add
}

func (s *Stream) matrix(t tensor) Matrix { return Matrix{s.address(t), t.Rows, t.Cols, t.Stride} }

// fused is p with GELU, or its derivative, in the library's epilogue: if o asks for what that computes, the memory suits it and the library has
// it for this shape.
//
// The library's GELU is the tanh approximation (pytorch/pytorch#104061 changed PyTorch's other paths to agree with it), so the exact one is
// never left to it; and its tanh is itself approximated, to about 11 bits in f32, which is good enough for products whose inputs are
// rounded and not for those of f32.
func (s *Stream) fused(p Product, c tensor, o gpustage.MatMul) (Product, bool) {
	if s.Separate || o.Act != gpustage.GELUTanh || !p.BF16 && !p.TF32 || o.Add || !o.Residual.IsZero() || o.Dropout.Active() {
		return p, false
	}
	aux := o.PreAct
	p.Epilogue = GELU
	if !o.GradOf.IsZero() {
		p.Epilogue, aux = DGELU, o.GradOf
	}
	if aux.IsZero() || c.SamePlace(aux) || half(c) != half(aux) || p.Epilogue == DGELU && !o.Bias.IsZero() {
		return p, false
	}
	p.C, p.D, p.Aux, p.Half = s.matrix(c), s.matrix(c), s.matrix(aux), half(c)
	if p.Bias = s.address(o.Bias); p.Half && p.Bias != 0 {
		if s.roundsTwice(c) {
			return p, false
		}
		p.Bias = 16 // it will be rounded, into scratch memory: no worse aligned
	}
	// CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: a row at least, and divisible by 8.
	if p.Aux.Stride < p.Aux.Cols || p.Aux.Stride%8 != 0 || p.Aux.At%16 != 0 {
		return p, false
	}
	ok, err := s.driver.Fuses(p)
	if err != nil {
		s.Fail(fmt.Errorf("matmul: %w", err))
	}
	if ok {
		p = s.into(p, c, o.Bias, o.BiasForms)
	}
	return p, ok
}

// canSumBeside tells whether the library could sum a's columns while it multiplies: a is in bf16 as it is, and nothing else is asked for.
func (s *Stream) canSumBeside(a, c tensor, o gpustage.MatMul) bool {
	return !s.Separate && !o.ColumnSum.IsZero() && o.TransA && half(a) && !half(c) && (o.Alpha == 0 || o.Alpha == 1) && bare(o)
}

// bare tells whether c is the product, or has it added, and nothing follows but sums.
func bare(o gpustage.MatMul) bool {
	return o.Linear() && o.Bias.IsZero() && o.Residual.IsZero() && o.Norm.Y.IsZero()
}

// productAndSums is a product, and the sums of a's columns added to sum: a weight's gradient and its bias's. The library may make them of what it
// reads anyway; a pass over a before reads 2 bytes an element, 18 C of a token for a layer of BERT's shape.
func (s *Stream) productAndSums(p Product, c, a, sum tensor, add bool) {
	p = s.into(p, c, tensor{}, nil)
	p.Beta = float32(flag(add))
	both := p
	both.Epilogue, both.Bias = ColumnSums, 16 // sums will go into scratch memory: no worse aligned
	ok, err := s.driver.Fuses(both)
	if err != nil {
		s.Fail(fmt.Errorf("matmul: %w", err))
		return
	}
	if !ok {
		s.columnSums(sum, tensor{}, a)
		s.multiply(p)
		return
	}
	sums := s.take(&s.sums.pool, gpustage.F32, 1, a.Cols)
	both.Bias = s.address(sums)
	s.multiply(both)
	s.addUp(sum, sums, a.Cols)
	s.added()
}

// multiply is one call of the library.
func (s *Stream) multiply(p Product) {
	if s.err != nil {
		return
	}
	s.settleProduct(p)
	if err := s.product(p); err != nil {
		s.Fail(p.failed(err))
	}
}

// sum is a product without an epilogue.
func (s *Stream) sum(c tensor, p Product, k int) {
	if k > 0 {
		s.multiply(p)
		return
	}
	// Libraries differ about sums of nothing.
	if p.Beta == 0 {
		s.pointwise("fill", 1, c.Rows, c.Cols, c, uint64(0), 2-int(flag(p.Half)))
	}
	if p.Bias != 0 || p.Beta != 0 && p.D != p.C {
		s.Fail(fmt.Errorf("matmul: an inner size of 0 with a bias or a residual is not supported on this device"))
	}
}

// bf16Key is of the form that a product in bf16 keeps of a parameter.
type bf16Key struct{}

// BF16Bytes is what it takes.
func BF16Bytes(rows, cols int) int { return rows * BF16Cols(cols) * 2 }

// PackedBytes is what a device keeps of a [k, n] parameter besides: that form, in bf16 mode.
func PackedBytes(k, n int, bf16 bool) int {
	if !bf16 {
		return 0
	}
	return BF16Bytes(k, n)
}

// BF16Cols makes rows of bf16 begin at multiples of 16 bytes, which tensor cores' fast paths want.
func BF16Cols(cols int) int { return (cols + 7) &^ 7 }

// inputs are a and b as the product takes them. Rounding a reads all of it, and sums its columns as it goes.
func (s *Stream) inputs(a, b tensor, o gpustage.MatMul) (tensor, tensor) {
	sum, to, full := o.ColumnSum, a, true
	if o.BF16 {
		if half(b) {
			b = s.aligned(b)
		} else {
			b = s.parameter(b, o.Forms)
		}
		if half(a) {
			to = s.aligned(a)
		} else {
			to, full = s.room(a, o.Rounded)
		}
	}
	switch {
	case s.err != nil:
	case full || s.Separate:
		if !full {
			s.toBF16(to, a)
		}
		if !sum.IsZero() {
			s.columnSums(sum, tensor{}, a)
		}
	case !sum.IsZero():
		s.columnSums(sum, to, a)
	default:
		s.toBF16(to, a)
	}
	return to, b
}

// aligned is t, of bf16, or a copy of it, with rows where tensor cores' fast paths want them. Models whose sizes are multiples of 8 need none.
func (s *Stream) aligned(t tensor) tensor {
	if s.address(t)%16 == 0 && t.Stride%8 == 0 {
		return t
	}
	to := s.scratchBF16(t)
	if s.err == nil {
		s.convert(to, t)
	}
	return to
}

// room is where a goes in bf16, and whether it is there already.
func (s *Stream) room(a tensor, r *gpustage.Rounded) (to tensor, full bool) {
	if r == nil || s.Separate || s.address(r.Room)%16 != 0 || r.Room.Stride%8 != 0 {
		return s.scratchBF16(a), false
	}
	to, full = r.Room, r.Full
	to.Cols, r.Full = a.Cols, true
	return to, full
}

// parameter is b, a matrix or a bias, in bf16: a form of it that is kept if there is room.
func (s *Stream) parameter(b tensor, forms *gpustage.Forms) tensor {
	if forms != nil {
		view := func(m gpustage.Memory) any {
			return tensor{Mem: m, Rows: b.Rows, Cols: b.Cols, Stride: BF16Cols(b.Cols), DType: gpustage.BF16}
		}
		form, err := forms.Get(s.device, bf16Key{}, BF16Bytes(b.Rows, b.Cols), view, func(form any) error {
			s.toBF16(form.(tensor), b)
			return s.err
		})
		if err != nil {
			s.Fail(err)
			return tensor{}
		}
		if form != nil {
			return form.(tensor)
		}
	}
	to := s.scratchBF16(b)
	if s.err == nil {
		s.toBF16(to, b)
	}
	return to
}

// scratchBF16 is room for t in bf16.
func (s *Stream) scratchBF16(t tensor) tensor {
	to := s.scratch(gpustage.BF16, t.Rows, BF16Cols(t.Cols))
	to.Cols = t.Cols
	return to
}
