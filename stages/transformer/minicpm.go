package transformer

import (
	"encoding/json"
	"fmt"
	"math"
)

// MiniCPM (Hu et al., arXiv 2404.06395) is Llama with scaled embeddings, and with layers that add scale_depth/sqrt(layers) times what they
// compute. It is read as the layer-wise rerankers that FlagEmbedding makes of it, whose code is the truth of the golden.

func init() {
	register(family{parse: parseMiniCPM, names: decoderNames, drops: decoderDrops}, "minicpm")
}

type miniCPMConfig struct {
	EmbedScale float64 `json:"scale_emb"`
	DepthScale float64 `json:"scale_depth"`

	RopeScaling json.RawMessage `json:"rope_scaling"`

	// Of the heads, which parseLayerHeads reads.
	StartLayer *int   `json:"start_layer"`
	HeadMulti  *bool  `json:"head_multi"`
	HeadType   string `json:"head_type"`
}

func parseMiniCPM(raw []byte) (Config, error) {
	s := miniCPMConfig{EmbedScale: 1, DepthScale: 1}
	if err := json.Unmarshal(raw, &s); err != nil {
		return Config{}, err
	}
	if s.StartLayer == nil && s.HeadMulti == nil && s.HeadType == "" {
		return Config{}, fmt.Errorf("model_type \"minicpm\" is %w but for layer-wise rerankers, which have start_layer and head_multi", ErrUnsupported)
	}
	if r := string(s.RopeScaling); r != "" && r != "null" {
		return Config{}, unsupported("rope_scaling", r)
	}
	return parseDecoder(raw, decoderConfig{
		MaxPositions: 2048, VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, IntermediateSize: 11008, HiddenAct: "silu", NormEps: 1e-6,
	}, func(d decoderConfig, c *Config) error {
		c.NoBias |= UpPart | DownPart // whatever the configuration says
		if s.EmbedScale <= 0 || s.DepthScale <= 0 {
			return fmt.Errorf("scale_emb is %v and scale_depth %v, want positive numbers", s.EmbedScale, s.DepthScale)
		}
		c.EmbedScale, c.BranchScale = s.EmbedScale, s.DepthScale/math.Sqrt(float64(max(1, c.Layers)))
		c.Causal = true
		return d.oneRotary(c, 10000)
	})
}

// CutOff ends the model behind a layer.
func (c *Config) CutOff(layer int) {
	c.Layers = layer
	if c.Local != nil {
		c.Local = c.Local[:layer]
	}
}
