package checkpoint_test

import (
	"fmt"
	"log"
	"os"

	"contraflow/io/checkpoint"
)

// Two ranks save a vector of four numbers, half of it each; one reads the middle of it.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store := checkpoint.Open(dir, checkpoint.Disk{})

	state := checkpoint.State{
		Step: 500, Vectors: []string{"weights"}, DType: "U8",
		Parameters: []checkpoint.Parameter{{Name: "bias", Shape: []int{4}}},
	}
	if err := store.Begin(500, 4); err != nil {
		log.Fatal(err)
	}
	for rank, half := range [][]byte{{1, 2}, {3, 4}} {
		part, err := store.WritePart(500, rank, "U8", []checkpoint.Piece{{Vector: "weights", Name: "bias", From: 2 * rank, Data: half}})
		if err != nil {
			log.Fatal(err)
		}
		state.Parts = append(state.Parts, part)
	}
	if err := store.Commit(state, 2); err != nil {
		log.Fatal(err)
	}

	c, err := store.Latest(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	middle := make([]byte, 2)
	if err := c.Read("weights", "bias", 1, middle); err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Step, middle)
	// Output: 500 [2 3]
}
