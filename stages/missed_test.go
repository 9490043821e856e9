package stages_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// told is an optimizer that notes which steps it is told to make.
type told struct{ steps *[]int }

func (told) States() int { return 0 }

func (o told) Update(_ gpustage.Stream, _, _ gpustage.Tensor, _ []gpustage.Tensor, _ []optim.Segment, _, _ float64, step int) {
	*o.steps = append(*o.steps, step)
}

// An optimizer's own steps, by which Adam corrects its moments, are those that it has made: neither steps that were skipped count, nor those that were missed before
// a run went on.
func TestOptimizerSteps(t *testing.T) {
	for missed, want := range map[int][]int{0: {1, 2, 3, 4, 5}, 1: {0, 1, 2, 3, 4}} { // the run begins with its first step all the same
		p, err := openParts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var steps []int
		u := plain
		u.OnNaN, u.Optimizer, u.Missed = stages.SkipOnNaN, told{&steps}, missed
		step := -1
		heavy := func(b *stages.Batch) *stages.Batch {
			if step++; step == 1 || step == 4 {
				b.Weights = slices.Repeat([]float64{math.Inf(1)}, len(b.Rows))
			}
			return b
		}
		norms, err := wire(t.Context(), p, nil, wiring{batch: heavy, order: dataset.SamplerConfig{Epochs: 4}}, p.text, u, loss.InfoNCE{})
		if err != nil || len(norms) < 7 || !slices.Equal(steps[:5], want) {
			t.Errorf("%d missed: %v after %d steps: the optimizer is told of %v, want %v", missed, err, len(norms), steps, want)
		}
	}
}

// A loss that is not finite although its gradient is ends a run, or has its step skipped, as one does whose gradient is not: what it says of the model is nothing to
// go by.
func TestLossNotFinite(t *testing.T) {
	for _, value := range []float64{math.NaN(), math.Inf(1)} {
		p, err := openParts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		l := loss.Host(func(b *loss.Batch, _, gradient [][]float32) (loss.Result, error) {
			gradient[0][0] = 1
			return loss.Result{Sum: value, Weight: float64(b.Rows)}, nil
		})
		norms, err := wire(t.Context(), p, nil, wiring{}, p.text, plain, l)
		if !errors.Is(err, loss.ErrNotFinite) || !strings.Contains(err.Error(), "step 1: ") || !strings.Contains(err.Error(), "although its gradient is") || len(norms) != 0 {
			t.Errorf("%v: %v after %d steps", value, err, len(norms))
		}
		var steps []int
		u := plain
		u.OnNaN, u.Optimizer = stages.SkipOnNaN, told{&steps}
		if norms, err := wire(t.Context(), p, nil, wiring{}, p.text, u, l); err != nil || len(norms) == 0 || len(steps) > 0 {
			t.Errorf("%v: %v after %d steps, of which the optimizer has made %d", value, err, len(norms), len(steps))
		}
	}
}
