package embedder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/mine"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// Negatives are those of the texts' embeddings with the model's own prompts before them, or with others that are said.
func TestMine(t *testing.T) {
	defer func(n int) { mineRows = n }(mineRows)
	mineRows = 2
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.queryPrompt, e.documentPrompt = "query: ", "passage: "
	ctx := context.Background()
	p := mine.Pair([]string{"one", "two", "three"}, []string{"a", "b c", "d e f"}, []string{"g", "h i"})
	o := mine.Options{Negatives: 3}
	embed := func(prompt string, texts []string) []float32 {
		var with []string
		for _, text := range texts {
			with = append(with, prompt+text)
		}
		vecs, err := e.EmbedPrompt(ctx, "", with)
		if err != nil {
			t.Fatal(err)
		}
		var all []float32
		for _, v := range vecs {
			all = append(all, v...)
		}
		evaluate.Normalize(all, e.Size())
		return all
	}
	seen := map[string]int64{}
	progress := func(what string, done, total int64) {
		if done == total {
			seen[what] = total
		}
		if what == "searched" {
			searchHasTurn(t, e)
		}
	}
	for _, prompts := range []*[2]string{nil, {"query: ", "passage: "}, {"", ""}, {"q ", ""}} {
		with := [2]string{"query: ", "passage: "}
		if prompts != nil {
			with = *prompts
		}
		want, _, err := p.Mine(ctx, ref.New(), o, embed(with[0], p.Queries), embed(with[1], p.Corpus), e.Size(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, short, err := e.Mine(ctx, p, Mining{Options: o, Prompts: prompts, Progress: progress})
		if err != nil || short != 0 || len(got) != 3 {
			t.Fatalf("%d rows, %d too short, %v", len(got), short, err)
		}
		for i := range got {
			for k := range got[i].Negatives {
				if d := got[i].Negatives[k].Score - want[i].Negatives[k].Score; !(math.Abs(float64(d)) <= 1e-5) {
					t.Errorf("prompts %q, pair %d: negatives %v, want %v", with, i, got[i].Negatives, want[i].Negatives)
				}
			}
		}
	}
	if want := map[string]int64{"queries": 3, "documents": 5, "searched": seen["searched"]}; !reflect.DeepEqual(seen, want) || seen["searched"] == 0 {
		t.Errorf("progress %v", seen)
	}
}

// Progress is told long before all texts of a block are embedded.
func TestMineProgress(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	defer func(n int) { mineRows = n }(mineRows)
	mineRows = 25
	var queries, docs []string
	for i := range 50 {
		queries, docs = append(queries, fmt.Sprint("cat ", i)), append(docs, fmt.Sprint("dog ", i))
	}
	told := map[string][]int64{}
	if _, _, err := e.Mine(t.Context(), mine.Pair(queries, docs, nil), Mining{Options: mine.Options{Negatives: 1}, Progress: func(what string, done, total int64) {
		if told[what] = append(told[what], done); what != "searched" && total != 50 {
			t.Errorf("%s: %d of %d", what, done, total)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"queries", "documents"} {
		if want := []int64{16, 25, 41, 50}; !slices.Equal(told[what], want) {
			t.Errorf("%s: told %v, want %v", what, told[what], want)
		}
	}
}

// Scores are cosines whatever lengths a model's embeddings have.
func TestMineUnnormalized(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/gelu-new"), OnDevice(ref.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p := mine.Pair([]string{"one", "two", "three"}, []string{"a", "b c", "d e f"}, []string{"g", "h i"})
	vecs, err := e.EmbedPrompt(t.Context(), "", append(slices.Clone(p.Queries), p.Corpus...))
	if err != nil {
		t.Fatal(err)
	}
	cosineOf := func(q, d int) float64 { return cosine(vecs[q], vecs[len(p.Queries)+d]) }
	rows, short, err := e.Mine(t.Context(), p, Mining{Options: mine.Options{Negatives: 3}})
	if err != nil || short != 0 || len(rows) != 3 {
		t.Fatalf("%d rows, %d too short, %v", len(rows), short, err)
	}
	for _, r := range rows {
		for _, h := range append(r.Negatives, evaluate.Hit{Doc: int32(r.Positive), Score: r.Score}) {
			if want := cosineOf(r.Query, int(h.Doc)); !(math.Abs(float64(h.Score)-want) <= 1e-5) {
				t.Errorf("query %d and document %d score %v, want their cosine %v", r.Query, h.Doc, h.Score, want)
			}
		}
	}
}

// What a folder's similarity is decides what texts are compared by, in whatever way that is done, but for mining.
func TestSimilarityOfFolder(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(goldens.Path(t, "bert/gelu-new"))); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700), os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put("modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]`)
	put("1_Pooling/config.json", `{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}`)
	queries, docs := []string{"one", "two", "three"}, []string{"a", "b c", "d e f"}
	for name, dot := range map[string]bool{"dot": true, "cosine": false, "euclidean": false} {
		put("config_sentence_transformers.json", `{"similarity_fn_name": "`+name+`", "truncate_dim": 20}`)
		var notes []string
		e, err := Load(folder, OnDevice(ref.New()), Warn(func(m string) { notes = append(notes, m) }))
		if err != nil {
			t.Fatal(err)
		}
		if noted := slices.Contains(notes, folder+": similarity_fn_name is euclidean, for which texts are compared by cosine"); noted != (name == "euclidean") {
			t.Errorf("%s: %q", name, notes)
		}
		vecs, err := e.EmbedPrompt(t.Context(), "", append(slices.Clone(queries), docs...))
		if err != nil {
			t.Fatal(err)
		}
		equal := func(how string, dot bool, q, d int, got float64) {
			t.Helper()
			var sum, qq, dd float64
			for i, x := range vecs[q] {
				y := vecs[len(queries)+d][i]
				sum, qq, dd = sum+float64(x)*float64(y), qq+float64(x)*float64(x), dd+float64(y)*float64(y)
			}
			if !dot {
				sum /= math.Sqrt(qq * dd)
			}
			if !(math.Abs(got-sum) <= 1e-5*max(1, math.Abs(sum))) {
				t.Errorf("%s: query %d and document %d are %v by %s, want %v", name, q, d, got, how, sum)
			}
		}
		scores, err := e.Relevance(t.Context(), "", "", queries, docs)
		if err != nil {
			t.Fatal(err)
		}
		taught, _, err := (&Teacher{Embedder: e}).ScorePairs(t.Context(), queries, docs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range queries {
			equal("relevance", dot, i, i, scores[i])
			equal("a teacher", dot, i, i, float64(taught[i]))
		}
		mined, _, err := e.Mine(t.Context(), mine.Pair(queries, docs, nil), Mining{Options: mine.Options{Negatives: 2}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range mined {
			for _, h := range append(r.Negatives, evaluate.Hit{Doc: int32(r.Positive), Score: r.Score}) {
				equal("mining", false, r.Query, int(h.Doc), float64(h.Score))
			}
		}
		task, err := e.NewTask(t.Context(), &dataset.Retrieval{Queries: queries, QueryIDs: queries, Docs: docs, DocIDs: docs, Judgements: []dataset.Judgement{{Relevance: 1}}}, "", "")
		if err != nil {
			t.Fatal(err)
		}
		run, err := e.Rank(t.Context(), task, len(docs))
		if err != nil {
			t.Fatal(err)
		}
		for q, hits := range run {
			for _, h := range hits {
				equal("ranking", dot, q, int(h.Doc), float64(h.Score))
			}
		}
		e.Close()
	}
}

// A model is saved with its folder's similarity, unless a program has it compared otherwise.
func TestSimilaritySaved(t *testing.T) {
	for _, c := range []struct {
		folder string
		dot    bool
		want   string
	}{{"dot", true, "dot"}, {"dot", false, "cosine"}, {"euclidean", false, "euclidean"}, {"cosine", true, "dot"}, {"", false, ""}} {
		m := &transformer.Model{Head: transformer.Head{Dot: c.dot}}
		if got := SpecOf(&hfmodel.Folder{Similarity: c.folder}, m, nil).Similarity; got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// While it is searched nobody else has the engine, or could close it.
func searchHasTurn(t *testing.T, e *Embedder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, give, err := e.engine.Turns.Take(ctx); err == nil {
		give()
		t.Error("the search has no turn")
	}
}

// By parts, negatives are those documents that are no positives whose pairs with the query score highest, wherever blocks of documents end.
func TestMineParts(t *testing.T) {
	defer func(n int) { minePartRows = n }(minePartRows)
	minePartRows = 4
	e, err := Load(m3Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx := context.Background()
	var queries, positives, corpus []string
	for i := range 9 {
		queries, positives = append(queries, fmt.Sprint("what is ", i)), append(positives, fmt.Sprint("it is the ", i))
		corpus = append(corpus, strings.Repeat("another one ", i))
	}
	corpus = append(corpus[1:], positives...)
	slices.Reverse(corpus) // so that documents don't come in their queries' order
	p := mine.Pair(queries, positives, corpus)
	prompts := [2]string{"query: ", "passage, "}
	seen := map[string]int64{}
	progress := func(what string, done, _ int64) {
		if seen[what] = max(seen[what], done); what == "searched" {
			searchHasTurn(t, e)
		}
	}
	o := mine.Options{Negatives: 3}
	for _, weights := range []map[string]float64{{loss.M3Parts[0]: 1}, {loss.M3Parts[1]: 1}, loss.Fusion} {
		rows, short, err := e.Mine(ctx, p, Mining{Options: o, Prompts: &prompts, Weights: weights, Progress: progress})
		if err != nil || short != 0 || len(rows) != 9 {
			t.Fatalf("%v: %d rows, %d too short, %v", weights, len(rows), short, err)
		}
		q, _, err := e.EmbedParts(ctx, "", prompted(prompts[0], p.Queries), weights)
		if err != nil {
			t.Fatal(err)
		}
		d, _, err := e.EmbedParts(ctx, "", prompted(prompts[1], p.Corpus), weights)
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.device.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			var all [][2]int
			for doc := range p.Corpus {
				all = append(all, [2]int{r.Query, doc})
			}
			scores, err := PairScores(s, q, d, weights, all)
			if err != nil {
				t.Fatal(err)
			}
			near := func(got float32, doc int) {
				if !(math.Abs(float64(got-scores[doc])) <= 1e-5*max(1, math.Abs(float64(got)))) {
					t.Errorf("%v: query %d and document %d score %v, want %v", weights, r.Query, doc, got, scores[doc])
				}
			}
			near(r.Score, r.Positive)
			if p.Queries[r.Query] != queries[r.Query] || p.Corpus[r.Positive] != positives[r.Query] {
				t.Errorf("query %d has the positive %q", r.Query, p.Corpus[r.Positive])
			}
			others := slices.Delete(slices.Clone(scores), r.Positive, r.Positive+1)
			slices.Sort(others)
			for i, n := range r.Negatives {
				near(n.Score, int(n.Doc))
				if want := others[len(others)-1-i]; int(n.Doc) == r.Positive || !(math.Abs(float64(n.Score-want)) <= 1e-5*max(1, math.Abs(float64(want)))) {
					t.Errorf("%v: negative %d of query %d is %+v, want a score of %v", weights, i, r.Query, n, want)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if seen["queries"] != 9 || seen["documents"] != int64(len(p.Corpus)) || seen["searched"] == 0 {
		t.Errorf("progress %v of %d documents", seen, len(p.Corpus))
	}
	seen = map[string]int64{}
	for want, m := range map[string]Mining{
		"want at least 1":              {Weights: loss.Fusion},
		"the range begins at -1":       {Weights: loss.Fusion, Options: mine.Options{Negatives: 1, RangeMin: -1}},
		"none of the parts":            {Weights: map[string]float64{loss.M3Parts[0]: 1, "lexical": 5}, Options: o},
		"all weights are 0":            {Weights: map[string]float64{}, Options: o},
		"a weight of -1":               {Weights: map[string]float64{loss.M3Parts[0]: -1}, Options: o},
		"a weight of NaN":              {Weights: map[string]float64{loss.M3Parts[1]: math.NaN()}, Options: o},
		"0 negatives, want at least 1": {},
	} {
		m.Progress = progress
		if _, _, err := e.Mine(ctx, p, m); err == nil || !strings.Contains(err.Error(), want) || len(seen) > 0 {
			t.Errorf("%v, %v, want %q before anything is embedded", err, seen, want)
		}
	}
}

// A text whose embedding is not finite is named, whichever part of the texts it comes with.
func TestMineNotFinite(t *testing.T) {
	defer func(n int) { mineRows = n }(mineRows)
	mineRows = 2
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id, ok := e.tok.ID("fish")
	if !ok {
		t.Fatal("no such token")
	}
	if err := e.model.Load(e.engine.Stream, func(p transformer.Param, dst []float32) error {
		for i := range dst {
			dst[i] = float32(i%5) / 8
		}
		if p.Name == e.model.Layout.Word().Name {
			for i := range p.Cols {
				dst[int(id)*p.Cols+i] = 3e38 * float32(1-i%2*2) // whose squares are not finite
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	queries, positives := []string{"a cat", "a dog", "a bird"}, []string{"the cat", "the dog", "the fish of the river"}
	_, _, err = e.Mine(t.Context(), mine.Pair(queries, positives, []string{"one", "two"}), Mining{Options: mine.Options{Negatives: 1}})
	if err == nil || !strings.Contains(err.Error(), `documents: "the fish of the river": the embedding is not finite`) {
		t.Error(err)
	}
}
