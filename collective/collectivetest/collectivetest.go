// Package collectivetest is the conformance suite of package collective: a new World is done when it passes.
//
// A case is what one rank does. Every rank makes the contributions of all from (rank, salt, index), so it knows by itself
// what must come out, from plain loops that share nothing with the code under test. Sums are compared bit by bit with
// those taken in the order of ranks.
//
// Ranks may be goroutines or processes: [Run] starts goroutines; a launcher of processes calls [Case.Run] in each. Cases that
// end the job ([Case.Ends]) need a world of their own, the others may follow each other in one.
package collectivetest

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/gpustage"
)

// Case is one test, run by every rank.
type Case struct {
	Name string
	Ends bool // the job, on purpose; how is part of the test
	Late bool // which ends by its deadline
	Min  int  // the least ranks it makes sense with
	run  func(r *rank)
}

// Patience is the deadline to give to the worlds of cases that end the job. A World must report within Patience + Slack.
const Patience = time.Second

// Slack is how long news of a failure may take to reach a rank.
const Slack = 2 * time.Second

// Cases is the suite.
func Cases() []Case {
	return []Case{
		{Name: "AllGather", run: testAllGather},
		{Name: "ReduceScatter", run: testReduceScatter},
		{Name: "AllReduce", run: testAllReduce},
		{Name: "Broadcast", run: testBroadcast},
		{Name: "Chunks", run: testChunks},
		{Name: "Exchange", run: testExchange},
		{Name: "Groups", run: testGroups},
		{Name: "AtOnce", run: testAtOnce},
		{Name: "Mesh", run: testMesh},
		{Name: "Traffic", run: testTraffic},
		{Name: "Random", run: testRandom},
		{Name: "DeadlineData", Ends: true, Late: true, Min: 2, run: testDeadlineData},
		{Name: "DeadlineExchange", Ends: true, Late: true, Min: 2, run: testDeadlineExchange},
		{Name: "Cancel", Ends: true, Min: 2, run: testCancel},
		{Name: "CancelCause", Ends: true, Min: 2, run: testCancelCause},
		{Name: "AbortData", Ends: true, Min: 2, run: testAbortData},
		{Name: "AbortExchange", Ends: true, Min: 2, run: testAbortExchange},
		{Name: "MismatchRows", Ends: true, Min: 2, run: testMismatchRows},
		{Name: "MismatchOp", Ends: true, Min: 2, run: testMismatchOp},
		{Name: "MismatchSplit", Ends: true, Min: 2, run: testMismatchSplit},
		{Name: "Refused", Ends: true, Min: 2, run: testRefused},
		{Name: "FailedStream", Ends: true, Min: 2, run: testFailedStream},
		{Name: "Left", Ends: true, Min: 2, run: testLeft},
		{Name: "LeftBefore", Ends: true, Min: 2, run: testLeftBefore},
		{Name: "LeftExchange", Ends: true, Min: 2, run: testLeftExchange},
	}
}

// Open makes the worlds of as many ranks, and a device for each.
type Open func(size int, deadline time.Duration) ([]collective.World, []gpustage.Device, error)

// Run runs every case with goroutines as ranks, in worlds of the given sizes. Cases that end the job mostly wait, so they
// run side by side: those that end by a deadline, before which all have to meet, without the others, and of these, which have a minute to
// meet but hear of the end within Slack, a dozen.
func Run(t *testing.T, sizes []int, open Open) {
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			for _, c := range Cases() {
				if !c.Ends && size >= c.Min {
					t.Run(c.Name, func(t *testing.T) { c.goroutines(t, size, time.Minute, open) })
				}
			}
		})
	}
	t.Run("endings", func(t *testing.T) {
		for _, late := range []bool{true, false} {
			deadline := time.Minute
			if late {
				deadline = Patience
			}
			var wait sync.WaitGroup
			running := make(chan struct{}, 12)
			for _, size := range sizes {
				for _, c := range Cases() {
					if c.Ends && c.Late == late && size >= c.Min {
						running <- struct{}{}
						wait.Go(func() {
							defer func() { <-running }()
							c.goroutines(t, size, deadline, open)
						})
					}
				}
			}
			wait.Wait()
		}
	})
}

func (c Case) goroutines(t *testing.T, size int, deadline time.Duration, open Open) {
	worlds, devices, err := open(size, deadline)
	if err != nil {
		t.Error(err)
		return
	}
	errs := make([]error, size)
	var wait sync.WaitGroup
	for r, w := range worlds {
		wait.Go(func() { errs[r] = c.Run(w, devices[r]) })
	}
	wait.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("%d ranks, rank %d: %v", size, r, err)
		}
	}
	for r, w := range worlds { // a world may wait for the others to close
		wait.Go(func() { errs[r] = w.Close() })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("closing %d ranks: %v", size, err)
	}
}

// rank is one rank's side of a case. The first thing found wrong ends it.
type rank struct {
	collective.World
	device gpustage.Device
	s      gpustage.Stream
}

type found struct{ err error }

func (f found) String() string { return f.err.Error() }

// Run runs the case as one rank. A rank that finds something wrong ends the job.
func (c Case) Run(w collective.World, d gpustage.Device) (err error) {
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	defer s.Close()
	r := &rank{World: w, device: d, s: s}
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(found)
			if !ok {
				panic(p)
			}
			err = fmt.Errorf("%s: %w", c.Name, f.err)
			w.Abort(err)
		}
	}()
	c.run(r)
	if !c.Ends {
		r.sync("at the end")
	}
	return nil
}

func (r *rank) fail(format string, args ...any) { panic(found{fmt.Errorf(format, args...)}) }

func (r *rank) ok(err error, what string, args ...any) {
	if err != nil {
		r.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

func (r *rank) sync(what string, args ...any) {
	r.ok(r.s.Sync(), what, args...)
	r.ok(r.Err(), what, args...)
}

// ended checks that the job has ended by a rank's fault, with words of its reason.
func (r *rank) ended(err error, rank int, words ...string) {
	var re *collective.RankError
	switch {
	case err == nil:
		err = r.Err()
		fallthrough
	case errors.As(err, &re):
	}
	if !errors.As(err, &re) {
		r.fail("the error is %v (%T); want a RankError of rank %d", err, err, rank)
	}
	if rank >= 0 && re.Rank != rank {
		r.fail("the error blames rank %d; want rank %d: %v", re.Rank, rank, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.fail("the error does not say %q: %v", w, err)
		}
	}
	if r.Err() == nil {
		r.fail("Err is nil after %v", err)
	}
}

// within checks that what ends the job is known in time.
func (r *rank) within(start time.Time, limit time.Duration) {
	if d := time.Since(start); d > limit {
		r.fail("it took %v; want at most %v", d, limit)
	}
}

// value is element i of a rank's contribution: magnitudes from 2^-6 to 2^6, so that sums depend on their order.
func value(rank, salt, i int) float64 {
	z := uint64(rank)*0x9E3779B97F4A7C15 ^ uint64(salt)*0xBF58476D1CE4E5B9 ^ uint64(i)*0x94D049BB133111EB
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	z ^= z >> 31
	v := float64(int64(z)>>11) / (1 << 52) // -1 to 1
	return math.Ldexp(v, int(z%13)-6)
}

// contribution is n elements of a rank, as a type holds them.
func contribution(rank, salt, n int, t gpustage.DType) []float64 {
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = as(t, value(rank, salt, i))
	}
	return vs
}

// as rounds to a type.
func as(t gpustage.DType, v float64) float64 {
	switch t {
	case gpustage.F32:
		return float64(float32(v))
	case gpustage.BF16:
		return float64(gpustage.RoundBF16(float32(v)))
	}
	return v
}

// guard is how many elements around a tensor must stay as they are.
const guard = 9

// room is a tensor with guards.
type room struct {
	gpustage.Tensor
	all gpustage.Tensor
}

func (r *rank) room(t gpustage.DType, rows, cols int) room {
	all, err := gpustage.NewTensor(r.device, t, 1, rows*cols+2*guard)
	r.ok(err, "a tensor")
	vs := make([]float64, all.Len())
	for i := range vs {
		vs[i] = 1000 + float64(i%7)
	}
	r.put(all, vs)
	x := all
	x.Off, x.Rows, x.Cols, x.Stride = guard, rows, cols, cols
	return room{x, all}
}

func (r *rank) put(x gpustage.Tensor, vs []float64) {
	if len(vs) == 0 {
		return
	}
	if x.DType == gpustage.F64 {
		r.s.CopyIn(x, gpustage.Bytes(vs))
		return
	}
	f := make([]float32, len(vs))
	for i, v := range vs {
		f[i] = float32(v)
	}
	r.s.CopyIn(x, gpustage.Bytes(f))
}

func (r *rank) get(x gpustage.Tensor) []float64 {
	vs := make([]float64, x.Len())
	if len(vs) == 0 {
		return vs
	}
	if x.DType == gpustage.F64 {
		r.s.CopyOut(gpustage.Bytes(vs), x)
		r.sync("reading a result")
		return vs
	}
	f := make([]float32, len(vs))
	r.s.CopyOut(gpustage.Bytes(f), x)
	r.sync("reading a result")
	for i, v := range f {
		vs[i] = float64(v)
	}
	return vs
}

// check compares a result, and its guards, and frees it.
func (r *rank) check(x room, want []float64, what string, args ...any) {
	all := r.get(x.all)
	for i, v := range all {
		k := i - guard
		w := 1000 + float64(i%7)
		if k >= 0 && k < len(want) {
			w = want[k]
		}
		if math.Float64bits(v) != math.Float64bits(w) {
			r.fail("%s: element %d of %d is %v; want %v", fmt.Sprintf(what, args...), k, len(want), v, w)
		}
	}
	r.ok(x.Mem.Free(), "freeing")
}
