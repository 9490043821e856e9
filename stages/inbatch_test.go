package stages_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// inBatchData are two datasets of so many rows: with one negative a row, and with lists of them and scores. Some rows share a query or a positive.
func inBatchData(t *testing.T, rows int, bad int) (data []*dataset.Dataset, parts []dataset.Part, named map[dataset.Hash128]string) {
	t.Helper()
	named = map[dataset.Hash128]string{}
	name := func(format string, args ...any) string {
		text := fmt.Sprintf(format, args...)
		named[dataset.HashText(text)] = text
		return text
	}
	for i := range 2 {
		var lines strings.Builder
		for r := range rows {
			positive := name("p%d %d", i, r%(rows-5))
			if r == bad {
				positive = ""
			}
			fmt.Fprintf(&lines, `{"q": %q, "p": %q, "n": %q, "ns": [%q, %q], "s": [3, 2, 1]}`+"\n", name("q%d %d", i, r%(rows-3)), positive, name("n%d %d", i, r), name("a%d", r), name("b%d", r/2))
		}
		path := filepath.Join(t.TempDir(), "data.jsonl")
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		src := dataset.Source{Paths: []string{path}, Query: "q", Positive: "p", Negatives: []string{"n"}}
		if i == 1 {
			src.Negatives, src.NegativesPerQuery, src.Scores = []string{"ns"}, dataset.AllNegatives, []string{"s"}
		}
		d, err := dataset.Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		data, parts = append(data, d), append(parts, dataset.Part{Layout: d.Layout()})
	}
	return data, parts, named
}

// What a row gets of other rows of its batch is the same on any number of ranks, and after a restart; and it is of that batch alone, which is
// that of the sampler.
func TestInBatchOrder(t *testing.T) {
	const rows, size = 60, 40
	data, parts, named := inBatchData(t, rows, -1)
	negatives := []int{3, dataset.AllNegatives}
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := tok.NewPairs(tokenize.PairOptions{MaxLength: 32})
	if err != nil {
		t.Fatal(err)
	}
	shuffle := true
	read := func(from *dataset.Cursor, first, rank, ranks int) (batches []map[int64][]string, next []*dataset.Cursor) {
		t.Helper()
		m, err := dataset.NewMixer(parts, dataset.SamplerConfig{Seed: 5, GlobalSize: size, Epochs: 2, Shuffle: shuffle}, dataset.Mixing{Kind: dataset.RoundRobin})
		if err != nil {
			t.Fatal(err)
		}
		if from != nil {
			if err := m.Restore(*from); err != nil {
				t.Fatal(err)
			}
		}
		plan := stages.Plan{Data: data, Sampler: m, InBatch: negatives, FirstStep: first, Rank: rank, Ranks: ranks}
		g := pipeline.New("in-batch")
		tokens := stages.Tokenize(g, stages.Ingest(g, plan), stages.Text{Pairs: []*tokenize.Pairs{pairs, pairs}, Threads: 2})
		pipeline.Sink(g, "collect", tokens, func(_ *pipeline.Task, c *stages.TokenChunk) error {
			batch, at := map[int64][]string{}, make([]int, 4)
			columns := c.Data.Columns()
			if last := columns[len(columns)-1]; len(columns) != 4 || last.Role != dataset.Negative || !last.Ragged || c.Data.HasScores() || c.Scores != nil {
				return fmt.Errorf("columns are %+v, scores %v", columns, c.Scores)
			}
			for i, row := range c.Rows {
				for col := range columns {
					n := 1
					if columns[col].Ragged {
						n = int(c.Counts[col][i])
					}
					if col == 3 {
						batch[row] = append(batch[row], "others:")
					}
					for _, id := range c.Texts[col][at[col] : at[col]+n] {
						batch[row] = append(batch[row], named[dataset.Hash128{Hi: id[0], Lo: id[1]}])
					}
					at[col] += n
				}
			}
			batches, next = append(batches, batch), append(next, c.Next)
			return nil
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return batches, next
	}
	want, cursors := read(nil, 0, 0, 1)
	if len(want) < 8 {
		t.Fatalf("%d batches", len(want))
	}
	for b, batch := range want {
		documents, full := map[string]bool{}, 0
		for _, texts := range batch {
			for _, d := range texts[1:slices.Index(texts, "others:")] {
				documents[d] = true
			}
		}
		for row, texts := range batch {
			k := slices.Index(texts, "others:")
			own, others := texts[:k], texts[k+1:]
			for i, d := range others {
				if !documents[d] || slices.Contains(own, d) || slices.Contains(others[:i], d) {
					t.Errorf("batch %d, row %d: %q", b, row, texts)
				}
				for _, same := range batch {
					if same[0] == own[0] && same[1] == d {
						t.Errorf("batch %d, row %d has drawn a positive of its query: %q", b, row, texts)
					}
				}
			}
			source := 0
			if row >= rows {
				source = 1
			}
			if n := negatives[source]; n > 0 && len(others) != n || n < 0 && len(batch) == size && len(others) < 2*size {
				t.Errorf("batch %d, row %d: %d others", b, row, len(others))
			}
			full += len(others)
		}
		if full == 0 {
			t.Errorf("batch %d: nothing is drawn", b)
		}
	}
	shuffle = false
	if same, _ := read(nil, 0, 0, 1); len(same[0]) != len(same[len(same)/2]) || reflect.DeepEqual(same[0], same[len(same)/2]) {
		t.Error("of the same batch the second epoch draws what the first one does")
	}
	shuffle = true
	for _, ranks := range []int{2, 30} { // of which 10 have no row of an epoch's last batches
		got := make([]map[int64][]string, len(want))
		for rank := range ranks {
			batches, _ := read(nil, 0, rank, ranks)
			for b, batch := range batches {
				if got[b] == nil {
					got[b] = map[int64][]string{}
				}
				maps.Copy(got[b], batch)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("rows of %d ranks have other texts", ranks)
		}
	}
	for _, steps := range []int{1, 5} {
		if got, _ := read(cursors[steps-1], steps, 1, 2); len(got) != len(want)-steps {
			t.Errorf("%d batches after %d", len(got), steps)
		} else {
			for b, batch := range got {
				for row, texts := range batch {
					if !slices.Equal(texts, want[b+steps][row]) {
						t.Errorf("%d steps before: batch %d, row %d: %q, want %q", steps, b, row, texts, want[b+steps][row])
					}
				}
			}
		}
	}
}

// A row that can't be used ends the run on the rank that has it and on those that would draw of it alike, before its batch.
func TestInBatchBadRow(t *testing.T) {
	const rows, size, bad = 30, 10, 13
	data, parts, _ := inBatchData(t, rows, bad)
	for rank := range 2 {
		m, err := dataset.NewMixer(parts[:1], dataset.SamplerConfig{GlobalSize: size, Epochs: 1}, dataset.Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		g := pipeline.New("in-batch")
		seen := 0
		pipeline.Sink(g, "collect", stages.Ingest(g, stages.Plan{Data: data[:1], Sampler: m, InBatch: []int{2}, Rank: rank, Ranks: 2}), func(_ *pipeline.Task, c *stages.Chunk) error {
			if seen += len(c.Examples); c.InBatch != nil && (c.InBatch.N != 2 || c.InBatch.Hi-c.InBatch.Lo != size/2 || c.InBatch.Lo != rank*size/2) {
				return fmt.Errorf("%+v", c.InBatch)
			}
			return c.Bad()
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		var of *stages.RowsError
		if err := p.Run(t.Context()); !errors.As(err, &of) || !of.Row || !strings.Contains(err.Error(), "data.jsonl:14") || seen != size {
			t.Errorf("rank %d: %v after %d rows", rank, err, seen)
		}
	}
}
