//go:build linux && (amd64 || arm64)

package nccl

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"contraflow/collective/internal/engine"
	"contraflow/collective/internal/remote"
)

// alone is a world of one rank whose communicators are what a test says, in a library of functions of this process.
func alone(t *testing.T, lib *library, comms int, onDevice func() error) (*watch, []*transport) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.Join(context.Background(), remote.Config{Size: 1, Start: time.Minute, Deadline: time.Minute, Addresses: []string{l.Addr().String()}, Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	w := &watch{client: client, quit: make(chan struct{}), onDevice: onDevice, patience: abortTakes}
	w.tasks.Go(w.abortAll)
	var all []*transport
	for k := range comms {
		x := &transport{Member: &remote.Member{Client: client, Name: "all ranks", Ranks: []int{0}}, lib: lib, watch: w, comm: uintptr(1 + k)}
		w.add(x)
		all = append(all, x)
	}
	return w, all
}

// Communicators end on threads on which the rank's device is current.
func TestEndsOnDevice(t *testing.T) {
	var mu sync.Mutex
	current := map[int]bool{} // by thread
	var without []string
	call := func(name string) uintptr {
		return purego.NewCallback(func(uintptr) uintptr {
			mu.Lock()
			defer mu.Unlock()
			if !current[unix.Gettid()] {
				without = append(without, name)
			}
			return uintptr(success)
		})
	}
	lib := &library{finalize: call("finalize"), destroy: call("destroy"), abort: call("abort"), asyncError: purego.NewCallback(func(_ uintptr, state *int32) uintptr {
		*state = int32(success)
		return uintptr(success)
	})}
	w, comms := alone(t, lib, 2, func() error {
		mu.Lock()
		defer mu.Unlock()
		current[unix.Gettid()] = true
		return nil
	})
	if err := comms[0].Close(); err != nil {
		t.Error(err)
	}
	w.client.Fate().Fail(0, errors.New("on purpose"))
	w.tasks.Wait()
	if comms[1].comm != 0 {
		t.Error("the communicator that was left has not been aborted")
	}
	if len(current) < 3 || len(without) > 0 {
		t.Errorf("the device was made current on %d threads; without it were called: %v", len(current), without)
	}
}

// So are collectives called: their caller may be on a thread of another device, or of none.
func TestCallsOnDevice(t *testing.T) {
	var current atomic.Bool
	var calls, without atomic.Int32
	call := purego.NewCallback(func() uintptr {
		calls.Add(1)
		if !current.Load() {
			without.Add(1)
		}
		return uintptr(success)
	})
	lib := &library{groupStart: call, groupEnd: call}
	w, comms := alone(t, lib, 1, func() error { current.Store(true); return nil })
	defer w.tasks.Wait()
	defer w.client.Fate().Fail(0, errors.New("the end"))
	if err := comms[0].submit(0, func(uintptr, uintptr) result { return ncclCall(call) }); err != nil || calls.Load() != 3 || without.Load() != 0 {
		t.Errorf("%d calls, %d without the device, error %v", calls.Load(), without.Load(), err)
	}
	comms[0].comm = 0 // there is nothing to abort
}

// NCCL's abort of a communicator waits for its kernels, which may be behind another's on the same stream: aborts of all must be under way
// at once.
func TestAbortsAtOnce(t *testing.T) {
	const n = 3
	var aborting atomic.Int32
	lib := &library{abort: purego.NewCallback(func(uintptr) uintptr {
		aborting.Add(1)
		for end := time.Now().Add(5 * time.Second); aborting.Load() < n && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		return uintptr(success)
	})}
	w, _ := alone(t, lib, n, nil)
	start := time.Now()
	w.client.Fate().Fail(0, errors.New("on purpose"))
	w.tasks.Wait()
	if took := time.Since(start); aborting.Load() != n || took > 4*time.Second {
		t.Errorf("%d of %d were aborted in %v: one waits for another", aborting.Load(), n, took)
	}
}

// never is a point that a stream does not come to before it is closed.
type never chan struct{}

func (n never) Sync() error { <-n; return nil }

// What neither ends nor can be aborted is left to itself, whether the job has failed by it or before: a world can be closed.
func TestEndsWithoutAbort(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"a peer fails": time.Minute, "it takes too long": 50 * time.Millisecond} {
		end := make(never)
		lib := &library{abort: purego.NewCallback(func(uintptr) uintptr { <-end; return uintptr(success) })}
		w, comms := alone(t, lib, 1, nil)
		w.patience, w.client.Deadline = 200*time.Millisecond, deadline
		x := comms[0]
		if err := w.client.Register(x.Name, x.Ranks); err != nil {
			t.Fatal(err)
		}
		x.calls = make(chan call, ahead)
		w.tasks.Go(x.oversee)
		for k := range ahead / 2 {
			x.calls <- call{end, k, "a call", time.Now()}
		}
		if deadline == time.Minute {
			w.client.Fate().Fail(0, errors.New("on purpose"))
		}
		closed := make(chan error, 1)
		go func() {
			<-w.client.Fate().Done()
			err := x.Close()
			w.tasks.Wait()
			closed <- err
		}()
		select {
		case err := <-closed:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: closing waits for what does not end", name)
		}
		close(end)
	}
}

// A communicator that is made when the job has failed, and whoever aborts the others has gone, is aborted as it comes.
func TestAbortsLate(t *testing.T) {
	var aborted atomic.Int32
	lib := &library{abort: purego.NewCallback(func(comm uintptr) uintptr { aborted.Store(int32(comm)); return uintptr(success) })}
	w, _ := alone(t, lib, 0, nil)
	w.client.Fate().Fail(0, errors.New("on purpose"))
	w.tasks.Wait()
	x := &transport{Member: &remote.Member{Client: w.client, Ranks: []int{0}}, lib: lib, watch: w, comm: 7}
	if w.add(x); aborted.Load() != 7 || x.comm != 0 {
		t.Errorf("communicator %d was aborted, and %d is left", aborted.Load(), x.comm)
	}
}

// A call that fails has been aborted when its caller hears of it, who may close the stream next.
func TestFailsAborted(t *testing.T) {
	var aborted atomic.Bool
	ok, text := purego.NewCallback(func() uintptr { return uintptr(success) }), purego.NewCallback(func(uintptr) uintptr { return 0 })
	lib := &library{
		groupStart: ok, groupEnd: ok, getErrorString: text, getLastError: text,
		asyncError: purego.NewCallback(func(_ uintptr, state *int32) uintptr { *state = 2; return uintptr(success) }),
		abort: purego.NewCallback(func(uintptr) uintptr {
			time.Sleep(50 * time.Millisecond)
			aborted.Store(true)
			return uintptr(success)
		}),
	}
	w, comms := alone(t, lib, 1, nil)
	defer w.tasks.Wait()
	if err := comms[0].run(&engine.Call{}, func(uintptr, uintptr) result { return success }); err == nil || !aborted.Load() {
		t.Errorf("aborted: %v, error %v", aborted.Load(), err)
	}
}

// Of a communicator that could not be destroyed NCCL is asked nothing more, as it may be gone; of one that could not be finalized it is.
func TestAsksNothingOfTheGone(t *testing.T) {
	var asked []uintptr
	fails, text := purego.NewCallback(func(uintptr) uintptr { return 3 }), purego.NewCallback(func(uintptr) uintptr { return 0 })
	lib := &library{finalize: fails, destroy: fails, getErrorString: text, getLastError: purego.NewCallback(func(comm uintptr) uintptr {
		asked = append(asked, comm)
		return 0
	})}
	w, comms := alone(t, lib, 1, nil)
	defer w.tasks.Wait()
	defer w.client.Fate().Fail(0, errors.New("the end"))
	for _, last := range []bool{false, true} {
		if err := comms[0].end("its last call", map[bool]uintptr{false: lib.finalize, true: lib.destroy}[last], last); err == nil {
			t.Errorf("last %v: no error", last)
		}
	}
	if !slices.Equal(asked, []uintptr{1, 0}) || comms[0].comm != 0 {
		t.Errorf("NCCL was asked about communicators %v, and %d is left", asked, comms[0].comm)
	}
}

// An id of another length than NCCL's, as of another build's rank 0, is an error.
func TestShortID(t *testing.T) {
	ok := purego.NewCallback(func(uintptr) uintptr { return uintptr(success) })
	w, comms := alone(t, &library{getUniqueID: ok, abort: ok}, 1, nil)
	defer w.tasks.Wait()
	defer w.client.Fate().Fail(0, errors.New("the end"))
	if err := comms[0].open(t.Context(), func(mine []byte) ([]byte, error) { return mine[:3], nil }); err == nil || err.Error() != "an id of 3 bytes" {
		t.Error(err)
	}
}

// A communicator that comes when its rank has given up waiting for it is aborted: NCCL would go on looking for peers.
func TestComesTooLate(t *testing.T) {
	come, aborted := make(chan struct{}), make(chan uintptr, 1)
	lib := &library{
		getUniqueID: purego.NewCallback(func(uintptr) uintptr { return uintptr(success) }),
		initRank: func(comm *uintptr, _ int32, _ id, _ int32, _ *config) result {
			<-come
			*comm = 9
			return inProgress
		},
		abort: purego.NewCallback(func(comm uintptr) uintptr { aborted <- comm; return uintptr(success) }),
	}
	w, _ := alone(t, lib, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := &transport{Member: &remote.Member{Client: w.client, Ranks: []int{0}}, lib: lib, watch: w}
	err := x.open(ctx, func(mine []byte) ([]byte, error) { return mine, nil })
	if err == nil {
		t.Fatal("it is open")
	}
	w.client.Fate().Fail(0, err)
	w.tasks.Wait()
	close(come)
	select {
	case comm := <-aborted:
		if comm != 9 {
			t.Errorf("communicator %d was aborted", comm)
		}
	case <-time.After(10 * time.Second):
		t.Error("it was not aborted")
	}
}
