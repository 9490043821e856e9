package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// Stages on two devices are busy at once, and the trace shows it.
func TestTwoDevices(t *testing.T) {
	g := New("two")
	rows := Source(g, "source", count(6))
	busy := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	work := func(dev int) func(*Task, int) (int, error) {
		return func(_ *Task, v int) (int, error) {
			if v > 0 {
				return v, nil
			}
			close(busy[dev])
			select {
			case <-busy[1-dev]:
				time.Sleep(time.Millisecond) // more than what the trace rounds to
				return v, nil
			case <-time.After(10 * time.Second):
				return v, fmt.Errorf("device %d alone is busy", dev)
			}
		}
	}
	guide := Map(g, "guide", rows, work(1), On(1, Compute))
	model := Map(g, "model", rows, work(0), On(0, Compute))
	join := g.Stage("join")
	a, b := In(join, "guide", guide), In(join, "model", model)
	join.Do(func(t *Task) error {
		if a.Get(t) != b.Get(t) {
			return fmt.Errorf("joined %d with %d", a.Get(t), b.Get(t))
		}
		return nil
	})
	p, err := g.Build(Devices(fakeDevice("cpu:0"), fakeDevice("cpu:1")))
	if err != nil {
		t.Fatal(err)
	}
	events := traced(t, p)
	overlap := false
	for _, x := range events {
		for _, y := range events {
			if x.Name == "guide" && y.Name == "model" && x.Phase == "X" && x.Process != y.Process &&
				x.Time < y.Time+y.Duration && y.Time < x.Time+x.Duration {
				overlap = true
			}
		}
	}
	if !overlap {
		t.Error("the trace does not show it")
	}
}

// Devices of one name are told apart: what one computes hides nothing that the other communicates.
func TestDevicesOfOneName(t *testing.T) {
	g := New("two")
	rows := Source(g, "rows", count(4))
	Sink(g, "send", rows, func(*Task, int) error { time.Sleep(time.Millisecond); return nil }, On(0, Comm))
	Sink(g, "work", rows, func(*Task, int) error { time.Sleep(time.Millisecond); return nil }, On(1, Compute))
	p, err := g.Build(Devices(fakeDevice("cpu"), fakeDevice("cpu")))
	if err != nil {
		t.Fatal(err)
	}
	for how, spans := range map[string][]Span{
		"traced":    Spans(traced(t, p)),
		"predicted": p.Predict(Workload{Items: 4, Time: func(string, Index) time.Duration { return 1 }}),
	} {
		device := map[string]string{}
		for _, s := range spans {
			device[s.Stage] = s.Device
		}
		if c := Communicated(spans); c.Total == 0 || c.Hidden > 0 || device["send"] != "cpu (device 0)" || device["work"] != "cpu (device 1)" {
			t.Errorf("%s on %v: %v", how, device, c)
		}
	}
}

// Whatever the timing, a lane runs its tasks in one order.
func TestLaneOrderIgnoresTiming(t *testing.T) {
	order := func(ticks map[string]int) string {
		p := trainingGraph(t, 2)
		full := simulate(t, p, script{ticks: ticks, items: 5, batches: []int{2, 1, 2}, subs: func(i Index) int { return 1 + (i.Step*3+i.Batch)%4 }})
		var lines []string
		device := false
		for l := range strings.Lines(full) {
			if !strings.HasPrefix(l, " ") {
				device = !strings.HasPrefix(l, "host")
				lines = append(lines, l)
			} else if device {
				lines = append(lines, l[strings.LastIndexByte(l, ' '):])
			}
		}
		return strings.Join(lines, "")
	}
	want := order(nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		ticks := map[string]int{}
		for _, s := range []string{"read", "tokenize", "batch", "split", "ids", "embed", "gather", "loss", "backward", "sync", "update"} {
			ticks[s] = 1 + rng.IntN(20)
		}
		if got := order(ticks); got != want {
			t.Fatalf("with %v the order is\n%s\nwant\n%s", ticks, got, want)
		}
	}
}

func TestLaneThatDoesNotOpen(t *testing.T) {
	checkGoroutines(t)
	g := New("g")
	Map(g, "embed", Source(g, "source", count(3)), func(_ *Task, v int) (int, error) { return v, nil }, On(0, Compute))
	p, err := g.Build(Devices(brokenDevice{}))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(context.Background())
	if err == nil || err.Error() != `graph "g": opening lane gpu compute: no driver` {
		t.Error(err)
	}
}

// A device that gives no lane, or panics, ends the run and not the process.
func TestLaneThatIsNone(t *testing.T) {
	checkGoroutines(t)
	for want, open := range map[string]func(LaneKind) (Lane, error){
		"the device has given none, and no error": func(LaneKind) (Lane, error) { return nil, nil },
		"panic: no driver":                        func(LaneKind) (Lane, error) { panic("no driver") },
	} {
		g := New("g")
		Sink(g, "work", Source(g, "rows", count(3)), func(*Task, int) error { return nil }, On(0, Compute))
		p, err := g.Build(Devices(opener{"gpu", open}))
		if err != nil {
			t.Fatal(err)
		}
		if err = p.Run(context.Background()); err == nil || !strings.HasPrefix(err.Error(), `graph "g": opening lane gpu compute: `+want) {
			t.Error(err)
		}
		var bug *PanicError
		if strings.HasPrefix(want, "panic") && (!errors.As(err, &bug) || !strings.Contains(string(bug.Stack), "TestLaneThatIsNone")) {
			t.Error("no PanicError with a stack")
		}
	}
}

// What a lane or a mark panics with ends the run, too, with where it was.
func TestLaneThatPanics(t *testing.T) {
	checkGoroutines(t)
	for where, want := range map[string]string{
		"Await": `graph "g": stage "embed", item #0: panic: Await, at `,
		"Sync":  `graph "g": stage "write", item #0: panic: Sync, at `,
		"Err":   `graph "g": stage "copy", item #0: panic: Err, at `,
		"Mark":  `graph "g": stage "copy", item #0: panic: Mark, at `,
		"Close": `graph "g": closing lane gpu co`,
	} {
		g := New("g")
		pass := func(_ *Task, v int) (int, error) { return v, nil }
		copied := Map(g, "copy", Source(g, "rows", count(1)), pass, On(0, Copy))
		Sink(g, "write", Map(g, "embed", copied, pass, On(0, Compute)), func(*Task, int) error { return nil })
		p, err := g.Build(Devices(opener{"gpu", func(kind LaneKind) (Lane, error) {
			if where == "Err" && kind != Copy { // which is asked as soon as copy has put its item, and may be first
				return fakeLane{}, nil
			}
			return panicking(where), nil
		}}))
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(t.Context())
		var bug *PanicError
		if !errors.As(err, &bug) || bug.Value != where || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", where, err, want)
		}
	}
}

// panicking is a lane, and its mark, of which one method panics.
type panicking string

func (p panicking) call(method string) error {
	if string(p) == method {
		panic(method)
	}
	return nil
}
func (p panicking) Mark() Mark       { p.call("Mark"); return p }
func (p panicking) Await(Mark) error { return p.call("Await") }
func (p panicking) Err() error       { return p.call("Err") }
func (p panicking) Close() error     { return p.call("Close") }
func (p panicking) Sync() error      { return p.call("Sync") }

type opener struct {
	fakeDevice
	open func(LaneKind) (Lane, error)
}

func (d opener) OpenLane(kind LaneKind) (Lane, error) { return d.open(kind) }

type brokenDevice struct{}

func (brokenDevice) Name() string                    { return "gpu" }
func (brokenDevice) OpenLane(LaneKind) (Lane, error) { return nil, errors.New("no driver") }

// What lanes say when they are closed, at last, is the run's error: they may be the only ones to know.
func TestLaneThatClosesBadly(t *testing.T) {
	g := New("g")
	rows := Source(g, "rows", count(3))
	Sink(g, "work", rows, func(*Task, int) error { return nil }, On(0, Compute))
	Sink(g, "send", rows, func(*Task, int) error { return nil }, On(0, Comm))
	p, err := g.Build(Devices(badlyClosed{"gpu"}))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(context.Background())
	if err == nil || !strings.HasPrefix(err.Error(), `graph "g": closing lane gpu `) ||
		!strings.Contains(err.Error(), "gpu compute: work was lost") || !strings.Contains(err.Error(), "gpu comm: work was lost") {
		t.Error(err)
	}
}

type badlyClosed struct{ fakeDevice }

func (badlyClosed) OpenLane(LaneKind) (Lane, error) { return badlyClosedLane{}, nil }

type badlyClosedLane struct{ fakeLane }

func (badlyClosedLane) Close() error { return errors.New("work was lost") }

// Who reads what was made on another lane waits for its mark: a lane awaits it, the host syncs. Nobody waits for its own lane. What Await, Sync
// and Err say ends the run, at the stage that they were called for.
func TestMarks(t *testing.T) {
	checkGoroutines(t)
	for broken, want := range map[string]string{
		"":                      "",
		"compute awaits copy 1": `graph "marks": stage "embed", item #0: compute awaits copy 1: lost`,
		"host awaits compute 1": `graph "marks": stage "write", item #0: host awaits compute 1: lost`,
		"copy Err":              `graph "marks": stage "copy", item #0: copy Err: lost`,
		"compute Err":           `graph "marks": stage "embed", item #0: compute Err: lost`,
	} {
		var mu sync.Mutex
		var awaited []string
		call := func(what string) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(what, "awaits") {
				awaited = append(awaited, what)
			}
			if what == broken {
				return errors.New(what + ": lost")
			}
			return nil
		}
		g := New("marks")
		pass := func(_ *Task, v int) (int, error) { return v, nil }
		copied := Map(g, "copy", Source(g, "rows", count(1)), pass, On(0, Copy))
		embedded := Map(g, "embed", copied, pass, On(0, Compute))
		score := g.Stage("score", On(0, Compute))
		In(score, "copied", copied)
		In(score, "embedded", embedded)
		scores := Out[int](score, "scores")
		score.Do(func(t *Task) error { scores.Put(t, 0); return nil })
		write := g.Stage("write")
		In(write, "embedded", embedded)
		In(write, "scores", scores.Port)
		write.Do(func(t *Task) error { return nil })
		p, err := g.Build(Devices(marking{"gpu", call}))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); fmt.Sprint(err) != want && (err != nil || want != "") {
			t.Errorf("%q fails: %v, want %s", broken, err, want)
		}
		if got, want := strings.Join(awaited, ", "), "compute awaits copy 1, compute awaits copy 1, host awaits compute 1, host awaits compute 2"; broken == "" && got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// marking is a device whose lanes number their marks and ask call what to say.
type marking struct {
	fakeDevice
	call func(what string) error
}

func (d marking) OpenLane(kind LaneKind) (Lane, error) {
	return &markingLane{name: kind.String(), call: d.call}, nil
}

type markingLane struct {
	fakeLane
	name  string
	call  func(string) error
	marks int
}

func (l *markingLane) Mark() Mark {
	l.marks++
	return numbered{fmt.Sprint(l.name, " ", l.marks), l.call}
}
func (l *markingLane) Await(m Mark) error {
	return l.call(fmt.Sprint(l.name, " awaits ", m.(numbered).name))
}
func (l *markingLane) Err() error { return l.call(l.name + " Err") }

type numbered struct {
	name string
	call func(string) error
}

func (m numbered) Sync() error { return m.call("host awaits " + m.name) }
