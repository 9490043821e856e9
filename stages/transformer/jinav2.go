package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"contraflow/gpustage"
)

// Jina Embeddings v2 (Günther et al., arXiv 2310.19923; jina-embeddings-v2-base-en, -small-en) is BERT without positions: attention has a linear bias
// (ALiBi), and feed-forward layers are gated. Its model_type is BERT's, and its code another repository's, jinaai/jina-bert-implementation. Of its two
// rates one drops where BERT's does, but of the feed-forward's what its activation gives in place of what it adds.

// jinaBERT stands for BERT's model_type where position_embedding_type is alibi.
const jinaBERT = "jina_bert"

func init() {
	n := bertNames
	n.position = ""
	n.up, n.down, n.ffnSum = []string{"mlp.gated_layers"}, "mlp.wo", "mlp.layernorm"
	register(family{parse: parseJinaBERT, names: n, drops: drops{activation: hiddenRate, feedForward: noRate}}, jinaBERT)
}

func parseJinaBERT(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		FeedForwardType string         `json:"feed_forward_type"`
		Origin          string         `json:"_name_or_path"`
		AutoMap         map[string]any `json:"auto_map"`
	}{bertConfig: bertDefaults(), FeedForwardType: "original"}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	const other = "jina-bert-v2-qk-post-norm" // jina-embeddings-v2-base-code's
	if strings.Contains(c.Origin+fmt.Sprint(c.AutoMap["AutoModel"]), other) {
		return Config{}, fmt.Errorf("the code %s, with norms of queries and keys and two sums behind its attention, is %w", other, ErrUnsupported)
	}
	if c.PositionType != "alibi" {
		return Config{}, unsupported("position_embedding_type", c.PositionType)
	}
	switch c.FeedForwardType { // whatever hidden_act says
	case "geglu":
		c.HiddenAct = "gelu"
	case "reglu":
		c.HiddenAct = "relu"
	default:
		return Config{}, unsupported("feed_forward_type", c.FeedForwardType)
	}
	c.PositionType = "absolute"
	out, err := c.config()
	out.Gated, out.NoBias, out.Unplaced, out.ALiBi = true, UpPart, true, true
	out.MaxPositions, out.UsualLength = 0, max(2, out.MaxPositions)
	return out, err
}

// slopes is by how much each head's scores fall with each token of distance: 2^(-8/n), and powers of it, for a power of two of heads; of any other number
// those of the next smaller power, then every other one of the next larger's (Press et al., arXiv 2108.12409, and their code).
func slopes(heads int) (out []float64) {
	n := 1
	for 2*n <= heads {
		n *= 2
	}
	for i := range n {
		out = append(out, math.Exp2(-8*float64(i+1)/float64(n)))
	}
	for i := range heads - n {
		out = append(out, math.Exp2(-8*float64(2*i+1)/float64(2*n)))
	}
	return out
}

// alibi is the bias of a pass whose longest sequence has so many tokens: a constant, without a gradient.
func (m *Model) alibi(s gpustage.Stream, a *gpustage.Arena, longest int) distances {
	reach := max(1, longest-1)
	r := distances{bias: a.Keep(s, m.DType, 2*reach+1, m.Config.Heads)}
	if _, dry := m.Device.(gpustage.Dry); dry {
		return r
	}
	var table []float64
	of := slopes(m.Config.Heads)
	for i := range 2*reach + 1 {
		for _, slope := range of {
			table = append(table, -slope*math.Abs(float64(i-reach)))
		}
	}
	s.CopyIn(r.bias, inType(table, m.DType))
	return r
}
