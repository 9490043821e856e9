package transformer

import (
	"errors"

	"contraflow/gpustage"
)

// linear is y = x Wᵀ + b, and with LoRA's factors what they add: its parameters, or their gradients, where what is frozen is absent.
// Everything that a model does with a projection goes through the methods of Pass below.
type linear struct {
	w       gpustage.Tensor // [out, in]
	b       gpustage.Tensor // [1, out]; absent without a bias
	factors []factors       // at most one pair for each projection that is computed here
	forms   *gpustage.Forms // of w; nil for gradients
	ofBias  *gpustage.Forms // of b

	narrow  []gpustage.Tensor // in a backward pass, of each pair: s dy B [T, r]
	rounded *gpustage.Rounded // there, dy's; nil where the device wants none
}

// factors are LoRA's of one projection, which gives features lo to hi of the product that it is part of.
type factors struct {
	a, b   gpustage.Tensor // [r, in], [hi-lo, r]
	lo, hi int
	layer  int
	site   gpustage.Site
	still  bool // nothing drops of what they take
}

// factors finds those of projections that lie side by side.
func (l *Layout) factors(flat gpustage.Tensor, prefix string, names []string) (out []factors) {
	at := 0
	for _, name := range names {
		w, _ := l.Find(prefix + name + ".weight")
		if a, ok := l.Find(prefix + name + loraASuffix + ".weight"); ok {
			b, _ := l.Find(prefix + name + loraBSuffix + ".weight")
			out = append(out, factors{
				a: l.View(flat, a), b: l.View(flat, b), lo: at, hi: at + w.Rows, layer: a.Layer, site: gpustage.SiteLoRA.Of(a.slot),
			})
		}
		at += w.Rows
	}
	return out
}

// trains tells whether a projection's gradient g is wanted, but for its bias.
func (g linear) trains() bool { return !g.w.IsZero() || len(g.factors) > 0 }

// formsLimit is how many bytes of a model's weights are kept a second time in the form that products like (512 MiB: all of
// BERT-base's for the forward pass). It pays where products have few rows; see package cpu.
const formsLimit = 512 << 20

func (l *layerWeights) linears() [4]*linear { return [...]*linear{&l.qkv, &l.out, &l.up, &l.down} }

// keepForms gives every linear layer's weight its forms: those of frozen ones are made once, those of the others after every change.
func (m *Model) keepForms() {
	m.version, m.constant = gpustage.NewVersion(formsLimit), gpustage.NewVersion(formsLimit)
	g := m.shapes()
	for i := range m.w.layers {
		gs := g.layers[i].linears()
		for k, x := range m.w.layers[i].linears() {
			x.forms, x.ofBias = m.versionOf(gs[k].w).Forms(), m.versionOf(gs[k].b).Forms()
		}
	}
}

// versionOf is that of a parameter whose gradient is g.
func (m *Model) versionOf(g gpustage.Tensor) *gpustage.Version {
	if g.IsZero() {
		return m.constant
	}
	return m.version
}

// changedAll must follow, on the same stream, what writes any parameters: see Change.
func (m *Model) changedAll() {
	m.version.Changed()
	m.constant.Changed()
}

// Free gives the parameters back.
func (m *Model) Free() error {
	errs := []error{m.version.Free(), m.constant.Free()}
	for _, t := range []gpustage.Tensor{m.Params, m.Rest, m.sums} {
		if !t.IsZero() {
			errs = append(errs, t.Mem.Free())
		}
	}
	return errors.Join(errs...)
}

// PackedBytes bounds what the model's device keeps of its weights besides Params, when it only embeds or also trains: nothing of a part of
// the parameters.
func (m *Model) PackedBytes(train bool) int64 {
	if m.Partial() {
		return 0
	}
	return m.ResidentPackedBytes(train)
}

// ResidentPackedBytes is PackedBytes where the model holds all of its parameters.
func (m *Model) ResidentPackedBytes(train bool) int64 {
	d, ok := m.Device.(gpustage.Packer)
	if !ok || m.DType != gpustage.F32 {
		return 0
	}
	var n [2]int64 // of weights that train, and of frozen ones
	g := m.shapes()
	for i, l := range m.w.layers {
		gs := g.layers[i].linears()
		for k, x := range l.linears() {
			of := &n[0]
			if gs[k].w.IsZero() {
				of = &n[1]
			}
			*of += int64(d.PackedBytes(x.w.Cols, x.w.Rows, m.Options.BF16))
			if train && i >= m.Lowest() {
				*of += int64(d.PackedBytes(x.w.Rows, x.w.Cols, m.Options.BF16))
			}
		}
	}
	return min(n[0], formsLimit) + min(n[1], formsLimit)
}

// multiply is a product of the model's precision.
func (p *Pass) multiply(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	o.BF16, o.TF32 = p.m.Options.BF16, p.m.Options.TF32
	p.s.MatMul(c, a, b, o)
}

// forward is y = x Wᵀ + b, followed by what else o says. A product and its epilogue are one pass, but with LoRA what is not linear
// waits for the complete sum: a pass of its own over y, which is little beside the products.
func (p *Pass) forward(l linear, y, x gpustage.Tensor, o gpustage.MatMul) {
	sum, then := y, o
	if len(l.factors) > 0 {
		if !o.PreAct.IsZero() {
			sum = o.PreAct
		}
		o.PreAct, o.Act = gpustage.Tensor{}, gpustage.Identity
		if o.Dropout.Active() {
			o.Dropout, o.Residual = gpustage.Dropout{}, gpustage.Tensor{}
		}
		o.Norm = gpustage.Norm{}
	}
	o.TransB, o.Bias, o.Forms, o.BiasForms = true, l.b, l.forms, l.ofBias
	if len(l.factors) == 0 {
		p.multiply(sum, x, l.w, o)
		return
	}
	// A sum of bf16 is rounded before something is added to it, so there the factors come first: what they add is little, at first nothing.
	first := sum.DType == gpustage.BF16
	if first {
		o.Add = true
	} else {
		p.multiply(sum, x, l.w, o)
	}
	mark, at := p.a.Mark(), 0
	for _, f := range l.factors {
		if first && at < f.lo {
			p.s.Fill(sum.Columns(at, f.lo), 0)
		}
		_, u := p.narrowed(f, x)
		p.multiply(sum.Columns(f.lo, f.hi), u, f.b, gpustage.MatMul{TransB: true, Add: !first})
		p.a.ReleaseScratch(mark)
		at = f.hi
	}
	if first {
		if at < sum.Cols {
			p.s.Fill(sum.Columns(at, sum.Cols), 0)
		}
		p.multiply(sum, x, l.w, o)
	}
	if !then.PreAct.IsZero() || then.Act != gpustage.Identity {
		p.s.Activate(y, sum, then.Act)
	}
	if then.Dropout.Active() {
		p.s.Dropout(y, y, then.Residual, then.Dropout)
	}
	then.Norm.Of(p.s, y)
}

// narrowed is dropout(x) and u = s dropout(x) Aᵀ [T, r], in scratch memory.
func (p *Pass) narrowed(f factors, x gpustage.Tensor) (dropped, u gpustage.Tensor) {
	u = p.operand(x.Rows, f.a.Rows)
	dropped = p.dropped(x, p.loraDropout(f), p.m.operands)
	p.multiply(u, dropped, f.a, gpustage.MatMul{TransB: true, Alpha: p.m.lora().Scale()})
	return dropped, u
}

func (p *Pass) loraDropout(f factors) gpustage.Dropout {
	if !p.train || f.still {
		return gpustage.Dropout{}
	}
	return gpustage.Dropout{P: p.m.lora().Dropout, Seqs: p.in.seqs, Layer: f.layer, Site: f.site}
}

// narrow prepares l for a backward pass from dy: what both its gradients and its input's need.
func (p *Pass) narrow(l linear, dy gpustage.Tensor) linear {
	if r, ok := p.m.Device.(gpustage.Rounder); ok && p.m.Options.BF16 && dy.DType != gpustage.BF16 {
		if cols := r.RoundedCols(dy.Cols); cols > 0 {
			l.rounded = &gpustage.Rounded{Room: p.a.Scratch(p.s, gpustage.BF16, dy.Rows, cols)}
		}
	}
	for _, f := range l.factors {
		v := p.operand(dy.Rows, f.a.Rows)
		p.multiply(v, dy.Columns(f.lo, f.hi), f.b, gpustage.MatMul{Alpha: p.m.lora().Scale()})
		l.narrow = append(l.narrow, v)
	}
	return l
}

// backward is dx = dy W, and with factors what comes through them, followed by what else o says. l comes from narrow.
func (p *Pass) backward(l linear, dx, dy gpustage.Tensor, o gpustage.MatMul) {
	pre, again, act, sum := o.GradOf, o.Again, o.Act, o.ResultSum
	if len(l.factors) > 0 {
		o.GradOf, o.Again, o.Act, o.ResultSum = gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Identity, gpustage.Tensor{}
	}
	o.Forms, o.Rounded = l.forms, l.rounded
	p.multiply(dx, dy, l.w, o)
	for i, f := range l.factors {
		p.multiply(dx, l.narrow[i], f.a, gpustage.MatMul{Add: true, Dropout: p.loraDropout(f)})
	}
	if len(l.factors) > 0 && !pre.IsZero() {
		p.s.ActivateBackward(dx, dx, pre, act)
		if !again.IsZero() {
			p.s.Activate(again, pre, act)
		}
	}
	if len(l.factors) > 0 && !sum.IsZero() {
		p.s.ColumnSum(sum, dx)
	}
}

// gradients adds dW = dyᵀ x, db = the column sum of dy and the factors' gradients to g. l comes from narrow. With u = s dropout(x) Aᵀ and
// v = s dy B, dA = vᵀ dropout(x) and dB = dyᵀ u. u is computed again rather than kept: a sixth of what the factors cost, for r elements
// per token and target.
func (p *Pass) gradients(l, g linear, dy, x gpustage.Tensor) {
	o := gpustage.MatMul{TransA: true, Add: true}
	if !g.w.IsZero() {
		w := o
		w.ColumnSum, w.Rounded = g.b, l.rounded
		p.multiply(g.w, dy, x, w)
	} else if !g.b.IsZero() {
		p.s.ColumnSum(g.b, dy)
	}
	mark := p.a.Mark()
	for i, f := range l.factors {
		dropped, u := p.narrowed(f, x)
		p.multiply(g.factors[i].a, l.narrow[i], dropped, o)
		p.multiply(g.factors[i].b, dy.Columns(f.lo, f.hi), u, o)
		p.a.ReleaseScratch(mark)
	}
}
