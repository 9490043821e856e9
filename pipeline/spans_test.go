package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func span(stage, device, lane string, from, to int, notes map[string]float64) Span {
	return Span{Stage: stage, Device: device, Lane: lane, Start: time.Duration(from) * time.Millisecond, End: time.Duration(to) * time.Millisecond, Notes: notes}
}

// Two devices; on each, some of the communication runs beside computation and some after it.
func TestSummary(t *testing.T) {
	sent := map[string]float64{BytesSent: 1e6, Collectives: 1}
	s := Summary([]Span{
		span("embed", "gpu:0", "compute", 0, 10, nil),
		span("gather", "gpu:0", "comm", 5, 15, sent), // 5 hidden
		span("backward", "gpu:0", "compute", 15, 40, nil),
		span("reduce", "gpu:0", "comm", 30, 45, sent), // 10 hidden
		span("update", "gpu:0", "compute", 45, 50, nil),
		span("backward", "gpu:0", "compute", 60, 90, nil),
		span("update", "gpu:0", "compute", 95, 100, nil),
		span("gather", "gpu:1", "comm", 0, 10, sent),
		span("embed", "gpu:1", "compute", 20, 30, nil), // not on the same device: hides nothing of gpu:0
		span("read", "host", "host", 0, 100, nil),
	}, StepStages{"backward", "update"})
	c := s.Communication
	if c.Total != 35*time.Millisecond || c.Hidden != 15*time.Millisecond || c.Bytes != 3e6 {
		t.Errorf("communication %+v", c)
	}
	if s.Steps != 2 || s.StepTime != 50*time.Millisecond || s.Tail != 10*time.Millisecond {
		t.Errorf("%d steps of %v, tail %v", s.Steps, s.StepTime, s.Tail)
	}
	for _, st := range s.Stages {
		if st.Stage == "backward" && (st.Tasks != 2 || st.Busy != 55*time.Millisecond || st.Wait != 15*time.Millisecond) {
			t.Errorf("backward %+v", st)
		}
	}
	// 35 ms in 2 steps on 2 devices are 8.75 ms a step; it takes 50 ms, and 45 without communication.
	if got, want := s.hiddenAgainst(45*time.Millisecond, s.commPerStep()), 1-5/8.75; !(math.Abs(got-want) <= 1e-9) {
		t.Errorf("hidden %v against a step of 45 ms, want %v", got, want)
	}
	if text := s.String(); !strings.Contains(text, "communication 35.00 ms, 42.9 % of it hidden behind computation, 20.00 ms exposed; 3 MB sent") || !strings.Contains(text, "100 MB/s") {
		t.Errorf("summary:\n%s", text)
	}
	if Communicated(nil).HiddenShare() != 1 {
		t.Error("no communication is not all hidden")
	}
}

// Hidden and exposed communication are what counting millisecond by millisecond gives, whatever overlaps what.
func TestHiddenByCount(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		const end = 40
		var comm, compute, idle [end]bool
		var all, tasks []Span
		add := func(busy *[end]bool, x Span) {
			for ms := x.Start / time.Millisecond; ms < x.End/time.Millisecond; ms++ {
				busy[ms] = true
			}
			all = append(all, x)
		}
		for range 6 {
			at := func(stage, lane, part string) Span {
				from := r.IntN(end)
				x := span(stage, "gpu:0", lane, from, from+r.IntN(end-from+1), nil)
				x.Part = part
				return x
			}
			x := at("gather", "comm", "")
			add(&comm, x)
			tasks = append(tasks, x)
			add(&compute, at("backward", "compute", ""))
			if x = at("backward", "compute", waiting); x.End-x.Start < 9*time.Millisecond {
				add(&idle, x)
			}
		}
		var total, hidden, exposed time.Duration
		for ms := range end {
			if comm[ms] {
				total += time.Millisecond
			}
			if comm[ms] && compute[ms] && !idle[ms] {
				hidden += time.Millisecond
			}
		}
		for _, x := range Exposed(all, tasks) {
			exposed += x[1] - x[0]
		}
		if c := Communicated(all); c.Total != total || c.Hidden != hidden || exposed != total-hidden {
			t.Fatalf("%+v and %v exposed, want %v, %v of it hidden: %+v", c, exposed, total, hidden, all)
		}
	}
}

// Communication on two lanes at once counts once, and a task that waits for it hides nothing meanwhile.
func TestSummaryOfParts(t *testing.T) {
	idle := span("embed", "gpu:0", "compute", 12, 20, nil)
	idle.Part = waiting
	s := Summary([]Span{
		span("fetch", "gpu:0", "fetch", 5, 20, nil),
		span("reduce", "gpu:0", "comm", 0, 10, nil),
		span("embed", "gpu:0", "compute", 2, 22, nil),
		idle,
	}, StepStages{})
	if c := s.Communication; c.Total != 20*time.Millisecond || c.Hidden != 10*time.Millisecond {
		t.Errorf("communication %+v", c)
	}
	if e := s.Stages[1]; e.Stage != "embed" || e.Tasks != 1 || e.Busy != 12*time.Millisecond || e.Wait != 10*time.Millisecond {
		t.Errorf("%+v", e)
	}
}

// What a compute lane communicates hides nothing, not even itself, and what it takes is no computing.
func TestSummaryOfSerial(t *testing.T) {
	part := span("backward", "gpu:0", "compute", 20, 30, map[string]float64{BytesSent: 1e6, Collectives: 2})
	part.Part = communicating
	whole := span("gather", "gpu:0", "compute", 5, 10, map[string]float64{BytesSent: 1e6, Collectives: 1})
	whole.Part = communicating
	s := Summary([]Span{
		span("embed", "gpu:0", "compute", 0, 5, nil), whole, span("gather", "gpu:0", "compute", 5, 10, nil),
		part, span("backward", "gpu:0", "compute", 10, 40, nil), span("update", "gpu:0", "compute", 40, 45, nil),
		span("update", "gpu:0", "compute", 85, 90, nil),
	}, StepStages{"backward", "update"})
	if c := s.Communication; c != (Communication{15 * time.Millisecond, 0, 2e6, 1}) {
		t.Errorf("communication %+v", c)
	}
	for _, st := range s.Stages {
		if st.Stage == "backward" && (st.Tasks != 1 || st.Busy != 30*time.Millisecond || st.Comm != 10*time.Millisecond || st.Collectives != 2) {
			t.Errorf("%+v", st)
		}
	}
	if text := s.String(); !strings.Contains(text, "0.0 % of it hidden") || !strings.Contains(text, "100 MB/s") {
		t.Errorf("summary:\n%s", text)
	}
	// 15 ms in 2 steps are 7.5 a step, which takes 45; where one that overlaps takes 40.5, 60 % are hidden.
	over := *s
	over.StepTime, over.Communication.Hidden = 40500*time.Microsecond, 10*time.Millisecond
	over.Stages = append(slices.Clone(s.Stages), StageSummary{Stage: "gather", Device: "gpu:0", Lane: Comm.String(), Collectives: 1, Bytes: 1e6})
	if got, err := over.HiddenAgainstSerial(s); err != nil || !(math.Abs(got-0.6) <= 1e-9) {
		t.Errorf("%v hidden, %v", got, err)
	}
	alone, other, none := TraceSummary{Steps: 2, StepTime: time.Second}, *s, TraceSummary{Communication: s.Communication}
	other.Communication.Bytes *= 3
	for want, base := range map[string]*TraceSummary{"can't be counted: no stage is named": &none, "communicates nothing": &alone, "beside computing, too": &over, "1 MB a step and the run that it is compared with 3 MB": &other} {
		if _, err := over.HiddenAgainstSerial(base); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A task says that it communicates on the lane where it would otherwise compute, with what it notes meanwhile, and nowhere else.
func TestCommunicating(t *testing.T) {
	g := New("serial")
	in := Source(g, "source", count(2))
	for _, lane := range []LaneKind{Compute, Comm} {
		Sink(g, "send by "+lane.String(), in, func(t *Task, _ int) error {
			t.Note("rows", 1)
			end := t.Communicating()
			t.Note(BytesSent, 8)
			end()
			t.Note("rows", 1)
			return nil
		}, On(0, lane))
	}
	p, err := g.Build(Devices(fakeDevice("gpu")))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	said := map[string]int{}
	if err := p.Run(context.Background(), WithSpans(func(s Span) {
		mu.Lock()
		defer mu.Unlock()
		said[fmt.Sprint(s.Stage, ", ", s.Part, ", ", s.Notes)]++
	})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"send by compute, communicating, map[bytes sent:8]", "send by compute, , map[rows:2]", "send by comm, , map[bytes sent:8 rows:2]"} {
		if said[want] != 2 {
			t.Errorf("%q is not among %v", want, said)
		}
	}
}

// A run without a tracer is written nowhere: with a nil one, too.
func TestNoTracer(t *testing.T) {
	g := New("g")
	Sink(g, "sink", Source(g, "source", count(3)), func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	var none *Tracer
	spans := make(chan Span, 100)
	if err := p.Run(t.Context(), WithTrace(none), WithSpans(func(s Span) { spans <- s }), WithDepths(func(Depth) {})); err != nil {
		t.Error(err)
	}
	if len(spans) < 6 {
		t.Errorf("%d tasks", len(spans))
	}
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

// A note that is no number does not end the trace.
func TestNoteOfNaN(t *testing.T) {
	g := New("g")
	Sink(g, "sink", Source(g, "source", count(2)), func(task *Task, _ int) error {
		task.Note("loss", math.NaN())
		return nil
	})
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	noted := 0
	for _, e := range traced(t, p) {
		if e.Args["loss"] == "NaN" {
			noted++
		}
	}
	if noted != 2 {
		t.Errorf("%d tasks have the note, want 2", noted)
	}
}

// Traces of runs that were killed are read as far as they go, and so is the other form that viewers know; what is no trace is said.
func TestReadTraceForms(t *testing.T) {
	const two = `[
{"name":"a","ph":"X","ts":1,"dur":2,"pid":0,"tid":0}
,{"name":"b","ph":"X","ts":3,"dur":4,"pid":0,"tid":0}
`
	for text, want := range map[string]int{two + "]": 2, `{"displayTimeUnit": "ms", "other": {"x": [1]}, "traceEvents": ` + two + `]}`: 2} {
		if events, err := ReadTrace(strings.NewReader(text)); err != nil || len(events) != want {
			t.Errorf("%d events, %v in %s", len(events), err, text)
		}
	}
	for cut, want := range map[string]int{two: 2, two + ",": 2, two[:len(two)-9]: 1, "[\n": 0} {
		if events, err := ReadTrace(strings.NewReader(cut)); !errors.Is(err, ErrTruncated) || len(events) != want {
			t.Errorf("%d events, %v in %s", len(events), err, cut)
		}
	}
	for text, want := range map[string]string{"": "empty", "[]": "no events", "{}": "traceEvents", "3": "want a list", "no": "want a list", `[{"name": 3}]`: "event 1", `{"traceEvents": 3}`: "want a list"} {
		if _, err := ReadTrace(strings.NewReader(text)); err == nil || errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// What a trace says of a run is what the run said.
func TestSpansOfTrace(t *testing.T) {
	g := New("noted")
	items := Source(g, "source", count(3))
	Sink(g, "sink", items, func(task *Task, v int) error {
		if v == 1 { // the same, part by part
			task.Part("a")()
			end := task.Part("b")
			defer end()
		}
		if v == 2 {
			task.Waiting()()
		}
		task.Note(BytesSent, 7)
		task.Note(BytesSent, 1)
		return nil
	}, On(0, Comm))
	p, err := g.Build(Devices(fakeDevice("gpu")))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tracer := NewTracer(&buf)
	live := make(chan Span, 100)
	if err := p.Run(context.Background(), WithTrace(tracer), WithSpans(func(s Span) { live <- s })); err != nil {
		t.Fatal(err)
	}
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	close(live)
	events, err := ReadTrace(&buf)
	if err != nil {
		t.Fatal(err)
	}
	var seen []Span
	for s := range live {
		seen = append(seen, s)
	}
	for what, spans := range map[string][]Span{"live": seen, "trace": Spans(events)} {
		n := 0
		var parts []string
		for _, s := range spans {
			if s.Stage == "sink" {
				if parts = append(parts, s.Part); s.Part == "a" || s.Part == waiting {
					continue
				}
				n++
				if s.Device != "gpu" || s.Lane != "comm" || s.Notes[BytesSent] != 8 || s.Item == "" {
					t.Errorf("%s: %+v", what, s)
				}
			}
		}
		if n != 3 {
			t.Errorf("%s: %d tasks of sink, want 3", what, n)
		}
		if got := strings.Join(parts, ","); got != ",a,b,waiting," {
			t.Errorf("%s: parts %q", what, got)
		}
	}
}

// TestTotals: what is summed up while a run goes on is what its trace says afterwards, and how full edges were is the integral over time.
func TestTotals(t *testing.T) {
	g := New("t")
	n := 0
	src := Source(g, "src", func(context.Context) (int, error) {
		if n++; n > 40 {
			return 0, io.EOF
		}
		return n, nil
	})
	slow := Map(g, "slow", src, func(_ *Task, n int) (int, error) { time.Sleep(time.Millisecond); return n, nil }, Parallel(1))
	Sink(g, "sink", slow, func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	var totals Totals
	var mu sync.Mutex
	var spans []Span
	var depths []Depth
	err = p.Run(context.Background(),
		WithSpans(func(s Span) { mu.Lock(); defer mu.Unlock(); spans = append(spans, s); totals.Span(s) }),
		WithDepths(func(d Depth) { depths = append(depths, d); totals.Depth(d) }))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := totals.Summary().Stages, Summary(spans, StepStages{}).Stages; !sameStages(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	end := time.Duration(0)
	for _, s := range spans {
		end = max(end, s.End)
	}
	for _, d := range depths {
		end = max(end, d.At)
	}
	for _, e := range totals.Edges() {
		area, full, last := 0.0, time.Duration(0), Depth{}
		for _, d := range append(slices.Clone(depths), Depth{Edge: e.Edge, At: end}) {
			if d.Edge != e.Edge {
				continue
			}
			area += float64(last.Units) * float64(d.At-last.At)
			if last.Units == e.Capacity {
				full += d.At - last.At
			}
			if d.Units > e.Capacity {
				t.Errorf("%s holds %d of %d", d.Edge, d.Units, e.Capacity)
			}
			last = d
		}
		if got, want := e.Mean, area/float64(end); !(math.Abs(got-want) <= 1e-9) || !(math.Abs(e.Full-float64(full)/float64(end)) <= 1e-9) {
			t.Errorf("%s holds %g on average and is full for %g of the time, want %g, %g", e.Edge, got, e.Full, want, float64(full)/float64(end))
		}
	}
	if e := totals.Edges()[0]; !strings.HasPrefix(e.Edge, "src -> slow.") || e.Mean < 0.5*float64(e.Capacity) {
		t.Errorf("%+v: the queue before a slow stage is mostly empty", e)
	}
}

func sameStages(a, b []StageSummary) bool {
	byName := func(x, y StageSummary) int { return strings.Compare(x.Stage, y.Stage) }
	slices.SortFunc(a, byName)
	slices.SortFunc(b, byName)
	return slices.Equal(a, b)
}

// TestLap: a step as long as most is kept, not the one that took longer because something else happened in it.
func TestLap(t *testing.T) {
	var totals Totals
	at := time.Duration(0)
	for i, took := range []time.Duration{50, 10, 10, 10, 90, 10, 10, 70} {
		totals.Span(Span{Stage: fmt.Sprint(i), Device: "d", Lane: "compute", Start: at, End: at + took})
		totals.Span(Span{Stage: "send", Step: i, Device: "d", Lane: "comm", Start: at + took/2, End: at + took, Notes: map[string]float64{BytesSent: float64(i)}})
		at += took
		if i%2 == 0 { // the next step's lane is ahead
			totals.Span(Span{Stage: "send", Step: i + 1, Device: "d", Lane: "comm", Start: at - 1, End: at, Notes: map[string]float64{BytesSent: 100}})
		}
		if c := totals.Lap(i); c.Total != took/2 || c.Hidden != took/2 || c.Bytes != float64(i+i%2*100) {
			t.Errorf("lap %d: %+v", i, c)
		}
	}
	if s, omitted := totals.Step(); len(s) != 3 || s[0].Stage != "6" || omitted != 0 {
		t.Errorf("%+v, and %d", s, omitted)
	}
}

// TestLongLap: of a step with more tasks than are kept the communication is counted to its end, and the others are not passed over in silence.
func TestLongLap(t *testing.T) {
	var totals Totals
	const n = maxRecorded + 1000
	for i := range time.Duration(n) {
		totals.Span(Span{Stage: "send", Device: "d", Lane: "comm", Start: 2 * i, End: 2*i + 1, Notes: map[string]float64{BytesSent: 1}})
	}
	totals.Span(Span{Stage: "embed", Device: "d", Lane: "compute", Start: n, End: 2 * n})
	if c := totals.Lap(0); c.Total != n || c.Hidden != n/2 || c.Bytes != n || c.Devices != 1 {
		t.Errorf("%+v", c)
	}
	if s, omitted := totals.Step(); len(s) != maxRecorded || omitted != 1001 {
		t.Errorf("%d tasks and %d more", len(s), omitted)
	}
	if c := totals.Lap(1); c != (Communication{}) {
		t.Errorf("a step in which nothing ran: %+v", c)
	}
}

// TestStepStages: steps are counted by the stages that a graph has, and what can't be counted is said.
func TestStepStages(t *testing.T) {
	spans := []Span{
		span("reverse", "gpu:0", "compute", 0, 40, nil), span("apply", "gpu:0", "compute", 45, 50, nil),
		span("reverse", "gpu:0", "compute", 60, 90, nil), span("apply", "gpu:0", "compute", 92, 100, nil),
	}
	for _, tt := range []struct {
		by         StepStages
		steps      int
		time, tail time.Duration
		want       string
	}{
		{StepStages{"reverse", "apply"}, 2, 50 * time.Millisecond, 10 * time.Millisecond, "2 steps, 50.00 ms each (median); from the last reverse to the end of the apply 10.00 ms"},
		{StepStages{"", "apply"}, 2, 50 * time.Millisecond, 0, "2 steps, 50.00 ms each (median)"},
		{StepStages{"backward", "update"}, 0, 0, 0, `steps are not counted: no task of stage "update" has ended one`},
		{StepStages{}, 0, 0, 0, "steps are not counted: no stage is named that ends one"},
	} {
		s := Summary(spans, tt.by)
		if text := s.String(); s.Steps != tt.steps || s.StepTime != tt.time || s.Tail != tt.tail || !strings.HasSuffix(text, "\n"+tt.want) {
			t.Errorf("%+v: %d steps of %v, tail %v\n%s\nwant %s", tt.by, s.Steps, s.StepTime, s.Tail, text, tt.want)
		}
	}
}

// A part has the notes that were made in it, and no others: what was sent is counted once.
func TestNotesOfParts(t *testing.T) {
	g := New("parts")
	Sink(g, "fetch", Source(g, "source", count(1)), func(task *Task, _ int) error {
		for i, name := range []string{"words", "layer 0", "layer 1"} {
			end := task.Part(name)
			task.Note(BytesSent, float64(int(1)<<i))
			end()
		}
		return nil
	}, On(0, Fetch))
	p, err := g.Build(Devices(fakeDevice("gpu")))
	if err != nil {
		t.Fatal(err)
	}
	spans := Spans(traced(t, p))
	if c := Communicated(spans); c.Bytes != 7 {
		t.Errorf("%v bytes are sent, want 7, in %+v", c.Bytes, spans)
	}
}

// Several devices end a step together, and a lap has what was communicated alone; of many laps it keeps the last ones.
func TestTotalsOfDevices(t *testing.T) {
	totals := Totals{By: StepStages{"backward", "update"}}
	const steps = 50
	for i := range steps {
		at := time.Duration(10*i) * time.Millisecond
		for d := range 2 {
			device := fmt.Sprint("gpu:", d)
			for from, stage := range []string{"backward", "update"} {
				totals.Span(Span{Stage: stage, Step: i, Device: device, Lane: "compute", Start: at + time.Duration(5*from)*time.Millisecond, End: at + time.Duration(5*from+4+d)*time.Millisecond,
					Notes: map[string]float64{BytesSent: 3}}) // of a task that computes: it is no communication
			}
		}
		if c := totals.Lap(i); c.Bytes != 0 {
			t.Errorf("step %d: %v bytes", i, c.Bytes)
		}
	}
	if s := totals.Summary(); s.Steps != steps || s.StepTime != 10*time.Millisecond || s.Tail != 5*time.Millisecond {
		t.Errorf("%d steps of %v, tail %v", s.Steps, s.StepTime, s.Tail)
	}
	if n := len(totals.laps); n > 32 {
		t.Errorf("%d laps are kept", n)
	}
}

// Of a task that waited for others that is no time that it was busy; a lane's own waiting is what lies between its tasks.
func TestTotalsWaits(t *testing.T) {
	var totals Totals
	totals.Depth(Depth{Edge: "e", Capacity: 2, Units: 2})
	task := func(item, part string, start, end time.Duration) {
		totals.Span(Span{Stage: "work", Item: item, Part: part, Device: "d", Lane: "compute", Start: start, End: end})
	}
	task("1", waiting, 2, 4)
	task("1", waiting, 5, 6)
	task("1", "", 1, 10) // 6 busy, 3 waited, and 1 before
	task("1", "", 12, 15)
	task("2", "", 14, 16) // on its lane before it was free
	want := StageSummary{Stage: "work", Device: "d", Lane: "compute", Tasks: 3, Busy: 6 + 3 + 2, Wait: 3 + 1 + 2}
	if got := totals.Summary().Stages; len(got) != 1 || got[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if e := totals.Edges()[0]; e.Mean != 2 || e.Full != 1 {
		t.Errorf("%+v: the edge was full all the time", e)
	}
}

// What was too much of one step is not said of those after it.
func TestOmitted(t *testing.T) {
	var totals Totals
	for step, tasks := range []int{maxRecorded + 5, 1, 2} {
		at := time.Duration(10 * step)
		for range tasks {
			totals.Span(Span{Stage: "work", Step: step, Start: at, End: at + 10})
		}
		totals.Lap(step)
		if spans, omitted := totals.Step(); len(spans) != min(tasks, maxRecorded) || omitted != max(0, tasks-maxRecorded) {
			t.Errorf("step %d of %d tasks: %d, and %d omitted", step, tasks, len(spans), omitted)
		}
	}
}
