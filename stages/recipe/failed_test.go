package recipe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/safetensors"
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

func (s slow) For(purpose string) { s.Group.For(purpose) }

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
	var start time.Time
	err = local.Run(2, func(w collective.World) error {
		if w.Rank() == 1 {
			w = slow{w, w}
		}
		d, err := asRank(t.Context(), r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: 2}}, Observer{}, new(atomic.Pointer[ending]), nil, func(x *Run) error {
			if x.Main() {
				x.ledger = func(*pipeline.Task, *stages.Batch) {
					time.Sleep(500 * time.Millisecond) // by then the communication lane waits
					start = time.Now()
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

// Who does not come is told with what the others wait in, by stage and step, and with what it has come to.
func TestNamesWhatWaits(t *testing.T) {
	j := newJob(t, 100)
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "out"), "mesh.replicate=2"})
	if err != nil {
		t.Fatal(err)
	}
	for want, late := range map[string]bool{
		`all-gather of f32 rows [5 5] x 32 in stage "gather" of step 1, where rank 0 waits: within 3s; the last that it came to is `:              false,
		`an exchange in stage "header" of step 1, where rank 0 waits: within 3s; the last that it came to is an exchange in opening a checkpoint`: true,
	} {
		err := local.Run(2, func(w collective.World) error {
			var opts []TrainOption
			if w.Rank() == 1 && late {
				opts = append(opts, WithRow(func(*dataset.Example) error {
					<-w.Done()
					return w.Err()
				}))
			} else if w.Rank() == 1 {
				w = slow{w, w}
			}
			d, err := asRank(t.Context(), r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: 2}}, Observer{}, new(atomic.Pointer[ending]), nil, func(x *Run) error {
				_, err := x.Train(t.Context(), opts...)
				return err
			})
			if d != nil {
				err = errors.Join(err, d.Close())
			}
			return err
		}, local.Deadline(3*time.Second))
		if err == nil || !strings.Contains(err.Error(), "rank 1: it did not come to "+want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// What ends a job is the same error on one rank and on several, which also say whose it is.
func TestErrorsOfRanks(t *testing.T) {
	j := newJob(t, 100)
	boom := errors.New("boom")
	for _, mesh := range []string{"mesh.replicate=1", "mesh.replicate=2"} {
		for name, tt := range map[string]struct {
			cause error // of the context, where it is cancelled
			fails error // of the last rank, where it fails
			want  []error
		}{
			"fails":                  {fails: boom, want: []error{boom}},
			"cancelled":              {want: []error{context.Canceled}},
			"cancelled with a cause": {cause: boom, want: []error{context.Canceled, boom}},
		} {
			r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(t.TempDir(), "out"), mesh})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			err = OnRanks(ctx, r, Place{}, Observer{Step: func(m Metrics) {
				if m.Step == 2 && tt.fails == nil {
					cancel(tt.cause)
				}
			}}, func(x *Run) error {
				if x.ranks.Rank() == x.ranks.Size()-1 && tt.fails != nil {
					return fmt.Errorf("in f: %w", tt.fails)
				}
				_, err := x.Train(ctx)
				return err
			})
			cancel(nil)
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("%s, %s: %v is not %v", mesh, name, err, want)
				}
			}
			var re *collective.RankError
			if several := mesh == "mesh.replicate=2"; errors.As(err, &re) != several || several && (tt.fails != nil && re.Rank != 1 || !strings.HasPrefix(err.Error(), fmt.Sprintf("rank %d: ", re.Rank))) {
				t.Errorf("%s, %s: %v does not say which rank", mesh, name, err)
			}
		}
	}
}

// opened is the disk, and knows what has been opened of checkpoints.
type opened struct {
	checkpoint.Disk
	mu    *sync.Mutex
	files *[]*safetensors.File
	first chan struct{} // is closed with the first
}

func newOpened() opened {
	return opened{mu: new(sync.Mutex), files: new([]*safetensors.File), first: make(chan struct{})}
}

func (o opened) Tensors(path string) (*safetensors.File, error) {
	f, err := o.Disk.Tensors(path)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if *o.files = append(*o.files, f); len(*o.files) == 1 {
			close(o.first)
		}
	}
	return f, err
}

// open counts the files that nobody has closed, and those that there were.
func (o opened) open(t *testing.T) (open, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range *o.files {
		x, err := f.Tensor(f.Names()[0])
		if err != nil {
			t.Fatal(err)
		}
		if x.Float32s(make([]float32, x.Len())) == nil {
			open++
		}
	}
	return open, len(*o.files)
}

// What a run opens of a checkpoint is closed once it has its state, and also where the run fails before that.
func TestCheckpointClosed(t *testing.T) {
	for _, fails := range []string{"", "journal", "recipe", "stage"} {
		j := newJob(t, 60)
		if _, err := j.run(t, "run", nil, 2, false); err != nil {
			t.Fatal(err)
		}
		var sets []string
		disk, steps := newOpened(), 0
		switch fails {
		case "journal":
			metrics := filepath.Join(j.dir, "run", "metrics.jsonl")
			if err := errors.Join(os.Remove(metrics), os.Mkdir(metrics, 0o777)); err != nil {
				t.Fatal(err)
			}
		case "recipe":
			sets = []string{"train.max_steps=1"}
		default:
			j.opts = []TrainOption{WithStages(func(g *pipeline.Graph, p Ports) error {
				if fails != "" {
					return errors.New(fails)
				}
				pipeline.Sink(g, "look", p.Results, func(*pipeline.Task, stages.StepResult) error {
					if open, all := disk.open(t); open > 0 {
						t.Errorf("%d of %d files are open while it trains", open, all)
					}
					steps++
					return nil
				})
				return nil
			})}
		}
		_, err := j.run(t, "run", disk, 0, true, sets...)
		if (err == nil) != (fails == "") || (steps == 0) != (fails != "") {
			t.Errorf("%q: %d steps, %v", fails, steps, err)
		}
		if open, all := disk.open(t); open > 0 || all == 0 {
			t.Errorf("%q: %d of %d files are open at the end", fails, open, all)
		}
	}
}

// A rank that has opened a checkpoint closes it where the others do not come to open it.
func TestCheckpointClosedAlone(t *testing.T) {
	j := newJob(t, 60)
	const mesh = "mesh.replicate=2"
	if _, err := j.run(t, "run", nil, 2, false, mesh); err != nil {
		t.Fatal(err)
	}
	r, err := Parse("job", []byte(j.text), []string{mesh, "save.dir=" + filepath.Join(j.dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	disk, boom := newOpened(), errors.New("boom")
	var main error
	err = OnRanks(t.Context(), r, Place{}, Observer{}, func(x *Run) error {
		if x.Main() {
			x.fs = disk
			_, main = x.Train(t.Context(), Resuming())
			return main
		}
		<-disk.first
		return boom
	})
	if !errors.Is(err, boom) || main == nil {
		t.Errorf("%v, rank 0: %v", err, main)
	}
	if open, all := disk.open(t); open > 0 || all == 0 {
		t.Errorf("%d of %d files are open", open, all)
	}
}
