package transformer

import (
	"encoding/json"
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// MLMHead makes sparse embeddings of hidden states, as SPLADE does (Formal et al., arXiv 2109.10086): of each text as many features as the
// vocabulary has tokens, by the masked-language-model head that the model was pretrained with,
//
//	logit[t, v] = <norm(act(dense(h[t]))), decoder[v]> + bias[v]
//	e[b, v]     = max over the tokens t of text b of log(1 + max(logit[t, v], 0))
//
// It is what pools, in the place of Head.Pooling; normalization may follow. The logarithm and the bias are the same for all tokens of a text, so they
// follow the maximum. The logits, T x V, are never all there: tiles of the vocabulary are, one after another, and of each stays which token won.
// Backward is of these alone: at most B x V of T x V logits have a gradient, so nothing of it is a matrix product. Of several tokens with
// the same logit the first wins, as in torch. The zero value is no such head.
//
//	BERT, ERNIE                    cls.predictions.transform.dense, .LayerNorm, cls.predictions.bias
//	NomicBERT                      cls.predictions.transform.dense, .layer_norm, cls.predictions.bias
//	RoBERTa, XLM-R, CamemBERT, MPNet, Jina v3  lm_head.dense, lm_head.layer_norm, lm_head.bias
//	GTE                            lm_head.dense, lm_head.norm, lm_head.decoder.bias
//	DistilBERT                     vocab_transform, vocab_layer_norm, vocab_projector.bias
//	ModernBERT                     head.dense, head.norm, decoder.bias
//
// With config.json's tie_word_embeddings: false the decoder has a weight and a bias of its own.
type MLMHead struct {
	Dense     string // a projection [C, C], without ".weight"
	DenseBias bool
	Act       gpustage.Activation
	Norm      string // of its output
	Decoder   string // [V, C], without ".weight"; "": the word embeddings are
	Bias      string // [1, V], in full; "": none
	Twice     bool   // e = log(1 + log(1 + max(logit, 0))), OpenSearch's (arXiv 2504.14839)
}

// None tells that there is none.
func (h MLMHead) None() bool { return h.Dense == "" }

// Modules are the names of the head's parts: their parameters have no prefix in a file.
func (h MLMHead) Modules() (names []string) {
	for _, n := range []string{h.Dense, h.Norm, h.Decoder} {
		if n != "" {
			names = append(names, n)
		}
	}
	return names
}

// mlmConfig is what config.json says of such heads.
type mlmConfig struct {
	Tied           *bool  `json:"tie_word_embeddings"`
	ClassifierBias bool   `json:"classifier_bias"`
	ClassifierAct  string `json:"classifier_activation"`
	DecoderBias    *bool  `json:"decoder_bias"`
	HiddenAct      string `json:"hidden_act"`
}

// MLM is the head of the family's model for masked language modelling.
func (c Config) MLM(raw []byte, twice bool) (MLMHead, error) {
	k := mlmConfig{ClassifierAct: "gelu", HiddenAct: "gelu"}
	if err := json.Unmarshal(raw, &k); err != nil {
		return MLMHead{}, fmt.Errorf("config.json: %w", err)
	}
	h := MLMHead{DenseBias: true, Act: c.Activation, Twice: twice}
	own := families[c.Family].mlm
	if own == nil {
		return MLMHead{}, fmt.Errorf("sparse embeddings of family %q are %w: its head for masked language modelling is not known here (those of %v are)",
			c.Family, ErrUnsupported, slices.DeleteFunc(Families(), func(f string) bool { return families[f].mlm == nil }))
	}
	decoder, err := own(k, &h)
	if err != nil {
		return MLMHead{}, fmt.Errorf("config.json: %w", err)
	}
	if !or(k.Tied, true) {
		h.Decoder = decoder
		if h.Bias != "" { // what is tied to the decoder's otherwise is nobody's
			h.Bias = decoder + ".bias"
		}
	}
	return h, nil
}

// TiedDecoder tells whether the word embeddings are the decoder of a head: each of their rows then has a gradient, whatever tokens there are.
func (c Config) TiedDecoder() bool { return !c.MLMHead.None() && c.MLMHead.Decoder == "" }

func (c Config) checkMLM() error {
	if h := c.MLMHead; !h.None() && (len(c.Dense) > 0 || !c.Scorer.None() || !c.Tokens.None() || families[c.Family].mlm == nil) {
		return fmt.Errorf("sparse embeddings of a model of family %q with dense layers, a score or parts of tokens are %w", c.Family, ErrUnsupported)
	}
	return nil
}

// mlmWeights are the head's parameters, or their gradients, without a decoder that is tied.
type mlmWeights struct {
	dense         linear
	norm          norm
	decoder, bias gpustage.Tensor // [V, C], [1, V]
}

func (h MLMHead) weights(v viewer) (w mlmWeights) {
	if h.None() {
		return w
	}
	w.dense, w.norm, w.bias = v.linear("", h.Dense), v.norm(h.Norm), v.tensor(h.Bias)
	if h.Decoder != "" {
		w.decoder = v.tensor(h.Decoder + ".weight")
	}
	return w
}

// mlmActs is what the head's backward needs.
type mlmActs struct {
	x, pre, h gpustage.Tensor // [T, C]: hidden states, Dense's output, what the decoder takes
	stats     stats
	at        gpustage.Tensor // i32 [V, B]: the token that has the feature, -1 where the text does not
}

// logitBytes is what a tile of logits takes at most, but for the least that it has: a part of the vocabulary for all tokens of a sub-batch. Tests
// change it.
var logitBytes = 32 << 20

const leastFeatures = 64 // of a tile

// tiles visits the vocabulary in parts.
func (p *Pass) tiles(visit func(lo, hi int)) {
	v := p.m.Config.Vocab
	step := max(leastFeatures, logitBytes/(p.in.seqs.Tokens*p.m.DType.Size()))
	for lo := 0; lo < v; lo += step {
		visit(lo, min(v, lo+step))
	}
}

// openMLM takes room at the arena's bottom.
func (p *Pass) openMLM(r Rows, keep bool) {
	if p.m.Config.MLMHead.None() || !keep {
		return
	}
	a, t, c := &p.mlm, len(r.IDs), p.m.Config.Hidden
	a.x, a.pre, a.h = p.keep(t, c), p.keep(t, c), p.keep(t, c)
	a.stats = p.keepStats(p.m.w.mlm.norm, a.h)
	a.at = p.a.Keep(p.s, gpustage.I32, p.m.Config.Vocab, r.Len())
}

// forwardMLM makes sparse embeddings [B, V] of hidden states x [T, C], in p.pooled.
func (p *Pass) forwardMLM(x gpustage.Tensor) {
	h, w, a, b := p.m.Config.MLMHead, p.m.w.mlm, p.mlm, p.in.seqs.Rows
	mark := p.a.Mark()
	defer p.a.Release(mark)
	if a.at.IsZero() { // nobody goes back
		a = mlmActs{x: x, pre: p.scratch(x.Rows, x.Cols), h: p.scratch(x.Rows, x.Cols), stats: p.keepStats(w.norm, x)}
	} else {
		p.s.Copy(a.x, x)
	}
	p.forward(w.dense, a.h, a.x, gpustage.MatMul{PreAct: a.pre, Act: h.Act})
	p.norm(w.norm, a.h, a.stats, a.h)
	table, taken := p.decoder(), a.h
	if p.m.operands != p.m.DType { // once, which each tile's product would do
		taken = p.operand(x.Rows, x.Cols)
		p.s.Copy(taken, a.h)
	}
	p.tiles(func(lo, hi int) {
		mark := p.a.Mark()
		logits, top := p.scratch(hi-lo, x.Rows), p.scratch(hi-lo, b)
		at := a.at
		if at.IsZero() {
			at = p.a.Scratch(p.s, gpustage.I32, hi-lo, b)
		} else {
			at = at.Span(lo, hi)
		}
		p.multiply(logits, table.Span(lo, hi), taken, gpustage.MatMul{TransB: true})
		p.s.SegmentMax(top, at, logits, p.in.seqs.Cu)
		p.s.Splade(p.pooled.Columns(lo, hi), at, top, columns(w.bias, lo, hi), h.Twice)
		p.a.ReleaseScratch(mark)
	})
}

// backwardMLM gives the gradient of hidden states, d [T, C], from that of the sparse embeddings, and adds the head's to g.
func (p *Pass) backwardMLM(d, dPooled gpustage.Tensor, g *weights) {
	head, w, a := p.m.Config.MLMHead, p.m.w.mlm, p.mlm
	mark := p.a.Mark()
	defer p.a.Release(mark)
	table, dTable := p.decoder(), g.mlm.decoder
	if p.m.Config.TiedDecoder() {
		dTable = g.word
	}
	dh := p.scratch(d.Rows, d.Cols)
	p.s.Fill(dh, 0)
	p.tiles(func(lo, hi int) {
		mark := p.a.Mark()
		dTop, to := p.scratch(hi-lo, dPooled.Rows), dTable
		if to.IsZero() { // it is frozen
			to = p.scratch(hi-lo, d.Cols)
		} else {
			to = to.Span(lo, hi)
		}
		p.s.SpladeBackward(dTop, columns(g.mlm.bias, lo, hi), dPooled.Columns(lo, hi), p.pooled.Columns(lo, hi), head.Twice)
		p.s.MaxSimBackward(to, dh, dTop, a.at.Span(lo, hi), table.Span(lo, hi), a.h)
		p.a.ReleaseScratch(mark)
	})
	act := p.scratch(d.Rows, d.Cols)
	p.s.Activate(act, a.pre, head.Act)
	p.normBackward(w.norm, g.mlm.norm, dh, dh, a.stats, act)
	p.s.ActivateBackward(dh, dh, a.pre, head.Act)
	dense := p.narrow(w.dense, dh)
	p.gradients(dense, g.mlm.dense, dh, a.x)
	p.backward(dense, d, dh, gpustage.MatMul{})
}

// decoder is [V, C].
func (p *Pass) decoder() gpustage.Tensor {
	if p.m.Config.TiedDecoder() {
		return p.m.w.word
	}
	return p.m.w.mlm.decoder
}

// columns is columns lo to hi of a vector that may be absent.
func columns(x gpustage.Tensor, lo, hi int) gpustage.Tensor {
	if x.IsZero() {
		return x
	}
	return x.Columns(lo, hi)
}
