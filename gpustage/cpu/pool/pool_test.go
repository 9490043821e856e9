package pool

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	for _, threads := range []int{-1, 0, 1, 2, 3, 8} {
		p := New(threads)
		if want := max(1, threads); p.Threads() != want {
			t.Errorf("New(%d) has %d threads", threads, p.Threads())
		}
		for n := range 40 {
			calls := make([]int, n) // plain: the race detector checks that Run waits, and that workers differ
			scratch, next := make([]int, p.Threads()), make([]int, p.Threads())
			p.Run(n, func(worker, i int) {
				if i < next[worker] {
					t.Errorf("%d threads, %d tasks: task %d is taken after task %d", threads, n, i, next[worker]-1)
				}
				next[worker] = i + 1
				calls[i]++
				scratch[worker]++
			})
			sum := 0
			for _, x := range scratch {
				sum += x
			}
			for i, c := range calls {
				if c != 1 || sum != n {
					t.Fatalf("%d threads, %d tasks: task %d ran %d times, %d tasks ran", threads, n, i, c, sum)
				}
			}
		}
		p.Close()
	}
}

// Many short regions, some after pauses in which workers fall asleep, with more and fewer threads than processors.
func TestManyRegions(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for procs := 1; procs <= 3; procs++ {
		runtime.GOMAXPROCS(procs)
		for _, threads := range []int{2, 4} {
			p := New(threads)
			sum := make([]int, 7)
			for r := range 1500 {
				if r%100 == 0 {
					time.Sleep(400 * time.Microsecond)
				}
				p.Run(len(sum), func(_, i int) { sum[i] += r })
			}
			for i, s := range sum {
				if want := 1500 * 1499 / 2; s != want {
					t.Errorf("%d threads on %d processors: task %d added up to %d, want %d", threads, procs, i, s, want)
				}
			}
			p.Close()
		}
	}
}

// Tasks that wait for each other need as many threads at the same time, asleep before or not.
func TestAtTheSameTime(t *testing.T) {
	for _, threads := range []int{2, 4} {
		p := New(threads)
		for _, asleep := range []bool{false, true} {
			for _, w := range p.workers {
				for asleep && !w.parked.Load() {
					time.Sleep(time.Millisecond)
				}
			}
			done := make(chan bool)
			go func() {
				var met sync.WaitGroup
				met.Add(threads)
				p.Run(threads, func(_, _ int) {
					met.Done()
					met.Wait()
				})
				close(done)
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%d threads, asleep: %t: some task is not run beside the others", threads, asleep)
			}
		}
		p.Close()
	}
}

// What comes true just before a goroutine sleeps, too late for its last look and too early for a wake-up, is seen.
func TestParker(t *testing.T) {
	k := newParker()
	done := make(chan bool)
	go func() {
		k.wait(false, k.parked.Load)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it sleeps, and nobody will wake it")
	}
	if k.parked.Load() || len(k.wake) > 0 {
		t.Error("it counts as asleep, or has a wake-up left")
	}
}

// A wake-up that comes late, of a region that is over, does not end the present one.
func TestWokenForNothing(t *testing.T) {
	p := New(2)
	defer p.Close()
	var met sync.WaitGroup
	met.Add(2)
	var ended atomic.Bool
	p.Run(2, func(worker, _ int) {
		met.Done()
		met.Wait()
		if worker == 0 {
			return
		}
		for !p.owner.parked.Load() {
			time.Sleep(time.Microsecond)
		}
		p.owner.unpark()
		time.Sleep(5 * time.Millisecond)
		ended.Store(true)
	})
	if !ended.Load() {
		t.Error("Run returned before a task had")
	}
}

func TestPanic(t *testing.T) {
	p := New(3)
	defer p.Close()
	boom := errors.New("boom")
	for bad := range 20 {
		var running atomic.Int32
		func() {
			defer func() {
				if got := recover(); got != boom {
					t.Errorf("recovered %v, want %v", got, boom)
				}
				if n := running.Load(); n != 0 {
					t.Errorf("%d tasks were running when Run panicked", n)
				}
			}()
			p.Run(20, func(_, i int) {
				running.Add(1)
				defer running.Add(-1)
				if i == bad {
					panic(boom)
				}
				time.Sleep(10 * time.Microsecond)
			})
			t.Error("Run returned")
		}()
	}
	var ran atomic.Int32
	p.Run(2, func(_, _ int) { ran.Add(1) })
	if ran.Load() != 2 {
		t.Error("the pool is of no use after a panic")
	}
}

// A task that ends its goroutine, as t.FailNow does, must not hang the pool or cost it a worker.
func TestGoexit(t *testing.T) {
	p := New(2)
	defer p.Close()
	for bad := range 2 {
		done := make(chan any, 1)
		go func() {
			defer func() { done <- recover() }()
			var met sync.WaitGroup
			met.Add(2)
			p.Run(2, func(worker, _ int) {
				met.Done()
				met.Wait()
				if worker == bad {
					runtime.Goexit()
				}
			})
		}()
		if got := <-done; got != ErrGoexit {
			t.Errorf("worker %d: recovered %v, want %v", bad, got, ErrGoexit)
		}
	}
	var met sync.WaitGroup
	met.Add(2)
	p.Run(2, func(_, _ int) { met.Done(); met.Wait() })
}

func TestNested(t *testing.T) {
	p := New(2)
	defer p.Close()
	var inner atomic.Int32
	p.Run(4, func(_, _ int) {
		p.Run(5, func(worker, _ int) {
			if worker != 0 {
				t.Errorf("worker %d", worker)
			}
			inner.Add(1)
		})
	})
	if inner.Load() != 20 {
		t.Errorf("%d inner tasks, want 20", inner.Load())
	}
}

func TestSharedByGoroutines(t *testing.T) {
	p := New(2)
	defer p.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 300 {
				calls := make([]int, 5)
				p.Run(5, func(_, i int) { calls[i]++ })
				for _, c := range calls {
					if c != 1 {
						t.Errorf("a task ran %d times", c)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestClose(t *testing.T) {
	workers := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "pool.(*Pool).work(")
	}
	for _, sleep := range []time.Duration{0, time.Millisecond} { // awake, asleep
		p := New(4)
		p.Run(8, func(_, _ int) {})
		time.Sleep(sleep)
		p.Close()
		p.Close()
		for wait := 0; workers() > 0; wait++ { // the goroutines have said so and are about to end
			if wait > 10_000 {
				t.Fatalf("%d workers after Close", workers())
			}
			time.Sleep(time.Millisecond)
		}
		n := 0
		p.Run(3, func(_, _ int) { n++ })
		if n != 3 {
			t.Errorf("%d tasks ran after Close, want 3", n)
		}
	}
}

// Idle workers must sleep.
func TestIdle(t *testing.T) {
	p := New(3)
	defer p.Close()
	p.Run(8, func(_, _ int) {})
	for wait := 0; ; wait++ {
		asleep := 0
		for _, w := range p.workers {
			if w.parked.Load() {
				asleep++
			}
		}
		if asleep == 2 {
			return
		}
		if wait > 2000 {
			t.Fatalf("%d of 2 idle workers sleep", asleep)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestNothingAllocated(t *testing.T) {
	p := New(2)
	defer p.Close()
	f := func(_, _ int) {}
	if n := testing.AllocsPerRun(100, func() { p.Run(4, f) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkForkJoin(b *testing.B) {
	for _, work := range []time.Duration{0, 10 * time.Microsecond, 200 * time.Microsecond} {
		b.Run(fmt.Sprint(work), func(b *testing.B) {
			p := New(2)
			defer p.Close()
			for b.Loop() {
				p.Run(2, func(_, _ int) {
					for start := time.Now(); time.Since(start) < work; {
					}
				})
			}
		})
	}
}

func ExamplePool_Run() {
	p := New(4)
	defer p.Close()
	squares := make([]int, 6)
	p.Run(len(squares), func(_, i int) { squares[i] = i * i })
	fmt.Println(squares)
	// Output: [0 1 4 9 16 25]
}
