package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// What comes before an item that can't be used is done before the run ends with its error, whichever stage knows, however far ahead of the steps it
// is, and in whichever batch of a step.
func TestEndBefore(t *testing.T) {
	checkGoroutines(t)
	bad := errors.New("bad")
	for try := range 60 {
		at := 5 + try%4                // the item: two make a step, which is 2 or 3 or 4
		where := try / 4 % 4           // who cuts: the stage that makes batches, one before the split, the split, or the first when all has come
		ended := try%5 == 0            // step 1 has ended the run before
		ahead := 2 + try%2*8           // how far the stream is ahead of the steps
		finish := errors.New("enough") // why
		if try%10 == 0 {
			finish = nil
		}
		g := New("ends")
		nap := func() { time.Sleep(rand.N(300 * time.Microsecond)) }
		next := 0
		source := g.Stage("source", At(Stream))
		items := Out[int](source, "items")
		source.Do(func(t *Task) error {
			if next == at && where == 3 {
				return io.EOF
			}
			if next == at {
				t.EndBefore(bad)
				next++
				items.Put(t, -1)
				return nil
			}
			items.Put(t, next)
			next++
			return nil
		})
		rows := Map(g, "tokenize", items.Port, func(_ *Task, v int) (int, error) { nap(); return v, nil }, Parallel(2))
		bat := g.Stage("batch")
		row := In(bat, "row", rows)
		batches := Batches[int](bat, "batches")
		bat.Do(func(t *Task) error {
			if t.Ended() {
				t.EndBefore(bad)
				return nil
			}
			v := row.Get(t)
			if v < 0 && where == 0 {
				t.EndBefore(bad)
				return nil
			}
			batches.Put(t, v, v%2 == 1 || v < 0 && at%2 == 1)
			return nil
		})
		header := Map(g, "header", batches.Port, func(t *Task, v int) (int, error) { nap(); return v, nil })
		if where == 1 {
			s := g.Stage("cut")
			in := In(s, "batch", header)
			out := Out[int](s, "batch")
			s.Do(func(t *Task) error {
				if v := in.Get(t); v >= 0 {
					out.Put(t, v)
				} else {
					t.EndBefore(bad)
				}
				return nil
			})
			header = out.Port
		}
		split := g.Stage("split")
		one := In(split, "batch", header, Capacity(ahead))
		subs := Fan[int](split, "subs")
		split.Do(func(t *Task) error {
			if one.Get(t) < 0 {
				t.EndBefore(bad)
				return nil
			}
			subs.Put(t, 0)
			subs.Put(t, 1)
			return nil
		})
		weights := Later[int](g, "weights", "call Bind")
		var embedded atomic.Int64
		emb := g.Stage("embed", On(0, Compute))
		In(emb, "sub", subs.Port, Capacity(ahead))
		Loop(emb, "weights", weights, 0)
		embs := Out[int](emb, "embeddings")
		emb.Do(func(t *Task) error { nap(); embedded.Add(1); embs.Put(t, 0); return nil })
		update := g.Stage("update", At(Step))
		Collect(update, "embeddings", embs.Port)
		out := Out[int](update, "weights")
		update.Do(func(t *Task) error {
			if ended && t.Index.Step == 1 {
				t.EndRun(finish)
			}
			out.Put(t, 0)
			return nil
		})
		Bind(weights, out)
		var saved []int
		Sink(g, "save", out.Port, func(t *Task, _ int) error { nap(); saved = append(saved, t.Index.Step); return nil })
		p, err := g.Build(Devices(fakeDevice("cpu")), Workers(3))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = p.Run(ctx)
		cancel()
		steps, subsDone, text := at/2, 2*at, fmt.Sprintf(`graph "ends": stage "batch", item #%d: bad`, at)
		switch where {
		case 1, 2:
			text = fmt.Sprintf(`graph "ends": stage %q, item %d.%d: bad`, []string{"cut", "split"}[where-1], at/2, at%2)
		}
		if ended {
			steps, subsDone, text = 2, 8, `graph "ends": stage "update", item 1: enough`
		}
		want := fmt.Sprint([]int{0, 1, 2, 3}[:steps])
		if finish == nil {
			text = "<nil>"
		}
		if fmt.Sprint(err) != text || fmt.Sprint(saved) != want || embedded.Load() != int64(subsDone) {
			t.Fatalf("try %d: %v, want %s; steps %v of %s, %d sub-batches of %d", try, err, text, saved, want, embedded.Load(), subsDone)
		}
	}
}

// An item that no batch was to have ends the run with its error as well, after what came before it.
func TestEndBeforeWithoutBatches(t *testing.T) {
	checkGoroutines(t)
	g := New("ends")
	n := 0
	source := g.Stage("source", At(Stream))
	out := Out[int](source, "items")
	source.Do(func(t *Task) error {
		if n++; n == 4 {
			t.EndBefore(errors.New("bad"))
		}
		if n > 4 {
			return io.EOF
		}
		out.Put(t, n)
		return nil
	})
	var seen []int
	Sink(g, "sink", out.Port, func(_ *Task, v int) error { seen = append(seen, v); return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || err.Error() != `graph "ends": stage "source", item #3: bad` || len(seen) != 4 {
		t.Errorf("%v after %v", err, seen)
	}
}

// A stage that fails on what stands in an item's place tells of the item, and a stage behind a split can't end the run before anything.
func TestEndBeforeUnaware(t *testing.T) {
	checkGoroutines(t)
	g := New("ends")
	source := g.Stage("source", At(Stream))
	out := Out[[]int](source, "items")
	source.Do(func(t *Task) error {
		t.EndBefore(errors.New("bad"))
		out.Put(t, nil)
		return nil
	})
	Sink(g, "mine", out.Port, func(_ *Task, v []int) error { _ = v[0]; return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `stage "mine", item #0: panic`) || !strings.Contains(err.Error(), `stage "source", item #0: bad`) {
		t.Errorf("%v", err)
	}
	task := &Task{stage: &Stage{level: Sub}, broke: true}
	if err := task.check(); err == nil || !strings.Contains(err.Error(), "before a split") {
		t.Errorf("%v", err)
	}
}

// Of two batches that can't be used the run ends before the first, and with its error, whichever is told of first.
func TestEndBeforeTwice(t *testing.T) {
	checkGoroutines(t)
	for _, late := range []int{1, 2} { // the one that is told of last
		g, next := New("ends"), 0
		items := Source(g, "source", func(context.Context) (int, error) {
			if next == 4 {
				return 0, io.EOF
			}
			next++
			return next - 1, nil
		})
		bat := g.Stage("batch")
		item := In(bat, "item", items)
		batches := Batches[int](bat, "batches")
		bat.Do(func(t *Task) error {
			if !t.Ended() {
				batches.Put(t, item.Get(t), true)
			}
			return nil
		})
		told := make(chan struct{})
		look := func(name string, own int, from Port[int]) Port[int] { // which has its own batch that can't be used
			s := g.Stage(name)
			in := In(s, "batch", from)
			out := Out[int](s, "batch")
			s.Do(func(t *Task) error {
				v := in.Get(t)
				switch {
				case v != own:
					out.Put(t, v)
				case own == late:
					<-told
					t.EndBefore(fmt.Errorf("bad %d", own))
				default:
					t.EndBefore(fmt.Errorf("bad %d", own))
					close(told)
				}
				return nil
			})
			return out.Port
		}
		var done []int
		first, second := look("first", 1, batches.Port), look("second", 2, batches.Port)
		s := g.Stage("sink")
		one, two := In(s, "one", first), In(s, "two", second)
		s.Do(func(t *Task) error {
			done = append(done, one.Get(t)+two.Get(t))
			return nil
		})
		p, err := g.Build(Workers(3))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err = p.Run(ctx)
		cancel()
		if want := `graph "ends": stage "first", item 1.0: bad 1`; err == nil || err.Error() != want || fmt.Sprint(done) != "[0]" {
			t.Errorf("batch %d is told of last: %v after %v, want %s", late, err, done, want)
		}
	}
}

// A run that ends before a batch is complete when all steps before that one's are; of that step there may be some.
func TestCompleteBeforeCut(t *testing.T) {
	g := New("ends")
	Sink(g, "sink", Source(g, "source", func(context.Context) (int, error) { return 0, io.EOF }), func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	cut := batchIndex(2, 1)
	for step, want := range map[int]bool{1: false, 2: true, 3: true} {
		c := newCore(p, 0)
		c.cut, c.steps[step] = &cut, &stepState{}
		if got := c.complete(); got != want {
			t.Errorf("with step %d to make, ending before batch 2.1: complete %t, want %t", step, got, want)
		}
	}
}
