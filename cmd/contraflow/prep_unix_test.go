//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"contraflow/testdata/harness"
)

// prep is the other program: its arguments, input, output and exit code are passed on as they are, and a signal that this one alone gets has it end its own way.
func TestPrep(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	const mend = "contraflow-prep is neither beside "
	if r := contraflow(t, "", "prep", "-c", "x.yaml"); r.code != 1 || !strings.Contains(r.stderr, mend) || !strings.Contains(r.stderr, "go install ./cmd/contraflow-prep") {
		t.Errorf("without it: exit code %d\n%s", r.code, r.stderr)
	}
	if r := contraflow(t, "", "prep", "--help"); r.code != 0 || !strings.Contains(r.stdout, "go install ./cmd/contraflow-prep") {
		t.Errorf("help without it: exit code %d\n%s", r.code, r.stdout)
	}
	script := `#!/bin/sh
[ "$1" = wait ] && { trap 'echo ended; exit 5' INT; echo begun; while :; do /bin/sleep 0.05; done; }
printf '<%s>' "$@"; read line; echo "$line" >&2; exit 7
`
	if err := os.WriteFile(filepath.Join(dir, "contraflow-prep"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if r := contraflow(t, "a line\n", "prep", "-c", "a b", "--help", "--", "--x="); r.code != 7 || r.stdout != "<-c><a b><--help><--><--x=>" || r.stderr != "a line\n" {
		t.Errorf("%+v", r)
	}
	run := harness.Start(t, exec.Command(binary, "prep", "wait"))
	run.Until(t, "begun", func() bool { return strings.Contains(run.Said.String(), "begun") })
	run.Process.Signal(syscall.SIGTERM)
	if <-run.Ended; run.ProcessState.ExitCode() != 5 || run.Said.String() != "begun\nended\n" {
		t.Errorf("after SIGTERM: exit code %d\n%s", run.ProcessState.ExitCode(), run.Said)
	}
}
