package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctor: each problem is followed by the command that mends it.
func TestDoctor(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "hub", "models--a--b"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"HF_HUB_CACHE": "", "HF_HOME": home, "HF_HUB_OFFLINE": "1", "CONTRAFLOW_CPU": "portable", "CONTRAFLOW_NCCL": "/nowhere/libnccl.so.2", "PATH": ""} {
		t.Setenv(name, value)
	}
	r := succeed(t, "doctor", "--seconds", "0")
	lines := strings.Split(r.stdout, "\n")
	for problem, mend := range map[string]string{
		"CONTRAFLOW_CPU chooses the portable kernels": "-> unset CONTRAFLOW_CPU",
		"CONTRAFLOW_NCCL: stat /nowhere/libnccl.so.2": "-> export CONTRAFLOW_NCCL=",
		"HF_HUB_OFFLINE is set":                       "-> unset HF_HUB_OFFLINE",
		filepath.Join(home, "hub") + ", 1 models":     "",
		"no mpirun in PATH":                           "",
	} {
		found := false
		for i, l := range lines {
			if strings.Contains(l, problem) {
				found = mend == "" || strings.Contains(lines[i+1], mend)
			}
		}
		if !found {
			t.Errorf("no %q followed by %q in\n%s", problem, mend, r.stdout)
		}
	}
}

func TestFindLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libx.so.1"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", "/nowhere:"+dir)
	if got := findLibrary("libx.so.1"); got != filepath.Join(dir, "libx.so.1") {
		t.Error(got)
	}
	if got := findLibrary("libx.so.2"); got != "" {
		t.Error(got)
	}
}
