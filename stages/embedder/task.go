package embedder

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Text says how the texts of an evaluation become tokens.
type Text struct {
	Tokenizer      *tokenize.Tokenizer
	QueryLength    int // tokens; 0: not cut
	DocumentLength int
	QueryPrompt    string
	DocumentPrompt string

	// Weighed tells that the model's queries are weights of tokens (its Config.Queries).
	Weighed bool
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
	ids, err := tok.EncodeAll(ctx, prompted(how.prompt, texts), how.length, 0)
	if how.weighed {
		distinct(ids)
	}
	return ids, err
}

// Task is a retrieval task, tokenized: a model can be measured on it again and again.
type Task struct {
	// Fusion, if not nil, is what each part counts where a model gives more than embeddings: see PartSearch.
	Fusion map[string]float64
	// Progress, if not nil, is told while queries, and then documents, are embedded how many of them are: on rank 0.
	Progress func(what string, done, total int)

	data    *dataset.Retrieval
	qrels   *evaluate.Qrels
	tie     evaluate.TieOrder
	queries [][]int32
	docs    [][]int32
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
	t := &Task{data: r, qrels: evaluate.NewQrels(queries, docs)}
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
	return t, err
}

// Evaluate embeds queries and documents, ranks the documents by inner product of unit vectors, exactly, and measures; sparse embeddings are compared as
// they are. Ranks that embed
// together all call it; it returns nil on all but rank 0.
func (t *Task) Evaluate(ctx context.Context, e *Engine, measures ...evaluate.Measure) (*evaluate.Result, error) {
	run, err := t.Rank(ctx, e, Depth)
	if err != nil || !e.first() {
		return nil, err
	}
	return t.Measure(run, measures...)
}

// Rank is the first k documents of each query; on ranks but the first it is nil.
func (t *Task) Rank(ctx context.Context, e *Engine, k int) (evaluate.Run, error) {
	if t.queries == nil {
		return nil, errors.New("the task was made without a tokenizer: it has no texts to embed, and measures runs of others")
	}
	if weights := t.parts(e.Model); weights != nil {
		return t.rankByParts(ctx, e, k, weights)
	}
	if e.Sparse() {
		return t.rankSparse(ctx, e, k)
	}
	q, err := t.embed(ctx, e, Query, t.queries)
	if err != nil {
		return nil, err
	}
	d, err := t.embed(ctx, e, Document, t.docs)
	if err != nil {
		return nil, err
	}
	if !e.first() {
		return nil, nil
	}
	return evaluate.Search(ctx, e.Stream, q, d, e.Size(), k, t.tie, nil)
}

// parts are the weights of the parts that documents are ranked by; nil: by embeddings.
func (t *Task) parts(m *transformer.Model) map[string]float64 {
	if t.Fusion == nil && vectorsOnly(m) {
		return onlyVectors
	}
	return t.Fusion
}

// blockTokens bounds the documents whose parts are in memory at once: at 1,024 features, to 512 MiB. A test sets it.
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

// embed computes unit vectors [n, E].
func (t *Task) embed(ctx context.Context, e *Engine, role Role, texts [][]int32) ([]float32, error) {
	out, err := t.embedSome(ctx, e, role, texts, 0, len(texts))
	if err == nil && e.first() && (!e.Model.Head.Normalize || e.Cut > 0) {
		evaluate.Normalize(out, e.Size())
	}
	return out, err
}

// Memory is how many bytes of the device ranking the documents takes, besides the model and its passes, where texts have so many tokens at most.
func (t *Task) Memory(m *transformer.Model, query, document int) int64 {
	weights := t.parts(m)
	if weights == nil {
		return evaluate.SearchMemory(len(t.queries), len(t.docs), m.EmbeddingSize())
	}
	queries, tokens := min(partQueries, len(t.queries)), max(partTokens, document)
	size := loss.Size{
		Rows: queries, Sequences: queries + min(tokens, len(t.docs)), Dim: m.EmbeddingSize(), Normalized: true, GPU: m.Device.Info().Threads == 0,
		Tokens: queries*query + min(tokens, len(t.docs)*document), Longest: max(query, document),
	}
	bytes := int64(loss.FusedParts(weights).Memory(size))
	for _, p := range m.Parts() {
		rows := size.Sequences
		if p.Tokens {
			rows = size.Tokens
		}
		bytes += 4 * int64(rows) * int64(p.Size)
	}
	return bytes
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
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return t.Rank(ctx, &e.engine, k)
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

// Similarity is the cosine of each pair of texts, with a prompt's text before all of them; of sparse embeddings their product. Where queries are weights of
// tokens both texts are documents.
func (e *Embedder) Similarity(ctx context.Context, prompt string, a, b []string) ([]float64, error) {
	return e.text(prompt, prompt).Similarity(ctx, &e.engine, a, b)
}

// Relevance is likewise of each query and document.
func (e *Embedder) Relevance(ctx context.Context, queryPrompt, documentPrompt string, queries, documents []string) ([]float64, error) {
	return e.text(queryPrompt, documentPrompt).Relevance(ctx, &e.engine, queries, documents)
}

// text says how the model reads texts, with these prompts before them.
func (e *Embedder) text(queryPrompt, documentPrompt string) Text {
	return Text{Tokenizer: e.tok, QueryLength: e.queryLength, DocumentLength: e.maxLength, QueryPrompt: queryPrompt, DocumentPrompt: documentPrompt, Weighed: e.WeighsQueries()}
}

// first tells whether this rank is the one that gets embeddings.
func (e *Engine) first() bool { return e.Ranks == nil || e.Ranks.Rank() == 0 }

// Similarity is the cosine of each pair of texts, of sparse embeddings their product; with ranks that embed together, on rank 0. Both texts are read
// as queries are, or where these are weights of tokens as documents: so sentence-transformers has it, whose Router takes texts for documents if nobody says
// what they are.
func (t Text) Similarity(ctx context.Context, e *Engine, a, b []string) ([]float64, error) {
	role := Query
	if t.Weighed {
		role = Document
	}
	return t.compare(ctx, e, [2]Role{role, role}, a, b)
}

// Relevance is likewise of each query and document, read as such.
func (t Text) Relevance(ctx context.Context, e *Engine, queries, documents []string) ([]float64, error) {
	return t.compare(ctx, e, [2]Role{Query, Document}, queries, documents)
}

// compare embeds each text once, whose embedding so is the same wherever it stands: pairs that are alike have equal similarities.
func (t Text) compare(ctx context.Context, e *Engine, roles [2]Role, a, b []string) ([]float64, error) {
	if len(a) != len(b) {
		return nil, fmt.Errorf("%d texts and %d: pairs have one of each", len(a), len(b))
	}
	type asked struct {
		text string
		read
	}
	places := map[asked]int{}
	var ids [2][][]int32 // of texts that are new on a side
	var at [2][]int
	for side, texts := range [2][]string{a, b} {
		var fresh []string
		for _, text := range texts {
			key := asked{text, t.as(roles[side])}
			k, ok := places[key]
			if !ok {
				k = len(places)
				places[key], fresh = k, append(fresh, text)
			}
			at[side] = append(at[side], k)
		}
		var err error
		if ids[side], err = t.tokens(ctx, roles[side], fresh); err != nil {
			return nil, err
		}
	}
	embed := func(put func(k int, vec []float32)) error {
		if !t.Weighed || roles[0] != Query { // all at once
			return e.Embed(ctx, slices.Concat(ids[0], ids[1]), put)
		}
		if err := e.EmbedAs(ctx, Query, ids[0], put); err != nil {
			return err
		}
		return e.Embed(ctx, ids[1], func(k int, vec []float32) { put(len(ids[0])+k, vec) })
	}
	out := make([]float64, len(a))
	if e.Sparse() {
		vecs := make([]active, len(places))
		if err := embed(func(k int, vec []float32) { vecs[k].ids, vecs[k].weights = Active(vec) }); err != nil || !e.first() {
			return nil, err
		}
		for i := range out {
			out[i] = vecs[at[0][i]].product(vecs[at[1][i]])
		}
		return out, nil
	}
	size := e.Size()
	vecs := make([]float32, len(places)*size)
	if err := embed(func(k int, vec []float32) { copy(vecs[k*size:], vec) }); err != nil || !e.first() {
		return nil, err
	}
	for i := range out {
		x, y := at[0][i]*size, at[1][i]*size
		out[i] = cosine(vecs[x:x+size], vecs[y:y+size])
	}
	return out, nil
}

// active is a sparse embedding, as Active has it: of the many texts of a task these fit into memory.
type active struct {
	ids     []int32 // ascending
	weights []float32
}

func (a active) product(b active) (sum float64) {
	for i, j := 0, 0; i < len(a.ids) && j < len(b.ids); {
		switch x, y := a.ids[i], b.ids[j]; {
		case x < y:
			i++
		case x > y:
			j++
		default:
			sum += float64(a.weights[i]) * float64(b.weights[j])
			i, j = i+1, j+1
		}
	}
	return sum
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb)
}
