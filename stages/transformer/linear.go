package transformer

import (
	"errors"

	"contraflow/gpustage"
)

// linear is y = x Wᵀ + b: its parameters, or their gradients.
type linear struct {
	w     gpustage.Tensor // [out, in]
	b     gpustage.Tensor // [1, out]
	forms *gpustage.Forms // of w; nil for gradients
}

func (l *Layout) linear(flat gpustage.Tensor, name string) linear {
	return linear{w: l.named(flat, name+".weight"), b: l.named(flat, name+".bias")}
}

// formsLimit is how many bytes of a model's weights are kept a second time in the form that products like (512 MiB: all of
// BERT-base's for the forward pass). It pays where products have few rows; see package cpu.
const formsLimit = 512 << 20

// keepForms gives every linear layer's weight its forms.
func (w *weights) keepForms(v *gpustage.Version) {
	for i := range w.layers {
		l := &w.layers[i]
		for _, x := range []*linear{&l.qkv, &l.out, &l.up, &l.down} {
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
		for _, x := range []linear{l.qkv, l.out, l.up, l.down} {
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
	p.s.ColumnSum(g.b, dy)
}

func (p *Pass) weightGradient(g linear, dy, x gpustage.Tensor) {
	p.s.MatMul(g.w, dy, x, gpustage.MatMul{TransA: true, Add: true, BF16: p.m.Options.BF16})
}
