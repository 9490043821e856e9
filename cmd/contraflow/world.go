package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"contraflow/collective"
	"contraflow/collective/launch"
	"contraflow/collective/mpi"
	"contraflow/collective/nccl"
	"contraflow/gpustage"
	"contraflow/stages/recipe"
)

// onDevice makes the GPU of a share current on the calling thread. It is nil in a program built without CUDA.
var onDevice func(gpustage.Share) error

// joinJob is this process's place in the job that a launcher (mpirun, srun, torchrun) has started; no place at all for a
// process that was started alone.
func joinJob(ctx context.Context, r recipe.Recipe) (recipe.Place, error) {
	job, err := launch.FromEnvironment(os.Getenv)
	if err != nil {
		return recipe.Place{}, err
	}
	p := recipe.Place{Share: gpustage.Share{Rank: job.LocalRank, Ranks: job.LocalSize, Bound: bound()}}
	kind, passed := r.Train.Device, error(nil)
	if kind == "auto" && job.Size > 1 {
		var d gpustage.Device
		if kind, d, passed, err = gpustage.OpenAuto(p.Share); err != nil {
			return recipe.Place{}, fmt.Errorf("train.device: %w", err)
		}
		if err := d.Close(); err != nil {
			return recipe.Place{}, err
		}
	}
	backend, err := job.Backend(kind, mpi.Available, os.Getenv("CONTRAFLOW_NCCL"))
	if err != nil {
		if passed != nil { // whoever has GPUs wants to know why they are not taken
			err = fmt.Errorf("%w; train.device: auto takes %s here: %w", err, kind, passed)
		}
		return recipe.Place{}, err
	}
	switch backend {
	case "mpi":
		p.World, err = mpi.Open(ctx, mpi.Deadline(time.Duration(r.Mesh.Deadline)))
	case "nccl":
		options := []nccl.Option{nccl.Deadline(time.Duration(r.Mesh.Deadline))}
		if kind == "cuda" && onDevice != nil {
			options = append(options, nccl.OnDevice(func() error { return onDevice(p.Share) }))
		}
		p.World, err = nccl.Open(ctx, job, options...)
	default:
		return recipe.Place{}, nil
	}
	if err != nil {
		return recipe.Place{}, fmt.Errorf("joining the job as rank %d of %d: %w", job.Rank, job.Size, err)
	}
	go lastWords(p.World)
	return p, nil
}

// lastWords says why the job has failed while there is time: a launcher kills the ranks that are left about a second after the first has
// died, and this one may be at something long that does not look up. The process ends with the job, whatever it is at.
func lastWords(w collective.World) {
	<-w.Done()
	time.Sleep(toSay)
	sayWhy(w.Err())
	time.Sleep(toEnd)
	os.Exit(1)
}

// What a rank that looks up takes to end by itself, and what others are given besides.
const (
	toSay = 300 * time.Millisecond
	toEnd = 5 * time.Second
)

var why sync.Once

// sayWhy says once why the job has failed.
func sayWhy(err error) {
	why.Do(func() { fmt.Fprintf(os.Stderr, "%scontraflow: %v\n", overLast(), err) })
}

// bound tells whether the launcher gave this process processors of its own: then it takes all it sees.
func bound() bool {
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return false
	}
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(string(online)), ",") {
		var lo, hi int
		if c, _ := fmt.Sscanf(part, "%d-%d", &lo, &hi); c == 1 {
			hi = lo
		}
		n += hi - lo + 1
	}
	return runtime.NumCPU() < n
}
