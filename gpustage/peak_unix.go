//go:build unix

package gpustage

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// HostPeakMemory is the most memory that this process has had resident, in bytes; 0 where the system does not say.
func HostPeakMemory() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(u.Maxrss) // bytes there, KiB elsewhere
	}
	return int64(u.Maxrss) << 10
}
