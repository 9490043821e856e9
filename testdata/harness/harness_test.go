package harness

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// failing is a test that notes its failure and goes on.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                        {}
func (f *failing) Fatalf(format string, a ...any) { f.said = fmt.Sprintf(format, a...) }

var kept []byte

func TestBounded(t *testing.T) {
	f := &failing{TB: t}
	Bounded(f, func() { kept = make([]byte, 1<<20) })
	if f.said != "" {
		t.Error(f.said)
	}
	Bounded(f, func() {
		for range 1100 {
			kept = make([]byte, 1<<20)
		}
	})
	if f.said == "" {
		t.Error("1,100 MiB went unnoticed")
	}
}

func ExampleBounded() {
	t := new(failing)
	Bounded(t, func() { fmt.Println("read") })
	fmt.Println(t.said == "")
	// Output:
	// read
	// true
}

// A child whose parent is killed ends too.
func TestTied(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system can't end a process with its parent")
	}
	if os.Getenv("HARNESS_PARENT") != "" {
		cmd := exec.Command("sleep", "60")
		Tied(cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Println(cmd.Process.Pid)
		cmd.Wait()
		return
	}
	parent := exec.Command(os.Args[0], "-test.run", "^TestTied$")
	parent.Env = append(os.Environ(), "HARNESS_PARENT=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(line[:len(line)-1])
	if err != nil {
		t.Fatal(err)
	}
	parent.Process.Kill()
	io.Copy(io.Discard, out)
	parent.Wait()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || len(stat) > 0 && zombie(stat) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d has outlived its parent", child)
		}
	}
}

// zombie tells that a process has ended and nobody has asked how.
func zombie(stat []byte) bool {
	for i := len(stat) - 1; i > 0; i-- {
		if stat[i] == ')' {
			return i+2 < len(stat) && stat[i+2] == 'Z'
		}
	}
	return false
}
