package gpustage

// Positions are what scores of attention see of how far a key is from its query (DeBERTa: He et al., arXiv 2006.03654, "disentangled"): for query i
// and key j of a sequence a score is
//
//	Scale * (<q_i, k_j> + <q_i, Keys_r> + <k_j, Queries_r>),  r = Rows[N-1 + j-i]
//
// before a soft cap. There are as many heads of keys as of queries, and no Bias.
type Positions struct {
	Keys    Tensor // [R, H*D]; absent without the second product
	Queries Tensor // [R, H*D]; absent without the third
	Rows    Tensor // i32 [1, 2N-1], each at least 0 and less than R; N is no less than the longest sequence

	// DKeys and DQueries, [R, H*D] of lse's type, are where the backward adds their gradients (+=), in an order of its own that is always the same.
	// Either may be absent.
	DKeys, DQueries Tensor
}

// None tells that scores see no positions.
func (p Positions) None() bool { return p.Rows.IsZero() }

// Count is R.
func (p Positions) Count() int { return max(p.Keys.Rows, p.Queries.Rows) }

// Reach is N.
func (p Positions) Reach() int { return (p.Rows.Cols + 1) / 2 }

func (c *checker) positions(p Positions, q, lse Tensor, o Attention) {
	if p.None() {
		if !p.Keys.IsZero() || !p.Queries.IsZero() || !p.DKeys.IsZero() || !p.DQueries.IsZero() {
			c.fail("positions without their Rows")
		}
		return
	}
	if p.Keys.IsZero() && p.Queries.IsZero() {
		c.fail("positions with neither Keys nor Queries")
	}
	if o.KVHeads != 0 && o.KVHeads != o.Heads {
		c.fail("positions with %d heads and %d key-value heads, want as many", o.Heads, o.KVHeads)
	}
	if !o.Bias.IsZero() {
		c.fail("Bias and positions exclude each other")
	}
	if p.Rows.Cols%2 == 0 || p.Reach() < o.Seqs.MaxLen {
		c.fail("the positions' Rows are %v, want an odd number of at least %d for sequences of %d tokens", p.Rows, 2*o.Seqs.MaxLen-1, o.Seqs.MaxLen)
	}
	c.shape("the positions' Rows", p.Rows, I32, 1, p.Rows.Cols)
	c.optional("the positions' Keys", p.Keys, q.DType, p.Count(), q.Cols)
	c.optional("the positions' Queries", p.Queries, q.DType, p.Count(), q.Cols)
	c.optional("the positions' DKeys", p.DKeys, lse.DType, p.Count(), q.Cols)
	c.optional("the positions' DQueries", p.DQueries, lse.DType, p.Count(), q.Cols)
	if p.Keys.IsZero() && !p.DKeys.IsZero() || p.Queries.IsZero() && !p.DQueries.IsZero() {
		c.fail("a gradient of positions without what it is of")
	}
}
