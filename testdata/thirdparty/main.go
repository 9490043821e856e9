// A program of somebody else's: the public packages, a stage and a loss of its own, and a model at the end. thirdparty_test.go beside the command builds and
// runs it as a module of its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	_ "contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// hinge pulls each query towards its positive until they are closer than a margin.
func hinge(b *loss.Batch, emb, grad [][]float32) (r loss.Result, err error) {
	for i := range b.Rows {
		q, p, dot := emb[i], emb[b.Rows+i], float32(0)
		for j := range q {
			dot += q[j] * p[j]
		}
		for j := 0; j < len(q) && dot < 0.9; j++ {
			grad[i][j], grad[b.Rows+i][j] = -p[j], -q[j]
		}
		r.Sum, r.Weight = r.Sum+float64(max(0, 0.9-dot)), r.Weight+1
	}
	return r, nil
}

func main() {
	ctx := context.Background()
	model := must(embedder.LoadTrainable(os.Args[1], nil))
	data := must(dataset.Open(ctx, dataset.Source{Paths: os.Args[3:], Query: "query", Positive: "positive"}))
	plan := must(stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 32, Epochs: 2, Shuffle: true, Seed: 1}, data))

	g := pipeline.New("mine")
	enc := must(stages.NewEncoder(g, model.Model, 0, 1<<30, 1))
	shout := stages.MapRows(g, "shout", stages.Ingest(g, plan), func(_ *stages.Chunk, e *dataset.Example) error {
		e.Texts[0] = strings.ToUpper(e.Texts[0])
		return nil
	})
	text := stages.Text{Tokenizer: model.Tokenizer, QueryLength: 32, DocumentLength: 32}
	step := stages.Step{Text: text, Size: stages.Size{Tokens: 4096}, Loss: loss.Host(hinge)}
	c := must(stages.Train(g, shout, enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3}))
	pipeline.Sink(g, "print", c.Results, func(_ *pipeline.Task, s stages.StepResult) error {
		_, err := fmt.Printf("step %d loss %.4f\n", s.Step, s.Loss)
		return err
	})
	must(0, enc.Run(ctx))
	must(0, model.Save(os.Args[2], embedder.Saving{MaxLength: 32}))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
