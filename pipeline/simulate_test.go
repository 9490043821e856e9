package pipeline

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts in testdata")

// fakeDevice is a device without anything behind it.
type fakeDevice string

func (d fakeDevice) Name() string                    { return string(d) }
func (d fakeDevice) OpenLane(LaneKind) (Lane, error) { return fakeLane{}, nil }

type fakeLane struct{}

func (fakeLane) Mark() Mark       { return nil }
func (fakeLane) Await(Mark) error { return nil }
func (fakeLane) Err() error       { return nil }
func (fakeLane) Close() error     { return nil }

// script says what the stages of a simulated run do: how long a task takes and what it puts.
type script struct {
	ticks   map[string]int // per task; 1 where absent
	items   int            // stream items that each source gives
	batches []int          // batches of each step; one batch per stream item
	subs    func(Index) int
	finals  map[string]int // Final outputs: when the step's last task puts them, in ticks from its start
}

// simulate predicts a plan in ticks and returns what each lane did and when. It checks the core's books on the way.
func simulate(t *testing.T, p *Plan, s script) string {
	t.Helper()
	sim := newSimulation(p, Workload{
		Items:   s.items,
		Batches: func(step int) int { return s.batches[step] },
		Subs:    s.subs,
		Time: func(stage string, _ Index) time.Duration {
			if n, ok := s.ticks[stage]; ok {
				return time.Duration(n)
			}
			return 1
		},
		Final: func(_, output string, _ Index) time.Duration { return time.Duration(s.finals[output]) },
	})
	c := sim.c
	for sim.next() {
		for _, e := range p.edges {
			if len(c.open[e.id]) > e.cap {
				t.Errorf("edge %s holds %d units, capacity %d", edgeName(e), len(c.open[e.id]), e.cap)
			}
		}
	}
	if !c.complete() {
		t.Fatalf("%v", c.stuck())
	}
	if len(c.steps) > 0 {
		t.Errorf("%d steps were not forgotten", len(c.steps))
	}
	for port, idxs := range c.have {
		for idx := range idxs {
			if port.level != Step || len(idxs) > 1 { // of the last step, for one more
				t.Errorf("value %s(%v) was not released", port.name, idx)
			}
		}
	}
	rows := map[string][]string{}
	for i, x := range sim.spans {
		lane := p.laneName(sim.ids[i].stage.place)
		rows[lane] = append(rows[lane], fmt.Sprintf("%3d-%-3d %v", x.Start, x.End, sim.ids[i]))
	}
	var b strings.Builder
	lanes := []string{"host"}
	for _, l := range p.lanes {
		lanes = append(lanes, p.laneName(l))
	}
	for _, l := range lanes {
		fmt.Fprintf(&b, "%s\n", l)
		for _, r := range rows[l] {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	return b.String()
}

func checkTranscript(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "transcripts", name+".txt")
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -rewrite writes it)", err)
	}
	if !bytes.Equal(want, []byte(got)) {
		t.Errorf("transcript %s differs; got:\n%s", name, got)
	}
}

// trainingGraph is the shape of a training step: what stages build with real arithmetic.
func trainingGraph(t *testing.T, batchCapacity int) *Plan {
	t.Helper()
	g := New("step")
	nothing := func(*Task) error { return nil }
	stage := func(name string, opts ...Option) *Stage {
		s := g.Stage(name, opts...)
		s.Do(nothing)
		return s
	}
	read := stage("read", At(Stream))
	rows := Out[int](read, "rows")
	tok := stage("tokenize")
	In(tok, "rows", rows.Port, Capacity(2))
	ids := Out[int](tok, "ids")
	bat := stage("batch")
	In(bat, "ids", ids.Port, Capacity(2))
	batches := Batches[int](bat, "batches")
	split := stage("split")
	In(split, "batch", batches.Port, Capacity(1))
	subs := Fan[int](split, "subs")
	copyIn := stage("ids", On(0, Copy))
	In(copyIn, "subs", subs.Port, Capacity(batchCapacity))
	onDevice := Out[int](copyIn, "ids")
	weights := Later[int](g, "weights", "call Bind")
	embed := stage("embed", On(0, Compute))
	In(embed, "ids", onDevice.Port, Capacity(batchCapacity))
	Loop(embed, "weights", weights, 0)
	emb := Out[int](embed, "embeddings")
	gather := stage("gather", On(0, Comm))
	In(gather, "embeddings", emb.Port)
	gathered := Out[int](gather, "gathered")
	loss := stage("loss", On(0, Compute))
	Collect(loss, "embeddings", gathered.Port)
	grad := Out[int](loss, "gradient")
	back := stage("backward", On(0, Compute), Descending())
	In(back, "ids", onDevice.Port)
	In(back, "gradient", grad.Port)
	contribution := Out[int](back, "contribution")
	sync := stage("sync", On(0, Comm), At(Step))
	Collect(sync, "contributions", contribution.Port)
	reduced := Out[int](sync, "reduced")
	update := stage("update", On(0, Compute))
	In(update, "reduced", reduced.Port)
	Bind(weights, Out[int](update, "weights"))
	p, err := g.Build(Devices(fakeDevice("gpu")), Workers(4))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTranscriptStep(t *testing.T) {
	p := trainingGraph(t, 2)
	got := simulate(t, p, script{
		ticks:   map[string]int{"embed": 4, "backward": 8, "gather": 2, "loss": 2, "sync": 3, "tokenize": 3},
		items:   3,
		batches: []int{1, 1, 1},
		subs:    func(Index) int { return 3 },
	})
	checkTranscript(t, "step", got)
}

// Buckets of the gradient are reduced while the step's last sub-batch still goes backward.
func TestTranscriptBuckets(t *testing.T) {
	g := New("step")
	stage := func(name string, opts ...Option) *Stage {
		s := g.Stage(name, opts...)
		s.Do(func(*Task) error { return nil })
		return s
	}
	bat := stage("batch")
	batches := Batches[int](bat, "batches")
	split := stage("split")
	In(split, "batch", batches.Port)
	subs := Fan[int](split, "subs")
	weights := Later[int](g, "weights", "call Bind")
	embed := stage("embed", On(0, Compute))
	In(embed, "subs", subs.Port)
	Loop(embed, "weights", weights, 0)
	emb := Out[int](embed, "embeddings")
	gather := stage("gather", On(0, Comm))
	In(gather, "embeddings", emb.Port)
	gathered := Out[int](gather, "gathered")
	loss := stage("loss", On(0, Compute))
	Collect(loss, "embeddings", gathered.Port)
	grad := Out[int](loss, "gradient")
	back := stage("backward", On(0, Compute), Descending())
	In(back, "subs", subs.Port)
	In(back, "gradient", grad.Port)
	update := stage("update", On(0, Compute), At(Step))
	for _, b := range []string{"table so far", "b2", "b1", "b0", "last rows"} {
		sync := stage("reduce "+b, On(0, Comm))
		In(sync, "ready", Final[int](back, b).Port)
		In(update, b, Out[int](sync, "reduced").Port)
	}
	Bind(weights, Out[int](update, "weights"))
	p, err := g.Build(Devices(fakeDevice("gpu")))
	if err != nil {
		t.Fatal(err)
	}
	checkTranscript(t, "buckets", simulate(t, p, script{
		ticks: map[string]int{
			"embed": 4, "backward": 10, "gather": 2, "loss": 2, "reduce table so far": 3, "reduce b2": 2, "reduce b1": 2, "reduce b0": 2,
		},
		items:   3,
		batches: []int{2, 1},
		subs:    func(i Index) int { return 2 },
		finals:  map[string]int{"table so far": 0, "b2": 4, "b1": 6, "b0": 8, "last rows": 10},
	}))
}

func TestTranscriptAccumulate(t *testing.T) {
	// Steps of two batches and a last one of one, with unequal numbers of sub-batches.
	p := trainingGraph(t, 2)
	got := simulate(t, p, script{
		ticks:   map[string]int{"embed": 4, "backward": 8, "gather": 2, "loss": 2, "sync": 3},
		items:   5,
		batches: []int{2, 2, 2},
		subs:    func(i Index) int { return 1 + (i.Step+i.Batch)%2 },
	})
	checkTranscript(t, "accumulate", got)
}

func TestTranscriptSlowTokenizer(t *testing.T) {
	p := trainingGraph(t, 1)
	got := simulate(t, p, script{
		ticks:   map[string]int{"tokenize": 30},
		items:   3,
		batches: []int{1, 1, 1},
		subs:    func(Index) int { return 2 },
	})
	checkTranscript(t, "slow_tokenizer", got)
}
