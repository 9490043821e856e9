package loss

import (
	"errors"
	"math"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// The weights of a long list, whose powers of two no float64 has, are those that sum to 1: computed here as parts of the first one's.
func TestPListMLELong(t *testing.T) {
	for _, n := range []int{3, 126, 127, 128, 200, 1100, 1500} {
		s, l, d := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range s {
			s[i] = math.Sin(float64(3 * i))
		}
		got, weight := Groups{Name: GroupPListMLE}.ofGroup(s, l, d)
		total, want := 0.0, 0.0
		share := func(i int) float64 { return math.Exp2(float64(-i-1)) - math.Exp2(float64(-n)) } // (2^(n-i-1) - 1) / 2^n
		for i := range s {
			total += share(i)
		}
		for i := range s {
			rest := 0.0
			for _, v := range s[i:] {
				rest += math.Exp(v)
			}
			want -= share(i) / total * (s[i] - math.Log(rest))
		}
		sum := 0.0
		for _, v := range d {
			sum += v
		}
		// The peer divides by the sum of weights and 1e-10: of a list of 3 that is 2.5e-11 of it.
		if !(math.Abs(got-want) <= 1e-10*want) || weight != 1 || !(math.Abs(sum) < 1e-12) {
			t.Errorf("%d documents: the loss is %v, want %v; its derivatives' sum is %g", n, got, want, sum)
		}
	}
}

// Documents without any gain, labels of 0 and below, make a loss of 0 and no NaN, whichever pairs it takes.
func TestLambdaWithoutGain(t *testing.T) {
	for _, labels := range [][]float64{{0, 0, 0}, {-1, -2, 0}, {-3, -1, -2}} {
		for _, scheme := range append([]Scheme{""}, Schemes...) {
			s, d := []float64{0.5, -1, 2}, make([]float64, 3)
			sum, pairs := Groups{Name: GroupLambda, Scheme: scheme}.ofGroup(s, labels, d)
			if sum != 0 || d[0] != 0 || d[1] != 0 || d[2] != 0 || math.IsNaN(pairs) {
				t.Errorf("labels %v, %s: the loss is %v of %v pairs, its gradient %v", labels, scheme, sum, pairs, d)
			}
		}
	}
}

// Scores so far apart that exp of them is none, or 0: each loss is the difference by which the wrong document is ahead, with the slope of a straight line.
func TestScoresFarApart(t *testing.T) {
	const far = 2e4
	for _, c := range []struct {
		l          Groups
		slope, per float64
	}{
		{Groups{Name: GroupCrossEntropy}, 1, far}, {Groups{Name: GroupListNet}, 1, far}, {Groups{Name: GroupListMLE}, 1, far}, {Groups{Name: GroupPListMLE}, 1, far},
		{Groups{Name: GroupRankNet}, 1 / math.Ln2, far / math.Ln2}, {Groups{Name: GroupBCE}, 0.5, far}, {Groups{Name: GroupMNRL, Activation: Identity, Scale: 0.5}, 0.5, far / 2},
	} {
		labels := []float64{1, 0}
		if c.l.Name == GroupListNet {
			labels[0] = 1000 // softmax of which is 1 and 0
		}
		d := make([]float64, 2)
		sum, _ := c.l.ofGroup([]float64{-far, 0}, labels, d)
		if c.l.Name == GroupBCE { // each document by itself
			sum, _ = c.l.ofGroup([]float64{-far, far}, labels, d)
		}
		if !(math.Abs(sum-c.per) <= 1e-9*c.per) || !(worst(d, []float64{-c.slope, c.slope}) <= 1e-9) {
			t.Errorf("%s: the loss is %v, want %v; the gradient %v, want %v up and down", c.l.Name, sum, c.per, d, c.slope)
		}
	}
}

// Distances of near texts, which are computed anew from differences, have the gradient that the loss has there: once, whichever mode meets them, as positives
// and as negatives.
func TestNearTriplets(t *testing.T) {
	s, _ := ref.New().OpenStream()
	x := []float64{
		1, 0.2, -0.3, 1.02, 0.23, -0.33, // alike, and near
		-0.5, 1, 0.4, 1.03, 0.15, -0.28, // alike; the second is near those before
		0.1, -0.9, 0.7,
	}
	for _, mode := range []BatchMode{Hard, SoftMargin, SemiHard, All} {
		b := &Batch{Rows: 5, Embeddings: tensor(t, s, gpustage.F64, 5, 3, x), Gradient: tensor(t, s, gpustage.F64, 5, 3, make([]float64, 15)), Texts: make([]TextID, 5), Labels: []float64{0, 0, 1, 1, 1}}
		checkGradient(t, s, BatchTriplet{Mode: mode, Margin: 1}, b, 1e-7)
		if mode == Hard || mode == SoftMargin { // the others have no weights of rows
			b.Weights = []float64{0.5, 0, 2, 0.03, 1}
			checkGradient(t, s, BatchTriplet{Mode: mode, Margin: 1}, b, 1e-7)
		}
	}
}

// The first two texts are 2^-12 apart, less than what rounding leaves of their lengths' difference in float32, and both 4 from the third.
func TestNearTripletsOfFloat32(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const apart = 1. / (1 << 12)
	b := &Batch{Rows: 3, Embeddings: tensor(t, s, gpustage.F32, 3, 2, []float64{1, 1, 1 + apart, 1, 1, -3}), Gradient: tensor(t, s, gpustage.F32, 3, 2, nil), Texts: uniqueTexts(3), Labels: []float64{0, 0, 1}}
	if got, _ := compute(t, s, BatchTriplet{Margin: 4}, b); !(math.Abs(got-2*apart/3) <= 1e-6) {
		t.Errorf("loss %v, want %v", got, 2*apart/3)
	}
}

// A triplet that is solved just so, by the margin and no more, is none of those that All is the mean over: the peer counts what is above 1e-16.
func TestTripletsSolvedByTheMargin(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := &Batch{Rows: 4, Embeddings: tensor(t, s, gpustage.F64, 4, 2, []float64{1, 0, 1, 0, 0, 1, 0, 1}), Gradient: tensor(t, s, gpustage.F64, 4, 2, nil), Texts: uniqueTexts(4), Labels: []float64{0, 0, 1, 0}}
	if got, _ := compute(t, s, BatchTriplet{Mode: All, Metric: Cosine, Margin: 1}, b); got != (1+1+2+2)/4. {
		t.Errorf("loss %v, want 1.5: the mean over the four triplets of the last text", got)
	}
}

// Where a query is its positive, the distance of 0 has no slope, as PyTorch's norm has none there, and the negative's gradient is all there is.
func TestTripletOfEqualTexts(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, c := range []struct {
		metric      Metric
		margin      float64
		first, last float64 // the query's gradient
	}{{Euclidean, 6, 0.6, 0.8}, {Manhattan, 8, 1, 1}} {
		b := newBatch(t, s, gpustage.F64, 1, 1, 2, []float64{1, 2, 1, 2, 4, 6})
		value, got := compute(t, s, Triplet{Metric: c.metric, Margin: c.margin}, b)
		if want := []float64{c.first, c.last, 0, 0, -c.first, -c.last}; value != 1 || !(worst(got, want) <= 1e-15) {
			t.Errorf("%s: loss %v, want 1; gradient %v, want %v", c.metric, value, got, want)
		}
	}
}

// A text that is where its teacher has it is at rest.
func TestTaughtText(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := newBatch(t, s, gpustage.F64, 0, 1, 2, []float64{1, 2, 4, 6})
	b.Teacher = []float32{1, 2}
	value, got := compute(t, s, TeacherEmbedding{Metric: Euclidean}, b)
	if want := []float64{0, 0, 0.3, 0.4}; value != 2.5 || !(worst(got, want) <= 1e-15) {
		t.Errorf("loss %v, want 2.5; gradient %v, want %v", value, got, want)
	}
}

// With a teacher's embeddings each number of dimensions learns from as many of the teacher's features of its own row.
func TestMatryoshkaTeacher(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const rows, e = 3, 4
	x, teacher := make([]float64, rows*e), make([]float32, rows*e)
	for i := range x {
		x[i], teacher[i] = math.Sin(float64(7*i+1)), float32(math.Cos(float64(5*i)))
	}
	l, err := Matryoshka(TeacherEmbedding{}, []int{4, 2, 3}, []float64{1, 0.5, 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &Batch{Rows: rows, Embeddings: tensor(t, s, gpustage.F64, rows, e, x), Gradient: tensor(t, s, gpustage.F64, rows, e, make([]float64, rows*e)), Texts: make([]TextID, rows), Teacher: teacher}
	want := 0.0
	for dim, w := range map[int]float64{4: 1, 2: 0.5, 3: 2} {
		for i := range rows {
			norm := 0.0
			for _, v := range x[i*e : i*e+dim] {
				norm += v * v
			}
			for k := range dim {
				d := x[i*e+k]/math.Sqrt(norm) - float64(teacher[i*e+k])
				want += w * d * d / float64(dim) / rows
			}
		}
	}
	if got, _ := compute(t, s, l, b); !(math.Abs(got-want) <= 1e-12*want) {
		t.Errorf("the loss is %v, want %v", got, want)
	}
	s.Fill(b.Gradient, 0)
	checkGradient(t, s, l, b, 1e-8)
}

// What Matryoshka takes besides the loss in it is what it says.
func TestMatryoshkaMemory(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const n, e = 40, 64
	l, err := Matryoshka(nothing{}, []int{e, e / 2}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &Batch{Rows: n / 2, Embeddings: tensor(t, s, gpustage.F64, n, e, make([]float64, n*e)), Gradient: tensor(t, s, gpustage.F64, n, e, make([]float64, n*e)), Texts: make([]TextID, n)}
	a := newArena(t, s, 1<<20)
	if _, err := l.Compute(s, a, b); err != nil {
		t.Fatal(err)
	}
	if said := l.Memory(b.Size()); a.Peak() > said || said > a.Peak()+3*64 {
		t.Errorf("it takes %d bytes, and says %d", a.Peak(), said)
	}
}

// nothing is a loss of 0 that takes no memory.
type nothing struct{}

func (nothing) Compute(_ gpustage.Stream, _ *gpustage.Arena, b *Batch) (Result, error) {
	return Result{Weight: float64(b.Rows)}, nil
}

func (nothing) Memory(Size) int { return 0 }

// More pairs than are compared at once are all compared, and have their gradients, in the memory of as many as are.
func TestManyPairs(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const rows, e = 2*chunk + 3, 2
	x, labels := make([]float64, 2*rows*e), make([]float64, rows)
	for i := range x {
		x[i] = math.Sin(float64(3*i + 1))
	}
	want, slope := 0.0, make([]float64, len(x)) // of (|x - y|^2 of a pair alike, 0 of one that is not, as these are far) / 2, the mean
	for i := range rows {
		labels[i] = float64(i % 2)
		for k := range e {
			q, p := i*e+k, (rows+i)*e+k
			d := x[q] - x[p] + 1e-6 // PyTorch's pairwise_distance
			want += labels[i] * d * d / 2 / rows
			slope[q], slope[p] = labels[i]*d/rows, -labels[i]*d/rows
		}
	}
	l := Contrastive{Metric: Euclidean, Margin: 1e-9}
	b := &Batch{Rows: rows, Embeddings: tensor(t, s, gpustage.F64, 2*rows, e, x), Gradient: tensor(t, s, gpustage.F64, 2*rows, e, make([]float64, len(x))), Texts: make([]TextID, 2*rows), Labels: labels}
	a := newArena(t, s, l.Memory(b.Size()))
	r, err := l.Compute(s, a, b)
	if err != nil || !(math.Abs(r.Mean()-want) <= 1e-12*want) {
		t.Fatalf("the loss is %v, want %v; %v", r.Mean(), want, err)
	}
	for i, g := range gpustage.Slice[float64](b.Gradient) {
		if !(math.Abs(g/r.Weight-slope[i]) <= 1e-15) {
			t.Fatalf("element %d: gradient %v, want %v", i, g/r.Weight, slope[i])
		}
	}
}

// |cos + sin| has no slope where it is 0, as PyTorch's abs has none: sparse embeddings without a feature in common are there. The pair is the one that shall be
// nearer than the other.
func TestAngleOfNothing(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for name, x := range map[string][]float64{
		"disjoint": {0, 3, 0, 0, 2, 0, 1, 0, 0.5, 0, 0, 0, 1, 0, 4, 0},
		"cancels":  {1, 1, 1, 1, 2, 1, 1, 0.5, 1, -1, 1, -1, 1, -1, 3, 1},
	} {
		b := &Batch{Rows: 2, Embeddings: tensor(t, s, gpustage.F64, 4, 4, x), Gradient: tensor(t, s, gpustage.F64, 4, 4, nil), Texts: uniqueTexts(4), Labels: []float64{1, 0}}
		if _, got := compute(t, s, CoSENT{Metric: Angle, Scale: 3}, b); worst(got[:4], make([]float64, 4)) != 0 || worst(got[8:12], make([]float64, 4)) != 0 || !(worst(got[4:8], make([]float64, 4)) > 0.01) {
			t.Errorf("%s: the gradient is %v", name, got)
		}
		s.Fill(b.Gradient, 0)
		checkGradient(t, s, CoSENT{Metric: Angle, Scale: 3}, b, 1e-5) // the loss is bent there
	}
}

// What is infinite is an error also where it costs nothing: a negative infinitely far, a reranker's score by its sigmoid; and a lexical weight that is no
// number, which is not more than 0, is none that can be left out.
func TestNotFiniteAtNoCost(t *testing.T) {
	s, _ := ref.New().OpenStream()
	far := math.Inf(-1)
	pairs := newBatch(t, s, gpustage.F64, 1, 2, 2, []float64{1, 2, 1, 3, 1, 2, 1, 3, 4, 6, 4, far})
	scores, _ := groupBatch(t, s, gpustage.F64, []int{2, 2}, []float64{1, 2, 3, far}, make([]float64, 4))
	tokens := func(weight, second float64) *Batch { // of the last sequence
		return m3Batch(t, s, gpustage.F64, 2, 1, 1, []float64{1, 2, 3, 4}, []float64{1, 1, 1, weight, second}, make([]float64, 5), []int{1, 1, 1, 2}, []int32{5, 6, 7, 8, 8})
	}
	for _, c := range []struct {
		l Loss
		b *Batch
	}{
		{Triplet{}, pairs}, {Triplet{Metric: Manhattan}, pairs}, {CrossEntropy{Metric: Dot}, pairs}, {Groups{Name: GroupMSE, Activation: Sigmoid}, scores},
		{Groups{Name: GroupADRMSE}, scores}, {Groups{Name: GroupMNRL}, scores}, {M3{Parts: []string{SparsePart}}, tokens(math.NaN(), 1)}, {M3{Parts: []string{SparsePart}}, tokens(1, math.Inf(1))},
	} {
		var row *RowError
		if _, err := c.l.Compute(s, newArena(t, s, c.l.Memory(c.b.Size())), c.b); !errors.As(err, &row) || row.Row != 1 {
			t.Errorf("%T %+v: %v", c.l, c.l, err)
		}
	}
	inferred := tokens(math.NaN(), 1)
	inferred.Texts = nil
	a := newArena(t, s, M3{}.Memory(inferred.Size()))
	err := Fuse(s, a, inferred, map[string]float64{SparsePart: 1}, func(int, []float64) error { return nil })
	if err == nil || err.Error() != "sequence 3 of the batch has a lexical weight of NaN" {
		t.Error(err)
	}
}
