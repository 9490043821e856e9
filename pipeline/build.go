package pipeline

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Device is what stages can be placed on.
type Device interface {
	Name() string
	// OpenLane is called on the locked thread that will run the lane's tasks. A nil Lane without an error ends the run, as an error or a
	// panic does, here as in all that a lane does.
	OpenLane(kind LaneKind) (Lane, error)
}

// Lane is a device's side of a lane: on CUDA a context and a stream.
type Lane interface {
	// Mark returns the point after all work issued so far, or nil if that work has been done.
	Mark() Mark
	// Await makes later work on this lane wait for m, a mark of any lane.
	Await(m Mark) error
	// Err returns the first error of the lane's work that is known without waiting.
	Err() error
	Close() error
}

// Mark is a point in a lane's work.
type Mark interface {
	// Sync makes the host wait for it.
	Sync() error
}

// Plan is a graph that has passed every check and can run.
type Plan struct {
	name    string
	stages  []*Stage // in the graph's order: producers first
	devices []Device
	workers int
	lanes   []Placement // device lanes in use
	edges   []*edge
	fans    []*Stage // the stages that split batches
	source  *Stage   // the stage that emits batches, if there is one
}

// BuildOption configures Build.
type BuildOption func(*Plan)

// Devices gives the devices that On refers to by position. None of them may be nil.
func Devices(ds ...Device) BuildOption { return func(p *Plan) { p.devices = ds } }

// Workers sets the number of host tasks that may run at once, at least 1. The default is GOMAXPROCS, but at least 2.
func Workers(n int) BuildOption { return func(p *Plan) { p.workers = n } }

// Build checks the graph and fixes its order, once. It returns every mistake it finds, joined.
func (g *Graph) Build(opts ...BuildOption) (*Plan, error) {
	if g.built {
		return nil, fmt.Errorf("graph %q has been built before: a graph is built once, and another one for another run", g.name)
	}
	g.built = true
	p := &Plan{name: g.name, workers: max(2, runtime.GOMAXPROCS(0))}
	for _, o := range opts {
		o(p)
	}
	b := &builder{g: g, p: p, errs: append([]error(nil), g.errs...)}
	b.options()
	b.resolve()
	if len(b.errs) == 0 {
		b.order()
	}
	if len(b.errs) == 0 {
		b.levels()
	}
	if len(b.errs) == 0 {
		b.roles()
	}
	b.place()
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	return p, nil
}

type builder struct {
	g    *Graph
	p    *Plan
	errs []error
}

func (b *builder) fail(s *Stage, format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf("graph %q: stage %q: %s", b.g.name, s.name, fmt.Sprintf(format, args...)))
}

// options checks what Build was given.
func (b *builder) options() {
	if b.p.workers < 1 {
		b.errs = append(b.errs, fmt.Errorf("graph %q: Workers(%d): want at least 1", b.g.name, b.p.workers))
	}
	for i, d := range b.p.devices {
		if d == nil {
			b.errs = append(b.errs, fmt.Errorf("graph %q: Devices: device %d is nil", b.g.name, i))
		}
	}
}

// resolve replaces ports that were declared first by what was bound to them, and finds unconnected inputs.
func (b *builder) resolve() {
	names := map[string]bool{}
	for _, s := range b.g.stages {
		if names[s.name] {
			b.fail(s, "another stage has this name")
		}
		names[s.name] = true
		if s.name == "" {
			b.fail(s, "has no name")
		}
		if s.do == nil {
			b.fail(s, "has no function: call Do")
		}
		if s.parallel < 1 {
			b.fail(s, "Parallel(%d): want at least 1", s.parallel)
		}
		for _, e := range s.in {
			if e.capped && e.cap < 1 {
				b.fail(s, "input %q: Capacity(%d): want at least 1", e.input, e.cap)
			}
			switch {
			case e.from == nil:
				b.fail(s, "input %q: not connected, want %v", e.input, e.typ)
			case e.from.graph != b.g:
				b.fail(s, "input %q: connected to port %q of another graph, %q", e.input, e.from.name, e.from.graph.name)
			case e.from.source() == nil:
				b.fail(s, "input %q: no stage writes port %q, want %v: %s", e.input, e.from.name, e.typ, e.from.missing)
			default:
				e.id = len(b.p.edges)
				e.from = e.from.source()
				b.p.edges = append(b.p.edges, e)
			}
		}
	}
	for _, p := range b.g.ports {
		p.edges = nil
	}
	for _, e := range b.p.edges {
		e.from.edges = append(e.from.edges, e)
	}
}

// order sorts the stages, producers first and otherwise as they were added, without following loop-carried edges.
func (b *builder) order() {
	waits := make([]int, len(b.g.stages))
	for _, e := range b.p.edges {
		if e.kind != loop {
			waits[e.to.id]++
		}
	}
	placed := make([]bool, len(b.g.stages))
	for len(b.p.stages) < len(b.g.stages) {
		var next *Stage
		for _, s := range b.g.stages {
			if !placed[s.id] && waits[s.id] == 0 {
				next = s
				break
			}
		}
		if next == nil {
			b.cycle(placed)
			return
		}
		placed[next.id] = true
		next.topo = len(b.p.stages)
		b.p.stages = append(b.p.stages, next)
		for _, o := range next.out {
			for _, e := range o.edges {
				if e.kind != loop {
					waits[e.to.id]--
				}
			}
		}
	}
}

// cycle names one cycle among the stages that could not be placed: each of them has an input from another one.
func (b *builder) cycle(placed []bool) {
	var s *Stage
	for _, c := range b.g.stages {
		if !placed[c.id] {
			s = c
			break
		}
	}
	seen := map[*Stage]int{}
	var path []*Stage
	for {
		if at, ok := seen[s]; ok {
			path = append(path[at:], s)
			break
		}
		seen[s] = len(path)
		path = append(path, s)
		for _, e := range s.in {
			if e.kind != loop && !placed[e.from.stage.id] {
				s = e.from.stage
				break
			}
		}
	}
	names := make([]string, len(path))
	for i, st := range path {
		names[len(path)-1-i] = fmt.Sprintf("%q", st.name)
	}
	b.errs = append(b.errs, fmt.Errorf("graph %q: cycle %s: connect one of its inputs with Loop if it carries a value to the next step",
		b.g.name, strings.Join(names, " -> ")))
}

// levels finds every stage's and port's level and checks that edges respect them.
func (b *builder) levels() {
	for _, s := range b.p.stages {
		if s.level == unset {
			for _, e := range s.in {
				l := e.from.level
				if e.kind == collect {
					if l--; l < Step {
						continue
					}
				}
				if e.kind != loop && (s.level == unset || l > s.level) {
					s.level = l
				}
			}
		}
		if s.level == unset {
			for _, e := range s.in {
				if l := e.from.level; e.kind == collect && l != unset {
					b.fail(s, "input %q: Collect gathers the batches of a step or the sub-batches of a batch, and port %q is at %v level", e.input, e.from.name, l)
				}
			}
			if !slices.ContainsFunc(s.in, func(e *edge) bool { return e.kind == collect }) {
				b.fail(s, "has no level: it has no input to take one from; say At")
			}
			continue
		}
		for _, o := range s.out {
			o.level = s.level
			switch {
			case o == s.batches:
				o.level = Batch
			case o.fan:
				o.level = Sub
				if s.level != Batch {
					b.fail(s, "output %q: only a stage at batch level can split, this one is at %v level", o.name, s.level)
				}
			case o.final:
				o.level = Step
				if s.level != Batch && s.level != Sub {
					b.fail(s, "output %q: Final is for stages at batch or sub level, this one is at %v level", o.name, s.level)
				}
			}
		}
		for _, e := range s.in {
			b.checkLevel(s, e)
		}
		if s.level == Stream && s.batches == nil && len(s.in) == 0 && len(s.out) == 0 {
			b.fail(s, "has neither inputs nor outputs")
		}
		if s.level != Stream && len(s.in) == 0 && s.level != Step {
			b.fail(s, "is at %v level but has no input: emit batches with Batches", s.level)
		}
		if s.level < Stream || s.level > Sub {
			b.fail(s, "At(%d): want Stream, Step, Batch or Sub", s.level)
			continue
		}
		if s.descending && s.level != Sub {
			b.fail(s, "Descending is for stages at sub level, this one is at %v level", s.level)
		}
		if s.when != nil && s.level != Step {
			b.fail(s, "When is for stages at step level, this one is at %v level", s.level)
		}
		if s.batches != nil && (len(s.in) > 1 || len(s.out) > 1) {
			b.fail(s, "a stage that emits batches has one output and at most one input")
		}
	}
}

func (b *builder) checkLevel(s *Stage, e *edge) {
	from := e.from.level
	switch {
	case e.kind == loop && s.level == Stream: // every item would read what the first step does
		b.fail(s, "input %q: Loop carries a value from step to step, and the stage is at stream level, which knows no steps: let it work on batches", e.input)
	case e.kind == loop && e.from.lent: // it would come back after the next one, which waits for it
		b.fail(s, "input %q: Loop would keep what port %q lends for as long as its step takes", e.input, e.from.name)
	case e.kind == loop: // its producer may come later in the order: see roles
	case (from == Stream) != (s.level == Stream):
		b.fail(s, "input %q: port %q is at %v level, the stage at %v level: only Batches turns a stream into batches", e.input, e.from.name, from, s.level)
	case e.kind == plain && from > s.level:
		b.fail(s, "input %q: port %q is at %v level, the stage at the coarser %v level: use Collect", e.input, e.from.name, from, s.level)
	case e.kind == collect && (from <= s.level || s.level == Stream):
		b.fail(s, "input %q: Collect wants a port finer than the stage's %v level, port %q is at %v level", e.input, s.level, e.from.name, from)
	}
}

// roles finds what the scheduler needs to know of each stage: who emits batches, who splits them, which sub-batches a
// stage works on, and which stages come before a batch is split or before a step's first batch.
func (b *builder) roles() {
	p := b.p
	fine := map[*Stage]bool{} // depends on the step's batches
	for _, s := range p.stages {
		if s.batches != nil {
			if p.source != nil {
				b.fail(s, "two stages emit batches: this one and %q", p.source.name)
			}
			p.source = s
		}
		for _, o := range s.out {
			if o.fan && s.early {
				b.fail(s, "output %q: a stage splits a batch once: put a struct on one Fan output", o.name)
			}
			if o.fan {
				s.early = true
				p.fans = append(p.fans, s)
			}
		}
		fine[s] = s.level == Batch || s.level == Sub
		for _, e := range s.in {
			if e.kind == loop {
				if e.from.level != Step {
					b.fail(s, "input %q: a loop-carried port must be at step level, port %q is at %v level", e.input, e.from.name, e.from.level)
				}
				continue
			}
			fine[s] = fine[s] || fine[e.from.stage] || e.from.level == Batch // which the stage that emits batches, at stream level, has too
			if s.level == Sub && e.from.level == Sub {
				o := e.from.stage.origin
				if e.from.fan {
					o = e.from.stage
				}
				if s.origin != nil && s.origin != o {
					b.fail(s, "its inputs come from two splits, %q and %q", s.origin.name, o.name)
				}
				s.origin = o
			}
		}
		if s.level == Sub && s.origin == nil {
			b.fail(s, "is at sub level but no input says which sub-batches there are")
		}
		s.prologue = s.level == Step && !fine[s]
		s.late = (s.level == Batch || s.level == Sub) && slices.ContainsFunc(s.in, func(e *edge) bool {
			return e.kind != loop && (e.from.stage.late || e.from.level == Step && !e.from.stage.prologue)
		})
	}
	for _, f := range p.fans {
		f.early = false
		b.markEarly(f, f)
	}
	hasBatches := p.source != nil
	for _, s := range p.stages {
		if s.level != Stream && !hasBatches {
			b.fail(s, "is at %v level, but no stage emits batches", s.level)
		}
		if s.level == Stream && s.place.Host && s.parallel > 1 && (len(s.in) == 0 || s.batches != nil) {
			b.fail(s, "a source or a batching stage runs one task at a time: drop Parallel")
		}
		if !s.place.Host && s.parallel > 1 {
			b.fail(s, "a lane runs one task at a time: drop Parallel")
		}
	}
	b.lanesOfStreams()
	for _, e := range p.edges {
		e.unit = min(e.from.level, e.to.level, Batch)
		if e.kind == loop || e.to.late { // which begins when all of a step is there
			e.unit = Step
		}
		if !e.capped {
			e.cap = defaultCapacity(e.unit)
		}
	}
}

// lanesOfStreams keeps stages of a stream off lanes whose order is fixed: their items come in between as they arrive, so that what a step
// computes, and on two ranks' communication lanes who waits for whom, would be a matter of timing.
func (b *builder) lanesOfStreams() {
	fixed := map[Placement]*Stage{} // a stage of each lane that works on steps, batches or sub-batches
	for _, s := range b.p.stages {
		if !s.place.Host && s.level != Stream && fixed[s.place] == nil {
			fixed[s.place] = s
		}
	}
	for _, s := range b.p.stages {
		if other := fixed[s.place]; other != nil && s.level == Stream {
			b.fail(s, "works on a stream, whose items would come in between the tasks of stage %q on %v as they arrive, in another order on every run: "+
				"let it work on batches, with an input from what Batches gives, or run in the host pool or on a lane without such a stage", other.name, s.place)
		}
	}
}

// defaultCapacity bounds the units between two stages: two batches or steps, so that one is prepared while one is used;
// four items of a stream, so that a parallel stage has some to take.
func defaultCapacity(l Level) int {
	if l == Stream {
		return 4
	}
	return 2
}

// markEarly marks what must run before a batch is split: on the host, because lanes get their order only afterwards.
func (b *builder) markEarly(s, fan *Stage) {
	if s.level != Batch || s.early {
		return
	}
	s.early = true
	if !s.place.Host {
		b.fail(s, "must run on the host: the split %q depends on it, and lanes are ordered after the split", fan.name)
	}
	for _, e := range s.in {
		switch {
		case e.kind == plain && e.from.level == Batch && e.from.stage.batches == nil:
			b.markEarly(e.from.stage, fan)
		case e.kind == collect || e.from.level == Step:
			b.fail(s, "input %q: the split %q can't depend on a value at %v level", e.input, fan.name, e.from.level)
		}
	}
}

func (b *builder) place() {
	used := map[Placement]bool{}
	for _, s := range b.g.stages {
		if s.place.Host {
			continue
		}
		if s.place.Lane < Compute || s.place.Lane > Fetch {
			b.fail(s, "On(%d, %d): want the lane Compute, Comm, Copy or Fetch", s.place.Device, s.place.Lane)
			continue
		}
		if n := len(b.p.devices); s.place.Device < 0 || s.place.Device >= n {
			b.fail(s, "placed on device %d, but there are %d devices%s", s.place.Device, n, deviceNames(b.p.devices))
			continue
		}
		if !used[s.place] {
			used[s.place] = true
			b.p.lanes = append(b.p.lanes, s.place)
		}
	}
}

func deviceNames(ds []Device) string {
	var names []string
	for _, d := range ds {
		if d == nil {
			names = append(names, "nil")
			continue
		}
		names = append(names, d.Name())
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// deviceName is how traces, summaries and errors call a device, one that has another's name by its number as well: what they do is told apart by it.
func (p *Plan) deviceName(i int) string {
	name := p.devices[i].Name()
	for k, d := range p.devices {
		if k != i && d.Name() == name {
			return fmt.Sprintf("%s (device %d)", name, i)
		}
	}
	return name
}

// laneName is how traces, transcripts and errors call a lane.
func (p *Plan) laneName(pl Placement) string {
	if pl.Host {
		return "host"
	}
	return p.deviceName(pl.Device) + " " + pl.Lane.String()
}
