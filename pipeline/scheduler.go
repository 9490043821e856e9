package pipeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The core decides, the lanes act. It is a state machine: put and done tell it what happened, and both answer with the
// tasks to start, in order, and with the values that nobody needs any more. It has no goroutine, clock, randomness or device, so
// a schedule is a function of the order of events, and on a device's lanes not even of that:
//
//   - When a batch has been split, derive appends its tasks to the lanes it uses: for each stage in the graph's order,
//     each sub-batch in the stage's direction. A lane starts its head when the head's inputs are there and never
//     looks past it. Stages of streams are on lanes of their own, which have no such order: Build sees to it.
//   - The tasks of a step stage follow those of the step's last batch, and so do, stage by stage, those of a late stage: one of batches that reads what a
//     step stage, or a Final output, has made of the same step. A step stage that depends on none of the step's batches precedes its first batch.
//   - Host stages have a queue each, and start in order when inputs, room and a worker are there; later stages first, so
//     that what is begun is finished before more is begun.
//
// Room: an edge counts the units (stream items, batches, steps) that its producer has begun and its consumer has not
// finished. A producer's task that would open a unit beyond the edge's capacity waits. A consumer that collects a whole step, or is late,
// makes the step the unit, so a step larger than the capacity can't deadlock.
//
// Rejected: choosing among ready tasks by priority at run time. It fills lanes slightly better when one sub-batch is late,
// but makes the order of additions depend on timing, and a deadlock between two ranks' communication lanes possible.

// taskID is one call of one stage. ended marks the last call of a batching stage.
type taskID struct {
	stage *Stage
	index Index
	ended bool
}

func (t taskID) String() string {
	if t.ended {
		return t.stage.name + "(end)"
	}
	return fmt.Sprintf("%s(%v)", t.stage.name, t.index)
}

// item is one value of one port.
type item struct {
	port  *port
	index Index
}

// reply is what the core wants done.
type reply struct {
	start   []taskID
	release []item
}

type stageState struct {
	queue    []Index // declared and not started; unused on lanes and for streams
	nextItem int     // streams: the next item's number
	length   int     // streams: number of items this stage has put, known when ended
	put      int     // streams: items put so far
	inflight int
	ended    bool          // will start no more
	units    map[Index]int // tasks finished within a batch or batches finished within a step
}

type laneState struct {
	queue []taskID
	busy  bool
}

type stepState struct {
	batches  int  // emitted
	closed   bool // no more will come
	derived  int  // batches whose tasks were declared
	finished int  // stages that have finished all their tasks in it
}

type core struct {
	plan  *Plan
	reply reply

	st      []stageState // by topo
	lanes   map[Placement]*laneState
	workers int // free

	steps   map[int]*stepState
	pending []Index                  // batches that wait to be split
	counts  map[*Stage]map[Index]int // sub-batches per splitting stage and batch, complete
	growing map[*Stage]map[Index]int // the same while its task runs

	have map[*port]map[Index]int // values held: edges that still need them
	open []map[Index]bool        // by edge: units begun and not finished

	step, batch int    // the next batch to be emitted
	first       int    // the run's first step
	final       int    // the run's last step, if a stage has said so
	cut         *Index // the batch before which the run ends, if a stage has said so
	halted      bool
}

func newCore(p *Plan, firstStep int) *core {
	c := &core{
		plan: p, st: make([]stageState, len(p.stages)), lanes: map[Placement]*laneState{}, workers: p.workers,
		steps: map[int]*stepState{}, counts: map[*Stage]map[Index]int{}, growing: map[*Stage]map[Index]int{},
		have: map[*port]map[Index]int{}, open: make([]map[Index]bool, len(p.edges)), step: firstStep, first: firstStep,
		final: math.MaxInt,
	}
	for i := range c.st {
		c.st[i].units = map[Index]int{}
	}
	for _, l := range p.lanes {
		c.lanes[l] = &laneState{}
	}
	for _, f := range p.fans {
		c.counts[f], c.growing[f] = map[Index]int{}, map[Index]int{}
	}
	for i := range c.open {
		c.open[i] = map[Index]bool{}
	}
	return c
}

func (c *core) state(s *Stage) *stageState { return &c.st[s.topo] }

// begin starts the sources.
func (c *core) begin() reply {
	c.schedule()
	return c.take()
}

// halt makes the core start nothing more: what runs is still counted as it returns.
func (c *core) halt() { c.halted = true }

// endWith makes a step the last one.
func (c *core) endWith(step int) { c.final = min(c.final, step) }

// endBefore makes the run end before the batch that a task works on, or would emit next, and tells whether that is the first batch to end it; false of an
// item of a stream, which is in none yet.
func (c *core) endBefore(t taskID) bool {
	at := t.index
	switch {
	case t.stage.batches != nil:
		at = batchIndex(c.step, c.batch)
	case at.Level != Batch:
		return false
	}
	if c.cut != nil && compareIndex(at, *c.cut) >= 0 {
		return false
	}
	c.cut = &at
	return true
}

// beyond tells that a task belongs to a step that will not be, or to what the run ends before. Of a step that will not be, what comes before a split
// still runs: how far it has come by now is
// a matter of timing, how far it comes before it has no more room is not.
func (c *core) beyond(t taskID) bool {
	if c.cut != nil && (t.stage.level == Stream || compareIndex(t.index.at(Batch), *c.cut) >= 0) {
		return true
	}
	return t.stage.level != Stream && !t.stage.early && t.index.Step > c.final
}

func (c *core) take() reply {
	r := c.reply
	c.reply = reply{}
	return r
}

// putIndex is the index that the next value of a task's output gets.
func (c *core) putIndex(t taskID, o *port) Index {
	switch {
	case o == t.stage.batches:
		return batchIndex(c.step, c.batch)
	case o.fan:
		return t.index.sub(c.growing[t.stage][t.index])
	case o.final:
		return t.index.at(Step)
	default:
		return t.index
	}
}

// put tells that a running task has written a value, and returns the value's index.
func (c *core) put(t taskID, o *port, last bool) (Index, reply) {
	idx := c.putIndex(t, o)
	if n := len(o.edges); n > 0 {
		if c.have[o] == nil {
			c.have[o] = map[Index]int{}
		}
		c.have[o][idx] = n
	} else {
		c.reply.release = append(c.reply.release, item{o, idx})
	}
	switch {
	case o == t.stage.batches:
		c.emitted(idx, last)
		for _, e := range o.edges {
			c.open[e.id][idx.at(e.unit)] = true
		}
	case o.fan:
		c.growing[t.stage][t.index]++
	case idx.Level == Stream:
		c.state(t.stage).put++
	}
	c.schedule()
	return idx, c.take()
}

// lastOfStep tells whether a batch or sub-batch is the last of its step that its stage works on, as far as the step's batches are known.
func (c *core) lastOfStep(t taskID) bool {
	if t.index.Level == Sub {
		last := c.counts[t.stage.origin][t.index.at(Batch)] - 1
		if t.stage.descending {
			last = 0
		}
		if t.index.Sub != last {
			return false
		}
	}
	return t.index.Batch == c.steps[t.index.Step].batches-1
}

// emitted declares the tasks that come before a new batch is split.
func (c *core) emitted(idx Index, last bool) {
	s := c.steps[idx.Step]
	if s == nil {
		s = &stepState{}
		c.steps[idx.Step] = s
	}
	s.batches++
	c.batch++
	if last {
		s.closed = true
		c.step, c.batch = c.step+1, 0
	}
	for _, st := range c.plan.stages {
		if st.early {
			c.declare(st, idx)
		}
	}
	c.pending = append(c.pending, idx)
	c.derive()
}

func (c *core) declare(s *Stage, idx Index) {
	if s.place.Host {
		q := &c.state(s).queue
		*q = append(*q, idx)
	} else {
		l := c.lanes[s.place]
		l.queue = append(l.queue, taskID{stage: s, index: idx})
	}
}

// derive declares the tasks of every batch that has been split, in the order of batches.
func (c *core) derive() {
	for len(c.pending) > 0 {
		b := c.pending[0]
		for _, f := range c.plan.fans {
			if _, ok := c.counts[f][b]; !ok {
				return
			}
		}
		c.pending = c.pending[1:]
		if b.Batch == 0 {
			for _, s := range c.plan.stages {
				if s.prologue {
					c.declare(s, b.at(Step))
				}
			}
		}
		for _, s := range c.plan.stages {
			if !s.early && !s.late {
				c.declareIn(s, b)
			}
		}
		c.steps[b.Step].derived++
		c.endStep(b.Step)
		c.forget(b.Step)
	}
}

// declareIn declares the tasks of a stage of batches or sub-batches in a batch that has been split.
func (c *core) declareIn(s *Stage, b Index) {
	switch s.level {
	case Batch:
		c.declare(s, b)
	case Sub:
		n := c.counts[s.origin][b]
		for u := range n {
			if s.descending {
				u = n - 1 - u
			}
			c.declare(s, b.sub(u))
		}
	}
}

// endStep declares a step's own tasks, and those of late stages, once all its batches are declared and no more will come.
func (c *core) endStep(step int) {
	s := c.steps[step]
	if !s.closed || s.derived < s.batches {
		return
	}
	for _, st := range c.plan.stages {
		switch {
		case st.level == Step && !st.prologue:
			c.declare(st, stepIndex(step))
		case st.late:
			for b := range s.batches {
				c.declareIn(st, batchIndex(step, b))
			}
		}
	}
}

// done tells that a task has returned. end is a source's end of stream.
func (c *core) done(t taskID, end bool) reply {
	s, st := t.stage, c.state(t.stage)
	st.inflight--
	if s.place.Host {
		c.workers++
	} else {
		c.lanes[s.place].busy = false
	}
	if s.level == Stream {
		if end || t.ended {
			c.endStream(s)
		}
		if end {
			for _, o := range s.out {
				for _, e := range o.edges {
					delete(c.open[e.id], t.index)
				}
			}
		}
		if len(s.in) > 0 && !t.ended {
			c.finished(s, t.index)
		}
	} else {
		if n, ok := c.growing[s][t.index]; ok {
			delete(c.growing[s], t.index)
			if c.cut == nil || compareIndex(t.index, *c.cut) < 0 {
				c.counts[s][t.index] = n
				c.derive()
			}
		}
		c.progress(s, t.index)
	}
	c.schedule()
	return c.take()
}

// endStream marks a stream stage as ended; a batching stage's open step is closed with it.
func (c *core) endStream(s *Stage) {
	st := c.state(s)
	st.ended, st.length = true, st.put
	if s.batches == nil || c.cut != nil {
		return
	}
	step := c.step
	if open := c.steps[step]; open != nil && !open.closed {
		open.closed = true
		c.step, c.batch = step+1, 0
		c.endStep(step)
		for _, other := range c.plan.stages {
			c.endUnit(other, stepIndex(step))
		}
	}
}

// progress counts a finished task, batch or step of a stage towards the next coarser unit.
func (c *core) progress(s *Stage, idx Index) {
	c.finished(s, idx)
	switch idx.Level {
	case Sub:
		idx = idx.at(Batch)
	case Batch:
		idx = idx.at(Step)
	case Step:
		c.steps[idx.Step].finished++
		c.forget(idx.Step)
		return
	}
	c.state(s).units[idx]++
	c.endUnit(s, idx)
}

// endUnit closes a batch or step that a stage has finished all its tasks in.
func (c *core) endUnit(s *Stage, u Index) {
	n := 0
	if u.Level == Batch {
		n = c.counts[s.origin][u]
	} else if step := c.steps[u.Step]; step != nil && step.closed { // nil: another stage was the last to finish it
		n = step.batches
	}
	if st := c.state(s); n > 0 && st.units[u] == n {
		delete(st.units, u)
		c.progress(s, u)
	}
}

// forget drops what is known of a step once every stage has finished it, and its batches have all been derived: without stages behind the splits they
// may be later, where an earlier step's splits take longer.
func (c *core) forget(step int) {
	stages := 0
	for _, s := range c.plan.stages {
		if s.level != Stream {
			stages++
		}
	}
	if s := c.steps[step]; s.finished < stages || !s.closed || s.derived < s.batches {
		return
	}
	delete(c.steps, step)
	for _, m := range c.counts {
		for b := range m {
			if b.Step == step {
				delete(m, b)
			}
		}
	}
}

// finished closes unit u on the inputs of a stage that has finished all its tasks in u, and releases what it held.
func (c *core) finished(s *Stage, u Index) {
	for _, e := range s.in {
		if e.unit != u.Level {
			continue
		}
		held := u
		if e.kind == loop {
			held = stepIndex(u.Step - 1)
		} else {
			delete(c.open[e.id], u)
		}
		var gone []Index
		for idx := range c.have[e.from] {
			if idx.at(e.unit) == held {
				gone = append(gone, idx)
			}
		}
		slices.SortFunc(gone, compareIndex)
		for _, idx := range gone {
			if c.have[e.from][idx]--; c.have[e.from][idx] == 0 {
				delete(c.have[e.from], idx)
				c.reply.release = append(c.reply.release, item{e.from, idx})
			}
		}
	}
}

func compareIndex(a, b Index) int {
	for _, d := range [...]int{a.N - b.N, a.Step - b.Step, a.Batch - b.Batch, a.Sub - b.Sub} {
		if d != 0 {
			return d
		}
	}
	return 0
}

// schedule starts everything that can start.
func (c *core) schedule() {
	for again := !c.halted; again; {
		c.startLanes()
		again = c.startStages()
	}
}

func (c *core) startLanes() {
	for _, pl := range c.plan.lanes {
		l := c.lanes[pl]
		if !l.busy && len(l.queue) > 0 && !c.beyond(l.queue[0]) && c.ready(l.queue[0]) {
			t := l.queue[0]
			l.queue = l.queue[1:]
			l.busy = true
			c.issue(t)
		}
	}
}

// startStages starts host and stream stages, later ones first, and reports whether a stream ended on the way: the stages
// after it must then be looked at again.
func (c *core) startStages() (ended bool) {
	for i := len(c.plan.stages) - 1; i >= 0; i-- {
		s := c.plan.stages[i]
		if c.exhausted(s) {
			c.endStream(s)
			ended = true
		}
		for {
			t, ok := c.next(s)
			if !ok || c.beyond(t) || !c.ready(t) {
				break
			}
			if s.place.Host {
				if c.workers == 0 {
					break
				}
				c.workers--
			} else {
				c.lanes[s.place].busy = true
			}
			c.pop(t)
			c.issue(t)
		}
	}
	return ended
}

// exhausted tells that a stream stage's input has ended and all of it has been worked through.
func (c *core) exhausted(s *Stage) bool {
	st := c.state(s)
	return s.level == Stream && s.batches == nil && len(s.in) > 0 && !st.ended && st.inflight == 0 && c.inputEnded(s)
}

func (c *core) inputEnded(s *Stage) bool {
	for _, e := range s.in {
		if from := c.state(e.from.stage); from.ended && c.state(s).nextItem >= from.length {
			return true
		}
	}
	return false
}

// next is the task that a host or stream stage would start next, if it may start one at all.
func (c *core) next(s *Stage) (taskID, bool) {
	st := c.state(s)
	if st.ended || st.inflight >= s.parallel || !s.place.Host && (s.level != Stream || c.lanes[s.place].busy) {
		return taskID{}, false
	}
	if s.level != Stream {
		if len(st.queue) == 0 {
			return taskID{}, false
		}
		return taskID{stage: s, index: st.queue[0]}, true
	}
	t := taskID{stage: s, index: streamIndex(st.nextItem)}
	if c.inputEnded(s) {
		t.ended = true
		return t, s.batches != nil
	}
	return t, true
}

func (c *core) pop(t taskID) {
	st := c.state(t.stage)
	switch {
	case t.ended:
	case t.stage.level == Stream:
		st.nextItem++
	default:
		st.queue = st.queue[1:]
	}
}

func (c *core) issue(t taskID) {
	c.state(t.stage).inflight++
	for _, o := range t.stage.out {
		if o == t.stage.batches {
			continue
		}
		if o.fan {
			c.growing[t.stage][t.index] = 0
		}
		for _, e := range o.edges {
			if e.kind != loop {
				c.open[e.id][t.index.at(e.unit)] = true
			}
		}
	}
	c.reply.start = append(c.reply.start, t)
}

// ready tells whether a task's inputs are there and its outputs have room.
func (c *core) ready(t taskID) bool {
	if !t.ended {
		for _, e := range t.stage.in {
			if !c.available(e, t.index) {
				return false
			}
		}
	}
	for _, o := range t.stage.out {
		for _, e := range o.edges {
			if e.kind == loop {
				continue
			}
			unit := t.index
			if o == t.stage.batches {
				unit = batchIndex(c.step, c.batch)
			}
			if !c.open[e.id][unit.at(e.unit)] && len(c.open[e.id]) >= e.cap {
				return false
			}
		}
	}
	return true
}

// available tells whether edge e has what a task at idx reads.
func (c *core) available(e *edge, idx Index) bool {
	have := c.have[e.from]
	switch e.kind {
	case loop:
		if idx.Step == c.first {
			return true
		}
		_, ok := have[stepIndex(idx.Step-1)]
		return ok
	case plain:
		_, ok := have[idx.at(e.from.level)]
		return ok
	}
	group, ok := c.group(e, idx)
	if !ok {
		return false
	}
	for _, g := range group {
		if _, ok := have[g]; !ok {
			return false
		}
	}
	return true
}

// group lists the indices that a collecting edge gathers for a task, if all of them are known.
func (c *core) group(e *edge, idx Index) ([]Index, bool) {
	batches := []Index{idx}
	if idx.Level == Step {
		s := c.steps[idx.Step]
		if s == nil || !s.closed {
			return nil, false
		}
		batches = nil
		for b := range s.batches {
			batches = append(batches, batchIndex(idx.Step, b))
		}
	}
	if e.from.level == Batch {
		return batches, true
	}
	origin := e.from.stage.origin
	if e.from.fan {
		origin = e.from.stage
	}
	var group []Index
	for _, b := range batches {
		n, ok := c.counts[origin][b]
		if !ok {
			return nil, false
		}
		for u := range n {
			group = append(group, b.sub(u))
		}
	}
	return group, true
}

// idle tells that nothing runs; complete that nothing is left to run.
func (c *core) idle() bool {
	for i := range c.st {
		if c.st[i].inflight > 0 {
			return false
		}
	}
	return true
}

func (c *core) complete() bool {
	if c.final < math.MaxInt {
		for step := range c.steps {
			if step <= c.final {
				return false
			}
		}
		return c.step > c.final
	}
	if c.cut != nil {
		for step := range c.steps {
			if step < c.cut.Step {
				return false
			}
		}
	}
	rest := func(t taskID) bool { return c.cut == nil || !c.beyond(t) }
	for i := range c.st {
		s := c.plan.stages[i]
		if slices.ContainsFunc(c.st[i].queue, func(at Index) bool { return rest(taskID{stage: s, index: at}) }) || s.level == Stream && c.cut == nil && (!c.st[i].ended || c.unpaired(s) != nil) {
			return false
		}
	}
	for _, l := range c.lanes {
		if slices.ContainsFunc(l.queue, rest) {
			return false
		}
	}
	return len(c.pending) == 0 || c.cut != nil
}

// unpaired is an input of a stream stage that has more items than another one, which has ended.
func (c *core) unpaired(s *Stage) *edge {
	for _, e := range s.in {
		if st := c.state(s); st.ended && c.state(e.from.stage).put > st.nextItem {
			return e
		}
	}
	return nil
}

// stuck says who waits for what when nothing runs and something is left: a stage that put nothing, as a rule.
func (c *core) stuck() error {
	return fmt.Errorf("graph %q: nothing can run: %s", c.plan.name, strings.Join(c.waits(), "; "))
}

// waits lists what the heads of all queues wait for.
func (c *core) waits() (waits []string) {
	describe := func(t taskID) {
		for _, e := range t.stage.in {
			if !t.ended && !c.available(e, t.index) {
				waits = append(waits, fmt.Sprintf("%v waits for %q of stage %q", t, e.from.name, e.from.stage.name))
			}
		}
		for _, o := range t.stage.out {
			for _, e := range o.edges {
				if e.kind != loop && len(c.open[e.id]) >= e.cap {
					waits = append(waits, fmt.Sprintf("%v waits for room in %q of stage %q", t, e.input, e.to.name))
				}
			}
		}
	}
	for _, pl := range c.plan.lanes {
		if q := c.lanes[pl].queue; len(q) > 0 {
			describe(q[0])
		}
	}
	for _, s := range c.plan.stages {
		if t, ok := c.next(s); ok {
			describe(t)
		}
		if e := c.unpaired(s); e != nil {
			waits = append(waits, fmt.Sprintf("an input of stage %q has ended after %d items, and %q of stage %q has more", s.name, c.state(s).nextItem, e.from.name, e.from.stage.name))
		}
	}
	return waits
}
