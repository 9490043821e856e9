package evaluate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"contraflow/stages/evaluate"
)

// BM25 and an embedding model over the same corpus, side by side.
func Example() {
	queries, err := evaluate.NewIDs([]string{"q-read", "q-close"})
	if err != nil {
		log.Fatal(err)
	}
	docs, err := evaluate.NewIDs([]string{"Copy", "ReadAll", "Close"})
	if err != nil {
		log.Fatal(err)
	}
	qrels := evaluate.NewQrels(queries, docs)
	for _, j := range []struct {
		query, doc string
		relevance  int
	}{{"q-read", "ReadAll", 2}, {"q-read", "Copy", 1}, {"q-close", "Close", 1}} {
		if err := qrels.Add(j.query, j.doc, j.relevance); err != nil {
			log.Fatal(err)
		}
	}

	ctx := context.Background()
	texts := []string{"copies from src to dst until EOF", "reads all bytes until EOF", "frees the file"}
	index, err := evaluate.NewBM25(ctx, texts, evaluate.BM25Options{Tie: docs.TieOrder()})
	if err != nil {
		log.Fatal(err)
	}
	run, err := index.Search(ctx, []string{"reads a file until EOF", "closes the file"}, 100)
	if err != nil {
		log.Fatal(err)
	}
	bm25, err := evaluate.Evaluate(run, qrels)
	if err != nil {
		log.Fatal(err)
	}

	top, err := evaluate.NewTopK(queries.Len(), 100, docs.TieOrder())
	if err != nil {
		log.Fatal(err)
	}
	// Similarities of both queries, in two blocks of the corpus.
	for _, block := range []struct {
		scores []float32
		first  int
		docs   int
	}{{[]float32{0.4, 0.9, 0.1, 0.2}, 0, 2}, {[]float32{0.1, 0.8}, 2, 1}} {
		if err := top.Add(0, block.first, block.scores, block.docs); err != nil {
			log.Fatal(err)
		}
	}
	model, err := evaluate.Evaluate(top.Run(), qrels)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Print(evaluate.Table(evaluate.Row{Name: "bm25", Result: bm25}, evaluate.Row{Name: "model", Result: model}))
	out, err := json.Marshal(model)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(out[:30]))
	// Output:
	//        ndcg@10  mrr@10  recall@100     map  queries
	// bm25    0.9751  1.0000      1.0000  0.9167        2
	// model   1.0000  1.0000      1.0000  1.0000        2
	// {"ndcg@10":1,"mrr@10":1,"recal
}

func ExampleSpearman() {
	rho, err := evaluate.Spearman([]float64{0.91, 0.10, 0.55, 0.56}, []float64{5, 0, 3, 3})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", rho)
	// Output: 0.9487
}
