package stages_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

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

// denseLayers are behind the pooling: embeddings then have another size than hidden states.
var denseLayers = []transformer.Dense{{Name: "2_Dense", Out: 50}, {Name: "3_Dense", Out: 13, Bias: true, Activation: gpustage.Tanh}}

// However many ranks share a step, its gradient is the single process's, computed plainly in f64: with rows that don't divide,
// ranks without rows, negatives, weights of several batches, dropout, and every way of computing a rank's part.
func TestReplicasMetamorphic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(21, 22))
	for _, base := range harness.Few([]goldenRun{
		{negatives: true, loss: loss.InfoNCE{MaskDuplicates: true}, dropout: 0.1},
		{negatives: true, loss: loss.InfoNCE{Directions: loss.Directions}, dropout: 0.2, globalSize: 25, accumulate: 3},
		{loss: loss.InfoNCE{Directions: []loss.Direction{loss.QueryToDoc, loss.DocToQuery}, PerDirection: true}, globalSize: 5, accumulate: 2},
		{negatives: true, loss: loss.InfoNCE{}, globalSize: 9, accumulate: 2, dense: denseLayers},
	}, 2) {
		base.maxSteps, base.optimizer = 1, optim.SGD{}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		for _, ranks := range []int{1, 2, 3, 4, 8} {
			c := base
			c.ranks, c.shards = ranks, []int{1, 1, 2, ranks}[rng.IntN(4)]
			if ranks%c.shards != 0 {
				c.shards = 1
			}
			l := base.loss.(loss.InfoNCE)
			l.TileRows, l.TileCols = 1+rng.IntN(30), 1+rng.IntN(80)
			c.loss = l
			c.size = stages.Size{Rows: 1 + rng.IntN(20)}
			if rng.IntN(2) == 0 {
				c.size = stages.Size{Tokens: 40 + rng.IntN(400)}
			}
			c.budget = []int64{0, -1, 1 << 18, 1 << 20}[rng.IntN(4)]
			c.every = rng.IntN(4)
			c.exchange = stages.Exchanging{EverySubBatch: rng.IntN(4) == 0, NoOverlap: rng.IntN(4) == 0, BucketBytes: 1 << (8 + rng.IntN(14))}
			c.exchange.Early, c.exchange.Streamed = rng.IntN(2) == 0, rng.IntN(2) == 0
			got := c.run(t)
			name, e := gradientError(want.model.Layout, got.grad, want.grad)
			if !(e <= 1e-5) {
				t.Errorf("%d ranks, %d shards, %+v, %s: %s is off by %.3g", ranks, c.shards, c.exchange, describe(c), name, e)
			}
			if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 1e-6*w) {
				t.Errorf("%d ranks: loss %v, want %v", ranks, got.steps[0].Loss, w)
			}
			if a, b := got.steps[0], want.steps[0]; a.Pairs != b.Pairs || a.Tokens != b.Tokens || a.Truncated != b.Truncated {
				t.Errorf("%d ranks count %+v, one counts %+v", ranks, a, b)
			}
		}
	}
}

// splitting is a loss that computes its own rows alone.
type splitting struct{ loss.Host }

func (splitting) SplitsRows() {}

// What a loss is the mean over is its own business: on several ranks it counts as on one.
func TestReplicasWeight(t *testing.T) {
	terms := loss.Host(func(b *loss.Batch, emb, grad [][]float32) (r loss.Result, err error) {
		lo, hi := b.Own()
		for i := lo; i < hi; i++ {
			q, p, dot := emb[i], emb[b.Rows+i], 0.0
			for k := range q {
				dot += float64(q[k]) * float64(p[k])
			}
			n := float64(1 + b.Texts[i][0]%4) // of each row another number of terms
			for k := range q {
				grad[i][k], grad[b.Rows+i][k] = float32(-n*float64(p[k])), float32(-n*float64(q[k]))
			}
			r.Sum, r.Weight = r.Sum+n*(1-dot), r.Weight+n
		}
		return r, nil
	})
	base := goldenRun{loss: terms, globalSize: 5, accumulate: 2, optimizer: optim.SGD{}, maxSteps: 3, dropout: 0.1}
	want := base.run(t)
	for name, l := range map[string]loss.Loss{"as a whole": terms, "row by row": splitting{terms}} {
		for _, ranks := range []int{1, 2, 3, 4} {
			c := base
			c.loss, c.ranks = l, ranks
			got := c.run(t)
			for i, s := range got.steps {
				if w := want.steps[i]; !(math.Abs(s.Loss-w.Loss) <= 1e-6*w.Loss) || !(math.Abs(s.GradNorm-w.GradNorm) <= 1e-5*w.GradNorm) {
					t.Errorf("%s, %d ranks, step %d: loss %v and gradient's norm %v, want %v and %v", name, ranks, i, s.Loss, s.GradNorm, w.Loss, w.GradNorm)
				}
			}
		}
	}
}

// Most is the largest number of any rank, on each of them.
func TestMost(t *testing.T) {
	err := local.Run(3, func(w collective.World) error {
		comm, err := collective.Connect(t.Context(), w, collective.Mesh{Replicate: 3, Shard: 1})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(t.Context(), comm, stages.Exchanging{})
		if err != nil {
			return err
		}
		if n, err := ranks.Most(t.Context(), []int{-4, 7, 2}[w.Rank()]); err != nil || n != 7 {
			t.Errorf("rank %d: %d, %v", w.Rank(), n, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Overlap changes no bit; nor does the size of buckets, as sums have the order of ranks.
func TestReplicasBitEqual(t *testing.T) {
	base := goldenRun{negatives: true, loss: loss.InfoNCE{}, dropout: 0.1, size: stages.Size{Tokens: 150}, maxSteps: 3, ranks: 3}
	want := base.run(t)
	for name, change := range map[string]func(*goldenRun){
		"again":          func(r *goldenRun) {},
		"serial":         func(r *goldenRun) { r.exchange.NoOverlap = true },
		"small buckets":  func(r *goldenRun) { r.exchange.BucketBytes = 1 },
		"one bucket":     func(r *goldenRun) { r.exchange.BucketBytes = 1 << 30 },
		"replay":         func(r *goldenRun) { r.budget = -1 },
		"checkpointing":  func(r *goldenRun) { r.every = 1 },
		"more tokenizer": func(r *goldenRun) { r.tokenizers, r.workers = 3, 5 },
	} {
		c := base
		change(&c)
		if got := c.run(t); !bytes.Equal(got.weights, want.weights) {
			t.Errorf("%s: the weights' bits differ after %d steps", name, len(got.steps))
		}
	}
}

// With SGD, parameters after 5 steps are the single process's; with AdamW, losses over 20 steps are.
func TestReplicasTrain(t *testing.T) {
	t.Parallel()
	sgd := goldenRun{negatives: true, loss: loss.InfoNCE{}, optimizer: optim.SGD{Momentum: 0.9}, maxSteps: 5, dropout: 0.1}
	adam := goldenRun{negatives: true, loss: loss.InfoNCE{}, dropout: 0.1, epochs: 2}
	one, long := sgd.run(t), adam.run(t)
	if len(long.steps) != 20 {
		t.Fatalf("%d steps", len(long.steps))
	}
	meshes := [][2]int{{2, 1}, {3, 1}, {2, 2}, {3, 3}, {4, 2}} // ranks, shards
	if testing.Short() {                                       // goroutines meet on the last as on the others
		meshes = meshes[4:]
	}
	for _, mesh := range meshes {
		sgd, adam := sgd, adam
		sgd.ranks, sgd.shards, sgd.size = mesh[0], mesh[1], stages.Size{Rows: 7}
		many := sgd.run(t)
		a, b := float64s(one.weights), float64s(many.weights)
		for _, p := range one.model.Layout.Params {
			diff, top := 0.0, 0.0
			for i := p.Off; i < p.Off+p.Len(); i++ {
				diff, top = max(diff, math.Abs(a[i]-b[i])), max(top, math.Abs(a[i]))
			}
			if !(diff <= 1e-5*max(top, 1e-4)) {
				t.Errorf("mesh %v: %s is off by %.3g after 5 steps", mesh, p.Name, diff/top)
			}
		}
		adam.ranks, adam.shards, adam.size = mesh[0], mesh[1], stages.Size{Tokens: 120}
		many = adam.run(t)
		for i, s := range long.steps {
			if e := math.Abs(many.steps[i].Loss-s.Loss) / s.Loss; !(e <= 1e-4) {
				t.Errorf("mesh %v: step %d: loss %v, want %v", mesh, i, many.steps[i].Loss, s.Loss)
			}
		}
	}
}

// What ranks hand to the transport is what the plan says, to the byte; and with sync: last, gradients are reduced once a step, however many
// sub-batches and contrastive batches it has.
func TestReplicasTraffic(t *testing.T) {
	count := func(r goldenRun) (reductions int) {
		t.Helper()
		r.negatives, r.loss, r.maxSteps = true, loss.InfoNCE{}, 1
		for stage, n := range checkTraffic(t, fmt.Sprintf("%d ranks, %d shards, %+v", r.ranks, r.shards, r.size), r.run(t)) {
			if strings.HasPrefix(stage, "reduce ") && stage != "reduce table" || stage == "backward" {
				reductions += n
			}
		}
		return reductions
	}
	for _, mesh := range harness.Few([][2]int{{3, 1}, {2, 2}, {2, 1}, {4, 2}}, 2) {
		base := goldenRun{ranks: mesh[0], shards: mesh[1], exchange: stages.Exchanging{BucketBytes: 1 << 14}}
		want := count(base)
		for _, r := range []goldenRun{
			{size: stages.Size{Rows: 3}},
			{size: stages.Size{Tokens: 100}, globalSize: 13, accumulate: 3},
			{globalSize: 7, accumulate: 4},
		} {
			r.ranks, r.shards, r.exchange = base.ranks, base.shards, base.exchange
			if got := count(r); got != want {
				t.Errorf("mesh %v, %+v, accumulate %d: %d reductions of gradients a step, want %d", mesh, r.size, r.accumulate, got, want)
			}
		}
	}
	count(goldenRun{ranks: 2, size: stages.Size{Rows: 5}, dense: denseLayers})
	every := goldenRun{ranks: 2, size: stages.Size{Rows: 12}, exchange: stages.Exchanging{EverySubBatch: true}}
	if got := count(every); got != 2 {
		t.Errorf("sync: every with 2 sub-batches: %d reductions, want 2", got)
	}
}

// sharding is the ways to cut what ranks of a shard axis hold.
var sharding = []stages.Exchanging{{}, {Early: true}, {Streamed: true}, {Early: true, Streamed: true}}

// Whatever ranks of a shard axis hold, gradients and weights are the single process's; and neither reruns, nor overlap, nor what is
// kept or fetched changes a bit.
func TestShardsBitEqual(t *testing.T) {
	t.Parallel()
	meshes := [][2]int{{4, 2}, {3, 3}} // ranks, shards
	if testing.Short() {               // goroutines meet on the other as in TestShardsTraffic
		meshes = meshes[:1]
	}
	for _, mesh := range meshes {
		base := goldenRun{negatives: true, loss: loss.InfoNCE{}, dropout: 0.1, size: stages.Size{Tokens: 150}, globalSize: 9, accumulate: 2, maxSteps: 3}
		one := base.run(t)
		base.ranks, base.shards = mesh[0], mesh[1]
		resident := map[bool]goldenResult{} // by Early
		for _, x := range sharding {
			c := base
			c.exchange = x
			want := c.run(t)
			if name, e := gradientError(one.model.Layout, want.grad, one.grad); !(e <= 1e-5) {
				t.Errorf("mesh %v, %+v: %s is off by %.3g", mesh, x, name, e)
			}
			if x.Streamed {
				if !bytes.Equal(want.weights, resident[x.Early].weights) {
					t.Errorf("mesh %v, %+v: the weights' bits are not those of resident parameters", mesh, x)
				}
			}
			for name, change := range map[string]func(*goldenRun){
				"again":         func(r *goldenRun) {},
				"serial":        func(r *goldenRun) { r.exchange.NoOverlap = true },
				"kept":          func(r *goldenRun) { r.budget = -1 },
				"some kept":     func(r *goldenRun) { r.budget = 1 << 17 }, // one of four ranks can't keep its sub-batch: with streamed parameters nobody does
				"checkpointing": func(r *goldenRun) { r.every = 1; r.budget = 1 << 18 },
			} {
				if testing.Short() && name != "serial" && name != "checkpointing" { // nobody meets otherwise
					continue
				}
				c := base
				c.exchange = x
				change(&c)
				if got := c.run(t); !bytes.Equal(got.weights, want.weights) || !bytes.Equal(got.grad, want.grad) {
					t.Errorf("mesh %v, %+v, %s: other bits", mesh, x, name)
				}
			}
			if !x.Streamed {
				resident[x.Early] = want
			}
		}
	}
}

// checkTraffic compares what a rank has sent in all steps with the plan, and returns the first step's calls by stage.
func checkTraffic(t *testing.T, label string, got goldenResult) map[string]int {
	t.Helper()
	want, stage := map[collective.Op][2]int64{}, map[string]int{}
	for _, c := range got.traffic.planned {
		want[c.Op] = [2]int64{want[c.Op][0] + 1, want[c.Op][1] + c.Sent()}
	}
	for _, c := range got.traffic.calls {
		stage[c.Stage]++
	}
	if len(want) == 0 {
		t.Errorf("%s: nothing is planned", label)
	}
	for op, n := range want {
		if got := got.traffic.counted[op]; got != n {
			t.Errorf("%s: %s: %d calls and %d bytes, planned %d and %d", label, op, got[0], got[1], n[0], n[1])
		}
	}
	for op, n := range got.traffic.counted {
		if _, ok := want[op]; !ok {
			t.Errorf("%s: %s: %d calls are not in the plan", label, op, n[0])
		}
	}
	return stage
}

// Parameters are gathered and gradients reduced early as often as the plan says, and the bytes are the plan's; and these are the
// numbers that the description promises.
func TestShardsTraffic(t *testing.T) {
	for _, mesh := range [][2]int{{4, 2}, {3, 3}} {
		for _, x := range sharding[1:] {
			for _, r := range harness.Few([]goldenRun{
				{size: stages.Size{Rows: 11}},
				{size: stages.Size{Rows: 11}, budget: -1, dense: denseLayers},
				{size: stages.Size{Rows: 5}, globalSize: 12, accumulate: 3, every: 2},
				{size: stages.Size{Rows: 5}, globalSize: 12, accumulate: 1, every: 3},
				{size: stages.Size{Tokens: 100}, globalSize: 13, accumulate: 3, every: 2}, // some ranks have no rows
			}, 3) {
				r.ranks, r.shards, r.exchange = mesh[0], mesh[1], x
				r.negatives, r.loss, r.maxSteps = true, loss.InfoNCE{}, 1
				got := r.run(t)
				stage := checkTraffic(t, fmt.Sprintf("mesh %v, %+v, %+v", mesh, x, r.size), got)
				if r.globalSize == 13 {
					continue
				}
				layers, subs := got.model.Config.Layers, got.subs
				replays := subs
				if r.budget < 0 {
					replays = 0
				}
				if n := stage[stages.FetchForEmbed]; x.Streamed && n != subs*(layers+1) {
					t.Errorf("mesh %v, %+v: %d gathers for embed, want %d", mesh, x, n, subs*(layers+1))
				}
				// A kept sub-batch's backward pass visits each layer once. A replay visits words and layers; then the pass goes back from
				// the layer at hand, with activation checkpointing once in the last segment and up and down in the others.
				visits, again := layers, 0
				if replays > 0 {
					again = 1 + layers
					visits = layers - 1
				}
				if r.every > 0 {
					visits = (layers - 1) % r.every
					for from := 0; from+r.every < layers; from += r.every {
						visits += 2*r.every - 1
					}
				}
				if n := stage[stages.FetchForBackward]; x.Streamed && n != subs*(visits+again) {
					t.Errorf("mesh %v, %+v, every %d: %d gathers for backward, want %d", mesh, x, r.every, n, subs*(visits+again))
				}
				beyond := 0 // all-reduces along the replicate axis, once a step: layers, what is outside, last rows, the table so far
				if mesh[0] > mesh[1] {
					beyond = layers + 2
					if subs > 1 {
						beyond++
					}
				}
				if n := stage[stages.ReduceEarly]; x.Early && n != subs*(layers+2)+beyond {
					t.Errorf("mesh %v, %+v: %d early reductions, want %d", mesh, x, n, subs*(layers+2)+beyond)
				}
			}
		}
	}
}

// urgentDevice counts the streams whose work is ahead of others'.
type urgentDevice struct {
	gpustage.Device
	urgent int
}

func (d *urgentDevice) OpenUrgent() (gpustage.Stream, error) {
	d.urgent++
	return d.OpenStream()
}

// What communicates is ahead of what computes.
func TestUrgentLanes(t *testing.T) {
	for kind, want := range map[pipeline.LaneKind]int{pipeline.Compute: 0, pipeline.Copy: 0, pipeline.Comm: 1, pipeline.Fetch: 1} {
		d := &urgentDevice{Device: ref.New()}
		lane, err := stages.OnDevice(d).OpenLane(kind)
		if err != nil {
			t.Fatal(err)
		}
		if d.urgent != want {
			t.Errorf("%v: %d streams ahead of others, want %d", kind, d.urgent, want)
		}
		if err := lane.Close(); err != nil {
			t.Error(err)
		}
	}
}
