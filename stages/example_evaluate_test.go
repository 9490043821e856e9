package stages_test

import (
	"context"
	"fmt"
	"path/filepath"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// A whole program: a model is measured, trained while it is measured every few steps, saved, and loaded again.
func ExampleEvaluate() {
	if err := trainAndMeasure(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// after steps 4, 8 and 12, better than before: true
	// the loss falls: true
	// the saved model is as good: true
}

func trainAndMeasure(ctx context.Context) (err error) {
	p, err := openParts(ctx) // a file of pairs, a device and a new model
	if err != nil {
		return err
	}
	defer p.Close()
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), p.device)
	if err != nil {
		return err
	}
	defer model.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return err
	}
	defer data.Close()
	judged := &dataset.Retrieval{
		QueryIDs: []string{"1", "2"}, Queries: []string{"what barks", "what swims"}, DocIDs: []string{"a", "b", "c"}, Docs: []string{"fish swim", "a frog hops", "a dog barks"},
		Judgements: []dataset.Judgement{{Query: 0, Doc: 2, Relevance: 1}, {Query: 1, Doc: 0, Relevance: 1}},
	}
	task, err := model.NewTask(ctx, judged)
	if err != nil {
		return err
	}
	before, err := model.Evaluate(ctx, task, evaluate.MRR(10))
	if err != nil {
		return err
	}

	objective := loss.InfoNCE{Scale: 20}
	held, err := stages.NewHeldOut(ctx, data, stages.TextOf(model), 4, 1) // of other rows, as a rule
	if err != nil {
		return err
	}

	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 6, Shuffle: true, Seed: 1}, data)
	if err != nil {
		return err
	}
	g := pipeline.New("measured")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
	if err != nil {
		return err
	}
	defer enc.Close()
	step := stages.Step{Text: stages.TextOf(model), Size: stages.Size{Rows: 4}, Loss: objective}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 5e-3, Schedule: optim.Linear, TotalSteps: plan.Steps()})
	if err != nil {
		return err
	}
	every := func(step int) bool { return (step+1)%4 == 0 }
	better := true
	var last float64
	pipeline.Sink(g, "print", stages.Evaluate(g, c.Results, enc, task, every, evaluate.MRR(10)), func(_ *pipeline.Task, r *evaluate.Result) error {
		if r != nil {
			last = r.Means[0]
			better = better && last > before.Means[0]
		}
		return nil
	})
	var losses []float64
	pipeline.Sink(g, "print loss", stages.EvaluateLoss(g, c.Results, enc, held, objective, every), func(_ *pipeline.Task, r *loss.Result) error {
		if r != nil {
			losses = append(losses, r.Mean())
		}
		return nil
	})
	if err := enc.Run(ctx); err != nil {
		return err
	}
	fmt.Println("after steps 4, 8 and 12, better than before:", better)
	fmt.Println("the loss falls:", len(losses) == 3 && losses[0] > losses[1] && losses[1] > losses[2])

	out := filepath.Join(p.dir, "trained")
	if err := model.Save(out, embedder.Saving{}); err != nil {
		return err
	}
	saved, err := embedder.Load(out)
	if err != nil {
		return err
	}
	defer saved.Close()
	again, err := saved.NewTask(ctx, judged, "", "")
	if err != nil {
		return err
	}
	after, err := saved.Evaluate(ctx, again, evaluate.MRR(10))
	if err != nil {
		return err
	}
	fmt.Println("the saved model is as good:", after.Means[0] == last)
	return nil
}
