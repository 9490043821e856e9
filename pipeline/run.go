package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// PanicError is what a run returns when a stage's function panicked, or a device, its lane or a mark: a mistake in the stage or the
// device, not in its input.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	if at := e.place(); at != "" {
		return fmt.Sprintf("panic: %v, at %s", e.Value, at)
	}
	return fmt.Sprintf("panic: %v", e.Value)
}

// place is the file and the line that panicked: the first frame outside of the runtime below the call of panic. "" if the stack has none.
func (e *PanicError) place() string {
	lines, below := strings.Split(string(e.Stack), "\n"), false
	for i, line := range lines {
		if strings.HasPrefix(line, "panic(") {
			below = true
			continue
		}
		if !below || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "runtime.") || i+1 == len(lines) {
			continue
		}
		if at, ok := strings.CutPrefix(lines[i+1], "\t"); ok {
			at, _, _ = strings.Cut(at, " +0x")
			return at
		}
	}
	return ""
}

// EndError is what a run returns that nothing has failed and that a stage has ended with an error, by [Task.EndRun] or [Task.EndBefore]: it is in
// no other error of a run.
type EndError struct{ err error }

func (e *EndError) Error() string { return e.err.Error() }

// Unwrap is the stage's error, with where it was.
func (e *EndError) Unwrap() error { return e.err }

func asked(err error) error {
	if err == nil {
		return nil
	}
	return &EndError{err}
}

// RunOption configures a run.
type RunOption func(*running)

// WithTrace records the run.
func WithTrace(t *Tracer) RunOption { return func(r *running) { r.tracer = t } }

// FirstStep numbers the run's first step, from 0, which it is without this option: a run that goes on from a checkpoint does not begin there.
func FirstStep(n int) RunOption { return func(r *running) { r.first = n } }

// WhenStalled makes a run that has heard of nothing for so long say what runs and who waits for what; again after twice as long,
// and so on. A task that takes longer is heard of by [Task.Alive].
func WhenStalled(after time.Duration, say func(report string)) RunOption {
	return func(r *running) { r.patience, r.stalled = after, say }
}

// WhenFailed has a run that has failed, and whose tasks and lanes have not ended so long after that, call end with its error: what they wait
// for may lie outside the run, and end is to end it.
func WhenFailed(after time.Duration, end func(err error)) RunOption {
	return func(r *running) { r.grace, r.end = after, end }
}

// running is one run of a plan: the coordinator, which alone touches the core and the values, and the goroutines of
// lanes and host workers, which talk to it through events. Every goroutine ends before Run returns.
type running struct {
	plan   *Plan
	core   *core
	first  int
	tracer *Tracer
	spans  func(Span)
	held   func(Depth)
	depth  map[int]int // units that an edge was last said to hold
	began  time.Time

	ctx    context.Context
	cancel context.CancelCauseFunc
	events chan event
	host   chan call
	lanes  map[Placement]chan call
	wg     sync.WaitGroup

	values  map[item]value
	err     error
	because error // for which a step was made the last one
	broken  error // for which the run ends before an item

	mu     sync.Mutex
	closed error // what closing lanes said

	patience time.Duration // 0: for ever
	stalled  func(string)
	alive    atomic.Int64 // when a task last said so: nanoseconds since the run began
	grace    time.Duration
	end      func(error)          // nil: nothing is done
	overdue  *time.Timer          // of a run that has failed
	ended    chan struct{}        // closed when end has returned
	busy     map[taskID]time.Time // tasks that run, since when
}

type value struct {
	v    any
	mark Mark      // what must have happened before v can be used; nil if it has
	lane Placement // where it was made
	back func()    // called when nobody needs it any more; nil: nothing is done
}

// drop is the end of a value.
func (v value) drop() {
	if v.back != nil {
		v.back()
	}
}

// call is a task on its way to a worker.
type call struct {
	id    taskID
	args  []any
	await []Mark
}

type event struct {
	id   taskID
	port *port // set for a put
	v    value
	last bool
	end  bool
	err  error

	endRun    bool // err is why, and nothing else is set but id
	endBefore bool // likewise
}

// Run runs the plan until its sources have ended and everything they gave has been worked through, an error occurs, or
// ctx is cancelled. The error names stage and item; where it was ctx that ended the run, errors.Is finds ctx.Err() and its cause.
//
// A plan can run more than once, but not twice at a time if its stages keep state. What they keep they have in the next run, too: a source
// whose function is at its end gives nothing, and a run of which all are is one without a step and without an error. What a run that ended
// early had taken from its sources and not worked through is lost to the next. A source that is for one run alone returns an error in another,
// as that of package stages does: each run has a context of its own, the same for all its tasks.
func (p *Plan) Run(ctx context.Context, opts ...RunOption) error {
	r := &running{plan: p, events: make(chan event), host: make(chan call, p.workers), lanes: map[Placement]chan call{}, values: map[item]value{}, busy: map[taskID]time.Time{}, depth: map[int]int{}}
	for _, o := range opts {
		o(r)
	}
	if r.first < 0 {
		return fmt.Errorf("graph %q: FirstStep(%d): want how many steps were made before", p.name, r.first)
	}
	r.core = newCore(p, r.first)
	r.began = time.Now()
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)

	opened := make(chan error)
	for _, pl := range p.lanes {
		ch := make(chan call, 1)
		r.lanes[pl] = ch
		r.wg.Add(1)
		go r.runLane(pl, ch, opened)
	}
	for range p.lanes {
		if err := <-opened; err != nil {
			r.fail(fmt.Errorf("graph %q: %w", p.name, err))
		}
	}
	for w := range p.workers {
		r.wg.Add(1)
		go r.runWorker(w)
	}
	r.coordinate()
	close(r.host)
	for _, ch := range r.lanes {
		close(ch)
	}
	r.wg.Wait()
	if r.overdue != nil && !r.overdue.Stop() {
		<-r.ended
	}
	if r.err == nil && r.closed != nil {
		r.err = fmt.Errorf("graph %q: %w", p.name, r.closed)
	}
	switch {
	case r.err != nil:
	case r.core.final < math.MaxInt:
		r.err = asked(r.because)
	default:
		r.err = asked(r.broken)
	}
	for _, v := range r.values { // of a run that has failed
		v.drop()
	}
	return r.err
}

// fail ends the run with its first error.
func (r *running) fail(err error) {
	if r.err == nil {
		r.err = err
		if r.end != nil {
			r.ended = make(chan struct{})
			r.overdue = time.AfterFunc(r.grace, func() {
				defer close(r.ended)
				r.end(err)
			})
		}
	}
	r.core.halt()
	r.cancel(r.err)
}

// coordinate feeds events to the core until nothing runs.
func (r *running) coordinate() {
	r.act(r.core.begin())
	done := r.ctx.Done()
	var alarm *time.Timer
	var late <-chan time.Time
	if r.patience > 0 {
		alarm = time.NewTimer(r.patience)
		defer alarm.Stop()
		late = alarm.C
	}
	quiet := r.patience
	for !r.core.idle() {
		select {
		case <-done:
			done = nil
			r.stopped()
		case <-late:
			if since := time.Since(r.began) - time.Duration(r.alive.Load()); since < quiet {
				quiet = r.patience
				alarm.Reset(quiet - since)
				continue
			}
			r.stalled(r.report(quiet))
			quiet *= 2
			alarm.Reset(quiet)
		case e := <-r.events:
			r.handle(e)
			if alarm != nil {
				quiet = r.patience
				alarm.Reset(quiet)
			}
		}
	}
	if r.err == nil && !r.core.complete() {
		r.fail(r.core.stuck())
	}
}

// report says what runs, longest first, and who waits for what.
func (r *running) report(quiet time.Duration) string {
	var tasks []taskID
	for id := range r.busy {
		tasks = append(tasks, id)
	}
	slices.SortFunc(tasks, func(a, b taskID) int { return r.busy[a].Compare(r.busy[b]) })
	var lines []string
	for _, id := range tasks {
		lines = append(lines, fmt.Sprintf("%v runs on %s since %v", id, r.plan.laneName(id.stage.place), time.Since(r.busy[id]).Round(time.Second)))
	}
	return fmt.Sprintf("nothing has happened for %v: %s", quiet, strings.Join(append(lines, r.core.waits()...), "; "))
}

// stopped ends the run with the reason for which its context was cancelled from outside.
func (r *running) stopped() {
	if r.err == nil {
		reason := context.Cause(r.ctx)
		if err := r.ctx.Err(); !errors.Is(reason, err) {
			reason = fmt.Errorf("%w (%w)", reason, err)
		}
		r.fail(fmt.Errorf("graph %q: stopped: %w", r.plan.name, reason))
	}
}

func (r *running) handle(e event) {
	if e.endRun && e.id.stage.level == Stream {
		e.err = errors.New("EndRun makes a task's step the last one, and a stream's items are in no step: EndBefore is for them")
		r.fail(r.failed(e))
		return
	}
	if e.endRun {
		r.core.endWith(e.id.index.Step)
		if e.err != nil && r.because == nil {
			r.because = r.failed(e)
		}
		return
	}
	if e.endBefore {
		// The error is that of the first batch, whichever is told of first. An item that a batch was to have is in none before those that have been made.
		if first := r.core.endBefore(e.id); r.broken == nil || first {
			r.broken = r.failed(e)
		}
		return
	}
	if e.port != nil {
		if e.port.final && r.err == nil && !r.core.lastOfStep(e.id) {
			e.err = fmt.Errorf("output %q: only a step's last task puts a Final output, and after this one come more", e.port.name)
			r.fail(r.failed(e))
		}
		idx, rep := r.core.put(e.id, e.port, e.last)
		r.values[item{e.port, idx}] = e.v
		r.act(rep)
		return
	}
	if stop := r.ctx.Err(); stop != nil && (errors.Is(e.err, stop) || errors.Is(e.err, context.Cause(r.ctx))) {
		r.stopped() // the stage was told before this goroutine was; it only knows that it was told
	} else if e.err != nil && r.err == nil {
		err := r.failed(e)
		if r.broken != nil { // which is why, if a stage has met with what stands in an item's place and does not know it
			err = fmt.Errorf("%w; before it, %v", err, r.broken)
		}
		r.fail(err)
	}
	delete(r.busy, e.id)
	r.act(r.core.done(e.id, e.end))
}

// failed is a task's error with where it was.
func (r *running) failed(e event) error {
	return fmt.Errorf("graph %q: stage %q, item %v: %w", r.plan.name, e.id.stage.name, e.id.index, e.err)
}

// act sends tasks off and drops values. A channel has room for every task that the core may start.
func (r *running) act(rep reply) {
	for _, it := range rep.release {
		r.values[it].drop()
		delete(r.values, it)
	}
	for _, id := range rep.start {
		c := r.call(id)
		r.busy[id] = time.Now()
		if id.stage.place.Host {
			r.host <- c
		} else {
			r.lanes[id.stage.place] <- c
		}
	}
	if r.tracer != nil || r.held != nil {
		r.depths()
	}
}

// depths tells how many units each edge holds, where that has changed.
func (r *running) depths() {
	now := time.Now()
	for _, e := range r.core.plan.edges {
		if e.kind == loop {
			continue
		}
		n := len(r.core.open[e.id])
		if was, known := r.depth[e.id]; known && was == n || !known && n == 0 {
			continue
		}
		r.depth[e.id] = n
		r.tracer.holds(e, n, now)
		if r.held != nil {
			r.held(Depth{Edge: edgeName(e), Units: n, Capacity: e.cap, At: now.Sub(r.began)})
		}
	}
}

// call gathers a task's arguments.
func (r *running) call(id taskID) call {
	c := call{id: id, args: make([]any, len(id.stage.in))}
	if id.ended {
		return c
	}
	take := func(p *port, idx Index) any {
		v := r.values[item{p, idx}]
		if v.mark != nil && v.lane != id.stage.place {
			c.await = append(c.await, v.mark)
		}
		return v.v
	}
	for i, e := range id.stage.in {
		switch {
		case e.kind == loop && id.index.Step == r.first:
			c.args[i] = e.initial
		case e.kind == loop:
			c.args[i] = take(e.from, stepIndex(id.index.Step-1))
		case e.kind == plain:
			c.args[i] = take(e.from, id.index.at(e.from.level))
		default:
			group, _ := r.core.group(e, id.index)
			all := make([]any, len(group))
			for k, idx := range group {
				all[k] = take(e.from, idx)
			}
			c.args[i] = all
		}
	}
	return c
}

func (r *running) runLane(pl Placement, calls <-chan call, opened chan<- error) {
	defer r.wg.Done()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := r.plan.laneName(pl)
	lane, err := openLane(r.plan.devices[pl.Device], pl.Lane)
	if err != nil {
		err = fmt.Errorf("opening lane %s: %w", name, err)
	}
	opened <- err
	if err != nil {
		return
	}
	defer func() {
		if err := closeLane(lane); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.closed = errors.Join(r.closed, fmt.Errorf("closing lane %s: %w", name, err))
		}
	}()
	for c := range calls {
		r.execute(c, lane, name, lane.Await)
	}
}

// openLane opens a lane, whatever the device does.
func openLane(d Device, kind LaneKind) (l Lane, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if l, err = d.OpenLane(kind); err == nil && l == nil {
		err = errors.New("the device has given none, and no error")
	}
	return l, err
}

// closeLane closes a lane, whatever it does.
func closeLane(l Lane) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return l.Close()
}

func (r *running) runWorker(n int) {
	defer r.wg.Done()
	name := fmt.Sprintf("host %d", n)
	for c := range r.host {
		r.execute(c, nil, name, Mark.Sync)
	}
}

// execute runs one task behind what it awaits and reports its end, whatever the stage's function and its device do.
func (r *running) execute(c call, lane Lane, where string, await func(Mark) error) {
	id := c.id
	t := &Task{Index: id.index, run: r, stage: id.stage, lane: lane, args: c.args, puts: make([]int, len(id.stage.out)), ended: id.ended, ctx: r.ctx, id: id, where: where}
	e := event{id: id, err: errors.New("the stage's function ended its goroutine")}
	defer func() {
		if p := recover(); p != nil {
			e.err = &PanicError{Value: p, Stack: debug.Stack()}
		}
		r.events <- e
	}()
	var err error
	for _, m := range c.await {
		err = errors.Join(err, await(m))
	}
	skip := id.stage.when != nil && !id.stage.when(id.index.Step)
	start := time.Now()
	switch {
	case err != nil:
	case skip:
		for slot := range id.stage.out {
			t.put(slot, value{}, false)
		}
	default:
		err = id.stage.do(t)
	}
	if !skip && !t.parts {
		r.ran(t, "", start)
	}
	if id.stage.level == Stream && len(id.stage.in) == 0 && err == io.EOF { // itself, as of a reader: what wraps it is a file that ends too early
		e.end, err = true, nil
	} else if err == nil {
		err = t.check()
	}
	if err == nil && lane != nil {
		err = lane.Err()
	}
	e.err = err
}

// ran tells those who want to know that a task ran, or a part of it.
func (r *running) ran(t *Task, part string, start time.Time) {
	if r.tracer == nil && r.spans == nil {
		return
	}
	end, lane := time.Now(), "host"
	if !t.stage.place.Host {
		lane = t.stage.place.Lane.String()
	}
	r.tracer.ran(t, part, lane, start, end)
	if r.spans != nil {
		r.spans(Span{
			Stage: t.stage.name, Item: t.Index.String(), Step: t.Index.Step, Part: part, Device: deviceOf(t.where), Lane: lane,
			Start: start.Sub(r.began), End: end.Sub(r.began), Notes: t.notes,
		})
	}
}

// check finds outputs that were put too often or not at all.
func (t *Task) check() error {
	switch {
	case !t.broke || t.stage.level == Stream:
	case t.stage.level != Batch && t.stage.batches == nil:
		return fmt.Errorf("EndBefore is for what comes before a split, and this is a stage of each %v", t.stage.level)
	default:
		return nil
	}
	for i, o := range t.stage.out {
		switch n := t.puts[i]; {
		case o == t.stage.batches:
		case o.fan && n == 0:
			return fmt.Errorf("output %q: no sub-batch was put", o.name)
		case o.final && n == 0: // if the step's last task leaves it out, the core says who waits for it
		case !o.fan && n != 1:
			return fmt.Errorf("output %q: %d values were put, want 1", o.name, n)
		}
	}
	return nil
}

func (t *Task) put(slot int, v value, last bool) {
	t.puts[slot]++
	o := t.stage.out[slot]
	if !o.fan && o != t.stage.batches && t.puts[slot] > 1 {
		v.drop()
		return // check reports it
	}
	v.lane = t.stage.place
	if t.lane != nil {
		v.mark = t.lane.Mark()
	}
	t.run.events <- event{id: t.id, port: o, v: v, last: last}
}
