package transformer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// Scorer is what makes a score of a sequence's hidden states, for models that rerank: classification heads as Hugging Face's
// model classes have them,
//
//	score = out(dropout(norm(act(dense(dropout(pooled))))))
//
// each of whose parts may be absent, or the logits that a decoder's language-model head gives one or two tokens after the last one:
// that of the first, less that of the second if there is one. The zero value is no scorer: a model that embeds.
//
//	BERT, ERNIE, GTE,
//	Jina v2               cls    dense = pooler.dense, tanh, dropout, classifier
//	RoBERTa, XLM-R,
//	Jina v3               cls    dropout, dense = classifier.dense, tanh, dropout, classifier.out_proj
//	MPNet                 cls    likewise
//	ELECTRA               cls    likewise, but with gelu
//	DeBERTa               cls    dropout, dense = pooler.dense, gelu, dropout, classifier
//	DistilBERT            cls    pre_classifier, relu, dropout, classifier
//	ModernBERT            cls or mean  head.dense, gelu, head.norm, dropout, classifier
//	decoders              last   score, or lm_head's rows of "yes" and "no"
//	layer-wise MiniCPM    last   lm_head.linear_head, or that of the layer at which the model is cut off; in training all layers'
type Scorer struct {
	Pooling gpustage.Pooling

	Dense     string // a projection [C, C], without ".weight"; "": none
	DenseBias bool
	Act       gpustage.Activation
	Norm      string // of its output; "": none
	Out       string // [1, C]; "": Tokens
	OutBias   bool

	// Below are the heads of layers below the last, that of the last but one first, each a name as Out is and like it [1, C]; Out's own where
	// layers share one. A sequence then has a score for each: see LayerScorers.
	Below []string

	DropoutIn, DropoutOut float64 // of what goes into Dense, and into Out

	New  bool   // what a checkpoint lacks of the parameters begins at random
	Seed uint64 // of those

	Tokens []int32 // the ids of one or two tokens of the language-model head
	LMHead string  // that head [V, C]; "": the word embeddings are
	Cap    float64 // logits are Cap * tanh(logit/Cap); 0: as they are
}

// None tells that there is no scorer.
func (h Scorer) None() bool { return h.Out == "" && len(h.Tokens) == 0 }

// Tied are the tokens whose word embeddings the head reads.
func (h Scorer) Tied() []int32 {
	if h.LMHead != "" {
		return nil
	}
	return h.Tokens
}

// Modules are the names of the head's parts, without ".weight".
func (h Scorer) Modules() (names []string) {
	for _, n := range append([]string{h.Dense, h.Norm, h.Out}, h.Below...) {
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// scorerConfig is what config.json says of heads.
type scorerConfig struct {
	NumLabels         *int              `json:"num_labels"`
	ID2Label          map[string]string `json:"id2label"`
	HiddenDropout     *float64          `json:"hidden_dropout_prob"`
	ClassifierDropout *float64          `json:"classifier_dropout"`
	ClassifierBias    bool              `json:"classifier_bias"`
	ClassifierAct     string            `json:"classifier_activation"`
	ClassifierPooling string            `json:"classifier_pooling"`
	NormBias          bool              `json:"norm_bias"`
	SeqDropout        *float64          `json:"seq_classif_dropout"`
	PoolerDropout     *float64          `json:"pooler_dropout"`
	PoolerAct         string            `json:"pooler_hidden_act"`
	ClsDropout        *float64          `json:"cls_dropout"`
	Tied              *bool             `json:"tie_word_embeddings"`
	Cap               *float64          `json:"final_logit_softcapping"`
}

// labels is how many scores the head gives. Where config.json does not say, for which transformers takes 2 if it is not told otherwise, as
// jina-reranker-v1-turbo-en's card does, the weights do.
func (c scorerConfig) labels() int {
	if c.NumLabels != nil {
		return *c.NumLabels
	}
	if c.ID2Label != nil {
		return len(c.ID2Label)
	}
	return 1
}

// Classifier is the head of the family's model for sequence classification. The labels of config.json are not those of a head that is
// new.
func (c Config) Classifier(raw []byte, fresh bool) (h Scorer, err error) {
	s := scorerConfig{ClassifierAct: "gelu", ClassifierPooling: "cls", PoolerAct: "gelu"}
	if err := json.Unmarshal(raw, &s); err != nil {
		return h, fmt.Errorf("config.json: %w", err)
	}
	if n := s.labels(); n != 1 && !fresh {
		return h, fmt.Errorf("config.json: %d labels are %w: a reranker gives one score", n, ErrUnsupported)
	}
	defer func() { h.New = fresh }()
	drop := or(s.ClassifierDropout, or(s.HiddenDropout, c.HiddenDropout))
	h = Scorer{Pooling: gpustage.CLSPooling, DropoutOut: drop, Out: "classifier", OutBias: true}
	switch own := families[c.Family].classifier; {
	case own != nil:
		err = own(c, s, &h)
	case c.Causal:
		h = Scorer{Pooling: gpustage.LastPooling, Out: "score"}
	default:
		err = fmt.Errorf("a reranker of family %q is %w", c.Family, ErrUnsupported)
	}
	return h, err
}

// lmHead is what a decoder's family has of its language-model head.
type lmHead struct {
	tied   bool    // the word embeddings are it, where config.json says nothing
	capped bool    // final_logit_softcapping is read, and is
	cap    float64 // where config.json says nothing: null is none
}

// TokenScorer scores by a decoder's language-model head: the logit of the first token, less that of the second if there is one.
func (c Config) TokenScorer(raw []byte, tokens ...int32) (Scorer, error) {
	family := families[c.Family].lm
	s := scorerConfig{Cap: &family.cap}
	if err := json.Unmarshal(raw, &s); err != nil {
		return Scorer{}, fmt.Errorf("config.json: %w", err)
	}
	h := Scorer{Pooling: gpustage.LastPooling, Tokens: tokens}
	if family.capped {
		h.Cap = or(s.Cap, 0)
	}
	if !or(s.Tied, family.tied) {
		h.LMHead = "lm_head"
	}
	if !c.Causal {
		return h, fmt.Errorf("tokens' logits of a model of family %q that is not a decoder are %w", c.Family, ErrUnsupported)
	}
	return h, nil
}

func (c Config) checkScorer() error {
	h := c.Scorer
	if h.None() {
		return nil
	}
	if len(h.Tokens) > 2 || slices.ContainsFunc(h.Tokens, func(id int32) bool { return id < 0 || int(id) >= c.Vocab }) {
		return fmt.Errorf("the score's tokens %v are not one or two of a vocabulary of %d", h.Tokens, c.Vocab)
	}
	for _, p := range []float64{h.DropoutIn, h.DropoutOut} {
		if p < 0 || p >= 1 {
			return fmt.Errorf("the score's dropout is %v, want at least 0 and less than 1", p)
		}
	}
	if len(h.Below) > 0 && (len(h.Below) >= c.Layers || h.Out == "" || h.Dense != "" || h.Pooling != gpustage.LastPooling || c.names().finalNorm == "") {
		return fmt.Errorf("%d layers below the last have a score in a model of family %q with %d layers: want fewer than those, of the last token, and a final norm", len(h.Below), c.Family, c.Layers)
	}
	if h.Cap < 0 {
		return errors.New("config.json: final_logit_softcapping is negative")
	}
	return nil
}

// scorerWeights are the head's parameters, or their gradients.
type scorerWeights struct {
	dense, out linear
	below      []linear
	norm       norm
	lm         gpustage.Tensor // [V, C]
}

func (h Scorer) weights(v viewer) (w scorerWeights) {
	if h.Dense != "" {
		w.dense = v.linear("", h.Dense)
	}
	if h.Norm != "" {
		w.norm = v.norm(h.Norm)
	}
	if h.Out != "" {
		w.out = v.linear("", h.Out)
	}
	for _, name := range h.Below {
		w.below = append(w.below, v.linear("", name))
	}
	if h.LMHead != "" {
		w.lm = v.tensor(h.LMHead + ".weight")
	}
	return w
}

// scoreActs is what the score's backward needs. All of it is small: rows, not tokens.
type scoreActs struct {
	seqs      gpustage.Sequences // a token for each row: what dropout is keyed by
	in        gpustage.Tensor    // [B, C]: Dense's input, if something drops there
	pre, act  gpustage.Tensor    // [B, C]: Dense's output before and after the activation
	stats     stats
	out       gpustage.Tensor // [B, C]: Out's input, if it is another than what is above
	tokens    gpustage.Tensor // i32 [1, n]: rows of the language-model head
	signs     gpustage.Tensor // [1, n]
	rows      gpustage.Tensor // [n, C]: those rows
	logits    gpustage.Tensor // [B, n]: before and after the cap
	capped    gpustage.Tensor
	dropIn    gpustage.Dropout
	dropOut   gpustage.Dropout
	beforeOut gpustage.Tensor // [B, C]: what dropOut drops of
	below     belowActs
}

// openScore takes room for the score's activations, at the arena's bottom.
func (p *Pass) openScore(r Rows) {
	h, b, c := p.m.Config.Scorer, r.Len(), p.m.Config.Hidden
	a := &p.scoring
	ints := func(vs []int32) gpustage.Tensor {
		x := p.a.Keep(p.s, gpustage.I32, 1, len(vs))
		p.s.CopyIn(x, gpustage.Bytes(vs))
		return x
	}
	if p.train {
		rows, ends := make([]int32, b), make([]int32, b+1)
		for i := range rows {
			rows[i], ends[i+1] = int32(i), int32(i+1)
		}
		a.seqs = gpustage.Sequences{Rows: b, Tokens: b, MaxLen: 1, Cu: ints(ends), Row: ints(rows), Pos: ints(make([]int32, b)), Keys: p.in.seqs.Keys}
		// A place of their own: there is no such layer.
		a.dropIn = gpustage.Dropout{P: h.DropoutIn, Seqs: a.seqs, Layer: p.m.Config.Layers, Site: gpustage.SiteAttentionOut}
		a.dropOut = gpustage.Dropout{P: h.DropoutOut, Seqs: a.seqs, Layer: p.m.Config.Layers, Site: gpustage.SiteFeedForward}
	}
	if h.Dense != "" {
		if a.dropIn.Active() {
			a.in = p.keep(b, c)
		}
		a.pre, a.act = p.keep(b, c), p.keep(b, c)
		if h.Norm != "" {
			a.beforeOut = p.keep(b, c)
			a.stats = p.keepStats(p.m.w.score.norm, a.act)
		}
	}
	if h.Out != "" && a.dropOut.Active() {
		a.out = p.keep(b, c)
	}
	p.openBelow(r)
	if n := len(h.Tokens); n > 0 {
		a.tokens, a.signs = ints(h.Tokens), p.keep(1, n)
		p.s.Fill(a.signs.Columns(0, 1), 1)
		if n == 2 {
			p.s.Fill(a.signs.Columns(1, 2), -1)
		}
		a.rows, a.logits = p.keep(n, c), p.keep(b, n)
		if a.capped = a.logits; h.Cap > 0 {
			a.capped = p.keep(b, n)
		}
	}
}

// score computes scores [B, 1] from what is pooled, or of [B, 1+n], where layers below have theirs, the first.
func (p *Pass) score() {
	h, a, w, s := p.m.Config.Scorer, &p.scoring, p.m.w.score, p.s
	x := p.pooled
	if len(h.Tokens) > 0 {
		table := w.lm
		if h.LMHead == "" {
			table = p.m.w.word
		}
		s.Gather(a.rows, table, a.tokens, false)
		if h.Cap == 0 {
			s.MatMul(a.logits, x, a.rows, gpustage.MatMul{TransB: true})
			s.MatMul(p.embeddings, a.logits, a.signs, gpustage.MatMul{TransB: true})
			return
		}
		s.MatMul(a.logits, x, a.rows, gpustage.MatMul{TransB: true, Alpha: 1 / h.Cap})
		s.Activate(a.capped, a.logits, gpustage.Tanh)
		s.MatMul(p.embeddings, a.capped, a.signs, gpustage.MatMul{TransB: true, Alpha: h.Cap})
		return
	}
	if h.Dense != "" {
		if a.dropIn.Active() {
			s.Dropout(a.in, x, gpustage.Tensor{}, a.dropIn)
			x = a.in
		} else {
			a.in = x
		}
		p.forward(w.dense, a.act, x, gpustage.MatMul{PreAct: a.pre, Act: h.Act})
		x = a.act
		if h.Norm != "" {
			p.norm(w.norm, a.beforeOut, a.stats, x)
			x = a.beforeOut
		}
	}
	if a.dropOut.Active() {
		s.Dropout(a.out, x, gpustage.Tensor{}, a.dropOut)
		x = a.out
	} else {
		a.out = x
	}
	p.forward(w.out, p.embeddings.Columns(0, 1), x, gpustage.MatMul{})
}

// scoreBackward gives the gradient of what is pooled, d [B, C], and adds the head's to g. dScores is [B, 1], or of [B, 1+n] the first.
func (p *Pass) scoreBackward(d, dScores gpustage.Tensor, g *weights, to Gradients) {
	h, a, w, s := p.m.Config.Scorer, &p.scoring, p.m.w.score, p.s
	mark := p.a.Mark()
	defer p.a.Release(mark)
	if n := len(h.Tokens); n > 0 {
		dLogits := p.scratch(dScores.Rows, n)
		alpha := 1.0
		if h.Cap > 0 {
			alpha = 1 / h.Cap
		}
		s.MatMul(dLogits, dScores, a.signs, gpustage.MatMul{Alpha: 1 / alpha})
		if h.Cap > 0 {
			s.ActivateBackward(dLogits, dLogits, a.logits, gpustage.Tanh)
		}
		s.MatMul(d, dLogits, a.rows, gpustage.MatMul{Alpha: alpha})
		table, at := g.score.lm, a.tokens
		if h.LMHead == "" {
			if table = g.word; !to.WordRows.IsZero() {
				t := p.own.tokens
				table, at = to.WordRows, to.WordIndex.Columns(t, t+n)
			}
		}
		if !table.IsZero() {
			dRows := p.scratch(n, d.Cols)
			s.MatMul(dRows, dLogits, p.pooled, gpustage.MatMul{TransA: true, Alpha: alpha})
			s.ScatterAdd(table, dRows, at)
		}
		return
	}
	out := p.narrow(w.out, dScores)
	p.gradients(out, g.score.out, dScores, a.out)
	p.backward(out, d, dScores, gpustage.MatMul{})
	if a.dropOut.Active() {
		s.Dropout(d, d, gpustage.Tensor{}, a.dropOut)
	}
	if h.Dense == "" {
		return
	}
	if h.Norm != "" {
		p.normBackward(w.norm, g.score.norm, d, d, a.stats, a.act)
	}
	s.ActivateBackward(d, d, a.pre, h.Act)
	dense := p.narrow(w.dense, d)
	p.gradients(dense, g.score.dense, d, a.in)
	dx := p.scratch(d.Rows, d.Cols)
	p.backward(dense, dx, d, gpustage.MatMul{})
	if a.dropIn.Active() {
		s.Dropout(dx, dx, gpustage.Tensor{}, a.dropIn)
	}
	s.Copy(d, dx)
}
