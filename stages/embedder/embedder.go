// Package embedder turns texts into embeddings in Go programs.
//
//	e, err := embedder.Load("all-MiniLM-L6-v2")   // a folder, as contraflow or sentence-transformers saves it
//	vecs, err := e.Embed(ctx, []string{"a text", "another"})
//
// A program chooses the device by importing it, most often import _ "contraflow/gpustage/cpu"; [OnDevice] gives one explicitly.
//
// Texts are tokenized on all processors, sorted by length, packed without padding and computed in passes of a bounded
// number of tokens; results come in the texts' order and do not depend on what else is in the call.
//
// [Engine] is the part without texts, for stages that evaluate a model in training.
package embedder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Embedder is a loaded model. It is safe for concurrent use: texts of several calls are tokenized at once, and computed in turns, a pass of each
// at a time; Rank, Evaluate, the search of Mine, and all of Mine by parts take as long a turn as they need, and so do the
// scores of pairs by parts, block by block. After Close calls are [ErrClosed].
type Embedder struct {
	tok                         *tokenize.Tokenizer
	model                       *transformer.Model
	prompts                     map[string]string
	prompt                      string
	queryPrompt, documentPrompt string
	maxLength, queryLength      int
	device                      gpustage.Device
	owned                       bool // the device is closed with the embedder

	engine Engine // with Turns
}

// Option configures Load.
type Option func(*options)

type options struct {
	device    gpustage.Device
	maxLength int
	queries   int
	cut       int
	active    int
	pooling   string
	tokens    int
	bf16      bool
	prompts   map[string]string
	warn      func(string)
	told      func(done, total int)
}

// OnDevice computes on the given device, which stays the caller's to close.
func OnDevice(d gpustage.Device) Option { return func(o *options) { o.device = d } }

// MaxLength cuts texts to n tokens, special ones included, instead of what the folder says.
func MaxLength(n int) Option { return func(o *options) { o.maxLength = n } }

// QueryMaxLength is MaxLength for the queries of tasks, of Mine and of a Teacher, and for both texts of pairs that Similarity compares; 0: the same. A folder has one maximum
// length, and training may have had two.
func QueryMaxLength(n int) Option { return func(o *options) { o.queries = n } }

// Dimensions cuts embeddings to their first n dimensions, instead of what the folder says, as models trained with matryoshka allow. They are
// not normalized again, as sentence-transformers' truncate_dim has it; cosines don't mind.
func Dimensions(n int) Option { return func(o *options) { o.cut = n } }

// MaxActive leaves of sparse embeddings no more than the n features with the largest weights, instead of as many as the folder says.
func MaxActive(n int) Option { return func(o *options) { o.active = n } }

// PassTokens bounds the tokens that go through the model at once, and with them memory; 0: what the device likes.
func PassTokens(n int) Option { return func(o *options) { o.tokens = n } }

// BF16 rounds the inputs of matrix products to bf16: about twice as fast where the device multiplies in it, for embeddings that
// differ in the third digit (cosine about 0.9999).
func BF16() Option { return func(o *options) { o.bf16 = true } }

// Prompt gives the model a prompt, a text by a name, instead of the folder's of that name.
func Prompt(name, text string) Option {
	return func(o *options) {
		if o.prompts == nil {
			o.prompts = map[string]string{}
		}
		o.prompts[name] = text
	}
}

// Progress is told, while texts are embedded, how many of those that went in together are: the longest come first.
func Progress(tell func(done, total int)) Option { return func(o *options) { o.told = tell } }

// Warn gets what a user should know although the model loads.
func Warn(f func(message string)) Option { return func(o *options) { o.warn = f } }

// Pooling overrides what the folder says: mean, cls or last.
func Pooling(mode string) Option { return func(o *options) { o.pooling = mode } }

// Load loads a model folder, as contraflow, sentence-transformers or transformers saves it; that of a model of the hub is what hfmodel.Resolve finds. Without
// OnDevice the model is on the best device of those that the program imports, which Close closes. An adapter is merged into its base model's weights.
func Load(folder string, opts ...Option) (*Embedder, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	f, err := hfmodel.Open(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for name, text := range o.prompts {
		if f.Prompts == nil {
			f.Prompts = map[string]string{}
		}
		f.Prompts[name] = text
	}
	e := &Embedder{prompts: f.Prompts, prompt: f.DefaultPromptName, device: o.device, engine: Engine{Turns: NewTurns()}}
	e.queryPrompt, e.documentPrompt = f.RolePrompts()
	if e.device == nil {
		if e.device, err = gpustage.OpenBest(o.warn); err != nil {
			return nil, err
		}
		e.owned = true
	}
	var tokErr error
	var loading sync.WaitGroup
	loading.Go(func() { e.tok, tokErr = LoadTokenizer(f) }) // 50 of 150 ms, on the other core
	err = e.load(f, o)
	loading.Wait()
	if err = cmp.Or(tokErr, err); err == nil {
		e.model.Config.Tokens, err = Completed(e.model.Config, f, e.tok)
		if note := SkipNote(f.MultiVector, e.tok); note != "" && o.warn != nil {
			o.warn(fmt.Sprintf("%s: %s", f.Dir, note))
		}
		if note := VocabularyNote(f, e.tok, e.model.Config); note != "" && o.warn != nil {
			o.warn(note)
		}
	}
	if err == nil {
		err = errors.Join(CheckVocabulary(e.tok, e.model.Config), CheckLengths(e.tok, e.queryLength, e.maxLength, e.WeighsQueries()))
	}
	if err == nil && e.WeighsQueries() {
		err = CheckWeights(f, e.tok, e.model.Config)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Embedder) load(f *hfmodel.Folder, o options) error {
	head, err := HeadOf(f, o.pooling, nil)
	if err != nil {
		return err
	}
	stream, err := e.device.OpenStream()
	if err != nil {
		return err
	}
	e.engine.Stream = stream
	if e.model, err = LoadModel(f, e.device, stream, head, transformer.Options{BF16: o.bf16}, nil); err != nil {
		return err
	}
	queries := cmp.Or(o.queries, o.maxLength)
	if vectorsOnly(e.model) { // whose lengths differ
		queries = o.queries
	}
	if e.queryLength, e.maxLength, err = LengthsOf(f, f.MultiVector, e.model.Config, queries, o.maxLength); err != nil {
		return err
	}
	if note := ExpansionNote(f.MultiVector, queries); note != "" && o.warn != nil {
		o.warn(fmt.Sprintf("%s: %s", f.Dir, note))
	}
	if note := LengthNote(f, e.model.Config, o.maxLength); note != "" && o.warn != nil {
		o.warn(note)
	}
	for _, note := range []string{HeadNote(f, o.pooling, nil), similarityNote(f)} {
		if note != "" && o.warn != nil {
			o.warn(note)
		}
	}
	// Asking the device costs a short text's call a tenth of a millisecond, for it reads how much memory is left.
	e.engine.Model, e.engine.Tokens, e.engine.Told = e.model, cmp.Or(o.tokens, e.device.Info().PassTokens()), o.told
	cut, all := cmp.Or(o.cut, f.TruncateDim), e.model.EmbeddingSize()
	switch {
	case o.cut < 0 || o.cut > all:
		return fmt.Errorf("%s: embeddings of %d dimensions can't be cut to %d", f.Dir, all, o.cut)
	case cut > 0 && e.VectorsAlone():
		return fmt.Errorf("%s: vectors of tokens are not cut", f.Dir)
	case cut > 0 && e.HasParts():
		return fmt.Errorf("%s: embeddings of models of kind m3, which have other parts beside them, are not cut", f.Dir)
	case cut > 0 && e.Sparse():
		return fmt.Errorf("%s: sparse embeddings, whose features are tokens, are not cut to the first %d", f.Dir, cut)
	case cut < all: // sentence-transformers passes over a truncate_dim that is more
		e.engine.Cut = cut
	}
	if e.Sparse() {
		e.engine.Active = cmp.Or(o.active, f.MaxActive)
	}
	return nil
}

// LoadTokenizer loads a folder's tokenizer. Static embeddings read texts without special tokens.
func LoadTokenizer(f *hfmodel.Folder) (*tokenize.Tokenizer, error) {
	load := tokenize.Load
	if f.Static() {
		load = tokenize.LoadStatic
	}
	tok, err := load(f.TokenizerDir)
	if err == nil {
		return wholePrefixes(f, tok)
	}
	return tok, err
}

// CheckVocabulary finds a tokenizer that belongs to another model: its vocabulary has ids which this one has no embedding for, or every text gets
// a token that has none. Other added tokens may have such ids, as a padding token that no text contains: a text that does is an error later on.
func CheckVocabulary(tok *tokenize.Tokenizer, c transformer.Config) error {
	if n := tok.ModelVocabSize(); n > c.Vocab {
		return fmt.Errorf("the tokenizer has %d tokens, the model's vocabulary %d: they do not belong together", n, c.Vocab)
	}
	if reason := NoEmbedding(tok, tok.Encode("", 0), c.Vocab); reason != "" {
		return fmt.Errorf("the tokenizer puts special tokens around every text: %s", reason)
	}
	return nil
}

// NoEmbedding says of the first of a text's tokens that a model of a vocabulary of so many tokens has no embedding for why it can't be read; "": there is none.
func NoEmbedding(tok *tokenize.Tokenizer, ids []int32, vocab int) string {
	for _, id := range ids {
		if int(id) >= vocab {
			return fmt.Sprintf("the token %q has id %d, and the model embeddings for %d tokens; %s", tok.Token(id), id, vocab, roomForTokens)
		}
	}
	return ""
}

const roomForTokens = "transformers' model.resize_token_embeddings(len(tokenizer)) makes room for added tokens"

// VocabularyNote names the tokens that the model has no embeddings for; "": it has one for each.
func VocabularyNote(f *hfmodel.Folder, tok *tokenize.Tokenizer, c transformer.Config) string {
	beyond := tok.Beyond(c.Vocab)
	if len(beyond) == 0 {
		return ""
	}
	more := ""
	if n := len(beyond) - 5; n > 0 {
		beyond, more = beyond[:5], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s: its tokenizer adds tokens that the model, with embeddings for %d, has none for: %q%s; a text that contains one is an error. %s",
		f.Dir, c.Vocab, beyond, more, "T"+roomForTokens[1:])
}

// LengthNote says that a folder's max_seq_length is not kept, because the model was trained with fewer positions; "": it is.
func LengthNote(f *hfmodel.Folder, c transformer.Config, asked int) string {
	if asked > 0 || !f.LengthGiven || c.MaxPositions == 0 || f.MaxSeqLength <= c.MaxPositions {
		return ""
	}
	return fmt.Sprintf("%s: max_seq_length is %d, but the model was trained with %d positions: texts are cut to these", f.Dir, f.MaxSeqLength, c.MaxPositions)
}

// MaxLengthOf is the number of tokens at which texts are cut: what is asked for, or what the folder says, or what the
// model's positions allow; 0: they are not cut.
func MaxLengthOf(f *hfmodel.Folder, c transformer.Config, asked int) (int, error) {
	if asked > c.MaxPositions && c.MaxPositions > 0 {
		return 0, fmt.Errorf("a maximum length of %d tokens is beyond the model's %d positions", asked, c.MaxPositions)
	}
	switch {
	case asked > 0:
		return asked, nil
	case c.MaxPositions == 0:
		return cmp.Or(f.MaxSeqLength, c.UsualLength), nil
	case f.MaxSeqLength > 0:
		return min(f.MaxSeqLength, c.MaxPositions), nil
	}
	return c.MaxPositions, nil
}

// CheckLength refuses maximum lengths that leave no room for a text beside the special tokens. 0 is none.
func CheckLength(tok *tokenize.Tokenizer, lengths ...int) error {
	n := len(tok.Encode("", 0))
	for _, length := range lengths {
		if length != 0 && length <= n {
			return fmt.Errorf("a maximum length of %d tokens leaves no room for text beside %d special tokens", length, n)
		}
	}
	return nil
}

// CheckLengths is CheckLength of queries' and documents'. Queries that are weights of tokens are read without special ones.
func CheckLengths(tok *tokenize.Tokenizer, query, document int, weighed bool) error {
	if !weighed {
		return CheckLength(tok, query, document)
	}
	return errors.Join(CheckLength(tok.Bare(), query), CheckLength(tok, document))
}

// dotSimilarity is what a folder's similarity_fn_name is where embeddings are compared by inner products.
const dotSimilarity = "dot"

// HeadOf is the pooling, the normalization and the similarity of a folder, unless asked for otherwise. A folder that does not say gets no normalization and mean
// pooling, or the last token of a causal language model, as sentence-transformers has it. Embeddings whose folder says another similarity than dot
// are compared by cosine.
func HeadOf(f *hfmodel.Folder, pooling string, normalize *bool) (transformer.Head, error) {
	h := transformer.Head{Normalize: f.Normalize, Dot: f.Similarity == dotSimilarity}
	if f.Reranker != nil {
		return h, fmt.Errorf("%s is a reranker: it scores pairs of texts and embeds none; contraflow rerank does, and measures it", f.Dir)
	}
	if normalize != nil {
		h.Normalize = *normalize
	}
	if f.MultiVector != nil && pooling != "" {
		return h, fmt.Errorf("%s gives a vector for each token: nothing is pooled (%s)", f.Dir, pooling)
	}
	mode := assumedPooling(f)
	if f.Pooling != nil {
		mode, h.SkipPrompt = f.Pooling.Mode, !f.Pooling.IncludePrompt
	}
	if pooling != "" && f.Splade != nil {
		return h, fmt.Errorf("%s is a sparse encoder, whose SpladePooling takes the largest logits: pooling %q is not for it", f.Dir, pooling)
	}
	if pooling != "" {
		mode = hfmodel.PoolingMode(pooling)
	}
	switch mode {
	case hfmodel.Mean:
		h.Pooling = gpustage.MeanPooling
	case hfmodel.CLS:
		h.Pooling = gpustage.CLSPooling
	case hfmodel.Last:
		h.Pooling = gpustage.LastPooling
	default:
		return h, fmt.Errorf("pooling %q is not supported: want mean, cls or last", mode)
	}
	return h, nil
}

// assumedPooling is that of a folder that does not say.
func assumedPooling(f *hfmodel.Folder) hfmodel.PoolingMode {
	var c struct {
		Architectures []string `json:"architectures"`
		IsCausal      *bool    `json:"is_causal"` // false: an encoder that was made of one
	}
	if err := json.Unmarshal(f.Config, &c); err != nil { // transformer.ParseConfig's error
		return hfmodel.Mean
	}
	if len(c.Architectures) > 0 && strings.HasSuffix(c.Architectures[0], "ForCausalLM") && (c.IsCausal == nil || *c.IsCausal) {
		return hfmodel.Last
	}
	return hfmodel.Mean
}

// HeadNote says what is assumed of embeddings where a folder says nothing, as transformers saves them, and the arguments, which are [HeadOf]'s, do
// not either; "": nothing is.
func HeadNote(f *hfmodel.Folder, pooling string, normalize *bool) string {
	if f.Modules != nil || f.Pooling != nil || f.Static() || f.MultiVector != nil {
		return ""
	}
	var assumed []string
	if pooling == "" {
		assumed = append(assumed, map[hfmodel.PoolingMode]string{hfmodel.Mean: "mean pooling", hfmodel.Last: "pooling of the last token"}[assumedPooling(f)])
	}
	if normalize == nil {
		assumed = append(assumed, "not normalized")
	}
	if assumed == nil {
		return ""
	}
	if chat, _ := f.ChatTemplate(); chat { // a broken file is the tokenizer's error
		assumed = append([]string{"texts as they are, not in the tokenizer's chat template"}, assumed...)
	}
	return fmt.Sprintf("%s has no modules.json, which would say how embeddings are made: %s", f.Dir, strings.Join(assumed, ", "))
}

// similarityNote says that a folder's similarity is not what texts are compared by; "": it is.
func similarityNote(f *hfmodel.Folder) string {
	if f.Splade != nil || f.Similarity != "euclidean" && f.Similarity != "manhattan" {
		return ""
	}
	return fmt.Sprintf("%s: similarity_fn_name is %s, for which texts are compared by cosine", f.Dir, f.Similarity)
}

// lowerCases refuses a folder whose texts are to be lower-cased (do_lower_case of sentence_bert_config.json), if its tokenizer does not do that itself.
func lowerCases(f *hfmodel.Folder) error {
	if !f.LowerCase {
		return nil
	}
	tok, err := tokenize.Load(f.TokenizerDir)
	if err != nil {
		return err
	}
	const letters = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
	if !slices.Equal(tok.Encode(letters, 0), tok.Encode(strings.ToLower(letters), 0)) {
		return fmt.Errorf("%s: do_lower_case of sentence_bert_config.json is only supported with a tokenizer that lower-cases", f.Dir)
	}
	return nil
}

// PoolingModes are the names that folders have for ways of pooling.
var PoolingModes = map[gpustage.Pooling]hfmodel.PoolingMode{
	gpustage.MeanPooling: hfmodel.Mean, gpustage.CLSPooling: hfmodel.CLS, gpustage.LastPooling: hfmodel.Last,
}

// TrainableHead is HeadOf where a model is made of the folder's. It refuses one whose embeddings are cut after the model (truncate_dim): that
// would be lost. So would the features that a sparse encoder leaves out (max_active_dims).
func TrainableHead(f *hfmodel.Folder, pooling string, normalize *bool) (transformer.Head, error) {
	if f.TruncateDim > 0 {
		return transformer.Head{}, fmt.Errorf("%s: its embeddings are cut to %d dimensions, which only embedding does: remove truncate_dim from config_sentence_transformers.json, and cut what comes of it again", f.Dir, f.TruncateDim)
	}
	if f.Splade != nil && f.MaxActive > 0 {
		return transformer.Head{}, fmt.Errorf("%s: its embeddings are cut to %d active features, which only embedding does: remove max_active_dims from config_sentence_transformers.json, and leave features of what comes of it out again (embed --max-active)", f.Dir, f.MaxActive)
	}
	return HeadOf(f, pooling, normalize)
}

// ConfigOf is the configuration of a folder's model. change, if not nil, may alter it.
func ConfigOf(f *hfmodel.Folder, change func(*transformer.Config)) (transformer.Config, error) {
	c, err := transformer.ParseConfig(f.Config)
	if err != nil {
		return c, fmt.Errorf("%s: %w", f.Dir, err)
	}
	for _, d := range f.Dense {
		c.Dense = append(c.Dense, transformer.Dense{Name: d.Path, Out: d.Out, Bias: d.Bias, Activation: denseActivations[d.Activation]})
	}
	if f.M3 != nil {
		c.Tokens = c.M3Heads(f.M3.Dim, false, 0)
	}
	if f.MultiVector != nil {
		c.Tokens = c.ColBERT(false, 0)
	}
	if f.Splade != nil {
		if c.MLMHead, err = c.MLM(f.Config, f.Splade.Twice); err != nil {
			return c, fmt.Errorf("%s: %w", f.Dir, err)
		}
	}
	if c.Queries, err = queriesOf(f, c); err != nil {
		return c, err
	}
	if change != nil {
		change(&c)
	}
	return c, nil
}

// SpecialIDs are the ids of the tokens that have no lexical weight.
func SpecialIDs(f *hfmodel.Folder, tok *tokenize.Tokenizer) (ids []int32, err error) {
	tokens, err := f.SpecialTokens()
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		id, ok := tok.ID(t)
		if !ok {
			return nil, fmt.Errorf("%s: the tokenizer has no token %q, which its files name", f.Dir, t)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

var denseActivations = map[string]gpustage.Activation{
	"identity": gpustage.Identity, "tanh": gpustage.Tanh, "relu": gpustage.ReLU, "gelu": gpustage.GELU, "silu": gpustage.SiLU,
}

// LoadModel makes the model of a folder on a device. An adapter is merged into its base model's weights: embedding then costs what it
// costs without. With o.Tuning.LoRA its factors are those that train, if they are as many and as large (CheckAdapter). change, if not nil, may alter the configuration first (dropout).
func LoadModel(f *hfmodel.Folder, d gpustage.Device, s gpustage.Stream, h transformer.Head, o transformer.Options, change func(*transformer.Config)) (*transformer.Model, error) {
	return loadModel(f, d, s, h, o, change, func(int, int) {})
}

// loadModel is LoadModel, and tells how many of the parameters are there.
func loadModel(f *hfmodel.Folder, d gpustage.Device, s gpustage.Stream, h transformer.Head, o transformer.Options, change func(*transformer.Config), told func(done, total int)) (*transformer.Model, error) {
	if err := lowerCases(f); err != nil {
		return nil, err
	}
	c, err := ConfigOf(f, change)
	if err != nil {
		return nil, err
	}
	m, err := transformer.New(d, c, h, o)
	if err != nil {
		return nil, err
	}
	adapter, err := adapted(f, m)
	if err == nil {
		err = CheckMLMHead(f, m)
	}
	goesOn := f.Adapter != nil && o.Tuning.LoRA != nil
	if err == nil && goesOn {
		err = adapter.trains(m)
	}
	if err != nil {
		m.Free()
		return nil, err
	}
	done := 0
	err = m.Load(s, func(p transformer.Param, dst []float32) error {
		defer func() {
			done += len(dst)
			told(done, m.Layout.Len)
		}()
		if p.Name == transformer.QueryWeight && c.Queries.First != nil {
			copy(dst, c.Queries.First)
			return nil
		}
		t, err := f.Tensor(p.Name, c.Prefixes()...)
		if p.Head && (c.Scorer.New || c.Tokens.New) && errors.Is(err, safetensors.ErrNoTensor) {
			m.InitParam(p, dst, c.Scorer.Seed+c.Tokens.Seed)
			return nil
		}
		if err != nil {
			return err
		}
		if got, want := fmt.Sprint(t.Shape), fmt.Sprint(p.Shape()); got != want {
			return fmt.Errorf("%s: tensor %q has shape %s, want %s", f.Dir, t.Name, got, want)
		}
		if err := t.Float32s(dst); err != nil {
			return err
		}
		if err := transformer.CheckFinite(t.Name, dst); err != nil {
			return fmt.Errorf("%s: %w", f.Dir, err)
		}
		if x, ok := adapter.factors[p.Name]; ok && !goesOn {
			if err := merge(m, s, p, dst, x); err != nil {
				return fmt.Errorf("%s: with the base model %s: %w", f.Dir, f.Base.Dir, err)
			}
		}
		return nil
	})
	if err == nil && goesOn {
		err = m.LoadFactors(s, adapter.read)
	}
	f.Forget()
	if err != nil {
		m.Free()
		return nil, err
	}
	return m, nil
}

// Size is the number of dimensions of an embedding.
func (e *Embedder) Size() int { return e.engine.Size() }

// MaxLength is the number of tokens at which texts are cut; 0: they are not.
func (e *Embedder) MaxLength() int { return e.maxLength }

// QueryLength is that of queries.
func (e *Embedder) QueryLength() int { return e.queryLength }

// RolePrompts are the texts that belong before queries and before documents, as hfmodel.Folder.RolePrompts has them.
func (e *Embedder) RolePrompts() (query, document string) { return e.queryPrompt, e.documentPrompt }

// Prompt is the text of one of the model's prompts, empty if it has none of that name. "query" and "document" are those of [Embedder.RolePrompts],
// where the model has none of that name: its "passage" or "corpus" for "document".
func (e *Embedder) Prompt(name string) string {
	text, _ := e.promptOf(name)
	return text
}

func (e *Embedder) promptOf(name string) (text string, ok bool) {
	if text, ok = e.prompts[name]; ok {
		return text, true
	}
	switch name {
	case "query":
		return e.queryPrompt, true
	case "document":
		return e.documentPrompt, true
	}
	return "", false
}

// CheckPrompt wraps [ErrNoPrompt] where the model has no prompt of a name; "" is none.
func (e *Embedder) CheckPrompt(name string) error {
	if _, ok := e.promptOf(name); !ok && name != "" {
		return fmt.Errorf("%w: %q%s", ErrNoPrompt, name, e.promptNames())
	}
	return nil
}

// Prompts are the model's prompts by their names: a copy.
func (e *Embedder) Prompts() map[string]string { return maps.Clone(e.prompts) }

// DefaultPrompt is the name of the prompt that Embed puts before texts, empty if the model has none.
func (e *Embedder) DefaultPrompt() string { return e.prompt }

// ErrNoPrompt is wrapped when a model has no prompt of the given name.
var ErrNoPrompt = errors.New("no such prompt")

// Embed returns one embedding per text, in order. It uses the model's default prompt, if it has one. Where queries are weights of tokens the texts are
// documents, whatever the prompt is called. With a [*NotFiniteError] it returns the others' all the same, with any other error none.
func (e *Embedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	return e.rows(ctx, Document, e.prompt, texts)
}

// EmbedPrompt is Embed with one of the model's prompts put before each text; "" means none. "query" and "document" are what belongs before queries
// and documents ([Embedder.Prompt]), which of a model without prompts is nothing. Where queries are weights of tokens, "query" has texts read as queries, and
// with any other they are documents.
func (e *Embedder) EmbedPrompt(ctx context.Context, prompt string, texts []string) ([][]float32, error) {
	return e.rows(ctx, e.roleBy(prompt), prompt, texts)
}

// roleBy is the role in which texts are read that a prompt of a name is put before: where queries are not read otherwise they are cut as documents too.
func (e *Embedder) roleBy(prompt string) Role {
	if e.WeighsQueries() {
		return roleOf(prompt)
	}
	return Document
}

func roleOf(prompt string) Role {
	if prompt == "query" {
		return Query
	}
	return Document
}

func (e *Embedder) rows(ctx context.Context, role Role, prompt string, texts []string) ([][]float32, error) {
	vecs := make([][]float32, len(texts))
	flat := make([]float32, len(texts)*e.Size())
	for i := range vecs {
		vecs[i] = flat[i*e.Size() : (i+1)*e.Size() : (i+1)*e.Size()]
	}
	_, err := e.EmbedAs(ctx, role, prompt, texts, flat)
	if err != nil && !errors.Is(err, ErrNotFinite) {
		return nil, err
	}
	return vecs, err
}

// ErrNotFinite is wrapped where a model gives an embedding that holds NaN or an infinity, which nothing can be ranked by.
var ErrNotFinite = errors.New("the embedding is not finite: the model's weights are broken, as those of a run that has diverged")

// A NotFiniteError is ErrNotFinite of the first such text of a call.
type NotFiniteError struct{ Text int }

func (e *NotFiniteError) Error() string { return fmt.Sprintf("text %d: %v", e.Text, ErrNotFinite) }
func (e *NotFiniteError) Unwrap() error { return ErrNotFinite }

// ErrNoTokens is wrapped where a tokenizer makes no tokens of a text, as one without special tokens of an empty one, and the model reads at least one.
var ErrNoTokens = errors.New("the tokenizer makes no tokens of it, and the model reads at least one: leave it out")

// A NoTokensError is ErrNoTokens of the first such text of a call, before any is computed.
type NoTokensError struct{ Text int }

func (e *NoTokensError) Error() string { return fmt.Sprintf("text %d: %v", e.Text, ErrNoTokens) }
func (e *NoTokensError) Unwrap() error { return ErrNoTokens }

// OfText tells which of a call's texts an error is about, and what is wrong with that; ok is false if it is about none.
func OfText(err error) (text int, what error, ok bool) {
	var lost *NotFiniteError
	var none *NoTokensError
	switch {
	case errors.As(err, &lost):
		return lost.Text, ErrNotFinite, true
	case errors.As(err, &none):
		return none.Text, ErrNoTokens, true
	}
	return 0, nil, false
}

// finite tells whether all numbers are.
func finite(numbers []float32) bool {
	return !slices.ContainsFunc(numbers, func(v float32) bool { return v-v != 0 })
}

// EmbedInto is EmbedPrompt into memory of the caller's: [len(texts), Size], row-major. It returns how many texts were cut. With a
// [*NotFiniteError] out holds the others' embeddings all the same.
func (e *Embedder) EmbedInto(ctx context.Context, prompt string, texts []string, out []float32) (cut int, err error) {
	return e.EmbedAs(ctx, e.roleBy(prompt), prompt, texts, out)
}

// EmbedAs is EmbedInto of queries or of documents, which are cut at their lengths, whatever the prompt is called.
func (e *Embedder) EmbedAs(ctx context.Context, role Role, prompt string, texts []string, out []float32) (cut int, err error) {
	if err := e.CheckPrompt(prompt); err != nil {
		return 0, err
	}
	return e.embedAs(ctx, role, e.Prompt(prompt), texts, out, func(int) {})
}

// embedAs is EmbedAs with a prompt's text, and tells how many texts are embedded.
func (e *Embedder) embedAs(ctx context.Context, role Role, prompt string, texts []string, out []float32, told func(done int)) (cut int, err error) {
	size := e.Size()
	if len(out) != len(texts)*size {
		return 0, fmt.Errorf("room for %d numbers, %d texts of %d dimensions need %d", len(out), len(texts), size, len(texts)*size)
	}
	if e.VectorsAlone() {
		return 0, errVectorsAlone
	}
	length := e.maxLength
	if role == Query {
		length = e.queryLength
	}
	ids, cut, err := e.tokenizeTo(ctx, role, prompt, texts, length)
	if err != nil {
		return 0, err
	}
	behind, done := 0, 0
	if e.model.Head.SkipPrompt {
		behind = e.tok.PromptTokens(prompt, length)
	}
	if err := e.engine.EmbedAs(ctx, role, behind, ids, func(i int, vec []float32) {
		copy(out[i*size:], vec)
		done++
		told(done)
	}); err != nil {
		return cut, err
	}
	for i := range texts {
		if !finite(out[i*size : (i+1)*size]) {
			return cut, &NotFiniteError{i}
		}
	}
	return cut, nil
}

// tokenizeTo puts a prompt's text before texts of a role and says how many had to be cut to a length. After Close it is an error.
func (e *Embedder) tokenizeTo(ctx context.Context, role Role, prompt string, texts []string, length int) (ids [][]int32, cut int, err error) {
	if err := e.engine.Turns.Err(); err != nil {
		return nil, 0, err
	}
	texts = prompted(prompt, texts)
	tok := e.tok
	if weighs(e.model, role) {
		tok = tok.Bare()
	}
	if ids, cut, err = tok.EncodeCut(ctx, texts, length, 0); err != nil {
		return nil, 0, err
	}
	if weighs(e.model, role) {
		distinct(ids)
	}
	return ids, cut, nil
}

// promptNames says which prompts there are instead of one that is not.
func (e *Embedder) promptNames() string {
	if len(e.prompts) == 0 {
		return "; the model has no prompts"
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(e.prompts)) {
		names = append(names, strconv.Quote(name))
	}
	return "; the model has " + strings.Join(names, ", ")
}

// Close gives the model's memory back, after the turn at hand.
func (e *Embedder) Close() error {
	return e.engine.Turns.Close(func() error {
		errs := []error{e.engine.Close(), e.engine.CloseStream()}
		if e.model != nil {
			errs = append(errs, e.model.Free())
		}
		if e.owned {
			errs = append(errs, e.device.Close())
		}
		return errors.Join(errs...)
	})
}
