package gpustage

// Bagger is a stream that reads a table's rows where they lie: what static embeddings are, a row for each token and their mean, then takes no
// memory for a row per token, and writes none. Where there is no such stream, Gather, Pool and their backward do the same.
type Bagger interface {
	// Bag is y[b] = the mean of table[index[t]] over the tokens t of sequence b, zero without any; y[B, C], table[V, C], index i32 [1, T].
	Bag(y, table, index Tensor, s Sequences)
	// BagBackward is dTable[index[t]] += dy[b] / the tokens of b, in the order of t. index may be of the first tokens alone: of the others
	// nothing is added.
	BagBackward(dTable, dy, index Tensor, s Sequences)
}

// Bags tells whether d's streams are Baggers.
func Bags(d Device) bool {
	b, ok := d.(interface{ Bags() bool })
	return ok && b.Bags()
}
