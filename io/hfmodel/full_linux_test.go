package hfmodel

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk saves and downloads a model larger than the disk: a real file system of one megabyte, mounted in a user
// namespace of the test's own.
func TestFullDisk(t *testing.T) {
	if root := os.Getenv("HFMODEL_FULL"); root != "" {
		if err := syscall.Mount("none", root, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mount: %v", err)
		}
		t.Run("save", func(t *testing.T) { saveOnFullDisk(t, root) })
		t.Run("download", func(t *testing.T) { downloadOnFullDisk(t, root) })
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "HFMODEL_FULL="+t.TempDir())
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

func saveOnFullDisk(t *testing.T, root string) {
	f := open(t, golden+"st6")
	dir := filepath.Join(root, "model")
	if err := Save(dir, specOf(t, f)); err != nil {
		t.Fatal(err)
	}
	before := tree(t, root)
	err := Save(dir, big(t, f))
	if err == nil {
		t.Fatal("2 MB fit on a disk of 1 MB")
	}
	t.Log(err)
	for _, want := range []string{dir, "disk is full", "were written", "are free", "unchanged"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if after := tree(t, root); !slices.Equal(before, after) {
		t.Errorf("it held %q, now %q", before, after)
	}
	open(t, dir)
}

func downloadOnFullDisk(t *testing.T, root string) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files["model.safetensors"] = strings.Repeat("x", 2<<20)
	cache := filepath.Join(root, "cache")
	_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache})
	if err == nil {
		t.Fatal("2 MB fit on a disk of 1 MB")
	}
	t.Log(err)
	for _, want := range []string{"file model.safetensors", "it needs 2.1 MB in " + cache, "are free", "HF_HUB_CACHE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}
