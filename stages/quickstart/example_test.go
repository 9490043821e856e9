package quickstart_test

import (
	"context"
	"fmt"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/quickstart"
)

// This takes a minute or two, so it is not run with the tests.
func ExampleRun() {
	r, err := quickstart.Run(context.Background(), quickstart.Options{Out: "q", Seed: 42, Sets: []string{"train.epochs=3"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("MRR@10 was %.2f and is %.2f, by BM25 %.2f\n", r.MRR.Before, r.MRR.After, r.MRR.BM25)
}
