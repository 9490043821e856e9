package embedder

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/mine"
	"contraflow/stages/transformer"
)

// randomParts are of texts of 1 to 6 tokens, of few ids.
func randomParts(rng *rand.Rand, texts int) *Parts {
	p := &Parts{Size: 3, VectorSize: 4, Cu: []int32{0}, special: map[int32]bool{0: true, 1: true}}
	numbers := func(n int) (out []float32) {
		for range n {
			out = append(out, float32(rng.NormFloat64()))
		}
		return out
	}
	for range texts {
		for range 1 + rng.IntN(6) {
			p.IDs = append(p.IDs, int32(rng.IntN(6)))
		}
		p.Cu = append(p.Cu, int32(len(p.IDs)))
	}
	p.Dense, p.Weights, p.Vectors = numbers(texts*p.Size), numbers(len(p.IDs)), numbers(len(p.IDs)*p.VectorSize)
	for i, w := range p.Weights {
		p.Weights[i] = max(0, w)
	}
	return p
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// vector is that of one of all texts' tokens.
func vector(p *Parts, token int32) []float32 {
	return p.Vectors[int(token)*p.VectorSize : int(token+1)*p.VectorSize]
}

// score is the definition: for each query and document alone.
func score(q, d *Parts, i, j int, weights map[string]float64) float64 {
	dense := dot(q.Dense[i*q.Size:(i+1)*q.Size], d.Dense[j*d.Size:(j+1)*d.Size])
	words := func(p *Parts, i int) map[int32]float64 {
		out := map[int32]float64{}
		for t := p.Cu[i]; t < p.Cu[i+1]; t++ {
			if !p.special[p.IDs[t]] {
				out[p.IDs[t]] = max(out[p.IDs[t]], float64(p.Weights[t]))
			}
		}
		return out
	}
	sparse := 0.0
	for id, w := range words(q, i) {
		sparse += w * words(d, j)[id]
	}
	vectors := 0.0
	for s := q.Cu[i]; s < q.Cu[i+1]; s++ {
		best := math.Inf(-1)
		for t := d.Cu[j]; t < d.Cu[j+1]; t++ {
			best = max(best, dot(vector(q, s), vector(d, t)))
		}
		vectors += best / float64(q.Cu[i+1]-q.Cu[i])
	}
	return weights[loss.DensePart]*dense + weights[loss.SparsePart]*sparse + weights[loss.VectorsPart]*vectors
}

// A search by parts, its documents in blocks, finds what the definition of the scores gives, and pairs have those scores.
func TestPartSearch(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, 9))
	q := randomParts(rng, 7)
	blocks := []*Parts{randomParts(rng, 5), randomParts(rng, 1), randomParts(rng, 11)}
	for _, weights := range []map[string]float64{loss.Fusion, {loss.DensePart: 1}, {loss.SparsePart: 2}, {loss.VectorsPart: 1}, {loss.SparsePart: 0.5, loss.VectorsPart: 3}} {
		const k, docs = 6, 17
		told := int64(0)
		x, err := NewPartSearch(s, q, docs, weights, k, nil, func(done, total int64) { told = total - done })
		if err != nil {
			t.Fatal(err)
		}
		want := make([][]float64, q.Len())
		first := 0
		for _, all := range blocks {
			d := all
			if weights[loss.VectorsPart] == 0 { // as Engine.Parts leaves them out
				only := *all
				only.Vectors, d = nil, &only
			}
			if err := x.Add(t.Context(), first, d); err != nil {
				t.Fatal(err)
			}
			var pairs [][2]int
			for i := range q.Len() {
				for j := range d.Len() {
					want[i], pairs = append(want[i], score(q, all, i, j, weights)), append(pairs, [2]int{i, j})
				}
			}
			scores, err := PairScores(s, q, d, weights, pairs)
			if err != nil {
				t.Fatal(err)
			}
			for n, p := range pairs {
				if w := want[p[0]][first+p[1]]; !(math.Abs(float64(scores[n])-w) <= 1e-5*(1+math.Abs(w))) {
					t.Errorf("%v: pair %v has the score %v, want %v", weights, p, scores[n], w)
				}
			}
			first += d.Len()
		}
		if told != 0 {
			t.Errorf("%d scores were not told of", told)
		}
		for i, hits := range x.Run() {
			order := make([]int, docs)
			for j := range order {
				order[j] = j
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(want[i][b], want[i][a]) })
			slices.SortFunc(hits, func(a, b evaluate.Hit) int { return cmp.Compare(b.Score, a.Score) })
			for n, h := range hits {
				if w := want[i][order[n]]; len(hits) != k || !(math.Abs(float64(h.Score)-w) <= 1e-5*(1+math.Abs(w))) || !(math.Abs(want[i][h.Doc]-w) <= 1e-5*(1+math.Abs(w))) {
					t.Errorf("%v: query %d, place %d: document %d with %v, want %d with %v", weights, i, n, h.Doc, h.Score, order[n], w)
				}
			}
		}
	}
}

// A task is ranked by parts as its pairs score, wherever blocks of documents end, and a document that is longer than a block is one of its own.
func TestRankInBlocks(t *testing.T) {
	defer func(n int) { blockTokens = n }(blockTokens)
	blockTokens = 20
	e, err := Load(m3Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	data := &dataset.Retrieval{Queries: []string{"what is a river", "the cat", "another one"}}
	for i := range 9 {
		data.Docs = append(data.Docs, fmt.Sprint("it is ", i)+strings.Repeat(" the fish and the bird"[:4*(i%6)], 1+i%2))
		data.DocIDs = append(data.DocIDs, fmt.Sprint("d", i))
	}
	data.Docs[4] = strings.Repeat("the cat sees a river ", 6) // more than a block
	for q := range data.Queries {
		data.QueryIDs = append(data.QueryIDs, fmt.Sprint("q", q))
	}
	task, err := e.NewTask(t.Context(), data, "", "")
	if err != nil {
		t.Fatal(err)
	}
	task.Fusion = loss.Fusion
	var told []int
	task.Progress = func(what string, done, total int) {
		if what == "documents" && total == len(data.Docs) {
			told = append(told, done)
		}
	}
	run, err := e.Rank(t.Context(), task, len(data.Docs))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []int
	tokens := 0
	for i, ids := range task.docs {
		if tokens += len(ids); i > 0 && tokens > blockTokens {
			blocks, tokens = append(blocks, i), len(ids)
		}
	}
	if blocks = append(blocks, len(data.Docs)); !slices.Equal(told, blocks) || len(blocks) < 4 {
		t.Errorf("blocks end at documents %v, want %v", told, blocks)
	}
	s, err := e.device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q, _, err := e.EmbedParts(t.Context(), "", data.Queries, loss.Fusion)
	d, _, err2 := e.EmbedParts(t.Context(), "", data.Docs, loss.Fusion)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	for i, hits := range run {
		var pairs [][2]int
		for j := range data.Docs {
			pairs = append(pairs, [2]int{i, j})
		}
		want, err := PairScores(s, q, d, loss.Fusion, pairs)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int32]bool{}
		for n, h := range hits {
			seen[h.Doc] = true
			if w := want[h.Doc]; !(math.Abs(float64(h.Score-w)) <= 1e-5*max(1, math.Abs(float64(w)))) || n > 0 && !(h.Score <= hits[n-1].Score) {
				t.Errorf("query %d, place %d: document %d with %v, want %v", i, n, h.Doc, h.Score, w)
			}
		}
		if len(seen) != len(data.Docs) {
			t.Errorf("query %d ranks %v", i, hits)
		}
	}
}

// Of a model that gives vectors of tokens alone a document without one comes last, of each query and in whatever block, and a query without one finds
// nothing better than another.
func TestPartSearchVectorless(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, 9))
	// emptied are the vectors alone, of some texts none.
	emptied := func(all *Parts, without ...int) *Parts {
		p := &Parts{VectorSize: 4, Vectors: []float32{}, Cu: []int32{0}, sums: true}
		for i := range all.Len() {
			if !slices.Contains(without, i) {
				p.IDs, p.Vectors = append(p.IDs, all.IDs[all.Cu[i]:all.Cu[i+1]]...), append(p.Vectors, all.TokenVectors(i)...)
			}
			p.Cu = append(p.Cu, int32(len(p.IDs)))
		}
		return p
	}
	value := func(q, d *Parts, i, j int) (sum float64) {
		if d.Cu[j] == d.Cu[j+1] {
			return -1e9
		}
		for x := q.Cu[i]; x < q.Cu[i+1]; x++ {
			best := math.Inf(-1)
			for y := d.Cu[j]; y < d.Cu[j+1]; y++ {
				best = max(best, dot(q.Vectors[x*4:x*4+4], d.Vectors[y*4:y*4+4]))
			}
			sum += best
		}
		return sum
	}
	for _, none := range [][]int{nil, {2}, {0, 1}, {3, 6}, {0, 1, 2, 3, 4, 5, 6}} {
		q := emptied(randomParts(rng, 7), none...)
		blocks := []*Parts{emptied(randomParts(rng, 5), 0), emptied(randomParts(rng, 1)), emptied(randomParts(rng, 2), 0, 1), emptied(randomParts(rng, 6), 2, 3, 5)}
		const docs = 14
		x, err := NewPartSearch(s, q, docs, onlyVectors, docs, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, first := make([][]float64, q.Len()), 0
		for _, d := range blocks {
			if err := x.Add(t.Context(), first, d); err != nil {
				t.Fatal(err)
			}
			var pairs [][2]int
			for i := range q.Len() {
				for j := range d.Len() {
					want[i], pairs = append(want[i], value(q, d, i, j)), append(pairs, [2]int{i, j})
				}
			}
			scores, err := PairScores(s, q, d, onlyVectors, pairs)
			if err != nil {
				t.Fatal(err)
			}
			for n, p := range pairs {
				if w := want[p[0]][first+p[1]]; !(math.Abs(float64(scores[n])-w) <= 1e-5*(1+math.Abs(w))) {
					t.Errorf("%v: pair %v has the score %v, want %v", none, p, scores[n], w)
				}
			}
			first += d.Len()
		}
		for i, hits := range x.Run() {
			if len(hits) != docs {
				t.Errorf("%v: query %d has %d documents, want %d", none, i, len(hits), docs)
			}
			for _, h := range hits {
				if w := want[i][h.Doc]; !(math.Abs(float64(h.Score)-w) <= 1e-5*(1+math.Abs(w))) {
					t.Errorf("%v: query %d scores document %d %v, want %v", none, i, h.Doc, h.Score, w)
				}
			}
		}
	}
}

// Weights that no score can be made of are an error before anything is scored, and so are queries whose tokens' vectors are wanted and were left out.
func TestPartSearchWeights(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	q := randomParts(rand.New(rand.NewPCG(8, 9)), 3)
	bare := *q
	bare.Vectors = nil
	for want, c := range map[string]struct {
		queries *Parts
		weights map[string]float64
	}{
		"all weights are 0": {q, nil},
		"none of the parts": {q, map[string]float64{"lexical": 1}},
		"a weight of -1":    {q, map[string]float64{loss.DensePart: -1}},
		"made without them": {&bare, loss.Fusion},
	} {
		if _, err := NewPartSearch(s, c.queries, 5, c.weights, 2, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := NewPartSearch(s, &bare, 5, map[string]float64{loss.DensePart: 1}, 2, nil, nil); err != nil {
		t.Error(err)
	}
}

// Parts that are not finite are an error, though the embeddings beside them are: nothing is ranked by them.
func TestPartsNotFinite(t *testing.T) {
	e, err := Load(m3Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, part := range []string{"sparse_linear.weight", "colbert_linear.weight"} {
		err := e.model.Load(e.engine.Stream, func(p transformer.Param, dst []float32) error {
			for i := range dst {
				dst[i] = 1
				if p.Name == part {
					dst[i] = 3e38
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{"a text", "another"}
		if _, err := e.Embed(t.Context(), texts); err != nil {
			t.Errorf("%s: the embeddings: %v", part, err)
		}
		var lost *NotFiniteError
		if _, _, err := e.EmbedParts(t.Context(), "", texts, nil); !errors.As(err, &lost) || lost.Text != 0 || !errors.Is(err, ErrNotFinite) {
			t.Errorf("%s: %v, want an error of text 0", part, err)
		}
		if _, _, err := e.Mine(t.Context(), mine.Pair(texts, texts, nil), Mining{Options: mine.Options{Negatives: 1}, Weights: map[string]float64{"dense": 1, "sparse": 1, "multi_vector": 1}}); err == nil || !strings.Contains(err.Error(), `queries: "a text": the embedding is not finite`) {
			t.Errorf("%s: mining says %v", part, err)
		}
	}
}
