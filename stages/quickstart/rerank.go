package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
// comment's function among others that BM25 and the encoder take for it.

// RerankReport is what quickstart.json holds of the reranker.
type RerankReport struct {
	Seconds float64            `json:"seconds"` // of it, training included
	NDCG    map[string]float64 `json:"ndcg@10"` // of bm25, encoder, reranker, fused
	Table   string             `json:"-"`
}

const (
	pairLength     = 128 // tokens of a comment and a function together
	perFirst       = 3   // hard negatives of BM25, and of the encoder
	minedFrom      = 30  // the first of each
	rerankTop      = 50  // documents of each query that are reranked
	rerankPatience = 240 * time.Second
)

const rerankRecipe = `model:
  path: %[1]s
  kind: reranker
  max_length: %[2]d
data:
  train:
    - {path: %[3]s, query: comment, positive: body, negatives: [negatives], negatives_per_query: all}
batch:
  global_size: 32
  sub_batch: {tokens: 8192}
loss: {name: cross_entropy}
optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.01, schedule: linear, warmup_ratio: 0.1}
train: {epochs: 8, max_steps: %[4]d, seed: %[5]d}
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
	if err := mine(ctx, e, train, mined); err != nil {
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
		var obs recipe.Observer
		if o.Observer != nil {
			obs = o.Observer(r)
		}
		return recipe.Open(ctx, r, obs)
	}
	// How many steps there is time for: a few are tried, at half of what they cost when memory is new.
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
	steps := max(1, int(rerankPatience.Seconds()/(took.Seconds()/tried)))
	if x, err = open(steps); err != nil {
		return nil, err
	}
	defer x.Close()
	say("%s\n", x.Describe())
	if o.Begin != nil {
		o.Begin(x.Steps)
	}
	if _, err := x.Train(ctx); err != nil {
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
	reranked, err := r.Rerank(ctx, data, candidates)
	if err != nil {
		return nil, err
	}
	rep := &RerankReport{NDCG: map[string]float64{}}
	var rows []evaluate.Row
	for _, m := range []struct {
		key, name string
		run       evaluate.Run
	}{
		{"bm25", "BM25", bm25}, {"encoder", "encoder", encoded}, {"reranker", "reranker", reranked}, {"fused", "BM25 + reranker", task.Fuse(rerankTop, bm25, reranked)},
	} {
		res, err := task.Measure(m.run, evaluate.NDCG(10), evaluate.MRR(10), evaluate.MAP(0))
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

// mine writes the pairs with hard negatives: of what BM25 and the encoder find first for a comment, every so many, beginning behind the
// first few, which are often as right as the comment's own.
func mine(ctx context.Context, e *embedder.Embedder, train []gopairs.Pair, path string) error {
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
	bm25, err := task.RankBM25(ctx, minedFrom)
	if err != nil {
		return err
	}
	encoded, err := e.Rank(ctx, task, minedFrom)
	if err != nil {
		return err
	}
	comments, bodies, negatives := make([]string, len(train)), make([]string, len(train)), make([][]string, len(train))
	for i, p := range train {
		comments[i], bodies[i] = p.Comment, p.Body
		taken := []string{p.Body}
		for _, run := range []evaluate.Run{bm25, encoded} {
			hits := run[i]
			found := 0
			for k := 0; k < len(hits) && found < perFirst; k += 1 + k/2 {
				body := train[hits[k].Doc].Body
				if !slices.Contains(taken, body) && !strings.EqualFold(train[hits[k].Doc].Comment, p.Comment) {
					taken = append(taken, body)
					found++
				}
			}
		}
		negatives[i] = taken[1:]
	}
	w, err := dataset.NewParquetWriter(path, dataset.OutColumn{Name: "comment", Type: dataset.TextOut}, dataset.OutColumn{Name: "body", Type: dataset.TextOut},
		dataset.OutColumn{Name: "negatives", Type: dataset.TextListOut})
	if err != nil {
		return err
	}
	if err := w.Write(comments, bodies, negatives); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}
