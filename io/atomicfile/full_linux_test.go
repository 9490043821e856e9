package atomicfile

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReallyFullDisk writes to a real file system of one megabyte, which it mounts in a user namespace of its own.
func TestReallyFullDisk(t *testing.T) {
	if root := os.Getenv("ATOMICFILE_FULL"); root != "" {
		if err := syscall.Mount("none", root, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mount: %v", err)
		}
		onFullDisk(t, root)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestReallyFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "ATOMICFILE_FULL="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if _, ran := err.(*exec.ExitError); err != nil && !ran {
		t.Skipf("no user namespaces here: %v", err)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip("no mounts here")
	}
	if err != nil {
		t.Errorf("%s", out)
	}
}

func onFullDisk(t *testing.T, root string) {
	file, dir := filepath.Join(root, "f"), filepath.Join(root, "d")
	big := strings.Repeat("x", 2<<20)
	if err := Write(file, put("old")); err != nil {
		t.Fatal(err)
	}
	old := func(tmp string) error { return os.WriteFile(filepath.Join(tmp, "x"), []byte("old"), 0o666) }
	if err := WriteDir(dir, old); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		file: Write(file, put(big)),
		dir: WriteDir(dir, func(tmp string) error {
			return Write(filepath.Join(tmp, "y"), func(w io.Writer) error { return put(big)(w) })
		}),
	} {
		if err == nil || !IsFull(err) {
			t.Fatalf("%s: error %v, want a full disk", name, err)
		}
		t.Log(err)
		for _, want := range []string{name, "1.0 MB were written, 1.0 MB are free", "unchanged"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
	if got := read(t, file) + read(t, filepath.Join(dir, "x")) + names(t, root) + names(t, dir); got != "oldoldd fx" {
		t.Errorf("afterwards: %s", got)
	}
}
