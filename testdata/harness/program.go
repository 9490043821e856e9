package harness

import (
	"bytes"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Output is what programs have said so far; they may say more while it is read.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Program is a command that was started.
type Program struct {
	*exec.Cmd
	Said  *Output      // to standard output and standard error
	Ended <-chan error // what Wait returns, once
}

// Start starts a command.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	said, ended := new(Output), make(chan error, 1)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- cmd.Wait() }()
	return &Program{cmd, said, ended}
}

// Until returns when there is what a test waits for. The test fails if the program ends before, or if it takes more than two minutes.
func (p *Program) Until(t testing.TB, what string, there func() bool) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for !there() {
		select {
		case err := <-p.Ended:
			t.Fatalf("it ended before %s: %v\n%s", what, err, p.Said)
		case <-limit:
			p.Process.Kill()
			t.Fatalf("two minutes, and not yet %s\n%s", what, p.Said)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
