package gpustage

import (
	"os"
	"path/filepath"
	"testing"
)

// A process may take what its control group may and what those above it may, of either version, whatever the machine has, and no more than
// lets it run on. What is read of files and not in use does not count as taken. Nothing left is a byte: 0 stands for what is not known.
func TestWithinGroups(t *testing.T) {
	root := t.TempDir()
	write := func(group string, files map[string]string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(root, group, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("slurm/job/step", map[string]string{"memory.max": "max\n", "memory.current": "100\n"})
	write("slurm/job", map[string]string{"memory.max": "500\n", "memory.current": "450\n", "memory.stat": "anon 80\nfile 370\ninactive_file 300\nactive_file 70\n"})
	write("slurm", map[string]string{"memory.max": "800\n", "memory.current": "760\n"})
	write("other/job", map[string]string{"memory.max": "500\n", "memory.current": "450\n", "memory.stat": "anon 80\nfile 370\ninactive_file 300\nactive_file 70\n"})
	write("wide", map[string]string{"memory.max": "5000\n", "memory.current": "10\n"})
	write("full", map[string]string{"memory.max": "300\n", "memory.current": "310\n"})
	write("slow", map[string]string{"memory.max": "max\n", "memory.high": "250\n", "memory.current": "100\n"})
	write("slow/below", map[string]string{"memory.max": "400\n", "memory.high": "900\n", "memory.current": "60\n"})
	write("read", map[string]string{"memory.max": "500\n", "memory.current": "50\n", "memory.stat": "inactive_file_of_another 3\ninactive_file 70\n"})
	write("memory/wide", map[string]string{"memory.limit_in_bytes": "18446744073709551615\n"})
	write("memory/old", map[string]string{"memory.limit_in_bytes": "600\n", "memory.usage_in_bytes": "200\n", "memory.stat": "inactive_file 1\ntotal_inactive_file 50\n"})
	write("memory", map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "999\n"})
	for groups, want := range map[string][2]int64{
		"":                                      {1000, 700},
		"0::/\n":                                {1000, 700},
		"0::/wide\n":                            {1000, 700},
		"0::/full\n":                            {300, 1},
		"0::/slurm\n":                           {800, 40},
		"0::/slurm/job/step\n":                  {500, 40},
		"0::/slow\n":                            {250, 150},
		"0::/slow/below\n":                      {250, 150},
		"0::/read\n":                            {500, 500}, // its statistics are behind
		"5:memory:/wide\n":                      {1000, 700},
		"0::/other/job\n":                       {500, 350},
		"0::/not/mounted/here\n":                {1000, 700},
		"3:cpu:/old\n2:memory:/old\n0::/\n":     {600, 450},
		"2:cpu,memory:/old/below\n1:name=x:/\n": {600, 450},
	} {
		total, available := withinGroups(1000, 700, root, groups)
		if got := [2]int64{total, available}; got != want {
			t.Errorf("%q: %v, want %v", groups, got, want)
		}
	}
	write("", map[string]string{"memory.max": "400\n", "memory.current": "100\n"}) // a container's own, whatever its name outside
	if total, available := withinGroups(1000, 700, root, "0::/docker/of/the/host\n"); total != 400 || available != 300 {
		t.Errorf("in a container: %d and %d, want 400 and 300", total, available)
	}
}

func TestHostMemorySize(t *testing.T) {
	if total, available := HostMemorySize(); total < 1<<20 || available < 0 || available > total {
		t.Errorf("%d bytes, of which %d are available", total, available)
	}
}
