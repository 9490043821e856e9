package stages_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
)

// inBatchData are two datasets of so many rows: with one negative a row, and with lists of them and scores. Some rows share a query or a positive.
func inBatchData(t *testing.T, rows int, bad int) (data []*dataset.Dataset, parts []dataset.Part) {
	t.Helper()
	for i := range 2 {
		var lines strings.Builder
		for r := range rows {
			positive := fmt.Sprint("p", i, " ", r%(rows-5))
			if r == bad {
				positive = ""
			}
			fmt.Fprintf(&lines, `{"q": "q%d %d", "p": %q, "n": "n%d %d", "ns": ["a%d", "b%d"], "s": [3, 2, 1]}`+"\n", i, r%(rows-3), positive, i, r, r, r/2)
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
	return data, parts
}

// What a row gets of other rows of its batch is the same on any number of ranks, in every chunk, and after a restart; and it is of that batch alone, which is
// that of the sampler.
func TestInBatchOrder(t *testing.T) {
	const rows, size = 150, 140
	data, parts := inBatchData(t, rows, -1)
	negatives := []int{3, dataset.AllNegatives}
	read := func(from *dataset.Cursor, first, rank, ranks int) (batches []map[int64][]string, next []*dataset.Cursor, chunks int) {
		t.Helper()
		m, err := dataset.NewMixer(parts, dataset.SamplerConfig{Seed: 5, GlobalSize: size, Epochs: 2, Shuffle: true}, dataset.Mixing{Kind: dataset.RoundRobin})
		if err != nil {
			t.Fatal(err)
		}
		if from != nil {
			if err := m.Restore(*from); err != nil {
				t.Fatal(err)
			}
		}
		plan := stages.Plan{Data: data, Sampler: m, InBatch: negatives, FirstStep: first, Rank: rank, Ranks: ranks}
		batch := map[int64][]string{}
		g := pipeline.New("in-batch")
		pipeline.Sink(g, "collect", stages.Ingest(g, plan), func(_ *pipeline.Task, c *stages.Chunk) error {
			columns := c.Data.Columns()
			if last := columns[len(columns)-1]; len(columns) != 4 || last.Role != dataset.Negative || !last.Ragged || c.Data.HasScores() {
				return fmt.Errorf("columns are %+v, scores %t", columns, c.Data.HasScores())
			}
			for _, e := range c.Examples {
				from, to := e.Column(3)
				if to != len(e.Texts) || from < 3 || e.Scores != nil {
					return fmt.Errorf("row %d: %+v", e.Row, e)
				}
				batch[e.Row] = append(e.Texts[:from:from], append([]string{"others:"}, e.Texts[from:]...)...)
			}
			if chunks++; c.EndsBatch {
				batches, next, batch = append(batches, batch), append(next, c.Next), map[int64][]string{}
			}
			return nil
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return batches, next, chunks
	}
	want, cursors, chunks := read(nil, 0, 0, 1)
	if len(want) < 8 || chunks <= len(want) {
		t.Fatalf("%d batches in %d chunks", len(want), chunks)
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
	if reflect.DeepEqual(want[0], want[len(want)/2]) {
		t.Error("the second epoch draws what the first one does")
	}
	for _, ranks := range []int{2, 3} {
		got := make([]map[int64][]string, len(want))
		for rank := range ranks {
			batches, _, _ := read(nil, 0, rank, ranks)
			for b, batch := range batches {
				if got[b] == nil {
					got[b] = map[int64][]string{}
				}
				for row, texts := range batch {
					got[b][row] = texts
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("rows of %d ranks have other texts", ranks)
		}
	}
	for _, steps := range []int{1, 5} {
		if got, _, _ := read(cursors[steps-1], steps, 1, 2); len(got) != len(want)-steps {
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
	data, parts := inBatchData(t, rows, bad)
	for rank := range 2 {
		m, err := dataset.NewMixer(parts[:1], dataset.SamplerConfig{GlobalSize: size, Epochs: 1}, dataset.Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		g := pipeline.New("in-batch")
		seen := 0
		pipeline.Sink(g, "collect", stages.Ingest(g, stages.Plan{Data: data[:1], Sampler: m, InBatch: []int{2}, Rank: rank, Ranks: 2}), func(_ *pipeline.Task, c *stages.Chunk) error {
			seen += len(c.Examples)
			return c.Bad()
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		var of *stages.RowsError
		if err := p.Run(t.Context()); !errors.As(err, &of) || !of.Row || !strings.Contains(err.Error(), "data.jsonl:14") || seen != size/2 {
			t.Errorf("rank %d: %v after %d rows", rank, err, seen)
		}
	}
}
