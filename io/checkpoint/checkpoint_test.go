package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

var parameters = []Parameter{{"word.weight", []int{5, 3}}, {"bias", []int{4}}}

// element is a number that says what it belongs to.
func element(step int, vector string, p, i int) float32 {
	return float32(1000*step+100*len(vector)+50*p) + float32(i)
}

func small(step int) State {
	return State{
		Step: step, Vectors: []string{"weights", "moment 1"}, DType: "F32", Parameters: parameters, Seed: 7, Mesh: "2 x 1",
		Recipe: "train: {seed: 7}\n", Data: json.RawMessage(`{"epoch":1}`),
	}
}

func bytesOf(vs []float32) []byte {
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func whole(step int, vector string, p Parameter) []byte {
	var vs []float32
	k := 0
	if p.Name == "bias" {
		k = 1
	}
	for i := range p.Len() {
		vs = append(vs, element(step, vector, k, i))
	}
	return bytesOf(vs)
}

// piecesOf cuts every parameter in two at a place of its own: rank 0 has what comes before.
func piecesOf(step, rank int) (pieces []Piece) {
	for _, v := range []string{"weights", "moment 1"} {
		for k, p := range parameters {
			cut := 1 + 6*(1-k)
			b := whole(step, v, p)
			if rank == 0 {
				pieces = append(pieces, Piece{v, p.Name, 0, b[:4*cut]})
			} else {
				pieces = append(pieces, Piece{v, p.Name, cut, b[4*cut:]})
			}
		}
	}
	return pieces
}

func saved(t *testing.T, steps ...int) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	s := Open(dir, Disk{})
	for _, step := range steps {
		if err := save(s, step, 3); err != nil {
			t.Fatal(err)
		}
	}
	return s, dir
}

func TestAnyRange(t *testing.T) {
	s, _ := saved(t, 3)
	c, err := s.Latest(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, v := range c.Vectors {
		for _, p := range c.Parameters {
			want := whole(3, v, p)
			for from := range p.Len() + 1 {
				for n := range p.Len() - from + 1 {
					got := make([]byte, 4*n)
					if err := c.Read(v, p.Name, from, got); err != nil || !bytes.Equal(got, want[4*from:4*(from+n)]) {
						t.Fatalf("%s of %s from %d, %d elements: %v", v, p.Name, from, n, err)
					}
				}
			}
			if err := c.Read(v, p.Name, 1, make([]byte, len(want))); err == nil {
				t.Errorf("%s of %s: read beyond its end", v, p.Name)
			}
		}
	}
	if err := c.Read("moment 2", "bias", 0, make([]byte, 4)); err == nil {
		t.Error("read a vector that is not there")
	}
	if !c.Has("bias") || c.Has("bia") || (&Checkpoint{}).Has("bias") {
		t.Error("what is there is told wrong")
	}
}

func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	s := Open(dir, Disk{})
	for step := 1; step <= 6; step++ {
		if err := s.Begin(step, 0); err != nil {
			t.Fatal(err)
		}
		st := small(step)
		for rank := range 2 {
			p, err := s.WritePart(step, rank, "F32", piecesOf(step, rank))
			if err != nil {
				t.Fatal(err)
			}
			st.Parts = append(st.Parts, p)
		}
		if err := s.Commit(st, 2); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Steps(); fmt.Sprint(got) != "[5 6]" || err != nil {
		t.Errorf("steps %v are left (%v), want 5 and 6", got, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "LATEST")); string(b) != "step-00000006\n" || err != nil {
		t.Errorf("LATEST is %q (%v)", b, err)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 3 || err != nil {
		t.Errorf("something is left over: %v (%v)", entries, err)
	}
}

// Damaged checkpoints and strays do not count: whatever lies there, the last complete ones stay, and nothing but a checkpoint is removed.
func TestKeepComplete(t *testing.T) {
	stray := func(dir string, step int) string {
		path := filepath.Join(dir, FolderName(step))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "notes.txt"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		harm func(dir string)
		save int // the next step
		keep int
		want string // steps that are left
		last int
	}{
		"a damaged one that is newer":  {func(dir string) { flip(t, filepath.Join(dir, "step-00000009", "rank-00000.safetensors"), -3) }, 7, 1, "[7 9]", 7},
		"a complete one that is newer": {func(string) {}, 7, 1, "[7 9]", 9},
		"a damaged one between":        {func(dir string) { flip(t, filepath.Join(dir, "step-00000009", "rank-00000.safetensors"), -3) }, 10, 2, "[6 9 10]", 10},
		"a damaged one that is old":    {func(dir string) { flip(t, filepath.Join(dir, "step-00000003", "checkpoint.json"), 9) }, 10, 2, "[9 10]", 10},
		"a stray that is newer":        {func(dir string) { stray(dir, 9999) }, 10, 1, "[10 9999]", 10},
		"a stray that is older":        {func(dir string) { stray(dir, 1) }, 10, 2, "[1 9 10]", 10},
		"more than are to be kept":     {func(string) {}, 10, 3, "[6 9 10]", 10},
		"none is to be kept":           {func(string) {}, 10, 0, "[10]", 10}, // but the one that is written
	} {
		_, dir := saved(t, 3, 6, 9)
		c.harm(dir)
		s := Open(dir, Disk{}) // another process
		if err := save(s, c.save, c.keep); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Steps(); fmt.Sprint(got) != c.want || err != nil {
			t.Errorf("%s: steps %v are left (%v), want %s", name, got, err, c.want)
		}
		got, err := s.Latest(nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Step != c.last {
			t.Errorf("%s: step %d is found, want %d", name, got.Step, c.last)
		}
		got.Close()
	}
}

// Steps are folders of the store's own names: one that only begins so is somebody else's.
func TestStepNames(t *testing.T) {
	s, dir := saved(t, 3)
	for _, name := range []string{"step-12", "step-+0000013", "step-000000014", "step-", "step-x", "step-0000001", "xstep-00000005"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Steps(); err != nil || fmt.Sprint(got) != "[3]" {
		t.Errorf("%v, %v", got, err)
	}
}

// roomy is a disk that says how much it has left.
type roomy struct {
	Disk
	left int64
}

func (d roomy) FreeSpace(string) (int64, bool) { return d.left, true }

// A checkpoint that the disk has no room for is not begun: the error says how much it takes, how much there is and what helps.
func TestNoRoom(t *testing.T) {
	_, dir := saved(t, 3)
	for left, want := range map[int64]string{
		2_999_999: "checkpoint of step 5 in " + dir + " (the one of step 3 is unchanged): it takes 3.0 MB and the disk has 3.0 MB left: free some space, or lower save.keep",
		1_000_000: "it takes 3.0 MB and the disk has 1.0 MB left",
		3_000_000: "",
	} {
		err := Open(dir, roomy{left: left}).Begin(5, 3_000_000)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes left: %v, want %q", left, err, want)
		}
	}
}

// What Load would refuse is not committed: the error says what is missing, and the checkpoints before stay.
func TestCommitIncomplete(t *testing.T) {
	s, dir := saved(t, 3, 4)
	for want, change := range map[string]func(*State){
		"the state has 2 vectors of 0 parameters":                 func(st *State) { st.Parameters = nil },
		"the state has 0 vectors of 2 parameters":                 func(st *State) { st.Vectors = nil },
		`the state's dtype "" is unknown`:                         func(st *State) { st.DType = "" },
		"is not a piece of a parameter in BF16":                   func(st *State) { st.DType = "BF16" },
		"weights of word.weight: elements from 0 on are missing":  func(st *State) { st.Parts = nil },
		"weights of word.weight: elements from 7 on are missing":  func(st *State) { st.Parts = st.Parts[:1] },
		"moment 2 of word.weight: elements from 0 on are missing": func(st *State) { st.Vectors = append(st.Vectors, "moment 2") },
		"belongs to no parameter":                                 func(st *State) { st.Vectors = st.Vectors[:1] },
		"of word.weight: elements from 15 on are missing, or there twice (shape [14])": func(st *State) {
			st.Parameters = slices.Clone(st.Parameters)
			st.Parameters[0].Shape = []int{14}
		},
		"rank-00001.safetensors has": func(st *State) { st.Parts[1].Bytes++ },
		"rank-00002.safetensors":     func(st *State) { st.Parts[1].File = partName(2) },
	} {
		if err := s.Begin(5, 0); err != nil {
			t.Fatal(err)
		}
		st := small(5)
		for rank := range 2 {
			p, err := s.WritePart(5, rank, "F32", piecesOf(5, rank))
			if err != nil {
				t.Fatal(err)
			}
			st.Parts = append(st.Parts, p)
		}
		change(&st)
		if err := s.Commit(st, 1); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the one of step 4 is unchanged") {
			t.Errorf("%v, want %q", err, want)
		}
		if got, err := s.Steps(); fmt.Sprint(got) != "[3 4]" || err != nil {
			t.Fatalf("%s: steps %v are left (%v), want 3 and 4", want, got, err)
		}
		c, err := Open(dir, Disk{}).Latest(nil)
		if err != nil || c.Step != 4 {
			t.Fatalf("%s: step 4 is not found: %v", want, err)
		}
		c.Close()
	}
}

func TestNoSpace(t *testing.T) {
	s, _ := saved(t, 1)
	err := s.Begin(2, 1<<60)
	if err == nil || !strings.Contains(err.Error(), "the disk has") || !strings.Contains(err.Error(), "the one of step 1 is unchanged") {
		t.Errorf("no space: %v", err)
	}
}

func TestLock(t *testing.T) {
	s, _ := saved(t, 1)
	unlock, err := s.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("a second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = s.Lock(); err != nil {
		t.Fatal(err)
	}
	unlock()
	inTheWay := filepath.Join(t.TempDir(), "checkpoints")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(inTheWay, Disk{}).Lock(); err == nil || !strings.Contains(err.Error(), inTheWay) {
		t.Errorf("a file in the way: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(s.Dir(), "of", ".lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(s.Dir(), "of"), Disk{}).Lock(); err == nil || !strings.Contains(err.Error(), ".lock") {
		t.Errorf("a folder in the lock's place: %v", err)
	}
}

// Whatever is wrong with the newest checkpoint is named, and the one before is used.
func TestDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, folder string)
		want   string
	}{
		"a bit of the weights": {func(t *testing.T, f string) { flip(t, filepath.Join(f, "rank-00001.safetensors"), -3) }, "rank-00001.safetensors is damaged"},
		"a bit of the header":  {func(t *testing.T, f string) { flip(t, filepath.Join(f, "rank-00000.safetensors"), 20) }, "rank-00000.safetensors is damaged"},
		"a bit of the manifest": {func(t *testing.T, f string) {
			edit(t, filepath.Join(f, "checkpoint.json"), `"seed":7`, `"seed":5`)
		}, "checkpoint.json is damaged"},
		"a part is gone": {func(t *testing.T, f string) {
			if err := os.Remove(filepath.Join(f, "rank-00001.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, "rank-00001.safetensors"},
		"a part is cut off": {func(t *testing.T, f string) {
			if err := os.Truncate(filepath.Join(f, "rank-00001.safetensors"), 100); err != nil {
				t.Fatal(err)
			}
		}, "has 100 bytes"},
		"the manifest is cut off": {func(t *testing.T, f string) {
			if err := os.Truncate(filepath.Join(f, "checkpoint.json"), 50); err != nil {
				t.Fatal(err)
			}
		}, "checkpoint.json is not complete"},
		"no manifest": {func(t *testing.T, f string) {
			if err := os.Remove(filepath.Join(f, "checkpoint.json")); err != nil {
				t.Fatal(err)
			}
		}, "checkpoint.json"},
		"renamed": {func(t *testing.T, f string) {
			if err := os.Rename(f, strings.Replace(f, "step-00000002", "step-00000009", 1)); err != nil {
				t.Fatal(err)
			}
		}, "is of step 2"},
		"a part is missing from the manifest": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Parts = s.Parts[:1] })
		}, "are missing"},
		"a part counts twice": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Parts = append(s.Parts, s.Parts[0]) })
		}, "there twice"},
		"a parameter too many": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Parameters = s.Parameters[:1] })
		}, "belongs to no parameter"},
		"a part elsewhere": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Parts[0].File = "../step-00000001/rank-00000.safetensors" })
		}, "is not in the folder"},
		"a shape that is too large": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Parameters[0].Shape = []int{1 << 40, 1 << 40} })
		}, "are missing"},
		"another version": {func(t *testing.T, f string) {
			rewrite(t, f, func(s *State) { s.Format = 2 })
		}, "format 2"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := saved(t, 1, 2)
			c.damage(t, filepath.Join(dir, "step-00000002"))
			var said string
			got, err := s.Latest(func(folder string, err error) { said = folder + ": " + err.Error() })
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			if got.Step != 1 || !strings.Contains(said, c.want) {
				t.Errorf("step %d was found; said: %s, want %q", got.Step, said, c.want)
			}
		})
	}
}

func flip(t *testing.T, path string, at int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 4
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, path, from, to string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(b, []byte(from)) {
		t.Fatalf("%s has no %q (%v)", path, from, err)
	}
	if err := os.WriteFile(path, bytes.Replace(b, []byte(from), []byte(to), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

// rewrite changes a manifest and gives it the right hash.
func rewrite(t *testing.T, folder string, change func(*State)) {
	t.Helper()
	path := filepath.Join(folder, "checkpoint.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeManifest(raw)
	if err != nil {
		t.Fatal(err)
	}
	change(&s)
	if raw, err = encodeManifest(s); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzLoad reads checkpoints whose manifest and part are anything: an error, or a checkpoint whose every element can be read.
func FuzzLoad(f *testing.F) {
	dir := f.TempDir()
	s := Open(filepath.Join(dir, "seed"), Disk{})
	if err := save(s, 1, 2); err != nil {
		f.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, "seed", "step-00000001", name))
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	st, err := decodeManifest(read("checkpoint.json"))
	if err != nil {
		f.Fatal(err)
	}
	body, _ := json.Marshal(st)
	f.Add(body, read("rank-00000.safetensors"), read("rank-00001.safetensors"))
	f.Fuzz(func(t *testing.T, body, a, b []byte) {
		folder := filepath.Join(t.TempDir(), "step-00000001")
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		// The right hashes: a wrong one is found at once, and nothing behind it is tried.
		var s State
		if json.Unmarshal(body, &s) == nil {
			for i, part := range [][]byte{a, b} {
				if i < len(s.Parts) {
					s.Parts[i].Bytes, s.Parts[i].Hash = int64(len(part)), hashBytes(part)
				}
			}
			if again, err := json.Marshal(s); err == nil {
				body = again
			}
		}
		raw, err := json.Marshal(envelope{hashBytes(body), body})
		if err != nil {
			raw = body
		}
		for name, data := range map[string][]byte{"checkpoint.json": raw, "rank-00000.safetensors": a, "rank-00001.safetensors": b} {
			if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		harness.Bounded(t, func() {
			c, err := Open("", Disk{}).load(folder, 1, true)
			if err != nil {
				return
			}
			defer c.Close()
			for _, v := range c.Vectors {
				for _, p := range c.Parameters {
					if err := c.Read(v, p.Name, 0, make([]byte, c.size*p.Len())); err != nil {
						t.Errorf("complete, but: %v", err)
					}
				}
			}
		})
	})
}

// TestBeginRemoves: what killed processes have left of any step goes before the next checkpoint is written; gigabytes of it would stay otherwise.
func TestBeginRemoves(t *testing.T) {
	s, dir := saved(t, 3)
	if err := s.Begin(5, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WritePart(5, 0, "F32", piecesOf(5, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".step-00000001.removed"), 0o700); err != nil { // a removal that did not come to its end
		t.Fatal(err)
	}
	if err := Open(dir, Disk{}).Begin(6, 0); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".step-*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != partial(6) {
		t.Errorf("%q are left (%v), want %s", left, err, partial(6))
	}
	if got, err := s.Steps(); fmt.Sprint(got) != "[3]" || err != nil {
		t.Errorf("steps %v are left (%v), want 3", got, err)
	}
}

// A checkpoint is found by its folder, and checked as others are; a folder of another name is none.
func TestLoadFolder(t *testing.T) {
	_, dir := saved(t, 3)
	folder := filepath.Join(dir, FolderName(3))
	c, err := LoadFolder(folder, Disk{})
	if err != nil || c.Step != 3 || !IsCheckpoint(folder) || IsCheckpoint(dir) {
		t.Fatalf("%v, %v", c, err)
	}
	c.Close()
	other := filepath.Join(dir, "third")
	if err := os.Rename(folder, other); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{other, filepath.Join(dir, "step-3"), dir} {
		if _, err := LoadFolder(name, Disk{}); err == nil || !strings.Contains(err.Error(), name+" is not the folder of a checkpoint, such as step-00000500") {
			t.Error(err)
		}
	}
	if err := errors.Join(os.Rename(other, folder), os.Truncate(filepath.Join(folder, partName(0)), 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFolder(folder, Disk{}); err == nil || !strings.Contains(err.Error(), "has 5 bytes, want") {
		t.Error(err)
	}
}
