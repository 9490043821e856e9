package mix_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"contraflow/io/hfmodel"
	"contraflow/stages/mix"
)

// A model that was fine-tuned and the one that it began with become one that keeps something of both. Here the two are the same.
func Example() {
	out, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(out)
	model := filepath.Join("..", "..", "testdata", "golden", "bert", "minilm-tiny")

	mixed := filepath.Join(out, "mixed")
	err = mix.Write(context.Background(), mixed, []mix.Model{{Path: model, Weight: 0.7}, {Path: model, Weight: 0.3}}, mix.Options{Precision: "bf16"})
	if err != nil {
		log.Fatal(err)
	}
	f, err := hfmodel.Open(mixed)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	t, err := f.Tensor("encoder.layer.0.output.dense.bias")
	fmt.Println(t, err)
	// Output: encoder.layer.0.output.dense.bias BF16 [32] <nil>
}

// The weights of models whose losses on a few examples are 0.4 and 0.9.
func ExampleByLoss() {
	weights, err := mix.ByLoss([]float64{0.4, 0.9}, 0.5)
	fmt.Printf("%.3f %v\n", weights, err)
	// Output: [0.731 0.269] <nil>
}
