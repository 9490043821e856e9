package transformer

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// A model may hold a part of its parameters and be fed the rest: layer by layer, just before each is used, and of the word
// embeddings the rows of a sub-batch's tokens alone. What is outside of layers, but for the word embeddings, is small and stays, in
// Rest: whoever changes parameters brings it up to date.
//
// Such a model has no packed forms of its weights: they would be as large as what is not there.

// Feed gives passes the parameters that a model does not hold.
type Feed interface {
	// Words is a table with all rows of the word embeddings that a pass needs, [U, E0], and each token's row in it, i32 [1, T].
	// Both are valid until the next call of the feed.
	Words(s gpustage.Stream) (table, index gpustage.Tensor)
	// Layer is layer l's parameters, as Layout.Part(l) has them, valid until the next call of the feed. A pass asks for layers
	// in the order that Visits says. What can't be had is an error of the stream.
	Layer(s gpustage.Stream, l int) gpustage.Tensor
}

// partial is what a model has besides if it holds a part of its parameters.
type partial struct {
	Feed Feed
	Rest gpustage.Tensor // [1, n]: what is outside of layers, but for the word embeddings, as Layout.Part(Outside) has it

	own  [][2]int
	lead int             // elements of Params in front that are frozen
	sums gpustage.Tensor // [Layers, 2C]: weights and biases of norms that end layers, which the layer above needs in its backward
}

// Partial tells whether the model holds a part of its parameters only.
func (m *Model) Partial() bool { return m.own != nil }

func (m *Model) openPartial(own [][2]int) error {
	m.version, m.constant = gpustage.NewVersion(0), gpustage.NewVersion(0)
	if len(m.Config.Scorer.Tied()) > 0 {
		return errors.New("streamed parameters (mesh.parameters) are not for a score that is the logits of word embeddings: keep them resident, or give it a head of its own (model.head: classifier)")
	}
	if m.Config.Queries.There {
		return errors.New("streamed parameters (mesh.parameters) are not for a model whose queries are weights of tokens: keep them resident")
	}
	if m.Config.TiedDecoder() {
		return errors.New("streamed parameters (mesh.parameters) are not for sparse embeddings whose decoder is the word embeddings, all of which a pass reads: keep them resident")
	}
	n := 0
	for _, r := range own {
		n += r[1] - r[0]
		m.lead += max(0, min(r[1], m.Layout.Frozen)-r[0])
	}
	m.own = own
	rest := m.Layout.Part(Outside)
	shape, _ := gpustage.NewTensor(gpustage.Dry{}, m.DType, 1, m.Layout.Len)
	shapes := m.Config.weights(m.Layout, shape)
	type room struct {
		of         *gpustage.Tensor
		rows, cols int
	}
	rooms := []room{{&m.Params, 1, n}, {&m.Rest, 1, rest.Len}}
	if m.Config.Layers > 0 && !shapes.layers[0].ffn.sum.absent() {
		rooms = append(rooms, room{&m.sums, m.Config.Layers, 2 * m.Config.Hidden})
	}
	for _, r := range rooms {
		var err error
		if *r.of, err = gpustage.NewTensor(m.Device, m.DType, r.rows, r.cols); err != nil {
			return fmt.Errorf("%d of a model's %d parameters: %w", n, m.Layout.Len, err)
		}
	}
	m.w = m.Config.outside(rest, m.Rest)
	m.w.word, m.w.layers = shapes.word, shapes.layers // passes get them from Feed
	m.bottom = m.findBottom()
	return nil
}

// PartialBytes is what the model holds besides Params.
func (m *Model) PartialBytes() (n int64) {
	for _, t := range []gpustage.Tensor{m.Rest, m.sums} {
		if !t.IsZero() {
			n += int64(t.Mem.Bytes())
		}
	}
	return n
}

// keepOwn copies what the model holds of a parameter.
func (m *Model) keepOwn(s gpustage.Stream, p Param, vs []float32) error {
	at := 0
	keep := func(r [2]int, to gpustage.Tensor) {
		if lo, hi := max(p.Off, r[0]), min(p.Off+p.Len(), r[1]); lo < hi {
			m.write(s, to.Columns(lo-r[0], hi-r[0]), vs[lo-p.Off:hi-p.Off])
		}
	}
	for _, r := range m.own {
		keep(r, m.Params.Columns(at, at+r[1]-r[0]))
		at += r[1] - r[0]
	}
	rest := m.Layout.Part(Outside)
	if p, ok := rest.Find(p.Name); ok {
		m.write(s, rest.View(m.Rest, p), vs)
	}
	return s.Sync()
}

// shapes are views of a gradient that is not there: what does not train has none.
func (m *Model) shapes() weights {
	flat, _ := gpustage.NewTensor(gpustage.Dry{}, m.DType, 1, m.Layout.Trained())
	return m.Config.weights(m.Layout, flat)
}

// gradients views where gradients go.
func (m *Model) gradients(to Gradients) weights {
	if to.Layer == nil {
		return m.Config.weights(m.Layout, to.Flat)
	}
	w := m.Config.outside(m.Layout.Part(Outside), to.Rest)
	w.later = func(l int) layerWeights {
		var flat gpustage.Tensor
		part := m.Layout.Part(l)
		if part.Trained() > 0 {
			flat = to.Layer(l)
		}
		return m.Config.layer(part, flat, l)
	}
	return w
}

// weights are layer l's.
func (p *Pass) weights(l int) layerWeights {
	m := p.m
	if m.Feed == nil {
		return m.w.layers[l]
	}
	return m.Config.layer(m.Layout.Part(l), m.Feed.Layer(p.s, l), l)
}

// words are rows of the word embeddings, and the row of each token.
func (p *Pass) words() (table, index gpustage.Tensor) {
	if p.m.Feed == nil {
		return p.m.w.word, p.in.ids
	}
	return p.m.Feed.Words(p.s)
}

// keepSum keeps the norm that ends a layer for sumNorm.
func (p *Pass) keepSum(l int, w layerWeights) {
	if p.m.sums.IsZero() {
		return
	}
	kept := p.sumNorm(l)
	p.s.Copy(kept.gamma, w.ffn.sum.gamma)
	if !kept.beta.IsZero() {
		p.s.Copy(kept.beta, w.ffn.sum.beta)
	}
}

// sumNorm is the norm that ends a layer, or absent.
func (p *Pass) sumNorm(l int) norm {
	n, c := p.m.w.layers[l].ffn.sum, p.m.Config.Hidden
	if p.m.sums.IsZero() {
		return n
	}
	row := p.m.sums.Span(l, l+1)
	kept := norm{gamma: row.Columns(0, c)}
	if !n.beta.IsZero() {
		kept.beta = row.Columns(c, 2*c)
	}
	return kept
}

// VisitWords stands for the word embeddings in Visits, which are not all that is Outside of layers.
const VisitWords = -2

// Visits lists what a sub-batch's passes ask a Feed for, in their order: those of a forward pass (kept or not), of its backward
// pass, or of a replay and its backward pass. A layer that is asked for twice in a row comes once.
func (m *Model) Visits(forward, backward bool) (layers []int) {
	visit := func(l int) {
		if n := len(layers); n == 0 || layers[n-1] != l {
			layers = append(layers, l)
		}
	}
	last, lowest := m.Config.Layers-1, m.Lowest()
	if forward {
		visit(VisitWords)
		for l := range last + 1 {
			visit(l)
		}
	}
	if !backward {
		return layers
	}
	every := m.Options.CheckpointEvery
	if every == 0 {
		for l := last; l >= lowest; l-- {
			visit(l)
		}
		return layers
	}
	for from := last - (last-lowest)%every; from >= lowest; from -= every {
		end := min(from+every, last+1)
		for l := from; l < end && !(forward && end == last+1); l++ { // a replay leaves the last segment
			visit(l)
		}
		for l := end - 1; l >= from; l-- {
			visit(l)
		}
	}
	return layers
}
