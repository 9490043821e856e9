package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// withMPI is this program built with MPI.
var withMPI = sync.OnceValues(func() (string, error) {
	for _, tool := range []string{"mpirun", "mpicc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w: apt-get install libopenmpi-dev openmpi-bin", err)
		}
	}
	bin := filepath.Join(built, "contraflow-mpi")
	if out, err := exec.Command("go", "build", "-tags", "mpi", "-o", bin, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build -tags mpi: %w\n%s", err, out)
	}
	return bin, nil
})

// mpirun is a command that runs this program as so many ranks, all of them on this machine.
func mpirun(t *testing.T, ctx context.Context, parts ...[]string) *exec.Cmd {
	t.Helper()
	bin, err := withMPI()
	if err != nil {
		harness.Missing(t, "%v", err)
	}
	args := []string{"--allow-run-as-root", "--oversubscribe"}
	for i, p := range parts {
		if i > 0 {
			args = append(args, ":")
		}
		args = append(append(append(args, "-n", p[0]), bin), p[1:]...)
	}
	cmd := exec.CommandContext(ctx, "mpirun", args...)
	harness.Tied(cmd)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // which it passes on; killed, it would leave its ranks
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "OMPI_MCA_btl_vader_single_copy_mechanism=none") // containers forbid it, loudly
	return cmd
}

// Four processes train what four local ranks train, and what one does.
func TestMPITrains(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	train := func(out string, sets ...string) []string {
		args := []string{"train", "--log", "human", "-c", at("recipe.yaml"), "--out", at(out), "--set", "train.epochs=2", "--set", "batch.sub_batch={rows: 3}"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return args
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for i, sets := range [][]string{nil, {"mesh.shard=2"}} {
		out := fmt.Sprint("mpi", i)
		if text, err := mpirun(t, ctx, append([]string{"4"}, train(out, sets...)...)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	succeed(t, train("one")...)
	succeed(t, train("local", "mesh.replicate=4")...)
	one := losses(t, at("one/metrics.jsonl"))
	if len(one) != 20 {
		t.Fatalf("%d steps, want 20", len(one))
	}
	for _, out := range []string{"local", "mpi0", "mpi1"} {
		sameLosses(t, out, one, losses(t, at(out+"/metrics.jsonl")))
	}
	// Sums have the order of ranks everywhere: four processes have the bits of four goroutines.
	if a, b := losses(t, at("local/metrics.jsonl")), losses(t, at("mpi0/metrics.jsonl")); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("losses of 4 processes %v, of 4 local ranks %v", b, a)
	}
}

// The quickstart's own recipe and data, in a folder that CONTRAFLOW_QUICKSTART names, give the losses of one rank on 4 local ranks and on 4
// processes.
func TestMPITrainsQuickstart(t *testing.T) {
	folder := os.Getenv("CONTRAFLOW_QUICKSTART")
	if folder == "" {
		harness.Missing(t, "CONTRAFLOW_QUICKSTART names no folder that contraflow quickstart has made")
	}
	dir := t.TempDir()
	train := func(out string, sets ...string) []string {
		args := []string{"train", "--log", "human", "-c", filepath.Join(folder, "recipe.yaml"), "--out", filepath.Join(dir, out)}
		for _, s := range append(sets, "train.max_steps=20", "batch.global_size=64", "batch.sub_batch={rows: 11}", "eval={every: 0}", "save.best=false") {
			args = append(args, "--set", s)
		}
		return args
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if text, err := mpirun(t, ctx, append([]string{"4"}, train("mpi")...)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	succeed(t, train("one")...)
	succeed(t, train("local", "mesh.replicate=4")...)
	one := losses(t, filepath.Join(dir, "one", "metrics.jsonl"))
	if len(one) != 20 {
		t.Fatalf("%d steps, want 20", len(one))
	}
	for _, out := range []string{"local", "mpi"} {
		worst := sameLosses(t, out, one, losses(t, filepath.Join(dir, out, "metrics.jsonl")))
		t.Logf("%s: losses differ by %.2g of one rank's at most", out, worst)
	}
}

// Of several ranks on a machine one serves metrics.
func TestMPIMetrics(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addr := fmt.Sprint("127.0.0.1:", harness.FreePort(t))
	dir := workspace(t)
	text, err := mpirun(t, ctx, []string{
		"2", "train", "--log", "human", "-c", filepath.Join(dir, "recipe.yaml"), "--set", "train.max_steps=2", "--set", "eval={every: 0}", "--metrics-addr", addr,
	}).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// Under mpirun verify-grads verifies the job's own mesh, once, and finds what is wrong with how its ranks exchange.
func TestMPIVerify(t *testing.T) {
	args := []string{"2", "verify-grads", "-c", filepath.Join(workspace(t), "recipe.yaml"), "--accumulate", "1", "--sub-batch", "5", "--rows", "6", "--set", "mesh.wire=bf16"}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	text, err := mpirun(t, ctx, args).CombinedOutput()
	if all := strings.Count(string(text), "all gradients agree"); err != nil || all != 1 || strings.Count(string(text), "mesh 2 x 1, ") != 4 {
		t.Errorf("%v\n%s", err, text)
	}
	text, err = mpirun(t, ctx, append(args, "--plant", "sync")).CombinedOutput()
	if n := strings.Count(string(text), "WRONG"); err == nil || n != 8 || strings.Count(string(text), "on rank 1: ") != 4 || strings.Count(string(text), "gradients are wrong") != 1 {
		t.Errorf("%d are wrong: %v\n%s", n, err, text)
	}
	text, err = mpirun(t, ctx, append(args, "--replicas", "3")).CombinedOutput()
	if err == nil || !strings.Contains(string(text), "the job has 2 ranks, and none of the meshes of [3] replicas x [1] shards does") {
		t.Errorf("%v\n%s", err, text)
	}
}

// A rank that is killed takes the job down within 10 s, and the other ranks say which it was: at a random moment after the first step, or
// every fifth time before it. Before ranks have found each other nobody but the launcher can know.
func TestMPIKill(t *testing.T) {
	kills := 5
	if os.Getenv("CI") == "true" {
		kills = 20
	}
	dir := workspace(t)
	var longest time.Duration
	survivors := 0
	for i := range kills {
		out := filepath.Join(dir, fmt.Sprint("killed", i))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := mpirun(t, ctx, []string{
			"4", "train", "--log", "human", "-c", filepath.Join(dir, "recipe.yaml"), "--out", out,
			"--set", "train.epochs=100000", "--set", "batch.no_duplicates=false", "--set", "eval.every=0", // without a pass over each epoch
		})
		job := harness.Start(t, cmd)
		var ranks map[string]int
		job.Until(t, "all ranks were there", func() bool {
			ranks = ranksOf(t, cmd)
			return len(ranks) == 4
		})
		training := i%5 != 4
		if training {
			job.Until(t, "the first step", func() bool {
				info, err := os.Stat(filepath.Join(out, "metrics.jsonl"))
				return err == nil && info.Size() > 0
			})
		}
		time.Sleep(rand.N(400 * time.Millisecond))
		rank := fmt.Sprint(rand.IntN(4))
		killed := time.Now()
		if process, err := os.FindProcess(ranks[rank]); err != nil {
			t.Fatal(err)
		} else if err := process.Kill(); err != nil {
			t.Fatal(err)
		}
		left := false
		if !training {
			left = endWithRanks(t, job)
		}
		err := <-job.Ended
		cancel()
		took := time.Since(killed)
		if left { // by all its ranks, so many seconds ago
			took -= patience
		}
		longest = max(longest, took)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || took > 10*time.Second {
			t.Errorf("kill %d of rank %s: the job ended after %v: %v", i, rank, took, err)
		}
		text := job.Said.String()
		said := strings.Count(text, "contraflow: rank "+rank+": its process has ended")
		if training {
			survivors += said
			if said == 0 {
				t.Errorf("kill %d: no other rank says that rank %s has ended:\n%s", i, rank, text)
			}
		} else if said == 0 && !strings.Contains(text, "process rank "+rank+" with PID") {
			t.Errorf("kill %d, before the first step: nobody names rank %s:\n%s", i, rank, text)
		}
	}
	t.Logf("%d kills: the longest took %v; %d times another rank said which it was, of %d that could", kills, longest.Round(time.Millisecond), survivors, 3*(kills-kills/5))
}

// Killed at random moments, a rank of two each time, and resumed, a job ends with the weights of one that was never stopped.
func TestMPIKillAndResume(t *testing.T) {
	killAndResume(t, workspace(t), kills(), func(args []string) *exec.Cmd {
		return mpirun(t, t.Context(), append([]string{"2"}, args...))
	}, func(job *harness.Program) {
		// Before it has started all its ranks mpirun is left alone: killed, it would leave what it is about to start; told to end, or robbed of
		// the first one before it starts the second, it may never end.
		for job.Process.Signal(syscall.Signal(0)) == nil { // until it is over
			if ranks := ranksOf(t, job.Cmd); len(ranks) == 2 {
				if p, err := os.FindProcess(ranks[fmt.Sprint(rand.IntN(2))]); err == nil {
					p.Kill()
				}
				endWithRanks(t, job)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// patience is how long an mpirun may outlive its ranks.
const patience = 10 * time.Second

// endWithRanks waits for an mpirun, and kills it if it outlives its ranks, of which one was killed: if that was connecting to it, Open MPI's says
// "PMIX ERROR: UNREACHABLE", keeps a lock, and waits for that lock when it ends (4.1.4, PMIx_server_finalize). That the ranks end is ours.
func endWithRanks(t *testing.T, mpirun *harness.Program) (killed bool) {
	t.Helper()
	last := time.Now() // when a rank was alive
	for begin := last; mpirun.Process.Signal(syscall.Signal(0)) == nil && time.Since(begin) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if len(ranksOf(t, mpirun.Cmd)) > 0 {
			last = time.Now()
		} else if time.Since(last) > patience {
			mpirun.Process.Kill()
			t.Logf("mpirun had not ended %v after its last rank, and was killed; it said:\n%s", patience, mpirun.Said)
			return true
		}
	}
	return false
}

// Four processes, told to end in the middle, are gone on with by two, by one and by three, to the losses of one rank that was never
// stopped. Which rows each step had is TestResumeOnAnyMesh's, in stages/recipe.
func TestMPIResumeOnAnotherMesh(t *testing.T) {
	dir := workspace(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	at := func(out string) string { return filepath.Join(dir, out, "metrics.jsonl") }
	run := func(out string) []string { return resumable(t, dir, out, "train.epochs=10") } // 70 steps, so that there are some left to stop
	succeed(t, run("whole")...)
	whole := losses(t, at("whole"))

	job := harness.Start(t, mpirun(t, ctx, append([]string{"4"}, run("stopped")...)))
	job.Until(t, "the fourth step", func() bool {
		lines, _ := os.ReadFile(at("stopped"))
		return bytes.Count(lines, []byte("\n")) >= 4
	})
	ranks := ranksOf(t, job.Cmd)
	if len(ranks) == 0 {
		t.Fatalf("mpirun has no ranks\n%s", job.Said)
	}
	for _, pid := range ranks { // not by mpirun, which passes it on a second later, when a fast machine has made all the steps
		if rank, err := os.FindProcess(pid); err == nil {
			rank.Signal(syscall.SIGTERM)
		}
	}
	<-job.Ended // mpirun may say that its ranks were told to end; the checkpoint says whether all was well
	done := len(losses(t, at("stopped")))
	t.Logf("told to end after the fourth, it ended after step %d of %d", done, len(whole))
	if done >= len(whole) {
		t.Fatalf("all %d steps were made before it was told to end", done)
	}
	for _, ranks := range []string{"2", "1", "3"} {
		out := "on" + ranks
		if err := os.CopyFS(filepath.Join(dir, out), os.DirFS(filepath.Join(dir, "stopped"))); err != nil {
			t.Fatal(err)
		}
		text, err := mpirun(t, ctx, append(append([]string{ranks}, run(out)...), "--resume")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if want := fmt.Sprint("going on after step ", done); !strings.Contains(string(text), want) {
			t.Errorf("on %s ranks: it does not say %q:\n%s", ranks, want, text)
		}
		sameLosses(t, fmt.Sprintf("gone on with on %s ranks", ranks), whole, losses(t, at(out)))
	}
}

// ranksOf are the processes that mpirun has started as this program, by rank.
func ranksOf(t *testing.T, mpirun *exec.Cmd) map[string]int {
	t.Helper()
	ranks := map[string]int{}
	for _, pid := range children(t, mpirun.Process.Pid) {
		if r := rankOf(pid); r != "" {
			ranks[r] = pid
		}
	}
	return ranks
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // of a thread that may have ended
		for _, f := range strings.Fields(string(raw)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}

// rankOf reads a process's rank from its environment, once it has one.
func rankOf(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, v := range strings.Split(string(raw), "\x00") {
		if r, ok := strings.CutPrefix(v, "OMPI_COMM_WORLD_RANK="); ok {
			return r
		}
	}
	return ""
}

// Ranks that were started with different things say so, naming both sides, and do not wait for each other.
func TestMPIDisagree(t *testing.T) {
	dir, other := workspace(t), workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, filepath.Join(other, "train.parquet"), []string{"query", "positive", "negative"},
		repeat("another query %d", 160), repeat("another answer %d", 160), repeat("something else %d", 160))
	base := []string{"train", "--log", "human", "-c", at("recipe.yaml"), "--out", at("out")}
	streamed := append(slices.Clone(base), "--set", "mesh.shard=2", "--set", "mesh.parameters=streamed")
	changed := otherWeights(t)
	for name, c := range map[string]struct {
		second []string
		want   []string
	}{
		"weights":               {append(slices.Clone(base), "--set", "model.path="+changed), []string{"the model is", "on rank 0", "on rank 1"}},
		"streamed weights":      {append(slices.Clone(streamed), "--set", "model.path="+changed), []string{"the model is", "on rank 0", "on rank 1"}},
		"recipe":                {append(slices.Clone(base), "--set", "optimizer.lr=1e-4"), []string{"optimizer.lr is 0.001 on rank 0, 0.0001 on rank 1"}},
		"saving":                {append(slices.Clone(base), "--set", "save.every=3"), []string{"save.every is 500 on rank 0, 3 on rank 1"}},
		"a key that is not set": {append(slices.Clone(base), "--set", "mesh.bucket=4KiB"), []string{"mesh.bucket is not set on rank 0, 4KiB on rank 1"}},
		"dataset":               {[]string{"train", "--log", "human", "-c", filepath.Join(other, "recipe.yaml"), "--out", at("out")}, []string{"the dataset is", "on rank 0", "on rank 1"}},
		"size":                  {append(slices.Clone(base), "--set", "mesh.replicate=3"), []string{"mesh: 3 x 1", "3 ranks, the job has 2"}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		first := base
		if slices.Contains(c.second, "mesh.parameters=streamed") {
			first = streamed
		}
		var said sayings
		cmd := mpirun(t, ctx, append([]string{"1"}, first...), append([]string{"1"}, c.second...))
		cmd.Stdout, cmd.Stderr = &said, &said
		err := cmd.Run()
		// Ranks take as long to begin as the machine lets them. Then they say what is wrong, long before mesh.deadline is over, and end by themselves, which else they are made to after toEnd.
		if took := time.Since(said.first); err == nil || ctx.Err() != nil || took > toEnd {
			t.Errorf("%s: ended %v after it was said why, with %v, %v", name, took, err, ctx.Err())
		}
		cancel()
		for _, w := range c.want {
			if !strings.Contains(string(said.text), w) {
				t.Errorf("%s: the message lacks %q:\n%s", name, w, said.text)
			}
		}
	}
}

// sayings are what processes print, and when the first of them said what is wrong.
type sayings struct {
	text  []byte
	first time.Time
}

func (s *sayings) Write(p []byte) (int, error) {
	s.text = append(s.text, p...)
	if s.first.IsZero() && bytes.Contains(s.text, []byte("contraflow: ")) {
		s.first = time.Now()
	}
	return len(p), nil
}

// otherWeights is the workspace's model with another bit.
func otherWeights(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "model.safetensors")
	weights, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	weights[len(weights)/2] ^= 1
	if err := os.WriteFile(file, weights, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func repeat(format string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}
