package stages_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// Every sampler gives the same global batches whatever the number of ranks and of workers: ranks' slices, side by side, are the
// batches of one rank. Each dataset's rows have ids of their own.
func TestOneGlobalOrder(t *testing.T) {
	t.Parallel()
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	var data []*dataset.Dataset
	var parts []dataset.Part
	for i, rows := range []int{150, 60, 90} {
		path := filepath.Join(t.TempDir(), "data.jsonl")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		enc := json.NewEncoder(f)
		for r := range rows {
			enc.Encode(map[string]any{"q": fmt.Sprint("query ", r%(rows/2)), "p": fmt.Sprint("answer ", i, r), "n": []string{fmt.Sprint("a", i, r), fmt.Sprint("b", i, r), fmt.Sprint("c", i, r)}})
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: 1 + i})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		index, err := d.Index(t.Context(), dataset.IndexConfig{})
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, d)
		parts = append(parts, dataset.Part{Layout: d.Layout(), Texts: index, Lengths: index})
	}
	batches := func(cfg dataset.SamplerConfig, mix dataset.Mixing, parts []dataset.Part, rank, ranks, workers int) (out [][]string) {
		t.Helper()
		m, err := dataset.NewMixer(parts, cfg, mix)
		if err != nil {
			t.Fatal(err)
		}
		g := pipeline.New("order")
		chunks := stages.Ingest(g, stages.Plan{Data: data, Sampler: m, Accumulate: 2, Rank: rank, Ranks: ranks})
		tokens := stages.Tokenize(g, chunks, stages.Text{Tokenizer: tok, QueryLength: 16, DocumentLength: 16, Threads: workers})
		pipeline.Sink(g, "collect", stages.Assemble(g, tokens), func(t *pipeline.Task, b *stages.Batch) error {
			rows := []string{fmt.Sprintf("%v: %d rows of epoch %d, %d columns, ends step: %v", t.Index, b.Total, b.Epoch, len(b.Columns), b.EndsStep)}
			for i, row := range b.Rows {
				text := fmt.Sprint("row ", row)
				for c := range b.Columns {
					text += fmt.Sprint(" ", b.Texts[c*len(b.Rows)+i])
				}
				rows = append(rows, text)
			}
			out = append(out, rows)
			return nil
		})
		p, err := g.Build(pipeline.Workers(workers + 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		return out
	}
	counts := []int{1, 2, 3, 8}
	if testing.Short() { // ranks run one after the other: the race detector sees the same with few
		counts = []int{1, 3}
	}
	for k, mix := range []dataset.Mixing{{}, {Kind: dataset.RoundRobin}, {Kind: dataset.Weighted, Weights: []float64{1, 3, 1}}, {Kind: dataset.Tempered, Temperature: 2}} {
		for flags := range 8 {
			cfg := dataset.SamplerConfig{Seed: 3, GlobalSize: 11, Epochs: 2, Shuffle: true, Window: dataset.Window{Rows: 64}, NoDuplicates: flags&1 > 0, DropLast: flags&2 > 0}
			use := parts
			if flags&4 == 0 {
				use = nil
				for _, p := range parts {
					p.Lengths = nil
					use = append(use, p)
				}
			}
			want := batches(cfg, mix, use, 0, 1, 1)
			if len(want) < 20 {
				t.Fatalf("%v: only %d batches", mix, len(want))
			}
			for n, ranks := range counts {
				var got [][]string
				for rank := range ranks {
					for i, b := range batches(cfg, mix, use, rank, ranks, 1+(n+k+flags)%4) {
						if rank == 0 {
							got = append(got, b)
						} else {
							got[i] = append(got[i], b[1:]...)
						}
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v, %+v: batches of %d ranks differ from those of one", mix, cfg, ranks)
				}
			}
		}
	}
}
