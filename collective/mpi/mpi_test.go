package mpi_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/collectivetest"
	"contraflow/collective/mpi"
	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// The test binary is its own rank: TestMain looks for the work that the launcher below names in the environment.
const work = "CONTRAFLOW_MPI_TEST"

func TestMain(m *testing.M) {
	if w := os.Getenv(work); w != "" {
		if err := rank(w); err != nil {
			fmt.Fprintf(os.Stderr, "FOUND %v\n", err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func rank(w string) error {
	deadline := time.Minute
	names := strings.Split(w, ",")
	cases := collectivetest.Cases()
	ends := false
	for _, c := range cases {
		ends = ends || c.Ends && c.Name == w
	}
	if ends || w == "finalize" {
		deadline = collectivetest.Patience
	}
	world, err := mpi.Open(context.Background(), mpi.Deadline(deadline))
	if err != nil {
		return err
	}
	if w == "kill" {
		signal.Ignore(syscall.SIGTERM) // mpirun's, when one has died: there is something to say first
		return untilKilled(world)
	}
	if w == "finalize" {
		return world.Close()
	}
	if w == "large" {
		return large(world)
	}
	if n, err := strconv.Atoi(w); err == nil {
		return bench(world, n)
	}
	ran := 0
	for _, c := range cases {
		if !slices.Contains(names, c.Name) {
			continue
		}
		if err := c.Run(world, ref.New()); err != nil {
			return fmt.Errorf("rank %d: %w", world.Rank(), err)
		}
		ran++
	}
	if ran != len(names) {
		return fmt.Errorf("ran %d of %v", ran, names)
	}
	fmt.Printf("DONE %d\n", world.Rank())
	if ends { // as the others may not have said so yet when mpirun ends them
		time.Sleep(time.Second)
	}
	return world.Close()
}

// untilKilled communicates until a rank has been killed from outside.
func untilKilled(w collective.World) error {
	fmt.Printf("PID %d %d\n", w.Rank(), os.Getpid())
	s, err := ref.New().OpenStream()
	if err != nil {
		return err
	}
	x, err := tensor(s, 100_000)
	if err != nil {
		return err
	}
	for {
		for range 10 {
			w.AllReduce(s, x, x.DType)
		}
		if err := s.Sync(); err != nil {
			return err
		}
		if _, err := w.Exchange(context.Background(), nil); err != nil {
			return err
		}
	}
}

// large sends more elements than MPI counts, in memory that nobody touches.
func large(w collective.World) error {
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	x, err := gpustage.NewTensor(d, gpustage.F32, 1, 1<<31)
	if err != nil {
		return err
	}
	w.Broadcast(s, x, 0)
	return s.Sync()
}

// bench prints how long an all-reduce of n elements takes.
func bench(w collective.World, n int) error {
	d, err := cpu.New(cpu.Threads(1))
	if err != nil {
		return err
	}
	defer d.Close()
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
	if err != nil {
		return err
	}
	const rounds = 30
	best := time.Hour
	for range rounds {
		if _, err := w.Exchange(context.Background(), nil); err != nil {
			return err
		}
		start := time.Now()
		w.AllReduce(s, x, gpustage.F32)
		if err := s.Sync(); err != nil {
			return err
		}
		best = min(best, time.Since(start))
	}
	if w.Rank() == 0 {
		fmt.Printf("BEST %d\n", best.Nanoseconds())
	}
	return w.Close()
}

// program builds the test binary with MPI, unless this one is.
func program(t testing.TB) string {
	t.Helper()
	for _, tool := range []string{launcher(), "gcc", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			harness.Missing(t, "no %s: apt-get install libopenmpi-dev openmpi-bin gcc pkg-config", tool)
		}
	}
	if mpi.Available {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return exe
	}
	exe := filepath.Join(t.TempDir(), "mpi.test")
	tags := "mpi"
	if !openMPI() {
		tags = "mpi,mpich"
	}
	build := exec.Command("go", "test", "-c", "-tags", tags, "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return exe
}

// launcher is MPIRUN, or mpirun.
func launcher() string { return cmp.Or(os.Getenv("MPIRUN"), "mpirun") }

// openMPI tells whose launcher it is.
var openMPI = sync.OnceValue(func() bool {
	out, _ := exec.Command(launcher(), "--version").Output()
	return bytes.Contains(out, []byte("Open MPI"))
})

// mpirun is a run of the binary as n ranks.
func mpirun(ctx context.Context, exe, w string, n int) *exec.Cmd {
	args := []string{"-n", strconv.Itoa(n), exe}
	if openMPI() {
		args = append([]string{"--allow-run-as-root", "--oversubscribe"}, args...)
	}
	cmd := exec.CommandContext(ctx, launcher(), args...)
	harness.Tied(cmd)
	cmd.Env = append(os.Environ(), work+"="+w)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // which it passes on
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func TestConformance(t *testing.T) {
	exe := program(t)
	var together []string
	for _, c := range collectivetest.Cases() {
		if !c.Ends {
			together = append(together, c.Name)
		}
	}
	run := func(w string, n int) {
		t.Run(fmt.Sprintf("%s on %d", w, n), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			out, err := mpirun(ctx, exe, w, n).CombinedOutput()
			// A job that was ended on purpose is not finalized, and mpirun says so.
			if got := bytes.Count(out, []byte("DONE")); got != n || bytes.Contains(out, []byte("FOUND")) || err != nil && strings.Contains(w, ",") {
				t.Errorf("%d of %d ranks are done: %v\n%s", got, n, err, out)
			}
		})
	}
	for _, n := range []int{1, 2, 4, 5} {
		run(strings.Join(together, ","), n)
	}
	for _, c := range collectivetest.Cases() {
		if c.Ends {
			run(c.Name, 4)
		}
	}
}

// A rank that is killed ends the job in time, on every rank, and everybody says which it was.
func TestKill(t *testing.T) {
	exe := program(t)
	const n = 4
	for victim := range n {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := mpirun(ctx, exe, "kill", n)
		var out harness.Output
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := 0
		for pid == 0 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			text := out.String()
			if strings.Count(text, "PID") == n {
				for line := range strings.Lines(text) {
					var r, p int
					if _, err := fmt.Sscanf(line, "PID %d %d", &r, &p); err == nil && r == victim {
						pid = p
					}
				}
			}
		}
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		p, err := os.FindProcess(pid)
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			t.Fatalf("killing %d: %v\n%s", pid, err, out.String())
		}
		start := time.Now()
		err = cmd.Wait()
		took := time.Since(start)
		said := strings.Count(out.String(), fmt.Sprintf("FOUND rank %d: its process has ended", victim))
		t.Logf("rank %d killed: %v after %v, %d of the others said so", victim, err, took.Round(time.Millisecond), said)
		named := said > 0 // mpirun's own words do not count
		if !openMPI() {
			named = true // MPICH aborts survivors that look into the dead one's memory, and its launcher names no rank
		}
		if err == nil || took > 10*time.Second || !named {
			t.Errorf("rank %d killed: %v after %v\n%s", victim, err, took, out.String())
		}
	}
}

// MPI's counts have 31 bits: what has more is an error with a way out.
func TestLarge(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := mpirun(ctx, program(t), "large", 2).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("FOUND")) || !bytes.Contains(out, []byte("here are 2147483648: mesh.parameters: streamed")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// MPI's own end has a deadline, too: it may wait for a process that has been killed just before.
func TestFinalizeForEver(t *testing.T) {
	exe := program(t)
	source, lib := filepath.Join(t.TempDir(), "stuck.c"), filepath.Join(t.TempDir(), "stuck.so")
	if err := os.WriteFile(source, []byte("#include <unistd.h>\nint MPI_Finalize(void) { for (;;) pause(); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := mpirun(ctx, exe, "finalize", 2)
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+lib)
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil || !bytes.Contains(out, []byte("FOUND MPI_Finalize has not ended within 1s")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Under srun without what MPI needs of it, each process would be alone, or Open MPI ends it with advice that does not help: what does is said.
func TestSrunWithoutPMIx(t *testing.T) {
	cmd := exec.Command(program(t))
	cmd.Env = append(os.Environ(), work+"=AllReduce", "SLURM_JOB_ID=7", "SLURM_JOBID=7", "SLURM_STEP_ID=0", "SLURM_STEPID=0", "SLURM_NTASKS=2", "SLURM_STEP_NUM_TASKS=2",
		"SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_NODELIST=here", "SLURM_NODELIST=here")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("try srun --mpi=pmix")) || bytes.Contains(out, []byte("DONE")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func BenchmarkAllReduce(b *testing.B) {
	exe := program(b)
	for _, n := range []int{1, 1 << 14, 1 << 20, 22 << 20} {
		b.Run(fmt.Sprintf("2 ranks/%d", n), func(b *testing.B) {
			for b.Loop() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				out, err := mpirun(ctx, exe, strconv.Itoa(n), 2).CombinedOutput()
				ns := 0
				if i := bytes.Index(out, []byte("BEST ")); i >= 0 {
					fmt.Sscanf(string(out[i:]), "BEST %d", &ns)
				}
				if err != nil || ns == 0 {
					b.Fatalf("%v\n%s", err, out)
				}
				b.ReportMetric(float64(ns)/1e3, "us/all-reduce")
			}
		})
	}
}

func TestUnavailable(t *testing.T) {
	if mpi.Available {
		t.Skip("this program has MPI")
	}
	if _, err := mpi.Open(context.Background()); !errors.Is(err, mpi.ErrUnavailable) || !strings.Contains(err.Error(), "-tags mpi") {
		t.Errorf("%v", err)
	}
}

func tensor(s gpustage.Stream, n int) (gpustage.Tensor, error) {
	return gpustage.NewTensor(s.Device(), gpustage.F32, 1, n)
}
