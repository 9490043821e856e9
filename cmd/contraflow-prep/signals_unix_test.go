//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"contraflow/io/prep"
	"contraflow/testdata/harness"
)

// waiting runs the program in the place of this test, in a process of its own, with a runner that waits for its end, or stubborn for nothing.
func waiting(t *testing.T) {
	wait := func(ctx context.Context, j job) (*prep.Stats, error) {
		fmt.Fprintln(os.Stderr, "begun")
		if j.runner == "patient" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		select {}
	}
	runners["patient"], runners["stubborn"] = wait, wait
	os.Exit(run(strings.Fields(os.Getenv("PREP_ARGS"))))
}

// Whatever asks for its end has it end its own way, so that nothing is left that it has spilled; asked again it ends at once, but not by the same request.
func TestSignals(t *testing.T) {
	if os.Getenv("PREP_ARGS") != "" {
		waiting(t)
	}
	path := filepath.Join(t.TempDir(), "PREP.yaml")
	if err := os.WriteFile(path, []byte("input: [{path: a.jsonl, query: q, positive: p}]\noutput: {dir: out}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT) // a program that is begun by one that catches them does not ignore them, whatever the tests were begun with
	defer signal.Stop(caught)
	const interrupted = "begun\ncontraflow prep: interrupted; what is written so far does not count as complete\n"
	for _, c := range []struct {
		runner string
		first  syscall.Signal
		again  bool
		code   int
		said   string
	}{
		{"patient", syscall.SIGINT, false, 1, interrupted}, {"patient", syscall.SIGTERM, false, 1, interrupted}, {"patient", syscall.SIGHUP, false, 1, interrupted},
		{"stubborn", syscall.SIGINT, true, -1, "begun\n"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSignals$")
		cmd.Env = append(os.Environ(), "PREP_ARGS=-c "+path+" --runner="+c.runner)
		p := harness.Start(t, cmd)
		p.Until(t, "begun", func() bool { return strings.Contains(p.Said.String(), "begun") })
		p.Process.Signal(c.first)
		if c.again {
			time.Sleep(100 * time.Millisecond)
			p.Process.Signal(c.first)
			select {
			case err := <-p.Ended:
				t.Errorf("the same request, twice, has ended it: %v", err)
				continue
			case <-time.After(1200 * time.Millisecond):
			}
			p.Process.Signal(c.first)
		}
		select {
		case <-p.Ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%s, %v: it goes on", c.runner, c.first)
			p.Process.Kill()
			<-p.Ended
		}
		if code := p.ProcessState.ExitCode(); code != c.code || p.Said.String() != c.said {
			t.Errorf("%s, %v: exit code %d, %s", c.runner, c.first, code, p.Said)
		}
	}
}
