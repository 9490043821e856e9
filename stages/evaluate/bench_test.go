package evaluate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
)

// texts are n documents of 20 to 99 words with frequencies by Zipf's law over 50,000 words.
func texts(n int) []string {
	random := rand.New(rand.NewPCG(7, 8))
	zipf := rand.NewZipf(random, 1.1, 5, 50_000)
	out := make([]string, n)
	for i := range out {
		var b strings.Builder
		for range 20 + random.IntN(80) {
			fmt.Fprintf(&b, "w%d ", zipf.Uint64())
		}
		out[i] = b.String()
	}
	return out
}

func BenchmarkBM25Index(b *testing.B) {
	docs := texts(20_000)
	bytes := 0
	for _, d := range docs {
		bytes += len(d)
	}
	b.SetBytes(int64(bytes))
	for b.Loop() {
		if _, err := NewBM25(b.Context(), docs, BM25Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(docs)*b.N)/b.Elapsed().Seconds(), "docs/s")
}

func BenchmarkBM25Search(b *testing.B) {
	docs := texts(20_000)
	index, err := NewBM25(b.Context(), docs, BM25Options{})
	if err != nil {
		b.Fatal(err)
	}
	queries := make([]string, 200)
	for i := range queries {
		queries[i] = strings.Join(strings.Fields(docs[i*97])[:12], " ")
	}
	for b.Loop() {
		if _, err := index.Search(b.Context(), queries, 100); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(queries)*b.N)/b.Elapsed().Seconds(), "queries/s")
}

// An exact search takes little more than its products: each is timed beside the other, a slab of queries at a time. -short has 2,048 of
// 100,000 queries.
func BenchmarkSearchBesideGEMM(b *testing.B) {
	const dim, k = 384, 50
	asked, rows := 100_000, 100_000
	if testing.Short() {
		asked = 2048
	}
	d, err := cpu.New()
	if err != nil {
		b.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(13, 14))
	queries, corpus := make([]float32, asked*dim), make([]float32, rows*dim)
	for _, x := range [][]float32{queries, corpus} {
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
		unit(x, dim)
	}
	const slab, width = 8192, 8192
	var a, c, y gpustage.Tensor
	for t, shape := range map[*gpustage.Tensor][2]int{&a: {min(slab, asked), dim}, &c: {rows, dim}, &y: {1024, width}} {
		if *t, err = gpustage.NewTensor(d, gpustage.F32, shape[0], shape[1]); err != nil {
			b.Fatal(err)
		}
	}
	s.CopyIn(c, gpustage.Bytes(corpus))
	var search, products time.Duration
	for b.Loop() {
		for from := 0; from < asked; from += slab {
			part := queries[from*dim : min(asked, from+slab)*dim]
			n := len(part) / dim
			began := time.Now()
			if _, err := Search(b.Context(), s, part, corpus, dim, k, nil, nil); err != nil {
				b.Fatal(err)
			}
			search += time.Since(began)
			s.CopyIn(a.Span(0, n), gpustage.Bytes(part))
			began = time.Now()
			for q := 0; q < n; q += 1024 {
				for j := 0; j < rows; j += width {
					left, right := a.Span(q, min(n, q+1024)), c.Span(j, min(rows, j+width))
					s.MatMul(y.Span(0, left.Rows).Columns(0, right.Rows), left, right, gpustage.MatMul{TransB: true})
				}
			}
			if err := s.Sync(); err != nil {
				b.Fatal(err)
			}
			products += time.Since(began)
		}
	}
	b.ReportMetric(search.Seconds()/float64(b.N), "search-s/op")
	b.ReportMetric(products.Seconds()/float64(b.N), "gemm-s/op")
	b.ReportMetric(search.Seconds()/products.Seconds(), "search/gemm")
}

func BenchmarkTopK(b *testing.B) {
	const queries, docs, block = 64, 65_536, 4096
	random := rand.New(rand.NewPCG(9, 10))
	blocks := make([][]float32, docs/block)
	for i := range blocks {
		blocks[i] = make([]float32, queries*block)
		for j := range blocks[i] {
			blocks[i][j] = float32(random.NormFloat64())
		}
	}
	for b.Loop() {
		top, err := NewTopK(queries, 100, nil)
		if err != nil {
			b.Fatal(err)
		}
		for i, scores := range blocks {
			if err := top.Add(0, i*block, scores, block); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(queries*docs)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "scores/ns")
}

func BenchmarkEvaluate(b *testing.B) {
	const queries, docs, k = 2000, 20_000, 100
	random := rand.New(rand.NewPCG(11, 12))
	var names [2][]string
	for i := range queries {
		names[0] = append(names[0], fmt.Sprint("q", i))
	}
	for i := range docs {
		names[1] = append(names[1], fmt.Sprint("d", i))
	}
	qrels := NewQrels(ids(b, names[0]...), ids(b, names[1]...))
	run := make(Run, queries)
	for q := range run {
		for i, d := range random.Perm(docs)[:k] {
			run[q] = append(run[q], Hit{int32(d), float32(-i)})
		}
		if err := qrels.Add(names[0][q], names[1][run[q][q%k].Doc], 1); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := Evaluate(run, qrels); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(queries*b.N)/b.Elapsed().Seconds(), "queries/s")
}
