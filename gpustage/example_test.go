package gpustage_test

import (
	"fmt"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// A layer of two features, relu(x wᵀ + bias), of three tokens. Operations are given to a stream one after the other, and the first mistake comes
// out of Sync.
func Example() {
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	tensor := func(rows, cols int, numbers ...float32) gpustage.Tensor {
		t, err := gpustage.NewTensor(d, gpustage.F32, rows, cols)
		if err != nil {
			s.Fail(err) // memory was short: every later operation is nothing
			return t
		}
		if len(numbers) > 0 {
			gpustage.Upload(s, t, numbers)
		}
		return t
	}
	x := tensor(3, 2, 1, 2, 3, 4, -5, -6) // [T, C]
	w := tensor(2, 2, 1, 0, 0.5, 0.5)     // [F, C], as Linear weights are
	bias, y := tensor(1, 2, 0, 1), tensor(3, 2)
	s.MatMul(y, x, w, gpustage.MatMul{TransB: true, Bias: bias, Act: gpustage.ReLU})
	out := make([]float32, 6)
	s.CopyOut(gpustage.Bytes(out), y)
	err = s.Sync()
	fmt.Println(out, err)

	s.MatMul(y, x, w, gpustage.MatMul{TransA: true})
	fmt.Println(s.Sync())
	// Output:
	// [1 2.5 3 4.5 0 0] <nil>
	// matmul: a is f32[3 2] (transposed: true), b is f32[2 2] (transposed: false): the inner sizes 3 and 2 differ
}
