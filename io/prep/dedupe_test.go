package prep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// corpus is n rows with exact and near duplicates, in a parquet and a JSONL file, and what should stay by the definitions.
func corpus(t testing.TB, n int) (c Config, want []pair) {
	dir := t.TempDir()
	words := strings.Fields("sort list map of keys and values read write file open close error return when the a that each index graph node edge walk find path")
	rng := uint64(7)
	next := func(n int) int { rng = mix64(rng); return int(rng % uint64(n)) }
	text := func(n int) []string {
		w := make([]string, n)
		for i := range w {
			w[i] = words[next(len(words))] + fmt.Sprint(next(40))
		}
		return w
	}
	var rows []pair
	var docs [][]string
	for i := range n {
		doc := text(30 + next(60))
		query := strings.Join(text(4), " ")
		switch {
		case i > 10 && next(10) == 0: // exact
			rows = append(rows, rows[next(i)])
			docs = append(docs, nil)
			continue
		case i > 10 && next(5) == 0: // near
			if of := docs[next(i)]; of != nil {
				doc = slices.Clone(of)
				for range next(7) {
					doc[next(len(doc))] = "edit"
				}
			}
		}
		docs = append(docs, doc)
		rows = append(rows, pair{Query: query, Positive: strings.Join(doc, " ")})
	}
	split := n / 3
	writeJSONL(t, filepath.Join(dir, "b.jsonl"), rows[split:]...)
	w, err := dataset.NewParquetWriter(filepath.Join(dir, "a.parquet"), dataset.OutColumn{Name: "query"}, dataset.OutColumn{Name: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	var q, p []string
	for _, r := range rows[:split] {
		q, p = append(q, r.Query), append(p, r.Positive)
	}
	if err := w.Write(q, p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c = bare(t, filepath.Join(dir, "*.*"))
	c.Dedupe.Exact, c.Dedupe.Near.Column = "row", "positive"
	c.Output.Shards = 2
	seen := map[[2]string]bool{}
	sketches, stays := []Sketch{}, map[string]bool{} // of each document
	for _, r := range rows {
		if key := [2]string{r.Query, r.Positive}; seen[key] {
			continue
		} else {
			seen[key] = true
		}
		if _, known := stays[r.Positive]; !known {
			k := NewSketch(r.Positive, Shingles(nil, r.Positive, c.Dedupe.Near.Shingle))
			stays[r.Positive] = !slices.ContainsFunc(sketches, func(other Sketch) bool { return Jaccard(other, k) >= c.Dedupe.Near.Threshold })
			sketches = append(sketches, k)
		}
		if stays[r.Positive] {
			want = append(want, pair{Query: r.Query, Positive: r.Positive})
		}
	}
	return c, want
}

func TestDedupe(t *testing.T) {
	c, want := corpus(t, 1500)
	s := mustRun(t, c)
	got := readPairs(t, c.Output.Dir, "train")
	// All pairs are compared for want; bands may miss one in 500 at the threshold.
	missing := 0
	inWant := map[[2]string]bool{}
	for _, p := range want {
		inWant[[2]string{p.Query, p.Positive}] = true
	}
	for _, p := range got {
		if !inWant[[2]string{p.Query, p.Positive}] {
			missing++
		}
	}
	if len(got)-missing != len(want) || missing > 3 {
		t.Errorf("%d rows stay, %d of them are duplicates; the definition keeps %d", len(got), missing, len(want))
	}
	if n := s.Rules[Duplicate].Dropped; n < 80 || s.Rules[NearDuplicate].Dropped < 60 {
		t.Errorf("too few duplicates to test with: %v", counts(s))
	}
}

// A document that is the positive of several queries stays with all of them, and of documents that are nearly the same the first does. What is dropped
// says why.
func TestNearKeepsQueries(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	doc := "a goroutine is a lightweight thread managed by the runtime of Go and it begins with the keyword go before a call of some function"
	rows := []pair{{Query: "what is a goroutine", Positive: doc}, {Query: "how does a goroutine begin", Positive: doc}, {Query: "what manages goroutines", Positive: doc + "."},
		{Query: "threads in Go", Positive: doc}, {Query: "threads in Go", Positive: "another document of which there is one alone"}}
	writeJSONL(t, in, rows...)
	c := bare(t, in)
	for i, want := range []struct {
		exact, near, stay, why string
	}{
		{"row", "positive", "0 1 3 4 ", "its positive is nearly that of in.jsonl:1"},
		{"positive", "positive", "0 4 ", "its positive is that of in.jsonl:1"},
		{"query", "query", "0 1 2 3 ", "its query is that of in.jsonl:4"},
		{"none", "query", "0 1 2 3 4 ", ""},
	} {
		c.Dedupe.Exact, c.Dedupe.Near.Column = want.exact, want.near
		c.Output.Dir = filepath.Join(filepath.Dir(in), fmt.Sprint(i))
		s := mustRun(t, c)
		stay, why := "", ""
		for _, p := range readPairs(t, c.Output.Dir, "train") {
			stay += fmt.Sprint(slices.IndexFunc(rows, func(r pair) bool { return r.Query == p.Query && r.Positive == p.Positive }), " ")
		}
		for _, rule := range []string{Duplicate, NearDuplicate} {
			if r := s.Rules[rule]; r != nil && why == "" {
				why = r.Samples[0].Why
			}
		}
		if stay != want.stay || why != want.why {
			t.Errorf("%s, near %s: %q stay, dropped as %q; want %q, %q", want.exact, want.near, stay, why, want.stay, want.why)
		}
	}
}

// What Exact has dropped represents nothing in Near: a row that is nearly such a one alone would be lost, and its text with it.
func TestNearOfDropped(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	doc := "a channel is a typed conduit through which goroutines send and receive values and it blocks until the other side is ready for them"
	rows := []pair{{Query: "what is a channel", Positive: "something else altogether"}, {Query: "what is a channel", Positive: doc}, {Query: "how do goroutines talk", Positive: doc + " again"},
		{Query: "when does a channel block", Positive: doc}}
	writeJSONL(t, in, rows...)
	c := bare(t, in)
	c.Dedupe.Exact, c.Dedupe.Near.Column = "query", "positive"
	s := mustRun(t, c)
	got := readPairs(t, c.Output.Dir, "train")
	if len(got) != 2 || got[0].Positive != rows[0].Positive || got[1].Query != rows[2].Query {
		t.Errorf("%q stay, want rows 0 and 2", got)
	}
	if r := s.Rules[NearDuplicate]; r == nil || r.Dropped != 1 || r.Samples[0].Why != "its positive is nearly that of in.jsonl:3" {
		t.Errorf("%+v, want row 3 dropped for row 2", r)
	}
}

// TestFirstDrops: of what bands say that a row repeats, in whatever order, the earliest row is cited; and the first dropped rows are known, however many follow.
func TestFirstDrops(t *testing.T) {
	f := firstDrops{most: 3}
	for _, d := range [][2]int64{{50, 7}, {50, 3}, {50, 5}, {40, 6}, {40, 8}} {
		f.add(d[0], d[1])
	}
	for id := int64(1000); id > 60; id-- {
		f.add(id, id-1)
		f.add(id, id-2)
	}
	for id, want := range map[int64]int64{40: 6, 50: 3, 61: 59, 41: -1} {
		if got := f.of(id); got != want {
			t.Errorf("row %d is said to repeat %d, want %d", id, got, want)
		}
	}
}

// Texts without words are as different as their bytes, and runs of more words than there is room for on the stack are runs all the same.
func TestShinglesOfOddTexts(t *testing.T) {
	sketch := func(text string, n int) Sketch { return NewSketch(text, Shingles(nil, text, n)) }
	for _, c := range []struct {
		a, b string
		n    int
		want float64
	}{{"!!!", "???", 3, 0}, {"!!!", "!!!", 3, 1}, {"", "!", 3, 0}, {"one", "One!", 3, 1}, {"one", "two", 3, 0}} {
		if got := Jaccard(sketch(c.a, c.n), sketch(c.b, c.n)); got != c.want {
			t.Errorf("%q and %q: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	var words []string
	for i := range 100 {
		words = append(words, fmt.Sprint("w", i))
	}
	text := strings.Join(words, " ")
	for n, want := range map[int]int{63: 38, 64: 37, 65: 36, 70: 31, 100: 1, 101: 1} { // 100 - n + 1 runs
		if got := len(Shingles(nil, text, n)); got != want {
			t.Errorf("%d runs of %d words, want %d", got, n, want)
		}
		if got := Jaccard(sketch(text, n), sketch(text+" more", n)); n <= 100 && !(math.Abs(got-float64(want)/float64(want+1)) <= 1e-12) {
			t.Errorf("runs of %d words: %v", n, got)
		}
	}
}

// TestParallelFails: where a call has come to nothing so has the whole, also if all that it says is that something else was cancelled.
func TestParallelFails(t *testing.T) {
	own := errors.New("its own")
	for _, fails := range []error{own, context.Canceled, fmt.Errorf("a request: %w", context.Canceled)} {
		l := &local{o: Options{Threads: 3}}
		err := l.parallel(t.Context(), 8, func(ctx context.Context, i int) error {
			if i == 5 {
				return fails
			}
			if i > 5 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		if err == nil || fails == own && err != own {
			t.Errorf("of %v: %v", fails, err)
		}
	}
}

// TestNearKeys: rows are compared by all texts of their column, or of all columns, and words of two texts are not one.
func TestNearKeys(t *testing.T) {
	for _, c := range []struct {
		column string
		texts  [][]string
		words  int
	}{
		{"query", [][]string{{"a b"}, {"c"}, {"d"}}, 2},
		{"positive", [][]string{{"a b"}, {"c"}, {"d"}}, 1},
		{"positive", [][]string{{"a"}, {"b", "c d", "e"}, {"f"}}, 4},
		{"row", [][]string{{"a"}, {"b", "c d"}, {"e", "f"}}, 6},
	} {
		config := bare(t, "x")
		config.Input[0].Negatives, config.Dedupe.Near = []string{"negs"}, Near{Column: c.column, Shingle: 1}
		r, err := NewRules(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		s, bands, ok := r.NewWorker().NearKeys(&Row{Texts: c.texts})
		if s.Size != c.words || len(bands) != 20 || !ok {
			t.Errorf("%s of %q: %d words in %d bands, want %d", c.column, c.texts, s.Size, len(bands), c.words)
		}
	}
}

// TestShardsHaveBlocks: every block is of one shard, in order, and none is without, however unlike the blocks are.
func TestShardsHaveBlocks(t *testing.T) {
	for _, sizes := range [][]int{{1}, {100, 1, 1}, {1, 1, 100}, {5, 5, 5, 5, 5, 5, 5}, {1, 1000, 1, 1, 1000, 1}} {
		for shards := 1; shards <= len(sizes); shards++ {
			x := &Inputs{Shards: shards}
			for i, n := range sizes {
				x.blocks = append(x.blocks, inputBlock{block: i, first: x.rows, rows: n})
				x.rows += int64(n)
			}
			x.cut()
			end := 0
			for s := range shards {
				from, to := x.shard(s)
				if from != end || to <= from {
					t.Errorf("blocks of %v rows, shard %d of %d has those from %d to %d, and the one before ends at %d", sizes, s, shards, from, to, end)
				}
				end = to
			}
			if end != len(sizes) {
				t.Errorf("blocks of %v rows: %d shards have %d of them", sizes, shards, end)
			}
		}
	}
}
