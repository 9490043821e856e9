package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// checkGoroutines fails the test if it leaves goroutines behind.
func checkGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 200 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
	})
}

func count(n int) func(context.Context) (int, error) {
	next := 0
	return func(context.Context) (int, error) {
		if next == n {
			return 0, io.EOF
		}
		next++
		return next - 1, nil
	}
}

// summing builds a small training-shaped graph over integers and returns what each step's collection saw.
func summing(g *Graph, items, perStep int, embed func(*Task, int) error) *[]string {
	var seen []string
	rows := Source(g, "source", count(items))
	rows = Map(g, "tokenize", rows, func(_ *Task, v int) (int, error) { return 10 * v, nil }, Parallel(3))
	split := g.Stage("split")
	whole := In(split, "batch", summingBatches(g, rows, perStep))
	subs := Fan[int](split, "subs")
	split.Do(func(t *Task) error {
		for i := range 3 {
			subs.Put(t, whole.Get(t)+i)
		}
		return nil
	})
	weights := Later[int](g, "weights", "call Bind")
	emb := g.Stage("embed", On(0, Compute))
	sub, w := In(emb, "sub", subs.Port), Loop(emb, "weights", weights, 1000)
	embs := Out[int](emb, "embeddings")
	emb.Do(func(t *Task) error {
		if embed != nil {
			if err := embed(t, sub.Get(t)); err != nil {
				return err
			}
		}
		embs.Put(t, w.Get(t)+sub.Get(t))
		return nil
	})
	step := g.Stage("update", At(Step))
	all := Collect(step, "embeddings", embs.Port)
	out := Out[int](step, "weights")
	step.Do(func(t *Task) error {
		seen = append(seen, fmt.Sprint(all.All(t)))
		out.Put(t, 1000*(t.Index.Step+2))
		return nil
	})
	Bind(weights, out)
	return &seen
}

// summingBatches makes a batch of each row, and a step of so many batches.
func summingBatches(g *Graph, rows Port[int], perStep int) Port[int] {
	bat := g.Stage("batch")
	row := In(bat, "row", rows)
	batches := Batches[int](bat, "batches")
	n := 0
	bat.Do(func(t *Task) error {
		if !t.Ended() {
			n++
			batches.Put(t, row.Get(t), n%perStep == 0)
		}
		return nil
	})
	return batches.Port
}

func TestRun(t *testing.T) {
	checkGoroutines(t)
	g := New("sums")
	seen := summing(g, 5, 2, nil)
	p, err := g.Build(Devices(fakeDevice("cpu")))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := "[[1000 1001 1002 1010 1011 1012] [2020 2021 2022 2030 2031 2032] [3040 3041 3042]]"
	if got := fmt.Sprint(*seen); got != want {
		t.Errorf("steps saw\n%s, want\n%s", got, want)
	}
}

// A plan that runs again has from its sources what they then give: nothing, of one that stays at its end.
func TestRunAgain(t *testing.T) {
	for anew, want := range map[bool][]int{false: {3, 3}, true: {3, 6}} {
		g := New("again")
		next, rows := count(3), 0
		Sink(g, "work", Source(g, "source", func(ctx context.Context) (int, error) {
			v, err := next(ctx)
			if err == io.EOF && anew {
				next = count(3)
			}
			return v, err
		}), func(*Task, int) error { rows++; return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		for run := range want {
			if err := p.Run(context.Background()); err != nil || rows != want[run] {
				t.Errorf("a source that begins anew: %v, run %d: %v after %d rows, want %d", anew, run, err, rows, want[run])
			}
		}
	}
}

func TestFirstStep(t *testing.T) {
	g := New("sums")
	var steps []int
	seen := summing(g, 2, 1, func(t *Task, _ int) error { steps = append(steps, t.Index.Step); return nil })
	p, err := g.Build(Devices(fakeDevice("cpu")))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(context.Background(), FirstStep(7)); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(steps, *seen); got != "[7 7 7 8 8 8] [[1000 1001 1002] [9010 9011 9012]]" {
		t.Error(got)
	}
}

func TestErrorsNameStageAndItem(t *testing.T) {
	broken := errors.New("row 7 is empty")
	for name, tt := range map[string]struct {
		embed func(*Task, int) error
		want  string
	}{
		"error":  {func(t *Task, v int) error { return broken }, `graph "sums": stage "embed", item 0.0.0: row 7 is empty`},
		"panic":  {func(t *Task, v int) error { panic("index out of range") }, `stage "embed", item 0.0.0: panic: index out of range`},
		"goexit": {func(t *Task, v int) error { runtime.Goexit(); return nil }, `stage "embed", item 0.0.0: the stage's function ended its goroutine`},
	} {
		t.Run(name, func(t *testing.T) {
			checkGoroutines(t)
			g := New("sums")
			summing(g, 50, 2, tt.embed)
			p, err := g.Build(Devices(fakeDevice("cpu")))
			if err != nil {
				t.Fatal(err)
			}
			err = p.Run(context.Background())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if name == "error" && !errors.Is(err, broken) {
				t.Error("the cause is not wrapped")
			}
			var p2 *PanicError
			if name == "panic" && (!errors.As(err, &p2) || len(p2.Stack) == 0) {
				t.Error("no PanicError with a stack")
			}
		})
	}
}

// A panic's error says where it was: in the stage's function, not in the runtime, which finds some of them.
func TestPanicSaysWhere(t *testing.T) {
	var at string
	here := func() {
		_, file, line, _ := runtime.Caller(1)
		at = fmt.Sprintf(", at %s:%d", file, line)
	}
	var none []int
	var nowhere *Task
	for want, f := range map[string]func(*Task, int) error{
		"panic: by hand": func(*Task, int) error { here(); panic("by hand") },
		"panic: runtime error: index out of range [3] with length 0": func(_ *Task, v int) error { here(); none[3] = v; return nil },
		"invalid memory address or nil pointer dereference":          func(*Task, int) error { here(); nowhere.stage = nil; return nil },
	} {
		g := New("sums")
		summing(g, 1, 1, f)
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want+at) {
			t.Errorf("%v, want %s%s", err, want, at)
		}
	}
	if got := (&PanicError{Value: "no stack"}).Error(); got != "panic: no stack" {
		t.Error(got)
	}
}

// A run that is stopped says why, and that it was, whichever of the two the stage that hears of it first returns.
func TestCancel(t *testing.T) {
	checkGoroutines(t)
	why := errors.New("interrupted by the user")
	for _, cause := range []error{nil, why, fmt.Errorf("%w: %w", why, context.Canceled)} {
		for name, stops := range map[string]func(context.Context) error{"Err": context.Context.Err, "Cause": context.Cause} {
			ctx, cancel := context.WithCancelCause(context.Background())
			g := New("sums")
			summing(g, 1000, 2, func(t *Task, v int) error {
				if v == 100 {
					cancel(cause)
					<-t.Context().Done() // a stage that waits is told
					return stops(t.Context())
				}
				return nil
			})
			p, err := g.Build(Devices(fakeDevice("cpu")))
			if err != nil {
				t.Fatal(err)
			}
			err = p.Run(ctx)
			if !errors.Is(err, context.Canceled) || cause != nil && !errors.Is(err, cause) ||
				!strings.HasPrefix(err.Error(), `graph "sums": stopped: `) || strings.Count(err.Error(), "context canceled") != 1 {
				t.Errorf("cause %v, the stage returns its context's %s: %v", cause, name, err)
			}
		}
	}
}

func TestPutTooLittle(t *testing.T) {
	g := New("g")
	s := g.Stage("mute")
	In(s, "rows", Source(g, "source", count(1)))
	out := Out[int](s, "out")
	s.Do(func(*Task) error { return nil })
	Sink(g, "sink", out.Port, func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(context.Background())
	if err == nil || !strings.Contains(err.Error(), `stage "mute", item #0: output "out": 0 values were put, want 1`) {
		t.Error(err)
	}
}

func TestSplitIntoNothing(t *testing.T) {
	g := New("g")
	split := g.Stage("split")
	In(split, "batch", summingBatches(g, Source(g, "source", count(1)), 1))
	subs := Fan[int](split, "subs")
	split.Do(func(*Task) error { return nil })
	Sink(g, "sink", subs.Port, func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || err.Error() != `graph "g": stage "split", item 0.0: output "subs": no sub-batch was put` {
		t.Error(err)
	}
}

// A slow tokenizer keeps every queue within its bound, and a fast source does not run ahead.
func TestBounded(t *testing.T) {
	g := New("bounded")
	var read, written atomic.Int64
	next := count(40)
	rows := Source(g, "source", func(ctx context.Context) (int, error) {
		v, err := next(ctx)
		if ahead := read.Add(1) - written.Load(); ahead > 14 { // capacities 4+4, tasks that run 1+3+1, the one being counted
			t.Errorf("the source is %d items ahead", ahead)
		}
		return v, err
	})
	toks := Map(g, "tokenize", rows, func(_ *Task, v int) (int, error) { time.Sleep(2 * time.Millisecond); return v, nil }, Parallel(3))
	last := -1
	Sink(g, "write", toks, func(_ *Task, v int) error {
		if v != last+1 {
			t.Errorf("item %d after %d: a parallel stage changed the order", v, last)
		}
		last = v
		written.Add(1)
		return nil
	})
	p, err := g.Build(Workers(5))
	if err != nil {
		t.Fatal(err)
	}
	events := traced(t, p)
	counters := 0
	for _, e := range events {
		if e.Phase == "C" {
			counters++
			if e.Args["units"].(float64) > e.Args["capacity"].(float64) {
				t.Errorf("%s holds %v", e.Name, e.Args)
			}
		}
	}
	if last != 39 || counters == 0 {
		t.Errorf("last item %d, %d counter events", last, counters)
	}
}

func TestWhen(t *testing.T) {
	g := New("g")
	src := g.Stage("batches", At(Stream))
	batches := Batches[int](src, "batches")
	n := 0
	src.Do(func(t *Task) error {
		if n == 6 {
			return io.EOF
		}
		batches.Put(t, n, true)
		n++
		return nil
	})
	var evaluated []int
	eval := g.Stage("eval", At(Step), When(func(s int) bool { return s%3 == 2 }))
	all := Collect(eval, "batches", batches.Port)
	out := Out[string](eval, "score")
	eval.Do(func(t *Task) error {
		evaluated = append(evaluated, all.All(t)...)
		out.Put(t, "good")
		return nil
	})
	var scores []string
	Sink(g, "record", out.Port, func(_ *Task, score string) error { scores = append(scores, score); return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, s := range Spans(traced(t, p)) {
		if s.Stage == "eval" {
			ran++
		}
	}
	if got := fmt.Sprintf("%v %q %d", evaluated, scores, ran); got != `[2 5] ["" "" "good" "" "" "good"] 2` {
		t.Error(got)
	}
}

// BenchmarkTask is what the scheduler costs per task on a device's lane.
func BenchmarkTask(b *testing.B) {
	g := New("bench")
	rows := Source(g, "source", count(b.N))
	Map(g, "work", rows, func(_ *Task, v int) (int, error) { return v, nil }, On(0, Compute))
	p, err := g.Build(Devices(fakeDevice("cpu")))
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Run(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// A step that ends the run is completed, later ones are not begun, and how far what precedes them has come does not depend on
// timing: ranks exchange headers there. If there was a reason, that is how the run ends, with the stage and the step.
func TestEndRun(t *testing.T) {
	checkGoroutines(t)
	for try := range 20 {
		g := New("ends")
		var because error
		if try%2 > 0 {
			because = errors.New("enough")
		}
		nap := func() { time.Sleep(rand.N(time.Millisecond)) }
		rows := Map(g, "tokenize", Source(g, "source", count(100)), func(_ *Task, v int) (int, error) { nap(); return v, nil }, Parallel(2))
		batches := untilEnded(g, rows)
		headers := 0
		header := Map(g, "header", batches.Port, func(_ *Task, v int) (int, error) { nap(); headers++; return v, nil })
		split := g.Stage("split")
		In(split, "batch", header, Capacity(1))
		subs := Fan[int](split, "subs")
		split.Do(func(t *Task) error { subs.Put(t, 0); subs.Put(t, 1); return nil })
		weights := Later[int](g, "weights", "call Bind")
		var embedded atomic.Int64
		emb := g.Stage("embed", On(0, Compute))
		In(emb, "sub", subs.Port)
		Loop(emb, "weights", weights, 0)
		embs := Out[int](emb, "embeddings")
		emb.Do(func(t *Task) error { nap(); embedded.Add(1); embs.Put(t, 0); return nil })
		update := g.Stage("update", At(Step))
		Collect(update, "embeddings", embs.Port)
		out := Out[int](update, "weights")
		update.Do(func(t *Task) error {
			if t.Index.Step == 3 {
				t.EndRun(because)
			}
			out.Put(t, 0)
			return nil
		})
		Bind(weights, out)
		var saved []int
		Sink(g, "save", out.Port, func(t *Task, _ int) error { nap(); saved = append(saved, t.Index.Step); return nil })
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(context.Background())
		if because == nil && err != nil || !errors.Is(err, because) || err != nil && err.Error() != `graph "ends": stage "update", item 3: enough` {
			t.Fatalf("%v, want %v", err, because)
		}
		if got := fmt.Sprint(saved, embedded.Load()); got != "[0 1 2 3] 8" {
			t.Errorf("try %d: saved steps and embedded sub-batches %s, want 0 to 3 and 8", try, got)
		}
		if want := 4 + 3; headers != want { // two on the edge to embed, one on that to split
			t.Errorf("try %d: %d headers, want %d", try, headers, want)
		}
	}
}

// A step that has fewer batches than others, as the data have ended in it, can end the run like any other, whenever their end is known.
func TestEndRunInShortStep(t *testing.T) {
	checkGoroutines(t)
	for _, first := range []bool{true, false} { // the stage that ends the run, or the data's end
		g := New("ends")
		enough, said := errors.New("enough"), make(chan struct{})
		next := count(3)
		batches := summingBatches(g, Source(g, "source", func(ctx context.Context) (int, error) {
			v, err := next(ctx)
			if err != nil && first {
				<-said
			}
			return v, err
		}), 2)
		work := g.Stage("work", On(0, Compute))
		batch := In(work, "batch", batches)
		done := Out[int](work, "done")
		work.Do(func(t *Task) error {
			if batch.Get(t) == 2 && first {
				t.EndRun(enough)
				close(said)
			}
			done.Put(t, 0)
			return nil
		})
		var steps []int
		update := g.Stage("update", At(Step))
		Collect(update, "done", done.Port)
		update.Do(func(t *Task) error {
			if steps = append(steps, t.Index.Step); t.Index.Step == 1 && !first {
				t.EndRun(enough)
			}
			return nil
		})
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); !errors.Is(err, enough) || fmt.Sprint(steps) != "[0 1]" {
			t.Errorf("first %v: %v after steps %v, want %v after 0 and 1", first, err, steps, enough)
		}
	}
}

// traced runs a pipeline and is what its trace says.
func traced(t *testing.T, p *Plan) []TraceEvent {
	t.Helper()
	var buf bytes.Buffer
	tracer := NewTracer(&buf)
	if err := errors.Join(p.Run(context.Background(), WithTrace(tracer)), tracer.Close()); err != nil {
		t.Fatal(err)
	}
	events, err := ReadTrace(&buf)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// untilEnded makes a batch of each row until the run ends.
func untilEnded(g *Graph, rows Port[int]) BatchOutput[int] {
	bat := g.Stage("batch")
	row := In(bat, "row", rows)
	batches := Batches[int](bat, "batches")
	bat.Do(func(t *Task) error {
		if !t.Ended() {
			batches.Put(t, row.Get(t), true)
		}
		return nil
	})
	return batches
}

// Of two stages that end the run, the one of the lower step says which is the last, and the one that spoke first why, in whichever order they do.
func TestEndRunTwice(t *testing.T) {
	checkGoroutines(t)
	for _, lowFirst := range []bool{true, false} {
		g := New("ends")
		rows := Source(g, "source", count(10))
		batches := untilEnded(g, rows)
		low, high := make(chan struct{}), make(chan struct{}) // closed when it has ended the run
		ahead := make(chan struct{})                          // closed when step 2 has begun
		update := g.Stage("update", At(Step))
		Collect(update, "batches", batches.Port, Capacity(3))
		var updated []int
		update.Do(func(t *Task) error {
			updated = append(updated, t.Index.Step)
			if t.Index.Step == 1 {
				<-ahead
				if !lowFirst {
					<-high
				}
				t.EndRun(errors.New("low"))
				close(low)
			}
			return nil
		})
		check := g.Stage("check", At(Step))
		Collect(check, "batches", batches.Port, Capacity(3))
		check.Do(func(t *Task) error {
			if t.Index.Step == 2 {
				close(ahead)
				if lowFirst {
					<-low
				}
				t.EndRun(errors.New("high"))
				close(high)
			}
			return nil
		})
		p, err := g.Build(Workers(4))
		if err != nil {
			t.Fatal(err)
		}
		want := `graph "ends": stage "check", item 2: high`
		if lowFirst {
			want = `graph "ends": stage "update", item 1: low`
		}
		if err := p.Run(t.Context()); err == nil || err.Error() != want || fmt.Sprint(updated) != "[0 1]" {
			t.Errorf("%v after the steps %v, want %s after 0 and 1", err, updated, want)
		}
	}
}

// What a stage lends comes back once: when all who read it have returned, and when the run has failed as well.
func TestLent(t *testing.T) {
	checkGoroutines(t)
	for _, fails := range []int{-1, 2} {
		g := New("lends")
		lend := g.Stage("lend", At(Stream))
		row := In(lend, "row", Source(g, "source", count(5)))
		out := Lent[int](lend, "value")
		var lent, reading atomic.Int64
		free := make(chan struct{}, 1)
		free <- struct{}{}
		lend.Do(func(t *Task) error {
			select {
			case <-free:
			case <-t.Context().Done():
				return context.Cause(t.Context())
			}
			lent.Add(1)
			out.Put(t, row.Get(t), func() {
				if reading.Load() > 0 {
					panic("it is read")
				}
				lent.Add(-1)
				free <- struct{}{}
			})
			return nil
		})
		for _, nap := range []time.Duration{0, time.Millisecond} {
			Sink(g, fmt.Sprint("reads for ", nap), out.Port, func(_ *Task, v int) error {
				reading.Add(1)
				defer reading.Add(-1)
				time.Sleep(nap)
				if v == fails {
					return errors.New("boom")
				}
				return nil
			})
		}
		p, err := g.Build(Workers(4))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); (err != nil) != (fails >= 0) || lent.Load() != 0 {
			t.Errorf("of a run that ended with %v, %d did not come back", err, lent.Load())
		}
	}
}

// What nobody reads comes back at once.
func TestLentToNobody(t *testing.T) {
	g := New("lends")
	lend := g.Stage("lend", At(Stream))
	In(lend, "row", Source(g, "source", count(3)))
	out := Lent[int](lend, "value")
	free := make(chan struct{}, 1)
	free <- struct{}{}
	lend.Do(func(t *Task) error {
		select {
		case <-free:
		case <-time.After(10 * time.Second):
			return errors.New("it is kept")
		}
		out.Put(t, 0, func() { free <- struct{}{} })
		return nil
	})
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is lent comes back once, too, from a run that fails before all who were to read it have begun, and where a stage puts twice what it may
// put once.
func TestLentAndNotRead(t *testing.T) {
	checkGoroutines(t)
	for puts, want := range map[int]string{
		1: `graph "lends": stage "fails", item #0: boom`,
		2: `graph "lends": stage "lend", item #0: output "value": 2 values were put, want 1`,
	} {
		g := New("lends")
		rows := Source(g, "source", count(1))
		lent := make(chan struct{})
		back := make([]atomic.Int64, puts)
		lend := g.Stage("lend", At(Stream))
		In(lend, "row", rows)
		out := Lent[int](lend, "value")
		lend.Do(func(t *Task) error {
			defer close(lent)
			for i := range puts {
				out.Put(t, i, func() { back[i].Add(1) })
			}
			return nil
		})
		fails := Map(g, "fails", rows, func(t *Task, v int) (int, error) {
			<-lent
			if puts > 1 {
				<-t.Context().Done()
			}
			return v, errors.New("boom")
		})
		both := g.Stage("both")
		In(both, "value", out.Port)
		In(both, "never", fails)
		both.Do(func(*Task) error { return nil })
		p, err := g.Build(Workers(3))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		for i := range back {
			if n := back[i].Load(); n != 1 {
				t.Errorf("of %d values, number %d came back %d times", puts, i, n)
			}
		}
	}
}

// A run that hears of nothing says what runs and who waits; once it has heard of something, it begins anew.
func TestWhenStalled(t *testing.T) {
	checkGoroutines(t)
	synctest.Test(t, func(t *testing.T) {
		g := New("sums")
		hold, again := make(chan struct{}), make(chan struct{})
		summing(g, 1, 1, func(t *Task, v int) error {
			if v == 1 {
				<-hold
			}
			if v == 2 {
				<-again
			}
			return nil
		})
		p, err := g.Build(Devices(fakeDevice("cpu")))
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		err = p.Run(context.Background(), WhenStalled(20*time.Millisecond, func(report string) {
			switch said = append(said, report); len(said) {
			case 2:
				close(hold)
			case 3:
				close(again)
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"nothing has happened for 20ms: embed(0.0.1) runs on cpu compute since", "nothing has happened for 40ms: embed(0.0.1) runs on", "nothing has happened for 20ms: embed(0.0.2) runs on"} {
			if !strings.HasPrefix(said[i], want) || !strings.Contains(said[i], `update(0) waits for "embeddings" of stage "embed"`) {
				t.Errorf("report %d: %s", i, said[i])
			}
		}
	})
}

// A task that says that it gets on is not reported, however long it takes, until it has said nothing for so long.
func TestAlive(t *testing.T) {
	checkGoroutines(t)
	const patience = 200 * time.Millisecond
	g := New("sums")
	reported := make(chan struct{})
	var last atomic.Int64
	began := time.Now()
	summing(g, 1, 1, func(t *Task, v int) error {
		for v == 0 && time.Since(began) < 2*patience {
			last.Store(int64(time.Since(began)))
			t.Alive()
			time.Sleep(time.Millisecond)
		}
		<-reported
		return nil
	})
	p, err := g.Build(Devices(fakeDevice("cpu")))
	if err != nil {
		t.Fatal(err)
	}
	said := false
	err = p.Run(context.Background(), WhenStalled(patience, func(report string) {
		if quiet := time.Since(began) - time.Duration(last.Load()); !said && quiet < patience-time.Millisecond {
			t.Errorf("%v after the task has said that it gets on: %s", quiet, report)
		}
		if !said {
			close(reported)
		}
		said = true
	}))
	if err != nil || !said {
		t.Fatal(said, err)
	}
}

// A run that has failed ends what its tasks wait for outside it, if they don't end by themselves.
func TestWhenFailed(t *testing.T) {
	checkGoroutines(t)
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		for _, waits := range []bool{true, false} {
			g := New("sums")
			outside, began := make(chan struct{}), make(chan struct{})
			var once sync.Once
			summing(g, 2, 2, func(_ *Task, v int) error {
				once.Do(func() { close(began) })
				if waits {
					<-outside
				}
				return nil
			})
			Sink(g, "fails", Source(g, "elsewhere", count(1)), func(*Task, int) error {
				<-began
				return boom
			})
			p, err := g.Build(Devices(fakeDevice("cpu")))
			if err != nil {
				t.Fatal(err)
			}
			var ended []error
			done := make(chan error)
			go func() {
				done <- p.Run(context.Background(), WhenFailed(50*time.Millisecond, func(err error) {
					close(outside)
					time.Sleep(20 * time.Millisecond) // Run waits for it
					ended = append(ended, err)
				}))
			}()
			select {
			case err = <-done:
			case <-time.After(10 * time.Second):
				close(outside)
				<-done
				t.Fatal("it waits for ever")
			}
			if !errors.Is(err, boom) || (len(ended) == 1) != waits || waits && ended[0] != err {
				t.Errorf("waits %v: %v; what ended it: %v", waits, err, ended)
			}
		}
	})
}
