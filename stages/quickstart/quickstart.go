// Package quickstart is the first thing a newcomer sees: a model that gets better, within two minutes, on data that every
// Go user has.
//
// It extracts (doc comment, function) pairs from the Go sources that came with the toolchain, holds some packages out, trains a
// vocabulary and a small encoder from scratch with a recipe (which it leaves behind, to be changed and run again), and measures
// on the held-out packages how well a comment finds its function: before, after, and by BM25.
package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/stages/gopairs"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// Options of Run.
type Options struct {
	Out    string // folder for everything
	Source string // Go sources; "": those of the toolchain
	Seed   uint64
	Sets   []string // --set arguments for the recipe

	Reranker    bool     // train one as well, from the model
	RerankSteps int      // 0: as many as fit four minutes
	RerankSets  []string // for its recipe

	// Say is told what is being done, Observer about the training; both may be empty.
	Say      func(format string, args ...any)
	Observer recipe.Observer
	Begin    func(steps int)
}

// epochs is how often the training sees every pair, unless Sets say otherwise; fewer where that would take longer than patience,
// which leaves 40 s of two minutes for all else. One epoch reaches 0.99 of BM25's MRR@10, two 1.18. (Batches of 256 at half the
// learning rate: 0.75 and 1.01; of 64: 1.01 after one.)
const (
	epochs   = 3
	patience = 80 * time.Second
)

// heldOut is how many pairs are left for measuring.
const heldOut = 2000

// Report is what quickstart.json holds.
type Report struct {
	Seconds float64         `json:"seconds"`
	Epochs  float64         `json:"epochs"` // how often it has seen the pairs: of a run that ended before the recipe's epochs did, as much of them as it was
	Steps   int             `json:"steps"`
	Pairs   int             `json:"pairs"` // trained on
	MRR     BeforeAndAfter  `json:"mrr@10"`
	NDCG    BeforeAndAfter  `json:"ndcg@10"`
	Table   string          `json:"-"`
	Summary *recipe.Summary `json:"-"`
	Example string          `json:"-"` // a held-out comment to try
	Rerank  *RerankReport   `json:"rerank,omitempty"`
}

// BeforeAndAfter is a measure of the model before and after training, and of BM25.
type BeforeAndAfter struct {
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	BM25   float64 `json:"bm25"`
}

// The recipe: small enough for two cores and two minutes.
const recipeText = `model:
  path: %[1]s
  max_length: 64
data:
  train:
    - {path: %[2]s, query: comment, positive: body}
batch:
  global_size: 128
  sub_batch: {tokens: 8192}
loss: {name: mnrl, scale: 20, directions: [query_to_doc, doc_to_query], partition_mode: per_direction}
optimizer: {name: adamw, lr: 2e-3, weight_decay: 0.01, schedule: linear, warmup_ratio: 0.1}
train: {epochs: %[8]d, seed: %[3]d}
eval:
  every: 0
  metric: mrr@10
  retrieval: {queries: %[4]s, corpus: %[5]s, qrels: %[6]s}
save: {dir: %[7]s}
log: {every: 10}
`

// shape is the model that is trained.
var shape = newmodel.Spec{Hidden: 128, Layers: 2, Heads: 4, MaxLength: 64, Vocab: 8000, Lowercase: true}

// reportFile is the last file that a quickstart writes, and, with nothing in it, the first: by it a folder is known as a quickstart's.
const reportFile = "quickstart.json"

// claim makes the folder, which must be new, empty or a quickstart's: what it writes has names that others' data and runs have too.
func claim(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	mark := filepath.Join(dir, reportFile)
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s has %s, and no quickstart has written it: give a new folder, or one of an earlier quickstart", dir, entries[0].Name())
	}
	return os.WriteFile(mark, []byte("{}\n"), 0o666)
}

// Run does everything. Its folder must be new, empty or that of an earlier one.
func Run(ctx context.Context, o Options) (*Report, error) {
	began := time.Now()
	say := o.Say
	if say == nil {
		say = func(string, ...any) {}
	}
	f, start, path := filesIn(o.Out), filepath.Join(o.Out, "start"), filepath.Join(o.Out, "recipe.yaml")
	parse := func(epochs int) (recipe.Recipe, error) {
		text := fmt.Sprintf(recipeText, quote(start), quote(f.train), o.Seed, quote(f.queries), quote(f.corpus), quote(f.qrels), quote(o.Out), epochs)
		return recipe.Parse(path, []byte(text), o.Sets)
	}
	if _, err := parse(epochs); err != nil { // what is wrong with Sets, before anything is written
		return nil, err
	}
	if err := claim(o.Out); err != nil {
		return nil, err
	}
	src := o.Source
	if src == "" {
		var err error
		if src, err = gopairs.DefaultRoot(ctx); err != nil {
			return nil, err
		}
	}
	say("reading Go sources in %s\n", src)
	found, err := gopairs.Extract(ctx, src, nil)
	if err != nil {
		return nil, err
	}
	train, test, err := gopairs.Split(found.Pairs, o.Seed, min(heldOut, len(found.Pairs)/5))
	if err != nil {
		return nil, err
	}
	say("%s\n%d pairs to train on, %d of other packages to measure with\n", found, len(train), len(test))
	if err := f.write(train, test); err != nil {
		return nil, err
	}
	spec := shape
	spec.Seed = o.Seed
	if o.Reranker { // which reads two texts at once
		spec.MaxLength = pairLength
	}
	say("training a vocabulary of %d tokens\n", spec.Vocab)
	err = newmodel.Create(ctx, start, spec, func(yield func(string, error) bool) {
		for _, p := range train {
			if !yield(p.Comment, nil) || !yield(p.Body, nil) {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}

	open := func(epochs int, again bool) (*recipe.Run, error) {
		r, err := parse(epochs)
		if err != nil {
			return nil, err
		}
		obs := o.Observer
		if again {
			obs.Index = nil // it was told
		}
		return recipe.Open(ctx, r, obs)
	}
	x, err := open(epochs, false)
	if err != nil {
		return nil, err
	}
	defer func() { x.Close() }()
	measuring := time.Now()
	before, err := x.Evaluate(ctx)
	if err != nil {
		return nil, err
	}
	// A pair costs three times as much in training as in measuring. What the user asks for is left alone.
	epoch := 3 * float64(len(train)) / float64(len(test)) * time.Since(measuring).Seconds()
	asked := slices.ContainsFunc(o.Sets, func(s string) bool {
		return strings.HasPrefix(s, "train.epochs=") || strings.HasPrefix(s, "train.max_steps=")
	})
	if fit := max(1, int(patience.Seconds()/epoch)); fit < epochs && !asked {
		shorter, err := open(fit, true)
		if err != nil {
			return nil, err
		}
		x.Close()
		x = shorter
		say("%d epochs would take %.0f s on this machine, so it trains for %d\n", epochs, epochs*epoch, fit)
	}
	say("%s\n", x.Describe())
	bm25, err := x.BM25(ctx)
	if err != nil {
		return nil, err
	}
	if o.Begin != nil {
		o.Begin(x.Steps)
	}
	s, err := x.Train(ctx)
	if err != nil {
		return nil, err
	}
	resolved, err := x.Recipe.YAML()
	if err != nil {
		return nil, err
	}
	comment := fmt.Sprintf("# Trained by contraflow quickstart. Change it and run: contraflow train -c %s --out runs/mine\n", path)
	if err := os.WriteFile(path, append([]byte(comment), resolved...), 0o666); err != nil {
		return nil, err
	}
	after, ok := s.Eval.Eval.(*evaluate.Result) // after the last step
	if !ok {
		return nil, errors.New("the recipe has no eval.retrieval")
	}
	rep := &Report{Epochs: epochsOf(x.Recipe, s, len(train)), Steps: s.Steps, Pairs: len(train), Summary: s, Table: evaluate.Table(
		evaluate.Row{Name: "before", Result: before}, evaluate.Row{Name: "after", Result: after}, evaluate.Row{Name: "BM25", Result: bm25})}
	for _, m := range []struct {
		to *BeforeAndAfter
		of evaluate.Measure
	}{{&rep.MRR, evaluate.MRR(10)}, {&rep.NDCG, evaluate.NDCG(10)}} {
		m.to.Before, _ = before.Mean(m.of)
		m.to.After, _ = after.Mean(m.of)
		m.to.BM25, _ = bm25.Mean(m.of)
	}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	rep.Example = firstSentence(test[rng.IntN(len(test))].Comment)
	if o.Reranker {
		if rep.Rerank, err = rerank(ctx, o, f, train, say); err != nil {
			return nil, fmt.Errorf("reranker: %w", err)
		}
	}
	rep.Seconds = time.Since(began).Seconds()
	out, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return nil, err
	}
	return rep, os.WriteFile(filepath.Join(o.Out, reportFile), append(out, '\n'), 0o666)
}

// epochsOf is how often a run has seen all pairs.
func epochsOf(r recipe.Recipe, s *recipe.Summary, pairs int) float64 {
	all := float64(r.Train.Epochs)
	seen := math.Round(100*float64(s.Pairs)/float64(pairs)) / 100
	if r.Train.MaxSteps > 0 || s.Early || s.Stopped {
		return min(all, seen)
	}
	return all // but for the rows that drop_last left out of each
}

func firstSentence(s string) string {
	s, _, _ = strings.Cut(strings.ReplaceAll(s, "\n", " "), ". ")
	return s
}

// quote makes a YAML string of a path.
func quote(s string) string { return fmt.Sprintf("%q", s) }

// files are the data's paths.
type files struct{ train, queries, corpus, qrels string }

func filesIn(dir string) files {
	return files{filepath.Join(dir, "train.parquet"), filepath.Join(dir, "queries.parquet"), filepath.Join(dir, "corpus.parquet"), filepath.Join(dir, "qrels.parquet")}
}

// write writes the pairs as parquet: to train on, and as a retrieval task in which a comment has one relevant body.
func (f files) write(train, test []gopairs.Pair) error {
	text := func(name string) dataset.OutColumn { return dataset.OutColumn{Name: name, Type: dataset.TextOut} }
	column := func(pairs []gopairs.Pair, of func(gopairs.Pair) string) []string {
		out := make([]string, len(pairs))
		for i, p := range pairs {
			out[i] = of(p)
		}
		return out
	}
	pkg := func(p gopairs.Pair) string { return p.Package }
	comment := func(p gopairs.Pair) string { return p.Comment }
	body := func(p gopairs.Pair) string { return p.Body }
	ones := make([]int64, len(test))
	for i := range ones {
		ones[i] = 1
	}
	for _, w := range []struct {
		path    string
		columns []dataset.OutColumn
		values  []any
	}{
		{f.train, []dataset.OutColumn{text("package"), text("comment"), text("body")}, []any{column(train, pkg), column(train, comment), column(train, body)}},
		{f.queries, []dataset.OutColumn{text("id"), text("text")}, []any{column(test, gopairs.Pair.ID), column(test, comment)}},
		{f.corpus, []dataset.OutColumn{text("id"), text("text")}, []any{column(test, gopairs.Pair.ID), column(test, body)}},
		{f.qrels, []dataset.OutColumn{text("query_id"), text("doc_id"), {Name: "relevance", Type: dataset.IntOut}}, []any{column(test, gopairs.Pair.ID), column(test, gopairs.Pair.ID), ones}},
	} {
		out, err := dataset.NewParquetWriter(w.path, w.columns...)
		if err != nil {
			return err
		}
		if err := out.Write(w.values...); err != nil {
			out.Abort()
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
	}
	return nil
}
