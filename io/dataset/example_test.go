package dataset_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"

	"contraflow/io/dataset"
)

func Example() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	lines := `{"query": "what holds the cached gradient?", "pos": ["the embedding"], "neg": ["the tokenizer", "the mesh"]}
{"query": "who orders the tiles?", "pos": ["the plan"], "neg": ["the network", "the clock"]}
{"query": "what decides the order?", "pos": ["the plan"], "neg": ["the threads", "the weather"]}
{"query": "where do rows wait?", "pos": ["in the sampler"], "neg": ["at the station", "nowhere"]}
`
	path := filepath.Join(folder, "pairs.jsonl")
	if err := os.WriteFile(path, []byte(lines), 0o644); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	data, err := dataset.Open(ctx, dataset.Source{
		Paths: []string{filepath.Join(folder, "*.jsonl")},
		Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	index, err := data.Index(ctx, dataset.IndexConfig{})
	if err != nil {
		log.Fatal(err)
	}
	sampler, err := dataset.NewSampler(data.Layout(), index, dataset.SamplerConfig{
		Seed: 42, GlobalSize: 2, Epochs: 1, NoDuplicates: true, // Shuffle: true in a real run
	})
	if err != nil {
		log.Fatal(err)
	}
	reader := data.NewReader(dataset.ReaderConfig{Seed: 42})
	defer reader.Close()
	fmt.Println(data.Rows(), "rows,", sampler.Total(), "batches")
	for batch, ok := sampler.Next(); ok; batch, ok = sampler.Next() {
		examples, err := reader.Read(ctx, batch.Epoch, batch.Rows)
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range examples {
			fmt.Printf("batch %d, row %d: %q -> %q, %d negative\n", batch.Index, e.Row, e.Texts[0], e.Texts[1], len(e.Texts)-2)
		}
	}
	// Output:
	// 4 rows, 2 batches
	// batch 0, row 0: "what holds the cached gradient?" -> "the embedding", 1 negative
	// batch 0, row 1: "who orders the tiles?" -> "the plan", 1 negative
	// batch 1, row 2: "what decides the order?" -> "the plan", 1 negative
	// batch 1, row 3: "where do rows wait?" -> "in the sampler", 1 negative
}

// Rows that a program has already, of a database or made by it, are a dataset as files are. Here the first of them are given out again, as a run does
// that goes on from a checkpoint.
func ExampleFromRows() {
	type pair struct {
		Question string   `json:"question"`
		Answers  []string `json:"answers"` // of which each epoch takes one
	}
	var rows []pair
	for i := range 6 {
		rows = append(rows, pair{fmt.Sprint("question ", i), []string{fmt.Sprint("answer ", i%3)}})
	}
	ctx := context.Background()
	data, err := dataset.FromRows(ctx, "faq", rows, dataset.Source{Query: "question", Positive: "answers"})
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	index, err := data.Index(ctx, dataset.IndexConfig{})
	if err != nil {
		log.Fatal(err)
	}
	order := dataset.SamplerConfig{Seed: 42, GlobalSize: 3, Epochs: 2, Shuffle: true, NoDuplicates: true}
	sampler, err := dataset.NewMixer([]dataset.Part{{Layout: data.Layout(), Texts: index}}, order, dataset.Mixing{})
	if err != nil {
		log.Fatal(err)
	}
	sampler.Next()
	place := sampler.Cursor()
	next, _ := sampler.Next()
	if err := sampler.Restore(place); err != nil { // an error, if the rows were others
		log.Fatal(err)
	}
	again, _ := sampler.Next()
	reader := data.NewReader(dataset.ReaderConfig{Seed: 42})
	defer reader.Close()
	examples, err := reader.Read(ctx, next.Epoch, next.Rows)
	if err != nil {
		log.Fatal(err)
	}
	answers := map[string]bool{}
	for _, e := range examples {
		answers[e.Texts[1]] = true
	}
	fmt.Println(len(answers), "different answers; the same rows again:", slices.Equal(next.Rows, again.Rows), data.Locate(5))
	// Output: 3 different answers; the same rows again: true faq: row 5
}

func ExampleOpenTable() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	in, out := filepath.Join(folder, "docs.jsonl"), filepath.Join(folder, "docs.parquet")
	if err := os.WriteFile(in, []byte(`{"id": 1, "text": "ab"}`+"\n"+`{"id": 2, "text": "abc"}`), 0o644); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	table, err := dataset.OpenTable(ctx, []string{in})
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	w, err := table.NewWriter(out, dataset.OutColumn{Name: "embedding", Type: dataset.VectorOut})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort() // nothing after Close
	for chunk, err := range table.Chunks(ctx, "text", 512) {
		if err != nil {
			log.Fatal(err)
		}
		v := dataset.Vectors{Dim: 2}
		for _, text := range chunk.Texts {
			v.Data = append(v.Data, float32(len(text)), 1)
		}
		if err := w.Write(chunk, v); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	written, err := dataset.OpenTable(ctx, []string{out})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(written.Rows(), written.Columns())
	// Output: 2 [id text embedding]
}
