package prep

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// realPairs are doc comments and what follows them in the Go sources of this machine: n rows, again and again if need be.
func realPairs(tb testing.TB, n int) (queries, documents []string) {
	tb.Helper()
	found, err := filepath.Glob(filepath.Join(runtime.GOROOT(), "src", "*", "*.go"))
	if err != nil || len(found) == 0 {
		tb.Skip("no Go sources here")
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		for part := range strings.SplitSeq(string(b), "\n\n") {
			comment, rest, ok := strings.Cut(part, "\nfunc ")
			if ok && strings.HasPrefix(comment, "// ") && len(queries) < n {
				queries = append(queries, strings.ReplaceAll(comment, "// ", ""))
				documents = append(documents, rest[:min(len(rest), 600)])
			}
		}
	}
	for i := 0; len(queries) < n; i++ {
		queries, documents = append(queries, queries[i]), append(documents, documents[i])
	}
	return queries, documents
}

func writeReal(tb testing.TB, n int) string {
	tb.Helper()
	q, d := realPairs(tb, n)
	path := filepath.Join(tb.TempDir(), "raw.parquet")
	w, err := dataset.NewParquetWriter(path, dataset.OutColumn{Name: "query"}, dataset.OutColumn{Name: "positive"})
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Write(q, d); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return path
}

// BenchmarkRun cleans and deduplicates rows of real text.
func BenchmarkRun(b *testing.B) {
	n := 100_000
	if testing.Short() {
		n = 2000
	}
	c := bare(b, writeReal(b, n))
	c.Normalize, c.Dedupe.Exact, c.Dedupe.Near.Column = Default().Normalize, "row", "positive"
	for b.Loop() {
		if _, err := Run(b.Context(), c, Options{Overwrite: true}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkFeed is what training gets on one thread: shuffled rows as token ids, from texts and from what prep has written.
func BenchmarkFeed(b *testing.B) {
	n := 50_000
	if testing.Short() {
		n = 2000
	}
	c := bare(b, writeReal(b, n))
	q, d := realPairs(b, 5000)
	tok, err := tokenize.TrainWordPiece(b.Context(), func(yield func(string) bool) {
		for i := range q {
			if !yield(q[i]) || !yield(d[i]) {
				return
			}
		}
	}, tokenize.TrainOptions{VocabSize: 8000})
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	if err := tok.Save(dir); err != nil {
		b.Fatal(err)
	}
	c.Tokenize = Tokenize{Model: dir, MaxLength: Lengths{64, 256}}
	if _, err := Run(b.Context(), c, Options{}); err != nil {
		b.Fatal(err)
	}
	for _, tokens := range []bool{false, true} {
		name := "texts"
		if tokens {
			name = "ids"
		}
		b.Run(name, func(b *testing.B) {
			data, err := dataset.Open(b.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "train-*.parquet")}, Query: "query", Positive: "positive", Tokens: tokens})
			if err != nil {
				b.Fatal(err)
			}
			defer data.Close()
			var flat []int32
			total := 0
			for b.Loop() {
				order := dataset.SamplerConfig{Seed: 1, GlobalSize: 1024, Epochs: 1, Shuffle: true}
				sampler, err := dataset.NewSampler(data.Layout(), nil, order)
				if err != nil {
					b.Fatal(err)
				}
				r := data.NewReader(dataset.ReaderConfig{Seed: 1, Threads: 1})
				for {
					batch, ok := sampler.Next()
					if !ok {
						break
					}
					examples, err := r.Read(b.Context(), batch.Epoch, batch.Rows)
					if err != nil {
						b.Fatal(err)
					}
					flat = flat[:0]
					for i := range examples {
						for _, ids := range examples[i].IDs {
							flat = append(flat, ids...)
						}
						for k, text := range examples[i].Texts {
							limit := 256
							if k == 0 {
								limit = 64
							}
							flat, _ = tok.Append(flat, text, limit)
						}
					}
					total += len(flat)
				}
				r.Close()
			}
			b.ReportMetric(float64(data.Rows())*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(total)/float64(b.N), "ids")
		})
	}
}
