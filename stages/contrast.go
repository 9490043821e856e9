package stages

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/loss"
)

// Gradient tells that the gradient of a batch's embeddings is in the encoder's matrix, and what the loss was.
type Gradient struct {
	Batch *Batch
	loss.Result
}

// Loss adds the stage that computes the loss of a whole batch and the gradient of its embeddings.
func Loss(g *pipeline.Graph, batches pipeline.Port[*Batch], embedded pipeline.Port[Embedded], e *Encoder, l loss.Loss) pipeline.Port[Gradient] {
	e.loss = l
	s := g.Stage("loss", e.on())
	in := pipeline.In(s, "batch", batches)
	pipeline.Collect(s, "embeddings", embedded)
	out := pipeline.Out[Gradient](s, "gradient")
	s.Do(func(t *pipeline.Task) error {
		b, stream := in.Get(t), Stream(t)
		n := b.N()
		lb := &loss.Batch{
			Rows: len(b.Rows), Embeddings: e.emb.Span(0, n), Gradient: e.dEmb.Span(0, n), Normalized: e.Model.Head.Normalize,
			Texts: b.Texts, Weights: b.Weights,
		}
		for k := range n - 2*lb.Rows {
			lb.Owner = append(lb.Owner, int32(k%lb.Rows))
		}
		stream.Fill(lb.Gradient, 0)
		r, err := l.Compute(stream, e.arena, lb)
		if errors.Is(err, loss.ErrNotFinite) {
			return errors.Join(err, notFinite(stream, b, lb.Embeddings))
		}
		if err != nil {
			return err
		}
		out.Put(t, Gradient{b, r})
		return nil
	})
	return out.Port
}

// notFinite names the sub-batch and the rows whose embeddings are NaN or infinite. It is called when the loss was, so its cost
// does not matter.
func notFinite(s gpustage.Stream, b *Batch, emb gpustage.Tensor) error {
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, emb.Rows, emb.Cols)
	if err != nil {
		return err
	}
	defer wide.Mem.Free()
	s.Copy(wide, emb)
	host := make([]float64, emb.Len())
	s.CopyOut(gpustage.Bytes(host), wide)
	if err := s.Sync(); err != nil {
		return err
	}
	for u, sub := range b.Subs {
		var rows []string
		for n := sub.Lo; n < sub.Hi; n++ {
			for _, v := range host[n*emb.Cols : (n+1)*emb.Cols] {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					row, col := b.Origin(n)
					rows = append(rows, fmt.Sprintf("%v (%s)", b.Data.Locate(row), b.Columns[col].Source))
					break
				}
			}
		}
		if len(rows) > 0 {
			more := ""
			if n := len(rows); n > 5 {
				rows, more = rows[:5], fmt.Sprintf(" and %d more", n-5)
			}
			return &NotFiniteError{Sub: u, Rows: strings.Join(rows, ", ") + more}
		}
	}
	return errors.New("all embeddings are finite: the scale or the rows' weights are too large")
}

// NotFiniteError names the first sub-batch with embeddings that are NaN or infinite.
type NotFiniteError struct {
	Sub  int
	Rows string
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("sub-batch %d has embeddings that are not finite: %s; a lower learning rate or gradient clipping (optimizer.max_grad_norm) may help", e.Sub, e.Rows)
}
