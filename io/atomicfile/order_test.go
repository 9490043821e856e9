package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// system records what is done to the file system, with names below root, and lets the step number fail (from 0 on) end in an error.
type system struct {
	root  string
	fail  int
	cause error
	steps []string
	on    func(step string) // called before it is done
}

func (s *system) step(format string, args ...any) error {
	for i, a := range args {
		short, err := filepath.Rel(s.root, fmt.Sprint(a))
		if err != nil {
			short = err.Error()
		}
		args[i] = short
	}
	step := fmt.Sprintf(format, args...)
	s.steps = append(s.steps, step)
	if s.on != nil {
		s.on(step)
	}
	if len(s.steps)-1 == s.fail {
		return s.cause
	}
	return nil
}

// watch takes the system's place until the test ends.
func watch(t *testing.T, root string, exchanges bool) *system {
	if runtime.GOOS == "windows" {
		t.Skip("folders are not synced there, and locks end before a rename")
	}
	s := &system{root: root, fail: -1, cause: errors.New("planted")}
	wasSwap, wasRename, wasSync, wasLock := swap, rename, fsync, tryLock
	t.Cleanup(func() { swap, rename, fsync, tryLock = wasSwap, wasRename, wasSync, wasLock })
	swap = func(a, b string) error {
		if !exchanges {
			return errors.ErrUnsupported
		}
		// Without a system call for it, so that the test is the same on every system.
		if err := s.step("exchange %s %s", a, b); err != nil {
			return err
		}
		return errors.Join(os.Rename(a, a+".x"), os.Rename(b, a), os.Rename(a+".x", b))
	}
	rename = func(a, b string) error {
		if err := s.step("rename %s %s", a, b); err != nil {
			return err
		}
		return os.Rename(a, b)
	}
	fsync = func(f *os.File) error { return s.step("sync %s", f.Name()) }
	tryLock = func(f *os.File) bool { s.step("lock %s", f.Name()); return wasLock(f) }
	return s
}

// What is written reaches the disk before its name does, the name before anything old is removed; and whichever step fails, there is an
// error that names the path, nothing is left behind, and what was there before is there still.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name      string
		folder    bool
		old       bool
		exchanges bool
		want      string
	}{
		{"file", false, true, true, "lock .d.partial, sync .d.partial, rename .d.partial d, sync ."},
		{"folder", true, false, true, "lock .d.partial, sync .d.partial, sync .d.partial/sub, sync .d.partial/sub/x, rename .d.partial d, sync ."},
		{"exchanged", true, true, true, "lock .d.partial, sync .d.partial, sync .d.partial/sub, sync .d.partial/sub/x, lock d, exchange .d.partial d, sync ."},
		{"two renames", true, true, false, "lock .d.partial, sync .d.partial, sync .d.partial/sub, sync .d.partial/sub/x, lock d, rename d .d.previous, rename .d.partial d, sync ."},
	} {
		for fail := -1; ; fail++ {
			root := t.TempDir()
			dir := filepath.Join(root, "d")
			file := dir
			if c.folder {
				file = filepath.Join(dir, "sub", "x")
			}
			if c.old {
				os.MkdirAll(filepath.Dir(file), 0o777)
				write(t, file, "old")
			}
			s := watch(t, root, c.exchanges)
			s.fail = fail
			s.on = func(step string) {
				if step == "sync ." && c.folder && c.old { // before that is done, the old folder is whole
					a, _ := os.ReadFile(filepath.Join(root, ".d.partial", "sub", "x"))
					b, _ := os.ReadFile(filepath.Join(root, ".d.previous", "sub", "x"))
					if string(a)+string(b) != "old" {
						t.Errorf("%s: the old folder is gone before the new one's name is on disk: %q, %q", c.name, a, b)
					}
				}
			}
			var err error
			if c.folder {
				err = WriteDir(dir, func(tmp string) error {
					os.Mkdir(filepath.Join(tmp, "sub"), 0o777)
					write(t, filepath.Join(tmp, "sub", "x"), "new")
					return nil
				})
			} else {
				err = WriteFile(dir, []byte("new"))
			}
			left := names(t, root)
			if fail < 0 {
				if got := strings.Join(s.steps, ", "); got != c.want || err != nil || read(t, file) != "new" || left != "d" {
					t.Errorf("%s: %v, %q, left %s:\n got %s\nwant %s", c.name, err, read(t, file), left, got, c.want)
				}
				continue
			}
			if fail >= len(s.steps) { // all have failed
				break
			}
			if strings.HasPrefix(s.steps[fail], "lock") || strings.HasPrefix(s.steps[fail], "exchange") {
				if err != nil || read(t, file) != "new" { // a lock has no such end, and without exchange there are two renames
					t.Errorf("%s: %s fails: %v, %q", c.name, s.steps[fail], err, read(t, file))
				}
				continue
			}
			if !errors.Is(err, s.cause) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %s fails: %v", c.name, s.steps[fail], err)
			}
			got, _ := os.ReadFile(file)
			switch last := slices.Index(s.steps, s.steps[fail]) == strings.Count(c.want, ", "); {
			case last && !(c.folder && c.old): // the name is given, and can't be taken back
				if string(got) != "new" || left != "d" {
					t.Errorf("%s: %s fails: %q, left %s", c.name, s.steps[fail], got, left)
				}
			case c.old && (string(got) != "old" || left != "d") || !c.old && left != "":
				t.Errorf("%s: %s fails: %q, left %s", c.name, s.steps[fail], got, left)
			}
		}
	}
}

// While the old folder is being removed it has the partial one's name, and another writer does not take it for its own.
func TestReplacedIsLocked(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "d")
	fill := func(text string) func(string) error {
		return func(tmp string) error { return os.WriteFile(filepath.Join(tmp, "x"), []byte(text), 0o666) }
	}
	if err := WriteDir(dir, fill("old")); err != nil {
		t.Fatal(err)
	}
	s := watch(t, root, true)
	var second error
	s.on = func(step string) {
		if step == "sync ." {
			s.on = nil
			second = WriteDir(dir, fill("another's"))
		}
	}
	if err := WriteDir(dir, fill("new")); err != nil || !errors.Is(second, ErrBusy) || read(t, filepath.Join(dir, "x")) != "new" {
		t.Errorf("%v; the second: %v", err, second)
	}
}

// A former owner may rename what is opened before it is locked: that is then the former owner's, and not emptied.
func TestRenamedBeforeLock(t *testing.T) {
	root := t.TempDir()
	path, done := filepath.Join(root, "f"), filepath.Join(root, "done")
	write(t, filepath.Join(root, ".f.partial"), "the former owner's")
	s := watch(t, root, true)
	s.on = func(step string) {
		if step == "lock .f.partial" {
			s.on = nil
			os.Rename(filepath.Join(root, ".f.partial"), done)
			write(t, filepath.Join(root, ".f.partial"), "a third one's, killed")
		}
	}
	if err := WriteFile(path, []byte("new")); err != nil || read(t, path) != "new" || read(t, done) != "the former owner's" || names(t, root) != "done f" {
		t.Errorf("%v: %q, %q, %s", err, read(t, path), read(t, done), names(t, root))
	}
}

// What has the place of a partial file or folder and is none is not followed, emptied or removed; a file is not replaced by a folder.
func TestInTheWay(t *testing.T) {
	for _, folder := range []bool{false, true} {
		root := t.TempDir()
		other := filepath.Join(root, "other")
		kept := other
		if folder {
			os.Mkdir(other, 0o777)
			kept = filepath.Join(other, "x")
		}
		write(t, kept, "kept")
		if err := os.Symlink("other", filepath.Join(root, ".d.partial")); err != nil {
			t.Skip(err)
		}
		write := func(path string) error {
			if folder {
				return WriteDir(path, func(string) error { return nil })
			}
			return Write(path, put("new"))
		}
		if err := write(filepath.Join(root, "d")); err == nil || !strings.Contains(err.Error(), ".d.partial is in the way") || read(t, kept) != "kept" {
			t.Errorf("a link: %v, %q", err, read(t, kept))
		}
		os.Remove(filepath.Join(root, ".d.partial"))
		if folder {
			if err := write(kept); err == nil || !strings.Contains(err.Error(), "not a folder") || read(t, kept) != "kept" || names(t, other) != "x" {
				t.Errorf("a file: %v, %s", err, names(t, other))
			}
		} else if os.Mkdir(filepath.Join(root, "d"), 0o777); write(filepath.Join(root, "d")) == nil || names(t, root) != "d other" {
			t.Errorf("a folder is replaced by a file, left %s", names(t, root))
		}
	}
}

// File systems that can't sync a folder are let be; another error of it is told.
func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	s := watch(t, dir, true)
	for _, c := range []struct {
		cause error
		told  bool
	}{{syscall.EINVAL, false}, {syscall.ENOTSUP, false}, {syscall.EIO, true}} {
		s.steps, s.fail, s.cause = nil, 0, c.cause
		if err := SyncDir(dir); (err != nil) != c.told || c.told && (!errors.Is(err, c.cause) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
	if err := SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// What a kill between two renames has left beside a whole folder is removed by the next writer.
func TestPreviousRemoved(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "d")
	for _, d := range []string{dir, sibling(dir, "previous")} {
		os.Mkdir(d, 0o777)
		write(t, filepath.Join(d, "x"), d)
	}
	boom := errors.New("boom")
	if err := WriteDir(dir, func(string) error { return boom }); !errors.Is(err, boom) || names(t, root) != "d" || read(t, filepath.Join(dir, "x")) != dir {
		t.Errorf("%v, left %s", err, names(t, root))
	}
}

// A pipe or device that can't be written is an error with its name, and of one whose reader is gone the cause is told.
func TestReplaceErrors(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such paths")
	}
	if _, err := Replace(t.TempDir()); err == nil || !errors.Is(err, syscall.EISDIR) || !strings.HasPrefix(err.Error(), "write ") {
		t.Error(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	path := fmt.Sprint("/dev/fd/", w.Fd())
	boom := errors.New("boom")
	if err := Rewrite(path, func(io.Writer) error { return boom }); !errors.Is(err, boom) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	r.Close()
	if err := Rewrite(path, put("x")); !errors.Is(err, syscall.EPIPE) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

// What a user's path names is replaced whole, longer or shorter, new or there; without a cause an end is no error.
func TestRewriteWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"a long first text", "short", "longer again"} {
		if err := Rewrite(path, put(text)); err != nil || read(t, path) != text || names(t, dir) != "f" {
			t.Errorf("%v, %q, %s", err, read(t, path), names(t, dir))
		}
	}
	f, err := Replace(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Abort(nil); err != nil || read(t, path) != "longer again" || names(t, dir) != "f" {
		t.Errorf("%v, %q, %s", err, read(t, path), names(t, dir))
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if f, err = Replace(fmt.Sprint("/dev/fd/", w.Fd())); err != nil {
		t.Skip(err)
	}
	if err := f.Abort(nil); err != nil {
		t.Error(err)
	}
}
