package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// fixedTexts are the texts of each row, as numbers.
type fixedTexts [][]uint64

func (f fixedTexts) Hashes(dst []Hash128, _ uint64, _ int, row int64) []Hash128 {
	for _, n := range f[row] {
		dst = append(dst, Hash128{mix(n), mix(n + 1<<40)})
	}
	return dst
}

// naive goes through all waiting rows, oldest first, for every batch: what the sampler has to equal.
func naive(ids []int64, texts fixedTexts, size int, dropLast bool) (batches [][]int64, dropped int64) {
	var waiting []int64
	for {
		var batch, later []int64
		used := map[uint64]bool{}
		admit := func(row int64) {
			if len(batch) == size || slices.ContainsFunc(texts[row], func(x uint64) bool { return used[x] }) {
				later = append(later, row)
				return
			}
			for _, x := range texts[row] {
				used[x] = true
			}
			batch = append(batch, row)
		}
		for _, row := range waiting {
			admit(row)
		}
		for len(batch) < size && len(ids) > 0 {
			admit(ids[0])
			ids = ids[1:]
		}
		waiting = later
		if len(batch) == 0 || len(batch) < size && dropLast {
			return batches, int64(len(batch) + len(waiting))
		}
		batches = append(batches, batch)
	}
}

func drain(s *Sampler) (batches []Batch) {
	for b, ok := s.Next(); ok; b, ok = s.Next() {
		batches = append(batches, b)
	}
	return batches
}

func TestSamplerAgainstPython(t *testing.T) {
	for i, c := range orderGoldens(t).Samplers {
		cfg := SamplerConfig{Seed: 5, GlobalSize: c.Size, Epochs: 2, Shuffle: true, Window: Window{20, 1000}, NoDuplicates: true, DropLast: c.DropLast}
		l := Layout{}
		for range len(c.Texts) / 10 {
			l.Rows, l.Bytes = append(l.Rows, 10), append(l.Bytes, 1)
		}
		s, err := NewSampler(l, fixedTexts(c.Texts), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got [][]int64
		for _, b := range drain(s) {
			if b.Epoch == 1 { // the golden's epoch
				got = append(got, b.Rows)
			}
		}
		if !slices.EqualFunc(got, c.Batches, slices.Equal) {
			t.Errorf("case %d: %v\nwant %v", i, got, c.Batches)
		}
	}
}

// randomSampler makes a sampler of random data and configuration.
func randomSampler(rng *rand.Rand) (l Layout, texts fixedTexts, cfg SamplerConfig) {
	n := 1 + rng.IntN(300)
	l = evenLayout(n, 1+rng.IntN(40))
	kinds := []uint64{3, 20, 100, 10000}[rng.IntN(4)]
	for range n {
		row := make([]uint64, 1+rng.IntN(3))
		for k := range row {
			row[k] = rng.Uint64N(kinds)
			if rng.IntN(4) == 0 {
				row[k] = 0 // a text that half of the rows share
			}
		}
		texts = append(texts, row)
	}
	cfg = SamplerConfig{
		Seed: rng.Uint64(), GlobalSize: 1 + rng.IntN(20), Epochs: 1 + rng.IntN(3), Shuffle: rng.IntN(3) > 0,
		Window: Window{1 + rng.IntN(100), 1 << 20}, NoDuplicates: rng.IntN(4) > 0, DropLast: rng.IntN(2) > 0,
	}
	return l, texts, cfg
}

// TestSamplerProperties runs random samplers to their end: each row once per epoch (or dropped, and counted), no text
// twice in a batch, the stated lengths, and the naive algorithm's batches.
func TestSamplerProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	refused := 0
	for range 400 {
		l, texts, cfg := randomSampler(rng)
		s, err := NewSampler(l, texts, cfg)
		if errors.Is(err, ErrBatchTooLarge) {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		total, length := s.Total(), make([]int64, cfg.Epochs)
		for e := range length {
			length[e] = s.Len(e)
		}
		batches := drain(s)
		if int64(len(batches)) != total {
			t.Fatalf("%+v: %d batches, Total() says %d", cfg, len(batches), total)
		}
		dropped := int64(0)
		for e := range cfg.Epochs {
			var want [][]int64
			ids := all(NewOrder(l, cfg.Seed, e, cfg.Shuffle, cfg.Window))
			if cfg.NoDuplicates {
				var d int64
				want, d = naive(ids, texts, cfg.GlobalSize, cfg.DropLast)
				dropped += d
			} else {
				for b := range slices.Chunk(ids, cfg.GlobalSize) {
					if len(b) == cfg.GlobalSize || !cfg.DropLast {
						want = append(want, b)
					} else {
						dropped += int64(len(b))
					}
				}
			}
			seen := map[int64]bool{}
			k := 0
			for _, b := range batches {
				if b.Epoch != e {
					continue
				}
				if b.Index != k || k >= len(want) || !slices.Equal(b.Rows, want[k]) {
					t.Fatalf("%+v: epoch %d batch %d is %v, want %v", cfg, e, k, b, want[k])
				}
				k++
				used := map[uint64]int{}
				for i, row := range b.Rows {
					if seen[row] {
						t.Fatalf("row %d twice in epoch %d", row, e)
					}
					seen[row] = true
					for _, x := range texts[row] {
						if at, ok := used[x]; ok && at != i && cfg.NoDuplicates {
							t.Fatalf("a text twice in batch %v", b)
						}
						used[x] = i
					}
				}
			}
			if int64(k) != length[e] || k != len(want) {
				t.Fatalf("%+v: %d batches in epoch %d, Len says %d, want %d", cfg, k, e, length[e], len(want))
			}
			if !cfg.DropLast && len(seen) != len(ids) {
				t.Fatalf("%+v: %d of %d rows in epoch %d", cfg, len(seen), len(ids), e)
			}
		}
		if got := s.stats.Dropped; got != dropped {
			t.Fatalf("%+v: %d rows dropped, want %d", cfg, got, dropped)
		}
	}
	if refused > 200 {
		t.Errorf("%d of 400 configurations were refused", refused)
	}
}

// TestSamplerRestore goes on from every position, through JSON, in a new sampler.
func TestSamplerRestore(t *testing.T) {
	harness.Thorough(t)
	rng := rand.New(rand.NewPCG(6, 6))
	for range 40 {
		l, texts, cfg := randomSampler(rng)
		s, err := NewSampler(l, texts, cfg)
		if errors.Is(err, ErrBatchTooLarge) {
			continue
		}
		var cursors []Cursor
		var batches []Batch
		for {
			cursors = append(cursors, s.Cursor())
			b, ok := s.Next()
			if !ok {
				break
			}
			batches = append(batches, b)
		}
		for i, c := range cursors {
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var back Cursor
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			r, err := NewSampler(l, texts, cfg)
			if err != nil {
				t.Fatal(err)
			}
			for range rng.IntN(3) { // not only from the start
				r.Next()
			}
			if err := r.Restore(back); err != nil {
				t.Fatal(err)
			}
			got := drain(r)
			if !slices.EqualFunc(got, batches[i:], func(a, b Batch) bool {
				return a.Epoch == b.Epoch && a.Index == b.Index && slices.Equal(a.Rows, b.Rows)
			}) {
				t.Fatalf("%+v: restored before batch %d of %d: %v\nwant %v", cfg, i, len(batches), got, batches[i:])
			}
			if r.stats.Dropped != s.stats.Dropped {
				t.Fatalf("%+v: %+v after a restore, want %+v", cfg, r.stats, s.stats)
			}
		}
	}
}

// TestSamplerRestart: a sampler that has come to its end, or nowhere, begins anew with the same batches and lengths.
func TestSamplerRestart(t *testing.T) {
	texts := make(fixedTexts, 100)
	for i := range texts {
		texts[i] = []uint64{uint64(i % 30)}
	}
	s, err := NewSampler(evenLayout(100, 10), texts, SamplerConfig{Seed: 1, GlobalSize: 7, Epochs: 2, Shuffle: true, NoDuplicates: true})
	if err != nil {
		t.Fatal(err)
	}
	early := s.Restart()
	want := drain(s)
	for _, r := range []*Sampler{early, s.Restart()} {
		if total := r.Total(); total != int64(len(want)) {
			t.Errorf("%d batches, want %d", total, len(want))
		}
		if got := drain(r); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if before, after := s.Len(-1), s.Len(2); before != 0 || after != 0 {
		t.Errorf("epochs that are not have %d and %d batches", before, after)
	}
}

// A run that has come to its end goes on where it has more epochs than it had.
func TestSamplerMoreEpochs(t *testing.T) {
	texts := make(fixedTexts, 100)
	for i := range texts {
		texts[i] = []uint64{uint64(max(0, i-20))} // the first 21 rows' is one: of these some never come into a full batch
	}
	for _, distinct := range []bool{false, true} {
		cfg := SamplerConfig{Seed: 1, GlobalSize: 7, Shuffle: true, NoDuplicates: distinct, DropLast: distinct}
		open := func(epochs int) *Sampler {
			cfg.Epochs = epochs
			s, err := NewSampler(evenLayout(100, 10), texts, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		want := drain(open(3))
		short := open(1)
		first := drain(short)
		if distinct && short.stats.Dropped < 7 {
			t.Errorf("%d rows dropped, want those that share a text", short.stats.Dropped)
		}
		more := open(3)
		if err := more.Restore(short.Cursor()); err != nil {
			t.Fatal(err)
		}
		if got := append(first, drain(more)...); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func TestSamplerErrors(t *testing.T) {
	l := evenLayout(100, 10)
	texts := make(fixedTexts, 100)
	for i := range texts {
		texts[i] = []uint64{uint64(i), 1000 + uint64(i)%4} // four positives for all
	}
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(i)
	}
	base := SamplerConfig{Seed: 1, GlobalSize: 10, Epochs: 1, DropLast: true}
	with := func(change func(c *SamplerConfig)) SamplerConfig {
		c := base
		change(&c)
		return c
	}
	for _, c := range []struct {
		cfg  SamplerConfig
		is   error
		want string
	}{
		{with(func(c *SamplerConfig) { c.GlobalSize = 101 }), ErrBatchTooLarge, "batch.global_size is 101, but the data has only 100 rows"},
		{with(func(c *SamplerConfig) { c.GlobalSize, c.Skip = 99, []int64{3, 50} }), ErrBatchTooLarge, "batch.global_size is 99, but the data has only 98 rows"},
		{with(func(c *SamplerConfig) { c.NoDuplicates = true }), ErrBatchTooLarge, "batch.global_size is 10, but so many rows share texts that a batch without duplicates gets only 4 of the 100 rows: lower batch.global_size, or of rows with negatives (which they share too) negatives_per_query, or set batch.no_duplicates"},
		{with(func(c *SamplerConfig) { c.GlobalSize = 0 }), nil, "batch.global_size is 0"},
		{with(func(c *SamplerConfig) { c.Epochs = 0 }), nil, "train.epochs is 0"},
		{with(func(c *SamplerConfig) { c.Skip = slices.Clone(hundred[1:]) }), ErrBatchTooLarge, "the data has only 1 row, which has no negatives"},
		{with(func(c *SamplerConfig) { c.Lengths = fortieth{} }), nil, "batch.by_length needs data.shuffle"},
	} {
		_, err := NewSampler(l, texts, c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	if _, err := NewSampler(l, nil, with(func(c *SamplerConfig) { c.NoDuplicates = true })); err == nil {
		t.Error("no duplicates without an index")
	}
	// Without DropLast the same data comes in batches of four.
	s, err := NewSampler(l, texts, with(func(c *SamplerConfig) { c.NoDuplicates, c.DropLast = true, false }))
	if err != nil || s.Len(0) != 25 {
		t.Errorf("%v, %d batches, want 25", err, s.Len(0))
	}

	// A batch larger than the data is what there is.
	s, err = NewSampler(l, nil, with(func(c *SamplerConfig) { c.GlobalSize, c.DropLast = 101, false }))
	if err != nil || s.Len(0) != 1 {
		t.Fatalf("%v, %d batches, want 1", err, s.Len(0))
	}
	if b, ok := s.Next(); !ok || !slices.Equal(b.Rows, hundred) {
		t.Errorf("batch %v", b)
	}
	// A window that isn't given is the usual one.
	cursor := s.Cursor()
	s, err = NewSampler(l, nil, with(func(c *SamplerConfig) { c.GlobalSize, c.DropLast, c.Window = 101, false, Window{65536, 64 << 20} }))
	if err != nil || s.Restore(cursor) != nil {
		t.Errorf("%v, window %+v", err, cursor)
	}

	s, _ = NewSampler(l, texts, base)
	s.Next()
	good := s.Cursor()
	for want, change := range map[string]func(c *Cursor){
		"batch.global_size was 11 and is 10": func(c *Cursor) { c.GlobalSize = 11 },
		"train.seed was 2 and is 1":          func(c *Cursor) { c.Seed = 2 },
		"the data":                           func(c *Cursor) { c.Data = "x" },
		"data.shuffle was true":              func(c *Cursor) { c.Shuffle = true },
		"the shuffle window's rows was 7":    func(c *Cursor) { c.WindowRows = 7 },
		"the shuffle window's bytes was 7":   func(c *Cursor) { c.WindowBytes = 7 },
		"batch.no_duplicates was true":       func(c *Cursor) { c.NoDuplicates = true },
		"batch.drop_last was false":          func(c *Cursor) { c.DropLast = false },
		"batch.by_length was true":           func(c *Cursor) { c.ByLength = true },
		"rows that can't be used was 3":      func(c *Cursor) { c.Skipped = 3 },
		"position 101, 0 rows":               func(c *Cursor) { c.Position = 101 },
		"position -1, 0 rows":                func(c *Cursor) { c.Position = -1 },
		"batch -1, position":                 func(c *Cursor) { c.Batch = -1 },
		"epoch -1, batch":                    func(c *Cursor) { c.Epoch = -1 },
		"1 rows waiting) is damaged":         func(c *Cursor) { c.Pending = []int64{5} },
		"2 rows waiting) is damaged":         func(c *Cursor) { c.NoDuplicates, c.Pending = true, []int64{5, 100} },
		"11 rows waiting) is damaged":        func(c *Cursor) { c.NoDuplicates, c.Pending = true, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10} }, // after 10 rows
		"3 rows waiting) is damaged":         func(c *Cursor) { c.NoDuplicates, c.Pending = true, []int64{5, -1, 6} },
	} {
		c := good
		change(&c)
		s := s
		if strings.Contains(want, "waiting) is damaged") && c.NoDuplicates { // the 100 rows are 0 to 99
			s, _ = NewSampler(l, texts, with(func(c *SamplerConfig) { c.NoDuplicates, c.DropLast = true, false }))
			c.DropLast = false
		}
		if err := s.Restore(c); !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), want) {
			t.Errorf("restored a cursor that doesn't fit: %v, want %q", err, want)
		}
	}
	if err := s.Restore(good); err != nil {
		t.Error(err)
	}
}

// TestSamplerManyRepeats has a text in a hundred thousand rows: the work must stay in proportion to the rows.
func TestSamplerManyRepeats(t *testing.T) {
	const n = 200000
	texts := make(fixedTexts, n)
	for i := range texts {
		texts[i] = []uint64{uint64(i), uint64(n + i)}
		if i%2 == 0 {
			texts[i][1] = 0
		}
	}
	counted := &countingTexts{TextHashes: texts}
	s, err := NewSampler(evenLayout(n, 4096), counted, SamplerConfig{Seed: 1, GlobalSize: 256, Epochs: 1, Shuffle: true, NoDuplicates: true, DropLast: true})
	if err != nil {
		t.Fatal(err)
	}
	counted.asked = 0
	batches := drain(s)
	// Every full batch takes one of the 100,000 rows that share a text, so the other rows run out after 392 batches.
	if len(batches) != 392 {
		t.Errorf("%d batches, want 392", len(batches))
	}
	if got := s.stats.Dropped; got != n-392*256 {
		t.Errorf("%d rows dropped, want %d", got, n-392*256)
	}
	if counted.asked > n+n/10 {
		t.Errorf("%d rows were looked at, of %d", counted.asked, n)
	}
}

type countingTexts struct {
	TextHashes
	asked int
}

func (c *countingTexts) Hashes(dst []Hash128, seed uint64, epoch int, row int64) []Hash128 {
	c.asked++
	return c.TextHashes.Hashes(dst, seed, epoch, row)
}

func BenchmarkSampler(b *testing.B) {
	const n = 1 << 20
	for _, c := range []struct {
		name  string
		kinds uint64
		size  int
	}{
		{"distinct/65536", 1 << 62, 65536},
		{"repeats/65536", n / 4, 65536}, // every text occurs about eight times
		{"repeats/1024", n / 4, 1024},
	} {
		rng := rand.New(rand.NewPCG(7, 7))
		texts := make(fixedTexts, n)
		for i := range texts {
			texts[i] = []uint64{rng.Uint64N(c.kinds), rng.Uint64N(c.kinds)}
		}
		s, err := NewSampler(evenLayout(n, 4096), texts, SamplerConfig{Seed: 1, GlobalSize: c.size, Epochs: 1 << 30, Shuffle: true, NoDuplicates: true, DropLast: true})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(c.name), func(b *testing.B) {
			rows := 0
			for b.Loop() {
				batch, _ := s.Next()
				rows += len(batch.Rows)
			}
			b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(s.waiting.n), "waiting")
		})
	}
}

// The set of a batch's texts is empty after every clearing, that at which generations begin anew too.
func TestTextSet(t *testing.T) {
	var set textSet
	one, two := Hash128{1, 64}, Hash128{2, 128} // which belong in one slot
	for _, generation := range []uint32{0, 1, math.MaxUint32 - 1, math.MaxUint32} {
		if set.generation = generation; generation == math.MaxUint32 {
			set.slots[0] = textSlot{one, 1} // of four billion batches ago
		}
		set.clear()
		if set.has(one) || set.has(two) {
			t.Errorf("after generation %d it has %v, %v", generation, set.has(one), set.has(two))
		}
		set.add(one)
		if !set.has(one) || set.has(two) || set.used != 1 {
			t.Errorf("after generation %d it has %v, %v, used %d", generation, set.has(one), set.has(two), set.used)
		}
		set.add(two)
		if set.add(one); !set.has(one) || !set.has(two) || set.used != 2 {
			t.Errorf("after generation %d it has %v, %v, used %d", generation, set.has(one), set.has(two), set.used)
		}
	}
}

// A first epoch that has no full batch is refused, whatever others have.
func TestSamplerFirstEpoch(t *testing.T) {
	cfg := SamplerConfig{Seed: 1, GlobalSize: 40, Epochs: 2, NoDuplicates: true, DropLast: true}
	if _, err := NewSampler(fixed(60), changing{}, cfg); !errors.Is(err, ErrBatchTooLarge) || !strings.Contains(err.Error(), "gets only 31 of the 60 rows") { // 41 in the second
		t.Error(err)
	}
}

// TestSamplerSkips: rows that are skipped are in no batch and in no length, whatever they leave of the last batch.
func TestSamplerSkips(t *testing.T) {
	const rows, size = 100, 10
	texts := make(fixedTexts, rows)
	for i := range texts {
		texts[i] = []uint64{uint64(i)}
	}
	for _, skipped := range []int{1, rows%size + 1, size, size + 1, rows - size} {
		for flags := range 4 {
			cfg := SamplerConfig{Seed: 1, GlobalSize: size, Epochs: 2, Shuffle: true, DropLast: flags&1 > 0, NoDuplicates: flags&2 > 0}
			for i := range skipped {
				cfg.Skip = append(cfg.Skip, int64(i))
			}
			s, err := NewSampler(evenLayout(rows, 30), texts, cfg)
			if err != nil {
				t.Fatal(err)
			}
			want := (rows - skipped + size - 1) / size
			if cfg.DropLast {
				want = (rows - skipped) / size
			}
			stated, epochs := fmt.Sprint(s.Len(0), s.Len(1)), [2]int{}
			for _, b := range drain(s) {
				epochs[b.Epoch]++
				if slices.Min(b.Rows) < int64(skipped) {
					t.Errorf("%d skipped: batch %v", skipped, b)
				}
			}
			if epochs != [2]int{want, want} || stated != fmt.Sprint(want, want) {
				t.Errorf("%d skipped, drop last %v, no duplicates %v: epochs of %v batches, Len says %s, want %d", skipped, cfg.DropLast, cfg.NoDuplicates, epochs, stated, want)
			}
		}
	}
}
