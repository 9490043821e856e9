package transformer

import (
	"fmt"
	"math"
)

// Gemma 2 (arXiv 2408.00118) normalizes what goes into each half of a layer and what comes out, scales the embeddings, caps
// attention scores softly, and sees a window in every other layer.

func init() {
	register(family{parse: parseGemma2, names: gemmaNames(), drops: decoderDrops, lm: lmHead{tied: true, capped: true, cap: 30}}, "gemma2")
}

func gemmaNames() names {
	n := decoderNames
	n.attnOut, n.ffnIn, n.ffnOut = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
	return n
}

func gemmaDefaults() decoderConfig {
	window, kv, dim := 4096, 4, 256
	return decoderConfig{
		MaxPositions: 8192, VocabSize: 256000, HiddenSize: 2304, Layers: 26, Heads: 8, KVHeads: &kv, HeadDim: &dim,
		IntermediateSize: 9216, HiddenAct: "gelu_pytorch_tanh", HiddenActivation: "gelu_pytorch_tanh", NormEps: 1e-6, PadID: new(int), SlidingWindow: &window, QueryScalar: 256,
	}
}

// gemma is what Gemma 2 and 3 share. hidden_act is ignored where it remains.
func (d decoderConfig) gemma(c *Config) (err error) {
	if c.Activation, err = parseActivation("hidden_activation", d.HiddenActivation); err != nil {
		return err
	}
	c.Norm, c.EmbedScale, c.SoftCap = RMSNormUnit, math.Sqrt(float64(c.Hidden)), or(d.SoftCap, 0)
	if d.QueryScalar <= 0 {
		return fmt.Errorf("query_pre_attn_scalar is %v, want a positive number", d.QueryScalar)
	}
	c.QueryScale = 1 / math.Sqrt(d.QueryScalar)
	c.NoBias |= UpPart | DownPart
	return nil
}

func parseGemma2(raw []byte) (Config, error) {
	d, limit := gemmaDefaults(), 50.0
	d.SoftCap = &limit
	return parseDecoder(raw, d, func(d decoderConfig, c *Config) error {
		if or(d.Bidirectional, false) {
			return unsupported("use_bidirectional_attention", "true") // transformers has no mask for it; is_causal: false has
		}
		if err := d.gemma(c); err != nil {
			return err
		}
		if err := c.localLayers(d.LayerTypes, d.SlidingWindow, func(l int) bool { return l%2 == 0 }); err != nil {
			return err
		}
		return d.oneRotary(c, 10000)
	})
}
