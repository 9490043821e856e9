package launch

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"contraflow/gpustage"
)

// Repeated work is known again by what it is. While Repeat's function runs, what it launches is held back, as data: kernels, grids, all
// words of their arguments, products. Then
//
//	1  work that has not come before is started, launch by launch, and its hash is kept
//	2  when it comes a second time, the driver records it instead, and starts the recording
//	3  from then on, whenever every word is the same, the recording is started: one launch
//
// The usual way is a key that names everything which is baked into a recording, and a function that does not run when the key is
// known. Then a place or a number that the key forgot is a wrong result that nobody sees. Here it makes other work, which at worst is never
// recorded; memory that is allocated while the function runs (scratch, forms of parameters) or a form that is made anew after
// an update need no care either, and what the host keeps of a pass is always what the ops were called with. The price is that the
// host still goes through the ops: some 1.1 us a launch, of which finding the recording is 0.03 us (BenchmarkIssue of package transformer and its
// profile: 263 launches of MiniLM-L6 forward and backward in bf16 in 0.3 ms, 509 of BERT-base in 0.5 ms, on a busy AMD EPYC; of a smaller batch they are 141 and 280 now).
// Starting each costs the driver's time besides.
//
// A copy from or to the host, an event or a wait ends what is held, which is started before it, and begins the next: the stream's order
// is always that of the calls.

// Recorder is a Driver that can record. Between Begin and End, Launch and Multiply note what they are called with and start nothing; no other
// call of the device comes between them. After End the stream is as before Begin, whatever errors there were.
type Recorder interface {
	Begin() error
	End() (Recording, error)
}

// Recording is launches that can be started as one.
type Recording interface {
	Start() error
	Free() error
}

const (
	shortest     = 4       // launches that are worth recording
	mostRecorded = 1 << 16 // launches in all recordings; MiniLM-L6 has 141, forward and backward
	mostSeen     = 1 << 12 // hashes that are kept; then all are forgotten
	// idle is how long a recording stays, in pieces of work, before another may take its place. Without it, more pieces that take turns than
	// there is room for would all be recorded again and again.
	idle = 1 << 14
)

// work is launches and products in their order, as data.
type work struct {
	sizes    []int32  // of each launch: kernel, grid, block, shared bytes, numbers of words and arguments, where each argument begins; of a product: -1
	words    []uint64 // of all launches' arguments
	products []Product
	n        int // launches and products
}

func (w *work) launch(kernel int32, grid, block [3]int, shared int, words []uint64, at []int32) {
	w.n++
	w.sizes = append(w.sizes, kernel)
	for _, v := range [...]int{grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, len(words), len(at)} {
		w.sizes = append(w.sizes, int32(v))
	}
	w.sizes = append(w.sizes, at...)
	w.words = append(w.words, words...)
}

func (w *work) multiply(p Product) {
	w.n++
	w.sizes = append(w.sizes, -1)
	w.products = append(w.products, p)
}

func (w *work) clear() {
	w.sizes, w.words, w.products, w.n = w.sizes[:0], w.words[:0], w.products[:0], 0
}

func (w *work) equal(o *work) bool {
	return slices.Equal(w.sizes, o.sizes) && slices.Equal(w.words, o.words) && slices.Equal(w.products, o.products)
}

func (w *work) clone() work {
	return work{slices.Clone(w.sizes), slices.Clone(w.words), slices.Clone(w.products), w.n}
}

func (w *work) hash(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(gpustage.Bytes(w.sizes))
	h.Write(gpustage.Bytes(w.words))
	for _, p := range w.products {
		maphash.WriteComparable(&h, p)
	}
	return h.Sum64()
}

// recorded is work that has a recording.
type recorded struct {
	work
	recording Recording
	last      int // when it was last started, in pieces of work
}

// repeats is what a stream knows of repeated work.
type repeats struct {
	recorder Recorder // nil where nothing is recorded
	inside   bool     // Repeat's function runs
	holding  bool     // what is launched is held back
	held     work
	kernels  map[string]int32
	names    []string // of kernels, by number
	seed     maphash.Seed
	seen     map[uint64]struct{} // hashes of work that has come once, at least
	recorded map[uint64]*recorded
	launches int // in all recordings
	turn     int // pieces of work so far
}

func newRepeats(d gpustage.Device, driver Driver) repeats {
	r := repeats{kernels: map[string]int32{}, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, recorded: map[uint64]*recorded{}}
	if gpustage.Repeats(d) {
		r.recorder, _ = driver.(Recorder)
	}
	return r
}

// Repeat has f issue ops that are likely to come again.
func (s *Stream) Repeat(f func()) {
	r := &s.repeats
	if r.inside {
		f()
		return
	}
	r.inside, r.holding = true, r.recorder != nil
	f()
	s.Issue()
	r.inside, r.holding = false, false
}

// start starts a kernel, or holds it back.
func (s *Stream) start(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	r := &s.repeats
	if !r.holding {
		return s.driver.Launch(kernel, grid, block, shared, words, at)
	}
	if max(grid[0], grid[1], grid[2]) > math.MaxInt32 {
		return fmt.Errorf("a grid of %v blocks", grid)
	}
	k, ok := r.kernels[kernel]
	if !ok {
		k = int32(len(r.names))
		r.kernels[kernel] = k
		r.names = append(r.names, kernel)
	}
	r.held.launch(k, grid, block, shared, words, at)
	return nil
}

// product multiplies, or holds the product back.
func (s *Stream) product(p Product) error {
	if !s.repeats.holding {
		return s.multiplied(p)
	}
	s.repeats.held.multiply(p)
	return nil
}

// Issue starts what is held back. A device's stream calls it before it does anything else than the ops here.
func (s *Stream) Issue() {
	s.addSums()
	r := &s.repeats
	if r.held.n == 0 {
		return
	}
	if s.err == nil {
		if err := s.issue(&r.held); err != nil {
			s.Fail(err)
		}
	}
	r.held.clear()
}

func (s *Stream) issue(w *work) error {
	r := &s.repeats
	if w.n < shortest {
		return s.each(w)
	}
	r.turn++
	hash := w.hash(r.seed)
	known := r.recorded[hash]
	if known != nil && known.equal(w) {
		known.last = r.turn
		return known.recording.Start()
	}
	if _, again := r.seen[hash]; !again || known != nil {
		if len(r.seen) == mostSeen {
			clear(r.seen)
		}
		r.seen[hash] = struct{}{}
		return s.each(w)
	}
	if room, err := r.makeRoom(w.n); !room || err != nil {
		return errors.Join(err, s.each(w))
	}
	// A refusal is an error and not a reason to go on without recordings: a run that is slower than it should be says nothing.
	recording, err := s.record(w)
	if err != nil {
		return fmt.Errorf("recording %d launches: %w (%s starts them one by one)", w.n, err, GraphsOff)
	}
	r.recorded[hash] = &recorded{work: w.clone(), recording: recording, last: r.turn}
	r.launches += w.n
	return recording.Start()
}

// GraphsOff is the setting of the environment that has nothing recorded.
const GraphsOff = "CONTRAFLOW_CUDA_GRAPHS=off"

func (s *Stream) record(w *work) (Recording, error) {
	if err := s.repeats.recorder.Begin(); err != nil {
		return nil, err
	}
	launched := s.each(w)
	recording, err := s.repeats.recorder.End()
	if launched != nil && err == nil {
		err = recording.Free()
	}
	if err = errors.Join(launched, err); err != nil {
		return nil, err
	}
	return recording, nil
}

// makeRoom tells whether n more launches may be recorded, and frees what has long been idle if that is what it takes, the idlest first.
func (r *repeats) makeRoom(n int) (bool, error) {
	for r.launches+n > mostRecorded {
		var hash uint64
		var oldest *recorded
		for h, x := range r.recorded {
			if oldest == nil || x.last < oldest.last {
				hash, oldest = h, x
			}
		}
		if oldest == nil || r.turn-oldest.last < idle {
			return false, nil
		}
		delete(r.recorded, hash)
		r.launches -= oldest.n
		if err := oldest.recording.Free(); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (r *repeats) free() error {
	var errs []error
	for _, x := range r.recorded {
		errs = append(errs, x.recording.Free())
	}
	clear(r.recorded)
	r.launches = 0
	return errors.Join(errs...)
}

// each starts work launch by launch.
func (s *Stream) each(w *work) error {
	sizes, words, products := w.sizes, w.words, w.products
	for len(sizes) > 0 {
		if sizes[0] < 0 {
			if err := s.multiplied(products[0]); err != nil {
				return products[0].failed(err)
			}
			sizes, products = sizes[1:], products[1:]
			continue
		}
		name, x := s.repeats.names[sizes[0]], sizes[1:]
		n, args := x[7], x[8]
		err := s.driver.Launch(name, [3]int{int(x[0]), int(x[1]), int(x[2])}, [3]int{int(x[3]), int(x[4]), int(x[5])}, int(x[6]), words[:n], x[9:9+args])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		sizes, words = x[9+args:], words[n:]
	}
	return nil
}
