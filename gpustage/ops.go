package gpustage

// Ops is the op set. Package ref is its definition: where a comment here and ref disagree, ref is right.
//
// Arguments are outputs first. Gradients are named dX for X; the ones marked (+=) accumulate, all others are written.
// Floating-point tensors of one call share one DType unless an op says otherwise. Optional tensors may be zero.
//
// # Operands in bf16
//
// What is rounded to bf16 whenever a product or attention reads it may as well lie in memory so. On a device that TakesBF16 these arguments
// may be BF16 where the op's others are F32, each by itself:
//
//	MatMul with BF16                    a, b, c, PreAct, GradOf, Again
//	Attention and its backward, BF16    q, k, v, ctx, dq, dk, dv, dctx, Positions.Keys and Queries: all of a call's, or none
//	Activate, Gate and their backward   all
//	Dropout, Rotary                     y, x
//	LayerNorm                           y
//	LayerNormWith                       y, x
//	LayerNormBackward                   x, Dropped.Y
//	RMSNorm and its backward            y, x, dx, dy
//	ColumnSum                           x
//
// The op is the same, of the values that they have, and rounds what it writes. Where c or PreAct is BF16 a product may be rounded, and its bias,
// before the rest of its epilogue; but a Norm is of c before it is rounded, and c then rounded once. What is an operand besides being f32 (a hidden state, which is a residual too) has a copy: Norm.Operand,
// Embed.Operand.
type Ops interface {
	// Copy copies src to dst of the same shape, converting between floating-point types.
	Copy(dst, src Tensor)
	// Fill sets every element of a floating-point or integer tensor.
	Fill(dst Tensor, value float64)
	// Add is y = a + b; y may be a or b. Every device adds F64 too, in which ranks sum what they count.
	Add(y, a, b Tensor)
	// Scale is y = alpha * x; y may be x.
	Scale(y, x Tensor, alpha float64)

	// MatMul is c[M, N] = alpha * op(a) x op(b), followed by the epilogue in o. c must not alias a or
	// b; it may be o.Residual or o.GradOf. On a device that TakesBF16 it may be absent where o.PreAct is wanted alone, which has the bits
	// that it has with a c of PreAct's type.
	MatMul(c, a, b Tensor, o MatMul)
	// ColumnSum is sum[1, C] += the sum of x's rows.
	ColumnSum(sum, x Tensor)

	// Gather is y[T, C] = table[index[t]]; with add, y += table[index[t]].
	Gather(y, table, index Tensor, add bool)
	// ScatterAdd is dTable[index[t]] += dy[t], always in the same order.
	ScatterAdd(dTable, dy, index Tensor)

	// Embed is what a transformer begins with: y[T, C] = dropout(LayerNorm(sum)), for sum = Scale * rows of Words + rows of the other
	// tables. Its backward is that of these steps, and it keeps sum, mean[1, T] and rstd[1, T] for it; sum may be y where none
	// follows. Without a norm they are absent.
	Embed(y, sum, mean, rstd Tensor, o Embed)

	// LayerNorm normalizes each row of x[T, C]: y = (x-mean)*rstd*gamma + beta. It keeps mean[1, T] and rstd[1, T].
	// y may be x; beta may be absent.
	LayerNorm(y, mean, rstd, x, gamma, beta Tensor, eps float64)
	// LayerNormWith is y = (x-mean)*rstd*gamma + beta with a mean[1, T] and a rstd[1, T] that are there: LayerNorm's of x, or of what x was before
	// it was rounded. On a device that TakesBF16 it has LayerNorm's bits where x is what that was given. y may be x; beta may be absent.
	LayerNormWith(y, x, mean, rstd, gamma, beta Tensor)
	// LayerNormBackward gives dx, which may be dy, and dGamma, dBeta (+=; both may be absent), and what then says of dx.
	LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma Tensor, then Dropped)
	// RMSNorm normalizes x[T, G*D] in groups of D features, the length of gamma[1, D]: y = x*rstd*(gamma + offset). G is 1 for
	// hidden states, and the number of heads where each head is normalized. It keeps rstd[1, T*G], group g of token t at
	// t*G + g. y may be x.
	RMSNorm(y, rstd, x, gamma Tensor, eps, offset float64)
	// RMSNormBackward gives dx, which may be dy, and dGamma (+=; it may be absent).
	RMSNormBackward(dx, dGamma, dy, x, rstd, gamma Tensor, offset float64)

	// Activate is y = f(x); y may be x.
	Activate(y, x Tensor, f Activation)
	// ActivateBackward is dx = dy * f'(x); dx may be dy.
	ActivateBackward(dx, dy, x Tensor, f Activation)

	// Gate is y = f(gate) * up, what a gated feed-forward layer has between its projections. y may be gate or up.
	Gate(y, gate, up Tensor, f Activation)
	// GateBackward gives dGate, which may be gate, and dUp, which may be up; and again, which may be dy and may be absent: what Gate gives. dy must be
	// neither gate nor up.
	GateBackward(dGate, dUp, again, dy, gate, up Tensor, f Activation)
	// Rotary turns pairs of features of every head of x[T, H*D] by an angle that depends on the token's position. y may be x.
	Rotary(y, x Tensor, o Rotary)

	// Dropout is y = residual + dropout(x). y may be x or residual; residual may be absent. Its own backward is itself,
	// without the residual.
	Dropout(y, x, residual Tensor, d Dropout)

	// Attention is multi-head attention within each sequence of o.Seqs. q[T, H*D], k and v[T, KVHeads*D] may be columns of
	// one tensor. It keeps lse[H, T], the log-sum-exp of each head and query, and never a T x T matrix.
	Attention(ctx, lse, q, k, v Tensor, o Attention)
	// AttentionBackward gives dq, dk, dv of the same shapes. It recomputes the probabilities from lse. ctx is for
	// devices that can't sum a row's products before they subtract the sum; see ref.
	AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v Tensor, o Attention)

	// Pool reduces each sequence of x[T, C] to a row of y[B, C]. The mean of a sequence of no tokens is zero; the other modes want one.
	Pool(y, x Tensor, s Sequences, mode Pooling)
	// PoolBackward writes dx[T, C].
	PoolBackward(dx, dy Tensor, s Sequences, mode Pooling)
	// Normalize is y = x / max(|x|, 1e-12) by row; it keeps norm[1, B] = max(|x|, 1e-12). y may be x.
	Normalize(y, norm, x Tensor)
	// NormalizeBackward gives dx from y and norm; dx may be dy.
	NormalizeBackward(dx, dy, y, norm Tensor)

	// RowDot is out[1, R] = alpha * <a[i], b[i]>.
	RowDot(out, a, b Tensor, alpha float64)
	// RowAxpy is y[i] += alpha * w[i] * x[i], for w[1, R].
	RowAxpy(y, x, w Tensor, alpha float64)
	// Mask sets s[i, j] to -Inf for every pair that m excludes.
	Mask(s Tensor, m Mask)
	// MaskAbove sets s[i, j] to -Inf where g[i, j] > limit[i], for g of s's shape and limit[1, R]. A NaN is above nothing.
	MaskAbove(s, g, limit Tensor)
	// OnlineLSE folds a tile s[R, N] into the running maximum max[1, R] and the running sum[1, R] of exp(s - max),
	// which start as -Inf and 0: the log-sum-exp of everything folded is max + log(sum). A row whose every entry so far is -Inf
	// stays (-Inf, 0).
	OnlineLSE(max, sum, s Tensor)
	// SoftmaxTile is s[i, j] = w[i] * exp(s[i, j] - lse[i]), in place, -Inf giving 0; and sum[i] += the row's sum.
	SoftmaxTile(s, sum, lse, w Tensor)
	// SegmentMax is top[t, d] = the largest of row t of s[T, N] between columns Cu[d] and Cu[d+1], for cu i32 [1, D+1], and at[t, d],
	// i32, the column that has it, the first of several. A NaN is larger than any number. Of an empty segment they are 0 and -1.
	SegmentMax(top, at, s, cu Tensor)
	// MaxSimBackward is the backward of SegmentMax of s = x yᵀ, for x[T, E] and y[N, E]: with g[t, d] the gradient of top and n = at[t, d],
	// dx[t] += g[t, d] y[n] and dy[n] += g[t, d] x[t], in the order of d and of t.
	MaxSimBackward(dx, dy, g, at, x, y Tensor)
	// Splade is what SPLADE makes of each text's largest logits (Formal et al., arXiv 2109.10086), for features that lie in rows: with
	// x = top[v, b] + bias[v], y[b, v] = log(1 + max(x, 0)), or with twice log(1 + log(1 + max(x, 0))) (OpenSearch's, arXiv 2504.14839), for
	// top[V, B] and y[B, V]. Where a text does not have a feature, y is 0 and at[v, b], i32, becomes -1: SegmentMax has given it. bias may be absent.
	Splade(y, at, top, bias Tensor, twice bool)
	// SpladeBackward gives g[V, B], the gradient of top, from dy and y, both [B, V], and dBias[1, V] += the sums of its rows. Of a feature that a
	// text does not have it is 0. dBias may be absent.
	SpladeBackward(g, dBias, dy, y Tensor, twice bool)
	// CountActive is out[1, R]: how many elements of each row of x[R, C] are not 0. A NaN is one.
	CountActive(out, x Tensor)

	// SumSquares is out[1, 1] += the sum of x's squares, in f64 whatever x is: out is F64.
	SumSquares(out, x Tensor)
	// AdamW updates p, m and v in place from the gradient g. All are of one shape, or with h.Runs vectors of any length.
	AdamW(p, m, v, g Tensor, h AdamW)
	// SGD updates p and, with momentum, the buffer v in place; v may be absent without momentum.
	SGD(p, v, g Tensor, h SGD)
}

// MatMul is what surrounds a matrix product. With acc = alpha * op(a) x op(b) and every part optional:
//
//	x = acc + Bias                    Bias[1, N]
//	PreAct = x                        kept for the backward pass
//	x = Act(x)                        or, with GradOf: x = x * Act'(GradOf), Again = Act(GradOf)
//	x = Dropout(x) + Residual
//	c = x, or c += x with Add
//	ColumnSum += the sum of a's rows
//	ResultSum += the sum of c's rows
//	Norm.Y = LayerNorm(c)
//
// Fast devices fuse what they can of it into passes that the product makes anyway.
//
// With Pairs a device may take each x of a and b as hi = bf16(x) and lo = bf16(x - hi), 16 bits together, and leave out the products of two lo: three
// products in bf16 for one in f32, on GPUs a third of its time (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype
// for higher-precision computations", ARITH 2019: BF16x2). A term is off by at most 3 * 2^-16 of its size. Devices without tensor cores compute in f32.
type MatMul struct {
	TransA, TransB bool     // op(a) = aᵀ: a is stored [K, M]; op(b) = bᵀ: b is stored [N, K], as Linear weights are
	Alpha          float64  // 0 means 1
	Add            bool     // accumulate into c
	BF16           bool     // round a and b to bf16 first; accumulate in f32
	TF32           bool     // f32 may be rounded to TF32 first, on devices whose Info has it; others compute in f32. BF16 goes before it
	Pairs          bool     // f32 may be taken as the sum of two numbers of bf16, as said above. BF16 goes before it
	Forms          *Forms   // b is all of one parameter, and these are its forms; may be nil
	Rounded        *Rounded // room for a in bf16, where several products take it; may be nil
	BiasForms      *Forms   // likewise of Bias; may be nil
	Bias           Tensor
	PreAct         Tensor // [M, N], written
	GradOf         Tensor // [M, N]: the pre-activation whose derivative multiplies the result
	Again          Tensor // [M, N], with GradOf, which it may be: what the activation made of it
	Act            Activation
	Dropout        Dropout
	Residual       Tensor // [M, N]
	Norm           Norm   // of c
	// ResultSum [1, N] += the sum of c's rows, taken before or after c is rounded: where c is the gradient of a layer's output, its bias's. Norm.Y
	// must not be c then.
	ResultSum Tensor
	// ColumnSum [1, columns of a] += the sum of a's rows as op ColumnSum has it, of what a holds before it is rounded: where the product
	// is a weight's gradient, dyᵀ x, this is its bias's. The bits are that op's, but for the transpose of a BF16 a, which a library may sum in
	// an order of its own.
	ColumnSum Tensor
}

// Linear tells whether what follows the product is linear: neither an activation nor its derivative, nothing kept for one, no dropout.
func (o MatMul) Linear() bool {
	return o.PreAct.IsZero() && o.GradOf.IsZero() && o.Act == Identity && !o.Dropout.Active()
}

// Norm is a layer norm behind a product: Y = LayerNorm(c), with the bits of that op.
//
// Operand is what products take of Y: Y rounded. OfRounded makes it of c rounded to bf16, with the mean and the deviation of c as it was, so that who
// keeps c in bf16 needs no Operand besides: LayerNormWith makes it again, with the same bits. What it is off by is then two roundings, c's
// relative to c and its own.
type Norm struct {
	Y           Tensor // [M, N], which may be c; absent without a norm
	Mean, Rstd  Tensor // [1, M]
	Gamma, Beta Tensor // [1, N]; Beta may be absent
	Eps         float64
	Operand     Tensor // [M, N], BF16, on a device that TakesBF16; may be absent
	OfRounded   bool
}

// Of is the definition, and what devices do that can't do it with the product's last pass.
func (n Norm) Of(s Ops, c Tensor) {
	if n.Y.IsZero() {
		return
	}
	there := !n.Operand.IsZero()
	if there && n.OfRounded {
		s.Copy(n.Operand, c) // Y may be c
	}
	s.LayerNorm(n.Y, n.Mean, n.Rstd, c, n.Gamma, n.Beta, n.Eps)
	switch {
	case there && n.OfRounded:
		s.LayerNormWith(n.Operand, n.Operand, n.Mean, n.Rstd, n.Gamma, n.Beta)
	case there:
		s.Copy(n.Operand, n.Y)
	}
}

// Dropped is the way back through a dropout, of a gradient d that a norm's backward has made: Y = Dropout(d), Sum += the sum of Y's rows, taken
// before or after Y is rounded. Where nothing drops, Y is a copy of d.
type Dropped struct {
	Y       Tensor // [T, C]; absent without any of it
	Dropout Dropout
	Sum     Tensor // [1, C]: the gradient of the bias before the dropout; may be absent
}

// Of is the definition, and what devices do that can't do it with the pass that makes d.
func (o Dropped) Of(s Ops, d Tensor) {
	if o.Y.IsZero() {
		return
	}
	s.Dropout(o.Y, d, Tensor{}, o.Dropout)
	if !o.Sum.IsZero() {
		s.ColumnSum(o.Sum, o.Y)
	}
}

// Activation is a pointwise function.
type Activation uint8

const (
	Identity Activation = iota
	GELU                // x * Phi(x), exact (erf)
	GELUTanh            // the tanh approximation ("gelu_new", "gelu_pytorch_tanh")
	ReLU
	SiLU // x * sigmoid(x)
	Tanh
)

var activationNames = [...]string{"identity", "gelu", "gelu_tanh", "relu", "silu", "tanh"}

func (a Activation) String() string { return activationNames[a] }

// Pooling reduces a sequence to a vector.
type Pooling uint8

const (
	MeanPooling Pooling = iota // mean of all tokens, special ones included
	CLSPooling                 // the first token
	LastPooling                // the last token
)

var poolingNames = [...]string{"mean", "cls", "last"}

func (p Pooling) String() string { return poolingNames[p] }

// Sequences says where the rows of a packed [T, C] tensor are.
type Sequences struct {
	Rows   int    // B
	Tokens int    // T
	MaxLen int    // tokens of the longest row
	Cu     Tensor // i32 [1, B+1]: row b is tokens Cu[b] to Cu[b+1]
	Row    Tensor // i32 [1, T]: the row of each token
	Pos    Tensor // i32 [1, T]: its position within the row, from 0
	Keys   Tensor // u64 [1, B]: each row's dropout key; absent when nothing drops
}

// Dropout is counter-based: whether an element is dropped depends on its row's key, its place and nothing else, never
// on the sub-batch, the rank or the replay that computes it. See Philox.
type Dropout struct {
	P     float64 // probability of dropping, rounded to a multiple of 2^-16 and to 255/256 at most; 0 turns it off
	Seqs  Sequences
	Layer int
	Site  Site
}

// Site is a place in a layer where something drops.
type Site uint8

const (
	SiteEmbeddings Site = iota
	SiteAttention       // the probabilities
	SiteAttentionOut
	SiteFeedForward
	SiteLoRA       // the input of LoRA's factors; see Of
	SiteActivation // between the feed-forward's projections
	SiteOutput     // the last layer's output, behind its norm
)

// Of is the site at a layer's n-th projection, n < 16: each has a mask of its own.
func (s Site) Of(n int) Site { return s + Site(n)<<4 }

// Rotary describes rotary position embeddings (Su et al., arXiv 2104.09864). Of each head's D features the first R are turned:
// features j and j + R/2, as a point of the plane, by the angle a_j whose cosine and sine, times whatever a scaling
// variant multiplies them with, the table holds. Its own backward is itself with Inverse, which turns the other way.
type Rotary struct {
	Table   Tensor // [P, R]: cosines of R/2 angles, then their sines
	Index   Tensor // i32 [1, T]: each token's row of the table
	HeadDim int    // D; R may be less
	Inverse bool
}

// Attention describes one attention call.
type Attention struct {
	Seqs    Sequences
	Heads   int
	KVHeads int // 0 means Heads
	HeadDim int
	Scale   float64
	SoftCap float64 // scores become SoftCap * tanh(score/SoftCap); 0 means that they don't
	Causal  bool
	Window  int // tokens on each side that a query sees; 0 means all
	Dropout Dropout
	BF16    bool // round the inputs of both products to bf16; a device that TakesBF16 may be fast with tensors of bf16 alone

	// Bias[2R+1, H] is added to the scores: for query i and key j, row R + j - i; keys further than R away have the last row of
	// their side. DBias, of its shape, is where the backward adds its gradient (+=). Both may be absent.
	Bias, DBias Tensor

	Positions Positions // see there

	// Seen, i32 [1, B], is how many tokens of each sequence are keys: the first so many, from none to all of them. The others are queries that see those,
	// and nobody sees them: k's and v's gradients are zero there. A query that sees no key has a ctx of zeros, and an lse of -Inf. Absent: all tokens are
	// keys. With Positions there is none.
	Seen Tensor
}

// Reach is R, the distance from which on all keys on one side have the same bias.
func (a Attention) Reach() int { return (a.Bias.Rows - 1) / 2 }

// Mask excludes pairs of a score tile: pair (i, j) when, for any of its matches, Row[i] == Col[j] and that value is not
// negative.
type Mask []Match

// Match is one equality of identities: of texts, rows or owners.
type Match struct {
	Row Tensor // i32 [1, R]
	Col Tensor // i32 [1, N]
}

// AdamW is decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), in the order PyTorch applies it:
//
//	p -= LR * WeightDecay * p
//	m = Beta1*m + (1-Beta1)*g;  v = Beta2*v + (1-Beta2)*g*g
//	p -= LR * (m / (1-Beta1^Step)) / (sqrt(v / (1-Beta2^Step)) + Eps)
//
// with g = GradScale * the stored gradient.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Step                               int     // from 1
	GradScale                          float64 // normalization and clipping in one factor

	// Runs, if not nil, are what is updated, each with a rate and a decay of its own; LR and WeightDecay do not count then.
	Runs []Run
}

// SGD is p -= LR * (v = Momentum*v + g + WeightDecay*p), g = GradScale * the stored gradient.
type SGD struct {
	LR, Momentum, WeightDecay float64
	GradScale                 float64
}

// Tile is the mask of rows lo to hi and columns from to to.
func (m Mask) Tile(lo, hi, from, to int) Mask {
	t := make(Mask, len(m))
	for i, e := range m {
		t[i] = Match{Row: e.Row.Columns(lo, hi), Col: e.Col.Columns(from, to)}
	}
	return t
}
