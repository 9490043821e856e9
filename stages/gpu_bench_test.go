package stages_test

import (
	"fmt"
	"testing"

	"contraflow/gpustage"
	"contraflow/stages/loss"
)

// BenchmarkLossTiles is InfoNCE's loss and gradient, with a processor's tiles and with a GPU's, whose products are of f32 or of pairs of bf16.
// testdata/peers/gpu.sh runs it on a GPU.
func BenchmarkLossTiles(b *testing.B) {
	d := processor(b)
	rows, dim := 16384, 768
	if d.Info().Threads > 0 {
		rows, dim = 512, 64
	}
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	x, err := gpustage.NewTensor(d, gpustage.F32, 2*rows, dim)
	if err != nil {
		b.Fatal(err)
	}
	defer x.Mem.Free()
	grad, err := gpustage.NewTensor(d, gpustage.F32, 2*rows, dim)
	if err != nil {
		b.Fatal(err)
	}
	defer grad.Mem.Free()
	vs := make([]float32, x.Len())
	for i := range vs {
		vs[i] = float32(uint32(i)*2654435761>>8)/(1<<24) - 0.5
	}
	s.CopyIn(x, gpustage.Bytes(vs))
	batch := &loss.Batch{Rows: rows, Embeddings: x, Gradient: grad, Texts: make([]loss.TextID, 2*rows)}
	for i := range batch.Texts {
		batch.Texts[i] = loss.TextID{uint64(i), 0}
	}
	for _, c := range []struct {
		rows, cols int
		pairs      bool
	}{{256, 1024, false}, {2048, 4096, false}, {4096, 4096, false}, {4096, 8192, false}, {2048, 4096, true}, {4096, 4096, true}, {4096, 8192, true}} {
		b.Run(fmt.Sprintf("%dx%d,%s", c.rows, c.cols, map[bool]string{false: "f32", true: "pairs"}[c.pairs]), func(b *testing.B) {
			l := loss.InfoNCE{MaskDuplicates: true, TileRows: c.rows, TileCols: c.cols}
			batch.Rounded = c.pairs
			benchmarkLoss(b, d, s, l, batch, 2*loss.Products*float64(rows)*float64(rows)*float64(dim))
		})
	}
}

// BenchmarkLateTiles is late interaction's loss and gradient, texts of (32, 128) tokens, with a processor's tiles of documents and with a GPU's.
// testdata/peers/gpu.sh runs it on a GPU.
func BenchmarkLateTiles(b *testing.B) {
	d := processor(b)
	rows, dim := 1024, 128
	if d.Info().Threads > 0 {
		rows = 16
	}
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := loss.Part{Name: loss.VectorsPart, Cu: []int32{0}}
	batch := &loss.Batch{Rows: rows, Texts: make([]loss.TextID, 2*rows)}
	for i := range batch.Texts {
		batch.Texts[i] = loss.TextID{uint64(i), 0}
		p.Cu = append(p.Cu, p.Cu[i]+[]int32{32, 128}[i/rows])
	}
	batch.IDs = make([]int32, p.Cu[2*rows])
	for _, x := range []*gpustage.Tensor{&p.X, &p.Gradient} {
		if *x, err = gpustage.NewTensor(d, gpustage.F32, len(batch.IDs), dim); err != nil {
			b.Fatal(err)
		}
		defer x.Mem.Free()
	}
	vs := make([]float32, p.X.Len())
	for i := range vs {
		vs[i] = (float32(uint32(i)*2654435761>>8)/(1<<24) - 0.5) / 4
	}
	s.CopyIn(p.X, gpustage.Bytes(vs))
	batch.Parts = []loss.Part{p}
	for _, cols := range []int{1024, 4096, 16384} {
		b.Run(fmt.Sprint(cols), func(b *testing.B) {
			l := loss.LateInteraction{TileCols: cols}
			benchmarkLoss(b, d, s, l, batch, 2*32*128*float64(rows)*float64(rows)*float64(dim))
		})
	}
}

// benchmarkLoss is a loss and its gradient, of so many operations.
func benchmarkLoss(b *testing.B, d gpustage.Device, s gpustage.Stream, l loss.Loss, batch *loss.Batch, operations float64) {
	b.Helper()
	a, err := gpustage.NewArena(d, l.Memory(batch.Size()))
	if err != nil {
		b.Fatal(err)
	}
	defer a.Free()
	for b.Loop() {
		if _, err := l.Compute(s, a, batch); err != nil {
			b.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(operations*float64(b.N)/b.Elapsed().Seconds()/1e12, "TFLOP/s")
}
