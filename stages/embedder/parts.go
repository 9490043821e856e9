package embedder

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"contraflow/gpustage"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
)

// Parts is what a model with heads of tokens gives of some texts. Of one that gives vectors of tokens alone, Dense and Weights are nil.
type Parts struct {
	Size, VectorSize int
	Dense            []float32 // [texts, Size]
	Cu               []int32   // [texts+1]: text i has tokens Cu[i] to Cu[i+1]-1 below: those that transformer.TokenHeads.Shown says
	IDs              []int32   // [T']
	Weights          []float32 // [T'] of the tokens; see Lexical
	Vectors          []float32 // [T', VectorSize]; nil if they were not wanted

	special map[int32]bool
	sums    bool // a score by vectors is a sum over the query's, not their mean
}

// Len is the number of texts.
func (p *Parts) Len() int { return len(p.Cu) - 1 }

// Lexical is text i's lexical weights: of each token id the largest of its tokens, where that is above 0, without special tokens, in the
// order in which they come in the text.
func (p *Parts) Lexical(i int) (ids []int32, weights []float32) {
	all, of := p.IDs[p.Cu[i]:p.Cu[i+1]], p.Weights[p.Cu[i]:p.Cu[i+1]]
	for _, t := range loss.Lexemes(all, of, p.special) {
		ids, weights = append(ids, all[t]), append(weights, of[t])
	}
	return ids, weights
}

// TokenVectors are text i's, [tokens, VectorSize].
func (p *Parts) TokenVectors(i int) []float32 {
	return p.Vectors[int(p.Cu[i])*p.VectorSize : int(p.Cu[i+1])*p.VectorSize]
}

// Parts computes the parts of texts, given as token ids; tokens' vectors only if they have one of the weights, or weights is nil. With
// Ranks, rank 0 gets them and the others nil. Of a model that gives vectors of tokens alone the texts are documents: see QueryParts.
func (e *Engine) Parts(ctx context.Context, texts [][]int32, weights map[string]float64) (*Parts, error) {
	return e.PartsOf(ctx, texts, func(int) bool { return false }, nil, weights)
}

// QueryParts is Parts of queries, which are filled up if the model's are.
func (e *Engine) QueryParts(ctx context.Context, texts [][]int32, weights map[string]float64) (*Parts, error) {
	h := e.Model.Config.Tokens
	filled, seen := make([][]int32, len(texts)), make([]int32, len(texts))
	for i, ids := range texts {
		filled[i], seen[i] = h.Query.Expand(ids[:len(ids):len(ids)], 0), int32(len(ids))
	}
	if !h.Unseen() {
		seen = nil
	}
	return e.PartsOf(ctx, filled, func(int) bool { return true }, seen, weights)
}

// PartsOf is Parts of texts some of which are queries, as they go through the model: short ones are filled up. seen is how many of each text's tokens
// the others attend to; nil: all, which of queries that are filled up with what is not attended to is an error.
func (e *Engine) PartsOf(ctx context.Context, texts [][]int32, query func(i int) bool, seen []int32, weights map[string]float64) (*Parts, error) {
	h := e.Model.Config.Tokens
	if h.None() {
		return nil, fmt.Errorf("the model gives embeddings alone: only models of kind m3 and multi_vector give tokens' vectors")
	}
	for i := range texts {
		if seen == nil && h.Unseen() && query(i) {
			return nil, fmt.Errorf("text %d is a query, and in the model's nobody attends to what fills them up: seen, which is nil, says how many of its tokens come before that", i)
		}
	}
	p := &Parts{Size: e.Model.EmbeddingSize(), VectorSize: h.Dim, Cu: []int32{0}, special: map[int32]bool{}, sums: h.Alone && !h.Mean}
	for _, id := range h.Special {
		p.special[id] = true
	}
	shown := make([][]int32, len(texts))
	for i, ids := range texts {
		shown[i] = h.Shown(query(i), ids)
		for _, at := range shown[i] {
			p.IDs = append(p.IDs, ids[at])
		}
		p.Cu = append(p.Cu, int32(len(p.IDs)))
	}
	if h.Alone {
		if err := e.vectorsAlone(ctx, texts, shown, seen, p, weights); err != nil || !e.first() {
			return nil, err
		}
		return p, nil
	}
	parts := 2 // the embedding and lexical weights
	if weights == nil || weights[loss.VectorsPart] != 0 {
		parts = 3
	}
	if e.first() {
		p.Dense, p.Weights = make([]float32, len(texts)*p.Size), make([]float32, len(p.IDs))
		if parts == 3 {
			p.Vectors = make([]float32, len(p.IDs)*p.VectorSize)
		}
	}
	err := e.embed(ctx, reading{texts: texts, shown: shown, seen: seen}, parts, func(i int, of [][]float32) {
		copy(p.Dense[i*p.Size:], of[0])
		copy(p.Weights[p.Cu[i]:], of[1])
		if parts == 3 {
			copy(p.Vectors[int(p.Cu[i])*p.VectorSize:], of[2])
		}
	})
	if err != nil || !e.first() {
		return nil, err
	}
	return p, nil
}

// vectorsAlone completes the parts of a model that gives nothing else.
func (e *Engine) vectorsAlone(ctx context.Context, texts, shown [][]int32, seen []int32, p *Parts, weights map[string]float64) error {
	for _, part := range []string{loss.DensePart, loss.SparsePart} {
		if weights[part] != 0 {
			return fmt.Errorf("the part %s has a weight, and the model gives vectors of tokens alone: %s", part, loss.VectorsPart)
		}
	}
	if e.first() {
		p.Vectors = make([]float32, len(p.IDs)*p.VectorSize)
	}
	return e.embed(ctx, reading{texts: texts, shown: shown, seen: seen}, 1, func(i int, of [][]float32) { copy(p.Vectors[int(p.Cu[i])*p.VectorSize:], of[0]) })
}

// EmbedParts computes the parts of texts, as Engine.Parts does, with one of the model's prompts put before each, and says how many texts
// were cut. Of a model that gives vectors of tokens alone the texts with the prompt "query" are queries, others documents.
func (e *Embedder) EmbedParts(ctx context.Context, prompt string, texts []string, weights map[string]float64) (p *Parts, cut int, err error) {
	if err := e.CheckPrompt(prompt); err != nil {
		return nil, 0, err
	}
	return e.embedParts(ctx, roleOf(prompt), e.Prompt(prompt), texts, weights)
}

// embedParts is EmbedParts with a prompt's text, of texts of a role.
func (e *Embedder) embedParts(ctx context.Context, role Role, prompt string, texts []string, weights map[string]float64) (p *Parts, cut int, err error) {
	h, length := e.model.Config.Tokens, e.maxLength
	if h.Alone && role == Query {
		length = e.queryLength
	}
	ids, cut, err := e.tokenizeTo(ctx, role, prompt, texts, length)
	if err != nil {
		return nil, 0, err
	}
	parts := e.engine.Parts
	if role == Query {
		parts = e.engine.QueryParts
	}
	if p, err = parts(ctx, ids, weights); err != nil {
		return nil, cut, err
	}
	for i := range texts {
		dense := p.Dense == nil || finite(p.Dense[i*p.Size:(i+1)*p.Size]) && finite(p.Weights[p.Cu[i]:p.Cu[i+1]])
		if !dense || p.Vectors != nil && !finite(p.TokenVectors(i)) {
			return p, cut, &NotFiniteError{i}
		}
	}
	return p, cut, nil
}

// HasParts tells whether the model gives tokens' vectors: with lexical weights besides embeddings, or alone.
func (e *Embedder) HasParts() bool { return !e.engine.Model.Config.Tokens.None() }

// Weights makes weights of parts, of which PartSearch makes one score, of numbers for dense, sparse and multi-vector.
func Weights(ws []float64) (map[string]float64, error) {
	if len(ws) != len(loss.M3Parts) {
		return nil, fmt.Errorf("%d weights, want one each for %v", len(ws), loss.M3Parts)
	}
	out, sum := map[string]float64{}, 0.0
	for i, w := range ws {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, fmt.Errorf("a weight of %v, want a number of at least 0", w)
		}
		out[loss.M3Parts[i]] = w
		sum += w
	}
	if sum == 0 {
		return nil, fmt.Errorf("all weights are 0")
	}
	return out, nil
}

// checkWeights tells whether weights are such as Weights makes; parts may be left out.
func checkWeights(weights map[string]float64) error {
	var ws []float64
	for _, part := range loss.M3Parts {
		ws = append(ws, weights[part])
	}
	for _, part := range slices.Sorted(maps.Keys(weights)) {
		if !slices.Contains(loss.M3Parts, part) {
			return fmt.Errorf("a weight of %q, which is none of the parts %v", part, loss.M3Parts)
		}
	}
	_, err := Weights(ws)
	return err
}

// What is scored at once: tokens' vectors, at 1,024 features 128 MiB for documents, and the places of MaxSim. A test sets partTokens.
const partQueries = 256

var partTokens = 1 << 15

// PartSearch finds the documents with the highest weighted sum of the parts' scores for each query, exactly: see loss.M3 for the scores.
// Documents come in blocks, which need not be kept: memory is that of the queries and of one block.
type PartSearch struct {
	s           gpustage.Stream
	queries     *Parts
	weights     map[string]float64
	top         *evaluate.TopK
	done, total int64
	progress    func(done, total int64)
}

// NewPartSearch is for the k first of so many documents; equal scores rank by tie. Weights are as [Weights] makes them. progress, which may be nil, is
// told of scores done.
func NewPartSearch(s gpustage.Stream, queries *Parts, docs int, weights map[string]float64, k int, tie evaluate.TieOrder, progress func(done, total int64)) (*PartSearch, error) {
	if err := checkWeights(weights); err != nil {
		return nil, err
	}
	if weights[loss.VectorsPart] != 0 && queries.Vectors == nil {
		return nil, fmt.Errorf("tokens' vectors have a weight, and the queries' parts were made without them")
	}
	top, err := evaluate.NewTopK(queries.Len(), min(k, max(1, docs)), tie)
	return &PartSearch{s: s, queries: queries, weights: weights, top: top, total: int64(queries.Len()) * int64(docs), progress: progress}, err
}

// Add scores the documents from first on.
func (x *PartSearch) Add(ctx context.Context, first int, docs *Parts) error {
	for from := 0; from < docs.Len(); {
		to := from + 1
		for to < docs.Len() && int(docs.Cu[to+1]-docs.Cu[from]) <= partTokens {
			to++
		}
		for lo := 0; lo < x.queries.Len(); lo += partQueries {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			hi := min(x.queries.Len(), lo+partQueries)
			if err := fuse(x.s, x.queries, docs, [2]int{lo, hi}, [2]int{from, to}, x.weights, func(q int, scores []float32) error { return x.top.Add(q, first+from, scores, to-from) }); err != nil {
				return err
			}
			if x.done += int64(hi-lo) * int64(to-from); x.progress != nil {
				x.progress(x.done, x.total)
			}
		}
		from = to
	}
	return nil
}

// Run is what was found.
func (x *PartSearch) Run() evaluate.Run { return x.top.Run() }

// PairScores are the weighted sums of the parts' scores of pairs of a query and a document.
func PairScores(s gpustage.Stream, queries, docs *Parts, weights map[string]float64, pairs [][2]int) ([]float32, error) {
	out := make([]float32, len(pairs))
	for i, p := range pairs {
		if err := fuse(s, queries, docs, [2]int{p[0], p[0] + 1}, [2]int{p[1], p[1] + 1}, weights, func(_ int, scores []float32) error {
			out[i] = scores[0]
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// vectorless is the score of a document without a vector, all of whose tokens are in the skiplist: below all others, as sentence-transformers has it.
const vectorless = -1e9

// scorable are those of texts lo to hi-1 that have something to compare. A text without a vector has it by its other parts alone.
func (p *Parts) scorable(lo, hi int) (texts []int) {
	for i := lo; i < hi; i++ {
		if p.Dense != nil || p.Cu[i] < p.Cu[i+1] {
			texts = append(texts, i)
		}
	}
	return texts
}

// fuse yields the scores of each query, from the first of a range to before its end, with a range of documents. Of a model that gives nothing else a
// document without a vector has the score vectorless, whatever the weights, and a query without one the sum of none, 0, with all others.
func fuse(s gpustage.Stream, queries, docs *Parts, of, with [2]int, weights map[string]float64, yield func(query int, scores []float32) error) error {
	ask, found := queries.scorable(of[0], of[1]), docs.scorable(with[0], with[1])
	narrow := make([]float32, with[1]-with[0])
	next := of[0]
	// without yields the queries before one that have no vector.
	without := func(end int) error {
		for ; next < end; next++ {
			for i := range narrow {
				narrow[i] = vectorless
			}
			for _, d := range found {
				narrow[d-with[0]] = 0
			}
			if err := yield(next, narrow); err != nil {
				return err
			}
		}
		return nil
	}
	if len(ask) == 0 || len(found) == 0 {
		return without(of[1])
	}
	b, free, err := scored(s, queries, docs, ask, found)
	if err != nil {
		return err
	}
	defer free()
	a, err := gpustage.NewArena(s.Device(), loss.FusedParts(weights).Memory(b.Size()))
	if err != nil {
		return err
	}
	defer a.Free()
	if err := loss.Fuse(s, a, b, weights, func(q int, scores []float64) error {
		if err := without(ask[q]); err != nil {
			return err
		}
		factor := 1.0
		if queries.sums { // by vectors, of which there are no others then: over the query's
			factor = float64(b.Parts[0].Cu[q+1] - b.Parts[0].Cu[q])
		}
		for i := range narrow {
			narrow[i] = vectorless
		}
		for i, v := range scores {
			narrow[found[i]-with[0]] = float32(factor * v)
		}
		next++
		return yield(ask[q], narrow)
	}); err != nil {
		return err
	}
	return without(of[1])
}

// scored brings some queries and documents to the device, given by their places in order. Between the first and the last those that are left out have no
// rows.
func scored(s gpustage.Stream, queries, docs *Parts, ask, found []int) (b *loss.Batch, free func(), err error) {
	var held []gpustage.Tensor
	free = func() {
		for _, t := range held {
			t.Mem.Free()
		}
	}
	defer func() {
		if err != nil {
			free()
		}
	}()
	side := func(q, d []float32, cols int) gpustage.Tensor {
		n := len(q) + len(d)
		t, e := gpustage.NewTensor(s.Device(), gpustage.F32, n/cols, cols)
		if e != nil {
			err = e
			return t
		}
		held = append(held, t)
		s.CopyIn(t.Span(0, len(q)/cols), gpustage.Bytes(q))
		s.CopyIn(t.Span(len(q)/cols, n/cols), gpustage.Bytes(d))
		return t
	}
	cut := func(p *Parts, x []float32, lo, hi, cols int) []float32 {
		return x[int(p.Cu[lo])*cols : int(p.Cu[hi])*cols]
	}
	first, last := ask[0], ask[len(ask)-1]+1
	from, to := found[0], found[len(found)-1]+1
	b = &loss.Batch{Rows: len(ask), Normalized: true}
	for id := range docs.special {
		b.Special = append(b.Special, id)
	}
	cu := []int32{0}
	for _, x := range []struct {
		p      *Parts
		texts  []int
		lo, hi int
	}{{queries, ask, first, last}, {docs, found, from, to}} {
		base := cu[len(cu)-1]
		for _, i := range x.texts {
			cu = append(cu, base+x.p.Cu[i+1]-x.p.Cu[x.lo])
		}
		b.IDs = append(b.IDs, x.p.IDs[x.p.Cu[x.lo]:x.p.Cu[x.hi]]...)
	}
	if docs.Dense != nil {
		b.Embeddings = side(queries.Dense[first*queries.Size:last*queries.Size], docs.Dense[from*docs.Size:to*docs.Size], docs.Size)
		if err != nil {
			return b, free, err
		}
		b.Parts = []loss.Part{{Name: loss.SparsePart, X: side(cut(queries, queries.Weights, first, last, 1), cut(docs, docs.Weights, from, to, 1), 1), Cu: cu}}
	}
	if v := docs.VectorSize; docs.Vectors != nil {
		b.Parts = append(b.Parts, loss.Part{Name: loss.VectorsPart, X: side(cut(queries, queries.Vectors, first, last, v), cut(docs, docs.Vectors, from, to, v), v), Cu: cu})
	}
	return b, free, err
}

// FlagWeights are what a command's options say of parts: one of them alone, or weights of all, or loss.Fusion.
func FlagWeights(part string, ws []float64) (map[string]float64, error) {
	switch {
	case len(ws) > 0:
		return Weights(ws)
	case part == "fused":
		return loss.Fusion, nil
	case slices.Contains(loss.M3Parts, part):
		return map[string]float64{part: 1}, nil
	}
	return nil, fmt.Errorf("%q is not dense, sparse, multi_vector or fused", part)
}
