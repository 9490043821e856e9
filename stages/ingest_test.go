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

// sameRows are so many rows, all the same.
func sameRows(t *testing.T, rows int) *dataset.Dataset {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.jsonl")
	if err := os.WriteFile(path, []byte(strings.Repeat(`{"q": "a question", "p": "an answer"}`+"\n", rows)), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// A plan's rows are for one run, whether that has come to its end or not: another would be without those that the first has read.
func TestIngestOnce(t *testing.T) {
	d := sameRows(t, 20)
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

// An error of a stage that a stopped run has, reading rows above all, is no row's that can't be used: nobody would save what came before it as if it were.
func TestUnusableStopped(t *testing.T) {
	d := sameRows(t, 4)
	boom := errors.New("boom")
	for _, stopped := range []bool{false, true} {
		m, err := dataset.NewMixer([]dataset.Part{{Layout: d.Layout()}}, dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, dataset.Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		g := pipeline.New("g")
		own := pipeline.Map(g, "own", stages.Ingest(g, stages.Plan{Data: []*dataset.Dataset{d}, Sampler: m}), func(task *pipeline.Task, c *stages.Chunk) (*stages.Chunk, error) {
			if stopped {
				cancel()
			}
			bad, err := c.Unusable(task, boom)
			if (bad == nil) != stopped || (err == boom) != stopped {
				t.Errorf("stopped %t: a chunk in the rows' place, %v, and %v", stopped, bad, err)
			}
			return bad, err
		})
		pipeline.Sink(g, "sink", own, func(_ *pipeline.Task, c *stages.Chunk) error {
			if !errors.Is(c.Bad(), boom) || c.Examples != nil {
				t.Errorf("a chunk with %v in the rows' place", c.Bad())
			}
			return nil
		})
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(ctx)
		var rows *stages.RowsError
		if errors.As(err, &rows) == stopped || !stopped && !errors.Is(err, boom) || stopped && !errors.Is(err, boom) && !errors.Is(err, context.Canceled) {
			t.Errorf("stopped %t: %v", stopped, err)
		}
	}
}

// What would train nothing, or something else than was meant, is an error before the first row is read.
func TestPlanChecked(t *testing.T) {
	d := sameRows(t, 4)
	part := dataset.Part{Layout: d.Layout()}
	for want, change := range map[string]func(*stages.Plan){
		"":                         func(*stages.Plan) {},
		"Plan.Sampler is nil":      func(p *stages.Plan) { p.Sampler = nil },
		"Plan.Data has no dataset": func(p *stages.Plan) { p.Data = nil },
		"Plan.Data[1] is nil":      func(p *stages.Plan) { p.Data = append(p.Data, nil) },
		"Plan.MaxSteps is -1":      func(p *stages.Plan) { p.MaxSteps = -1 },
		"Plan.Accumulate is -1":    func(p *stages.Plan) { p.Accumulate = -1 },
		"Plan.InBatch is of 2 datasets, and Plan.Data has 1": func(p *stages.Plan) { p.InBatch = []int{1, 1} },
		"Plan.InBatch is [-2]":                               func(p *stages.Plan) { p.InBatch = []int{-2} },
		"Plan.FirstStep is -1":                               func(p *stages.Plan) { p.FirstStep = -1 },
		"Plan.Rank is 2 and Plan.Ranks 2":                    func(p *stages.Plan) { p.Rank, p.Ranks = 2, 2 },
		"Plan.Rank is 1 and Plan.Ranks 0":                    func(p *stages.Plan) { p.Rank = 1 },
		"Plan.Rank is -1 and Plan.Ranks 2":                   func(p *stages.Plan) { p.Rank, p.Ranks = -1, 2 },
		"Plan.Rank is 0 and Plan.Ranks -2":                   func(p *stages.Plan) { p.Ranks = -2 },
		"Plan.Data has 1 datasets, and Plan.Sampler gives a batch of dataset 1": func(p *stages.Plan) {
			m, err := dataset.NewMixer([]dataset.Part{part, part}, dataset.SamplerConfig{GlobalSize: 2, Epochs: 1}, dataset.Mixing{Kind: dataset.RoundRobin})
			if err != nil {
				t.Fatal(err)
			}
			p.Sampler = m
		},
	} {
		m, err := dataset.NewMixer([]dataset.Part{part}, dataset.SamplerConfig{GlobalSize: 2, Epochs: 1}, dataset.Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		plan := stages.Plan{Data: []*dataset.Dataset{d}, Sampler: m}
		change(&plan)
		if n := plan.Steps(); (n == 0) != (strings.HasPrefix(want, "Plan.") && !strings.Contains(want, "gives a batch")) {
			t.Errorf("%d steps of a plan with %q", n, want)
		}
		g := pipeline.New("g")
		pipeline.Sink(g, "look", stages.Ingest(g, plan), func(*pipeline.Task, *stages.Chunk) error { return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), `stage "ingest"`) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Ranks' slices are a batch together, in order.
func TestSlice(t *testing.T) {
	const rows = 7
	for _, n := range []int{1, 2, 3, 8} {
		end := 0
		for rank := range n {
			lo, hi := stages.Slice(rows, rank, n)
			if lo != end || hi-lo < rows/n || hi-lo > (rows+n-1)/n {
				t.Errorf("rank %d of %d has rows %d to %d, after %d", rank, n, lo, hi, end)
			}
			end = hi
		}
		if end != rows {
			t.Errorf("%d ranks have %d rows together", n, end)
		}
	}
}

// A plan that nobody has made resumes nothing.
func TestResumeWithoutPlan(t *testing.T) {
	if err := new(stages.Plan).ResumeAfter(stages.StepResult{Next: new(dataset.Cursor)}); err == nil || !strings.Contains(err.Error(), "Plan.Sampler is nil") {
		t.Error(err)
	}
}
