package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
)

// TextReport is what `bench tokenize` and `bench read` print. A megabyte is a million bytes of text.
type TextReport struct {
	Bench   string     `json:"bench"`
	Machine Machine    `json:"machine"`
	Data    string     `json:"data"`
	Rows    int64      `json:"rows"`
	Texts   int        `json:"texts,omitempty"`
	Tokens  int        `json:"tokens,omitempty"`
	Bytes   int64      `json:"text_bytes"`
	Ways    []TextRate `json:"ways"`
}

// TextRate is one way to go over the texts, and its spread over runs.
type TextRate struct {
	Way     string `json:"way"`
	Threads int    `json:"threads"`
	MBPerS  Spread `json:"mb_per_s"`
	PerS    Spread `json:"rows_per_s"`
	Runs    int    `json:"runs"`
}

// measure runs f for about d, three times at least after a warm-up.
func (r *TextReport) measure(ctx context.Context, way string, threads int, d time.Duration, f func() error) error {
	if err := f(); err != nil {
		return err
	}
	var mb, rows []float64
	err := repeat(ctx, d, 3, func() error {
		start := time.Now()
		if err := f(); err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		mb, rows = append(mb, float64(r.Bytes)/1e6/took), append(rows, float64(r.Rows)/took)
		return nil
	})
	if err != nil {
		return err
	}
	r.Ways = append(r.Ways, TextRate{Way: way, Threads: threads, MBPerS: SpreadOf(mb), PerS: SpreadOf(rows), Runs: len(mb)})
	return nil
}

// Tokenization measures turning all texts of the data into ids, uncut, on one thread and on all, for about d in all.
func Tokenization(ctx context.Context, in *Input, maxLength int, d time.Duration) (*TextReport, error) {
	m, err := ThisMachine()
	if err != nil {
		return nil, err
	}
	f, err := hfmodel.Open(in.Model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := embedder.LoadTokenizer(f)
	if err != nil {
		return nil, err
	}
	texts, err := in.texts(ctx)
	if err != nil {
		return nil, err
	}
	r := &TextReport{Bench: "tokenize", Machine: m, Data: in.name(), Rows: int64(len(texts) / 2), Texts: len(texts)}
	for _, t := range texts {
		r.Bytes += int64(len(t))
	}
	threads := allAndOne()
	for _, n := range threads {
		if err := r.measure(ctx, "tokenize", n, d/time.Duration(len(threads)), func() error {
			ids, err := tok.EncodeAll(ctx, texts, maxLength, n)
			r.Tokens = 0
			for _, x := range ids {
				r.Tokens += len(x)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// allAndOne are the numbers of threads to measure with: one, and all.
func allAndOne() []int {
	if n := runtime.GOMAXPROCS(0); n > 1 {
		return []int{1, n}
	}
	return []int{1}
}

// readBatch is how many rows a batch has when reading is measured.
const readBatch = 4096

// Reading measures reading the data as training does, for about d in all: block by block on one thread and on all, and in batches
// of shuffled rows on all.
func Reading(ctx context.Context, in *Input, d time.Duration) (_ *TextReport, err error) {
	m, err := ThisMachine()
	if err != nil {
		return nil, err
	}
	data, err := in.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	r := &TextReport{Bench: "read", Machine: m, Data: in.name(), Rows: data.Rows()}
	scan := func(from, to int) (bytes int64, err error) {
		var block dataset.Block
		scanner := data.NewScanner()
		defer scanner.Close()
		for b := from; b < to; b++ {
			if err := scanner.Read(ctx, b, &block); err != nil {
				return 0, err
			}
			for row := range block.Rows {
				if err := block.Check(row); err != nil {
					return 0, err
				}
			}
			bytes += block.TextBytes()
		}
		return bytes, nil
	}
	ways := allAndOne()
	for _, n := range ways {
		err := r.measure(ctx, "blocks in order", n, d/2/time.Duration(len(ways)), func() error {
			bytes, errs := make([]int64, n), make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { bytes[i], errs[i] = scan(data.Blocks()*i/n, data.Blocks()*(i+1)/n) })
			}
			wg.Wait()
			r.Bytes = 0
			for _, n := range bytes {
				r.Bytes += n
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return nil, err
		}
	}
	epoch := 0
	err = r.measure(ctx, fmt.Sprintf("shuffled, batches of %d", readBatch), runtime.GOMAXPROCS(0), d/2, func() error {
		order := dataset.SamplerConfig{Seed: uint64(epoch), GlobalSize: readBatch, Epochs: 1, Shuffle: true}
		epoch++
		sampler, err := dataset.NewSampler(data.Layout(), nil, order)
		if err != nil {
			return err
		}
		reader := data.NewReader(dataset.ReaderConfig{Seed: order.Seed})
		defer reader.Close()
		for {
			batch, ok := sampler.Next()
			if !ok {
				return nil
			}
			if _, err := reader.Read(ctx, batch.Epoch, batch.Rows); err != nil {
				return err
			}
		}
	})
	return r, err
}

// Print writes a table for people.
func (r *TextReport) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s: %d rows, %.1f MB of text", r.Machine, r.Data, r.Rows, float64(r.Bytes)/1e6)
	if r.Tokens > 0 {
		fmt.Fprintf(w, ", %.1f tokens a text", float64(r.Tokens)/float64(r.Texts))
	}
	fmt.Fprintf(w, "; median (least to most)\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tthreads\tMB/s\trows/s\truns")
	for _, x := range r.Ways {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\n", x.Way, x.Threads, x.MBPerS, x.PerS, x.Runs)
	}
	return t.Flush()
}
