package transformer

import (
	"math"

	"contraflow/gpustage"
)

// layerActs is what a layer's backward needs. What is a norm of something kept is not kept: it is computed again, a pass over
// [T, C] for a twelfth of the memory each. qkv, ctx and pre, eight of the ten C that BERT keeps of a token, may be of bf16, or wait so: see
// operand and store. A lean pass has neither qkv nor pre.
type layerActs struct {
	x          gpustage.Tensor // [T, C]: its input; absent if it is the norm of the layer below
	attn       halfActs
	qkv        gpustage.Tensor // [T, (H+2*KVHeads)*D]; queries and keys already turned, unless they have norms
	query, key stats
	lse        gpustage.Tensor // [H, T]
	ctx        gpustage.Tensor // [T, H*D]: the attention's output before its projection
	x1         gpustage.Tensor // [T, C]: the first half's output; absent if it is a norm
	again      halfActs        // of that norm's sum, where the input is added once more
	ffn        halfActs
	pre        gpustage.Tensor // [T, F]: the activation's input; [T, 2F] with a gate
}

// halfActs is what the backward of half a layer's norms needs.
type halfActs struct {
	in      stats
	branch  gpustage.Tensor // [T, C]: the output norm's input
	out     stats
	total   gpustage.Tensor // [T, C]: the sum's norm's input
	sum     stats
	operand gpustage.Tensor // [T, C]: what products take of the sum's norm; absent in lean passes, and on most devices
}

// enter is what half a layer's branch begins with: in(x), in scratch memory, or x as an operand. Only products read it, and LoRA's dropout.
func (p *Pass) enter(h half, a *halfActs, x gpustage.Tensor) gpustage.Tensor {
	if h.in.absent() {
		switch {
		case p.takenOf == x:
			return p.taken
		case x.DType == p.m.operands:
			return x
		}
		n := p.operand(x.Rows, x.Cols)
		p.s.Copy(n, x)
		return n
	}
	if a.in.rstd.IsZero() {
		a.in = p.keepStats(h.in, x)
	}
	n := p.operand(x.Rows, x.Cols)
	p.norm(h.in, n, a.in, x)
	return n
}

// leave is y = sum(x + out(branch Wᵀ + b)), with dropout; without a norm out, BranchScale is in its place. Without keep the norm sum is made
// in place: a GPU then writes a row to its second-level cache twice and to memory once.
func (p *Pass) leave(keep bool, h half, a *halfActs, l linear, y, x, branch gpustage.Tensor, drop gpustage.Dropout) {
	p.takenOf = gpustage.Tensor{} // y may have its memory
	scale := p.m.Config.BranchScale
	plain := h.out.absent() && scale == 0
	if plain && !h.sum.absent() && p.m.Config.Norm == LayerNorm {
		p.leaveNormed(keep, h, a, l, y, x, branch, drop)
		return
	}
	total := y
	if !h.sum.absent() {
		if keep {
			total = p.keep(x.Rows, x.Cols)
		}
		a.total, a.sum = total, p.keepStats(h.sum, total)
	}
	if plain {
		p.forward(l, total, branch, gpustage.MatMul{Dropout: drop, Residual: x})
	} else {
		if h.out.absent() {
			p.forward(l, total, branch, gpustage.MatMul{})
			p.s.Scale(total, total, scale)
		} else {
			a.branch = p.keep(x.Rows, x.Cols)
			a.out = p.keepStats(h.out, a.branch)
			p.forward(l, a.branch, branch, gpustage.MatMul{})
			p.norm(h.out, total, a.out, a.branch)
		}
		if drop.Active() {
			p.s.Dropout(total, total, x, drop)
		} else {
			p.s.Add(total, total, x)
		}
	}
	if !h.sum.absent() {
		p.norm(h.sum, y, a.sum, total)
	}
}

// leaveNormed is leave where the norm sum is the product's, and nothing comes between: BERT's. What products take of y is left as an operand, too,
// where there is room for one. Then the sum is kept in bf16, which is what the norm's backward pass has of it, and the operand beside it; a lean
// pass makes that again of the sum. Where factors are added to the product they add to the sum, which they find in f32, and the operand is y rounded,
// as it is where the way back has y alone.
func (p *Pass) leaveNormed(keep bool, h half, a *halfActs, l linear, y, x, branch gpustage.Tensor, drop gpustage.Dropout) {
	total, operand, factors := y, p.room, len(l.factors) > 0
	switch {
	case keep && !operand.IsZero() && !factors:
		total = p.a.Keep(p.s, p.m.operands, x.Rows, x.Cols)
		if !p.lean && !h.alone {
			operand = p.a.Keep(p.s, p.m.operands, x.Rows, x.Cols)
			a.operand = operand
		}
	case keep:
		total = p.keep(x.Rows, x.Cols)
	}
	a.total, a.sum = total, p.keepStats(h.sum, total)
	p.forward(l, total, branch, gpustage.MatMul{Dropout: drop, Residual: x, Norm: gpustage.Norm{
		Y: y, Mean: a.sum.mean, Rstd: a.sum.rstd, Gamma: h.sum.gamma, Beta: h.sum.beta, Eps: p.m.Config.NormEps, Operand: operand,
		OfRounded: !factors && !h.alone,
	}})
	p.takes(y, operand)
}

// leaveBackward turns d from dy into the gradient of the sum, which is x's part of dx, and returns that of the projection's
// output, which may be d. That of the projection's bias may have been added then, and is absent from what is returned of l.
func (p *Pass) leaveBackward(h, g half, l linear, a halfActs, d gpustage.Tensor, drop gpustage.Dropout) (gpustage.Tensor, linear) {
	scale, rounds := p.m.Config.BranchScale, p.m.operands != p.m.DType
	if !h.sum.absent() && h.out.absent() && scale == 0 && (drop.Active() || rounds) { // one pass makes both
		then := gpustage.Dropped{Y: p.operand(d.Rows, d.Cols), Dropout: drop}
		if rounds {
			then.Sum, l.b = l.b, gpustage.Tensor{}
		}
		p.normBackwardThen(h.sum, g.sum, d, d, a.sum, a.total, then)
		return then.Y, l
	}
	if !h.sum.absent() {
		p.normBackward(h.sum, g.sum, d, d, a.sum, a.total)
	}
	if h.out.absent() && scale == 0 {
		return p.dropped(d, drop, p.m.operands), l
	}
	dz := p.dropped(d, drop, p.m.DType)
	out := dz
	if !drop.Active() {
		out = p.scratch(d.Rows, d.Cols)
	}
	if h.out.absent() {
		p.s.Scale(out, dz, scale)
	} else {
		p.normBackward(h.out, g.out, out, dz, a.out, a.branch)
	}
	return out, l
}

// enterBackward adds to d what comes through the branch: dy W, where y = in(x) Wᵀ. x is asked for where there is a norm in.
func (p *Pass) enterBackward(h, g half, a halfActs, l linear, d, dy gpustage.Tensor, x func() gpustage.Tensor) {
	if h.in.absent() {
		p.backward(l, d, dy, gpustage.MatMul{Add: true})
		return
	}
	dn := p.scratch(d.Rows, d.Cols)
	p.backward(l, dn, dy, gpustage.MatMul{})
	p.normBackward(h.in, g.in, dn, dn, a.in, x())
	p.s.Add(d, d, dn)
}

// layer computes y from x. With keep, what it returns stays for a backward pass.
func (p *Pass) layer(l int, x, y gpustage.Tensor, keep bool) layerActs {
	s, c, w := p.s, p.m.Config, p.weights(l)
	p.keepSum(l, w)
	w.ffn.alone = p.m.begins(l + 1)
	t := x.Rows
	a := layerActs{x: x, lse: p.keep(c.Heads, t)}
	start := p.a.Mark()
	var x1 gpustage.Tensor
	if w.attn.sum.absent() {
		x1 = p.keep(t, c.Hidden)
		a.x1 = x1
	} else {
		x1 = p.scratch(t, c.Hidden)
	}
	opened := p.a.Mark()
	a.ctx, a.qkv = p.open(keep, t, c.queries()), p.openFat(keep, t, c.queries()+2*c.keys())
	mark := p.a.Mark()
	p.forward(w.qkv, a.qkv, p.enter(w.attn, &a.attn, x), gpustage.MatMul{})
	p.a.ReleaseScratch(mark)
	q, k := p.place(l, w, &a, true)
	s.Attention(a.ctx, a.lse, q, k, a.qkv.Columns(c.queries()+c.keys(), a.qkv.Cols), p.attention(l, p.positions(w)))
	p.a.ReleaseScratch(mark)
	a.qkv = p.storeFat(keep, a.qkv)
	normed := x1
	if !w.attnAgain.absent() {
		normed = p.scratch(t, c.Hidden)
	}
	p.leave(keep, w.attn, &a.attn, w.out, normed, x, a.ctx, p.dropout(l, gpustage.SiteAttentionOut))
	if !w.attnAgain.absent() {
		a.again = p.addAgain(keep, w.attnAgain, x1, normed, x)
	}
	a.ctx = p.store(keep, a.ctx)
	p.a.ReleaseScratch(opened)

	if c.Gated || p.writesPre {
		a.pre = p.openFat(keep, t, w.up.w.Rows)
	}
	act := p.operand(t, c.FeedForward)
	p.up(w, act, a.pre, p.enter(w.ffn, &a.ffn, x1))
	p.activate(l, act, a.pre, c.Gated)
	a.pre = p.storeFat(keep, a.pre)
	p.leave(keep, w.ffn, &a.ffn, w.down, y, x1, act, p.dropout(l, gpustage.SiteFeedForward))
	p.tap(l, y)
	p.a.ReleaseScratch(start)
	return a
}

// addAgain is y = n(normed + x), where normed is the norm of a sum that has x in it already.
func (p *Pass) addAgain(keep bool, n norm, y, normed, x gpustage.Tensor) (a halfActs) {
	total := y
	if keep {
		total = p.keep(x.Rows, x.Cols)
	}
	a.total, a.sum = total, p.keepStats(n, total)
	p.s.Add(total, normed, x)
	p.norm(n, y, a.sum, total)
	return a
}

// up is the feed-forward layer's first product, pre, and without a gate the activation.
func (p *Pass) up(w layerWeights, act, pre, n gpustage.Tensor) {
	if p.m.Config.Gated {
		p.forward(w.up, pre, n, gpustage.MatMul{})
	} else {
		p.forward(w.up, act, n, gpustage.MatMul{PreAct: pre, Act: p.m.Config.Activation})
	}
}

// preAgain is pre of a lean pass, of what the product takes: the same op, and so the same bits. Nobody reads the activation, which only a device
// that takes operands in bf16 can leave away.
func (p *Pass) preAgain(w layerWeights, n gpustage.Tensor) gpustage.Tensor {
	pre := p.open(true, n.Rows, w.up.w.Rows)
	mark := p.a.Mark()
	var act gpustage.Tensor
	if !p.m.Config.Gated && (p.m.operands == p.m.DType || len(w.up.factors) > 0) {
		act = p.operand(n.Rows, p.m.Config.FeedForward)
	}
	p.up(w, act, pre, n)
	p.a.ReleaseScratch(mark)
	return p.store(true, pre)
}

// qkvAgain is qkv of a lean pass.
func (p *Pass) qkvAgain(l int, w layerWeights, n gpustage.Tensor) gpustage.Tensor {
	qkv := p.open(true, n.Rows, w.qkv.w.Rows)
	p.forward(w.qkv, qkv, n, gpustage.MatMul{})
	if w.queryNorm.absent() {
		p.turn(l, qkv.Columns(0, p.m.Config.queries()+p.m.Config.keys()), false)
	}
	return p.store(true, qkv)
}

// layerBackward turns d from dy into dx and adds the layer's gradients to g. It tells to what is done but for
// the last of it.
func (p *Pass) layerBackward(l int, a layerActs, d gpustage.Tensor, g layerWeights, to Gradients) {
	s, c, w := p.s, p.m.Config, p.weights(l)
	t, e, ek := d.Rows, c.queries(), c.keys()
	mark := p.a.Mark()
	defer p.a.Release(mark)

	x1 := func() gpustage.Tensor { // what the feed-forward layer takes
		switch {
		case !a.x1.IsZero():
		case !w.attnAgain.absent():
			a.x1 = p.again(half{sum: w.attnAgain}, a.again)
		default:
			a.x1 = p.again(w.attn, a.attn)
		}
		return a.x1
	}
	var n gpustage.Tensor // what a half's first product takes
	if a.pre.IsZero() {
		n = p.enter(w.ffn, &a.ffn, x1())
		a.pre = p.preAgain(w, n)
	}
	dz, gDown := p.leaveBackward(w.ffn, g.ffn, g.down, a.ffn, d, p.dropout(l, gpustage.SiteFeedForward))
	down := p.narrow(w.down, dz)
	gUp := g.up
	dpre := p.downBackward(l, down, gDown, dz, p.load(a.pre), &gUp.b)
	if p.ends(l, downPlace) {
		return
	}
	p.done(to, l, partDown)
	up := p.narrow(w.up, dpre)
	if g.up.trains() {
		if n.IsZero() {
			n = p.enter(w.ffn, &a.ffn, x1())
		}
		p.gradients(up, gUp, dpre, n)
	}
	if p.ends(l, upPlace) {
		return
	}
	p.enterBackward(w.ffn, g.ffn, a.ffn, up, d, dpre, x1) // d is dX1
	p.done(to, l, partUp)
	p.a.Release(mark)
	if p.ends(l, ffnPlace) {
		return
	}

	var direct gpustage.Tensor // to x, past the sum that the attention adds to
	if !w.attnAgain.absent() {
		p.normBackward(w.attnAgain, g.attnAgain, d, d, a.again.sum, a.again.total)
		direct = p.scratch(t, c.Hidden)
		s.Copy(direct, d)
	}
	dz, gOut := p.leaveBackward(w.attn, g.attn, g.out, a.attn, d, p.dropout(l, gpustage.SiteAttentionOut))
	out := p.narrow(w.out, dz)
	a.ctx = p.load(a.ctx)
	p.gradients(out, gOut, dz, a.ctx)
	if p.ends(l, outPlace) {
		return
	}
	p.done(to, l, partOut)
	dctx, dqkv := p.operand(t, e), p.operand(t, e+2*ek)
	p.backward(out, dctx, dz, gpustage.MatMul{})
	x := func() gpustage.Tensor {
		if a.x.IsZero() {
			a.x = p.again(half{sum: p.sumNorm(l - 1)}, p.layers[l-1].ffn)
		}
		return a.x
	}
	n = gpustage.Tensor{}
	if a.qkv.IsZero() {
		n = p.enter(w.attn, &a.attn, x())
		a.qkv = p.qkvAgain(l, w, n)
	}
	a.qkv = p.load(a.qkv)
	q, k := p.place(l, w, &a, false)
	positions := p.positions(w)
	dy := p.openPositions(&positions, g)
	s.AttentionBackward(dqkv.Columns(0, e), dqkv.Columns(e, e+ek), dqkv.Columns(e+ek, e+2*ek), dctx, a.ctx, a.lse,
		q, k, a.qkv.Columns(e+ek, e+2*ek), p.attention(l, positions))
	p.positionsBackward(w, g, dy)
	p.placeBackward(l, w, g, a, dqkv)
	qkv := p.narrow(w.qkv, dqkv)
	if g.qkv.trains() {
		if n.IsZero() {
			n = p.enter(w.attn, &a.attn, x())
		}
		p.gradients(qkv, g.qkv, dqkv, n)
		if c.deadKeyBias() && w.keyNorm.absent() && !g.qkv.b.IsZero() {
			s.Fill(g.qkv.b.Columns(e, e+ek), 0) // exactly zero in theory (doc.go): what is left is rounding
		}
	}
	if !p.ends(l, attentionPlace) {
		p.enterBackward(w.attn, g.attn, a.attn, qkv, d, dqkv, x)
		if !direct.IsZero() {
			s.Add(d, d, direct)
		}
	}
}

// operand is scratch memory for what only products and attention read, and the pointwise functions between them. In bf16 they round it, so where a
// device's kernels take it so it is of bf16 from the start: half the memory to move, which is most of what a GPU does besides multiplying, and
// no passes that round. An operand's gradient is one too. Residuals, sums, norms' inputs and their gradients stay in f32. As in torch's
// autocast, what is summed over tokens for a bias's gradient, the queries that are turned and the activation's input have been rounded then;
// and the attention's output, whose product with its gradient is taken from all scores' gradients, as FlashAttention has it.
func (p *Pass) operand(rows, cols int) gpustage.Tensor {
	return p.a.Scratch(p.s, p.m.operands, rows, cols)
}

// openRoom takes room for what products take of hidden states where there is no norm between: what makes hidden states leaves that, too. Each takes
// the place of the one before, unless that one is kept. closeRoom forgets it.
//
// Of embeddings it is those rounded. Of a norm behind a product it is the norm of the rounded sum (gpustage.Norm), where the way back has that sum,
// and else the norm's output rounded: behind LoRA's factors, and where a layer's input is all that there is (begins). Which of them it is
// depends on the layer, and not on what a pass keeps: all have the same bits.
func (p *Pass) openRoom(x gpustage.Tensor) {
	p.beforeRoom = p.a.Mark()
	if p.m.operands != p.m.DType && p.m.w.layers[0].ffn.in.absent() {
		p.room = p.operand(x.Rows, x.Cols)
	}
}

func (p *Pass) closeRoom() { p.room, p.takenOf = gpustage.Tensor{}, gpustage.Tensor{} }

// takes tells that x has been made, and what products take of it if there is room for that.
func (p *Pass) takes(x, operand gpustage.Tensor) {
	if !operand.IsZero() {
		p.taken, p.takenOf = operand, x
	}
}

// begins tells whether a layer's way back has the layer's input alone, and not the sum that it is a norm of: the lowest that a backward pass enters,
// and the first of a checkpoint's segment.
func (m *Model) begins(l int) bool {
	low, every := m.Lowest(), m.Options.CheckpointEvery
	return l == low || every > 0 && l > low && (l-low)%every == 0
}

// open takes room for an operand that a layer computes and its backward reads, to be stored when the layer is through with it.
func (p *Pass) open(keep bool, rows, cols int) gpustage.Tensor {
	if keep && p.m.keepsBF16 {
		return p.scratch(rows, cols)
	}
	return p.a.Keep(p.s, p.m.operands, rows, cols)
}

// openFat and storeFat are open and store for what a lean pass does not keep: a product each makes it again.
func (p *Pass) openFat(keep bool, rows, cols int) gpustage.Tensor {
	if keep && p.lean {
		return p.operand(rows, cols)
	}
	return p.open(keep, rows, cols)
}

func (p *Pass) storeFat(keep bool, x gpustage.Tensor) gpustage.Tensor {
	if keep && p.lean {
		return gpustage.Tensor{}
	}
	return p.store(keep, x)
}

// store gives what is kept of it: where products are of bf16 and the device would rather have the memory, a copy in bf16. Products and attention
// round what they read, so of qkv and ctx they find the bits that they would have made themselves, but where something comes between: a norm of
// queries and keys, LoRA's dropout. The activation's slope is taken at a rounded pre, and the activation itself, computed again for its product's
// gradient, of one, as in torch's autocast.
//
// A token of MiniLM-L6 takes 55 KB with it, 92 without.
func (p *Pass) store(keep bool, x gpustage.Tensor) gpustage.Tensor {
	if !keep || !p.m.keepsBF16 {
		return x
	}
	kept := p.a.Keep(p.s, gpustage.BF16, x.Rows, x.Cols)
	p.s.Copy(kept, x)
	return kept
}

// load is what was stored, in scratch memory if it was a copy.
func (p *Pass) load(kept gpustage.Tensor) gpustage.Tensor {
	if kept.DType == p.m.operands {
		return kept
	}
	x := p.scratch(kept.Rows, kept.Cols)
	p.s.Copy(x, kept)
	return x
}

// again is the output of half a layer that ends with a norm, in scratch memory, for the next half's products: no family has a norm there as well.
func (p *Pass) again(h half, a halfActs) gpustage.Tensor {
	if !a.operand.IsZero() {
		return a.operand
	}
	y := p.operand(a.total.Rows, a.total.Cols)
	if a.total.DType == gpustage.BF16 { // rounded after the norm, and before the operand
		p.s.LayerNormWith(y, a.total, a.sum.mean, a.sum.rstd, h.sum.gamma, h.sum.beta)
	} else {
		p.norm(h.sum, y, a.sum, a.total)
	}
	return y
}

// gateAndUp are the halves of a gated feed-forward layer's first product.
func (c Config) gateAndUp(pre gpustage.Tensor) (gate, up gpustage.Tensor) {
	gate, up = pre.Columns(0, c.FeedForward), pre.Columns(c.FeedForward, 2*c.FeedForward)
	if c.UpFirst {
		gate, up = up, gate
	}
	return gate, up
}

// activate computes what the feed-forward layer's second product takes from what its first one gave. Without all, the
// activation itself has been done.
func (p *Pass) activate(l int, act, pre gpustage.Tensor, all bool) {
	c := p.m.Config
	switch {
	case c.Gated:
		gate, up := c.gateAndUp(pre)
		p.s.Gate(act, gate, up, c.Activation)
	case all:
		p.s.Activate(act, pre, c.Activation)
	}
	if d := p.dropout(l, gpustage.SiteActivation); d.Active() {
		p.s.Dropout(act, act, gpustage.Tensor{}, d)
	}
}

// downBackward gives the gradient of pre from dz, that of the second product, whose gradients it adds to g. It is in scratch memory or in pre's,
// which is lost. Where nothing below trains it is absent. It may have been summed for the bias before pre, which is absent then.
func (p *Pass) downBackward(l int, down, g linear, dz, pre gpustage.Tensor, bias *gpustage.Tensor) gpustage.Tensor {
	c, drop := p.m.Config, p.dropout(l, gpustage.SiteActivation)
	d := p.operand(pre.Rows, c.FeedForward)
	if last := p.ends(l, downPlace); last || drop.Active() {
		if g.trains() {
			p.activate(l, d, pre, true)
		}
		p.gradients(down, g, dz, d)
		if last {
			return gpustage.Tensor{}
		}
		p.backward(down, d, dz, gpustage.MatMul{})
		p.s.Dropout(d, d, gpustage.Tensor{}, drop)
		if c.Gated {
			gate, up := c.gateAndUp(pre)
			p.s.GateBackward(gate, up, gpustage.Tensor{}, d, gate, up, c.Activation)
			return pre
		}
		p.s.ActivateBackward(d, d, pre, c.Activation)
		return d
	}
	// One pass over pre gives its gradient, and again what the second product took: in the place of what it is not. The product that may round dz
	// comes first, and sums it too; what is of bf16 as it is, is summed with the weight's gradient.
	var sum gpustage.Tensor
	if dz.DType != gpustage.BF16 {
		sum, g.b = g.b, gpustage.Tensor{}
	}
	again := func(x gpustage.Tensor) gpustage.Tensor {
		if !g.trains() {
			return gpustage.Tensor{}
		}
		return x
	}
	if c.Gated {
		p.backward(down, d, dz, gpustage.MatMul{ColumnSum: sum})
		gate, up := c.gateAndUp(pre)
		p.s.GateBackward(gate, up, again(d), d, gate, up, c.Activation)
		p.gradients(down, g, dz, d)
		return pre
	}
	o := gpustage.MatMul{GradOf: pre, Again: again(pre), Act: c.Activation, ColumnSum: sum}
	if p.m.operands != p.m.DType { // elsewhere it is summed while it is rounded
		o.ResultSum, *bias = *bias, gpustage.Tensor{}
	}
	p.backward(down, d, dz, o)
	p.gradients(down, g, dz, pre)
	return d
}

func (p *Pass) attention(l int, positions gpustage.Positions) gpustage.Attention {
	c := p.m.Config
	o := gpustage.Attention{
		Seqs: p.in.seqs, Heads: c.Heads, KVHeads: c.kvHeads(), HeadDim: c.HeadDim(), Scale: c.QueryScale, SoftCap: c.SoftCap, Causal: c.Causal,
		Dropout: p.dropout(l, gpustage.SiteAttention), BF16: p.m.Options.BF16, Bias: p.in.distances.bias, DBias: p.in.distances.gradient,
		Positions: positions, Seen: p.in.seen,
	}
	if o.Scale == 0 {
		o.Scale = 1 / math.Sqrt(float64(c.HeadDim()))
	}
	if c.local(l) {
		o.Window = c.Window
	}
	return o
}

// place gives queries and keys their norms and their positions. Without norms it turns them where they are, the first time;
// with norms in scratch memory, each time.
func (p *Pass) place(l int, w layerWeights, a *layerActs, first bool) (q, k gpustage.Tensor) {
	c := p.m.Config
	e, ek := c.queries(), c.keys()
	qk := a.qkv.Columns(0, e+ek)
	if !w.queryNorm.absent() {
		if first {
			a.query, a.key = p.keepStats(w.queryNorm, qk.Columns(0, e)), p.keepStats(w.keyNorm, qk.Columns(e, e+ek))
		}
		qk = p.operand(qk.Rows, e+ek)
		p.headsNorm(w.queryNorm, qk.Columns(0, e), a.query, a.qkv.Columns(0, e))
		p.headsNorm(w.keyNorm, qk.Columns(e, e+ek), a.key, a.qkv.Columns(e, e+ek))
		first = true
	}
	if first {
		p.turn(l, qk, false)
	}
	return qk.Columns(0, e), qk.Columns(e, e+ek)
}

// placeBackward is in place.
func (p *Pass) placeBackward(l int, w, g layerWeights, a layerActs, dqkv gpustage.Tensor) {
	c := p.m.Config
	e, ek := c.queries(), c.keys()
	p.turn(l, dqkv.Columns(0, e+ek), true)
	if !w.queryNorm.absent() {
		p.headsBackward(w.queryNorm, g.queryNorm, dqkv.Columns(0, e), a.query, a.qkv.Columns(0, e))
		p.headsBackward(w.keyNorm, g.keyNorm, dqkv.Columns(e, e+ek), a.key, a.qkv.Columns(e, e+ek))
		if beta := g.keyNorm.beta; c.deadKeyBias() && !beta.IsZero() {
			p.s.Fill(beta, 0)
		}
	}
}

// headsNorm is y = norm(x), where x is of queries or keys. A layer norm has them in f32.
func (p *Pass) headsNorm(n norm, y gpustage.Tensor, st stats, x gpustage.Tensor) {
	if p.m.Config.Norm == LayerNorm && x.DType != p.m.DType {
		wide := p.scratch(x.Rows, x.Cols)
		p.s.Copy(wide, x)
		x = wide
	}
	p.norm(n, y, st, x)
}

// headsBackward turns d from the gradient of norm(x) into that of x, where x is of queries or keys. A layer norm's gradients are in f32.
func (p *Pass) headsBackward(n, g norm, d gpustage.Tensor, st stats, x gpustage.Tensor) {
	if p.m.Config.Norm != LayerNorm || d.DType == p.m.DType {
		p.normBackward(n, g, d, d, st, x)
		return
	}
	wide := p.scratch(d.Rows, d.Cols)
	p.s.Copy(wide, d)
	p.normBackward(n, g, wide, wide, st, x)
	p.s.Copy(d, wide)
}
