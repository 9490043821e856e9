//go:build !unix

package gpustage

func mapHost(bytes int) (*HostMemory, error) { return heapHost(bytes), nil }
