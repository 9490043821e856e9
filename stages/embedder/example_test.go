package embedder_test

import (
	"context"
	"fmt"
	"time"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/embedder"
	"contraflow/stages/mine"
)

// A folder of Hugging Face or sentence-transformers is a model that embeds, for any number of goroutines at once.
func Example() {
	e, err := embedder.Load("../../testdata/golden/bert/minilm-tiny") // a small random model; hfmodel.Resolve finds those of the hub
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	vectors, err := e.EmbedPrompt(ctx, "query", []string{"what flies", "what swims"})
	if err != nil {
		fmt.Println(err)
		return
	}
	same, err := e.Similarity(ctx, e.Prompt("query"), []string{"what flies"}, []string{"what flies"})
	fmt.Printf("%d vectors of %d numbers; a text and itself: %.3f %v\n", len(vectors), len(vectors[0]), same[0], err)
	// Output: 2 vectors of 32 numbers; a text and itself: 1.000 <nil>
}

// A SparseEncoder of sentence-transformers gives each text a weight for some tokens of its vocabulary, which an inverted index keeps: its embedding
// has a number for every token, and Active makes a list of those that are not 0.
func ExampleActive() {
	e, err := embedder.Load("../../testdata/golden/splade/encoder") // a small random model, of 120 tokens
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	vectors, err := e.Embed(context.Background(), []string{"what flies", "a bird"})
	if err != nil {
		fmt.Println(err)
		return
	}
	query := map[int32]float32{}
	ids, weights := embedder.Active(vectors[0])
	for k, id := range ids {
		query[id] = weights[k]
	}
	score := float32(0) // of what both have
	ids, weights = embedder.Active(vectors[1])
	for k, id := range ids {
		score += query[id] * weights[k]
	}
	fmt.Printf("%d and %d of %d tokens, score %.2f\n", len(query), len(ids), e.Size(), score)
	// Output: 92 and 88 of 120 tokens, score 134.26
}

// Hard negatives of pairs, among the other pairs' positives and more documents: what the model takes to be near a query and is not its own.
func ExampleEmbedder_Mine() {
	e, err := embedder.Load("../../testdata/golden/bert/minilm-tiny") // random: its negatives are hard for no other model
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	pairs := mine.Pair([]string{"what flies", "what swims"}, []string{"a bird", "a fish"}, []string{"a stone", "a tree"})
	rows, short, err := e.Mine(context.Background(), pairs, embedder.Mining{Options: mine.Options{Negatives: 2}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range rows {
		fmt.Print(pairs.Queries[r.Query], ": ", pairs.Corpus[r.Positive])
		for _, n := range r.Negatives {
			fmt.Print(", not ", pairs.Corpus[n.Doc])
		}
		fmt.Println()
	}
	fmt.Println(short, "pairs have fewer")
	// Output:
	// what flies: a bird, not a tree, not a stone
	// what swims: a fish, not a tree, not a bird
	// 0 pairs have fewer
}
