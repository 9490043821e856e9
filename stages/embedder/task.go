package embedder

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/tokenize"
)

// Text says how the texts of an evaluation become tokens, and what of them is compared.
type Text struct {
	Tokenizer      *tokenize.Tokenizer
	QueryLength    int // tokens; 0: not cut
	DocumentLength int
	QueryPrompt    string
	DocumentPrompt string

	// Weighed tells that the model's queries are weights of tokens (its Config.Queries).
	Weighed bool

	// Fusion, if not nil, is what each part counts where a model gives more than embeddings: see PartSearch.
	Fusion map[string]float64
}

// read is how a text becomes tokens.
type read struct {
	prompt  string
	length  int
	weighed bool
}

// as is how texts of a role do.
func (t Text) as(role Role) read {
	if role == Query {
		return read{t.QueryPrompt, t.QueryLength, t.Weighed}
	}
	return read{t.DocumentPrompt, t.DocumentLength, false}
}

// tokens are those of texts of a role.
func (t Text) tokens(ctx context.Context, role Role, texts []string) ([][]int32, error) {
	how, tok := t.as(role), t.Tokenizer
	if how.weighed {
		tok = tok.Bare()
	}
	ids, tell := make([][]int32, 0, len(texts)), dataset.Reading(ctx)
	for part := range slices.Chunk(texts, tokenizedAtOnce) {
		some, err := tok.EncodeAll(ctx, prompted(how.prompt, part), how.length, 0)
		if err != nil {
			return nil, err
		}
		if ids = append(ids, some...); len(ids) < len(texts) {
			tell("tokenizing", len(ids))
		}
	}
	if how.weighed {
		distinct(ids)
	}
	return ids, nil
}

// tokenizedAtOnce is how many texts are behind their prompts at a time, and after how many it is told of them. A test sets it.
var tokenizedAtOnce = 1 << 16

// prompts are by role how many tokens the prompt before its texts has.
func (t Text) prompts() (tokens [2]int) {
	for _, role := range []Role{Document, Query} {
		how := t.as(role)
		tokens[role] = t.Tokenizer.PromptTokens(how.prompt, how.length)
	}
	return tokens
}

// Task is a retrieval task, tokenized: a model can be measured on it again and again.
type Task struct {
	// Fusion is that of the Text that the task was made with, where nobody sets another.
	Fusion map[string]float64
	// Progress, if not nil, is told while queries, and then documents, are embedded how many of them are: on rank 0.
	Progress func(what string, done, total int)

	data    *dataset.Retrieval
	qrels   *evaluate.Qrels
	tie     evaluate.TieOrder
	queries [][]int32
	docs    [][]int32
	prompts [2]int // of each role: the tokens of the prompt before its texts
}

// Depth is how many documents of each query are ranked to be measured: the deepest cut-off of evaluate.Standard.
const Depth = 100

// NewTask tokenizes a retrieval task. Without a tokenizer it is for runs of others to be measured.
func NewTask(ctx context.Context, r *dataset.Retrieval, x Text) (*Task, error) {
	if len(r.Queries) != len(r.QueryIDs) || len(r.Docs) != len(r.DocIDs) {
		return nil, fmt.Errorf("%d queries have %d ids, and %d documents %d: want one each", len(r.Queries), len(r.QueryIDs), len(r.Docs), len(r.DocIDs))
	}
	for i, j := range r.Judgements {
		if j.Query < 0 || j.Query >= len(r.QueryIDs) || j.Doc < 0 || j.Doc >= len(r.DocIDs) {
			return nil, fmt.Errorf("judgement %d is of query %d and document %d, and there are %d and %d", i, j.Query, j.Doc, len(r.QueryIDs), len(r.DocIDs))
		}
	}
	for i, j := range r.Missed {
		if j.Query < 0 || j.Query >= len(r.QueryIDs) {
			return nil, fmt.Errorf("missed judgement %d is of query %d, and there are %d", i, j.Query, len(r.QueryIDs))
		}
	}
	queries, err := evaluate.NewIDs(r.QueryIDs)
	if err != nil {
		return nil, fmt.Errorf("queries: %w", err)
	}
	docs, err := evaluate.NewIDs(r.DocIDs)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	t := &Task{Fusion: x.Fusion, data: r, qrels: evaluate.NewQrels(queries, docs)}
	t.qrels.Ascending = r.Ascending
	t.tie = t.qrels.TieOrder()
	for _, j := range r.Judgements {
		if err := t.qrels.Add(r.QueryIDs[j.Query], r.DocIDs[j.Doc], int(j.Relevance)); err != nil {
			return nil, err
		}
	}
	for _, j := range r.Missed {
		if err := t.qrels.Add(r.QueryIDs[j.Query], j.Doc, int(j.Relevance)); err != nil {
			return nil, err
		}
	}
	if x.Tokenizer == nil {
		return t, nil
	}
	if t.queries, err = x.tokens(ctx, Query, r.Queries); err != nil {
		return nil, err
	}
	t.docs, err = x.tokens(ctx, Document, r.Docs)
	t.prompts = x.prompts()
	return t, err
}

// Evaluate embeds queries and documents, ranks the documents by cosine, exactly, and measures; sparse embeddings, and those of a head that says so, are
// ranked by inner product. Ranks that embed together all call it; it returns nil on all but rank 0.
func (t *Task) Evaluate(ctx context.Context, e *Engine, measures ...evaluate.Measure) (*evaluate.Result, error) {
	return only(t.EvaluateCut(ctx, e, nil, measures...))
}

// EvaluateCut is Evaluate by embeddings cut to each of some numbers of dimensions, the first ones; 0, or no numbers: what the engine yields. Texts are embedded
// once, and each result is the one that its cut alone gives.
func (t *Task) EvaluateCut(ctx context.Context, e *Engine, cuts []int, measures ...evaluate.Measure) (all []*evaluate.Result, err error) {
	runs, err := t.RankCut(ctx, e, Depth, cuts...)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		r, err := t.Measure(run, measures...)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Rank is the first k documents of each query; on ranks but the first it is nil.
func (t *Task) Rank(ctx context.Context, e *Engine, k int) (evaluate.Run, error) {
	return only(t.RankCut(ctx, e, k))
}

// RankCut is Rank as EvaluateCut is Evaluate.
func (t *Task) RankCut(ctx context.Context, e *Engine, k int, cuts ...int) ([]evaluate.Run, error) {
	if t.queries == nil {
		return nil, errors.New("the task was made without a tokenizer: it has no texts to embed, and measures runs of others")
	}
	cuts, err := e.cuts(t.Fusion, cuts)
	if err != nil {
		return nil, err
	}
	var run evaluate.Run
	if weights := partWeights(t.Fusion, e.Model); weights != nil {
		run, err = t.rankByParts(ctx, e, k, weights)
	} else if e.Sparse() {
		run, err = t.rankSparse(ctx, e, k)
	} else {
		return t.rankDense(ctx, e, k, cuts)
	}
	if err != nil || !e.first() {
		return nil, err
	}
	return slices.Repeat([]evaluate.Run{run}, len(cuts)), nil // by what nothing is cut
}

func (t *Task) rankDense(ctx context.Context, e *Engine, k int, cuts []int) ([]evaluate.Run, error) {
	q, err := t.embed(ctx, e, Query, t.queries, cuts)
	if err != nil {
		return nil, err
	}
	d, err := t.embed(ctx, e, Document, t.docs, cuts)
	if err != nil || !e.first() {
		return nil, err
	}
	return e.search(ctx, q, d, k, t.tie, cuts)
}

// Paraphrases measures how well the model finds those texts that say the same, of a task whose documents are its queries, by the relevance of one to another: they
// are embedded once, as queries. There is a result for each of cuts, as of EvaluateCut, or else one. On ranks but the first there is none.
func (t *Task) Paraphrases(ctx context.Context, e *Engine, cuts ...int) (all []*evaluate.Paraphrases, err error) {
	if cuts, err = e.cuts(nil, cuts); err != nil {
		return nil, err
	}
	x, err := t.embed(ctx, e, Query, t.queries, cuts)
	if err != nil || !e.first() {
		return nil, err
	}
	runs, err := e.search(ctx, x, x, evaluate.Neighbours+1, nil, cuts)
	if err != nil {
		return nil, err
	}
	for _, nearest := range runs {
		p, err := measureParaphrases(nearest, t.data)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// only is the one of what there is one of, or none on ranks but the first.
func only[S ~[]T, T any](all S, err error) (one T, _ error) {
	if err != nil || len(all) == 0 {
		return one, err
	}
	return all[0], nil
}

// CheckParaphrases tells whether there are any to find.
func CheckParaphrases(r *dataset.Retrieval) error {
	_, err := measureParaphrases(make(evaluate.Run, len(r.Queries)), r)
	return err
}

func measureParaphrases(nearest evaluate.Run, r *dataset.Retrieval) (*evaluate.Paraphrases, error) {
	var paraphrases [][2]int
	for _, j := range r.Judgements {
		if j.Relevance >= 1 {
			paraphrases = append(paraphrases, [2]int{j.Query, j.Doc})
		}
	}
	found, err := evaluate.MeasureParaphrases(nearest, paraphrases)
	return &found, err
}

// blockTokens bounds the documents, or the texts of pairs, whose parts are in memory at once: at 1,024 features, to 512 MiB. A test sets it.
var blockTokens = 1 << 17

// rankByParts ranks block by block of the documents.
func (t *Task) rankByParts(ctx context.Context, e *Engine, k int, weights map[string]float64) (evaluate.Run, error) {
	if err := checkWeights(weights); err != nil { // before anything is embedded
		return nil, err
	}
	q, err := e.QueryParts(ctx, t.queries, weights)
	if err != nil {
		return nil, err
	}
	t.tell(e, "queries", len(t.queries), len(t.queries))
	var x *PartSearch
	if e.first() {
		if x, err = NewPartSearch(e.Stream, q, len(t.docs), weights, k, t.tie, nil); err != nil {
			return nil, err
		}
	}
	for from := 0; from < len(t.docs); {
		to, tokens := from, 0
		for to < len(t.docs) && (to == from || tokens+len(t.docs[to]) <= blockTokens) {
			tokens += len(t.docs[to])
			to++
		}
		d, err := e.Parts(ctx, t.docs[from:to], weights)
		if err != nil {
			return nil, err
		}
		if e.first() {
			if err := x.Add(ctx, from, d); err != nil {
				return nil, err
			}
		}
		from = to
		if t.Progress != nil && e.first() {
			t.Progress("documents", from, len(t.docs))
		}
	}
	if !e.first() {
		return nil, nil
	}
	return x.Run(), nil
}

// Data are the task's texts and judgements.
func (t *Task) Data() *dataset.Retrieval { return t.data }

// Measure measures a run of the task.
func (t *Task) Measure(run evaluate.Run, measures ...evaluate.Measure) (*evaluate.Result, error) {
	return evaluate.Evaluate(run, t.qrels, measures...)
}

// WriteRun writes a run as trec_eval and others read it: a line for each document, best first, with the query's id, Q0, the document's id, its rank
// from 1, its score and a tag, which names the run. An id with a space in it has no place there, and is an error.
func (t *Task) WriteRun(w io.Writer, run evaluate.Run, tag string) error {
	out := bufio.NewWriter(w)
	for _, what := range append([]string{tag}, append(slices.Clone(t.data.QueryIDs), t.data.DocIDs...)...) {
		if f := strings.Fields(what); len(f) != 1 || f[0] != what {
			return fmt.Errorf("%q can't stand in a run of TREC, whose fields are between spaces: it has some, or nothing", what)
		}
	}
	for q, hits := range run {
		hits = slices.Clone(hits)
		slices.SortFunc(hits, func(a, b evaluate.Hit) int { // equal scores as trec_eval has them
			return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(t.data.DocIDs[b.Doc], t.data.DocIDs[a.Doc]))
		})
		for rank, h := range hits {
			fmt.Fprintf(out, "%s Q0 %s %d %v %s\n", t.data.QueryIDs[q], t.data.DocIDs[h.Doc], rank+1, h.Score, tag)
		}
	}
	return out.Flush()
}

// Fuse is [evaluate.Fuse] of the task's runs.
func (t *Task) Fuse(k int, runs ...evaluate.Run) evaluate.Run {
	return evaluate.Fuse(t.tie, k, runs...)
}

// BM25 is the yardstick: the same task by words alone.
func (t *Task) BM25(ctx context.Context, measures ...evaluate.Measure) (*evaluate.Result, error) {
	run, err := t.RankBM25(ctx, Depth)
	if err != nil {
		return nil, err
	}
	return t.Measure(run, measures...)
}

// RankBM25 is the first k documents of each query by BM25.
func (t *Task) RankBM25(ctx context.Context, k int) (evaluate.Run, error) {
	b, err := evaluate.NewBM25(ctx, t.data.Docs, evaluate.BM25Options{Tie: t.tie})
	if err != nil {
		return nil, err
	}
	return b.Search(ctx, t.data.Queries, k)
}

// tellEvery is after how many texts progress is told.
const tellEvery = 16

func (t *Task) tell(e *Engine, what string, done, total int) {
	if t.Progress != nil && e.first() && (done%tellEvery == 0 || done == total) {
		t.Progress(what, done, total)
	}
}

// embed computes embeddings [n, E], of as many dimensions as the longest of cuts. Of one cut they are such that search compares them as they are.
func (t *Task) embed(ctx context.Context, e *Engine, role Role, texts [][]int32, cuts []int) ([]float32, error) {
	size := slices.Max(cuts)
	out, err := t.embedSome(ctx, e, role, texts, size, 0, len(texts))
	if err == nil && e.first() && len(cuts) == 1 && e.scales(size) {
		evaluate.Normalize(out, size)
	}
	return out, err
}

// search finds the k documents nearest to each query, for each of cuts of what embed computed.
func (e *Engine) search(ctx context.Context, queries, corpus []float32, k int, tie evaluate.TieOrder, cuts []int) (runs []evaluate.Run, err error) {
	for _, cut := range cuts {
		run, err := evaluate.SearchCut(ctx, e.Stream, queries, corpus, slices.Max(cuts), cut, k, len(cuts) > 1 && e.scales(cut), tie)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// cuts are numbers of dimensions that texts are compared by: those that are asked for, or else what the engine yields.
func (e *Engine) cuts(fusion map[string]float64, asked []int) ([]int, error) {
	size := e.Size()
	if len(asked) == 0 {
		return []int{size}, nil
	}
	var cuts []int
	for _, n := range asked {
		switch {
		case n < 0 || n > size:
			return nil, fmt.Errorf("embeddings of %d dimensions can't be cut to %d", size, n)
		case n > 0 && (e.Sparse() || partWeights(fusion, e.Model) != nil):
			return nil, fmt.Errorf("sparse embeddings and those that are compared beside other parts are not cut, to %d dimensions", n)
		}
		cuts = append(cuts, cmp.Or(n, size))
	}
	return cuts, nil
}

// scales tells whether embeddings of so many dimensions are given length 1 to compare them by cosine.
func (e *Engine) scales(size int) bool {
	return !e.Model.Head.Dot && (!e.Model.Head.Normalize || size < e.Model.EmbeddingSize())
}

// Memory is how many bytes of the device ranking the documents takes, besides the model and its passes, where texts have so many tokens at most.
func (t *Task) Memory(e *Engine, query, document int) int64 {
	weights := partWeights(t.Fusion, e.Model)
	if weights == nil {
		return evaluate.SearchMemory(len(t.queries), len(t.docs), e.Size())
	}
	return partMemory(e.Model, weights, min(partQueries, len(t.queries)), len(t.docs), query, document)
}

// Queries and Docs are the task's sizes; Judged how many queries have judgements.
func (t *Task) Queries() int { return len(t.queries) }
func (t *Task) Docs() int    { return len(t.docs) }

// NewTask tokenizes a retrieval task for this model.
func (e *Embedder) NewTask(ctx context.Context, r *dataset.Retrieval, queryPrompt, documentPrompt string) (*Task, error) {
	return NewTask(ctx, r, e.text(queryPrompt, documentPrompt))
}

// Rank is the first k documents of each query of a task that NewTask made.
func (e *Embedder) Rank(ctx context.Context, t *Task, k int) (evaluate.Run, error) {
	return only(e.RankCut(ctx, t, k))
}

// RankCut is Rank by embeddings cut to each of some numbers of dimensions, as [Task.EvaluateCut] has them: a run for each.
func (e *Embedder) RankCut(ctx context.Context, t *Task, k int, cuts ...int) ([]evaluate.Run, error) {
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return t.RankCut(ctx, &e.engine, k, cuts...)
}

// Evaluate measures the model on a task that NewTask made.
func (e *Embedder) Evaluate(ctx context.Context, t *Task, measures ...evaluate.Measure) (*evaluate.Result, error) {
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return t.Evaluate(ctx, &e.engine, measures...)
}

// text says how the model reads texts, with these prompts before them.
func (e *Embedder) text(queryPrompt, documentPrompt string) Text {
	return Text{Tokenizer: e.tok, QueryLength: e.queryLength, DocumentLength: e.maxLength, QueryPrompt: queryPrompt, DocumentPrompt: documentPrompt, Weighed: e.WeighsQueries()}
}

// first tells whether this rank is the one that gets embeddings.
func (e *Engine) first() bool { return e.Ranks == nil || e.Ranks.Rank() == 0 }
