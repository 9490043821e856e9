package pipeline

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// plainGraph is a source and a stage that makes batches of its items.
func plainGraph() (*Graph, Port[int]) {
	g := New("plain")
	nothing := func(*Task) error { return nil }
	read := g.Stage("read", At(Stream))
	rows := Out[int](read, "rows")
	read.Do(nothing)
	bat := g.Stage("batch")
	In(bat, "row", rows.Port)
	batches := Batches[int](bat, "batches")
	bat.Do(nothing)
	return g, batches.Port
}

// idleStage does nothing: predictions call no function.
func idleStage(g *Graph, name string, opts ...Option) *Stage {
	s := g.Stage(name, opts...)
	s.Do(func(*Task) error { return nil })
	return s
}

// predicted runs a graph to its end and returns its tasks in the order of their starts.
func predicted(t *testing.T, g *Graph, w Workload) []string {
	t.Helper()
	p, err := g.Build(Devices(fakeDevice("cpu")), Workers(8))
	if err != nil {
		t.Fatal(err)
	}
	if w.Time == nil {
		w.Time = func(string, Index) time.Duration { return 1 }
	}
	s := newSimulation(p, w)
	for s.next() {
	}
	if !s.c.complete() {
		t.Fatal(s.c.stuck())
	}
	if n := len(s.c.steps) + len(s.c.pending) + len(s.c.counts); n > len(p.fans) {
		t.Errorf("kept: steps %v, batches %v, sub-batches %v", s.c.steps, s.c.pending, s.c.counts)
	}
	var out []string
	for _, id := range s.ids {
		if id.stage.level != Stream {
			out = append(out, id.String())
		}
	}
	return out
}

// A stage of steps that collects batches as they are emitted needs the step's batches as any other does: it runs behind what they are for on its lane, and keeps
// none of it waiting.
func TestStepsOfEmittedBatches(t *testing.T) {
	g, batches := plainGraph()
	count := idleStage(g, "count", At(Step), On(0, Compute))
	Collect(count, "batches", batches)
	In(idleStage(g, "work", On(0, Compute)), "batch", batches, Capacity(1))
	got := predicted(t, g, Workload{Items: 6, Batches: func(int) int { return 3 }})
	if want := []string{"work(0.0)", "work(0.1)", "work(0.2)", "count(0)", "work(1.0)", "work(1.1)", "work(1.2)", "count(1)"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A last step that is short, and of which everything has been done when its end is known, is at its end: also where the stage that is behind the others in
// the graph's order was first.
func TestShortStepOfDoneBatches(t *testing.T) {
	g, batches := plainGraph()
	In(idleStage(g, "work"), "batch", batches)
	idleStage(g, "begin", At(Step))
	got := predicted(t, g, Workload{Items: 3, Batches: func(int) int { return 2 }, Time: func(stage string, _ Index) time.Duration {
		if stage == "read" {
			return 100
		}
		return 1
	}})
	if want := []string{"begin(0)", "work(0.0)", "work(0.1)", "begin(1)", "work(1.0)"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A step whose batches have all been split, and have nothing more to be done, before those of the step before it, is counted nevertheless.
func TestSplitsOutOfOrder(t *testing.T) {
	g, batches := plainGraph()
	split := idleStage(g, "split", Parallel(2))
	In(split, "batch", batches, Capacity(2))
	Fan[int](split, "subs")
	got := predicted(t, g, Workload{Items: 4, Batches: func(int) int { return 1 }, Subs: func(Index) int { return 2 }, Time: func(stage string, at Index) time.Duration {
		if stage == "split" && at.Step%2 == 0 {
			return 10
		}
		return 1
	}})
	if want := []string{"split(0.0)", "split(1.0)", "split(2.0)", "split(3.0)"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A stage of batches that reads what is made of a whole step, and one that reads of that, run behind the step, however many batches it has: on the lane of what
// they wait for too, and also where what they wait for is a Final output.
func TestStagesBehindTheStep(t *testing.T) {
	for _, final := range []bool{false, true} {
		g, batches := plainGraph()
		split := idleStage(g, "split")
		In(split, "batch", batches)
		subs := Fan[int](split, "subs")
		first := idleStage(g, "first", On(0, Compute))
		In(first, "sub", subs.Port)
		out, of := Out[int](first, "out"), Final[int](first, "sum")
		sum := of.Port
		if !final {
			total := idleStage(g, "total", At(Step), On(0, Compute))
			Collect(total, "out", out.Port)
			sum = Out[int](total, "sum").Port
		}
		again := idleStage(g, "again", On(0, Compute), Descending())
		In(again, "sub", subs.Port)
		In(again, "sum", sum)
		of2 := Out[int](again, "out")
		behind := idleStage(g, "behind", On(0, Compute))
		Collect(behind, "out", of2.Port)
		In(behind, "batch", batches)
		got := predicted(t, g, Workload{
			Items: 6, Batches: func(int) int { return 3 }, Subs: func(at Index) int { return 1 + at.Batch%2 }, Final: func(string, string, Index) time.Duration { return 1 },
		})
		got = slices.DeleteFunc(got, func(task string) bool { return strings.HasPrefix(task, "split") })
		var want []string
		for _, step := range []string{"0", "1"} {
			do := func(stage string, at ...string) {
				for _, a := range at {
					want = append(want, stage+"("+step+a+")")
				}
			}
			do("first", ".0.0", ".1.0", ".1.1", ".2.0")
			if !final {
				do("total", "")
			}
			do("again", ".0.0", ".1.1", ".1.0", ".2.0")
			do("behind", ".0", ".1", ".2")
		}
		if !slices.Equal(got, want) {
			t.Errorf("Final %v: %v, want %v", final, got, want)
		}
	}
}

// Who waits for room is told with whose room it is.
func TestWaitsForRoom(t *testing.T) {
	g, batches := plainGraph()
	In(idleStage(g, "work"), "batch", batches, Capacity(1))
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	s := newSimulation(p, Workload{Items: 9, Batches: func(int) int { return 1 }, Time: func(stage string, _ Index) time.Duration {
		if stage == "work" {
			return 100
		}
		return 1
	}})
	var waits []string
	for s.next() && s.now < 50 {
		waits = s.c.waits()
	}
	if want := []string{`read(#5) waits for room in "row" of stage "batch"`, `batch(#1) waits for room in "batch" of stage "work"`}; !slices.Equal(waits, want) {
		t.Errorf("%q, want %q", waits, want)
	}
}
