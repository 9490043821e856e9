package transformer

import (
	"fmt"
	"slices"
)

// names are a family's tensors by their roles, as Hugging Face has them without ".weight" and ".bias". A role with an empty name
// does not exist in the family: they say where its norms are, and whether queries and keys have their own.
//
// A layer is two halves, attention and feed-forward, of one form:
//
//	y = sum(x + out(branch(in(x))))
//
// BERT normalizes the sum, most newer models the branch's input, Gemma its input and its output.
type names struct {
	prefixes []string // of the base model within a larger one

	word, position, kind string
	optionalKind         bool   // there may be no token types
	task                 string // embeddings of tasks, of which there may be none
	embedNorm            string // of the embeddings' sum
	project              string // the embeddings' projection, where they have another number of features than hidden states
	finalNorm            string // of the last layer's output
	relative             string // the relative attention bias

	distances, distancesNorm string // embeddings of distances (Disentangled), and their norm

	layer string // with a verb for its number

	attnIn, attnOut, attnSum string
	attnAgain                string   // of attnSum's output with the layer's input added once more (Jina v2's code)
	firstPlain               bool     // layer 0 has no attnIn
	qkv                      []string // query, key and value, or all of them in one tensor
	queryNorm, keyNorm       string   // of each head, or with wholeNorms of all heads together
	wholeNorms               bool

	distanceQueries, distanceKeys string // a layer's own projections of distances
	out                           string

	ffnIn, ffnOut, ffnSum string
	up                    []string // gate and up in memory's order, or both in one tensor; up alone if not gated
	upPlain               []string // up where there is no gate, if it has another name there
	down                  string
}

// names are those of the configuration's family.
func (c Config) names() names {
	n := families[c.Family].names
	if !c.Gated && n.upPlain != nil {
		n.up = n.upPlain
	}
	return n
}

// Parameters are the model's, by name and shape, as a folder holds them: what they are without a device for them.
func (c Config) Parameters() []Param { return c.parameters() }

// parameters lists the parameters in the order in which they lie in memory if all of them train: the word embeddings,
// everything else outside of layers, then layer by layer. Projections of the same input lie side by side, so that one product
// computes them all.
func (c Config) parameters() []Param {
	n := c.names()
	var ps []Param
	part := partQKV
	add := func(layer int, name string, rows, cols int, kind paramKind) {
		ps = append(ps, Param{Name: name, Layer: layer, Rows: rows, Cols: cols, kind: kind, part: part})
	}
	table := func(name string, rows, cols int, kind paramKind) {
		if name != "" && rows > 0 {
			add(Outside, name+".weight", rows, cols, kind)
		}
	}
	norm := func(layer int, prefix, name string, size int) {
		if name == "" {
			return
		}
		add(layer, prefix+name+".weight", 1, size, normWeight)
		if c.Norm == LayerNorm && !c.NoBias.has(NormParts) {
			add(layer, prefix+name+".bias", 1, size, bias)
		}
	}
	// linear is one projection, or several: rows are the features that each gives, or all of them together.
	linear := func(layer int, prefix string, names []string, in int, biased bool, rows ...int) {
		if len(names) == 1 {
			rows = []int{sum(rows)}
		}
		for i, name := range names {
			add(layer, prefix+name+".weight", rows[i], in, weight)
		}
		for i, name := range names {
			if biased {
				add(layer, prefix+name+".bias", 1, rows[i], bias)
			}
		}
	}

	table(n.word, c.Vocab, c.WordDim(), embedding)
	if c.Rotary == nil && !c.Unplaced {
		table(n.position, c.MaxPositions+c.PadPositions, c.WordDim(), embedding)
	}
	table(n.kind, c.TypeVocab, c.WordDim(), embedding)
	table(n.task, c.TaskVocab, c.WordDim(), embedding)
	norm(Outside, "", n.embedNorm, c.WordDim())
	if c.projects() {
		linear(Outside, "", []string{n.project}, c.WordDim(), true, c.Hidden)
	}
	norm(Outside, "", n.finalNorm, c.Hidden)
	table(n.relative, c.RelativeBuckets, c.Heads, relativeBias)
	if d := c.Disentangled; d != nil {
		table(n.distances, 2*d.Span, c.Hidden, embedding)
		if d.Norm {
			norm(Outside, "", n.distancesNorm, c.Hidden)
		}
	}
	in, head := c.Hidden, len(ps)
	for _, d := range c.Dense {
		linear(Outside, "", []string{d.Name + denseSuffix}, in, d.Bias, d.Out)
		in = d.Out
	}
	if !c.Tokens.Alone { // of which they are the head
		head = len(ps)
	}
	h := c.Scorer
	if h.Dense != "" {
		linear(Outside, "", []string{h.Dense}, c.Hidden, h.DenseBias, c.Hidden)
	}
	norm(Outside, "", h.Norm, c.Hidden)
	if h.Out != "" {
		linear(Outside, "", []string{h.Out}, c.Hidden, h.OutBias, 1)
	}
	for i, name := range h.Below {
		if name != h.Out && !slices.Contains(h.Below[:i], name) {
			linear(Outside, "", []string{name}, c.Hidden, h.OutBias, 1)
		}
	}
	table(h.LMHead, c.Vocab, c.Hidden, embedding)
	if h := c.Tokens; !h.None() && !h.Alone {
		linear(Outside, "", []string{h.Sparse}, c.Hidden, true, 1)
		linear(Outside, "", []string{h.Vectors}, c.Hidden, true, h.Dim)
	}
	if h := c.MLMHead; !h.None() {
		linear(Outside, "", []string{h.Dense}, c.Hidden, h.DenseBias, c.Hidden)
		norm(Outside, "", h.Norm, c.Hidden)
		if h.Decoder != "" {
			add(Outside, h.Decoder+".weight", c.Vocab, c.Hidden, weight)
		}
		if h.Bias != "" {
			add(Outside, h.Bias, 1, c.Vocab, bias)
		}
	}
	if c.Queries.There {
		add(Outside, QueryWeight, 1, c.Vocab, tokenWeight)
	}
	for i := head; i < len(ps); i++ {
		ps[i].Head = true
	}
	for l := range c.Layers {
		p := fmt.Sprintf(n.layer, l)
		part = partQKV
		if l > 0 || !n.firstPlain {
			norm(l, p, n.attnIn, c.Hidden)
		}
		linear(l, p, n.qkv, c.Hidden, !c.NoBias.has(QKVPart), c.queries(), c.keys(), c.keys())
		if own := c.ownDistances(n); own != nil {
			linear(l, p, own, c.Hidden, true, slices.Repeat([]int{c.queries()}, len(own))...)
		}
		ofQueries, ofKeys := c.HeadDim(), c.HeadDim()
		if n.wholeNorms {
			ofQueries, ofKeys = c.queries(), c.keys()
		}
		norm(l, p, n.queryNorm, ofQueries)
		norm(l, p, n.keyNorm, ofKeys)
		part = partOut
		linear(l, p, []string{n.out}, c.queries(), !c.NoBias.has(OutPart), c.Hidden)
		norm(l, p, n.attnOut, c.Hidden)
		norm(l, p, n.attnSum, c.Hidden)
		norm(l, p, n.attnAgain, c.Hidden)
		part = partUp
		norm(l, p, n.ffnIn, c.Hidden)
		ups := []int{c.FeedForward}
		if c.Gated {
			ups = append(ups, c.FeedForward)
		}
		linear(l, p, n.up, c.Hidden, !c.NoBias.has(UpPart), ups...)
		part = partDown
		linear(l, p, []string{n.down}, c.FeedForward, !c.NoBias.has(DownPart), c.Hidden)
		norm(l, p, n.ffnOut, c.Hidden)
		norm(l, p, n.ffnSum, c.Hidden)
	}
	return ps
}

func sum(ns []int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}
