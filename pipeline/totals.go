package pipeline

import (
	"sync"
	"time"
)

// Totals sums up a run while it runs, in memory that does not grow with it but for the steps' times, if Lap is called after each step: give its
// methods to WithSpans and WithDepths. It is safe for concurrent use.
type Totals struct {
	By StepStages // by which steps are counted; not to be changed later

	mu     sync.Mutex
	stages []StageSummary
	at     map[[2]string]int
	free   map[[2]string]time.Duration // when a lane became free
	waited map[[3]string]time.Duration // by device, stage and item, in tasks that have not ended

	device string        // the first that has a stage of By
	last   time.Duration // when By.Last has ended; 0: it has not
	ends   []time.Duration
	tails  []time.Duration

	edges []EdgeSummary
	edge  map[string]int
	held  []Depth // of each edge, the last
	now   time.Duration

	recent, step recorded        // since the last Lap; of a step that took about as long as most
	busy         busy            // since the last Lap
	sent         map[int]float64 // bytes by the step that sends them: lanes are steps ahead of its record
	began        time.Duration
	laps         []time.Duration // the last ones
}

// recorded are the first tasks of a step.
type recorded struct {
	spans   []Span
	omitted int // tasks after them
}

// maxRecorded bounds the tasks of a step that are kept, which a step of many sub-batches has more of: they are there to be looked at.
const maxRecorded = 4096

func (r *recorded) add(s Span) {
	if len(r.spans) == maxRecorded {
		r.omitted++
		return
	}
	r.spans = append(r.spans, s)
}

// EdgeSummary is how full an edge was.
type EdgeSummary struct {
	Edge     string
	Capacity int
	Mean     float64 // units, over time
	Full     float64 // share of the time in which it held its capacity

	weighted, full time.Duration
}

// Span counts a task. A lane's tasks must come in their order, and what is waited in one before it.
func (t *Totals) Span(s Span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = max(t.now, s.End)
	t.recent.add(s)
	t.busy.add(s)
	if t.at == nil {
		t.at, t.free, t.waited = map[[2]string]int{}, map[[2]string]time.Duration{}, map[[3]string]time.Duration{}
	}
	task := [3]string{s.Device, s.Stage, s.Item}
	if s.Part == waiting { // what a task that never ends has waited is not taken from what others were busy
		t.waited[task] += s.End - s.Start
		return
	}
	key := [2]string{s.Device, s.Stage}
	i, ok := t.at[key]
	if !ok {
		i = len(t.stages)
		t.at[key] = i
		t.stages = append(t.stages, StageSummary{Stage: s.Stage, Device: s.Device, Lane: s.Lane})
	}
	st := &t.stages[i]
	st.Bytes += s.Notes[BytesSent]
	st.Collectives += s.Notes[Collectives]
	if s.communicates() {
		if t.sent == nil {
			t.sent = map[int]float64{}
		}
		t.sent[s.Step] += s.Notes[BytesSent]
	}
	if s.Part == communicating { // the task that it is a part of is still to come
		st.Comm += s.End - s.Start
		return
	}
	st.Tasks++
	st.Busy, st.Wait = st.Busy+s.End-s.Start-t.waited[task], st.Wait+t.waited[task]
	delete(t.waited, task)
	if lane := [2]string{s.Device, s.Lane}; s.Lane != "host" {
		st.Wait += max(0, s.Start-t.free[lane])
		t.free[lane] = s.End
	}
	ends, last := s.Stage == t.By.End, s.Stage == t.By.Last
	if t.device == "" && (ends || last) {
		t.device = s.Device
	}
	if s.Device != t.device {
		return
	}
	if last {
		t.last = s.End
	}
	if ends {
		t.ends = append(t.ends, s.End)
		if t.last > 0 {
			t.tails = append(t.tails, s.End-t.last)
		}
	}
}

// Depth counts how full an edge is.
func (t *Totals) Depth(d Depth) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = max(t.now, d.At)
	if t.edge == nil {
		t.edge = map[string]int{}
	}
	i, ok := t.edge[d.Edge]
	if !ok {
		i = len(t.edges)
		t.edge[d.Edge] = i
		t.edges, t.held = append(t.edges, EdgeSummary{Edge: d.Edge, Capacity: d.Capacity}), append(t.held, Depth{})
	}
	t.edges[i].hold(t.held[i], d.At)
	t.held[i] = d
}

func (e *EdgeSummary) hold(d Depth, until time.Duration) {
	e.weighted += time.Duration(d.Units) * (until - d.At)
	if d.Units >= e.Capacity {
		e.full += until - d.At
	}
}

// Lap ends what is looked at as one step, and returns what was communicated: how long since the last Lap, and the bytes of tasks up to this
// step, so that equal runs have equal ones however far their lanes are ahead.
func (t *Totals) Lap(step int) Communication {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.busy.communication()
	t.busy = busy{}
	c.Bytes = 0
	for s, bytes := range t.sent {
		if s <= step {
			c.Bytes += bytes
			delete(t.sent, s)
		}
	}
	took := t.now - t.began
	t.began = t.now
	t.laps = append(t.laps[max(0, len(t.laps)-31):], took)
	usual := median(append([]time.Duration(nil), t.laps...))
	if t.step.spans == nil || took > usual*9/10 && took < usual*11/10 {
		t.step, t.recent = t.recent, t.step
	}
	t.recent = recorded{spans: t.recent.spans[:0]}
	return c
}

// Step is what ran in a step that took about as long as most, in the order in which it ended, and how many more tasks did after that, where a step
// has a great many; nothing before the first Lap.
func (t *Totals) Step() (spans []Span, omitted int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Span(nil), t.step.spans...), t.step.omitted
}

// Edges tells how full each edge was so far, in the order of their first use.
func (t *Totals) Edges() []EdgeSummary {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := append([]EdgeSummary(nil), t.edges...)
	for i := range out {
		e := &out[i]
		e.hold(t.held[i], t.now)
		e.Mean, e.Full = float64(e.weighted)/max(1, float64(t.now)), float64(e.full)/max(1, float64(t.now))
	}
	return out
}

// Summary is what has run so far comes to, but for its communication.
func (t *Totals) Summary() *TraceSummary {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := &TraceSummary{Stages: append([]StageSummary(nil), t.stages...), By: t.By, Steps: len(t.ends)}
	var steps []time.Duration
	for i := 1; i < len(t.ends); i++ {
		steps = append(steps, t.ends[i]-t.ends[i-1])
	}
	out.StepTime, out.Tail = median(steps), median(append([]time.Duration(nil), t.tails...))
	return out
}
