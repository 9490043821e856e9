//go:build linux && (amd64 || arm64)

package nccl_test

import (
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
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/collectivetest"
	"contraflow/collective/launch"
	"contraflow/collective/nccl"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// The test binary is its own rank: TestMain looks for the work that the tests below name in the environment.
const work = "CONTRAFLOW_NCCL_TEST"

func TestMain(m *testing.M) {
	if w := os.Getenv(work); w != "" {
		if err := rank(w); err != nil {
			fmt.Printf("FOUND %v\n", err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	code := m.Run()
	if libraryFolder != "" {
		os.RemoveAll(libraryFolder)
	}
	os.Exit(code)
}

func rank(w string) error {
	deadline := time.Minute
	names := strings.Split(w, ",")
	for _, c := range collectivetest.Cases() {
		if c.Ends && c.Name == w || w == "stuck" {
			deadline = collectivetest.Patience
		}
	}
	job, err := launch.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	world, err := nccl.Open(ctx, job, nccl.Deadline(deadline), nccl.OnDevice(func() error { return nil }))
	if err != nil {
		return err
	}
	switch w {
	case "kill":
		return untilKilled(world)
	case "stuck":
		return stuck(world)
	}
	device := gpustage.Device(ref.New())
	if os.Getenv(onQueue) != "" {
		device = queueDevice{Device: collectivetest.Apart(device), world: world}
	}
	for _, c := range collectivetest.Cases() {
		if slices.Contains(names, c.Name) {
			if err := c.Run(world, device); err != nil {
				return fmt.Errorf("rank %d: %w", world.Rank(), err)
			}
			names = slices.DeleteFunc(names, func(n string) bool { return n == c.Name })
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("no cases %v", names)
	}
	if err := world.Close(); err != nil {
		return err
	}
	fmt.Printf("DONE %d\n", job.Rank)
	return nil
}

func untilKilled(w collective.World) error {
	s, err := ref.New().OpenStream()
	if err != nil {
		return err
	}
	x, err := gpustage.NewTensor(s.Device(), gpustage.F32, 1, 100_000)
	if err != nil {
		return err
	}
	fmt.Printf("READY %d\n", w.Rank())
	for {
		for range 10 {
			w.AllReduce(s, x, gpustage.F32)
		}
		if err := s.Sync(); err != nil {
			return err
		}
		if _, err := w.Exchange(context.Background(), nil); err != nil {
			return err
		}
	}
}

// onQueue has ranks use a device with memory and streams like a GPU's, as far as the binding can tell.
const onQueue = "CONTRAFLOW_NCCL_TEST_QUEUE"

type queueDevice struct {
	gpustage.Device
	world collective.World
	stuck bool // what is recorded never comes, unless the job fails
}

func (d queueDevice) OpenStream() (gpustage.Stream, error) {
	s, err := d.Device.OpenStream()
	return queueStream{s, d}, err
}

type queueStream struct {
	gpustage.Stream
	device queueDevice
}

func (s queueStream) Device() gpustage.Device { return s.device }
func (s queueStream) Handle() uintptr         { return 1 }
func (s queueStream) Record() gpustage.Event  { return queueEvent{s.device} }

type queueEvent struct{ device queueDevice }

func (e queueEvent) Sync() error {
	for e.device.stuck && e.device.world.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// stuck is a job in which one rank's GPU does not get through a collective, though all ranks have come to it.
func stuck(w collective.World) error {
	s, err := queueDevice{Device: collectivetest.Apart(ref.New()), world: w, stuck: w.Rank() == 1}.OpenStream()
	if err != nil {
		return err
	}
	x, err := gpustage.NewTensor(s.Device(), gpustage.F32, 1, 100)
	if err != nil {
		return err
	}
	w.AllReduce(s, x, gpustage.F32)
	if err := s.Sync(); err != nil {
		return err
	}
	start := time.Now()
	for w.Err() == nil && time.Since(start) < 30*time.Second {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond) // for what NCCL is told in the background
	return w.Err()
}

var libraryFolder string

// library builds the test library.
var library = sync.OnceValues(func() (file string, err error) {
	if libraryFolder, err = os.MkdirTemp("", "testnccl"); err != nil {
		return "", err
	}
	file = filepath.Join(libraryFolder, "libtestnccl.so")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-pthread", "-Wall", "-Werror", "-o", file, "testlib/testnccl.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
})

func testLibrary(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		harness.Missing(t, "no gcc to build the library that stands in for NCCL: apt-get install gcc")
	}
	file, err := library()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// ranks starts n processes as torchrun would, and waits for them.
type ranks struct {
	cmds []*exec.Cmd
	out  []*harness.Output
}

func start(t *testing.T, lib, w string, n int) *ranks {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(harness.FreePort(t))
	r := &ranks{}
	for k := range n {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), work+"="+w, "CONTRAFLOW_NCCL="+lib, "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
			"RANK="+strconv.Itoa(k), "WORLD_SIZE="+strconv.Itoa(n), "LOCAL_RANK="+strconv.Itoa(k), "LOCAL_WORLD_SIZE="+strconv.Itoa(n))
		out := new(harness.Output)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		r.cmds, r.out = append(r.cmds, cmd), append(r.out, out)
	}
	return r
}

// wait returns each rank's error, within a limit.
func (r *ranks) wait(limit time.Duration) []error {
	errs := make([]error, len(r.cmds))
	var all sync.WaitGroup
	for k, cmd := range r.cmds {
		all.Go(func() {
			timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
			defer timer.Stop()
			errs[k] = cmd.Wait()
		})
	}
	all.Wait()
	return errs
}

func TestConformance(t *testing.T) {
	lib := testLibrary(t)
	var together []string
	for _, c := range collectivetest.Cases() {
		if !c.Ends {
			together = append(together, c.Name)
		}
	}
	run := func(w string, n int) {
		t.Run(fmt.Sprintf("%s on %d", w, n), func(t *testing.T) {
			r := start(t, lib, w, n)
			for k, err := range r.wait(2 * time.Minute) {
				if text := r.out[k].String(); err != nil || !strings.Contains(text, "DONE") || strings.Contains(text, "FOUND") {
					t.Errorf("rank %d: %v\n%s", k, err, text)
				}
			}
		})
	}
	for _, n := range []int{1, 2, 3, 4} {
		run(strings.Join(together, ","), n)
	}
	t.Setenv(onQueue, "1")
	run(strings.Join(together, ","), 2)
	run("AbortData", 2)
	os.Unsetenv(onQueue)
	for _, c := range collectivetest.Cases() {
		if c.Ends {
			run(c.Name, 4)
		}
	}
	if left, _ := filepath.Glob("/dev/shm/testnccl-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Every other rank names the one that was killed, and ends.
func TestKill(t *testing.T) {
	lib := testLibrary(t)
	const n = 4
	for victim := range n {
		r := start(t, lib, "kill", n)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			ready := 0
			for _, o := range r.out {
				ready += strings.Count(o.String(), "READY")
			}
			if ready == n {
				break
			}
		}
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		start := time.Now()
		if err := r.cmds[victim].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		errs := r.wait(20 * time.Second)
		took := time.Since(start)
		t.Logf("rank %d killed: it took %v", victim, took.Round(time.Millisecond))
		for k, err := range errs {
			text := r.out[k].String()
			if k != victim && (err == nil || !strings.Contains(text, fmt.Sprintf("FOUND rank %d: its process has ended", victim))) {
				t.Errorf("rank %d killed: rank %d: %v\n%s", victim, k, err, text)
			}
		}
		if took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

// What runs on a GPU has a deadline as well, and it does not hold up the host until then.
func TestStuck(t *testing.T) {
	lib := testLibrary(t)
	r := start(t, lib, "stuck", 2)
	for k, err := range r.wait(20 * time.Second) {
		if text := r.out[k].String(); err == nil || !strings.Contains(text, "FOUND rank 1: all-reduce of f32[100] has not ended within 1s, though all ranks have come to it") ||
			strings.Count(text, "ncclCommAbort") != 1 { // or real GPUs would go on waiting
			t.Errorf("rank %d: %v\n%s", k, err, text)
		}
	}
}

// torchrun starts the ranks, and its agent holds the port where they meet. CONTRAFLOW_TORCHRUN names one.
func TestTorchrun(t *testing.T) {
	torchrun := os.Getenv("CONTRAFLOW_TORCHRUN")
	if torchrun == "" {
		t.Skip("CONTRAFLOW_TORCHRUN names no torchrun")
	}
	lib := testLibrary(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range [][]string{{"--standalone"}, {"--master-addr", "127.0.0.1", "--master-port", "29531"}} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, torchrun, append(how, "--nproc-per-node", "3", "--no-python", exe)...)
		cmd.Env = append(os.Environ(), work+"=AllGather,Mesh", "CONTRAFLOW_NCCL="+lib)
		out, err := cmd.CombinedOutput()
		if got := strings.Count(string(out), "DONE"); err != nil || got != 3 {
			t.Errorf("torchrun %v: %d of 3 ranks are done: %v\n%s", how, got, err, out)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := nccl.Open(context.Background(), launch.Job{Size: 1}, nccl.Library("libnothing.so"))
	if !errors.Is(err, nccl.ErrUnavailable) || !strings.Contains(err.Error(), "set CONTRAFLOW_NCCL") {
		t.Errorf("%v", err)
	}
	_, err = nccl.Open(context.Background(), launch.Job{Size: 1}, nccl.Library("libc.so.6"))
	if !errors.Is(err, nccl.ErrUnavailable) || !strings.Contains(err.Error(), "nccl") {
		t.Errorf("%v", err)
	}
}
