package collectivetest

import (
	"context"
	"errors"
	"time"

	"contraflow/collective"
	"contraflow/gpustage"
)

// In these cases the last rank is the one that does not do what the others expect.

func (r *rank) culprit() int { return r.Size() - 1 }
func (r *rank) guilty() bool { return r.Rank() == r.culprit() }

// meet makes sure that all ranks are there before something goes wrong. It may go wrong before the last of them is through; what
// follows must then show the same error.
func (r *rank) meet() {
	_, err := r.Exchange(context.Background(), nil)
	r.ok(err, "meeting first")
	x := r.room(gpustage.F32, 1, 10)
	r.AllReduce(r.s, x.Tensor, gpustage.F32)
}

// wait is what a rank that must not take part does until it learns how the job ended.
func (r *rank) wait(limit time.Duration) error {
	for end := time.Now().Add(limit); r.Err() == nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	return r.Err()
}

// fails issues a data collective, which must fail, and checks that everything after fails alike.
func (r *rank) fails(rank int, words ...string) {
	x := r.room(gpustage.F32, 1, 1000)
	start := time.Now()
	r.AllReduce(r.s, x.Tensor, gpustage.F32)
	r.ended(r.s.Sync(), rank, words...)
	r.within(start, Patience+Slack)
	r.after(rank, words...)
}

// after checks that a job that has ended stays so.
func (r *rank) after(rank int, words ...string) {
	start := time.Now()
	_, err := r.Exchange(context.Background(), nil)
	r.ended(err, rank, words...)
	select {
	case <-r.Done():
	default:
		r.fail("the job has ended, and Done is open")
	}
	s, err := r.device.OpenStream()
	r.ok(err, "a stream")
	defer s.Close()
	x := r.room(gpustage.F32, 1, 10)
	r.AllReduce(s, x.Tensor, gpustage.F32)
	r.ended(s.Sync(), rank, words...)
	r.within(start, Slack)
}

func testDeadlineData(r *rank) {
	r.meet()
	if r.guilty() {
		r.ended(r.wait(Patience+Slack), r.culprit(), "all-reduce")
		return
	}
	r.For("the norm of step 4")
	r.fails(r.culprit(), "did not come to all-reduce of f32[1000] in the norm of step 4, where rank ", "; the last that it came to is ")
}

func testDeadlineExchange(r *rank) {
	r.meet()
	if r.guilty() {
		r.ended(r.wait(Patience+Slack), r.culprit(), "exchange")
		return
	}
	start := time.Now()
	_, err := r.Exchange(collective.For(context.Background(), "the header of step 4"), []byte("hello"))
	r.ended(err, r.culprit(), "did not come to an exchange in the header of step 4, where rank ", "; the last that it came to is ")
	r.within(start, Patience+Slack)
	r.after(r.culprit(), "exchange")
}

// testCancel and testCancelCause: a context with a deadline blames the rank that is missing, a cancelled one the rank that gave up, whatever
// the cause.
func testCancel(r *rank)      { r.cancels(nil) }
func testCancelCause(r *rank) { r.cancels(errOnPurpose) }

func (r *rank) cancels(cause error) {
	r.meet()
	if r.guilty() {
		r.ended(r.wait(Patience+Slack), -1, "exchange")
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	if r.Rank() == 0 {
		time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	}
	defer cancel(nil)
	_, err := r.Exchange(ctx, nil)
	r.ended(err, 0, "exchange", "canceled")
	if r.Rank() == 0 && (!errors.Is(err, context.Canceled) || cause != nil && !errors.Is(err, cause)) {
		r.fail("the error is %v; want context.Canceled and %v behind it", err, cause)
	}
}

var errOnPurpose = errors.New("data/part-3.parquet: row 17 has no text")

func testAbortData(r *rank) {
	r.meet()
	if r.guilty() {
		time.Sleep(50 * time.Millisecond)
		r.Abort(errOnPurpose)
		r.after(r.culprit(), errOnPurpose.Error())
		if !errors.Is(r.Err(), errOnPurpose) { // of its own process it has more than the text
			r.fail("the error is %v, but not the one that the rank has given", r.Err())
		}
		return
	}
	x := r.room(gpustage.F32, 1, 1000)
	start := time.Now()
	r.AllReduce(r.s, x.Tensor, gpustage.F32)
	err := r.s.Sync()
	r.ended(err, r.culprit(), errOnPurpose.Error())
	r.within(start, Slack/2)
	r.Abort(err) // as a rank does with whatever has ended it: the first reason stays
	r.after(r.culprit(), errOnPurpose.Error())
}

func testAbortExchange(r *rank) {
	r.meet()
	if r.guilty() {
		time.Sleep(50 * time.Millisecond)
		r.Abort(errOnPurpose)
		return
	}
	start := time.Now()
	_, err := r.Exchange(context.Background(), nil)
	r.ended(err, r.culprit(), errOnPurpose.Error())
	r.within(start, Slack/2)
	r.after(r.culprit(), errOnPurpose.Error())
}

// disagree issues an operation that ranks do not agree on. All must learn what two of them have called.
func (r *rank) disagree(issue func(), words ...string) {
	r.meet()
	start := time.Now()
	issue()
	err := r.s.Sync()
	if err == nil { // found beside the data, which may have got through
		err = r.wait(Patience + Slack)
	}
	r.ended(err, -1, words...)
	r.within(start, Patience+Slack)
}

func testMismatchRows(r *rank) {
	rows := make([]int, r.Size())
	rows[0] = 3
	if r.guilty() {
		rows[0] = 2
	}
	dst := r.room(gpustage.F32, rows[0], 8)
	src := gpustage.Tensor{}
	if r.Rank() == 0 {
		src = r.room(gpustage.F32, 3, 8).Tensor
	}
	r.disagree(func() { r.AllGather(r.s, dst.Tensor, src, rows, gpustage.F32) }, " calls all-gather of f32 rows [3 0", " calls all-gather of f32 rows [2 0")
}

func testMismatchOp(r *rank) {
	x := r.room(gpustage.F32, 1, 64)
	r.disagree(func() {
		if r.guilty() {
			r.Broadcast(r.s, x.Tensor, 0)
		} else {
			r.AllReduce(r.s, x.Tensor, gpustage.F32)
		}
	}, " calls all-reduce of f32[64]", " calls broadcast of f32[64] from rank 0")
}

// testMismatchSplit: what a rank exchanges while others split the world is not taken for their split, however long it is.
func testMismatchSplit(r *rank) {
	r.meet()
	if r.guilty() {
		_, _ = r.Exchange(context.Background(), make([]byte, 8))
		r.ended(r.wait(Patience+Slack), r.culprit(), "split")
		return
	}
	start := time.Now()
	_, err := r.Split(context.Background(), 0)
	r.ended(err, r.culprit(), "exchanges a message of 8 bytes where others split")
	r.within(start, Slack/2)
	r.after(r.culprit(), "split")
}

// testRefused: a call that is wrong on one rank ends the job everywhere.
func testRefused(r *rank) {
	r.meet()
	if r.guilty() {
		x := r.room(gpustage.F32, 2, 8)
		r.AllReduce(r.s, x.Columns(0, 4), gpustage.F32)
		r.ended(r.s.Sync(), r.culprit(), "all-reduce", "contiguous")
		return
	}
	r.fails(r.culprit(), "all-reduce", "contiguous")
}

// testFailedStream: what has failed on one rank's stream is what the others hear.
func testFailedStream(r *rank) {
	r.meet()
	if r.guilty() {
		r.s.Fail(errOnPurpose)
		x := r.room(gpustage.F32, 1, 0)
		r.AllReduce(r.s, x.Tensor, gpustage.F32)
		if err := r.s.Sync(); !errors.Is(err, errOnPurpose) {
			r.fail("the stream's error is %v", err)
		}
		if r.Err() == nil { // a device that can't know at once
			r.Abort(errOnPurpose)
		}
		return
	}
	r.fails(r.culprit(), errOnPurpose.Error())
}

// testLeft: the others wait already when the rank leaves.
func testLeft(r *rank) {
	r.meet()
	if r.guilty() {
		time.Sleep(100 * time.Millisecond)
		r.ok(r.Close(), "closing")
		return
	}
	r.fails(r.culprit(), "left")
}

// testLeftBefore and testLeftExchange: the others come when the rank has left already.
func testLeftBefore(r *rank) {
	r.meet()
	if r.guilty() {
		r.ok(r.Close(), "closing")
		return
	}
	time.Sleep(100 * time.Millisecond)
	r.fails(r.culprit(), "left")
}

func testLeftExchange(r *rank) {
	r.meet()
	if r.guilty() {
		r.ok(r.Close(), "closing")
		return
	}
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	_, err := r.Exchange(context.Background(), nil)
	r.ended(err, r.culprit(), "left", "exchange")
	r.within(start, Slack/2)
	r.after(r.culprit(), "left")
}
