package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Rows of a database go on where they were: each step's last chunk has the source's place, which the step's checkpoint keeps. Here the context
// ends the run after a step, and another run goes on.
func Example_cursor() {
	p, err := openParts(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	whole, err := trainFromTable(context.Background(), p, "whole", 0)
	if err != nil {
		fmt.Println(err)
	}
	_, err = trainFromTable(context.Background(), p, "cut", 5)
	fmt.Println("after step 5:", err)
	again, err := trainFromTable(context.Background(), p, "cut", 0)
	fmt.Println("the same weights:", err == nil && slices.Equal(whole, again))
	// Output:
	// after step 5: graph "table": stopped: context canceled
	// a checkpoint has the rows of its steps behind it: true
	// the same weights: true
}

// place is what a query of the table begins by: SELECT ... WHERE id > $1 ORDER BY id LIMIT 2.
type place struct{ ID int64 }

func trainFromTable(ctx context.Context, p parts, name string, cut int) (weights []float32, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), p.device)
	if err != nil {
		return nil, err
	}
	defer model.Close()

	var at place
	store := checkpoint.Open(filepath.Join(p.dir, name, "checkpoints"), checkpoint.Disk{})
	from, err := store.Latest(func(folder string, err error) { fmt.Println(folder, "is damaged:", err) })
	switch {
	case err == nil:
		defer from.Close()
		if err := json.Unmarshal(from.Data, &at); err != nil {
			return nil, err
		}
		fmt.Println("a checkpoint has the rows of its steps behind it:", at.ID == int64(2*from.Step))
	case !errors.Is(err, checkpoint.ErrNone):
		return nil, err
	}

	g := pipeline.New("table")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	table := stages.Described{Name: "table", Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}}}
	rows := pipeline.Source(g, "table", func(context.Context) (*stages.Chunk, error) {
		if at.ID == 20 {
			return nil, io.EOF
		}
		c := &stages.Chunk{Data: table, EndsBatch: true, EndsStep: true, Total: 2}
		for range 2 {
			at.ID++
			c.Examples = append(c.Examples, dataset.NewExample(at.ID, fmt.Sprint("what is row ", at.ID), fmt.Sprint("a dog of ", at.ID)))
		}
		c.Place = at // of the rows that have been given out: how far training has come the source does not know
		return c, nil
	})
	step := stages.Step{Text: stages.TextOf(model), Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{Scale: 20}}
	c, err := stages.Train(g, rows, enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 5e-3})
	if err != nil {
		return nil, err
	}
	pipeline.Sink(g, "watch", c.Results, func(_ *pipeline.Task, r stages.StepResult) error {
		if r.Step+1 == cut {
			cancel()
		}
		return nil
	})
	states := stages.Snapshot(g, c.Results, enc, func(r stages.StepResult) (any, bool) { return nil, (r.Step+1)%2 == 0 })
	stages.Checkpoint(g, states, enc, stages.Checkpoints{Store: store, Keep: 1})

	if err := enc.Restore(from); err != nil {
		return nil, err
	}
	if err := enc.Run(ctx); err != nil { // from the checkpoint's step
		return nil, err
	}
	s, err := p.device.OpenStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return model.Model.ReadVector(s, model.Model.Params)
}
