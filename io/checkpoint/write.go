package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"contraflow/io/atomicfile"
	"contraflow/io/internal/filelock"
	"contraflow/io/safetensors"
)

// Store is a run's checkpoints.
type Store struct {
	dir     string
	fs      FS
	durable bool          // the folder's own name
	checked map[int]error // what is known of checkpoints: nil of those that are complete
}

// Open returns the store in a folder, which need not exist.
func Open(dir string, fs FS) *Store { return &Store{dir: dir, fs: fs, checked: map[int]error{}} }

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

// ErrBusy is wrapped by Lock's error.
var ErrBusy = errors.New("another process is training into this folder")

// Lock keeps other processes from writing to the store until the returned function is called or this process ends.
func (s *Store) Lock() (unlock func() error, err error) {
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if !filelock.TryLock(f) {
		f.Close()
		return nil, fmt.Errorf("%s: %w", s.dir, ErrBusy)
	}
	return f.Close, nil
}

// Room is how many bytes the disk has left, where the system tells.
func (s *Store) Room() (bytes int64, known bool) { return s.fs.FreeSpace(s.dir) }

// Steps lists the checkpoints, complete or not, in order.
func (s *Store) Steps() ([]int, error) {
	names, err := s.fs.Names(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var steps []int
	for _, n := range names {
		digits, ok := strings.CutPrefix(n, "step-")
		if step, err := strconv.Atoi(digits); ok && err == nil && FolderName(step) == n {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func partial(step int) string { return "." + FolderName(step) + ".partial" }

// Begin prepares the folder of a new checkpoint of about so many bytes. One rank calls it before the ranks write their parts.
// What a killed process has left is removed.
func (s *Store) Begin(step int, bytes int64) error {
	err := s.begin(step, bytes)
	if err != nil {
		return s.explain(step, err)
	}
	return nil
}

func (s *Store) begin(step int, bytes int64) error {
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return err
	}
	if err := s.Tidy(); err != nil {
		return err
	}
	if free, known := s.fs.FreeSpace(s.dir); known && free < bytes {
		return fmt.Errorf("it takes %s and the disk has %s left: free some space, or lower save.keep", atomicfile.Bytes(bytes), atomicfile.Bytes(free))
	}
	if err := s.fs.MkdirAll(s.path(partial(step))); err != nil {
		return err
	}
	if err := s.syncParents(); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}

// Tidy removes what a killed process has left of a checkpoint that it was writing or removing. Nobody else may be at work on the store.
func (s *Store) Tidy() error {
	names, err := s.fs.Names(s.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, ".step-") {
			if err := s.fs.RemoveAll(s.path(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// syncParents makes the store's own name durable, and those of the folders it is in: any of them may be new. What lies above the run's
// folder may be out of our hands, and then is not new.
func (s *Store) syncParents() error {
	if s.durable {
		return nil
	}
	dir := filepath.Dir(s.dir)
	if err := s.fs.SyncDir(dir); err != nil {
		return err
	}
	for up := filepath.Dir(dir); up != dir; dir, up = up, filepath.Dir(up) {
		s.fs.SyncDir(up)
	}
	s.durable = true
	return nil
}

// WritePart writes a rank's pieces. All elements have the type dtype.
func (s *Store) WritePart(step, rank int, dtype safetensors.DType, pieces []Piece) (Part, error) {
	p := Part{File: partName(rank)}
	h := &hashingWriter{h: xxh3.New()}
	err := s.write(filepath.Join(partial(step), p.File), func(f File) error {
		h.w = f
		return encodePart(h, dtype, pieces)
	})
	if err != nil {
		return p, s.explain(step, fmt.Errorf("%s: %w", p.File, err))
	}
	p.Bytes, p.Hash = h.n, hashOf(h.h)
	return p, nil
}

// write makes a durable file.
func (s *Store) write(name string, fill func(File) error) error {
	f, err := s.fs.Create(s.path(name))
	if err != nil {
		return err
	}
	if err := fill(f); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func (s *Store) writeBytes(name string, b []byte) error {
	return s.write(name, func(f File) error {
		_, err := f.Write(b)
		return err
	})
}

// Commit completes the checkpoint whose parts have been written, and then removes what is older than the last keep complete ones: this one
// and those before it. One rank calls it. If it fails, the checkpoints before are there as they were: so it does where Load would refuse what
// is written, all but for the parts' hashes.
func (s *Store) Commit(st State, keep int) error {
	if err := s.commit(st); err != nil {
		return s.explain(st.Step, err)
	}
	s.checked[st.Step] = nil // its parts were hashed on the way to the disk
	if err := s.prune(st.Step, keep); err != nil {
		return fmt.Errorf("the checkpoint of step %d is written, but older ones can't be removed: %w", st.Step, err)
	}
	return nil
}

func (s *Store) commit(st State) error {
	st.Format = format
	raw, err := encodeManifest(st)
	if err != nil {
		return err
	}
	tmp, final := partial(st.Step), FolderName(st.Step)
	written, err := s.open(s.path(tmp), st, false)
	if err != nil {
		return err
	}
	if err := written.Close(); err != nil {
		return err
	}
	if err := s.writeBytes(filepath.Join(tmp, manifestName), raw); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.path(tmp)); err != nil {
		return err
	}
	names, err := s.fs.Names(s.dir)
	if err != nil {
		return err
	}
	if slices.Contains(names, final) { // damaged: a run that resumed before it is here again
		if err := s.remove(final); err != nil {
			return err
		}
	}
	if err := s.fs.Rename(s.path(tmp), s.path(final)); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("it is in its place, but a power cut may undo that: %w", err)
	}
	if err := s.name(final); err != nil {
		return fmt.Errorf("it is complete, but %s does not name it: %w", latestName, err)
	}
	return nil
}

// name writes LATEST.
func (s *Store) name(folder string) error {
	const next = ".LATEST.partial"
	if err := s.writeBytes(next, []byte(folder+"\n")); err != nil {
		return err
	}
	if err := s.fs.Rename(s.path(next), s.path(latestName)); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}

// prune removes what is older than the last keep complete checkpoints, of which the one just written is the newest. What is newer than that
// one was passed over when the run resumed, so it does not count, nor does anything else that is damaged; and a folder that has
// the name of a checkpoint and nothing of one is not ours to remove.
//
// A checkpoint that an earlier process wrote is read once to know that it is complete (hashing: some GB/s), beside the training.
func (s *Store) prune(newest, keep int) error {
	steps, err := s.Steps()
	if err != nil {
		return err
	}
	complete := 0
	for _, step := range slices.Backward(steps) {
		switch {
		case step > newest:
		case complete < max(1, keep):
			if s.complete(step) {
				complete++
			}
		default:
			names, err := s.fs.Names(s.path(FolderName(step)))
			if err != nil || !slices.Contains(names, manifestName) {
				continue
			}
			if err := s.remove(FolderName(step)); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete tells whether a checkpoint is, reading it if that is not known.
func (s *Store) complete(step int) bool {
	err, known := s.checked[step]
	if !known {
		var c *Checkpoint
		if c, err = s.Load(step); err == nil {
			c.Close()
		}
	}
	return err == nil
}

// remove makes a checkpoint none in one step, and then removes it.
func (s *Store) remove(name string) error {
	hidden := "." + name + ".removed"
	if err := s.fs.RemoveAll(s.path(hidden)); err != nil {
		return err
	}
	if err := s.fs.Rename(s.path(name), s.path(hidden)); err != nil {
		return err
	}
	return s.fs.RemoveAll(s.path(hidden))
}

// Abandon removes what a failed checkpoint has written so far.
func (s *Store) Abandon(step int) error { return s.fs.RemoveAll(s.path(partial(step))) }

// explain says which checkpoint failed and that nothing is lost. What is newer was passed over when the run resumed.
func (s *Store) explain(step int, err error) error {
	full := ""
	if atomicfile.IsFull(err) {
		full = "the disk is full: "
	}
	before := "there is none before it"
	steps, e := s.Steps()
	if i, _ := slices.BinarySearch(steps, step); e == nil && i > 0 {
		before = fmt.Sprintf("the one of step %d is unchanged", steps[i-1])
	}
	return fmt.Errorf("checkpoint of step %d in %s (%s): %s%w", step, s.dir, before, full, err)
}
