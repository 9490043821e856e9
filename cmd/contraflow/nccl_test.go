//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"contraflow/testdata/harness"
)

// testNCCL is the library that stands in for NCCL: see package nccl.
var testNCCL = sync.OnceValues(func() (string, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", fmt.Errorf("%w: apt-get install gcc", err)
	}
	file := filepath.Join(filepath.Dir(binary), "libtestnccl.so")
	source := filepath.Join("..", "..", "collective", "nccl", "testlib", "testnccl.c")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-pthread", "-o", file, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
})

// underTorchrun starts this program as torchrun would start so many ranks.
func underTorchrun(t *testing.T, n int, args ...string) (cmds []*exec.Cmd, said []*bytes.Buffer) {
	t.Helper()
	library, err := testNCCL()
	if err != nil {
		harness.Missing(t, "%v", err)
	}
	port := strconv.Itoa(harness.FreePort(t))
	for rank := range n {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "CONTRAFLOW_NCCL="+library, "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
			fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_RANK=", rank), fmt.Sprint("LOCAL_WORLD_SIZE=", n))
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
		t.Cleanup(func() {
			timer.Stop()
			cmd.Process.Kill()
		})
		cmds, said = append(cmds, cmd), append(said, out)
	}
	return cmds, said
}

// Four processes that talk through the NCCL binding train what one process trains, whatever they hold of the model.
func TestNCCLTrains(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	train := func(out string, sets ...string) []string {
		args := []string{"train", "--log", "human", "-c", at("recipe.yaml"), "--out", at(out), "--set", "train.epochs=2", "--set", "batch.sub_batch={rows: 3}"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return args
	}
	succeed(t, train("one")...)
	one := losses(t, at("one/metrics.jsonl"))
	if len(one) != 20 {
		t.Fatalf("%d steps, want 20", len(one))
	}
	for i, sets := range [][]string{nil, {"mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"}} {
		out := fmt.Sprint("nccl", i)
		cmds, said := underTorchrun(t, 4, train(out, sets...)...)
		for rank, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Fatalf("rank %d: %v\n%s", rank, err, said[rank])
			}
		}
		sameLosses(t, fmt.Sprint(sets), one, losses(t, at(out+"/metrics.jsonl")))
	}
}

// A rank that is told to stop makes all of them end with the step at hand, having written a checkpoint.
func TestNCCLStopped(t *testing.T) {
	dir := workspace(t)
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		out := filepath.Join(dir, "stopped by "+sig.String())
		cmds, said := underTorchrun(t, 4, "train", "--log", "human", "-c", filepath.Join(dir, "recipe.yaml"), "--out", out, "--set", "train.epochs=100000", "--set", "eval.every=0")
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // until steps are done
			if info, err := os.Stat(filepath.Join(out, "metrics.jsonl")); err == nil && info.Size() > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no step in a minute: %s", said[0].String())
			}
		}
		if err := cmds[2].Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for rank, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v on rank 2: rank %d: %v\n%s", sig, rank, err, said[rank])
			}
		}
		if _, err := os.Stat(filepath.Join(out, "checkpoints", "LATEST")); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%v: it took %v", sig, took)
		}
	}
}
