package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Save writes the tokenizer's files into the folder dir, which it makes if need be. A tokenizer that was loaded writes
// the files it was loaded from, byte for byte. One that was made here writes tokenizer.json, vocab.txt,
// tokenizer_config.json and special_tokens_map.json, which transformers' AutoTokenizer loads to the same ids.
//
// Each file replaces its predecessor only when it is complete. Tokenizer files that dir has from before and this
// tokenizer doesn't are removed, since loaders would prefer them or mix them in.
func (t *Tokenizer) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("saving the tokenizer: %w", err)
	}
	for _, name := range []string{fileVocab, fileConfig, fileSpecials, fileAdded, fileTokenizer} {
		path := filepath.Join(dir, name)
		data, ok := t.files[name]
		var err error
		if ok {
			err = replaceFile(path, data)
		} else if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("saving the tokenizer: %w", err)
		}
	}
	return nil
}

func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// VocabOptions describes a BERT tokenizer made from a list of tokens.
type VocabOptions struct {
	Lowercase bool // lower the text's case and strip its accents first ("uncased")
	MaxLength int  // for tokenizer_config.json's model_max_length; 0 leaves it out
	Untyped   bool // the model has one type of tokens, or none: tokenizer_config.json's model_input_names say that it is given no types
}

// FromVocab makes BERT's tokenizer (BertNormalizer, BertPreTokenizer, WordPiece, [CLS] text [SEP]) for a vocabulary, in
// which a token's place is its id. It must have [PAD], [UNK], [CLS], [SEP] and [MASK], no token twice, and none that is
// empty or has white space in it.
func FromVocab(tokens []string, opts VocabOptions) (*Tokenizer, error) {
	if opts.MaxLength < 0 {
		return nil, fmt.Errorf("vocabulary: MaxLength %d: want a number of tokens, or 0 for none", opts.MaxLength)
	}
	ids := make(map[string]int, len(tokens))
	for id, token := range tokens {
		if old, ok := ids[token]; ok {
			return nil, fmt.Errorf("vocabulary: token %q has two ids, %d and %d", token, old, id)
		}
		if token == "" || !utf8.ValidString(token) || strings.ContainsFunc(token, isSpace) {
			return nil, fmt.Errorf("vocabulary: token %d is %q: want UTF-8 without white space", id, token)
		}
		ids[token] = id
	}
	for _, s := range bertSpecials {
		if _, ok := ids[s.text]; !ok {
			return nil, fmt.Errorf("vocabulary: the special token %s is missing", s.text)
		}
	}
	return fromFiles(map[string][]byte{
		fileTokenizer: bertTokenizerJSON(tokens, ids, opts),
		fileVocab:     vocabTxt(tokens),
		fileConfig:    bertConfigJSON(opts),
		fileSpecials:  specialsJSON(),
	})
}

func vocabTxt(tokens []string) []byte {
	var b bytes.Buffer
	for _, token := range tokens {
		b.WriteString(token)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// bertTokenizerJSON writes what Hugging Face's Tokenizer.save would, to the byte.
func bertTokenizerJSON(tokens []string, ids map[string]int, opts VocabOptions) []byte {
	type object = orderedObject
	special := func(id string, typeID int) object {
		return object{{"SpecialToken", object{{"id", id}, {"type_id", typeID}}}}
	}
	sequence := func(id string, typeID int) object {
		return object{{"Sequence", object{{"id", id}, {"type_id", typeID}}}}
	}
	specialToken := func(token string) object {
		return object{{"id", token}, {"ids", []int{ids[token]}}, {"tokens", []string{token}}}
	}
	var added []object
	for _, s := range bertSpecials {
		added = append(added, object{{"id", ids[s.text]}, {"content", s.text}, {"single_word", false}, {"lstrip", false},
			{"rstrip", false}, {"normalized", false}, {"special", true}})
	}
	slices.SortFunc(added, func(a, b object) int { return a[0].value.(int) - b[0].value.(int) })
	vocab := make(object, len(tokens))
	for id, token := range tokens {
		vocab[id] = field{token, id}
	}
	return marshalIndent(object{
		{"version", "1.0"},
		{"truncation", nil},
		{"padding", nil},
		{"added_tokens", added},
		{"normalizer", object{{"type", "BertNormalizer"}, {"clean_text", true}, {"handle_chinese_chars", true},
			{"strip_accents", nil}, {"lowercase", opts.Lowercase}}},
		{"pre_tokenizer", object{{"type", "BertPreTokenizer"}}},
		{"post_processor", object{
			{"type", "TemplateProcessing"},
			{"single", []object{special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)}},
			{"pair", []object{special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1), special("[SEP]", 1)}},
			{"special_tokens", object{{"[CLS]", specialToken("[CLS]")}, {"[SEP]", specialToken("[SEP]")}}},
		}},
		{"decoder", object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
		{"model", object{{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"continuing_subword_prefix", "##"},
			{"max_input_chars_per_word", 100}, {"vocab", vocab}}},
	}, false)
}

// bertConfigJSON repeats the options: transformers 5 builds BertTokenizer's normalizer from them, not from
// tokenizer.json.
func bertConfigJSON(opts VocabOptions) []byte {
	config := orderedObject{{"clean_up_tokenization_spaces", false}, {"cls_token", "[CLS]"}, {"do_lower_case", opts.Lowercase},
		{"mask_token", "[MASK]"}}
	if opts.Untyped {
		config = append(config, field{"model_input_names", []string{"input_ids", "attention_mask"}})
	}
	if opts.MaxLength > 0 {
		config = append(config, field{"model_max_length", opts.MaxLength})
	}
	return marshalIndent(append(config, orderedObject{{"pad_token", "[PAD]"}, {"sep_token", "[SEP]"}, {"strip_accents", nil},
		{"tokenize_chinese_chars", true}, {"tokenizer_class", "BertTokenizer"}, {"unk_token", "[UNK]"}}...), true)
}

func specialsJSON() []byte {
	return marshalIndent(orderedObject{{"cls_token", "[CLS]"}, {"mask_token", "[MASK]"}, {"pad_token", "[PAD]"},
		{"sep_token", "[SEP]"}, {"unk_token", "[UNK]"}}, true)
}

// orderedObject is a JSON object whose fields keep their order.
type orderedObject []field

type field struct {
	key   string
	value any
}

func (o orderedObject) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := e.Encode(f.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := e.Encode(f.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshalIndent writes o as JSON with an indentation of two spaces.
func marshalIndent(o orderedObject, newline bool) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(o); err != nil {
		panic("tokenize: " + err.Error()) // strings, numbers and booleans always encode
	}
	if newline {
		return b.Bytes()
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
