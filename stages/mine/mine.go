// Package mine finds hard negatives: documents of a corpus that a model takes to be near a query and that are not its positives.
//
// # The story
//
// [evaluate.Search] is exact: every query's embedding against every document's, block by block, with the best of each query kept. Then
// [Options] choose among each query's candidates, in the order and with the meaning of sentence-transformers' mine_hard_negatives:
//
//  1. the query's positives go, wherever they rank, and so do documents with the text of one or of the query itself, but for surrounding whitespace:
//     corpora of questions have each query as a document, which is nearer to it than any other (FlagEmbedding's hn_mine leaves out the query's text
//     too, sentence-transformers the positives alone);
//  2. so do candidates above its lowest positive's score less a margin, which may be positives that nobody has marked, and those
//     outside of the score bounds;
//  3. of what is left, ranks RangeMin to RangeMax-1 are candidates: the best of them are taken, or a random sample.
//
// FlagEmbedding's range_for_sampling 10-210 is RangeMin 10, RangeMax 210 and Sample. A query that keeps fewer candidates than Negatives
// has too few: nothing is filled up, and no document stands for one that is missing; it is left out unless [Options.Fewest] lets it stay,
// with a shorter list. With [Options.Rescore], a cross-encoder for example, another model scores the candidates and the positives before
// step 1, and ranks, margins and bounds are by its scores. How many candidates are looked at depends on the
// options as in the peer (see [Options.Depth]): what lies deeper is not found.
//
// Package embedder's Embedder.Mine embeds the texts as well. [Distillation] writes a teacher's scores of rows, such as those that were mined.
package mine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/stages/evaluate"
)

// Options choose negatives.
type Options struct {
	Negatives int // of each query
	RangeMin  int // so many of the best candidates are skipped
	RangeMax  int // candidates from there on are too easy; 0: as many as the other options need

	MinScore, MaxScore             *float64 // of candidates
	AbsoluteMargin, RelativeMargin *float64 // below the lowest positive's score p: by so much, or by so much times |p|

	// Rescore scores documents[i] with queries[i], in place of embeddings. It needs a margin or a bound, without which the peer
	// rescores nothing. nil: no other model scores.
	Rescore func(ctx context.Context, queries, documents []string) ([]float32, error)

	Fewest int  // pairs with fewer negatives are left out; 0: Negatives
	Sample bool // draw at random among the candidates instead of taking the best
	Seed   uint64
}

// Check finds options that make no sense.
func (o Options) Check() error {
	switch {
	case o.Negatives < 1:
		return fmt.Errorf("%d negatives, want at least 1", o.Negatives)
	case max(o.Negatives, o.RangeMin, o.RangeMax) > math.MaxInt32:
		return fmt.Errorf("%d negatives of the range %d to %d: want numbers of at most %d, which no corpus has more documents than", o.Negatives, o.RangeMin, o.RangeMax, math.MaxInt32)
	case o.RangeMin < 0:
		return fmt.Errorf("the range begins at %d, want at least 0", o.RangeMin)
	case o.RangeMax != 0 && o.RangeMax-o.RangeMin < o.Negatives:
		return fmt.Errorf("the range %d to %d has no room for %d negatives", o.RangeMin, o.RangeMax, o.Negatives)
	}
	if o.Fewest < 0 || o.Fewest > o.Negatives {
		return fmt.Errorf("at least %d negatives of %d", o.Fewest, o.Negatives)
	}
	if o.Rescore != nil && !o.bounded() && o.MinScore == nil {
		return errors.New("other scores matter only with a margin, or with a lowest or highest score")
	}
	for _, v := range []*float64{o.MinScore, o.MaxScore, o.AbsoluteMargin, o.RelativeMargin} {
		if v != nil && *v-*v != 0 {
			return fmt.Errorf("a score or margin of %v", *v)
		}
	}
	return nil
}

// bounded tells whether candidates may be too near.
func (o Options) bounded() bool {
	return o.AbsoluteMargin != nil || o.RelativeMargin != nil || o.MaxScore != nil
}

// rangeMax is RangeMax, or what the peer makes of the other options.
func (o Options) rangeMax(positives int) int {
	switch {
	case o.RangeMax > 0:
		return o.RangeMax
	case o.bounded() || o.Rescore != nil && o.MinScore != nil:
		return o.RangeMin + 10*o.Negatives + positives
	}
	return o.RangeMin + o.Negatives + positives
}

// Depth is how many of the nearest documents have to be known of each query, where none has more than so many positives.
func (o Options) Depth(positives int) int { return o.rangeMax(positives) + positives }

// Choose chooses among a query's nearest documents, best first, given its positives' places in the corpus and their lowest score. most
// is how many positives any query has. Documents that are the same as a positive or the query are none. It returns fewer than Negatives if there are
// no more.
func (o Options) Choose(query int, hits []evaluate.Hit, positives, same []int32, lowest float32, most int) []evaluate.Hit {
	var kept []evaluate.Hit
	low := float64(lowest)
	for _, h := range hits[:min(len(hits), o.Depth(most)+len(same))] {
		s := float64(h.Score)
		switch {
		case slices.Contains(positives, h.Doc), slices.Contains(same, h.Doc):
		case o.AbsoluteMargin != nil && s+*o.AbsoluteMargin > low:
		case o.RelativeMargin != nil && s > low-math.Abs(low)**o.RelativeMargin:
		case o.MaxScore != nil && s > *o.MaxScore:
		case o.MinScore != nil && s < *o.MinScore:
		default:
			kept = append(kept, h)
		}
	}
	kept = kept[:min(len(kept), o.rangeMax(most))]
	kept = kept[min(len(kept), o.RangeMin):]
	if !o.Sample || len(kept) <= o.Negatives {
		return kept[:min(len(kept), o.Negatives)]
	}
	rng := rand.New(rand.NewPCG(o.Seed, uint64(query)))
	places := rng.Perm(len(kept))[:o.Negatives]
	slices.Sort(places)
	var out []evaluate.Hit
	for _, p := range places {
		out = append(out, kept[p])
	}
	return out
}

// Pairs are the queries and positives of a data set, with the corpus that negatives come from: distinct texts.
type Pairs struct {
	Queries []string
	Corpus  []string
	Of      [][]int32 // of each query: its positives' places in Corpus
	Same    [][]int32 // and those of other documents with the text of one or of the query, but for surrounding whitespace
	Rows    [][2]int  // of each pair that was given: its query, and its positive's place
	Most    int       // pairs that were given of a query at most: one that comes twice counts twice, as the peer counts
}

// Pair numbers texts: corpus first, then the positives that it lacks, as the peer does. A pair that comes twice is one.
// It panics unless there are as many positives as queries.
func Pair(queries, positives, corpus []string) Pairs {
	if len(queries) != len(positives) {
		panic(fmt.Sprintf("mine.Pair: %d queries and %d positives: a pair is one of each", len(queries), len(positives)))
	}
	var p Pairs
	docs, asked := map[string]int{}, map[string]int{}
	var given []int // pairs of each query
	for _, text := range append(slices.Clone(corpus), positives...) {
		if _, ok := docs[text]; !ok {
			docs[text] = len(p.Corpus)
			p.Corpus = append(p.Corpus, text)
		}
	}
	for i, q := range queries {
		k, ok := asked[q]
		if !ok {
			k = len(p.Queries)
			asked[q] = k
			p.Queries, p.Of, given = append(p.Queries, q), append(p.Of, nil), append(given, 0)
		}
		given[k]++
		p.Most = max(p.Most, given[k])
		d := docs[positives[i]]
		if !slices.Contains(p.Of[k], int32(d)) {
			p.Of[k] = append(p.Of[k], int32(d))
			p.Rows = append(p.Rows, [2]int{k, d})
		}
	}
	bare := map[string][]int32{}
	for d, text := range p.Corpus {
		text = strings.TrimSpace(text)
		bare[text] = append(bare[text], int32(d))
	}
	p.Same = make([][]int32, len(p.Queries))
	for k, q := range p.Queries {
		own := []string{q}
		for _, d := range p.Of[k] {
			own = append(own, p.Corpus[d])
		}
		for _, text := range own {
			for _, d := range bare[strings.TrimSpace(text)] {
				if !slices.Contains(p.Of[k], d) && !slices.Contains(p.Same[k], d) {
					p.Same[k] = append(p.Same[k], d)
				}
			}
		}
	}
	return p
}

// Depth is how many of the nearest documents have to be known of each query.
func (p Pairs) Depth(o Options) int {
	same := 0
	for _, s := range p.Same {
		same = max(same, len(s))
	}
	return o.Depth(p.Most) + same
}

// Row is a pair with its negatives.
type Row struct {
	Query, Positive int // of Pairs.Queries and Pairs.Corpus
	Score           float32
	Negatives       []evaluate.Hit // Options.Negatives of them, or as few as Options.Fewest, best first
}

// Mine chooses negatives for each pair, given both sides' embeddings. short is how many pairs got too few and are left out.
func (p Pairs) Mine(ctx context.Context, d gpustage.Device, o Options, queries, corpus []float32, dim int, progress func(done, total int64)) (rows []Row, short int, err error) {
	if err := o.Check(); err != nil {
		return nil, 0, err
	}
	s, err := d.OpenStream()
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	run, err := evaluate.Search(ctx, s, queries, corpus, dim, p.Depth(o), nil, progress)
	if err != nil {
		return nil, 0, err
	}
	return p.Choose(ctx, o, run, func(query, doc int) float32 {
		return float32(evaluate.Product(queries[query*dim:(query+1)*dim], corpus[doc*dim:(doc+1)*dim]))
	})
}

// Choose is Mine where a search of any kind has found the p.Depth(o) best documents of each query, and score is that of a pair.
func (p Pairs) Choose(ctx context.Context, o Options, run evaluate.Run, score func(query, doc int) float32) (rows []Row, short int, err error) {
	scores := make([]float32, len(p.Rows)) // of the positives
	for i, r := range p.Rows {
		scores[i] = score(r[0], r[1])
	}
	if o.Rescore != nil {
		if err := p.rescore(ctx, o, run, scores); err != nil {
			return nil, 0, err
		}
	}
	lowest := make([]float32, len(p.Queries))
	for q := range lowest {
		lowest[q] = float32(math.Inf(1))
	}
	for i, r := range p.Rows {
		lowest[r[0]] = min(lowest[r[0]], scores[i])
	}
	chosen := make([][]evaluate.Hit, len(p.Queries))
	for q := range p.Queries {
		chosen[q] = o.Choose(q, run[q], p.Of[q], p.Same[q], lowest[q], p.Most)
	}
	fewest := cmp.Or(o.Fewest, o.Negatives)
	for i, r := range p.Rows {
		if len(chosen[r[0]]) < fewest {
			short++
			continue
		}
		rows = append(rows, Row{r[0], r[1], scores[i], chosen[r[0]]})
	}
	return rows, short, nil
}

// rescored is Rescore, whose scores must be one for each pair, and numbers: NaN is in no order.
func (o Options) rescored(ctx context.Context, queries, documents []string) ([]float32, error) {
	scores, err := o.Rescore(ctx, queries, documents)
	if err != nil {
		return nil, err
	}
	if len(scores) != len(queries) {
		return nil, fmt.Errorf("Options.Rescore gave %d scores for %d pairs: want one for each", len(scores), len(queries))
	}
	for i, s := range scores {
		if s-s != 0 {
			return nil, fmt.Errorf("the other model's score of %.60q and %.60q is %v: its weights, or what it computes of them, are not finite", queries[i], documents[i], s)
		}
	}
	return scores, nil
}

// rescoreQueries is how many queries' candidates are scored at a time.
const rescoreQueries = 256

// rescore replaces the scores of all candidates, and of the positives, and ranks candidates by them.
func (p Pairs) rescore(ctx context.Context, o Options, run evaluate.Run, positives []float32) error {
	for from := 0; from < len(run); from += rescoreQueries {
		var queries, documents []string
		part := run[from:min(len(run), from+rescoreQueries)]
		for q, hits := range part {
			part[q] = hits[:min(len(hits), o.Depth(p.Most)+len(p.Same[from+q]))] // other queries may have more that are the same
			for _, h := range part[q] {
				queries, documents = append(queries, p.Queries[from+q]), append(documents, p.Corpus[h.Doc])
			}
		}
		scores, err := o.rescored(ctx, queries, documents)
		if err != nil {
			return err
		}
		for _, hits := range part {
			for i := range hits {
				hits[i].Score, scores = scores[0], scores[1:]
			}
			slices.SortStableFunc(hits, func(a, b evaluate.Hit) int { return cmp.Compare(b.Score, a.Score) })
		}
	}
	for from := 0; from < len(p.Rows); from += rescoreQueries {
		to := min(len(p.Rows), from+rescoreQueries)
		var queries, documents []string
		for _, r := range p.Rows[from:to] {
			queries, documents = append(queries, p.Queries[r[0]]), append(documents, p.Corpus[r[1]])
		}
		scores, err := o.rescored(ctx, queries, documents)
		if err != nil {
			return err
		}
		copy(positives[from:to], scores)
	}
	return nil
}
