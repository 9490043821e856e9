package pipeline_test

import (
	"context"
	"fmt"
	"io"

	"contraflow/pipeline"
)

// A stream of words is batched by two, and every batch is joined.
func Example() {
	words := []string{"all", "you", "need", "is", "negatives"}

	g := pipeline.New("example")
	stream := pipeline.Source(g, "read", func(context.Context) (string, error) {
		if len(words) == 0 {
			return "", io.EOF
		}
		w := words[0]
		words = words[1:]
		return w, nil
	})

	batch := g.Stage("batch")
	word := pipeline.In(batch, "word", stream)
	batches := pipeline.Batches[[]string](batch, "batches")
	var open []string
	batch.Do(func(t *pipeline.Task) error {
		if !t.Ended() {
			open = append(open, word.Get(t))
		}
		if len(open) == 2 || t.Ended() && len(open) > 0 {
			batches.Put(t, open, true) // each batch is a step of its own
			open = nil
		}
		return nil
	})

	pipeline.Sink(g, "print", batches.Port, func(t *pipeline.Task, ws []string) error {
		fmt.Println(t.Index, ws)
		return nil
	})

	plan, err := g.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := plan.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0.0 [all you]
	// 1.0 [need is]
	// 2.0 [negatives]
}

// Mistakes that the compiler can't see are all found before anything runs.
func ExampleGraph_Build() {
	g := pipeline.New("broken")
	pipeline.Sink(g, "loss", pipeline.Port[float64]{}, func(*pipeline.Task, float64) error { return nil },
		pipeline.On(2, pipeline.Compute))
	_, err := g.Build()
	fmt.Println(err)
	// Output:
	// graph "broken": stage "loss": input "loss": not connected, want float64
	// graph "broken": stage "loss": placed on device 2, but there are 0 devices
}
