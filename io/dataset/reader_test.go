package dataset

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"contraflow/testdata/harness"
)

// TestReader fetches rows in any order and number, with a cache that holds hardly anything, everything, or one block.
func TestReader(t *testing.T) {
	g := goldens(t)
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(11, 1))
	for _, file := range []string{"tiny_pages.parquet", "hf.jsonl", "many_groups.parquet"} {
		d, err := open(ctx, Source{Paths: []string{golden(file)}, Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: 3, Weight: "weight"}, blockLimit{5, 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var kept []Example
		var keptRows []int64
		for _, cfg := range []ReaderConfig{{Seed: 3}, {Seed: 3, CacheBytes: 1, Threads: 1}, {Seed: 3, CacheBytes: 4000, Threads: 3}} {
			r := d.NewReader(cfg)
			for i := range 30 {
				rows := make([]int64, rng.IntN(40))
				for k := range rows {
					rows[k] = rng.Int64N(d.Rows())
				}
				if i == 0 && kept != nil {
					rows = keptRows
				}
				examples, err := r.Read(ctx, 7, rows)
				if err != nil || len(examples) != len(rows) {
					t.Fatal(err, len(examples))
				}
				for k, e := range examples {
					w := g.Rows[rows[k]]
					if e.Row != rows[k] || e.Weight != w.Weight || len(e.Texts) != 5 || e.Texts[0] != w.Query || !slices.Contains(w.Pos, e.Texts[1]) {
						t.Fatalf("%s row %d: %+v", file, rows[k], e)
					}
					for j, text := range e.Texts {
						if j >= 2 && !slices.Contains(w.Neg, text) || e.Hashes[j] != HashText(text) {
							t.Fatalf("%s row %d text %d: %q", file, rows[k], j, text)
						}
					}
					if got := e.Texts[2:]; len(w.Neg) >= 3 && !sampleOf(got, w.Neg) {
						t.Fatalf("%s row %d: %q is not chosen from %q without repetition", file, rows[k], got, w.Neg)
					}
				}
				if i == 0 && kept == nil {
					kept, keptRows = examples, rows
				} else if i == 0 {
					for k := range examples {
						if !slices.Equal(examples[k].Texts, kept[k].Texts) {
							t.Fatal("the choice depends on the cache")
						}
					}
				}
			}
			r.Close()
		}
		if _, err := d.NewReader(ReaderConfig{}).Read(ctx, 0, []int64{d.Rows()}); err == nil {
			t.Error("a row beyond the end was read")
		}
	}
}

// TestReaderKeepsBlocks: a block in the cache is not read again, and one that had to leave it is.
func TestReaderKeepsBlocks(t *testing.T) {
	text := strings.Repeat(`{"q": "a", "p": "b"}`+"\n", 4)
	for kept, cache := range map[bool]int64{true: 1 << 20, false: 1} {
		path := filepath.Join(write(t, map[string]string{"a.jsonl": text}), "a.jsonl")
		d, err := open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p"}, blockLimit{2, 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r := d.NewReader(ReaderConfig{CacheBytes: cache, Threads: 1})
		for _, row := range []int64{0, 2} {
			if _, err := r.Read(t.Context(), 0, []int64{row}); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(t.Context(), 0, []int64{3}); err != nil {
			t.Errorf("the last block that was read: %v", err)
		}
		if _, err := r.Read(t.Context(), 0, []int64{1}); (err == nil) != kept {
			t.Errorf("the one before, with a cache of %d bytes: %v", cache, err)
		}
		if r.Close(); kept {
			if _, err := r.Read(t.Context(), 0, []int64{1}); err == nil {
				t.Error("a closed reader has kept a block")
			}
		}
	}
}

// sampleOf reports whether got can be taken from list, each element once.
func sampleOf(got, list []string) bool {
	list = slices.Clone(list)
	for _, g := range got {
		i := slices.Index(list, g)
		if i < 0 {
			return false
		}
		list = slices.Delete(list, i, i+1)
	}
	return true
}

// TestReaderBadRows: the first bad row of the call is the error, whatever the block's order; good rows beside it are read.
func TestReaderBadRows(t *testing.T) {
	ctx := context.Background()
	folder := write(t, map[string]string{"a.jsonl": strings.Join([]string{
		`{"q": "a", "p": "b", "w": 1}`, `{"q": "a", "p": ""}`, ``, `{"q": 5, "p": "b", "w": 1}`, `{"q": "a", "p": "b", "w": -1}`, `{"q": "a", "p": "b"}`, `{"q": "a"`, `{"p": "b", "w": 1}`, `{"q": "a", "p": "` + "\xff" + `", "w": 1}`, `{"q": "a", "p": "b", "w": 1e308}`,
	}, "\n")})
	file := filepath.Join(folder, "a.jsonl")
	// The first rows are looked at when the file is opened; what is wrong must not stand there.
	good := strings.Repeat(`{"q": "a", "p": "b", "w": 1}`+"\n", 5000)
	b, _ := os.ReadFile(file)
	if err := os.WriteFile(file, append([]byte(good), b...), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := Open(ctx, Source{Paths: []string{file}, Query: "q", Positive: "p", Weight: "w"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"", `a.jsonl:5002, column "p": the text is empty`, `a.jsonl:5004, column "q": it is a number, want a string`,
		`a.jsonl:5005, column "w": a weight of -1`, `a.jsonl:5006, column "w": the weight is null or NaN`, `a.jsonl:5007: not JSON at byte 10`, `a.jsonl:5008, column "q": the text is missing: the row has no such key`, `a.jsonl:5009, column "p": the text is not UTF-8, which it has to be (iconv -f`,
		`a.jsonl:5010, column "w": a weight of +Inf, infinite or beyond the 3.4`,
	}
	r := d.NewReader(ReaderConfig{})
	defer r.Close()
	for i, w := range want {
		_, err := r.Read(ctx, 0, []int64{5000 + int64(i), 0, 5001})
		if i == 0 {
			w = want[1]
		}
		var bad *RowError
		if !errors.As(err, &bad) || !errors.Is(err, ErrBadRow) || !strings.Contains(err.Error(), w) {
			t.Errorf("row %d: %v, want %q", 5000+i, err, w)
		}
	}
	if _, err := r.Read(ctx, 0, []int64{5001, 5004}); err == nil || !strings.Contains(err.Error(), want[1]) {
		t.Errorf("of two bad rows: %v, want %q", err, want[1])
	}
	if _, err := r.Read(ctx, 0, []int64{5000, 4999}); err != nil {
		t.Error(err)
	}
}

// TestSimCSE: one column named twice gives the same text twice.
func TestSimCSE(t *testing.T) {
	d, err := Open(context.Background(), Source{Paths: []string{golden("default.parquet")}, Query: "query", Positive: "query"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.NewReader(ReaderConfig{}).Read(context.Background(), 0, []int64{5})
	if err != nil || len(e[0].Texts) != 2 || e[0].Texts[0] != e[0].Texts[1] {
		t.Errorf("%+v, %v", e, err)
	}
}

// writeRows writes a parquet file of n rows of about 300 bytes.
func writeRows(t testing.TB, path string, n int) {
	t.Helper()
	w, err := NewParquetWriter(path, OutColumn{"query", TextOut}, OutColumn{"positive", TextOut}, OutColumn{"neg", TextListOut})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	words := make([]string, 5000)
	for i := range words {
		words[i] = fmt.Sprintf("w%05x", rng.IntN(1<<20))
	}
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		return b.String()
	}
	const step = 10000
	for from := 0; from < n; from += step {
		q, p, neg := make([]string, step), make([]string, step), make([][]string, step)
		for i := range q {
			q[i], p[i] = fmt.Sprint(from+i, " ", text(5)), text(26)
			neg[i] = []string{text(5), text(5)}
		}
		if err := w.Write(q, p, neg); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestShuffleMemory walks through a shuffled epoch and holds no more than the window and the batch.
func TestShuffleMemory(t *testing.T) {
	harness.Thorough(t)
	path := filepath.Join(t.TempDir(), "a.parquet")
	const n = 100000
	writeRows(t, path, n)
	ctx := context.Background()
	d, err := Open(ctx, Source{Paths: []string{path}, Query: "query", Positive: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSampler(d.Layout(), nil, SamplerConfig{Seed: 1, GlobalSize: 1000, Epochs: 1, Shuffle: true, Window: Window{16384, 3 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	r := d.NewReader(ReaderConfig{CacheBytes: 6 << 20})
	defer r.Close()
	seen, most := make([]bool, n), uint64(0)
	for b, ok := s.Next(); ok; b, ok = s.Next() {
		examples, err := r.Read(ctx, b.Epoch, b.Rows)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range examples {
			if want := fmt.Sprint(b.Rows[i], " "); !strings.HasPrefix(e.Texts[0], want) {
				t.Fatalf("row %d is %q", b.Rows[i], e.Texts[0])
			}
			seen[e.Row] = true
		}
		if b.Index%20 == 19 {
			runtime.GC()
			runtime.GC() // empties the pools of the writer, too
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
	if slices.Contains(seen, false) {
		t.Error("a row is missing")
	}
	if most > 16<<20 { // of 30 MB of text; 6 MiB are the cache's, as much again are pages being decoded
		t.Errorf("%d KiB held", most>>10)
	}
}

// BenchmarkRead measures what training and the first pass read, on one thread. The package comment has pyarrow's figures.
func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "a.parquet")
	writeRows(b, path, harness.Tenth(200_000))
	ctx := context.Background()
	for name, src := range map[string]Source{
		"texts": {Query: "query", Positive: "positive"},
		"lists": {Query: "query", Positive: "positive", Negatives: []string{"neg"}, NegativesPerQuery: 1},
	} {
		src.Paths = []string{path}
		d, err := Open(ctx, src)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/decode", func(b *testing.B) {
			for b.Loop() {
				r, block := d.NewScanner(), new(Block)
				for i := range d.Blocks() {
					if err := r.Read(ctx, i, block); err != nil {
						b.Fatal(err)
					}
				}
				r.Close()
			}
			b.ReportMetric(float64(d.Rows())*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
		b.Run(name+"/index", func(b *testing.B) {
			for b.Loop() {
				if _, err := d.Index(ctx, IndexConfig{Threads: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(d.Rows())*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
		b.Run(name+"/shuffled", func(b *testing.B) {
			rows := int64(0)
			for b.Loop() {
				s, err := NewSampler(d.Layout(), nil, SamplerConfig{Seed: 1, GlobalSize: 4096, Epochs: 1, Shuffle: true})
				if err != nil {
					b.Fatal(err)
				}
				r := d.NewReader(ReaderConfig{Threads: 1})
				for batch, ok := s.Next(); ok; batch, ok = s.Next() {
					if _, err := r.Read(ctx, 0, batch.Rows); err != nil {
						b.Fatal(err)
					}
					rows += int64(len(batch.Rows))
				}
			}
			b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkResume enters a shuffled epoch of a million rows at its beginning and at row 900,000, and reads the first batch of 1,024 there.
// On two cores of a shared AMD EPYC both take what decoding one window takes: going on costs nothing else.
func BenchmarkResume(b *testing.B) {
	rows, size := harness.Tenth(1_000_000), 1024
	path := filepath.Join(b.TempDir(), "a.parquet")
	writeRows(b, path, rows)
	d, err := Open(b.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive"})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for _, at := range []int{0, rows / 10 * 9 / size} {
		b.Run(fmt.Sprint("batch ", at), func(b *testing.B) {
			open := func() *Mixer {
				m, err := NewMixer([]Part{{Layout: d.Layout()}}, SamplerConfig{Seed: 1, GlobalSize: size, Epochs: 1, Shuffle: true, DropLast: true}, Mixing{})
				if err != nil {
					b.Fatal(err)
				}
				return m
			}
			m := open()
			for range at {
				m.Next()
			}
			cursor := m.Cursor()
			for b.Loop() {
				m := open()
				if err := m.Restore(cursor); err != nil {
					b.Fatal(err)
				}
				batch, _ := m.Next()
				r := d.NewReader(ReaderConfig{Seed: 1})
				if _, err := r.Read(b.Context(), batch.Pass, batch.Rows); err != nil {
					b.Fatal(err)
				}
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkShuffle reads a shuffled epoch of a million rows and reports the most memory that the Go runtime has held meanwhile, besides
// what it held before.
func BenchmarkShuffle(b *testing.B) {
	rows, size := harness.Tenth(1_000_000), 4096
	path := filepath.Join(b.TempDir(), "a.parquet")
	writeRows(b, path, rows)
	debug.FreeOSMemory()
	held := func() int64 {
		s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
	}
	before, most := held(), int64(0)
	for b.Loop() {
		d, err := Open(b.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive"})
		if err != nil {
			b.Fatal(err)
		}
		s, err := NewSampler(d.Layout(), nil, SamplerConfig{Seed: 1, GlobalSize: size, Epochs: 1, Shuffle: true})
		if err != nil {
			b.Fatal(err)
		}
		r := d.NewReader(ReaderConfig{Seed: 1})
		for batch, ok := s.Next(); ok; batch, ok = s.Next() {
			if _, err := r.Read(b.Context(), 0, batch.Rows); err != nil {
				b.Fatal(err)
			}
			most = max(most, held())
		}
		if err := errors.Join(r.Close(), d.Close()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(most-before)/(1<<20), "MiB-held")
}

// TestBlockOfBothForms reads JSON lines, whose texts share their line's memory, and parquet, whose columns have one each, into one block.
func TestBlockOfBothForms(t *testing.T) {
	folder := write(t, map[string]string{
		"a.jsonl": `{"query": "one", "positive": "first"}` + "\n" + `{"query": "two", "positive": "second"}`,
		"c.jsonl": `{"query": "five", "positive": "fifth"}`,
	})
	w, err := NewParquetWriter(filepath.Join(folder, "b.parquet"), OutColumn{"query", TextOut}, OutColumn{"positive", TextOut})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write([]string{"three", "four"}, []string{"third", "fourth"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), Source{Paths: []string{filepath.Join(folder, "*")}, Query: "query", Positive: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, b := d.NewScanner(), new(Block)
	defer s.Close()
	var got []string
	for i := range d.Blocks() {
		if err := s.Read(t.Context(), i, b); err != nil {
			t.Fatal(err)
		}
		for row := range b.Rows {
			got = b.Texts(b.Texts(got, row, 0), row, 1)
		}
	}
	if want := strings.Fields("one first two second three third four fourth five fifth"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestUnsignedNumbers reads labels and weights that would be negative if they had a sign.
func TestUnsignedNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.parquet")
	schema := parquet.NewSchema("schema", parquet.Group{"l": parquet.Uint(32), "p": parquet.String(), "q": parquet.String(), "w": parquet.Uint(64)})
	text := parquet.ByteArrayValue([]byte("text"))
	label, weight := uint32(3<<30), uint64(3<<62)
	writeParquet(t, path, schema, parquet.Row{parquet.Int32Value(int32(label)).Level(0, 0, 0), text.Level(0, 0, 1), text.Level(0, 0, 2), parquet.Int64Value(int64(weight)).Level(0, 0, 3)})
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p", Label: "l", Weight: "w"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := d.ReadBlock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if b.Label(0) != 3<<30 || b.Weight(0) != 3<<62 {
		t.Errorf("label %v, weight %v, want %v and %v", b.Label(0), b.Weight(0), label, weight)
	}
}
