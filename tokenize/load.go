package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The files of a tokenizer, as Hugging Face names them.
const (
	fileTokenizer = "tokenizer.json"
	fileVocab     = "vocab.txt"
	fileConfig    = "tokenizer_config.json"
	fileSpecials  = "special_tokens_map.json"
	fileAdded     = "added_tokens.json"
)

// Load reads the tokenizer of a model folder: tokenizer.json, or if there is none vocab.txt with what
// tokenizer_config.json says beside it (do_lower_case, strip_accents, tokenize_chinese_chars, the names of the special
// tokens, added tokens), as transformers' BertTokenizer does; a class other than that, ELECTRA's and DistilBERT's is an
// error then. A tokenizer with a part that this package doesn't have is an error that wraps ErrUnsupported and names it;
// errors name the file and where in it.
//
// Beside a tokenizer.json, tokenizer_config.json gives the padding token and model_max_length. transformers takes more from it, and
// its classes build some parts anew. Where that would give other ids the two files contradict each other, and it is an error:
// truncation on the left, or a class of BERT's, ELECTRA's, DistilBERT's or MPNet's (they take do_lower_case, strip_accents and
// tokenize_chinese_chars from the configuration, or from its defaults) with a normalizer that does otherwise.
func Load(dir string) (*Tokenizer, error) {
	files := map[string][]byte{}
	for _, name := range []string{fileTokenizer, fileVocab, fileConfig, fileSpecials, fileAdded} {
		data, err := readPlain(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		files[name] = data
	}
	if files[fileTokenizer] == nil && files[fileVocab] == nil {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		return nil, fmt.Errorf("tokenizer: %s has neither %s nor %s", dir, fileTokenizer, fileVocab)
	}
	t, err := fromFiles(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s%c%w", dir, filepath.Separator, err)
	}
	return t, nil
}

// readPlain refuses a pipe that has a name, which would be waited for, and a device.
func readPlain(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fmt.Errorf("%s is not a plain file", path)
	}
	return os.ReadFile(path)
}

// LoadFile reads a tokenizer.json that stands alone.
func LoadFile(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := fromFiles(map[string][]byte{fileTokenizer: data})
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, errors.Unwrap(err)) // without the name that it has in a folder
	}
	return t, nil
}

// fromFiles builds a tokenizer from the contents of its files. Errors begin with the file's name.
func fromFiles(files map[string][]byte) (*Tokenizer, error) {
	config, err := parseConfig(files)
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	if data := files[fileTokenizer]; data != nil {
		if t, err = parseTokenizerJSON(data); err != nil {
			return nil, fmt.Errorf("%s: %w", fileTokenizer, err)
		}
		if err := config.contradicts(t.normalizer); err != nil {
			return nil, fmt.Errorf("%s: %w", fileConfig, err)
		}
		t.hash = hashFiles(data)
	} else {
		if t, err = fromVocabFile(files[fileVocab], config); err != nil {
			return nil, fmt.Errorf("%s: %w", fileVocab, err)
		}
		t.hash = hashFiles(files[fileVocab], files[fileConfig], files[fileSpecials], files[fileAdded])
	}
	if id, ok := t.ids[config.special("pad_token")]; ok && config.given("pad_token") {
		t.pad = id
	}
	if bos := config.specials["bos_token"].Content; config.given("bos_token") && t.ids[bos] != t.pad {
		t.bos = bos
	}
	t.eos = config.specials["eos_token"].Content
	t.typed = givesTypes(files[fileConfig])
	t.maxLength = config.maxLength
	t.files = files
	return t, nil
}

// givesTypes tells whether models are given the types of tokens: model_input_names says so, or else the tokenizer's class does: BERT's,
// ELECTRA's, which is BERT's under another name, and DeBERTa's. A tokenizer without a class is BERT's vocab.txt.
func givesTypes(config []byte) bool {
	var c struct {
		Names []string `json:"model_input_names"`
		Class string   `json:"tokenizer_class"`
	}
	json.Unmarshal(config, &c) // parseConfig has seen it
	if c.Names != nil {
		return slices.Contains(c.Names, "token_type_ids")
	}
	typed := []string{"", "BertTokenizer", "ElectraTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"}
	return slices.Contains(typed, strings.TrimSuffix(c.Class, "Fast"))
}

// tokenizerConfig is what tokenizer_config.json, special_tokens_map.json and added_tokens.json say.
type tokenizerConfig struct {
	class          string
	lower, chinese bool
	accents        *bool // nil: as lower
	says           bool  // one of these three is there
	maxLength      int
	specials       map[string]configToken // by key: "pad_token"
	extra          []configToken
	namedExtra     bool         // extra_special_tokens is an object, whose order nobody knows
	added          []addedToken // in the order of their ids
}

// configToken is a token's text, or an object with its text and flags.
type configToken struct{ addedToken }

func (c *configToken) UnmarshalJSON(data []byte) error {
	c.Special = true
	if data[0] == '"' {
		return json.Unmarshal(data, &c.Content)
	}
	if err := json.Unmarshal(data, &c.addedToken); err != nil {
		return err
	}
	c.Special = true
	return nil
}

// bertSpecials are the special tokens of BERT, in the order in which transformers adds them to a vocabulary.
var bertSpecials = []struct{ key, text string }{
	{"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"},
}

func (c *tokenizerConfig) given(key string) bool { return c.specials[key].Content != "" }

// special returns the special token for a key, BERT's own if the files don't name one.
func (c *tokenizerConfig) special(key string) string {
	if token := c.specials[key].Content; token != "" {
		return token
	}
	for _, s := range bertSpecials {
		if s.key == key {
			return s.text
		}
	}
	return ""
}

func parseConfig(files map[string][]byte) (*tokenizerConfig, error) {
	c := &tokenizerConfig{lower: true, chinese: true, specials: map[string]configToken{}}
	var file struct {
		Class      string                `json:"tokenizer_class"`
		Truncation string                `json:"truncation_side"`
		Lower      *bool                 `json:"do_lower_case"`
		Accents    *bool                 `json:"strip_accents"`
		Chinese    *bool                 `json:"tokenize_chinese_chars"`
		MaxLength  *float64              `json:"model_max_length"`
		Added      map[string]addedToken `json:"added_tokens_decoder"`
		Additional []configToken         `json:"additional_special_tokens"`
		Extra      json.RawMessage       `json:"extra_special_tokens"` // the newer name
	}
	if data := files[fileConfig]; data != nil {
		if err := decodeJSON(data, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", fileConfig, err)
		}
		if err := c.readSpecials(data); err != nil {
			return nil, fmt.Errorf("%s: %w", fileConfig, err)
		}
	}
	if file.Truncation != "" && file.Truncation != "right" {
		return nil, fmt.Errorf("%s: %w", fileConfig, unsupported("truncation_side", file.Truncation, "right is"))
	}
	c.class, c.says = file.Class, file.Lower != nil || file.Accents != nil || file.Chinese != nil
	if file.Lower != nil {
		c.lower = *file.Lower
	}
	if file.Chinese != nil {
		c.chinese = *file.Chinese
	}
	c.accents = file.Accents
	if n := file.MaxLength; n != nil && *n >= 1 && *n <= 1<<30 {
		c.maxLength = int(*n)
	}
	c.extra = file.Additional
	if len(file.Extra) > 0 && file.Extra[0] == '[' {
		var extra []configToken
		if err := decodeJSON(file.Extra, &extra); err != nil {
			return nil, fmt.Errorf("%s: extra_special_tokens: %w", fileConfig, err)
		}
		if len(extra) > 0 {
			c.extra = extra
		}
	}
	c.namedExtra = len(file.Extra) > 2 && file.Extra[0] == '{'
	ids := map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(file.Added)) {
		token := file.Added[key]
		id, err := strconv.Atoi(key)
		if err != nil {
			return nil, fmt.Errorf("%s: added_tokens_decoder: key %q is not an id", fileConfig, key)
		}
		ids[token.Content] = id
		c.added = append(c.added, token)
	}
	if file.Added == nil { // the older files: they count only where the newer entry is absent
		if data := files[fileSpecials]; data != nil {
			if err := c.readSpecials(data); err != nil {
				return nil, fmt.Errorf("%s: %w", fileSpecials, err)
			}
		}
		if data := files[fileAdded]; data != nil {
			if err := decodeJSON(data, &ids); err != nil {
				return nil, fmt.Errorf("%s: %w", fileAdded, err)
			}
			for _, token := range slices.Sorted(maps.Keys(ids)) {
				special := slices.ContainsFunc(c.extra, func(e configToken) bool { return e.Content == token })
				for _, s := range bertSpecials {
					special = special || c.special(s.key) == token
				}
				c.added = append(c.added, addedToken{Content: token, Normalized: !special, Special: special})
			}
		}
	}
	slices.SortStableFunc(c.added, func(a, b addedToken) int { return ids[a.Content] - ids[b.Content] })
	return c, nil
}

// contradicts finds a normalizer, of tokenizer.json, that transformers would not use.
func (c *tokenizerConfig) contradicts(n normalizer) error {
	bert, ok := n.(*bertNormalizer)
	switch strings.TrimSuffix(c.class, "Fast") {
	case "BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "MPNetTokenizer":
	case "":
		ok = ok && c.says
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	accents := c.lower
	if c.accents != nil {
		accents = *c.accents
	}
	for _, x := range []struct {
		key, theirs string
		want, got   bool
	}{
		{"do_lower_case", "lowercase", c.lower, bert.lower}, {"strip_accents", "strip_accents", accents, bert.accents},
		{"tokenize_chinese_chars", "handle_chinese_chars", c.chinese, bert.chinese},
	} {
		if x.want != x.got {
			return fmt.Errorf("%s is %v (or is so by default), the normalizer of %s has %s %v: transformers goes by the first, other readers by the second; make them equal",
				x.key, x.want, fileTokenizer, x.theirs, x.got)
		}
	}
	return nil
}

// readSpecials takes the keys of BERT's special tokens, and those of the tokens that texts begin and end with, from a JSON object; null leaves what
// was there.
func (c *tokenizerConfig) readSpecials(data []byte) error {
	var all map[string]json.RawMessage
	if err := decodeJSON(data, &all); err != nil {
		return err
	}
	keys := []string{"bos_token", "eos_token"}
	for _, s := range bertSpecials {
		keys = append(keys, s.key)
	}
	for _, key := range keys {
		raw, ok := all[key]
		if !ok || string(raw) == "null" {
			continue
		}
		var token configToken
		if err := decodeJSON(raw, &token); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		c.specials[key] = token
	}
	return nil
}

// fromVocabFile builds BERT's pipeline around a vocab.txt: a token per line, whose number is its id.
func fromVocabFile(data []byte, c *tokenizerConfig) (*Tokenizer, error) {
	switch strings.TrimSuffix(c.class, "Fast") {
	case "", "BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer":
	default: // Japanese and MPNet's, among others, do more
		return nil, unsupported("with "+fileConfig+": tokenizer_class", c.class, "BertTokenizer, ElectraTokenizer and DistilBertTokenizer are; or save a tokenizer.json")
	}
	if c.namedExtra {
		return nil, unsupported("with "+fileConfig+": extra_special_tokens as", "object", "a list is; or save a tokenizer.json")
	}
	vocab := map[string]int32{}
	id := int32(0)
	for line := range bytes.Lines(data) {
		if !utf8.Valid(line) {
			return nil, fmt.Errorf("line %d is not UTF-8", id+1)
		}
		// As Hugging Face: white space at the end is no part of the token, and of equal lines the last one counts.
		line = bytes.TrimSuffix(line, []byte("\n"))
		vocab[strings.TrimRightFunc(string(line), isSpace)] = id
		id++
	}
	u := ucd()
	m, err := newWordPiece(vocab, c.special("unk_token"), "##", 100)
	if err != nil {
		return nil, err
	}
	accents := c.lower
	if c.accents != nil {
		accents = *c.accents
	}
	added := slices.Clone(c.added)
	add := func(token addedToken) { // of special tokens with one text the last one counts
		if !slices.ContainsFunc(c.added, func(a addedToken) bool { return a.Content == token.Content }) {
			added = append(added, token)
		}
	}
	for _, s := range bertSpecials {
		token := c.specials[s.key].addedToken
		token.Content, token.Special = c.special(s.key), true
		add(token)
	}
	for _, token := range c.extra {
		add(token.addedToken)
	}
	normalizer := newBertNormalizer(u, true, c.chinese, accents, c.lower)
	t, err := assemble(u, pipeline{normalizer, newRunSplitter(u, bertKind), m, vocabJSON{ids: vocab, size: len(vocab)}}, added)
	if err != nil {
		return nil, err
	}
	t.setTemplate(bertTemplate(t.ids[c.special("cls_token")], t.ids[c.special("sep_token")]))
	return t, nil
}

func isSpace(r rune) bool { return ucd().class.at(r)&classSpace != 0 }
