package vec_test

import (
	"fmt"
	"log"

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
