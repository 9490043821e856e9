package stages

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// pairsOf is a dataset of pairs of a query and a document, which text makes of each row's number.
func pairsOf(t *testing.T, rows int, text func(row int) (query, document string)) *dataset.Dataset {
	t.Helper()
	var lines strings.Builder
	for r := range rows {
		q, p := text(r)
		fmt.Fprintf(&lines, "{\"q\": %q, \"p\": %q}\n", q, p)
	}
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func distinctPairs(row int) (string, string) { return fmt.Sprint("q ", row), fmt.Sprint("p ", row) }

func pairText(t *testing.T) Text {
	t.Helper()
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := tok.NewPairs(tokenize.PairOptions{MaxLength: 16})
	if err != nil {
		t.Fatal(err)
	}
	return Text{Pairs: []*tokenize.Pairs{pairs, pairs}}
}

func runGraph(t *testing.T, g *pipeline.Graph) {
	t.Helper()
	p, err := g.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What is drawn is keyed by the dataset's own seed and the pass over it, which is no epoch where datasets go on at a pace of their own. How many are drawn is
// among what ranks compare.
func TestInBatchKeys(t *testing.T) {
	const rows, size, epochs = 8, 4, 3
	data := []*dataset.Dataset{pairsOf(t, rows, distinctPairs), pairsOf(t, rows, distinctPairs)}
	read := func(inBatch []int) (orders []string) {
		m, err := dataset.NewMixer([]dataset.Part{{Layout: data[0].Layout()}, {Layout: data[1].Layout()}}, dataset.SamplerConfig{Seed: 5, GlobalSize: size, Epochs: epochs}, dataset.Mixing{Kind: dataset.Weighted, Weights: []float64{1, 3}})
		if err != nil {
			t.Fatal(err)
		}
		g := pipeline.New("keys")
		seen, passes := make([]int, 2), 0
		pipeline.Sink(g, "collect", Ingest(g, Plan{Data: data, Sampler: m, InBatch: inBatch, Ranks: 2}), func(_ *pipeline.Task, c *Chunk) error {
			orders = append(orders, c.plan.order)
			if inBatch == nil {
				return nil
			}
			pass := seen[c.Source] / rows
			if seen[c.Source] += len(c.Examples); pass != c.Epoch {
				passes++
			}
			if b := c.InBatch; b == nil || b.N != inBatch[c.Source] || b.Seed != m.Seed(c.Source) || b.Epoch != pass {
				return fmt.Errorf("dataset %d: %+v, want seed %d and pass %d", c.Source, b, m.Seed(c.Source), pass)
			}
			return nil
		})
		runGraph(t, g)
		if inBatch != nil && (passes == 0 || m.Seed(0) == m.Seed(1)) {
			t.Errorf("passes are epochs, or seeds %d and %d are the same", m.Seed(0), m.Seed(1))
		}
		return orders
	}
	two := read([]int{2, 2})
	if !slices.Equal(two, read([]int{2, 2})) || len(two) == 0 {
		t.Errorf("%q", two)
	}
	for _, other := range [][]int{{3, 3}, {dataset.AllNegatives, dataset.AllNegatives}, nil} {
		for i, order := range read(other) {
			if order == two[i] {
				t.Errorf("%v in-batch negatives, and ranks compare %q as for 2", other, order)
			}
		}
	}
}

// Held-out rows draw of their whole batch, also where it has more rows than travel together, and by their seed: each has those that dataset.Others gives it.
func TestHeldOutInBatch(t *testing.T) {
	const rows, size = chunkRows + 20, chunkRows + 12
	d, x := pairsOf(t, rows, distinctPairs), pairText(t)
	for _, c := range []struct {
		n    int
		seed uint64
	}{{2, 3}, {2, 4}, {dataset.AllNegatives, 3}} {
		h, err := NewHeldOutInBatch(t.Context(), d, x, size, c.seed, c.n)
		if err != nil {
			t.Fatal(err)
		}
		if len(h.batches) != 2 || len(h.batches[0].Rows) != size || h.Rows() != rows {
			t.Fatalf("%d batches of %d rows", len(h.batches), h.Rows())
		}
		for _, b := range h.batches {
			examples, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, b.Rows)
			if err != nil {
				t.Fatal(err)
			}
			others, err := dataset.NewOthers(examples)
			if err != nil {
				t.Fatal(err)
			}
			at := 2 * len(b.Rows)
			for i := range examples {
				for _, want := range others.With(i, c.n, c.seed, 0).Hashes[2:] {
					if at == b.N() || b.Texts[at] != [2]uint64{want.Hi, want.Lo} || b.Owner[at-2*len(b.Rows)] != int32(i) {
						t.Fatalf("%d with seed %d: sequence %d of %d is not what row %d draws", c.n, c.seed, at, b.N(), i)
					}
					at++
				}
			}
			if at != b.N() {
				t.Errorf("%d sequences, want %d", b.N(), at)
			}
		}
	}
}

// Rows whose batch has fewer documents for them are counted, and of these those that have none at all.
func TestInBatchCounts(t *testing.T) {
	alike := func(row int) (string, string) { // four documents belong to one query, and none of these rows gets those of the others
		_, p := distinctPairs(row)
		q, _ := distinctPairs(max(row, 3))
		return q, p
	}
	const rows = 10
	for _, c := range []struct {
		n, lo, hi, size int
		want            drawn
	}{
		{6, 0, rows, rows, drawn{}},
		{7, 0, rows, rows, drawn{Fewer: 4}}, // the four have six
		{10, 0, rows, rows, drawn{Fewer: rows}},
		{7, 2, 5, rows, drawn{Fewer: 2}}, // of a rank's
		{1, 0, 4, 4, drawn{4, 4}},
		{dataset.AllNegatives, 0, 4, 4, drawn{4, 4}},
		{dataset.AllNegatives, 0, rows, rows, drawn{}},
	} {
		d := pairsOf(t, rows, alike)
		var ids []int64
		for r := range c.size {
			ids = append(ids, int64(r))
		}
		examples, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, ids)
		if err != nil {
			t.Fatal(err)
		}
		chunk := &Chunk{Data: d, Examples: examples, EndsBatch: true, EndsStep: true, InBatch: &InBatch{N: c.n, Lo: c.lo, Hi: c.hi}}
		g := pipeline.New("counts")
		once := pipeline.Source(g, "once", func(context.Context) (*Chunk, error) {
			if chunk == nil {
				return nil, io.EOF
			}
			c := chunk
			chunk = nil
			return c, nil
		})
		var sum Totals
		pipeline.Sink(g, "keep", Assemble(g, Tokenize(g, once, pairText(t))), func(_ *pipeline.Task, b *Batch) error {
			sum.add(b)
			return nil
		})
		runGraph(t, g)
		if sum.Drawn != c.want || sum.Pairs != c.hi-c.lo {
			t.Errorf("%+v: %+v of %d rows", c, sum.Drawn, sum.Pairs)
		}
	}
}

// Documents of other rows are for models that score: an embedder's rows with them are an error, whether their ids were made beforehand or not.
func TestInBatchEmbedder(t *testing.T) {
	x := pairText(t)
	d := pairsOf(t, 4, distinctPairs)
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	x.Pairs, x.Tokenizer, x.QueryLength, x.DocumentLength = nil, tok, 16, 16
	if _, err := NewHeldOutInBatch(t.Context(), d, x, 4, 1, 2); err == nil || !strings.Contains(err.Error(), "which are for models that score (Text.Pairs)") {
		t.Error(err)
	}
	e := dataset.Example{Texts: []string{"q", "p"}, Hashes: []dataset.Hash128{dataset.HashText("q"), dataset.HashText("p")}, IDs: [][]int32{{1}, {2}}}
	if err := x.takes(&Chunk{Data: d, Examples: []dataset.Example{e}, InBatch: &InBatch{N: 1, Hi: 1}}); err == nil || !strings.Contains(err.Error(), "models that score") {
		t.Error(err)
	}
}
