package stages_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// Several ranks train as one. Each has a model, a device and a graph of its own, to which Train adds four more stages: Header, Gather,
// Scatter and Sync. With the same seed, data and update on all of them, each batch's loss is what one rank has.
func Example_ranks() {
	ctx := context.Background()
	p, err := openParts(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	one, err := trainAsRank(ctx, p, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var two []float64
	err = local.Run(2, func(w collective.World) error { // over several processes: package mpi or nccl in local's place
		comm, err := collective.Connect(ctx, w, collective.Mesh{Replicate: 2, Shard: 1})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(ctx, comm, stages.Exchanging{})
		if err != nil {
			return err
		}
		losses, err := trainAsRank(ctx, p, ranks)
		if ranks.Rank() == 0 {
			two = losses
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	same := len(one) == len(two)
	for i := range one {
		same = same && math.Abs(one[i]-two[i]) < 1e-5*one[i]
	}
	fmt.Println(len(one), "steps, two ranks have the losses of one:", same)
	// Output: 4 steps, two ranks have the losses of one: true
}

// trainAsRank trains as one of several ranks; nil: alone.
func trainAsRank(ctx context.Context, p parts, ranks *stages.Replicas) (losses []float64, err error) {
	dev, err := cpu.New()
	if err != nil {
		return nil, err
	}
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	defer func() { err = errors.Join(err, model.Close(), dev.Close()) }()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return nil, err
	}
	defer data.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 2, Shuffle: true, Seed: 1}, data)
	if err != nil {
		return nil, err
	}
	plan.Rank, plan.Ranks = ranks.Rank(), ranks.Size()

	g := pipeline.New("a rank's training")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1, stages.With(ranks))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, enc.Close()) }()
	step := stages.Step{Text: p.text, Size: stages.Size{Rows: 2}, Loss: loss.InfoNCE{Scale: 20}}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3, Schedule: optim.Linear, TotalSteps: plan.Steps()})
	if err != nil {
		return nil, err
	}
	pipeline.Sink(g, "losses", c.Results, func(_ *pipeline.Task, s stages.StepResult) error {
		losses = append(losses, s.Loss)
		return nil
	})
	err = enc.Run(ctx)
	return losses, err
}
