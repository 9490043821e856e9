package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"
)

// Span is one task that ran, or a part of one.
type Span struct {
	Stage  string
	Item   string // its index, as Index prints it
	Step   int    `json:"-"` // that it belongs to; 0 before there are steps
	Part   string // which part of the task; empty for all of it
	Device string // "host" in the host pool
	Lane   string // as LaneKind prints it; "host"
	Start  time.Duration
	End    time.Duration // since the run began
	Notes  map[string]float64
}

// WithSpans has f called with every task that ran, from the thread that it ran on.
func WithSpans(f func(Span)) RunOption { return func(r *running) { r.spans = f } }

// Depth is how many units an edge holds from a time on.
type Depth struct {
	Edge     string // "tokenize -> batch.chunks": producer, consumer and the consumer's input
	Units    int
	Capacity int
	At       time.Duration // since the run began
}

// WithDepths has f called whenever an edge holds more or fewer units than before, by one goroutine.
func WithDepths(f func(Depth)) RunOption { return func(r *running) { r.held = f } }

// Note keeps a number about the task, which the trace and its summary show: bytes that it sent, say. Numbers of one name add
// up.
func (t *Task) Note(name string, v float64) {
	if t.notes == nil {
		t.notes = map[string]float64{}
	}
	t.notes[name] += v
}

// Part begins a part of a task that mostly waits for what runs beside it, and returns the function that ends it. Such a task's
// parts, each with the notes made in between, are shown in its place: what lies between them is waiting.
func (t *Task) Part(name string) (end func()) {
	start := time.Now()
	return func() {
		t.run.ran(t, name, start)
		t.notes, t.parts = nil, true
	}
}

// Waiting begins a time in which a task that otherwise computes waits for what runs beside it, and returns the function that ends
// it. It is shown as a part of this name, and does not count as computing.
func (t *Task) Waiting() (end func()) {
	start := time.Now()
	return func() {
		notes := t.notes
		t.notes = nil
		t.run.ran(t, waiting, start)
		t.notes = notes
	}
}

// Communicating begins a time in which a task on a compute lane communicates instead of computing, and returns the function that ends
// it. It is shown as a part of this name, with the notes made in between, and is communication that nothing hides. On other lanes it is
// nothing: there the lane says what a task does.
func (t *Task) Communicating() (end func()) {
	if t.stage.place.Host || t.stage.place.Lane != Compute {
		return func() {}
	}
	start, notes := time.Now(), t.notes
	t.notes = nil
	return func() {
		t.run.ran(t, communicating, start)
		t.notes = notes
	}
}

const (
	waiting       = "waiting"
	communicating = "communicating"
)

// interval is a time in which something was busy.
type interval struct{ from, to time.Duration }

// union sorts and joins what overlaps.
func union(xs []interval) []interval {
	sort.Slice(xs, func(i, j int) bool { return xs[i].from < xs[j].from })
	var out []interval
	for _, x := range xs {
		if n := len(out); n > 0 && x.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, x.to)
			continue
		}
		out = append(out, x)
	}
	return out
}

// minus is what of one union is not in another.
func minus(a, b []interval) (out []interval) {
	for _, x := range a {
		for _, y := range b {
			if y.to <= x.from || y.from >= x.to {
				continue
			}
			if y.from > x.from {
				out = append(out, interval{x.from, y.from})
			}
			x.from = y.to
		}
		if x.from < x.to {
			out = append(out, x)
		}
	}
	return out
}

// common is how long both of two unions were busy.
func common(a, b []interval) (sum time.Duration) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if lo, hi := max(a[i].from, b[j].from), min(a[i].to, b[j].to); lo < hi {
			sum += hi - lo
		}
		if a[i].to < b[j].to {
			i++
		} else {
			j++
		}
	}
	return sum
}

func length(xs []interval) (sum time.Duration) {
	for _, x := range xs {
		sum += x.to - x.from
	}
	return sum
}

// Communication is what a device's communication and fetch lanes did, and how much of it the device's compute lane worked through; and what
// the compute lane itself communicated, which hides nothing. What nothing hides is exposed: Total - Hidden. On a GPU the times are those of
// issuing, not of running.
type Communication struct {
	Total, Hidden time.Duration
	Bytes         float64 // sent, as stages noted it
	Devices       int     // that communicated
}

// HiddenShare is Hidden/Total, 1 where nothing was communicated.
func (c Communication) HiddenShare() float64 {
	if c.Total == 0 {
		return 1
	}
	return float64(c.Hidden) / float64(c.Total)
}

func (s Span) communicates() bool {
	return s.Lane == Comm.String() || s.Lane == Fetch.String() || s.Part == communicating
}

// Communicated sums spans up, over all devices.
func Communicated(spans []Span) Communication {
	var b busy
	for _, s := range spans {
		b.add(s)
	}
	return b.communication()
}

// busy is when each device's lanes communicated, and when its compute lane ran tasks, and waited or communicated in them.
type busy struct {
	comm, compute, idle map[string][]interval
	bytes               float64
}

func (b *busy) add(s Span) {
	if b.comm == nil {
		b.comm, b.compute, b.idle = map[string][]interval{}, map[string][]interval{}, map[string][]interval{}
	}
	x := interval{s.Start, s.End}
	if s.communicates() {
		b.comm[s.Device] = append(b.comm[s.Device], x)
		b.bytes += s.Notes[BytesSent]
	}
	switch {
	case s.Lane != Compute.String():
	case s.Part == waiting || s.Part == communicating:
		b.idle[s.Device] = append(b.idle[s.Device], x)
	default:
		b.compute[s.Device] = append(b.compute[s.Device], x)
	}
}

// computing is when a device's compute lane ran tasks that neither waited nor communicated.
func (b *busy) computing(device string) []interval {
	return minus(union(b.compute[device]), union(b.idle[device]))
}

func (b *busy) communication() Communication {
	c := Communication{Bytes: b.bytes, Devices: len(b.comm)}
	for d, xs := range b.comm {
		xs = union(xs)
		c.Total += length(xs)
		c.Hidden += common(xs, b.computing(d))
	}
	return c
}

// Exposed is when tasks, of one device, ran and nothing was computed on it: times from and to.
func Exposed(all, tasks []Span) (out [][2]time.Duration) {
	if len(tasks) == 0 {
		return nil
	}
	var ran []interval
	for _, t := range tasks {
		ran = append(ran, interval{t.Start, t.End})
	}
	var b busy
	for _, s := range all {
		b.add(s)
	}
	for _, x := range minus(union(ran), b.computing(tasks[0].Device)) {
		out = append(out, [2]time.Duration{x.from, x.to})
	}
	return out
}

// Names of notes that summaries know.
const (
	BytesSent   = "bytes sent"
	Collectives = "collectives"
)

// StageSummary is what one stage did on one device in a run.
type StageSummary struct {
	Stage, Device, Lane string
	Tasks               int
	Busy                time.Duration
	Wait                time.Duration // the lane was free and waited for the stage's inputs
	Comm                time.Duration // of Busy, communication on a compute lane
	Collectives, Bytes  float64
}

// StepStages are the stages by which steps are counted, by their names: who makes a graph knows them. Package stages has those of its own.
type StepStages struct {
	Last string // the last one of a step that computes, such as backward: Tail begins where its last task ends; "": there is no Tail
	End  string // the one whose task ends a step, such as update; "": steps are not counted
}

// TraceSummary is what a run's trace comes to.
type TraceSummary struct {
	Stages        []StageSummary // of each device, in order of first appearance
	Communication Communication
	By            StepStages
	Steps         int           // tasks of By.End; 0 if there is none: there are no times then
	StepTime      time.Duration // median, from one step's end to the next; 0 with fewer than two
	Tail          time.Duration // median, from the end of a step's last By.Last to the step's end
}

// Summary sums up the spans of a run, its steps by the stages that are named.
func Summary(spans []Span, by StepStages) *TraceSummary {
	spans = append([]Span(nil), spans...)
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].Start < spans[j].Start })
	t := Totals{By: by}
	for _, inside := range []bool{true, false} { // a task waits before it ends
		for _, s := range spans {
			if (s.Part == waiting) == inside {
				t.Span(s)
			}
		}
	}
	out := t.Summary()
	out.Communication = Communicated(spans)
	return out
}

func median(xs []time.Duration) time.Duration {
	if len(xs) == 0 {
		return 0
	}
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// hiddenAgainst is the other measure of hidden communication: 1 - (t - t0)/c for a step's time t, the time t0 of a step that
// communicates at no cost, and c of communication per step. It sees what the lanes' business does not: computing that communication
// slows down.
func (s *TraceSummary) hiddenAgainst(without, comm time.Duration) float64 {
	return 1 - float64(s.StepTime-without)/float64(comm)
}

func (s *TraceSummary) commPerStep() time.Duration {
	return s.Communication.Total / time.Duration(max(1, s.Steps*s.Communication.Devices))
}

// HiddenAgainstSerial is that measure, 1 - (t - t0)/c, with a step that can be had anywhere: of a run of the same mesh that communicates on the
// compute lane. That step's time without its communication is t0, and its communication c. (A run of one rank is no such
// step: it computes everybody's rows.) An error says why a run can't be compared.
func (s *TraceSummary) HiddenAgainstSerial(serial *TraceSummary) (float64, error) {
	a, b := s.Communication, serial.Communication
	switch {
	case s.Steps == 0:
		return 0, fmt.Errorf("its steps can't be counted: %s", s.By.missing())
	case serial.Steps == 0:
		return 0, fmt.Errorf("the steps of the run that it is compared with can't be counted: %s", serial.By.missing())
	case s.Steps == 1 || serial.Steps == 1: // which has no StepTime
		return 0, errors.New("how long a step takes is from its end to the next one's: want two steps or more of both runs")
	case a.Total == 0:
		return 0, errors.New("it communicates nothing that could be hidden")
	case b.Total == 0:
		return 0, errors.New("the run that it is compared with communicates nothing: want one of the same mesh, with mesh.overlap: false")
	case slices.ContainsFunc(serial.Stages, func(st StageSummary) bool {
		return (st.Lane == Comm.String() || st.Lane == Fetch.String()) && st.Bytes > 0
	}):
		return 0, errors.New("the run that it is compared with communicates beside computing, too: want one with mesh.overlap: false")
	}
	perStep := func(s *TraceSummary) float64 { return s.Communication.Bytes / float64(s.Steps*s.Communication.Devices) }
	if x, y := perStep(s), perStep(serial); math.Abs(x-y) > 0.1*y {
		return 0, fmt.Errorf("it sends %s a step and the run that it is compared with %s: they are not of the same mesh and recipe", size(x), size(y))
	}
	comm := serial.commPerStep()
	return s.hiddenAgainst(serial.StepTime-comm, comm), nil
}

// missing says why there are no steps.
func (x StepStages) missing() string {
	if x.End == "" {
		return "no stage is named that ends one"
	}
	return fmt.Sprintf("no task of stage %q has ended one", x.End)
}

// String is the summary as a table.
func (s *TraceSummary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %-8s %-24s %7s %10s %10s %12s %11s %10s\n", "device", "lane", "stage", "tasks", "busy", "wait", "collectives", "sent", "rate")
	for _, st := range s.Stages {
		sent, rate, count := "", "", ""
		if st.Collectives > 0 {
			count, sent = fmt.Sprintf("%.0f", st.Collectives), size(st.Bytes)
			rate = size(st.Bytes/max(1e-9, cmp.Or(st.Comm, st.Busy).Seconds())) + "/s"
		}
		fmt.Fprintf(&b, "%-12s %-8s %-24s %7d %10s %10s %12s %11s %10s\n", st.Device, st.Lane, st.Stage, st.Tasks, short(st.Busy), short(st.Wait), count, sent, rate)
	}
	steps := fmt.Sprintf("%d steps, %s each (median)", s.Steps, short(s.StepTime))
	switch s.Steps {
	case 0:
		steps = "steps are not counted: " + s.By.missing()
	case 1:
		steps = "1 step: how long one takes is from its end to the next one's"
	}
	if s.Tail > 0 {
		steps += fmt.Sprintf("; from the last %s to the end of the %s %s", s.By.Last, s.By.End, short(s.Tail))
	}
	fmt.Fprintln(&b, steps)
	if c := s.Communication; c.Total > 0 {
		fmt.Fprintf(&b, "communication %s, %.1f %% of it hidden behind computation, %s exposed; %s sent\n", short(c.Total), 100*c.HiddenShare(), short(c.Total-c.Hidden), size(c.Bytes))
	}
	return strings.TrimRight(b.String(), "\n")
}

func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f us", float64(d)/1e3)
}

func size(b float64) string {
	for _, u := range []string{"B", "kB", "MB", "GB"} {
		if b < 1000 {
			return fmt.Sprintf("%.4g %s", b, u)
		}
		b /= 1000
	}
	return fmt.Sprintf("%.4g TB", b)
}

// Spans are the tasks of a trace.
func Spans(events []TraceEvent) []Span {
	process := map[int]string{}
	var out []Span
	for _, e := range events {
		switch {
		case e.Phase == "M" && e.Name == "process_name":
			process[e.Process], _ = e.Args["name"].(string)
		case e.Phase == "X":
			s := Span{Stage: e.Name, Device: process[e.Process], Lane: e.Category, Notes: map[string]float64{}}
			s.Start, s.End = micros(e.Time), micros(e.Time+e.Duration)
			for k, v := range e.Args {
				if n, ok := v.(float64); ok {
					s.Notes[k] = n
				} else if k == "item" {
					s.Item, _ = v.(string)
				} else if k == "part" {
					s.Part, _ = v.(string)
				}
			}
			out = append(out, s)
		}
	}
	return out
}

func micros(us float64) time.Duration { return time.Duration(us * 1e3) }
