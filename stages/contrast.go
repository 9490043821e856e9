package stages

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Gradient tells that the gradient of a batch's embeddings is in the encoder's matrix, and what the loss was.
type Gradient struct {
	Batch *Batch
	loss.Result
	whole bool // every rank has computed the whole loss: it is not a RowSplitter
}

// Loss adds the stage that computes the loss of a whole batch and the gradient of its embeddings. Without a loss, or with one that has a method
// Check, as those of package loss, and an error of it, Build fails.
func Loss(g *pipeline.Graph, batches pipeline.Port[*Batch], embedded pipeline.Port[Embedded], e *Encoder, l loss.Loss, more ...LossInput) pipeline.Port[Gradient] {
	e.loss = l
	e.ranks.tell("the loss", Settings(l))
	s := g.Stage("loss", e.on())
	in := pipeline.In(s, "batch", batches)
	pipeline.Collect(s, "embeddings", embedded)
	for _, input := range more {
		input(s)
	}
	out := pipeline.Out[Gradient](s, "gradient")
	if l == nil {
		s.Refuse(errors.New("stages.Loss has been given no loss: it is nil"))
	} else if err := loss.Check(l); err != nil {
		s.Refuse(err)
	} else if !e.Model.Config.Scorer.None() && loss.OfEmbeddings(l) {
		s.Refuse(fmt.Errorf("%T compares embeddings, and the model gives pairs of texts a score: loss.Groups learns from these", l))
	}
	s.Do(func(t *pipeline.Task) error {
		if err := e.claim(t); err != nil {
			return err
		}
		b, stream := in.Get(t), Stream(t)
		if err := b.check(); err != nil {
			return err
		}
		lb, whole := e.lossBatch(b)
		if lb.N() == 0 { // negatives stay on their ranks, and this one has no rows
			out.Put(t, Gradient{Batch: b})
			return nil
		}
		lb.Draw = Draw(e.Seed, t.Index.Step, t.Index.Batch)
		lo, hi := lb.Own()
		t.Note(Scores, float64(hi-lo)*float64(lb.N()-lb.Rows))
		lb.Step = t.Index.Step
		fillGradient(stream, lb, 0)
		r, err := l.Compute(stream, e.arena, lb)
		if err == nil {
			if err := r.Check(); err != nil {
				return fmt.Errorf("step %d: %w", t.Index.Step+1, err)
			}
		}
		if errors.Is(err, loss.ErrNotFinite) && (e.update.OnNaN == SkipOnNaN || e.update.OnNaN == RollbackOnNaN) {
			// The step goes on, with a gradient that no update will take for one: other ranks wait for this one.
			fillGradient(stream, lb, math.NaN())
			out.Put(t, Gradient{b, loss.Result{Sum: math.NaN(), Weight: weightOf(b)}, whole})
			return nil
		}
		if errors.Is(err, loss.ErrNotFinite) {
			return e.update.helped(fmt.Errorf("step %d: %w", t.Index.Step+1, e.notFinite(stream, b, err)))
		}
		var label *loss.LabelError
		if errors.As(err, &label) {
			return fmt.Errorf("step %d: %s: %s", t.Index.Step+1, cmp.Or(e.located(b, label.Row), "a row of another rank"), label.Why)
		}
		if err != nil {
			return err
		}
		out.Put(t, Gradient{b, r, whole})
		return nil
	})
	return out.Port
}

// Draw is the loss.Batch's of a step's batch.
func Draw(seed uint64, step, batch int) uint64 { return gpustage.RowKey(seed, step, int64(batch), -1) }

// fillGradient sets the gradient of all of a batch's parts.
func fillGradient(s gpustage.Stream, b *loss.Batch, value float64) {
	all := []gpustage.Tensor{b.Gradient}
	for _, p := range b.Parts {
		all = append(all, p.Gradient)
	}
	for _, x := range all {
		if x.Rows > 0 {
			s.Fill(x, value)
		}
	}
}

// weightOf is the weight of a batch's rows on this rank.
func weightOf(b *Batch) float64 { return weigh(len(b.Rows), b.Weights) }

func weigh(rows int, weights []float64) float64 {
	if weights == nil {
		return float64(rows)
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	return sum
}

// splits tells whether each rank computes the loss of its own rows alone.
func (e *Encoder) splits() (loss.RowSplitter, bool) {
	s, ok := e.loss.(loss.RowSplitter)
	return s, ok
}

// forLoss is a batch as a loss sees it, without what the model gives of it.
func (b *Batch) forLoss(m *transformer.Model) *loss.Batch {
	lb := &loss.Batch{
		Rows: len(b.Rows), Normalized: m.Head.Normalize, Rounded: m.Options.BF16, Owner: b.Owner, Texts: b.Texts, Weights: b.Weights, Labels: b.Labels, Scores: b.Scores, Teacher: b.Teacher,
		Dataset: b.Source, Ragged: slices.ContainsFunc(b.Columns, func(c dataset.Column) bool { return c.Ragged }),
	}
	if n := m.Config.Scorer.Scores(); n > 1 {
		lb.Layers = n
	}
	if !m.Config.Tokens.None() {
		lb.IDs, lb.Special = b.tokenIDs(), m.Config.Tokens.Special
	}
	return lb
}

// lossBatch is a batch as the loss sees it: all ranks' embeddings and texts, or this rank's alone. whole tells that the
// loss must be computed for all rows though some are other ranks'.
func (e *Encoder) lossBatch(b *Batch) (lb *loss.Batch, whole bool) {
	lb = b.forLoss(e.Model)
	n, at := b.N(), b.at
	if e.gathers() {
		g := b.Global
		at, lb.IDs = g.at, g.IDs
		lb.Rows, lb.Owner, lb.Texts, lb.Weights, lb.Labels, lb.Scores = g.Rows, g.Owner, g.Texts, g.Weights, g.Labels, g.Scores
		n = g.N()
		if _, ok := e.splits(); ok {
			lb.Only = &loss.Rows{Lo: b.First, Hi: b.First + len(b.Rows)}
		} else {
			whole = true
		}
	}
	for _, p := range e.parts {
		if !p.Tokens {
			lb.Embeddings, lb.Gradient = p.all.Span(0, n), p.dAll.Span(0, n)
			continue
		}
		x := loss.Part{Name: p.Name, X: p.all.Span(0, at(n)), Gradient: p.dAll.Span(0, at(n))}
		for i := range n + 1 {
			x.Cu = append(x.Cu, int32(at(i)))
		}
		lb.Parts = append(lb.Parts, x)
	}
	if e.guided.size > 0 {
		lb.Guide = e.guided.all.Span(0, n)
	}
	return lb, whole
}

// notFinite adds to a loss's error the sub-batch and the rows whose embeddings are NaN or infinite, or else the row whose loss is. Its
// cost does not matter.
func (e *Encoder) notFinite(s gpustage.Stream, b *Batch, cause error) error {
	part := e.parts[0]
	emb := part.emb.Span(0, part.at(b, b.N()))
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
			for _, v := range host[part.at(b, n)*emb.Cols : part.at(b, n+1)*emb.Cols] {
				if !finite(v) {
					row, _ := b.Origin(n)
					rows = append(rows, fmt.Sprintf("%v (%s)", b.Data.Locate(row-b.Offset), b.Column(n).Source))
					break
				}
			}
		}
		if len(rows) > 0 {
			more := ""
			if n := len(rows); n > 5 {
				rows, more = rows[:5], fmt.Sprintf(" and %d more", n-5)
			}
			return fmt.Errorf("%w; %w", loss.ErrNotFinite, &NotFiniteError{Sub: u, Rows: strings.Join(rows, ", ") + more})
		}
	}
	where, outputs, large := "", "embeddings", "loss.scale or the rows' weights"
	if b.Pairs {
		outputs, large = "scores of the model", "labels, scores or weights of the data"
	}
	var bad *loss.RowError
	if errors.As(cause, &bad) {
		if at := e.located(b, bad.Row); at != "" {
			where = ", first of " + at
		}
	}
	if b.Global != nil {
		return fmt.Errorf("%w%s; all %s of rank %d are finite: another rank's are not, or %s are too large", loss.ErrNotFinite, where, outputs, e.ranks.Rank(), large)
	}
	return fmt.Errorf("%w%s; all %s are finite: %s are too large", loss.ErrNotFinite, where, outputs, large)
}

// located is where a row of the batch that the loss was given stands in the data; "" for another rank's.
func (e *Encoder) located(b *Batch, row int) string {
	if e.gathers() {
		row -= b.First
	}
	if row < 0 || row >= len(b.Rows) {
		return ""
	}
	return fmt.Sprint(b.Data.Locate(b.Rows[row] - b.Offset))
}

// NotFiniteError names the first sub-batch with embeddings that are NaN or infinite.
type NotFiniteError struct {
	Sub  int
	Rows string
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("sub-batch %d has embeddings that are not finite: %s; a lower learning rate or gradient clipping may help", e.Sub, e.Rows)
}
