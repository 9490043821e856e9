package pipeline

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Graph is a pipeline under construction. It is not safe for concurrent use.
type Graph struct {
	name   string
	stages []*Stage
	ports  []*port
	errs   []error
	built  bool
}

// New begins a graph. The name appears in errors, traces and drawings.
func New(name string) *Graph { return &Graph{name: name} }

// Name returns the graph's name.
func (g *Graph) Name() string { return g.name }

// Port is the typed end of an edge: what one stage writes and others read.
type Port[T any] struct{ p *port }

// port is a Port without its type.
type port struct {
	id      int
	graph   *Graph
	name    string
	typ     reflect.Type
	level   Level
	stage   *Stage // the writer; nil while a Later port is unbound
	binding *port  // for a Later port: the output it stands for
	later   bool
	missing string // of one that nobody binds: what the graph lacks
	fan     bool   // a Fan output: one level below its stage
	final   bool   // a Final output: at step level, whatever its stage's
	lent    bool   // a Lent output
	edges   []*edge
}

// source is the output behind a port that was declared first and bound afterwards.
func (p *port) source() *port {
	if p.later {
		return p.binding
	}
	return p
}

type inputKind int8

const (
	plain inputKind = iota
	collect
	loop
)

// edge connects a port to one input of a stage.
type edge struct {
	id      int
	from    *port
	to      *Stage
	input   string
	slot    int // among the stage's inputs
	kind    inputKind
	cap     int  // units in flight
	capped  bool // cap was said; else it is the default of its level
	typ     reflect.Type
	initial any   // loop: what the first step reads
	unit    Level // what cap counts and what is released together
}

// LaneKind is one of a device's queues.
type LaneKind int8

const (
	Compute LaneKind = iota
	Comm
	Copy
	Fetch // communication as well, for what is fetched from other ranks ahead of computing
)

func (k LaneKind) String() string {
	if k < Compute || k > Fetch { // Build refuses it
		return fmt.Sprintf("lane %d", int(k))
	}
	return [...]string{"compute", "comm", "copy", "fetch"}[k]
}

// Placement says where a stage runs.
type Placement struct {
	Host   bool
	Device int // an index into the devices that Build gets
	Lane   LaneKind
}

func (p Placement) String() string {
	if p.Host {
		return "host"
	}
	return fmt.Sprintf("device %d %s", p.Device, p.Lane)
}

// Stage is one node of the graph.
type Stage struct {
	graph      *Graph
	id         int
	name       string
	level      Level
	place      Placement
	parallel   int
	descending bool
	when       func(step int) bool
	in         []*edge
	out        []*port
	batches    *port // the output that emits batches, if this stage does
	do         func(*Task) error

	// Found by Build.
	topo     int
	origin   *Stage // for a Sub stage: the stage that splits
	early    bool   // a Batch stage that a split depends on, or that splits
	prologue bool   // a Step stage that needs nothing of the step's batches
	late     bool   // a Batch or Sub stage that needs what is made of all of the step's batches
}

// Name returns the stage's name.
func (s *Stage) Name() string { return s.name }

// Option configures a stage.
type Option func(*Stage)

// On places a stage on a lane of a device. Without it, a stage runs in the host pool. A stage at stream level can't share a lane with
// stages at other levels.
func On(device int, lane LaneKind) Option {
	return func(s *Stage) { s.place = Placement{Device: device, Lane: lane} }
}

// At sets the stage's level. Without it, a stage works at the finest level of its plain inputs; one that only collects
// works one level above what it collects.
func At(l Level) Option { return func(s *Stage) { s.level = l } }

// Parallel lets up to n tasks of a host stage run at once, at least 1, which is the default. Its outputs are still passed on in order. The
// stage's function must be safe for concurrent calls.
func Parallel(n int) Option { return func(s *Stage) { s.parallel = n } }

// Descending makes a stage work through the sub-batches of a batch from the last to the first.
func Descending() Option { return func(s *Stage) { s.descending = true } }

// When limits a step-level stage to some steps: evaluation or saving every so often. At other steps its function is
// not called and its outputs carry zero values.
func When(f func(step int) bool) Option { return func(s *Stage) { s.when = f } }

// Stage adds a stage. Names are unique within a graph, and not empty.
func (g *Graph) Stage(name string, opts ...Option) *Stage {
	s := &Stage{graph: g, id: len(g.stages), name: name, level: unset, place: Placement{Host: true}, parallel: 1}
	for _, o := range opts {
		o(s)
	}
	g.stages = append(g.stages, s)
	return s
}

// Do sets the stage's function. It is called once per index, on the stage's lane or in the host pool.
func (s *Stage) Do(f func(*Task) error) { s.do = f }

// Refuse makes Build return a mistake that whoever adds the stage has found in what the stage was given; nil is none.
func (s *Stage) Refuse(err error) {
	if err != nil {
		s.graph.fail("stage %q: %w", s.name, err)
	}
}

// noFunction is what Build says of a stage that Source, Map or Sink was given no function for.
var noFunction = errors.New("its function is nil")

func (g *Graph) fail(format string, args ...any) {
	g.errs = append(g.errs, fmt.Errorf("graph %q: "+format, append([]any{g.name}, args...)...))
}

func newPort[T any](g *Graph, name string) *port {
	p := &port{id: len(g.ports), graph: g, name: name, typ: reflect.TypeFor[T](), level: unset}
	g.ports = append(g.ports, p)
	return p
}

// Output is a stage's writing end.
type Output[T any] struct {
	Port Port[T]
	slot int
}

func newOutput[T any](s *Stage, name string) Output[T] {
	p := newPort[T](s.graph, name)
	p.stage = s
	s.out = append(s.out, p)
	return Output[T]{Port: Port[T]{p}, slot: len(s.out) - 1}
}

// Out adds an output at the stage's own level. The stage's function puts exactly one value per task.
func Out[T any](s *Stage, name string) Output[T] { return newOutput[T](s, name) }

// Fan adds an output one level below the stage, which must work on batches: it puts the sub-batches one after another,
// at least one.
func Fan[T any](s *Stage, name string) Output[T] {
	o := newOutput[T](s, name)
	o.Port.p.fan = true
	return o
}

// Final adds an output at step level to a stage that works on batches or sub-batches: its last task of the step, and no other,
// puts the value, as soon as it has it. This is how what follows starts while that task still runs: the reduction of a
// gradient that gets no more contributions.
func Final[T any](s *Stage, name string) Output[T] {
	o := newOutput[T](s, name)
	o.Port.p.final = true
	return o
}

// LentOutput is the writing end of what comes back.
type LentOutput[T any] struct{ Output[T] }

// Lent adds an output of values that belong to the stage and come back to it: memory that the next one is to have. No edge from it may be a Loop.
func Lent[T any](s *Stage, name string) LentOutput[T] {
	o := newOutput[T](s, name)
	o.Port.p.lent = true
	return LentOutput[T]{o}
}

// BatchOutput is the writing end of the stage that makes batches.
type BatchOutput[T any] struct{ Output[T] }

// Batches makes a stage the one that turns a stream into batches and steps; a graph has at most one. The stage has at
// most one input, a stream: its function is called for every item and once more at the stream's end ([Task.Ended]), and
// puts as many batches as it finds. Without an input it is a source: it is called until it returns io.EOF, as that of [Source].
func Batches[T any](s *Stage, name string) BatchOutput[T] {
	o := newOutput[T](s, name)
	if s.batches != nil {
		s.graph.fail("stage %q: two outputs emit batches (%q and %q)", s.name, s.batches.name, name)
	}
	s.batches = o.Port.p
	s.level = Stream
	return BatchOutput[T]{o}
}

// Put passes v on. It may be called before the stage's function ends; consumers can then start at once. A task that puts another stage's output, or
// gets another's input, panics, and ends the run so.
func (o Output[T]) Put(t *Task, v T) { o.put(t, value{v: v}, false) }

func (o Output[T]) put(t *Task, v value, last bool) {
	if p := o.Port.p; p.stage != t.stage {
		panic(fmt.Sprintf("output %q is stage %q's", p.name, p.stage.name))
	}
	t.put(o.slot, v, last)
}

// Put lends v to the stages that read it. back, which may be nil and must not wait, is called once, when all of them have returned, or the run has
// ended. A stage that reads v must not put it out again: who reads it there could have it when it has been given back.
func (o LentOutput[T]) Put(t *Task, v T, back func()) { o.put(t, value{v: v, back: back}, false) }

// Put passes on a batch. last tells that it is its step's last one.
func (o BatchOutput[T]) Put(t *Task, v T, last bool) { o.put(t, value{v: v}, last) }

// Input is a stage's reading end.
type Input[T any] struct{ e *edge }

// Get returns the value for the task's index.
func (i Input[T]) Get(t *Task) T {
	v, _ := t.arg(i.e).(T) // an interface-typed T may hold nil
	return v
}

// Group is the reading end of a collected port.
type Group[T any] struct{ e *edge }

// All returns the group's values in index order.
func (i Group[T]) All(t *Task) []T {
	items := t.arg(i.e).([]any)
	vs := make([]T, len(items))
	for k, it := range items {
		vs[k], _ = it.(T)
	}
	return vs
}

// arg is what the task has on an edge.
func (t *Task) arg(e *edge) any {
	if e.to != t.stage {
		panic(fmt.Sprintf("input %q is stage %q's", e.input, e.to.name))
	}
	return t.args[e.slot]
}

func connect[T any](s *Stage, name string, p Port[T], kind inputKind, opts []EdgeOption) *edge {
	e := &edge{from: p.p, to: s, input: name, slot: len(s.in), kind: kind, typ: reflect.TypeFor[T]()}
	for _, o := range opts {
		o(e)
	}
	s.in = append(s.in, e)
	return e
}

// EdgeOption configures an edge.
type EdgeOption func(*edge)

// Capacity bounds how far the producer may be ahead, by at least 1: in batches, in steps for step-level edges and those of stages that read what is made of
// a whole step, in items for streams.
func Capacity(n int) EdgeOption { return func(e *edge) { e.cap, e.capped = n, true } }

// In connects an input to a port of the same level or of a coarser one.
func In[T any](s *Stage, name string, p Port[T], opts ...EdgeOption) Input[T] {
	return Input[T]{connect(s, name, p, plain, opts)}
}

// Collect connects an input to a port of a finer level: a task gets all values of its group.
func Collect[T any](s *Stage, name string, p Port[T], opts ...EdgeOption) Group[T] {
	return Group[T]{connect(s, name, p, collect, opts)}
}

// Loop connects an input to what the previous step wrote: p must be at step level, and the stage not at stream level. The first step of a
// run reads initial.
func Loop[T any](s *Stage, name string, p Port[T], initial T) Input[T] {
	e := connect(s, name, p, loop, nil)
	e.initial = initial
	return Input[T]{e}
}

// Later declares a port before the stage that will write it, as a loop-carried edge needs. Bind completes it; missing says, where nobody has called
// that, what a graph lacks.
func Later[T any](g *Graph, name, missing string) Port[T] {
	p := newPort[T](g, name)
	p.later, p.missing = true, missing
	return Port[T]{p}
}

// Bind says which output a Later port stands for.
func Bind[T any](later Port[T], o Output[T]) {
	p, src := later.p, o.Port.p
	switch {
	case !p.later:
		p.graph.fail("port %q: stage %q can't write it: it is already written by stage %q", p.name, src.stage.name, p.stage.name)
	case p.binding != nil:
		p.graph.fail("port %q: two stages write it: %q and %q", p.name, p.binding.stage.name, src.stage.name)
	default:
		p.binding = src
	}
}

// Source adds a stage that produces a stream: next is called until it returns io.EOF, itself: an error that wraps it ends the run as any other does.
func Source[T any](g *Graph, name string, next func(context.Context) (T, error), opts ...Option) Port[T] {
	s := g.Stage(name, append([]Option{At(Stream)}, opts...)...)
	out := Out[T](s, name)
	if next == nil {
		s.Refuse(noFunction)
	}
	s.Do(func(t *Task) error {
		v, err := next(t.Context())
		if err != nil {
			return err
		}
		out.Put(t, v)
		return nil
	})
	return out.Port
}

// Map adds a stage that turns each A into a B, at the level of its input.
func Map[A, B any](g *Graph, name string, in Port[A], f func(*Task, A) (B, error), opts ...Option) Port[B] {
	s := g.Stage(name, opts...)
	a := In(s, name, in)
	out := Out[B](s, name)
	if f == nil {
		s.Refuse(noFunction)
	}
	s.Do(func(t *Task) error {
		v, err := f(t, a.Get(t))
		if err != nil {
			return err
		}
		out.Put(t, v)
		return nil
	})
	return out.Port
}

// Sink adds a stage that consumes values.
func Sink[A any](g *Graph, name string, in Port[A], f func(*Task, A) error, opts ...Option) {
	s := g.Stage(name, opts...)
	a := In(s, name, in)
	if f == nil {
		s.Refuse(noFunction)
	}
	s.Do(func(t *Task) error { return f(t, a.Get(t)) })
}

// Task is one call of a stage's function, for the goroutine of that call until it returns: what the function has others do gives it what they have
// found. Context, Stage, Lane and Alive others may call as well.
type Task struct {
	Index Index // of a stage at Stream, such as Source and what maps its items, without a Step
	run   *running
	stage *Stage
	lane  Lane
	args  []any
	puts  []int // values put per output
	ended bool
	ctx   context.Context
	id    taskID
	notes map[string]float64
	where string // the lane or worker
	parts bool   // it has shown parts
	broke bool   // it has ended the run before its item
}

// Context is cancelled when the run stops.
func (t *Task) Context() context.Context { return t.ctx }

// Stage is the name of the task's stage.
func (t *Task) Stage() string { return t.stage.name }

// Alive says that the task gets on, however long it takes: of what [WhenStalled] reports, that is not nothing.
func (t *Task) Alive() { t.run.alive.Store(int64(time.Since(t.run.began))) }

// Lane is the lane that the task runs on, as the device opened it; nil in the host pool.
func (t *Task) Lane() Lane { return t.lane }

// EndRun makes the step that the task belongs to the run's last one. All of that step is still done; of later steps, which are not
// begun, only what comes before their batches are split (up to the edges' capacities, as ever). The task must be one that the
// stages behind the split wait for in the next step, by a Loop, and call this before it puts what they wait for: then ranks that
// run the same graph and end with the same step have done the same tasks, and no collective of one waits for another's. So a source that
// has been asked for more is waited for, too: one whose rows may never come has to know an end of its own. A run that
// nothing else has failed ends with because, which may be nil.
func (t *Task) EndRun(because error) { t.run.events <- event{id: t.id, endRun: true, err: because} }

// EndBefore ends the run, with err, before what the task works on; what came before that is still done, whatever it waits for. A task of a stream
// says so of its item, and passes on something in the item's place by which the stages behind it know: the stage that makes batches, or one between it and
// the split, then calls EndBefore as well, puts nothing, and the run ends before the batch that would have been next, or that it works on. Batches of the same
// step that came before that one run up to what waits for all of the step, and so their work is lost: a stage at step level sees whole steps alone. Where
// ranks run the same graph they must all call it of the same batch, before it is split: then they have done the same tasks. A run that something else
// fails, or that EndRun ends with a step before, ends as that says.
func (t *Task) EndBefore(err error) {
	t.broke = true
	if err == nil {
		err = errors.New("EndBefore(nil): no reason is given")
	}
	t.run.events <- event{id: t.id, endBefore: true, err: err}
}

// Ended tells a batching stage that its stream has ended and that this is its last call.
func (t *Task) Ended() bool { return t.ended }
