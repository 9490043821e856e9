package loss

// Lexemes are a text's tokens whose lexical weights count, in the order in which their ids come first: of each id the token with the
// largest weight, the first of several, where that is more than 0. Ids in skip, special tokens, have none.
func Lexemes[T float32 | float64](ids []int32, weights []T, skip map[int32]bool) (tokens []int) {
	at := make(map[int32]int, len(ids))
	for i, id := range ids {
		if w := weights[i]; w > 0 && !skip[id] {
			if k, ok := at[id]; !ok {
				at[id] = len(tokens)
				tokens = append(tokens, i)
			} else if w > weights[tokens[k]] {
				tokens[k] = i
			}
		}
	}
	return tokens
}

type lexeme struct {
	id, row int32
	weight  float64
}

// lexical is the score of lexical weights, the sum of w_q w_d over the token ids that a query and a document share, of all pairs: by lists of
// the documents that have a token, as a search engine keeps them. Memory is linear in tokens, whatever the vocabulary; time is the
// number of pairs of equal tokens.
type lexical struct {
	queries  [][]lexeme
	postings map[int32][]posting
	d        []float64 // [T'] the gradient of each row's weight
}

type posting struct {
	doc, row int32
	weight   float64
}

// newLexical takes queries lo to hi-1 of a batch of rows, and all documents.
func newLexical(p *Part, ids []int32, weights []float64, rows, lo, hi int, special []int32) *lexical {
	skip := map[int32]bool{}
	for _, id := range special {
		skip[id] = true
	}
	of := func(n int) (out []lexeme) {
		from, to := p.Cu[n], p.Cu[n+1]
		for _, i := range Lexemes(ids[from:to], weights[from:to], skip) {
			row := from + int32(i)
			out = append(out, lexeme{ids[row], row, weights[row]})
		}
		return out
	}
	x := &lexical{postings: map[int32][]posting{}, d: make([]float64, len(weights)), queries: make([][]lexeme, hi-lo)}
	wanted := map[int32]bool{}
	for i := range x.queries {
		x.queries[i] = of(lo + i)
		for _, l := range x.queries[i] {
			wanted[l.id] = true
		}
	}
	for n := rows; n < len(p.Cu)-1; n++ {
		for _, l := range of(n) {
			if wanted[l.id] {
				x.postings[l.id] = append(x.postings[l.id], posting{int32(n - rows), l.row, l.weight})
			}
		}
	}
	return x
}

// scores adds the i-th query's to out [documents].
func (x *lexical) scores(i int, out []float64) {
	for _, l := range x.queries[i] {
		for _, p := range x.postings[l.id] {
			out[p.doc] += l.weight * p.weight
		}
	}
}

// backward adds the gradient of weights, given that of the i-th query's scores.
func (x *lexical) backward(i int, d []float64) {
	for _, l := range x.queries[i] {
		sum := 0.0
		for _, p := range x.postings[l.id] {
			sum += d[p.doc] * p.weight
			x.d[p.row] += d[p.doc] * l.weight
		}
		x.d[l.row] += sum
	}
}
