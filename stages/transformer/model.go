package transformer

import (
	"fmt"

	"contraflow/gpustage"
)

// Head says how hidden states become an embedding.
type Head struct {
	Pooling   gpustage.Pooling
	Normalize bool
}

// Options choose how a model computes.
type Options struct {
	DType gpustage.DType // F32, or F64 for verification
	BF16  bool           // round the inputs of matrix products to bf16
	// CheckpointEvery keeps the input of every k-th layer only and recomputes the rest; 0 keeps everything.
	CheckpointEvery int
	Seed            uint64 // of dropout
}

// Model is an encoder on one device. Forward and Backward may run on one stream at a time; the parameters are read by
// both and written by whoever owns Params.
type Model struct {
	Config  Config
	Head    Head
	Options Options
	Layout  *Layout
	DType   gpustage.DType
	Device  gpustage.Device
	Params  gpustage.Tensor // [1, Layout.Len]
	w       weights
	version *gpustage.Version // of Params
}

// New allocates a model's parameters, all zero.
func New(d gpustage.Device, c Config, h Head, o Options) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if o.CheckpointEvery < 0 || o.CheckpointEvery > c.Layers {
		return nil, fmt.Errorf("activation checkpointing every %d layers of %d", o.CheckpointEvery, c.Layers)
	}
	m := &Model{Config: c, Head: h, Options: o, Layout: newLayout(bertNames(c)), DType: o.DType, Device: d}
	var err error
	if m.Params, err = gpustage.NewTensor(d, o.DType, 1, m.Layout.Len); err != nil {
		return nil, fmt.Errorf("a model of %d parameters: %w", m.Layout.Len, err)
	}
	m.w, m.version = m.Layout.bertWeights(c, m.Params), gpustage.NewVersion(formsLimit)
	m.w.keepForms(m.version)
	return m, nil
}

// NewGradients allocates a flat vector like the parameters', all zero.
func (m *Model) NewGradients() (gpustage.Tensor, error) {
	return gpustage.NewTensor(m.Device, m.DType, 1, m.Layout.Len)
}

// EmbeddingSize is E.
func (m *Model) EmbeddingSize() int { return m.Config.Hidden }

// Rows are the token ids of a sub-batch, packed, and what identifies its rows.
type Rows struct {
	IDs  []int32  // [T]
	Cu   []int32  // [B+1]: row b is IDs[Cu[b]:Cu[b+1]]
	Keys []uint64 // [B]: dropout keys (gpustage.RowKey); nil when nothing drops
}

// Len is B.
func (r Rows) Len() int { return len(r.Cu) - 1 }

// MaxLen is the longest row's number of tokens.
func (r Rows) MaxLen() int {
	n := 0
	for b := range r.Len() {
		n = max(n, int(r.Cu[b+1]-r.Cu[b]))
	}
	return n
}

// Check finds rows that the model can't take.
func (m *Model) Check(r Rows) error {
	for b := range r.Len() {
		n := int(r.Cu[b+1] - r.Cu[b])
		if n < 1 || n > m.Config.MaxPositions {
			return fmt.Errorf("row %d of the sub-batch has %d tokens, want 1 to %d", b, n, m.Config.MaxPositions)
		}
	}
	for t, id := range r.IDs {
		if id < 0 || int(id) >= m.Config.Vocab {
			return fmt.Errorf("token %d of the sub-batch has id %d, the vocabulary has %d", t, id, m.Config.Vocab)
		}
	}
	return nil
}

// input is a sub-batch on the device.
type input struct {
	seqs  gpustage.Sequences
	ids   gpustage.Tensor // i32 [1, T]
	kinds gpustage.Tensor // i32 [1, T]: token types, all 0
}

// upload copies a sub-batch to the device, to the arena's bottom.
func upload(s gpustage.Stream, a *gpustage.Arena, r Rows) input {
	t, b := len(r.IDs), r.Len()
	row, pos := make([]int32, t), make([]int32, t)
	for i := range b {
		for p := range r.Cu[i+1] - r.Cu[i] {
			row[r.Cu[i]+p], pos[r.Cu[i]+p] = int32(i), p
		}
	}
	ints := func(vs []int32) gpustage.Tensor {
		x := a.Keep(s, gpustage.I32, 1, len(vs))
		s.CopyIn(x, gpustage.Bytes(vs))
		return x
	}
	in := input{ids: ints(r.IDs), kinds: ints(make([]int32, t))}
	in.seqs = gpustage.Sequences{Rows: b, Tokens: t, MaxLen: r.MaxLen(), Cu: ints(r.Cu), Row: ints(row), Pos: ints(pos)}
	if r.Keys != nil {
		in.seqs.Keys = a.Keep(s, gpustage.U64, 1, b)
		s.CopyIn(in.seqs.Keys, gpustage.Bytes(r.Keys))
	}
	return in
}

// Pass is one sub-batch's way through the model: what Forward kept for Backward.
type Pass struct {
	m          *Model
	s          gpustage.Stream
	a          *gpustage.Arena
	in         input
	start      gpustage.Mark
	train      bool
	embed      embedActs
	layers     []layerActs       // those kept; with activation checkpointing empty
	inputs     []gpustage.Tensor // [T, C]: the input of each segment
	pooled     gpustage.Tensor   // [B, C]
	norm       gpustage.Tensor   // [1, B]
	embeddings gpustage.Tensor   // [B, C]
}

// embedActs is what the embeddings' backward needs.
type embedActs struct {
	sum        gpustage.Tensor // [T, C]: LayerNorm's input
	mean, rstd gpustage.Tensor // [1, T]
}

// layerActs is what a layer's backward needs.
type layerActs struct {
	x            gpustage.Tensor // [T, C]: its input
	qkv          gpustage.Tensor // [T, 3C]
	lse          gpustage.Tensor // [H, T]
	ctx          gpustage.Tensor // [T, C]: the attention's output before its projection
	sum1         gpustage.Tensor // [T, C]: LayerNorm 1's input
	mean1, rstd1 gpustage.Tensor // [1, T]
	x1           gpustage.Tensor // [T, C]: LayerNorm 1's output
	pre          gpustage.Tensor // [T, F]: the activation's input
	sum2         gpustage.Tensor // [T, C]: LayerNorm 2's input
	mean2, rstd2 gpustage.Tensor // [1, T]
}

// Forward computes the embeddings [B, C] of a sub-batch. With train, dropout acts. With keep, the pass can go backward,
// and everything it needs stays in the arena until Release; without, only the embeddings do.
func (m *Model) Forward(s gpustage.Stream, a *gpustage.Arena, r Rows, train, keep bool) *Pass {
	p := &Pass{m: m, s: s, a: a, start: a.Mark(), train: train && m.drops()}
	t, b, c := len(r.IDs), r.Len(), m.Config.Hidden
	p.embeddings = a.Keep(s, m.DType, b, c)
	p.pooled, p.norm = p.embeddings, a.Keep(s, m.DType, 1, b)
	if m.Head.Normalize {
		p.pooled = a.Keep(s, m.DType, b, c)
	}
	if !p.train {
		r.Keys = nil
	}
	p.in = upload(s, a, r)

	x := a.Keep(s, m.DType, t, c)
	p.embedTokens(x, keep)
	if keep {
		x = p.forwardLayers(x)
	} else {
		x = p.forwardThrough(x)
	}
	s.Pool(p.pooled, x, p.in.seqs, m.Head.Pooling)
	if m.Head.Normalize {
		s.Normalize(p.embeddings, p.norm, p.pooled)
	}
	return p
}

// drops tells whether the model has any dropout.
func (m *Model) drops() bool { return m.Config.HiddenDropout > 0 || m.Config.AttentionDropout > 0 }

// Embeddings is [B, C], valid until Release.
func (p *Pass) Embeddings() gpustage.Tensor { return p.embeddings }

// Release gives back the pass's part of the arena. Passes are released in the reverse order of their Forward.
func (p *Pass) Release() { p.a.Release(p.start) }

// forwardThrough computes all layers in two buffers, keeping nothing else.
func (p *Pass) forwardThrough(x gpustage.Tensor) gpustage.Tensor {
	y := p.a.Keep(p.s, p.m.DType, x.Rows, x.Cols)
	for l := range p.m.Config.Layers {
		mark := p.a.Mark()
		p.layer(l, x, y)
		p.a.Release(mark)
		x, y = y, x
	}
	return x
}

// forwardLayers computes all layers and keeps their activations, or with activation checkpointing the inputs of its segments.
func (p *Pass) forwardLayers(x gpustage.Tensor) gpustage.Tensor {
	every := p.m.Options.CheckpointEvery
	if every == 0 {
		for l := range p.m.Config.Layers {
			y := p.a.Keep(p.s, p.m.DType, x.Rows, x.Cols)
			p.layers = append(p.layers, p.layer(l, x, y))
			x = y
		}
		return x
	}
	for l := 0; l < p.m.Config.Layers; l += every {
		p.inputs = append(p.inputs, x)
		y := p.a.Keep(p.s, p.m.DType, x.Rows, x.Cols)
		x = p.segment(l, min(l+every, p.m.Config.Layers), x, y)
	}
	return x
}

// segment computes layers from to to-1 and leaves the last one's output in y.
func (p *Pass) segment(from, to int, x, y gpustage.Tensor) gpustage.Tensor {
	mark := p.a.Mark()
	for l := from; l < to; l++ {
		out := y
		if l < to-1 {
			out = p.a.Keep(p.s, p.m.DType, x.Rows, x.Cols)
		}
		p.layer(l, x, out)
		x = out
	}
	p.a.Release(mark)
	return y
}

// embedTokens computes x = dropout(LayerNorm(word + position + type)).
func (p *Pass) embedTokens(x gpustage.Tensor, keep bool) {
	s, m, in := p.s, p.m, p.in
	mark := p.a.Mark()
	e := embedActs{sum: p.keep(x.Rows, x.Cols), mean: p.keep(1, x.Rows), rstd: p.keep(1, x.Rows)}
	s.Gather(e.sum, m.w.word, in.ids, false)
	s.Gather(e.sum, m.w.position, in.seqs.Pos, true)
	s.Gather(e.sum, m.w.kind, in.kinds, true)
	s.LayerNorm(x, e.mean, e.rstd, e.sum, m.w.norm.gamma, m.w.norm.beta, m.Config.NormEps)
	if d := p.dropout(0, gpustage.SiteEmbeddings); d.Active() {
		s.Dropout(x, x, gpustage.Tensor{}, d)
	}
	if keep {
		p.embed = e
	} else {
		p.a.Release(mark)
	}
}

func (p *Pass) embedTokensBackward(dx gpustage.Tensor, g weights, word gpustage.Tensor) {
	s, m, in, e := p.s, p.m, p.in, p.embed
	if d := p.dropout(0, gpustage.SiteEmbeddings); d.Active() {
		s.Dropout(dx, dx, gpustage.Tensor{}, d)
	}
	s.LayerNormBackward(dx, g.norm.gamma, g.norm.beta, dx, e.sum, e.mean, e.rstd, m.w.norm.gamma)
	s.ScatterAdd(g.word, dx, word)
	s.ScatterAdd(g.position, dx, in.seqs.Pos)
	s.ScatterAdd(g.kind, dx, in.kinds)
}

func (p *Pass) keep(rows, cols int) gpustage.Tensor { return p.a.Keep(p.s, p.m.DType, rows, cols) }

func (p *Pass) scratch(rows, cols int) gpustage.Tensor {
	return p.a.Scratch(p.s, p.m.DType, rows, cols)
}

// dropout is what drops at a site of a layer; nothing outside of training.
func (p *Pass) dropout(layer int, site gpustage.Site) gpustage.Dropout {
	if !p.train {
		return gpustage.Dropout{}
	}
	d := gpustage.Dropout{P: p.m.Config.HiddenDropout, Seqs: p.in.seqs, Layer: layer, Site: site}
	if site == gpustage.SiteAttention {
		d.P = p.m.Config.AttentionDropout
	}
	return d
}

func (p *Pass) attention(l int) gpustage.Attention {
	c := p.m.Config
	return gpustage.Attention{
		Seqs: p.in.seqs, Heads: c.Heads, HeadDim: c.HeadDim(), Scale: attentionScale(c.HeadDim()),
		Dropout: p.dropout(l, gpustage.SiteAttention), BF16: p.m.Options.BF16,
	}
}

// layer computes y from x: attention with a residual, LayerNorm, feed-forward with a residual, LayerNorm.
func (p *Pass) layer(l int, x, y gpustage.Tensor) layerActs {
	s, m, w := p.s, p.m, p.m.w.layers[l]
	t, c, f, h := x.Rows, m.Config.Hidden, m.Config.FeedForward, m.Config.Heads
	eps := m.Config.NormEps
	a := layerActs{
		x: x, qkv: p.keep(t, 3*c), lse: p.keep(h, t), ctx: p.keep(t, c),
		sum1: p.keep(t, c), mean1: p.keep(1, t), rstd1: p.keep(1, t), x1: p.keep(t, c),
		pre: p.keep(t, f), sum2: p.keep(t, c), mean2: p.keep(1, t), rstd2: p.keep(1, t),
	}
	p.forward(w.qkv, a.qkv, x, gpustage.MatMul{})
	s.Attention(a.ctx, a.lse, a.qkv.Columns(0, c), a.qkv.Columns(c, 2*c), a.qkv.Columns(2*c, 3*c), p.attention(l))
	p.forward(w.out, a.sum1, a.ctx, gpustage.MatMul{Dropout: p.dropout(l, gpustage.SiteAttentionOut), Residual: x})
	s.LayerNorm(a.x1, a.mean1, a.rstd1, a.sum1, w.norm1.gamma, w.norm1.beta, eps)

	mark := p.a.Mark()
	act := p.scratch(t, f)
	p.forward(w.up, act, a.x1, gpustage.MatMul{PreAct: a.pre, Act: m.Config.Activation})
	p.forward(w.down, a.sum2, act, gpustage.MatMul{Dropout: p.dropout(l, gpustage.SiteFeedForward), Residual: a.x1})
	p.a.ReleaseScratch(mark)
	s.LayerNorm(y, a.mean2, a.rstd2, a.sum2, w.norm2.gamma, w.norm2.beta, eps)
	return a
}

// layerBackward turns dy into dx, in place, and adds the layer's gradients to g.
func (p *Pass) layerBackward(l int, a layerActs, d gpustage.Tensor, g layerWeights) {
	s, m, w := p.s, p.m, p.m.w.layers[l]
	t, c, f := a.x.Rows, m.Config.Hidden, m.Config.FeedForward
	mark := p.a.Mark()
	defer p.a.ReleaseScratch(mark)

	s.LayerNormBackward(d, g.norm2.gamma, g.norm2.beta, d, a.sum2, a.mean2, a.rstd2, w.norm2.gamma) // d is dSum2 [T, C]
	dz := p.dropped(d, p.dropout(l, gpustage.SiteFeedForward))
	act := p.scratch(t, f)
	s.Activate(act, a.pre, m.Config.Activation)
	p.gradients(g.down, dz, act)
	dpre := act // its last reader is done
	p.backward(w.down, dpre, dz, gpustage.MatMul{GradOf: a.pre, Act: m.Config.Activation})
	p.gradients(g.up, dpre, a.x1)
	p.backward(w.up, d, dpre, gpustage.MatMul{Add: true}) // the residual passes dSum2 on: d is dX1
	p.a.ReleaseScratch(mark)

	s.LayerNormBackward(d, g.norm1.gamma, g.norm1.beta, d, a.sum1, a.mean1, a.rstd1, w.norm1.gamma) // d is dSum1
	dz = p.dropped(d, p.dropout(l, gpustage.SiteAttentionOut))
	p.gradients(g.out, dz, a.ctx)
	dctx, dqkv := p.scratch(t, c), p.scratch(t, 3*c)
	p.backward(w.out, dctx, dz, gpustage.MatMul{})
	s.AttentionBackward(dqkv.Columns(0, c), dqkv.Columns(c, 2*c), dqkv.Columns(2*c, 3*c), dctx, a.ctx, a.lse,
		a.qkv.Columns(0, c), a.qkv.Columns(c, 2*c), a.qkv.Columns(2*c, 3*c), p.attention(l))
	p.weightGradient(g.qkv, dqkv, a.x)
	for _, q := range [...]int{0, 2} { // the key's bias has none: see the package comment
		s.ColumnSum(g.qkv.b.Columns(q*c, (q+1)*c), dqkv.Columns(q*c, (q+1)*c))
	}
	p.backward(w.qkv, d, dqkv, gpustage.MatMul{Add: true}) // the residual passes dSum1 on: d is dX
}

// dropped is d through a dropout's backward, or d itself where nothing drops.
func (p *Pass) dropped(d gpustage.Tensor, drop gpustage.Dropout) gpustage.Tensor {
	if !drop.Active() {
		return d
	}
	out := p.scratch(d.Rows, d.Cols)
	p.s.Dropout(out, d, gpustage.Tensor{}, drop)
	return out
}

// Gradients is where a backward pass adds its gradients.
type Gradients struct {
	Flat gpustage.Tensor // like Params

	// WordRows, if not zero, takes the word embeddings' gradient in Flat's place: [U, C], a row for each distinct token id of
	// the sub-batch. WordIndex, i32 [1, T], is each token's row in it.
	WordRows, WordIndex gpustage.Tensor

	// Done, if not nil, is called when nothing more will be added to the gradients of a layer's parameters: from the last
	// layer to layer 0, then with -1 for the embeddings.
	Done func(layer int)
}

func (g Gradients) done(layer int) {
	if g.Done != nil {
		g.Done(layer)
	}
}

// Backward adds the gradient of the loss, given its gradient with respect to the embeddings, to grads (a flat vector like
// Params). dEmbeddings [B, C] is left as it is. The pass can't be used afterwards but to be released.
func (p *Pass) Backward(dEmbeddings, grads gpustage.Tensor) {
	p.BackwardTo(dEmbeddings, Gradients{Flat: grads})
}

// BackwardTo is Backward for those who reduce gradients while it runs.
func (p *Pass) BackwardTo(dEmbeddings gpustage.Tensor, to Gradients) {
	s, m := p.s, p.m
	g := m.Layout.bertWeights(m.Config, to.Flat)
	mark := p.a.Mark()
	defer p.a.Release(mark)
	t, c, layers := p.in.seqs.Tokens, m.Config.Hidden, m.Config.Layers

	dPooled := dEmbeddings
	if m.Head.Normalize {
		dPooled = p.keep(dEmbeddings.Rows, c)
		s.NormalizeBackward(dPooled, dEmbeddings, p.embeddings, p.norm)
	}
	d := p.keep(t, c)
	s.PoolBackward(d, dPooled, p.in.seqs, m.Head.Pooling)

	if every := m.Options.CheckpointEvery; every > 0 {
		for k := len(p.inputs) - 1; k >= 0; k-- {
			from, end := k*every, min((k+1)*every, layers)
			segment := p.a.Mark()
			acts := p.recompute(from, end, p.inputs[k])
			for l := end - 1; l >= from; l-- {
				p.layerBackward(l, acts[l-from], d, g.layers[l])
				to.done(l)
			}
			p.a.Release(segment)
		}
	} else {
		for l := layers - 1; l >= 0; l-- {
			p.layerBackward(l, p.layers[l], d, g.layers[l])
			to.done(l)
		}
	}
	index := p.in.ids
	if !to.WordRows.IsZero() {
		g.word, index = to.WordRows, to.WordIndex
	}
	p.embedTokensBackward(d, g, index)
	to.done(-1)
}

// recompute runs layers from to to-1 again and keeps what their backward needs.
func (p *Pass) recompute(from, to int, x gpustage.Tensor) []layerActs {
	var acts []layerActs
	for l := from; l < to; l++ {
		y := p.keep(x.Rows, x.Cols)
		acts = append(acts, p.layer(l, x, y))
		x = y
	}
	return acts
}
