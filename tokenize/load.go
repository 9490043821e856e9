package tokenize

import (
	"bytes"
	"cmp"
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
// Beside a tokenizer.json, tokenizer_config.json gives the padding token, model_max_length, and special and added tokens that tokenizer.json
// lacks or has with other flags (as do special_tokens_map.json and added_tokens.json, where it has no added_tokens_decoder): they are found
// in texts, as by transformers, which takes more from these files, and whose classes build some parts anew. Where that would give other ids the
// files contradict each other, and it is an error: truncation on the left, special tokens that are split, a class of BERT's, ELECTRA's,
// DistilBERT's or MPNet's (they take do_lower_case, strip_accents and tokenize_chinese_chars from the configuration, or from its defaults)
// with a normalizer that does otherwise, or one of RoBERTa's, GPT-2's, Qwen's, Llama's or XLM-RoBERTa's, among others, which do likewise with
// add_prefix_space, with a pre-tokenizer (or Llama's normalizer) that does. What else such a class leaves out of a tokenizer.json is read here all the same.
func Load(dir string) (*Tokenizer, error) { return loadFolder(dir, false) }

// LoadStatic reads the tokenizer of a folder of static embeddings: one without special tokens around texts, of which tokenizer.json alone decides
// about ids, as for sentence-transformers.
func LoadStatic(dir string) (*Tokenizer, error) {
	t, err := loadFolder(dir, true)
	if err != nil {
		return nil, err
	}
	return t.Bare(), nil
}

// loadFolder reads a folder; alone: a tokenizer.json decides about ids alone.
func loadFolder(dir string, alone bool) (*Tokenizer, error) {
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
	t, err := build(files, alone)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s%c%w", dir, filepath.Separator, err)
	}
	return t, nil
}

// readPlain refuses a pipe that has a name, which would be waited for, and a device; and what only stands for a file, which is not one that is
// missing: a link to nothing, and a pointer of git-lfs.
func readPlain(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fmt.Errorf("%s is not a plain file", path)
	}
	if to, link := os.Readlink(path); errors.Is(err, fs.ErrNotExist) && link == nil {
		return nil, fmt.Errorf("%s is a link to %s, and nothing is there: copy the folder with the files that its links lead to (cp -rL), or download it again", path, to)
	}
	data, err := os.ReadFile(path)
	if bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/")) {
		return nil, fmt.Errorf("%s is a pointer of git-lfs: get its contents with: git lfs install && git lfs pull, in the folder that was cloned", path)
	}
	return data, err
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
func fromFiles(files map[string][]byte) (*Tokenizer, error) { return build(files, false) }

func build(files map[string][]byte, alone bool) (*Tokenizer, error) {
	config, err := parseConfig(files)
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	if data := files[fileTokenizer]; data != nil {
		beside := config
		if alone {
			beside = nil
		}
		if t, err = parseTokenizerJSON(data, beside); err != nil {
			return nil, fmt.Errorf("%s: %w", fileTokenizer, err)
		}
		if err := config.contradicts(t); err != nil && !alone {
			return nil, fmt.Errorf("%s: %w", fileConfig, err)
		}
	} else {
		if t, err = fromVocabFile(files[fileVocab], config); err != nil {
			return nil, fmt.Errorf("%s: %w", fileVocab, err)
		}
		contents := [][]byte{files[fileVocab], files[fileConfig], files[fileSpecials], files[fileAdded]}
		if more := config.tokens(nil); len(more) > len(bertSpecials) { // earlier versions added fewer
			contents = append(contents, fmt.Appendf(nil, "%+v", more))
		}
		t.hash = hashFiles(contents...)
	}
	if id, ok := t.ids[config.special("pad_token")]; ok && config.given("pad_token") {
		t.pad = id
	}
	if bos := config.specials["bos_token"].Content; config.given("bos_token") && t.ids[bos] != t.pad {
		t.bos = bos
	}
	t.eos = config.specials["eos_token"].Content
	named := slices.Collect(maps.Values(config.specials))
	for _, token := range slices.Concat(named, config.extra) {
		if id, ok := t.ids[token.Content]; ok {
			t.named = append(t.named, id)
		}
	}
	t.class, t.typed = config.class, config.givesTypes()
	t.maxLength = config.maxLength
	t.files = files
	return t, nil
}

// givesTypes tells whether models are given the types of tokens: model_input_names says so, or else the tokenizer's class does: BERT's,
// ELECTRA's, which is BERT's under another name, and DeBERTa's. A tokenizer without a class is BERT's vocab.txt.
func (c *tokenizerConfig) givesTypes() bool {
	if c.inputs != nil {
		return slices.Contains(c.inputs, "token_type_ids")
	}
	return slices.Contains([]string{"", "BertTokenizer", "ElectraTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"}, c.class)
}

// tokenizerConfig is what tokenizer_config.json, special_tokens_map.json and added_tokens.json say.
type tokenizerConfig struct {
	class          string   // without the "Fast" at its end, which changes nothing
	inputs         []string // of the model; nil: not said
	lower, chinese bool
	accents        *bool // nil: as lower
	says           bool  // one of these three is there
	prefix         *bool // add_prefix_space; nil: not said
	maxLength      int
	specials       map[string]configToken // by key: "pad_token"
	named          []string               // the keys that only some models have ("image_token"), in their order
	extra          []configToken
	added          []addedToken // in the order of their ids
	overrides      bool         // added has the last word on the flags of tokens that tokenizer.json has, too
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

// specialKeys are the special tokens that any model may have, in the order in which transformers adds them to a vocabulary.
var specialKeys = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// bertSpecials are the special tokens of BERT.
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
		Inputs     []string              `json:"model_input_names"`
		Truncation string                `json:"truncation_side"`
		Splits     bool                  `json:"split_special_tokens"`
		Lower      *bool                 `json:"do_lower_case"`
		Accents    *bool                 `json:"strip_accents"`
		Chinese    *bool                 `json:"tokenize_chinese_chars"`
		Prefix     *bool                 `json:"add_prefix_space"`
		MaxLength  *float64              `json:"model_max_length"`
		MaxLen     *float64              `json:"max_len"` // the older name
		Added      map[string]addedToken `json:"added_tokens_decoder"`
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
	if file.Splits {
		return nil, fmt.Errorf("%s: %w", fileConfig, unsupported("split_special_tokens", "true", "false is"))
	}
	c.class, c.inputs = strings.TrimSuffix(file.Class, "Fast"), file.Inputs
	c.says = file.Lower != nil || file.Accents != nil || file.Chinese != nil
	if file.Lower != nil {
		c.lower = *file.Lower
	}
	if file.Chinese != nil {
		c.chinese = *file.Chinese
	}
	c.accents, c.prefix = file.Accents, file.Prefix
	if n := cmp.Or(file.MaxLength, file.MaxLen); n != nil && *n >= 1 && *n <= 1<<30 {
		c.maxLength = int(*n)
	}
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
	c.overrides = file.Added != nil
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
				for _, key := range specialKeys {
					special = special || c.specials[key].Content == token
				}
				c.added = append(c.added, addedToken{Content: token, Normalized: !special, Special: special})
			}
		}
	}
	slices.SortStableFunc(c.added, func(a, b addedToken) int { return ids[a.Content] - ids[b.Content] })
	return c, nil
}

// tokens are the added tokens that the configuration has beyond those of tokenizer.json, or with other flags, in the order in which
// transformers 5 adds them. Of those with one text the last one counts.
func (c *tokenizerConfig) tokens(file []addedToken) (all []addedToken) {
	if c == nil {
		return nil
	}
	known := make(map[string]addedToken, len(file)) // thousands, with some models
	for _, token := range file {
		known[token.Content] = token
	}
	for _, token := range c.added {
		old, ok := known[token.Content]
		old.Special = token.Special // which is no matter for ids
		if !ok || c.overrides && old != token {
			all = append(all, token)
		}
	}
	for _, token := range c.added {
		known[token.Content] = token
	}
	add := func(token addedToken) {
		if _, ok := known[token.Content]; !ok && token.Content != "" {
			all = append(all, token)
		}
	}
	for _, key := range append(slices.Clone(specialKeys), c.named...) {
		add(c.specials[key].addedToken)
	}
	for _, token := range c.extra {
		add(token.addedToken)
	}
	return all
}

// prefixSpaces are the classes of transformers that go by add_prefix_space whatever tokenizer.json says, and what it is for them by default.
var prefixSpaces = map[string]bool{
	"RobertaTokenizer": false, "GPT2Tokenizer": false, "DebertaTokenizer": false, "Qwen2Tokenizer": false, "GPTNeoXTokenizer": false,
	"BartTokenizer": false, "LongformerTokenizer": false, // which RobertaTokenizer reads
	"XLMRobertaTokenizer": true, "CamembertTokenizer": true, "AlbertTokenizer": true, llamaClass: true,
}

const llamaClass = "LlamaTokenizer"

// spaced tells whether a normalizer makes spaces visible, as Llama's, and whether it puts one in front of texts.
func spaced(n normalizer) (visible, prefix bool) {
	switch n := n.(type) {
	case normalizerSequence:
		for _, part := range n {
			v, p := spaced(part)
			visible, prefix = visible || v, prefix || p
		}
	case prepend:
		prefix = n == metaSpace
	case replaceText:
		visible = n.old == " " && n.new == metaSpace
	}
	return visible, prefix
}

// contradicts finds a normalizer or pre-tokenizer, of tokenizer.json, that transformers would not use.
func (c *tokenizerConfig) contradicts(t *Tokenizer) error {
	differ := func(key string, want any, part, theirs string, got any) error {
		return fmt.Errorf("%s is %v (or is so by default), the %s of %s has %s %v: transformers goes by the first, other readers by the second; make them equal",
			key, want, part, fileTokenizer, theirs, got)
	}
	if prefix, ok := prefixSpaces[c.class]; ok {
		if c.prefix != nil {
			prefix = *c.prefix
		}
		split := false // at spaces that the pre-tokenizer makes visible
		for _, p := range flatten(t.preTokenizer) {
			if p, ok := p.(byteLevel); ok && p.prefix != prefix && c.class != llamaClass { // whose vocabulary is another, with any prefix
				return differ("add_prefix_space", prefix, "pre_tokenizer", "add_prefix_space", p.prefix)
			}
			if p, ok := p.(metaspace); ok {
				if split = true; (p.prepend || p.prependFirst) != prefix {
					return differ("add_prefix_space", prefix, "pre_tokenizer", "prepend_scheme", p.scheme())
				}
			}
		}
		if visible, got := spaced(t.normalizer); c.class == llamaClass && visible && !split && got != prefix {
			return differ("add_prefix_space", prefix, "normalizer", "Prepend", got)
		}
	}
	bert, ok := t.normalizer.(*bertNormalizer)
	switch c.class {
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
			return differ(x.key, x.want, "normalizer", x.theirs, x.got)
		}
	}
	return nil
}

// readSpecials takes the special tokens of a JSON object: those that any model may have, others whose keys end in "_token", and lists. null
// leaves what was there.
func (c *tokenizerConfig) readSpecials(data []byte) error {
	one := func(key string, raw json.RawMessage) error {
		var token configToken
		if err := decodeJSON(raw, &token); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		if _, again := c.specials[key]; !again && !slices.Contains(specialKeys, key) {
			c.named = append(c.named, key)
		}
		c.specials[key] = token
		return nil
	}
	var additional, extra []configToken
	names := json.RawMessage("{}")
	err := eachKey(data, func(key string, raw json.RawMessage) error {
		list := &extra
		switch begins := raw[0]; {
		case begins == 'n': // null
			return nil
		case slices.Contains(specialKeys, key), strings.HasSuffix(key, "_token") && (begins == '"' || begins == '{'):
			return one(key, raw)
		case key == "extra_special_tokens" && begins == '{':
			names = raw
			return nil
		case key == "additional_special_tokens": // the older name
			list = &additional
		case key != "extra_special_tokens":
			return nil
		}
		if err := decodeJSON(raw, list); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case c.extra != nil: // an empty list of the newer file counts, too
		c.extra = append(c.extra, extra...)
	case len(extra) > 0 || additional == nil:
		c.extra = extra
	default:
		c.extra = additional
	}
	return eachKey(names, one) // behind the others, whatever their order
}

// eachKey calls do for the keys of a JSON object, in their order.
func eachKey(object []byte, do func(key string, value json.RawMessage) error) error {
	var all map[string]json.RawMessage
	if err := decodeJSON(object, &all); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(object))
	for d.Token(); d.More(); { // past the brace; it has been decoded once, without an error
		key, _ := d.Token()
		var value json.RawMessage
		d.Decode(&value)
		if err := do(key.(string), value); err != nil {
			return err
		}
	}
	return nil
}

// fromVocabFile builds BERT's pipeline around a vocab.txt: a token per line, whose number is its id.
func fromVocabFile(data []byte, c *tokenizerConfig) (*Tokenizer, error) {
	switch c.class {
	case "", "BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer":
	default: // Japanese and MPNet's, among others, do more
		return nil, unsupported("with "+fileConfig+": tokenizer_class", c.class, "BertTokenizer, ElectraTokenizer and DistilBertTokenizer are; or save a tokenizer.json")
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
	for _, special := range bertSpecials {
		token := c.specials[special.key]
		token.Content, token.Special = c.special(special.key), true
		c.specials[special.key] = token
	}
	normalizer := newBertNormalizer(u, true, c.chinese, accents, c.lower)
	t, err := assemble(u, pipeline{normalizer, newRunSplitter(u, bertKind), m, vocabJSON{ids: vocab, size: len(vocab)}}, c.tokens(nil))
	if err != nil {
		return nil, err
	}
	t.setTemplate(bertTemplate(t.ids[c.special("cls_token")], t.ids[c.special("sep_token")]))
	return t, nil
}

func isSpace(r rune) bool { return ucd().class.at(r)&classSpace != 0 }
