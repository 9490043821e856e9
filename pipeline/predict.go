package pipeline

import (
	"sort"
	"time"
)

// Workload is what a prediction runs a plan on. All of its functions are required.
type Workload struct {
	Items   int                                                  // that each source gives; every item makes a batch
	Batches func(step int) int                                   // contrastive batches of a step
	Subs    func(batch Index) int                                // sub-batches of a batch
	Time    func(stage string, item Index) time.Duration         // how long a task takes
	Final   func(stage, output string, item Index) time.Duration // when the step's last task of a stage puts a Final output, from its start; asked of other tasks, too
}

// Predict runs the plan on a clock of its own, with the same scheduler that Run uses and no stage's function, and returns every task
// with its time, in the order of their starts.
func (p *Plan) Predict(w Workload) []Span {
	s := newSimulation(p, w)
	for s.next() {
	}
	return s.spans
}

// simulation is the core against a clock of its own.
type simulation struct {
	p       *Plan
	w       Workload
	c       *core
	now     time.Duration
	running []happening
	seq     int
	emitted int // batches
	step    int
	batch   int
	spans   []Span
	ids     []taskID // of spans
}

// happening is a task's end, or a Final output that it puts before.
type happening struct {
	at    time.Duration
	seq   int
	id    taskID
	final *port
}

func newSimulation(p *Plan, w Workload) *simulation {
	s := &simulation{p: p, w: w, c: newCore(p, 0)}
	s.act(s.c.begin())
	return s
}

func (s *simulation) act(r reply) {
	for _, id := range r.start {
		d := s.w.Time(id.stage.name, id.index)
		where := Span{Stage: id.stage.name, Item: id.index.String(), Device: "host", Lane: "host", Start: s.now, End: s.now + d}
		if pl := id.stage.place; !pl.Host {
			where.Device, where.Lane = s.p.deviceName(pl.Device), pl.Lane.String()
		}
		s.spans, s.ids = append(s.spans, where), append(s.ids, id)
		for _, o := range id.stage.out {
			if o.final {
				s.running = append(s.running, happening{s.now + min(d, s.w.Final(id.stage.name, o.name, id.index)), s.seq, id, o})
				s.seq++
			}
		}
		s.running = append(s.running, happening{s.now + d, s.seq, id, nil})
		s.seq++
	}
}

// next lets the next thing happen; false when nothing is left to.
func (s *simulation) next() bool {
	if len(s.running) == 0 {
		return false
	}
	sort.Slice(s.running, func(i, j int) bool {
		a, b := s.running[i], s.running[j]
		return a.at < b.at || a.at == b.at && a.seq < b.seq
	})
	h := s.running[0]
	s.running = s.running[1:]
	s.now = h.at
	if h.final != nil {
		known := s.c.steps[h.id.index.Step].closed || s.emitted == s.w.Items // that no more batches come in its step
		if known && s.c.lastOfStep(h.id) {
			_, r := s.c.put(h.id, h.final, false)
			s.act(r)
		}
		return true
	}
	st, end := h.id.stage, false
	if st.level == Stream && len(st.in) == 0 && h.id.index.N >= s.w.Items {
		end = true
	} else {
		s.put(h.id)
	}
	s.act(s.c.done(h.id, end))
	return true
}

// put puts everything that a task has put by its end.
func (s *simulation) put(id taskID) {
	for _, o := range id.stage.out {
		switch {
		case o.final:
		case o == id.stage.batches:
			if s.emitted < s.w.Items {
				s.emitted++
				last := s.batch+1 == s.w.Batches(s.step)
				_, r := s.c.put(id, o, last)
				if s.batch++; last {
					s.step, s.batch = s.step+1, 0
				}
				s.act(r)
			}
		case o.fan:
			for range s.w.Subs(id.index) {
				_, r := s.c.put(id, o, false)
				s.act(r)
			}
		default:
			_, r := s.c.put(id, o, false)
			s.act(r)
		}
	}
}
