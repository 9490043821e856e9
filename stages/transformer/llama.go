package transformer

// Llama (Touvron et al., arXiv 2302.13971) and Mistral (Jiang et al., arXiv 2310.06825; e5-mistral), the plain decoders.

func init() {
	register(family{parse: parseLlama, names: decoderNames, drops: decoderDrops}, "llama")
	register(family{parse: parseMistral, names: decoderNames, drops: decoderDrops}, "mistral")
}

func parseLlama(raw []byte) (Config, error) {
	return parseDecoder(raw, decoderConfig{
		MaxPositions: 2048, VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, IntermediateSize: 11008,
		HiddenAct: "silu", NormEps: 1e-6,
	}, func(d decoderConfig, c *Config) error { return d.oneRotary(c, 10000) })
}

func parseMistral(raw []byte) (Config, error) {
	window, kv := 4096, 8
	return parseDecoder(raw, decoderConfig{
		MaxPositions: 4096 * 32, VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: &kv, IntermediateSize: 14336,
		HiddenAct: "silu", NormEps: 1e-6, SlidingWindow: &window,
	}, func(d decoderConfig, c *Config) error { return d.mistral(c) })
}

// mistral is a window in all layers, or in those that layer_types says: transformers then takes Ministral's code, whatever model_type is.
func (d decoderConfig) mistral(c *Config) error {
	c.NoBias = QKVPart | OutPart | UpPart | DownPart // whatever the configuration says
	if err := c.localLayers(d.LayerTypes, d.SlidingWindow, func(int) bool { return d.SlidingWindow != nil }); err != nil {
		return err
	}
	return d.oneRotary(c, 10000)
}
