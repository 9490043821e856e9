//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeCalls is what a driver that does nothing has been asked for by a test in a process of its own, which finds that driver when it starts, and
// what the test has said.
func fakeCalls(t *testing.T, test string, env ...string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), filepath.Join("testdata", "fake_driver.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	c.Env = append(os.Environ(), append(env, "CONTRAFLOW_FAKE_DRIVER=1", "LD_LIBRARY_PATH="+dir)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if line, ok := strings.CutPrefix(line, "driver: "); ok {
			calls += line
		}
	}
	return calls
}

// say is for such a test.
func say(what any) { fmt.Println("driver:", what) }
