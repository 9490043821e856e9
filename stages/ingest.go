package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"contraflow/io/dataset"
	"contraflow/pipeline"
)

// Plan is the order of a run's data: the one global sequence of batches, and how many of them make a step.
// Rows are left out by the sampler (dataset.Dataset.Filter, dataset.Part.Skip), not by a stage behind Ingest: all ranks must have the same batches.
type Plan struct {
	Data       []*dataset.Dataset
	Sampler    *dataset.Mixer // of the same datasets
	FirstStep  int            // steps that were made before, as in pipeline.FirstStep: the sampler is where they have left it
	Accumulate int            // batches per step, 0 is 1; a step never crosses an epoch's end, so an epoch's last may have fewer
	MaxSteps   int            // 0: all epochs

	// InBatch is of each dataset how many documents of other rows of its batch a row gets for negatives, for models that score: see [InBatch]. 0 is none,
	// dataset.AllNegatives all there are; nil is none of any.
	InBatch []int

	// Of several ranks, which all have the same plan, each reads its slice of every batch.
	Rank, Ranks int // Ranks 0 means 1
}

// check finds what would train nothing, or something else than was meant.
func (p Plan) check() error {
	switch none := slices.Index(p.Data, nil); {
	case p.Sampler == nil:
		return errors.New("Plan.Sampler is nil: dataset.NewMixer makes one of the datasets' layouts")
	case len(p.Data) == 0:
		return errors.New("Plan.Data has no dataset: want those that Plan.Sampler was made of, in their order")
	case none >= 0:
		return fmt.Errorf("Plan.Data[%d] is nil", none)
	case p.MaxSteps < 0:
		return fmt.Errorf("Plan.MaxSteps is %d: want a number of steps, or 0 for all epochs", p.MaxSteps)
	case p.Accumulate < 0:
		return fmt.Errorf("Plan.Accumulate is %d: want a number of batches, or 0 for 1", p.Accumulate)
	case p.InBatch != nil && len(p.InBatch) != len(p.Data):
		return fmt.Errorf("Plan.InBatch is of %d datasets, and Plan.Data has %d", len(p.InBatch), len(p.Data))
	case slices.ContainsFunc(p.InBatch, func(n int) bool { return n < dataset.AllNegatives }):
		return fmt.Errorf("Plan.InBatch is %v: want numbers of negatives, or dataset.AllNegatives", p.InBatch)
	case p.FirstStep < 0:
		return fmt.Errorf("Plan.FirstStep is %d: want how many steps were made before", p.FirstStep)
	case p.Ranks < 0 || p.Rank < 0 || p.Rank >= max(1, p.Ranks):
		return fmt.Errorf("Plan.Rank is %d and Plan.Ranks %d: want a rank from 0 to Ranks-1, or 0 of 0 for one that is alone", p.Rank, p.Ranks)
	}
	return nil
}

// Steps is the number of optimizer steps that the plan makes; 0 of one that Ingest refuses.
func (p Plan) Steps() int {
	if p.check() != nil {
		return 0
	}
	n := 0
	for e := range p.Sampler.Epochs() {
		if n += p.stepsOf(e); p.MaxSteps > 0 && n >= p.MaxSteps {
			return p.MaxSteps // how long other epochs are may take a pass over their rows each
		}
	}
	return n
}

// StepsOf is how many of the plan's steps so many epochs make. A part of one is rounded up to a step, as transformers does with
// num_train_epochs.
func (p Plan) StepsOf(epochs float64) int {
	if p.check() != nil {
		return 0
	}
	n := 0
	for e := range p.Sampler.Epochs() {
		part := min(1, epochs-float64(e))
		if part <= 0 {
			break
		}
		const rounding = 1e-9 // a tenth of 20 steps is two
		of := p.stepsOf(e)
		if n += min(of, max(1, int(math.Ceil(part*float64(of)-rounding)))); p.MaxSteps > 0 && n >= p.MaxSteps {
			return p.MaxSteps
		}
	}
	return n
}

// stepsOf is how many steps an epoch's batches make.
func (p Plan) stepsOf(epoch int) int {
	of := max(1, p.Accumulate)
	return int(p.Sampler.Len(epoch)+int64(of)-1) / of
}

// EpochEnds are the steps, counted from 1, that have the last batch of an epoch: no step has batches of two. An epoch that MaxSteps cuts off has
// none.
func (p Plan) EpochEnds() (ends []int) {
	if p.check() != nil {
		return nil
	}
	n := 0
	for e := range p.Sampler.Epochs() {
		of := p.stepsOf(e)
		n += of
		if of > 0 && (p.MaxSteps == 0 || n <= p.MaxSteps) {
			ends = append(ends, n)
		}
		if p.MaxSteps > 0 && n >= p.MaxSteps {
			break
		}
	}
	return ends
}

// inBatch is InBatch's of a dataset.
func (p Plan) inBatch(source int) int {
	if p.InBatch == nil {
		return 0
	}
	return p.InBatch[source]
}

// Offset is how many rows the datasets before one have: its rows' ids in a run begin there.
func (p Plan) Offset(source int) (rows int64) {
	for _, d := range p.Data[:source] {
		rows += d.Rows()
	}
	return rows
}

// Rows is where rows come from: a [dataset.Dataset], or what a source of one's own describes.
type Rows interface {
	Columns() []dataset.Column         // of an example's texts: the query, then the positive if there is one, then negatives
	HasLabels() bool                   // each example has one
	HasScores() bool                   // likewise, for each of its documents
	Locate(row int64) dataset.Location // where a row is at rest, for errors
}

// Described are the Rows of a source of one's own.
type Described struct {
	Name           string           // for errors
	Texts          []dataset.Column // the query, the positive, then negatives
	Labels, Scores bool
}

func (d Described) Columns() []dataset.Column { return d.Texts }
func (d Described) HasLabels() bool           { return d.Labels }
func (d Described) HasScores() bool           { return d.Scores }

// Locate returns the name and the row.
func (d Described) Locate(row int64) dataset.Location {
	return dataset.Location{File: d.Name, RowGroup: -1, Row: row}
}

// Chunk is a part of a batch: consecutive rows of it.
type Chunk struct {
	Epoch     int
	Source    int   // the dataset that the batch is of
	Data      Rows  // the same
	Offset    int64 // rows of the datasets before it: what tells its rows from theirs is added to their ids
	Examples  []dataset.Example
	EndsBatch bool
	EndsStep  bool
	First     int // place of this rank's first row in the global batch
	Total     int // rows of the global batch

	// InBatch tells that Examples are all rows of the global batch, and what is drawn of them for this rank's; nil: Examples are this rank's.
	InBatch *InBatch

	Next *dataset.Cursor // where the data goes on after this chunk, if it ends a step

	// Place is Next of a source of one's own, in a chunk that ends a step: whatever the source goes on by after it, as JSON has it. The step's StepResult has it,
	// and a checkpoint's Data are it: of several ranks the first one's.
	Place any

	plan *planned   // of a Plan's rows
	bad  *RowsError // for which the run ends before the chunk's batch; it has no rows then
}

// planned is what Ingest says of a chunk's rows, for stages that know better which step it is and how many ranks there are.
type planned struct {
	before, ranks int    // steps before this one
	order         string // see orderTerm
}

// checkStep compares the plan's count of steps with the run's.
func (b *Batch) checkStep(before int) error {
	if p := b.plan; p != nil && p.before != before {
		return fmt.Errorf("the plan has %d steps before this one, and the run has %d: set Plan.FirstStep and pipeline.FirstStep both to how many were made before (of a checkpoint, "+
			"Plan.ResumeLatest before Ingest and Encoder.Restore before Encoder.Run do so), and leave the steps' ends where Ingest puts them", p.before, before)
	}
	return nil
}

// chunkRows is how many rows travel together: enough that scheduling costs nothing beside tokenizing them, few enough that
// several workers share a batch.
const chunkRows = 128

// Ingest adds the stage that reads rows in the plan's order. It stops reading when the queues behind it are full. Rows that can't be used, or read, end the
// run with a [RowsError], after the steps before theirs. Its rows are for one run of
// the graph: in a second one it is an error, for that one would be without what the first has read, be it all or a few batches ahead.
func Ingest(g *pipeline.Graph, p Plan) pipeline.Port[*Chunk] {
	wrong := p.check()
	readers := make([]*dataset.Reader, len(p.Data))
	var batch dataset.Batch
	var own []int64 // this rank's rows of batch
	first, order := 0, ""
	var run context.Context                   // of the run that reads
	open, failed := false, false              // there is more of batch to give out; rows could not be read
	next, batches, steps := 0, 0, p.FirstStep // rows of own that were given out; batches of the step; steps
	s := g.Stage("ingest", pipeline.At(pipeline.Stream))
	out := pipeline.Out[*Chunk](s, "ingest")
	read := func(t *pipeline.Task) (*Chunk, error) {
		ctx := t.Context()
		if wrong != nil {
			return nil, wrong
		}
		if run == nil {
			run = ctx
		}
		if run != ctx {
			return nil, errors.New("another run of this graph has read the plan's rows: build a new graph for each run, with a sampler that is where the run is to begin")
		}
		if !open {
			ok := !failed && (p.MaxSteps == 0 || steps < p.MaxSteps)
			if ok {
				batch, ok = p.Sampler.Next()
			}
			if !ok {
				for _, r := range readers {
					if r == nil {
						continue
					}
					if err := r.Close(); err != nil {
						return nil, err
					}
				}
				return nil, io.EOF
			}
			own, first = p.sliceOf(batch)
			next, open = 0, true
		}
		to := min(len(own), next+chunkRows)
		rows := own[next:to]
		k := batch.Source
		if k >= len(p.Data) {
			return nil, fmt.Errorf("Plan.Data has %d datasets, and Plan.Sampler gives a batch of dataset %d: want those that it was made of, in their order", len(p.Data), k)
		}
		if next == 0 && p.Ranks > 1 {
			order = orderTerm(p.Data[k], batch, p.inBatch(k))
		}
		if readers[k] == nil {
			readers[k] = p.Data[k].NewReader(dataset.ReaderConfig{Seed: p.Sampler.Seed(k), Window: p.Sampler.Window()})
		}
		var draws *InBatch
		if n := p.inBatch(k); n != 0 {
			rows, to = batch.Rows, len(own)
			draws = &InBatch{N: n, Lo: first, Hi: first + len(own), Seed: p.Sampler.Seed(k), Epoch: batch.Pass}
		}
		examples, err := readers[k].Read(ctx, batch.Pass, rows)
		offset := p.Offset(k)
		if err != nil {
			open, failed = false, true
			return (&Chunk{Epoch: batch.Epoch, Source: k, Data: p.Data[k], Offset: offset, plan: &planned{steps, p.Ranks, order}}).Unusable(t, err)
		}
		for i := range examples {
			examples[i].Row += offset
		}
		next = to
		c := &Chunk{Epoch: batch.Epoch, Source: k, Data: p.Data[k], Offset: offset, Examples: examples, InBatch: draws, EndsBatch: next == len(own), First: first, Total: len(batch.Rows), plan: &planned{steps, p.Ranks, order}}
		open = !c.EndsBatch
		if c.EndsBatch {
			batches++
			c.EndsStep = batches == max(1, p.Accumulate) || int64(batch.Index)+1 == p.Sampler.Len(batch.Epoch)
		}
		if c.EndsStep {
			batches = 0
			cursor := p.Sampler.Cursor()
			steps++
			c.Next = &cursor
		}
		return c, nil
	}
	s.Do(func(t *pipeline.Task) error {
		c, err := read(t)
		if err != nil {
			return err
		}
		out.Put(t, c)
		return nil
	})
	return out.Port
}
