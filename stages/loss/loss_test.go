package loss

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

func tensor(t testing.TB, s gpustage.Stream, d gpustage.DType, rows, cols int, vs []float64) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(s.Device(), d, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	if vs != nil {
		gpustage.Upload(s, x, vs)
	}
	return x
}

// uniqueTexts are identities without duplicates.
func uniqueTexts(n int) []TextID {
	ids := make([]TextID, n)
	for i := range ids {
		ids[i] = TextID{uint64(i), 1}
	}
	return ids
}

// newBatch lays out [2+K, B, E] embeddings, which is how the goldens have them and how a batch has them.
func newBatch(t testing.TB, s gpustage.Stream, d gpustage.DType, negatives, rows, size int, x []float64) *Batch {
	t.Helper()
	n := (2 + negatives) * rows
	b := &Batch{Rows: rows, Embeddings: tensor(t, s, d, n, size, x), Gradient: tensor(t, s, d, n, size, nil), Texts: uniqueTexts(n)}
	for range negatives {
		for i := range rows {
			b.Owner = append(b.Owner, int32(i))
		}
	}
	return b
}

func newArena(t testing.TB, s gpustage.Stream, bytes int) *gpustage.Arena {
	t.Helper()
	a, err := gpustage.NewArena(s.Device(), bytes)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// compute runs a loss and returns its mean and the mean's gradient.
func compute(t testing.TB, s gpustage.Stream, l Loss, b *Batch) (float64, []float64) {
	t.Helper()
	a := newArena(t, s, l.Memory(b.Size()))
	r, err := l.Compute(s, a, b)
	if err != nil {
		t.Fatal(err)
	}
	g, err := download(s, b.Gradient)
	if err != nil {
		t.Fatal(err)
	}
	for i := range g {
		g[i] /= r.Weight
	}
	if a.Used() != 0 {
		t.Errorf("%d bytes of the arena were not given back", a.Used())
	}
	return r.Sum / r.Weight, g
}

func worst(got, want []float64) float64 {
	d := 0.0
	for i := range want {
		if math.IsNaN(got[i]) {
			return math.NaN()
		}
		d = max(d, math.Abs(got[i]-want[i]))
	}
	return d
}

// tiles are sizes that cut the goldens' batches of up to 33 rows in every way.
var tiles = [][2]int{{0, 0}, {1, 1}, {5, 7}, {33, 16}, {8, 100}}

// Against sentence-transformers' MultipleNegativesRankingLoss. Gradients are measured against scale / B, the size that
// they have while anything is left to learn; PyTorch's own f32 is within 1e-5 by this measure.
func TestGoldenMNRL(t *testing.T) {
	g := goldens.Load(t, "loss/mnrl")
	var meta struct {
		Cases []struct {
			Name, X, Similarity string
			B, E, Negatives     int
			Scale, Loss         float64
			Directions          []Direction
			PartitionMode       string `json:"partition_mode"`
		}
	}
	g.Meta(t, &meta)
	s, _ := ref.New().OpenStream()
	for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
		limit := 1e-12
		if dtype == gpustage.F32 {
			limit = 1e-5
		}
		for i, c := range meta.Cases {
			size := tiles[i%len(tiles)]
			l := InfoNCE{Scale: c.Scale, Directions: c.Directions, PerDirection: c.PartitionMode == "per_direction", Dot: c.Similarity == "dot", TileRows: size[0], TileCols: size[1]}
			b := newBatch(t, s, dtype, c.Negatives, c.B, c.E, g.F64(t, c.X))
			value, grad := compute(t, s, l, b)
			if d := math.Abs(value-c.Loss) / max(1, math.Abs(c.Loss)); !(d <= limit) {
				t.Errorf("%s %s, tiles %v: loss %v, want %v", c.Name, dtype, size, value, c.Loss)
			}
			if d := worst(grad, g.F64(t, c.Name)) / (c.Scale / float64(c.B)); !(d <= limit) {
				t.Errorf("%s %s, tiles %v: gradient error %.3g", c.Name, dtype, size, d)
			}
		}
	}
	if len(meta.Cases) < 100 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// Row weights and masked duplicates, against formulas written out in PyTorch.
func TestGoldenMasked(t *testing.T) {
	g := goldens.Load(t, "loss/masked")
	var meta struct {
		Cases []struct {
			Name, Data       string
			B, E, Negatives  int
			Scale, Loss      float64
			Directions       []Direction
			PartitionMode    string `json:"partition_mode"`
			Weighted, Masked bool
		}
	}
	g.Meta(t, &meta)
	s, _ := ref.New().OpenStream()
	for i, c := range meta.Cases {
		size := tiles[i%len(tiles)]
		l := InfoNCE{Scale: c.Scale, Directions: c.Directions, PerDirection: c.PartitionMode == "per_direction", Dot: true, MaskDuplicates: c.Masked, TileRows: size[0], TileCols: size[1]}
		b := newBatch(t, s, gpustage.F64, c.Negatives, c.B, c.E, g.F64(t, c.Data+"/x"))
		for k, id := range g.Ints(t, c.Data+"/text_ids") {
			b.Texts[k] = TextID{uint64(id), 99}
		}
		if c.Weighted {
			b.Weights = g.F64(t, c.Data+"/weights")
		}
		value, grad := compute(t, s, l, b)
		if d := math.Abs(value-c.Loss) / max(1, math.Abs(c.Loss)); !(d <= 1e-12) {
			t.Errorf("%s: loss %v, want %v", c.Name, value, c.Loss)
		}
		if d := worst(grad, g.F64(t, c.Name)) / (c.Scale / float64(c.B)); !(d <= 1e-12) {
			t.Errorf("%s: gradient error %.3g", c.Name, d)
		}
	}
	if len(meta.Cases) < 100 {
		t.Errorf("%d cases", len(meta.Cases))
	}
}

// randomBatch has duplicates, negatives owned unevenly, and weights.
func randomBatch(t testing.TB, s gpustage.Stream, d gpustage.DType, rng *rand.Rand, rows, negatives, size int) *Batch {
	t.Helper()
	b, err := RandomBatch(s.Device(), d, rng, rows, negatives, size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkGradient compares the gradient of a batch in f64 with difference quotients.
func checkGradient(t *testing.T, s gpustage.Stream, l Loss, b *Batch, limit float64) {
	t.Helper()
	if err := CheckGradient(s, l, b, GradientCheck{Limit: limit}); err != nil {
		t.Errorf("%+v: %v", l, err)
	}
}

// Ragged negatives have no peer: the gradient is checked against differences of the loss.
func TestRaggedGradient(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range []InfoNCE{
		{Scale: 3, MaskDuplicates: true, TileRows: 2, TileCols: 3},
		{Scale: 3, Directions: Directions, TileRows: 3, TileCols: 4},
		{Scale: 2, Directions: []Direction{QueryToDoc, DocToQuery}, PerDirection: true, MaskDuplicates: true, Dot: true},
	} {
		b := randomBatch(t, s, gpustage.F64, rng, 5, 7, 4)
		checkGradient(t, s, l, b, 1e-8)
	}
}

// Gradients accumulate: a batch's gradient buffer may already hold something.
func TestAccumulates(t *testing.T) {
	s, _ := ref.New().OpenStream()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, l := range []Loss{InfoNCE{}, InfoNCE{Dot: true}, Host(func(b *Batch, x, g [][]float32) (Result, error) {
		for i := range g {
			g[i][0] = 2 * x[i][0]
		}
		return Result{Sum: 1, Weight: 1}, nil
	})} {
		b := randomBatch(t, s, gpustage.F64, rng, 4, 0, 3)
		a := newArena(t, s, 1<<20)
		for range 2 {
			if _, err := l.Compute(s, a, b); err != nil {
				t.Fatal(err)
			}
		}
		twice, _ := download(s, b.Gradient)
		s.Fill(b.Gradient, 0)
		if _, err := l.Compute(s, a, b); err != nil {
			t.Fatal(err)
		}
		once, _ := download(s, b.Gradient)
		for i := range once {
			if !(math.Abs(twice[i]-2*once[i]) <= 1e-12*(1+math.Abs(twice[i]))) {
				t.Errorf("%T: element %d: %v after two, %v after one", l, i, twice[i], once[i])
			}
		}
	}
}

// A row without weight is not in the sum. Its loss is to be finite as any other row's is: of a row whose embeddings are not, every loss says which it is, where
// else the gradients of others would be NaN.
func TestRowsWithoutWeight(t *testing.T) {
	var sum Result
	if err := errors.Join(sum.add(0, 2, 3), sum.add(1, 0, 5), sum.add(2, 0.5, 4)); err != nil || sum != (Result{Sum: 8, Weight: 2.5}) {
		t.Errorf("%+v, %v", sum, err)
	}
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	const rows, size = 3, 4
	nan := make([]float64, size)
	for i := range nan {
		nan[i] = math.NaN()
	}
	pairs := func() *Batch {
		b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(1, 2)), rows, rows, size)
		b.Owner, b.Texts, b.Scores, b.Labels = []int32{0, 1, 2}, uniqueTexts(b.N()), []float64{1, 2, 3, 4, 5, 6}, []float64{0, 1, 1}
		return b
	}
	single := func() *Batch {
		b := pairs()
		b.Embeddings, b.Gradient, b.Owner, b.Texts, b.Scores = b.Embeddings.Span(0, rows), b.Gradient.Span(0, rows), nil, b.Texts[:rows], nil
		return b
	}
	bare := func() *Batch { return newBatch(t, s, gpustage.F64, 0, rows, size, make([]float64, 2*rows*size)) }
	tokens := func() *Batch { return vectorsBatch(t, s, gpustage.F64, rows, size, nil, []int{2, 1, 3, 2, 1, 2}) }
	for _, c := range []struct {
		l Loss
		b func() *Batch
	}{
		{InfoNCE{}, pairs}, {InfoNCE{Hardness: HardNegatives, HardnessStrength: 2}, pairs}, {DistillKL{}, pairs}, {MarginMSE{Metric: Cosine}, pairs}, {Triplet{}, pairs}, {Triplet{Metric: Manhattan}, pairs},
		{TeacherEmbedding{}, single}, {BatchTriplet{}, single}, {BatchTriplet{Metric: Cosine}, single}, {LateInteraction{}, tokens},
		{GlobalOrthogonal{Mean: 1}, pairs}, {GlobalOrthogonal{SecondMoment: 1}, single}, {MegaBatchMargin{}, bare},
	} {
		for _, weight := range []float64{0, 1} {
			b := c.b()
			b.Weights = []float64{1, weight, 2}
			b.Teacher = make([]float32, rows*size)
			x, at := b.Embeddings, 1 // row 1's query
			if x.IsZero() {
				x, at = b.Parts[0].X, 2
			}
			gpustage.Upload(s, x.Span(at, at+1), nan)
			a := newArena(t, s, 1<<22)
			_, err := c.l.Compute(s, a, b)
			var row *RowError
			if _, all := c.l.(BatchTriplet); all && errors.As(err, &row) && row.Row == 0 { // which is compared with row 1's
				continue
			}
			if !errors.As(err, &row) || row.Row != 1 || !errors.Is(err, ErrNotFinite) {
				t.Errorf("%T %+v: row 1 of weight %v has no finite embedding: %v", c.l, c.l, weight, err)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	s, _ := ref.New().OpenStream()
	a := newArena(t, s, 1<<20)
	good := func() *Batch { return newBatch(t, s, gpustage.F32, 1, 3, 4, nil) }
	for name, c := range map[string]struct {
		l      InfoNCE
		change func(*Batch)
		want   string
	}{
		"scale":     {InfoNCE{Scale: -1}, nil, "scale is -1, want a positive number"},
		"direction": {InfoNCE{Directions: []Direction{"doc_to_dog"}}, nil, `direction "doc_to_dog" is unknown: want query_to_doc,`},
		"missing":   {InfoNCE{Directions: []Direction{DocToQuery}}, nil, `directions must contain "query_to_doc"`},
		"twice":     {InfoNCE{Directions: []Direction{QueryToDoc, QueryToDoc}}, nil, "given twice"},
		"partition": {InfoNCE{Directions: Directions, PerDirection: true}, nil, "one softmax per direction needs the positive pair"},
		"owner":     {InfoNCE{}, func(b *Batch) { b.Owner[1] = 3 }, "negative 1 belongs to row 3 of 3"},
		"weights":   {InfoNCE{}, func(b *Batch) { b.Weights = []float64{1, 2} }, "3 rows have 2 weights"},
		"weight":    {InfoNCE{}, func(b *Batch) { b.Weights = []float64{1, 2, -1} }, "row 2 has weight -1"},
		"texts":     {InfoNCE{}, func(b *Batch) { b.Texts = nil }, "0 text identities"},
	} {
		b := good()
		if c.change != nil {
			c.change(b)
		}
		if _, err := c.l.Compute(s, a, b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	b := good()
	b.Labels, b.Scores = []float64{1, math.NaN(), 0}, make([]float64, b.N()-b.Rows)
	b.Scores[0] = math.Inf(1)
	for range 20 { // of two mistakes it is always the same that is told
		if _, err := (InfoNCE{}).Compute(s, a, b); err == nil || err.Error() != "label 1 is NaN" {
			t.Fatalf("a label and a score that are no numbers: %v", err)
		}
	}
	b = good()
	gpustage.Slice[float32](b.Embeddings)[5] = float32(math.NaN())
	if _, err := (InfoNCE{Dot: true}).Compute(s, a, b); !errors.Is(err, ErrNotFinite) {
		t.Errorf("NaN in an embedding: %v", err)
	}
}

// Memory holds what Compute takes, and is linear in the batch.
func TestMemory(t *testing.T) {
	l := InfoNCE{Directions: Directions}
	small, large := l.Memory(Size{Rows: 1 << 14, Sequences: 1 << 15, Dim: 384, Normalized: false, DType: gpustage.F32}), l.Memory(Size{Rows: 1 << 16, Sequences: 1 << 17, Dim: 384, Normalized: false, DType: gpustage.F32})
	if large > 4*small+1<<20 {
		t.Errorf("four times the rows take %d bytes, %d before", large, small)
	}
	guided := gist(20, Guide{}, true, true)
	if small, large := guided.Memory(Size{Rows: 1 << 14, Sequences: 1 << 15, Dim: 384, Normalized: true, DType: gpustage.F32}), guided.Memory(Size{Rows: 1 << 16, Sequences: 1 << 17, Dim: 384, Normalized: true, DType: gpustage.F32}); large > 4*small {
		t.Errorf("guided: four times the rows take %d bytes, %d before", large, small)
	}
	for _, l := range []InfoNCE{{Dot: true}, {}} {
		if m := l.Memory(Size{Rows: 1 << 16, Sequences: 1 << 17, Dim: 384, Normalized: !l.Dot, DType: gpustage.F32}); m > blockBytes+16<<20 {
			t.Errorf("%d bytes: normalized embeddings should need little more than a block", m)
		}
	}
}

// Of each tile there are three products, and no more scores at once than a block's, which has fewer rows the more candidates there are.
func TestBlocks(t *testing.T) {
	stream, _ := gpustage.Dry{}.OpenStream()
	for _, c := range []struct{ rows, sequences, block, blocks, tiles int }{
		{1000, 2000, 1000, 1, 1},
		{2049, 4098, 1024, 3, 3},
		{1 << 15, 1 << 16, 1024, 32, 32}, // 128 MiB
		{1<<15 + 1, 1<<16 + 2, 512, 65, 33},
		{4096, 4096 + 1<<17, 256, 16, 128},
		{1024, 1024 + 1<<18, 256, 4, 256}, // 256 MiB: a block does not get smaller
	} {
		s := &products{Stream: stream}
		host, _ := ref.New().OpenStream()
		b := &Batch{Rows: c.rows, Embeddings: tensor(t, host, gpustage.F32, c.sequences, 1, nil), Gradient: tensor(t, host, gpustage.F32, c.sequences, 1, nil), Normalized: true, Texts: make([]TextID, c.sequences), Owner: make([]int32, c.sequences-2*c.rows)}
		l := InfoNCE{}
		a, err := gpustage.NewArena(gpustage.Dry{}, l.Memory(b.Size()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Compute(s, a, b); err != nil {
			t.Fatal(err)
		}
		scores := c.block * (c.sequences - c.rows) * 4
		if s.n != Products*c.blocks*c.tiles || a.Peak() < scores || a.Peak() > scores+scores/8+1<<21+40*c.sequences {
			t.Errorf("%d rows, %d sequences: %d products, want %d; %d bytes, want a few more than %d", c.rows, c.sequences, s.n, Products*c.blocks*c.tiles, a.Peak(), scores)
		}
	}
}

// Rows of a block and columns of a tile, and memory for no more rows than there are.
func TestBlockSizes(t *testing.T) {
	for _, c := range []struct {
		l          InfoNCE
		z          Size
		rows, cols int
	}{
		{InfoNCE{}, Size{Rows: 1 << 14, Sequences: 1<<14 + 1<<15, DType: gpustage.F64}, 512, 1024}, // 128 MiB of f64
		{InfoNCE{Directions: []Direction{QueryToDoc, QueryToQuery}}, Size{Rows: 1 << 14, Sequences: 1<<14 + 1<<15, DType: gpustage.F32}, 512, 1024},
		{InfoNCE{}, Size{Rows: 1 << 16, Sequences: 1 << 17, DType: gpustage.F32, GPU: true}, 4096, 4096}, // 1 GiB
		{InfoNCE{}, Size{Rows: 1 << 16, Sequences: 1<<17 + 1, DType: gpustage.F32, GPU: true}, 2048, 4096},
		{InfoNCE{}, Size{Rows: 1 << 16, Sequences: 1 << 24, DType: gpustage.F32, GPU: true}, 1024, 4096},
		{InfoNCE{TileRows: 5000}, Size{Rows: 1 << 16, Sequences: 1 << 24, DType: gpustage.F32}, 5000, 1024},
		{InfoNCE{TileCols: 5}, Size{Rows: 100, Sequences: 200, DType: gpustage.F32}, 1024, 5},
	} {
		if rows, cols := c.l.tile(c.z); rows != c.rows || cols != c.cols {
			t.Errorf("%+v of %+v: %d x %d, want %d x %d", c.l, c.z, rows, cols, c.rows, c.cols)
		}
	}
	for _, l := range []InfoNCE{{}, {Directions: Directions}, {Guide: &Guide{}}} {
		if m := l.Memory(Size{Rows: 8, Sequences: 16, Dim: 4, Normalized: true, DType: gpustage.F32}); m > 16<<10 {
			t.Errorf("8 rows take %d bytes", m)
		}
	}
}

// A loss that is not finite is that of its row in whichever block.
func TestRowOfBlock(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(5, 6)), 9, 0, 4)
	gpustage.Slice[float64](b.Embeddings)[7*4] = math.NaN()
	l := InfoNCE{Dot: true, TileRows: 3}
	var row *RowError
	if _, err := l.Compute(s, newArena(t, s, l.Memory(b.Size())), b); !errors.As(err, &row) || row.Row != 7 {
		t.Errorf("%v, want that of row 7", err)
	}
}

// Where a document is not finite, no row that is compared with it has a loss: the error is of the row whose document it is.
func TestRowOfDocument(t *testing.T) {
	s, _ := ref.New().OpenStream()
	for _, c := range []struct {
		l       Loss
		at, row int
	}{
		{InfoNCE{Dot: true}, 9 + 7, 7}, {InfoNCE{Dot: true, Directions: Directions}, 9 + 7, 7}, {InfoNCE{Dot: true, TileRows: 3}, 18, 2}, {InfoNCE{Dot: true}, 4, 4}, {InfoNCE{Dot: true}, -1, 0},
	} {
		b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(5, 6)), 9, 1, 4)
		b.Owner[0] = 2
		if c.at >= 0 {
			gpustage.Slice[float64](b.Embeddings)[c.at*4] = math.NaN()
		} else { // their product is infinite, and they are not
			gpustage.Slice[float64](b.Embeddings)[0], gpustage.Slice[float64](b.Embeddings)[9*4] = 1e200, -1e200
		}
		var row *RowError
		if _, err := c.l.Compute(s, newArena(t, s, c.l.Memory(b.Size())), b); !errors.As(err, &row) || row.Row != c.row {
			t.Errorf("sequence %d: %v, want that of row %d", c.at, err, c.row)
		}
	}
	b := randomM3(t, s, gpustage.F64, rand.New(rand.NewPCG(9, 10)), 3, 2)
	p := b.Parts[1]
	gpustage.Slice[float64](p.X)[int(p.Cu[5])*p.X.Cols] = math.NaN() // row 2's positive
	var row *RowError
	if _, err := (M3{}).Compute(s, newArena(t, s, 1<<20), b); !errors.As(err, &row) || row.Row != 2 {
		t.Errorf("a part: %v, want that of row 2", err)
	}
	b = randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(5, 6)), 9, 0, 4)
	b.Embeddings, b.Gradient, b.Texts = b.Embeddings.Span(0, 9), b.Gradient.Span(0, 9), b.Texts[:9]
	b.Labels, b.Weights = []float64{0, 0, 0, 1, 1, 1, 2, 2, 2}, nil
	gpustage.Slice[float64](b.Embeddings)[5*4] = math.NaN()
	if _, err := (BatchTriplet{Mode: All}).Compute(s, newArena(t, s, 1<<20), b); !errors.As(err, &row) || row.Row != 5 {
		t.Errorf("single texts: %v, want that of row 5", err)
	}
}

// products counts a stream's.
type products struct {
	gpustage.Stream
	n int
}

func (s *products) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	s.n++
	s.Stream.MatMul(c, a, b, o)
}

// Memory that is not the host's is a GPU's: its tiles are larger, and Memory knows it.
func TestTilesOnGPU(t *testing.T) {
	dry, _ := gpustage.Dry{}.OpenStream()
	for _, l := range []InfoNCE{{}, {TileRows: 1000, TileCols: 5000}} {
		const rows = 5000
		s := &products{Stream: dry}
		x, g := tensor(t, s, gpustage.F32, 2*rows, 8, nil), tensor(t, s, gpustage.F32, 2*rows, 8, nil)
		b := &Batch{Rows: rows, Embeddings: x, Gradient: g, Normalized: true, Texts: uniqueTexts(2 * rows)}
		a, err := gpustage.NewArena(gpustage.Dry{}, l.Memory(b.Size()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Compute(s, a, b); err != nil {
			t.Fatal(err)
		}
		tiles := 4 // 4096 + 904 rows by as many columns
		if l.TileRows > 0 {
			tiles = 5
		}
		if s.n != Products*tiles {
			t.Errorf("%+v: %d products, want three for each of %d tiles", l, s.n, tiles)
		}
		if need := tileOnGPU * rows * 4; l.TileRows == 0 && a.Peak() < need {
			t.Errorf("%d bytes of scratch memory hold a block of %d", a.Peak(), need)
		}
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
	}
}

// pairSpy counts the products that may be of pairs, and all.
type pairSpy struct {
	gpustage.Stream
	pairs, all int
}

func (s *pairSpy) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	s.all++
	if o.Pairs {
		s.pairs++
	}
	s.Stream.MatMul(c, a, b, o)
}

// Where embeddings have been rounded the scores of large tiles and their gradients are of pairs, on a device that has such products: as near the
// truth as 16 bits are, 2^-16 of scores that are multiplied by 20. A guide's cosines are not.
func TestPairs(t *testing.T) {
	before := pairsFrom
	defer func() { pairsFrom = before }()
	exact, _ := ref.New().OpenStream()
	kernels, err := onhost.Open(t, onhost.Plain).OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	const rows, negatives, size = 37, 20, 48
	for _, l := range []InfoNCE{{Directions: Directions, MaskDuplicates: true}, {TileRows: 16, TileCols: 40, Guide: &Guide{}}} {
		run := func(s gpustage.Stream, dtype gpustage.DType, rounded bool) []float64 {
			b := randomBatch(t, s, dtype, rand.New(rand.NewPCG(3, 4)), rows, negatives, size)
			b.Rounded = rounded
			if l.Guide != nil {
				b.Guide = tensor(t, s, dtype, b.N(), 2, unitRows(slices.Repeat([]float64{1, 0}, b.N()), 2)) // every other text is as near as the positive
			}
			_, g := compute(t, s, l, b)
			return g
		}
		want := run(exact, gpustage.F64, false)
		pairsFrom = 0
		spy := &pairSpy{Stream: kernels}
		plain := run(spy, gpustage.F32, false)
		if spy.pairs > 0 {
			t.Errorf("%+v: %d products are of pairs, where nothing is rounded", l, spy.pairs)
		}
		spy = &pairSpy{Stream: kernels}
		got, top := run(spy, gpustage.F32, true), 0.0
		for _, w := range want {
			top = max(top, math.Abs(w))
		}
		if of := map[bool]int{true: spy.all, false: spy.all * 3 / 4}[l.Guide == nil]; spy.pairs != of {
			t.Errorf("%+v: %d of %d products are of pairs, want %d", l, spy.pairs, spy.all, of)
		}
		if d, less := worst(got, want)/top, worst(plain, want)/top; !(d <= 3e-5 && less <= 2e-6) || slices.Equal(got, plain) {
			t.Errorf("%+v: the gradient is %.3g of its largest off, of products in f32 %.3g", l, d, less)
		}
		pairsFrom = 16*40*size + 1
		spy = &pairSpy{Stream: kernels}
		run(spy, gpustage.F32, true)
		if l.Guide != nil && spy.pairs > 0 {
			t.Errorf("%+v: %d products of small tiles are of pairs", l, spy.pairs)
		}
	}
}

func ExampleInfoNCE() {
	s, _ := ref.New().OpenStream()
	a, _ := gpustage.NewArena(s.Device(), 1<<20)
	emb, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	grad, _ := gpustage.NewTensor(s.Device(), gpustage.F64, 4, 2)
	s.CopyIn(emb, gpustage.Bytes([]float64{
		1, 0, // query 0
		0, 1, // query 1
		1, 0, // its positive, 0
		0, 1, // 1
	}))
	r, err := InfoNCE{Scale: 1, Dot: true}.Compute(s, a, &Batch{Rows: 2, Embeddings: emb, Gradient: grad, Texts: uniqueTexts(4)})
	fmt.Printf("%.4f %v\n", r.Sum/r.Weight, err) // log(1 + e^-1)
	// Output: 0.3133 <nil>
}
