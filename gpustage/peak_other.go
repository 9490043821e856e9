//go:build !unix

package gpustage

// HostPeakMemory is not known on this system.
func HostPeakMemory() int64 { return 0 }
