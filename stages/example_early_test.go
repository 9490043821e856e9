package stages_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// A run that ends when its evaluations get no better: a stage that reads them notes it, and Encoder.Ask, of which steps take note on all ranks, ends the
// run with the step at hand. The rows are in memory.
func Example_earlyStopping() {
	steps, best, err := trainWhileBetter(context.Background(), 3)
	fmt.Println("the best MRR:", best)
	fmt.Println("ended early:", 0 < steps && steps < 200, err)
	// Output:
	// the best MRR: 1
	// ended early: true <nil>
}

func trainWhileBetter(ctx context.Context, patience int) (done int, best float64, err error) {
	p, err := openParts(ctx) // a device and a new model
	if err != nil {
		return 0, 0, err
	}
	defer p.Close()
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), p.device)
	if err != nil {
		return 0, 0, err
	}
	defer model.Close()
	type pair struct{ Question, Answer string }
	rows := []pair{{"what barks", "a dog barks"}, {"what purrs", "a cat purrs loudly"}, {"what flies", "a bird flies"}, {"what swims", "fish swim"}}
	data, err := dataset.FromRows(ctx, "animals", rows, dataset.Source{Query: "Question", Positive: "Answer"})
	if err != nil {
		return 0, 0, err
	}
	defer data.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 200, Shuffle: true, Seed: 1}, data)
	if err != nil {
		return 0, 0, err
	}
	task, err := model.NewTask(ctx, &dataset.Retrieval{ // of other texts, as a rule
		QueryIDs: []string{"1", "2"}, Queries: []string{"what barks", "what swims"}, DocIDs: []string{"a", "b", "c"}, Docs: []string{"fish swim", "a frog hops", "a dog barks"},
		Judgements: []dataset.Judgement{{Query: 0, Doc: 2, Relevance: 1}, {Query: 1, Doc: 0, Relevance: 1}},
	})
	if err != nil {
		return 0, 0, err
	}

	g := pipeline.New("while it gets better")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
	if err != nil {
		return 0, 0, err
	}
	defer enc.Close()
	var enough atomic.Bool // stages run beside each other
	enc.Ask = func() stages.Asked { return stages.Asked{Finish: enough.Load()} }
	step := stages.Step{Text: stages.TextOf(model), Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{Scale: 20}}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 5e-3})
	if err != nil {
		return 0, 0, err
	}
	pipeline.Sink(g, "count", c.Results, func(_ *pipeline.Task, r stages.StepResult) error {
		done = r.Step + 1
		return nil
	})
	every := func(step int) bool { return (step+1)%2 == 0 }
	worse := 0 // evaluations since the best one
	pipeline.Sink(g, "patience", stages.Evaluate(g, c.Results, enc, task, every, evaluate.MRR(10)), func(_ *pipeline.Task, r *evaluate.Result) error {
		switch {
		case r == nil: // of another step, or on another rank than the first
		case r.Means[0] > best:
			best, worse = r.Means[0], 0
		default:
			worse++
			enough.Store(worse >= patience)
		}
		return nil
	})
	err = enc.Run(ctx)
	return done, best, err
}
