package vec_test

import (
	"fmt"
	"log"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/vec"
)

// A softmax over a row of scores, as attention and the losses compute it.
func Example() {
	k, err := vec.Select("") // the fastest that this processor can run
	if err != nil {
		log.Fatal(err)
	}
	scores := []float32{1, 3, 2, 0}
	p := make([]float32, len(scores))
	sum := k.ExpSum(p, scores, k.Max(scores))
	k.Scale(p, p, 1/sum)
	fmt.Printf("%.4f\n", p)
	// Output: [0.0871 0.6439 0.2369 0.0321]
}

// What a linear layer does to its product: add the bias, keep the sum for the backward pass, and activate.
func ExampleKernels_BiasAct() {
	k, _ := vec.Select("portable")
	product, bias := []float32{-1, 0, 1}, []float32{0.5, 0.5, 0.5}
	y, pre := make([]float32, 3), make([]float32, 3)
	k.BiasAct(gpustage.GELU, y, pre, product, bias)
	dx := make([]float32, 3)
	k.ActBackward(gpustage.GELU, dx, []float32{1, 1, 1}, pre)
	fmt.Printf("%.4f %.4f %.4f\n", pre, y, dx)
	// Output: [-0.5000 0.5000 1.5000] [-0.1543 0.3457 1.3998] [0.1325 0.8675 1.1275]
}
