package stages_test

import (
	"bytes"
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

// A model of three parts, as one process or as ranks with unequal rows and none: the gradient is the plain computation's in f64, however
// batches are cut, cached, gathered and replayed.
func TestM3Metamorphic(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, base := range harness.Few([]goldenRun{
		{negatives: true, loss: loss.M3{Scale: 5, MaskDuplicates: true, SelfDistill: true}, dropout: 0.1},
		{loss: loss.M3{Scale: 5, Parts: []string{loss.VectorsPart}}, globalSize: 5, accumulate: 2},
		{negatives: true, loss: loss.M3{Scale: 5, Parts: []string{loss.SparsePart}}, globalSize: 7, accumulate: 2},
	}, 1) {
		base.vectors, base.maxSteps, base.optimizer = 20, 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		for _, ranks := range []int{0, 0, 2, 3, 4} {
			c := base
			c.ranks = ranks
			if ranks == 4 {
				c.shards = 2
			}
			l := base.loss.(loss.M3)
			l.Block, l.TileCols = 1<<rng.IntN(20), 1+rng.IntN(300)
			c.loss = l
			c.size = stages.Size{Rows: 1 + rng.IntN(20)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 18, 1 << 20}[rng.IntN(4)]
			c.every = rng.IntN(4)
			c.exchange = stages.Exchanging{NoOverlap: rng.IntN(2) == 0, Early: rng.IntN(2) == 0, Streamed: rng.IntN(2) == 0}
			got := c.run(t)
			how := fmt.Sprintf("%+v: %d ranks, %+v, budget %d, activation checkpointing every %d, %+v", l, ranks, c.size, c.budget, c.every, c.exchange)
			if name, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 2e-5) {
				t.Errorf("%s: %s is off by %.3g", how, name, e)
			}
			if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 1e-6*w) {
				t.Errorf("%s: loss %v, want %v", how, got.steps[0].Loss, w)
			}
		}
	}
}

// Special tokens have no lexical weight in training: where all are special, documents are told apart by nothing.
func TestM3Special(t *testing.T) {
	r := goldenRun{loss: loss.M3{Scale: 5, Parts: []string{loss.SparsePart}}, vectors: 20, globalSize: 5, accumulate: 1, maxSteps: 1, optimizer: optim.SGD{}}
	if got := r.run(t).steps[0].Loss; math.Abs(got-math.Log(5)) < 1e-3 {
		t.Errorf("loss %v: there is nothing to see", got)
	}
	for id := range int32(30000) {
		r.special = append(r.special, id)
	}
	for _, r.ranks = range []int{0, 2} {
		if got := r.run(t).steps[0].Loss; !(math.Abs(got-math.Log(5)) <= 1e-6) {
			t.Errorf("%d ranks: loss %v, want log 5", r.ranks, got)
		}
	}
}

// For one partition no bit depends on what is kept; ranks send what the plan says.
func TestM3BitEqual(t *testing.T) {
	harness.Thorough(t)
	base := goldenRun{negatives: true, loss: loss.M3{Scale: 5}, vectors: 20, dropout: 0.1, size: stages.Size{Tokens: 150}, maxSteps: 3, ranks: 3}
	checkKept(t, "m3", base)
}

// checkKept finds bits of a run of ranks that depend on what is kept or when it is sent, and what is sent beside what the plan says.
func checkKept(t *testing.T, name string, base goldenRun) {
	t.Helper()
	want := base.run(t)
	for what, change := range map[string]func(*goldenRun){
		"kept":          func(r *goldenRun) { r.budget = -1 },
		"checkpointing": func(r *goldenRun) { r.every = 1; r.budget = 1 << 17 },
		"serial":        func(r *goldenRun) { r.exchange.NoOverlap = true },
	} {
		c := base
		change(&c)
		if got := c.run(t); !bytes.Equal(got.weights, want.weights) {
			t.Errorf("%s, %s: the weights' bits differ after %d steps", name, what, len(got.steps))
		}
	}
	checkTraffic(t, name, want)
}
