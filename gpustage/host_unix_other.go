//go:build unix && !linux

package gpustage

func adviseHuge([]byte) {}
