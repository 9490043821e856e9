package stages_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

// gradientError is that of the worst tensor.
func gradientError(l *transformer.Layout, got, want []byte) (string, float64) {
	g, w := float64s(got), float64s(want)
	largest := 0.0
	for _, v := range w {
		largest = max(largest, math.Abs(v))
	}
	name, worst := "", 0.0
	for _, p := range l.Training() {
		at, end := l.At(p), l.At(p)+p.Len()
		e := transformer.GradientError(g[at:end], w[at:end], transformer.GradientFloor*largest)
		if math.IsNaN(e) {
			return p.Name, e
		}
		if e > worst {
			name, worst = p.Name, e
		}
	}
	return name, worst
}

func float64s(b []byte) []float64 {
	out := make([]float64, len(b)/8)
	copy(gpustage.Bytes(out), b)
	return out
}

// However a step is computed (sub-batches, replay budget, activation checkpointing, tiles, threads), its gradient is that of
// the plain computation in f64. Dropout is on; its masks follow the rows.
func TestMetamorphic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(11, 12))
	for _, base := range harness.Few([]goldenRun{
		{negatives: true, loss: loss.InfoNCE{MaskDuplicates: true}, dropout: 0.1},
		{negatives: true, loss: loss.InfoNCE{Directions: loss.Directions}, dropout: 0.2, globalSize: 24, accumulate: 3},
		{loss: loss.InfoNCE{Directions: []loss.Direction{loss.QueryToDoc, loss.DocToQuery}, PerDirection: true}, globalSize: 7, accumulate: 2},
	}, 2) {
		base.maxSteps, base.optimizer = 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		l := base.loss.(loss.InfoNCE)
		l.TileRows, l.TileCols = 1000, 1000
		truth.loss = l
		want := truth.run(t)
		for range 8 {
			c := base
			l.TileRows, l.TileCols = 1+rng.IntN(30), 1+rng.IntN(80)
			c.loss = l
			c.size = stages.Size{Rows: 1 + rng.IntN(50)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 18, 1 << 20}[rng.IntN(4)]
			c.every = rng.IntN(4)
			c.tokenizers = 1 + rng.IntN(3)
			name, e := gradientError(want.model.Layout, c.run(t).grad, want.grad)
			if !(e <= 1e-5) {
				t.Errorf("%s: %s is off by %.3g", describe(c), name, e)
			}
		}
	}
}

func describe(r goldenRun) string {
	l := r.loss.(loss.InfoNCE)
	return fmt.Sprintf("sub-batches %+v, budget %d, activation checkpointing every %d, tiles %dx%d, dropout %v", r.size, r.budget, r.every, l.TileRows, l.TileCols, r.dropout)
}

// For one division into sub-batches the replay budget, activation checkpointing, the number of workers and the run change
// no bit, of the gradient and of the weights after five steps.
func TestBitEqual(t *testing.T) {
	base := goldenRun{negatives: true, loss: loss.InfoNCE{}, dropout: 0.1, size: stages.Size{Tokens: 150}, maxSteps: 5}
	want := base.run(t)
	for _, change := range []func(*goldenRun){
		func(r *goldenRun) {},
		func(r *goldenRun) { r.budget = -1 },
		func(r *goldenRun) { r.budget = 1 << 18 }, // two of four sub-batches lean, the others replayed
		func(r *goldenRun) { r.budget = 1 << 20 }, // whole and lean ones
		func(r *goldenRun) { r.every = 1; r.budget = 1 << 17 },
		func(r *goldenRun) { r.every = 2 },
		func(r *goldenRun) { r.workers, r.tokenizers = 6, 4 },
	} {
		c := base
		change(&c)
		got := c.run(t)
		if !bytes.Equal(got.grad, want.grad) {
			t.Errorf("%s: the first gradient's bits differ", describe(c))
		}
		if !bytes.Equal(got.weights, want.weights) {
			t.Errorf("%s: the weights' bits differ after %d steps", describe(c), len(got.steps))
		}
	}
	c := base
	c.dropout = 0
	if bytes.Equal(c.run(t).grad, want.grad) {
		t.Error("dropout changes nothing: this test would not see its masks")
	}
}

// The replay budget keeps the last sub-batches, and the predicted arena suffices.
func TestReplayBudget(t *testing.T) {
	small := goldenRun{negatives: true, loss: loss.InfoNCE{}, size: stages.Size{Rows: 8}, maxSteps: 1}
	forwards := func(budget int64) int {
		d := &counting{Device: processor(t)}
		r := small
		r.device, r.budget = d, budget
		r.run(t)
		return int(d.pools.Load())
	}
	// 48 sequences in 6 sub-batches: every forward pass pools once.
	if got := forwards(-1); got != 6 {
		t.Errorf("unlimited budget: %d forward passes, want 6", got)
	}
	if got := forwards(0); got != 12 {
		t.Errorf("no budget: %d forward passes, want 12", got)
	}
	if got := forwards(400 << 10); got <= 6 || got >= 12 {
		t.Errorf("a budget for some: %d forward passes", got)
	}
}

// counting is a device that counts passes: a forward pass pools once and attends in every layer, a backward pass pools back once.
type counting struct {
	gpustage.Device
	pools, attentions, poolBacks atomic.Int64
}

type countingStream struct {
	gpustage.Stream
	d *counting
}

func (c *counting) OpenStream() (gpustage.Stream, error) {
	s, err := c.Device.OpenStream()
	return &countingStream{s, c}, err
}

func (s *countingStream) Pool(y, x gpustage.Tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	s.d.pools.Add(1)
	s.Stream.Pool(y, x, q, mode)
}

func (s *countingStream) PoolBackward(dx, dy gpustage.Tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	s.d.poolBacks.Add(1)
	s.Stream.PoolBackward(dx, dy, q, mode)
}

func (s *countingStream) Attention(ctx, lse, q, k, v gpustage.Tensor, o gpustage.Attention) {
	s.d.attentions.Add(1)
	s.Stream.Attention(ctx, lse, q, k, v, o)
}
