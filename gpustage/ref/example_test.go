package ref_test

import (
	"fmt"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// A row that is normalized in double precision, and the gradient of the sum of what comes out: moving all of the row changes nothing.
func Example() {
	d := ref.New()
	s := ref.NewStream(d)
	tensor := func(cols int, numbers ...float64) gpustage.Tensor {
		t, err := gpustage.NewTensor(d, gpustage.F64, 1, cols)
		if err != nil {
			s.Fail(err)
			return t
		}
		if len(numbers) > 0 {
			gpustage.Upload(s, t, numbers)
		}
		return t
	}
	x, gamma, beta := tensor(4, 1, 1, 5, 5), tensor(4, 1, 1, 1, 1), tensor(4)
	y, mean, rstd := tensor(4), tensor(1), tensor(1)
	s.LayerNorm(y, mean, rstd, x, gamma, beta, 0)
	dy, dx, dGamma, dBeta := tensor(4, 1, 1, 1, 1), tensor(4), tensor(4), tensor(4)
	s.LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma, gpustage.Dropped{})
	if err := s.Sync(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(gpustage.Slice[float64](y), gpustage.Slice[float64](dx), gpustage.Slice[float64](dGamma))
	// Output: [-1 -1 1 1] [0 0 0 0] [-1 -1 1 1]
}
