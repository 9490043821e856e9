package stages_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

// padding is a device that models pad sub-batches for, and that has no use for it.
type padding struct{ gpustage.Device }

func (padding) Repeats() bool { return true }

// Padded sub-batches give the gradient of the plain computation in f64, as one process or as ranks, whatever ranks exchange and hold.
func TestPaddedMetamorphic(t *testing.T) {
	harness.Thorough(t)
	rng := rand.New(rand.NewPCG(61, 62))
	for _, base := range []goldenRun{
		{negatives: true, loss: loss.InfoNCE{}, dropout: 0.1},
		{negatives: true, loss: loss.M3{Scale: 5}, vectors: 20, globalSize: 5, accumulate: 2},
		{negatives: true, loss: loss.Flops{Loss: loss.InfoNCE{Scale: 1, Dot: true}, Query: 0.02, Document: 0.01, DocumentAbove: 40}, sparse: "untied", globalSize: 5, accumulate: 2},
	} {
		base.maxSteps, base.optimizer = 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		for _, ranks := range []int{0, 0, 2, 3, 4} {
			c := base
			c.device, c.ranks = padding{processor(t)}, ranks
			if ranks == 4 {
				c.shards = 2
			}
			c.size = stages.Size{Rows: 1 + rng.IntN(20)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 20}[rng.IntN(3)]
			c.every = rng.IntN(3)
			c.exchange = stages.Exchanging{NoOverlap: rng.IntN(2) == 0, Early: ranks == 4 && rng.IntN(2) == 0}
			got := c.run(t)
			how := fmt.Sprintf("%d ranks, %+v, budget %d, activation checkpointing every %d, %+v", ranks, c.size, c.budget, c.every, c.exchange)
			if name, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 2e-5) {
				t.Errorf("%s: %s is off by %.3g", how, name, e)
			}
		}
	}
}

// Training with recordings has the bits of training on the same device without, losses and weights, and within f32's rounding those of a
// device that knows neither recordings nor padding: replayed and kept sub-batches, activation checkpointing, several batches to a
// step, bf16, whose forms of the parameters are made anew after each update.
func TestRecordedSteps(t *testing.T) {
	kernels := onhost.OpenUnchecked(t, onhost.Plain)
	for name, c := range map[string]goldenRun{
		"replayed": {size: stages.Size{Rows: 4}, globalSize: 4, accumulate: 2, maxSteps: 2},
		"kept":     {size: stages.Size{Rows: 4}, budget: -1, every: 2, globalSize: 4, accumulate: 1, maxSteps: 3},
		"lean":     {size: stages.Size{Rows: 4}, budget: 1 << 17, globalSize: 4, accumulate: 1, maxSteps: 3},
		"bf16":     {size: stages.Size{Rows: 4}, bf16: true, globalSize: 4, accumulate: 1, maxSteps: 3},
		"sparse":   {size: stages.Size{Rows: 4}, sparse: "tied", loss: loss.Flops{Loss: loss.InfoNCE{Scale: 1, Dot: true}, Query: 0.02, Document: 0.01}, globalSize: 4, accumulate: 1, maxSteps: 2},
	} {
		t.Run(name, func(t *testing.T) {
			if c.dropout = 0.1; c.loss == nil {
				c.loss = loss.InfoNCE{}
			}
			run := func(m onhost.Mode) (goldenResult, onhost.Counts) {
				d := kernels.As(m)
				c.device = d
				return c.run(t), d.Counts()
			}
			got, done := run(onhost.Recorded)
			padded, each := run(onhost.Padded)
			if !bytes.Equal(got.weights, padded.weights) || !bytes.Equal(got.grad, padded.grad) {
				t.Error("recordings change bits")
			}
			for i, s := range got.steps {
				if s.Loss != padded.steps[i].Loss {
					t.Errorf("step %d: loss %v, without recordings %v", i, s.Loss, padded.steps[i].Loss)
				}
			}
			if done.Recorded == 0 || done.Replayed < done.Recorded+2 || each.Recorded != 0 {
				t.Errorf("%+v, without recordings %+v: little is replayed", done, each)
			}
			plain, _ := run(onhost.Plain)
			if name, e := gradientError(plain.model.Layout, got.grad, plain.grad); !(e <= 1e-5) {
				t.Errorf("the gradient of %s is off by %.3g", name, e)
			}
			for i, s := range got.steps {
				if w := plain.steps[i].Loss; !(math.Abs(s.Loss-w) <= 1e-4*w) {
					t.Errorf("step %d: loss %v, without padding %v", i, s.Loss, w)
				}
			}
		})
	}
}

// In the steady state a forward pass is one launch, and so is a backward pass, behind the two that bring its gradient to its place: nothing is
// allocated, started by itself or recorded. Sub-batches of a bucket have other numbers of tokens and rows and other longest rows; two of
// them differ in the bucket of the longest alone, which no tensor's size shows.
func TestRecordedPasses(t *testing.T) {
	kernels := onhost.OpenUnchecked(t, onhost.Plain)
	c := transformer.Config{
		Family: "bert", Vocab: 30, Hidden: 16, Layers: 1, Heads: 1, FeedForward: 32, MaxPositions: 256, TypeVocab: 2, NormEps: 1e-12, InitRange: 0.3,
		HiddenDropout: 0.1, AttentionDropout: 0.1, Activation: gpustage.GELU,
	}
	batches := [][]int{{100, 20}, {60, 60}, {9, 3, 17, 5}, {12, 4, 9, 8}, {1, 2, 30}}
	const rounds = 3
	type results struct {
		embeddings [][]float32
		grads      []float64
	}
	run := func(mode onhost.Mode) (r results) {
		d := kernels.As(mode)
		m, err := transformer.New(d, c, transformer.Head{Normalize: true}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := m.Init(s, 7); err != nil {
			t.Fatal(err)
		}
		flat, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		room := 0
		for _, lengths := range batches {
			mem := m.Memory(lengths)
			room = max(room, mem.Forward, mem.Backward)
		}
		a, err := gpustage.NewArena(d, room)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(3, 4))
		for round := range rounds {
			before := d.Counts()
			for _, lengths := range batches {
				rows := transformer.Rows{Cu: []int32{0}}
				for _, n := range lengths {
					for range n {
						rows.IDs = append(rows.IDs, int32(rng.IntN(c.Vocab)))
					}
					rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
					rows.Keys = append(rows.Keys, rng.Uint64())
				}
				p := m.Forward(s, a, rows, true, false)
				p.Release()
				p = m.Replay(s, a, rows)
				emb := make([]float32, p.Embeddings().Len())
				s.CopyOut(gpustage.Bytes(emb), p.Embeddings())
				r.embeddings = append(r.embeddings, emb)
				p.Backward(p.Embeddings(), flat)
				p.Release()
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			now, n := d.Counts(), int64(len(batches))
			if mode == onhost.Recorded && round == rounds-1 {
				want := onhost.Counts{Allocs: before.Allocs, Started: before.Started + 2*n, Products: before.Products, Recorded: before.Recorded, Replayed: before.Replayed + 3*n}
				if now != want {
					t.Errorf("a round of %d sub-batches: %+v, before it %+v, want %+v", n, now, before, want)
				}
			}
		}
		r.grads = read64(t, s, flat)
		return r
	}
	got, padded, plain := run(onhost.Recorded), run(onhost.Padded), run(onhost.Plain)
	largest := 0.0
	for _, v := range plain.grads {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range got.grads {
		if v != padded.grads[i] || !(math.Abs(v-plain.grads[i]) <= 1e-5*largest) {
			t.Fatalf("element %d of the gradient is %v, without recordings %v, without padding %v", i, v, padded.grads[i], plain.grads[i])
		}
	}
	for i, e := range got.embeddings {
		for k, v := range e {
			if v != padded.embeddings[i][k] || !(math.Abs(float64(v-plain.embeddings[i][k])) <= 1e-6) {
				t.Fatalf("pass %d: element %d of the embeddings is %v, without recordings %v, without padding %v", i, k, v, padded.embeddings[i][k], plain.embeddings[i][k])
			}
		}
	}
}
