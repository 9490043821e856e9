package evaluate

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
)

// better says whether a comes before b in a ranking. It is a total order over different documents, which is what makes
// every selection here independent of the order in which documents arrive.
func better(a, b Hit, tie TieOrder) bool {
	if a.Score != b.Score {
		return a.Score > b.Score
	}
	return tie.of(a.Doc) < tie.of(b.Doc)
}

func sortHits(hits []Hit, tie TieOrder) {
	slices.SortFunc(hits, func(a, b Hit) int {
		if better(a, b, tie) {
			return -1
		}
		return 1
	})
}

// keep offers hit to heap, which holds the best k hits so far with the worst of them at the root.
func keep(heap []Hit, k int, hit Hit, tie TieOrder) []Hit {
	if len(heap) < k {
		heap = append(heap, hit)
		for i := len(heap) - 1; i > 0; {
			up := (i - 1) / 2
			if !better(heap[up], heap[i], tie) {
				break
			}
			heap[up], heap[i] = heap[i], heap[up]
			i = up
		}
		return heap
	}
	if !better(hit, heap[0], tie) {
		return heap
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= k {
			break
		}
		if down+1 < k && better(heap[down], heap[down+1], tie) {
			down++
		}
		if !better(hit, heap[down], tie) {
			break
		}
		heap[i] = heap[down]
		i = down
	}
	heap[i] = hit
	return heap
}

// TopK is exact search over embeddings, block by block: whoever computes scores of queries against a block of documents
// hands the block to Add and may then reuse its memory. It holds k hits per query, whatever the size of the corpus, and
// ends with the same hits in whatever order and sizes the blocks come.
type TopK struct {
	k    int
	tie  TieOrder
	best [][]Hit // [query], heaps with the worst at the root
}

// NewTopK starts a search for the best k documents of each query. Ties are broken by tie, which is IDs.TieOrder of the
// corpus for figures that agree with trec_eval, or nil for the order of the documents' numbers.
func NewTopK(queries, k int, tie TieOrder) (*TopK, error) {
	if k < 1 || queries < 0 {
		return nil, fmt.Errorf("a search for the best %d documents of %d queries: there must be 1 or more documents, and no fewer than 0 queries", k, queries)
	}
	return &TopK{k: k, tie: tie, best: make([][]Hit, queries)}, nil
}

// Add takes a block of scores [rows, docs], row-major: those of queries firstQuery, firstQuery+1, ... against documents
// firstDoc ... firstDoc+docs-1. Each pair of query and document may come once. Rows are shared among the processor's
// cores; calls of Add must not overlap. A score that is NaN is an error that names its place; after
// an error the search is of no more use.
func (t *TopK) Add(firstQuery, firstDoc int, scores []float32, docs int) error {
	if docs < 1 || len(scores)%docs != 0 {
		return fmt.Errorf("a block of %d scores can't be rows of %d documents", len(scores), docs)
	}
	rows := len(scores) / docs
	if firstQuery < 0 || firstQuery+rows > len(t.best) {
		return fmt.Errorf("a block of scores is for queries %d to %d, but there are %d", firstQuery, firstQuery+rows-1, len(t.best))
	}
	corpus := math.MaxInt32
	if t.tie != nil {
		corpus = len(t.tie)
	}
	if firstDoc < 0 || firstDoc > corpus-docs {
		return fmt.Errorf("a block of scores is for documents %d to %d, but there are %d", firstDoc, firstDoc+docs-1, corpus)
	}
	const worthwhile = 1 << 16 // scores per goroutine: about 80 us of work
	workers := max(1, min(runtime.GOMAXPROCS(0), rows, len(scores)/worthwhile))
	errs := make([]error, workers)
	var wait sync.WaitGroup
	for w := range workers {
		work := func() {
			for row := w * rows / workers; row < (w+1)*rows/workers && errs[w] == nil; row++ {
				errs[w] = t.addRow(firstQuery+row, firstDoc, scores[row*docs:(row+1)*docs])
			}
		}
		if workers == 1 {
			work()
		} else {
			wait.Go(work)
		}
	}
	wait.Wait()
	for _, err := range errs { // the first in the order of rows, whoever was faster
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *TopK) addRow(query, firstDoc int, scores []float32) error {
	heap := t.best[query]
	if heap == nil {
		heap = make([]Hit, 0, min(t.k, len(scores)))
	}
	i := 0
	for i < len(scores) {
		if len(heap) == t.k {
			// Most scores of a large corpus are below the worst that is kept: that takes one comparison.
			if i += below(scores[i:], heap[0].Score); i == len(scores) {
				break
			}
		}
		if s := scores[i]; s != s {
			return fmt.Errorf("the score of query %d and document %d is NaN: look for NaN in the embeddings", query, firstDoc+i)
		}
		heap = keep(heap, t.k, Hit{int32(firstDoc + i), scores[i]}, t.tie)
		i++
	}
	t.best[query] = heap
	return nil
}

// below is how many scores from the first on are below a limit. NaN is below nothing.
func below(scores []float32, limit float32) (n int) {
	rest := scores
	for ; len(rest) >= 8; rest = rest[8:] { // without bounds checks
		x := (*[8]float32)(rest)
		if !(x[0] < limit && x[1] < limit && x[2] < limit && x[3] < limit && x[4] < limit && x[5] < limit && x[6] < limit && x[7] < limit) {
			break
		}
	}
	n = len(scores) - len(rest)
	for n < len(scores) && scores[n] < limit {
		n++
	}
	return n
}

// Run is the best documents of each query so far, best first.
func (t *TopK) Run() Run {
	run := make(Run, len(t.best))
	for query, heap := range t.best {
		run[query] = slices.Clone(heap)
		sortHits(run[query], t.tie)
	}
	return run
}
