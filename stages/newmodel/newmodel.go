// Package newmodel makes model folders to start from: an encoder with random weights and a tokenizer with a vocabulary of
// the user's own texts.
package newmodel

import (
	"fmt"
	"iter"

	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Spec is the shape of a new model. Zero values mean the ones in brackets.
type Spec struct {
	Hidden    int                 // (384)
	Layers    int                 // (6)
	Heads     int                 // (Hidden/32)
	MaxLength int                 // longest text in tokens (512)
	Vocab     int                 // (30,000) fewer if the texts give no more
	Dropout   float64             // (0)
	Pooling   hfmodel.PoolingMode // (mean)
	Lowercase bool
	Seed      uint64
}

func (s *Spec) defaults() {
	for _, d := range []struct {
		v   *int
		def int
	}{{&s.Hidden, 384}, {&s.Layers, 6}, {&s.MaxLength, 512}, {&s.Vocab, 30000}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if s.Heads == 0 {
		s.Heads = max(1, s.Hidden/32)
	}
	if s.Pooling == "" {
		s.Pooling = hfmodel.Mean
	}
}

// Create trains a tokenizer on the texts and writes the folder.
func Create(dir string, s Spec, texts iter.Seq[string]) error {
	s.defaults()
	tok, err := tokenize.TrainWordPiece(texts, tokenize.TrainOptions{VocabSize: s.Vocab, Lowercase: s.Lowercase, MaxLength: s.MaxLength})
	if err != nil {
		return fmt.Errorf("training a vocabulary: %w", err)
	}
	pad, _ := tok.PadID()
	c := transformer.Config{
		Family: "bert", Vocab: tok.VocabSize(), Hidden: s.Hidden, Layers: s.Layers, Heads: s.Heads, FeedForward: 4 * s.Hidden,
		MaxPositions: s.MaxLength, TypeVocab: 2, PadID: int(pad), NormEps: 1e-12,
		HiddenDropout: s.Dropout, AttentionDropout: s.Dropout, InitRange: 0.02,
	}
	config, err := transformer.NewBERT(c)
	if err != nil {
		return err
	}
	d := ref.New()
	m, err := transformer.New(d, c, transformer.Head{}, transformer.Options{})
	if err != nil {
		return err
	}
	defer m.Free()
	stream, err := d.OpenStream()
	if err != nil {
		return err
	}
	if err := m.Init(stream, s.Seed); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for _, p := range m.Layout.Params {
		vs, err := m.Read(stream, m.Params, p)
		if err != nil {
			return err
		}
		t, err := safetensors.FromFloat32s(p.Name, p.Shape(), vs)
		if err != nil {
			return err
		}
		tensors = append(tensors, t)
	}
	// BERT's pooler plays no part in embeddings, but transformers complains of a BERT model without one.
	for name, shape := range map[string][]int{"pooler.dense.weight": {c.Hidden, c.Hidden}, "pooler.dense.bias": {c.Hidden}} {
		n := c.Hidden
		if len(shape) == 2 {
			n *= c.Hidden
		}
		t, err := safetensors.FromFloat32s(name, shape, make([]float32, n))
		if err != nil {
			return err
		}
		tensors = append(tensors, t)
	}
	return hfmodel.Save(dir, hfmodel.Spec{
		Config: config, Tensors: tensors, Pooling: hfmodel.Pooling{Mode: s.Pooling, IncludePrompt: true}, Normalize: true,
		MaxSeqLength: s.MaxLength, Tokenizer: tok.Save,
		Card: hfmodel.Card{Summary: "Random weights: a model to train."},
	})
}
