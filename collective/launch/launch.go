// Package launch reads from the environment how a process was started as one of many: by torchrun, by mpirun or by Slurm's
// srun. Nothing here starts anything.
//
//	torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//	mpirun     OMPI_COMM_WORLD_* (OpenMPI), PMI_* and MPI_LOCAL* (MPICH, Intel MPI)
//	Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NUM_NODES, SLURM_STEP_NODELIST
//
// The first that is there counts, in this order, as each may run inside the next. A variable that is missing, or does not
// fit, is an error: a process that took itself for the only one would train a model of its own, and say nothing.
package launch

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Job is what a process knows about the job that it is part of.
type Job struct {
	Launcher  string // "torchrun", "mpirun", "Slurm"; "" for a process that was started alone
	Rank      int
	Size      int
	LocalRank int // on its machine: which GPU it takes
	LocalSize int // processes on its machine; 0 if the launcher does not say

	// Master is where ranks meet, "host:port"; "" if the launcher does not say and MASTER_ADDR is not set.
	Master string
	// Store tells that torchrun's agent serves a key-value store at Master: the port is taken.
	Store bool
	// Run names this start of the job, the same on every rank.
	Run string
}

// environment reads variables and keeps the first error.
type environment struct {
	get func(string) string
	err error
}

func (e *environment) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// number reads a variable that must be there, as a number from lo.
func (e *environment) number(name string, lo int) int {
	text := e.get(name)
	v, err := strconv.Atoi(text)
	switch {
	case text == "":
		e.fail("%s is not set", name)
	case err != nil || v < lo:
		e.fail("%s is %q; want a number from %d", name, text, lo)
	}
	return v
}

// optional reads a variable that may be missing.
func (e *environment) optional(name string, lo, missing int) int {
	if e.get(name) == "" {
		return missing
	}
	return e.number(name, lo)
}

// any tells whether one of the variables is there.
func (e *environment) any(names ...string) bool {
	for _, n := range names {
		if e.get(n) != "" {
			return true
		}
	}
	return false
}

// FromEnvironment reads the variables, with os.Getenv or what a test puts in its place.
func FromEnvironment(getenv func(string) string) (Job, error) {
	e := &environment{get: getenv}
	j := Job{Size: 1, LocalSize: 1}
	switch {
	case e.any("RANK", "WORLD_SIZE"):
		j = e.torchrun()
	case e.any("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
		j = Job{
			Launcher: "mpirun", Rank: e.number("OMPI_COMM_WORLD_RANK", 0), Size: e.number("OMPI_COMM_WORLD_SIZE", 1),
			LocalRank: e.number("OMPI_COMM_WORLD_LOCAL_RANK", 0), LocalSize: e.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1),
			Run: e.get("PMIX_NAMESPACE"),
		}
	case e.any("PMI_RANK", "PMI_SIZE") && !e.slurmsPMI():
		j = Job{
			Launcher: "mpirun", Rank: e.number("PMI_RANK", 0), Size: e.number("PMI_SIZE", 1),
			LocalRank: e.optional("MPI_LOCALRANKID", 0, 0), LocalSize: e.optional("MPI_LOCALNRANKS", 1, 0),
		}
	case e.any("SLURM_STEP_NUM_TASKS"): // not SLURM_NTASKS: that is set in a batch script, too, where only one process runs
		j = Job{
			Launcher: "Slurm", Rank: e.number("SLURM_PROCID", 0), Size: e.number("SLURM_STEP_NUM_TASKS", 1),
			LocalRank: e.number("SLURM_LOCALID", 0), Run: e.get("SLURM_JOB_ID") + "." + e.get("SLURM_STEP_ID"),
		}
		if e.get("SLURM_STEP_NUM_NODES") == "1" {
			j.LocalSize = j.Size
		}
	}
	if e.err == nil && (j.Rank >= j.Size || j.LocalSize > 0 && j.LocalRank >= j.LocalSize) {
		e.fail("it is rank %d of %d, and %d of %d on its machine", j.Rank, j.Size, j.LocalRank, j.LocalSize)
	}
	if e.err == nil && j.Launcher != "" && j.Launcher != "torchrun" {
		j.Master = e.master(j)
	}
	if e.err != nil {
		if j.Launcher == "" {
			return Job{}, e.err
		}
		return Job{}, fmt.Errorf("the environment of %s: %w", j.Launcher, e.err)
	}
	return j, nil
}

// slurmsPMI tells whether PMI_* are Slurm's, as under srun --mpi=pmi2, and not those of an mpirun that runs its processes under srun, as
// MPICH's does in a Slurm job: SLURM_* then are those of one task for each machine.
func (e *environment) slurmsPMI() bool {
	return e.any("SLURM_STEP_NUM_TASKS") && !e.any("MPI_LOCALNRANKS") && e.get("PMI_SIZE") == e.get("SLURM_STEP_NUM_TASKS") && e.get("PMI_RANK") == e.get("SLURM_PROCID")
}

func (e *environment) torchrun() Job {
	j := Job{
		Launcher: "torchrun", Rank: e.number("RANK", 0), Size: e.number("WORLD_SIZE", 1),
		LocalRank: e.optional("LOCAL_RANK", 0, 0), LocalSize: e.optional("LOCAL_WORLD_SIZE", 1, 0),
		Store: e.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
	}
	if j.Size > 1 && e.get("LOCAL_RANK") == "" {
		e.fail("LOCAL_RANK is not set: which of this machine's devices is rank %d's?", j.Rank)
	}
	if j.Size > 1 || e.any("MASTER_ADDR") {
		if e.get("MASTER_ADDR") == "" {
			e.fail("MASTER_ADDR is not set")
		}
		j.Master = net.JoinHostPort(e.get("MASTER_ADDR"), strconv.Itoa(e.port()))
	}
	if id := e.get("TORCHELASTIC_RUN_ID"); id != "" {
		j.Run = id + "." + e.get("TORCHELASTIC_RESTART_COUNT")
	}
	return j
}

func (e *environment) port() int {
	p := e.number("MASTER_PORT", 1)
	if p > 65535 {
		e.fail("MASTER_PORT is %d", p)
	}
	return p
}

// master is where the ranks of launchers other than torchrun meet: where MASTER_ADDR says, or else on this machine if all of them run
// here, or on the first machine of a Slurm step. The port comes from the run's name, so that two jobs on a machine do not meet.
func (e *environment) master(j Job) string {
	port := 0
	if e.any("MASTER_PORT") {
		port = e.port()
	} else if j.Run != "" {
		h := uint32(2166136261) // FNV-1a
		for _, b := range []byte(j.Run) {
			h = (h ^ uint32(b)) * 16777619
		}
		port = 20000 + int(h%12000) // below the ports that systems hand out
	}
	host := e.get("MASTER_ADDR")
	if host == "" && j.LocalSize == j.Size {
		host = "127.0.0.1"
	}
	if host == "" && j.Launcher == "Slurm" {
		host = firstHost(e.get("SLURM_STEP_NODELIST"))
	}
	if host == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// firstHost is the first machine of a Slurm list such as "gpu[017-020,3],login1".
func firstHost(list string) string {
	prefix, rest, ok := strings.Cut(list, "[")
	if comma := strings.IndexByte(prefix, ','); comma >= 0 {
		return prefix[:comma]
	}
	if !ok {
		return prefix
	}
	numbers, rest, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	suffix, _, _ := strings.Cut(rest, ",")
	if strings.ContainsRune(suffix, '[') {
		return "" // two dimensions
	}
	first, _, _ := strings.Cut(numbers, ",")
	first, _, _ = strings.Cut(first, "-")
	return prefix + first + suffix
}

// Backend is the package whose World carries a job over a kind of device: "local", "mpi" or "nccl". withMPI is
// mpi.Available; library is where CONTRAFLOW_NCCL finds an NCCL, "" for the system's: one that is named is used on processors,
// too, where it must be one that takes their memory.
func (j Job) Backend(device string, withMPI bool, library string) (string, error) {
	gpu := device == "cuda"
	mpirun := j.Launcher == "mpirun" || j.Launcher == "Slurm"
	switch {
	case j.Size == 1:
		return "local", nil
	case (gpu || library != "") && j.Master != "":
		return "nccl", nil
	case gpu:
		return "", fmt.Errorf("%s does not say where ranks on several machines meet: set MASTER_ADDR to the first machine and MASTER_PORT to a free port, on all (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)", j.Launcher)
	case mpirun && withMPI:
		return "mpi", nil
	case mpirun:
		return "", fmt.Errorf("%s has started %d ranks on processors, which communicate through MPI, and this program was built without it: go build -tags mpi ./cmd/contraflow", j.Launcher, j.Size)
	default:
		return "", errors.New("torchrun has started ranks on processors, which communicate through MPI: start them with mpirun or srun, or choose GPUs with train.device: cuda")
	}
}

// Check compares what a communication library sees with what the launcher has started.
func (j Job) Check(library string, size int) error {
	if j.Launcher == "" || j.Size == size {
		return nil
	}
	hint := "is it another MPI's mpirun?"
	if j.Launcher == "Slurm" {
		hint = "try srun --mpi=pmix, or --mpi=pmi2"
	}
	return fmt.Errorf("%s has started %d processes, but %s sees %d: %s", j.Launcher, j.Size, library, size, hint)
}
