package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// DeBERTa v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543; mxbai-rerank v1) are BERT with attention that sees
// distances (disentangled.go), mostly without learned positions and token types. In training transformers drops elements of the distances' embeddings
// too, with hidden_dropout_prob; here nothing drops there: a mask would belong to no row.

func init() {
	register(family{parse: parseDeBERTa, names: names{
		prefixes: []string{"deberta."},
		word:     "embeddings.word_embeddings", position: "embeddings.position_embeddings", kind: "embeddings.token_type_embeddings", optionalKind: true,
		embedNorm: "embeddings.LayerNorm", distances: "encoder.rel_embeddings", distancesNorm: "encoder.LayerNorm",
		layer:           "encoder.layer.%d.",
		qkv:             []string{"attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"},
		distanceQueries: "attention.self.pos_query_proj", distanceKeys: "attention.self.pos_key_proj",
		out: "attention.output.dense", attnSum: "attention.output.LayerNorm",
		up: []string{"intermediate.dense"}, down: "output.dense", ffnSum: "output.LayerNorm",
	}, classifier: debertaClassifier}, "deberta-v2")
}

func debertaClassifier(c Config, k scorerConfig, h *Scorer) (err error) {
	h.Dense, h.DenseBias, h.DropoutIn, h.DropoutOut = "pooler.dense", true, or(k.PoolerDropout, 0), or(k.ClsDropout, c.HiddenDropout)
	h.Act, err = parseActivation("pooler_hidden_act", k.PoolerAct)
	return err
}

// debertaConfig has transformers' defaults for keys that config.json leaves out.
type debertaConfig struct {
	bertConfig
	EmbeddingSize *int            `json:"embedding_size"`
	HeadSize      *int            `json:"attention_head_size"`
	Relative      bool            `json:"relative_attention"`
	Longest       int             `json:"max_relative_positions"`
	Buckets       int             `json:"position_buckets"`
	Share         bool            `json:"share_att_key"`
	Types         json.RawMessage `json:"pos_att_type"`
	Norm          string          `json:"norm_rel_ebd"`
	Placed        bool            `json:"position_biased_input"`
	Conv          int             `json:"conv_kernel_size"`
	Pooled        *int            `json:"pooler_hidden_size"`
}

func parseDeBERTa(raw []byte) (Config, error) {
	c := debertaConfig{bertConfig: bertDefaults(), Longest: -1, Buckets: -1, Norm: "none", Placed: true}
	c.VocabSize, c.HiddenSize, c.Layers, c.Heads, c.IntermediateSize, c.TypeVocab, c.NormEps = 128100, 1536, 24, 24, 6144, 0, 1e-7
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	out, err := c.config()
	if err != nil {
		return out, err
	}
	switch {
	case c.Conv > 0:
		return out, fmt.Errorf("conv_kernel_size %d is %w: DeBERTa v3 and its fine-tunes have no convolution", c.Conv, ErrUnsupported)
	case c.EmbeddingSize != nil && *c.EmbeddingSize != c.HiddenSize:
		return out, fmt.Errorf("embedding_size %d is %w: want hidden_size, %d", *c.EmbeddingSize, ErrUnsupported, c.HiddenSize)
	case c.HeadSize != nil && *c.HeadSize*c.Heads != c.HiddenSize:
		return out, fmt.Errorf("attention_head_size %d is %w: want hidden_size/num_attention_heads, %d/%d", *c.HeadSize, ErrUnsupported, c.HiddenSize, c.Heads)
	case c.Pooled != nil && *c.Pooled != c.HiddenSize:
		return out, fmt.Errorf("pooler_hidden_size %d is %w: want hidden_size, %d", *c.Pooled, ErrUnsupported, c.HiddenSize)
	}
	d := Disentangled{Span: c.Longest, Longest: c.Longest, Own: !c.Share}
	for _, kind := range strings.Split(c.Norm, "|") {
		d.Norm = d.Norm || strings.EqualFold(strings.TrimSpace(kind), "layer_norm")
	}
	if err := d.types(c.Types); err != nil {
		return out, err
	}
	out.Unplaced, out.UnseenBlind = !c.Placed, true
	if n := d.products(); n > 1 && out.Heads > 0 && out.Hidden > 0 {
		out.QueryScale = 1 / math.Sqrt(float64(out.Hidden/out.Heads*n))
	}
	positions := out.MaxPositions
	if out.Unplaced {
		out.MaxPositions, out.UsualLength = 0, max(2, positions)
	}
	if !c.Relative {
		return out, nil
	}
	if d.Longest < 1 {
		d.Longest = positions
		d.Span = d.Longest
	}
	if c.Buckets > 0 {
		d.Span, d.Buckets = c.Buckets, c.Buckets
	}
	switch {
	case d.products() == 1:
		return out, fmt.Errorf("relative_attention without c2p or p2c in pos_att_type is %w", ErrUnsupported)
	case d.Buckets > 0 && (d.Buckets < 2 || d.Longest-1 <= d.Buckets/2):
		return out, fmt.Errorf("position_buckets %d with max_relative_positions %d is %w: want at least 2 buckets, and distances beyond half of them", d.Buckets, d.Longest, ErrUnsupported)
	}
	out.Disentangled = &d
	return out, nil
}

// types reads pos_att_type: a list, or names with | between them.
func (d *Disentangled) types(raw json.RawMessage) error {
	var list []string
	var text string
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if json.Unmarshal(raw, &text) == nil {
		list = strings.Split(strings.ToLower(text), "|")
	} else if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("pos_att_type: %w", err)
	}
	for _, name := range list {
		switch strings.TrimSpace(name) {
		case "c2p":
			d.Keys = true
		case "p2c":
			d.Queries = true
		case "":
		default:
			return unsupported("pos_att_type", name)
		}
	}
	return nil
}
