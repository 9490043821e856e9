package transformer

import (
	"testing"

	"contraflow/gpustage"
)

// BenchmarkSparseHead is what a tile of a sparse head has beside its product, of 512 features and of 128 texts of 128 tokens on a GPU, all of which have
// all features, as long as a model is new. testdata/peers/gpu.sh runs it on a GPU; a step of BERT has 60 such tiles for each sub-batch.
func BenchmarkSparseHead(b *testing.B) {
	d := fastDevice(b)
	texts, c := 128, 768
	if d.Info().Threads > 0 {
		texts, c = 8, 384
	}
	const features, length = 512, 128
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	tensor := func(rows, cols int) gpustage.Tensor { return benchTensor(b, d, gpustage.F32, rows, cols) }
	cu, at := benchTensor(b, d, gpustage.I32, 1, texts+1), benchTensor(b, d, gpustage.I32, features, texts)
	ends := make([]int32, texts+1)
	for i := range ends {
		ends[i] = int32(i * length)
	}
	s.CopyIn(cu, gpustage.Bytes(ends))
	logits, top, y, dy, g := tensor(features, texts*length), tensor(features, texts), tensor(texts, features), tensor(texts, features), tensor(features, texts)
	vs := make([]float32, logits.Len())
	for i := range vs {
		vs[i] = float32(uint32(i)*2654435761>>8) / (1 << 24)
	}
	s.CopyIn(logits, gpustage.Bytes(vs))
	s.Fill(dy, 1e-3)
	table, dTable, h, dh := tensor(features, c), tensor(features, c), tensor(texts*length, c), tensor(texts*length, c)
	for _, op := range []struct {
		name string
		run  func()
	}{
		{"largest", func() { s.SegmentMax(top, at, logits, cu) }},
		{"splade", func() { s.Splade(y, at, top, gpustage.Tensor{}, false) }},
		{"splade backward", func() { s.SpladeBackward(g, gpustage.Tensor{}, dy, y, false) }},
		{"products backward", func() { s.MaxSimBackward(dTable, dh, g, at, table, h) }},
	} {
		b.Run(op.name, func(b *testing.B) {
			op.run()    // of what the one before has made
			times := 16 // between two waits
			if d.Info().Threads > 0 {
				times = 1
			}
			for b.Loop() {
				for range times {
					op.run()
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(times*b.N), "us/tile")
		})
	}
}
