package tokenize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
)

// A Segment is a stretch of what a reranker reads: fixed text around a query and a document. Its text may hold {query}, {document},
// {instruction} and {bos}, the token that texts begin with if there is one, and special tokens by their names; it becomes ids on its own, without the special tokens that surround a text.
type Segment struct {
	Text string `json:"text" yaml:"text"`
	Cut  bool   `json:"cut,omitempty" yaml:"cut,omitempty"` // this one loses its last ids if there are too many in all, and then the query's
}

// Template is segments, one after the other. One of them may be cut.
type Template []Segment

// Check finds templates that can't be meant.
func (t Template) Check() error {
	cut, query, document := 0, false, false
	for _, s := range t {
		query = query || strings.Contains(s.Text, "{query}")
		document = document || strings.Contains(s.Text, "{document}")
		if s.Cut {
			cut++
		}
	}
	switch {
	case len(t) == 0:
		return errors.New("a template without segments")
	case !query || !document:
		return errors.New("a template needs {query} and {document}")
	case cut > 1:
		return errors.New("a template has more than one segment to cut")
	}
	return nil
}

// Templates are those of known rerankers, by name.
var Templates = map[string]struct {
	Template            Template
	Instruction         string
	TrueToken, NotToken string // whose logits are the score
	AsText              bool   // TrueToken is a text, the first of whose ids is meant: SentencePiece has "▁Yes" for "Yes"
}{
	// Qwen3-Reranker, from its model card.
	"qwen3": {
		Template: Template{
			{Text: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"},
			{Text: "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}", Cut: true},
			{Text: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		},
		Instruction: "Given a web search query, retrieve relevant passages that answer the query",
		TrueToken:   "yes", NotToken: "no",
	},
	// FlagEmbedding's decoders (bge-reranker-v2-gemma), from its datasets and BaseLLMReranker; the document alone is cut. The maximum length
	// is of everything, as where FlagEmbedding trains; where it only scores, the second "\n" and the instruction come on top.
	"bge": {
		Template: Template{
			{Text: "{bos}"}, {Text: "A: {query}"}, {Text: "\n"}, {Text: "B: {document}", Cut: true}, {Text: "\n"}, {Text: "{instruction}"},
		},
		Instruction: "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'.",
		TrueToken:   "Yes", AsText: true,
	},
}

// TemplateNames are the names in Templates, in order.
func TemplateNames() []string { return slices.Sorted(maps.Keys(Templates)) }

// Pairs turns queries and documents into what a reranker reads. It does not change and may be used from any number of goroutines.
type Pairs struct {
	t           *Tokenizer
	maxLength   int
	how         Truncation
	query, doc  string // put before each
	instruction string
	segments    []segment
	pad         *int32
}

type segment struct {
	Segment
	ids []int32 // of fixed text
}

// PairOptions configure NewPairs.
type PairOptions struct {
	MaxLength      int        // ids of a pair, special ones included; 0: no limit
	Truncation     Truncation // without a template
	QueryPrompt    string     // put before each query
	DocumentPrompt string
	Template       Template // nil: the tokenizer's own way of joining two texts
	Instruction    string   // what {instruction} stands for
	Pad            *int32   // an id of which a pair has none at its end, but for the pair's first; nil: there is none
}

// NewPairs prepares pairs of texts for a tokenizer. The error, of options that can't be meant, wraps ErrTooShort where MaxLength leaves no room beside
// what surrounds a pair.
func (t *Tokenizer) NewPairs(o PairOptions) (*Pairs, error) {
	if err := o.Truncation.check(); err != nil {
		return nil, err
	}
	if o.MaxLength < 0 {
		return nil, fmt.Errorf("pairs of at most %d tokens: 0 means no limit", o.MaxLength)
	}
	p := &Pairs{t: t, maxLength: o.MaxLength, how: o.Truncation, query: o.QueryPrompt, doc: o.DocumentPrompt, instruction: o.Instruction, pad: o.Pad}
	fixed := t.pairSpecials
	if o.Template != nil {
		if err := o.Template.Check(); err != nil {
			return nil, err
		}
		fixed = 0
		known := strings.NewReplacer("{instruction}", o.Instruction, "{bos}", t.bos)
		for _, s := range o.Template {
			g := segment{Segment: s}
			text := known.Replace(s.Text)
			if text == "" {
				continue
			}
			if id, ok := t.ids[t.bos]; ok && s.Text == "{bos}" { // as text it might be given a space in front
				g.ids = []int32{id}
				fixed++
			} else if !strings.Contains(s.Text, "{query}") && !strings.Contains(s.Text, "{document}") {
				g.ids = t.bare(nil, text)
				fixed += len(g.ids)
			}
			p.segments = append(p.segments, g)
		}
	}
	if o.MaxLength > 0 && o.MaxLength <= fixed {
		return nil, fmt.Errorf("%w: %d tokens leave no room beside the %d that surround a pair", ErrTooShort, o.MaxLength, fixed)
	}
	return p, nil
}

// bare appends a text's ids without special tokens around them.
func (t *Tokenizer) bare(dst []int32, text string) []int32 {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.ids = t.encode(s, s.ids, text, math.MaxInt)
	return append(dst, s.ids...)
}

// First is the first id of a text, without the special tokens around it.
func (t *Tokenizer) First(text string) (id int32, ok bool) {
	ids := t.bare(nil, text)
	if len(ids) == 0 {
		return 0, false
	}
	return ids[0], true
}

// MaxLength is the number of ids at which pairs are cut; 0: they are not.
func (p *Pairs) MaxLength() int { return p.maxLength }

// EncodeAll makes ids and types of queries[i] with documents[i], on all processors, and counts the pairs that were cut. The error is
// ctx's, or wraps ErrTooShort and names the first pair of which what may be cut is not enough.
func (p *Pairs) EncodeAll(ctx context.Context, queries, documents []string) (ids, kinds [][]int32, cut int, err error) {
	if len(queries) != len(documents) {
		return nil, nil, 0, fmt.Errorf("%d queries and %d documents are no pairs", len(queries), len(documents))
	}
	ids, kinds = make([][]int32, len(queries)), make([][]int32, len(queries))
	var mu sync.Mutex
	failed := len(queries) // the first pair that err is about
	canceled := inBlocks(ctx, len(queries), 0, func() func(lo, hi int) {
		var ends [block]int
		var some, types []int32
		return func(lo, hi int) {
			some, types = some[:0], types[:0]
			short := 0
			for i := lo; i < hi; i++ {
				var truncated bool
				var e error
				some, types, truncated, e = p.Append(some, types, queries[i], documents[i])
				if e != nil {
					mu.Lock()
					if i < failed {
						failed, err = i, fmt.Errorf("pair %d: %w", i, e)
					}
					mu.Unlock()
				}
				if truncated {
					short++
				}
				ends[i-lo] = len(some)
			}
			split(ids[lo:hi], some, ends[:])
			split(kinds[lo:hi], types, ends[:])
			mu.Lock()
			cut += short
			mu.Unlock()
		}
	})
	if err = cmp.Or(canceled, err); err != nil {
		return nil, nil, 0, err
	}
	return ids, kinds, cut, nil
}

// NeedsRoom tells that documents alone are cut, so that a query may leave no room for one.
func (p *Pairs) NeedsRoom() bool { return p.segments == nil && p.maxLength > 0 && p.how == OnlySecond }

// HasRoom returns the error that Append has for a query beside which no document has room; nil if one has.
func (p *Pairs) HasRoom(query string) error {
	if !p.NeedsRoom() {
		return nil
	}
	_, _, _, err := p.Append(nil, nil, query, "a") // of which some is left wherever some of a longer one is
	return err
}

// Append appends a pair's ids to dst, and each id's type to kinds: 0 if the tokenizer is one whose models are given no types. The error, which wraps ErrTooShort, says that what may be cut is not
// enough; then nothing is appended.
func (p *Pairs) Append(dst, kinds []int32, query, document string) (ids, kindsOut []int32, truncated bool, err error) {
	first := len(dst)
	if dst, kinds, truncated, err = p.append(dst, kinds, query, document); err != nil || p.pad == nil {
		return dst, kinds, truncated, err
	}
	n := len(dst)
	for n > first+1 && dst[n-1] == *p.pad {
		n--
	}
	return dst[:n], kinds[:len(kinds)-(len(dst)-n)], truncated, nil
}

// append is Append with what a pair has at its end.
func (p *Pairs) append(dst, kinds []int32, query, document string) (ids, kindsOut []int32, truncated bool, err error) {
	query, document = p.query+query, p.doc+document
	if p.segments == nil {
		from := len(kinds)
		dst, kinds, truncated, err = p.t.AppendPair(dst, kinds, query, document, p.maxLength, p.how)
		if !p.t.typed {
			clear(kinds[from:])
		}
		return dst, kinds, truncated, err
	}
	first := len(dst)
	var cut, asked [2]int // where in dst what may be cut is, and the query
	texts := strings.NewReplacer("{query}", query, "{document}", document, "{instruction}", p.instruction, "{bos}", p.t.bos)
	for _, s := range p.segments {
		from := len(dst)
		if s.ids != nil {
			dst = append(dst, s.ids...)
		} else {
			dst = p.t.bare(dst, texts.Replace(s.Text))
		}
		if s.Cut {
			cut = [2]int{from, len(dst)}
		} else if strings.Contains(s.Text, "{query}") {
			asked = [2]int{from, len(dst)}
		}
	}
	if excess := len(dst) - first - p.maxLength; p.maxLength > 0 && excess > 0 {
		some := min(excess, cut[1]-cut[0])
		rest := excess - some
		if rest > asked[1]-asked[0] {
			return dst[:first], kinds, false, fmt.Errorf("%w: a pair of %d tokens does not fit %d", ErrTooShort, len(dst)-first, p.maxLength)
		}
		dst = append(dst[:cut[1]-some], dst[cut[1]:]...)
		if end := asked[1]; rest > 0 {
			if asked[0] > cut[0] { // it has moved
				end -= some
			}
			dst = append(dst[:end-rest], dst[end:]...)
		}
		truncated = true
	}
	for range dst[first:] {
		kinds = append(kinds, 0)
	}
	return dst, kinds, truncated, nil
}
