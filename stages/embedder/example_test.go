package embedder_test

import (
	"context"
	"fmt"
	"time"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/embedder"
)

// A folder of Hugging Face or sentence-transformers is a model that embeds, for any number of goroutines at once.
func Example() {
	e, err := embedder.Load("../../testdata/golden/bert/minilm-tiny") // a small random model; hfmodel.Resolve finds those of the hub
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	vectors, err := e.EmbedPrompt(ctx, "query", []string{"what flies", "what swims"})
	if err != nil {
		fmt.Println(err)
		return
	}
	same, err := e.Similarity(ctx, e.Prompt("query"), []string{"what flies"}, []string{"what flies"})
	fmt.Printf("%d vectors of %d numbers; a text and itself: %.3f %v\n", len(vectors), len(vectors[0]), same[0], err)
	// Output: 2 vectors of 32 numbers; a text and itself: 1.000 <nil>
}
