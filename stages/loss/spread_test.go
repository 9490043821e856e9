package loss

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// Against sentence-transformers: value and gradient, as a whole and with rows split over ranks, in f64 on ref and in f32 on the processor.
func TestGoldenSpread(t *testing.T) {
	g := goldens.Load(t, "loss/spread")
	var meta struct {
		Cases []struct {
			Name, Loss    string
			Columns, B, E int
			Value         float64
			Options       struct {
				Metric         Metric
				Aggregation    string
				Mean           *float64 `json:"mean_weight"`
				SecondMoment   *float64 `json:"second_moment_weight"`
				PositiveMargin *float64 `json:"positive_margin"`
				NegativeMargin *float64 `json:"negative_margin"`
			}
		}
	}
	g.Meta(t, &meta)
	device, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	or := func(v *float64, usual float64) float64 {
		if v == nil {
			return usual
		}
		return *v
	}
	exact, _ := ref.New().OpenStream()
	fast, _ := device.OpenStream()
	for _, c := range meta.Cases {
		o := c.Options
		var l Loss = MegaBatchMargin{PositiveMargin: or(o.PositiveMargin, 0.8), NegativeMargin: or(o.NegativeMargin, 0.3)}
		if c.Loss == "gor" {
			l = GlobalOrthogonal{Metric: o.Metric, Mean: or(o.Mean, 1), SecondMoment: or(o.SecondMoment, 1), AddColumns: o.Aggregation == "sum"}
		}
		var x []float64
		for _, v := range g.F32(t, c.Name+"/x") {
			x = append(x, float64(v))
		}
		want, size := g.F64(t, c.Name+"/grad"), 1e-12
		for _, w := range want {
			size = max(size, math.Abs(w))
		}
		for _, v := range []struct {
			s     gpustage.Stream
			dtype gpustage.DType
			limit float64
		}{{exact, gpustage.F64, 1e-9}, {fast, gpustage.F32, 1e-5}} {
			b := newBatch(t, v.s, v.dtype, max(0, c.Columns-2), c.B, c.E, nil)
			if c.Columns == 1 {
				b.Embeddings, b.Gradient, b.Texts = b.Embeddings.Span(0, c.B), b.Gradient.Span(0, c.B), b.Texts[:c.B]
			}
			gpustage.Upload(v.s, b.Embeddings, x)
			check := func(how string, value float64, grad []float64) {
				t.Helper()
				if d := math.Abs(value-c.Value) / max(1, math.Abs(c.Value)); !(d <= v.limit) {
					t.Errorf("%s %+v, %d columns of %d rows, %v, %s: loss %v, want %v", c.Name, l, c.Columns, c.B, v.dtype, how, value, c.Value)
				}
				if d := worst(grad, want) / size; !(d <= v.limit) && !(size <= 1e-9) { // that of the cosine of two rows is noise
					t.Errorf("%s %+v, %d columns of %d rows, %v, %s: gradient error %.3g", c.Name, l, c.Columns, c.B, v.dtype, how, d)
				}
			}
			value, grad := compute(t, v.s, l, b)
			check("whole", value, grad)
			value, grad = split(t, v.s, l, b, c.B/3, c.B/3, c.B/2)
			check("split", value, grad)
		}
	}
	if len(meta.Cases) < 100 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// Rows with any number of negatives in any order, weights and a smaller width: gradients are those of difference quotients, and columns are the k-th
// texts of the rows.
func TestSpreadRagged(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(11, 12))
	gor := GlobalOrthogonal{Mean: 0.5, SecondMoment: 2}
	short, err := Matryoshka(gor, []int{2, 4}, []float64{0.5, 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw := gor
	raw.Metric, raw.AddColumns = Dot, true
	for _, l := range []Loss{gor, raw, short, Flops{Loss: gor, Document: 0.1}} {
		b := ragged(t, s, rng)
		for range b.Rows {
			b.Weights = append(b.Weights, rng.Float64())
		}
		checkGradient(t, s, l, b, 1e-7)
	}
	b := ragged(t, s, rng)
	got, _ := compute(t, s, raw, b)
	x, want := gpustage.Slice[float64](b.Embeddings), 0.0
	nth := func(n int) (k int) {
		for m := range n {
			if b.rowOf(m) == b.rowOf(n) {
				k++
			}
		}
		return k
	}
	for k := range 2 + len(b.Owner) {
		n, sum, squares := 0, 0.0, 0.0
		for i := range b.N() {
			if nth(i) != k {
				continue
			}
			n++
			for j := range b.N() {
				if j == i || nth(j) != k {
					continue
				}
				dot := 0.0
				for f := range 4 {
					dot += x[4*i+f] * x[4*j+f]
				}
				sum, squares = sum+dot, squares+dot*dot
			}
		}
		if n > 1 {
			pairs := float64(n * (n - 1))
			want += 0.5*sum*sum/pairs/pairs + 2*max(0, squares/pairs-0.25)
		}
	}
	if !(math.Abs(got-want) <= 1e-12*want) {
		t.Errorf("loss %v of ragged rows, want %v", got, want)
	}
}

// The hardest negative is none with the row's own query or positive, or of a row with its query, and gradients are those of difference quotients.
func TestMegaBatchMarginMasks(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(13, 14))
	// Six rows at random. Then three whose second positive is nearest to the first query, each with other texts that are alike: that positive and the first
	// query, the first two positives, the first two queries; and such that the first row has no candidates at all and others have.
	for n, texts := range [][]uint64{{}, {1, 2, 3, 4, 1, 6}, {1, 2, 3, 4, 4, 6}, {1, 1, 3, 4, 5, 6}, {1, 2, 3, 4, 4, 4}, {1, 2, 3, 4, 1, 1}, {1, 1, 1, 4, 5, 6}} {
		rows := max(3, min(6, 6*(1-n)))
		b := randomBatch(t, s, gpustage.F64, rng, rows, 0, 4)
		for i, v := range texts {
			b.Texts[i] = TextID{v, 0}
		}
		if n > 0 {
			x := gpustage.Slice[float64](b.Embeddings)
			copy(x[4*4:5*4], x[:4])
			x[4*4] += 0.01
		}
		for _, mask := range []bool{true, false} {
			l := MegaBatchMargin{PositiveMargin: 0.9, NegativeMargin: -0.5, MaskDuplicates: mask}
			got, _ := compute(t, s, l, b)
			if want := megaBatch(l, b); !(math.Abs(got-want) <= 1e-12*want) {
				t.Errorf("texts %v, duplicates masked %t: loss %v, want %v", b.Texts, mask, got, want)
			}
			s.Fill(b.Gradient, 0)
			checkGradient(t, s, l, b, 1e-7)
			s.Fill(b.Gradient, 0)
		}
	}
}

// Of positives that are equally near the first is the negative, as with torch.max: it alone has a gradient.
func TestMegaBatchMarginTie(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := newBatch(t, s, gpustage.F64, 0, 3, 2, []float64{1, 0, 0, 1, 0, 1, 1, 0, 0.6, 0.8, 0.6, 0.8})
	b.Only = &Rows{0, 1}
	value, got := compute(t, s, MegaBatchMargin{PositiveMargin: 1, NegativeMargin: 0}, b)
	if !(math.Abs(value-0.6) <= 1e-15) || !(math.Abs(got[8]-0.64) <= 1e-12) || got[10] != 0 || got[11] != 0 {
		t.Errorf("loss %v, want 0.6; gradient %v", value, got)
	}
}

// megaBatch is a batch's loss by its definition.
func megaBatch(l MegaBatchMargin, b *Batch) float64 {
	x, n, e := gpustage.Slice[float64](b.Embeddings), b.Rows, b.Embeddings.Cols
	cos := func(i, j int) float64 {
		var d, p, q float64
		for f := range e {
			d, p, q = d+x[e*i+f]*x[e*j+f], p+x[e*i+f]*x[e*i+f], q+x[e*j+f]*x[e*j+f]
		}
		return d / math.Sqrt(p*q)
	}
	sum, weight := 0.0, 0.0
	for i := range n {
		hardest := math.Inf(-1)
		for j := range n {
			same := b.Texts[n+j] == b.Texts[i] || b.Texts[n+j] == b.Texts[n+i] || b.Texts[j] == b.Texts[i]
			if i != j && !(l.MaskDuplicates && same) {
				hardest = max(hardest, cos(i, n+j))
			}
		}
		sum += b.Weight(i) * (max(0, l.PositiveMargin-cos(i, n+i)) + max(0, hardest-l.NegativeMargin))
		weight += b.Weight(i)
	}
	return sum / weight
}

// More queries than a strip has, as a whole and of ranks whose rows begin within one: the loss is that of its definition, and gradients that of each row's
// pairs. Memory is enough for strips, too.
func TestMegaBatchMarginStrips(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const rows, size = 1100, 4
	b := newBatch(t, s, gpustage.F64, 0, rows, size, nil)
	rng := rand.New(rand.NewPCG(15, 16))
	x := gpustage.Slice[float64](b.Embeddings)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	l := MegaBatchMargin{PositiveMargin: 0.9, NegativeMargin: 0.95}
	if n := stripRows(rows); n < 2 || n >= rows {
		t.Fatalf("a strip has %d rows", n)
	}
	want := megaBatch(l, b)
	whole, grad := compute(t, s, l, b)
	parts, gradOfParts := split(t, s, l, b, 70)
	if !(math.Abs(whole-want) <= 1e-12*want) || !(math.Abs(parts-want) <= 1e-12*want) {
		t.Errorf("loss %v, of two ranks %v, want %v", whole, parts, want)
	}
	if d := worst(gradOfParts, grad); !(d <= 1e-12) {
		t.Errorf("the gradient of two ranks differs by %v", d)
	}
	for _, i := range []int{0, size * 1099, size*rows + 3, size*(rows+1000) + 1} { // queries and positives of both strips
		const h = 1e-6
		was := x[i]
		x[i] = was + h
		up := megaBatch(l, b)
		x[i] = was - h
		down := megaBatch(l, b)
		x[i] = was
		if d := (up - down) / (2 * h); !(math.Abs(d-grad[i]) <= 1e-8) {
			t.Errorf("element %d: gradient %v, difference quotient %v", i, grad[i], d)
		}
	}
}

// The arena of its Memory is enough for gor where a column's texts are not next to each other and a rank's are neither, with fewer texts than features and
// with more; little more is asked for.
func TestSpreadMemory(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(17, 18))
	for _, rows := range []int{63, 64, 100} {
		const size = 64
		x := make([]float64, 4*rows*size)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		b := newBatch(t, s, gpustage.F64, 2, rows, size, x)
		for i := range rows { // the last row's negatives are in the middle, and each row's are next to each other
			row := int32(i)
			switch {
			case i == rows/2:
				row = int32(rows - 1)
			case i > rows/2:
				row = int32(i - 1)
			}
			b.Owner[2*i], b.Owner[2*i+1] = row, row
		}
		l := GlobalOrthogonal{Metric: Dot, Mean: 1, SecondMoment: 1}
		want, _ := compute(t, s, l, b)
		if got, _ := split(t, s, l, b, rows-1); !(math.Abs(got-want) <= 1e-12*want) {
			t.Errorf("%d rows: loss %v of two ranks, %v of one", rows, got, want)
		}
		least := min(rows, size)
		matrices := 8 * (3*rows*size + 2*least*least)
		if m := l.Memory(b.Size()); m > matrices+8<<10 {
			t.Errorf("%d rows: %d bytes of memory, of which matrices are %d", rows, m, matrices)
		}
	}
	for _, l := range []Loss{GlobalOrthogonal{Mean: 1, SecondMoment: 1}, MegaBatchMargin{}} {
		size := func(rows int) Size { return Size{Rows: rows, Sequences: 2 * rows, Dim: 384, DType: gpustage.F32} }
		if small, large := l.Memory(size(1<<14)), l.Memory(size(1<<16)); large > 4*small {
			t.Errorf("%T: four times the rows take %d bytes, %d before", l, large, small)
		}
	}
}

func TestSpreadErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	triples := func() *Batch { return newBatch(t, s, gpustage.F64, 1, 3, 4, make([]float64, 36)) }
	single := triples()
	single.Embeddings, single.Gradient, single.Texts, single.Owner = single.Embeddings.Span(0, 3), single.Gradient.Span(0, 3), single.Texts[:3], nil
	without := newBatch(t, s, gpustage.F64, 0, 3, 4, make([]float64, 24)) // negatives in this batch, which others have
	without.Ragged = true
	for _, c := range []struct {
		l    Loss
		b    *Batch
		want string
	}{
		{GlobalOrthogonal{}, triples(), "mean_weight and second_moment_weight are both 0"},
		{GlobalOrthogonal{Mean: -1}, triples(), "mean_weight is -1, want 0 or more"},
		{GlobalOrthogonal{Mean: 1, Metric: Euclidean}, triples(), `similarity "euclidean" is unknown: want cosine, dot`},
		{MegaBatchMargin{NegativeMargin: math.NaN()}, triples(), "negative_margin is NaN, want a number"},
		{MegaBatchMargin{}, triples(), "leave out data.train[].negatives"},
		{MegaBatchMargin{}, single, "the batch has single texts, and this loss is for pairs"},
		{MegaBatchMargin{}, without, "leave out data.train[].negatives"},
	} {
		if _, err := c.l.Compute(s, newArena(t, s, 1<<20), c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %s", c.l, err, c.want)
		}
	}
	ofRow := func(what string, l Loss, b *Batch, want int) {
		t.Helper()
		_, err := l.Compute(s, newArena(t, s, 1<<20), b)
		if row := (*RowError)(nil); !errors.As(err, &row) || row.Row != want || !errors.Is(err, ErrNotFinite) {
			t.Errorf("%s of row %d: %v", what, want, err)
		}
	}
	for what, v := range map[string]float64{"squared length beyond f64": 1e200, "square of it beyond f64": 1e80} {
		b := triples() // the second row's negative
		gpustage.Upload(s, b.Embeddings.Span(7, 8), []float64{v, v, v, v})
		ofRow(what, GlobalOrthogonal{Mean: 1, SecondMoment: 1, Metric: Dot}, b, 1)
	}
	ones := make([]float64, 24)
	for i := range ones {
		ones[i] = 1
	}
	nan := []float64{0, math.NaN(), 0, 0}
	for at := range 6 { // queries, and then positives
		b := newBatch(t, s, gpustage.F64, 0, 3, 4, ones)
		gpustage.Upload(s, b.Embeddings.Span(at, at+1), nan)
		ofRow("a text that is not finite", MegaBatchMargin{PositiveMargin: 0.5, NegativeMargin: 0.5}, b, at%3)
		b.Only = &Rows{at % 3, 3} // the rank that has the row says so
		ofRow("a text that is not finite, of a rank's rows", MegaBatchMargin{PositiveMargin: -2, NegativeMargin: 2}, b, at%3)
	}
}
