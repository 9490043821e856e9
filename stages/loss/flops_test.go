package loss

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// Against sentence-transformers' SpladeLoss of four losses: values, gradients, what is added, and how many features are active.
func TestGoldenFlops(t *testing.T) {
	g := goldens.Load(t, "loss/splade")
	var meta struct {
		Rows, Size     int
		QueryActive    float64 `json:"query_active"`
		DocumentActive float64 `json:"document_active"`
		Cases          []struct {
			Name, Base  string
			Loss, Added float64
			Options     struct {
				Document      float64 `json:"document_regularizer_weight"`
				Query         float64 `json:"query_regularizer_weight"`
				DocumentAbove int     `json:"document_regularizer_threshold"`
				QueryAbove    int     `json:"query_regularizer_threshold"`
				Together      bool    `json:"use_document_regularizer_only"`
			}
		}
	}
	g.Meta(t, &meta)
	bases := map[string]RowMean{
		"mnrl": InfoNCE{Scale: 1, Dot: true}, "margin_mse": MarginMSE{Metric: Dot}, "distill_kl": DistillKL{Metric: Dot, Temperature: 2}, "triplet": Triplet{},
	}
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, x := range []struct {
		d     gpustage.Device
		dtype gpustage.DType
		limit float64
	}{{ref.New(), gpustage.F64, 1e-11}, {fast, gpustage.F32, 1e-5}} {
		s, err := x.d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range meta.Cases {
			o := c.Options
			l := Flops{Loss: bases[c.Base], Query: o.Query, Document: o.Document, Together: o.Together, QueryAbove: o.QueryAbove, DocumentAbove: o.DocumentAbove}
			b := newBatch(t, s, x.dtype, 1, meta.Rows, meta.Size, g.F64(t, "x"))
			b.Scores = g.F64(t, "scores")
			r, err := l.Compute(s, newArena(t, s, l.Memory(b.Size())), b)
			if err != nil {
				t.Fatal(err)
			}
			if d := math.Abs(r.Mean()-c.Loss) / max(1, c.Loss); !(d <= x.limit) {
				t.Errorf("%s %s: loss %v, want %v", c.Name, x.dtype, r.Mean(), c.Loss)
			}
			grad, err := download(s, b.Gradient)
			if err != nil {
				t.Fatal(err)
			}
			for i := range grad {
				grad[i] /= r.Weight
			}
			if d := worst(grad, g.F64(t, c.Name)); !(d <= x.limit) {
				t.Errorf("%s %s: gradient error %.3g", c.Name, x.dtype, d)
			}
			p := r.Sparsity
			if d := math.Abs(p.Added - c.Added); !(d <= x.limit) || p.QueryActive != meta.QueryActive || p.DocumentActive != meta.DocumentActive {
				t.Errorf("%s %s: %+v, want %v added, %v and %v active", c.Name, x.dtype, *p, c.Added, meta.QueryActive, meta.DocumentActive)
			}
		}
	}
	if len(meta.Cases) != 16 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// sparse is a batch of embeddings that are not negative, with ragged negatives and weights, one of which is 0.
func sparse(t testing.TB, s gpustage.Stream, d gpustage.DType) *Batch {
	b := randomBatch(t, s, d, rand.New(rand.NewPCG(31, 32)), 5, 4, 7)
	b.Weights[2] = 0
	vs, err := download(s, b.Embeddings)
	if err != nil {
		t.Fatal(err)
	}
	for i := range vs {
		vs[i] = max(0, vs[i])
	}
	gpustage.Upload(s, b.Embeddings, vs)
	return b
}

// With weights and ragged negatives the gradient is that of the value, where embeddings are not 0, and splitting rows among ranks changes neither: the
// parts of the rows add up to the whole.
func TestFlopsSplits(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, l := range []Flops{
		{Loss: InfoNCE{Scale: 1, Dot: true}, Query: 0.5, Document: 2},
		{Loss: InfoNCE{Scale: 1, Dot: true}, Query: 0.5, Document: 2, QueryAbove: 3, DocumentAbove: 4},
		{Loss: InfoNCE{Scale: 1, Dot: true}, Document: 2, Together: true},
	} {
		b := sparse(t, s, gpustage.F64)
		whole, err := l.Compute(s, newArena(t, s, 1<<20), b)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := download(s, b.Gradient)
		got, parts := make([]float64, len(want)), Result{}
		for _, rows := range []Rows{{0, 2}, {2, 2}, {2, 3}, {3, 5}} {
			b.Only = &rows
			s.Fill(b.Gradient, 0)
			r, err := l.Compute(s, newArena(t, s, 1<<20), b)
			if err != nil {
				t.Fatal(err)
			}
			if *r.Sparsity != *whole.Sparsity {
				t.Errorf("rows %v: %+v, of all %+v", rows, *r.Sparsity, *whole.Sparsity)
			}
			parts.Sum, parts.Weight = parts.Sum+r.Sum, parts.Weight+r.Weight
			vs, _ := download(s, b.Gradient)
			for i, v := range vs {
				got[i] += v
			}
		}
		if d := worst(got, want); !(d <= 1e-12) || !(math.Abs(parts.Sum-whole.Sum) <= 1e-12) || !(math.Abs(parts.Weight-whole.Weight) <= 1e-12) {
			t.Errorf("%+v: of parts %+v, of all %+v, gradients differ by %.3g", l, parts, whole, d)
		}
		b.Only = nil
		checkGradient(t, s, l, b, 1e-7)
	}
}

// The weights grow as SpladeRegularizerWeightSchedulerCallback has them grow.
func TestFlopsWarmup(t *testing.T) {
	for step, want := range map[int][2]float64{0: {0, 0}, 1: {1. / 9, 1. / 3}, 2: {4. / 9, 2. / 3}, 3: {1, 1}, 9: {1, 1}} {
		for i, linear := range []bool{false, true} {
			if got := (Flops{Warmup: 3, Linear: linear}).factor(step); !(math.Abs(got-want[i]) <= 1e-15) {
				t.Errorf("step %d, linear %v: %v, want %v", step, linear, got, want[i])
			}
		}
	}
	if f := (Flops{}).factor(0); f != 1 {
		t.Errorf("without a warm-up the first step has %v", f)
	}
	s, _ := ref.New().OpenStream()
	l := Flops{Loss: InfoNCE{Scale: 1, Dot: true}, Query: 3, Document: 4, Warmup: 2}
	b := sparse(t, s, gpustage.F64)
	plain, _ := l.Loss.Compute(s, newArena(t, s, 1<<20), b)
	if r, err := l.Compute(s, newArena(t, s, 1<<20), b); err != nil || r.Sum != plain.Sum || r.Sparsity.Added != 0 || r.Sparsity.QueryFlops == 0 {
		t.Errorf("the first step of a warm-up: %+v %+v (%v), without %+v", r, r.Sparsity, err, plain)
	}
	b.Step = 1
	if r, _ := l.Compute(s, newArena(t, s, 1<<20), b); !(math.Abs(r.Sparsity.Added-(3*r.Sparsity.QueryFlops+4*r.Sparsity.DocumentFlops)/4) <= 1e-12) {
		t.Errorf("half-way: %+v", r.Sparsity)
	}
}

// What is added for one row is of its own texts: its query, its positive and the negatives that Owner says are its own, of which there are more than rows.
func TestFlopsOwner(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(51, 52))
	b := randomBatch(t, s, gpustage.F64, rng, 3, 11, 4)
	x := gpustage.Slice[float64](b.Embeddings)
	for i := range x {
		x[i] = 0.1 + rng.Float64()
	}
	b.Owner = []int32{2, 1, 1, 0, 2, 2, 0, 1, 2, 2, 1}
	l := Flops{Loss: InfoNCE{Scale: 1, Dot: true}, Query: 0.5, Document: 2}
	gradient := func(l Loss) []float64 {
		t.Helper()
		s.Fill(b.Gradient, 0)
		if _, err := l.Compute(s, newArena(t, s, 1<<20), b); err != nil {
			t.Fatal(err)
		}
		vs, _ := download(s, b.Gradient)
		return vs
	}
	for row := range b.Rows {
		b.Only = &Rows{row, row + 1}
		with, without := gradient(l), gradient(l.Loss)
		for text := range b.N() {
			of := text % b.Rows
			if text >= 2*b.Rows {
				of = int(b.Owner[text-2*b.Rows])
			}
			for k := text * 4; k < text*4+4; k++ {
				if added := with[k] - without[k]; (of == row) != (added > 1e-3) || of != row && added != 0 {
					t.Errorf("of row %d alone text %d, which is row %d's, has %v added to its gradient", row, text, of, added)
				}
			}
		}
	}
}

func TestFlopsErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	single := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 4, 0, 3)
	single.Embeddings, single.Gradient, single.Texts, single.Labels = single.Embeddings.Span(0, 4), single.Gradient.Span(0, 4), single.Texts[:4], []float64{0, 1, 1, 0}
	for want, l := range map[string]Flops{
		"no loss":           {},
		"no mean over rows": {Loss: Groups{Name: GroupLambda}},
		"negative":          {Loss: InfoNCE{}, QueryAbove: -1},
		"weight":            {Loss: InfoNCE{}, Document: math.NaN()},
		"document_only":     {Loss: BatchTriplet{}, Document: 1},
		"scale":             {Loss: InfoNCE{Scale: -1}},
	} {
		if _, err := l.Compute(s, newArena(t, s, 1<<20), single); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", l, err, want)
		}
	}
	if r, err := (Flops{Loss: BatchTriplet{}, Document: 1, Together: true}).Compute(s, newArena(t, s, 1<<20), single); err != nil {
		t.Errorf("single texts together: %v", err)
	} else if has := r.Sparsity.Batches; has.QueryActive != 1 || has.DocumentActive != 0 || has.QueryFlops != 0 || has.DocumentFlops != 1 {
		t.Errorf("single texts together have the figures %+v", has)
	}
}

// In a sum of losses what is added is that of all terms times their factors, also of a sum in a sum and beside a term that is no mean over rows: the
// difference from the sum without it. What is found of the embeddings is what one loss finds.
func TestFlopsSum(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := sparse(t, s, gpustage.F64)
	b.Scores = make([]float64, b.N()-b.Rows)
	compute := func(l Loss) Result {
		t.Helper()
		r, err := l.Compute(s, newArena(t, s, 1<<20), b)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	mnrl, mse := InfoNCE{Scale: 1, Dot: true}, MarginMSE{Metric: Dot}
	first, second := Flops{Loss: mnrl, Query: 1, Document: 2}, Flops{Loss: mse, Query: 3, Document: 0.5}
	one := compute(first).Sparsity
	for name, x := range map[string]struct{ with, without Loss }{
		"two":      {summed(t, Term{first, 0.25}, Term{second, 2}), summed(t, Term{mnrl, 0.25}, Term{mse, 2})},
		"behind":   {summed(t, Term{mnrl, 1}, Term{second, 2}), summed(t, Term{mnrl, 1}, Term{mse, 2})},
		"nested":   {summed(t, Term{summed(t, Term{first, 3}), 0.5}, Term{second, 1}), summed(t, Term{mnrl, 1.5}, Term{mse, 1})},
		"no split": {summed(t, Term{doubled{mnrl}, 1}, Term{first, 0.25}, Term{second, 2}), summed(t, Term{doubled{mnrl}, 1}, Term{mnrl, 0.25}, Term{mse, 2})},
	} {
		with, without := compute(x.with), compute(x.without)
		want := *one
		if want.Added = with.Sum/with.Weight - without.Sum/without.Weight; !(math.Abs(with.Sparsity.Added-want.Added) <= 1e-12*math.Abs(with.Sum/with.Weight)) || !(want.Added >= 0.1) {
			t.Errorf("%s: %v added, want %v", name, with.Sparsity.Added, want.Added)
		}
		if want.Added = with.Sparsity.Added; *with.Sparsity != want {
			t.Errorf("%s: %+v, want %+v", name, *with.Sparsity, want)
		}
	}
	if again := compute(first).Sparsity; *again != *one {
		t.Errorf("a sum has changed its terms' figures: %+v, were %+v", again, one)
	}
}

// Figures are means over the batches that have them, and what is added is one over all of a step's batches.
func TestSparsityOver(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := sparse(t, s, gpustage.F64)
	l := Flops{Loss: InfoNCE{Scale: 1, Dot: true}, Query: 1, Document: 2}
	r, err := l.Compute(s, newArena(t, s, 1<<20), b)
	if err != nil {
		t.Fatal(err)
	}
	one := *r.Sparsity
	var none *Sparsity
	if none.Plus(nil).Over(3) != nil {
		t.Error("of batches without figures there are some")
	}
	got := none.Plus(&one).Plus(nil).Plus(&one).Over(4)
	want := one
	want.Added = one.Added / 2
	want.Batches = got.Batches
	if *got != want || got.Batches.QueryActive != 2 || got.Batches.DocumentFlops != 2 {
		t.Errorf("two of four batches have %+v: on average %+v", one, *got)
	}
	l.Together, l.Query = true, 0
	if r, err = l.Compute(s, newArena(t, s, 1<<20), b); err != nil {
		t.Fatal(err)
	}
	if got := one.Plus(r.Sparsity).Over(2); got.QueryFlops != one.QueryFlops || got.Batches.QueryFlops != 1 || got.DocumentFlops != (one.DocumentFlops+r.Sparsity.DocumentFlops)/2 {
		t.Errorf("%+v and %+v are on average %+v", one, *r.Sparsity, *got)
	}
}
