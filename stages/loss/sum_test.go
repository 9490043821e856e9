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
		if got, _ := compute(t, s, l, b); math.Abs(got-want) > 1e-12*want {
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
	if got, _ := download(s, b.Gradient); worst(got, want) > 1e-13 {
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
		"term 1, loss.MarginMSE: ":          func(*Batch) {}, // no teacher's scores
		"has no gradients for parts":        func(b *Batch) { b.Parts = make([]Part, 3) },
		"is asked for some rows of a batch": func(b *Batch) { b.Only = &Rows{0, 2} },
		"3 rows have 1 weights":             func(b *Batch) { b.Weights = []float64{1} },
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
	if _, ok := summed(t, Term{InfoNCE{}, 1}).(RowSplitter); ok {
		t.Error("a sum splits rows: its means would be those of a replica's rows")
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
