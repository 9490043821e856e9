package evaluate

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// BM25 is an index for the ranking function that every embedding model is compared with, in Lucene's form:
//
//	score(q, d) = sum over the terms t of q:  idf(t) * tf / (tf + k1 * (1 - b + b * length(d) / mean length))
//	idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))
//
// with tf the occurrences of t in d, df the documents that have t, N all documents; a term that a query has twice counts
// twice. (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009; Kamphuis et al., Which BM25 Do You Mean?,
// 2020, whose "Lucene (accurate)" this is: lengths are exact rather than rounded to a byte.) A document that has none of
// a query's terms is not a result.
//
// The index holds one weight per term and document, computed once (as BM25S does, Lù 2024): a search adds up the weights
// of its terms. It may be searched from several goroutines.
type BM25 struct {
	terms    map[string]int32
	starts   []int // [terms+1]: where each term's postings begin
	postings []Hit // of each term, by document, with the term's weight in it
	docs     int
	tie      TieOrder
}

// BM25Options are BM25's two constants and the order of ties. When K1 and B are both 0 they are 1.2 and 0.75 (the
// defaults of Lucene, Elasticsearch and OpenSearch).
type BM25Options struct {
	K1  float64  // how slowly repetitions of a term stop to count, above 0
	B   float64  // how much long documents are held back: 0 not at all, 1 fully
	Tie TieOrder // IDs.TieOrder of the corpus, for figures that agree with trec_eval; nil: by the documents' numbers
}

// NewBM25 indexes a corpus; document i is docs[i]. The work is shared among the processor's cores and its result doesn't
// depend on how many there are. It returns ctx's error when cancelled.
func NewBM25(ctx context.Context, docs []string, o BM25Options) (*BM25, error) {
	if o.K1 == 0 && o.B == 0 {
		o.K1, o.B = 1.2, 0.75
	}
	if !(o.K1 > 0) || math.IsInf(o.K1, 0) || !(o.B >= 0 && o.B <= 1) {
		return nil, fmt.Errorf("BM25 with k1 = %v and b = %v: k1 must be above 0 and b from 0 to 1", o.K1, o.B)
	}
	if o.Tie != nil && len(o.Tie) < len(docs) {
		return nil, fmt.Errorf("BM25 over %d documents with an order of ties of %d", len(docs), len(o.Tie))
	}
	if len(docs) > math.MaxInt32 {
		return nil, fmt.Errorf("BM25 over %d documents: more than 32-bit document numbers can tell apart", len(docs))
	}
	shards := make([]shard, max(1, min(runtime.GOMAXPROCS(0), len(docs)/256)))
	lengths := make([]int32, len(docs))
	var wait sync.WaitGroup
	for i := range shards {
		from, to := i*len(docs)/len(shards), (i+1)*len(docs)/len(shards)
		wait.Go(func() { shards[i].count(ctx, docs, from, to, lengths) })
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	x := &BM25{terms: map[string]int32{}, docs: len(docs), tie: o.Tie}
	x.merge(shards, lengths, o)
	return x, nil
}

// shard is a stretch of the corpus, counted with its own numbering of terms.
type shard struct {
	names   []string
	df      []int32 // [names]
	entries []entry // by document
}

type entry struct{ term, doc, tf int32 }

func (s *shard) count(ctx context.Context, docs []string, from, to int, lengths []int32) {
	numbers := map[string]int32{}
	var place []int // of the document's entry for a term, if it is not before the document's first
	var buf []byte
	for doc := from; doc < to; doc++ {
		if doc%256 == 0 && ctx.Err() != nil {
			return
		}
		first := len(s.entries)
		buf = eachTerm(docs[doc], buf, func(term []byte) {
			lengths[doc]++
			n, ok := numbers[string(term)]
			if !ok {
				name := string(term)
				n = int32(len(s.names))
				numbers[name] = n
				s.names = append(s.names, name)
				s.df = append(s.df, 0)
				place = append(place, -1)
			}
			if place[n] < first {
				place[n] = len(s.entries)
				s.entries = append(s.entries, entry{n, int32(doc), 0})
				s.df[n]++
			}
			s.entries[place[n]].tf++
		})
	}
}

// merge makes one index of the shards. Taking them in the corpus's order numbers terms by first appearance and orders
// postings by document, just as one shard would.
func (x *BM25) merge(shards []shard, lengths []int32, o BM25Options) {
	var df []int
	global := make([][]int32, len(shards)) // [shard][its term]
	for i, s := range shards {
		global[i] = make([]int32, len(s.names))
		for local, name := range s.names {
			n, ok := x.terms[name]
			if !ok {
				n = int32(len(df))
				x.terms[name] = n
				df = append(df, 0)
			}
			df[n] += int(s.df[local])
			global[i][local] = n
		}
	}
	x.starts = make([]int, len(df)+1)
	for n, d := range df {
		x.starts[n+1] = x.starts[n] + d
	}
	total := 0.0
	for _, length := range lengths {
		total += float64(length)
	}
	norms := make([]float64, len(lengths))
	for i, length := range lengths {
		norms[i] = o.K1 * (1 - o.B + o.B*float64(length)/(total/float64(len(lengths))))
	}
	x.postings = make([]Hit, x.starts[len(df)])
	next := append([]int(nil), x.starts...)
	for i, s := range shards {
		for _, e := range s.entries {
			n := global[i][e.term]
			idf := math.Log1p((float64(x.docs-df[n]) + 0.5) / (float64(df[n]) + 0.5))
			tf := float64(e.tf)
			x.postings[next[n]] = Hit{e.doc, float32(idf * tf / (tf + norms[e.doc]))}
			next[n]++
		}
		shards[i] = shard{} // its memory is needed no longer
	}
}

// Search ranks the best k documents for each query, best first; a ranking is shorter when fewer documents have any of
// the query's terms. Queries are shared among the processor's cores. It returns ctx's error when cancelled.
func (x *BM25) Search(ctx context.Context, queries []string, k int) (Run, error) {
	if k < 1 {
		return nil, fmt.Errorf("BM25 search for the best %d documents: there must be 1 or more", k)
	}
	run := make(Run, len(queries))
	var next atomic.Int64
	var wait sync.WaitGroup
	for range max(1, min(runtime.GOMAXPROCS(0), len(queries))) {
		wait.Go(func() {
			s := searcher{index: x, scores: make([]float32, x.docs), wanted: map[int32]int{}}
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(queries) {
					return
				}
				run[i] = s.search(queries[i], k)
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return run, nil
}

// searcher is the scratch memory of one goroutine.
type searcher struct {
	index   *BM25
	scores  []float32 // [docs], 0 between searches
	touched []int32   // documents with a score
	order   []int32   // the query's terms by first appearance: one order of addition
	wanted  map[int32]int
	buf     []byte
	heap    []Hit
}

func (s *searcher) search(query string, k int) []Hit {
	x := s.index
	s.order, s.touched, s.heap = s.order[:0], s.touched[:0], s.heap[:0]
	clear(s.wanted)
	s.buf = eachTerm(query, s.buf, func(term []byte) {
		if n, ok := x.terms[string(term)]; ok {
			if s.wanted[n] == 0 {
				s.order = append(s.order, n)
			}
			s.wanted[n]++
		}
	})
	for _, n := range s.order {
		times := float32(s.wanted[n])
		for _, p := range x.postings[x.starts[n]:x.starts[n+1]] {
			if s.scores[p.Doc] == 0 { // every weight is above 0
				s.touched = append(s.touched, p.Doc)
			}
			s.scores[p.Doc] += times * p.Score
		}
	}
	for _, doc := range s.touched {
		s.heap = keep(s.heap, k, Hit{doc, s.scores[doc]}, x.tie)
		s.scores[doc] = 0
	}
	ranking := append(make([]Hit, 0, len(s.heap)), s.heap...)
	sortHits(ranking, x.tie)
	return ranking
}
