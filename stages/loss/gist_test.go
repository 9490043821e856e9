package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// gist is GISTEmbedLoss's form of InfoNCE.
func gist(scale float64, g Guide, anchors, positives bool) InfoNCE {
	l := InfoNCE{Scale: scale, Directions: []Direction{QueryToDoc}, Guide: &g}
	if anchors {
		l.Directions = append(l.Directions, QueryToQuery)
	}
	if positives {
		l.Directions = append(l.Directions, PositiveToPositive)
	}
	return l
}

// unitRows gives rows length 1.
func unitRows(x []float64, cols int) []float64 {
	for lo := 0; lo < len(x); lo += cols {
		sum := 0.0
		for _, v := range x[lo : lo+cols] {
			sum += v * v
		}
		for i := range x[lo : lo+cols] {
			x[lo+i] /= math.Sqrt(sum)
		}
	}
	return x
}

// Against sentence-transformers' GISTEmbedLoss and CachedGISTEmbedLoss: value and gradient, as a whole and with rows split over ranks.
func TestGoldenGIST(t *testing.T) {
	harness.Thorough(t)
	g := goldens.Load(t, "loss/gist")
	var meta struct {
		Cases []struct {
			Name, Data                 string
			B, E, G, Negatives         int
			Value, Temperature, Margin float64
			Strategy                   string `json:"margin_strategy"`
			Anchors                    bool   `json:"contrast_anchors"`
			Positives                  bool   `json:"contrast_positives"`
		}
	}
	g.Meta(t, &meta)
	device, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	exact, _ := ref.New().OpenStream()
	fast, _ := device.OpenStream()
	guided := 0
	for i, c := range meta.Cases {
		size := tiles[i%len(tiles)]
		l := gist(1/c.Temperature, Guide{c.Margin, c.Strategy == "relative"}, c.Anchors, c.Positives)
		l.TileRows, l.TileCols = size[0], size[1]
		want := g.F64(t, c.Name+"/grad")
		top := 1e-12
		for _, w := range want {
			top = max(top, math.Abs(w))
		}
		for _, v := range []struct {
			s     gpustage.Stream
			dtype gpustage.DType
			limit float64
		}{{exact, gpustage.F64, 1e-9}, {fast, gpustage.F32, 1e-5 * max(1, 0.05/c.Temperature)}} { // a cosine's rounding is multiplied by the scale
			b := newBatch(t, v.s, v.dtype, c.Negatives, c.B, c.E, g.F64(t, c.Data+"/x"))
			b.Guide = tensor(t, v.s, v.dtype, b.N(), c.G, unitRows(g.F64(t, c.Data+"/guide"), c.G))
			check := func(how string, value float64, grad []float64) {
				t.Helper()
				if d := math.Abs(value-c.Value) / max(1, math.Abs(c.Value)); !(d <= v.limit) {
					t.Errorf("%s %+v, %v, %s: loss %v, want %v", c.Name, c, v.dtype, how, value, c.Value)
				}
				if d := worst(grad, want) / top; !(d <= v.limit) && !(top <= 1e-12) {
					t.Errorf("%s %+v, %v, %s: gradient error %.3g", c.Name, c, v.dtype, how, d)
				}
			}
			value, grad := compute(t, v.s, l, b)
			check("whole", value, grad)
			value, grad = split(t, v.s, l, b, c.B/3, c.B/3, c.B/2)
			check("split", value, grad)
			if v.dtype == gpustage.F64 {
				without := l
				without.Guide = nil
				if value, _ := compute(t, v.s, without, b); math.Abs(value-c.Value) > 1e-3 {
					guided++
				}
			}
		}
	}
	if len(meta.Cases) < 150 || guided < len(meta.Cases)/2 {
		t.Errorf("%d cases, in %d of which the guide matters", len(meta.Cases), guided)
	}
}

// With every direction, ragged negatives, weights and duplicates, the loss is its formula written out, and its gradient the difference
// quotients'.
func TestGuideFormula(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(17, 18))
	const scale, dim = 3, 3
	masked, kept := 0, 0
	for i := range 40 {
		b := randomBatch(t, s, gpustage.F64, rng, 5, 7, 4)
		guide := make([]float64, b.N()*dim)
		for i := range guide {
			guide[i] = rng.NormFloat64()
		}
		b.Guide = tensor(t, s, gpustage.F64, b.N(), dim, unitRows(guide, dim))
		rule := Guide{Margin: []float64{0, 0.2, 0.7}[i%3], Relative: i%2 == 0}
		l := InfoNCE{Scale: scale, Directions: Directions, Guide: &rule, MaskDuplicates: i%4 == 0, Dot: true, TileRows: 2, TileCols: 3}
		got, _ := compute(t, s, l, b)
		x := gpustage.Slice[float64](b.Embeddings)
		dot := func(x []float64, n, i, j int) (sum float64) {
			for k := range n {
				sum += x[i*n+k] * x[j*n+k]
			}
			return sum
		}
		owner := func(n int) int {
			if n >= 2*b.Rows {
				return int(b.Owner[n-2*b.Rows])
			}
			return n % b.Rows
		}
		want, weights := 0.0, 0.0
		for q := range b.Rows {
			p := b.Rows + q
			limit := dot(guide, dim, q, p)
			if rule.Relative {
				limit -= math.Abs(limit) * rule.Margin
			} else {
				limit -= rule.Margin
			}
			z := 0.0
			candidates := func(anchor, lo, hi int, not func(n int) bool) {
				for n := lo; n < hi; n++ {
					document := n >= b.Rows
					same := b.Texts[n] == b.Texts[q] || b.Texts[n] == b.Texts[p]
					if document {
						same = same || n < 2*b.Rows && b.Texts[owner(n)] == b.Texts[q]
					} else {
						same = same || b.Texts[b.Rows+n] == b.Texts[p]
					}
					switch pair := anchor == q && n == p || anchor == p && n == q; {
					case not(n):
					case !pair && l.MaskDuplicates && same:
					case !pair && dot(guide, dim, anchor, n) > limit:
						masked++
					default:
						z += math.Exp(scale * dot(x, 4, anchor, n))
						kept++
					}
				}
			}
			candidates(q, b.Rows, b.N(), func(int) bool { return false })
			candidates(q, 0, b.Rows, func(n int) bool { return n == q })
			candidates(p, 0, b.Rows, func(int) bool { return false })
			candidates(p, b.Rows, b.N(), func(n int) bool { return owner(n) == q })
			candidates(p, b.Rows, 2*b.Rows, func(n int) bool { return n == p })
			want += b.Weights[q] * (math.Log(z) - scale*dot(x, 4, q, p))
			weights += b.Weights[q]
		}
		if want /= weights; !(math.Abs(got-want) <= 1e-12*max(1, math.Abs(want))) {
			t.Errorf("%+v: loss %v, want %v", rule, got, want)
		}
		if i < 4 {
			s.Fill(b.Gradient, 0)
			checkGradient(t, s, l, b, 1e-8)
		}
	}
	if masked < 100 || kept < 100 {
		t.Errorf("%d candidates were masked and %d kept", masked, kept)
	}
}

func ExampleGuide() {
	s, _ := ref.New().OpenStream()
	a, _ := gpustage.NewArena(s.Device(), 1<<20)
	emb, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	grad, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	s.CopyIn(emb, gpustage.Bytes([]float64{
		1, 0, // query 0
		0, 1, // query 1
		1, 0, // its positive, 0
		0.8, 0.6, // 1, which is nearer to query 0 than to its own
	}))
	// The guide is the model itself. For query 0, a document at more than 1 - 0.3 is no negative.
	for _, g := range []*Guide{nil, {Margin: 0.3}} {
		r, err := InfoNCE{Scale: 1, Guide: g}.Compute(s, a, &Batch{Rows: 2, Embeddings: emb, Gradient: grad, Guide: emb, Texts: uniqueTexts(4)})
		fmt.Printf("%.4f %v\n", r.Sum/r.Weight, err)
	}
	// Output:
	// 0.5178 <nil>
	// 0.2187 <nil>
}

// A candidate that is as near as the positive but for rounding stays, whichever way rounding goes; one that is nearer by more than the slack does not.
func TestGuideSlack(t *testing.T) {
	s, _ := ref.New().OpenStream()
	const angle, dim = 0.7, 2
	at := func(a float64) []float64 { return []float64{math.Cos(a), math.Sin(a)} }
	for nearer, stays := range map[float64]bool{-1e-3: true, -2e-6: true, 0: true, 2e-6: true, 6e-6: false, 1e-3: false} { // of the guide's cosine, by so much
		x := slices.Concat(at(0.1), at(2), at(0.4), at(1.5))
		other := math.Acos(math.Cos(angle) + nearer)
		guide := slices.Concat(at(0), at(other), at(angle), at(other)) // the second query is its positive
		b := &Batch{Rows: 2, Embeddings: tensor(t, s, gpustage.F64, 4, dim, x), Gradient: tensor(t, s, gpustage.F64, 4, dim, make([]float64, 8)), Guide: tensor(t, s, gpustage.F64, 4, dim, guide),
			Texts: []TextID{{1}, {2}, {3}, {4}}}
		score := func(a, b float64) float64 { return 5 * math.Cos(a-b) }
		want := math.Log1p(math.Exp(score(2, 0.4) - score(2, 1.5)))
		if stays {
			want += math.Log1p(math.Exp(score(0.1, 1.5) - score(0.1, 0.4)))
		}
		if got, _ := compute(t, s, InfoNCE{Scale: 5, Guide: &Guide{}}, b); !(math.Abs(got-want/2) <= 1e-12) {
			t.Errorf("nearer by %g: the loss is %v, want %v", nearer, got, want/2)
		}
	}
}
