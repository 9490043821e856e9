package transformer

import "fmt"

// Gemma 3 (arXiv 2503.19786) is Gemma 2 with norms of queries and keys in place of the soft cap, five local layers for each global
// one, and slower rotary positions in the global ones. EmbeddingGemma is one whose tokens see each other in both directions.

func init() {
	n := gemmaNames()
	n.queryNorm, n.keyNorm = "self_attn.q_norm", "self_attn.k_norm"
	register(family{parse: parseGemma3, names: n, drops: decoderDrops, lm: lmHead{tied: true, capped: true}}, "gemma3_text")
}

func parseGemma3(raw []byte) (Config, error) {
	d := gemmaDefaults()
	d.VocabSize, d.MaxPositions, d.LocalTheta, d.Pattern = 262208, 131072, 10000, 6
	return parseDecoder(raw, d, func(d decoderConfig, c *Config) (err error) {
		if d.SoftCap != nil {
			return unsupported("attn_logit_softcapping", fmt.Sprint(*d.SoftCap)) // transformers reads it and does not apply it
		}
		if err := d.gemma(c); err != nil {
			return err
		}
		causal := c.Causal
		if or(d.Bidirectional, false) {
			c.Causal = false
		}
		if err := c.localLayers(d.LayerTypes, d.SlidingWindow, func(l int) bool { return d.Pattern > 0 && (l+1)%d.Pattern != 0 }); err != nil {
			return err
		}
		if or(d.Bidirectional, false) { // sliding_window counts both sides
			if c.Window /= 2; !causal {
				c.Window++
			}
		}
		if c.Heads < 1 {
			return nil // check will say so
		}
		c.Rotary, c.LocalRotary, c.MaxPositions, err = d.two(c.HeadDim(), or(d.Theta, 1e6), d.LocalTheta, d.MaxPositions, false)
		return err
	})
}
