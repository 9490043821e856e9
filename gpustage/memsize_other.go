//go:build !linux

package gpustage

// HostMemorySize is not known on this system.
func HostMemorySize() (total, available int64) { return 0, 0 }
