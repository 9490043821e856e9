package tokenize

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// charsmapOf is a precompiled_charsmap of units and replacements.
func charsmapOf(units []uint32, replacements string) string {
	data := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, unit := range units {
		data = binary.LittleEndian.AppendUint32(data, unit)
	}
	return base64.StdEncoding.EncodeToString(append(data, replacements...))
}

// cyclicUnits is a double array in which each byte leads back to the root: as many paths as one likes.
func cyclicUnits() []uint32 {
	units := make([]uint32, 512)
	units[0] = 256 << 10
	for c := range uint32(256) {
		units[256+c] = c<<10 | c // its children are at 256, too
	}
	return units
}

// TestComponentErrors sees what is said of components that this package doesn't have, or that contradict themselves.
func TestComponentErrors(t *testing.T) {
	const bpe = `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}`
	const unigram = `"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5]]}`
	normalizer := func(json string) string { return `{"normalizer": ` + json + `, ` + bpe + `}` }
	preTokenizer := func(json string) string { return `{"pre_tokenizer": ` + json + `, ` + bpe + `}` }
	precompiled := func(charsmap string) string {
		return normalizer(`{"type": "Precompiled", "precompiled_charsmap": "` + charsmap + `"}`)
	}
	model := func(json string) string { return `{"model": ` + json + `}` }
	nested := func(kind, key string) string {
		return strings.Repeat(`{"type": "Sequence", "`+key+`": [`, 20) + `{"type": "` + kind + `"}` + strings.Repeat(`]}`, 20)
	}
	template := func(single, pair string) string {
		return `{"post_processor": {"type": "TemplateProcessing", "single": [` + single + `], "pair": [` + pair + `], "special_tokens": {"x": {"ids": [-7]}}}, ` + bpe + `}`
	}
	const first = `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}`
	const metaspaceFirst = `"pre_tokenizer": ` + first + `, `
	for _, c := range []struct {
		file, want  string
		unsupported bool
	}{
		{`{` + bpe + `}`, ``, false},
		{`{` + unigram + `}`, ``, false},
		{`{"truncation": {"direction": "Right", "max_length": 8}, ` + unigram + `}`, ``, false},
		{`{"truncation": {"direction": "Left", "max_length": 8}, ` + unigram + `}`, `truncation direction "Left"`, true},
		{strings.Replace(`{`+bpe+`}`, `["a", "b"]`, `"a b"`, 1), ``, false},
		{strings.Replace(`{`+bpe+`}`, `["a", "b"]`, `"#version: 0.2", "a b"`, 1), ``, false},
		{model(`{"vocab": {"a": 0}, "merges": []}`), ``, false}, // as RoBERTa's older files
		{model(`{"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": -1, "vocab": {"u": 0}}`), `max_input_chars_per_word is -1`, false},
		{model(`{"unk_id": 0, "vocab": [["a", 0]]}`), ``, false},

		{model(`{"type": "BPE", "vocab": {"a": 0}}`), `model: BPE needs vocab`, false},
		{model(`{"type": "BPE", "vocab": [["a", 0]], "merges": []}`), `model: BPE needs vocab`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}`), `vocab: tokens "a" and "b" have one id, 0`, false},
		{model(`{"type": "BPE", "vocab": {"f": 1, "e": 1, "d": 1, "c": 0, "b": 0, "a": 2}, "merges": []}`), `vocab: tokens "b" and "c" have one id, 0`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}`), `merges: number 0 joins "a" and "b": token "ab" is not in the vocabulary`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0, "": 1}, "merges": [["a", ""]]}`), `merges: number 0 joins "a" and "": one is empty`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}`), `merges: number 0 is "a": want two tokens`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}`), `merges: number 0 is "a b c"`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}`), `merges: number 0: want a string, got ]`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b", "c"]]}`), `merges: number 0 has more than two`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": {}}`), `merges: want a list, got {}`, false},
		{model(`{"type": "BPE", "vocab": {"a": "0"}, "merges": []}`), `vocab: token "a": want a number, got "0"`, false},
		{model(`{"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}`), `vocab: token "a": id 4294967295 is not in 0 to`, false},
		{model(`{"type": "BPE", "vocab": {"\ud800": 0}, "merges": []}`), `vocab: \ud800 is half a surrogate pair`, false},
		{model(`{"type": "BPE", "vocab": {"\udc00\ud800": 0}, "merges": []}`), `\udc00 is half a surrogate pair`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0, "\n\\ud800\ud83d\ude00\u00e9": 1}, "merges": []}`), ``, false},
		{`{"normalizer": {"type": "StripAccents"}, "added_tokens": [{"content": "\u0301", "normalized": true}], ` + bpe + `}`, `added_tokens: "\u0301" is to be looked for in normalized text, but normalizes to nothing`, false},
		{`{"normalizer": {"type": "StripAccents"}, "added_tokens": [{"content": "\u0301", "normalized": false}], ` + bpe + `}`, ``, false},
		{model(`{"type": "BPE", "vocab": 7, "merges": []}`), `vocab: want tokens with ids`, false},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}`), `model: BPE's dropout "0.1"`, true},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}`), `model: BPE's end_of_word_suffix "</w>"`, true},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "##"}`), `BPE's continuing_subword_prefix "##"`, true},
		{model(`{"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "u"}`), `the unknown token "u" is not in the vocabulary`, false},

		{model(`{"type": "Unigram", "unk_id": 7, "vocab": [["a", 0]]}`), `model: unk_id 7 is not in the vocabulary of 1`, false},
		{model(`{"type": "Unigram", "unk_id": -1, "vocab": [["a", 0]]}`), `unk_id -1 is not in`, false},
		{model(`{"type": "Unigram", "vocab": [["a", 0]]}`), `model: Unigram's unk_id "null"`, true},
		{model(`{"type": "Unigram", "unk_id": 0, "vocab": {"a": 0}}`), `Unigram needs vocab (a list`, false},
		{model(`{"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e999]]}`), `vocab: token "a": number 1e999 is out of range`, false},
		{model(`{"type": "Unigram", "unk_id": 0, "vocab": [["a", "b"]]}`), `vocab: token "a": want a number, got "b"`, false},
		{model(`{"type": "Unigram", "unk_id": 0, "vocab": [["a", 0, 1]]}`), `vocab: token "a" has more than a score`, false},
		{model(`{"type": "Unigram", "unk_id": 0, "vocab": ["a"]}`), `vocab: entry 0: want a token and its score, got "a"`, false},

		{normalizer(`{"type": "Strip", "strip_left": true}`), `Strip needs strip_left and strip_right`, false},
		{normalizer(`{"type": "Prepend"}`), `Prepend needs prepend`, false},
		{normalizer(`{"type": "Prepend", "prepend": ""}`), `Prepend's prepend "" is not supported yet (texts that aren't empty are)`, true},
		{normalizer(`{"type": "Replace", "content": "x"}`), `Replace needs content and pattern`, false},
		{normalizer(`{"type": "Replace", "content": "x", "pattern": {"String": "a", "Regex": "b"}}`), `Replace needs content and pattern`, false},
		{normalizer(`{"type": "Replace", "content": "x", "pattern": {"String": ""}}`), `Replace pattern ""`, true},
		{normalizer(`{"type": "Replace", "content": "x", "pattern": {"Regex": "\\s+"}}`), `Replace regular expression "\\s+" is not supported yet (" {2,}" and "\\s{2,}|[\\n\\r\\t]" are)`, true},
		{normalizer(`{"type": "Sequence", "normalizers": [` + strings.Repeat(`{"type": "Replace", "content": "aaaa", "pattern": {"String": "a"}},`, 30) + `{"type": "NFC"}]}`), `its parts could make 1.27e+19 bytes of one`, false},
		{normalizer(`{"type": "Sequence", "normalizers": [` + strings.Repeat(`{"type": "Replace", "content": "aaaa", "pattern": {"String": "a"}},`, 9) + `{"type": "Lowercase"}]}`), `its parts could make 3.93e+05 bytes of one`, false},
		{normalizer(`{"type": "Sequence", "normalizers": [` + strings.Repeat(`{"type": "Replace", "content": "aaaa", "pattern": {"String": "a"}},`, 8) + `{"type": "StripAccents"}]}`), ``, false},
		{normalizer(nested("NFC", "normalizers")), `normalizer: more than 8 sequences in one another`, false},

		{normalizer(`{"type": "Precompiled"}`), `Precompiled needs precompiled_charsmap`, false},
		{precompiled("!"), `precompiled_charsmap: illegal base64`, false},
		{precompiled("AAA="), `precompiled_charsmap has 2 bytes, less than a length`, false},
		{precompiled("/////w=="), `precompiled_charsmap says that its trie has 4294967295 bytes; 0 follow`, false},
		{precompiled(charsmapOf(nil, "x")), `precompiled_charsmap's trie is empty`, false},
		{precompiled(charsmapOf([]uint32{0}, "\xff")), `precompiled_charsmap's replacements are not UTF-8`, false},
		{precompiled(charsmapOf(cyclicUnits(), "")), `precompiled_charsmap's trie has more than 1048576 nodes`, false},
		{precompiled(charsmapOf([]uint32{0, 1<<31 | 1<<8 | 1<<10 | 1}, "")), ``, false}, // a value where a label is wanted
		{precompiled(charsmapOf([]uint32{0, 1<<8 | 900<<10 | 1}, "")), `precompiled_charsmap's key "\x01" has its value at unit 901 of 2`, false},
		{precompiled(charsmapOf([]uint32{0, 1<<8 | 3<<10 | 1, 1<<31 | 9}, "abc")), `precompiled_charsmap's key "\x01" has its replacement at byte 9 of 3`, false},
		{precompiled(charsmapOf([]uint32{0, 1<<8 | 3<<10 | 1, 1<<31 | 1}, "é")), `has its replacement at byte 1 of 2`, false},
		{precompiled(charsmapOf([]uint32{0, 1<<8 | 3<<10 | 1, 1 << 31}, strings.Repeat("x", 300))), `has a replacement of 300 bytes, more than 256`, false},

		{preTokenizer(`{"type": "ByteLevel"}`), `ByteLevel needs add_prefix_space`, false},
		{preTokenizer(`{"type": "Metaspace"}`), `Metaspace needs replacement, one character`, false},
		{preTokenizer(`{"type": "Metaspace", "replacement": "ab"}`), `Metaspace needs replacement, one character`, false},
		{preTokenizer(`{"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}`), `Metaspace prepend_scheme "last"`, true},
		{preTokenizer(`{"type": "Metaspace", "replacement": "_", "add_prefix_space": false}`), `contradict each other`, false},
		{preTokenizer(`{"type": "Split", "behavior": "Isolated", "invert": false}`), `Split needs pattern`, false},
		{preTokenizer(`{"type": "Split", "pattern": {"String": "a"}}`), `Split needs behavior and invert`, false},
		{preTokenizer(`{"type": "Split", "pattern": {"String": "a"}, "invert": false}`), `Split needs behavior and invert`, false},
		{preTokenizer(`{"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated"}`), `Split needs behavior and invert`, false},
		{preTokenizer(`{"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false}`), `Split pattern ""`, true},
		{preTokenizer(`{"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false}`), `Split regular expression "\\w+"`, true},
		{preTokenizer(fmt.Sprintf(`{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Removed", "invert": false}`, regexQwen)), `Split with a regular expression and behavior "Removed"`, true},
		{preTokenizer(fmt.Sprintf(`{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Removed", "invert": true}`, regexQwen)), ``, false},
		{preTokenizer(`{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true}, {"type": "Whitespace"}]}`), `Sequence with something after "ByteLevel"`, true},
		{preTokenizer(nested("Whitespace", "pretokenizers")), `pre_tokenizer: more than 8 sequences in one another`, false},
		{`{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}, ` + unigram + `}`, `model: ByteLevel with type "Unigram"`, true},
		{`{` + metaspaceFirst + unigram + `}`, ``, false},
		{`{"normalizer": {"type": "Strip", "strip_left": true, "strip_right": false}, ` + metaspaceFirst + unigram + `}`, `Metaspace prepend_scheme "first"`, true},
		{`{"normalizer": {"type": "NFC"}, "added_tokens": [{"content": "a", "normalized": true}], ` + metaspaceFirst + unigram + `}`, `Metaspace prepend_scheme "first"`, true},
		{preTokenizer(`{"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]}`), ``, false},
		{preTokenizer(`{"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, {"type": "BertPreTokenizer"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]}`), `Metaspace prepend_scheme "first"`, true},

		// Hugging Face prepends nothing to a text that begins with what stands for two characters.
		{`{"normalizer": {"type": "Replace", "content": "x", "pattern": {"String": "ab"}}, ` + metaspaceFirst + unigram + `}`, `Metaspace prepend_scheme "first"`, true},
		{`{"normalizer": {"type": "Replace", "content": "xy", "pattern": {"String": "a"}}, ` + metaspaceFirst + unigram + `}`, ``, false},
		{preTokenizer(`{"type": "Sequence", "pretokenizers": [` + first + `, {"type": "BertPreTokenizer"}, ` + first + `]}`), `Metaspace prepend_scheme "first"`, true},
		{normalizer(`{"type": "Sequence"}`), `Sequence needs normalizers`, false},
		{preTokenizer(`{"type": "Sequence"}`), `Sequence needs pretokenizers`, false},
		{`{"post_processor": {"type": "Sequence"}, ` + bpe + `}`, `Sequence needs processors`, false},
		{`{"post_processor": {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}, ` + bpe + `}`, `TemplateProcessing needs single, pair and special_tokens`, false},
		{`{"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}, ` + bpe + `}`, `TemplateProcessing needs single, pair and special_tokens`, false},
		{`{"post_processor": {"type": "TemplateProcessing", "single": [], "pair": []}, ` + bpe + `}`, `TemplateProcessing needs single, pair and special_tokens`, false},
		{template(`{"Sequence": {"id": "B"}}`, ``), `single uses sequence "B"`, false}, // with which Hugging Face panics
		{template(`{"Sequence": {"id": "AB"}}`, ``), `single uses sequence "AB"`, false},
		{template(`{"Sequence": {"id": ""}}`, ``), `single uses sequence ""`, false},
		{template(``, `{"Sequence": {"id": "C"}}`), `pair uses sequence "C"`, false},
		{template(`{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}`, ``), `TemplateProcessing with a second "A" is not supported yet`, true},
		{template(``, `{"Sequence": {"id": "B"}}, {"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}`), `TemplateProcessing with a second "B"`, true},
		{template(`{"SpecialToken": {"id": "x"}}`, ``), `special token "x": id -7 is not in 0 to`, false},
		{`{"post_processor": {"type": "RobertaProcessing", "sep": ["s", 1]}, ` + bpe + `}`, `RobertaProcessing needs sep and cls`, false},
		{`{"post_processor": {"type": "RobertaProcessing", "sep": ["s", 1], "cls": ["c", -7]}, ` + bpe + `}`, `id -7 is not in`, false},
		{`{"post_processor": {"type": "Sequence", "processors": [{"type": "BertProcessing", "sep": ["s", 1], "cls": ["c", 2]}, {"type": "TemplateProcessing"}]}, ` + bpe + `}`, `Sequence with a second "TemplateProcessing"`, true},
	} {
		tok, err := parseTokenizerJSON([]byte(c.file), nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%.300s: %v", c.file, err)
				continue
			}
			tok.Encode("a \x01b", 0)
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.300s: %v\nwant %s", c.file, err, c.want)
		}
		if errors.Is(err, ErrUnsupported) != c.unsupported {
			t.Errorf("%.300s: is ErrUnsupported: %v", c.file, !c.unsupported)
		}
	}
}

// TestConfigContradicts: tokenizer_config.json may not say what transformers would do otherwise than tokenizer.json.
func TestConfigContradicts(t *testing.T) {
	file := func(lower string) []byte {
		return []byte(`{"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": ` + lower + `},
			"pre_tokenizer": {"type": "BertPreTokenizer"}, "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0}}}`)
	}
	for _, c := range []struct{ lower, config, want string }{
		{"true", ``, ""}, {"false", ``, ""},
		{"true", `{"tokenizer_class": "BertTokenizer"}`, ""},
		{"true", `{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "strip_accents": null}`, ""},
		{"false", `{"tokenizer_class": "BertTokenizerFast", "do_lower_case": false}`, ""},
		{"false", `{"tokenizer_class": "BertTokenizerFast"}`, "do_lower_case is true (or is so by default), the normalizer of tokenizer.json has lowercase false"},
		{"true", `{"tokenizer_class": "MPNetTokenizer", "do_lower_case": false}`, "do_lower_case is false"},
		{"true", `{"tokenizer_class": "DistilBertTokenizer", "strip_accents": false}`, "strip_accents is false"},
		{"false", `{"tokenizer_class": "ElectraTokenizer"}`, "do_lower_case is true (or is so by default)"},
		{"true", `{"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": false}`, "tokenize_chinese_chars is false"},
		{"true", `{"do_lower_case": false}`, "do_lower_case is false"},
		{"true", `{"strip_accents": false}`, "strip_accents is false"},
		{"true", `{"tokenize_chinese_chars": false}`, "tokenize_chinese_chars is false"},
		{"true", `{"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false}`, ""}, // which does not read it
		{"true", `{"truncation_side": "right"}`, ""},
		{"true", `{"truncation_side": "left"}`, `truncation_side "left" is not supported yet (right is)`},
		{"true", `{"split_special_tokens": false}`, ""},
		{"true", `{"split_special_tokens": true}`, `split_special_tokens "true" is not supported yet (false is)`},
	} {
		_, err := fromFiles(map[string][]byte{fileTokenizer: file(c.lower), fileConfig: []byte(c.config)})
		if c.config == "" {
			_, err = fromFiles(map[string][]byte{fileTokenizer: file(c.lower)})
		}
		// Of static embeddings a configuration that contradicts is no matter.
		if _, alone := build(map[string][]byte{fileTokenizer: file(c.lower), fileConfig: []byte(cmp.Or(c.config, "{}"))}, true); (alone != nil) != errors.Is(err, ErrUnsupported) {
			t.Errorf("%s, %s alone: %v", c.lower, c.config, alone)
		}
		if c.want == "" {
			if err != nil {
				t.Errorf("%s, %s: %v", c.lower, c.config, err)
			}
		} else if err == nil || !strings.HasPrefix(err.Error(), "tokenizer_config.json: "+c.want) {
			t.Errorf("%s, %s: %v\nwant %s", c.lower, c.config, err, c.want)
		}
	}
}

// TestPrefixContradicts: classes of transformers 5 that build their pre-tokenizer anew (RobertaTokenizer, XLMRobertaTokenizer and so on) put a space in
// front of texts, or not, by add_prefix_space, and give other ids than the file where that says otherwise.
func TestPrefixContradicts(t *testing.T) {
	const bytes, spaces = `{"type": "ByteLevel", "add_prefix_space": %s}`, `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "%s"}`
	const bpe = `"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}`
	for _, c := range []struct{ part, has, config, want string }{
		{bytes, "false", `{"tokenizer_class": "RobertaTokenizer"}`, ""},
		{bytes, "true", `{"tokenizer_class": "RobertaTokenizerFast"}`, "add_prefix_space is false (or is so by default), the pre_tokenizer of tokenizer.json has add_prefix_space true"},
		{bytes, "true", `{"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true}`, ""},
		{bytes, "false", `{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true}`, "add_prefix_space is true"},
		{bytes, "false", `{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": null}`, ""},
		{bytes, "false", `{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}`, "add_prefix_space is true"},
		{bytes, "true", `{"tokenizer_class": "DebertaTokenizer"}`, "add_prefix_space is false"},
		{bytes, "true", `{"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": false}`, ""}, // which does not read it
		{bytes, "true", `{"add_prefix_space": false}`, ""},
		{spaces, "always", `{"tokenizer_class": "XLMRobertaTokenizer"}`, ""},
		{spaces, "first", `{"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": true}`, ""},
		{spaces, "always", `{"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": false}`, "add_prefix_space is false (or is so by default), the pre_tokenizer of tokenizer.json has prepend_scheme always"},
		{spaces, "first", `{"tokenizer_class": "CamembertTokenizer", "add_prefix_space": false}`, "add_prefix_space is false (or is so by default), the pre_tokenizer of tokenizer.json has prepend_scheme first"},
		{spaces, "never", `{"tokenizer_class": "AlbertTokenizer"}`, "add_prefix_space is true (or is so by default), the pre_tokenizer of tokenizer.json has prepend_scheme never"},
		{spaces, "never", `{"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": false}`, ""},
		{bytes, "false", `{"tokenizer_class": "GPTNeoXTokenizerFast", "add_prefix_space": true}`, "add_prefix_space is true"},
		{bytes, "false", `{"tokenizer_class": "BartTokenizer", "add_prefix_space": true}`, "add_prefix_space is true"},
		{bytes, "true", `{"tokenizer_class": "LongformerTokenizer"}`, "add_prefix_space is false"},
		{spaces, "first", `{"tokenizer_class": "LlamaTokenizer"}`, ""},
		{spaces, "never", `{"tokenizer_class": "LlamaTokenizer", "add_prefix_space": null}`, "add_prefix_space is true"},
		{bytes, "false", `{"tokenizer_class": "LlamaTokenizer"}`, ""},
	} {
		part := fmt.Sprintf(c.part, c.has)
		for _, part := range []string{part, `{"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, ` + part + `]}`} {
			_, err := fromFiles(map[string][]byte{fileTokenizer: []byte(`{"pre_tokenizer": ` + part + `, ` + bpe + `}`), fileConfig: []byte(c.config)})
			if c.want == "" && err != nil {
				t.Errorf("%s, %s: %v", part, c.config, err)
			} else if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "tokenizer_config.json: "+c.want)) {
				t.Errorf("%s, %s: %v\nwant %s", part, c.config, err, c.want)
			}
		}
	}
}

// Files beside a vocab.txt or tokenizer.json that can't be read: the message names the file and the key.
func TestConfigErrors(t *testing.T) {
	for _, c := range []struct{ file, content, want string }{
		{fileConfig, `{"pad_token": 7}`, `key "pad_token": `},
		{fileConfig, `{"tokenizer_class": "BertJapaneseTokenizer"}`, `tokenizer_class "BertJapaneseTokenizer" is not supported yet (BertTokenizer, `}, // which cuts texts by a dictionary
		{fileConfig, `{"tokenizer_class": "MPNetTokenizer"}`, `tokenizer_class "MPNetTokenizer" is not supported yet`},                                // of other special tokens
		{fileConfig, `{"eos_token": {"content": 7}}`, `key "eos_token": key "content": want string, got number`},
		{fileConfig, `{"extra_special_tokens": [7]}`, `key "extra_special_tokens": `},
		{fileConfig, `{"added_tokens_decoder": {"x": {"content": "a"}}}`, `added_tokens_decoder: key "x" is not an id`},
		{fileSpecials, `{"pad_token": 7}`, `key "pad_token": `},
		{fileSpecials, `{`, `line 1, column 1: `},
		{fileAdded, `{"a": "b"}`, `key "": want int, got string`},
		{fileAdded, `[`, `line 1, column 1: `},
	} {
		_, err := fromFiles(map[string][]byte{fileVocab: []byte("[UNK]\n"), c.file: []byte(c.content)})
		if err == nil || !strings.Contains(err.Error(), c.file+": "+c.want) {
			t.Errorf("%s %s: %v\nwant %s", c.file, c.content, err, c.want)
		}
	}
}

// The unknown token that a configuration names is one of the vocab.txt's lines.
func TestUnknownOfVocabTxt(t *testing.T) {
	_, err := fromFiles(map[string][]byte{fileVocab: []byte("[UNK]\n"), fileConfig: []byte(`{"unk_token": "<unk>"}`)})
	if err == nil || err.Error() != `vocab.txt: the unknown token "<unk>" is not in the vocabulary` {
		t.Error(err)
	}
}

// A map with a key that begins with a space has texts left whole, whatever keys come behind it.
func TestCharsmapOfSpaces(t *testing.T) {
	const leaf, value = 1<<8 | 1<<10, 1 << 31 // the value is at the unit beside
	for _, space := range []bool{false, true} {
		units := make([]uint32, 128)
		units[0x7F], units[0x7E] = leaf|0x7F, value
		if space {
			units[' '] = 0x42<<10 | ' ' // of which "a" is at ' ' ^ 0x42 ^ 'a'
			units[3], units[2] = leaf|'a', value
		}
		data, err := base64.StdEncoding.DecodeString(charsmapOf(units, "x"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := newPrecompiled(ucd(), data)
		if err != nil {
			t.Fatal(err)
		}
		s := &scratch{text: []byte("b \x7f a"), first: true}
		p.normalize(s)
		if (p.cut(edgeSpace) == 0) != space || string(s.text) != "b x a" {
			t.Errorf("with a space %v: cut %v, %q", space, p.cut(edgeSpace), s.text)
		}
	}
}

// TestPrefixOfNormalizer: a Llama's normalizer that puts a space in front of texts does what its class does by add_prefix_space.
func TestPrefixOfNormalizer(t *testing.T) {
	const space, replace = `{"type": "Prepend", "prepend": "▁"}`, `{"type": "Replace", "content": "▁", "pattern": {"String": " "}}`
	for _, c := range []struct{ normalizer, config, want string }{
		{space + `, ` + replace, `{"tokenizer_class": "LlamaTokenizer"}`, ""},
		{space + `, ` + replace, `{"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": false}`, "add_prefix_space is false (or is so by default), the normalizer of tokenizer.json has Prepend true"},
		{space + `, ` + replace, `{"tokenizer_class": "GemmaTokenizer", "add_prefix_space": false}`, ""}, // which reads the file
		{replace, `{"tokenizer_class": "LlamaTokenizer"}`, "add_prefix_space is true (or is so by default), the normalizer of tokenizer.json has Prepend false"},
		{replace, `{"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false}`, ""},
		{`{"type": "NFC"}`, `{"tokenizer_class": "LlamaTokenizer"}`, ""},
	} {
		file := `{"normalizer": {"type": "Sequence", "normalizers": [` + c.normalizer + `]}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}`
		_, err := fromFiles(map[string][]byte{fileTokenizer: []byte(file), fileConfig: []byte(c.config)})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "tokenizer_config.json: "+c.want)) {
			t.Errorf("%s, %s: %v\nwant %s", c.normalizer, c.config, err, c.want)
		}
	}
}
