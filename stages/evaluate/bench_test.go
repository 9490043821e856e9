package evaluate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
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
