package loss

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// vectorsBatch is a batch of which a model has given tokens' vectors alone.
func vectorsBatch(t testing.TB, s gpustage.Stream, d gpustage.DType, rows, dim int, vectors []float64, lengths []int) *Batch {
	t.Helper()
	n := len(lengths)
	b := &Batch{Rows: rows, Normalized: true, Texts: uniqueTexts(n)}
	p := Part{Name: VectorsPart, Cu: []int32{0}}
	for i, l := range lengths {
		p.Cu = append(p.Cu, p.Cu[i]+int32(l))
		if i >= 2*rows {
			b.Owner = append(b.Owner, int32(i%rows))
		}
	}
	tokens := int(p.Cu[n])
	b.IDs = make([]int32, tokens)
	p.X, p.Gradient = tensor(t, s, d, tokens, dim, vectors), tensor(t, s, d, tokens, dim, nil)
	b.Parts = []Part{p}
	return b
}

// computeVectors is a loss's sum and weight, and the sum's gradient.
func computeVectors(t testing.TB, s gpustage.Stream, l Loss, b *Batch) (Result, []float64) {
	t.Helper()
	s.Fill(b.Parts[0].Gradient, 0)
	a := newArena(t, s, l.Memory(b.Size()))
	defer a.Free()
	r, err := l.Compute(s, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if a.Used() != 0 {
		t.Errorf("%d bytes of the arena were not given back", a.Used())
	}
	g, err := download(s, b.Parts[0].Gradient)
	if err != nil {
		t.Fatal(err)
	}
	return r, g
}

// Against sentence-transformers' formulas: each loss's value, and the gradient of every token's vector.
func TestGoldenMultiVector(t *testing.T) {
	g := goldens.Load(t, "multivector/losses")
	var meta struct {
		B, D  int
		Cases []struct {
			Name, Loss                     string
			Negatives                      int
			Mean                           bool
			Scale, Student, Teacher, Value float64
		}
	}
	g.Meta(t, &meta)
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, x := range []struct {
		d     gpustage.Device
		t     gpustage.DType
		limit float64
	}{{ref.New(), gpustage.F64, 1e-12}, {fast, gpustage.F32, 1e-5}} {
		s, _ := x.d.OpenStream()
		for i, c := range meta.Cases {
			metric := MaxSim
			if c.Mean {
				metric = MeanMaxSim
			}
			var l Loss
			switch c.Loss {
			case "mnrl":
				l = LateInteraction{Scale: c.Scale, Metric: metric, Block: m3Ways[i%len(m3Ways)].Block, TileCols: m3Ways[i%len(m3Ways)].TileCols}
			case "distill_kl":
				l = DistillKL{Metric: metric, StudentTemperature: c.Student, TeacherTemperature: c.Teacher}
			case "margin_mse":
				l = MarginMSE{Metric: metric}
			}
			b := vectorsBatch(t, s, x.t, meta.B, meta.D, g.F64(t, fmt.Sprint(c.Negatives, "/vectors")), g.Ints(t, fmt.Sprint(c.Negatives, "/lengths")))
			columns := (b.N() - b.Rows) / b.Rows
			for k := range columns { // [B, N] in the order of documents
				for row := range b.Rows {
					b.Scores = append(b.Scores, g.F64(t, fmt.Sprint(c.Negatives, "/teacher"))[row*columns+k])
				}
			}
			r, grad := computeVectors(t, s, l, b)
			if d := math.Abs(r.Mean()-c.Value) / max(1, c.Value); !(d <= x.limit) {
				t.Errorf("%s %T %+v: loss %v, want %v", x.t, l, l, r.Mean(), c.Value)
			}
			want := g.F64(t, c.Name)
			largest := 0.0
			for k := range grad {
				grad[k] /= r.Weight
				largest = max(largest, math.Abs(want[k]))
			}
			if d := worst(grad, want) / largest; !(d <= 10*x.limit) {
				t.Errorf("%s %T %+v: the gradient is off by %.3g", x.t, l, l, d)
			}
		}
	}
	if len(meta.Cases) < 24 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// What no peer has, ragged negatives, weights and masked duplicates, against differences of the loss; and the terms of some rows add up to
// those of all, with their gradients.
func TestMultiVectorRows(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(7, 8))
	for i, l := range []Loss{
		LateInteraction{Scale: 3, MaskDuplicates: true, Block: 300, TileCols: 5}, LateInteraction{Metric: MeanMaxSim}, DistillKL{Metric: MaxSim}, MarginMSE{Metric: MeanMaxSim},
		MarginMSE{Metric: MaxSim},
	} {
		m := randomM3(t, s, gpustage.F64, rng, 5, 7)
		m.Owner = []int32{0, 0, 1, 2, 3, 4, 4}
		b := &Batch{Rows: m.Rows, Texts: m.Texts, Owner: m.Owner, Weights: m.Weights, Scores: m.Scores, IDs: m.IDs, Parts: m.Parts[1:]}
		if i == 4 { // margins of the data
			b.Scores = nil
			for range b.Rows {
				b.Labels = append(b.Labels, rng.NormFloat64())
			}
		}
		if err := CheckGradient(s, l, b, GradientCheck{Limit: 2e-7, Elements: 60}); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
		all, want := computeVectors(t, s, l, b)
		var sum Result
		got := make([]float64, len(want))
		for _, only := range []Rows{{0, 2}, {2, 2}, {2, 5}} {
			b.Only = &only
			r, g := computeVectors(t, s, l, b)
			sum.Sum, sum.Weight = sum.Sum+r.Sum, sum.Weight+r.Weight
			for k, v := range g {
				got[k] += v
			}
		}
		if !(math.Abs(sum.Sum-all.Sum) <= 1e-12*math.Abs(all.Sum)) || !(math.Abs(sum.Weight-all.Weight) <= 1e-12) || !(worst(got, want) <= 1e-12) {
			t.Errorf("%T %+v: some rows and the others come to %v, all to %v, gradients apart %.3g", l, l, sum, all, worst(got, want))
		}
	}
}

// Queries of more tokens than a tile of scores has rows: row by row, where each is within a tile, the loss and its gradient are the same.
func TestMultiVectorManyTokens(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const rows = maxSimRows/8 + 1
	var lengths []int
	for n := range 2 * rows {
		lengths = append(lengths, 8-7*(n/rows)) // of queries and of documents
	}
	rng := rand.New(rand.NewPCG(19, 20))
	x := make([]float64, rows*9*2)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	b := vectorsBatch(t, s, gpustage.F64, rows, 2, x, lengths)
	if err := CheckGradient(s, LateInteraction{Scale: 0.1}, b, GradientCheck{Limit: 1e-7, Elements: 8}); err != nil {
		t.Error(err)
	}
}

// A text is no negative of itself: with its duplicates masked a batch has the loss of one without them.
func TestMultiVectorDuplicates(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(9, 9))
	lengths := []int{2, 3, 1, 4, 2, 4}
	x := make([]float64, 16*4)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	copy(x[12*4:], x[6*4:10*4]) // the last positive is the first
	b := vectorsBatch(t, s, gpustage.F64, 3, 4, x, lengths)
	b.Texts[5] = b.Texts[3]
	for _, masked := range []bool{false, true} {
		r, _ := computeVectors(t, s, LateInteraction{MaskDuplicates: masked}, b)
		want := 0.0
		score := func(q, d int) (sum float64) {
			cu := b.Parts[0].Cu
			for i := cu[q]; i < cu[q+1]; i++ {
				best := math.Inf(-1)
				for j := cu[d]; j < cu[d+1]; j++ {
					dot := 0.0
					for k := range 4 {
						dot += x[int(i)*4+k] * x[int(j)*4+k]
					}
					best = max(best, dot)
				}
				sum += best
			}
			return sum
		}
		for q := range 3 {
			sum := 0.0
			for d := 3; d < 6; d++ {
				if d == 3+q || !masked || b.Texts[d] != b.Texts[3+q] {
					sum += math.Exp(score(q, d))
				}
			}
			want += math.Log(sum) - score(q, 3+q)
		}
		if !(math.Abs(r.Sum-want) <= 1e-12*want) {
			t.Errorf("masked %v: %v, want %v", masked, r.Sum, want)
		}
	}
}

// Settings and batches that make no sense.
func TestMultiVectorErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	vectors := func() *Batch { return vectorsBatch(t, s, gpustage.F64, 2, 3, nil, []int{1, 2, 3, 1, 2, 2}) }
	for want, c := range map[string]struct {
		l Loss
		b func() *Batch
	}{
		`similarity "cosine" is unknown: want maxsim, mean_maxsim`: {LateInteraction{Metric: Cosine}, vectors},
		"scale is -1":                         {LateInteraction{Scale: -1}, vectors},
		"vectors of tokens and no embeddings": {InfoNCE{}, vectors},
		"losses of it":                        {DistillKL{}, func() *Batch { b := vectors(); b.Scores = make([]float64, 4); return b }},
		"the model gives vectors of tokens":   {M3{}, vectors},
		"needs negatives": {MarginMSE{Metric: MaxSim}, func() *Batch {
			b := vectorsBatch(t, s, gpustage.F64, 1, 3, nil, []int{1, 2})
			b.Labels = []float64{1}
			return b
		}},
		"needs a teacher":                         {DistillKL{Metric: MaxSim}, vectors},
		`needs the part "multi_vector"`:           {LateInteraction{}, func() *Batch { return randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 1)), 2, 0, 3) }},
		"row 1 of the batch: a text has no token": {LateInteraction{}, func() *Batch { return vectorsBatch(t, s, gpustage.F64, 2, 3, nil, []int{1, 2, 3, 0}) }},
	} {
		a := newArena(t, s, 1<<20)
		_, err := c.l.Compute(s, a, c.b())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T %+v: %v, want %q", c.l, c.l, err, want)
		}
		var of *LabelError
		if strings.HasPrefix(want, "row") && (!errors.As(err, &of) || of.Row != 1) {
			t.Errorf("%v does not say the row", err)
		}
	}
}

// A text without a vector is a row's where a batch trains, also of a negative, which its owner has; where texts are compared without rows it is a place.
func TestVectorless(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	b := vectorsBatch(t, s, gpustage.F64, 2, 3, nil, []int{1, 2, 3, 1, 2, 0})
	b.Owner = []int32{1, 0}
	a := newArena(t, s, 1<<20)
	defer a.Free()
	_, err = LateInteraction{}.Compute(s, a, b)
	var of *LabelError
	if !errors.As(err, &of) || of.Row != 0 || !strings.Contains(of.Why, "leave the row out, or a token out of the skiplist") {
		t.Errorf("%v, want an error of row 0", err)
	}
	b.Owner, b.Texts, b.Rows = nil, nil, 1
	err = Fuse(s, a, b, map[string]float64{VectorsPart: 1}, func(int, []float64) error { return nil })
	if err == nil || errors.As(err, &of) || !strings.Contains(err.Error(), "sequence 5 of the batch has no token with a vector") {
		t.Errorf("%v, want an error of sequence 5", err)
	}
}

// A GPU's tiles are larger, and Memory knows it.
func TestMultiVectorTilesOnGPU(t *testing.T) {
	dry, _ := gpustage.Dry{}.OpenStream()
	for _, c := range []struct {
		loss           LateInteraction
		rows, products int
	}{
		{LateInteraction{}, 300, 10 * 3},                     // of 1,024 tokens of queries and 128 documents
		{LateInteraction{TileCols: 1024}, 300, 10 * 38},      // and 8
		{LateInteraction{Block: 4 * 32 * 300}, 300, 300 * 3}, // a query at a time
		{LateInteraction{}, 100, 4},                          // all documents, which leaves no memory over
	} {
		var lengths []int
		for i := range 2 * c.rows {
			lengths = append(lengths, []int{32, 128}[i/c.rows])
		}
		s := &products{Stream: dry}
		b := vectorsBatch(t, s, gpustage.F32, c.rows, 8, nil, lengths)
		a, err := gpustage.NewArena(gpustage.Dry{}, c.loss.Memory(b.Size()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.loss.Compute(s, a, b); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(); err != nil || s.n != c.products {
			t.Errorf("%+v: %d products, want %d; error %v", c.loss, s.n, c.products, err)
		}
	}
}
