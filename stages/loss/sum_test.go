package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

func summed(t testing.TB, terms ...Term) Loss {
	t.Helper()
	l, err := Sum(terms...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// doubled counts by two for each row.
type doubled struct{ Loss }

func (l doubled) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	r, err := l.Loss.Compute(s, a, b)
	r.Weight *= 2
	return r, err
}

// A sum has each term's mean times its factor, whatever the terms are means over, and the gradient of that.
func TestSum(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(11, 12))
	nothing := Host(func(*Batch, [][]float32, [][]float32) (Result, error) { return Result{}, nil })
	terms := []Term{{InfoNCE{Scale: 3, MaskDuplicates: true}, 1}, {MarginMSE{}, 0.25}, {TeacherEmbedding{Metric: Cosine}, 2}, {CoSENT{Scale: 3}, 0}, {doubled{DistillKL{}}, 3}}
	for range 3 {
		b := ragged(t, s, rng)
		want := 0.0
		for _, term := range terms {
			mean, _ := compute(t, s, term.Loss, b)
			s.Fill(b.Gradient, 0)
			want += term.Factor * mean
		}
		l := summed(t, append(terms, Term{summed(t, Term{nothing, 7}), 5})...)
		if got, _ := compute(t, s, l, b); !(math.Abs(got-want) <= 1e-12*want) {
			t.Errorf("%v, want %v", got, want)
		}
		s.Fill(b.Gradient, 0)
		checkGradient(t, s, l, b, 1e-7)
	}
}

// It adds to a gradient, and one term of factor 1 is that term.
func TestSumOfOne(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 5)), 6, 3, 4)
	l := InfoNCE{Scale: 2}
	for range 2 { // into what is there
		r, err := l.Compute(s, newArena(t, s, 1<<20), b)
		if err != nil || r.Sum == 0 {
			t.Fatal(r, err)
		}
	}
	want, _ := download(s, b.Gradient)
	s.Fill(b.Gradient, 0)
	for range 2 {
		if _, err := summed(t, Term{l, 1}).Compute(s, newArena(t, s, 1<<20), b); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := download(s, b.Gradient); !(worst(got, want) <= 1e-13) {
		t.Errorf("gradients differ by %v", worst(got, want))
	}
}

func TestSumErrors(t *testing.T) {
	for want, terms := range map[string][]Term{
		"a sum of no losses":                      nil,
		"term 1 has no loss":                      {{InfoNCE{}, 1}, {nil, 1}},
		"term 0, loss.InfoNCE, has the factor -1": {{InfoNCE{}, -1}},
		"has the factor NaN":                      {{InfoNCE{}, math.NaN()}},
		"has the factor +Inf":                     {{InfoNCE{}, math.Inf(1)}},
	} {
		if _, err := Sum(terms...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s, _ := ref.New().OpenStream()
	for want, change := range map[string]func(*Batch){
		"term 1, loss.MarginMSE: ":   func(*Batch) {}, // no teacher's scores
		"has no gradients for parts": func(b *Batch) { b.Parts = make([]Part, 3) },
		"3 rows have 1 weights":      func(b *Batch) { b.Weights = []float64{1} },
	} {
		b := newBatch(t, s, gpustage.F32, 1, 3, 4, nil)
		change(b)
		a := newArena(t, s, 1<<20)
		if _, err := summed(t, Term{InfoNCE{}, 1}, Term{MarginMSE{}, 1}).Compute(s, a, b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if a.Used() != 0 {
			t.Errorf("%q: %d bytes of the arena were not given back", want, a.Used())
		}
	}
	b := newBatch(t, s, gpustage.F32, 1, 3, 4, nil)
	b.Only = &Rows{0, 2}
	whole := summed(t, Term{InfoNCE{}, 1}, Term{doubled{InfoNCE{}}, 1})
	if _, err := whole.Compute(s, newArena(t, s, 1<<20), b); err == nil || !strings.Contains(err.Error(), "is asked for some rows of a batch") {
		t.Error(err)
	}
	if _, err := summed(t, Term{InfoNCE{}, 1}, Term{lying{InfoNCE{}}, 1}).Compute(s, newArena(t, s, 1<<20), b); err == nil || !strings.Contains(err.Error(), "term 1, loss.lying, is a mean over rows (MeansRows), and its Result.Weight is 4 for rows that weigh 2") {
		t.Error(err)
	}
	if err := summed(t, Term{InfoNCE{}, 1}, Term{Triplet{Margin: -1}, 1}).(interface{ Check() error }).Check(); err == nil || !strings.Contains(err.Error(), "term 1, loss.Triplet: margin is -1") {
		t.Error(err)
	}
}

// lying says that it is a mean over rows, and is none.
type lying struct{ InfoNCE }

func (l lying) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	return doubled{l.InfoNCE}.Compute(s, a, b)
}

// Which sums split rows: those of means over rows. And what says that it is one has the weight of the rows that it is asked for.
func TestSumSplits(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(21, 22))
	wrapped, _ := Matryoshka(DistillKL{}, []int{2, 4}, []float64{0.5, 2}, 0)
	pairs := func() *Batch { // with labels, and no negatives
		b := randomBatch(t, s, gpustage.F64, rng, 5, 0, 4)
		b.Labels = []float64{0, 1, 1, 0, 1}
		return b
	}
	unweighted := func() *Batch { b := pairs(); b.Weights = nil; return b }
	taught := func() *Batch {
		b := ragged(t, s, rng)
		b.Weights = []float64{0.5, 0, 2, 1, 3}
		b.Labels = nil
		return b
	}
	single := func() *Batch {
		b := randomBatch(t, s, gpustage.F64, rng, 5, 0, 4)
		b.Embeddings, b.Gradient, b.Texts, b.Labels = b.Embeddings.Span(0, 5), b.Gradient.Span(0, 5), b.Texts[:5], []float64{0, 1, 1, 0, 2}
		return b
	}
	everywhere := func() *Batch { b := single(); b.Weights = nil; return b }
	grouped := func() *Batch {
		b := taught()
		e := tensor(t, s, gpustage.F64, b.N(), 1, nil)
		s.Copy(e, b.Embeddings.Columns(0, 1))
		b.Embeddings, b.Gradient = e, tensor(t, s, gpustage.F64, b.N(), 1, nil)
		return b
	}
	for _, c := range []struct {
		l     Loss
		batch func() *Batch
	}{
		{InfoNCE{}, taught}, {InfoNCE{Hardness: HardNegatives, HardnessStrength: 2}, taught}, {CosineSimilarity{}, pairs}, {Contrastive{}, pairs}, {Contrastive{Online: true}, unweighted},
		{Triplet{}, taught}, {MarginMSE{}, taught}, {DistillKL{}, taught}, {CoSENT{}, unweighted}, {TeacherEmbedding{}, taught}, {wrapped, taught},
		{GlobalOrthogonal{Mean: 1, SecondMoment: 1}, single}, {GlobalOrthogonal{Mean: 1, SecondMoment: 1}, taught}, {MegaBatchMargin{}, pairs},
		{BatchTriplet{}, single}, {BatchTriplet{Mode: SoftMargin}, single}, {BatchTriplet{Mode: SemiHard}, everywhere}, {BatchTriplet{Mode: All}, everywhere},
		{ByDataset{InfoNCE{}, DistillKL{}}, taught}, {Groups{Name: GroupCrossEntropy}, grouped}, {Groups{Name: GroupDistill}, grouped}, {Groups{Name: GroupBCE}, func() *Batch { b := grouped(); b.Scores = nil; return b }},
		{summed(t, Term{InfoNCE{}, 1}, Term{MarginMSE{}, 2}), taught},
	} {
		if _, ok := summed(t, Term{InfoNCE{}, 1}, Term{c.l, 1}).(RowSplitter); !ok {
			t.Errorf("a sum with %T %+v does not split rows", c.l, c.l)
		}
		b := c.batch()
		teacher := b.Teacher
		for _, rows := range []Rows{{0, 5}, {0, 2}, {1, 2}, {2, 2}, {2, 5}} {
			b.Only = &rows
			if teacher != nil {
				b.Teacher = teacher[4*rows.Lo : 4*rows.Hi]
			}
			want := 0.0
			for i := rows.Lo; i < rows.Hi; i++ {
				want += b.Weight(i)
			}
			r, err := c.l.Compute(s, newArena(t, s, 1<<20), b)
			if err != nil || r.Weight != want {
				t.Errorf("%T %+v: rows %v weigh %v (%v), want %v", c.l, c.l, rows, r.Weight, err, want)
			}
		}
	}
	nested, _ := Matryoshka(Groups{Name: GroupLambda}, []int{2, 4}, nil, 0)
	if _, ok := nested.(RowSplitter); !ok {
		t.Errorf("%T does not split rows, and the loss that it wraps does", nested)
	}
	for _, l := range []Loss{doubled{InfoNCE{}}, Groups{Name: GroupRankNet}, Groups{Name: GroupLambda}, ByDataset{InfoNCE{}, Groups{Name: GroupLambda}}, M3{}, nested} {
		if _, ok := summed(t, Term{InfoNCE{}, 1}, Term{l, 1}).(RowSplitter); ok {
			t.Errorf("a sum with %T splits rows: its mean would be that of a replica's rows", l)
		}
	}
}

// A reranker's distillation is the sum of its two parts.
func TestSumOfGroups(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(41, 42)), 5, 7, 1)
	for range b.N() - b.Rows {
		b.Scores = append(b.Scores, float64(len(b.Scores)%4))
	}
	want, gradient := compute(t, s, Groups{Name: GroupDistill}, b)
	s.Fill(b.Gradient, 0)
	got, same := compute(t, s, summed(t, Term{Groups{Name: GroupCrossEntropy}, 1}, Term{Groups{Name: GroupKL}, 1}), b)
	if !(math.Abs(got-want) <= 1e-12*want) || !(worst(same, gradient) <= 1e-14) || !(worst(gradient, make([]float64, len(gradient))) >= 0.01) {
		t.Errorf("%v, want %v; gradients differ by %v", got, want, worst(same, gradient))
	}
}

// naively is the weighted sum over rows of InfoNCE, twice the divergence from a teacher and a half of MarginMSE, of embeddings, by loops.
func naively(b *Batch, x []float64, scale, student float64) float64 {
	e := b.Embeddings.Cols
	dot := func(i, j int) (v float64) {
		for k := range e {
			v += x[i*e+k] * x[j*e+k]
		}
		return v
	}
	cosine := func(i, j int) float64 { return dot(i, j) / math.Sqrt(dot(i, i)*dot(j, j)) }
	total := 0.0
	for i := range b.Rows {
		own := []int{b.Rows + i}
		for k, o := range b.Owner {
			if int(o) == i {
				own = append(own, 2*b.Rows+k)
			}
		}
		all := 0.0
		for n := b.Rows; n < b.N(); n++ {
			all += math.Exp(scale * cosine(i, n))
		}
		l := math.Log(all) - scale*cosine(i, own[0])
		p, q := 0.0, 0.0
		for _, n := range own {
			p, q = p+math.Exp(b.Scores[n-b.Rows]), q+math.Exp(cosine(i, n)/student)
		}
		for k, n := range own {
			at := math.Exp(b.Scores[n-b.Rows]) / p
			l += 2 * student * student * at * (math.Log(at) - (cosine(i, n)/student - math.Log(q)))
			if k > 0 {
				d := dot(i, own[0]) - dot(i, n) - (b.Scores[own[0]-b.Rows] - b.Scores[n-b.Rows])
				l += 0.5 * d * d / float64(len(own)-1)
			}
		}
		total += b.Weight(i) * l
	}
	return total
}

// Rows that are shared out give the whole: the sum of their terms and gradients is what loops over all rows come to.
func TestSumOfRows(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(31, 32))
	const scale, student = 3, 0.5
	l := summed(t, Term{InfoNCE{Scale: scale}, 1}, Term{DistillKL{Metric: Cosine, StudentTemperature: student}, 2}, Term{MarginMSE{}, 0.5})
	for range 3 {
		b := ragged(t, s, rng)
		for i := range b.Rows { // each has a negative
			b.Owner[i] = int32(i)
		}
		b.Weights = []float64{0.5, 0, 2, 1, 3}
		x := gpustage.Slice[float64](b.Embeddings)
		want, weight := naively(b, x, scale, student), 6.5
		for _, cuts := range [][]int{{0, 5}, {0, 2, 5}, {0, 1, 1, 4, 5}, {0, 0, 3, 5, 5}} {
			s.Fill(b.Gradient, 0)
			var got Result
			for k := range len(cuts) - 1 {
				own := *b
				own.Only, own.Teacher = &Rows{cuts[k], cuts[k+1]}, nil
				r, err := l.Compute(s, newArena(t, s, l.Memory(b.Size())), &own)
				if err != nil {
					t.Fatal(err)
				}
				got.Sum, got.Weight = got.Sum+r.Sum, got.Weight+r.Weight
			}
			if !(math.Abs(got.Sum-want) <= 1e-12*want) || got.Weight != weight {
				t.Errorf("%v: %+v, want %v of %v", cuts, got, want, weight)
			}
			grad, err := download(s, b.Gradient)
			if err != nil {
				t.Fatal(err)
			}
			for i := range x {
				const h = 1e-5
				was := x[i]
				x[i] = was + h
				up := naively(b, x, scale, student)
				x[i] = was - h
				down := naively(b, x, scale, student)
				x[i] = was
				if want := (up - down) / (2 * h); !(math.Abs(want-grad[i]) <= 1e-7*(1+math.Abs(want))) {
					t.Errorf("%v: element %d: gradient %v, difference quotient %v", cuts, i, grad[i], want)
				}
			}
		}
	}
}

// A batch of a dataset that there is no loss for is an error.
func TestByDatasetBeyond(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, at := range []int{-1, 1} {
		b := newBatch(t, s, gpustage.F64, 0, 1, 1, []float64{1, 1})
		b.Dataset = at
		if _, err := (ByDataset{InfoNCE{}}).Compute(s, nil, b); err == nil || err.Error() != fmt.Sprintf("a batch is of dataset %d, and there are losses for 1", at) {
			t.Errorf("dataset %d: %v", at, err)
		}
	}
}

func ExampleSum() {
	s, _ := ref.New().OpenStream()
	emb, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	grad, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	s.CopyIn(emb, gpustage.Bytes([]float64{1, 1, -1, 1, 1, 0, 0, 1}))
	b := &Batch{Rows: 2, Embeddings: emb, Gradient: grad, Texts: uniqueTexts(4)}
	l, _ := Sum(Term{InfoNCE{Scale: 1}, 1}, Term{InfoNCE{Scale: 2}, 0.5})
	a, _ := gpustage.NewArena(s.Device(), l.Memory(b.Size()))
	r, err := l.Compute(s, a, b)
	fmt.Printf("%.4f %v\n", r.Sum/r.Weight, err)
	// Output: 0.6430 <nil>
}
