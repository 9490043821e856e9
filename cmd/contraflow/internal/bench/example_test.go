package bench_test

import (
	"fmt"

	"contraflow/cmd/contraflow/internal/bench"
	"contraflow/stages/transformer"
)

// The arithmetic of a training step: 64 queries of 39 tokens and 64 documents of 97 through MiniLM-L6.
func ExampleStepWork() {
	miniLM := transformer.Config{Layers: 6, Hidden: 384, FeedForward: 1536}
	var lengths []int
	for range 64 {
		lengths = append(lengths, 39, 97)
	}
	work := bench.StepWork(miniLM, lengths)
	fmt.Printf("%.0f GFLOP, or %.1f pairs/s at 200 GFLOP/s\n", work/1e9, 64/(work/200e9))
	// Output: 574 GFLOP, or 22.3 pairs/s at 200 GFLOP/s
}

func ExampleSpreadOf() {
	fmt.Println(bench.SpreadOf([]float64{9, 7.5, 8.1, 12}))
	// Output: 8.55 (7.50 to 12.0)
}
