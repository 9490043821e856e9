package stages_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
)

// Epochs end with the steps that Plan.EpochEnds says: those behind which rows of another epoch come, or none, however batches are mixed and
// accumulated. Of a plan with fewer steps, those are among the longer one's that it makes.
func TestEpochEnds(t *testing.T) {
	dir := t.TempDir()
	var data []*dataset.Dataset
	var plain, indexed []dataset.Part
	for i, rows := range []int{37, 20, 9} {
		var text bytes.Buffer
		for r := range rows {
			fmt.Fprintf(&text, "{\"q\": \"question %d\", \"p\": \"an answer to %d\"}\n", r%(1+rows/2), r)
		}
		d, part := openRows(t, filepath.Join(dir, fmt.Sprint(i, ".jsonl")), text.Bytes())
		data, plain, indexed = append(data, d), append(plain, dataset.Part{Layout: part.Layout}), append(indexed, part)
	}
	const epochs = 4
	seen := map[string]bool{}
	for _, mixing := range []dataset.Mixing{{}, {Kind: dataset.RoundRobin}, {Kind: dataset.Weighted, Weights: []float64{1, 2, 1}}, {Kind: dataset.Tempered, Temperature: 3}} {
		for flags := range 8 {
			several, distinct, drop := flags&1 > 0, flags&2 > 0, flags&4 > 0
			parts, of, mix := plain, data, mixing
			if distinct {
				parts = indexed
			}
			if !several {
				parts, of = parts[:1], of[:1]
				if mix.Kind == dataset.Weighted {
					mix.Weights = mix.Weights[:1]
				}
			}
			for _, accumulate := range []int{0, 1, 3, 50} {
				cfg := dataset.SamplerConfig{GlobalSize: 4, Epochs: epochs, Shuffle: true, Seed: 3, NoDuplicates: distinct, DropLast: drop}
				run := func(most int) (told, counted []int, steps int) {
					m, err := dataset.NewMixer(parts, cfg, mix)
					if err != nil {
						t.Fatal(err)
					}
					plan := stages.Plan{Data: of, Sampler: m, Accumulate: accumulate, MaxSteps: most}
					told = plan.EpochEnds()
					if n := plan.Steps(); most > 0 && n != most {
						t.Fatalf("%d steps of %d", n, most)
					}
					if most > 0 && (plan.StepsOf(epochs-0.5) != most || plan.StepsOf(1e-3) != 1) {
						t.Errorf("of %d steps %d epochs less a half are %d", most, epochs, plan.StepsOf(epochs-0.5))
					}
					for e := 0; most == 0 && e < epochs; e++ {
						from := 0
						if e > 0 {
							from = told[e-1]
						}
						for part, want := range map[float64]int{0: from, 1e-10: from + 1, 0.01: from + 1, 0.1 + 1e-16: from + (told[e]-from+9)/10, 0.5: from + (told[e]-from+1)/2, 1 - 1e-6: told[e], 1: told[e]} {
							if got := plan.StepsOf(float64(e) + part); got != want {
								t.Errorf("%v epochs are %d steps, want %d; epochs end with %v", float64(e)+part, got, want, told)
							}
						}
					}
					g := pipeline.New("g")
					at := 0 // the epoch of the rows before
					pipeline.Sink(g, "count", stages.Ingest(g, plan), func(_ *pipeline.Task, c *stages.Chunk) error {
						for ; at < c.Epoch; at++ {
							counted = append(counted, steps)
						}
						if c.EndsStep {
							steps++
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
					return told, counted, steps
				}
				name := fmt.Sprintf("%v, several %t, no duplicates %t, drop last %t, accumulate %d", mix, several, distinct, drop, accumulate)
				told, counted, steps := run(0)
				if counted = append(counted, steps); !slices.Equal(told, counted) || len(told) != epochs {
					t.Errorf("%s: epochs end with %v of %d steps, told %v", name, counted, steps, told)
				}
				seen[fmt.Sprint(told)] = true
				for _, most := range []int{told[0], told[1] + 1, told[2] - 1} {
					if most = min(most, steps-1); most < 1 {
						continue
					}
					want := slices.DeleteFunc(slices.Clone(counted), func(end int) bool { return end > most })
					if told, _, made := run(most); !slices.Equal(told, want) || made != most {
						t.Errorf("%s: of %d steps epochs end with %v, told %v", name, most, want, told)
					}
				}
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("epochs end in %d ways", len(seen))
	}
}

// An epoch whose rows fill no batch has no step and no end: here those in which the row that shares texts with two others comes before both.
func TestEmptyEpochs(t *testing.T) {
	d, part := openRows(t, filepath.Join(t.TempDir(), "rows.jsonl"), []byte("{\"q\": \"a\", \"p\": \"b\"}\n{\"q\": \"c\", \"p\": \"d\"}\n{\"q\": \"e\", \"p\": \"f\"}\n{\"q\": \"a\", \"p\": \"d\"}\n"))
	const epochs = 20
	m, err := dataset.NewMixer([]dataset.Part{part}, dataset.SamplerConfig{GlobalSize: 3, Epochs: epochs, Shuffle: true, Seed: 1, NoDuplicates: true, DropLast: true}, dataset.Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	plan := stages.Plan{Data: []*dataset.Dataset{d}, Sampler: m}
	told := plan.EpochEnds()
	var counted, seen []int
	g := pipeline.New("g")
	pipeline.Sink(g, "count", stages.Ingest(g, plan), func(_ *pipeline.Task, c *stages.Chunk) error {
		if c.EndsStep { // the epoch's only one
			seen, counted = append(seen, c.Epoch), append(counted, 1+len(counted))
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
	if !slices.Equal(told, counted) || len(seen) < 2 || len(seen) == epochs {
		t.Errorf("epochs %v have a step each: they end with %v, told %v", seen, counted, told)
	}
}

// openRows writes rows and opens them, until the test ends, with their texts known.
func openRows(t *testing.T, path string, rows []byte) (*dataset.Dataset, dataset.Part) {
	t.Helper()
	if err := os.WriteFile(path, rows, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	index, err := d.Index(t.Context(), dataset.IndexConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return d, dataset.Part{Layout: d.Layout(), Texts: index}
}
