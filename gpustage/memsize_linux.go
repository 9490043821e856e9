package gpustage

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// HostMemorySize returns the machine's memory and what of it is available, in bytes; zeros where the system does not say. The limits of
// control groups count, as containers and jobs of Slurm have them: of this process's group and of those above it.
func HostMemorySize() (total, available int64) {
	machine, _ := os.ReadFile("/proc/meminfo")
	groups, _ := os.ReadFile("/proc/self/cgroup")
	return withinGroups(number(machine, "MemTotal:")<<10, number(machine, "MemAvailable:")<<10, "/sys/fs/cgroup", string(groups))
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
		// Of version 2. Beyond memory.high nothing is ended, but next to nothing moves.
		dir, limits, used, cache := root, []string{"memory.max", "memory.high"}, "memory.current", "inactive_file"
		if fields[1] != "" {
			if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
			dir, limits, used, cache = path.Join(root, "memory"), []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			of := func(file, name string) int64 {
				lines, _ := os.ReadFile(path.Join(dir, group, file))
				return number(lines, name)
			}
			most := machine
			for _, limit := range limits {
				if n := of(limit, ""); n > 0 {
					most = min(most, n)
				}
			}
			if most < machine {
				// Files that were read are what the system gives up first. They are counted later than the rest, and may seem to be more.
				taken := max(0, of(used, "")-of("memory.stat", cache))
				total, left = min(total, most), min(left, max(1, most-taken)) // 0 stands for what is not known
			}
			if group == "/" {
				break
			}
		}
	}
	return total, left
}

// number is what follows a name in lines of names and numbers, or without a name the only number; 0 if there is none, as in "max".
func number(lines []byte, name string) int64 {
	if name != "" {
		name += " "
	}
	for line := range strings.Lines(string(lines)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			digits, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			n, _ := strconv.ParseInt(digits, 10, 64)
			return n
		}
	}
	return 0
}
