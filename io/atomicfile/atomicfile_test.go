package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names are the entries of dir, so that a leftover can't hide.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"first, and longer", "second", ""} {
		if err := Write(path, put(text)); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := Write(path, func(w io.Writer) error { put("half")(w); return boom })
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want boom and the path", err)
	}
	if got := read(t, path); got != "old" {
		t.Errorf("a failed write changed the file to %q", got)
	}
	if got := names(t, dir); got != "f" {
		t.Errorf("left behind: %s", got)
	}
}

func TestWriteOverLeftover(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, sibling(path, "partial"), "a longer text that a killed writer left")
	if err := Write(path, put("new")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "new" {
		t.Errorf("got %q", got)
	}
	if got := names(t, dir); got != "f" {
		t.Errorf("left behind: %s", got)
	}
}

func TestConcurrentWriters(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the lock ends before the rename")
	}
	path := filepath.Join(t.TempDir(), "f")
	err := Write(path, func(w io.Writer) error {
		if err := Write(path, put("inner")); !errors.Is(err, ErrBusy) {
			t.Errorf("second writer: %v, want ErrBusy", err)
		}
		return put("outer")(w)
	})
	if err != nil || read(t, path) != "outer" {
		t.Errorf("%v, %q", err, read(t, path))
	}
	dir := filepath.Join(t.TempDir(), "d")
	err = WriteDir(dir, func(tmp string) error {
		if err := WriteDir(dir, func(string) error { return nil }); !errors.Is(err, ErrBusy) {
			t.Errorf("second writer: %v, want ErrBusy", err)
		}
		write(t, filepath.Join(tmp, "x"), "outer")
		return nil
	})
	if err != nil || names(t, dir) != "x" {
		t.Errorf("%v, %q", err, names(t, dir))
	}
}

func TestWriteDir(t *testing.T) {
	for _, how := range []string{"exchange", "two renames"} {
		t.Run(how, func(t *testing.T) {
			if how == "two renames" {
				swap = func(string, string) error { return errors.ErrUnsupported }
				defer func() { swap = exchange }()
			}
			root := t.TempDir()
			dir := filepath.Join(root, "sub", "model")
			fill := func(name string) func(string) error {
				return func(tmp string) error {
					if got := names(t, tmp); got != "" {
						t.Errorf("the folder to fill holds %s", got)
					}
					os.Mkdir(filepath.Join(tmp, "1_Pooling"), 0o777)
					write(t, filepath.Join(tmp, "1_Pooling", name), "x")
					return nil
				}
			}
			for _, name := range []string{"a", "b"} {
				if err := WriteDir(dir, fill(name)); err != nil {
					t.Fatal(err)
				}
				if got := names(t, filepath.Join(dir, "1_Pooling")); got != name {
					t.Errorf("holds %s, want %s", got, name)
				}
			}
			boom := errors.New("boom")
			if err := WriteDir(dir, func(tmp string) error { fill("c")(tmp); return boom }); !errors.Is(err, boom) {
				t.Errorf("error %v, want boom", err)
			}
			if got := names(t, filepath.Join(dir, "1_Pooling")); got != "b" {
				t.Errorf("after a failure it holds %s, want b", got)
			}
			if got := names(t, filepath.Join(root, "sub")); got != "model" {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}

func TestWriteDirThroughLink(t *testing.T) {
	root := t.TempDir()
	real := filepath.Join(root, "real")
	os.Mkdir(real, 0o777)
	link := filepath.Join(root, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Skip(err)
	}
	err := WriteDir(link, func(tmp string) error { write(t, filepath.Join(tmp, "x"), ""); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, real); got != "x" {
		t.Errorf("the link's target holds %q", got)
	}
}

func TestRecoverPrevious(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	previous := sibling(dir, "previous")
	os.Mkdir(previous, 0o777)
	write(t, filepath.Join(previous, "x"), "old")
	boom := errors.New("boom")
	if err := WriteDir(dir, func(string) error { return boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "x")); got != "old" {
		t.Errorf("got %q", got)
	}
}

// Replace leaves links and devices what they are.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	write(t, file, "old")
	if err := os.Symlink("f", link); err != nil {
		t.Skip(err)
	}
	put := func(path, text string) error { return Rewrite(path, put(text)) }
	if err := put(link, "new"); err != nil || read(t, file) != "new" || names(t, dir) != "f link" {
		t.Errorf("through a link: %v, %q, %s", err, read(t, file), names(t, dir))
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link is replaced: %v", err)
	}
	early := t.TempDir() // links of files that are not there yet, the first in a folder that is a link itself
	os.MkdirAll(filepath.Join(early, "a", "deep"), 0o777)
	os.Symlink(filepath.Join("a", "deep"), filepath.Join(early, "folder"))
	os.Symlink(filepath.Join("..", "second"), filepath.Join(early, "a", "deep", "first"))
	os.Symlink(filepath.Join(early, "file"), filepath.Join(early, "a", "second"))
	if err := put(filepath.Join(early, "folder", "first"), "begun"); err != nil || read(t, filepath.Join(early, "file")) != "begun" || names(t, early) != "a file folder" {
		t.Errorf("through links to nothing: %v, %s", err, names(t, early))
	}
	os.Symlink("loop", filepath.Join(early, "loop"))
	if err := put(filepath.Join(early, "loop"), ""); err == nil || !strings.Contains(err.Error(), "loop") || names(t, early) != "a file folder loop" {
		t.Errorf("a link to itself: %v, %s", err, names(t, early))
	}
	if err := put(dir, ""); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a folder: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := put(fmt.Sprint("/dev/fd/", w.Fd()), "piped"); err != nil {
		t.Errorf("a pipe: %v", err)
	}
	w.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "piped" {
		t.Errorf("a pipe has %q, %v", text, err)
	}
	// Not /dev/null: where all is allowed, a fault would replace the machine's.
	if r, w, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := Replace(fmt.Sprint("/dev/fd/", w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	io.WriteString(f, "half")
	if boom := errors.New("boom"); !errors.Is(f.Abort(boom), boom) {
		t.Error("the cause is lost")
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "half" {
		t.Errorf("a pipe has %q, %v", text, err)
	}
}

// A folder that is there and takes no files is an error, not tried for ever.
func TestFolderTakesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a working folder can't be deleted")
	}
	dir := filepath.Join(t.TempDir(), "z")
	os.Mkdir(dir, 0o777)
	t.Chdir(dir)
	if err := os.Remove(dir); err != nil {
		t.Skip(err)
	}
	for name, f := range map[string]func() error{
		"f":       func() error { return Write("f", put("x")) },
		"/proc/x": func() error { return Write("/proc/x", put("x")) },
		"/proc/d": func() error { return WriteDir("/proc/d", func(string) error { return nil }) },
	} {
		end := make(chan error, 1)
		go func() { end <- f() }()
		select {
		case err := <-end:
			if err == nil || name == "f" && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "was deleted, or takes no files")) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: still trying", name)
		}
	}
}

// TestKilled kills a writer in the middle of a file and of a folder.
func TestKilled(t *testing.T) {
	if root := os.Getenv("ATOMICFILE_KILL"); root != "" {
		self, _ := os.FindProcess(os.Getpid())
		err := WriteDir(filepath.Join(root, "d"), func(tmp string) error {
			write(t, filepath.Join(tmp, "half"), "half")
			return Write(filepath.Join(root, "f"), func(w io.Writer) error {
				put("half")(w)
				self.Kill()
				time.Sleep(time.Minute)
				return nil
			})
		})
		t.Fatal(err)
	}
	root := t.TempDir()
	dir, file := filepath.Join(root, "d"), filepath.Join(root, "f")
	os.Mkdir(dir, 0o777)
	write(t, filepath.Join(dir, "x"), "old")
	write(t, file, "old")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "ATOMICFILE_KILL="+root)
	if err := cmd.Run(); err == nil {
		t.Fatal("the writer was not killed")
	}
	if got := read(t, filepath.Join(dir, "x")) + read(t, file); got != "oldold" {
		t.Fatalf("after the kill: %q", got)
	}
	if got := names(t, root); got != ".d.partial .f.partial d f" {
		t.Fatalf("the kill came at another place than meant: %s", got)
	}
	if err := Write(file, put("new")); err != nil {
		t.Fatal(err)
	}
	if err := WriteDir(dir, func(tmp string) error { write(t, filepath.Join(tmp, "y"), "new"); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := names(t, root) + ": " + names(t, dir); got != "d f: y" {
		t.Errorf("after the next writers: %s", got)
	}
}

// full is what a full disk gives in the middle of a write.
func TestFullDiskMessage(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("another error number")
	}
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "old")
	err := Write(path, func(w io.Writer) error {
		w.Write(bytes.Repeat([]byte("x"), 1500))
		return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
	})
	if err == nil || !IsFull(err) || read(t, path) != "old" {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{path, "1.5 kB were written", "unchanged"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

// What fails for another reason is not called full, and of a file in a folder the story is told once.
func TestFullDiskOrNot(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("another error number")
	}
	dir := filepath.Join(t.TempDir(), "d")
	fill := func(cause error) error {
		return WriteDir(dir, func(tmp string) error {
			write(t, filepath.Join(tmp, "x"), strings.Repeat("x", 1000))
			return Write(filepath.Join(tmp, "y"), func(w io.Writer) error {
				io.WriteString(w, strings.Repeat("y", 500))
				return cause
			})
		})
	}
	if err := fill(syscall.EIO); !errors.Is(err, syscall.EIO) || IsFull(err) || strings.Contains(err.Error(), "full") {
		t.Error(err)
	}
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if err := fill(cause); !errors.Is(err, cause) || !IsFull(err) || strings.Count(err.Error(), "disk is full: 1.5 kB were written") != 1 || strings.Count(err.Error(), "full") != 1 {
			t.Error(err)
		}
	}
	for n, want := range map[int64]string{999: "999 bytes", 1000: "1.0 kB", 1500000: "1.5 MB", 2e9: "2.0 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

// Abort after Commit leaves alone what the next writer has begun.
func TestAbortAfterCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	first, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	err = Write(path, func(w io.Writer) error {
		boom := errors.New("boom")
		if first.Abort(nil) != nil || first.Abort(boom) != boom {
			t.Error("an error of its own")
		}
		return put("second")(w)
	})
	if err != nil || read(t, path) != "second" {
		t.Errorf("%v, %q", err, read(t, path))
	}
}

// A path that is empty is an error, not the folder at hand.
func TestNoName(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("thesis.txt", []byte("all of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Write":    Write("", func(io.Writer) error { return nil }),
		"WriteDir": WriteDir("", func(string) error { return nil }),
	} {
		if !errors.Is(err, errNoName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Replace(""); !errors.Is(err, errNoName) {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "thesis.txt")); err != nil || string(b) != "all of it" {
		t.Errorf("%q, %v", b, err)
	}
}

// A file that others may not read stays so when it is replaced, and one that its owner may not write can be.
func TestMode(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such permissions")
	}
	path := filepath.Join(t.TempDir(), "f")
	for _, mode := range []os.FileMode{0o600, 0o640, 0o444} {
		if err := errors.Join(WriteFile(path, []byte("old")), os.Chmod(path, mode), WriteFile(path, []byte("new"))); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if text, e := os.ReadFile(path); err != nil || e != nil || info.Mode().Perm() != mode || string(text) != "new" {
			t.Errorf("%v: %v, %q, %v, %v", mode, info.Mode(), text, err, e)
		}
	}
}
