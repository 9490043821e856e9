package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// A whole program with checkpoints: run again after it has been cut off, it goes on from the last one, and ends with the weights of a run that was not.
func ExampleCheckpoint() {
	p, err := openParts(context.Background()) // a file of pairs, a device and a new model
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	whole, _, err := trainOrResume(context.Background(), p, "whole", 0)
	if err != nil {
		fmt.Println(err)
	}
	_, _, err = trainOrResume(context.Background(), p, "cut", 8)
	fmt.Println("after step 8:", err)
	again, memory, err := trainOrResume(context.Background(), p, "cut", 0)
	fmt.Println("the same weights:", err == nil && slices.Equal(whole, again))
	fmt.Println("which took runs:", memory.Runs)
	// Output:
	// after step 8: graph "saved": stage "print", item 7: a power cut
	// the same weights: true
	// which took runs: 2
}

// remembered is what this program keeps in its checkpoints besides the state.
type remembered struct{ Runs int }

func trainOrResume(ctx context.Context, p parts, name string, cut int) (weights []float32, memory remembered, err error) {
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), p.device)
	if err != nil {
		return nil, memory, err
	}
	defer model.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return nil, memory, err
	}
	defer data.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 6, Shuffle: true, Seed: 1}, data)
	if err != nil {
		return nil, memory, err
	}

	store := checkpoint.Open(filepath.Join(p.dir, name, "checkpoints"), checkpoint.Disk{})
	from, err := plan.ResumeLatest(store)
	if err != nil {
		return nil, memory, err
	}
	defer from.Close()
	if from != nil {
		if err := json.Unmarshal(from.Progress, &memory); err != nil {
			return nil, memory, err
		}
	}
	memory.Runs++

	g := pipeline.New("saved")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
	if err != nil {
		return nil, memory, err
	}
	defer enc.Close()
	step := stages.Step{Text: stages.TextOf(model), Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{Scale: 20}}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 5e-3, Schedule: optim.Linear, TotalSteps: plan.Steps()})
	if err != nil {
		return nil, memory, err
	}
	pipeline.Sink(g, "print", c.Results, func(_ *pipeline.Task, r stages.StepResult) error {
		if r.Step+1 == cut {
			return errors.New("a power cut")
		}
		return nil
	})
	states := stages.Snapshot(g, c.Results, enc, func(r stages.StepResult) (any, bool) { return memory, (r.Step+1)%3 == 0 })
	stages.Checkpoint(g, states, enc, stages.Checkpoints{Store: store, Keep: 2})

	if err := enc.Restore(from); err != nil {
		return nil, memory, err
	}
	if err := enc.Run(ctx); err != nil { // from the checkpoint's step
		return nil, memory, err
	}
	s, err := p.device.OpenStream()
	if err != nil {
		return nil, memory, err
	}
	defer s.Close()
	weights, err = model.Model.ReadVector(s, model.Model.Params)
	return weights, memory, err
}
