package transformer

// Qwen2 and Qwen2.5 (Yang et al., arXiv 2407.10671; gte-Qwen2) are Llama with biases of query, key and value.

func init() {
	register(family{parse: parseQwen2, names: decoderNames, drops: decoderDrops}, "qwen2")
}

func parseQwen2(raw []byte) (Config, error) {
	return parseDecoder(raw, qwenDefaults(), func(d decoderConfig, c *Config) error {
		c.NoBias = OutPart | UpPart | DownPart
		return d.qwen(c)
	})
}

func qwenDefaults() decoderConfig {
	window, kv := 4096, 32
	return decoderConfig{
		MaxPositions: 32768, VocabSize: 151936, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: &kv, IntermediateSize: 22016,
		HiddenAct: "silu", NormEps: 1e-6, SlidingWindow: &window, MaxWindowLayers: 28,
	}
}

// qwen is what Qwen2 and Qwen3 share: a window in the upper layers, if the configuration asks for it.
func (d decoderConfig) qwen(c *Config) error {
	window := d.SlidingWindow
	if !or(d.UseWindow, false) {
		window = nil
	}
	if err := c.localLayers(d.LayerTypes, window, func(l int) bool { return window != nil && l >= d.MaxWindowLayers }); err != nil {
		return err
	}
	return d.oneRotary(c, 10000)
}
