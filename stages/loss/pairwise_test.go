package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// peerOptions are a golden case's.
type peerOptions struct {
	Metric           Metric
	Margin, Scale    float64
	Temperature      float64
	Student, Teacher float64
	HardnessMode     Hardness `json:"hardness_mode"`
	HardnessStrength float64  `json:"hardness_strength"`
}

type peerCase struct {
	Name, Loss    string
	Options       peerOptions
	B, E, Columns int
	Value         float64
	Counts, Dims  []int
	Weights       []float64
}

// loss is ours for a peer's.
func (c peerCase) loss(t *testing.T) Loss {
	o := c.Options
	var l Loss
	switch c.Loss {
	case "cosine_similarity":
		l = CosineSimilarity{}
	case "contrastive", "online_contrastive":
		l = Contrastive{Metric: o.Metric, Margin: o.Margin, Online: c.Loss == "online_contrastive"}
	case "triplet":
		l = Triplet{Metric: o.Metric, Margin: o.Margin}
	case "margin_mse":
		l = MarginMSE{Metric: o.Metric}
	case "distill_kl":
		l = DistillKL{Metric: o.Metric, Temperature: o.Temperature, StudentTemperature: o.Student, TeacherTemperature: o.Teacher}
	case "cosent":
		l = CoSENT{Scale: o.Scale, Metric: o.Metric}
	case "angle":
		l = CoSENT{Scale: o.Scale, Metric: Angle}
	case "teacher":
		l = TeacherEmbedding{Metric: map[Metric]Metric{"mse": "", "l2": Euclidean, "cosine": Cosine}[o.Metric]}
	case "mnrl":
		l = InfoNCE{Scale: o.Scale, Hardness: o.HardnessMode, HardnessStrength: o.HardnessStrength, TileRows: 5, TileCols: 7}
	case "batch_hard", "batch_hard_soft_margin", "batch_semi_hard", "batch_all":
		modes := map[string]BatchMode{"batch_hard": Hard, "batch_hard_soft_margin": SoftMargin, "batch_semi_hard": SemiHard, "batch_all": All}
		l = BatchTriplet{Mode: modes[c.Loss], Metric: o.Metric, Margin: o.Margin}
	default:
		return nil
	}
	if len(c.Dims) > 0 {
		weights := c.Weights
		if len(weights) == 0 {
			weights = nil
		}
		m, err := Matryoshka(l, c.Dims, weights, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	return l
}

// batch lays a case out. reorder puts the negatives of ragged rows row by row, and shuffled, as no peer has them.
func (c peerCase) batch(t *testing.T, g *goldens.Golden, s gpustage.Stream, d gpustage.DType) (b *Batch, place []int) {
	x := g.F32(t, c.Name+"/x")
	row := func(column, i int) []float32 { return x[(column*c.B+i)*c.E : (column*c.B+i+1)*c.E] }
	var flat []float64
	put := func(column, i int) {
		for _, v := range row(column, i) {
			flat = append(flat, float64(v))
		}
		place = append(place, column*c.B+i)
	}
	b = &Batch{Rows: c.B}
	for column := range min(2, c.Columns) {
		for i := range c.B {
			put(column, i)
		}
	}
	for column := 2; column < c.Columns; column++ {
		for i := range c.B {
			if len(c.Counts) == 0 || column-2 < c.Counts[i] {
				put(column, i)
				b.Owner = append(b.Owner, int32(i))
			}
		}
	}
	n := len(place)
	b.Embeddings, b.Gradient, b.Texts = tensor(t, s, d, n, c.E, flat), tensor(t, s, d, n, c.E, nil), uniqueTexts(n)
	if !g.Has(c.Name + "/labels") {
		return b, place
	}
	labels := g.F32(t, c.Name+"/labels")
	shape := g.Shape(t, c.Name+"/labels")
	switch {
	case c.Loss == "teacher":
		b.Teacher = labels
	case len(shape) == 1:
		for _, v := range labels {
			b.Labels = append(b.Labels, float64(v))
		}
	default:
		for _, p := range place[c.B:] { // [B, documents]
			b.Scores = append(b.Scores, float64(labels[p%c.B*shape[1]+p/c.B-1]))
		}
	}
	return b, place
}

// split is how ranks compute a loss: each its own rows, with gradients that add up.
func split(t *testing.T, s gpustage.Stream, l Loss, b *Batch, cuts ...int) (float64, []float64) {
	t.Helper()
	a := newArena(t, s, l.Memory(b.Size()))
	s.Fill(b.Gradient, 0)
	var sum Result
	lo := 0
	for _, hi := range append(cuts, b.Rows) {
		part := *b
		part.Only = &Rows{lo, hi}
		if len(b.Teacher) > 0 {
			d := len(b.Teacher) / b.Rows
			part.Teacher = b.Teacher[lo*d : hi*d]
		}
		r, err := l.Compute(s, a, &part)
		if err != nil {
			t.Fatal(err)
		}
		sum.Sum, sum.Weight = sum.Sum+r.Sum, sum.Weight+r.Weight
		lo = hi
	}
	g, err := download(s, b.Gradient)
	if err != nil {
		t.Fatal(err)
	}
	for i := range g {
		g[i] /= sum.Weight
	}
	return sum.Sum / sum.Weight, g
}

// Against sentence-transformers: value and gradient, as a whole and with rows split over ranks, in f64 on ref and in f32 on the processor.
func TestGoldenPairwise(t *testing.T) {
	g := goldens.Load(t, "loss/pairwise")
	var meta struct{ Cases []peerCase }
	g.Meta(t, &meta)
	device, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	exact, _ := ref.New().OpenStream()
	fast, _ := device.OpenStream()
	seen := map[string]int{}
	for _, c := range meta.Cases {
		l := c.loss(t)
		if l == nil {
			t.Errorf("no loss %s", c.Loss)
			continue
		}
		seen[c.Loss]++
		for _, v := range []struct {
			s     gpustage.Stream
			dtype gpustage.DType
			limit float64
		}{{exact, gpustage.F64, 1e-9}, {fast, gpustage.F32, 1e-5}} {
			b, place := c.batch(t, g, v.s, v.dtype)
			want := make([]float64, 0, len(place)*c.E)
			all := g.F64(t, c.Name+"/grad")
			for _, p := range place {
				want = append(want, all[p*c.E:(p+1)*c.E]...)
			}
			size := 1e-12
			for _, w := range want {
				size = max(size, math.Abs(w))
			}
			check := func(how string, value float64, grad []float64) {
				t.Helper()
				if d := math.Abs(value-c.Value) / max(1, math.Abs(c.Value)); !(d <= v.limit) {
					t.Errorf("%s %s %+v, %d rows, %v, %s: loss %v, want %v", c.Name, c.Loss, c.Options, c.B, v.dtype, how, value, c.Value)
				}
				if d := worst(grad, want) / size; !(d <= v.limit) && !(size <= 1e-12) {
					t.Errorf("%s %s %+v, %d rows, %v, %s: gradient error %.3g", c.Name, c.Loss, c.Options, c.B, v.dtype, how, d)
				}
			}
			value, grad := compute(t, v.s, l, b)
			check("whole", value, grad)
			if _, ok := l.(RowSplitter); !ok {
				t.Errorf("%s does not split rows", c.Loss)
			}
			value, grad = split(t, v.s, l, b, c.B/3, c.B/3, c.B/2)
			check("split", value, grad)
		}
	}
	if len(meta.Cases) < 150 {
		t.Errorf("%d cases of %v", len(meta.Cases), seen)
	}
}

// ragged has rows of 0 to 3 negatives in any order, with everything that a loss may ask for but row weights.
func ragged(t testing.TB, s gpustage.Stream, rng *rand.Rand) *Batch {
	b := randomBatch(t, s, gpustage.F64, rng, 5, 7, 4)
	b.Weights = nil
	for range b.Rows {
		b.Labels = append(b.Labels, float64(rng.IntN(3))/2)
	}
	for range b.N() - b.Rows {
		b.Scores = append(b.Scores, rng.NormFloat64())
	}
	for range b.Rows * 4 {
		b.Teacher = append(b.Teacher, float32(rng.NormFloat64()))
	}
	return b
}

// Rows with negatives in any order and number, and with weights: gradients are those of difference quotients.
func TestPairwiseRagged(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(5, 6))
	wrap := func(l Loss) Loss {
		m, err := Matryoshka(l, []int{2, 4}, []float64{0.5, 2}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, l := range []Loss{
		MarginMSE{}, CrossEntropy{Scale: 3}, CrossEntropy{Metric: Dot, Scale: 1}, DistillKL{Temperature: 2}, Triplet{}, Triplet{Metric: Cosine, Margin: 0.2}, TeacherEmbedding{}, CoSENT{Metric: Angle, Scale: 3},
		InfoNCE{Scale: 3, Hardness: InBatchNegatives, HardnessStrength: 1e-9, MaskDuplicates: true}, wrap(DistillKL{}), wrap(TeacherEmbedding{}),
		wrap(InfoNCE{Scale: 2, Directions: Directions, MaskDuplicates: true}),
	} {
		b := ragged(t, s, rng)
		if _, whole := l.(CoSENT); !whole {
			for range b.Rows {
				b.Weights = append(b.Weights, rng.Float64())
			}
		}
		checkGradient(t, s, l, b, 1e-7)
	}
}

// A row's cross-entropy is InfoNCE of a batch that has no other row.
func TestCrossEntropy(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := ragged(t, s, rand.New(rand.NewPCG(7, 8)))
	sum, grad := compute(t, s, CrossEntropy{Scale: 4}, b)
	want, e := 0.0, b.Embeddings.Cols
	for i := range b.Rows {
		places := []int{i, b.Rows + i}
		for k, owner := range b.Owner {
			if int(owner) == i {
				places = append(places, 2*b.Rows+k)
			}
		}
		var x []float64
		for _, p := range places {
			x = append(x, gpustage.Slice[float64](b.Embeddings)[p*e:(p+1)*e]...)
		}
		n := len(places)
		alone := &Batch{Rows: 1, Owner: make([]int32, n-2), Embeddings: tensor(t, s, gpustage.F64, n, e, x), Gradient: tensor(t, s, gpustage.F64, n, e, nil), Texts: uniqueTexts(n)}
		value, of := compute(t, s, InfoNCE{Scale: 4}, alone)
		want += value
		for k, p := range places {
			for f := range e {
				if got, want := grad[p*e+f]*float64(b.Rows), of[k*e+f]; !(math.Abs(got-want) <= 1e-12) {
					t.Errorf("row %d, text %d: gradient %v, want %v", i, k, got, want)
				}
			}
		}
	}
	if want /= float64(b.Rows); !(math.Abs(sum-want) <= 1e-12) {
		t.Errorf("loss %v, want %v", sum, want)
	}
}

// Where rows may have negatives, a batch in which none has one is no error: there is nothing to compare. Where none can have any, and no labels, it is one.
func TestPairwiseWithoutNegatives(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, l := range []Loss{MarginMSE{}, CrossEntropy{}, DistillKL{}, Triplet{}, CoSENT{Metric: Angle}} {
		b := ragged(t, s, rand.New(rand.NewPCG(5, 6)))
		n := 2 * b.Rows
		b.Embeddings, b.Gradient, b.Owner, b.Texts, b.Scores, b.Labels = b.Embeddings.Span(0, n), b.Gradient.Span(0, n), nil, b.Texts[:n], b.Scores[:b.Rows], nil
		a := newArena(t, s, l.Memory(b.Size()))
		defer a.Free()
		if _, err := l.Compute(s, a, b); err == nil || !strings.HasPrefix(err.Error(), "the loss needs ") {
			t.Errorf("%T: %v", l, err)
		}
		b.Ragged = true
		r, err := l.Compute(s, a, b)
		if err != nil || r.Sum != 0 || r.Weight != float64(b.Rows) || slices.ContainsFunc(gpustage.Slice[float64](b.Gradient), func(d float64) bool { return d != 0 }) {
			t.Errorf("%T: %+v, %v", l, r, err)
		}
	}
}

// With every hardness mode, ragged negatives and duplicates, the loss is its formula written out, also beside another direction, whose scores
// hardness leaves alone: in one softmax or in two, whatever their order. The gradient is that of the formula in which hardness is a constant.
func TestHardnessFormula(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(7, 8))
	const scale, strength = 3, 4
	masked := 0
	for i := range 48 {
		mode := HardnessModes[i%3]
		b := ragged(t, s, rng)
		both := [][]Direction{nil, {QueryToDoc, DocToQuery}, {DocToQuery, QueryToDoc}}[i/3%3]
		l := InfoNCE{Directions: both, PerDirection: i%2 == 0, Scale: scale, Hardness: mode, HardnessStrength: strength, MaskDuplicates: true, Dot: true, TileRows: 2, TileCols: 3}
		got, grad := compute(t, s, l, b)
		base := slices.Clone(gpustage.Slice[float64](b.Embeddings))
		dot := func(x []float64, i, j int) (sum float64) {
			for k := range 4 {
				sum += x[i*4+k] * x[j*4+k]
			}
			return sum
		}
		formula := func(x []float64) (sum float64) {
			for q := range b.Rows {
				positive := b.Rows + q
				z := math.Exp(scale * dot(x, q, positive))
				for d := b.Rows; d < b.N(); d++ {
					owner := d - b.Rows
					if d >= 2*b.Rows {
						owner = int(b.Owner[d-2*b.Rows])
					}
					same := b.Texts[d] == b.Texts[q] || b.Texts[d] == b.Texts[positive] || d < 2*b.Rows && b.Texts[owner] == b.Texts[q]
					if d == positive || same {
						if d != positive && owner == q {
							masked++
						}
						continue
					}
					hard := 0.0
					if mode == AllNegatives || (mode == HardNegatives) == (owner == q) {
						hard = strength * dot(base, q, d)
					}
					z += math.Exp(scale*dot(x, q, d) + hard)
				}
				other := 0.0 // the positive against the queries
				for n := range b.Rows {
					same := b.Texts[n] == b.Texts[q] || b.Texts[n] == b.Texts[positive] || b.Texts[b.Rows+n] == b.Texts[positive]
					if n == q || !same {
						other += math.Exp(scale * dot(x, positive, n))
					}
				}
				logZ := math.Log(z)
				switch {
				case both != nil && l.PerDirection:
					logZ = (logZ + math.Log(other)) / 2
				case both != nil:
					logZ = math.Log(z + other)
				}
				sum += (logZ - scale*dot(x, q, positive)) / float64(b.Rows)
			}
			return sum
		}
		if want := formula(base); !(math.Abs(got-want) <= 1e-12*math.Abs(want)) {
			t.Errorf("%s, directions %v, each its softmax %t: loss %v, want %v", mode, both, l.PerDirection, got, want)
		}
		x, found := slices.Clone(base), masked
		for k, was := range base {
			const step = 1. / (1 << 14)
			x[k] = was + step
			up := formula(x)
			x[k] = was - step
			quotient := (up - formula(x)) / (2 * step)
			if x[k] = was; !(math.Abs(grad[k]-quotient) <= 1e-5*(1+math.Abs(quotient))) {
				t.Errorf("%s, directions %v, each its softmax %t: the gradient of element %d is %v, the difference quotient %v", mode, both, l.PerDirection, k, grad[k], quotient)
			}
		}
		masked = found
	}
	if masked < 5 {
		t.Errorf("only %d of rows' own negatives were masked", masked)
	}
}

func TestPairwiseErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(9, 9))
	labelled := func(labels ...float64) func(*Batch) {
		return func(b *Batch) {
			b.Embeddings, b.Gradient, b.Texts, b.Owner, b.Scores = b.Embeddings.Span(0, 10), b.Gradient.Span(0, 10), b.Texts[:10], nil, nil
			b.Labels = labels
		}
	}
	single := func(b *Batch) {
		b.Embeddings, b.Gradient, b.Texts, b.Owner, b.Scores = b.Embeddings.Span(0, 5), b.Gradient.Span(0, 5), b.Texts[:5], nil, nil
		b.Labels, b.Weights = []float64{1, 0, 1, 0, 0}, []float64{1, 2, 1, 1, 1}
	}
	for _, c := range []struct {
		l      Loss
		change func(*Batch)
		want   string
	}{
		{CosineSimilarity{}, nil, "takes pairs with labels, and the batch has negatives"},
		{Contrastive{Metric: "angle"}, nil, `distance "angle" is unknown: want cosine, euclidean, manhattan`},
		{Contrastive{Margin: -1}, nil, "margin is -1"},
		{Contrastive{Online: true}, labelled(1, 0, 1, 0.5, 0), "row 3 of the batch: the label is 0.5: online contrastive takes 1"},
		{CoSENT{}, func(b *Batch) { b.Weights = []float64{1, 1, 2, 1, 1} }, "row 2 has weight 2, but the loss is of the batch as a whole"},
		{Contrastive{Online: true}, func(b *Batch) { labelled(1, 0, 1, 0, 0)(b); b.Weights = []float64{1, 1, 1, 0, 1} }, "row 3 has weight 0, but the loss is of the batch as a whole"},
		{BatchTriplet{Mode: SemiHard}, single, "row 1 has weight 2, but the loss is of the batch as a whole"},
		{BatchTriplet{Mode: All}, single, "row 1 has weight 2, but the loss is of the batch as a whole"},
		{CoSENT{Scale: math.NaN()}, nil, "scale is NaN, want a positive number"},
		{CrossEntropy{Scale: -1}, nil, "scale is -1"},
		{CrossEntropy{Metric: Euclidean}, nil, "similarity "},
		{DistillKL{}, func(b *Batch) { b.Scores = nil }, "needs a teacher's scores: data.train[].scores"},
		{DistillKL{TeacherTemperature: -1}, nil, "temperature is -1"},
		{DistillKL{StudentTemperature: math.Inf(1)}, nil, "temperature is +Inf"},
		{MarginMSE{}, func(b *Batch) { b.Scores, b.Labels = nil, nil }, "needs a teacher's scores"},
		{MarginMSE{}, func(b *Batch) { b.Scores = b.Scores[1:] }, "12 documents have 11 scores"},
		{MarginMSE{}, func(b *Batch) { b.Scores[3] = math.NaN() }, "score 3 is NaN"},
		{Triplet{}, func(b *Batch) { b.Rows = 6; b.Owner = nil; b.Labels, b.Scores, b.Teacher = nil, nil, nil }, "owners"},
		{TeacherEmbedding{}, func(b *Batch) { b.Teacher = b.Teacher[:10] }, "a teacher's embeddings have 2 dimensions, the model's have 4"},
		{TeacherEmbedding{}, func(b *Batch) { b.Teacher = append(b.Teacher, 1) }, "5 rows have 21 numbers of a teacher's embeddings, want as many for each"},
		{BatchTriplet{}, nil, "takes single texts with labels: leave out data.train[].positive"},
		{BatchTriplet{Mode: "harder"}, nil, `mode "harder" is unknown: want hard, soft_margin, semi_hard, all`},
		{BatchTriplet{Metric: Dot}, nil, `distance "dot" is unknown: want euclidean, cosine`},
		{TeacherEmbedding{}, func(b *Batch) { b.Teacher = nil }, "data.train[].teacher"},
		{InfoNCE{Hardness: "hard"}, nil, `hardness mode "hard" is unknown: want in_batch_negatives, hard_negatives, all_negatives`},
		{InfoNCE{Hardness: HardNegatives, HardnessStrength: -2}, nil, "hardness strength is -2"},
		{InfoNCE{Guide: &Guide{Margin: -0.1}}, nil, "margin is -0.1"},
		{InfoNCE{Guide: &Guide{}, Hardness: HardNegatives, HardnessStrength: 2}, nil, "hardness and a guide don't go together"},
		{InfoNCE{Guide: &Guide{}}, nil, "needs a guide model's embeddings"},
		{InfoNCE{Guide: &Guide{}}, func(b *Batch) { b.Guide = b.Embeddings.Span(0, 5) }, "want 17 rows"},
	} {
		b := ragged(t, s, rng)
		if c.change != nil {
			c.change(b)
		}
		_, err := c.l.Compute(s, newArena(t, s, 1<<20), b)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T %+v: %v, want %q", c.l, c.l, err, c.want)
		}
	}
	for want, f := range map[string]func() (Loss, error){
		"no dimensions":               func() (Loss, error) { return Matryoshka(InfoNCE{}, nil, nil, 0) },
		"2 dimensions have 1 weights": func() (Loss, error) { return Matryoshka(InfoNCE{}, []int{1, 2}, []float64{1}, 0) },
		"2 dimensions twice":          func() (Loss, error) { return Matryoshka(InfoNCE{}, []int{4, 2, 2}, nil, 0) },
		"3 of 2 dimensions":           func() (Loss, error) { return Matryoshka(InfoNCE{}, []int{1, 2}, nil, 3) },
		"weight +Inf":                 func() (Loss, error) { return Matryoshka(InfoNCE{}, []int{1, 2}, []float64{1, math.Inf(1)}, 0) },
		"0 dimensions, want":          func() (Loss, error) { return Matryoshka(InfoNCE{}, []int{0}, nil, 0) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if m, _ := Matryoshka(InfoNCE{}, []int{9}, nil, 0); true {
		b := ragged(t, s, rng)
		if _, err := m.Compute(s, newArena(t, s, 1<<20), b); err == nil || !strings.Contains(err.Error(), "9 dimensions, and embeddings have 4") {
			t.Error(err)
		}
	}
	if m, _ := Matryoshka(Host(nil), []int{9}, nil, 0); true {
		if _, ok := m.(RowSplitter); ok {
			t.Error("a loss that does not split rows does so as a Matryoshka loss")
		}
	}
}

// The hard pairs of a batch of one label are those beyond the mean of its own, not beyond its nearest or farthest. One pair of the other label is enough for those to count.
func TestOnlineOneLabel(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, c := range []struct {
		labels []float64
		want   float64
	}{
		{[]float64{0, 0, 0, 0}, 9*9 + 8*8}, // nearer than 4
		{[]float64{1, 1, 1, 1}, 5*5 + 8*8}, // farther than 4
		{[]float64{1, 0, 1, 0}, 5*5 + 8*8}, // the positive farther than 2, and the negative nearer than 5
		{[]float64{1, 0, 0, 0}, 0},         // one positive: no negative is nearer than 1
		{[]float64{0, 1, 0, 0}, 9*9 + 2*2}, // nearer than 2, and farther than 1
		{[]float64{1, 1, 1, 0}, 0},         // one negative: no positive is farther than 8
	} {
		b := &Batch{Rows: 4, Texts: uniqueTexts(8), Labels: c.labels}
		b.Embeddings, b.Gradient = tensor(t, s, gpustage.F64, 8, 1, []float64{0, 0, 0, 0, 1, 2, 5, 8}), tensor(t, s, gpustage.F64, 8, 1, nil)
		if got, _ := compute(t, s, Contrastive{Metric: Euclidean, Margin: 10, Online: true}, b); !(math.Abs(got-c.want) < 1e-3) {
			t.Errorf("labels %v: loss %v, want %v", c.labels, got, c.want)
		}
	}
}

// What losses take is linear in the batch.
func TestPairwiseMemory(t *testing.T) {
	m, _ := Matryoshka(CoSENT{}, []int{384, 128}, nil, 0)
	for _, l := range []Loss{CoSENT{}, DistillKL{Metric: Cosine}, Triplet{}, Contrastive{Online: true}, TeacherEmbedding{Metric: Cosine}, BatchTriplet{}, m} {
		small, large := l.Memory(Size{Rows: 1 << 14, Sequences: 1 << 15, Dim: 384, Normalized: false, DType: gpustage.F32}), l.Memory(Size{Rows: 1 << 16, Sequences: 1 << 17, Dim: 384, Normalized: false, DType: gpustage.F32})
		if large > 4*small {
			t.Errorf("%T: four times the rows take %d bytes, %d before", l, large, small)
		}
	}
}

// A full chunk of pairs, of features that are more than what else there is, fits into what Memory says.
func TestChunkMemory(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const rows, e = chunk + 1, 64
	rng := rand.New(rand.NewPCG(21, 22))
	pairs := randomBatch(t, s, gpustage.F32, rng, rows, 0, e)
	triples := randomBatch(t, s, gpustage.F32, rng, rows, rows, e)
	single := *pairs
	single.Embeddings, single.Gradient, single.Texts = pairs.Embeddings.Span(0, rows), pairs.Gradient.Span(0, rows), pairs.Texts[:rows]
	pairs.Weights, triples.Weights, single.Weights = nil, nil, nil
	labels := make([]float64, rows)
	for i := range labels {
		labels[i] = float64(i % 2)
	}
	pairs.Labels, single.Labels, single.Teacher = labels, labels, make([]float32, rows*e)
	for _, c := range []struct {
		l Loss
		b *Batch
	}{
		{Contrastive{Metric: Manhattan, Margin: 99}, pairs}, {Contrastive{Metric: Euclidean, Margin: 99}, pairs}, {CoSENT{Metric: Angle}, pairs}, {MegaBatchMargin{}, pairs},
		{Triplet{Metric: Manhattan}, triples}, {InfoNCE{Hardness: HardNegatives, HardnessStrength: 1}, triples}, {TeacherEmbedding{}, &single}, {BatchTriplet{}, &single},
	} {
		a := newArena(t, s, c.l.Memory(c.b.Size()))
		if _, err := c.l.Compute(s, a, c.b); err != nil {
			t.Errorf("%T: %v", c.l, err)
		}
		if err := s.Sync(); err != nil {
			t.Errorf("%T: %v", c.l, err)
		}
		a.Free()
	}
}

// A batch takes some of the dimensions: which, follows from its number alone, and each comes as often as the others.
func TestMatryoshkaDraws(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := ragged(t, s, rand.New(rand.NewPCG(3, 1)))
	dims, weights := []int{4, 3, 1}, []float64{1, 0.5, 2}
	alone := make([]float64, 3)
	for i := range dims {
		m, _ := Matryoshka(DistillKL{}, dims[i:i+1], weights[i:i+1], 0)
		alone[i], _ = compute(t, s, m, b)
	}
	m, err := Matryoshka(DistillKL{}, dims, weights, 2)
	if err != nil {
		t.Fatal(err)
	}
	left := make([]int, 3)
	for b.Draw = range 300 {
		got, _ := compute(t, s, m, b)
		again, _ := split(t, s, m, b, 2)
		found := false
		for i := range dims {
			if want := alone[0] + alone[1] + alone[2] - alone[i]; math.Abs(got-want) <= 1e-12*want && math.Abs(again-want) <= 1e-12*want {
				left[i], found = left[i]+1, true
			}
		}
		if !found {
			t.Fatalf("draw %d: loss %v, then %v, of %v", b.Draw, got, again, alone)
		}
	}
	if min(left[0], left[1], left[2]) < 70 {
		t.Errorf("left out so many times: %v", left)
	}
}

func ExampleMatryoshka() {
	s, _ := ref.New().OpenStream()
	a, _ := gpustage.NewArena(s.Device(), 1<<20)
	emb, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	grad, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	s.CopyIn(emb, gpustage.Bytes([]float64{1, 1, -1, 1, 1, 0, 0, 1}))
	l, _ := Matryoshka(InfoNCE{Scale: 1}, []int{2, 1}, []float64{1, 0.5}, 0)
	r, err := l.Compute(s, a, &Batch{Rows: 2, Embeddings: emb, Gradient: grad, Texts: uniqueTexts(4)})
	fmt.Printf("%.4f %v\n", r.Sum/r.Weight, err)
	// Output: 0.6120 <nil>
}

// Labels that are no degree of likeness are known as such before they are trained on.
func TestCheckLabel(t *testing.T) {
	for _, c := range []struct {
		l     interface{ CheckLabel(float64) error }
		good  []float64
		bad   []float64
		wrong string
	}{
		{CosineSimilarity{}, []float64{-1, 0, 0.3, 1}, []float64{1.5, 5, -1.1, math.NaN()}, "from -1 to 1"},
		{Contrastive{}, []float64{0, 0.25, 1}, []float64{-0.5, 1.5, math.NaN()}, "contrastive takes 1 (alike), 0 (not alike) and what is between"},
		{Contrastive{Online: true}, []float64{0, 1}, []float64{0.5, 2, -1}, "online contrastive takes 1"},
		{Groups{Name: "bce"}, []float64{0, 0.25, 1}, []float64{-0.5, 7}, "bce takes labels from 0 to 1"},
		{Groups{Name: "mse"}, []float64{-3, 7}, nil, ""},
		{Groups{Name: "lambda"}, []float64{-3, 7, 900}, []float64{901, math.Inf(1), math.NaN()}, "lambda takes degrees of relevance"},
	} {
		for _, y := range c.good {
			if err := c.l.CheckLabel(y); err != nil {
				t.Errorf("%+v: %v: %v", c.l, y, err)
			}
		}
		for _, y := range c.bad {
			if err := c.l.CheckLabel(y); err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%+v: %v: %v, want %q", c.l, y, err, c.wrong)
			}
		}
	}
}
