package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// m3Batch is a batch with parts of tokens: lengths [N], sparse and vectors [T', .], ids [T'].
func m3Batch(t testing.TB, s gpustage.Stream, d gpustage.DType, rows, size, dim int, dense, sparse, vectors []float64, lengths []int, ids []int32) *Batch {
	t.Helper()
	n := len(lengths)
	b := &Batch{Rows: rows, Embeddings: tensor(t, s, d, n, size, dense), Gradient: tensor(t, s, d, n, size, nil), Normalized: true, Texts: uniqueTexts(n), IDs: ids}
	cu := []int32{0}
	for i, l := range lengths {
		cu = append(cu, cu[i]+int32(l))
		if i >= 2*rows {
			b.Owner = append(b.Owner, int32(i%rows))
		}
	}
	tokens := int(cu[n])
	b.Parts = []Part{
		{SparsePart, tensor(t, s, d, tokens, 1, sparse), tensor(t, s, d, tokens, 1, nil), cu},
		{VectorsPart, tensor(t, s, d, tokens, dim, vectors), tensor(t, s, d, tokens, dim, nil), cu},
	}
	return b
}

// gradients are those of the embeddings and the other parts, by name.
func (b *Batch) gradients() map[string]gpustage.Tensor {
	out := map[string]gpustage.Tensor{DensePart: b.Gradient}
	for _, p := range b.Parts {
		out[p.Name] = p.Gradient
	}
	return out
}

// computeM3 is a loss's mean and the mean's gradient, by part.
func computeM3(t testing.TB, s gpustage.Stream, l M3, b *Batch) (float64, map[string][]float64) {
	t.Helper()
	for _, d := range b.gradients() {
		s.Fill(d, 0)
	}
	a := newArena(t, s, l.Memory(b.Size()))
	defer a.Free()
	r, err := l.Compute(s, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if a.Used() != 0 {
		t.Errorf("%d bytes of the arena were not given back", a.Used())
	}
	out := map[string][]float64{}
	for name, d := range b.gradients() {
		g, err := download(s, d)
		if err != nil {
			t.Fatal(err)
		}
		for i := range g {
			g[i] /= r.Weight
		}
		out[name] = g
	}
	return r.Sum / r.Weight, out
}

// m3Ways cut batches in every way.
var m3Ways = []M3{{}, {Block: 1, TileCols: 1}, {Block: 400, TileCols: 7}, {Block: 1 << 30, TileCols: 1 << 20}}

// Against FlagEmbedding's formulas: the loss and the gradient of every part, of each head alone and all together, with self-distillation
// and teachers. Gradients are measured against scale / B, as those of InfoNCE.
func TestGoldenM3(t *testing.T) {
	g := goldens.Load(t, "m3/losses")
	var meta struct {
		Special []int32
		Cases   []struct {
			Name, Data         string
			B, Negatives, E, D int
			Parts              []string
			SelfDistill        bool `json:"self_distill"`
			Distillation       Distillation
			Scale, Loss        float64
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
	}{{ref.New(), gpustage.F64, 1e-9}, {fast, gpustage.F32, 1e-5}} {
		s, _ := x.d.OpenStream()
		for i, c := range meta.Cases {
			l := m3Ways[i%len(m3Ways)]
			l.Parts, l.Scale, l.SelfDistill, l.Teacher = c.Parts, c.Scale, c.SelfDistill, c.Distillation
			lengths := g.Ints(t, c.Data+"/lengths")
			var ids []int32
			for _, id := range g.Ints(t, c.Data+"/ids") {
				ids = append(ids, int32(id))
			}
			b := m3Batch(t, s, x.t, c.B, c.E, c.D, g.F64(t, c.Data+"/dense"), g.F64(t, c.Data+"/sparse"), g.F64(t, c.Data+"/multi_vector"), lengths, ids)
			b.Special = meta.Special
			for k := range 1 + c.Negatives { // [B, 1+K] in the order of documents
				for row := range c.B {
					b.Scores = append(b.Scores, g.F64(t, c.Data+"/teacher")[row*(1+c.Negatives)+k])
				}
			}
			value, grad := computeM3(t, s, l, b)
			if d := math.Abs(value-c.Loss) / max(1, c.Loss); !(d <= x.limit) {
				t.Errorf("%s %s %+v: loss %v, want %v", c.Name, x.t, l, value, c.Loss)
			}
			for name, got := range grad {
				if d := worst(got, g.F64(t, c.Name+"/"+name)) / (c.Scale / float64(c.B)); !(d <= x.limit) {
					t.Errorf("%s %s %+v: gradient of %s is off by %.3g", c.Name, x.t, l, name, d)
				}
			}
		}
	}
	if len(meta.Cases) < 25 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// randomM3 has ragged negatives, duplicates, weights and a teacher.
func randomM3(t testing.TB, s gpustage.Stream, d gpustage.DType, rng *rand.Rand, rows, negatives int) *Batch {
	n := 2*rows + negatives
	lengths, tokens := make([]int, n), 0
	for i := range lengths {
		lengths[i] = 1 + rng.IntN(6)
		tokens += lengths[i]
	}
	ids := make([]int32, tokens)
	for i := range ids {
		ids[i] = int32(rng.IntN(12))
	}
	unit := func(rows, cols int) []float64 {
		out := make([]float64, 0, rows*cols)
		for range rows {
			x, sum := make([]float64, cols), 0.0
			for j := range x {
				x[j] = rng.NormFloat64()
				sum += x[j] * x[j]
			}
			for _, v := range x {
				out = append(out, v/math.Sqrt(sum))
			}
		}
		return out
	}
	weights := make([]float64, tokens)
	for i := range weights {
		weights[i] = max(0, rng.NormFloat64())
	}
	b := m3Batch(t, s, d, rows, 4, 5, unit(n, 4), weights, unit(tokens, 5), lengths, ids)
	b.Special, b.Owner = []int32{0, 1}, nil
	for range negatives {
		b.Owner = append(b.Owner, int32(rng.IntN(rows)))
	}
	for i := range b.Texts {
		b.Texts[i] = TextID{uint64(rng.IntN(n)), 0}
	}
	for range rows {
		b.Weights = append(b.Weights, rng.Float64())
	}
	for range n - rows {
		b.Scores = append(b.Scores, rng.NormFloat64())
	}
	return b
}

// What no peer has, ragged negatives, weights and masked duplicates, against differences of the loss; and the terms of some rows add up
// to those of all, with their gradients.
func TestM3Rows(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(5, 6))
	for i, l := range []M3{
		{Scale: 3, MaskDuplicates: true}, {Scale: 2, Teacher: TeacherM3, MaskDuplicates: true}, {Scale: 2, Teacher: TeacherKL}, {Scale: 3, Parts: []string{SparsePart}},
		{Scale: 2, Parts: []string{SparsePart, VectorsPart}, MaskDuplicates: true},
	} {
		l.Block, l.TileCols = m3Ways[i%len(m3Ways)].Block, m3Ways[i%len(m3Ways)].TileCols
		b := randomM3(t, s, gpustage.F64, rng, 5, 7)
		value, grad := computeM3(t, s, l, b)
		if err := CheckGradient(s, l, b, GradientCheck{Limit: 1e-7, Elements: 40}); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
		sum, total, parts := 0.0, 0.0, map[string][]float64{}
		for _, only := range []Rows{{0, 2}, {2, 2}, {2, 5}} {
			b.Only = &only
			v, g := computeM3(t, s, l, b)
			weight := 0.0
			for _, w := range b.Weights[only.Lo:only.Hi] {
				weight += w
			}
			if weight == 0 {
				continue
			}
			sum, total = sum+v*weight, total+weight
			for name, x := range g {
				if parts[name] == nil {
					parts[name] = make([]float64, len(x))
				}
				for k := range x {
					parts[name][k] += x[k] * weight
				}
			}
		}
		for name, x := range parts {
			for k := range x {
				x[k] /= total
			}
			if d := worst(x, grad[name]); !(d <= 1e-12) {
				t.Errorf("%+v: the gradients of some rows' losses add up to another of %s: %.3g", l, name, d)
			}
		}
		if !(math.Abs(sum/total-value) <= 1e-12*(1+math.Abs(value))) {
			t.Errorf("%+v: the losses of some rows add up to %v, of all are %v", l, sum/total, value)
		}
	}
}

// Masked duplicates are those of InfoNCE, which a golden has: of the dense part alone the two are one loss.
func TestM3Duplicates(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for seed := range uint64(8) { // not each has a query twice
		b := randomM3(t, s, gpustage.F64, rand.New(rand.NewPCG(15, seed)), 6, 9)
		b.Scores = nil
		var values [2]float64
		for i, masked := range []bool{false, true} {
			value, grad := computeM3(t, s, M3{Scale: 3, Parts: []string{DensePart}, MaskDuplicates: masked}, b)
			s.Fill(b.Gradient, 0)
			r, want := compute(t, s, InfoNCE{Scale: 3, MaskDuplicates: masked}, b)
			if d := worst(grad[DensePart], want); !(math.Abs(value-r) <= 1e-12) || !(d <= 1e-12) {
				t.Errorf("masked %v: loss %v, InfoNCE's %v; the gradient is off by %.3g", masked, value, r, d)
			}
			values[i] = value
		}
		if values[0] == values[1] {
			t.Error("there was no duplicate")
		}
	}
}

// Of a row's own documents the teacher speaks, of one with the positive's text too: where there are no others, there is nothing to mask.
func TestM3TaughtDuplicates(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomM3(t, s, gpustage.F64, rand.New(rand.NewPCG(17, 18)), 1, 3)
	b.Texts[3] = b.Texts[1]
	for _, teacher := range []Distillation{TeacherKL, TeacherM3} {
		want, grad := computeM3(t, s, M3{Scale: 3, Teacher: teacher}, b)
		got, masked := computeM3(t, s, M3{Scale: 3, Teacher: teacher, MaskDuplicates: true}, b)
		if d := worst(masked[DensePart], grad[DensePart]); got != want || d != 0 {
			t.Errorf("%s: with duplicates masked the loss is %v, and %v without; the gradient is off by %.3g", teacher, got, want, d)
		}
	}
}

// Self-distillation begins with its step.
func TestM3Schedule(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomM3(t, s, gpustage.F64, rand.New(rand.NewPCG(7, 8)), 4, 0)
	at := func(step int, l M3) float64 {
		b.Step = step
		v, _ := computeM3(t, s, l, b)
		return v
	}
	late := M3{SelfDistill: true, DistillFrom: 3}
	if plain, always := at(2, M3{}), at(2, M3{SelfDistill: true}); plain == always || at(2, late) != plain || at(3, late) != always || at(0, M3{SelfDistill: true}) != always {
		t.Errorf("the loss is %v before step 3 and %v from it on, want %v and %v", at(2, late), at(3, late), plain, always)
	}
}

func TestM3Errors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for want, c := range map[string]struct {
		l      M3
		change func(*Batch)
	}{
		`part "colbert" is unknown: want dense, sparse, multi_vector`: {l: M3{Parts: []string{"colbert"}}},
		`part "dense" is given twice`:                                 {l: M3{Parts: []string{"dense", "dense"}}},
		"self-distillation is from the ensemble of several parts":     {l: M3{Parts: []string{"dense"}, SelfDistill: true}},
		`distillation "margin" is unknown`:                            {l: M3{Teacher: "margin"}},
		"needs a teacher's scores":                                    {l: M3{Teacher: TeacherKL}, change: func(b *Batch) { b.Scores = nil }},
		`needs the part "multi_vector"`:                               {change: func(b *Batch) { b.Parts = b.Parts[:1] }},
		"sequence 1 of the batch has no token but the first": {change: func(b *Batch) {
			cu := slices.Clone(b.Parts[0].Cu)
			cu[2] = cu[1]
			b.Parts[0].Cu = cu
		}},
		"the loss is not finite: row": {change: func(b *Batch) { s.Fill(b.Parts[1].X, math.NaN()) }},
	} {
		b := randomM3(t, s, gpustage.F64, rand.New(rand.NewPCG(9, 10)), 3, 2)
		if c.change != nil {
			c.change(b)
		}
		if _, err := c.l.Compute(s, newArena(t, s, 1<<20), b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The lexical score of all pairs takes memory by tokens, not by the vocabulary, which has 250,002.
func TestLexicalMemory(t *testing.T) {
	measure := func(vocabulary int) (bytes, tokens int) {
		const texts, length = 400, 50
		rng := rand.New(rand.NewPCG(1, 1))
		p := &Part{Cu: []int32{0}}
		var ids []int32
		var weights []float64
		for range 2 * texts {
			for range length {
				ids, weights = append(ids, int32(rng.IntN(vocabulary))), append(weights, rng.Float64())
			}
			p.Cu = append(p.Cu, int32(len(ids)))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		x := newLexical(p, ids, weights, texts, 0, texts, nil)
		out := make([]float64, texts)
		for i := range texts {
			clear(out)
			x.scores(i, out)
			x.backward(i, out)
		}
		runtime.ReadMemStats(&after)
		return int(after.TotalAlloc - before.TotalAlloc), len(ids)
	}
	for _, v := range []int{1000, 250002} {
		if bytes, tokens := measure(v); bytes > 500*tokens {
			t.Errorf("a vocabulary of %d: %d bytes for %d tokens", v, bytes, tokens)
		}
	}
}

// Of equal tokens the largest weight counts, the first of several; special tokens and those without weight don't.
func TestLexemes(t *testing.T) {
	ids, weights := []int32{7, 2, 5, 7, 5, 7, 9, 5, 2}, []float32{0.5, 9, 0.25, 0.75, 0.25, 0.75, 0, 0.125, 1}
	if got, want := Lexemes(ids, weights, map[int32]bool{2: true}), []int{3, 2}; !slices.Equal(got, want) {
		t.Errorf("tokens %v count, want %v", got, want)
	}
	p := &Part{Cu: []int32{0, 9, 12}}
	x := newLexical(p, append(ids, 5, 7, 5), []float64{0.5, 9, 0.25, 0.75, 0.25, 0.75, 0, 0.125, 1, 1, 2, 3}, 1, 0, 1, []int32{2})
	out := []float64{0}
	x.scores(0, out)
	x.backward(0, []float64{2})
	if want := 0.25*3 + 0.75*2; out[0] != want {
		t.Errorf("score %v, want %v", out[0], want)
	}
	if want := []float64{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 1.5, 0.5}; !slices.Equal(x.d, want) {
		t.Errorf("gradient %v, want %v", x.d, want)
	}
}

// 1,024 x 1,024 texts of 32 and 128 tokens fit 1 GiB: parts, their gradients and the arena.
func TestMaxSimMemory(t *testing.T) {
	z := Size{Rows: 1024, Sequences: 2048, Dim: 384, Tokens: 1024 * (32 + 128), Longest: 128, DType: gpustage.F32}
	parts := 2 * 4 * (z.Tokens*(384+1) + z.Sequences*384)
	if n := parts + (M3{}).Memory(z); n > 1<<30 {
		t.Errorf("%d bytes, of them %d of parts", n, parts)
	}
}

// BenchmarkMaxSim measures all pairs of (32, 128) tokens at 384 dimensions: forward, and with the gradient, beside the product alone.
func BenchmarkMaxSim(b *testing.B) {
	for _, rows := range []int{8, 128, 1024} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			if testing.Short() && rows > 8 {
				b.Skip("-short")
			}
			benchmarkMaxSim(b, rows)
		})
	}
}

func benchmarkMaxSim(b *testing.B, rows int) {
	d, err := cpu.New()
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	s, _ := d.OpenStream()
	rng := rand.New(rand.NewPCG(3, 3))
	p := &Part{Name: VectorsPart, Cu: []int32{0}}
	for i := range 2 * rows {
		p.Cu = append(p.Cu, p.Cu[i]+int32([]int{32, 128}[i/rows]))
	}
	tokens := int(p.Cu[2*rows])
	vs := make([]float64, tokens*384)
	for i := range vs {
		vs[i] = rng.NormFloat64()
	}
	p.X, p.Gradient = tensor(b, s, gpustage.F32, tokens, 384, vs), tensor(b, s, gpustage.F32, tokens, 384, nil)
	z := Size{Rows: rows, Sequences: 2 * rows, Dim: 384, Tokens: tokens, Longest: 128, DType: gpustage.F32}
	a := newArena(b, s, (M3{}).Memory(z)+rows*rows*4+128)
	out := a.Keep(s, gpustage.F32, rows, rows)
	tile := tensor(b, s, gpustage.F32, maxSimRows, maxSimCols, nil)
	flops := 2 * float64(32*rows) * float64(128*rows) * 384
	var spent [3]time.Duration // product alone, forward, backward
	for range b.N {
		begin := time.Now()
		q, docs := p.span(p.X, 0, rows), p.span(p.X, rows, 2*rows)
		for lo := 0; lo < q.Rows; lo += maxSimRows {
			for from := 0; from < docs.Rows; from += maxSimCols {
				x, y := q.Span(lo, min(q.Rows, lo+maxSimRows)), docs.Span(from, min(docs.Rows, from+maxSimCols))
				s.MatMul(tile.Span(0, x.Rows).Columns(0, y.Rows), x, y, gpustage.MatMul{TransB: true})
			}
		}
		spent[0] += time.Since(begin)
		strip := min(rows, defaultBlock/(4*32*rows))
		for from := 0; from < rows; from += strip {
			to := min(rows, from+strip)
			mark := a.Mark()
			begin = time.Now()
			m := openMaxSim(s, a, p, rows, maxSimCols)
			m.forward(from, to, out.Span(from, to))
			spent[1] += time.Since(begin)
			begin = time.Now()
			m.backward(out.Span(from, to))
			spent[2] += time.Since(begin)
			a.ReleaseScratch(mark)
		}
	}
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
	for i, name := range []string{"product", "forward", "forward+gradient"} {
		t := spent[i]
		if i == 2 {
			t += spent[1]
		}
		b.ReportMetric(flops*float64(b.N)/t.Seconds()/1e9, fmt.Sprint(name, "-GFLOP/s"))
	}
	b.ReportMetric(100*spent[0].Seconds()/spent[1].Seconds(), "%-of-GEMM")
	b.ReportMetric(float64(a.Size()+2*4*tokens*384)/(1<<20), "MiB")
}
