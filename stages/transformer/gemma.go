package transformer

import (
	"math"

	"contraflow/gpustage"
)

// Gemma (arXiv 2403.08295; bge-reranker-v2-gemma) is Llama with scaled embeddings, RMS norms that multiply by 1 + their weight, GELU in the gate,
// and wide heads.

func init() {
	register(family{parse: parseGemma, names: decoderNames, drops: decoderDrops, lm: lmHead{tied: true}}, "gemma")
}

func parseGemma(raw []byte) (Config, error) {
	kv, dim := 16, 256
	return parseDecoder(raw, decoderConfig{
		MaxPositions: 8192, VocabSize: 256000, HiddenSize: 3072, Layers: 28, Heads: 16, KVHeads: &kv, HeadDim: &dim, IntermediateSize: 24576,
		HiddenAct: "gelu_pytorch_tanh", NormEps: 1e-6, PadID: new(int),
	}, func(d decoderConfig, c *Config) error {
		if or(d.Bidirectional, false) {
			return unsupported("use_bidirectional_attention", "true") // transformers has no mask for it; is_causal: false has
		}
		if d.HiddenAct == "gelu" { // so the first ones say, and mean this
			c.Activation = gpustage.GELUTanh
		}
		c.Norm, c.EmbedScale = RMSNormUnit, math.Sqrt(float64(c.Hidden))
		c.NoBias |= UpPart | DownPart
		return d.oneRotary(c, 10000)
	})
}
