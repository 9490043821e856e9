package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"contraflow/io/safetensors"
)

// partWith is a checkpoint of one part with one tensor of four F32 zeros, of that name and shape, whose manifest and hashes are right.
func partWith(t *testing.T, name string, shape []int, parameter []int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), FolderName(1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, partName(0))
	if err := safetensors.Write(file, []safetensors.Tensor{{Name: name, DType: safetensors.F32, Shape: shape, Data: make([]byte, 16)}}, nil); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := encodeManifest(State{Format: format, Step: 1, Vectors: []string{"weights"}, DType: "F32", Parameters: []Parameter{{"bias", parameter}},
		Parts: []Part{{File: partName(0), Bytes: int64(len(data)), Hash: hashBytes(data)}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What is not a piece of a parameter is told, whatever its hash says; so is a shape whose size is right only because it runs over.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		name             string
		shape, parameter []int
		want             string
	}{
		{"weights/bias@0", []int{4}, []int{2, 2}, ""},
		{"weights/bias", []int{4}, []int{4}, "is not a piece of a parameter"},
		{"7", []int{4}, []int{4}, "is not a piece of a parameter"},
		{"@0", []int{4}, []int{4}, "elements from 0 on are missing"},
		{"weights/bias@x", []int{4}, []int{4}, "is not a piece of a parameter"},
		{"weights/bias@-1", []int{4}, []int{4}, "is not a piece of a parameter"},
		{"weights/bias@0", []int{2, 2}, []int{2, 2}, "is not a piece of a parameter"},
		{"weights/bias@0", []int{4}, []int{-2, -2}, "(shape [-2 -2])"},
		{"weights/bias@0", []int{4}, []int{4, 1<<62 + 1}, "(shape [4 4611686018427387905])"},
		{"weights/bias@0", []int{4}, []int{0, 4}, "elements from 4 on are missing, or there twice"},
	} {
		k, err := LoadFolder(partWith(t, c.name, c.shape, c.parameter), Disk{})
		if err == nil {
			k.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v for shape %v: %v, want %q", c.name, c.shape, c.parameter, err, c.want)
		}
	}
}

// opened remembers the parts that were opened.
type opened struct {
	Disk
	files *[]*safetensors.File
}

func (d opened) Tensors(path string) (*safetensors.File, error) {
	f, err := d.Disk.Tensors(path)
	if err == nil {
		*d.files = append(*d.files, f)
	}
	return f, err
}

// Parts are closed with their checkpoint, and where it turns out to be damaged: a run that looks for a good one would hold gigabytes of the bad.
func TestCloses(t *testing.T) {
	_, dir := saved(t, 1, 2, 3)
	rewrite(t, filepath.Join(dir, FolderName(3)), func(s *State) { s.Parts = s.Parts[:1] })
	var files []*safetensors.File
	s := Open(dir, opened{files: &files})
	c, err := s.Latest(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := save(s, 4, 3); err != nil { // which looks whether step 1 is complete
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Fatalf("%d parts were opened", len(files))
	}
	for _, f := range files {
		x, err := f.Tensor(f.Names()[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Float32s(make([]float32, x.Len())); err == nil || !strings.Contains(err.Error(), "the file is closed") {
			t.Errorf("%s is still open: %v", f.Path(), err)
		}
	}
}

// Hashes that another rank has checked are not computed again; all else is looked at.
func TestLoadChecked(t *testing.T) {
	s, dir := saved(t, 2)
	flip(t, filepath.Join(dir, FolderName(2), partName(1)), -3)
	c, err := s.LoadChecked(2)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := s.Load(2); err == nil || !strings.Contains(err.Error(), "rank-00001.safetensors is damaged") {
		t.Error(err)
	}
	if err := os.Truncate(filepath.Join(dir, FolderName(2), partName(1)), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.LoadChecked(2); err == nil || !strings.Contains(err.Error(), "has 100 bytes") {
		t.Error(err)
	}
}

// Where nothing is yet there is no checkpoint; where all are damaged the error names each; steps are in the order of numbers, not of names.
func TestNone(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "none"), Disk{})
	if steps, err := s.Steps(); err != nil || steps != nil {
		t.Errorf("%v, %v", steps, err)
	}
	if _, err := s.Latest(nil); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), s.Dir()) {
		t.Error(err)
	}
	s, dir := saved(t, 1, 2)
	flip(t, filepath.Join(dir, FolderName(1), partName(1)), -3)
	flip(t, filepath.Join(dir, FolderName(2), manifestName), 20)
	if _, err := s.Latest(nil); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), FolderName(1)+": rank-00001.safetensors is damaged") || !strings.Contains(err.Error(), FolderName(2)+": checkpoint.json") {
		t.Error(err)
	}
	for _, step := range []int{99999999, 100000000} {
		if err := os.Mkdir(filepath.Join(dir, FolderName(step)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if steps, err := s.Steps(); err != nil || fmt.Sprint(steps) != "[1 2 99999999 100000000]" {
		t.Errorf("%v, %v", steps, err)
	}
}

// A damaged checkpoint of the step is replaced.
func TestReplacesDamaged(t *testing.T) {
	s, dir := saved(t, 1, 2)
	flip(t, filepath.Join(dir, FolderName(2), partName(1)), -3)
	for _, again := range []*Store{s, Open(dir, Disk{})} {
		if err := save(again, 2, 2); err != nil {
			t.Fatal(err)
		}
		c, err := again.Load(2)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
}

// crammed is a disk that nothing fits on, and that does not say so.
type crammed struct{ Disk }

func (crammed) FreeSpace(string) (int64, bool) { return 0, false }

func (crammed) Create(path string) (File, error) {
	return nil, &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
}

// A disk that does not tell how much it has left is tried; that it is full is said in words, with what is unchanged.
func TestFullDisk(t *testing.T) {
	_, dir := saved(t, 3)
	if runtime.GOOS == "windows" {
		t.Skip("another error number")
	}
	for folder, want := range map[string]string{dir: "the one of step 3 is unchanged", t.TempDir(): "there is none before it"} {
		s := Open(folder, crammed{})
		if err := s.Begin(5, 1<<60); err != nil {
			t.Fatal(err)
		}
		_, err := s.WritePart(5, 1, "F32", piecesOf(5, 1))
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "checkpoint of step 5 in "+folder+" ("+want+"): the disk is full: rank-00001.safetensors: ") {
			t.Error(err)
		}
	}
}

// forgetful has no room for LATEST.
type forgetful struct{ Disk }

func (forgetful) Create(path string) (File, error) {
	if strings.Contains(path, latestName) {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.ENOSPC}
	}
	return Disk{}.Create(path)
}

// A checkpoint that is complete is not said to be the one before itself, and neither is what is newer and was passed over.
func TestNoRoomForLatest(t *testing.T) {
	_, dir := saved(t, 1, 2, 9)
	err := save(Open(dir, forgetful{}), 3, 5)
	if err == nil || !strings.Contains(err.Error(), "checkpoint of step 3 in "+dir+" (the one of step 2 is unchanged)") || !strings.Contains(err.Error(), "it is complete, but LATEST does not name it: ") {
		t.Error(err)
	}
	c, err := Open(dir, Disk{}).Load(3)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Pieces that overlap may be as many elements as the parameter has, and not all of them; or all of them, and those of the last ones twice.
func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		shape int
		from  []int // each by a rank of its own: four elements
		want  string
	}{
		{8, []int{0, 4}, ""},
		{8, []int{0, 2}, "elements from 4 on are missing, or there twice"},
		{4, []int{0, 0}, "elements from 0 on are there twice"},
		{8, []int{0, 4, 4}, "elements from 4 on are there twice"},
		{8, []int{0, 4, 2}, "elements from 4 on are missing, or there twice"},
	} {
		s := Open(t.TempDir(), Disk{})
		if err := s.Begin(1, 0); err != nil {
			t.Fatal(err)
		}
		st := State{Step: 1, Vectors: []string{"weights"}, DType: "F32", Parameters: []Parameter{{"bias", []int{c.shape}}}}
		for rank, from := range c.from {
			p, err := s.WritePart(1, rank, "F32", []Piece{{"weights", "bias", from, make([]byte, 16)}})
			if err != nil {
				t.Fatal(err)
			}
			st.Parts = append(st.Parts, p)
		}
		if err := s.Commit(st, 1); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d elements in pieces from %v: %v, want %q", c.shape, c.from, err, c.want)
		}
	}
}
