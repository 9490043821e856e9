package stages_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// A training graph, stage by stage, which Train and Encoder.Run make in two calls: rows of a file become token ids, batches, sub-batches, embeddings, a loss,
// gradients, and a better model.
func Example() {
	ctx := context.Background()
	parts, err := openParts(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer parts.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{parts.file}, Query: "q", Positive: "p"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()
	rows, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 5, Shuffle: true, Seed: 1}, data)
	if err != nil {
		fmt.Println(err)
		return
	}

	g := pipeline.New("training")
	enc, err := stages.NewEncoder(g, parts.model, 0, -1, 1) // no dropout; all activations are kept
	if err != nil {
		fmt.Println(err)
		return
	}
	defer enc.Close()
	chunks := stages.Ingest(g, rows)
	batches := stages.Assemble(g, stages.Tokenize(g, chunks, parts.text))
	subs := stages.Split(g, batches, stages.Size{Rows: 4})
	grads := stages.Loss(g, batches, stages.Embed(g, subs, enc), enc, loss.InfoNCE{Scale: 20, MaskDuplicates: true})
	steps, err := stages.Apply(g, stages.Backward(g, subs, grads, enc), grads, enc, stages.Update{
		Optimizer: optim.AdamW{Betas: []float64{0.9, 0.999}, Eps: 1e-8}, LR: 1e-3, Schedule: optim.Constant, MaxGradNorm: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var losses []float64
	pipeline.Sink(g, "print", steps, func(_ *pipeline.Task, r stages.StepResult) error {
		losses = append(losses, r.Loss)
		return nil
	})
	plan, err := g.Build(pipeline.Devices(stages.OnDevice(parts.device)))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := plan.Run(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(losses), "steps, the loss has halved:", losses[len(losses)-1] < losses[0]/2)
	// Output: 10 steps, the loss has halved: true
}

// A stage of one's own goes between any two, or beside them. This one counts what a batch of padded texts would have computed in vain.
func Example_stage() {
	err := trainWith(rowsOfFile, loss.InfoNCE{Scale: 20}, func(g *pipeline.Graph, batches pipeline.Port[*stages.Batch], _ pipeline.Port[stages.StepResult]) {
		count := g.Stage("count padding", pipeline.At(pipeline.Batch))
		batch := pipeline.In(count, "batch", batches)
		padding := pipeline.Out[[2]int](count, "padding")
		count.Do(func(t *pipeline.Task) error {
			b := batch.Get(t)
			tokens, longest := 0, 0
			for i := range b.N() {
				tokens, longest = tokens+b.Length(i), max(longest, b.Length(i))
			}
			padding.Put(t, [2]int{tokens, b.N()*longest - tokens})
			return nil
		})
		pipeline.Sink(g, "print", padding.Port, func(t *pipeline.Task, n [2]int) error {
			fmt.Printf("batch %v: %d tokens, %d of padding were not computed\n", t.Index, n[0], n[1])
			return nil
		})
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// batch 0.0: 50 tokens, 46 of padding were not computed
	// batch 1.0: 53 tokens, 51 of padding were not computed
}

// Rows may be changed before they become tokens, here by a teacher of one's own, a function, whose embeddings are what the model learns. Another stage looks at
// each step's gradient, between Sync and Apply: Train's three lines, with one between.
func ExampleMapRows() {
	if err := distill(context.Background(), func(text string) []float32 {
		v := make([]float32, 32) // the model's dimensions
		v[len(text)%len(v)] = 1
		return v
	}); err != nil {
		fmt.Println(err)
	}
	// Output: 20 steps, the gradient is smaller in the end: true
}

func distill(ctx context.Context, teach func(text string) []float32) error {
	p, err := openParts(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return err
	}
	defer data.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 8, Epochs: 20}, data)
	if err != nil {
		return err
	}
	g := pipeline.New("distilled")
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1)
	if err != nil {
		return err
	}
	defer enc.Close()
	rows := stages.MapRows(g, "teacher", stages.Ingest(g, plan), func(_ *stages.Chunk, e *dataset.Example) error {
		e.Teacher = teach(e.Texts[0])
		return nil
	})
	c := stages.Forward(g, rows, enc, stages.Step{Text: p.text, Size: stages.Size{Rows: 4}, Loss: loss.TeacherEmbedding{}})
	sums := stages.Sync(g, stages.Backward(g, c.Subs, c.Gradients, enc), enc)
	var largest []float32
	stages.BeforeUpdate(g, "largest", sums, enc, func(t *pipeline.Task) error {
		gradient, err := p.model.ReadVector(stages.Stream(t), enc.Gradients())
		if err == nil {
			largest = append(largest, max(slices.Max(gradient), -slices.Min(gradient)))
		}
		return err
	})
	if _, err := stages.Apply(g, sums, c.Gradients, enc, stages.Update{Optimizer: optim.AdamW{}, LR: 5e-3}); err != nil {
		return err
	}
	err = enc.Run(ctx)
	fmt.Println(len(largest), "steps, the gradient is smaller in the end:", largest[len(largest)-1] < largest[0]/2)
	return err
}

// A loss of one's own is a function from a batch's embeddings to a number and its gradient. It runs cached, in sub-batches and on several ranks
// like those that are there: this is the mean distance of a query to its document, which has all texts in one place in the end.
func Example_loss() {
	together := loss.Host(func(b *loss.Batch, embeddings, gradient [][]float32) (r loss.Result, err error) {
		for i := range b.Rows {
			query, document := embeddings[i], embeddings[b.Rows+i]
			for k, q := range query {
				d := q - document[k]
				r.Sum += float64(d * d)
				gradient[i][k], gradient[b.Rows+i][k] = 2*d, -2*d
			}
			r.Weight++
		}
		return r, nil
	})
	var losses []float64
	err := trainWith(rowsOfFile, together, func(g *pipeline.Graph, _ pipeline.Port[*stages.Batch], steps pipeline.Port[stages.StepResult]) {
		pipeline.Sink(g, "losses", steps, func(_ *pipeline.Task, r stages.StepResult) error {
			losses = append(losses, r.Loss)
			return nil
		})
	})
	fmt.Println(len(losses), "steps, smaller each time:", slices.IsSortedFunc(losses, func(a, b float64) int { return int(math.Copysign(1, b-a)) }), err)
	// Output: 2 steps, smaller each time: true <nil>
}

// Rows may come from anywhere: a source of one's own gives out chunks of them, and says where batches and steps end. How such a run
// is resumed Example_cursor shows. Rows that are all there at once are a dataset ([dataset.FromRows]), which Ingest shuffles and resumes.
func Example_dataset() {
	capitals := [][2]string{{"capital of France", "Paris"}, {"capital of Italy", "Rome"}, {"capital of Spain", "Madrid"}, {"capital of Peru", "Lima"}}
	rows := func(_ context.Context, g *pipeline.Graph, _ parts) (pipeline.Port[*stages.Chunk], func() error, error) {
		described := stages.Described{Name: "capitals", Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}}}
		next := 0
		return pipeline.Source(g, "capitals", func(context.Context) (*stages.Chunk, error) {
			if next == len(capitals) {
				return nil, io.EOF
			}
			c := &stages.Chunk{Data: described, EndsBatch: true, EndsStep: true, Total: 2}
			for i, texts := range capitals[next : next+2] {
				c.Examples = append(c.Examples, dataset.NewExample(int64(next+i), texts[0], texts[1]))
			}
			next += 2
			return c, nil
		}), func() error { return nil }, nil
	}
	err := trainWith(rows, loss.InfoNCE{Scale: 20}, func(g *pipeline.Graph, _ pipeline.Port[*stages.Batch], steps pipeline.Port[stages.StepResult]) {
		pipeline.Sink(g, "print", steps, func(_ *pipeline.Task, r stages.StepResult) error {
			fmt.Printf("step %d: %d pairs\n", r.Step+1, r.Pairs)
			return nil
		})
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// step 1: 2 pairs
	// step 2: 2 pairs
}

// Two devices in one graph: a stage is pinned to the one it names. Here the second one, where arithmetic is in Go, takes what the
// first has computed.
func Example_twoDevices() {
	first, err := cpu.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Close()
	second := ref.New()
	defer second.Close()

	g := pipeline.New("two devices")
	next := 0
	numbers := pipeline.Source(g, "numbers", func(context.Context) ([]float32, error) {
		if next++; next > 2 {
			return nil, io.EOF
		}
		return []float32{3 * float32(next), 4 * float32(next)}, nil
	})
	normalize := g.Stage("normalize", pipeline.On(0, pipeline.Compute))
	in := pipeline.In(normalize, "vector", numbers)
	unit := pipeline.Out[[]float32](normalize, "unit vector")
	normalize.Do(func(t *pipeline.Task) error {
		s, v := stages.Stream(t), in.Get(t)
		x, err := gpustage.NewTensor(s.Device(), gpustage.F32, 2, 2) // the vector, and its norm
		if err != nil {
			return err
		}
		defer x.Mem.Free()
		s.CopyIn(x.Span(0, 1), gpustage.Bytes(v))
		s.Normalize(x.Span(0, 1), x.Span(1, 2).Columns(0, 1), x.Span(0, 1))
		s.CopyOut(gpustage.Bytes(v), x.Span(0, 1))
		unit.Put(t, v)
		return s.Sync()
	})
	check := g.Stage("check", pipeline.On(1, pipeline.Compute))
	units := pipeline.In(check, "unit vector", unit.Port)
	check.Do(func(t *pipeline.Task) error {
		fmt.Println(stages.Stream(t).Device().Name(), units.Get(t))
		return nil
	})
	plan, err := g.Build(pipeline.Devices(stages.OnDevice(first), stages.OnDevice(second)))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := plan.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ref [0.6 0.8]
	// ref [0.6 0.8]
}
