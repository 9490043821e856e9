package cpu_test

import (
	"fmt"
	"slices"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
)

// A product on one thread and on three has the same bits.
func Example() {
	product := func(threads int) []float32 {
		d, err := cpu.New(cpu.Threads(threads))
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer d.Close()
		s, err := d.OpenStream()
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer s.Close()
		const n = 100
		numbers, out := make([]float32, n*n), make([]float32, n*n)
		for i := range numbers {
			numbers[i] = float32(i%7) / 3
		}
		var x, y gpustage.Tensor
		for _, t := range []*gpustage.Tensor{&x, &y} {
			if *t, err = gpustage.NewTensor(d, gpustage.F32, n, n); err != nil {
				s.Fail(err)
			}
		}
		gpustage.Upload(s, x, numbers)
		s.MatMul(y, x, x, gpustage.MatMul{})
		s.CopyOut(gpustage.Bytes(out), y)
		if err := s.Sync(); err != nil {
			fmt.Println(err)
		}
		return out
	}
	fmt.Println(slices.Equal(product(1), product(3)))
	// Output: true
}
