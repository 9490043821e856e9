package transformer

// EuroBERT (Boizard et al., arXiv 2503.05500) is Llama as an encoder: every token sees every other.

func init() {
	register(family{parse: parseEuroBERT, names: decoderNames, drops: decoderDrops}, "eurobert")
}

func parseEuroBERT(raw []byte) (Config, error) {
	pad := 128001
	return parseDecoder(raw, decoderConfig{
		MaxPositions: 8192, VocabSize: 128256, HiddenSize: 768, Layers: 12, Heads: 12, IntermediateSize: 3072, HiddenAct: "silu", NormEps: 1e-5, PadID: &pad,
	}, func(d decoderConfig, c *Config) error {
		c.Causal = false // whatever is_causal says
		return d.oneRotary(c, 10000)
	})
}
