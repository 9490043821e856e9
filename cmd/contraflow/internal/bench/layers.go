package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"contraflow/gpustage"
	"contraflow/io/spelling"
	"contraflow/stages/recipe"
	"contraflow/stages/transformer"
)

// LayersOptions choose what is measured.
type LayersOptions struct {
	Layers       []int
	Rows, Tokens int // of the sub-batch: rows, and tokens of each
	Hidden       int // a multiple of 64
	LoRA         int // rank, on every linear layer; 0: everything trains
	Rounds       int
}

// LayersReport is what `bench layers` prints: activation checkpointing against none, by the number of layers.
type LayersReport struct {
	Bench   string         `json:"bench"`
	Machine Machine        `json:"machine"`
	Threads int            `json:"threads"`
	Rows    int            `json:"rows"`
	Tokens  int            `json:"tokens"`
	Hidden  int            `json:"hidden"`
	LoRA    int            `json:"lora_rank"`
	Depths  []LayersResult `json:"depths"`
}

// LayersResult is one depth. Peaks are of the arena, of a replayed forward pass and its backward; predictions, and what a
// pass that waits for its backward keeps, are Model.Memory's. Ratio is the time with over that without, each the best of the rounds.
type LayersResult struct {
	Layers  int      `json:"layers"`
	Plain   DeepPass `json:"plain"`
	Saving  DeepPass `json:"activation_checkpointing"`
	Ratio   float64  `json:"time_ratio"`
	Segment int      `json:"layers_per_segment"`
}

// DeepPass is a replayed forward and a backward pass.
type DeepPass struct {
	PeakBytes      int     `json:"peak_bytes"`
	KeptBytes      int     `json:"kept_bytes"`
	PredictedBytes int     `json:"predicted_bytes"`
	Seconds        float64 `json:"seconds"`
}

// MeasureLayers measures BERT-shaped models with random weights.
func MeasureLayers(ctx context.Context, o LayersOptions) (_ *LayersReport, err error) {
	d, err := gpustage.Open("cpu")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	r := &LayersReport{Bench: "layers", Threads: d.Info().Threads, Rows: o.Rows, Tokens: o.Tokens, Hidden: o.Hidden, LoRA: o.LoRA}
	for _, n := range o.Layers {
		x, err := measureDepth(ctx, d, o, n)
		if err != nil {
			return nil, fmt.Errorf("%d layers: %w", n, err)
		}
		r.Depths = append(r.Depths, x)
	}
	r.Machine, err = ThisMachine()
	return r, err
}

func measureDepth(ctx context.Context, d gpustage.Device, o LayersOptions, n int) (r LayersResult, err error) {
	s, err := d.OpenStream()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := transformer.Config{
		Family: "bert", Vocab: 1000, Hidden: o.Hidden, Layers: n, Heads: o.Hidden / 32, FeedForward: 4 * o.Hidden, MaxPositions: max(512, o.Tokens), TypeVocab: 2,
		PadID: -1, NormEps: 1e-12, Activation: gpustage.GELU, InitRange: 0.02,
	}
	rows := transformer.Rows{Cu: []int32{0}}
	var lengths []int
	for i := range o.Rows {
		for t := range o.Tokens {
			rows.IDs = append(rows.IDs, int32((i*37+t*11)%1000))
		}
		rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
		lengths = append(lengths, o.Tokens)
	}
	r.Layers = n
	r.Plain.Seconds, r.Saving.Seconds = math.Inf(1), math.Inf(1)
	kinds := []struct {
		every int
		pass  *DeepPass
		model *transformer.Model
		grads gpustage.Tensor
		arena *gpustage.Arena
	}{{every: 0, pass: &r.Plain}, {every: transformer.AutoCheckpoint, pass: &r.Saving}}
	for i := range kinds {
		k := &kinds[i]
		options := transformer.Options{CheckpointEvery: k.every}
		if o.LoRA > 0 {
			options.Tuning.LoRA = &transformer.LoRA{Rank: o.LoRA, Alpha: 1, Targets: []string{transformer.AllLinear}}
		}
		if k.model, err = transformer.New(d, c, transformer.Head{Normalize: true}, options); err != nil {
			return r, err
		}
		defer k.model.Free()
		if err := k.model.Init(s, 1); err != nil {
			return r, err
		}
		if k.grads, err = k.model.NewGradients(); err != nil {
			return r, err
		}
		defer k.grads.Mem.Free()
		mem := k.model.Memory(lengths)
		k.pass.PredictedBytes, k.pass.KeptBytes = mem.Backward, mem.Kept
		if k.arena, err = gpustage.NewArena(d, mem.Backward); err != nil {
			return r, err
		}
		defer k.arena.Free()
		r.Segment = k.model.Options.CheckpointEvery
	}
	for round := range o.Rounds + 1 { // the first one's memory is new
		for i := range kinds { // in turns: what slows this machine slows both
			k := &kinds[i]
			if err := ctx.Err(); err != nil {
				return r, err
			}
			start := time.Now()
			p := k.model.Replay(s, k.arena, rows)
			p.Backward(p.Embeddings(), k.grads)
			p.Release()
			if err := s.Sync(); err != nil {
				return r, err
			}
			k.pass.PeakBytes = k.arena.Peak()
			if round > 0 {
				k.pass.Seconds = min(k.pass.Seconds, time.Since(start).Seconds())
			}
		}
	}
	r.Ratio = r.Saving.Seconds / r.Plain.Seconds
	return r, nil
}

// Print writes a table.
func (r *LayersReport) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s of %s, hidden size %d, %s\n", spelling.Count(r.Rows, "row", "rows"), spelling.Count(r.Tokens, "token", "tokens"), r.Hidden, threads(r.Threads))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "layers\tpeak\tkept\ts\tsegments of\tpeak\tkept\ts\ttime\t")
	for _, x := range r.Depths {
		fmt.Fprintf(t, "%d\t%s\t%s\t%.3f\t%d\t%s\t%s\t%.3f\tx %.2f\t\n", x.Layers, recipe.Size(int64(x.Plain.PeakBytes)), recipe.Size(int64(x.Plain.KeptBytes)), x.Plain.Seconds,
			x.Segment, recipe.Size(int64(x.Saving.PeakBytes)), recipe.Size(int64(x.Saving.KeptBytes)), x.Saving.Seconds, x.Ratio)
	}
	return t.Flush()
}
