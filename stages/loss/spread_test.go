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
				if d := worst(grad, want) / size; !(d <= v.limit) && size > 1e-9 { // that of the cosine of two rows is noise
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
	masked := 0
	for range 4 {
		b := randomBatch(t, s, gpustage.F64, rng, 6, 0, 4)
		for _, mask := range []bool{true, false} {
			l := MegaBatchMargin{PositiveMargin: 0.9, NegativeMargin: -0.5, MaskDuplicates: mask}
			got, _ := compute(t, s, l, b)
			x := gpustage.Slice[float64](b.Embeddings)
			cos := func(i, j int) float64 {
				var d, p, q float64
				for f := range 4 {
					d, p, q = d+x[4*i+f]*x[4*j+f], p+x[4*i+f]*x[4*i+f], q+x[4*j+f]*x[4*j+f]
				}
				return d / math.Sqrt(p*q)
			}
			want, weight := 0.0, 0.0
			for i := range 6 {
				hardest := math.Inf(-1)
				for j := range 6 {
					if same := b.Texts[6+j] == b.Texts[i] || b.Texts[6+j] == b.Texts[6+i] || b.Texts[j] == b.Texts[i]; i != j && mask && same {
						masked++
					} else if i != j {
						hardest = max(hardest, cos(i, 6+j))
					}
				}
				want += b.Weight(i) * (max(0, 0.9-cos(i, 6+i)) + max(0, hardest+0.5))
				weight += b.Weight(i)
			}
			if want /= weight; !(math.Abs(got-want) <= 1e-12*want) {
				t.Errorf("duplicates masked %t: loss %v, want %v", mask, got, want)
			}
			s.Fill(b.Gradient, 0)
			checkGradient(t, s, l, b, 1e-7)
			s.Fill(b.Gradient, 0)
		}
	}
	if masked < 8 {
		t.Errorf("%d duplicates", masked)
	}
}

func TestSpreadErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	triples := func() *Batch { return newBatch(t, s, gpustage.F64, 1, 3, 4, make([]float64, 36)) }
	single := triples()
	single.Embeddings, single.Gradient, single.Texts, single.Owner = single.Embeddings.Span(0, 3), single.Gradient.Span(0, 3), single.Texts[:3], nil
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
	} {
		if _, err := c.l.Compute(s, newArena(t, s, 1<<20), c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %s", c.l, err, c.want)
		}
	}
	b := triples() // whose second row's negative overflows
	huge := make([]float64, 4)
	for i := range huge {
		huge[i] = 1e200
	}
	gpustage.Upload(s, b.Embeddings.Span(7, 8), huge)
	_, err := GlobalOrthogonal{Mean: 1, SecondMoment: 1, Metric: Dot}.Compute(s, newArena(t, s, 1<<20), b)
	if row := (*RowError)(nil); !errors.As(err, &row) || row.Row != 1 || !errors.Is(err, ErrNotFinite) {
		t.Error(fmt.Sprint(err))
	}
}
