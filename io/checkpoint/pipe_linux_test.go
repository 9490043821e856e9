package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in the place of a checkpoint's files is an error: nobody may ever write into it.
func TestPipes(t *testing.T) {
	for _, name := range []string{manifestName, partName(1)} {
		s, dir := saved(t, 1)
		path := filepath.Join(dir, FolderName(1), name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(1); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
