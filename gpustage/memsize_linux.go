package gpustage

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// HostMemorySize returns the machine's memory and what of it is available, in bytes; zeros where the system does not say. The limits of
// control groups count, as containers and jobs of Slurm have them: of this process's group and of those above it.
func HostMemorySize() (total, available int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	numbers := readNumbers(f)
	groups, _ := os.ReadFile("/proc/self/cgroup")
	return withinGroups(numbers["MemTotal:"]<<10, numbers["MemAvailable:"]<<10, "/sys/fs/cgroup", string(groups))
}

// withinGroups is what limits leave of the memory. groups is a process's /proc/self/cgroup, root where the groups are mounted, of which a container
// sees its own alone.
func withinGroups(machine, available int64, root, groups string) (total, left int64) {
	total, left = machine, available
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		dir, limit, used, cache := root, "memory.max", "memory.current", "inactive_file" // of version 2
		if fields[1] != "" {
			if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
			dir, limit, used, cache = path.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			at := func(name string) string { return path.Join(dir, group, name) }
			if most := readNumber(at(limit)); most > 0 && most < machine {
				taken := readNumber(at(used))
				if f, err := os.Open(at("memory.stat")); err == nil {
					taken -= readNumbers(f)[cache] // files that were read, which the system gives up first
					f.Close()
				}
				total, left = min(total, most), min(left, max(1, most-taken)) // 0 stands for what is not known
			}
			if group == "/" {
				break
			}
		}
	}
	return total, left
}

// readNumbers reads lines of a name and a number.
func readNumbers(r io.Reader) map[string]int64 {
	numbers := map[string]int64{}
	for sc := bufio.NewScanner(r); sc.Scan(); {
		var name string
		var n int64
		if k, _ := fmt.Sscan(sc.Text(), &name, &n); k == 2 {
			numbers[name] = n
		}
	}
	return numbers
}

// readNumber is a file's, 0 if it has none: "max".
func readNumber(file string) (n int64) {
	data, err := os.ReadFile(file)
	if err == nil {
		fmt.Sscan(string(data), &n)
	}
	return n
}
