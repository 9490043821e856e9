package embedder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// How similar a model finds pairs of texts: by their embeddings, or by the parts that one with heads of tokens gives.

// errNoRoles is of pairs of which nobody says which texts are queries.
var errNoRoles = errors.New("the model gives vectors of tokens, which MaxSim compares a query by with a document: Relevance, which tells one from the other, reads the first text of a pair as a query and the second as a document")

// Similarity is the cosine of each pair of texts, with a prompt's text before all of them; of sparse embeddings, and where the folder says so, their product. Where queries are weights of
// tokens both texts are documents. Of a model that gives vectors of tokens alone, which reads queries otherwise than documents, it is an error: see Relevance.
func (e *Embedder) Similarity(ctx context.Context, prompt string, a, b []string) ([]float64, error) {
	return e.PartSimilarity(ctx, nil, prompt, a, b)
}

// PartSimilarity is Similarity by weighted parts, of a model that has some: the sum that [PartSearch] makes, with the first text in the query's place.
// weights are as [Weights] makes them; nil: its embeddings alone.
func (e *Embedder) PartSimilarity(ctx context.Context, weights map[string]float64, prompt string, a, b []string) ([]float64, error) {
	if e.VectorsAlone() {
		return nil, errNoRoles
	}
	t := e.text(prompt, prompt)
	t.Fusion = weights
	return only(t.Similarity(ctx, &e.engine, a, b))
}

// Relevance is likewise of each query and document. Of a model that gives vectors of tokens alone it is their MaxSim.
func (e *Embedder) Relevance(ctx context.Context, queryPrompt, documentPrompt string, queries, documents []string) ([]float64, error) {
	return e.PartRelevance(ctx, nil, queryPrompt, documentPrompt, queries, documents)
}

// PartRelevance is Relevance by weighted parts, as PartSimilarity is Similarity.
func (e *Embedder) PartRelevance(ctx context.Context, weights map[string]float64, queryPrompt, documentPrompt string, queries, documents []string) ([]float64, error) {
	t := e.text(queryPrompt, documentPrompt)
	t.Fusion = weights
	return only(t.Relevance(ctx, &e.engine, queries, documents))
}

// SimilarityCut is Similarity by embeddings cut to each of some numbers of dimensions, as [Task.EvaluateCut] has them: a list for each.
func (e *Embedder) SimilarityCut(ctx context.Context, cuts []int, prompt string, a, b []string) ([][]float64, error) {
	if e.VectorsAlone() {
		return nil, errNoRoles
	}
	return e.text(prompt, prompt).Similarity(ctx, &e.engine, a, b, cuts...)
}

// RelevanceCut is Relevance likewise.
func (e *Embedder) RelevanceCut(ctx context.Context, cuts []int, queryPrompt, documentPrompt string, queries, documents []string) ([][]float64, error) {
	return e.text(queryPrompt, documentPrompt).Relevance(ctx, &e.engine, queries, documents, cuts...)
}

// Similarity is the cosine of each pair of texts, of sparse embeddings and of those of a head that says so their product, and with Fusion the weighted sum of their parts' scores; with ranks that
// embed together, on rank 0. Both texts are read as queries are, or where these are weights of tokens as documents: so sentence-transformers has it, whose Router
// takes texts for documents if nobody says what they are.
//
// There is a list of similarities for each of cuts, as of [Task.EvaluateCut], or else one.
//
// Of vectors of tokens alone the first text is read as a query and the second as a document. MaxSim is not the same both ways, and what is compared with
// what is what the model has learned: a query's tokens, those that fill it up among them, with a document's, without its skiplist's. So
// sentence-transformers' MultiVectorDistillationEvaluator has it of pairs with scores; its other evaluators of pairs, which read both texts alike,
// compare no such vectors.
func (t Text) Similarity(ctx context.Context, e *Engine, a, b []string, cuts ...int) ([][]float64, error) {
	return t.compare(ctx, e, t.roles(e.Model, false), a, b, cuts)
}

// Relevance is likewise of each query and document, read as such.
func (t Text) Relevance(ctx context.Context, e *Engine, queries, documents []string, cuts ...int) ([][]float64, error) {
	return t.compare(ctx, e, t.roles(e.Model, true), queries, documents, cuts)
}

// PairTexts is how many texts Similarity of pairs embeds, each once, or if asked Relevance.
func (t Text) PairTexts(e *Engine, asked bool, a, b []string) int {
	_, fresh := t.once(e.Model, t.roles(e.Model, asked), a, b)
	return len(fresh[0]) + len(fresh[1])
}

// roles are what the texts of pairs are read as: if they are asked, a query and a document.
func (t Text) roles(m *transformer.Model, asked bool) [2]Role {
	switch {
	case asked || vectorsOnly(m):
		return [2]Role{Query, Document}
	case t.Weighed:
		return [2]Role{Document, Document}
	}
	return [2]Role{Query, Query}
}

// once gives each text of pairs a place, and has those that are new on each side.
func (t Text) once(m *transformer.Model, roles [2]Role, a, b []string) (pairs [][2]int, fresh [2][]string) {
	type asked struct {
		text string
		read
		role Role // where texts are read by it, however alike their prompts and lengths are
	}
	places := map[asked]int{}
	pairs = make([][2]int, len(a))
	for side, texts := range [2][]string{a, b} {
		for i, text := range texts {
			key := asked{text: text, read: t.as(roles[side])}
			if vectorsOnly(m) {
				key.role = roles[side]
			}
			k, ok := places[key]
			if !ok {
				k = len(places)
				places[key], fresh[side] = k, append(fresh[side], text)
			}
			pairs[i][side] = k
		}
	}
	return pairs, fresh
}

// comparison is pairs of texts, each text once.
type comparison struct {
	ids     [][]int32 // of the texts: those of first sides, and then those that are on second sides alone
	firsts  int       // how many of the texts are on first sides
	roles   [2]Role   // of sides
	prompts [2]int    // of roles: see Text.prompts
	pairs   [][2]int  // of places in ids
}

// role is what text k is read as.
func (x *comparison) role(k int) Role {
	if k < x.firsts {
		return x.roles[0]
	}
	return x.roles[1]
}

// compare embeds each text once, whose embedding so is the same wherever it stands: pairs that are alike have equal similarities.
func (t Text) compare(ctx context.Context, e *Engine, roles [2]Role, a, b []string, cuts []int) ([][]float64, error) {
	if len(a) != len(b) {
		return nil, fmt.Errorf("%d texts and %d: pairs have one of each", len(a), len(b))
	}
	cuts, err := e.cuts(t.Fusion, cuts)
	if err != nil {
		return nil, err
	}
	weights := partWeights(t.Fusion, e.Model)
	if weights != nil { // before anything is embedded
		if err := checkWeights(weights); err != nil {
			return nil, err
		}
	}
	pairs, fresh := t.once(e.Model, roles, a, b)
	x := comparison{pairs: pairs, roles: roles, prompts: t.prompts()}
	for side, texts := range fresh {
		ids, err := t.tokens(ctx, roles[side], texts)
		if err != nil {
			return nil, err
		}
		if x.ids = append(x.ids, ids...); side == 0 {
			x.firsts = len(ids)
		}
	}
	var scores []float64
	if weights != nil {
		scores, err = x.byParts(ctx, e, weights)
	} else if e.Sparse() {
		scores, err = x.bySparse(ctx, e)
	} else {
		return x.byEmbeddings(ctx, e, cuts)
	}
	if err != nil || !e.first() {
		return nil, err
	}
	return slices.Repeat([][]float64{scores}, len(cuts)), nil // by what nothing is cut
}

// embed computes all embeddings.
func (x *comparison) embed(ctx context.Context, e *Engine, put func(k int, vec []float32)) error {
	if !weighs(e.Model, x.roles[0]) { // all at once
		prompts := make([]int32, len(x.ids))
		for k := range prompts {
			prompts[k] = int32(x.prompts[x.role(k)])
		}
		return e.EmbedPrompted(ctx, x.ids, prompts, put)
	}
	if err := e.EmbedAs(ctx, Query, 0, x.ids[:x.firsts], put); err != nil {
		return err
	}
	return e.Embed(ctx, x.ids[x.firsts:], func(k int, vec []float32) { put(x.firsts+k, vec) })
}

func (x *comparison) byEmbeddings(ctx context.Context, e *Engine, cuts []int) (all [][]float64, err error) {
	size := slices.Max(cuts)
	vecs := make([]float32, len(x.ids)*size)
	if err := x.embed(ctx, e, func(k int, vec []float32) { copy(vecs[k*size:(k+1)*size], vec) }); err != nil || !e.first() {
		return nil, err
	}
	compare := cosine
	if e.Model.Head.Dot {
		compare = evaluate.Product
	}
	for _, cut := range cuts {
		of := func(k int) []float32 { return vecs[k*size : k*size+cut] }
		out := make([]float64, len(x.pairs))
		for i, p := range x.pairs {
			out[i] = compare(of(p[0]), of(p[1]))
		}
		all = append(all, out)
	}
	return all, nil
}

func (x *comparison) bySparse(ctx context.Context, e *Engine) ([]float64, error) {
	vecs := make([]active, len(x.ids))
	if err := x.embed(ctx, e, func(k int, vec []float32) { vecs[k].ids, vecs[k].weights = Active(vec) }); err != nil || !e.first() {
		return nil, err
	}
	out := make([]float64, len(x.pairs))
	for i, p := range x.pairs {
		out[i] = vecs[p[0]].product(vecs[p[1]])
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

// cosine is 0 with an embedding of length 0.
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

// pairBlock is pairs that are scored together.
type pairBlock struct {
	pairs [][2]int // by their first texts
	fresh []int    // their texts that no block before has had
	stay  []int    // of those the ones that a later block has
	gone  []int    // all texts that none has any more
}

// pairBlocks are blocks of distinct pairs, by their first texts, whose fresh texts have so many tokens at most, or are of one pair. A text is fresh once,
// and gone behind the last of its pairs: what stays beside a block are the texts of pairs on both sides of its beginning.
func pairBlocks(pairs [][2]int, tokens []int, most int) (blocks []pairBlock) {
	pairs = slices.Clone(pairs)
	slices.SortFunc(pairs, func(p, q [2]int) int { return cmp.Or(cmp.Compare(p[0], q[0]), cmp.Compare(p[1], q[1])) })
	pairs = slices.Compact(pairs)
	last, had := make([]int, len(tokens)), make([]bool, len(tokens))
	for n, p := range pairs {
		last[p[0]], last[p[1]] = n, n
	}
	for from := 0; from < len(pairs); {
		var b pairBlock
		to, sum := from, 0
		for ; to < len(pairs); to++ {
			more := 0
			for _, k := range pairs[to] {
				if !had[k] {
					more += tokens[k]
				}
			}
			if to > from && sum+more > most {
				break
			}
			sum += more
			for _, k := range pairs[to] {
				if !had[k] {
					had[k], b.fresh = true, append(b.fresh, k)
				}
			}
		}
		b.pairs = pairs[from:to]
		for _, k := range b.fresh {
			if last[k] >= to {
				b.stay = append(b.stay, k)
			}
		}
		for n, p := range b.pairs {
			for side, k := range p {
				if last[k] == from+n && (side == 0 || k != p[0]) {
					b.gone = append(b.gone, k)
				}
			}
		}
		blocks, from = append(blocks, b), to
	}
	return blocks
}

// byParts scores pairs by the weighted parts of their texts. In memory are the parts of a block's texts, of blockTokens, and of those before it that a later
// pair has too: of pairs each with texts of its own that is none, of candidates the ones that several queries share.
func (x *comparison) byParts(ctx context.Context, e *Engine, weights map[string]float64) ([]float64, error) {
	h := e.Model.Config.Tokens
	tokens := make([]int, len(x.ids))
	for k, ids := range x.ids {
		tokens[k] = len(ids)
		if x.role(k) == Query {
			tokens[k] = max(tokens[k], h.Query.Length) // which fill it up
		}
	}
	parts, scores := make([]*Parts, len(tokens)), map[[2]int]float64{}
	for _, b := range pairBlocks(x.pairs, tokens, blockTokens) {
		for _, role := range []Role{Query, Document} {
			if err := x.embedParts(ctx, e, b.fresh, role, weights, parts); err != nil {
				return nil, err
			}
		}
		if !e.first() {
			continue
		}
		if err := scoreBlock(ctx, e, b.pairs, parts, weights, scores); err != nil {
			return nil, err
		}
		for _, k := range b.gone {
			parts[k] = nil
		}
		for _, k := range b.stay { // alone, as it would hold the memory of all that were embedded with it
			parts[k] = joined(parts[k : k+1])
		}
	}
	if !e.first() {
		return nil, nil
	}
	out := make([]float64, len(x.pairs))
	for i, p := range x.pairs {
		out[i] = scores[p]
	}
	return out, nil
}

// embedParts computes parts of those of some texts that are read as a role's.
func (x *comparison) embedParts(ctx context.Context, e *Engine, some []int, role Role, weights map[string]float64, parts []*Parts) error {
	var ids [][]int32
	var of []int
	for _, k := range some {
		if x.role(k) == role {
			ids, of = append(ids, x.ids[k]), append(of, k)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	embed := e.Parts
	if role == Query {
		embed = e.QueryParts
	}
	all, err := embed(ctx, ids, weights)
	if err != nil || !e.first() {
		return err
	}
	for i, k := range of {
		parts[k] = all.one(i)
	}
	return nil
}

// scoreBlock adds the scores of pairs, which are by their first texts, to scores.
func scoreBlock(ctx context.Context, e *Engine, pairs [][2]int, parts []*Parts, weights map[string]float64, scores map[[2]int]float64) error {
	ctx, give, err := e.Turns.Take(ctx)
	if err != nil {
		return err
	}
	defer give()
	for len(pairs) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var docs []*Parts // of one query, as many as are scored at once
		for tokens := 0; len(docs) < len(pairs) && pairs[len(docs)][0] == pairs[0][0]; {
			d := parts[pairs[len(docs)][1]]
			if tokens += len(d.IDs); len(docs) > 0 && tokens > partTokens {
				break
			}
			docs = append(docs, d)
		}
		if err := fuse(e.Stream, parts[pairs[0][0]], joined(docs), [2]int{0, 1}, [2]int{0, len(docs)}, weights, func(_ int, of []float32) error {
			for i, v := range of {
				scores[pairs[i]] = float64(v)
			}
			return nil
		}); err != nil {
			return err
		}
		pairs = pairs[len(docs):]
	}
	return nil
}

// one is text i alone, in the same memory.
func (p *Parts) one(i int) *Parts {
	lo, hi := p.Cu[i], p.Cu[i+1]
	o := &Parts{Size: p.Size, VectorSize: p.VectorSize, Cu: []int32{0, hi - lo}, IDs: p.IDs[lo:hi], special: p.special, sums: p.sums}
	if p.Dense != nil {
		o.Dense, o.Weights = p.Dense[i*p.Size:(i+1)*p.Size], p.Weights[lo:hi]
	}
	if p.Vectors != nil {
		o.Vectors = p.TokenVectors(i)
	}
	return o
}

// joined are some texts, in memory of their own.
func joined(some []*Parts) *Parts {
	n := 0
	for _, p := range some {
		n += len(p.IDs)
	}
	first := some[0]
	all := &Parts{Size: first.Size, VectorSize: first.VectorSize, Cu: []int32{0}, IDs: make([]int32, 0, n), special: first.special, sums: first.sums}
	if first.Dense != nil {
		all.Dense, all.Weights = make([]float32, 0, len(some)*first.Size), make([]float32, 0, n)
	}
	if first.Vectors != nil {
		all.Vectors = make([]float32, 0, n*first.VectorSize)
	}
	for _, p := range some {
		all.Dense, all.IDs, all.Weights, all.Vectors = append(all.Dense, p.Dense...), append(all.IDs, p.IDs...), append(all.Weights, p.Weights...), append(all.Vectors, p.Vectors...)
		all.Cu = append(all.Cu, int32(len(all.IDs)))
	}
	return all
}

// partWeights are the weights of the parts that texts are compared by; nil: by embeddings.
func partWeights(fusion map[string]float64, m *transformer.Model) map[string]float64 {
	if fusion == nil && vectorsOnly(m) {
		return onlyVectors
	}
	return fusion
}

// partMemory is how many bytes of the device the scores of some queries with documents take, besides the model and its passes, by the parts that weights
// are of, where texts have so many tokens at most.
func partMemory(m *transformer.Model, weights map[string]float64, queries, docs, query, document int) int64 {
	tokens := max(partTokens, document)
	size := loss.Size{
		Rows: queries, Sequences: queries + min(tokens, docs), Dim: m.EmbeddingSize(), Normalized: true, GPU: m.Device.Info().Threads == 0,
		Tokens: queries*query + min(tokens, docs*document), Longest: max(query, document),
	}
	bytes := int64(loss.FusedParts(weights).Memory(size))
	for _, p := range m.Parts() {
		if p.Name == loss.VectorsPart && weights[p.Name] == 0 { // then they are left out
			continue
		}
		rows := size.Sequences
		if p.Tokens {
			rows = size.Tokens
		}
		bytes += 4 * int64(rows) * int64(p.Size)
	}
	return bytes
}

// Memory is how many bytes of the device the scores of pairs with these first texts take, besides the model and its passes, where texts have so many tokens
// at most. Embeddings are compared in the host's memory.
func (t Text) Memory(m *transformer.Model, first []string, query, document int) int64 {
	weights := partWeights(t.Fusion, m)
	if weights == nil {
		return 0
	}
	most, of := 0, map[string]int{}
	for _, text := range first {
		of[text]++
		most = max(most, of[text])
	}
	return partMemory(m, weights, 1, most, query, max(query, document))
}
