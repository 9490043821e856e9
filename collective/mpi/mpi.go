//go:build mpi

package mpi

/*
#include <mpi.h>
#include <stdlib.h>

static MPI_Comm world(void) { return MPI_COMM_WORLD; }
static int start(int *provided) {
	int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, provided);
	// Requests that fail blame this communicator, whatever their own.
	return rc == MPI_SUCCESS ? MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) : rc;
}
static int share(void *p, int n) { return MPI_Bcast(p, n, MPI_BYTE, 0, MPI_COMM_WORLD); }
static int among(const int *ranks, int n, int tag, MPI_Comm *comm) {
	MPI_Group all, some;
	int rc = MPI_Comm_group(MPI_COMM_WORLD, &all);
	if (rc == MPI_SUCCESS && (rc = MPI_Group_incl(all, n, ranks, &some)) == MPI_SUCCESS) {
		rc = MPI_Comm_create_group(MPI_COMM_WORLD, some, tag, comm);
		MPI_Group_free(&some);
	}
	if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
	MPI_Group_free(&all);
	return rc;
}
static MPI_Datatype type(int size) { return size == 2 ? MPI_UINT16_T : size == 4 ? MPI_FLOAT : MPI_DOUBLE; }
static int alltoall(const void *s, const int *sn, const int *sat, void *r, const int *rn, const int *rat, int size, MPI_Comm c, MPI_Request *q) {
	return MPI_Ialltoallv(s, sn, sat, type(size), r, rn, rat, type(size), c, q);
}
static int gather(void *r, const int *rn, const int *rat, int size, MPI_Comm c, MPI_Request *q) {
	return MPI_Iallgatherv(MPI_IN_PLACE, 0, type(size), r, rn, rat, type(size), c, q);
}
static int broadcast(void *p, int n, int size, int root, MPI_Comm c, MPI_Request *q) {
	return MPI_Ibcast(p, n, type(size), root, c, q);
}
static int done(MPI_Request *q, int *flag) { return MPI_Test(q, flag, MPI_STATUS_IGNORE); }
*/
import "C"

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"unsafe"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
	"contraflow/collective/internal/remote"
	"contraflow/collective/launch"
	"contraflow/gpustage"
)

// Available tells whether this program was built with MPI.
const Available = true

// ErrUnavailable is Open's error in a program that was built without MPI.
var ErrUnavailable = errors.New("this program was built without MPI")

// failure is what MPI says about a return code.
func failure(what string, code C.int) error {
	if code == C.MPI_SUCCESS {
		return nil
	}
	text := (*C.char)(C.malloc(C.MPI_MAX_ERROR_STRING))
	defer C.free(unsafe.Pointer(text))
	var n C.int
	C.MPI_Error_string(code, text, &n)
	return fmt.Errorf("%s: %s", what, C.GoStringN(text, n))
}

// opened says that this process has started MPI, which can be done once.
var opened atomic.Bool

// Open starts MPI and returns when all ranks have. A process can do so once.
func Open(ctx context.Context, opts ...Option) (collective.World, error) {
	if opened.Swap(true) {
		return nil, errors.New("MPI has been started before; a process can do so once")
	}
	o := options{deadline: collective.DefaultDeadline}
	for _, f := range opts {
		f(&o)
	}
	ctx, cancel := context.WithTimeout(ctx, collective.DefaultDeadline)
	defer cancel()
	var c remote.Config
	started, finalize := make(chan error, 1), make(chan chan error)
	go func() { // MPI is ended by the thread that has started it
		runtime.LockOSThread()
		var err error
		c, err = start()
		started <- err
		if err == nil {
			reply := <-finalize
			reply <- failure("MPI_Finalize", C.MPI_Finalize())
		}
	}()
	err := patiently(ctx, nil, func() error { return <-started })
	if err != nil {
		return nil, fmt.Errorf("starting MPI: %w", err)
	}
	c.Start, c.Deadline = collective.DefaultDeadline, o.deadline
	client, err := remote.Join(ctx, c)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context, m *remote.Member, _ func([]byte) ([]byte, error)) (remote.Transport, error) {
		t := &transport{Member: m}
		return t, patiently(ctx, client, t.open)
	}
	w, err := remote.NewWorld(ctx, client, open, func(failed bool) error {
		if failed {
			return nil
		}
		return within(client, "MPI_Finalize", func() error {
			reply := make(chan error)
			finalize <- reply
			return <-reply
		})
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// patiently runs what MPI blocks in. If the context ends first, or the job, the call stays behind until the process ends.
func patiently(ctx context.Context, c *remote.Client, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	var failed <-chan struct{}
	if c != nil {
		failed = c.Fate().Done()
	}
	select {
	case err := <-done:
		return err
	case <-failed:
		return c.Fate().Err()
	case <-ctx.Done():
		return collective.Stopped(ctx)
	}
}

// within is for what MPI blocks in at the end, where a rank that dies after its farewell is no news any more.
func within(c *remote.Client, what string, f func() error) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.Deadline, fmt.Errorf("%s has not ended within %v", what, c.Deadline))
	defer cancel()
	return patiently(ctx, c, f)
}

// start initializes MPI and tells all ranks where rank 0 listens.
func start() (remote.Config, error) {
	var c remote.Config
	var provided, rank, size C.int
	job, unclear := launch.FromEnvironment(os.Getenv)
	if unclear == nil && needsPMIx && job.Launcher == "Slurm" && job.Size > 1 && job.Rank == 0 && os.Getenv("PMIX_RANK") == "" {
		// Open MPI ends the process here and asks for another Open MPI. But one may have been built for Slurm's older ways: no error.
		fmt.Fprintln(os.Stderr, "contraflow: srun has not told MPI how its processes find each other (PMIX_RANK is not set). If MPI does not start now, try srun --mpi=pmix; srun --mpi=list tells what this Slurm has")
	}
	if err := failure("MPI_Init_thread", C.start(&provided)); err != nil {
		return c, err
	}
	if provided != C.MPI_THREAD_MULTIPLE {
		return c, fmt.Errorf("this MPI allows calls from one thread at a time (level %d); contraflow needs MPI_THREAD_MULTIPLE", provided)
	}
	C.MPI_Comm_rank(C.world(), &rank)
	C.MPI_Comm_size(C.world(), &size)
	c.Rank, c.Size = int(rank), int(size)
	if unclear == nil {
		if err := job.Check("the MPI that this program is linked to", c.Size); err != nil {
			return c, err
		}
	}
	c.Token = rand.Text()
	const room = 4096
	message := make([]byte, room)
	if rank == 0 {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			return c, err
		}
		c.Listener = l
		copy(message, c.Token+" "+strings.Join(remote.Addresses(l), " "))
	}
	if err := failure("MPI_Bcast", C.share(unsafe.Pointer(&message[0]), room)); err != nil {
		return c, err
	}
	text := strings.TrimRight(string(message), "\x00")
	if len(text) == room {
		text = text[:strings.LastIndexByte(text, ' ')]
	}
	fields := strings.Fields(text)
	c.Token, c.Addresses = fields[0], fields[1:]
	return c, nil
}

// transport is a communicator.
type transport struct {
	*remote.Member
	comm C.MPI_Comm
	ints [4]*C.int // counts and displacements, in C memory: MPI reads them until an operation is done
	pins runtime.Pinner
}

// tags number the communicators, so that two that are made at the same time can't be mistaken for each other.
var tags atomic.Int32

func (t *transport) open() error {
	ranks := make([]C.int, t.Size())
	for k, r := range t.Ranks {
		ranks[k] = C.int(r)
	}
	tag := 1 + tags.Add(1)%32000 // MPI promises no more
	if err := failure("MPI_Comm_create_group", C.among(&ranks[0], C.int(len(ranks)), C.int(tag), &t.comm)); err != nil {
		return err
	}
	for k := range t.ints {
		t.ints[k] = (*C.int)(C.calloc(C.size_t(t.Size()), C.sizeof_int))
	}
	return nil
}

// Close frees the communicator, unless the job has failed.
func (t *transport) Close() error {
	if t.Client.Fate().Err() != nil {
		return nil
	}
	for _, p := range t.ints {
		C.free(unsafe.Pointer(p))
	}
	return within(t.Client, "MPI_Comm_free", func() error { return failure("MPI_Comm_free", C.MPI_Comm_free(&t.comm)) })
}

// lay writes where tensors lie behind the first of them, and returns its address. All views of one allocation.
func (t *transport) lay(parts []gpustage.Tensor, skip int, counts, offsets *C.int) (unsafe.Pointer, error) {
	n, at := unsafe.Slice(counts, t.Size()), unsafe.Slice(offsets, t.Size())
	var base unsafe.Pointer
	first := 0
	for k, x := range parts {
		n[k], at[k] = 0, 0
		if x.Cols == 0 || k == skip {
			continue
		}
		p, err := address(x)
		if err != nil {
			return nil, err
		}
		if base == nil {
			base, first = p, x.Off
		}
		if n[k], err = count(x.Cols); err != nil {
			return nil, err
		}
		if at[k], err = count(x.Off - first); err != nil {
			return nil, err
		}
	}
	if base != nil {
		t.pins.Pin(base)
	}
	return base, nil
}

// count is a number of elements, or of those before them, as MPI takes it.
func count(n int) (C.int, error) {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0, fmt.Errorf("MPI counts up to 2^31-1 elements in a message, and here are %d: mesh.parameters: streamed makes one of each layer", n)
	}
	return C.int(n), nil
}

// address is where a tensor lies.
func address(x gpustage.Tensor) (unsafe.Pointer, error) {
	if _, ok := x.Mem.(*gpustage.HostMemory); !ok {
		return nil, fmt.Errorf("MPI takes tensors in host memory, not %T; GPUs communicate through NCCL", x.Mem)
	}
	switch x.DType.Size() {
	case 2:
		return unsafe.Pointer(&gpustage.Slice[uint16](x)[0]), nil
	case 4:
		return unsafe.Pointer(&gpustage.Slice[float32](x)[0]), nil
	default:
		return unsafe.Pointer(&gpustage.Slice[float64](x)[0]), nil
	}
}

// run issues an operation and sees it through.
func (t *transport) run(c *engine.Call, name string, issue func(q *C.MPI_Request) C.int) error {
	var q C.MPI_Request
	if err := failure(name, issue(&q)); err != nil {
		return t.Wait(c, func() (bool, error) { return false, err })
	}
	err := t.Wait(c, func() (bool, error) {
		var flag C.int
		err := failure(name, C.done(&q, &flag))
		return flag != 0, err
	})
	if err == nil { // otherwise MPI may still look
		t.pins.Unpin()
	}
	return err
}

// AllToAll sends parts[k] to rank k.
func (t *transport) AllToAll(c *engine.Call, parts []gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil {
		return nil, err
	}
	if t.Size() == 1 {
		return parts, nil
	}
	views, err := into()
	if err != nil {
		return nil, err
	}
	send, err := t.lay(parts, t.Rank(), t.ints[0], t.ints[1])
	if err != nil {
		return nil, err
	}
	receive, err := t.lay(views, t.Rank(), t.ints[2], t.ints[3])
	if err != nil {
		return nil, err
	}
	size := C.int(c.Wire.Size())
	views[t.Rank()] = parts[t.Rank()]
	return views, t.run(c, "MPI_Ialltoallv", func(q *C.MPI_Request) C.int {
		return C.alltoall(send, t.ints[0], t.ints[1], receive, t.ints[2], t.ints[3], size, t.comm, q)
	})
}

// Gather sends own to every rank.
func (t *transport) Gather(c *engine.Call, own gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil {
		return nil, err
	}
	if t.Size() == 1 {
		return []gpustage.Tensor{own}, nil
	}
	views, err := into()
	if err != nil {
		return nil, err
	}
	receive, err := t.lay(views, -1, t.ints[2], t.ints[3])
	if err != nil {
		return nil, err
	}
	if mine := views[t.Rank()]; own.Cols > 0 && (own.Mem != mine.Mem || own.Off != mine.Off) {
		c.Stream.Copy(mine, own) // all ranks must gather in place, or none
		if err := c.Stream.Sync(); err != nil {
			return nil, err
		}
	}
	size := C.int(c.Wire.Size())
	return views, t.run(c, "MPI_Iallgatherv", func(q *C.MPI_Request) C.int {
		return C.gather(receive, t.ints[2], t.ints[3], size, t.comm, q)
	})
}

// Broadcast makes x that of rank root.
func (t *transport) Broadcast(c *engine.Call, x gpustage.Tensor, root int) (gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil || t.Size() == 1 || x.Cols == 0 {
		return x, err
	}
	p, err := address(x)
	if err != nil {
		return x, err
	}
	n, err := count(x.Cols)
	if err != nil {
		return x, err
	}
	t.pins.Pin(p)
	return x, t.run(c, "MPI_Ibcast", func(q *C.MPI_Request) C.int {
		return C.broadcast(p, n, C.int(x.DType.Size()), C.int(root), t.comm, q)
	})
}

// Release has nothing to give back.
func (t *transport) Release(*engine.Call) error { return nil }
