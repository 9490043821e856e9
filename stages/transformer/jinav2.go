package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"contraflow/gpustage"
)

// Jina Embeddings v2 (Günther et al., arXiv 2310.19923; jina-embeddings-v2-base-en, -small-en, -base-code) is BERT without positions: attention has a
// linear bias (ALiBi), and feed-forward layers are gated. Its model_type is BERT's, and its code lies in repositories of its own, of which there are two:
// jinaai/jina-bert-implementation, and jinaai/jina-bert-v2-qk-post-norm, which normalizes queries and keys, all heads together, and adds a layer's input
// once more to the norm behind its attention, for another norm. Of its rates one drops where BERT's does, but of the feed-forward's what its activation
// gives in place of what it adds.

// jinaBERT and jinaBERTNormed stand for BERT's model_type where position_embedding_type is alibi, by the code.
const (
	jinaBERT       = "jina_bert"
	jinaBERTNormed = "jina_bert_normed"
)

func init() {
	n, drops := bertNames, drops{activation: hiddenRate, feedForward: noRate}
	n.position = ""
	n.up, n.down, n.ffnSum = []string{"mlp.gated_layers"}, "mlp.wo", "mlp.layernorm"
	register(family{parse: parseJinaBERT, names: n, drops: drops, classifier: bertClassifier, mlm: jinaMLM}, jinaBERT)

	n.queryNorm, n.keyNorm, n.wholeNorms, n.attnAgain = "attention.self.layer_norm_q", "attention.self.layer_norm_k", true, "layer_norm_1"
	n.up, n.down, n.ffnSum = []string{"mlp.up_gated_layer"}, "mlp.down_layer", "layer_norm_2"
	register(family{parse: parseJinaBERTNormed, names: n, drops: drops}, jinaBERTNormed)
}

// jinaFamily is which of them a config.json of BERT's model_type is of; "" if it is BERT's.
func jinaFamily(raw []byte) string {
	var c struct {
		Positions any            `json:"position_embedding_type"`
		Origin    any            `json:"_name_or_path"`
		AutoMap   map[string]any `json:"auto_map"`
	}
	switch err := json.Unmarshal(raw, &c); {
	case err != nil || c.Positions != "alibi":
		return ""
	case strings.Contains(fmt.Sprint(c.Origin, c.AutoMap["AutoModel"]), "jina-bert-v2-qk-post-norm"):
		return jinaBERTNormed
	default:
		return jinaBERT
	}
}

func parseJinaBERTNormed(raw []byte) (Config, error) {
	c, err := parseJinaBERT(raw)
	c.UpFirst = true
	return c, err
}

func parseJinaBERT(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		FeedForwardType string `json:"feed_forward_type"`
	}{bertConfig: bertDefaults(), FeedForwardType: "original"}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
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

// jinaMLM is BERT's head, whose activation is the one that layers do not go by.
func jinaMLM(k mlmConfig, h *MLMHead) (decoder string, err error) {
	h.Act, err = parseActivation("hidden_act", k.HiddenAct)
	if err == nil {
		decoder, err = bertMLM(k, h)
	}
	return decoder, err
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
