package stages_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
)

// A reranker reads each document with its row's query, and learns which of a row's documents is the positive. Ranks keep their groups to
// themselves: with several, stages.Exchanging has LocalNegatives.
func Example_reranker() {
	if err := trainReranker(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the loss has halved: true; the dog is ahead: true
	// the mean reciprocal rank: 0.53 before, above 0.8 after: true
}

func trainReranker(ctx context.Context) error {
	p, err := openParts(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	file := filepath.Join(p.dir, "groups.jsonl")
	groups := `{"q": "what barks", "pos": "a dog barks", "neg": ["a cat purrs loudly", "fish swim", "a frog hops"]}
{"q": "what purrs", "pos": "a cat purrs loudly", "neg": ["a dog barks", "fish swim", "a frog hops"]}
{"q": "what swims", "pos": "fish swim", "neg": ["a dog barks", "a cat purrs loudly", "a frog hops"]}
{"q": "what hops", "pos": "a frog hops", "neg": ["a dog barks", "a cat purrs loudly", "fish swim"]}
`
	if err := os.WriteFile(file, []byte(groups), 0o600); err != nil {
		return err
	}
	model, err := reranker.LoadTrainable(filepath.Join(p.dir, "model"), p.device, reranker.TextOptions{Seed: 1}, transformer.Options{})
	if err != nil {
		return err
	}
	defer model.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{file}, Query: "q", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: dataset.AllNegatives})
	if err != nil {
		return err
	}
	defer data.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 120}, data)
	if err != nil {
		return err
	}
	g := pipeline.New("reranker")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
	if err != nil {
		return err
	}
	defer enc.Close()
	step := stages.Step{Text: stages.TextOfPairs(model), Size: stages.Size{Rows: 12}, Loss: loss.Groups{Name: "cross_entropy"}}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 3e-3})
	if err != nil {
		return err
	}
	var losses []float64
	pipeline.Sink(g, "losses", c.Results, func(_ *pipeline.Task, r stages.StepResult) error {
		losses = append(losses, r.Loss)
		return nil
	})
	judged := &dataset.Retrieval{
		QueryIDs: []string{"1", "2", "3"}, Queries: []string{"what barks", "what purrs", "what swims"},
		DocIDs: []string{"a", "b", "c", "d"}, Docs: []string{"a frog hops", "a dog barks", "a cat purrs loudly", "fish swim"},
		Judgements: []dataset.Judgement{{Query: 0, Doc: 1, Relevance: 1}, {Query: 1, Doc: 2, Relevance: 1}, {Query: 2, Doc: 3, Relevance: 1}},
	}
	task, err := embedder.NewTask(ctx, judged, embedder.Text{})
	if err != nil {
		return err
	}
	first := make(evaluate.Run, len(judged.Queries)) // what is put into another order: mostly what task.RankBM25 or an embedder has found, here all there is
	for q := range first {
		for d := range judged.Docs {
			first[q] = append(first[q], evaluate.Hit{Doc: int32(d)})
		}
	}
	before, err := model.Evaluate(ctx, task, first, evaluate.MRR(10))
	if err != nil {
		return err
	}
	var after *evaluate.Result
	ends := func(step int) bool { return step == plan.Steps()-1 }
	pipeline.Sink(g, "measured", stages.EvaluateReranker(g, c.Results, enc, model, task, first, ends, evaluate.MRR(10)), func(_ *pipeline.Task, r *evaluate.Result) error {
		if r != nil {
			after = r
		}
		return nil
	})
	if err := enc.Run(ctx); err != nil {
		return err
	}
	out := filepath.Join(p.dir, "reranker")
	if err := model.Save(out, "", ""); err != nil {
		return err
	}
	r, err := reranker.Load(out)
	if err != nil {
		return err
	}
	defer r.Close()
	scores, err := r.Score(ctx, "what barks", []string{"fish swim", "a dog barks"})
	if err != nil {
		return err
	}
	fmt.Printf("the loss has halved: %t; the dog is ahead: %t\n", losses[len(losses)-1] < losses[0]/2, scores[1] > scores[0])
	fmt.Printf("the mean reciprocal rank: %.2f before, above 0.8 after: %t\n", before.Means[0], after.Means[0] > 0.8)
	return nil
}
