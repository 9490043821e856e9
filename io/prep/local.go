package prep

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"contraflow/io/dataset"
)

// The in-process runner. Its memory does not grow with the texts: what rows are compared by goes to temporary files in as many parts as keep
// each small, and per row two bytes of state and eight of place stay.

// Options are what a run may choose without changing what is written.
type Options struct {
	Overwrite bool   // replace an earlier output in the folder
	Threads   int    // 0: all processors
	TempDir   string // of spilled keys; "": the system's

	Progress func(stage string, done, total int) // in blocks and shards; called from several goroutines, one at a time; may be nil
	Note     func(message string)                // what a user should know; may be nil
}

// Run prepares a dataset in this process.
func Run(ctx context.Context, c Config, o Options) (*Stats, error) {
	rules, err := NewRules(ctx, c)
	if err != nil {
		return nil, err
	}
	return run(ctx, rules, o)
}

func run(ctx context.Context, rules *Rules, o Options) (_ *Stats, err error) {
	x, err := OpenInputs(ctx, rules)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	x.Tell(o.Note)
	claim, err := Begin(&rules.Config, o.Overwrite)
	if err != nil {
		return nil, err
	}
	whole := false
	defer func() {
		if !whole { // all that writes has ended
			err = errors.Join(err, claim.Abandon())
		}
	}()
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	l := &local{x: x, o: o}
	verdict := func(int64) Verdict { return Verdict{Of: -1} }
	var rates []float64
	if rules.NeedsKeys() {
		dir, err := os.MkdirTemp(o.TempDir, "contraflow-prep-*")
		if err != nil {
			return nil, fmt.Errorf("a folder for what is compared (contraflow prep --temp DIR chooses another place): %w", err)
		}
		defer os.RemoveAll(dir)
		if err := l.compare(ctx, dir); err != nil {
			return nil, spilled(dir, err)
		}
		verdict = l.verdict
		if rules.Config.Mix.Kind != "proportional" {
			rates = rules.Config.Mix.Rates(rules.Config.Input, l.remaining())
		}
	}
	total := NewStats(rules.Config.Input)
	var mu sync.Mutex
	var done int
	err = l.parallel(ctx, x.Shards, func(ctx context.Context, s int) error {
		stats, err := x.WriteShard(ctx, s, verdict, rates)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		total.Merge(stats, rules.Config.Samples)
		done++
		l.progress("write", done, x.Shards)
		return nil
	})
	if err != nil {
		return nil, err
	}
	whole = true // or Finish sees to it
	return total, claim.Finish(ctx, rules, total)
}

// spilled says of an error of a file in a run's temporary folder, as where there is no more room, what helps.
func spilled(dir string, err error) error {
	var file *fs.PathError
	if errors.As(err, &file) && filepath.Dir(file.Path) == dir {
		return fmt.Errorf("what is compared (contraflow prep --temp DIR chooses another place): %w", err)
	}
	return err
}

type local struct {
	x *Inputs
	o Options

	state    []uint8 // of each row
	place    []int64 // of its sketch
	sketches *sketchFile
	firsts   [2]firstDrops // by rule: for samples
}

// States of a row.
const (
	dropped   uint8 = iota // by its own rules
	passes                 // them
	duplicate              // of an earlier row
	near                   // likewise
)

func (l *local) progress(stage string, done, total int) {
	if l.o.Progress != nil {
		l.o.Progress(stage, done, total)
	}
}

// compare is the first pass, and the comparison of rows.
func (l *local) compare(ctx context.Context, dir string) error {
	x, rules := l.x, l.x.Rules
	l.state = make([]uint8, x.rows)
	for i := range l.firsts {
		l.firsts[i].most = rules.Config.Samples
	}
	n := &rules.Config.Dedupe.Near
	var exact, bands *spill
	var err error
	if rules.Exact() {
		if exact, err = newSpill(dir, "exact", exactRecord, x.rows); err != nil {
			return err
		}
		defer exact.close()
	}
	if n.Column != "" {
		l.place = make([]int64, x.rows)
		if bands, err = newSpill(dir, "bands", bandRecord, x.rows*int64(n.Bands)); err != nil {
			return err
		}
		defer bands.close()
		if l.sketches, err = newSketchFile(dir); err != nil {
			return err
		}
		defer l.sketches.close()
	}
	if err := l.keys(ctx, exact, bands); err != nil {
		return err
	}
	if exact != nil {
		if err := l.parallel(ctx, len(exact.parts), func(_ context.Context, p int) error { return l.exactPart(exact, p) }); err != nil {
			return err
		}
	}
	if bands == nil {
		return nil
	}
	if err := l.sketches.flush(); err != nil {
		return err
	}
	drops := make([]uint8, x.rows)
	var mu sync.Mutex
	var done atomic.Int64
	err = l.parallel(ctx, len(bands.parts), func(ctx context.Context, p int) error {
		err := l.bandPart(ctx, bands, p, func(id, of int64) {
			mu.Lock()
			defer mu.Unlock()
			drops[id] = 1
			l.firsts[1].add(id, of)
		})
		mu.Lock()
		defer mu.Unlock()
		l.progress("compare", int(done.Add(1)), len(bands.parts))
		return err
	})
	for id, d := range drops {
		if d != 0 {
			l.state[id] = near
		}
	}
	return err
}

// keys is the first pass over all blocks.
func (l *local) keys(ctx context.Context, exact, bands *spill) error {
	const run = 16 // blocks
	x := l.x
	n := (len(x.blocks) + run - 1) / run
	var done atomic.Int64
	return l.parallel(ctx, n, func(ctx context.Context, i int) error {
		w := x.Rules.NewWorker()
		var rec [exactRecord]byte
		err := x.each(ctx, i*run, min((i+1)*run, len(x.blocks)), nil, func(row *Row, _ *dataset.Block, _ int) error {
			if row.Rule != "" {
				return nil
			}
			l.state[row.ID] = passes
			if exact != nil {
				key, _ := w.ExactKey(row)
				binary.BigEndian.PutUint64(rec[:], key.Hi)
				binary.BigEndian.PutUint64(rec[8:], key.Lo)
				binary.BigEndian.PutUint64(rec[16:], uint64(row.ID))
				if err := exact.add(key.Hi, rec[:]); err != nil {
					return err
				}
			}
			if bands == nil {
				return nil
			}
			sketch, keys, _ := w.NearKeys(row)
			at, err := l.sketches.add(sketch)
			if err != nil {
				return err
			}
			l.place[row.ID] = at
			for _, k := range keys {
				binary.BigEndian.PutUint64(rec[:], k)
				binary.BigEndian.PutUint64(rec[8:], uint64(row.ID))
				if err := bands.add(k, rec[:bandRecord]); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil && l.o.Progress != nil {
			l.firsts[0].mu.Lock()
			l.progress("read", int(done.Add(1)), n)
			l.firsts[0].mu.Unlock()
		}
		return err
	})
}

// Records are compared as bytes: the key first, then the row's id.
const (
	exactRecord = 24
	bandRecord  = 16
)

// groups sorts a part's records and yields runs of one key, as ids in ascending order.
func groups(data []byte, size int, each func(ids []int64) error) error {
	n := len(data) / size
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	rec := func(i int32) []byte { return data[int(i)*size : (int(i)+1)*size] }
	slices.SortFunc(order, func(a, b int32) int { return bytes.Compare(rec(a), rec(b)) })
	var ids []int64
	for i := 0; i < n; {
		key := rec(order[i])[:size-8]
		ids = ids[:0]
		for ; i < n && bytes.Equal(rec(order[i])[:size-8], key); i++ {
			ids = append(ids, int64(binary.BigEndian.Uint64(rec(order[i])[size-8:])))
		}
		if err := each(ids); err != nil {
			return err
		}
	}
	return nil
}

func (l *local) exactPart(s *spill, p int) error {
	data, err := s.load(p)
	if err != nil {
		return err
	}
	return groups(data, exactRecord, func(ids []int64) error {
		for _, id := range ids[1:] {
			l.state[id] = duplicate
			l.firsts[0].add(id, ids[0])
		}
		return nil
	})
}

func (l *local) bandPart(ctx context.Context, s *spill, p int, drop func(id, of int64)) error {
	data, err := s.load(p)
	if err != nil {
		return err
	}
	bucket := Bucket{Threshold: l.x.Rules.Config.Dedupe.Near.Threshold}
	var sketch Sketch
	return groups(data, bandRecord, func(ids []int64) error {
		if len(ids) < 2 {
			return nil
		}
		bucket.Reset()
		for _, id := range ids {
			if l.state[id] != passes {
				continue
			}
			if sketch, err = l.sketches.read(l.place[id], sketch.Hashes); err != nil {
				return err
			}
			if of, similar := bucket.Add(id, sketch); similar {
				drop(id, of)
			}
		}
		return ctx.Err()
	})
}

// verdict is what the comparison says of a row.
func (l *local) verdict(id int64) Verdict {
	switch l.state[id] {
	case dropped:
		return Verdict{Of: -1}
	case duplicate:
		return Verdict{Rule: Duplicate, Of: l.firsts[0].of(id), Pass: true}
	case near:
		return Verdict{Rule: NearDuplicate, Of: l.firsts[1].of(id), Pass: true}
	}
	return Verdict{Of: -1, Pass: true}
}

// remaining counts the rows of each input that nothing has dropped.
func (l *local) remaining() []int64 {
	rows := make([]int64, len(l.x.sets))
	for i, first := range l.x.first {
		for _, s := range l.state[first : first+l.x.sets[i].Rows()] {
			if s == passes {
				rows[i]++
			}
		}
	}
	return rows
}

// parallel calls do(0..n-1) from several goroutines. After an error the others are cancelled; the error is the first index's that has one
// of its own.
func (l *local) parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(l.o.Threads, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && inner.Err() == nil; i = int(next.Add(1)) - 1 {
				if errs[i] = do(inner, i); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	var cancelled error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		cancelled = cmp.Or(cancelled, err) // of others, or by what do itself has waited for
	}
	return cancelled
}

// firstDrops are the first dropped rows and what they repeat (the smallest id, if there are several).
type firstDrops struct {
	mu   sync.Mutex
	most int
	rows map[int64]int64
}

func (f *firstDrops) add(id, of int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rows == nil {
		f.rows = map[int64]int64{}
	}
	if old, ok := f.rows[id]; ok {
		of = min(of, old)
	}
	if f.rows[id] = of; len(f.rows) > 64+4*f.most {
		ids := make([]int64, 0, len(f.rows))
		for id := range f.rows {
			ids = append(ids, id)
		}
		slices.SortFunc(ids, func(a, b int64) int { return cmp.Compare(a, b) })
		for _, id := range ids[f.most:] {
			delete(f.rows, id)
		}
	}
}

func (f *firstDrops) of(id int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of, ok := f.rows[id]; ok {
		return of
	}
	return -1
}

// spill keeps records of one size in files, by the high bits of their keys.
type spill struct {
	parts []spillPart
	shift uint
}

type spillPart struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
}

const (
	partBytes   = 32 << 20 // of a part, about
	mostParts   = 256
	spillBuffer = 48 << 10 // a multiple of both records' sizes
)

func newSpill(dir, name string, record int, records int64) (*spill, error) {
	n, shift := 1, uint(64)
	for int64(n)*partBytes < records*int64(record) && n < mostParts || n < 8 {
		n, shift = 2*n, shift-1
	}
	s := &spill{parts: make([]spillPart, n), shift: shift}
	for i := range s.parts {
		f, err := createNameless(filepath.Join(dir, fmt.Sprintf("%s-%03d", name, i)))
		if err != nil {
			s.close()
			return nil, err
		}
		s.parts[i].file = f
	}
	return s, nil
}

// createNameless creates a file that goes when it is closed, also by a kill. (Windows keeps the name; Run removes the folder.)
func createNameless(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err == nil {
		os.Remove(path)
	}
	return f, err
}

func (s *spill) add(key uint64, record []byte) error {
	p := &s.parts[key>>s.shift]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = append(p.buf, record...)
	if len(p.buf) < spillBuffer {
		return nil
	}
	_, err := p.file.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// load returns a part's records, and lets go of its file.
func (s *spill) load(part int) ([]byte, error) {
	p := &s.parts[part]
	size, err := p.file.Seek(0, 1)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size, size+int64(len(p.buf)))
	if _, err := p.file.ReadAt(data, 0); err != nil && size > 0 {
		return nil, err
	}
	data = append(data, p.buf...)
	p.buf = nil
	return data, p.file.Truncate(0)
}

func (s *spill) close() {
	for i := range s.parts {
		if f := s.parts[i].file; f != nil {
			f.Close()
		}
	}
}

// sketchFile keeps sketches, found by their places.
type sketchFile struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
	at   int64 // of buf
}

func newSketchFile(dir string) (*sketchFile, error) {
	f, err := createNameless(filepath.Join(dir, "sketches"))
	return &sketchFile{file: f}, err
}

func (s *sketchFile) close() { s.file.Close() }

func (s *sketchFile) add(k Sketch) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = s.at + int64(len(s.buf))
	s.buf = k.Append(s.buf)
	if len(s.buf) >= 1<<20 {
		err = s.flush()
	}
	return at, err
}

func (s *sketchFile) flush() error {
	n, err := s.file.Write(s.buf)
	s.at, s.buf = s.at+int64(n), s.buf[:0]
	return err
}

// read reads a sketch into the memory of hashes.
func (s *sketchFile) read(at int64, hashes []uint32) (Sketch, error) {
	var buf [sketchHead + 4*sketchSize]byte
	n, err := s.file.ReadAt(buf[:], at)
	if n < sketchHead {
		return Sketch{}, err
	}
	want := sketchHead + 4*min(ParseSketch(buf[:sketchHead], nil).Size, sketchSize)
	if n < want {
		return Sketch{}, err
	}
	return ParseSketch(buf[:want], hashes), nil
}
