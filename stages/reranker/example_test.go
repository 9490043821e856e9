package reranker_test

import (
	"context"
	"fmt"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/reranker"
)

func Example() {
	r, err := reranker.Load("../../testdata/golden/rerank/cross") // a small random model
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	scores, err := r.Score(context.Background(), "a small bird", []string{"The cat sees a bird.", "open the file"})
	fmt.Printf("%.3f %v\n", scores, err)
	// Output: [1.161 1.078] <nil>
}
