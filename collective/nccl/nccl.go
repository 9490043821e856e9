//go:build linux && (amd64 || arm64)

package nccl

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
	"contraflow/collective/internal/remote"
	"contraflow/collective/internal/tcpstore"
	"contraflow/collective/launch"
	"contraflow/gpustage"
)

// Open joins a job and returns when all ranks have.
func Open(ctx context.Context, job launch.Job, opts ...Option) (collective.World, error) {
	o := options{deadline: collective.DefaultDeadline, library: os.Getenv("CONTRAFLOW_NCCL")}
	for _, f := range opts {
		f(&o)
	}
	lib, err := load(cmp.Or(o.library, "libnccl.so.2"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, collective.DefaultDeadline)
	defer cancel()
	c, err := rendezvous(ctx, job)
	if err != nil {
		return nil, err
	}
	c.Start, c.Deadline = collective.DefaultDeadline, o.deadline
	client, err := remote.Join(ctx, c)
	if err != nil {
		return nil, err
	}
	w := &watch{client: client, quit: make(chan struct{}), onDevice: o.onDevice, patience: abortTakes}
	w.tasks.Go(w.abortAll)
	open := func(ctx context.Context, m *remote.Member, share func([]byte) ([]byte, error)) (remote.Transport, error) {
		t := &transport{Member: m, lib: lib, watch: w}
		return t, t.open(ctx, share)
	}
	return remote.NewWorld(ctx, client, open, func(bool) error {
		close(w.quit)
		w.tasks.Wait()
		return nil
	})
}

// rendezvous tells a rank how to find rank 0, and makes rank 0 listen.
func rendezvous(ctx context.Context, job launch.Job) (c remote.Config, err error) {
	defer func() {
		if err != nil && c.Listener != nil {
			c.Listener.Close()
		}
	}()
	c = remote.Config{Rank: job.Rank, Size: job.Size, Token: job.Run, Addresses: []string{job.Master}}
	listen := ":0"
	if job.Size > 1 && !job.Store {
		_, port, err := net.SplitHostPort(job.Master)
		if err != nil {
			return c, fmt.Errorf("where ranks meet: %w", err)
		}
		listen = ":" + port
	}
	if job.Rank == 0 {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return c, fmt.Errorf("rank 0 can't listen where ranks meet, at %s: %w: set MASTER_PORT to a free port", job.Master, err)
		}
		c.Listener, c.Addresses = l, remote.Addresses(l)
	}
	if job.Size == 1 || !job.Store {
		return c, nil
	}
	// torchrun's agent has taken the port, for a store.
	s, err := tcpstore.Dial(ctx, job.Master)
	if err != nil {
		return c, fmt.Errorf("torchrun's store: %w", err)
	}
	defer s.Close()
	key := "contraflow/" + job.Run
	if job.Rank == 0 {
		return c, s.Set(key, strings.Join(c.Addresses, " "))
	}
	text, err := s.Get(ctx, key)
	c.Addresses = strings.Fields(text)
	return c, err
}

// watch is what a world does in the background: it aborts communicators when the job has failed, and sees to it that what runs on
// GPUs ends in time.
type watch struct {
	client   *remote.Client
	quit     chan struct{}
	tasks    sync.WaitGroup
	onDevice func() error  // may be nil
	patience time.Duration // with an abort, and with what it is to end

	mu    sync.Mutex
	comms []*transport
}

func (w *watch) add(t *transport) {
	w.mu.Lock()
	w.comms = append(w.comms, t)
	w.mu.Unlock()
	if w.client.Fate().Err() != nil { // abortAll may have passed
		t.abort()
	}
}

// abortAll waits for the job to fail, and aborts all communicators at once: NCCL's abort of one waits for what that one has on the stream (its
// commDestroySync), and ahead of that another's kernel may wait for a dead peer.
func (w *watch) abortAll() {
	select {
	case <-w.quit:
	case <-w.client.Fate().Done():
	}
	if w.client.Fate().Err() == nil {
		return
	}
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	var all sync.WaitGroup
	for _, t := range comms {
		all.Go(t.abort)
	}
	all.Wait()
}

// thread runs f on a thread of its own, on which this rank's device is current if f's argument is nil, and which ends with f. So are
// communicators made, aborted, finalized and destroyed. NCCL chooses the communicator's device by itself where it needs one, but then has
// the calling thread's back (commDestroySync and commCleanup in 2.18 to 2.23, ncclGroupEndInternal in 2.27): on a thread without a device that would be
// GPU 0, and a context on it, which takes hundreds of megabytes beside the rank that has this GPU.
func (w *watch) thread(f func(err error) error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: a thread with a device is not given back
		var err error
		if w.onDevice != nil {
			err = w.onDevice()
		}
		done <- f(err)
	}()
	return done
}

// abortTakes is how long is waited for an abort, and for calls on a GPU to end by it. NCCL promises no end of either.
const abortTakes = 10 * time.Second

// call is a collective under way on a GPU.
type call struct {
	event gpustage.Event
	seq   int
	what  string
	since time.Time
}

// transport is a communicator.
type transport struct {
	*remote.Member
	lib   *library
	watch *watch
	calls chan call // to oversee, in the stream's order

	mu   sync.Mutex
	comm uintptr // 0 once it is aborted or destroyed
}

// open makes the communicator, together with the group's other ranks.
func (t *transport) open(ctx context.Context, share func([]byte) ([]byte, error)) error {
	var unique id
	var mine []byte
	if t.Rank() == 0 {
		if r := ncclCall(t.lib.getUniqueID, uintptr(unsafe.Pointer(&unique))); r != success {
			return t.lib.failure("ncclGetUniqueId", r, 0)
		}
		mine = unsafe.Slice((*byte)(unsafe.Pointer(&unique)), unsafe.Sizeof(unique))
	}
	got, err := share(mine)
	if err != nil {
		return err
	}
	if len(got) != int(unsafe.Sizeof(unique)) {
		return fmt.Errorf("an id of %d bytes", len(got))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&unique)), len(got)), got)
	done := t.watch.thread(func(err error) error {
		if err != nil {
			return err
		}
		var comm uintptr
		if r := t.lib.initRank(&comm, int32(t.Size()), unique, int32(t.Rank()), nonBlocking()); r != success && r != inProgress {
			return t.lib.failure("ncclCommInitRankConfig", r, 0)
		}
		t.mu.Lock()
		t.comm = comm
		t.mu.Unlock()
		t.watch.add(t) // here, for nobody may wait for it any more: then it is aborted
		return nil
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		err = collective.Stopped(ctx)
	case <-t.Client.Fate().Done():
		err = t.Client.Fate().Err()
	}
	if err != nil {
		return err
	}
	for {
		ready, err := t.ready()
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return collective.Stopped(ctx)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// ready tells whether NCCL has done what it was asked to: on the host, that is; a GPU may have it before it.
func (t *transport) ready() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.comm == 0 {
		return false, t.Client.Fate().Err()
	}
	var state int32
	r := ncclCall(t.lib.asyncError, t.comm, uintptr(unsafe.Pointer(&state)))
	if r == success {
		r = result(state)
	}
	switch r {
	case success:
		return true, nil
	case inProgress:
		return false, nil
	}
	return false, t.lib.failure("NCCL", r, t.comm)
}

// abort ends everything that is under way.
func (t *transport) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.comm == 0 {
		return
	}
	comm := t.comm
	t.comm = 0
	done := t.watch.thread(func(error) error { // without a device, too: a GPU that waits for a dead peer is worse
		ncclCall(t.lib.abort, comm)
		return nil
	})
	select {
	case <-done:
	case <-time.After(t.watch.patience):
	}
}

// Close destroys the communicator. Nothing may be under way.
func (t *transport) Close() error {
	if t.calls != nil {
		close(t.calls)
	}
	if t.Client.Fate().Err() != nil {
		t.abort()
		return nil
	}
	if err := t.end("ncclCommFinalize", t.lib.finalize, false); err != nil {
		return err
	}
	for end := time.Now().Add(t.Client.Deadline); ; time.Sleep(100 * time.Microsecond) {
		if ready, err := t.ready(); ready || err != nil || time.Now().After(end) {
			break // destroyed or aborted below, whatever it is
		}
	}
	return t.end("ncclCommDestroy", t.lib.destroy, true)
}

// end makes one of the communicator's last calls.
func (t *transport) end(name string, f uintptr, last bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	comm := t.comm
	if comm == 0 { // aborted meanwhile
		return nil
	}
	if last {
		t.comm = 0
	}
	done := t.watch.thread(func(err error) error {
		if err != nil {
			return err
		}
		r := ncclCall(f, comm)
		if r == success || r == inProgress {
			return nil
		}
		if last {
			comm = 0 // what NCCL says about it can't be asked any more
		}
		return t.lib.failure(name, r, comm)
	})
	select {
	case err := <-done:
		return err
	case <-time.After(t.Client.Deadline):
		return fmt.Errorf("%s has not ended within %v", name, t.Client.Deadline)
	}
}

// ahead is how many calls the host may be ahead of its GPU: more than a step issues of resident parameters. Of streamed ones it issues some for each
// layer of each sub-batch; the host then waits here for the GPU, until oversee gives up what takes too long.
const ahead = 1024

// run issues NCCL calls, as a group, and returns when NCCL has enqueued them; on a processor, when they are done.
func (t *transport) run(c *engine.Call, issue func(comm, stream uintptr) result) error {
	stream := uintptr(0)
	q, later := c.Stream.(Queue)
	if later {
		stream = q.Handle()
	}
	if err := t.submit(stream, issue); err != nil {
		return err
	}
	if err := t.Wait(c, t.ready); err != nil {
		t.abort() // here too, and not only beside this: a thread of NCCL's may still be about to give the stream its kernel, and the stream may be closed next
		return err
	}
	if !later {
		return nil
	}
	if t.calls == nil {
		t.calls = make(chan call, ahead)
		t.watch.tasks.Go(t.oversee)
	}
	t.calls <- call{c.Stream.Record(), int(c.Seq), c.String(), time.Now()}
	return nil
}

func (t *transport) submit(stream uintptr, issue func(comm, stream uintptr) result) error {
	runtime.LockOSThread() // a group belongs to a thread, which asks the runtime about the stream (2.28: ncclPlannerSetCapturingGraph)
	defer runtime.UnlockOSThread()
	if t.watch.onDevice != nil {
		if err := t.watch.onDevice(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.comm == 0 {
		return t.Client.Fate().Err()
	}
	r := ncclCall(t.lib.groupStart)
	if r == success {
		r = issue(t.comm, stream)
	}
	if end := ncclCall(t.lib.groupEnd); r == success || r == inProgress {
		r = end
	}
	if r != success && r != inProgress {
		return t.lib.failure("NCCL", r, t.comm)
	}
	return nil
}

// oversee waits for each call on a GPU, and ends the job if one takes too long. What is under way when a job has failed ends by its abort, or is
// left to itself: nobody waits for ever.
func (t *transport) oversee() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var until time.Time // of a job that has failed
	for c := range t.calls {
		if !until.IsZero() && !time.Now().Before(until) {
			continue
		}
		done := make(chan struct{})
		go func() { // ends with the call
			_ = c.event.Sync() // its stream has the error as well
			close(done)
		}()
		if until.IsZero() {
			timer.Reset(t.Client.Deadline - time.Since(c.since))
			select {
			case <-done:
				continue
			case <-t.Client.Fate().Done():
			case <-timer.C:
				_ = t.Client.Late(t.Name, c.seq, c.what)
			}
			until = time.Now().Add(t.watch.patience)
		}
		timer.Reset(time.Until(until))
		select {
		case <-done:
		case <-timer.C:
		}
	}
}

// address is where a tensor lies.
func address(x gpustage.Tensor) (uintptr, error) {
	if p, ok := x.Mem.(Pointer); ok {
		return p.Pointer() + uintptr(x.Off*x.DType.Size()), nil
	}
	if _, ok := x.Mem.(*gpustage.HostMemory); !ok {
		return 0, fmt.Errorf("NCCL can't address %T", x.Mem)
	}
	switch x.DType.Size() {
	case 2:
		return uintptr(unsafe.Pointer(&gpustage.Slice[uint16](x)[0])), nil
	case 4:
		return uintptr(unsafe.Pointer(&gpustage.Slice[float32](x)[0])), nil
	default:
		return uintptr(unsafe.Pointer(&gpustage.Slice[float64](x)[0])), nil
	}
}

// message is one send or receive.
type message struct {
	f     uintptr
	at    uintptr
	count int
	peer  int
}

// messages lists what a rank sends to others, or receives from them.
func (t *transport) messages(list []message, f uintptr, tensors []gpustage.Tensor) ([]message, error) {
	for k, x := range tensors {
		if k == t.Rank() || x.Cols == 0 {
			continue
		}
		at, err := address(x)
		if err != nil {
			return nil, err
		}
		list = append(list, message{f, at, x.Cols, k})
	}
	return list, nil
}

// exchange sends and receives all at once.
func (t *transport) exchange(c *engine.Call, send, receive []gpustage.Tensor) error {
	list, err := t.messages(nil, t.lib.send, send)
	if err == nil {
		list, err = t.messages(list, t.lib.recv, receive)
	}
	if err != nil || len(list) == 0 {
		return err
	}
	kind := typeOf(c.Wire)
	err = t.run(c, func(comm, stream uintptr) result {
		for _, m := range list {
			if r := ncclCall(m.f, m.at, uintptr(m.count), kind, uintptr(m.peer), comm, stream); r != success && r != inProgress {
				return r
			}
		}
		return success
	})
	runtime.KeepAlive(send)
	runtime.KeepAlive(receive)
	return err
}

// AllToAll sends parts[k] to rank k.
func (t *transport) AllToAll(c *engine.Call, parts []gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil || t.Size() == 1 {
		return parts, err
	}
	views, err := into()
	if err != nil {
		return nil, err
	}
	views[t.Rank()] = parts[t.Rank()]
	return views, t.exchange(c, parts, views)
}

// Gather sends own to every rank.
func (t *transport) Gather(c *engine.Call, own gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil || t.Size() == 1 {
		return []gpustage.Tensor{own}, err
	}
	views, err := into()
	if err != nil {
		return nil, err
	}
	if even(views) {
		from, err := address(own)
		if err != nil {
			return nil, err
		}
		to, err := address(views[0])
		if err != nil {
			return nil, err
		}
		err = t.run(c, func(comm, stream uintptr) result {
			return ncclCall(t.lib.allGather, from, to, uintptr(own.Cols), typeOf(c.Wire), comm, stream)
		})
		runtime.KeepAlive(own)
		runtime.KeepAlive(views)
		return views, err
	}
	send := make([]gpustage.Tensor, t.Size())
	for k := range send {
		send[k] = own
	}
	receive := slices.Clone(views)
	views[t.Rank()] = own
	return views, t.exchange(c, send, receive)
}

// even tells whether parts lie where parts of one size would, as NCCL's own all-gather wants them.
func even(parts []gpustage.Tensor) bool {
	for k, p := range parts {
		if p.Cols == 0 || p.Mem != parts[0].Mem || p.Off != parts[0].Off+k*p.Cols {
			return false
		}
	}
	return true
}

// Broadcast makes x that of rank root.
func (t *transport) Broadcast(c *engine.Call, x gpustage.Tensor, root int) (gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil || t.Size() == 1 || x.Cols == 0 {
		return x, err
	}
	at, err := address(x)
	if err != nil {
		return x, err
	}
	err = t.run(c, func(comm, stream uintptr) result {
		return ncclCall(t.lib.broadcast, at, at, uintptr(x.Cols), typeOf(x.DType), uintptr(root), comm, stream)
	})
	runtime.KeepAlive(x)
	return x, err
}

// Release has nothing to give back.
func (t *transport) Release(*engine.Call) error { return nil }
