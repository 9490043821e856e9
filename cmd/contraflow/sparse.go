package main

import (
	"context"

	"github.com/spf13/cobra"

	"contraflow/stages/embedder"
)

// sparseRows is how many numbers of sparse embeddings are in memory at a time before lists are made of them: 128 MiB.
const sparseRows = 32 << 20

// listsOf are the active features of embeddings, [n, size] one after the other.
func listsOf(vecs []float32, size int) (ids [][]int32, weights [][]float32) {
	for ; len(vecs) > 0; vecs = vecs[size:] {
		i, w := embedder.Active(vecs[:size])
		ids, weights = append(ids, i), append(weights, w)
	}
	return ids, weights
}

// sparseLines are an object a text, with the names of the parquet file's columns.
func sparseLines(ctx context.Context, e *embedder.Embedder, role embedder.Role, prompt string) lineValues {
	return lineValues{sparseAtOnce(e), func(texts []string) (values []any, cut int, err error) {
		x := make([]float32, len(texts)*e.Size())
		if cut, err = e.EmbedAs(ctx, role, prompt, texts, x); err != nil {
			return nil, 0, err
		}
		ids, weights := listsOf(x, e.Size())
		for i := range ids {
			values = append(values, struct {
				IDs     []int32   `json:"lexical_ids"`
				Weights []float32 `json:"lexical_weights"`
			}{append([]int32{}, ids[i]...), append([]float32{}, weights[i]...)})
		}
		return values, cut, nil
	}}
}

// sparseAtOnce is how many texts are embedded at a time.
func sparseAtOnce(e *embedder.Embedder) int { return min(embedRows, max(1, sparseRows/e.Size())) }

// embedSparse writes lists besides the input's columns.
func embedSparse(cmd *cobra.Command, e *embedder.Embedder, role embedder.Role, prompt string, in *embedInput) error {
	rows := sparseAtOnce(e)
	vecs, active := make([]float32, rows*e.Size()), 0
	done, err := embedTable(cmd, e, prompt, in, embedded{lexical, rows, func(texts []string) ([]any, int, error) {
		out := vecs[:len(texts)*e.Size()]
		n, err := e.EmbedAs(cmd.Context(), role, prompt, texts, out)
		if err != nil {
			return nil, 0, err
		}
		ids, weights := listsOf(out, e.Size())
		for _, list := range ids {
			active += len(list)
		}
		return []any{ids, weights}, n, nil
	}})
	if err == nil && done.done > 0 {
		done.printf("%.1f active features a text\n", float64(active)/float64(done.done))
	}
	return err
}
