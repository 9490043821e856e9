package gpustage

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// HostMemorySize returns the machine's memory and what of it is available, in bytes; zeros where the system does not say. A
// control group's limit, as containers have, counts.
func HostMemorySize() (total, available int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var kb int64
		name, rest, _ := strings.Cut(sc.Text(), ":")
		fmt.Sscan(rest, &kb)
		switch name {
		case "MemTotal":
			total = kb << 10
		case "MemAvailable":
			available = kb << 10
		}
	}
	limit, used := cgroup("memory.max"), cgroup("memory.current")
	if limit > 0 && limit < total {
		total = limit
		available = min(available, max(0, limit-used))
	}
	return total, available
}

// cgroup reads one value of this process's version-2 control group as a container sees it.
func cgroup(name string) int64 {
	data, err := os.ReadFile("/sys/fs/cgroup/" + name)
	if err != nil {
		return 0
	}
	var v int64
	fmt.Sscan(string(data), &v) // "max" leaves 0
	return v
}
