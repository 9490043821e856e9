package prep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestFinishFails: a run that can't be completed holds the folder no longer, and what it leaves is not read as if it were whole.
func TestFinishFails(t *testing.T) {
	c, _ := corpus(t, 200)
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, c)
	claim, err := Begin(&rules.Config, true)
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

// TestRunsThatMeet: of runs that begin while others end one alone writes the folder, and the others say so; none takes away what another has begun.
func TestRunsThatMeet(t *testing.T) {
	c, _ := corpus(t, 20)
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 12 {
		var wg sync.WaitGroup
		var done, began atomic.Int64
		dir := filepath.Join(t.TempDir(), fmt.Sprint(round))
		for range 3 {
			wg.Go(func() {
				for done.Load() == 0 {
					mine := *rules
					mine.Config.Output.Dir = dir
					claim, err := Begin(&mine.Config, false)
					if errors.Is(err, ErrBusy) || errors.Is(err, ErrNotEmpty) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if began.Add(1)%3 != 0 {
						if err := claim.Abandon(); err != nil {
							t.Error(err)
						}
						continue
					}
					s, name := NewStats(c.Input), "train-00000-of-00001.parquet"
					s.Inputs[0].Train, s.Files = 1, []FileStats{{name, 1}}
					if err := os.WriteFile(filepath.Join(claim.out.temporary(), name), nil, 0o666); err != nil {
						t.Error(err)
					}
					if err := claim.Finish(t.Context(), &mine, s); err != nil {
						t.Error(err)
					}
					done.Add(1)
				}
			})
		}
		if wg.Wait(); done.Load() != 1 {
			t.Errorf("%d runs have written the folder", done.Load())
		}
		if _, err := os.Stat(filepath.Join(dir, Temporary)); err == nil {
			t.Error("it does not look whole")
		}
	}
}
