package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/gopairs"
	"contraflow/stages/newmodel"
	"contraflow/stages/transformer"
)

// Input is the model and the data that steps, tokenization and reading are measured with.
type Input struct {
	Model    string // a folder or hub id; "": random weights, with a vocabulary of the data
	Data     string // parquet, JSON lines or CSV; "": the Go sources that came with the toolchain
	Query    string // columns
	Positive string
	// Say is told what is being prepared; it may be nil.
	Say func(format string, args ...any)

	temporary string
}

// Prepare makes what is not given, in a temporary folder that Clean removes: (doc comment, function) pairs of the installed Go
// sources, in random order, and if model is set, a model of MiniLM-L6's shape.
func (in *Input) Prepare(ctx context.Context, model bool) (err error) {
	if in.Data != "" && (in.Model != "" || !model) {
		return in.resolve(ctx, model)
	}
	if in.temporary, err = os.MkdirTemp("", "contraflow-bench-"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Clean())
		}
	}()
	if in.Data == "" {
		if err := in.makeData(ctx); err != nil {
			return err
		}
	}
	if model && in.Model == "" {
		if err := in.makeModel(ctx); err != nil {
			return err
		}
	}
	forgetPeak()
	return in.resolve(ctx, model)
}

// resolve finds the model's folder.
func (in *Input) resolve(ctx context.Context, model bool) (err error) {
	if model {
		in.Model, err = hfmodel.Resolve(ctx, in.Model, hfmodel.Options{})
	}
	return err
}

// Shorter is a maximum length, or the model's number of positions if that is smaller.
func (in *Input) Shorter(length int) (int, error) {
	f, err := hfmodel.Open(in.Model)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	c, err := transformer.ParseConfig(f.Config)
	if err != nil {
		return 0, err
	}
	if c.MaxPositions == 0 {
		return length, nil
	}
	return min(length, c.MaxPositions), nil
}

// Clean removes what Prepare made.
func (in *Input) Clean() error {
	if in.temporary == "" {
		return nil
	}
	return os.RemoveAll(in.temporary)
}

// made tells whether Prepare made a file or folder.
func (in *Input) made(path string) bool {
	return in.temporary != "" && strings.HasPrefix(path, in.temporary)
}

// name is the data's name for people.
func (in *Input) name() string {
	if in.made(in.Data) {
		return "(doc comment, function) pairs of the installed Go sources"
	}
	return in.Data
}

func (in *Input) say(format string, args ...any) {
	if in.Say != nil {
		in.Say(format, args...)
	}
}

func (in *Input) makeData(ctx context.Context) error {
	root, err := gopairs.DefaultRoot(ctx)
	if err != nil {
		return fmt.Errorf("%w; --data names other data", err)
	}
	in.say("reading (doc comment, function) pairs of the Go sources in %s\n", root)
	found, err := gopairs.Extract(ctx, root, nil)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 0))
	rng.Shuffle(len(found.Pairs), func(i, j int) { found.Pairs[i], found.Pairs[j] = found.Pairs[j], found.Pairs[i] })
	var comments, bodies []string
	for _, p := range found.Pairs {
		comments, bodies = append(comments, p.Comment), append(bodies, p.Body)
	}
	in.Data, in.Query, in.Positive = filepath.Join(in.temporary, "pairs.parquet"), "comment", "body"
	w, err := dataset.NewParquetWriter(in.Data, dataset.OutColumn{Name: in.Query, Type: dataset.TextOut}, dataset.OutColumn{Name: in.Positive, Type: dataset.TextOut})
	if err != nil {
		return err
	}
	defer w.Abort()
	if err := w.Write(comments, bodies); err != nil {
		return err
	}
	return w.Close()
}

// miniLM is the shape of all-MiniLM-L6-v2, with its dropout.
var miniLM = newmodel.Spec{Hidden: 384, Layers: 6, Heads: 12, MaxLength: 512, Vocab: 30522, Dropout: 0.1, Lowercase: true, Seed: 1}

func (in *Input) makeModel(ctx context.Context) error {
	texts, err := in.texts(ctx)
	if err != nil {
		return err
	}
	in.say("training a vocabulary, for random weights of MiniLM-L6's shape\n")
	in.Model = filepath.Join(in.temporary, "model")
	return newmodel.Create(ctx, in.Model, miniLM, newmodel.Texts(texts))
}

// open opens the data.
func (in *Input) open(ctx context.Context) (*dataset.Dataset, error) {
	return dataset.Open(ctx, dataset.Source{Paths: []string{in.Data}, Query: in.Query, Positive: in.Positive})
}

// texts is every query and positive: row by row, as they come.
func (in *Input) texts(ctx context.Context) ([]string, error) {
	data, err := in.open(ctx)
	if err != nil {
		return nil, err
	}
	defer data.Close()
	var out []string
	for b := range data.Blocks() {
		block, err := data.ReadBlock(ctx, b)
		if err != nil {
			return nil, err
		}
		for row := range block.Rows {
			if err := block.Check(row); err != nil {
				return nil, err
			}
			for column := range data.Columns() {
				out = append(out, block.Texts(nil, row, column)...)
			}
		}
	}
	return out, nil
}

// forgetPeak makes the process's peak memory what it holds now, so that preparation does not count. Only Linux can.
func forgetPeak() {
	debug.FreeOSMemory()
	if f, err := os.OpenFile("/proc/self/clear_refs", os.O_WRONLY, 0); err == nil {
		f.WriteString("5") // resets VmHWM; see proc(5)
		f.Close()
	}
}
