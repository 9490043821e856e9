package evaluate

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Judgment is one document's relevance to a query.
type Judgment struct {
	Doc       int32 // its number
	Relevance int32 // 1 and above: relevant, and its gain in nDCG; 0 and below: judged as not relevant
}

// Qrels are relevance judgments over numbered queries and documents.
type Qrels struct {
	Queries, Docs *IDs
	Ascending     bool // documents with equal scores stand in the order of their names, not in trec_eval's reverse one

	judged  [][]Judgment // [query], each sorted by document
	queries int          // of the query set; those with higher numbers are known to the judgments alone
	docs    int          // of the corpus; the same
	total   int
}

// NewQrels starts empty judgments over a query set and a corpus. Both lists grow when Add meets an id that is not in
// them, behind the ids they have, so they must be two lists even where queries and documents share their ids: of one list Add is an error.
func NewQrels(queries, docs *IDs) *Qrels {
	return &Qrels{Queries: queries, Docs: docs, judged: make([][]Judgment, queries.Len()), queries: queries.Len(), docs: docs.Len()}
}

// Add records a judgment. Judging a document twice for one query is an error, as in trec_eval: which one counts would
// depend on the order of lines. A query or document that is not in the query set or corpus is kept, since it belongs to
// the definition of the measures, and counted (see Unknown).
func (q *Qrels) Add(query, doc string, relevance int) error {
	if relevance < math.MinInt32 || relevance > math.MaxInt32 {
		return fmt.Errorf("query %q, document %q: a relevance of %d does not fit 32 bits", query, doc, relevance)
	}
	if q.Queries == q.Docs {
		return errors.New("one list of ids is both the queries' and the documents', and would take those of either for the other's: each needs its own")
	}
	i, d := q.Queries.add(query), int32(q.Docs.add(doc))
	for len(q.judged) <= i {
		q.judged = append(q.judged, nil)
	}
	at, found := find(q.judged[i], d)
	if found {
		return fmt.Errorf("query %q: document %q is judged twice, with %d and %d: keep one of them",
			query, doc, q.judged[i][at].Relevance, relevance)
	}
	q.judged[i] = slices.Insert(q.judged[i], at, Judgment{d, int32(relevance)})
	q.total++
	return nil
}

// TieOrder is that of its documents with equal scores.
func (q *Qrels) TieOrder() TieOrder {
	tie := q.Docs.TieOrder()
	if q.Ascending {
		for i, place := range tie {
			tie[i] = int32(len(tie)) - 1 - place
		}
	}
	return tie
}

// Len is how many judgments there are.
func (q *Qrels) Len() int { return q.total }

// Of is query's judgments, ordered by document. The slice belongs to q.
func (q *Qrels) Of(query int) []Judgment {
	if query >= len(q.judged) {
		return nil
	}
	return q.judged[query]
}

// Unknown counts the judged queries that are not in the query set and the judged documents that are not in the corpus.
// Many of them mean files that don't belong together.
func (q *Qrels) Unknown() (queries, docs int) {
	return q.Queries.Len() - q.queries, q.Docs.Len() - q.docs
}

func find(judged []Judgment, doc int32) (int, bool) {
	return slices.BinarySearchFunc(judged, doc, func(j Judgment, doc int32) int { return int(j.Doc) - int(doc) })
}
