package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
)

// A guide (loss.Guide) is a second model that looks at a batch's texts. It has a tokenizer of its own, so texts become tokens twice, both
// times where they are still texts: in the tokenize stage, whose Text names the guide's reading beside the model's. From there on
//
//	guide         each rank embeds its own sequences once a batch, on the lane of the guide's device
//	gather guide  all ranks' guide embeddings, in the global order, on the model's device
//
// Between devices embeddings go through the host's memory, whatever the devices are: they are a thousandth of what was computed. They
// travel between ranks unrounded, also where the model's own are rounded to bf16: which candidates are masked must not depend on the
// number of ranks.

// Guide is a model whose embeddings a loss compares.
type Guide struct {
	Model  *transformer.Model // it does not train
	Device int                // the place of the model's device in Build's list
	Tokens int                // that go through the model at once; 0: what the device likes
}

// Guidance tells that a guide's embeddings of a batch are on the encoder's device.
type Guidance struct{ Batch *Batch }

// guided is what an encoder has of a guide.
type guided struct {
	engine   *embedder.Engine // belongs to the guide's lane
	device   int              // its lane's
	size     int              // of its embeddings; 0: there is none
	own, all gpustage.Tensor  // [N, G] this rank's, and all ranks', which is the same tensor if this one is alone
}

// looks are a guide's embeddings of this rank's sequences, of unit length, in the host's memory.
type looks struct {
	batch *Batch
	x     []float32 // [N*G]
}

// Guided adds the stages that embed batches with a guide, whose tokens Text.Guide has made. Loss takes what it returns as GuidedBy.
func Guided(g *pipeline.Graph, batches pipeline.Port[*Batch], embedded pipeline.Port[Embedded], e *Encoder, guide Guide) pipeline.Port[Guidance] {
	if guide.Model == nil {
		s := g.Stage("guide", pipeline.At(pipeline.Batch))
		s.Refuse(errors.New("Guide.Model is nil: it wants the model that looks at texts"))
		s.Do(func(*pipeline.Task) error { return nil })
		return pipeline.Out[Guidance](s, "guidance").Port
	}
	engine := &embedder.Engine{Model: guide.Model, Tokens: guide.Tokens}
	e.guided = guided{engine: engine, device: guide.Device, size: guide.Model.EmbeddingSize()}
	if guide.Device == e.device {
		e.hold(int64(guide.Model.Params.Mem.Bytes()) + guide.Model.PackedBytes(false))
	}
	own := pipeline.Map(g, "guide", batches, func(t *pipeline.Task, b *Batch) (looks, error) {
		if err := b.check(); err != nil {
			return looks{}, err
		}
		tokens := 0
		for _, ids := range b.Guide {
			tokens += len(ids)
		}
		t.Note(Tokens, float64(tokens))
		engine.Stream = Stream(t)
		x, err := b.look(t.Context(), engine)
		return looks{b, x}, err
	}, pipeline.On(guide.Device, pipeline.Compute))

	s := g.Stage("gather guide", e.OnComm())
	in := pipeline.In(s, "guide", own)
	pipeline.Collect(s, "embeddings", embedded) // the loss of the batch before is done with the tensor
	out := pipeline.Out[Guidance](s, "guidance")
	s.Do(func(t *pipeline.Task) error {
		stream, x := Stream(t), in.Get(t)
		b := x.batch
		if b.N() > 0 {
			gpustage.Upload(stream, e.guided.own.Span(0, b.N()), x.x)
		}
		if e.gathers() {
			defer e.count(t)()
			for c := range b.Columns { // a column's sequences lie in the order of ranks
				if lo, hi := b.Global.Starts[c], b.Global.Starts[c+1]; lo < hi {
					e.ranks.Comm.World.AllGather(stream, e.guided.all.Span(lo, hi), e.guided.own.Span(b.Starts[c], b.Starts[c+1]), b.Global.columnRows(c, false), e.Model.DType)
				}
			}
		}
		out.Put(t, Guidance{b})
		return nil
	})
	return out.Port
}

// look is a guide's embeddings of a batch's sequences, of unit length: [N*G].
func (b *Batch) look(ctx context.Context, guide *embedder.Engine) ([]float32, error) {
	if len(b.Guide) != b.N() {
		return nil, fmt.Errorf("%d of a batch's %d sequences have tokens for the guide: Text.Guide says how it reads them", len(b.Guide), b.N())
	}
	size := guide.Size()
	out := make([]float32, b.N()*size)
	var bad error
	err := guide.EmbedPrompted(ctx, b.Guide, b.prompts(b.GuidePrompt, 0, b.N()), func(n int, vec []float32) {
		x := out[n*size : (n+1)*size]
		copy(x, vec)
		if bad == nil && slices.ContainsFunc(vec, func(v float32) bool { return !finite(v) }) {
			row, _ := b.Origin(n)
			bad = fmt.Errorf("the guide's embedding of %v (%s) is not finite", b.Data.Locate(row-b.Offset), b.Column(n).Source)
		}
		evaluate.Normalize(x, size)
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// LossInput is something that a loss waits for besides the model's embeddings.
type LossInput func(*pipeline.Stage)

// GuidedBy gives a loss a guide's embeddings.
func GuidedBy(p pipeline.Port[Guidance]) LossInput {
	return func(s *pipeline.Stage) { pipeline.In(s, "guide", p) }
}

// beginGuided makes room for a guide's embeddings of a batch.
func (e *Encoder) beginGuided(b *Batch) error {
	x := &e.guided
	if x.size == 0 {
		return nil
	}
	if err := e.grow(&x.own, b.N(), x.size); err != nil {
		return err
	}
	if !e.gathers() {
		x.all = x.own
		return nil
	}
	return e.grow(&x.all, b.Global.N(), x.size)
}

func (e *Encoder) closeGuided() error {
	x := &e.guided
	if x.size == 0 {
		return nil
	}
	err := x.engine.Close()
	if !e.gathers() {
		x.all = gpustage.Tensor{} // a name of own
	}
	return err
}
