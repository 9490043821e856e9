package stages_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// adaptation is the model of one of testdata/golden/lora/steps, and what of it trains; minilm-tiny for none of them.
func adaptation(t testing.TB, name string) (folder string, h transformer.Head, tuning transformer.Tuning) {
	t.Helper()
	bert, qwen := "bert/minilm-tiny", "lora/qwen3-tiny"
	mean, last := transformer.Head{Normalize: true}, transformer.Head{Pooling: gpustage.LastPooling, Normalize: true}
	lora := func(r int, targets ...string) transformer.Tuning {
		return transformer.Tuning{LoRA: &transformer.LoRA{Rank: r, Alpha: 8, Targets: targets}}
	}
	switch name {
	case "", "bert-full":
		return bert, mean, tuning
	case "bert-qv":
		return bert, mean, lora(4, "query", "value")
	case "qwen3-qo":
		return qwen, last, lora(4, "q_proj", "o_proj")
	case "qwen3-last-o":
		return qwen, last, lora(2, "layers.1.self_attn.o_proj")
	case "bert-save": // the word embeddings train as well, and nothing else outside of layers
		tuning = lora(4, "value")
		tuning.LoRA.Save = []string{"word_embeddings"}
		return bert, mean, tuning
	case "bert-save-places": // some of what is outside of layers trains
		tuning = lora(4, "value")
		tuning.LoRA.Save = []string{"position_embeddings"}
		return bert, mean, tuning
	case "bert-frozen":
		return bert, mean, transformer.Tuning{FreezeEmbeddings: true, FreezeLayers: 1}
	case "bert-layers": // the embeddings' gradient comes through all layers
		return bert, mean, transformer.Tuning{FreezeLayers: 2}
	case "bert-embeddings":
		return bert, mean, transformer.Tuning{FreezeEmbeddings: true}
	case "qwen3-norm": // nothing but the final norm
		return qwen, last, transformer.Tuning{FreezeEmbeddings: true, FreezeLayers: 2}
	}
	t.Fatalf("no adaptation %q", name)
	return
}

// LoRA on and off, activation checkpointing on and off, replicas, shards and accumulated batches, in every combination, and of shards
// all that ranks can hold of a model: each cell's gradient is torch's, of one process without cache. Each bucket is reduced once per optimizer
// step, and nothing else is; early, once per sub-batch.
func TestCrossProduct(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	g := goldens.Load(t, "lora/steps")
	cells, recomputed := 0, 0
	for i, name := range []string{"bert-full", "bert-qv", "qwen3-qo", "qwen3-last-o"} {
		for j, accumulate := range []int{1, 3} {
			key := fmt.Sprintf("%s/%d", name, accumulate)
			// Segments of two of BERT's three layers, the second time chosen so; of one of the decoders' two.
			segment := [][]int{{2, transformer.AutoCheckpoint}, {2, transformer.AutoCheckpoint}, {1, 1}, {1, 1}}[i][j]
			for k, every := range []int{0, segment} {
				for l, replicas := range []int{1, 2} {
					for _, shards := range []int{1, 2} {
						d := &counting{Device: processor(t)}
						r := goldenRun{
							device: d, adapted: name, negatives: true, loss: loss.InfoNCE{}, globalSize: 8, accumulate: accumulate, every: every,
							size: stages.Size{Rows: 5}, maxSteps: 2, optimizer: optim.SGD{}, exchange: stages.Exchanging{BucketBytes: 1 << 10},
						}
						if (i+j+k+l)%2 == 0 { // everything is kept, else replayed: each with any two of the others
							r.budget = -1
						}
						if replicas*shards > 1 {
							r.ranks, r.shards = replicas*shards, shards
						}
						got := r.run(t)
						recomputed += checkPasses(t, r, d, got.model)
						label := fmt.Sprintf("%s, accumulate %d, checkpointing every %d, mesh %d x %d", name, accumulate, every, replicas, shards)
						want := make([]float64, got.model.Layout.Trained())
						for _, p := range got.model.Layout.Training() {
							copy(want[got.model.Layout.At(p):], g.F64(t, key+"/grad/"+p.Name))
						}
						check := func(label string, got goldenResult) {
							t.Helper()
							if p, e := gradientError(got.model.Layout, got.grad, gpustage.Bytes(want)); !(e <= 1e-5) {
								t.Errorf("%s: %s is off by %.3g", label, p, e)
							}
							if w := g.F64(t, key+"/loss")[0]; !(math.Abs(got.steps[0].Loss-w) <= 1e-6*w) {
								t.Errorf("%s: loss %v, want %v", label, got.steps[0].Loss, w)
							}
							cells++
						}
						check(label, got)
						checkReductions(t, label, r, got)
						if shards == 1 {
							continue
						}
						for k, x := range sharding[1:] {
							if replicas > 1 && k != cells%3 {
								continue
							}
							r.exchange = x
							r.exchange.NoOverlap = cells%3 == 0
							got := r.run(t)
							label := fmt.Sprintf("%s, %+v", label, r.exchange)
							check(label, got)
							checkTraffic(t, label, got)
						}
					}
				}
			}
		}
	}
	if cells < 64+16*3 {
		t.Errorf("%d cells", cells)
	}
	// Half of the 32 cells with checkpointing keep their passes. Of those that replay, only those of a decoder's last layer have no segment
	// below the last one, which the replay computes on its way.
	if recomputed != 16+12 {
		t.Errorf("%d cells recompute layers", recomputed)
	}
}

// checkPasses counts the layers that were computed: in each forward pass all of them, and for a backward pass with activation
// checkpointing again those above the lowest that trains, but for a replayed pass's last segment. It returns 1 if there were any of these.
func checkPasses(t *testing.T, r goldenRun, d *counting, m *transformer.Model) int {
	t.Helper()
	forwards, backwards := int(d.pools.Load()), int(d.poolBacks.Load())
	if want := backwards; r.budget == 0 && forwards != 2*want || r.budget != 0 && forwards != want {
		t.Errorf("%s: %d forward and %d backward passes", describe(r), forwards, backwards)
	}
	again := 0
	if every := m.Options.CheckpointEvery; every > 0 {
		if again = m.Config.Layers - m.Lowest(); r.budget == 0 {
			again -= (again-1)%every + 1
		}
	}
	if got, want := int(d.attentions.Load()), forwards*m.Config.Layers+backwards*again; got != want {
		t.Errorf("%s, %s: %d layers were computed, want %d", r.adapted, describe(r), got, want)
	}
	return min(1, again)
}

// checkReductions counts what a rank has reduced.
func checkReductions(t *testing.T, label string, r goldenRun, got goldenResult) {
	t.Helper()
	times := map[string]map[string]int{} // by stage, step
	for _, s := range got.spans {
		if strings.HasPrefix(s.Stage, "reduce ") {
			if times[s.Stage] == nil {
				times[s.Stage] = map[string]int{}
			}
			times[s.Stage][s.Item]++
		}
	}
	if r.ranks == 0 {
		if len(times) > 0 {
			t.Errorf("%s: one process reduces %v", label, times)
		}
		return
	}
	// What lies between two marks, wherever something trains, is in one bucket; the rest is sent nowhere.
	var names []string
	layout := got.model.Layout
	for i := range layout.Marks() {
		if name := layout.MarkName(i); name != "embeddings" {
			names = append(names, name)
		}
	}
	covered := make([]int, len(names))
	for stage, steps := range times {
		for step, n := range steps {
			if n != 1 {
				t.Errorf("%s: %s ran %d times in step %s", label, stage, n, step)
			}
		}
		if len(steps) != 2 {
			t.Errorf("%s: %s ran in %d steps of 2", label, stage, len(steps))
		}
		first, last, several := strings.Cut(strings.TrimPrefix(stage, "reduce "), " to ")
		if !several {
			last = first
		}
		if from, to := slices.Index(names, first), slices.Index(names, last); from >= 0 {
			for i := from; i <= to; i++ {
				covered[i]++
			}
		}
	}
	for i, n := range covered {
		if n != 1 {
			t.Errorf("%s: %s is in %d buckets", label, names[i], n)
		}
	}
	outside := 0
	for _, stage := range []string{"reduce table", "reduce embeddings", "reduce last rows"} {
		if times[stage] != nil {
			outside++
		}
	}
	if outside != 0 && r.adapted != "bert-full" || outside != 3 && r.adapted == "bert-full" {
		t.Errorf("%s: %d reductions are outside of layers", label, outside)
	}
}

// LoRA with dropout, computed in every way: the plain computation's gradient in f64.
func TestLoRAMetamorphic(t *testing.T) {
	base := goldenRun{adapted: "bert-qv", negatives: true, loss: loss.InfoNCE{}, globalSize: 9, accumulate: 2, maxSteps: 1, optimizer: optim.SGD{}, dropout: 0.1, loraDropout: 0.2}
	truth := base
	truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
	want := truth.run(t)
	for _, change := range []func(*goldenRun){
		func(r *goldenRun) { r.size = stages.Size{Rows: 4} },
		func(r *goldenRun) { r.size, r.budget, r.every = stages.Size{Tokens: 90}, -1, 1 },
		func(r *goldenRun) { r.ranks, r.size = 3, stages.Size{Rows: 2} },
		func(r *goldenRun) { r.ranks, r.shards, r.every, r.exchange.EverySubBatch = 2, 1, 2, true },
		func(r *goldenRun) { r.ranks, r.shards, r.size = 4, 2, stages.Size{Tokens: 60} },
	} {
		c := base
		change(&c)
		got := c.run(t)
		if p, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 1e-5) {
			t.Errorf("%d ranks, %d shards, %s: %s is off by %.3g", c.ranks, c.shards, describe(c), p, e)
		}
	}
	c := base
	c.loraDropout = 0
	if _, e := gradientError(want.model.Layout, c.run(t).grad, want.grad); !(e >= 0.01) {
		t.Error("LoRA's dropout changes nothing: this test would not see its masks")
	}
}

// Training moves the factors alone, on any mesh alike; those of a group as much faster as its learning rate says.
func TestLoRATrains(t *testing.T) {
	base := goldenRun{adapted: "qwen3-qo", negatives: true, loss: loss.InfoNCE{}, globalSize: 8, accumulate: 2, maxSteps: 2, optimizer: optim.SGD{Momentum: 0.9}}
	frozen := func(r goldenResult) []byte { return r.weights[:8*r.model.Layout.Frozen] }
	start := base
	start.maxSteps = 1 // the first step's learning rate is 0
	before, one := start.run(t), base.run(t)
	moves := func(r goldenResult, p transformer.Param) (move float64) {
		was, is := float64s(before.weights), float64s(r.weights)
		for i := p.Off; i < p.Off+p.Len(); i++ {
			if d := is[i] - was[i]; math.Abs(d) > math.Abs(move) {
				move = d
			}
		}
		return move
	}
	for _, p := range one.model.Layout.Training() {
		if moves(one, p) == 0 {
			t.Errorf("%s does not move", p.Name)
		}
	}
	if !bytes.Equal(frozen(one), frozen(before)) {
		t.Error("frozen parameters have moved")
	}
	for _, mesh := range [][2]int{{2, 1}, {2, 2}, {4, 2}} {
		c := base
		c.ranks, c.shards, c.every, c.size = mesh[0], mesh[1], 1, stages.Size{Rows: 5}
		many := c.run(t)
		if !bytes.Equal(frozen(many), frozen(before)) {
			t.Errorf("%v: frozen parameters have moved", mesh)
		}
		for _, p := range one.model.Layout.Training() {
			if a, b := moves(one, p), moves(many, p); !(math.Abs(a-b) <= 1e-3*math.Abs(a)) {
				t.Errorf("mesh %v: %s moves by %v, alone by %v", mesh, p.Name, b, a)
			}
		}
	}
	c := base
	c.lr, c.maxSteps = 2e-3, 4 // two of the steps are behind the warm-up
	one = c.run(t)
	c.groups = []stages.Group{{Params: []string{"lora_B"}, LR: 6e-3}, {Params: []string{"layers.0.", "lora_B"}, LR: 1e-3}}
	grouped := c.run(t)
	for _, p := range one.model.Layout.Training() {
		want := 1.0
		switch {
		case strings.Contains(p.Name, "lora_B"):
			want = 3
		case strings.Contains(p.Name, "layers.0."):
			want = 0.5
		}
		// The gradient of a later step depends on how far the ones before went: a few hundredths.
		if got := moves(grouped, p) / moves(one, p); !(math.Abs(got-want) <= 0.05*want) {
			t.Errorf("%s moves %v times as far, want %v", p.Name, got, want)
		}
	}
}
