package embedder_test

import (
	"math"
	"testing"

	_ "contraflow/gpustage/cpu"
	"contraflow/stages/embedder"
	"contraflow/stages/mine"
	"contraflow/testdata/goldens"
)

// With lengths of their own queries are cut as a model does that cuts all texts so, and documents as one that cuts none: a teacher's scores and the
// scores by which is mined are the cosines of those embeddings, each embedded by a model of its own.
func TestQueryLength(t *testing.T) {
	load := func(o ...embedder.Option) *embedder.Embedder {
		e, err := embedder.Load(goldens.Path(t, "bert/minilm-tiny"), o...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	const length = 6
	whole, short, both := load(), load(embedder.MaxLength(length)), load(embedder.QueryMaxLength(length))
	queries := []string{"the cat sees the bird and the fish of the river", "what flies over the house of the dog and the tree"}
	documents := []string{"a bird flies over the house of the dog and the tree", "the fish of the river and the cat and the bird"}
	embed := func(e *embedder.Embedder, prompt string, texts []string) [][]float32 {
		x, err := e.EmbedPrompt(t.Context(), "", []string{prompt + texts[0], prompt + texts[1]})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	cosine := func(a, b []float32) float64 {
		var ab, aa, bb float64
		for i := range a {
			ab, aa, bb = ab+float64(a[i])*float64(b[i]), aa+float64(a[i])*float64(a[i]), bb+float64(b[i])*float64(b[i])
		}
		return ab / math.Sqrt(aa*bb)
	}
	const tolerance = 1e-5 // some epsilons of float32: texts may stand in other passes
	// Prompts are of words that the model knows: unknown ones are all alike.
	for _, prompts := range [][2]string{{"", ""}, {"the bird ", "what flies "}} {
		q, d, uncut := embed(short, prompts[0], queries), embed(whole, prompts[1], documents), embed(whole, prompts[0], queries)
		scores, cut, err := (&embedder.Teacher{Embedder: both, Query: prompts[0], Document: prompts[1]}).ScorePairs(t.Context(), []string{queries[0], queries[0], queries[1]}, []string{documents[0], documents[1], documents[1]})
		if err != nil || cut != 2 {
			t.Fatalf("%d texts cut, want both queries; %v", cut, err)
		}
		if _, cut, err := (&embedder.Teacher{Embedder: short}).ScorePairs(t.Context(), queries, documents); err != nil || cut != 4 {
			t.Errorf("%d texts cut, want both queries and both documents; %v", cut, err)
		}
		for i, of := range [][2]int{{0, 0}, {0, 1}, {1, 1}} {
			want := cosine(q[of[0]], d[of[1]])
			if !(math.Abs(float64(scores[i])-want) <= tolerance) {
				t.Errorf("pair %v: %v, want %v", of, scores[i], want)
			}
			if math.Abs(cosine(uncut[of[0]], d[of[1]])-want) < 100*tolerance {
				t.Errorf("pair %v: cut or not, its score is %v", of, want)
			}
		}
		relevant, err := both.Relevance(t.Context(), prompts[0], prompts[1], []string{queries[0], queries[0], queries[1]}, []string{documents[0], documents[1], documents[1]})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range relevant {
			if !(math.Abs(r-float64(scores[i])) <= tolerance) {
				t.Errorf("pair %d: relevance %v, by the teacher %v", i, r, scores[i])
			}
		}
		same, err := both.Similarity(t.Context(), prompts[0], queries[:1], queries[1:]) // both are cut as queries are
		if want := cosine(q[0], q[1]); err != nil || !(math.Abs(same[0]-want) <= tolerance) || math.Abs(cosine(uncut[0], uncut[1])-want) < 100*tolerance {
			t.Errorf("similarity %v, want %v: %v", same, want, err)
		}
		rows, _, err := both.Mine(t.Context(), mine.Pair(queries, documents, nil), embedder.Mining{Options: mine.Options{Negatives: 1}, Prompts: &prompts})
		if err != nil || len(rows) != 2 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		for i, r := range rows {
			if want := cosine(q[i], d[i]); !(math.Abs(float64(r.Score)-want) <= tolerance) {
				t.Errorf("mined pair %d: %v, want %v", i, r.Score, want)
			}
			if want := cosine(q[i], d[1-i]); !(math.Abs(float64(r.Negatives[0].Score)-want) <= tolerance) {
				t.Errorf("negative of pair %d: %v, want %v", i, r.Negatives[0].Score, want)
			}
		}
	}
}

// A teacher's scores are cosines, or with Dot the products of embeddings as the model gives them, which have no length of 1 here.
func TestTeacherDot(t *testing.T) {
	e, err := embedder.Load(goldens.Path(t, "bert/odd-sizes"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := []string{"a cat", "the river and the bird", "open the file"}
	x, err := e.EmbedPrompt(t.Context(), "", texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, dot := range []bool{false, true} {
		scores, _, err := (&embedder.Teacher{Embedder: e, Dot: dot}).ScorePairs(t.Context(), []string{texts[0], texts[1], texts[2]}, []string{texts[1], texts[2], texts[2]})
		if err != nil {
			t.Fatal(err)
		}
		for i, of := range [][2]int{{0, 1}, {1, 2}, {2, 2}} {
			a, b := x[of[0]], x[of[1]]
			var ab, aa, bb float64
			for k := range a {
				ab, aa, bb = ab+float64(a[k])*float64(b[k]), aa+float64(a[k])*float64(a[k]), bb+float64(b[k])*float64(b[k])
			}
			size := math.Sqrt(aa * bb)
			want := ab
			if !dot {
				want /= size
			}
			if math.Abs(size-1) < 0.1 {
				t.Fatalf("embeddings of length %v: products and cosines are alike", size)
			}
			// Some epsilons of float32 of the largest product that there can be: texts may stand in other passes.
			if bound := 1e-5 * max(1, size); !(math.Abs(float64(scores[i])-want) <= bound) {
				t.Errorf("dot %v, pair %v: %v, want %v", dot, of, scores[i], want)
			}
		}
	}
}
