// Package atomicfile replaces files and folders as a whole: whoever looks sees the old one or the new one, never a part,
// whatever happens in between (a full disk, a kill, a power cut).
//
// The steps, in this order:
//
//  1. Write into a sibling, ".NAME.partial", in the same folder, because a rename is atomic only inside a file system.
//  2. fsync it (for a folder: every file and folder in it), so that the rename can't reach the disk before the data.
//  3. Rename it over the target. Linux and macOS exchange two folders in one step; where that is missing, the old
//     folder is first renamed to ".NAME.previous".
//  4. fsync the folder that holds the name. Only now is the old one removed.
//
// The sibling's name is fixed rather than random so that what a killed writer left is overwritten by the next one and
// never piles up. A lock on it tells such a leftover from a writer that is still alive: the second of two concurrent
// writers of one path gets an error.
package atomicfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"contraflow/io/internal/filelock"
)

// Variables, so that tests can take the way of systems without swap, see the order of what is done, and let each of it fail.
var (
	swap    = exchange
	rename  = os.Rename
	fsync   = (*os.File).Sync
	tryLock = filelock.TryLock
)

// ErrBusy is wrapped by the error of a writer that finds another one at work on the same path.
var ErrBusy = errors.New("another writer is at work on it, of this process or another one")

// errNoName: a path that nobody has filled in would be the folder at hand.
var errNoName = errors.New("the path is empty: it has to name what is written")

// Windows can't rename what is open. Elsewhere the file stays open, and so locked, until the rename is done.
const closeBeforeRename = runtime.GOOS == "windows"

// Write replaces the file at path by what write writes. If write or anything after it fails, the previous file is
// still there and unchanged, and the error names path; on a full disk it also says how much was missing.
func Write(path string, write func(io.Writer) error) error { return fill(Create, path, write) }

// WriteFile replaces the file at path by data, as Write does.
func WriteFile(path string, data []byte) error {
	return Write(path, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// Rewrite is Write for a path that a user gives, as Replace is Create for one.
func Rewrite(path string, write func(io.Writer) error) error { return fill(Replace, path, write) }

func fill(begin func(path string) (*File, error), path string, write func(io.Writer) error) error {
	f, err := begin(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		return f.Abort(err)
	}
	return f.Commit()
}

// File is a file that is being written beside the one that it will replace. It ends with Commit or Abort.
type File struct {
	*os.File
	path string
	asIs bool // path itself is open: it is no plain file
	done bool
}

// Create begins to write the file that will be at path. Who may read it stays as it is where there is one.
func Create(path string) (*File, error) {
	if path == "" {
		return nil, errNoName
	}
	f, err := openFile(Partial(path))
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	out := &File{File: f, path: path}
	if err := keepMode(f, path); err != nil {
		return nil, out.Abort(err)
	}
	return out, nil
}

// keepMode gives f the permissions of the file at path.
func keepMode(f *os.File, path string) error {
	old, err := os.Stat(path)
	if err != nil || !old.Mode().IsRegular() || runtime.GOOS == "windows" { // whose modes say whether a file may be written
		return nil
	}
	now, err := f.Stat()
	if err != nil || now.Mode().Perm() == old.Mode().Perm() {
		return err
	}
	return f.Chmod(old.Mode().Perm())
}

// Replace is Create for a path that a user gives: of a link, what it leads to is replaced, and a pipe or a device (/dev/stdout) stays what it
// is, and is written into.
func Replace(path string) (*File, error) {
	if path == "" {
		return nil, errNoName
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		return &File{File: f, path: path, asIs: true}, nil
	}
	path, err := follow(path)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return Create(path)
}

// follow is what a path leads to. That may be a file that is not there yet: a link can be made before it, to another disk.
func follow(path string) (string, error) {
	at := path
	for range 255 { // as filepath.EvalSymlinks
		to, err := os.Readlink(at)
		if err != nil { // no link
			return at, nil
		}
		if !filepath.IsAbs(to) {
			dir, err := filepath.EvalSymlinks(filepath.Dir(at)) // .. in a link is of where its folder is
			if err != nil {
				return path, err
			}
			to = filepath.Join(dir, to)
		}
		at = to
	}
	return path, errors.New("too many links")
}

// Commit brings the file to disk and gives it its name. After an error, which is as Write's, the previous one is still there; but after one
// of the last step, which brings the name to disk, the new one is in its place.
func (f *File) Commit() error {
	if f.asIs {
		f.done = true
		return f.Close()
	}
	if err := fsync(f.File); err != nil {
		return f.Abort(err)
	}
	if closeBeforeRename {
		if err := f.Close(); err != nil {
			return f.Abort(err)
		}
	}
	if err := rename(f.Name(), f.path); err != nil {
		return f.Abort(err)
	}
	f.done = true
	f.Close() // it is synced and in its place: a late error of close can't undo that
	if err := SyncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("write %s: it is in its place, but a power cut may undo that: %w", f.path, err)
	}
	return nil
}

// Abort removes what was written, because of cause (nil if there is none): it returns that as Write does. It does nothing after Commit or
// Abort.
func (f *File) Abort(cause error) error {
	if f.done {
		return cause
	}
	f.done = true
	if f.asIs {
		f.Close()
		if cause != nil {
			cause = fmt.Errorf("write %s: %w", f.path, cause)
		}
		return cause
	}
	written, _ := f.Seek(0, io.SeekEnd)
	// Removed before it is closed, where that can be: once the lock is gone, the name may be another writer's.
	if closeBeforeRename {
		f.Close()
	}
	os.Remove(f.Name())
	f.Close()
	if cause == nil {
		return nil
	}
	return explain("write "+f.path, f.path, written, cause)
}

// WriteDir replaces the folder dir by what fill puts into the empty folder it is given. If fill or anything after it
// fails, the previous folder is still there and unchanged. What the previous folder held is removed at the end: it is
// replaced, not merged. If dir is a symbolic link to a folder, that folder is replaced.
func WriteDir(dir string, fill func(tmp string) error) (err error) {
	if dir == "" {
		return errNoName
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	if err := recoverPrevious(dir); err != nil {
		return fmt.Errorf("write folder %s: %w", dir, err)
	}
	tmp := sibling(dir, "partial")
	lock, err := openDir(tmp)
	if err != nil {
		return fmt.Errorf("write folder %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			size := dirSize(tmp)
			os.RemoveAll(tmp)
			err = explain("write folder "+dir, dir, size, err)
		}
		lock.Close()
	}()
	if err = fill(tmp); err != nil {
		return err
	}
	if err = syncTree(tmp); err != nil {
		return err
	}
	if closeBeforeRename {
		lock.Close()
	}
	return replaceDir(tmp, dir)
}

// Dangling is the error for a link to what is not there: no folder can be made in its place, and a system says of it only that it exists.
func Dangling(path string) error {
	to, err := os.Readlink(path)
	if err != nil { // no link
		return nil
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("%s is a link to %s, and nothing is there", path, to)
}

// replaceDir puts the folder tmp in the place of dir, which need not exist.
func replaceDir(tmp, dir string) error {
	parent := filepath.Dir(dir)
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := rename(tmp, dir); err != nil {
			return err
		}
		return SyncDir(parent)
	case err != nil:
		return err
	case !info.IsDir():
		return cmp.Or(Dangling(dir), fmt.Errorf("%s is not a folder", dir))
	}
	if !closeBeforeRename {
		// After the exchange the old folder has the partial one's name: locked, so that no other writer takes it for
		// its own while it is being removed.
		old, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer old.Close()
		tryLock(old)
	}
	previous := tmp
	back := func() error { return swap(tmp, dir) }
	if swap(tmp, dir) != nil {
		previous = sibling(dir, "previous")
		if err := rename(dir, previous); err != nil {
			return err
		}
		if err := rename(tmp, dir); err != nil {
			return errors.Join(err, rename(previous, dir))
		}
		back = func() error { return errors.Join(rename(dir, tmp), rename(previous, dir)) }
	}
	if err := SyncDir(parent); err != nil {
		return errors.Join(err, back()) // which of the two the disk has is not known: neither may go before it is the one
	}
	if err := os.RemoveAll(previous); err != nil {
		return fmt.Errorf("%s is saved, but the previous one, now at %s, can't be removed: %w", dir, previous, err)
	}
	return nil
}

// recoverPrevious undoes a kill between the two renames of a system without exchange.
func recoverPrevious(dir string) error {
	previous := sibling(dir, "previous")
	if _, err := os.Lstat(previous); err != nil {
		return nil
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return rename(previous, dir)
	}
	return os.RemoveAll(previous)
}

// Partial is where what will be the file at path is written until then. It may not be there.
func Partial(path string) string { return sibling(path, "partial") }

func sibling(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+suffix)
}

// openFile opens tmp, locked and empty.
func openFile(tmp string) (*os.File, error) {
	return openLocked(tmp, func() (*os.File, error) {
		if info, err := os.Lstat(tmp); err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is in the way: it is not a plain file", tmp)
		}
		return os.OpenFile(tmp, os.O_CREATE|os.O_RDWR, 0o666)
	}, func(f *os.File) error { return f.Truncate(0) })
}

// openDir opens the folder tmp, locked and empty.
func openDir(tmp string) (*os.File, error) {
	return openLocked(tmp, func() (*os.File, error) {
		if err := os.Mkdir(tmp, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if info, err := os.Lstat(tmp); err == nil && !info.IsDir() {
			return nil, fmt.Errorf("%s is in the way: it is not a folder", tmp)
		}
		return os.Open(tmp)
	}, func(*os.File) error {
		entries, err := os.ReadDir(tmp)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
		}
		return err
	})
}

// openLocked opens, locks and then empties what open opens. A former owner may rename it away or remove it between
// open and lock: then the lock is on something that no longer has this name, and we try again. In a folder that was
// deleted while it is somebody's working folder, and in /proc, nothing can be made however often we try.
func openLocked(tmp string, open func() (*os.File, error), empty func(*os.File) error) (*os.File, error) {
	for missing := 0; ; {
		f, err := open()
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(filepath.Dir(tmp)); err == nil {
				if missing++; missing < 100 {
					continue
				}
			}
			return nil, fmt.Errorf("%w: its folder does not exist, was deleted, or takes no files: make it, or choose another", err)
		}
		if err != nil {
			return nil, err
		}
		if !tryLock(f) {
			f.Close()
			return nil, ErrBusy
		}
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if named, err := os.Lstat(tmp); err != nil || !os.SameFile(mine, named) {
			f.Close()
			continue
		}
		if err := empty(f); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// SyncDir makes the names in dir durable. Systems that have no such thing (Windows) do nothing.
func SyncDir(dir string) error {
	if closeBeforeRename {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some network file systems refuse to sync a folder. The rename has happened; there is no more to be done.
	if err := fsync(d); err != nil && !notSyncable(err) {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return SyncDir(path)
		case !d.Type().IsRegular():
			return nil
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return errors.Join(fsync(f), f.Close())
	})
}

func dirSize(root string) (size int64) {
	filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// fullDisk is the error of a writer that ran out of space.
type fullDisk struct {
	what    string
	written int64
	free    string // ", 1.0 MB are free without them", where known
	cause   error
}

func (e *fullDisk) Unwrap() error { return e.cause }

func (e *fullDisk) Error() string {
	return fmt.Sprintf("%s: the disk is full: %s were written%s; what was there before is unchanged: "+
		"free some space or choose another folder: %v", e.what, Bytes(e.written), e.free, e.cause)
}

// explain adds what a user needs to act on. It is called when the partial output is gone, so that the free space it
// reports is what the next attempt will find.
func explain(what, path string, written int64, err error) error {
	if !IsFull(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	full := &fullDisk{what: what, written: written, cause: err}
	if inner := (*fullDisk)(nil); errors.As(err, &inner) {
		// A file inside of a folder: one story, not two.
		full.written += inner.written
		full.cause = inner.cause
	}
	if n, ok := FreeSpace(filepath.Dir(path)); ok {
		full.free = fmt.Sprintf(", %s are free without them", Bytes(n))
	}
	return full
}

// Bytes writes a size for people: "90.9 MB".
func Bytes(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d bytes", n)
	case n < 1000*1000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1000*1000*1000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}
