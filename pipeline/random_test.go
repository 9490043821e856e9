package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// A random graph, of which each task's value is a hash of its name, its index and what it reads, and the values by definition: by recursion from a task to
// what it reads, without a schedule. So a value from another place, a task that is left out, or done twice, is seen.
type randomGraph struct {
	g       *Graph
	stages  []*randomStage
	outs    []*randomOut
	batches []int // of each step
	ended   bool  // the source ends within the last step, as far as the stage that makes batches can tell
	broken  int   // how many tasks have been done when one fails; -1: none does

	mu    sync.Mutex
	done  map[string]uint64
	order map[string][]string // of lanes
}

type randomStage struct {
	name  string
	level Level
	desc  bool
	split *randomStage // that its sub-batches are of
	reads []randomIn
}

type randomOut struct {
	name       string
	of         *randomStage // nil: the stage that makes batches
	port       Port[uint64]
	level      Level
	fan, final bool
}

type randomIn struct {
	from *randomOut
	loop bool
	get  func(*Task) []uint64
}

func mixed(xs ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, xs...)
	return h.Sum64()
}

// subs is how many sub-batches a split makes of a batch.
func (s *randomStage) subs(b Index) int { return 1 + int(mixed(s.name, b)%3) }

// last tells whether a task is its step's last one.
func (z *randomGraph) last(s *randomStage, at Index) bool {
	return at == z.lastOf(s, at.Step)
}

func (z *randomGraph) lastOf(s *randomStage, step int) Index {
	b := batchIndex(step, z.batches[step]-1)
	switch {
	case s.level == Batch:
		return b
	case s.desc:
		return b.sub(0)
	}
	return b.sub(s.split.subs(b) - 1)
}

func newRandomGraph(r *rand.Rand) *randomGraph {
	z := &randomGraph{g: New("random"), ended: r.IntN(2) == 0, broken: -1, done: map[string]uint64{}, order: map[string][]string{}}
	total := 0
	for range r.IntN(4) {
		z.batches = append(z.batches, 1+r.IntN(4))
		total += z.batches[len(z.batches)-1]
	}
	next := 0
	rows := Source(z.g, "rows", func(context.Context) (int, error) {
		if next++; next > total {
			return 0, io.EOF
		}
		return next, nil
	})
	step, batch := 0, 0
	bat := z.g.Stage("batch")
	In(bat, "row", rows, Capacity(1+r.IntN(3)))
	batches := Batches[uint64](bat, "batches")
	bat.Do(func(t *Task) error {
		if t.Ended() {
			return nil
		}
		last := batch+1 == z.batches[step]
		batches.Put(t, mixed("batch", batchIndex(step, batch)), last && (step+1 < len(z.batches) || !z.ended))
		if batch++; last {
			step, batch = step+1, 0
		}
		return nil
	})
	z.outs = []*randomOut{{name: "batches", port: batches.Port, level: Batch}}
	weights := &randomOut{name: "weights", port: Later[uint64](z.g, "weights", "call Bind"), level: Step}
	for k := range 3 + r.IntN(8) {
		z.add(r, k, weights)
	}
	end := &randomStage{name: "end", level: Step}
	s := z.stage(end, At(Step))
	z.read(r, s, end, z.outs[r.IntN(len(z.outs))])
	out := Out[uint64](s, "weights")
	z.do(s, end, []func(*Task, uint64){func(t *Task, v uint64) { out.Put(t, mixed(v, "weights")) }})
	Bind(weights.port, out)
	weights.of = end
	return z
}

func (z *randomGraph) stage(s *randomStage, opts ...Option) *Stage {
	z.stages = append(z.stages, s)
	return z.g.Stage(s.name, opts...)
}

// read connects an input.
func (z *randomGraph) read(r *rand.Rand, s *Stage, x *randomStage, from *randomOut) {
	name, capacity := fmt.Sprintf("in%d", len(x.reads)), Capacity(1+r.IntN(3))
	if from.level > x.level {
		in := Collect(s, name, from.port, capacity)
		x.reads = append(x.reads, randomIn{from: from, get: in.All})
		return
	}
	in := In(s, name, from.port, capacity)
	x.reads = append(x.reads, randomIn{from: from, get: func(t *Task) []uint64 { return []uint64{in.Get(t)} }})
}

func (o *randomOut) split() *randomStage {
	if o.fan {
		return o.of
	}
	return o.of.split
}

// add adds a stage: the first ones split, the others are of any level, and read up to three outputs.
func (z *randomGraph) add(r *rand.Rand, k int, weights *randomOut) {
	x := &randomStage{name: fmt.Sprintf("s%d", k), level: []Level{Step, Batch, Batch, Sub, Sub}[r.IntN(5)]}
	splits := k == 0 || k == 1 && r.IntN(2) == 0
	var subs []*randomOut
	for _, o := range z.outs {
		if o.level == Sub {
			subs = append(subs, o)
		}
	}
	if splits {
		x.level = Batch
	}
	opts := []Option{At(x.level)}
	if splits || r.IntN(3) == 0 {
		opts = append(opts, Parallel(1+r.IntN(3)))
	} else {
		opts = append(opts, On(r.IntN(2), LaneKind(r.IntN(2))))
	}
	if x.level == Sub && r.IntN(2) == 0 {
		x.desc = true
		opts = append(opts, Descending())
	}
	s := z.stage(x, opts...)
	first := z.outs[0]
	if x.level == Sub {
		first = subs[r.IntN(len(subs))]
		x.split = first.split()
	}
	if x.level != Step || r.IntN(2) == 0 {
		z.read(r, s, x, first)
	}
	for range r.IntN(3) {
		o := z.outs[r.IntN(len(z.outs))]
		if !splits && !(x.level == Sub && o.level == Sub && o.split() != x.split) {
			z.read(r, s, x, o)
		}
	}
	if !splits && r.IntN(3) == 0 {
		in := Loop(s, "loop", weights.port, uint64(7))
		x.reads = append(x.reads, randomIn{from: weights, loop: true, get: func(t *Task) []uint64 { return []uint64{in.Get(t)} }})
	}
	var puts []func(*Task, uint64)
	out := &randomOut{name: "out", of: x, level: x.level}
	switch {
	case splits:
		o := Fan[uint64](s, "out")
		out.port, out.level, out.fan = o.Port, Sub, true
		puts = append(puts, func(t *Task, v uint64) {
			for u := range x.subs(t.Index) {
				o.Put(t, mixed(v, u))
			}
		})
	case x.level != Step && r.IntN(3) == 0:
		o := Final[uint64](s, "out")
		out.port, out.level, out.final = o.Port, Step, true
		puts = append(puts, func(t *Task, v uint64) {
			if z.last(x, t.Index) {
				o.Put(t, mixed(v, "out"))
			}
		})
	default:
		o := Out[uint64](s, "out")
		out.port = o.Port
		puts = append(puts, func(t *Task, v uint64) { o.Put(t, mixed(v, "out")) })
	}
	z.do(s, x, puts)
	z.outs = append(z.outs, out)
}

func (z *randomGraph) do(s *Stage, x *randomStage, puts []func(*Task, uint64)) {
	s.Do(func(t *Task) error {
		read := []any{x.name, t.Index}
		for _, in := range x.reads {
			read = append(read, in.get(t))
		}
		v, key := mixed(read...), fmt.Sprintf("%s(%v)", x.name, t.Index)
		z.mu.Lock()
		if _, twice := z.done[key]; twice {
			key += " again"
		}
		z.done[key] = v
		if t.lane != nil {
			z.order[t.where] = append(z.order[t.where], key)
		}
		fails := len(z.done) == z.broken
		z.mu.Unlock()
		if fails {
			return errBroken
		}
		for _, put := range puts {
			put(t, v)
		}
		return nil
	})
}

var errBroken = errors.New("broken")

// tasks are a stage's in a step.
func (z *randomGraph) tasks(s *randomStage, step int) (all []Index) {
	if s.level == Step {
		return []Index{stepIndex(step)}
	}
	for b := range z.batches[step] {
		at := batchIndex(step, b)
		if s.level == Batch {
			all = append(all, at)
			continue
		}
		for u := range s.split.subs(at) {
			all = append(all, at.sub(u))
		}
	}
	return all
}

// value is a task's by definition.
func (z *randomGraph) value(s *randomStage, at Index, known map[string]uint64) uint64 {
	key := fmt.Sprintf("%s(%v)", s.name, at)
	if v, ok := known[key]; ok {
		return v
	}
	read := []any{s.name, at}
	for _, in := range s.reads {
		var vs []uint64
		switch o := in.from; {
		case in.loop && at.Step == 0:
			vs = []uint64{7}
		case in.loop:
			vs = []uint64{z.output(o, stepIndex(at.Step-1), known)}
		case o.level <= s.level:
			vs = []uint64{z.output(o, at.at(o.level), known)}
		default:
			vs = []uint64{}
			of := &randomStage{level: o.level}
			if o.level == Sub {
				of.split = o.split()
			}
			for _, i := range z.tasks(of, at.Step) {
				if i.at(s.level) == at {
					vs = append(vs, z.output(o, i, known))
				}
			}
		}
		read = append(read, vs)
	}
	known[key] = mixed(read...)
	return known[key]
}

func (z *randomGraph) output(o *randomOut, at Index, known map[string]uint64) uint64 {
	switch {
	case o.of == nil:
		return mixed("batch", at)
	case o.fan:
		return mixed(z.value(o.of, at.at(Batch), known), at.Sub)
	case o.final:
		at = z.lastOf(o.of, at.Step)
	}
	return mixed(z.value(o.of, at, known), o.name)
}

// Random graphs compute what they are defined as, whatever their levels, splits, lanes and edges' capacities, in one order on each lane; and one of which a
// task fails ends with that.
func TestRandomGraphs(t *testing.T) {
	built := 0
	for seed := range uint64(80) {
		newPlan := func() (*randomGraph, *Plan, error) {
			r := rand.New(rand.NewPCG(seed, 8))
			z := newRandomGraph(r)
			p, err := z.g.Build(Devices(fakeDevice("a"), fakeDevice("b")), Workers(1+r.IntN(4)))
			return z, p, err
		}
		z, p, err := newPlan()
		if err != nil { // a split of what a split makes, say
			continue
		}
		built++
		if err := p.Run(t.Context()); err != nil {
			t.Fatalf("graph %d: %v", seed, err)
		}
		known, tasks := map[string]uint64{}, 0
		for step := range z.batches {
			for _, s := range z.stages {
				for _, at := range z.tasks(s, step) {
					tasks++
					if want, got := z.value(s, at, known), z.done[fmt.Sprintf("%s(%v)", s.name, at)]; got != want {
						t.Errorf("graph %d: %s(%v) is %x, want %x", seed, s.name, at, got, want)
					}
				}
			}
		}
		if tasks != len(z.done) {
			t.Errorf("graph %d: %d tasks have run, want %d", seed, len(z.done), tasks)
		}
		again, p, _ := newPlan()
		again.broken = 1 + tasks/2
		if err := p.Run(t.Context()); tasks > 0 && !errors.Is(err, errBroken) {
			t.Errorf("graph %d: a task fails: %v", seed, err)
		}
		for lane, tasks := range again.order {
			if all := z.order[lane]; len(tasks) > len(all) || strings.Join(tasks, " ") != strings.Join(all[:len(tasks)], " ") {
				t.Errorf("graph %d: %s has run %v, and before %v", seed, lane, tasks, all)
			}
		}
	}
	if built < 60 {
		t.Errorf("only %d graphs could be built", built)
	}
}
