package transformer

import (
	"testing"

	"contraflow/gpustage"
)

// BenchmarkEmbed is a sub-batch's embeddings in training, of BERT-base's size on a GPU: as one op, and as the ops that define it.
// testdata/peers/gpu.sh runs it on a GPU.
func BenchmarkEmbed(b *testing.B) {
	d := fastDevice(b)
	c, rows := 768, 128
	if d.Info().Threads > 0 {
		c, rows = 384, 8
	}
	const length = 128
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	tokens := rows * length
	tensor := func(t gpustage.DType, rows, cols int) gpustage.Tensor { return benchTensor(b, d, t, rows, cols) }
	ints := func(n int, value func(i int) int) gpustage.Tensor {
		vs := make([]int32, n)
		for i := range vs {
			vs[i] = int32(value(i))
		}
		x := tensor(gpustage.I32, 1, n)
		s.CopyIn(x, gpustage.Bytes(vs))
		return x
	}
	f32 := gpustage.F32
	pos := ints(tokens, func(i int) int { return i % length })
	q := gpustage.Sequences{
		Rows: rows, Tokens: tokens, MaxLen: length, Cu: ints(rows+1, func(i int) int { return i * length }),
		Row: ints(tokens, func(i int) int { return i / length }), Pos: pos, Keys: tensor(gpustage.U64, 1, rows),
	}
	o := gpustage.Embed{
		Words:     gpustage.Lookup{Table: tensor(f32, 30522, c), Index: ints(tokens, func(i int) int { return i * 7919 % 30522 })},
		Positions: gpustage.Lookup{Table: tensor(f32, 512, c), Index: pos}, Kinds: gpustage.Lookup{Table: tensor(f32, 2, c), Index: ints(tokens, func(int) int { return 0 })},
		Gamma: tensor(f32, 1, c), Beta: tensor(f32, 1, c), Eps: 1e-12, Dropout: gpustage.Dropout{P: 0.1, Seqs: q, Site: gpustage.SiteEmbeddings},
	}
	y, sum, mean, rstd := tensor(f32, tokens, c), tensor(f32, tokens, c), tensor(f32, 1, tokens), tensor(f32, 1, tokens)
	run := func(name string, op func()) {
		b.Run(name, func(b *testing.B) {
			const times = 16 // between two waits
			for b.Loop() {
				for range times {
					op()
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(tokens)*times*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
	run("one op", func() { s.Embed(y, sum, mean, rstd, o) })
	run("its steps", func() { o.Steps(s, y, sum, mean, rstd) })
	kinds := tensor(f32, 2, c)
	run("gradient of the token types", func() { s.ScatterAdd(kinds, y, o.Kinds.Index) })
	run("gradient of the words", func() { s.ScatterAdd(o.Words.Table, y, o.Words.Index) })
}

// benchTensor is a tensor until the benchmark ends.
func benchTensor(b *testing.B, d gpustage.Device, t gpustage.DType, rows, cols int) gpustage.Tensor {
	b.Helper()
	x, err := gpustage.NewTensor(d, t, rows, cols)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.Mem.Free() })
	return x
}
