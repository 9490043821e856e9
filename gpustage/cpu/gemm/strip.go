package gemm

// Float is what matrices are made of.
type Float interface{ float32 | float64 }

// strip is what a micro-kernel works on: rows of A times packed panels of B. Strides are in elements; in a bf16 kernel an
// element of a and b is a pair of bf16. The generator of the assembly reads this file for the fields' offsets.
type strip[T Float] struct {
	a, b, c    []T
	rs, ks     int // between rows of A, and between steps of k
	pb         int // between panels of B, whose rows follow one another
	ldc        int // between rows of C
	k          int // steps
	rows, cols int // of C
	alpha      T
	add        bool // c = alpha*a*b + c rather than c = alpha*a*b

	// For a set that fetches: A's rows for a later strip start at fetch and are brought into the second-level cache meanwhile: at each step of k,
	// or each fourth, the lines at three rows, a third of a strip apart and fetchRow elements from row to row, fetchStep elements further
	// with each step and a row further with each panel. With both strides 0 nothing much happens.
	fetch               []T
	fetchRow, fetchStep int
}

type (
	strip32 = strip[float32]
	strip64 = strip[float64]
)
