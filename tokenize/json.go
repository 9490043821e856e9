package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUnsupported is what errors wrap that name a component of a tokenizer that this package doesn't have (yet).
var ErrUnsupported = errors.New("unsupported tokenizer component")

// unsupportedError names the component in its message; the sentinel is for errors.Is.
type unsupportedError string

func (e unsupportedError) Error() string { return string(e) }
func (e unsupportedError) Unwrap() error { return ErrUnsupported }

func unsupported(what, name, have string) error {
	return unsupportedError(fmt.Sprintf("%s %q is not supported yet (%s)", what, name, have))
}

// tokenizerJSON is tokenizer.json. What decides about ids is decoded strictly; decoder and the like are not read.
type tokenizerJSON struct {
	Version       string          `json:"version"`
	Truncation    *truncationJSON `json:"truncation"`
	Padding       *paddingJSON    `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

// truncationJSON's length is the caller's to give; the side it is cut at must be ours.
type truncationJSON struct {
	Direction string `json:"direction"`
}

type paddingJSON struct {
	ID *int32 `json:"pad_id"`
}

// parseTokenizerJSON builds the pipeline of a tokenizer.json.
func parseTokenizerJSON(data []byte) (*Tokenizer, error) {
	var file tokenizerJSON
	if err := decodeJSON(data, &file); err != nil {
		return nil, err
	}
	if file.Version != "1.0" && file.Version != "" {
		return nil, unsupported("version", file.Version, "1.0 is")
	}
	if t := file.Truncation; t != nil && t.Direction != "" && t.Direction != "Right" {
		return nil, unsupported("truncation direction", t.Direction, "Right is")
	}
	u := ucd()
	normalizer, err := parseNormalizer(u, file.Normalizer)
	if err != nil {
		return nil, err
	}
	preTokenizer, err := parsePreTokenizer(u, file.PreTokenizer)
	if err != nil {
		return nil, err
	}
	model, vocab, err := parseModel(file.Model)
	if err != nil {
		return nil, err
	}
	tmpl, err := parsePostProcessor(file.PostProcessor)
	if err != nil {
		return nil, err
	}
	t, err := assemble(u, normalizer, preTokenizer, model, vocab, file.AddedTokens)
	if err != nil {
		return nil, err
	}
	t.setTemplate(tmpl)
	if file.Padding != nil && file.Padding.ID != nil {
		if err := checkID(*file.Padding.ID); err != nil {
			return nil, in("padding: pad_id", err)
		}
		t.pad = *file.Padding.ID
	}
	return t, nil
}

// decodeJSON is json.Unmarshal with errors that say where: line and column, or the key.
func decodeJSON(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		before := data[:min(int(syntax.Offset), len(data))]
		line := 1 + bytes.Count(before, []byte("\n"))
		return fmt.Errorf("line %d, column %d: %w", line, len(before)-bytes.LastIndexByte(before, '\n')-1, err)
	case errors.As(err, &kind):
		return fmt.Errorf("key %q: want %s, got %s", kind.Field, kind.Type, kind.Value)
	}
	return err
}

// componentType returns the "type" of a component; a missing or null component has none.
func componentType(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var c struct {
		Type string `json:"type"`
	}
	if err := decodeJSON(raw, &c); err != nil {
		return "", err
	}
	if c.Type == "" {
		return "", errors.New(`key "type" is missing`)
	}
	return c.Type, nil
}

// in prefixes err with the section of the file that it is about.
func in(section string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", section, err)
}

func parseNormalizer(u *unicodeData, raw json.RawMessage) (normalizer, error) {
	kind, err := componentType(raw)
	if err != nil || kind == "" {
		return nil, in("normalizer", err)
	}
	switch kind {
	case "BertNormalizer":
		var c struct {
			CleanText          *bool `json:"clean_text"`
			HandleChineseChars *bool `json:"handle_chinese_chars"`
			StripAccents       *bool `json:"strip_accents"` // null: as lowercase
			Lowercase          *bool `json:"lowercase"`
		}
		if err := decodeJSON(raw, &c); err != nil {
			return nil, in("normalizer", err)
		}
		if c.CleanText == nil || c.HandleChineseChars == nil || c.Lowercase == nil {
			return nil, errors.New("normalizer: BertNormalizer needs clean_text, handle_chinese_chars and lowercase")
		}
		if c.StripAccents == nil {
			c.StripAccents = c.Lowercase
		}
		return newBertNormalizer(u, *c.CleanText, *c.HandleChineseChars, *c.StripAccents, *c.Lowercase), nil
	case "Lowercase":
		return lowercase{u}, nil
	case "StripAccents":
		return stripAccents{u}, nil
	case "NFD":
		return normalForm{u: u}, nil
	case "NFC":
		return normalForm{u: u, compose: true}, nil
	case "NFKD":
		return normalForm{u: u, compat: true}, nil
	case "NFKC":
		return normalForm{u: u, compat: true, compose: true}, nil
	case "Sequence":
		var c struct {
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := decodeJSON(raw, &c); err != nil {
			return nil, in("normalizer", err)
		}
		var all normalizerSequence
		for _, part := range c.Normalizers {
			n, err := parseNormalizer(u, part)
			if err != nil {
				return nil, err
			}
			if n != nil {
				all = append(all, n)
			}
		}
		return all, nil
	}
	return nil, unsupported("normalizer type", kind,
		"BertNormalizer, Lowercase, StripAccents, NFC, NFD, NFKC, NFKD and Sequence are")
}

func parsePreTokenizer(u *unicodeData, raw json.RawMessage) (preTokenizer, error) {
	kind, err := componentType(raw)
	if err != nil || kind == "" {
		return nil, in("pre_tokenizer", err)
	}
	switch kind {
	case "BertPreTokenizer":
		return newRunSplitter(u, bertKind), nil
	case "WhitespaceSplit":
		return newRunSplitter(u, whitespaceSplitKind), nil
	case "Whitespace":
		return newRunSplitter(u, whitespaceKind), nil
	case "Punctuation":
		c := struct {
			Behavior string `json:"behavior"`
		}{behaviorIsolated}
		if err := decodeJSON(raw, &c); err != nil {
			return nil, in("pre_tokenizer", err)
		}
		known := []string{behaviorIsolated, behaviorRemoved, behaviorContiguous, behaviorMergedWithPrevious, behaviorMergedWithNext}
		if !slices.Contains(known, c.Behavior) {
			return nil, unsupported("pre_tokenizer: Punctuation behavior", c.Behavior, strings.Join(known, ", ")+" are")
		}
		return punctuationSplitter{u, c.Behavior}, nil
	case "Sequence":
		var c struct {
			PreTokenizers []json.RawMessage `json:"pretokenizers"`
		}
		if err := decodeJSON(raw, &c); err != nil {
			return nil, in("pre_tokenizer", err)
		}
		var all preTokenizerSequence
		for _, part := range c.PreTokenizers {
			p, err := parsePreTokenizer(u, part)
			if err != nil {
				return nil, err
			}
			if p != nil {
				all = append(all, p)
			}
		}
		return all, nil
	}
	return nil, unsupported("pre_tokenizer type", kind,
		"BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation and Sequence are")
}

func checkID(id int32) error {
	if id < 0 || id > maxTrieID {
		return fmt.Errorf("id %d is not in 0 to %d", id, maxTrieID)
	}
	return nil
}

func parseModel(raw json.RawMessage) (model, map[string]int32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil, errors.New(`key "model" is missing`)
	}
	var head struct {
		Type     string `json:"type"`
		MaxChars *int   `json:"max_input_chars_per_word"`
	}
	if err := decodeJSON(raw, &head); err != nil {
		return nil, nil, in("model", err)
	}
	// Files of early versions have no type; this key is WordPiece's alone.
	if head.Type != "WordPiece" && (head.Type != "" || head.MaxChars == nil) {
		return nil, nil, unsupported("model type", head.Type, "WordPiece is")
	}
	var c struct {
		UnkToken *string          `json:"unk_token"`
		Prefix   *string          `json:"continuing_subword_prefix"`
		Vocab    map[string]int32 `json:"vocab"`
	}
	if err := decodeJSON(raw, &c); err != nil {
		return nil, nil, in("model", err)
	}
	if c.UnkToken == nil || c.Prefix == nil || c.Vocab == nil || head.MaxChars == nil {
		return nil, nil, errors.New("model: WordPiece needs unk_token, continuing_subword_prefix, max_input_chars_per_word and vocab")
	}
	if *head.MaxChars < 0 {
		return nil, nil, fmt.Errorf("model: max_input_chars_per_word is %d", *head.MaxChars)
	}
	for token, id := range c.Vocab {
		if err := checkID(id); err != nil {
			return nil, nil, fmt.Errorf("model: vocab: token %q: %w", token, err)
		}
	}
	m, err := newWordPiece(c.Vocab, *c.UnkToken, *c.Prefix, *head.MaxChars)
	return m, c.Vocab, in("model", err)
}

func parsePostProcessor(raw json.RawMessage) (template, error) {
	kind, err := componentType(raw)
	if err != nil {
		return template{}, in("post_processor", err)
	}
	switch kind {
	case "":
		return bareTemplate(), nil
	case "BertProcessing":
		var c struct{ Sep, Cls bertSpecial }
		if err := decodeJSON(raw, &c); err != nil {
			return template{}, in("post_processor", err)
		}
		if !c.Sep.set || !c.Cls.set {
			return template{}, errors.New("post_processor: BertProcessing needs sep and cls")
		}
		if err := errors.Join(checkID(c.Cls.id), checkID(c.Sep.id)); err != nil {
			return template{}, in("post_processor", err)
		}
		return bertTemplate(c.Cls.id, c.Sep.id), nil
	case "TemplateProcessing":
		var c struct {
			Single, Pair []templatePieceJSON
			Specials     map[string]struct{ IDs []int32 } `json:"special_tokens"`
		}
		if err := decodeJSON(raw, &c); err != nil {
			return template{}, in("post_processor", err)
		}
		pieces := func(name string, sequences int, from []templatePieceJSON) ([]templatePiece, error) {
			out := make([]templatePiece, 0, len(from))
			for _, p := range from {
				switch {
				case p.SpecialToken != nil:
					special, ok := c.Specials[p.SpecialToken.ID]
					if !ok {
						return nil, fmt.Errorf("post_processor: %s uses %q, which special_tokens lacks", name, p.SpecialToken.ID)
					}
					for _, id := range special.IDs {
						if err := checkID(id); err != nil {
							return nil, fmt.Errorf("post_processor: special token %q: %w", p.SpecialToken.ID, err)
						}
					}
					out = append(out, templatePiece{ids: append([]int32{}, special.IDs...), typeID: p.SpecialToken.TypeID})
				case p.Sequence != nil:
					sequence := strings.Index("AB", p.Sequence.ID)
					if len(p.Sequence.ID) != 1 || sequence < 0 || sequence >= sequences {
						return nil, fmt.Errorf("post_processor: %s uses sequence %q", name, p.Sequence.ID)
					}
					out = append(out, templatePiece{sequence: sequence, typeID: p.Sequence.TypeID})
				default:
					return nil, fmt.Errorf("post_processor: %s has a piece that is neither SpecialToken nor Sequence", name)
				}
			}
			return out, nil
		}
		single, err := pieces("single", 1, c.Single)
		if err != nil {
			return template{}, err
		}
		pair, err := pieces("pair", 2, c.Pair)
		return template{single: single, pair: pair}, err
	}
	return template{}, unsupported("post_processor type", kind, "TemplateProcessing and BertProcessing are")
}

type templatePieceJSON struct {
	SpecialToken, Sequence *struct {
		ID     string `json:"id"`
		TypeID int32  `json:"type_id"`
	}
}

// bertSpecial is ["[SEP]", 102].
type bertSpecial struct {
	id  int32
	set bool
}

func (b *bertSpecial) UnmarshalJSON(data []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("want a token and its id, got %s", data)
	}
	b.set = true
	return json.Unmarshal(pair[1], &b.id)
}

// assemble puts the parts together and gives the added tokens their ids.
func assemble(u *unicodeData, n normalizer, p preTokenizer, m model, vocab map[string]int32, added []addedToken) (*Tokenizer, error) {
	t := &Tokenizer{normalizer: n, preTokenizer: p, model: m, pad: -1}
	t.ids = make(map[string]int32, len(vocab)+len(added))
	for token, id := range vocab {
		t.ids[token] = id
	}
	// As Hugging Face does: tokens the vocabulary lacks get the ids from its size on, in their order, whatever id the
	// file says; of two entries with one content the last one counts.
	var unique []addedToken
	place := map[int32]int{}
	next := int32(len(vocab))
	for _, token := range added {
		if token.Content == "" {
			continue
		}
		id, ok := t.ids[token.Content]
		if !ok {
			id = next
			next++
			t.ids[token.Content] = id
		}
		token.id = id
		if at, again := place[id]; again {
			unique[at] = token
		} else {
			place[id] = len(unique)
			unique = append(unique, token)
		}
	}
	t.texts = make(map[int32]string, len(t.ids))
	for token, id := range t.ids {
		if old, ok := t.texts[id]; !ok || token < old {
			t.texts[id] = token
		}
		t.vocabSize = max(t.vocabSize, int(id)+1)
	}
	for _, token := range unique {
		t.texts[token.id] = token.Content
	}
	var raw, normalized []addedToken
	for _, token := range unique {
		if token.Normalized {
			normalized = append(normalized, token)
		} else {
			raw = append(raw, token)
		}
	}
	var err error
	if t.rawTokens, err = newAddedMatcher(u, raw, func(a addedToken) string { return a.Content }); err != nil {
		return nil, in("added_tokens", err)
	}
	t.normalizedTokens, err = newAddedMatcher(u, normalized, func(a addedToken) string {
		if n == nil {
			return a.Content
		}
		s := &scratch{text: []byte(a.Content)}
		n.normalize(s)
		return string(s.text)
	})
	if err != nil {
		return nil, in("added_tokens", err)
	}
	// A token in the normalized text may have a space in it, or take those around it along.
	t.chunks = len(normalized) == 0 && p != nil && p.splitsAtSpaces()
	t.setTemplate(bareTemplate())
	if pad, ok := t.ids["[PAD]"]; ok {
		t.pad = pad
	}
	return t, nil
}

func (t *Tokenizer) setTemplate(tmpl template) {
	t.template = tmpl
	t.singleSpecials, t.pairSpecials = countSpecials(tmpl.single), countSpecials(tmpl.pair)
	for _, p := range append(slices.Clone(tmpl.single), tmpl.pair...) {
		for _, id := range p.ids {
			t.vocabSize = max(t.vocabSize, int(id)+1)
		}
	}
}
