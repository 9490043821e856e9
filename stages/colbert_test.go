package stages_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/testdata/harness"
)

// A model of tokens' vectors alone, with queries filled up, by tokens that the others attend to or not, and tokens of documents left out, as one process or as ranks with unequal rows and
// none, on a device that pads or not: the gradient is the plain computation's in f64, however batches are cut, cached, gathered and replayed.
func TestColBERTMetamorphic(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for _, base := range harness.Few([]goldenRun{
		{negatives: true, loss: loss.LateInteraction{MaskDuplicates: true}, dropout: 0.1},
		{loss: loss.LateInteraction{Metric: loss.MeanMaxSim, Scale: 9}, globalSize: 5, accumulate: 2, unseen: true},
	}, 1) {
		base.colbert, base.maxSteps, base.optimizer = true, 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		for i, ranks := range []int{0, 0, 2, 3, 4} {
			c := base
			c.ranks = ranks
			if ranks == 4 {
				c.shards = 2
			}
			if i%2 == 1 {
				c.device = padding{processor(t)}
			}
			l := base.loss.(loss.LateInteraction)
			l.Block, l.TileCols = 1<<rng.IntN(20), 1+rng.IntN(300)
			c.loss = l
			c.size = stages.Size{Rows: 1 + rng.IntN(20)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 18, 1 << 20}[rng.IntN(4)]
			c.every = rng.IntN(3)
			c.exchange = stages.Exchanging{NoOverlap: rng.IntN(2) == 0, Early: rng.IntN(2) == 0, Streamed: i%2 == 0 && rng.IntN(2) == 0}
			got := c.run(t)
			how := fmt.Sprintf("%+v: %d ranks, %+v, budget %d, activation checkpointing every %d, %+v", l, ranks, c.size, c.budget, c.every, c.exchange)
			if name, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 2e-5) {
				t.Errorf("%s: %s is off by %.3g", how, name, e)
			}
			if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 2e-6*w) {
				t.Errorf("%s: loss %v, want %v", how, got.steps[0].Loss, w)
			}
		}
	}
}

// For one partition no bit depends on what is kept; ranks send what the plan says.
func TestColBERTBitEqual(t *testing.T) {
	harness.Thorough(t)
	base := goldenRun{negatives: true, loss: loss.LateInteraction{}, colbert: true, unseen: true, dropout: 0.1, size: stages.Size{Tokens: 150}, maxSteps: 3, ranks: 3}
	checkKept(t, "colbert", base)
}
