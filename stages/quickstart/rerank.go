package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/gopairs"
	"contraflow/stages/recipe"
	"contraflow/stages/reranker"
)

// The reranker of the quickstart begins as its encoder: the same layers, read with a comment and a function together. It learns to find a
// comment's function among others that BM25 and the encoder take for it, and what scores the two give: from the right answers alone, a
// small model learns too slowly what a match is.

// RerankReport is what quickstart.json holds of the reranker.
type RerankReport struct {
	Seconds float64            `json:"seconds"` // of it, training included
	NDCG    map[string]float64 `json:"ndcg@10"` // of bm25, encoder, first (these two), reranker, fused (BM25 and the reranker), all
	Table   string             `json:"-"`
	Summary *recipe.Summary    `json:"-"`
}

const (
	rerankPatience = 4 * time.Minute

	pairLength = 128 // tokens of a comment and a function together
	groupSize  = 8   // functions that a comment is learned with
	minedDepth = 100 // BM25's and the encoder's first
	minedFrom  = 50  // of these together, the first of which others are drawn
	ownBonus   = 2   // what is added to the score of a comment's own function

	// The first functions of BM25, of the encoder and of the two together, which are reranked. Of 50, BM25 and the reranker made an nDCG@10
	// of 0.344 together, not 0.373; with random scores in the reranker's place it is 0.295.
	rerankTop = 20
)

const rerankRecipe = `model:
  path: %[1]s
  kind: reranker
  max_length: %[2]d
data:
  train:
    - {path: %[3]s, query: comment, positive: body, negatives: [negatives], negatives_per_query: all, scores: scores}
batch:
  global_size: 16
  sub_batch: {tokens: 8192}
loss: {name: distill}
optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.01, schedule: linear, warmup_ratio: 0.1}
train: {epochs: 20, max_steps: %[4]d, seed: %[5]d}
eval: {every: 0}
save: {dir: %[6]s}
log: {every: 10}
`

// rerank trains and measures a reranker beside the quickstart's model.
func rerank(ctx context.Context, o Options, f files, train []gopairs.Pair, say func(string, ...any)) (*RerankReport, error) {
	began := time.Now()
	e, err := embedder.Load(filepath.Join(o.Out, "model"))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	say("mining functions that BM25 and the encoder take for another comment's\n")
	mined := filepath.Join(o.Out, "rerank.parquet")
	if err := mine(ctx, e, train, o.Seed, mined); err != nil {
		return nil, err
	}
	out := filepath.Join(o.Out, "reranker")
	path := filepath.Join(o.Out, "rerank.yaml")
	open := func(steps int) (*recipe.Run, error) {
		text := fmt.Sprintf(rerankRecipe, quote(filepath.Join(o.Out, "model")), pairLength, quote(mined), steps, o.Seed, quote(out))
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			return nil, err
		}
		r, err := recipe.Parse(path, []byte(text), o.RerankSets)
		if err != nil {
			return nil, err
		}
		return recipe.Open(ctx, r, o.Observer)
	}
	steps := o.RerankSteps
	if steps == 0 { // a few are tried, which take longer while memory is new
		const tried = 6
		x, err := open(tried)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		_, err = x.Train(ctx)
		took := time.Since(start)
		if err = errors.Join(err, x.Close()); err != nil {
			return nil, err
		}
		steps = max(1, int(rerankPatience.Seconds()/(took.Seconds()/tried)))
	}
	x, err := open(steps)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	say("%s\n", x.Describe())
	if o.Begin != nil {
		o.Begin(x.Steps)
	}
	s, err := x.Train(ctx)
	if err != nil {
		return nil, err
	}

	data, err := dataset.LoadRetrieval(ctx, f.queries, f.corpus, f.qrels)
	if err != nil {
		return nil, err
	}
	task, err := e.NewTask(ctx, data, "", "")
	if err != nil {
		return nil, err
	}
	r, err := reranker.Load(filepath.Join(out, "model"))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	bm25, err := task.RankBM25(ctx, rerankTop)
	if err != nil {
		return nil, err
	}
	encoded, err := e.Rank(ctx, task, rerankTop)
	if err != nil {
		return nil, err
	}
	candidates := task.Fuse(rerankTop, bm25, encoded)
	say("reranking %d documents for each of %d comments\n", rerankTop, len(candidates))
	reranked, _, err := r.Rerank(ctx, data, candidates)
	if err != nil {
		return nil, err
	}
	rep := &RerankReport{NDCG: map[string]float64{}, Summary: s}
	var rows []evaluate.Row
	for _, m := range []struct {
		key, name string
		run       evaluate.Run
	}{
		{"bm25", "BM25", bm25}, {"encoder", "encoder", encoded}, {"first", "BM25 + encoder", task.Fuse(rerankTop, bm25, encoded)}, {"reranker", "reranker", reranked},
		{"fused", "BM25 + reranker", task.Fuse(rerankTop, bm25, reranked)}, {"all", "all three", task.Fuse(rerankTop, bm25, encoded, reranked)},
	} {
		res, err := task.Measure(m.run, evaluate.NDCG(10), evaluate.MRR(10), evaluate.MAP(rerankTop)) // not the map of the table before it, which is of more documents
		if err != nil {
			return nil, err
		}
		rep.NDCG[m.key], _ = res.Mean(evaluate.NDCG(10))
		rows = append(rows, evaluate.Row{Name: m.name, Result: res})
	}
	rep.Table, rep.Seconds = evaluate.Table(rows...), time.Since(began).Seconds()
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return nil, err
	}
	return rep, os.WriteFile(filepath.Join(o.Out, "rerank.json"), append(text, '\n'), 0o666)
}

// mine writes each comment with its function and with others like those among which the reranker will have to find it: some of the first
// that BM25 and the encoder find together. Beside each stands how right the two take it to be.
func mine(ctx context.Context, e *embedder.Embedder, train []gopairs.Pair, seed uint64, path string) error {
	data := &dataset.Retrieval{}
	for i, p := range train {
		id := fmt.Sprint(i)
		data.QueryIDs, data.Queries = append(data.QueryIDs, id), append(data.Queries, p.Comment)
		data.DocIDs, data.Docs = append(data.DocIDs, id), append(data.Docs, p.Body)
	}
	task, err := e.NewTask(ctx, data, "", "")
	if err != nil {
		return err
	}
	bm25, err := task.RankBM25(ctx, minedDepth)
	if err != nil {
		return err
	}
	encoded, err := e.Rank(ctx, task, minedDepth)
	if err != nil {
		return err
	}
	comments, bodies, negatives := make([]string, len(train)), make([]string, len(train)), make([][]string, len(train))
	scores := dataset.Vectors{Dim: groupSize, Data: make([]float32, 0, groupSize*len(train))}
	for i, hits := range task.Fuse(2*minedDepth, bm25, encoded) {
		p := train[i]
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		least := hits[len(hits)-1].Score
		own, others := least, make([]evaluate.Hit, 0, minedFrom)
		for _, h := range hits {
			other := train[h.Doc]
			switch {
			case int(h.Doc) == i:
				own = h.Score
			case len(others) < minedFrom && other.Body != p.Body && !strings.EqualFold(other.Comment, p.Comment):
				others = append(others, h)
			}
		}
		rng.Shuffle(len(others), func(a, b int) { others[a], others[b] = others[b], others[a] })
		for len(others) < groupSize-1 {
			if k := rng.IntN(len(train)); k != i {
				others = append(others, evaluate.Hit{Doc: int32(k), Score: least})
			}
		}
		comments[i], bodies[i] = p.Comment, p.Body
		scores.Data = append(scores.Data, own+ownBonus)
		for _, h := range others[:groupSize-1] {
			negatives[i], scores.Data = append(negatives[i], train[h.Doc].Body), append(scores.Data, h.Score)
		}
	}
	w, err := dataset.NewParquetWriter(path, dataset.OutColumn{Name: "comment", Type: dataset.TextOut}, dataset.OutColumn{Name: "body", Type: dataset.TextOut},
		dataset.OutColumn{Name: "negatives", Type: dataset.TextListOut}, dataset.OutColumn{Name: "scores", Type: dataset.VectorOut})
	if err != nil {
		return err
	}
	if err := w.Write(comments, bodies, negatives, scores); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}
