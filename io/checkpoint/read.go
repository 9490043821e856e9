package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
)

// ErrNone is wrapped by Latest's error where no checkpoint is complete.
var ErrNone = errors.New("no complete checkpoint")

// Checkpoint is a complete checkpoint, open for reading.
type Checkpoint struct {
	State
	dir   string
	size  int // bytes of an element
	files []*safetensors.File
	index map[string][]piece // by vector/parameter, in the order of elements
}

type piece struct {
	from int
	data []byte
}

// Latest opens the newest complete checkpoint. damaged is told what is wrong with newer ones; it may be nil. The error wraps
// ErrNone if there is none, and names those that are damaged.
func (s *Store) Latest(damaged func(folder string, err error)) (*Checkpoint, error) {
	steps, err := s.Steps()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, step := range slices.Backward(steps) {
		c, err := s.Load(step)
		if err == nil {
			return c, nil
		}
		if damaged != nil {
			damaged(s.path(FolderName(step)), err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(append([]error{fmt.Errorf("%s: %w", s.dir, ErrNone)}, errs...)...)
}

// Load opens the checkpoint of a step and checks all of it: sizes, hashes, and that every element of every parameter is there.
func (s *Store) Load(step int) (*Checkpoint, error) {
	dir := s.path(FolderName(step))
	c, err := s.load(dir, step, true)
	s.checked[step] = err
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

// LoadFolder opens the checkpoint in a folder, of whichever store, and checks it as Load does.
func LoadFolder(dir string, fs FS) (*Checkpoint, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var step int
	if digits, ok := strings.CutPrefix(filepath.Base(dir), "step-"); ok {
		step, _ = strconv.Atoi(digits)
	}
	if FolderName(step) != filepath.Base(dir) {
		return nil, fmt.Errorf("%s is not the folder of a checkpoint, such as %s", dir, FolderName(500))
	}
	return Open(filepath.Dir(dir), fs).Load(step)
}

// IsCheckpoint tells whether a folder holds a checkpoint, complete or damaged.
func IsCheckpoint(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, manifestName))
	return err == nil && info.Mode().IsRegular()
}

// LoadChecked opens a checkpoint whose hashes another rank has checked.
func (s *Store) LoadChecked(step int) (*Checkpoint, error) {
	dir := s.path(FolderName(step))
	c, err := s.load(dir, step, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

func (s *Store) load(dir string, step int, hashes bool) (*Checkpoint, error) {
	raw, err := readBounded(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	st, err := decodeManifest(raw)
	if err != nil {
		return nil, err
	}
	if st.Step != step {
		return nil, fmt.Errorf("%s is of step %d", manifestName, st.Step)
	}
	return s.open(dir, st, hashes)
}

// open checks what a folder has against what its state says.
func (s *Store) open(dir string, st State, hashes bool) (_ *Checkpoint, err error) {
	c := &Checkpoint{State: st, dir: dir, size: safetensors.DType(st.DType).Bits() / 8, index: map[string][]piece{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	switch {
	case c.size == 0:
		return nil, fmt.Errorf("the state's dtype %q is unknown: want that of its parts' tensors, such as F32", st.DType)
	case len(st.Vectors) == 0 || len(st.Parameters) == 0:
		return nil, fmt.Errorf("the state has %d vectors of %d parameters: want one of each at least", len(st.Vectors), len(st.Parameters))
	}
	for _, p := range st.Parts {
		if err := c.open(s.fs, p, hashes); err != nil {
			return nil, err
		}
	}
	return c, c.complete()
}

// maxManifest bounds checkpoint.json: a million parameters and as many rows that wait take less.
const maxManifest = 256 << 20

func readBounded(path string) ([]byte, error) {
	if err := plainfile.Check(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(raw) > maxManifest {
		err = fmt.Errorf("%s has more than %d bytes", path, maxManifest)
	}
	return raw, err
}

// open checks a part and adds its pieces.
func (c *Checkpoint) open(fs FS, p Part, hashes bool) error {
	if p.File != filepath.Base(p.File) {
		return fmt.Errorf("part %q is not in the folder", p.File)
	}
	path := filepath.Join(c.dir, p.File)
	size, err := fs.Size(path)
	if err != nil {
		return err
	}
	if size != p.Bytes {
		return fmt.Errorf("%s has %d bytes, want %d", p.File, size, p.Bytes)
	}
	if hashes {
		got, err := hashFile(path)
		if err != nil {
			return err
		}
		if got != p.Hash {
			return fmt.Errorf("%s is damaged: its hash is %s, want %s", p.File, got, p.Hash)
		}
	}
	f, err := fs.Tensors(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	for _, name := range f.Names() {
		t, err := f.Tensor(name)
		if err != nil {
			return err
		}
		i := strings.LastIndexByte(name, '@')
		from, err := strconv.Atoi(name[i+1:])
		if i < 0 || err != nil || from < 0 || string(t.DType) != c.DType || len(t.Shape) != 1 {
			return fmt.Errorf("%s: tensor %v is not a piece of a parameter in %s", p.File, t, c.DType)
		}
		c.index[name[:i]] = append(c.index[name[:i]], piece{from, t.Data})
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := xxh3.New()
	if _, err := io.CopyBuffer(h, f, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hashOf(h), nil
}

// complete checks that the pieces of each parameter tile it.
func (c *Checkpoint) complete() error {
	want := map[string]bool{}
	for _, v := range c.Vectors {
		for _, p := range c.Parameters {
			key := v + "/" + p.Name
			want[key] = true
			pieces := c.index[key]
			slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
			at, used := 0, 0
			for _, x := range pieces {
				if x.from != at {
					break
				}
				at += len(x.data) / c.size
				used++
			}
			if n, err := elements(p.Shape); err != nil || at != n {
				return fmt.Errorf("%s of %s: elements from %d on are missing, or there twice (shape %v)", v, p.Name, at, p.Shape)
			}
			if used < len(pieces) {
				return fmt.Errorf("%s of %s: elements from %d on are there twice (shape %v)", v, p.Name, pieces[used].from, p.Shape)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.index)) {
		if !want[key] {
			return fmt.Errorf("%s belongs to no parameter", key)
		}
	}
	return nil
}

func elements(shape []int) (int, error) {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > (1<<56)/d {
			return 0, fmt.Errorf("shape %v", shape)
		}
		n *= d
	}
	return n, nil
}

// Has tells whether the checkpoint has a parameter.
func (c *Checkpoint) Has(name string) bool {
	return len(c.Vectors) > 0 && c.index[c.Vectors[0]+"/"+name] != nil
}

// Read fills dst with a parameter's elements from the given one on.
func (c *Checkpoint) Read(vector, name string, from int, dst []byte) error {
	pieces, ok := c.index[vector+"/"+name]
	if !ok {
		return fmt.Errorf("%s has no %s of %s", c.dir, vector, name)
	}
	i, _ := slices.BinarySearchFunc(pieces, from, func(p piece, from int) int { return cmp.Compare(p.from+len(p.data)/c.size, from+1) })
	at := from * c.size // bytes of the parameter
	for len(dst) > 0 {
		if i == len(pieces) {
			return fmt.Errorf("%s: %s of %s ends before element %d", c.dir, vector, name, at/c.size+len(dst)/c.size)
		}
		p := pieces[i]
		n := copy(dst, p.data[at-p.from*c.size:])
		dst, at = dst[n:], at+n
		i++
	}
	return nil
}

// Close unmaps the parts; of nil there are none.
func (c *Checkpoint) Close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
