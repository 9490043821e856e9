package recipe_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/recipe"
)

// A run is a recipe: read, or made by a program; opened on all of its ranks; trained, with an eye on it. With recipe.Resuming it would go on from
// its newest checkpoint, and a recipe.Control asks it for one, or for its end.
func Example() {
	dir, err := os.MkdirTemp("", "recipe")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	rows := ""
	for i := range 16 {
		rows += fmt.Sprintf("{\"q\": \"what is number %d\", \"p\": \"the stone number %d\"}\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(rows), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	r := recipe.Default()
	r.Model.Path = "../../testdata/golden/bert/minilm-tiny"
	r.Data.Train = []recipe.Source{{Path: []string{filepath.Join(dir, "rows.jsonl")}, Query: "q", Positive: "p"}}
	r.Batch.GlobalSize = 8
	r.Mesh.Replicate = 2 // ranks of this process
	r.Train.Device = "cpu"
	r.Save.Dir = filepath.Join(dir, "run")
	steps := 0
	watch := recipe.Observer{Step: func(m recipe.Metrics) { steps = m.Step }}
	err = recipe.OnRanks(context.Background(), r, recipe.Place{}, watch, func(x *recipe.Run) error {
		s, err := x.Train(context.Background())
		if err == nil && x.Main() {
			_, err = os.Stat(filepath.Join(s.Model, "model.safetensors"))
		}
		return err
	})
	fmt.Println(steps, "steps, and a model:", err == nil)
	// Output: 2 steps, and a model: true
}

// A line says where an error is largest, and what it is compared with, where that is not what one expects.
func ExampleVerifyRow() {
	right := recipe.VerifyRow{Number: 9, Of: 48, Config: "accumulate 1: all kept", Against: "plain, f64", Error: 5.4e-6, Limit: 1e-5, Parameter: "embeddings", OK: true}
	wrong := right
	wrong.Number, wrong.Error, wrong.OK, wrong.Against = 10, 0.25, false, "finite difference"
	fmt.Println(right)
	fmt.Println(wrong)
	fmt.Println(recipe.Ours("per-device-train-batch-size"))
	fmt.Println(recipe.Ours("lr"))
	// Output:
	// ok     9 of 48    5.4e-06  limit 1e-05    accumulate 1: all kept
	// WRONG  10 of 48   0.25     limit 1e-05    accumulate 1: all kept, against finite difference, largest in embeddings
	// batch.global_size: rows of one contrastive batch over all replicas
	// optimizer.lr
}
