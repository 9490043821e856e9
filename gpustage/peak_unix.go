//go:build unix

package gpustage

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// HostPeakMemory is the most memory that this process has had resident, in bytes; 0 where the system does not say.
func HostPeakMemory() int64 {
	status, _ := os.ReadFile("/proc/self/status") // Linux's getrusage also counts what the program had that has begun this one
	_, said, _ := bytes.Cut(status, []byte("VmHWM:"))
	var kib int64
	if fmt.Sscan(string(said), &kib); kib > 0 {
		return kib << 10
	}
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(u.Maxrss) // bytes there, KiB elsewhere
	}
	return int64(u.Maxrss) << 10
}
