package gpustage_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"contraflow/gpustage"
)

// A program's memory is its own, however much that one had that has begun it.
func TestHostPeakMemory(t *testing.T) {
	if os.Getenv("PEAK") != "" {
		fmt.Print(gpustage.HostPeakMemory())
		os.Exit(0)
	}
	big := make([]byte, 256<<20)
	for i := 0; i < len(big); i += 4096 {
		big[i] = 1
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostPeakMemory$")
	cmd.Env = append(os.Environ(), "PEAK=1")
	said, err := cmd.Output()
	var child int64
	fmt.Sscan(string(said), &child)
	own := gpustage.HostPeakMemory()
	if runtime.KeepAlive(big); err != nil || own < 256<<20 || child < 1<<20 || child > 128<<20 {
		t.Errorf("%d bytes, and of a program that is begun %s, %v", own, said, err)
	}
}
