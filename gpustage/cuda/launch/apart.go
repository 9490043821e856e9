package launch

import (
	"errors"

	"contraflow/gpustage"
)

// ErrRefused is wrapped by what a driver's Multiply answers if the library turns out not to have a product with the epilogue, or the bias, with which
// Fuses has said that it has it. It has then begun nothing. Fuses goes on saying so: a shape's products come the same way each time, and so to the same
// bits.
var ErrRefused = errors.New("the library refuses it")

// multiplied has the driver multiply. What the library refuses with what is fused with it is computed without: by then the op that asked has been
// issued, and its other launches count on this one.
func (s *Stream) multiplied(p Product) error {
	err := s.driver.Multiply(p)
	if errors.Is(err, ErrRefused) && (p.Epilogue != NoEpilogue || p.Bias != 0) {
		return s.apart(p)
	}
	return err
}

// apart is the plain product, and kernels for its epilogue, started at once. What is rounded to bf16 behind a bias is f32 before: scratch memory of its
// own, as what the ops have taken belongs to launches that are held back. When the work is recorded it has come before, and there is room.
func (s *Stream) apart(p Product) error {
	r := &s.repeats
	defer func(was bool) { r.holding = was }(r.holding)
	r.holding = false
	s.spare.clear()
	plain, c, kind := p, p.C, gpustage.F32
	plain.Bias, plain.Epilogue, plain.Aux = 0, NoEpilogue, Matrix{}
	if p.Half {
		kind = gpustage.BF16
	}
	if p.Epilogue == ColumnSums {
		if err := s.driver.Multiply(plain); err != nil {
			return err
		}
		s.sumsApart(p)
		return s.err
	}
	acc, add, bias := c, false, p.Bias
	if p.Epilogue == GELU {
		acc = p.Aux
	}
	if p.Half && bias != 0 {
		if p.Beta != 0 && (p.Beta != 1 || p.D != c) {
			return errors.New("a bias, and a sum in bf16 with what lies elsewhere")
		}
		add, plain.Beta, plain.Half = p.Beta != 0, 0, false
		acc = s.matrix(s.take(&s.spare, gpustage.F32, c.Rows, c.Cols))
		wide := s.take(&s.spare, gpustage.F32, 1, c.Cols)
		if s.err != nil {
			return s.err
		}
		s.pointwise("convert", 1, 1, c.Cols, wide, int(gpustage.F32), Matrix{At: bias}, int(kind))
		bias = s.address(wide)
	}
	if plain.C = acc; acc != c {
		plain.D = acc
	}
	if err := s.driver.Multiply(plain); err != nil {
		return err
	}
	// around is the kernel for to = f(from + bias), or from * f'(gradOf), to which to may be added.
	around := func(to, from Matrix, ofBF16 bool, bias uintptr, gradOf Matrix, f gpustage.Activation, add bool) {
		size := kind.Size()
		wide := byFours(to, size) && byFours(gradOf, size) && (ofBF16 && byFours(from, 2) || !ofBF16 && byFours(from, 4)) && bias%16 == 0
		halves := int(flag(p.Half)) | int(flag(ofBF16))<<1 | int(flag(p.Half))<<2
		args := append([]any{to, from, uint64(bias), gradOf, Matrix{}, int(f)}, drops(gpustage.Dropout{})...)
		s.pointwise("epilogue", 4, to.Rows, to.Cols, append(args, Matrix{}, add, halves, wide)...)
	}
	switch p.Epilogue {
	case DGELU:
		around(c, acc, plain.Half, 0, p.Aux, gpustage.GELUTanh, false)
	case GELU:
		if bias != 0 {
			around(p.Aux, acc, plain.Half, bias, Matrix{}, gpustage.Identity, false)
		}
		around(c, p.Aux, p.Half, 0, Matrix{}, gpustage.GELUTanh, false)
	default:
		around(c, acc, plain.Half, bias, Matrix{}, gpustage.Identity, add)
	}
	return s.err
}

// sumsApart are the sums of a's columns, which the library would have made beside a product.
func (s *Stream) sumsApart(p Product) {
	a, size := p.A, 4
	if p.BF16 {
		size = 2
	}
	parts := s.take(&s.spare, gpustage.F32, ceil(a.Rows, chunkRows), a.Cols)
	if s.err != nil {
		return
	}
	s.launch("column_sums", [3]int{ceil(a.Cols, 128), parts.Rows, 1}, [3]int{block, 1, 1}, 0, flat(parts), Matrix{}, a, int(flag(p.BF16)), byFours(a, size), a.Rows, a.Cols)
	s.pointwise("fill", 1, 1, a.Cols, Matrix{At: p.Bias}, uint64(0), 2)
	var args sumArgs
	args.sum[0] = sum{p.Bias, s.address(parts), int32(parts.Rows), int32(a.Cols), int64(a.Cols)}
	s.launch("column_finish", [3]int{ceil(a.Cols, 32), 1, 1}, [3]int{32 * min(parts.Rows, 32), 1, 1}, 0, &args)
}

// byFours tells whether a matrix's rows, of elements of so many bytes, may be moved four elements at a time.
func byFours(m Matrix, size int) bool {
	return m.At%uintptr(4*size) == 0 && (m.Rows <= 1 || m.Stride%4 == 0)
}
