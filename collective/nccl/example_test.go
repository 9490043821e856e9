package nccl_test

import (
	"context"
	"fmt"
	"os"

	"contraflow/collective/launch"
	"contraflow/collective/nccl"
)

// What a program does that torchrun has started. Without NCCL it is told what is missing.
func Example() {
	job, err := launch.FromEnvironment(os.Getenv)
	if err != nil {
		fmt.Println(err)
		return
	}
	world, err := nccl.Open(context.Background(), job, nccl.OnDevice(func() error {
		return nil // make GPU number job.LocalRank current on this thread
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer world.Close()
	fmt.Println("rank", world.Rank(), "of", world.Size())
}
