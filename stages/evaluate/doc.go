// Package evaluate measures what a trained model is worth: retrieval metrics, correlation for semantic textual
// similarity, how well pairs and triplets are told apart, and BM25 as the yardstick beside them.
//
// # Retrieval, from scores to a figure
//
//  1. IDs number the corpus's and the queries' ids: everything below works on dense ints.
//  2. Qrels hold who is relevant to what: a query, a document, a relevance.
//  3. A Run holds a ranked list per query. TopK makes one from blocks of scores, which a matrix product of embeddings
//     computed elsewhere; BM25 makes one from the texts alone.
//  4. Evaluate turns Run and Qrels into a Result: per query, in the mean, as a table, as JSON.
//
// A reranker is measured in the same way, by a Run that holds each query's candidates with the reranker's scores.
//
// # Whose definitions
//
// The values are those of trec_eval (and of pytrec_eval, which BEIR and MTEB call), to the last few bits, and the tests
// compare with it. What that means where definitions differ between programs:
//
//   - A score is a float32, as in pytrec_eval and trec_eval 9. (trec_eval 10 reads doubles: the same for our rankings.)
//   - nDCG has linear gain: a document of relevance r at rank i adds r / log2(i + 1). The ideal ranking holds all judged
//     documents of the query, found or not. It is trec_eval's ndcg_cut.
//   - A relevance of 1 or more is relevant; 0 and below are judged and not relevant.
//   - Recall and MAP divide by all relevant documents of the query, also when a cut-off makes that many unreachable.
//     Precision@k divides by k, also when fewer were returned.
//   - A query without any judged document says nothing about a model: it is left out, and counted in Result.Unjudged.
//   - A judged query that has no relevant document, or whose ranking is empty or missing, counts as 0: saying nothing
//     must not pay. (trec_eval does the second with -c; pytrec_eval's users get it by giving every query a ranking.)
//   - A document that is judged but not in the corpus stays judged: recall can't reach it, as with trec_eval.
//
// # Ties
//
// Documents with equal scores are common: BM25, duplicated texts, bf16. trec_eval ignores the order in which a run lists
// documents; it sorts them by score, descending, then by document id, descending, compared byte by byte ("9" comes
// before "10", which comes before "1"). So does this package, and so the cut at the k-th document falls where trec_eval
// would have made it. IDs.TieOrder is that order, for TopK and BM25. No result depends on the order of blocks, on
// threads or on the order of a file's lines.
package evaluate
