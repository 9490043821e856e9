package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// tape is a driver that counts what it is asked for.
type tape struct {
	started, recorded, replayed, freed int
	recording                          bool
	refuse                             error // what ending a recording answers
	broken                             error // what launches answer while it goes on
}

func (d *tape) Launch(string, [3]int, [3]int, int, []uint64, []int32) error {
	if d.recording {
		return d.broken
	}
	d.started++
	return nil
}
func (*tape) Multiply(Product) error          { return nil }
func (*tape) Fuses(p Product) (bool, error)   { return p.Epilogue == NoEpilogue, nil }
func (*tape) Address(gpustage.Memory) uintptr { return 256 }

func (d *tape) Begin() error {
	d.recording = true
	return nil
}

func (d *tape) End() (Recording, error) {
	d.recording = false
	if d.refuse != nil {
		return nil, d.refuse
	}
	d.recorded++
	return taped{d}, nil
}

// names is a driver that keeps the names of what it launches.
type names struct {
	tape
	launched []string
}

func (d *names) Launch(kernel string, _, _ [3]int, _ int, _ []uint64, _ []int32) error {
	d.launched = append(d.launched, kernel)
	return nil
}

// Address is another one for each size.
func (*names) Address(m gpustage.Memory) uintptr { return uintptr(m.Bytes()) << 16 }

// Sums wait for each other until their parts take mostParts.
func TestSumsTakeLittle(t *testing.T) {
	d := &names{}
	s := NewStream(gpustage.Dry{}, d)
	const cols, parts = 1024, 1000 // 4 MB
	x, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F32, parts*chunkRows, cols)
	all, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F32, 1, 12*cols)
	s.Repeat(func() {
		for i := range 12 {
			s.ColumnSum(all.Columns(i*cols, (i+1)*cols), x)
		}
	})
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	var at []int
	for i, name := range d.launched {
		if name == "column_finish" {
			at = append(at, i)
		}
	}
	if want := []int{8, 13}; !slices.Equal(at, want) { // 8 x 4 MB, with what is left at chunks' ends, are more than 32
		t.Errorf("of %q %v finish sums, want %v", d.launched, at, want)
	}
}

type taped struct{ *tape }

func (r taped) Start() error {
	r.replayed++
	return nil
}

func (r taped) Free() error {
	r.freed++
	return nil
}

type repeating struct{ gpustage.Dry }

func (repeating) Repeats() bool { return true }

func fills(s *Stream, value, n int) {
	x, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F32, 1, 8)
	s.Repeat(func() {
		for range n {
			s.Fill(x, float64(value))
		}
	})
}

// Work is recorded when it comes a second time. Recordings are bounded; one that has long been idle makes room, and only such a one.
func TestRecordings(t *testing.T) {
	d := &tape{}
	s := NewStream(repeating{}, d)
	expect := func(when string, want tape) {
		t.Helper()
		if *d != want {
			t.Fatalf("%s: %+v, want %+v", when, *d, want)
		}
	}
	for range 3 {
		fills(s, -1, shortest-1)
	}
	expect("too little work", tape{started: 3 * (shortest - 1)})
	*d = tape{}
	const size, more = 16, 3
	const room = mostRecorded / size
	for i := range room + more {
		fills(s, i, size)
		fills(s, i, size)
	}
	expect("each work twice", tape{started: (room + 2*more) * size, recorded: room, replayed: room})
	for range idle {
		fills(s, 1, size)
	}
	d.started, d.replayed = 0, 0
	fills(s, room, size)
	fills(s, room, size)
	fills(s, 1, size)
	expect("a recording in an idle one's place", tape{recorded: room + 1, replayed: 3, freed: 1})
	for range 2 {
		fills(s, 0, size)
	}
	expect("the idlest had gone", tape{started: size, recorded: room + 2, replayed: 4, freed: 2})
	if err := s.Free(); err != nil || d.freed != d.recorded {
		t.Errorf("%+v: recordings were not given back, %v", *d, err)
	}
}

// A recording that fails is the stream's error, which says what to do.
func TestRecordingRefused(t *testing.T) {
	d := &tape{refuse: errors.New("no")}
	s := NewStream(repeating{}, d)
	for range 3 {
		fills(s, 1, shortest)
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "recording 4 launches: no") || !strings.Contains(err.Error(), GraphsOff) || d.started != shortest {
		t.Errorf("error %v, %+v", err, *d)
	}
}

// What could be recorded in part is given back.
func TestRecordingBroken(t *testing.T) {
	d := &tape{broken: errors.New("no")}
	s := NewStream(repeating{}, d)
	for range 2 {
		fills(s, 1, shortest)
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "recording 4 launches: fill: no") || d.recorded != 1 || d.freed != 1 || d.replayed != 0 {
		t.Errorf("error %v, %+v", err, *d)
	}
}

// Work that has the hash of other work is not taken for it.
func TestSameHash(t *testing.T) {
	for what, change := range map[string]func(w *work){
		"a size": func(w *work) { w.sizes[1]++ }, "an argument": func(w *work) { w.words[1]++ }, "a product": func(w *work) { w.products[0].Alpha++ },
	} {
		d := &tape{}
		s := NewStream(repeating{}, d)
		x, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F32, 1, 8)
		issue := func() {
			s.Repeat(func() {
				for range shortest {
					s.Fill(x, 1)
				}
				s.MatMul(x, x.Columns(0, 1), x, gpustage.MatMul{})
			})
		}
		issue()
		issue()
		for _, r := range s.repeats.recorded {
			change(&r.work)
		}
		issue()
		if err := s.Err(); err != nil || d.started != 2*shortest || d.recorded != 1 || d.replayed != 1 {
			t.Errorf("%s is another one: %+v, %v", what, *d, err)
		}
	}
}
