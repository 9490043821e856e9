package bench_test

import (
	"fmt"

	"contraflow/cmd/contraflow/internal/bench"
	"contraflow/stages/transformer"
)

// The arithmetic of a training step: 64 queries of 39 tokens and 64 documents of 97 through MiniLM-L6.
func ExampleWork() {
	miniLM := transformer.Config{
		Family: "bert", Vocab: 30522, Hidden: 384, Layers: 6, Heads: 12, FeedForward: 1536, MaxPositions: 512, TypeVocab: 2, NormEps: 1e-12,
	}
	work, err := bench.NewWork(miniLM)
	if err != nil {
		fmt.Println(err)
		return
	}
	var lengths []int
	for range 64 {
		lengths = append(lengths, 39, 97)
	}
	flop := work.Step(lengths)
	fmt.Printf("%.0f GFLOP, or %.1f pairs/s at 200 GFLOP/s\n", flop/1e9, 64/(flop/200e9))
	// Output: 574 GFLOP, or 22.3 pairs/s at 200 GFLOP/s
}

func ExampleSpreadOf() {
	fmt.Println(bench.SpreadOf([]float64{9, 7.5, 8.1, 12}))
	// Output: 8.55 (7.50 to 12.0)
}
