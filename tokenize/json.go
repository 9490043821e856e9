package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// tokenizerJSON is tokenizer.json. Of what decides about ids a value of the wrong type, a missing key without a default and a component
// or option that this package doesn't have are errors. Unknown keys are ignored, as by Hugging Face (but for those beside "model", which
// it refuses); decoder is not read.
//
// The parts: json_text.go (normalizers and pre-tokenizers), json_model.go, json_template.go (post-processors).
type tokenizerJSON struct {
	Version       string          `json:"version"`
	Truncation    *truncationJSON `json:"truncation"`
	Padding       *paddingJSON    `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         *modelJSON      `json:"model"`
}

// truncationJSON's length is the caller's to give; the side it is cut at must be ours.
type truncationJSON struct {
	Direction string `json:"direction"`
}

type paddingJSON struct {
	ID *int32 `json:"pad_id"`
}

// parseTokenizerJSON builds the pipeline of a tokenizer.json, and of the added tokens of the configuration beside it; nil: there is none.
func parseTokenizerJSON(data []byte, config *tokenizerConfig) (*Tokenizer, error) {
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
	normalizer, err := parseNormalizer(u, file.Normalizer, 0)
	if err != nil {
		return nil, err
	}
	if n := growth(normalizer); n > maxGrowth {
		return nil, fmt.Errorf("normalizer: its parts could make %.3g bytes of one", n)
	}
	preTokenizer, err := parsePreTokenizer(u, file.PreTokenizer, 0)
	if err != nil {
		return nil, err
	}
	if isIdle(normalizer, preTokenizer) {
		preTokenizer = nil
	}
	readsBytes, err := endsInBytes(preTokenizer)
	if err != nil {
		return nil, err
	}
	if file.Model == nil {
		return nil, errors.New(`key "model" is missing`)
	}
	model, err := file.Model.build(readsBytes)
	if err != nil {
		return nil, in("model", err)
	}
	tmpl, err := parsePostProcessor(file.PostProcessor)
	if err != nil {
		return nil, err
	}
	more := config.tokens(file.AddedTokens)
	t, err := assemble(u, pipeline{normalizer, preTokenizer, model, file.Model.Vocab}, append(file.AddedTokens, more...))
	if err != nil {
		return nil, err
	}
	t.setTemplate(tmpl)
	t.hash = hashFiles(data)
	if len(more) > 0 {
		t.hash = hashFiles(data, fmt.Appendf(nil, "%+v", more))
	}
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
	case bytes.HasPrefix(data, []byte("\ufeff")):
		return errors.New("it begins with a byte order mark, which JSON has none of, for Python too: save it as UTF-8 without one")
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

func checkID(id int32) error {
	if id < 0 || id > maxTrieID {
		return fmt.Errorf("id %d is not in 0 to %d", id, maxTrieID)
	}
	return nil
}

// pipeline is the parts of a tokenizer between its added tokens and its template.
type pipeline struct {
	normalizer   normalizer
	preTokenizer preTokenizer
	model        model
	vocab        vocabJSON
}

// assemble puts the parts together and gives the added tokens their ids.
func assemble(u *unicodeData, p pipeline, added []addedToken) (*Tokenizer, error) {
	t := &Tokenizer{normalizer: p.normalizer, preTokenizer: p.preTokenizer, model: p.model, ids: p.vocab.ids, pad: -1}
	// As Hugging Face does: tokens the vocabulary lacks get the ids from its size on, in their order, whatever id the
	// file says; of two entries with one content the last one counts.
	var unique []addedToken
	place := map[int32]int{}
	next := int32(p.vocab.size)
	for _, id := range t.ids {
		t.modelSize = max(t.modelSize, int(id)+1)
	}
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
		token.normal = token.Content
		if !token.Normalized {
			raw = append(raw, token)
			continue
		}
		if t.normalizer != nil {
			s := &scratch{text: []byte(token.Content), first: true}
			t.normalizer.normalize(s)
			if token.normal = string(s.text); token.normal == "" {
				return nil, fmt.Errorf("added_tokens: %+q is to be looked for in normalized text, but normalizes to nothing, which Hugging Face finds everywhere: its \"normalized\" should be false", token.Content)
			}
		}
		normalized = append(normalized, token)
	}
	var err error
	if t.rawTokens, err = newAddedMatcher(u, raw); err != nil {
		return nil, in("added_tokens", err)
	}
	if t.normalizedTokens, err = newAddedMatcher(u, normalized); err != nil {
		return nil, in("added_tokens", err)
	}
	if err := checkPrependFirst(t.normalizer, t.preTokenizer, len(normalized) > 0); err != nil {
		return nil, err
	}
	if t.cuttable(normalized) {
		t.chunk = chunkSize
	}
	t.setTemplate(bareTemplate())
	for _, name := range []string{"<pad>", "[PAD]"} {
		if pad, ok := t.ids[name]; ok {
			t.pad = pad
		}
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
