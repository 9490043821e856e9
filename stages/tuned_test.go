package stages_test

import (
	"bytes"
	"fmt"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// Whatever of a model trains and whatever ranks of a shard axis hold of it, the gradient is the single process's in f64, weights do not
// depend on who holds them, and what is sent is the plan's, with as many gathers and reductions as there are layers to fetch and
// gradients to reduce.
func TestShardsTuned(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"bert-qv", "bert-save", "bert-save-places", "bert-frozen", "bert-layers", "bert-embeddings", "qwen3-qo", "qwen3-last-o", "qwen3-norm"} {
		if testing.Short() && i >= 4 { // ranks meet on the four meshes below
			break
		}
		base := goldenRun{adapted: name, negatives: true, loss: loss.InfoNCE{}, globalSize: 9, accumulate: 2, maxSteps: 3, optimizer: optim.SGD{Momentum: 0.9}, dropout: 0.1, loraDropout: 0.2}
		truth := base
		truth.device, truth.dtype, truth.budget, truth.maxSteps = ref.New(), gpustage.F64, -1, 1
		want := truth.run(t)
		mesh := [][2]int{{2, 2}, {4, 2}, {3, 3}, {4, 4}}[i%4] // ranks, shards
		c := base
		c.ranks, c.shards, c.every, c.size = mesh[0], mesh[1], i%3, stages.Size{Rows: 5 + i%3}
		if mesh[0] == 3 {
			c.size = stages.Size{Tokens: 100} // some ranks have fewer sub-batches
		}
		if i%4 == 1 {
			c.budget = -1
		}
		resident := map[bool]goldenResult{} // by Early
		for k, x := range sharding {
			c.exchange = x
			c.exchange.NoOverlap = (i+k)%4 == 3
			got := c.run(t)
			label := fmt.Sprintf("%s, mesh %v, %+v", name, mesh, c.exchange)
			if p, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 1e-5) {
				t.Errorf("%s: %s is off by %.3g", label, p, e)
			}
			if !x.Streamed {
				resident[x.Early] = got
			} else if !bytes.Equal(got.weights, resident[x.Early].weights) || !bytes.Equal(got.grad, resident[x.Early].grad) {
				t.Errorf("%s: the bits are not those of resident parameters", label)
			}
			checkCounts(t, label, c, got, checkTraffic(t, label, got))
		}
	}
}

// checkCounts counts from what the model is, not from what the plan says.
func checkCounts(t *testing.T, label string, r goldenRun, got goldenResult, stage map[string]int) {
	t.Helper()
	l := got.model.Layout
	layers, pieces, reductions := got.model.Config.Layers, 0, 0 // of a visit to each layer
	for layer := range layers {
		for _, p := range []int{l.Part(layer).Frozen, l.Part(layer).Trained()} {
			if p > 0 {
				pieces++
			}
		}
		if l.Part(layer).Trained() > 0 {
			reductions++
		}
	}
	table := 0
	if l.Part(transformer.Outside).Trained() > 0 {
		reductions++
	}
	if l.Trains(l.Word()) {
		table = 1
	}
	subs, words, summed := 0, 0, 0 // of them, those in which some rank of the axis, or for the last one of all, has tokens
	for i, b := range got.batches {
		for u := range b.Subs() {
			tokens := func(ranks int) int {
				for _, p := range b.Peers[:ranks] {
					if u < len(p.SubIDs) && len(p.SubIDs[u]) > 0 {
						return 1
					}
				}
				return 0
			}
			subs++
			words += tokens(r.shards)
			if u == 0 && i == len(got.batches)-1 {
				summed += tokens(r.ranks)
			} else {
				summed += tokens(r.shards)
			}
		}
	}
	if n := stage[stages.FetchForEmbed]; r.exchange.Streamed && n != subs*pieces+words {
		t.Errorf("%s: %d gathers for embed, want %d", label, n, subs*pieces+words)
	}
	wanted := 0
	if r.exchange.Early {
		wanted = subs*reductions + summed*table
		if r.ranks > r.shards { // the table so far, layers, what is outside, the last rows
			wanted += table + reductions + table
		}
	}
	if n := stage[stages.ReduceEarly]; n != wanted {
		t.Errorf("%s: %d early reductions, want %d", label, n, wanted)
	}
}
