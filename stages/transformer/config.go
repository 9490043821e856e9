package transformer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"contraflow/gpustage"
)

// ErrUnsupported is wrapped by errors about models that this package can't compute.
var ErrUnsupported = errors.New("not supported")

// Config describes an encoder. Zero values mean what BERT has.
type Config struct {
	Family       string // config.json's model_type: "bert"
	Vocab        int    // V
	Hidden       int    // C
	Layers       int
	Heads        int // H
	FeedForward  int // F
	MaxPositions int // the longest input, special tokens included; 0: there is no bound
	UsualLength  int // without a bound: where texts are cut if nobody says; 0: nowhere
	TypeVocab    int // 0: no token types
	TaskVocab    int // rows of embeddings of tasks, of which all tokens have the first (ERNIE); 0: none
	PadID        int // -1: there is none
	NormEps      float64
	Activation   gpustage.Activation

	HiddenDropout    float64 // where the family drops hidden states: BERT after the embeddings and both projections back to C
	AttentionDropout float64 // on the attention's probabilities
	Undropped        Sites   // where nothing drops although the family does
	InitRange        float64 // standard deviation of new weights

	WordSize    int     // E0, features of the embeddings, which a projection makes C of; 0: C, without one
	KVHeads     int     // heads of keys and values, each serving Heads/KVHeads query heads; 0: Heads
	HeadSize    int     // D; 0: Hidden/Heads
	QueryScale  float64 // what scores are multiplied with; 0: 1/sqrt(D)
	SoftCap     float64 // of attention scores; 0: none
	EmbedScale  float64 // what word embeddings are multiplied with; 0: 1
	BranchScale float64 // what each half of a layer adds is multiplied with; 0: 1
	Norm        NormKind
	NoBias      Parts // which parts have no bias
	Gated       bool  // the feed-forward layer is down(f(gate(x)) * up(x)), not down(f(up(x)))
	UpFirst     bool  // up lies before gate in memory: checkpoints that keep both in one tensor differ here

	Causal bool   // tokens don't see later ones
	Window int    // tokens on each side that are seen in local layers
	Local  []bool // which layers are local, by layer; nil: none

	Rotary      *Rotary // of layers that are not local; nil: positions are learned
	LocalRotary *Rotary // of local layers; nil: Rotary

	Dense []Dense // what follows pooling, before normalization: not config.json's but the model folder's

	PadPositions    int // learned positions begin behind so many rows, the last of them the padding's (RoBERTa)
	RelativeBuckets int // rows of a relative attention bias shared by all layers; 0: none
	RelativeReach   int // the distance from which on all keys are in one of its buckets

	Disentangled *Disentangled // attention that sees distances; nil: none
	Unplaced     bool          // nothing is added to embeddings for their positions
	ALiBi        bool          // scores fall with distance, by a slope for each head

	UnseenBlind bool // in transformers a token that nobody attends to attends to nothing itself

	Scorer Scorer     // of a model that reranks
	Tokens TokenHeads // of a model that gives parts of tokens besides

	MLMHead MLMHead      // of a model whose embeddings are sparse
	Queries QueryWeights // of one whose queries' are made without it
}

// Dense is a linear layer with an activation that embeddings go through, a module of sentence-transformers: y = f(x Wᵀ + b).
type Dense struct {
	Name       string // its parameters are Name + ".linear.weight" and ".linear.bias"
	Out        int
	Bias       bool
	Activation gpustage.Activation
}

// NormKind is how features are normalized.
type NormKind uint8

const (
	LayerNorm   NormKind = iota
	RMSNorm              // without mean and bias
	RMSNormUnit          // RMSNorm multiplying by 1 + its weight (Gemma)
)

// Parts is a set of a layer's parts.
type Parts uint8

const (
	QKVPart Parts = 1 << iota // query, key and value projections
	OutPart                   // the attention's output projection
	UpPart                    // the feed-forward layer's first projection, or gate and up
	DownPart
	NormParts // all layer norms
)

func (p Parts) has(part Parts) bool { return p&part != 0 }

// Sites is a set of gpustage.Site.
type Sites uint8

func sites(all ...gpustage.Site) (s Sites) {
	for _, x := range all {
		s |= 1 << x
	}
	return s
}

// family is a kind of model as Hugging Face describes and names it. Each registers itself in a file of its own.
type family struct {
	parse func(raw []byte) (Config, error) // Config.Family is said where model_type does not say it
	names names
	drops drops
	keys  map[string]string // what config.json calls things otherwise than BERT's

	// Heads that it has besides, in its models for other tasks; nil: none that is known here.
	classifier func(c Config, k scorerConfig, h *Scorer) error           // of what Classifier has begun with
	mlm        func(k mlmConfig, h *MLMHead) (decoder string, err error) // and MLM; the decoder's name where it is not the word embeddings
	lm         lmHead
}

// drops is which dropout probability acts where. The zero value is BERT's.
type drops struct{ embeddings, attention, attentionOut, activation, feedForward, output rate }

// rate is which dropout probability acts at a place.
type rate uint8

const (
	usualRate rate = iota // BERT's: hiddenRate, but none for the activation and the last layer's output, and attentionRate for probabilities
	noRate
	hiddenRate
	attentionRate
)

// families by config.json's model_type.
var families = map[string]family{}

func register(f family, modelTypes ...string) {
	for _, t := range modelTypes {
		families[t] = f
	}
}

// ParseConfig reads a Hugging Face config.json.
func ParseConfig(raw []byte) (Config, error) {
	var head struct {
		ModelType string `json:"model_type"`
		HeadDim   *int   `json:"head_dim"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	f, ok := families[head.ModelType]
	if !ok {
		return Config{}, fmt.Errorf("config.json: model_type %q is %w (supported: %s)", head.ModelType, ErrUnsupported, strings.Join(Families(), ", "))
	}
	c, err := f.parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	c.Family = cmp.Or(c.Family, head.ModelType)
	if err := c.check(); err != nil {
		return c, err
	}
	if head.HeadDim != nil && *head.HeadDim != c.HeadDim() {
		return c, fmt.Errorf("config.json: head_dim %d is %w in this family, whose heads are hidden_size/num_attention_heads = %d", *head.HeadDim, ErrUnsupported, c.HeadDim())
	}
	return c, nil
}

// Families lists the supported values of config.json's model_type.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Prefixes are what tensors' names begin with, besides, in checkpoints of models that contain one of this family: a
// BertForMaskedLM has "bert.encoder.x" where a BertModel has "encoder.x".
func (c Config) Prefixes() []string { return c.names().prefixes }

func (c Config) check() error {
	f, ok := families[c.Family]
	if !ok {
		return fmt.Errorf("a model of family %q is %w", c.Family, ErrUnsupported)
	}
	bad := func(key, format string, args ...any) error {
		if own := f.keys[key]; own != "" {
			key = own
		}
		return fmt.Errorf("config.json: %s is %s", key, fmt.Sprintf(format, args...))
	}
	if c.static() {
		return c.checkStatic()
	}
	positions := c.MaxPositions + c.PadPositions
	if c.unbounded() && positions == 0 {
		positions = 1
	}
	for _, x := range []struct {
		key string
		v   int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads},
		{"intermediate_size", c.FeedForward}, {"max_position_embeddings", positions},
		{"num_key_value_heads", c.kvHeads()}, {"embedding_size", c.WordDim()},
	} {
		switch {
		case x.v <= 0:
			return bad(x.key, "%d, want a positive number", x.v)
		case x.v > 1<<30:
			return bad(x.key, "%d, want at most %d", x.v, 1<<30)
		}
	}
	switch {
	case c.Layers > 10000:
		return bad("num_hidden_layers", "%d, want at most 10000", c.Layers)
	case c.MaxPositions < 1 && !c.unbounded():
		return bad("max_position_embeddings", "%d, of which padding takes %d", c.MaxPositions+c.PadPositions, c.PadPositions)
	case c.TypeVocab < 0 || c.TypeVocab == 0 && f.names.kind != "" && !f.names.optionalKind:
		return bad("type_vocab_size", "%d, want a positive number", c.TypeVocab)
	case c.TaskVocab < 0 || c.TaskVocab > 1<<30 || c.TaskVocab > 0 && c.TypeVocab == 0:
		return bad("task_type_vocab_size", "%d, want a positive number, and token types", c.TaskVocab)
	case c.HeadSize < 0:
		return bad("head_dim", "%d, want a positive number", c.HeadSize)
	case c.HeadSize == 0 && c.Hidden%c.Heads != 0:
		return fmt.Errorf("config.json: hidden_size %d is not a multiple of num_attention_heads %d", c.Hidden, c.Heads)
	case c.RelativeBuckets != 0 && (c.RelativeBuckets < 4 || c.RelativeBuckets > maxReach):
		return bad("relative_attention_num_buckets", "%d, want 4 to %d", c.RelativeBuckets, maxReach)
	case c.RelativeBuckets != 0 && (c.RelativeReach <= c.RelativeBuckets/4 || c.RelativeReach > maxReach):
		return bad("relative_attention_max_distance", "%d, want more than a quarter of the %d buckets, and at most %d", c.RelativeReach, c.RelativeBuckets, maxReach)
	case c.Heads%c.kvHeads() != 0:
		return fmt.Errorf("config.json: num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.kvHeads())
	case slices.Contains(c.Local, true) && c.Window < 1:
		return fmt.Errorf("config.json: layers with sliding_attention see %d tokens on each side, want at least one", c.Window)
	}
	type number struct {
		key string
		v   float64
	}
	for _, x := range []number{{"hidden_dropout_prob", c.HiddenDropout}, {"attention_probs_dropout_prob", c.AttentionDropout}} {
		if x.v < 0 || x.v >= 1 {
			return bad(x.key, "%v, want at least 0 and less than 1", x.v)
		}
	}
	for _, x := range []number{{"layer_norm_eps", c.NormEps}, {"query_pre_attn_scalar", c.QueryScale}, {"attn_logit_softcapping", c.SoftCap}} {
		if x.v < 0 || !finite(x.v) {
			return fmt.Errorf("config.json: %s gives %v, want a number that is not negative", x.key, x.v)
		}
	}
	if d := c.Disentangled; d != nil && (d.Span < 1 || d.Span > 1<<24) {
		return fmt.Errorf("config.json: position_buckets, or without it max_relative_positions, is %d, want a positive number", d.Span)
	}
	if err := c.checkDense(); err != nil {
		return err
	}
	for _, r := range []*Rotary{c.Rotary, c.LocalRotary} {
		if r != nil && 2*len(r.Frequencies) > c.HeadDim() {
			return fmt.Errorf("config.json: rotary positions turn %d features of heads of %d", 2*len(r.Frequencies), c.HeadDim())
		}
	}
	if h := c.Tokens; h.Alone && (h.Dim != c.embeddingSize() || h.Sparse != "" || h.Vectors != "" || !c.Scorer.None()) {
		return fmt.Errorf("heads of tokens alone %+v: want vectors of %d features, in a model that embeds", h, c.embeddingSize())
	} else if !h.None() && !h.Alone && (h.Dim < 1 || h.Sparse == "" || h.Vectors == "" || !c.Scorer.None()) {
		return fmt.Errorf("heads of tokens %+v: want a weight and vectors of at least one feature, in a model that embeds", h)
	}
	if err := c.Queries.check(c); err != nil {
		return err
	}
	if err := c.checkMLM(); err != nil {
		return err
	}
	return c.checkScorer()
}

func (c Config) checkDense() error {
	for _, d := range c.Dense {
		if d.Name == "" || d.Out < 1 {
			return fmt.Errorf("a dense layer %q of %d features", d.Name, d.Out)
		}
	}
	return nil
}

// HeadDim is D.
func (c Config) HeadDim() int {
	if c.HeadSize > 0 {
		return c.HeadSize
	}
	return c.Hidden / c.Heads
}

func (c Config) kvHeads() int {
	if c.KVHeads != 0 {
		return c.KVHeads
	}
	return c.Heads
}

// WordDim is E0.
func (c Config) WordDim() int {
	if c.WordSize != 0 {
		return c.WordSize
	}
	return c.Hidden
}

// projects tells whether a projection follows the embeddings: where they have as many features as hidden states, there is none.
func (c Config) projects() bool { return c.WordDim() != c.Hidden }

// unbounded tells whether there are no positions but distances.
func (c Config) unbounded() bool { return c.Rotary == nil && (c.Unplaced || c.names().position == "") }

// queries and keys are the features of all query heads, and of all key heads.
func (c Config) queries() int { return c.Heads * c.HeadDim() }
func (c Config) keys() int    { return c.kvHeads() * c.HeadDim() }

// local tells whether a layer's tokens see a window only.
func (c Config) local(layer int) bool { return c.Local != nil && c.Local[layer] }

// rotary is a layer's rotary positions, nil where positions are learned.
func (c Config) rotary(layer int) *Rotary {
	if c.local(layer) && c.LocalRotary != nil {
		return c.LocalRotary
	}
	return c.Rotary
}

// hiddenDropouts sets HiddenDropout for families whose configurations have two rates: one of the embeddings, one of the rest.
func (c *Config) hiddenDropouts(key string, embeddings float64, otherKey string, rest float64, restSites Sites) error {
	switch c.HiddenDropout = max(embeddings, rest); {
	case embeddings == rest:
	case embeddings == 0:
		c.Undropped = sites(gpustage.SiteEmbeddings)
	case rest == 0:
		c.Undropped = restSites
	default:
		return fmt.Errorf("%s %v with %s %v is %w: make them equal, or one of them 0", key, embeddings, otherKey, rest, ErrUnsupported)
	}
	return nil
}

// localLayers makes layers local: those that layer_types says, or where it is nil those of which usual is true. window is
// sliding_window, nil if there is none.
func (c *Config) localLayers(types []string, window *int, usual func(layer int) bool) error {
	if c.Layers < 0 || c.Layers > 10000 {
		return nil // check will say so
	}
	if types != nil && len(types) != c.Layers {
		return fmt.Errorf("layer_types has %d layers, num_hidden_layers is %d", len(types), c.Layers)
	}
	local := make([]bool, c.Layers)
	for l := range local {
		local[l] = usual(l)
		if types != nil {
			switch t := types[l]; t {
			case "full_attention", "sliding_attention":
				local[l] = t == "sliding_attention"
			default:
				return fmt.Errorf("layer_types: %q is %w", t, ErrUnsupported)
			}
		}
	}
	if !slices.Contains(local, true) {
		return nil
	}
	if window == nil {
		return errors.New("layer_types has sliding_attention, but sliding_window is not set")
	}
	c.Local, c.Window = local, *window
	if c.Causal {
		c.Window-- // a token is in its own window
	}
	return nil
}

// dropout is the probability with which something drops at a site.
func (c Config) dropout(site gpustage.Site) float64 {
	if c.Undropped&sites(site) != 0 {
		return 0
	}
	d, r := families[c.Family].drops, usualRate
	switch site {
	case gpustage.SiteEmbeddings:
		r = d.embeddings
	case gpustage.SiteAttention:
		if r = d.attention; r == usualRate {
			r = attentionRate
		}
	case gpustage.SiteAttentionOut:
		r = d.attentionOut
	case gpustage.SiteActivation:
		if r = d.activation; r == usualRate {
			r = noRate
		}
	case gpustage.SiteFeedForward:
		r = d.feedForward
	case gpustage.SiteOutput:
		if r = d.output; r == usualRate {
			r = noRate
		}
	}
	switch r {
	case noRate:
		return 0
	case attentionRate:
		return c.AttentionDropout
	default:
		return c.HiddenDropout
	}
}

// deadKeyBias tells that the gradient of what is added to all keys is zero, their projection's bias or their norm's beta; see the package comment.
func (c Config) deadKeyBias() bool {
	if d := c.Disentangled; d != nil && d.Queries { // keys meet queries of distances, too
		return false
	}
	return c.Rotary == nil && c.SoftCap == 0
}

// unsupported is the error for a key's value that this package can't compute.
func unsupported(key, value string) error {
	return fmt.Errorf("%s %q is %w", key, value, ErrUnsupported)
}

// parseActivation maps Hugging Face's names; key is where config.json has them.
func parseActivation(key, name string) (gpustage.Activation, error) {
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
	return 0, unsupported(key, name)
}
