// Package collective is what replicas say to each other: a mesh of ranks, communicators along its axes, and the collective
// operations of a training step.
//
// A job is a [World] of ranks, arranged as a [Mesh] with the axes replicate and shard. [Connect] gives a rank its
// communicators: all ranks, those along each axis. Data collectives work on device tensors, on the stream they are given (a
// rank's communication lane), in the order in which they are issued, which is the same on every rank: the plan fixes it.
// Host exchanges carry small messages (headers, hashes, sizes) beside them and never touch a device.
//
// # Sums have an order
//
// Every sum over ranks is taken in the order of ranks, element by element, in f32 or f64. So it does not depend on how a tensor
// is cut into buckets, on timing or on threads, and ranks in one process give the bits of ranks under MPI or NCCL.
//
// # Failure
//
// Nothing waits for ever: each operation has the world's deadline. A rank that fails tells the others why ([World.Abort]);
// whoever waits for it, or for a rank that is gone, gets a [RankError] with that rank's number and its reason.
//
// Packages local (goroutines in one process), mpi and nccl implement World, sim is local over a link with the bandwidth and
// latency of a network, launch finds out which of them a process was started for. All share internal/engine, which turns an
// operation into exchanges and sums; mpi and nccl share internal/remote, the host channel. collectivetest is the suite that all
// of them pass, and a new one is done when it does.
package collective

import (
	"context"
	"errors"
	"fmt"
	"time"

	"contraflow/gpustage"
)

// Group is a communicator: some ranks that take part in the same collectives in the same order. One goroutine at a time may
// issue data collectives, another one host exchanges.
//
// Data collectives return nothing: the first error stays with the stream, as for ops. All ranks pass the same rows, wire and
// root. Tensors are contiguous, F32 or F64; one without rows may be absent. The wire is the tensors' type or BF16. A stream that has
// failed issues nothing, and where that can be known at once, on processors, it ends the job.
type Group interface {
	Rank() int // within the group
	Size() int

	// AllGather gives every rank the rows of all: dst[sum(rows), C] holds src[rows[r], C] of rank r after those of rank r-1.
	// rows may differ between ranks and be 0. src may be the rank's own part of dst. A BF16 wire rounds to bfloat16 on every
	// rank, the sender's own rows included.
	AllGather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType)
	// ReduceScatter gives rank r its own rows of the sum over ranks: dst[rows[r], C] of src[sum(rows), C]. dst may be the
	// rank's own part of src. A BF16 wire rounds each contribution; sums are taken in F32.
	ReduceScatter(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType)
	// AllReduce makes x the sum over ranks, the same bits on all. A BF16 wire rounds each contribution, and the sum.
	AllReduce(s gpustage.Stream, x gpustage.Tensor, wire gpustage.DType)
	// Broadcast makes x that of rank root.
	Broadcast(s gpustage.Stream, x gpustage.Tensor, root int)

	// Exchange gives every rank the messages of all, in the order of ranks. Messages may differ in length.
	Exchange(ctx context.Context, message []byte) ([][]byte, error)

	// For says what the data collectives that follow are for, such as a stage of a step: what errors say of who waits where. "" says nothing. Ranks
	// need not say the same. Of an exchange the context says it: see the function For.
	For(purpose string)

	// Traffic is what this rank has sent so far through this group.
	Traffic() Traffic
}

// Traffic counts what a rank has sent.
type Traffic struct {
	Calls map[Op]int64
	Bytes map[Op]int64 // payload that left this rank: see [Call.Sent]
}

type purpose struct{}

// For gives exchanges with a context what Group.For gives data collectives.
func For(ctx context.Context, what string) context.Context {
	return context.WithValue(ctx, purpose{}, what)
}

// ExchangeFor is what errors call an exchange with a context.
func ExchangeFor(ctx context.Context) string {
	what, _ := ctx.Value(purpose{}).(string)
	return In("an exchange", what)
}

// In says of an operation what it is for, if that is known.
func In(op, purpose string) string {
	if purpose == "" {
		return op
	}
	return op + " in " + purpose
}

// World is the communicator of all ranks of a job.
type World interface {
	Group
	// Split gives the group of the ranks that pass the same color, in the order of their ranks. All ranks call it.
	Split(ctx context.Context, color int) (Group, error)
	// Abort ends the job: every wait of every rank returns a RankError with this rank and reason, within a second or two. A
	// reason that is itself a RankError keeps its rank. Only the first reason counts. Ranks of the same process get the reason itself
	// (errors.Is and errors.As find it), others its text.
	Abort(reason error)
	// Err is the RankError that ended the job, or nil. What data collectives have left in device memory is worth something
	// only if it is nil after the stream's Sync: on a GPU an aborted collective ends like one that is done.
	Err() error
	// Done is closed when the job has failed, for who does something else than wait for other ranks.
	Done() <-chan struct{}
	// Close leaves the job in peace. All ranks call it.
	Close() error
}

// DefaultDeadline is how long a collective may wait for other ranks unless a World is told otherwise: long enough for the
// slowest sub-batch of the slowest rank, saving and evaluation included.
const DefaultDeadline = 10 * time.Minute

// RankError says which rank ended a job and why. If this process has found that out, as it has of its own ranks' errors, errors.Is and
// errors.As find the error itself; from another process comes only its text.
type RankError struct {
	Rank   int
	Reason string

	err *error // behind a pointer, as errors need not be comparable and RankErrors are
}

// NewRankError is the end of a job by an error that is known in this process. If that error holds a RankError, it is that one: a rank that
// fails because another one has is not the reason. If it holds one that has a method OfRank, which says which rank is the reason where all know of it,
// the end is that rank's, whichever says so first. A rank that gives no reason, nil, has failed all the same.
func NewRankError(rank int, reason error) *RankError {
	if reason == nil {
		reason = errors.New("it has ended the job, and gives no reason")
	}
	var re *RankError
	if errors.As(reason, &re) {
		return re
	}
	var of interface {
		error
		OfRank() int
	}
	if errors.As(reason, &of) {
		rank = of.OfRank()
	}
	return &RankError{Rank: rank, Reason: reason.Error(), err: &reason}
}

func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Reason) }

// Unwrap returns the error itself, or nil if only its text is known.
func (e *RankError) Unwrap() error {
	if e.err == nil {
		return nil
	}
	return *e.err
}

// Stopped is why ctx has ended: its cause, behind which errors.Is finds ctx.Err() as well. ctx must have ended.
func Stopped(ctx context.Context) error {
	cause, err := context.Cause(ctx), ctx.Err()
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w (%w)", cause, err)
}
