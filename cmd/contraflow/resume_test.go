package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// resumable is a run of a few seconds with everything that a checkpoint has to get right: dropout, shuffling, no-duplicates with rows
// that wait, batches that accumulate, moments, a schedule.
func resumable(t *testing.T, dir, out string, sets ...string) []string {
	t.Helper()
	args := []string{
		"train", "--log", "human", "-c", filepath.Join(dir, "recipe.yaml"), "--out", filepath.Join(dir, out),
		"--set", "train.epochs=5", "--set", "batch.global_size=12", "--set", "batch.accumulate=2", "--set", "save.every=3", "--set", "eval.every=0",
		"--set", "log.every=1",
	}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	return args
}

// weights is a run's final model.
func weights(t *testing.T, dir, out string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, out, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// steps is metrics.jsonl without what depends on time.
func stepLines(t *testing.T, path string) []string {
	t.Helper()
	return strings.Split(fmt.Sprint(losses(t, path)), " ")
}

// kills is how often the tests below kill: few times, 20 in CI, or as CONTRAFLOW_KILLS says.
func kills() int {
	if n, err := strconv.Atoi(os.Getenv("CONTRAFLOW_KILLS")); err == nil {
		return n
	}
	if os.Getenv("CI") == "true" {
		return 20
	}
	return 2
}

// Killed at random moments and resumed each time, a run ends with the weights of one that was never stopped.
func TestKillAndResume(t *testing.T) { killAlone(t, workspace(t), kills()) }

// A reranker's run has pairs, groups of any sizes and a head that begins at random besides.
func TestKillAndResumeReranker(t *testing.T) {
	dir := workspace(t)
	if err := os.Rename(rerankRecipe(t, dir, goldens.Path(t, "bert/minilm-tiny"), ", dropout: 0.1"), filepath.Join(dir, "recipe.yaml")); err != nil {
		t.Fatal(err)
	}
	killAlone(t, dir, min(4, kills()), "--set", "train.epochs=1")
}

func killAlone(t *testing.T, dir string, times int, more ...string) {
	killAndResume(t, dir, times, func(args []string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), binary, append(args, more...)...)
		harness.Tied(cmd)
		return cmd
	}, func(job *harness.Program) { job.Process.Kill() })
}

func killAndResume(t *testing.T, dir string, times int, command func(args []string) *exec.Cmd, kill func(*harness.Program)) {
	first := command(resumable(t, dir, "whole")) // which may have to build the program
	began := time.Now()
	if out, err := first.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	whole := time.Since(began)
	want := weights(t, dir, "whole")
	wantLosses := stepLines(t, filepath.Join(dir, "whole", "metrics.jsonl"))

	killed, goneOn := 0, 0
	for round := 0; killed < times || round == 0; round++ {
		out := fmt.Sprint("killed", round)
		for {
			run := harness.Start(t, command(append(resumable(t, dir, out), "--resume")))
			var err error
			mine := false
			select {
			case err = <-run.Ended:
			case <-time.After(rand.N(whole)):
				mine = true
				kill(run)
				select {
				case err = <-run.Ended:
				case <-time.After(time.Minute):
					text, _ := exec.Command("ps", "-eo", "pid,ppid,stat,wchan:20,etime,args").CombinedOutput()
					t.Fatalf("a minute after kill %d it has not ended:\n%s\n%s", killed, run.Said, text)
				}
			}
			said := run.Said.String()
			if strings.Contains(said, "going on after step") {
				goneOn++
			}
			if err == nil {
				break
			}
			if !mine {
				t.Fatalf("after %d kills: %v\n%s", killed, err, said)
			}
			if strings.Contains(said, "can't be used") {
				t.Fatalf("after %d kills, an unusable checkpoint:\n%s", killed, said)
			}
			killed++
		}
		if !bytes.Equal(weights(t, dir, out), want) {
			t.Fatalf("round %d, after %d kills: the weights differ from those of a run that was not stopped", round, killed)
		}
		if got := stepLines(t, filepath.Join(dir, out, "metrics.jsonl")); fmt.Sprint(got) != fmt.Sprint(wantLosses) {
			t.Fatalf("round %d: metrics.jsonl has losses %v, want %v", round, got, wantLosses)
		}
	}
	t.Logf("%d kills, %d times gone on from a checkpoint", killed, goneOn)
}
