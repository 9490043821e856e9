// Package mpi runs a job's ranks over MPI: processors on one machine or many, launched by mpirun or Slurm's srun.
//
// It takes the build tag mpi, cgo, and the development files of OpenMPI, or of MPICH with the tag mpich beside it:
//
//	apt-get install libopenmpi-dev openmpi-bin
//	go build -tags mpi ./cmd/contraflow
//	mpirun -n 4 ./contraflow train -c recipe.yaml
//	srun --mpi=pmix -n 4 ./contraflow train -c recipe.yaml
//
// Data travel by non-blocking collectives, all-to-all and all-gather, between communicators of their own, one for each
// group; sums are taken here, in the order of ranks (package engine). MPI makes progress only when it is called: the lane
// that has issued a collective looks whether it is done, and sleeps between looks, so that other threads compute
// meanwhile.
//
// MPI has no deadlines, and a rank that dies takes others down at a library's pleasure, or not at all. So host exchanges,
// deadlines and news of failures go over the TCP star of package remote, which MPI itself tells the ranks how to reach. After a
// failure MPI is not called again, not even to finalize: the process should report the error and exit with a status other than 0,
// and mpirun or Slurm end what is left. (MPICH may abort a process that looks into a dead one's memory before the news arrive:
// then only the others name the rank. Open MPI 4.1's mpirun may never end if a rank is killed at the moment when it connects to it: all
// ranks have ended then, and it waits for a lock of its own.)
package mpi

import "time"

// Option configures Open.
type Option func(*options)

type options struct{ deadline time.Duration }

// Deadline sets how long an operation waits for other ranks; the default is collective.DefaultDeadline, which is also
// how long they may take to start.
func Deadline(d time.Duration) Option { return func(o *options) { o.deadline = d } }
