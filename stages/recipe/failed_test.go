package recipe

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages"
)

// slow is a world, or a group of its ranks, whose data collectives on this rank do not begin before the job is over.
type slow struct {
	collective.World
	collective.Group
}

func (s slow) Split(ctx context.Context, color int) (collective.Group, error) {
	g, err := s.World.Split(ctx, color)
	return slow{s.World, g}, err
}

func (s slow) Rank() int { return s.Group.Rank() }
func (s slow) Size() int { return s.Group.Size() }

func (s slow) Exchange(ctx context.Context, message []byte) ([][]byte, error) {
	return s.Group.Exchange(ctx, message)
}

func (s slow) Traffic() collective.Traffic { return s.Group.Traffic() }

func (s slow) AllGather(on gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	<-s.World.Done()
	s.Group.AllGather(on, dst, src, rows, wire)
}

func (s slow) ReduceScatter(on gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	<-s.World.Done()
	s.Group.ReduceScatter(on, dst, src, rows, wire)
}

func (s slow) AllReduce(on gpustage.Stream, x gpustage.Tensor, wire gpustage.DType) {
	<-s.World.Done()
	s.Group.AllReduce(on, x, wire)
}

func (s slow) Broadcast(on gpustage.Stream, x gpustage.Tensor, root int) {
	<-s.World.Done()
	s.Group.Broadcast(on, x, root)
}

// A rank that fails while a lane of its own waits for another rank tells that one all the same, long before the deadline: what keeps the other
// from coming may be that it waits for this one.
func TestFailsWhileItWaits(t *testing.T) {
	defer func(d time.Duration) { failedTakes = d }(failedTakes)
	failedTakes = 100 * time.Millisecond
	j := newJob(t, 100)
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "out"), "mesh.replicate=2"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = local.Run(2, func(w collective.World) error {
		if w.Rank() == 1 {
			w = slow{w, w}
		}
		d, err := asRank(t.Context(), r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: 2}}, Observer{}, func(x *Run) error {
			if x.Main() {
				x.ledger = func(*pipeline.Task, *stages.Batch) {
					time.Sleep(500 * time.Millisecond) // by then the communication lane waits
					panic("on purpose")
				}
			}
			_, err := x.Train(t.Context())
			return err
		})
		if d != nil {
			err = errors.Join(err, d.Close())
		}
		return err
	}, local.Deadline(10*time.Second))
	var re *collective.RankError
	if took := time.Since(start); !errors.As(err, &re) || re.Rank != 0 || !strings.Contains(re.Reason, "on purpose") || took > 8*time.Second {
		t.Errorf("after %v: %v; want rank 0's panic", took, err)
	}
	var bug *pipeline.PanicError
	if !errors.As(err, &bug) || bug.Value != "on purpose" {
		t.Errorf("%v holds %v; want the panic", err, bug)
	}
}
