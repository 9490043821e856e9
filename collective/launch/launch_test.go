package launch

import (
	"fmt"
	"strings"
	"testing"
)

// env is an environment written as "A=1 B=2".
func env(text string) func(string) string {
	vars := map[string]string{}
	for _, f := range strings.Fields(text) {
		k, v, _ := strings.Cut(f, "=")
		vars[k] = v
	}
	return func(name string) string { return vars[name] }
}

const (
	torch = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.7 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True"
	ompi  = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=12345"
	hydra = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1"
	batch = "SLURM_JOB_ID=77 SLURM_NTASKS=16 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_NODELIST=gpu[017-020]"
	srun  = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=16 SLURM_NTASKS=16 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NODELIST=gpu[017-018] SLURM_STEP_NUM_NODES=2 PMI_RANK=9 PMI_SIZE=16"
)

func TestFromEnvironment(t *testing.T) {
	for _, c := range []struct {
		env  string
		want Job
	}{
		{"", Job{Size: 1, LocalSize: 1}},
		{batch, Job{Size: 1, LocalSize: 1}}, // a batch script's own process is one
		{torch, Job{"torchrun", 5, 8, 1, 4, "10.0.0.7:29500", true, "none.2"}},
		{strings.Replace(torch, "True", "False", 1), Job{"torchrun", 5, 8, 1, 4, "10.0.0.7:29500", false, "none.2"}},
		{"RANK=0 WORLD_SIZE=1", Job{"torchrun", 0, 1, 0, 0, "", false, ""}},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=::1 MASTER_PORT=1234", Job{"torchrun", 1, 2, 0, 0, "[::1]:1234", false, ""}},
		{ompi, Job{"mpirun", 3, 4, 3, 4, "127.0.0.1:24824", false, "12345"}},
		{ompi + " MASTER_ADDR=a MASTER_PORT=9", Job{"mpirun", 3, 4, 3, 4, "a:9", false, "12345"}},
		{hydra, Job{"mpirun", 1, 2, 0, 1, "", false, ""}},
		{srun, Job{"Slurm", 9, 16, 1, 0, "gpu017:20501", false, "77.0"}},
		{"SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=1", Job{"Slurm", 1, 2, 1, 2, "127.0.0.1:21179", false, "7.1"}},
		// MPICH's mpirun within sbatch: srun starts one process for each machine, which starts the ranks.
		{"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0", Job{"mpirun", 3, 4, 1, 2, "", false, ""}},
		{"PMI_RANK=1 PMI_SIZE=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0", Job{"mpirun", 1, 2, 0, 0, "", false, ""}},
		{"PMI_RANK=1 PMI_SIZE=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0", Job{"mpirun", 1, 2, 0, 0, "", false, ""}}, // ranks of which are others
		{ompi + " " + batch, Job{"mpirun", 3, 4, 3, 4, "127.0.0.1:24824", false, "12345"}},                                                                       // mpirun within sbatch
		// MPICH's mpirun within sbatch, one rank on each machine: the numbers are those of its srun.
		{"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0", Job{"mpirun", 1, 2, 0, 1, "", false, ""}},
		// The first and only rank, however it is started.
		{"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1", Job{"torchrun", 0, 1, 0, 1, "a:1", false, ""}},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1", Job{"mpirun", 0, 1, 0, 1, "", false, ""}},
		{"PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_PORT=5", Job{"mpirun", 0, 1, 0, 1, "127.0.0.1:5", false, ""}},
		{"SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NODELIST=r[1-2]n[1-4] MASTER_PORT=5", Job{"Slurm", 0, 1, 0, 0, "", false, "7.1"}},
		// mpirun's first rank need not be on the first machine of the Slurm step that mpirun runs in.
		{"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=12345 SLURM_STEP_NODELIST=gpu[017-018]", Job{"mpirun", 3, 4, 1, 2, "", false, "12345"}},
		{hydra + " MASTER_ADDR=a", Job{"mpirun", 1, 2, 0, 1, "", false, ""}}, // no port
		{torch + " " + srun, Job{"torchrun", 5, 8, 1, 4, "10.0.0.7:29500", true, "none.2"}},
	} {
		if got, err := FromEnvironment(env(c.env)); err != nil || got != c.want {
			t.Errorf("%s:\n%+v, %v; want\n%+v", c.env, got, err, c.want)
		}
	}
	for _, c := range []struct{ env, want string }{
		{"RANK=1", "torchrun: WORLD_SIZE is not set"},
		{"WORLD_SIZE=2", "RANK is not set"},
		{"RANK=x WORLD_SIZE=2", `RANK is "x"`},
		{"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1", "rank 2 of 2"},
		{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "LOCAL_RANK is not set"},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", "MASTER_ADDR is not set"},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a", "MASTER_PORT is not set"},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT is 70000"},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=65536", "MASTER_PORT is 65536"},
		{"RANK=5 WORLD_SIZE=8 LOCAL_RANK=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=65535", "rank 5 of 8, and 4 of 4 on its machine"},
		{"OMPI_COMM_WORLD_SIZE=2", "mpirun: OMPI_COMM_WORLD_RANK is not set"},
		{"PMI_RANK=0 PMI_SIZE=0", `PMI_SIZE is "0"`},
		{"OMPI_COMM_WORLD_RANK=0", "mpirun: OMPI_COMM_WORLD_SIZE is not set"},
		{"PMI_SIZE=2", "mpirun: PMI_RANK is not set"},
		{"PMI_RANK=0", "mpirun: PMI_SIZE is not set"},
		{"RANK=-1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1", `RANK is "-1"; want a number from 0`},
		{"SLURM_STEP_NUM_TASKS=0 SLURM_PROCID=0 SLURM_LOCALID=0", `SLURM_STEP_NUM_TASKS is "0"`},
		{"SLURM_STEP_NUM_TASKS=4", "Slurm: SLURM_PROCID is not set"},
	} {
		if j, err := FromEnvironment(env(c.env)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", c.env, j, err, c.want)
		}
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"n1": "n1", "n1,n2": "n1", "gpu[017-020,3],login1": "gpu017", "gpu[3,5-9]": "gpu3", "a[1-2]-ib,b": "a1-ib",
		"login,gpu[1-2]": "login", "r[1-2]n[1-4]": "", "bad[": "", "": "",
	} {
		if got := firstHost(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

func TestBackend(t *testing.T) {
	for _, c := range []struct {
		env, device string
		mpi         bool
		library     string
		want        string // or words of the error
	}{
		{"", "cuda", false, "", "local"},
		{torch, "cuda", false, "", "nccl"},
		{torch, "cpu", true, "", "start them with mpirun"},
		{torch, "cpu", false, "/tmp/libtest.so", "nccl"},
		{ompi, "cpu", true, "", "mpi"},
		{ompi, "cpu", false, "", "go build -tags mpi"},
		{ompi, "cuda", true, "", "nccl"},
		{hydra, "cuda", true, "", "set MASTER_ADDR"},
		{srun, "cuda", false, "", "nccl"},
		{srun, "cpu", true, "", "mpi"},
	} {
		j, err := FromEnvironment(env(c.env))
		if err != nil {
			t.Fatal(err)
		}
		got, err := j.Backend(c.device, c.mpi, c.library)
		if err != nil {
			got = err.Error()
		}
		if wantErr := strings.Contains(c.want, " "); (err != nil) != wantErr || !wantErr && got != c.want || !strings.Contains(got, c.want) {
			t.Errorf("%s on %s: %q, want %q", j.Launcher, c.device, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	j, err := FromEnvironment(env(hydra))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Check("MPI", 2); err != nil {
		t.Error(err)
	}
	if err := j.Check("MPI", 1); err == nil || !strings.Contains(err.Error(), "mpirun has started 2 processes, but MPI sees 1: is it another MPI's mpirun?") {
		t.Error(err)
	}
	if j, err = FromEnvironment(env(srun)); err != nil {
		t.Fatal(err)
	}
	if err := j.Check("MPI", 1); err == nil || !strings.Contains(err.Error(), "Slurm has started 16 processes, but MPI sees 1: try srun --mpi=pmix") {
		t.Error(err)
	}
	if err := (Job{Size: 1}).Check("MPI", 2); err != nil { // started alone, by what says nothing
		t.Error(err)
	}
}

func ExampleFromEnvironment() {
	vars := map[string]string{
		"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500",
	}
	j, err := FromEnvironment(func(name string) string { return vars[name] })
	if err != nil {
		fmt.Println(err)
		return
	}
	backend, err := j.Backend("cuda", false, "")
	fmt.Println(j.Rank, "of", j.Size, "by", j.Launcher, "over", backend, "at", j.Master, err)
	// Output:
	// 5 of 8 by torchrun over nccl at gpu1:29500 <nil>
}
