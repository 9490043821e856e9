package evaluate

import "slices"

// fuseConstant is reciprocal rank fusion's k (Cormack, Clarke and Büttcher, SIGIR 2009): how little the first places differ.
const fuseConstant = 60

// Fuse joins runs by reciprocal rank fusion: a document's score is the sum over runs of 1/(60 + its rank), from 1. Scores of different
// kinds need not be compared so. Within a run, ties are broken by tie.
func Fuse(tie TieOrder, runs ...Run) Run {
	queries := 0
	for _, r := range runs {
		queries = max(queries, len(r))
	}
	out := make(Run, queries)
	for q := range out {
		sums := map[int32]float32{}
		var order []int32
		for _, r := range runs {
			if q >= len(r) {
				continue
			}
			hits := slices.Clone(r[q])
			sortHits(hits, tie)
			for i, h := range hits {
				if _, ok := sums[h.Doc]; !ok {
					order = append(order, h.Doc)
				}
				sums[h.Doc] += 1 / float32(fuseConstant+i+1)
			}
		}
		for _, d := range order {
			out[q] = append(out[q], Hit{d, sums[d]})
		}
		sortHits(out[q], tie)
	}
	return out
}
