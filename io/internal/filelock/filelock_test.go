package filelock

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestTryLock(t *testing.T) {
	switch runtime.GOOS {
	case "darwin", "dragonfly", "freebsd", "linux", "netbsd", "openbsd", "windows":
	default:
		t.Skip("no locks here")
	}
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(), open()
	if !TryLock(first) {
		t.Fatal("a free file was not locked")
	}
	if TryLock(second) {
		t.Fatal("a locked file was locked again")
	}
	first.Close()
	if !TryLock(second) {
		t.Fatal("closing the first file did not release its lock")
	}
	second.Close()
}
