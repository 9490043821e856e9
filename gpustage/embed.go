package gpustage

// Embed describes the first row of activations of each token: rows of tables, normalized. Positions and Kinds may be absent.
type Embed struct {
	Words, Positions, Kinds Lookup
	Scale                   float64 // of Words; 0 means 1
	Gamma, Beta             Tensor  // [1, C]: the layer norm's; without Gamma there is none, and Beta may be absent
	Eps                     float64
	Dropout                 Dropout
	Operand                 Tensor // [T, C], BF16: a copy of y, on a device that TakesBF16; may be absent
}

// Lookup is a row of a table for each token.
type Lookup struct {
	Table Tensor // [V, C]
	Index Tensor // i32 [1, T]
}

// Steps is the definition: Embed as other ops, for devices that do not fuse them.
func (o Embed) Steps(s Ops, y, sum, mean, rstd Tensor) {
	to := sum
	if o.Gamma.IsZero() {
		to = y
	}
	s.Gather(to, o.Words.Table, o.Words.Index, false)
	if o.Scale != 0 {
		s.Scale(to, to, o.Scale)
	}
	for _, l := range []Lookup{o.Positions, o.Kinds} {
		if !l.Table.IsZero() {
			s.Gather(to, l.Table, l.Index, true)
		}
	}
	if !o.Gamma.IsZero() {
		s.LayerNorm(y, mean, rstd, sum, o.Gamma, o.Beta, o.Eps)
	}
	if o.Dropout.Active() {
		s.Dropout(y, y, Tensor{}, o.Dropout)
	}
	if !o.Operand.IsZero() {
		s.Copy(o.Operand, y)
	}
}

// CheckEmbed checks y and sum[T, C], mean and rstd[1, T].
func CheckEmbed(y, sum, mean, rstd Tensor, o Embed) error {
	c := checker{op: "embed"}
	c.float("y", y)
	for i, l := range []Lookup{o.Words, o.Positions, o.Kinds} {
		if name := [...]string{"Words", "Positions", "Kinds"}[i]; i == 0 || !l.Table.IsZero() {
			c.shape(name+".Table", l.Table, y.DType, l.Table.Rows, y.Cols)
			c.shape(name+".Index", l.Index, I32, 1, y.Rows)
		}
	}
	if !o.Gamma.IsZero() {
		c.same("sum", sum, y)
		c.shape("mean", mean, y.DType, 1, y.Rows)
		c.shape("rstd", rstd, y.DType, 1, y.Rows)
		c.shape("Gamma", o.Gamma, y.DType, 1, y.Cols)
		c.optional("Beta", o.Beta, y.DType, 1, y.Cols)
	} else if !sum.IsZero() || !mean.IsZero() || !rstd.IsZero() || !o.Beta.IsZero() {
		c.fail("sum, mean, rstd or Beta without Gamma")
	}
	c.optional("Operand", o.Operand, BF16, y.Rows, y.Cols)
	c.dropout(o.Dropout, y.Rows)
	return c.err
}
