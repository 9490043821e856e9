package transformer

import (
	"strings"

	"contraflow/gpustage"
)

// Dense layers, between pooling and normalization, are a few products over [B, C]: what they need is kept from the start, at the bottom of
// a pass's part of the arena, whether it goes backward or not.

// denseSuffix is the layer within sentence-transformers' module.
const denseSuffix = ".linear"

// IsDense tells whether a parameter is of a dense layer: of the head, which learns where the rest may be frozen.
func (c Config) IsDense(p Param) bool {
	for _, d := range c.Dense {
		if strings.HasPrefix(p.Name, d.Name+denseSuffix+".") {
			return true
		}
	}
	return false
}

// denseActs is what a dense layer's backward needs, and has.
type denseActs struct {
	x, pre, y gpustage.Tensor // [B, in], [B, out]: its input, its activation's (absent for the identity), its output
	dx, dz    gpustage.Tensor // like x and pre
}

// openDense makes room for the layers, the last of which gives what is normalized, and for their input.
func (p *Pass) openDense(b int) {
	p.pooled = p.projected
	all := p.m.Config.Dense
	if len(all) == 0 {
		return
	}
	p.pooled = p.keep(b, p.m.Config.Hidden)
	x := p.pooled
	for i, d := range all {
		a := denseActs{x: x, y: p.projected}
		if i < len(all)-1 {
			a.y = p.keep(b, d.Out)
		}
		if d.Activation != gpustage.Identity {
			a.pre = p.keep(b, d.Out)
		}
		p.dense = append(p.dense, a)
		x = a.y
	}
}

func (p *Pass) forwardDense() {
	for i, a := range p.dense {
		p.forward(p.m.w.dense[i], a.y, a.x, gpustage.MatMul{PreAct: a.pre, Act: p.m.Config.Dense[i].Activation})
	}
}

// carryDense takes room for the backward pass.
func (p *Pass) carryDense() {
	for i := range p.dense {
		a := &p.dense[i]
		a.dx = p.keep(a.x.Rows, a.x.Cols)
		if !a.pre.IsZero() {
			a.dz = p.keep(a.pre.Rows, a.pre.Cols)
		}
	}
}

// denseBackward gives the gradient of what is pooled from that of what is normalized, which it leaves as it is.
func (p *Pass) denseBackward(d gpustage.Tensor, g []linear) gpustage.Tensor {
	for i := len(p.dense) - 1; i >= 0; i-- {
		a, w := p.dense[i], p.m.w.dense[i]
		if !a.pre.IsZero() {
			p.s.ActivateBackward(a.dz, d, a.pre, p.m.Config.Dense[i].Activation)
			d = a.dz
		}
		p.gradients(w, g[i], d, a.x)
		p.backward(w, a.dx, d, gpustage.MatMul{})
		d = a.dx
	}
	return d
}

// denseIn is how many features go into the layer that a parameter is of.
func (m *Model) denseIn(p Param) int {
	w, _ := m.Layout.Find(p.Module() + ".weight")
	return w.Cols
}
