package transformer

import (
	"encoding/json"
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// A layer-wise reranker scores by one of its layers, and trains by all of them at once: what a pass gives of a sequence is then a row of scores
// [1, layers], the last layer's first. The hidden state of a sequence's last token is taken behind each of the layers below the last (tap), goes
// through the final norm, which all share, and through that layer's head. On the way back its gradient enters where it was taken (untap), so
// that there is one walk through the layers, whatever is kept or computed again. Rows alone are taken, not tokens: all of it is small.

// layerHeads are the heads that config.json tells of.
type layerHeads struct {
	start int  // the lowest layer that has one; 0 is the embeddings' output, which is no layer here
	multi bool // each layer has its own
}

func parseLayerHeads(raw []byte) (layerHeads, error) {
	h := layerHeads{start: 8, multi: true}
	s := miniCPMConfig{StartLayer: &h.start, HeadMulti: &h.multi, HeadType: "simple"}
	err := json.Unmarshal(raw, &s)
	switch {
	case err != nil:
		return h, fmt.Errorf("config.json: %w", err)
	case s.StartLayer == nil:
		return h, errors.New("config.json: start_layer is null, want the lowest layer that has a score")
	case s.HeadMulti == nil:
		return h, errors.New("config.json: head_multi is null, want true or false")
	case s.HeadType != "simple":
		return h, fmt.Errorf("config.json: head_type %q is %w: a head gives one score", s.HeadType, ErrUnsupported)
	}
	return h, nil
}

// first is the lowest layer that has a head, counted from 1.
func (h layerHeads) first() int { return max(1, h.start) }

// name is that of a layer's head.
func (h layerHeads) name(layer int) string {
	if h.multi {
		return fmt.Sprintf("lm_head.%d.linear_head", layer-h.start)
	}
	return "lm_head.linear_head"
}

// LayerScorer is the head of a layer-wise reranker, and the layer, counted from 1, whose output it scores: layer, or the last if that is 0.
// The model ends there: its last token goes through the final norm, which all layers share, and through the layer's own head, or the one
// that all share. FlagEmbedding calls layer cutoff_layers.
func (c Config) LayerScorer(raw []byte, layer int) (h Scorer, cutoff int, err error) {
	heads, err := parseLayerHeads(raw)
	if err != nil {
		return h, 0, err
	}
	if cutoff = layer; layer == 0 {
		cutoff = c.Layers
	}
	if cutoff < heads.first() || cutoff > c.Layers {
		return h, 0, fmt.Errorf("layer %d has no score: those of layers %d to %d have", cutoff, heads.first(), c.Layers)
	}
	return Scorer{Pooling: gpustage.LastPooling, Out: heads.name(cutoff)}, cutoff, nil
}

// LayerScorers are the heads of all layers of a layer-wise reranker that have one: with them a model gives [B, layers] scores, the last layer's
// first, each as LayerScorer's would be. Heads of their own below layer 1 are an error: what trains would be saved without them.
func (c Config) LayerScorers(raw []byte) (h Scorer, err error) {
	heads, err := parseLayerHeads(raw)
	if err != nil {
		return h, err
	}
	if heads.multi && heads.start < 1 {
		return h, fmt.Errorf("config.json: with start_layer %d and head_multi there are heads below layer 1, of the embeddings' output, which are not trained, and "+
			"would be lost in what is saved: such a model can only score, one with start_layer 1 or more is trained", heads.start)
	}
	h, last, err := c.LayerScorer(raw, 0)
	if err != nil {
		return h, err
	}
	for l := last - 1; l >= heads.first(); l-- {
		h.Below = append(h.Below, heads.name(l))
	}
	return h, nil
}

// Scores is how many a sequence has.
func (h Scorer) Scores() int { return 1 + len(h.Below) }

// belowActs are the scores of layers below the last, n of them, those of the last but one first.
type belowActs struct {
	ends   gpustage.Tensor // i32 [1, B]: each sequence's last token
	states gpustage.Tensor // [n*B, C]: its hidden states
	stats  stats
	in     gpustage.Tensor    // [n*B, C]: what the heads take
	d      gpustage.Tensor    // [n*B, C]: the gradient of states
	drops  []gpustage.Dropout // of in
}

// openBelow takes room for them, at the arena's bottom.
func (p *Pass) openBelow(r Rows) {
	h, a := p.m.Config.Scorer, &p.scoring
	n := len(h.Below) * r.Len()
	if n == 0 {
		return
	}
	ends := make([]int32, r.Len())
	for b := range ends {
		ends[b] = r.Cu[b+1] - 1
	}
	x := &a.below
	x.ends = p.a.Keep(p.s, gpustage.I32, 1, len(ends))
	p.s.CopyIn(x.ends, gpustage.Bytes(ends))
	x.states, x.in = p.keep(n, p.m.Config.Hidden), p.keep(n, p.m.Config.Hidden)
	x.stats = p.keepStats(p.m.w.finalNorm, x.states)
	for j := range h.Below {
		drop := a.dropOut
		drop.Layer += 1 + j // where there is none: the masks are their own
		x.drops = append(x.drops, drop)
	}
}

// below is which of them layer l has, counted from 0; ok is false where it has none.
func (c Config) below(l int) (j int, ok bool) {
	j = c.Layers - 2 - l
	return j, j >= 0 && j < len(c.Scorer.Below)
}

// of are those rows of x that belong to score j.
func (a belowActs) of(x gpustage.Tensor, j int) gpustage.Tensor {
	return x.Span(j*a.ends.Cols, (j+1)*a.ends.Cols)
}

// tap takes what the score of layer l is made of from its output y [T, C].
func (p *Pass) tap(l int, y gpustage.Tensor) {
	if j, ok := p.m.Config.below(l); ok {
		a := p.scoring.below
		p.s.Gather(a.of(a.states, j), y, a.ends, false)
	}
}

// untap adds to d [T, C], the gradient of layer l's output, what comes of its score.
func (p *Pass) untap(l int, d gpustage.Tensor) {
	if j, ok := p.m.Config.below(l); ok {
		a := p.scoring.below
		p.s.ScatterAdd(d, a.of(a.d, j), a.ends)
	}
}

// scoreBelow computes scores [B, 1+n] but for the first.
func (p *Pass) scoreBelow() {
	a := p.scoring.below
	if a.ends.IsZero() {
		return
	}
	p.norm(p.m.w.finalNorm, a.in, a.stats, a.states)
	for j, head := range p.m.w.score.below {
		x := a.of(a.in, j)
		if a.drops[j].Active() {
			p.s.Dropout(x, x, gpustage.Tensor{}, a.drops[j])
		}
		p.forward(head, p.embeddings.Columns(1+j, 2+j), x, gpustage.MatMul{})
	}
}

// belowBackward makes the gradients that untap adds, and adds the heads' and the final norm's to g.
func (p *Pass) belowBackward(dScores gpustage.Tensor, g *weights) {
	a := p.scoring.below
	if a.ends.IsZero() {
		return
	}
	mark := p.a.Mark()
	defer p.a.Release(mark)
	for j, head := range p.m.w.score.below {
		dy, d := dScores.Columns(1+j, 2+j), a.of(a.d, j)
		head = p.narrow(head, dy)
		p.gradients(head, g.score.below[j], dy, a.of(a.in, j))
		p.backward(head, d, dy, gpustage.MatMul{})
		if a.drops[j].Active() {
			p.s.Dropout(d, d, gpustage.Tensor{}, a.drops[j])
		}
	}
	p.normBackward(p.m.w.finalNorm, g.finalNorm, a.d, a.d, a.stats, a.states)
}
