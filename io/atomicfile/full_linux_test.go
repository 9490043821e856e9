package atomicfile

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// TestReallyFullDisk writes to a real file system of one megabyte, which it mounts in a user namespace of its own.
func TestReallyFullDisk(t *testing.T) {
	harness.SmallDisk(t, func(root string) {
		onFullDisk(t, root)
	})
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
	if err := WriteFile(file, []byte(big)); err == nil || !IsFull(err) {
		t.Errorf("bytes: %v, want a full disk", err)
	}
	if got := read(t, file) + read(t, filepath.Join(dir, "x")) + names(t, root) + names(t, dir); got != "oldoldd fx" {
		t.Errorf("afterwards: %s", got)
	}
}
