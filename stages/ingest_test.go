package stages_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
)

// A plan's rows are for one run, whether that has come to its end or not: another would be without those that the first has read.
func TestIngestOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.jsonl")
	if err := os.WriteFile(path, []byte(strings.Repeat(`{"q": "a question", "p": "an answer"}`+"\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	enough := errors.New("enough")
	for _, stop := range []error{nil, enough} {
		cfg := dataset.SamplerConfig{GlobalSize: 2, Epochs: 1}
		m, err := dataset.NewMixer([]dataset.Part{{Layout: d.Layout()}}, cfg, dataset.Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		g := pipeline.New("g")
		rows := 0
		pipeline.Sink(g, "count", stages.Ingest(g, stages.Plan{Data: []*dataset.Dataset{d}, Sampler: m, Accumulate: 1}), func(_ *pipeline.Task, c *stages.Chunk) error {
			if rows += len(c.Examples); rows == 4 {
				return stop
			}
			return nil
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(context.Background()); !errors.Is(err, stop) || stop == nil && rows != 20 {
			t.Fatalf("%v after %d rows", err, rows)
		}
		before := rows
		err = p.Run(context.Background())
		if err == nil || !strings.HasPrefix(err.Error(), `graph "g": stage "ingest", item #0: another run of this graph has read the plan's rows`) || rows != before {
			t.Errorf("a second run after %v: %v, and %d more rows", stop, err, rows-before)
		}
	}
}
