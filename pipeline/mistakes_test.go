package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// A source has ended when it says io.EOF itself: an error that holds one, as of a file that ends too early, is an error, and not the end of the rows.
func TestEndOfSource(t *testing.T) {
	for _, end := range []error{io.EOF, fmt.Errorf("part-3.parquet, page 7: %w", io.EOF)} {
		g := New("ends")
		next, rows := count(2), 0
		Sink(g, "work", Source(g, "rows", func(ctx context.Context) (int, error) {
			v, err := next(ctx)
			if err != nil {
				err = end
			}
			return v, err
		}), func(*Task, int) error { rows++; return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(t.Context())
		if end == io.EOF && (err != nil || rows != 2) || end != io.EOF && (!errors.Is(err, end) || !strings.HasPrefix(err.Error(), `graph "ends": stage "rows", item #2: part-3`)) {
			t.Errorf("a source that ends with %v: %v after %d rows", end, err, rows)
		}
	}
}

// A task that takes another stage's input or output for its own is told so: it would read and write something else.
func TestAnothersPort(t *testing.T) {
	type ports struct {
		in     Input[int]
		all    Group[int]
		out    Output[int]
		lent   LentOutput[int]
		others Output[string]
	}
	for want, mistake := range map[string]func(*Task, ports){
		`panic: input "row" is stage "theirs"'s, at `:     func(t *Task, x ports) { x.in.Get(t) },
		`panic: input "all" is stage "step"'s, at `:       func(t *Task, x ports) { x.all.All(t) },
		`panic: output "out" is stage "theirs"'s, at `:    func(t *Task, x ports) { x.out.Put(t, 1) },
		`panic: output "lent" is stage "theirs"'s, at `:   func(t *Task, x ports) { x.lent.Put(t, 1, nil) },
		`panic: output "others" is stage "theirs"'s, at `: func(t *Task, x ports) { x.others.Put(t, "1") },
	} {
		g := New("g")
		rows := Source(g, "rows", count(1))
		theirs := g.Stage("theirs")
		x := ports{in: In(theirs, "row", rows), out: Out[int](theirs, "out"), lent: Lent[int](theirs, "lent"), others: Out[string](theirs, "others")}
		theirs.Do(func(t *Task) error {
			x.out.Put(t, 1)
			x.lent.Put(t, 1, nil)
			x.others.Put(t, "1")
			return nil
		})
		step := g.Stage("step", At(Step))
		x.all = Collect(step, "all", summingBatches(g, rows, 1))
		step.Do(func(*Task) error { return nil })
		mine := g.Stage("mine")
		In(mine, "row", rows)
		out := Out[int](mine, "out")
		mine.Do(func(t *Task) error { mistake(t, x); out.Put(t, 1); return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), `graph "g": stage "mine", item #0: `+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A Final output is put by the step's last task alone, or what reads it would begin too early; and Predict puts it there, in stages of batches as of
// sub-batches, and in a last step that has fewer.
func TestFinal(t *testing.T) {
	const items, perStep, perBatch = 5, 2, 3
	for _, level := range []Level{Batch, Sub} {
		for _, early := range []Index{{}, {Level: level}, {Level: level, Batch: 1}, {Level: Sub, Sub: perBatch - 1}} { // who puts it besides the last
			g := New("final")
			rows := summingBatches(g, Source(g, "rows", count(items)), perStep)
			if level == Sub {
				split := g.Stage("split")
				row := In(split, "row", rows)
				subs := Fan[int](split, "subs")
				split.Do(func(t *Task) error {
					for range perBatch {
						subs.Put(t, row.Get(t))
					}
					return nil
				})
				rows = subs.Port
			}
			s := g.Stage("backward", On(0, Compute))
			row := In(s, "row", rows, Capacity(perStep))
			done := Final[int](s, "done")
			ahead := make(chan struct{}) // closed when the first step is known to have two batches
			s.Do(func(t *Task) error {
				<-ahead
				last := (row.Get(t)%perStep == perStep-1 || row.Get(t) == items-1) && (level == Batch || t.Index.Sub == perBatch-1)
				if last || t.Index == early {
					done.Put(t, 0)
				}
				return nil
			})
			known := g.Stage("known", At(Step))
			Collect(known, "rows", rows, Capacity(items))
			known.Do(func(t *Task) error {
				if t.Index.Step == 0 {
					close(ahead)
				}
				return nil
			})
			steps := 0
			Sink(g, "sync", done.Port, func(*Task, int) error { steps++; return nil })
			p, err := g.Build(Devices(fakeDevice("cpu")))
			if err != nil {
				t.Fatal(err)
			}
			want := (items + perStep - 1) / perStep
			wrong := early.Level == level && (level == Sub || early.Batch == 0)
			err = p.Run(t.Context())
			if text := fmt.Sprintf(`graph "final": stage "backward", item %v: output "done": only a step's last task puts a Final output`, early); wrong && (err == nil || !strings.HasPrefix(err.Error(), text)) {
				t.Errorf("put by %v: %v, want %s", early, err, text)
			}
			if !wrong && (err != nil || steps != want) {
				t.Errorf("stage of each %v: %v after %d steps, want %d", level, err, steps, want)
			}
			for _, reading := range []time.Duration{1, 20} { // the next row, before or after what is done with this one
				predicted := 0
				for _, x := range p.Predict(Workload{
					Items: items, Batches: func(int) int { return perStep }, Subs: func(Index) int { return perBatch },
					Time: func(stage string, _ Index) time.Duration {
						if stage == "rows" {
							return reading
						}
						return 2
					},
					Final: func(string, string, Index) time.Duration { return 1 },
				}) {
					if x.Stage == "sync" {
						predicted++
					}
				}
				if predicted != want {
					t.Errorf("stage of each %v, rows in %d: %d steps are predicted to be synchronized, want %d", level, reading, predicted, want)
				}
			}
		}
	}
}

// A stage that reads two streams has an item of each: what one has more than the other is not left out in silence, whether it fits an edge or not.
func TestUnequalStreams(t *testing.T) {
	for _, more := range []int{0, 1, 4, 5, 20} {
		g := New("join")
		join := g.Stage("join")
		a, b := In(join, "a", Source(g, "short", count(3))), In(join, "b", Source(g, "long", count(3+more)))
		joined := 0
		join.Do(func(task *Task) error {
			if joined++; a.Get(task) != b.Get(task) {
				t.Errorf("%d is joined with %d", a.Get(task), b.Get(task))
			}
			return nil
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(t.Context())
		want := `an input of stage "join" has ended after 3 items, and "long" of stage "long" has more`
		if joined != 3 || more == 0 && err != nil || more > 0 && (err == nil || !strings.HasPrefix(err.Error(), `graph "join": nothing can run: `) || !strings.Contains(err.Error(), want)) {
			t.Errorf("3 and %d items: %v after %d", 3+more, err, joined)
		}
	}
}

// What can't end a run is told so: an item of a stream has no step to be the last, and what ends before something has a reason.
func TestEndsWrongly(t *testing.T) {
	for want, end := range map[string]func(*Task){
		`graph "ends": stage "look", item #1: EndRun makes a task's step the last one, and a stream's items are in no step`: func(t *Task) { t.EndRun(nil) },
		`graph "ends": stage "look", item #1: EndBefore(nil): no reason is given`:                                           func(t *Task) { t.EndBefore(nil) },
	} {
		g := New("ends")
		rows := Map(g, "look", Source(g, "rows", count(3)), func(t *Task, v int) (int, error) {
			if v == 1 {
				end(t)
			}
			return v, nil
		})
		step := g.Stage("step", At(Step))
		Collect(step, "rows", summingBatches(g, rows, 1))
		step.Do(func(*Task) error { return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A run that is stopped with a cause is stopped, and its stage has not failed, also where the stage that returns the cause is heard first.
func TestStoppedByStage(t *testing.T) {
	why := errors.New("no more")
	for range 20 { // both are there when the run looks, and it takes either
		ctx, cancel := context.WithCancelCause(t.Context())
		worked := make(chan struct{})
		g := New("stops")
		s := g.Stage("rows", At(Stream))
		rows := Out[int](s, "rows")
		s.Do(func(t *Task) error {
			rows.Put(t, 0)
			<-worked
			cancel(why)
			return context.Cause(t.Context())
		})
		Sink(g, "work", rows.Port, func(*Task, int) error { return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(ctx, WithDepths(func(d Depth) { // by who hears of the stage
			if d.Units == 0 {
				close(worked)
				<-ctx.Done()
				time.Sleep(time.Millisecond)
			}
		}))
		if !errors.Is(err, why) || err.Error() != `graph "stops": stopped: no more (context canceled)` {
			t.Fatal(err)
		}
	}
}

// What has run for longest comes first in the report of a run that is stalled.
func TestStalledLongest(t *testing.T) {
	g := New("stalls")
	rows := Source(g, "rows", count(1))
	names := []string{"b", "d", "a", "e", "c"}
	began := []chan struct{}{make(chan struct{})}
	close(began[0])
	release := make(chan struct{})
	for i, name := range names {
		began = append(began, make(chan struct{}))
		rows = Map(g, name, rows, func(_ *Task, v int) (int, error) { return v, nil })
		s := g.Stage("wait " + name)
		In(s, "row", rows)
		s.Do(func(*Task) error {
			<-began[i]
			close(began[i+1])
			<-release
			return nil
		})
	}
	p, err := g.Build(Workers(2 * len(names)))
	if err != nil {
		t.Fatal(err)
	}
	var said string
	if err := p.Run(t.Context(), WhenStalled(20*time.Millisecond, func(report string) {
		if said == "" {
			said = report
			close(release)
		}
	})); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, name := range names {
		next := strings.Index(said, "wait "+name+"(#0) runs")
		if next < at {
			t.Errorf("stage %q is not behind those that began before: %s", name, said)
		}
		at = next
	}
}

// Steps are counted from 0.
func TestFirstStepBelowNone(t *testing.T) {
	g := New("g")
	Sink(g, "work", Source(g, "rows", count(1)), func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context(), FirstStep(-1)); err == nil || err.Error() != `graph "g": FirstStep(-1): want how many steps were made before` {
		t.Error(err)
	}
}
