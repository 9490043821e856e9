package pipeline

import (
	"context"
	"io"
	"strings"
	"testing"
)

func TestBuildErrors(t *testing.T) {
	do := func(*Task) error { return nil }
	source := func(g *Graph) Port[int] {
		return Source(g, "source", func(context.Context) (int, error) { return 0, io.EOF })
	}
	batches := func(g *Graph) Port[string] {
		s := g.Stage("batch")
		In(s, "rows", source(g))
		s.Do(do)
		return Batches[string](s, "batches").Port
	}
	tests := []struct {
		name  string
		build func(*Graph)
		want  []string
	}{
		{"unconnected", func(g *Graph) {
			s := g.Stage("loss")
			In(s, "embeddings", Port[[]float32]{})
			s.Do(do)
		}, []string{`graph "g": stage "loss": input "embeddings": not connected, want []float32`}},
		{"later, never bound", func(g *Graph) {
			Sink(g, "embed", Later[int](g, "weights", "call Bind"), func(*Task, int) error { return nil })
		}, []string{`stage "embed": input "embed": no stage writes port "weights", want int: call Bind`}},
		{"two writers", func(g *Graph) {
			later := Later[int](g, "weights", "call Bind")
			a, b := g.Stage("a", At(Stream)), g.Stage("b", At(Stream))
			a.Do(do)
			b.Do(do)
			Bind(later, Out[int](a, "x"))
			Bind(later, Out[int](b, "x"))
		}, []string{`port "weights": two stages write it: "a" and "b"`}},
		{"cycle", func(g *Graph) {
			later := Later[int](g, "back", "call Bind")
			x := Map(g, "a", later, func(_ *Task, v int) (int, error) { return v, nil })
			s := g.Stage("b")
			In(s, "x", x)
			s.Do(do)
			Bind(later, Out[int](s, "y"))
		}, []string{`graph "g": cycle "a" -> "b" -> "a": connect one of its inputs with Loop`}},
		{"no device", func(g *Graph) {
			Map(g, "embed", source(g), func(_ *Task, v int) (int, error) { return v, nil }, On(3, Compute))
		}, []string{`stage "embed": placed on device 3, but there are 1 devices (gpu)`}},
		{"final of a step", func(g *Graph) {
			s := g.Stage("update", At(Step))
			Collect(s, "batches", batches(g))
			Final[int](s, "bucket")
			s.Do(do)
		}, []string{`stage "update": output "bucket": Final is for stages at batch or sub level, this one is at step level`}},
		{"other graph", func(g *Graph) {
			Sink(g, "sink", source(New("other")), func(*Task, int) error { return nil })
		}, []string{`stage "sink": input "sink": connected to port "source" of another graph, "other"`}},
		{"several mistakes at once", func(g *Graph) {
			g.Stage("a", On(1, Comm))
			Sink(g, "a", Port[int]{}, func(*Task, int) error { return nil })
		}, []string{`stage "a": has no function`, `stage "a": another stage has this name`, "not connected", "placed on device 1"}},
		{"finer without collect", func(g *Graph) {
			s := g.Stage("step", At(Step))
			In(s, "batch", batches(g))
			s.Do(do)
		}, []string{`stage "step": input "batch": port "batches" is at batch level, the stage at the coarser step level: use Collect`}},
		{"collect of the same level", func(g *Graph) {
			s := g.Stage("loss", At(Batch))
			Collect(s, "batch", batches(g))
			s.Do(do)
		}, []string{`Collect wants a port finer than the stage's batch level`}},
		{"collect of a stream", func(g *Graph) {
			s := g.Stage("loss")
			Collect(s, "rows", source(g))
			s.Do(do)
		}, []string{`stage "loss": input "rows": Collect gathers the batches of a step or the sub-batches of a batch, and port "source" is at stream level`}},
		{"collect of steps", func(g *Graph) {
			up := g.Stage("update", At(Step))
			Collect(up, "batches", batches(g))
			losses := Out[float64](up, "loss")
			up.Do(do)
			s := g.Stage("all")
			Collect(s, "losses", losses.Port)
			s.Do(do)
		}, []string{`stage "all": input "losses": Collect gathers the batches of a step or the sub-batches of a batch, and port "loss" is at step level`}},
		{"no function", func(g *Graph) {
			rows := Source[int](g, "rows", nil)
			Sink(g, "sink", Map[int, int](g, "map", rows, nil), nil)
			g.Stage("fine").Refuse(nil)
		}, []string{`stage "rows": its function is nil`, `stage "map": its function is nil`, `stage "sink": its function is nil`, `stage "fine": has no function`}},
		{"no name", func(g *Graph) {
			Sink(g, "", source(g), func(*Task, int) error { return nil })
		}, []string{`stage "": has no name`}},
		{"stream into batch", func(g *Graph) {
			s := g.Stage("loss", At(Batch))
			In(s, "rows", source(g))
			s.Do(do)
		}, []string{`port "source" is at stream level, the stage at batch level: only Batches turns a stream into batches`}},
		{"split on a device", func(g *Graph) {
			s := g.Stage("split", On(0, Compute))
			In(s, "batch", batches(g))
			Fan[int](s, "subs")
			s.Do(do)
		}, []string{`stage "split": must run on the host`}},
		{"split of sub-batches", func(g *Graph) {
			s := g.Stage("split", At(Sub))
			In(s, "batch", batches(g))
			Fan[int](s, "subs")
			s.Do(do)
		}, []string{`only a stage at batch level can split`}},
		{"two splits", func(g *Graph) {
			b := batches(g)
			x, y := g.Stage("x"), g.Stage("y")
			In(x, "b", b)
			In(y, "b", b)
			x.Do(do)
			y.Do(do)
			s := g.Stage("both")
			In(s, "x", Fan[int](x, "subs").Port)
			In(s, "y", Fan[int](y, "subs").Port)
			s.Do(do)
		}, []string{`stage "both": its inputs come from two splits, "x" and "y"`}},
		{"two outputs that split", func(g *Graph) {
			s := g.Stage("split")
			In(s, "batch", batches(g))
			Fan[int](s, "queries")
			Fan[int](s, "documents")
			s.Do(do)
		}, []string{`stage "split": output "documents": a stage splits a batch once`}},
		{"two sources of batches", func(g *Graph) {
			rows := source(g)
			for _, name := range []string{"one", "two"} {
				s := g.Stage(name)
				In(s, "rows", rows)
				Batches[int](s, "batches")
				s.Do(do)
			}
		}, []string{`stage "two": two stages emit batches: this one and "one"`}},
		{"loop to a batch port", func(g *Graph) {
			s := g.Stage("embed")
			b := batches(g)
			In(s, "batch", b)
			Loop(s, "weights", b, "")
			s.Do(do)
		}, []string{`a loop-carried port must be at step level, port "batches" is at batch level`}},
		{"parallel lane", func(g *Graph) {
			Map(g, "embed", source(g), func(_ *Task, v int) (int, error) { return v, nil }, On(0, Compute), Parallel(2))
		}, []string{"a lane runs one task at a time"}},
		{"loop into a stream", func(g *Graph) {
			later := Later[int](g, "weights", "call Bind")
			s := g.Stage("score")
			In(s, "row", source(g))
			Loop(s, "weights", later, 0)
			s.Do(do)
			b := g.Stage("batch")
			In(b, "scores", Out[int](s, "scores").Port)
			b.Do(do)
			up := g.Stage("update", At(Step))
			Collect(up, "batches", Batches[int](b, "batches").Port)
			up.Do(do)
			Bind(later, Out[int](up, "weights"))
		}, []string{`graph "g": stage "score": input "weights": Loop carries a value from step to step, and the stage is at stream level`}},
		{"loop of what is lent", func(g *Graph) {
			s := g.Stage("snapshot", At(Step))
			Collect(s, "batches", batches(g))
			s.Do(do)
			write := g.Stage("write", At(Step))
			Loop(write, "state", Lent[int](s, "state").Port, 0)
			write.Do(do)
		}, []string{`graph "g": stage "write": input "state": Loop would keep what port "state" lends`}},
		{"no task at a time", func(g *Graph) {
			Map(g, "embed", source(g), func(_ *Task, v int) (int, error) { return v, nil }, Parallel(-1))
		}, []string{`stage "embed": Parallel(-1): want at least 1`}},
		{"no room", func(g *Graph) {
			s := g.Stage("sink")
			rows := source(g)
			In(s, "rows", rows, Capacity(0))
			In(s, "again", rows, Capacity(-1))
			s.Do(do)
		}, []string{`graph "g": stage "sink": input "rows": Capacity(0): want at least 1`, `stage "sink": input "again": Capacity(-1): want at least 1`}},
		{"no device before the first", func(g *Graph) {
			Map(g, "embed", source(g), func(_ *Task, v int) (int, error) { return v, nil }, On(-1, Compute))
		}, []string{`stage "embed": placed on device -1, but there are 1 devices (gpu)`}},
		{"sub-batches of nothing", func(g *Graph) {
			Sink(g, "embed", batches(g), func(*Task, string) error { return nil }, At(Sub))
		}, []string{`stage "embed": is at sub level but no input says which sub-batches there are`}},
		{"split by a step's value", func(g *Graph) {
			b := batches(g)
			s := g.Stage("count", At(Step))
			Collect(s, "batches", b)
			s.Do(do)
			split := g.Stage("split")
			In(split, "batch", b)
			In(split, "count", Out[int](s, "count").Port)
			Fan[int](split, "subs")
			split.Do(do)
		}, []string{`stage "split": input "count": the split "split" can't depend on a value at step level`}},
		{"steps without batches", func(g *Graph) {
			g.Stage("update", At(Step)).Do(do)
		}, []string{`stage "update": is at step level, but no stage emits batches`}},
		{"batches from nowhere", func(g *Graph) {
			batches(g)
			Out[int](g.Stage("mine", At(Batch)), "batches")
			g.stages[len(g.stages)-1].Do(do)
		}, []string{`stage "mine": is at batch level but has no input: emit batches with Batches`}},
		{"batches into a stream", func(g *Graph) {
			Sink(g, "count", batches(g), func(*Task, string) error { return nil }, At(Stream))
		}, []string{`stage "count": input "count": port "batches" is at batch level, the stage at stream level`}},
		{"batches of two streams", func(g *Graph) {
			s, rows := g.Stage("batch"), source(g)
			In(s, "rows", rows)
			In(s, "more rows", rows)
			Batches[int](s, "batches")
			s.Do(do)
		}, []string{`stage "batch": a stage that emits batches has one output and at most one input`}},
		{"batches and something else", func(g *Graph) {
			s := g.Stage("batch")
			Batches[int](s, "batches")
			Out[int](s, "counts")
			s.Do(do)
		}, []string{`stage "batch": a stage that emits batches has one output and at most one input`}},
		{"parallel source", func(g *Graph) {
			Source(g, "rows", func(context.Context) (int, error) { return 0, io.EOF }, Parallel(2))
		}, []string{`stage "rows": a source or a batching stage runs one task at a time: drop Parallel`}},
		{"for nothing", func(g *Graph) {
			g.Stage("idle", At(Stream)).Do(do)
		}, []string{`stage "idle": has neither inputs nor outputs`}},
		{"when on a batch", func(g *Graph) {
			s := g.Stage("eval", When(func(int) bool { return true }))
			In(s, "batch", batches(g))
			s.Do(do)
		}, []string{"When is for stages at step level"}},
		{"descending batches", func(g *Graph) {
			s := g.Stage("back", Descending())
			In(s, "batch", batches(g))
			s.Do(do)
		}, []string{`stage "back": Descending is for stages at sub level, this one is at batch level`}},
		{"no level", func(g *Graph) {
			s := g.Stage("work", At(Sub+1))
			In(s, "batch", batches(g))
			s.Do(do)
		}, []string{`stage "work": At(4): want Stream, Step, Batch or Sub`}},
		{"no lane", func(g *Graph) {
			s := g.Stage("work", On(0, Fetch+1))
			In(s, "batch", batches(g))
			s.Do(do)
		}, []string{`stage "work": On(0, 4): want the lane Compute, Comm, Copy or Fetch`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := New("g")
			tt.build(g)
			_, err := g.Build(Devices(fakeDevice("gpu")))
			if err == nil {
				t.Fatal("built")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
			g.DOT() // a graph that does not build can be drawn
			g.Mermaid()
			g.SVG()
		})
	}
}

// A second Build, which would find in the graph what the first has left there, says what is wrong.
func TestBuildTwice(t *testing.T) {
	g := New("once")
	Source(g, "rows", func(context.Context) (int, error) { return 0, io.EOF })
	if _, err := g.Build(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Build(); err == nil || !strings.HasPrefix(err.Error(), `graph "once" has been built before`) {
		t.Error(err)
	}
}

func TestBuildOptions(t *testing.T) {
	for _, tt := range []struct {
		option BuildOption
		want   string
	}{
		{Workers(-1), `graph "g": Workers(-1): want at least 1`},
		{Workers(0), `graph "g": Workers(0): want at least 1`},
		{Devices(nil), `graph "g": Devices: device 0 is nil`},
		{Devices(fakeDevice("gpu"), nil), `graph "g": Devices: device 1 is nil`},
	} {
		g := New("g")
		Sink(g, "work", Source(g, "rows", count(1)), func(*Task, int) error { return nil }, On(0, Compute))
		_, err := g.Build(tt.option)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v; want %q", err, tt.want)
		}
	}
}

// A stage of a stream may have a lane, but not one whose order its items would change as they arrive.
func TestStreamOnALane(t *testing.T) {
	build := func(lane LaneKind) error {
		g := New("g")
		rows := Source(g, "rows", count(1))
		Sink(g, "score", rows, func(*Task, int) error { return nil }, On(0, lane))
		s := g.Stage("batch")
		In(s, "rows", rows)
		s.Do(func(*Task) error { return nil })
		Sink(g, "embed", Batches[int](s, "batches").Port, func(*Task, int) error { return nil }, On(0, Compute))
		_, err := g.Build(Devices(fakeDevice("gpu")))
		return err
	}
	want := `graph "g": stage "score": works on a stream, whose items would come in between the tasks of stage "embed" on device 0 compute as they arrive`
	if err := build(Compute); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "in the host pool") {
		t.Errorf("%v; want %q", err, want)
	}
	if err := build(Copy); err != nil {
		t.Error(err)
	}
}
