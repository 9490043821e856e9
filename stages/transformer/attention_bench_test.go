package transformer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// BenchmarkAttention is a sub-batch's attention of BERT-base's shape and of a model with 128 features a head, forward and backward, by warpgroups
// and by warps where a GPU has both, and of texts of 512 tokens with positions. testdata/peers/gpu.sh runs it on a GPU. Operations are those of five products on the way back.
func BenchmarkAttention(b *testing.B) {
	d := fastDevice(b)
	tokens, ways := 16384, map[string]string{"warpgroups": "on", "warps": "off"}
	if !strings.Contains(d.Info().Description, "sm_90") {
		delete(ways, "warpgroups")
	}
	if d.Info().Threads > 0 {
		tokens, ways = 2048, map[string]string{"processor": ""}
	}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		for _, dim := range []int{64, 128} {
			for _, length := range []int{128, 512, 2048} {
				b.Run(fmt.Sprintf("%s/%d features/%d tokens", way, dim, length), func(b *testing.B) {
					b.Setenv("CONTRAFLOW_CUDA_WARPGROUPS", ways[way])
					benchmarkAttention(b, d, 768/dim, dim, tokens/length, length, false)
				})
			}
		}
	}
	b.Run("positions", func(b *testing.B) { benchmarkAttention(b, d, 12, 64, max(1, tokens/512), min(tokens, 512), true) })
}

func benchmarkAttention(b *testing.B, d gpustage.Device, heads, dim, rows, length int, positions bool) {
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	kind := gpustage.F32
	if gpustage.TakesBF16(d) {
		kind = gpustage.BF16
	}
	tokens := rows * length
	f32s := make([]float32, tokens*heads*dim)
	for i := range f32s {
		f32s[i] = float32(uint32(i)*2654435761>>8)/(1<<24) - 0.5
	}
	tensor := func(t gpustage.DType, rows, cols int) gpustage.Tensor { return benchTensor(b, d, t, rows, cols) }
	numbers := tensor(gpustage.F32, tokens, heads*dim)
	s.CopyIn(numbers, gpustage.Bytes(f32s))
	operand := func() gpustage.Tensor {
		x := tensor(kind, tokens, heads*dim)
		s.Copy(x, numbers)
		return x
	}
	cu := make([]int32, rows+1)
	for i := range cu {
		cu[i] = int32(i * length)
	}
	starts := tensor(gpustage.I32, 1, rows+1)
	s.CopyIn(starts, gpustage.Bytes(cu))
	o := gpustage.Attention{
		Seqs: gpustage.Sequences{Rows: rows, Tokens: tokens, MaxLen: length, Cu: starts}, Heads: heads, HeadDim: dim, Scale: 0.125, BF16: kind == gpustage.BF16,
	}
	if positions { // as DeBERTa's
		const count = 512
		of := make([]int32, 2*length-1)
		for i := range of {
			of[i] = int32(max(0, min(count-1, count/2+length-1-i)))
		}
		at := func(kind gpustage.DType) gpustage.Tensor { return tensor(kind, count, heads*dim) }
		o.Positions = gpustage.Positions{Keys: at(kind), Queries: at(kind), Rows: tensor(gpustage.I32, 1, len(of)), DKeys: at(gpustage.F32), DQueries: at(gpustage.F32)}
		s.CopyIn(o.Positions.Rows, gpustage.Bytes(of))
	}
	q, k, v, ctx, dctx, dq, dk, dv := operand(), operand(), operand(), operand(), operand(), operand(), operand(), operand()
	lse := tensor(gpustage.F32, heads, tokens)
	product := 2 * float64(tokens) * float64(length) * float64(heads*dim)
	for _, pass := range []struct {
		name     string
		products float64
		op       func()
	}{
		{"forward", 2, func() { s.Attention(ctx, lse, q, k, v, o) }},
		{"backward", 5, func() { s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v, o) }},
	} {
		b.Run(pass.name, func(b *testing.B) {
			times := 16 // between two waits
			if d.Info().Threads > 0 {
				times = 1
			}
			for b.Loop() {
				for range times {
					pass.op()
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(pass.products*product*float64(times)*float64(b.N)/b.Elapsed().Seconds()/1e12, "TFLOP/s")
		})
	}
}
