package recipe

import (
	"math"
	"testing"

	"contraflow/testdata/harness"
)

// A model whose embeddings have fewer features than its hidden states, and one without positions, train alike on one rank, and on ranks that hold
// parts of the parameters and reduce rows of the word embeddings with every sub-batch. Losses differ as those of random recipes may.
func TestFamiliesSharded(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 30)
	for _, name := range []string{"electra", "t5"} {
		model := "model.path=" + j.family(t, name, nil)
		run := func(out string, sets ...string) map[int]float64 {
			t.Helper()
			o, err := j.run(t, out+" "+name, nil, 0, false, append(sets, model, "optimizer.eps=0.1")...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return o.losses
		}
		one := run("one")
		for out, sets := range map[string][]string{
			"streamed": {"mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"},
			"last":     {"mesh.replicate=2"},
			"wide":     {"mesh.shard=2", "mesh.replicate=2", "mesh.parameters=resident", "mesh.gradients=early", "batch.sub_batch={rows: 2}"},
		} {
			losses := run(out, sets...)
			if len(losses) != len(one) || len(one) < 3 {
				t.Fatalf("%s: %d and %d steps", name, len(losses), len(one))
			}
			for step, want := range one {
				if got := losses[step]; !(math.Abs(got-want) <= 2e-5*math.Abs(want)) {
					t.Errorf("%s, %s: loss %v of step %d, want %v", name, out, got, step, want)
				}
			}
		}
	}
}
