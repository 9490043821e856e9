package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Ends tells whether a special token stands behind every text, as [SEP] does with BERT; where texts are cut it stays.
func (t *Tokenizer) Ends() bool {
	return len(t.behind()) > 0
}

// behind is the special tokens behind every text.
func (t *Tokenizer) behind() []int32 {
	if n := len(t.template.single); n > 0 { // a template may leave texts out
		return t.template.single[n-1].ids
	}
	return nil
}

// EOS is the text of the token that tokenizer_config.json calls eos_token; "": it names none.
func (t *Tokenizer) EOS() string { return t.eos }

// ownTemplates are classes of transformers that put their own special tokens around texts whatever tokenizer.json says, and know no add_eos_token; "" is
// BERT's for its models.
var ownTemplates = []string{"", "BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "MPNetTokenizer", "RobertaTokenizer"}

// Ending is a tokenizer that puts its EOS token behind every text and pair, as transformers' add_eos_token=True has it; one that does so already is
// returned as it is. What stands before texts stays there: transformers 5 may drop BOS with that option. The files that it saves say so too: tokenizer.json
// in its post_processor, and tokenizer_config.json in add_eos_token, by which classes of transformers 4 build theirs anew; and in its class where that has a
// template of its own.
func (t *Tokenizer) Ending() (*Tokenizer, error) {
	id, ok := t.ids[t.eos]
	if !ok {
		return nil, fmt.Errorf("%s names no eos_token that the tokenizer has", fileConfig)
	}
	if behind := t.behind(); len(behind) > 0 && behind[len(behind)-1] == id {
		return t, nil
	}
	if t.files[fileTokenizer] == nil {
		return nil, fmt.Errorf("there is no %s, in which what stands behind texts could be said", fileTokenizer)
	}
	ending, eos := *t, templatePiece{ids: []int32{id}}
	ofPair := eos
	if n := len(t.template.pair); n > 0 {
		ofPair.typeID = t.template.pair[n-1].typeID
	}
	ending.setTemplate(template{single: append(slices.Clone(t.template.single), eos), pair: append(slices.Clone(t.template.pair), ofPair)})
	var post struct {
		PostProcessor json.RawMessage `json:"post_processor"`
	}
	var err error
	if err = decodeJSON(t.files[fileTokenizer], &post); err != nil {
		return nil, fmt.Errorf("%s: %w", fileTokenizer, err)
	}
	ending.files = maps.Clone(t.files)
	if ending.files[fileTokenizer], err = replaceKey(t.files[fileTokenizer], "post_processor", ending.postProcessor(bytes.Contains(post.PostProcessor, []byte(`"ByteLevel"`)))); err != nil {
		return nil, fmt.Errorf("%s: %w", fileTokenizer, err)
	}
	says := orderedObject{{"add_eos_token", true}}
	if slices.Contains(ownTemplates, t.class) {
		inputs := []string{"input_ids", "attention_mask"}
		if t.typed {
			inputs = append(inputs, "token_type_ids")
		}
		says = append(says, orderedObject{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_input_names", inputs}}...)
	}
	for _, entry := range says {
		if ending.files[fileConfig], err = replaceKey(ending.files[fileConfig], entry.key, entry.value); err != nil {
			return nil, fmt.Errorf("%s: %w", fileConfig, err)
		}
	}
	ending.hash = hashFiles([]byte(t.hash), []byte("ending"))
	return &ending, nil
}

// postProcessor is the template as tokenizer.json has it; trimming: behind the one that trims the offsets of bytes.
func (t *Tokenizer) postProcessor(trimming bool) any {
	specials := map[string]any{}
	pieces := func(from []templatePiece) (all []any) {
		for _, p := range from {
			if p.ids == nil {
				all = append(all, orderedObject{{"Sequence", orderedObject{{"id", "AB"[p.sequence : p.sequence+1]}, {"type_id", p.typeID}}}})
			}
			for _, id := range p.ids {
				text := t.texts[id]
				specials[text] = orderedObject{{"id", text}, {"ids", []int32{id}}, {"tokens", []string{text}}}
				all = append(all, orderedObject{{"SpecialToken", orderedObject{{"id", text}, {"type_id", p.typeID}}}})
			}
		}
		return all
	}
	of := orderedObject{{"type", "TemplateProcessing"}, {"single", pieces(t.template.single)}, {"pair", pieces(t.template.pair)}, {"special_tokens", specials}}
	if !trimming {
		return of
	}
	bytes := orderedObject{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}}
	return orderedObject{{"type", "Sequence"}, {"processors", []any{bytes, of}}}
}

// replaceKey gives a key of a JSON object another value, or adds it; all other bytes stay.
func replaceKey(object []byte, key string, value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	text := bytes.TrimSpace(b.Bytes())
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	begins, more := d.InputOffset(), false
	for d.More() {
		more = true
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var old json.RawMessage
		if err := d.Decode(&old); err != nil {
			return nil, err
		}
		if end := d.InputOffset(); name == key {
			return slices.Concat(object[:end-int64(len(old))], text, object[end:]), nil
		}
	}
	text = slices.Concat([]byte(`"`+key+`": `), text)
	if more {
		text = append(text, ',')
	}
	return slices.Concat(object[:begins], text, object[begins:]), nil
}
