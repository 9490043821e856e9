package safetensors_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"contraflow/io/safetensors"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")

	weight, err := safetensors.FromFloat32s("dense.weight", []int{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	if err != nil {
		log.Fatal(err)
	}
	if err := safetensors.Write(path, []safetensors.Tensor{weight}, map[string]string{"format": "pt"}); err != nil {
		log.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	t, err := f.Tensor("dense.weight")
	if err != nil {
		log.Fatal(err)
	}
	values := make([]float32, t.Len())
	if err := t.Float32s(values); err != nil {
		log.Fatal(err)
	}
	fmt.Println(t, values)
	// Output: dense.weight F32 [2 3] [1 2 3 4 5 6]
}
