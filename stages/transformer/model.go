package transformer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"contraflow/gpustage"
)

// Head says how hidden states become an embedding, and how two of these are compared.
type Head struct {
	Pooling   gpustage.Pooling
	Normalize bool
	Dot       bool // by their inner product; otherwise by their cosine
	// SkipPrompt leaves the tokens of a text's prompt, Rows.Prompt, out of what is pooled, as INSTRUCTOR has it (Su et al., arXiv 2212.09741): the others
	// attend to them all the same. Of CLS pooling it is the first token behind the prompt that counts; the last token is what it is.
	SkipPrompt bool
}

// Options choose how a model computes.
type Options struct {
	DType gpustage.DType // F32, or F64 for verification
	BF16  bool           // round the inputs of matrix products to bf16
	TF32  bool           // let the device round those of f32 to TF32, which its Info says whether it does
	// CheckpointEvery keeps the input of every k-th layer only and recomputes the rest; 0 keeps everything. AutoCheckpoint chooses k.
	CheckpointEvery int
	Tuning          Tuning
	// Own, if not nil, tells which ranges of the flat vector the model holds, in ascending order: see Feed.
	Own func(*Layout) [][2]int
	// Loaded, if not nil, sees each parameter as it is loaded, whole, before the ranges are cut from it.
	Loaded func(p Param, vs []float32) error
}

// AutoCheckpoint makes k the square root of the number of layers that go backward, rounded: what is kept and what is recomputed at once
// then both grow as it does.
const AutoCheckpoint = -1

// Model is an encoder on one device. Forward and Backward may run on one stream at a time; the parameters are read by
// both and written by whoever owns Params.
type Model struct {
	Config  Config
	Head    Head
	Options Options
	Layout  *Layout
	DType   gpustage.DType
	Device  gpustage.Device
	Params  gpustage.Tensor // [1, Layout.Len], or the ranges that Own says, side by side
	partial
	w        weights
	version  *gpustage.Version // of Params, but for what is frozen
	constant *gpustage.Version // of what is frozen
	bottom   place             // the lowest at which something trains

	biasTrains bool           // the relative attention bias does
	farTrains  bool           // the embeddings of distances do, or their norm
	operands   gpustage.DType // of what lies between products and attention: see operand
	keepsBF16  bool           // copies of it wait for the backward pass in bf16
	angles     *angles
	buckets    *bucketing // nil where sub-batches are as they are

	// Its copies share who trains it, and when.
	claim   *atomic.Pointer[claim]
	changes *changes
}

// New allocates a model's parameters, all zero. Free gives them back; where there is an error there is nothing to give back.
func New(d gpustage.Device, c Config, h Head, o Options) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	switch {
	case o.CheckpointEvery != 0 && c.static():
		return nil, wrong("activation_checkpointing", "static embeddings have no layers, whose activations could be computed again")
	case o.Tuning.LoRA != nil && c.static():
		return nil, wrong("lora", "static embeddings have no layers for LoRA: leave it out")
	}
	if o.CheckpointEvery < AutoCheckpoint || o.CheckpointEvery > c.Layers {
		return nil, wrong("activation_checkpointing", "every is %d, the model has %d layers; true is about their square root", o.CheckpointEvery, c.Layers)
	}
	if !c.Scorer.None() {
		h = Head{Pooling: c.Scorer.Pooling}
	}
	if err := c.checkHead(h); err != nil {
		return nil, err
	}
	layout, err := c.layout(o.Tuning)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: c, Head: h, Options: o, Layout: layout, DType: o.DType, Device: d, angles: &angles{}, claim: new(atomic.Pointer[claim]), changes: new(changes), buckets: newBucketing(d, c, o), operands: o.DType}
	switch bf16 := o.BF16 && o.DType == gpustage.F32; {
	case bf16 && gpustage.TakesBF16(d):
		m.operands = gpustage.BF16
	case bf16:
		m.keepsBF16 = gpustage.KeepsBF16(d)
	}
	if p, ok := m.Layout.Find(c.names().relative + ".weight"); ok {
		m.biasTrains = m.Layout.Trains(p)
	}
	for _, p := range m.Layout.Training() {
		n := families[c.Family].names
		m.farTrains = m.farTrains || c.Disentangled != nil && (p.Module() == n.distances || p.Module() == n.distancesNorm)
	}
	if o.Own != nil {
		if err := m.openPartial(o.Own(m.Layout)); err != nil {
			return nil, errors.Join(err, m.Free())
		}
		m.chooseCheckpoints()
		return m, nil
	}
	if m.Params, err = gpustage.NewTensor(d, o.DType, 1, m.Layout.Len); err != nil {
		return nil, fmt.Errorf("a model of %d parameters: %w", m.Layout.Len, err)
	}
	m.w = c.weights(m.Layout, m.Params)
	m.keepForms()
	m.bottom = m.findBottom()
	m.chooseCheckpoints()
	return m, nil
}

func (m *Model) chooseCheckpoints() {
	if m.Options.CheckpointEvery == AutoCheckpoint {
		m.Options.CheckpointEvery = max(1, int(math.Round(math.Sqrt(float64(m.Config.Layers-m.Lowest())))))
	}
}

// Trained is the part of Params that trains [1, Layout.Trained()]: gradients and moments are like it. Of a model that holds a part
// of its parameters it is what it holds of them.
func (m *Model) Trained() gpustage.Tensor {
	if m.Partial() {
		return m.Params.Columns(m.lead, m.Params.Cols)
	}
	return m.Params.Columns(m.Layout.Frozen, m.Layout.Len)
}

// NewGradients allocates a flat vector like Trained, all zero.
func (m *Model) NewGradients() (gpustage.Tensor, error) {
	return gpustage.NewTensor(m.Device, m.DType, 1, m.Layout.Trained())
}

// EmbeddingSize is E, of a text's embedding or of tokens' vectors if the model gives these alone: V of a model with an MLMHead, of a model that scores
// 1, or how many layers do.
func (m *Model) EmbeddingSize() int {
	if !m.Config.Scorer.None() {
		return m.Config.Scorer.Scores()
	}
	return m.Config.embeddingSize()
}

func (c Config) embeddingSize() int {
	if n := len(c.Dense); n > 0 {
		return c.Dense[n-1].Out
	}
	if !c.MLMHead.None() {
		return c.Vocab
	}
	return c.Hidden
}

// Rows are the token ids of a sub-batch, packed, and what identifies its rows.
type Rows struct {
	IDs   []int32  // [T]
	Cu    []int32  // [B+1]: row b is IDs[Cu[b]:Cu[b+1]]
	Kinds []int32  // [T]: token types; nil: all 0
	Keys  []uint64 // [B]: dropout keys (gpustage.RowKey); nil when nothing drops

	// Shown are places in IDs of the tokens that have rows in parts of tokens, in ascending order; nil: those of TokenHeads.Shown.
	Shown []int32

	// Seen [B] is how many of each row's tokens others attend to, the first so many; nil: all. See Reading.
	Seen []int32

	// Prompt [B] is how many of each row's tokens are its prompt's, the first so many (tokenize.Tokenizer.PromptTokens); nil: none. Of a row that is nothing
	// but its prompt the mean is zero, and CLS pooling takes the first token. Models whose Head has no SkipPrompt don't look at it.
	Prompt []int32

	// Weighed tells that the rows are queries that the model's QueryWeights make embeddings of: tokens of each are Distinct, and may be none.
	Weighed bool

	longest int // what MaxLen is rounded up to; see buckets.go
}

// keys is Seen of all rows, and whether any has tokens that are not.
func (r Rows) keys() (counts []int32, some bool) {
	for b := range r.Len() {
		n := r.Cu[b+1] - r.Cu[b]
		if b < len(r.Seen) && r.Seen[b] < n {
			n, some = r.Seen[b], true
		}
		counts = append(counts, n)
	}
	return counts, some
}

// Len is B.
func (r Rows) Len() int { return len(r.Cu) - 1 }

// MaxLen is the longest row's number of tokens.
func (r Rows) MaxLen() int {
	n := r.longest
	for b := range r.Len() {
		n = max(n, int(r.Cu[b+1]-r.Cu[b]))
	}
	return n
}

// Check finds rows that the model can't take.
func (m *Model) Check(r Rows) error {
	if r.Weighed {
		return m.checkWeighed(r)
	}
	for b := range r.Len() {
		switch n := int(r.Cu[b+1] - r.Cu[b]); {
		case n < 1 && !m.Config.static():
			return fmt.Errorf("row %d of the sub-batch has %d tokens, want 1 to %d", b, n, m.Config.MaxPositions)
		case n > m.Config.MaxPositions && m.Config.MaxPositions > 0:
			return fmt.Errorf("row %d of the sub-batch has %d tokens, the model was trained with %d positions: cut texts to a max_length of at most that",
				b, n, m.Config.MaxPositions)
		}
	}
	for t, id := range r.IDs {
		if id < 0 || int(id) >= m.Config.Vocab {
			return fmt.Errorf("token %d of the sub-batch has id %d, and the vocabulary has %d: a text contains a token that the model has no embedding for", t, id, m.Config.Vocab)
		}
	}
	if n := len(r.Seen); n > 0 && (n != r.Len() || !m.Config.Tokens.Unseen()) {
		return fmt.Errorf("a sub-batch of %d rows says of %d how many tokens the others attend to: want one number for each, of a model whose Reading of queries has Unseen", r.Len(), n)
	}
	for b, n := range r.Seen {
		if have := r.Cu[b+1] - r.Cu[b]; n < 0 || n > have {
			return fmt.Errorf("row %d of the sub-batch has %d tokens, of which the others attend to %d, want 0 to %d", b, have, n, have)
		}
	}
	if n := len(r.Prompt); n > 0 && n != r.Len() {
		return fmt.Errorf("a sub-batch of %d rows says of %d how many of their tokens are a prompt's: want one number for each", r.Len(), n)
	}
	for b, n := range r.Prompt {
		if n < 0 {
			return fmt.Errorf("row %d of the sub-batch has a prompt of %d tokens", b, n)
		}
	}
	for t, kind := range r.Kinds {
		if n := m.Config.TypeVocab; n > 0 && (kind < 0 || int(kind) >= n) {
			return fmt.Errorf("token %d of the sub-batch has type %d, the model has %d types", t, kind, n)
		}
	}
	return nil
}

// Pass is one sub-batch's way through the model: what Forward kept for Backward.
type Pass struct {
	m          *Model
	s          gpustage.Stream
	a          *gpustage.Arena
	in         input
	own        shape           // without padding; in has it
	shown      int             // T': tokens that have rows
	bags       gpustage.Bagger // nil: texts are pooled as hidden states are
	start      gpustage.Mark
	train      bool
	writesPre  bool // feed-forward layers write their activations' inputs: what goes backward reads them, and one without (embed) may on some devices have other bits
	embed      embedActs
	room       gpustage.Tensor   // [T, C]: for what products take of hidden states, where that is not kept; absent on most devices
	taken      gpustage.Tensor   // [T, C]: what they take of takenOf: room, or one that is kept
	takenOf    gpustage.Tensor   // [T, C]: hidden states; absent where there is none
	beforeRoom gpustage.Mark     // the arena without room
	layers     []layerActs       // those kept; with activation checkpointing empty
	inputs     []gpustage.Tensor // [T, C]: the input of each segment
	lean       bool              // of the layers' activations the two largest are computed again
	soon       bool              // it goes backward at once: with activation checkpointing the last segment is not computed again
	ahead      []layerActs       // of the last segment, if soon
	behind     gpustage.Mark     // the arena without it
	d, dNormal gpustage.Tensor   // [T, C], [B, E]: what a backward pass carries
	last       gpustage.Tensor   // [T, C]: the last layer's output, where a norm follows
	final      stats
	pooled     gpustage.Tensor // [B, C]
	dense      []denseActs
	projected  gpustage.Tensor // [B, E]: pooled, or what dense layers make of it
	length     gpustage.Tensor // [1, B]: projected's, before it is normalized
	embeddings gpustage.Tensor // [B, E], or scores [B, 1] or [B, layers], or tokens' vectors [T', E] alone; so are those above then
	scoring    scoreActs
	tokens     tokenActs
	mlm        mlmActs
	isWeighed  bool           // the rows are Weighed, and of the above have embeddings, projected and length
	weighed    []weighedBlock // their tokens
}

// Forward computes the embeddings [B, E] of a sub-batch. With train, dropout acts. With keep, the pass can go backward,
// and everything it needs stays in the arena until Release; without, only the embeddings do.
func (m *Model) Forward(s gpustage.Stream, a *gpustage.Arena, r Rows, train, keep bool) *Pass {
	return m.forward(s, a, r, train, keep, usual)
}

// Lean is Forward in training for a pass that can go backward, and keeps less for it: of each layer neither queries, keys and values nor the
// feed-forward layer's inner features, which its backward pass computes again (see the package's comment). It has the bits of any other. With
// activation checkpointing it keeps what any kept pass does.
func (m *Model) Lean(s gpustage.Stream, a *gpustage.Arena, r Rows) *Pass {
	return m.forward(s, a, r, true, true, lean)
}

// Replay is Forward in training for a pass that goes backward at once. It has the bits of any other. With activation checkpointing it leaves
// the last segment's activations, where the backward pass begins, in the arena: one segment less to compute again, in no more memory.
func (m *Model) Replay(s gpustage.Stream, a *gpustage.Arena, r Rows) *Pass {
	return m.forward(s, a, r, true, true, soon)
}

// manner is what a kept forward pass keeps.
type manner int

const (
	usual manner = iota
	lean
	soon
)

// Leans tells whether a lean pass keeps less than others.
func (m *Model) Leans() bool { return m.Options.CheckpointEvery == 0 && m.Config.Layers > m.Lowest() }

func (m *Model) forward(s gpustage.Stream, a *gpustage.Arena, r Rows, train, keep bool, how manner) *Pass {
	p := &Pass{m: m, s: s, a: a, own: r.shape(), bags: m.bagger(s), start: a.Mark(), train: train && m.drops(), writesPre: train || keep, soon: how == soon,
		lean: how == lean && m.Leans()}
	if !m.Config.Tokens.None() && r.Shown == nil {
		r.Shown = m.Config.Tokens.shown(r)
	}
	p.shown = len(r.Shown)
	if p.isWeighed = r.Weighed; p.isWeighed {
		p.forwardWeighed(r)
		return p
	}
	r = m.pad(r)
	b, c := m.Config.Tokens.outputs(len(r.IDs), r.Len()), m.Config.Hidden
	scores := !m.Config.Scorer.None()
	p.embeddings = a.Keep(s, m.DType, b, m.EmbeddingSize())
	p.projected, p.length = p.embeddings, a.Keep(s, m.DType, 1, b)
	if m.Head.Normalize {
		p.projected = a.Keep(s, m.DType, b, m.EmbeddingSize())
	}
	if scores {
		p.projected = a.Keep(s, m.DType, b, c)
	}
	p.openDense(b)
	if !p.train {
		r.Keys = nil
	}
	p.in = m.upload(s, a, r)
	if scores {
		p.openScore(r)
	}
	p.openTokens(r, keep)
	p.openMLM(r, keep)
	p.repeat(func() { p.compute(keep) })
	return p
}

// compute is a forward pass's ops.
func (p *Pass) compute(keep bool) {
	s, m, a := p.s, p.m, p.a
	if p.bags != nil || p.own.tokens == 0 {
		if table, ids := p.words(); p.own.tokens == 0 { // whoever feeds them knows of no padding
			s.Fill(p.pooled, 0)
		} else {
			p.bags.Bag(p.pooled, table, ids, p.in.seqs)
		}
		p.project()
		return
	}
	t, c := p.in.seqs.Tokens, m.Config.Hidden
	x := a.Keep(s, m.DType, t, c)
	layers := a.Mark()
	p.openRoom(x)
	p.embedTokens(x, keep && m.bottom < 0)
	if keep {
		x = p.forwardLayers(x)
	} else {
		p.forwardThrough(x, m.Config.Layers)
	}
	p.closeRoom()
	mark := a.Mark()
	if n := m.w.finalNorm; !n.absent() {
		p.last = x
		if keep {
			p.final = p.keepStats(n, x)
			mark = a.Mark()
			x = p.scratch(t, c)
		} else {
			p.final = p.keepStats(n, x)
		}
		p.norm(n, x, p.final, p.last)
		if d := p.outputDropout(); d.Active() {
			s.Dropout(x, x, gpustage.Tensor{}, d)
		}
	}
	p.pool(x)
	p.forwardTokens(x)
	a.Release(mark)
	a.ReleaseScratch(layers)
	if !m.Config.Scorer.None() {
		p.score()
		p.scoreBelow()
		return
	}
	p.project()
}

// project is what follows pooling.
func (p *Pass) project() {
	p.forwardDense()
	if p.m.Head.Normalize {
		p.s.Normalize(p.embeddings, p.length, p.projected)
	}
}

// drops tells whether the model has any dropout.
func (m *Model) drops() bool {
	h := m.Config.Scorer
	return m.Config.HiddenDropout > 0 || m.Config.AttentionDropout > 0 || h.DropoutIn > 0 || h.DropoutOut > 0 || m.lora() != nil && m.lora().Dropout > 0
}

// Embeddings is [B, E], or [T', E] of a model that gives tokens' vectors alone, valid until Release.
func (p *Pass) Embeddings() gpustage.Tensor {
	if p.m.Config.Tokens.Alone {
		return p.embeddings.Span(0, p.shown)
	}
	return p.embeddings.Span(0, p.own.rows)
}

// Release gives back the pass's part of the arena. Passes are released in the reverse order of their Forward.
func (p *Pass) Release() { p.a.Release(p.start) }

// forwardThrough computes the first n layers, in x and a buffer that it gives back.
func (p *Pass) forwardThrough(x gpustage.Tensor, n int) {
	if n == 0 {
		return
	}
	start := p.a.Mark()
	from, to := x, p.scratch(x.Rows, x.Cols)
	for l := range n {
		mark := p.a.Mark()
		p.layer(l, from, to, false)
		p.a.Release(mark)
		from, to = to, from
	}
	if n%2 == 1 {
		p.s.Copy(x, from)
	}
	p.a.Release(start)
}

// forwardLayers computes all layers and keeps their activations, or with activation checkpointing the inputs of its segments: from the
// lowest layer on in which something trains.
func (p *Pass) forwardLayers(x gpustage.Tensor) gpustage.Tensor {
	every, first := p.m.Options.CheckpointEvery, p.m.Lowest()
	p.forwardThrough(x, first)
	if every == 0 {
		var norms passing // outputs that are norms
		p.layers = make([]layerActs, first)
		for l := first; l < p.m.Config.Layers; l++ {
			var y gpustage.Tensor
			if p.m.w.layers[l].ffn.sum.absent() {
				y = p.keep(x.Rows, x.Cols)
			} else {
				y = norms.output(p, l, x)
			}
			a := p.layer(l, x, y, true)
			if l > first && !p.m.w.layers[l-1].ffn.sum.absent() {
				a.x = gpustage.Tensor{}
			}
			p.layers = append(p.layers, a)
			x = y
		}
		return x
	}
	for l := first; l < p.m.Config.Layers; l += every {
		p.inputs = append(p.inputs, x)
		if p.soon && l+every >= p.m.Config.Layers {
			p.carry()
			p.closeRoom()
			p.a.ReleaseScratch(p.beforeRoom)
			p.behind = p.a.Mark()
			p.ahead, x = p.recompute(l, p.m.Config.Layers, x)
			break
		}
		y := p.a.Keep(p.s, p.m.DType, x.Rows, x.Cols)
		x = p.segment(l, min(l+every, p.m.Config.Layers), x, y)
	}
	return x
}

// segment computes layers from to to-1 and leaves the last one's output in y. What a layer takes besides is given back before the next.
func (p *Pass) segment(from, to int, x, y gpustage.Tensor) gpustage.Tensor {
	start := p.a.Mark()
	var between passing
	for l := from; l < to; l++ {
		out := y
		if l < to-1 {
			out = between.output(p, l, x)
		}
		mark := p.a.Mark()
		p.layer(l, x, out, false)
		p.a.Release(mark)
		x = out
	}
	p.a.Release(start)
	return y
}

// passing is room for the outputs of layers that only the next layer reads.
type passing [2]gpustage.Tensor

// output is layer l's, of x's shape.
func (ys *passing) output(p *Pass, l int, x gpustage.Tensor) gpustage.Tensor {
	if ys[l%2].IsZero() {
		ys[l%2] = p.scratch(x.Rows, x.Cols)
	}
	return ys[l%2]
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
	return gpustage.Dropout{P: p.m.Config.dropout(site), Seqs: p.in.seqs, Layer: layer, Site: site}
}

// outputDropout is what drops of the last layer's output, behind its norm.
func (p *Pass) outputDropout() gpustage.Dropout {
	return p.dropout(p.m.Config.Layers, gpustage.SiteOutput)
}

// dropped is d through a dropout, or its backward, in scratch memory of a type; where nothing drops it is d itself.
func (p *Pass) dropped(d gpustage.Tensor, drop gpustage.Dropout, kind gpustage.DType) gpustage.Tensor {
	if !drop.Active() {
		return d
	}
	out := p.a.Scratch(p.s, kind, d.Rows, d.Cols)
	p.s.Dropout(out, d, gpustage.Tensor{}, drop)
	return out
}

// Gradients is where a backward pass adds its gradients.
type Gradients struct {
	Flat gpustage.Tensor // like the model's Trained

	// Layer, if not nil, gives memory for the gradients of each layer in which something trains when the pass comes to it, as
	// Layout.Span(l) has them; Rest is for what trains outside of layers, but for the word embeddings. Flat is not used then, and
	// WordRows must be there if the word embeddings train.
	Layer func(l int) gpustage.Tensor
	Rest  gpustage.Tensor

	// WordRows, if not zero, takes the word embeddings' gradient in Flat's place: [U, E0], a row for each distinct token id of
	// the sub-batch. WordIndex, i32 [1, T], is each token's row in it; behind them come those of Scorer.Tokens, where the word
	// embeddings are the head's as well (Tied).
	WordRows, WordIndex gpustage.Tensor

	// Done, if not nil, is called with each of the layout's marks in turn, when nothing more will be added to the gradients of
	// parameters in layers from that mark on. After the last mark all gradients are complete.
	Done func(mark int)
}

// done tells that a part of a layer is, if there is a mark for it.
func (p *Pass) done(to Gradients, layer, part int) {
	if to.Done == nil {
		return
	}
	for _, m := range p.m.Layout.marks {
		if m.layer == layer && m.part == part {
			to.Done(m.at)
		}
	}
}

// Backward adds the gradient of the loss, given its gradient with respect to the embeddings, the first part, to grads (a flat vector
// like Trained). dEmbeddings, of the shape of Embeddings, is left as it is. The pass can't be used afterwards but to be released.
func (p *Pass) Backward(dEmbeddings, grads gpustage.Tensor) {
	p.BackwardTo([]gpustage.Tensor{dEmbeddings}, Gradients{Flat: grads})
}

// BackwardTo is Backward for those who reduce gradients while it runs, and whose loss sees more than one part: the gradient of each,
// as Parts has them.
func (p *Pass) BackwardTo(dParts []gpustage.Tensor, to Gradients) {
	mark := p.a.Mark()
	defer p.a.Release(mark)
	if p.isWeighed {
		p.backwardWeighed(dParts[0], to)
		return
	}
	if p.d.IsZero() {
		p.carry()
	}
	dParts = p.widen(dParts)
	if to.Done != nil || to.Layer != nil {
		p.computeBackward(dParts, to)
		return
	}
	p.repeat(func() { p.computeBackward(dParts, to) })
}

// computeBackward is a backward pass's ops.
func (p *Pass) computeBackward(dParts []gpustage.Tensor, to Gradients) {
	s, m, dEmbeddings := p.s, p.m, dParts[0]
	g := m.gradients(to)
	layers := m.Config.Layers
	d, dNormal := p.d, dEmbeddings
	if !m.Config.Scorer.None() {
		dNormal = p.dNormal
		p.scoreBackward(dNormal, dEmbeddings.Columns(0, 1), &g, to)
		p.belowBackward(dEmbeddings, &g)
	} else if m.Head.Normalize {
		dNormal = p.dNormal
		s.NormalizeBackward(dNormal, dEmbeddings, p.embeddings, p.length)
	}
	dPooled := p.denseBackward(dNormal, g.dense)
	if p.bags != nil || p.own.tokens == 0 {
		if m.bottom < 0 && p.own.tokens > 0 {
			word, index := p.wordGradient(g, to)
			p.bags.BagBackward(word, dPooled, index, p.in.seqs)
		}
		p.doneOutside(to)
		return
	}
	p.poolBackward(d, dPooled, &g)
	if len(dParts) > 1 {
		p.tokensBackward(d, dParts[1], dParts[2], g.tokens)
	}
	if n := m.w.finalNorm; !n.absent() {
		if o := p.outputDropout(); o.Active() {
			s.Dropout(d, d, gpustage.Tensor{}, o)
		}
		p.normBackward(n, g.finalNorm, d, d, p.final, p.last)
	}
	if bias := p.in.distances.gradient; !bias.IsZero() {
		s.Fill(bias, 0)
	}
	if far := p.in.reached.gradient; !far.IsZero() {
		s.Fill(far, 0)
	}

	if every := m.Options.CheckpointEvery; every > 0 {
		for k := len(p.inputs) - 1; k >= 0; k-- {
			from := m.Lowest() + k*every
			end := min(from+every, layers)
			segment, acts := p.a.Mark(), p.ahead
			if end == layers && acts != nil {
				segment = p.behind
			} else {
				acts, _ = p.recompute(from, end, p.inputs[k])
			}
			for l := end - 1; l >= from; l-- {
				p.untap(l, d)
				p.layerBackward(l, acts[l-from], d, g.layer(l), to)
				p.done(to, l, partQKV)
			}
			p.a.Release(segment)
		}
	} else {
		for l := layers - 1; l >= m.Lowest(); l-- {
			p.untap(l, d)
			p.layerBackward(l, p.layers[l], d, g.layer(l), to)
			p.done(to, l, partQKV)
		}
	}
	p.relativeBackward(g.relative)
	p.reachBackward(&g)
	if m.bottom < 0 {
		var index gpustage.Tensor
		g.word, index = p.wordGradient(g, to)
		p.embedTokensBackward(d, g, index)
	}
	p.doneOutside(to)
}

// wordGradient is where the word embeddings' gradient goes, and each token's row in it, but for padding's, whose gradient is zero.
func (p *Pass) wordGradient(g weights, to Gradients) (word, index gpustage.Tensor) {
	if !to.WordRows.IsZero() { // it has no rows for padding
		return to.WordRows, to.WordIndex.Columns(0, p.own.tokens)
	}
	return g.word, p.in.ids
}

// doneOutside tells that the gradients outside of layers are complete.
func (p *Pass) doneOutside(to Gradients) {
	if from, end := p.m.Layout.Span(Outside); from < end && to.Done != nil {
		to.Done(from)
	}
}

// carry takes room for what a backward pass has throughout.
func (p *Pass) carry() {
	c := p.m.Config.Hidden
	if p.bags == nil {
		p.d = p.keep(p.in.seqs.Tokens, c)
	}
	if !p.m.Config.Scorer.None() {
		p.dNormal = p.keep(p.in.seqs.Rows, c)
		if x := &p.scoring.below; !x.ends.IsZero() {
			x.d = p.keep(x.states.Rows, c)
		}
	} else if p.m.Head.Normalize {
		p.dNormal = p.keep(p.embeddings.Rows, p.m.EmbeddingSize())
	}
	p.carryDense()
	if r := &p.in.distances; p.m.biasTrains {
		r.gradient = p.keep(r.bias.Rows, r.bias.Cols)
	}
	if r := &p.in.reached; p.m.farTrains {
		r.gradient = p.keep(r.x.Rows, r.x.Cols)
	}
}

// recompute runs layers from to to-1 and keeps what their backward needs; it returns the last one's output as well.
func (p *Pass) recompute(from, to int, x gpustage.Tensor) ([]layerActs, gpustage.Tensor) {
	if p.room.IsZero() { // not within a forward pass
		p.openRoom(x)
		defer func() {
			p.closeRoom()
			p.a.ReleaseScratch(p.beforeRoom)
		}()
	}
	var acts []layerActs
	for l := from; l < to; l++ {
		y := p.keep(x.Rows, x.Cols)
		a := p.layer(l, x, y, true)
		if l > from {
			if taken := acts[l-1-from].ffn.operand; !taken.IsZero() {
				a.x = taken
			}
		}
		acts = append(acts, a)
		x = y
	}
	return acts, x
}

// place is a place in a forward pass: before the layers it is negative, then each layer has those below.
type place int

const (
	inPlace        place = iota // the attention's input norm
	attentionPlace              // query, key and value
	outPlace                    // the attention's projection, and the norms behind it
	ffnPlace                    // the feed-forward layer's input norm
	upPlace
	downPlace // its second projection, and the norms behind it
	places
)

func at(layer int, p place) place { return place(layer)*places + p }

// findBottom is the lowest place at which something trains: a backward pass goes no deeper.
func (m *Model) findBottom() place {
	g, c := m.shapes(), m.Config
	here := func(ts ...gpustage.Tensor) bool {
		return slices.ContainsFunc(ts, func(t gpustage.Tensor) bool { return !t.IsZero() })
	}
	if here(g.word, g.position, g.kind, g.task, g.embedNorm.gamma) || c.projects() && (g.project.trains() || here(g.project.b)) {
		return -1
	}
	if here(g.relative, g.distances, g.distancesNorm.gamma) { // all layers add to it
		return at(0, attentionPlace)
	}
	for l, w := range g.layers {
		switch {
		case here(w.attn.in.gamma):
			return at(l, inPlace)
		case w.qkv.trains() || w.distances.trains() || here(w.queryNorm.gamma, w.keyNorm.gamma):
			return at(l, attentionPlace)
		case w.out.trains() || here(w.attn.out.gamma, w.attn.sum.gamma, w.attnAgain.gamma):
			return at(l, outPlace)
		case here(w.ffn.in.gamma):
			return at(l, ffnPlace)
		case w.up.trains():
			return at(l, upPlace)
		case w.down.trains() || here(w.ffn.out.gamma, w.ffn.sum.gamma):
			return at(l, downPlace)
		}
	}
	return at(m.Config.Layers, inPlace) // the final norm, or dense layers, alone
}

// Lowest is the lowest layer that a backward pass enters: in layers below nothing trains.
func (m *Model) Lowest() int { return int(max(0, m.bottom) / places) }

// ends tells that nothing below a place trains.
func (p *Pass) ends(layer int, here place) bool { return p.m.bottom >= at(layer, here) }
