// Package pool runs the parts of an operation on several threads and waits for them: fork and join, in microseconds.
//
// A training step on a processor is hundreds to thousands of such regions of some 100 us. Starting goroutines or sending
// on channels costs each of them up to 100 us, as the operating system has to wake a thread; a worker that still looks
// for the next region, because the last one ended just now, starts within one. So workers look for work for a while
// (spin) before they sleep (park), and so does the caller of Run for the end of a region. Idle workers sleep: a pool that
// isn't used takes no time.
//
// The tasks of a region are numbers. Who takes which is decided as they go, so that a thread that the operating system
// has taken away holds up no more than its own task; results must not depend on it.
//
// A region is one word, state: its number, and how many tasks are left to take. A worker takes one by lowering the word
// with a compare-and-swap, so a worker that comes late can neither take from a region that is over nor mistake one
// region for another: it finds nothing left, or helps with the present one. The region's other fields are written before
// state is, and read only by those who have taken a task, without which the region can't end.
package pool

import (
	"errors"
	"math"
	"runtime"
	"sync/atomic"
)

// Pool is a number of threads that run tasks together: the goroutine that calls Run, and workers.
type Pool struct {
	state atomic.Uint64 // region number << 32 | tasks not taken yet
	_     [56]byte      // apart: state and left are what all threads write
	left  atomic.Int64  // tasks of the region that aren't done
	_     [56]byte
	busy  atomic.Bool // Run is at work
	crowd atomic.Bool // there are more threads than processors: see parker.wait

	// The region. Written by Run before state, read after taking a task.
	tasks int
	f     func(worker, i int)
	fault atomic.Pointer[fault]

	owner   *parker // the caller of Run
	workers []*parker
	closed  atomic.Bool
	ended   chan struct{} // gets one for each worker that has ended
}

// fault is a panic in a task.
type fault struct{ value any }

// ErrGoexit is what Run panics with if a task ended a worker's goroutine by runtime.Goexit, as testing's FailNow does.
var ErrGoexit = errors.New("pool: a task called runtime.Goexit")

// New makes a pool of so many threads, at least 1. It starts threads-1 workers, which live until Close.
func New(threads int) *Pool {
	p := &Pool{owner: newParker(), ended: make(chan struct{}, max(1, threads))}
	for range threads - 1 {
		p.workers = append(p.workers, newParker())
	}
	for i := range p.workers {
		go p.work(i + 1)
	}
	return p
}

// Threads is the number of threads that run tasks: worker, in Run's f, is less than that.
func (p *Pool) Threads() int { return len(p.workers) + 1 }

// Run calls f(worker, i) once for each i from 0 to n-1, on all threads of the pool, and returns when all have returned.
// Tasks are taken in the order of i. Calls of f that run at the same time have different workers (0 is the caller), so f
// may use scratch memory that it chooses by worker; the memory must belong to this call of Run, as the workers of another
// have the same numbers.
//
// If tasks panic, Run panics with the value of one of them once no task is running; others may have been left out.
//
// While a pool runs tasks its threads are taken: a Run from within a task, or from another goroutine, does all its tasks
// itself, as worker 0. So does Run after Close.
func (p *Pool) Run(n int, f func(worker, i int)) {
	alone := n <= 1 || int64(n) > math.MaxUint32 || len(p.workers) == 0 || p.closed.Load()
	if alone || !p.busy.CompareAndSwap(false, true) {
		for i := range n {
			f(0, i)
		}
		return
	}
	p.tasks, p.f = n, f
	p.crowd.Store(runtime.GOMAXPROCS(0) < p.Threads())
	p.left.Store(int64(n))
	p.state.Store((p.state.Load()>>32+1)<<32 | uint64(n))
	for _, w := range p.workers[:min(n-1, len(p.workers))] {
		w.unpark()
	}
	defer p.join() // also if a task here ends the goroutine
	for p.runTask(0) {
	}
}

// join ends a region.
func (p *Pool) join() {
	for p.runTask(0) {
	}
	for p.left.Load() != 0 {
		p.owner.wait(p.crowd.Load(), func() bool { return p.left.Load() == 0 })
	}
	p.f = nil
	bad := p.fault.Swap(nil)
	p.busy.Store(false)
	if bad != nil {
		panic(bad.value)
	}
}

// runTask takes a task and runs it. It returns false if there is none.
func (p *Pool) runTask(worker int) bool {
	for {
		s := p.state.Load()
		rest := int(uint32(s))
		if rest == 0 {
			return false
		}
		if p.state.CompareAndSwap(s, s-1) {
			p.do(worker, p.tasks-rest)
			return true
		}
	}
}

func (p *Pool) do(worker, i int) {
	returned := false
	defer func() {
		if !returned {
			value := recover()
			if value == nil {
				value = ErrGoexit
			}
			p.fault.CompareAndSwap(nil, &fault{value})
		}
		if p.left.Add(-1) == 0 {
			p.owner.unpark()
		}
	}()
	if p.fault.Load() == nil {
		p.f(worker, i)
	}
	returned = true
}

// work is a worker's life.
func (p *Pool) work(worker int) {
	closed := false
	defer func() {
		if closed {
			p.ended <- struct{}{}
		} else {
			go p.work(worker) // a task has ended this goroutine
		}
	}()
	for {
		if p.runTask(worker) {
			continue
		}
		if p.closed.Load() {
			closed = true
			return
		}
		p.workers[worker-1].wait(p.crowd.Load(), func() bool {
			return uint32(p.state.Load()) != 0 || p.closed.Load()
		})
	}
}

// Close ends the workers and waits until they have. It must not be called while Run runs; closing again does nothing.
func (p *Pool) Close() {
	if p.closed.Swap(true) {
		return
	}
	for _, w := range p.workers {
		w.unpark()
	}
	for range p.workers {
		<-p.ended
	}
}
