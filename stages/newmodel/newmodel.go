// Package newmodel makes model folders to start from: an encoder, sparse or not, or static embeddings with random weights, and a tokenizer with a vocabulary of
// the user's own texts; or static embeddings of what an encoder knows of its tokens.
package newmodel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Spec is the shape of a new model. Zero values mean the ones in brackets.
type Spec struct {
	// Config is a config.json of any family, in place of Hidden, Layers, Heads and Dropout (BERT). Its vocabulary and the ids of
	// its special tokens become the new tokenizer's.
	Config []byte

	// Static makes static embeddings, which have a vector for each token and no layers: of what is below only Hidden, MaxLength, Vocab, Lowercase
	// and Seed count.
	Static bool

	// Sparse makes a sparse encoder, with its family's head for masked language modelling in the place of Pooling.
	Sparse bool

	Hidden    int                 // (384)
	Layers    int                 // (6)
	Heads     int                 // (Hidden/32)
	MaxLength int                 // longest text in tokens (512, or Config's positions, or of static embeddings any)
	Vocab     int                 // (30,000) fewer if the texts give no more
	Dropout   float64             // (0)
	Pooling   hfmodel.PoolingMode // (mean)
	Lowercase bool
	Seed      uint64

	untyped bool // Config's family knows fewer than two types of tokens: a pair's second text has the first one's
}

func (s *Spec) defaults() error {
	s.Hidden, s.Layers, s.Vocab = cmp.Or(s.Hidden, 384), cmp.Or(s.Layers, 6), cmp.Or(s.Vocab, 30000)
	s.Heads = cmp.Or(s.Heads, max(1, s.Hidden/32))
	if min(s.Hidden, s.Layers, s.Vocab, s.Heads, s.MaxLength) < 0 {
		return fmt.Errorf("a negative number in the shape: hidden size %d, %d layers, %d heads, a vocabulary of %d, texts of %d tokens", s.Hidden, s.Layers, s.Heads, s.Vocab, s.MaxLength)
	}
	if s.Pooling == "" {
		s.Pooling = hfmodel.Mean
	}
	if s.Static && s.Config != nil {
		return errors.New("static embeddings have no config.json")
	}
	if s.Static && s.Sparse {
		return errors.New("static embeddings have no head for masked language modelling, of which sparse embeddings are")
	}
	if s.Config != nil {
		c, err := transformer.ParseConfig(s.Config)
		if err != nil {
			return err
		}
		s.untyped = c.TypeVocab < 2
		if s.MaxLength == 0 {
			s.MaxLength = cmp.Or(c.MaxPositions, c.UsualLength)
		}
		if s.MaxLength > c.MaxPositions && c.MaxPositions > 0 {
			return fmt.Errorf("a maximum length of %d tokens is beyond config.json's %d positions", s.MaxLength, c.MaxPositions)
		}
	} else if s.MaxLength == 0 && !s.Static {
		s.MaxLength = 512
	}
	if s.MaxLength < 3 && !s.Static {
		return fmt.Errorf("a maximum length of %d tokens leaves no room for text beside [CLS] and [SEP]", s.MaxLength)
	}
	return nil
}

// config is config.json for the trained tokenizer.
func (s *Spec) config(tok *tokenize.Tokenizer) ([]byte, error) {
	pad, _ := tok.PadID()
	if s.Static {
		return hfmodel.StaticConfig(tok.VocabSize(), s.Hidden), nil
	}
	if s.Config == nil {
		return transformer.NewBERT(transformer.Config{
			Vocab: tok.VocabSize(), Hidden: s.Hidden, Layers: s.Layers, Heads: s.Heads, FeedForward: 4 * s.Hidden,
			MaxPositions: s.MaxLength, TypeVocab: 2, PadID: int(pad), NormEps: 1e-12,
			HiddenDropout: s.Dropout, AttentionDropout: s.Dropout, InitRange: 0.02,
		})
	}
	c := map[string]any{}
	in := json.NewDecoder(bytes.NewReader(s.Config))
	in.UseNumber() // transformers refuses 2 where it wants 2.0
	if err := in.Decode(&c); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	c["vocab_size"], c["pad_token_id"] = tok.VocabSize(), pad
	ids := tok.Encode("", 0) // [CLS] [SEP]
	for key, id := range map[string]int32{"bos_token_id": ids[0], "cls_token_id": ids[0], "eos_token_id": ids[1], "sep_token_id": ids[1]} {
		if _, ok := c[key]; ok {
			c[key] = id
		}
	}
	for _, key := range []string{"mask_token_id", "unk_token_id"} { // which nothing here needs
		delete(c, key)
	}
	return json.MarshalIndent(c, "", "  ")
}

// Create trains a tokenizer on the texts and writes the folder. An error among the texts, or the end of ctx, ends it with nothing
// written.
func Create(ctx context.Context, dir string, s Spec, texts iter.Seq2[string, error]) error {
	if err := s.defaults(); err != nil {
		return err
	}
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	tok, err := tokenize.TrainWordPiece(reading, func(yield func(string) bool) {
		for text, err := range texts {
			if err != nil {
				stop(err)
				return
			}
			if !yield(text) {
				return
			}
		}
	}, tokenize.TrainOptions{VocabSize: s.Vocab, Lowercase: s.Lowercase, MaxLength: s.MaxLength, Untyped: s.untyped})
	if err != nil {
		return err
	}
	return s.create(ctx, dir, tok)
}

// CreateWith is Create with a tokenizer that there is, for static embeddings.
func CreateWith(ctx context.Context, dir string, s Spec, tok *tokenize.Tokenizer) error {
	if err := s.defaults(); err != nil {
		return err
	}
	if !s.Static {
		return errors.New("only static embeddings take any tokenizer: an encoder has special tokens of its own")
	}
	return s.create(ctx, dir, tok)
}

// create draws the weights and writes the folder.
func (s *Spec) create(ctx context.Context, dir string, tok *tokenize.Tokenizer) error {
	d := ref.New()
	config, m, err := s.model(tok, d)
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
	tensors, err := embedder.Read(m, stream, m.Layout.Params)
	if err != nil {
		return err
	}
	if s.Sparse {
		tensors = hfmodel.Renamed(tensors, embedder.MaskedNames(m))
	} else if m.Config.Family == "bert" {
		pooler, err := pooler(m.Config, s.Seed)
		if err != nil {
			return err
		}
		tensors = append(tensors, pooler...)
	}
	return s.save(ctx, dir, config, tensors, tok, hfmodel.Card{Summary: "Random weights: a model to train."})
}

// model is a model of the spec's shape, with its config.json.
func (s *Spec) model(tok *tokenize.Tokenizer, d gpustage.Device) ([]byte, *transformer.Model, error) {
	config, err := s.config(tok)
	if err != nil {
		return nil, nil, err
	}
	c, err := transformer.ParseConfig(config)
	if err != nil {
		return nil, nil, err
	}
	if s.Sparse {
		if c.MLMHead, err = c.MLM(config, false); err != nil {
			return nil, nil, err
		}
	}
	m, err := transformer.New(d, c, transformer.Head{}, transformer.Options{})
	return config, m, err
}

func (s *Spec) save(ctx context.Context, dir string, config []byte, tensors []safetensors.Tensor, tok *tokenize.Tokenizer, card hfmodel.Card) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	spec := hfmodel.Spec{
		Config: config, Tensors: tensors, Pooling: hfmodel.Pooling{Mode: s.Pooling, IncludePrompt: true}, Normalize: true,
		MaxSeqLength: s.MaxLength, Tokenizer: tok.Save, Card: card,
	}
	if s.Sparse {
		spec.Splade, spec.Normalize = new(hfmodel.Splade), false
	}
	return hfmodel.Save(dir, spec)
}

// pooler is BERT's: it plays no part in embeddings, but transformers complains of a BERT model without one, and a reranker begins with
// it. Random weights, as transformers has them: behind zeros all features of a reranker's head would stay one and the same.
func pooler(c transformer.Config, seed uint64) ([]safetensors.Tensor, error) {
	const name = "pooler.dense.weight"
	rng := transformer.NamedRand(seed, name)
	vs := make([]float32, c.Hidden*c.Hidden)
	for i := range vs {
		vs[i] = float32(c.InitRange * rng.NormFloat64())
	}
	weight, err := safetensors.FromFloat32s(name, []int{c.Hidden, c.Hidden}, vs)
	if err != nil {
		return nil, err
	}
	bias, err := safetensors.FromFloat32s("pooler.dense.bias", []int{c.Hidden}, make([]float32, c.Hidden))
	return []safetensors.Tensor{weight, bias}, err
}

// Texts are those of a list.
func Texts(list []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, text := range list {
			if !yield(text, nil) {
				return
			}
		}
	}
}
