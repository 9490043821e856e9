package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// Of several batches that a run is to end before, the first counts, in whatever order tasks say so.
func TestEndBeforeFirst(t *testing.T) {
	p := trainingGraph(t, 2)
	var split *Stage
	for _, s := range p.stages {
		if s.name == "split" {
			split = s
		}
	}
	for _, order := range [][]Index{{batchIndex(2, 0), batchIndex(1, 1), batchIndex(3, 0)}, {batchIndex(1, 1), batchIndex(1, 1)}, {batchIndex(1, 1), batchIndex(1, 2)}, {batchIndex(2, 0), batchIndex(1, 2), batchIndex(1, 1)}} {
		c := newCore(p, 0)
		for _, idx := range order {
			earlier := c.cut == nil || compareIndex(idx, *c.cut) < 0
			if got := c.endBefore(taskID{stage: split, index: idx}); got != earlier {
				t.Errorf("told of %v: an end before %v is the first one: %v, want %v", order, idx, got, earlier)
			}
		}
		if want := batchIndex(1, 1); c.cut == nil || *c.cut != want {
			t.Errorf("told of %v: it ends before %v, want %v", order, c.cut, want)
		}
	}
}

// What is over is forgotten, or a long run would keep something of every step.
func TestNothingKept(t *testing.T) {
	s := newSimulation(trainingGraph(t, 2), Workload{
		Items: 7, Batches: func(int) int { return 2 }, Subs: func(Index) int { return 3 }, // the last step is a short one
		Time:  func(string, Index) time.Duration { return 1 },
		Final: func(string, string, Index) time.Duration { return 1 },
	})
	for s.next() {
	}
	c := s.c
	if !c.complete() {
		t.Fatal(c.stuck())
	}
	kept := len(c.steps) + len(c.pending)
	for _, m := range c.counts {
		kept += len(m)
	}
	for _, m := range c.growing {
		kept += len(m)
	}
	for i := range c.st {
		kept += len(c.st[i].units) + len(c.st[i].queue)
	}
	for _, m := range c.open {
		kept += len(m)
	}
	for p, m := range c.have {
		for idx := range m {
			if loops := slices.ContainsFunc(p.edges, func(e *edge) bool { return e.kind == loop }); !loops || idx.Step != 3 { // the next step would read it
				t.Errorf("%q of %v is kept", p.name, idx)
			}
		}
	}
	if kept > 0 {
		t.Errorf("kept: steps %v, batches %v, sub-batches %v, %v, units %v, %v", c.steps, c.pending, c.counts, c.growing, c.st, c.open)
	}
}

// A stage of steps that needs nothing of their batches runs once in each, before them, however many they are.
func TestPrologueOnce(t *testing.T) {
	for _, perStep := range []int{1, 2, 3} {
		g := New("prologue")
		next := 0
		rows := Source(g, "rows", func(context.Context) (int, error) {
			if next++; next > 3*perStep {
				return 0, io.EOF
			}
			return next, nil
		})
		bat := g.Stage("batch")
		row := In(bat, "row", rows)
		batches := Batches[int](bat, "batches")
		bat.Do(func(t *Task) error {
			if !t.Ended() {
				batches.Put(t, row.Get(t), row.Get(t)%perStep == 0)
			}
			return nil
		})
		weights := Later[int](g, "weights", "call Bind")
		var log []string // of one lane
		say := func(t *Task) { log = append(log, fmt.Sprintf("%s %d", t.Stage(), t.Index.Step)) }
		begin := g.Stage("begin", At(Step), On(0, Compute))
		Loop(begin, "weights", weights, 0)
		ready := Out[int](begin, "ready")
		begin.Do(func(t *Task) error { say(t); ready.Put(t, 0); return nil })
		work := g.Stage("work", On(0, Compute))
		In(work, "batch", batches.Port)
		In(work, "ready", ready.Port)
		done := Out[int](work, "done")
		work.Do(func(t *Task) error { say(t); done.Put(t, 0); return nil })
		update := g.Stage("update", At(Step), On(0, Compute))
		Collect(update, "done", done.Port)
		out := Out[int](update, "weights")
		update.Do(func(t *Task) error { say(t); out.Put(t, 0); return nil })
		Bind(weights, out)
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var want []string
		for step := range 3 {
			want = append(want, fmt.Sprintf("begin %d", step))
			for range perStep {
				want = append(want, fmt.Sprintf("work %d", step))
			}
			want = append(want, fmt.Sprintf("update %d", step))
		}
		if !slices.Equal(log, want) {
			t.Errorf("%d batches in a step: %v, want %v", perStep, log, want)
		}
	}
}

// What a step's last task leaves out, and another stage reads, ends the run with an error that names both, also in a run's last step and in one that ends before
// a batch: nothing is left undone in silence.
func TestStuck(t *testing.T) {
	enough := errors.New("enough")
	for _, how := range []string{"the data ends", "a step is the last", "before a batch"} {
		g := New("stuck")
		next := 0
		rows := Source(g, "rows", func(context.Context) (int, error) {
			if next++; next > 2 && how == "the data ends" {
				return 0, io.EOF
			}
			return next, nil
		})
		bat := g.Stage("batch")
		row := In(bat, "row", rows)
		batches := Batches[int](bat, "batches")
		bat.Do(func(t *Task) error {
			switch {
			case t.Ended():
			case how == "before a batch" && row.Get(t) == 3:
				t.EndBefore(enough)
			default:
				batches.Put(t, row.Get(t), true)
			}
			return nil
		})
		work := g.Stage("work", On(0, Compute))
		batch := In(work, "batch", batches.Port)
		done := Final[int](work, "done")
		work.Do(func(t *Task) error {
			if t.Index.Step == 1 && how == "a step is the last" {
				t.EndRun(enough)
			}
			if batch.Get(t) != 2 {
				done.Put(t, 0)
			}
			return nil
		})
		Sink(g, "record", done.Port, func(*Task, int) error { return nil }, On(0, Compute))
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), `graph "stuck": nothing can run: `) || !strings.Contains(err.Error(), `waits for "done" of stage "work"`) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// A Final output is predicted of a step's last task alone: of the first one here its time comes when the step's batches are known, and it is not the last.
func TestPredictFinal(t *testing.T) {
	g := New("final")
	rows := Source(g, "rows", func(context.Context) (int, error) { return 0, io.EOF })
	bat := g.Stage("batch")
	In(bat, "row", rows)
	batches := Batches[int](bat, "batches")
	bat.Do(func(*Task) error { return nil })
	work := g.Stage("work", On(0, Compute))
	In(work, "batch", batches.Port)
	done := Final[int](work, "done")
	work.Do(func(*Task) error { return nil })
	Sink(g, "record", done.Port, func(*Task, int) error { return nil })
	p, err := g.Build(Devices(fakeDevice("cpu")))
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]time.Duration{"rows": 10, "work": 15, "record": 1}
	var got []string
	for _, s := range p.Predict(Workload{
		Items: 4, Batches: func(int) int { return 2 }, Subs: func(Index) int { return 1 },
		Time:  func(stage string, _ Index) time.Duration { return times[stage] },
		Final: func(string, string, Index) time.Duration { return 14 },
	}) {
		if s.Stage == "work" || s.Stage == "record" {
			got = append(got, fmt.Sprint(s.Stage, s.Start.Nanoseconds()))
		}
	}
	if want := []string{"work10", "work25", "record39", "work40", "work55", "record69"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
