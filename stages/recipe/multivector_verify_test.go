package recipe_test

import (
	"fmt"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

// Gradients of vectors of tokens hold in every way that a recipe computes them, on ranks and shards too, and planted faults are found.
func TestMultiVectorVerify(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	for plant, sets := range map[recipe.Fault][]string{
		"":                  {`model.query_expansion={strategy: min, length: 12}`, `model.skiplist=["a", "e", "s", "n"]`, "model.vector_dim=20"},
		recipe.FaultMask:    {"loss.similarity=mean_maxsim", "loss.scale=9"},
		recipe.FaultRemote:  nil,
		recipe.FaultFactor:  nil,
		recipe.FaultDropout: nil,
	} {
		x, err := recipe.Open(t.Context(), freshRecipe(t, 1, append([]string{"model.kind=multi_vector"}, sets...)...), recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Rows, o.Plant = []int{2}, []int{3}, 4, plant
		if plant == "" {
			o.Replicas, o.Shards, o.Rows = []int{2}, []int{2}, 5
		}
		seen := ""
		o.Report = func(r recipe.VerifyRow) { seen += fmt.Sprintf("%+v\n", r) }
		if ok, err := x.Verify(t.Context(), o); err != nil || ok != (plant == "") {
			t.Errorf("planted %q: ok is %t, %v\n%s", plant, ok, err, seen)
		}
	}
}
