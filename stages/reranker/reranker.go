// Package reranker scores pairs of a query and a document in Go programs.
//
//	r, err := reranker.Load("ms-marco-MiniLM-L6-v2")     // a folder, as transformers, CrossEncoder or contraflow saves it
//	scores, err := r.Score(ctx, "what is an arena?", docs)
//
// A program chooses the device by importing it, most often import _ "contraflow/gpustage/cpu"; [OnDevice] gives one explicitly.
//
// What a score is the folder says: the logit of a model for sequence classification (of an encoder, or of a decoder's last token), or a
// decoder's logit of "yes" less that of "no" after a template's last token, or of a layer-wise reranker what the head of one of its layers
// says of the last token ([CutoffLayer]). It is not squeezed into 0 to 1: [Sigmoid] does that, as CrossEncoder does of itself.
//
// Pairs are tokenized on all processors, sorted by length, packed without padding and computed in passes of a bounded number of tokens;
// a pair's score does not depend on what else is in the call.
package reranker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Reranker is a loaded model. It is safe for concurrent use: pairs of several calls are tokenized at once, and computed in turns, a pass of each at
// a time. After Close calls are [embedder.ErrClosed].
type Reranker struct {
	pairs  *tokenize.Pairs
	model  *transformer.Model
	device gpustage.Device
	owned  bool // the device is closed with the reranker

	progress func(done, total int)

	engine embedder.Engine // with Turns
}

// Option configures Load.
type Option func(*options)

type options struct {
	device gpustage.Device
	tokens int
	bf16   bool
	text   TextOptions
	tell   func(done, total int)
	warn   func(string)
}

// OnDevice computes on the given device, which stays the caller's to close.
func OnDevice(d gpustage.Device) Option { return func(o *options) { o.device = d } }

// MaxLength cuts pairs to n tokens, special ones included, instead of what the folder says.
func MaxLength(n int) Option { return func(o *options) { o.text.MaxLength = n } }

// PassTokens bounds the tokens that go through the model at once, and with them memory; 0: what the device likes.
func PassTokens(n int) Option { return func(o *options) { o.tokens = n } }

// BF16 rounds the inputs of matrix products to bf16: about twice as fast where the device multiplies in it.
func BF16() Option { return func(o *options) { o.bf16 = true } }

// Template chooses one of [tokenize.Templates] instead of what the folder says.
func Template(name string) Option { return func(o *options) { o.text.Template = name } }

// Instruction is what stands for {instruction} in the template.
func Instruction(text string) Option { return func(o *options) { o.text.Instruction = text } }

// CutoffLayer scores by the output of a layer, counted from 1, of a layer-wise reranker, as FlagEmbedding's cutoff_layers does: layers above
// it are neither loaded nor computed. 0: the last.
func CutoffLayer(n int) Option { return func(o *options) { o.text.CutoffLayer = n } }

// Progress is told how many of the pairs of a [Reranker.Rerank] are scored, while they are.
func Progress(tell func(done, total int)) Option { return func(o *options) { o.tell = tell } }

// Warn gets what a user should know although the model loads.
func Warn(f func(message string)) Option { return func(o *options) { o.warn = f } }

// Load loads the folder of a model that scores; that of a model of the hub is what hfmodel.Resolve finds. Without OnDevice the model is on the best device of
// those that the program imports, which Close closes.
func Load(folder string, opts ...Option) (_ *Reranker, err error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	f, err := hfmodel.Open(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Reranker{device: o.device, progress: o.tell, engine: embedder.Engine{Turns: embedder.NewTurns()}}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.device == nil {
		if r.device, err = gpustage.OpenBest(o.warn); err != nil {
			return nil, err
		}
		r.owned = true
	}
	tok, err := tokenize.Load(f.TokenizerDir)
	if err != nil {
		return nil, err
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		return nil, err
	}
	spec, err := Describe(f, tok, c, o.text)
	if err != nil {
		return nil, err
	}
	if spec.Scorer.New {
		return nil, fmt.Errorf("%s is no reranker: its class is %q, which has no head that scores; train one from it with model.kind: reranker", folder, f.Architecture())
	}
	stream, err := r.device.OpenStream()
	if err != nil {
		return nil, err
	}
	r.engine.Stream = stream
	r.model, err = embedder.LoadModel(f, r.device, stream, transformer.Head{}, transformer.Options{BF16: o.bf16}, spec.Configure)
	if err != nil {
		return nil, err
	}
	if err := embedder.CheckVocabulary(tok, r.model.Config); err != nil {
		return nil, err
	}
	note, err := spec.TemplateNote(f)
	if err != nil {
		return nil, err
	}
	for _, note := range []string{note, embedder.VocabularyNote(f, tok, r.model.Config)} {
		if note != "" && o.warn != nil {
			o.warn(note)
		}
	}
	r.pairs = spec.Pairs
	r.engine.Model, r.engine.Tokens = r.model, cmp.Or(o.tokens, r.device.Info().PassTokens()) // once: it reads how much memory is left
	return r, nil
}

// TextOptions are what a folder may be overruled in.
type TextOptions struct {
	MaxLength   int
	Template    string // one of tokenize.Templates
	Instruction string
	Truncation  string   // longest_first or only_second
	Prompts     *Prompts // nil: the folder's
	CutoffLayer int      // of a layer-wise reranker; 0: the last
	EveryLayer  bool     // of a layer-wise reranker the scores of all layers that have one, the last layer's first, by which it trains
	NewHead     bool     // of a language model: a projection of the last token, not the logits of tokens
	Seed        uint64   // of a head that is new
}

// Prompts are put before queries and documents.
type Prompts struct{ Query, Document string }

// Spec is how a folder's model scores.
type Spec struct {
	Scorer    transformer.Scorer
	Layers    int // at which the model ends; 0: all
	Pairs     *tokenize.Pairs
	Pad       *int32 // of a decoder that classifies: it scores by the last token but this one
	MaxLength int
	Folder    hfmodel.Reranker // for a folder that scores as this one
}

// Configure gives a model's configuration the head, in the place of what an embedder has behind its pooling.
func (s *Spec) Configure(c *transformer.Config) {
	c.Scorer, c.Dense, c.Tokens = s.Scorer, nil, transformer.TokenHeads{}
	if s.Layers > 0 {
		c.CutOff(s.Layers)
	}
}

// Describe finds out how a folder's model scores. Of a folder that holds no reranker it is with a head that is new.
func Describe(f *hfmodel.Folder, tok *tokenize.Tokenizer, c transformer.Config, o TextOptions) (*Spec, error) {
	s := &Spec{}
	if f.Reranker != nil {
		s.Folder = *f.Reranker
	}
	r := &s.Folder
	if f.LayerWise() && o.Template == "" && r.Template == nil {
		o.Template = "bge" // which FlagEmbedding puts around every pair
	}
	if r.Chat && r.Template == nil && o.Template == "" {
		return nil, fmt.Errorf("%s: CrossEncoder puts pairs into the tokenizer's chat template (message in modality_config), a program that is not read here; name the template: %s; without message they are read as they are",
			f.Dir, strings.Join(tokenize.TemplateNames(), " or "))
	}
	if o.CutoffLayer != 0 && !f.LayerWise() {
		return nil, fmt.Errorf("%s scores by its last layer: a cutoff layer is for layer-wise rerankers", f.Dir)
	}
	if o.Template != "" {
		t, ok := tokenize.Templates[o.Template]
		if !ok {
			return nil, fmt.Errorf("there is no template %q; there are %s", o.Template, strings.Join(tokenize.TemplateNames(), " and "))
		}
		r.Template, r.Instruction, r.True, r.False, r.TrueID, r.FalseID = t.Template, t.Instruction, t.TrueToken, t.NotToken, nil, nil
		if id, ok := tok.First(t.TrueToken); ok && t.AsText {
			r.True, r.TrueID = "", &id
		}
	}
	r.Instruction, r.Truncation = cmp.Or(o.Instruction, r.Instruction), cmp.Or(o.Truncation, r.Truncation)
	if p := o.Prompts; p != nil {
		r.QueryPrompt, r.DocumentPrompt = p.Query, p.Document
	}
	var how tokenize.Truncation
	switch r.Truncation {
	case "", "longest_first":
	case "only_second":
		how = tokenize.OnlySecond
	default:
		return nil, fmt.Errorf("truncation %q is not longest_first or only_second", r.Truncation)
	}
	if err := s.usable(o); err != nil {
		return nil, err
	}
	var err error
	words := strings.HasSuffix(f.Architecture(), "ForCausalLM") && !f.LayerWise() && !o.NewHead // tokens of its vocabulary score
	if !words {
		r.True, r.False, r.TrueID, r.FalseID = "", "", nil, nil // a template's, or of the head that is replaced
	}
	if f.LayerWise() {
		if o.NewHead {
			return nil, fmt.Errorf("%s is a layer-wise reranker, which has heads of its own", f.Dir)
		}
		if o.EveryLayer {
			s.Scorer, err = c.LayerScorers(f.Config)
		} else {
			s.Scorer, s.Layers, err = c.LayerScorer(f.Config, o.CutoffLayer)
		}
	} else if words {
		err = s.tokens(f, tok, c)
	} else {
		s.Scorer, err = c.Classifier(f.Config, f.Reranker == nil || !strings.HasSuffix(f.Architecture(), "ForSequenceClassification"))
		s.Scorer.Seed = o.Seed
		if err == nil && !s.Scorer.New {
			if t, e := f.Tensor(s.Scorer.Out+".weight", c.Prefixes()...); e == nil && len(t.Shape) == 2 && t.Shape[0] != 1 { // what else is wrong is told when it is loaded
				err = fmt.Errorf("%s is of %d labels, which are %w: a reranker gives one score", t.Name, t.Shape[0], transformer.ErrUnsupported)
			}
		}
		if err == nil && s.Scorer.Pooling == gpustage.LastPooling {
			s.Pad = padding(tok, c, s.Scorer.New)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Dir, err)
	}
	if s.MaxLength, err = embedder.MaxLengthOf(f, c, o.MaxLength); err != nil {
		return nil, err
	}
	s.Pairs, err = tok.NewPairs(tokenize.PairOptions{
		MaxLength: s.MaxLength, Truncation: how, QueryPrompt: r.QueryPrompt, DocumentPrompt: r.DocumentPrompt, Template: r.Template, Instruction: r.Instruction, Pad: s.Pad,
	})
	if err != nil {
		return nil, err
	}
	if _, kinds, _, err := s.Pairs.Append(nil, nil, "a", "b"); err == nil && c.TypeVocab > 0 && int(slices.Max(kinds)) >= c.TypeVocab {
		return nil, fmt.Errorf("%s: its tokenizer gives a document's tokens type %d, and the model has %d; with \"model_input_names\": [\"input_ids\", \"attention_mask\"] in tokenizer_config.json it gives no types", f.Dir, slices.Max(kinds), c.TypeVocab)
	}
	return s, nil
}

// TemplateNote says that pairs are read as they are where a folder leaves it open; "" where it does not.
func (s *Spec) TemplateNote(f *hfmodel.Folder) (string, error) {
	if s.Folder.Template != nil || f.Modules != nil {
		return "", nil
	}
	chat, err := f.ChatTemplate()
	names := strings.Join(tokenize.TemplateNames(), " and ")
	switch {
	case err != nil:
		return "", err
	case chat:
		return fmt.Sprintf("%s: pairs are read as they are, not in the tokenizer's chat template, a program into which CrossEncoder puts them, or says that they do not fit; there are the templates %s", f.Dir, names), nil
	case f.Reranker == nil && len(s.Scorer.Tokens) > 0:
		return fmt.Sprintf("%s is a language model, and nothing in it says how it scores: pairs are read as they are, and the score is the logit of %q less that of %q behind them, as CrossEncoder has it; "+
			"a model that was trained in a template needs it, as BAAI/bge-reranker-v2-gemma bge; there are the templates %s", f.Dir, s.Folder.True, s.Folder.False, names), nil
	}
	return "", nil
}

// padding is the token by which transformers' decoders for sequence classification never score, also where a text has it at its end, as where it is the one
// that ends texts too: they look for the last that is another. Tokens behind that one change nothing, since a decoder does not look ahead. It is config.json's. A
// new head is trained and saved with the tokenizer's, which is what fills texts up there: without one no two are scored at once, and with another they are scored
// by what fills them up. transformers loads no model whose padding has no embedding.
func padding(tok *tokenize.Tokenizer, c transformer.Config, fresh bool) *int32 {
	if id, ok := tok.PadID(); ok && fresh && int(id) < c.Vocab {
		return &id
	}
	if c.PadID < 0 {
		return nil
	}
	id := int32(c.PadID)
	return &id
}

// usable refuses what is asked for and would change nothing.
func (s *Spec) usable(o TextOptions) error {
	r := s.Folder
	says := func(g tokenize.Segment) bool { return strings.Contains(g.Text, "{instruction}") }
	switch {
	case o.Instruction != "" && !slices.ContainsFunc(r.Template, says):
		return fmt.Errorf("an instruction has its place in a template, and this model's pairs have none that names {instruction}; there are the templates %s", strings.Join(tokenize.TemplateNames(), " and "))
	case o.Truncation != "" && r.Template != nil:
		return fmt.Errorf("truncation %s is for pairs without a template: a template says what is cut", o.Truncation)
	}
	return nil
}

// tokens finds the tokens of a language model whose logits are the score: LogitScore's, reranker.json's, or as CrossEncoder has it "yes"
// and "no".
func (s *Spec) tokens(f *hfmodel.Folder, tok *tokenize.Tokenizer, c transformer.Config) (err error) {
	r := &s.Folder
	if r.TrueID == nil {
		if r.True == "" {
			r.True, r.False = "yes", "no"
		}
		find := func(token string) *int32 {
			id, ok := tok.ID(token)
			if !ok && err == nil {
				err = fmt.Errorf("the tokenizer has no token %q", token)
			}
			return &id
		}
		r.TrueID = find(r.True)
		if r.False != "" {
			r.FalseID = find(r.False)
		}
		if err != nil {
			return err
		}
	}
	ids := []int32{*r.TrueID}
	if r.FalseID != nil {
		ids = append(ids, *r.FalseID)
	}
	s.Scorer, err = c.TokenScorer(f.Config, ids...)
	return err
}

// MaxLength is the number of tokens, special ones included, at which pairs are cut.
func (r *Reranker) MaxLength() int { return r.pairs.MaxLength() }

// Score scores documents for a query: the higher, the more relevant.
func (r *Reranker) Score(ctx context.Context, query string, documents []string) ([]float32, error) {
	queries := make([]string, len(documents))
	for i := range queries {
		queries[i] = query
	}
	scores, _, err := r.ScorePairs(ctx, queries, documents)
	return scores, err
}

// CheckQuery finds a query that leaves no room for a document, where these alone are cut.
func (r *Reranker) CheckQuery(query string) error {
	if err := r.pairs.HasRoom(query); err != nil {
		return fmt.Errorf("%w (\"truncation\" in the model's reranker.json)", err)
	}
	return nil
}

// CheckPair finds a pair that ScorePairs can't score: by CheckQuery, or because the tokenizer makes nothing of it.
func (r *Reranker) CheckPair(query, document string) error {
	if err := r.CheckQuery(query); err != nil {
		return err
	}
	if !dataset.Blank(query) || !dataset.Blank(document) {
		return nil
	}
	ids, _, _, err := r.pairs.Append(nil, nil, query, document)
	if err == nil && len(ids) == 0 {
		err = embedder.ErrNoTokens
	}
	return err
}

// ScorePairs scores queries[i] with documents[i], and tells how many pairs were cut.
func (r *Reranker) ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error) {
	if err := r.engine.Turns.Err(); err != nil {
		return nil, 0, err
	}
	ids, kinds, cut, err := r.pairs.EncodeAll(ctx, queries, documents)
	if err != nil {
		return nil, 0, err
	}
	scores = make([]float32, len(ids))
	err = r.engine.EmbedTyped(ctx, ids, kinds, func(i int, score []float32) { scores[i] = score[0] })
	return scores, cut, err
}

// Sigmoid maps scores to between 0 and 1, in their order.
func Sigmoid(scores []float32) {
	for i, s := range scores {
		scores[i] = float32(1 / (1 + math.Exp(-float64(s))))
	}
}

// Close gives the model's memory back, after the turn at hand.
func (r *Reranker) Close() error {
	return r.engine.Turns.Close(func() error {
		errs := []error{r.engine.Close(), r.engine.CloseStream()}
		if r.model != nil {
			errs = append(errs, r.model.Free())
		}
		if r.owned {
			errs = append(errs, r.device.Close())
		}
		return errors.Join(errs...)
	})
}
