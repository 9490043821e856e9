package quickstart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A quickstart takes a new folder, an empty one, and one that a quickstart has begun or ended in; another's files it leaves alone.
func TestClaim(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"new", "new", "empty", "empty"} { // again after what was interrupted, or is over
		if name == "empty" {
			os.Mkdir(filepath.Join(dir, name), 0o700)
		}
		if err := claim(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "train.parquet"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := filepath.Join(dir, "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, "recipe.yaml"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), Options{Out: run, Source: filepath.Join(dir, "none")})
	if err == nil || !strings.Contains(err.Error(), run+" has recipe.yaml, and no quickstart has written it") {
		t.Error(err)
	}
	if left, err := os.ReadDir(run); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// A wrong setting is an error before anything is read or written.
func TestWrongSetting(t *testing.T) {
	out := filepath.Join(t.TempDir(), "q")
	if _, err := Run(t.Context(), Options{Out: out, Source: filepath.Join(out, "none"), Sets: []string{"train.epoch=1"}}); err == nil || !strings.Contains(err.Error(), "--set train.epoch=1: ") {
		t.Error(err)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
}
