package transformer

import (
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"

	"contraflow/gpustage"
)

// ErrUnsupported is wrapped by errors about models that this package can't compute.
var ErrUnsupported = errors.New("not supported")

// Config describes an encoder.
type Config struct {
	Family       string // "bert"
	Vocab        int    // V
	Hidden       int    // C
	Layers       int
	Heads        int // H
	FeedForward  int // F
	MaxPositions int // rows of the position table: the longest input, special tokens included
	TypeVocab    int
	PadID        int
	NormEps      float64
	Activation   gpustage.Activation

	HiddenDropout    float64 // after the embeddings, after the attention's and the feed-forward's output projection
	AttentionDropout float64 // on the attention's probabilities
	InitRange        float64 // standard deviation of new weights
}

// family reads one kind of Hugging Face configuration.
type family func(raw []byte) (Config, error)

var families = map[string]family{
	"bert": parseBERT,
}

// ParseConfig reads a Hugging Face config.json.
func ParseConfig(raw []byte) (Config, error) {
	var head struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	parse, ok := families[head.ModelType]
	if !ok {
		return Config{}, fmt.Errorf("config.json: model_type %q is %w (supported: %s)", head.ModelType, ErrUnsupported, strings.Join(Families(), ", "))
	}
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	return c, c.check()
}

// Families lists the supported values of config.json's model_type.
func Families() []string {
	var names []string
	for n := range families {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (c Config) check() error {
	for _, f := range []struct {
		key string
		v   int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads},
		{"intermediate_size", c.FeedForward}, {"max_position_embeddings", c.MaxPositions}, {"type_vocab_size", c.TypeVocab},
	} {
		if f.v <= 0 || f.v > 1<<30 {
			return fmt.Errorf("config.json: %s is %d, want a positive number", f.key, f.v)
		}
	}
	if c.Hidden%c.Heads != 0 {
		return fmt.Errorf("config.json: hidden_size %d is not a multiple of num_attention_heads %d", c.Hidden, c.Heads)
	}
	for key, p := range map[string]float64{"hidden_dropout_prob": c.HiddenDropout, "attention_probs_dropout_prob": c.AttentionDropout} {
		if p < 0 || p >= 1 {
			return fmt.Errorf("config.json: %s is %v, want at least 0 and less than 1", key, p)
		}
	}
	return nil
}

// HeadDim is D.
func (c Config) HeadDim() int { return c.Hidden / c.Heads }

// parseActivation maps Hugging Face's names.
func parseActivation(name string) (gpustage.Activation, error) {
	switch name {
	case "gelu":
		return gpustage.GELU, nil
	case "gelu_new", "gelu_pytorch_tanh", "gelu_fast": // gelu_fast is the same formula with rounded constants
		return gpustage.GELUTanh, nil
	case "relu":
		return gpustage.ReLU, nil
	case "silu", "swish":
		return gpustage.SiLU, nil
	case "tanh":
		return gpustage.Tanh, nil
	}
	return 0, fmt.Errorf("hidden_act %q is %w", name, ErrUnsupported)
}
