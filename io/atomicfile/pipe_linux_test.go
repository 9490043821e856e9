package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe that has a name keeps it, whether what is written into it is committed or not.
func TestNamedPipe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, cause := range []error{nil, errors.New("boom")} {
		f, err := Replace(path)
		if err != nil {
			t.Fatal(err)
		}
		end := f.Commit
		if cause != nil {
			end = func() error { return f.Abort(cause) }
		}
		if err := end(); !errors.Is(err, cause) {
			t.Errorf("%v, want %v", err, cause)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 || names(t, dir) != "pipe" {
			t.Fatalf("after %v: %v, %s", cause, err, names(t, dir))
		}
	}
}
