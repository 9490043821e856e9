package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each task is in the trace when it ran, to the microsecond, in a row of its own lane or worker that has its name, under its own device.
func TestTraceTimes(t *testing.T) {
	g := New("times")
	in := Source(g, "source", count(5))
	for d := range 2 {
		for _, lane := range []LaneKind{Compute, Comm} {
			Sink(g, fmt.Sprint(lane, d), in, func(*Task, int) error { time.Sleep(time.Millisecond); return nil }, On(d, lane))
		}
	}
	Sink(g, "host", in, func(*Task, int) error { time.Sleep(3 * time.Millisecond); return nil }, Parallel(2))
	p, err := g.Build(Devices(fakeDevice("gpu:0"), fakeDevice("gpu:1")))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tracer := NewTracer(&buf)
	var mu sync.Mutex
	live := map[string]Span{}
	if err := p.Run(t.Context(), WithTrace(tracer), WithSpans(func(s Span) { mu.Lock(); defer mu.Unlock(); live[s.Stage+s.Item] = s })); err != nil {
		t.Fatal(err)
	}
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := ReadTrace(&buf)
	if err != nil {
		t.Fatal(err)
	}
	process, thread := map[int]string{}, map[int]string{}
	began, tasks := math.NaN(), 0
	for _, e := range events {
		name, _ := e.Args["name"].(string)
		switch {
		case e.Name == "process_name":
			process[e.Process] = name
		case e.Name == "thread_name" && thread[e.Thread] != "":
			t.Errorf("row %d is that of %s and of %s", e.Thread, thread[e.Thread], name)
		case e.Name == "thread_name":
			thread[e.Thread] = name
		case e.Phase == "X":
			s := live[e.Name+e.Args["item"].(string)]
			if tasks++; tasks == 1 {
				began = e.Time - float64(s.Start)/1e3
			}
			if from, took := began+float64(s.Start)/1e3, float64(s.End-s.Start)/1e3; !(math.Abs(e.Time-from) <= 0.01) || !(math.Abs(e.Duration-took) <= 0.01) {
				t.Errorf("%s %s runs from %v us on for %v us, want %v, %v", e.Name, s.Item, e.Time, e.Duration, from, took)
			}
			if process[e.Process] != s.Device || !strings.HasPrefix(thread[e.Thread], s.Device+" ") || s.Lane != "host" && thread[e.Thread] != s.Device+" "+s.Lane {
				t.Errorf("%s ran on %s %s, and is in row %q of %q", e.Name, s.Device, s.Lane, thread[e.Thread], process[e.Process])
			}
		}
	}
	for _, s := range Spans(events) {
		want, shift := live[s.Stage+s.Item], time.Duration(began*1e3)
		if d := s.Start - want.Start - shift; d.Abs() > 10*time.Microsecond || (s.End-s.Start-want.End+want.Start).Abs() > 10*time.Microsecond || s.Device != want.Device || s.Lane != want.Lane {
			t.Errorf("%+v is read as %+v, %v later", want, s, shift)
		}
	}
	if tasks != len(live) || tasks < 30 {
		t.Errorf("%d tasks in the trace, %d ran", tasks, len(live))
	}
}

// full is a disk that takes so many bytes.
type full int

func (f *full) Write(b []byte) (int, error) {
	if *f -= full(len(b)); *f < 0 {
		return 0, errFull
	}
	return len(b), nil
}

var errFull = errors.New("the disk is full")

// A trace that can't be written is said at its end, whichever part of it that was, and the run goes on without.
func TestTraceOnFullDisk(t *testing.T) {
	for _, room := range []full{0, 5000} {
		g := New("g")
		Sink(g, "sink", Source(g, "source", count(100)), func(*Task, int) error { return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		tracer := NewTracer(&room)
		if err := p.Run(t.Context(), WithTrace(tracer)); err != nil {
			t.Error(err)
		}
		if err := tracer.Close(); !errors.Is(err, errFull) {
			t.Errorf("closing the trace: %v", err)
		}
	}
}

// A trace cut at any byte is told to be cut, with the events that are whole; and what is more than one trace is not taken for the first.
func TestTraceCut(t *testing.T) {
	g := New("g")
	Sink(g, "sink", Source(g, "source", count(3)), func(*Task, int) error { return nil })
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tracer := NewTracer(&buf)
	if err := p.Run(t.Context(), WithTrace(tracer)); err != nil {
		t.Fatal(err)
	}
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	text := buf.String()
	for n := 1; n < len(text)-1; n++ {
		whole := strings.Count(text[:n], "}\n") // the end of each event's line
		if text[n-1] == '}' && text[n] == '\n' {
			whole++
		}
		if events, err := ReadTrace(strings.NewReader(text[:n])); !errors.Is(err, ErrTruncated) || len(events) != whole {
			t.Fatalf("cut after %d bytes: %d events, want %d, %v", n, len(events), whole, err)
		}
	}
	for _, more := range []string{text, "x", "]", "\x00"} {
		if _, err := ReadTrace(strings.NewReader(text + more)); err == nil || errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), "comes behind its end") {
			t.Errorf("with %.5q behind it: %v", more, err)
		}
	}
}

// Neither copies nor what a fetch lane does hide communication: computing does.
func TestWhatHides(t *testing.T) {
	for _, lane := range []string{"copy", "fetch", "host"} {
		c := Communicated([]Span{span("gather", "gpu:0", "comm", 0, 10, nil), span("x", "gpu:0", lane, 2, 8, nil), span("embed", "gpu:0", "compute", 9, 12, nil)})
		if c.Total != 10*time.Millisecond || c.Hidden != time.Millisecond {
			t.Errorf("beside the lane of %s: %+v", lane, c)
		}
	}
}

// What a task has waited that did not end, as in a run that was killed, is not taken from what others were busy; in whatever order spans come, that of one that
// ended is.
func TestWaitingUnended(t *testing.T) {
	wait := func(item string, from, to int) Span {
		s := span("embed", "gpu:0", "compute", from, to, nil)
		s.Item, s.Part = item, waiting
		return s
	}
	first, second := span("embed", "gpu:0", "compute", 0, 10, nil), wait("1", 12, 90)
	first.Item = "0"
	for _, spans := range [][]Span{{wait("0", 2, 5), first, second}, {first, wait("0", 2, 5), second}} {
		s := Summary(spans, StepStages{})
		if len(s.Stages) != 1 || s.Stages[0].Busy != 7*time.Millisecond || s.Stages[0].Wait != 3*time.Millisecond || s.Stages[0].Tasks != 1 {
			t.Errorf("%+v", s.Stages)
		}
	}
}

// One step's end says nothing of how long one takes, and two runs are not compared by it.
func TestOneStep(t *testing.T) {
	spans := []Span{span("backward", "gpu:0", "compute", 0, 30, nil), span("reduce", "gpu:0", "comm", 20, 35, map[string]float64{BytesSent: 10, Collectives: 1}), span("update", "gpu:0", "compute", 35, 40, nil)}
	s := Summary(spans, StepStages{"backward", "update"})
	if want := "\n1 step: how long one takes is from its end to the next one's; from the last backward to the end of the update 10.00 ms\n"; !strings.Contains(s.String(), want) {
		t.Errorf("%s\nwant %s", s, want)
	}
	two := Summary(append(spans, span("update", "gpu:0", "compute", 75, 80, nil)), s.By)
	serial := *two
	serial.Stages = nil // of which none communicates beside computing
	for _, pair := range [][2]*TraceSummary{{s, &serial}, {two, {Stages: nil, Communication: s.Communication, By: s.By, Steps: 1}}} {
		if _, err := pair[0].HiddenAgainstSerial(pair[1]); err == nil || !strings.Contains(err.Error(), "two steps or more") {
			t.Error(err)
		}
	}
}

// Runs are compared whose steps send as much, whichever sends more; one whose own steps can't be counted, or that communicates nothing, is not. The
// communication is that of the run without overlap, also where it fetches.
func TestHiddenAgainstSerial(t *testing.T) {
	sum := func(steps int, took, comm time.Duration, bytes float64) *TraceSummary {
		return &TraceSummary{Steps: steps, StepTime: took, Communication: Communication{Total: comm, Bytes: bytes, Devices: 1}, By: StepStages{End: "update"}}
	}
	ms := time.Millisecond
	// A step takes 50 ms, 20 of them communication. That which overlaps takes 35: of the 20 it exposes 5, whatever its own lanes were busy.
	if got, err := sum(2, 35*ms, 90*ms, 200).HiddenAgainstSerial(sum(4, 50*ms, 80*ms, 400)); err != nil || !(math.Abs(got-0.75) <= 1e-9) {
		t.Errorf("%v hidden, %v, want 0.75", got, err)
	}
	fetching := sum(4, 50*ms, 80*ms, 400)
	fetching.Stages = []StageSummary{{Lane: Fetch.String(), Bytes: 1}}
	for want, pair := range map[string][2]*TraceSummary{
		"its steps can't be counted: no task of stage \"update\"":          {sum(0, 0, ms, 1), sum(2, ms, ms, 1)},
		"it communicates nothing":                                          {sum(2, ms, 0, 1), sum(2, ms, ms, 1)},
		"it sends 100 B a step and the run that it is compared with 130 B": {sum(2, ms, ms, 200), sum(2, ms, ms, 260)},
		"it sends 130 B a step and the run that it is compared with 100 B": {sum(2, ms, ms, 260), sum(2, ms, ms, 200)},
		"beside computing, too":                                            {sum(4, 50*ms, 80*ms, 400), fetching},
	} {
		if _, err := pair[0].HiddenAgainstSerial(pair[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The time of most steps is theirs, in whatever order longer and shorter ones come; and what is sent is told in units up to the largest.
func TestStepTimeIsMedian(t *testing.T) {
	at, spans := 0, []Span{span("update", "gpu:0", "compute", 0, 1, nil)}
	for _, took := range []int{7, 90, 5, 8, 6} {
		at += took
		spans = append(spans, span("update", "gpu:0", "compute", at, at+1, nil))
	}
	if s := Summary(spans, StepStages{End: "update"}); s.StepTime != 7*time.Millisecond {
		t.Errorf("a step takes %v", s.StepTime)
	}
	for b, want := range map[float64]string{999: "999 B", 1000: "1 kB", 2.5e6: "2.5 MB", 3e9: "3 GB", 45e12: "45 TB"} {
		if got := size(b); got != want {
			t.Errorf("%v bytes: %s, want %s", b, got, want)
		}
	}
}
