package prep

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// TestFinishFails: a run that can't be completed holds the folder no longer, and an earlier output is as it was, or the folder empty.
func TestFinishFails(t *testing.T) {
	for _, earlier := range []bool{true, false} {
		c, _ := corpus(t, 200)
		c.Split.Dev, c.Split.BEIR = 0.2, true // a folder among the files
		rules, err := NewRules(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if earlier {
			mustRun(t, c)
		}
		before := contents(t, c.Output.Dir)
		claim, err := Begin(&rules.Config, true)
		if err != nil {
			t.Fatal(err)
		}
		rules.Config.Split.BEIR = false
		s := NewStats(c.Input)
		s.Inputs[0].Train, s.Files = 1, []FileStats{{"train-00000-of-00001.parquet", 1}} // that nobody has written
		if err := claim.Finish(t.Context(), rules, s); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
		if after := contents(t, c.Output.Dir); !maps.Equal(before, after) {
			t.Errorf("earlier output %t: there were %v, and are %v", earlier, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
		}
		if _, err := Run(t.Context(), c, Options{Overwrite: true}); err != nil {
			t.Error(err)
		}
		runtime.KeepAlive(claim) // its file is not closed for want of an owner
	}
}

// TestPutBackHalf: an earlier output of which a file can't be put back looks whole no more, nor when the next run comes to nothing.
func TestPutBackHalf(t *testing.T) {
	c, _ := corpus(t, 20)
	mustRun(t, c)
	whole := func() (marked, half bool) {
		_, noMark := os.Stat(filepath.Join(c.Output.Dir, Success))
		_, noHalf := os.Stat(filepath.Join(c.Output.Dir, Temporary))
		return noMark == nil, noHalf == nil
	}
	claim, err := Begin(&c, true)
	if err != nil {
		t.Fatal(err)
	}
	back, err := claim.place([]string{"nobody has written"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.Output.Dir, cardFile, "in the way"), 0o777); err != nil {
		t.Fatal(err)
	}
	err = claim.undo(back, err)
	if marked, half := whole(); !errors.Is(err, fs.ErrExist) || marked || !half {
		t.Errorf("put back with %v; marked as complete: %t, as half: %t", err, marked, half)
	}
	if _, err := os.Stat(filepath.Join(claim.out.temporary(), "previous", cardFile)); err != nil {
		t.Errorf("what can't be put back is gone: %v", err)
	}
	claim.Release()
	next, err := Begin(&c, true)
	if err != nil {
		t.Fatal(err)
	}
	err = next.Abandon()
	if marked, half := whole(); err != nil || marked || !half {
		t.Errorf("the next run: %v; marked as complete: %t, as half: %t", err, marked, half)
	}
}

// contents are those of all files in a folder, by their paths in it.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return files
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
