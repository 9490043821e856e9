package local_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"contraflow/collective"
	"contraflow/collective/collectivetest"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
)

func run(t *testing.T, sizes []int, device func(rank int) (gpustage.Device, error)) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 100 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
	})
	collectivetest.Run(t, sizes, func(size int, deadline time.Duration) ([]collective.World, []gpustage.Device, error) {
		ds := make([]gpustage.Device, size)
		for r := range ds {
			d, err := device(r)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(func() { d.Close() })
			ds[r] = d
		}
		return local.New(size, local.Deadline(deadline)), ds, nil
	})
}

func TestConformance(t *testing.T) {
	run(t, []int{1, 2, 3, 4, 5, 8}, func(int) (gpustage.Device, error) { return ref.New(), nil })
}

func TestConformanceCPU(t *testing.T) {
	run(t, []int{2, 3}, func(int) (gpustage.Device, error) { return cpu.New(cpu.Threads(2)) })
}

// Memory that ranks can't lend each other travels through the host.
func TestConformanceApart(t *testing.T) {
	run(t, []int{1, 2, 3}, func(int) (gpustage.Device, error) { return collectivetest.Apart(ref.New()), nil })
}

func TestConformanceMixed(t *testing.T) {
	run(t, []int{2, 3}, func(rank int) (gpustage.Device, error) {
		if rank == 1 {
			return collectivetest.Apart(ref.New()), nil
		}
		return ref.New(), nil
	})
}

func TestRun(t *testing.T) {
	boom := errors.New("boom")
	err := local.Run(3, func(w collective.World) error {
		if w.Rank() == 1 {
			return boom
		}
		_, err := w.Exchange(context.Background(), nil)
		return err
	})
	var re *collective.RankError
	if !errors.As(err, &re) || re.Rank != 1 || re.Reason != "boom" || err.Error() != "rank 1: boom" || !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	// A goroutine that ends without returning takes the job down as well.
	err = local.Run(2, func(w collective.World) error {
		if w.Rank() == 1 {
			runtime.Goexit()
		}
		_, err := w.Exchange(context.Background(), nil)
		return err
	})
	if !errors.As(err, &re) || re.Rank != 1 {
		t.Errorf("%v", err)
	}
	for _, n := range []int{0, -3} {
		err := local.Run(n, func(collective.World) error { return nil })
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d ranks; want at least 1", n)) {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
}

func TestConnect(t *testing.T) {
	w := local.New(4)
	_, err := collective.Connect(context.Background(), w[0], collective.Mesh{Replicate: 3, Shard: 2})
	if err == nil || !strings.Contains(err.Error(), "needs 6 ranks, the job has 4") {
		t.Errorf("%v", err)
	}
	if _, err = collective.Connect(context.Background(), w[0], collective.Mesh{Replicate: -2, Shard: -2}); err == nil || !strings.HasPrefix(err.Error(), "a mesh of -2 x -2 ") {
		t.Errorf("%v", err)
	}
}

// Of several ranks that don't come the first is named, and the others beside it.
func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := local.New(4, local.Deadline(20*time.Millisecond))
		errs := make(chan error)
		for _, r := range []int{0, 2} {
			go func() {
				_, err := w[r].Exchange(context.Background(), nil)
				errs <- err
			}()
		}
		for range 2 {
			var re *collective.RankError
			if err := <-errs; !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, "within 20ms") || !strings.HasSuffix(re.Reason, "(missing: [1 3])") {
				t.Error(err)
			}
		}
	})
}

// Ranks free their memory as soon as they have heard that the job is over: others must have stopped reading it.
func TestMemoryAfterAbort(t *testing.T) {
	for range 20 {
		ws := local.New(4)
		done := make(chan error, 4)
		for r, w := range ws {
			go func() {
				d := ref.New()
				s, _ := d.OpenStream()
				x, err := gpustage.NewTensor(d, gpustage.F32, 1, 1<<20) // mapped, so a late reader crashes
				if err != nil {
					done <- err
					return
				}
				for w.Err() == nil {
					w.AllReduce(s, x, gpustage.F32)
				}
				done <- x.Mem.Free()
			}()
			if r == 3 {
				time.AfterFunc(10*time.Millisecond, func() { w.Abort(errors.New("enough")) })
			}
		}
		for range ws {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pinning is a device that has memory of the host for its copies, and counts what comes out.
type pinning struct {
	gpustage.Device
	pinned map[*gpustage.HostMemory]bool
	pins   int
	out    int
	in     func() // comes before a copy in
	err    error
}

func newPinning() *pinning {
	return &pinning{Device: collectivetest.Apart(ref.New()), pinned: map[*gpustage.HostMemory]bool{}, in: func() {}}
}

func (d *pinning) Pin(bytes int) (*gpustage.HostMemory, error) {
	d.pins++
	if d.err != nil {
		return nil, d.err
	}
	var m *gpustage.HostMemory
	m = gpustage.HostMemoryAt(make([]byte, bytes), func() error {
		delete(d.pinned, m)
		return nil
	})
	d.pinned[m] = true
	return m, nil
}

func (d *pinning) OpenStream() (gpustage.Stream, error) {
	s, err := d.Device.OpenStream()
	return pinningStream{s, d}, err
}

type pinningStream struct {
	gpustage.Stream
	d *pinning
}

func (s pinningStream) Device() gpustage.Device { return s.d }

func (s pinningStream) CopyOut(dst []byte, src gpustage.Tensor) {
	found := false
	for m := range s.d.pinned {
		lo, at := uintptr(unsafe.Pointer(&m.Data()[0])), uintptr(unsafe.Pointer(&dst[0]))
		found = found || lo <= at && at+uintptr(len(dst)) <= lo+uintptr(m.Bytes())
	}
	if !found {
		s.Fail(errors.New("a copy to other memory than its device's"))
	}
	s.d.out += len(dst)
	s.Stream.CopyOut(dst, src)
}

func (s pinningStream) CopyIn(dst gpustage.Tensor, src []byte) {
	s.d.in()
	s.Stream.CopyIn(dst, src)
}

// What others are to read goes through memory that the device has for it, each number once: not the part that a rank sums itself. The
// memory is given back, the groups' too.
func TestStaging(t *testing.T) {
	const n = 3000
	var ds [3]*pinning
	err := local.Run(len(ds), func(w collective.World) error {
		d := newPinning()
		ds[w.Rank()] = d
		s, err := d.OpenStream()
		if err != nil {
			return err
		}
		half, err := w.Split(t.Context(), w.Rank()/2)
		if err != nil {
			return err
		}
		for _, n := range []int{n / 10, n, n, n - 1, n} { // the memory grows, and stays
			x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
			if err != nil {
				return err
			}
			d.out = 0
			w.AllReduce(s, x, gpustage.F32)
		}
		sent := d.out
		x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
		if err != nil {
			return err
		}
		half.AllReduce(s, x, gpustage.BF16)
		if alone, out := half.Size() == 1, d.out-sent; out != 2*n && !alone || out != 0 && alone {
			return fmt.Errorf("%d bytes are copied out in a group of %d", out, half.Size())
		}
		if len(d.pinned) == 0 {
			return errors.New("no memory is left to be given back")
		}
		d.out = sent
		return s.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, d := range ds {
		if want := 4 * n; d.out != want { // two parts of three to be summed elsewhere, and one sum
			t.Errorf("rank %d copies out %d bytes, want %d", rank, d.out, want)
		}
		if want := []int{6, 6, 4}[rank]; d.pins != want { // two that take turns, of two sizes, and the pair's
			t.Errorf("rank %d asks %d times for memory, want %d", rank, d.pins, want)
		}
		if len(d.pinned) > 0 {
			t.Errorf("rank %d keeps %d pieces of memory", rank, len(d.pinned))
		}
	}
}

// Where there is no such memory the job ends with why.
func TestNoStaging(t *testing.T) {
	full := errors.New("no pinned memory")
	err := within(t, func() error {
		return local.Run(2, func(w collective.World) error {
			d := newPinning()
			if w.Rank() == 1 {
				d.err = full
			}
			s, err := d.OpenStream()
			if err != nil {
				return err
			}
			x, err := gpustage.NewTensor(d, gpustage.F32, 1, 10)
			if err != nil {
				return err
			}
			w.AllReduce(s, x, gpustage.F32)
			return s.Sync()
		})
	})
	var re *collective.RankError
	if !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, full.Error()) {
		t.Errorf("%v", err)
	}
}

// A rank that has waited for a reader as long as it waits for anything leaves, and the reader reads on: nothing is freed or written over.
func TestStagingOfReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws := local.New(2, local.Deadline(100*time.Millisecond))
		gather := func(r int, d *pinning, n int, v float64) error {
			s, err := d.OpenStream()
			if err != nil {
				return err
			}
			own, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
			if err != nil {
				return err
			}
			all, err := gpustage.NewTensor(d, gpustage.F32, 2, n)
			if err != nil {
				return err
			}
			s.(pinningStream).Stream.CopyIn(own, gpustage.Bytes(slices.Repeat([]float32{float32(v)}, n)))
			ws[r].AllGather(s, all, own, []int{1, 1}, gpustage.F32)
			return s.Sync()
		}
		lender, reader := newPinning(), newPinning()
		reads, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		reader.in = func() {
			close(reads)
			<-goOn
		}
		go func() {
			defer close(ended)
			if err := gather(1, reader, 64, 1); err == nil {
				t.Error("a reader that was too late has no error")
			}
		}()
		if err := gather(0, lender, 64, 1); err == nil || !strings.Contains(err.Error(), "still reads") {
			t.Errorf("the lender: %v", err)
		}
		<-reads
		for _, n := range []int{64, 128} {
			if err := gather(0, lender, n, 9); err == nil {
				t.Error("a job goes on that has failed")
			}
		}
		if err := ws[0].Close(); err != nil {
			t.Error(err)
		}
		if len(lender.pinned) == 0 {
			t.Error("the memory that is read was given back")
		}
		for m := range lender.pinned {
			if v := *(*float32)(unsafe.Pointer(&m.Data()[0])); v != 1 {
				t.Errorf("what is read has become %v", v)
			}
		}
		close(goOn)
		<-ended
	})
}

// hooked is a stream whose copies something else surrounds.
type hooked struct {
	gpustage.Stream
	around func(dst gpustage.Tensor, copies func())
}

func (s hooked) Copy(dst, src gpustage.Tensor) {
	s.around(dst, func() { s.Stream.Copy(dst, src) })
}

// gatherOf is an all-gather of two ranks in which each has n numbers of its own.
func gatherOf(w collective.World, n int, around func(dst gpustage.Tensor, copies func())) (own gpustage.Tensor, s gpustage.Stream, err error) {
	d := ref.New()
	if s, err = d.OpenStream(); err != nil {
		return
	}
	if own, err = gpustage.NewTensor(d, gpustage.F32, n, 1); err != nil {
		return
	}
	all, err := gpustage.NewTensor(d, gpustage.F32, 2*n, 1)
	if err != nil {
		return
	}
	s.Fill(own, float64(w.Rank()+1))
	w.AllGather(hooked{s, around}, all, own, []int{n, n}, gpustage.F32)
	return own, s, s.Sync()
}

// A rank that panics between lending and reading, and goes on in whoever catches it, leaves only when nobody reads its memory, and the
// other one does not wait for it.
func TestPanicWhileLent(t *testing.T) {
	for _, panics := range []bool{true, false} { // or ends its goroutine
		const n = 1 << 10 // of the Go heap, where the race detector sees it
		panicked := make(chan struct{})
		err := within(t, func() error {
			return local.Run(2, func(w collective.World) error {
				if w.Rank() == 0 {
					own, s, err := gatherOf(w, n, func(dst gpustage.Tensor, copies func()) {
						<-panicked
						time.Sleep(20 * time.Millisecond) // the other rank's memory would be something else by then
						copies()
						if v := gpustage.Slice[float32](dst)[0]; v != 1 && v != 2 {
							t.Errorf("what a rank has lent was read as %v", v)
						}
					})
					w.AllReduce(s, own, gpustage.F32)
					return errors.Join(err, s.Sync())
				}
				mine := gpustage.Tensor{}
				defer func() {
					if v := recover(); panics && v != "on purpose" {
						t.Errorf("the panic came out as %v", v)
					}
					theirs := gpustage.Slice[float32](mine) // somebody else's now
					for i := range theirs {
						theirs[i] = 9
					}
				}()
				d := ref.New()
				s, err := d.OpenStream()
				if err != nil {
					return err
				}
				if mine, err = gpustage.NewTensor(d, gpustage.F32, n, 1); err != nil {
					return err
				}
				s.Fill(mine, 2)
				all, err := gpustage.NewTensor(d, gpustage.F32, 2*n, 1)
				if err != nil {
					return err
				}
				w.AllGather(hooked{s, func(gpustage.Tensor, func()) {
					close(panicked)
					if panics {
						panic("on purpose")
					}
					runtime.Goexit()
				}}, all, mine, []int{n, n}, gpustage.F32)
				return nil
			})
		})
		word := "its goroutine ended"
		if panics {
			word = "panic: on purpose"
		}
		var re *collective.RankError
		if !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, word) || !strings.Contains(re.Reason, "all-gather") {
			t.Errorf("%v; want rank 1's %q in an all-gather", err, word)
		}
	}
}

// A rank that never ends reading keeps the others no longer than the deadline, and is named.
func TestReadsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		reading := make(chan struct{})
		ended := make(chan struct{})
		var once sync.Once
		ws := local.New(2, local.Deadline(200*time.Millisecond))
		go func() {
			defer close(ended)
			_, _, _ = gatherOf(ws[1], 64, func(_ gpustage.Tensor, copies func()) {
				once.Do(func() { close(reading) })
				<-release
				copies()
			})
		}()
		err := within(t, func() error {
			_, _, err := gatherOf(ws[0], 64, func(_ gpustage.Tensor, copies func()) {
				<-reading
				copies()
			})
			return err
		})
		var re *collective.RankError
		if !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(err.Error(), "rank [1] still reads") {
			t.Errorf("%v; want rank 1's, which still reads", err)
		}
		close(release)
		<-ended
	})
}

// within fails the test if f waits for ever.
func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
		return nil
	}
}

// A meeting that is complete when a waiting rank's context ends has taken place, and leaves nothing to the next.
func TestCancelledTooLate(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that both happen before the waiting rank runs
	background := context.Background()
	late := 0
	for range 50 {
		ws := local.New(2)
		ctx, cancel := context.WithCancel(background)
		first := make(chan error)
		go func() {
			_, err := ws[0].Exchange(ctx, nil)
			first <- err
		}()
		time.Sleep(time.Millisecond) // it waits
		cancel()
		_, err := ws[1].Exchange(background, nil)
		if (<-first == nil) != (err == nil) {
			t.Fatal("one rank has met the other, which has not")
		}
		if err != nil {
			continue
		}
		late++
		go func() {
			_, err := ws[0].Exchange(background, nil)
			first <- err
		}()
		time.Sleep(time.Millisecond)
		if _, err := ws[1].Exchange(background, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
	}
	if late == 0 {
		t.Error("it never happened")
	}
}

// A rank that leaves while it waits has come to that meeting: it takes place, and only the next one does not.
func TestLeavesWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws, background := local.New(2), context.Background()
		waits := make(chan error, 1)
		go func() {
			_, err := ws[1].Exchange(background, nil)
			waits <- err
		}()
		synctest.Wait()
		if err := ws[1].Close(); err != nil {
			t.Error(err)
		}
		if _, err := ws[0].Exchange(background, nil); err != nil {
			t.Error(err)
		}
		if err := <-waits; err != nil {
			t.Error(err)
		}
		var re *collective.RankError
		if _, err := ws[0].Exchange(background, nil); !errors.As(err, &re) || re.Rank != 1 {
			t.Errorf("%v; want that rank 1 has left", err)
		}
	})
}

// slow is a link on which everything takes a while.
type slow struct{}

func (slow) Time(collective.Call) time.Duration { return 100 * time.Millisecond }

// A rank that has agreed on a group, but leaves before it has it, is not waited for there.
func TestLeftBeforeGroup(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		ws := local.New(2, local.Pace(slow{}), local.Deadline(20*time.Second))
		type made struct {
			g   collective.Group
			err error
		}
		second := make(chan made)
		go func() {
			g, err := ws[1].Split(context.Background(), 0)
			second <- made{g, err}
		}()
		time.Sleep(5 * time.Millisecond) // it waits
		_, err := ws[0].Split(over, 0)   // which is agreed, and then stopped while the link is busy
		if ws[0].Err() != nil {
			<-second // it had not come yet
			continue
		}
		if err == nil {
			t.Fatal("the link was not waited for")
		}
		if err := ws[0].Close(); err != nil {
			t.Fatal(err)
		}
		m := <-second
		if m.err != nil {
			t.Fatal(m.err)
		}
		began := time.Now()
		_, err = m.g.Exchange(context.Background(), nil)
		var who *collective.RankError
		if !errors.As(err, &who) || who.Rank != 0 || !strings.Contains(err.Error(), "it has left the job") || time.Since(began) > 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ws[1].Close()
		return
	}
	t.Error("it never happened")
}

func Example() {
	err := local.Run(3, func(w collective.World) error {
		d := ref.New()
		s, err := d.OpenStream()
		if err != nil {
			return err
		}
		x, err := gpustage.NewTensor(d, gpustage.F32, 1, 2)
		if err != nil {
			return err
		}
		s.Fill(x, float64(w.Rank()+1))
		w.AllReduce(s, x, gpustage.F32)
		if err := s.Sync(); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Println(gpustage.Slice[float32](x))
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [6 6]
	// <nil>
}

func BenchmarkAllReduce(b *testing.B) {
	for _, c := range []struct{ ranks, n int }{{2, 1}, {2, 1 << 14}, {2, 1 << 20}, {2, 22 << 20}, {4, 1}, {4, 1 << 20}} {
		b.Run(fmt.Sprintf("%d ranks/%d", c.ranks, c.n), func(b *testing.B) {
			b.SetBytes(int64(4 * c.n))
			err := local.Run(c.ranks, func(w collective.World) error {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				d, err := cpu.New(cpu.Threads(1))
				if err != nil {
					return err
				}
				defer d.Close()
				s, err := d.OpenStream()
				if err != nil {
					return err
				}
				x, err := gpustage.NewTensor(d, gpustage.F32, 1, c.n)
				if err != nil {
					return err
				}
				w.AllReduce(s, x, gpustage.F32)
				if w.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					w.AllReduce(s, x, gpustage.F32)
				}
				return s.Sync()
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
