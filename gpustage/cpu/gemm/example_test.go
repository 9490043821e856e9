package gemm_test

import (
	"fmt"
	"log"

	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/pool"
)

// A linear layer: y[2, 3] = x[2, 2] Wᵀ + bias, for weights stored [3, 2].
func Example() {
	threads := pool.New(2)
	defer threads.Close()
	kernels, err := gemm.Select("") // the fastest there are
	if err != nil {
		log.Fatal(err)
	}
	ws := gemm.NewWorkspace[float32](kernels)

	x := []float32{1, 2, 3, 4}
	w := []float32{1, 0, 0, 1, 1, 1}
	bias := []float32{10, 20, 30}
	y := make([]float32, 6)

	var packed gemm.Packed[float32] // once for each change of w
	if err := ws.Pack(&packed, w, 2, true, 2, 3, false, threads); err != nil {
		log.Fatal(err)
	}
	err = ws.Multiply(&gemm.Job[float32]{
		M: 2, N: 3, K: 2,
		A: x, LDA: 2,
		Packed: &packed,
		C:      y, LDC: 3,
		Epilogue: func(_, row0, row1, col0, col1 int) {
			for i := row0; i < row1; i++ {
				for j := col0; j < col1; j++ {
					y[i*3+j] += bias[j]
				}
			}
		},
	}, threads)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(y)
	// Output: [11 22 33 13 24 37]
}
