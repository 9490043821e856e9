package stages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
)

// Step says how a step goes from rows to a gradient.
type Step struct {
	Text  Text // how rows become tokens: TextOf a model, or TextOfPairs
	Size  Size // of sub-batches
	Loss  loss.Loss
	Guide *Guide // of a loss that has one, for which Text.Guide makes tokens; nil: there is none
}

// Chain are the ports of the usual stages, in the order of the data: a stage of one's own may read any of them.
type Chain struct {
	Tokens        pipeline.Port[*TokenChunk]
	Batches       pipeline.Port[*Batch] // what of each is this rank's
	Subs          pipeline.Port[SubBatch]
	Embedded      pipeline.Port[Embedded]     // on all ranks
	Gradients     pipeline.Port[Gradient]     // of this rank's embeddings
	Contributions pipeline.Port[Contribution] // to the parameters' gradient
	Results       pipeline.Port[StepResult]
}

// Forward adds the stages from chunks of rows, as Ingest and MapRows give them, to the gradient of their embeddings: Tokenize, Assemble, Header, Split,
// Embed, Gather, Guided, Loss and Scatter, of which one rank has no need of Header, Gather and Scatter, and a loss without a guide none of Guided. The
// ports behind them are not set.
func Forward(g *pipeline.Graph, chunks pipeline.Port[*Chunk], e *Encoder, step Step) (c Chain) {
	c.Tokens = Tokenize(g, chunks, step.Text)
	c.Batches = Header(g, Assemble(g, c.Tokens), step.Size, e.ranks)
	c.Subs = Split(g, c.Batches, step.Size)
	c.Embedded = Gather(g, Embed(g, c.Subs, e), e)
	var inputs []LossInput
	if step.Guide != nil {
		inputs = append(inputs, GuidedBy(Guided(g, c.Batches, c.Embedded, e, *step.Guide)))
	}
	c.Gradients = Scatter(g, Loss(g, c.Batches, c.Embedded, e, step.Loss, inputs...), e)
	return c
}

// Train adds all stages of a training step: Forward, Backward, Sync and Apply. A stage of one's own that is to stand between any two of these takes the
// place of this function by their calls, which are this function's three lines.
func Train(g *pipeline.Graph, chunks pipeline.Port[*Chunk], e *Encoder, step Step, u Update) (c Chain, err error) {
	c = Forward(g, chunks, e, step)
	c.Contributions = Sync(g, Backward(g, c.Subs, c.Gradients, e), e)
	c.Results, err = Apply(g, c.Contributions, c.Gradients, e, u)
	return c, err
}

// BeforeUpdate adds a stage that calls f once a step, on the encoder's lane, when the step's gradient is summed over all ranks and before Apply updates by
// it: it stands between Sync and Apply, in a program that has Train's three lines in its place. f reads [Encoder.Gradients].
func BeforeUpdate(g *pipeline.Graph, name string, contributions pipeline.Port[Contribution], e *Encoder, f func(*pipeline.Task) error) {
	s := g.Stage(name, e.on(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	e.AfterSync(s)
	s.Do(f)
}

// NewPlan is the plan of one dataset, or of several of which an epoch has every batch once, on one rank. Where the order is without duplicates it reads all
// texts once. [dataset.NewMixer] makes the sampler of a plan that mixes datasets otherwise, leaves rows out, or puts those of similar length together.
func NewPlan(ctx context.Context, order dataset.SamplerConfig, data ...*dataset.Dataset) (p Plan, err error) {
	if order.Lengths != nil || order.Skip != nil {
		return p, errors.New("stages.NewPlan takes no Lengths and no Skip of rows: dataset.NewMixer does, of each dataset (dataset.Part)")
	}
	var parts []dataset.Part
	for i, d := range data {
		if d == nil {
			return p, fmt.Errorf("stages.NewPlan: dataset %d is nil", i)
		}
		part := dataset.Part{Layout: d.Layout()}
		if order.NoDuplicates {
			if part.Texts, err = d.Index(ctx, dataset.IndexConfig{}); err != nil {
				return p, err
			}
		}
		parts = append(parts, part)
	}
	p.Data = data
	p.Sampler, err = dataset.NewMixer(parts, order, dataset.Mixing{})
	return p, err
}

// hostWorkers is how many host tasks there must be room for: the stages that wait for other ranks (header, totals, checkpoint), which
// could otherwise each hold a worker that another rank waits for, and one that works.
const hostWorkers = 4

// Build builds the encoder's graph for the devices of its model and of its guide's, with as many workers as its ranks need. A graph with stages on other
// devices is built by pipeline.Graph.Build.
func (e *Encoder) Build() (*pipeline.Plan, error) {
	at := map[int]gpustage.Device{e.device: e.Model.Device}
	if x := e.guided; x.engine != nil {
		if d := x.engine.Model.Device; x.device == e.device && d != e.Model.Device {
			return nil, fmt.Errorf("graph %q: Guide.Device is %d, as the encoder's, and the guide's model is on another device than the encoder's", e.graph.Name(), x.device)
		}
		at[x.device] = x.engine.Model.Device
	}
	devices := make([]pipeline.Device, len(at))
	for i := range devices {
		if at[i] == nil {
			return nil, fmt.Errorf("graph %q: no model is on device %d of those that are counted from 0, but on %v (NewEncoder's device, and Guide.Device)", e.graph.Name(), i, slices.Sorted(maps.Keys(at)))
		}
		devices[i] = OnDevice(at[i])
	}
	return e.graph.Build(pipeline.Devices(devices...), pipeline.Workers(max(hostWorkers, runtime.GOMAXPROCS(0))))
}

// FailedTakes is how long a rank that has failed may take to end before the others hear of it: no longer than some of a step, or they would
// look for whom to blame elsewhere.
const FailedTakes = 5 * time.Second

// Run builds the encoder's graph (Build) and runs it, once, from the first step, or from the step that Restore has found in a checkpoint. On a rank that fails
// it ends the other ranks' runs, too; one that a stage ends, as Task.EndRun does, has not failed.
func (e *Encoder) Run(ctx context.Context, opts ...pipeline.RunOption) (err error) {
	defer func() {
		var ended *pipeline.EndError
		if e.ranks != nil && err != nil && !errors.As(err, &ended) {
			e.ranks.Comm.World.Abort(err)
		}
	}()
	p, err := e.Build()
	if err != nil {
		return err
	}
	own := []pipeline.RunOption{pipeline.FirstStep(e.restored)}
	if e.ranks != nil { // a lane of a rank that has failed may wait for one that waits for this rank
		own = append(own, pipeline.WhenFailed(FailedTakes, e.ranks.Comm.World.Abort))
	}
	return p.Run(ctx, append(own, opts...)...)
}
