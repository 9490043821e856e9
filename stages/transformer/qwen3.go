package transformer

// Qwen3 (arXiv 2505.09388; Qwen3-Embedding) is Llama with a norm of each head's queries and keys.

func init() {
	n := decoderNames
	n.queryNorm, n.keyNorm = "self_attn.q_norm", "self_attn.k_norm"
	register(family{parse: parseQwen3, names: n, drops: decoderDrops}, "qwen3")
}

func parseQwen3(raw []byte) (Config, error) {
	d, dim := qwenDefaults(), 128
	d.HeadDim = &dim
	return parseDecoder(raw, d, func(d decoderConfig, c *Config) error {
		c.NoBias |= UpPart | DownPart // whatever the configuration says
		return d.qwen(c)
	})
}
