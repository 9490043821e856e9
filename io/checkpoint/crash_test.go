package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/testdata/harness"
)

// memory is a file system that knows what of it would survive a power cut: of files what was there at their last sync, of folders
// the names that were there at theirs. Every operation is counted, and one can be made to fail, or to be the last.
type memory struct {
	root *node
	op   int
	at   int                   // the operation that something happens at; 0: none
	fail func(op string) error // what it fails with; nil: everything ends there, with errPower
	half bool                  // a write that fails has written half of its bytes
	log  []string              // operations
}

// node is a file or a folder, as the process sees it and as the disk has it.
type node struct {
	dir          bool
	data, onDisk []byte
	kids, synced map[string]*node
	named        string // the last name that came or went
}

var errPower = errors.New("the power is out")

func newFolder() *node { return &node{dir: true, kids: map[string]*node{}, synced: map[string]*node{}} }

// does counts an operation and says whether it happens.
func (m *memory) does(format string, args ...any) error {
	m.op++
	what := fmt.Sprintf(format, args...)
	m.log = append(m.log, what)
	switch {
	case m.at == 0 || m.op < m.at:
		return nil
	case m.fail == nil:
		return errPower
	case m.op == m.at:
		return m.fail(what)
	}
	return nil
}

func (m *memory) find(path string) (parent *node, name string, n *node) {
	parent = m.root
	parts := strings.Split(strings.Trim(filepath.ToSlash(path), "/"), "/")
	for _, p := range parts[:len(parts)-1] {
		if parent = parent.kids[p]; parent == nil {
			return nil, "", nil
		}
	}
	name = parts[len(parts)-1]
	return parent, name, parent.kids[name]
}

func (m *memory) MkdirAll(dir string) error {
	if err := m.does("mkdir %s", dir); err != nil {
		return err
	}
	at := m.root
	for _, p := range strings.Split(strings.Trim(filepath.ToSlash(dir), "/"), "/") {
		if at.kids[p] == nil {
			at.kids[p], at.named = newFolder(), p
		}
		at = at.kids[p]
	}
	return nil
}

func (m *memory) Create(path string) (File, error) {
	if err := m.does("create %s", path); err != nil {
		return nil, err
	}
	parent, name, n := m.find(path)
	if parent == nil {
		return nil, os.ErrNotExist
	}
	if n == nil {
		n = &node{}
		parent.kids[name], parent.named = n, name
	}
	n.data = nil
	return &memoryFile{m, n, path}, nil
}

type memoryFile struct {
	m    *memory
	n    *node
	path string
}

func (f *memoryFile) Write(b []byte) (int, error) {
	if err := f.m.does("write %s", f.path); err != nil {
		if f.m.half && f.m.op == f.m.at {
			f.n.data = append(f.n.data, b[:len(b)/2]...)
		}
		return 0, err
	}
	f.n.data = append(f.n.data, b...)
	return len(b), nil
}

func (f *memoryFile) Sync() error {
	if err := f.m.does("sync %s", f.path); err != nil {
		return err
	}
	f.n.onDisk = bytes.Clone(f.n.data)
	return nil
}

func (f *memoryFile) Close() error { return f.m.does("close %s", f.path) }

func (m *memory) Rename(from, to string) error {
	if err := m.does("rename %s %s", from, to); err != nil {
		return err
	}
	a, an, n := m.find(from)
	b, bn, old := m.find(to)
	if n == nil || b == nil || old != nil && old.dir && len(old.kids) > 0 {
		return os.ErrInvalid
	}
	delete(a.kids, an)
	b.kids[bn], b.named = n, bn
	return nil
}

// RemoveAll removes what is in a folder one by one, as a kill may find it.
func (m *memory) RemoveAll(path string) error {
	parent, name, n := m.find(path)
	if n != nil {
		for _, kid := range slices.Sorted(maps.Keys(n.kids)) {
			if err := m.RemoveAll(filepath.Join(path, kid)); err != nil {
				return err
			}
		}
	}
	if err := m.does("remove %s", path); err != nil {
		return err
	}
	if parent != nil {
		delete(parent.kids, name)
		parent.named = name
	}
	return nil
}

func (m *memory) SyncDir(dir string) error {
	if err := m.does("sync folder %s", dir); err != nil {
		return err
	}
	n := m.root
	if strings.Trim(dir, "./") != "" {
		_, _, n = m.find(dir)
	}
	n.synced = maps.Clone(n.kids)
	return nil
}

func (m *memory) Names(dir string) ([]string, error) {
	_, _, n := m.find(dir)
	if n == nil {
		return nil, os.ErrNotExist
	}
	return slices.Collect(maps.Keys(n.kids)), nil
}

func (m *memory) Size(path string) (int64, error) {
	_, _, n := m.find(path)
	if n == nil {
		return 0, os.ErrNotExist
	}
	return int64(len(n.data)), nil
}

func (m *memory) Tensors(path string) (*safetensors.File, error) {
	_, _, n := m.find(path)
	if n == nil {
		return nil, os.ErrNotExist
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	copied := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(copied, n.data, 0o600); err != nil {
		return nil, err
	}
	return safetensors.Open(copied)
}

func (m *memory) FreeSpace(string) (int64, bool) { return 0, false }

// What may be on the disk when the next process looks.
var endings = map[string]func(n *node) (data []byte, kids map[string]*node){
	"a kill":      func(n *node) ([]byte, map[string]*node) { return n.data, n.kids },
	"a power cut": func(n *node) ([]byte, map[string]*node) { return n.onDisk, n.synced },
	"a power cut after the names, but not the data": func(n *node) ([]byte, map[string]*node) { return n.onDisk, n.kids },
	"a power cut after the data, but not the names": func(n *node) ([]byte, map[string]*node) { return n.data, n.synced },
	"a power cut after the data and the last name, but not the names before": func(n *node) ([]byte, map[string]*node) {
		kids := maps.Clone(n.synced)
		if k := n.kids[n.named]; k != nil {
			kids[n.named] = k
		} else {
			delete(kids, n.named)
		}
		return n.data, kids
	},
}

// lay writes what an ending leaves to a real folder.
func lay(t *testing.T, n *node, see func(*node) ([]byte, map[string]*node), path string) {
	t.Helper()
	data, kids := see(n)
	var err error
	if !n.dir {
		err = os.WriteFile(path, data, 0o600)
	} else if err = os.MkdirAll(path, 0o700); err == nil {
		for name, k := range kids {
			lay(t, k, see, filepath.Join(path, name))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// steps saves step after step with two ranks and says which was the last to succeed.
func steps(fs FS, from, to int) (last int, err error) {
	s := Open("run/checkpoints", fs)
	for step := from; step <= to; step++ {
		if err := save(s, step, 2); err != nil {
			return last, err
		}
		last = step
	}
	return last, nil
}

// save writes a small checkpoint whose numbers say which one it is.
func save(s *Store, step, keep int) error {
	if err := s.Begin(step, 100); err != nil {
		return err
	}
	st := small(step)
	for rank := range 2 {
		p, err := s.WritePart(step, rank, "F32", piecesOf(step, rank))
		if err != nil {
			return errors.Join(err, s.Abandon(step))
		}
		st.Parts = append(st.Parts, p)
	}
	return s.Commit(st, keep)
}

// Whatever ends saving, at any operation, what Latest finds is complete, and no older than the last that was said to be.
func TestEndsAnywhere(t *testing.T) {
	harness.Thorough(t)
	whole := &memory{root: newFolder()}
	if _, err := steps(whole, 1, 3); err != nil {
		t.Fatal(err)
	}
	if whole.op < 80 {
		t.Fatalf("only %d operations: %v", whole.op, whole.log)
	}
	dir := filepath.Join(t.TempDir(), "disk")
	for at := 1; at <= whole.op+1; at++ {
		what := whole.log[min(at, whole.op)-1]
		for _, half := range []bool{false, true} {
			if half && !strings.HasPrefix(what, "write") {
				continue
			}
			m := &memory{root: newFolder(), at: at, half: half}
			last, err := steps(m, 1, 3)
			if (err == nil) != (at > whole.op) {
				t.Fatalf("power out at operation %d: %v", at, err)
			}
			for name, see := range endings {
				lay(t, m.root, see, dir)
				if name == "a kill" { // nothing has a checkpoint's name that is none
					checkAll(t, fmt.Sprintf("%s at operation %d (%s)", name, at, what), Open(filepath.Join(dir, "run", "checkpoints"), Disk{}))
				}
				checkLatest(t, fmt.Sprintf("%s at operation %d (%s)", name, at, what), dir, last)
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// hasty is the disk without syncing.
type hasty struct{ Disk }

type hastyFile struct{ File }

func (hastyFile) Sync() error { return nil }

func (hasty) SyncDir(string) error { return nil }

func (h hasty) Create(path string) (File, error) {
	f, err := h.Disk.Create(path)
	return hastyFile{f}, err
}

// checkAll loads all checkpoints.
func checkAll(t *testing.T, where string, s *Store) {
	t.Helper()
	steps, err := s.Steps()
	if err != nil {
		t.Errorf("%s: %v", where, err)
	}
	for _, step := range steps {
		if c, err := s.Load(step); err != nil {
			t.Errorf("%s: %v", where, err)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// checkLatest loads the newest complete checkpoint of a folder and goes on saving there. LATEST, where there is one, names a complete one too.
func checkLatest(t *testing.T, where, dir string, atLeast int) {
	t.Helper()
	s := Open(filepath.Join(dir, "run", "checkpoints"), hasty{})
	if name, err := os.ReadFile(s.path(latestName)); err == nil {
		step, _ := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(string(name)), "step-"))
		if c, err := s.Load(step); err != nil {
			t.Errorf("%s: LATEST says %q: %v", where, name, err)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	c, err := s.Latest(nil)
	found := 0
	switch {
	case err == nil:
		found = c.Step
		for _, v := range c.Vectors {
			for _, p := range c.Parameters {
				got := make([]byte, 4*p.Len())
				if err := c.Read(v, p.Name, 0, got); err != nil {
					t.Errorf("%s: %v", where, err)
				}
				if want := whole(c.Step, v, p); !bytes.Equal(got, want) {
					t.Errorf("%s: %s of %s in step %d is %v, want %v", where, v, p.Name, c.Step, got, want)
				}
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	case !errors.Is(err, ErrNone):
		t.Errorf("%s: %v", where, err)
	}
	if found < atLeast {
		t.Errorf("%s: found step %d, but step %d had been saved: %v", where, found, atLeast, err)
	}
	if err := save(s, found+1, 2); err != nil {
		t.Errorf("%s: the next one: %v", where, err)
	}
	if c, err := s.Latest(nil); err != nil || c.Step != found+1 {
		t.Errorf("%s: the next one is not found: %v", where, err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// An operation that fails is an error that names the checkpoint; the one before stays the newest, and the next attempt succeeds.
func TestFailsAnywhere(t *testing.T) {
	clean := &memory{root: newFolder()}
	if _, err := steps(clean, 1, 3); err != nil {
		t.Fatal(err)
	}
	before := &memory{root: newFolder()}
	if _, err := steps(before, 1, 2); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "disk")
	for _, cause := range []error{errors.New("input/output error"), syscall.ENOSPC} {
		for at := before.op + 1; at <= clean.op; at++ {
			m := &memory{root: newFolder(), at: at, half: true, fail: func(string) error { return cause }}
			last, err := steps(m, 1, 3)
			what := clean.log[at-1]
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), "step 3") {
				t.Errorf("%s fails with %v: %v", what, cause, err)
				continue
			}
			if cause == syscall.ENOSPC && !strings.Contains(err.Error(), "the disk is full") && !strings.Contains(err.Error(), "is written") {
				t.Errorf("%s fails on a full disk: %v", what, err)
			}
			lay(t, m.root, endings["a kill"], dir)
			checkLatest(t, what+" fails", dir, last)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := steps(m, 3, 4); err != nil {
				t.Errorf("%s has failed, and the next attempt does too: %v", what, err)
			}
		}
	}
}
