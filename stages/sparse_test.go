package stages_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

// Sparse embeddings and their regularizer, as one process or as ranks with unequal rows and none: the gradient is the plain computation's in f64, however
// batches are cut, cached, gathered and replayed, and so is what was found of the batch.
func TestSparseMetamorphic(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	flops := loss.Flops{Loss: loss.InfoNCE{Scale: 1, Dot: true, MaskDuplicates: true}, Query: 0.02, Document: 0.01}
	ragged := flops
	ragged.QueryAbove, ragged.DocumentAbove = 40, 50
	for _, base := range harness.Few([]goldenRun{
		{negatives: true, loss: flops, dropout: 0.1, sparse: "tied"},
		{loss: ragged, globalSize: 5, accumulate: 2, sparse: "tied"},
		{negatives: true, loss: flops, globalSize: 7, accumulate: 2, sparse: "untied"},
		{negatives: true, loss: flops, dropout: 0.1, globalSize: 7, accumulate: 2, sparse: "tied", weighed: true},
	}, 1) {
		base.maxSteps, base.optimizer = 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		if p := want.steps[0].Sparsity; p == nil || !(p.Added > 1e-2*want.steps[0].Loss) || p.QueryActive < 1 {
			t.Errorf("%+v: there is nothing to see", p)
		}
		for _, ranks := range []int{0, 0, 2, 3, 4} {
			c := base
			if c.ranks = ranks; ranks == 4 {
				c.shards = 2
			}
			c.size = stages.Size{Rows: 1 + rng.IntN(20)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 18, 1 << 20}[rng.IntN(4)]
			c.every = rng.IntN(4)
			c.exchange = stages.Exchanging{NoOverlap: rng.IntN(2) == 0}
			if base.sparse == "untied" && !base.weighed {
				c.exchange.Early, c.exchange.Streamed = rng.IntN(2) == 0, rng.IntN(2) == 0
			}
			got := c.run(t)
			how := fmt.Sprintf("%s, weighed %t: %d ranks, %+v, budget %d, activation checkpointing every %d, %+v", c.sparse, c.weighed, ranks, c.size, c.budget, c.every, c.exchange)
			if name, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 2e-5) {
				t.Errorf("%s: %s is off by %.3g", how, name, e)
			}
			if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 1e-6*w) {
				t.Errorf("%s: loss %v, want %v", how, got.steps[0].Loss, w)
			}
			g, w := got.steps[0].Sparsity, want.steps[0].Sparsity
			for i, x := range [][2]float64{{g.QueryFlops, w.QueryFlops}, {g.DocumentFlops, w.DocumentFlops}, {g.QueryActive, w.QueryActive}, {g.DocumentActive, w.DocumentActive}, {g.Added, w.Added}} {
				if !(math.Abs(x[0]-x[1]) <= 1e-5*x[1]) {
					t.Errorf("%s: figure %d of the batch is %v, want %v", how, i, x[0], x[1])
				}
			}
		}
	}
}

// For one partition no bit depends on what is kept; ranks send what the plan says.
func TestSparseBitEqual(t *testing.T) {
	harness.Thorough(t)
	l := loss.Flops{Loss: loss.InfoNCE{Scale: 1, Dot: true}, Query: 0.02, Document: 0.01, Warmup: 2}
	base := goldenRun{negatives: true, loss: l, dropout: 0.1, size: stages.Size{Tokens: 150}, maxSteps: 3, ranks: 3, sparse: "tied"}
	checkKept(t, "sparse", base)
	base.weighed = true
	checkKept(t, "queries of weights", base)
}

// Rows of the word embeddings do not travel alone where all of them have a gradient.
func TestSparseNotEarly(t *testing.T) {
	c, err := transformer.ParseConfig([]byte(`{"model_type":"bert","vocab_size":20,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":8}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.MLMHead, err = c.MLM([]byte("{}"), false); err != nil {
		t.Fatal(err)
	}
	err = local.Run(2, func(w collective.World) error {
		ctx := context.Background()
		comm, err := collective.Connect(ctx, w, collective.Mesh{Replicate: 1, Shard: 2})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(ctx, comm, stages.Exchanging{Early: true})
		if err != nil {
			return err
		}
		m, err := transformer.New(ref.New(), c, transformer.Head{}, transformer.Options{})
		if err != nil {
			return err
		}
		_, err = stages.NewEncoder(pipeline.New("g"), m, 0, 0, 1, stages.With(ranks))
		return err
	}, local.Deadline(time.Minute))
	if err == nil || !strings.Contains(err.Error(), "mesh.gradients") {
		t.Errorf("early gradients: %v", err)
	}
}
