package prep

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestFinishFails: a run that can't be completed holds the folder no longer, and what it leaves is not read as if it were whole.
func TestFinishFails(t *testing.T) {
	c, _ := corpus(t, 200)
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	claim, err := Begin(&rules.Config, false)
	if err != nil {
		t.Fatal(err)
	}
	s := NewStats(c.Input)
	s.Inputs[0].Train, s.Files = 1, []FileStats{{"train-00000-of-00001.parquet", 1}} // that nobody has written
	if err := claim.Finish(t.Context(), rules, s); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.Output.Dir, Success)); err == nil {
		t.Error("it says that it is whole")
	}
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(claim) // its file is not closed for want of an owner
}

// TestBeginFails: where what another run has left can't be removed, nothing else is.
func TestBeginFails(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root removes all")
	}
	c, _ := corpus(t, 20)
	locked := filepath.Join(c.Output.Dir, Temporary, "dead")
	if err := os.MkdirAll(filepath.Join(locked, "x"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(locked, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(locked, 0o700)
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(Temporary, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Begin(&c, false); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(Temporary); err != nil {
		t.Errorf("the folder that a command runs in has lost its own: %v", err)
	}
}
