package harness

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// SmallDisk has f run with a real file system of one megabyte at root, which a process of its own mounts in a user namespace of its own. It is all
// that its test does.
func SmallDisk(t *testing.T, f func(root string)) {
	t.Helper()
	const variable = "HARNESS_SMALL_DISK"
	if root := os.Getenv(variable); root != "" {
		if err := syscall.Mount("none", root, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mount: %v", err)
		}
		f(root)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
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
