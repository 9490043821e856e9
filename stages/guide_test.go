package stages_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/newmodel"
	"contraflow/stages/optim"
)

// guideFolder is a new model with a vocabulary of its own.
func guideFolder(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "guide")
	raw, err := os.ReadFile(goldenTexts(t))
	if err != nil {
		t.Fatal(err)
	}
	spec := newmodel.Spec{Hidden: 32, Layers: 1, MaxLength: 40, Vocab: 150, Lowercase: true, Seed: 5}
	if err := newmodel.Create(t.Context(), dir, spec, newmodel.Texts(strings.Split(string(raw), "\n"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A guide with a tokenizer of its own, with sub-batches, replay, unequal rows on several ranks and accumulation, on the model's device or
// another: the gradient is that of the plain computation in one process, and the traffic what was planned.
func TestGuideOnRanks(t *testing.T) {
	other, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l := loss.InfoNCE{Directions: []loss.Direction{loss.QueryToDoc, loss.QueryToQuery, loss.PositiveToPositive}, Guide: &loss.Guide{Margin: 0.001, Relative: true}}
	base := goldenRun{source: ragged, loss: l, guide: guideFolder(t), dropout: 0.1, globalSize: 13, accumulate: 2, maxSteps: 1, optimizer: optim.SGD{}}
	truth := base
	truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
	want := truth.run(t)
	for i, c := range []goldenRun{
		{},
		{size: stages.Size{Rows: 3}, guideDevice: other},
		{size: stages.Size{Tokens: 90}, ranks: 3},
		{size: stages.Size{Rows: 5}, ranks: 3, budget: -1, guideDevice: ref.New()},
		{size: stages.Size{Rows: 7}, ranks: 4, shards: 2, exchange: stages.Exchanging{Early: true, Streamed: true}},
		{size: stages.Size{Tokens: 200}, ranks: 8, guideDevice: other},
	} {
		if testing.Short() && i%2 == 0 { // the guide's device and ranks meet in these as in the others
			continue
		}
		c.source, c.loss, c.guide, c.dropout, c.globalSize, c.accumulate, c.maxSteps, c.optimizer = base.source, l, base.guide, base.dropout, base.globalSize, base.accumulate, 1, base.optimizer
		got := c.run(t)
		if where, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 1e-5) {
			t.Errorf("case %d, %d ranks: %s is off by %.3g", i, c.ranks, where, e)
		}
		if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 1e-5*math.Abs(w)) {
			t.Errorf("case %d, %d ranks: loss %v, want %v", i, c.ranks, got.steps[0].Loss, w)
		}
		if c.ranks > 1 {
			checkTraffic(t, fmt.Sprint("case ", i), got)
		}
	}
	// The guide leaves candidates out, and not all of them.
	l.Guide = nil
	base.loss = l
	if _, e := gradientError(want.model.Layout, base.run(t).grad, want.grad); !(e > 0.01) {
		t.Errorf("without the guide the gradient differs by %.3g", e)
	}
	if w := want.steps[0].Loss; !(w > 0.1) {
		t.Errorf("loss %v: the guide leaves out everything", w)
	}
}
