package hfmodel_test

import (
	"context"
	"fmt"
	"log"

	"contraflow/io/hfmodel"
)

func Example() {
	// A folder, or a hub id such as "sentence-transformers/all-MiniLM-L6-v2".
	dir, err := hfmodel.Resolve(context.Background(), "../../testdata/golden/hfmodel/st6", hfmodel.Options{})
	if err != nil {
		log.Fatal(err)
	}
	model, err := hfmodel.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	fmt.Println(model.ModelType, model.Pooling.Mode, model.Normalize, model.MaxSeqLength)

	weight, err := model.Tensor("bert.encoder.layer.1.output.dense.weight", "bert.")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(weight)
	// Output:
	// bert mean true 20
	// encoder.layer.1.output.dense.weight F32 [16 32]
}
