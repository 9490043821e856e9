package stages_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/newmodel"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// parts are what the examples' graphs are made with: a file of pairs, a device, and a new model for them.
type parts struct {
	dir, file string
	device    gpustage.Device
	model     *transformer.Model
	text      stages.Text
}

const pairs = `{"q": "what barks", "p": "a dog barks"}
{"q": "what purrs", "p": "a cat purrs loudly"}
{"q": "what flies", "p": "a bird flies"}
{"q": "what swims", "p": "fish swim"}
{"q": "what runs fast", "p": "a horse runs fast"}
{"q": "what crawls", "p": "a snake crawls"}
{"q": "what hops", "p": "a frog hops"}
{"q": "what climbs", "p": "a monkey climbs trees"}
`

func openParts(ctx context.Context) (p parts, err error) {
	if p.dir, err = os.MkdirTemp("", "example"); err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	p.file = filepath.Join(p.dir, "pairs.jsonl")
	if err := os.WriteFile(p.file, []byte(pairs), 0o600); err != nil {
		return p, err
	}
	dir := filepath.Join(p.dir, "model")
	spec := newmodel.Spec{Hidden: 32, Layers: 1, Heads: 2, MaxLength: 16, Lowercase: true, Seed: 1}
	if err := newmodel.Create(ctx, dir, spec, newmodel.Texts(strings.Split(pairs, "\n"))); err != nil {
		return p, err
	}
	if p.text.Tokenizer, err = tokenize.Load(dir); err != nil {
		return p, err
	}
	p.text.Threads, p.text.QueryLength, p.text.DocumentLength = 1, 16, 16
	if p.device, err = cpu.New(); err != nil {
		return p, err
	}
	f, err := hfmodel.Open(dir)
	if err != nil {
		return p, err
	}
	defer f.Close()
	head, err := embedder.HeadOf(f, "", nil)
	if err != nil {
		return p, err
	}
	s, err := p.device.OpenStream()
	if err != nil {
		return p, err
	}
	defer s.Close()
	p.model, err = embedder.LoadModel(f, p.device, s, head, transformer.Options{}, nil)
	return p, err
}

func (p parts) Close() {
	if p.model != nil {
		p.model.Free()
	}
	if p.device != nil {
		p.device.Close()
	}
	os.RemoveAll(p.dir)
}

// rowsOfFile gives out the file's rows, in batches of 4.
func rowsOfFile(ctx context.Context, g *pipeline.Graph, p parts) (pipeline.Port[*stages.Chunk], func() error, error) {
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{p.file}, Query: "q", Positive: "p"})
	if err != nil {
		return pipeline.Port[*stages.Chunk]{}, nil, err
	}
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, data)
	if err != nil {
		return pipeline.Port[*stages.Chunk]{}, nil, errors.Join(err, data.Close())
	}
	return stages.Ingest(g, plan), data.Close, nil
}

// trainWith trains as Example does, with rows from elsewhere, another loss, and stages that add adds.
func trainWith(
	rows func(context.Context, *pipeline.Graph, parts) (pipeline.Port[*stages.Chunk], func() error, error), l loss.Loss,
	add func(*pipeline.Graph, pipeline.Port[*stages.Batch], pipeline.Port[stages.StepResult]),
) (err error) {
	ctx := context.Background()
	p, err := openParts(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	g := pipeline.New("training")
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, enc.Close()) }()
	chunks, end, err := rows(ctx, g, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	step := stages.Step{Text: p.text, Size: stages.Size{Rows: 4}, Loss: l}
	c, err := stages.Train(g, chunks, enc, step, stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3, MaxGradNorm: 1})
	if err != nil {
		return err
	}
	add(g, c.Batches, c.Results)
	return enc.Run(ctx)
}
