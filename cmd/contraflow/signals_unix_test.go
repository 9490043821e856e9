//go:build unix

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"contraflow/testdata/harness"
)

// SIGTERM makes a checkpoint and ends with exit code 0, SIGUSR1 makes one and goes on; damaged checkpoints are named and the one before is
// used; a recipe that has changed in what matters is refused.
func TestSignalsAndDamage(t *testing.T) {
	dir := workspace(t)
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	none := []string{"save.every=0", "train.epochs=15"} // 105 steps: a fast machine is not through before it is told to end
	succeed(t, resumable(t, dir, "whole", none...)...)

	run := harness.Start(t, exec.Command(binary, resumable(t, dir, "run", none...)...))
	run.Until(t, "step 4", func() bool { return strings.Contains(run.Said.String(), "step 4/") })
	run.Process.Signal(syscall.SIGUSR1)
	run.Until(t, "a checkpoint", func() bool { // the next signal is for another step
		_, err := os.Stat(at("run", "checkpoints", "LATEST"))
		return err == nil
	})
	run.Process.Signal(syscall.SIGTERM)
	time.Sleep(time.Millisecond)
	run.Process.Signal(syscall.SIGTERM) // as timeout does, and a terminal whose user is quick: the same request
	if err := <-run.Ended; err != nil || !strings.Contains(run.Said.String(), "stopped after step") || !strings.Contains(run.Said.String(), "asked to end: a checkpoint comes") {
		t.Fatalf("after SIGTERM: %v\n%s", err, run.Said)
	}
	folders, _ := filepath.Glob(at("run", "checkpoints", "step-*"))
	if len(folders) != 2 {
		t.Fatalf("SIGUSR1 and SIGTERM left %v\n%s", folders, run.Said)
	}
	if _, err := os.Stat(at("run", "model")); err == nil {
		t.Error("a run that was stopped has a model")
	}

	if r := contraflow(t, "", resumable(t, dir, "run", none...)...); r.code != 1 || !strings.Contains(r.stderr, "--resume") {
		t.Errorf("a fresh start over checkpoints: exit code %d\n%s", r.code, r.stderr)
	}
	r := contraflow(t, "", append(resumable(t, dir, "run", append(none, "batch.global_size=11", "optimizer.lr=0.01")...), "--resume")...)
	if r.code != 1 || !strings.Contains(r.stderr, "batch.global_size was 12 and is 11") || strings.Contains(r.stderr, "optimizer.lr was") {
		t.Errorf("another batch size: exit code %d\n%s", r.code, r.stderr)
	}

	// Half a byte of the newest one is wrong.
	part := filepath.Join(folders[1], "rank-00000.safetensors")
	b, err := os.ReadFile(part)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(part, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r = succeed(t, append(resumable(t, dir, "run", none...), "--resume")...)
	if !strings.Contains(r.stderr, folders[1]) || !strings.Contains(r.stderr, "rank-00000.safetensors is damaged") {
		t.Errorf("the damaged checkpoint is not named:\n%s", r.stderr)
	}
	if !bytes.Equal(weights(t, dir, "run"), weights(t, dir, "whole")) {
		t.Error("the weights differ from those of a run that was not stopped")
	}

	// What may change is said.
	r = succeed(t, append(resumable(t, dir, "run", append(none, "optimizer.lr=0.01", "log.every=7")...), "--resume")...)
	for _, want := range []string{"optimizer.lr was 0.001 and is 0.01", "log.every was 1 and is 7"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no word of %q:\n%s", want, r.stderr)
		}
	}

	// Nothing usable is an error, not a fresh start.
	folders, _ = filepath.Glob(at("run", "checkpoints", "step-*")) // that of the last step as well
	for _, f := range folders {
		if err := os.Remove(filepath.Join(f, "checkpoint.json")); err != nil {
			t.Fatal(err)
		}
	}
	if r := contraflow(t, "", append(resumable(t, dir, "run", none...), "--resume")...); r.code != 1 || !strings.Contains(r.stderr, "no complete checkpoint") || !strings.Contains(r.stderr, "begins anew") {
		t.Errorf("no usable checkpoint: exit code %d\n%s", r.code, r.stderr)
	}
}

// A closed terminal's SIGHUP makes a checkpoint too; a run that nohup has begun goes on.
func TestClosedTerminal(t *testing.T) {
	dir := workspace(t)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP) // a program that is begun by one that catches it does not ignore it, whatever the tests were begun with
	defer signal.Stop(caught)
	for _, ignored := range []bool{false, true} {
		args := resumable(t, dir, "run", "save.every=0", "train.epochs=15")
		cmd := exec.Command(binary, args...)
		if ignored {
			cmd = exec.Command("nohup", append([]string{binary}, args...)...)
		}
		run := harness.Start(t, cmd)
		run.Until(t, "step 4", func() bool { return strings.Contains(run.Said.String(), "step 4/") })
		run.Process.Signal(syscall.SIGHUP)
		err := <-run.Ended
		folders, _ := filepath.Glob(filepath.Join(dir, "run", "checkpoints", "step-*"))
		_, model := os.Stat(filepath.Join(dir, "run", "model"))
		switch stopped := strings.Contains(run.Said.String(), "stopped after step"); {
		case err != nil, stopped == ignored, (model == nil) != ignored, !ignored && len(folders) != 1:
			t.Errorf("SIGHUP, ignored %t: %v, checkpoints %v, model %v\n%s", ignored, err, folders, model, run.Said)
		}
		if err := os.RemoveAll(filepath.Join(dir, "run")); err != nil {
			t.Fatal(err)
		}
	}
}

// A run that is asked to end before its first step has nothing to save and has failed in nothing, whatever it is at: here, on each rank, at a model
// whose hub does not answer. What is no run is interrupted.
func TestSignalBeforeTheFirstStep(t *testing.T) {
	dir := workspace(t)
	asked := make(chan struct{}, 16)
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer hub.Close()
	for _, c := range []struct {
		name, says string
		code       int
		args       []string
	}{
		{"one rank", "ended before its first step: nothing was trained", 0, resumable(t, dir, "run")},
		{"three ranks", "ended before its first step: nothing was trained", 0, resumable(t, dir, "run", "mesh.replicate=3")},
		{"resumed", "nothing was trained, and checkpoints are as they were", 0, append(resumable(t, dir, "run"), "--resume")},
		{"graph", "contraflow: interrupted", 1, []string{"graph", "-c", filepath.Join(dir, "recipe.yaml")}},
	} {
		cmd := exec.Command(binary, append(c.args, "--set", "model.path=nobody/model")...)
		cmd.Env = append(os.Environ(), "HF_ENDPOINT="+hub.URL, "HF_HUB_OFFLINE=", "TRANSFORMERS_OFFLINE=", "HF_HUB_DISABLE_IMPLICIT_TOKEN=1", "HF_HOME="+t.TempDir())
		run := harness.Start(t, cmd)
		run.Until(t, c.name+": a request", func() bool { return len(asked) > 0 })
		run.Process.Signal(syscall.SIGTERM)
		err := <-run.Ended
		if said := run.Said.String(); run.ProcessState.ExitCode() != c.code || !strings.Contains(said, c.says) || strings.Contains(said, "canceled") {
			t.Errorf("%s: %v\n%s", c.name, err, said)
		}
		for len(asked) > 0 {
			<-asked
		}
	}
}

// Requests within a second are one, and the next one is another, also where it comes within a second of what was no new one.
func TestRequests(t *testing.T) {
	var r requests
	at := time.Now()
	for _, c := range []struct {
		after time.Duration
		new   bool
	}{{0, true}, {time.Millisecond, false}, {900 * time.Millisecond, false}, {1100 * time.Millisecond, true}, {1200 * time.Millisecond, false}, {5 * time.Second, true}} {
		if got := r.another(at.Add(c.after)); got != c.new {
			t.Errorf("after %v: %v", c.after, got)
		}
	}
}
