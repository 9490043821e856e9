// A program of somebody else's: the public packages, a stage and a loss of its own, and a model at the end. thirdparty_test.go beside the command builds and
// runs it as a module of its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"contraflow/gpustage/cpu"
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
	ctx, dev := context.Background(), must(cpu.New())
	model := must(embedder.LoadTrainable(os.Args[1], dev))
	data := must(dataset.Open(ctx, dataset.Source{Paths: os.Args[3:], Query: "query", Positive: "positive"}))
	sampler := must(dataset.NewMixer([]dataset.Part{{Layout: data.Layout()}}, dataset.SamplerConfig{GlobalSize: 32, Epochs: 2, Shuffle: true, Seed: 1}, dataset.Mixing{}))

	g := pipeline.New("mine")
	enc := must(stages.NewEncoder(g, model.Model, 0, 1<<30, 1))
	shout := pipeline.Map(g, "shout", stages.Ingest(g, stages.Plan{Data: []*dataset.Dataset{data}, Sampler: sampler}), func(_ *pipeline.Task, c *stages.Chunk) (*stages.Chunk, error) {
		for _, e := range c.Examples {
			e.SetText(0, strings.ToUpper(e.Texts[0])) // and its hash, by which duplicates are known
		}
		return c, nil
	})
	batches := stages.Assemble(g, stages.Tokenize(g, shout, stages.Text{Tokenizer: model.Tokenizer, QueryLength: 32, DocumentLength: 32}))
	subs := stages.Split(g, batches, stages.Size{Tokens: 4096})
	grads := stages.Loss(g, batches, stages.Embed(g, subs, enc), enc, loss.Host(hinge))
	steps := must(stages.Apply(g, stages.Backward(g, subs, grads, enc), grads, enc, stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3}))
	pipeline.Sink(g, "print", steps, func(_ *pipeline.Task, s stages.StepResult) error {
		_, err := fmt.Printf("step %d loss %.4f\n", s.Step, s.Loss)
		return err
	})
	must(0, must(g.Build(pipeline.Devices(stages.OnDevice(dev)))).Run(ctx))
	must(0, model.Save(os.Args[2], embedder.Saving{MaxLength: 32}))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
