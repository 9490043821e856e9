package stages_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

// ragged gives rows 0 to 3 negatives, of two columns, with labels, scores, teachers' embeddings and weights, some of them 0.
func ragged(s *dataset.Source) {
	s.Negatives, s.NegativesPerQuery = []string{"negative", "list"}, dataset.AllNegatives
	s.Label, s.Scores, s.Teacher, s.Weight = "label", []string{"both"}, "teacher", "weight"
}

// everything is a loss of all that a batch says: which document belongs to which row, its score, its row's label, its weight, and
// the teacher's embedding of the rows that are asked for.
type everything struct{}

func (l everything) terms(b *loss.Batch, x, g [][]float32) (loss.Result, error) {
	if b.Labels == nil || b.Scores == nil || len(b.Teacher) == 0 {
		return loss.Result{}, fmt.Errorf("labels %v, scores %v, teacher %v", b.Labels, b.Scores, b.Teacher)
	}
	lo, hi := b.Own()
	d := len(b.Teacher) / (hi - lo)
	var r loss.Result
	term := func(row, document int) {
		if row < lo || row >= hi {
			return
		}
		w := b.Weight(row) * b.Labels[row] * (1 + b.Scores[document-b.Rows])
		for j := range x[row] {
			t := float64(b.Teacher[(row-lo)*d+j%d])
			r.Sum += w * t * float64(x[row][j]) * float64(x[document][j])
			g[row][j] += float32(w * t * float64(x[document][j]))
			g[document][j] += float32(w * t * float64(x[row][j]))
		}
	}
	for i := range b.Rows {
		term(i, b.Rows+i)
	}
	for k, o := range b.Owner {
		term(int(o), 2*b.Rows+k)
	}
	for i := lo; i < hi; i++ {
		r.Weight += b.Weight(i)
	}
	return r, nil
}

func (l everything) Compute(s gpustage.Stream, a *gpustage.Arena, b *loss.Batch) (loss.Result, error) {
	return loss.Host(l.terms).Compute(s, a, b)
}
func (everything) Memory(z loss.Size) int { return loss.Host(nil).Memory(z) }
func (everything) SplitsRows()            {}

// Ragged negatives, labels, scores and teachers' embeddings reach the loss in one order, however many ranks and sub-batches there are:
// the gradient is the single process's, computed plainly.
func TestShapesOnRanks(t *testing.T) {
	t.Parallel()
	matryoshka, err := loss.Matryoshka(loss.InfoNCE{MaskDuplicates: true}, []int{32, 8}, []float64{1, 0.5}, 0)
	if err != nil {
		t.Fatal(err)
	}
	losses := map[string]loss.Loss{
		"infonce": loss.InfoNCE{MaskDuplicates: true, Directions: loss.Directions}, "everything": everything{},
		"hardness":   loss.InfoNCE{MaskDuplicates: true, Hardness: loss.InBatchNegatives, HardnessStrength: 5},
		"margin mse": loss.MarginMSE{}, "kl": loss.DistillKL{Metric: loss.Cosine, Temperature: 0.2}, "angle": loss.CoSENT{Metric: loss.Angle}, "matryoshka": matryoshka,
	}
	for turn, name := range slices.Sorted(maps.Keys(losses)) {
		l := losses[name]
		base := goldenRun{source: ragged, loss: l, dropout: 0.1, globalSize: 13, accumulate: 2, maxSteps: 1, optimizer: optim.SGD{}}
		if name == "angle" { // a loss of the batch as a whole, in which rows have no weights
			base.source = func(s *dataset.Source) {
				ragged(s)
				s.Weight = ""
			}
		}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		if name == "everything" { // computes in f32 on the host
			truth.device, truth.dtype = nil, gpustage.F32
		}
		want := truth.run(t)
		for i, c := range []goldenRun{
			{},
			{size: stages.Size{Rows: 3}},
			{size: stages.Size{Tokens: 90}, ranks: 3},
			{size: stages.Size{Rows: 5}, ranks: 2, budget: -1},
			{size: stages.Size{Rows: 7}, ranks: 4, shards: 2, exchange: stages.Exchanging{Early: true, Streamed: true}},
			{size: stages.Size{Tokens: 200}, ranks: 8},
		} {
			if testing.Short() && (i+turn)%3 != 0 { // the race detector sees each loss in a third of the cases, and each case with a third of the losses
				continue
			}
			c.source, c.loss, c.dropout, c.globalSize, c.accumulate, c.maxSteps, c.optimizer = base.source, base.loss, base.dropout, base.globalSize, base.accumulate, 1, base.optimizer
			got := c.run(t)
			where, e := gradientError(want.model.Layout, got.grad, want.grad)
			if !(e <= 1e-5) {
				t.Errorf("%s, case %d, %d ranks: %s is off by %.3g", name, i, c.ranks, where, e)
			}
			if w := want.steps[0].Loss; !(math.Abs(got.steps[0].Loss-w) <= 1e-5*math.Abs(w)) {
				t.Errorf("%s, case %d, %d ranks: loss %v, want %v", name, i, c.ranks, got.steps[0].Loss, w)
			}
			if c.ranks > 1 {
				checkTraffic(t, fmt.Sprintf("%s, case %d", name, i), got)
			}
		}
	}
}

// SimCSE: the same text twice, embedded under two dropout masks, is a pair. Whatever the ranks and sub-batches, the masks are the row's
// and the column's, and the gradient is the plain one's.
func TestSimCSE(t *testing.T) {
	twice := func(s *dataset.Source) { s.Positive = s.Query }
	base := goldenRun{source: twice, loss: loss.InfoNCE{MaskDuplicates: true}, dropout: 0.1, globalSize: 13, accumulate: 2, maxSteps: 1, optimizer: optim.SGD{}}
	truth := base
	truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
	want := truth.run(t)
	for i, c := range []goldenRun{{size: stages.Size{Rows: 3}}, {size: stages.Size{Tokens: 60}, ranks: 3, budget: -1}} {
		c.source, c.loss, c.dropout, c.globalSize, c.accumulate, c.maxSteps, c.optimizer = twice, base.loss, 0.1, 13, 2, 1, base.optimizer
		if where, e := gradientError(want.model.Layout, c.run(t).grad, want.grad); !(e <= 1e-5) {
			t.Errorf("case %d: %s is off by %.3g", i, where, e)
		}
	}
	base.dropout = 0 // then both embeddings of a text are the same
	if with, without := want.steps[0].Loss, base.run(t).steps[0].Loss; !(with > without+0.01) {
		t.Errorf("loss %v with dropout, %v without", with, without)
	}
}

// The losses of labelled pairs and texts, with sub-batches that are replayed and on three ranks with unequal rows, are the plain ones.
func TestLabelledLossesOnRanks(t *testing.T) {
	t.Parallel()
	pairs := func(s *dataset.Source) { s.Label = "label" }
	texts := func(s *dataset.Source) { s.Positive, s.Label = "", "label" }
	binary := func(s *dataset.Source) { s.Label = "binary" }
	taught := func(s *dataset.Source) { s.Teacher = "teacher" }
	short, err := loss.Matryoshka(loss.TeacherEmbedding{Metric: loss.Cosine}, []int{3}, nil, 0) // as many features as the teacher's
	if err != nil {
		t.Fatal(err)
	}
	plain := func(*dataset.Source) {}
	triples := func(s *dataset.Source) { s.Negatives = []string{"negative"} }
	for i, c := range []struct {
		source func(*dataset.Source)
		loss   loss.Loss
	}{
		{pairs, loss.CoSENT{}}, {pairs, loss.CosineSimilarity{}}, {pairs, loss.Contrastive{}}, {binary, loss.Contrastive{Online: true}}, {taught, short},
		{triples, loss.Triplet{Metric: loss.Cosine, Margin: 0.2}}, {texts, loss.BatchTriplet{Mode: loss.Hard}}, {texts, loss.BatchTriplet{Mode: loss.SoftMargin, Metric: loss.Cosine}},
		{texts, loss.BatchTriplet{Mode: loss.SemiHard}}, {texts, loss.BatchTriplet{Mode: loss.All}},
		{texts, loss.GlobalOrthogonal{Mean: 1, SecondMoment: 1}}, {triples, loss.GlobalOrthogonal{SecondMoment: 1, AddColumns: true}}, {plain, loss.MegaBatchMargin{PositiveMargin: 0.8, NegativeMargin: 0.3}},
	} {
		if testing.Short() && i%4 != 0 { // ranks meet in these as in the others
			continue
		}
		base := goldenRun{source: c.source, loss: c.loss, globalSize: 13, accumulate: 2, maxSteps: 1, optimizer: optim.SGD{}}
		truth := base
		truth.device, truth.dtype, truth.budget = ref.New(), gpustage.F64, -1
		want := truth.run(t)
		for i, r := range []goldenRun{{size: stages.Size{Rows: 3}}, {size: stages.Size{Tokens: 90}, ranks: 3}} {
			r.source, r.loss, r.globalSize, r.accumulate, r.maxSteps, r.optimizer = base.source, base.loss, 13, 2, 1, base.optimizer
			got := r.run(t)
			if where, e := gradientError(want.model.Layout, got.grad, want.grad); !(e <= 2e-5) {
				t.Errorf("%T %+v, case %d: %s is off by %.3g", c.loss, c.loss, i, where, e)
			}
			for what, v := range map[string][2]float64{"loss": {got.steps[0].Loss, want.steps[0].Loss}, "gradient norm": {got.steps[0].GradNorm, want.steps[0].GradNorm}} {
				if !(math.Abs(v[0]-v[1]) <= 2e-5*math.Abs(v[1])) || v[1] == 0 {
					t.Errorf("%T %+v, case %d: %s %v, want %v", c.loss, c.loss, i, what, v[0], v[1])
				}
			}
		}
	}
}
