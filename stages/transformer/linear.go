package transformer

import (
	"errors"

	"contraflow/gpustage"
)

// linear is y = x Wᵀ + b: its parameters, or their gradients. Everything that a model does with a projection goes through the
// four methods of Pass below; what trains in a projection's place, as LoRA's factors do, belongs into them.
type linear struct {
	w     gpustage.Tensor // [out, in]
	b     gpustage.Tensor // [1, out]; absent without a bias
	forms *gpustage.Forms // of w; nil for gradients
}

// formsLimit is how many bytes of a model's weights are kept a second time in the form that products like (512 MiB: all of
// BERT-base's for the forward pass). It pays where products have few rows; see package cpu.
const formsLimit = 512 << 20

func (l *layerWeights) linears() [4]*linear { return [...]*linear{&l.qkv, &l.out, &l.up, &l.down} }

// keepForms gives every linear layer's weight its forms.
func (w *weights) keepForms(v *gpustage.Version) {
	for i := range w.layers {
		for _, x := range w.layers[i].linears() {
			x.forms = v.Forms()
		}
	}
}

// Changed must follow, on the same stream, whatever writes Params.
func (m *Model) Changed() { m.version.Changed() }

// Free gives the parameters back.
func (m *Model) Free() error { return errors.Join(m.version.Free(), m.Params.Mem.Free()) }

// PackedBytes bounds what the model's device keeps of its weights besides Params, when it only embeds or also trains.
func (m *Model) PackedBytes(train bool) int64 {
	d, ok := m.Device.(gpustage.Packer)
	if !ok || m.DType != gpustage.F32 {
		return 0
	}
	n := int64(0)
	for _, l := range m.w.layers {
		for _, x := range l.linears() {
			n += int64(d.PackedBytes(x.w.Cols, x.w.Rows, m.Options.BF16))
			if train {
				n += int64(d.PackedBytes(x.w.Rows, x.w.Cols, m.Options.BF16))
			}
		}
	}
	return min(n, formsLimit)
}

// forward is y = x Wᵀ + b, followed by what else o says.
func (p *Pass) forward(l linear, y, x gpustage.Tensor, o gpustage.MatMul) {
	o.TransB, o.Bias, o.Forms, o.BF16 = true, l.b, l.forms, p.m.Options.BF16
	p.s.MatMul(y, x, l.w, o)
}

// backward is dx = dy W, followed by what else o says.
func (p *Pass) backward(l linear, dx, dy gpustage.Tensor, o gpustage.MatMul) {
	o.Forms, o.BF16 = l.forms, p.m.Options.BF16
	p.s.MatMul(dx, dy, l.w, o)
}

// gradients adds dW = dyᵀ x and db = the column sum of dy to g.
func (p *Pass) gradients(g linear, dy, x gpustage.Tensor) {
	p.weightGradient(g, dy, x)
	p.biasGradient(g, dy, 0, dy.Cols)
}

func (p *Pass) weightGradient(g linear, dy, x gpustage.Tensor) {
	p.s.MatMul(g.w, dy, x, gpustage.MatMul{TransA: true, Add: true, BF16: p.m.Options.BF16})
}

// biasGradient is for the bias's elements lo to hi.
func (p *Pass) biasGradient(g linear, dy gpustage.Tensor, lo, hi int) {
	if !g.b.IsZero() {
		p.s.ColumnSum(g.b.Columns(lo, hi), dy.Columns(lo, hi))
	}
}
