package mpi_test

import (
	"context"
	"fmt"
	"os"

	"contraflow/collective/mpi"
)

// What a program does that mpirun has started.
func Example() {
	world, err := mpi.Open(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	all, err := world.Exchange(context.Background(), fmt.Appendf(nil, "rank %d", world.Rank()))
	if err == nil {
		fmt.Printf("%s\n", all)
		err = world.Close()
	}
	if err != nil { // the others' reason, or what they will be told
		world.Abort(err)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
