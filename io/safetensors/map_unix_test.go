//go:build darwin || linux

package safetensors

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTruncatedWhileOpen: another program may shorten a file that is mapped. Reading it then faults, which must be an
// error and no crash.
func TestTruncatedWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	x, err := FromFloat32s("big", []int{1 << 20}, make([]float32, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []Tensor{x}, nil); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if x, err = f.Tensor("big"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	err = x.Float32s(make([]float32, 1<<20))
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `"big"`) {
		t.Errorf("error %v, want one that names file and tensor", err)
	}
}
