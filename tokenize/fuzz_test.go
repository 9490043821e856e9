package tokenize

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"contraflow/testdata/harness"
)

// FuzzEncode: no text panics, ids are in the vocabulary, and a limit is kept.
func FuzzEncode(f *testing.F) {
	tokenizers := []*Tokenizer{load(f, "uncased"), load(f, "cased"), load(f, "vocabtxt")}
	for row := range familyRows(f, "families.jsonl.gz") {
		if row.Name == "modernbert" || row.Name == "tekken" || row.Name == "llama2" || row.Name == "unigram-bytes" {
			tok, err := parseTokenizerJSON(row.File, nil)
			if err != nil {
				f.Fatal(err)
			}
			tokenizers = append(tokenizers, tok)
		}
	}
	for i, text := range goldenTexts(f) {
		if i%20 == 0 {
			f.Add(text, i%40)
		}
	}
	f.Add("a\xff\x00b [MASK] \xed\xa0\x80", 0)
	f.Fuzz(func(t *testing.T, text string, maxLen int) {
		for _, tok := range tokenizers {
			full := tok.Encode(text, 0)
			for _, id := range full {
				if id < 0 || int(id) >= tok.VocabSize() || tok.Token(id) == "" {
					t.Fatalf("id %d of %d", id, tok.VocabSize())
				}
			}
			if !utf8.ValidString(text) && !slices.Equal(full, tok.Encode(string([]rune(text)), 0)) {
				t.Fatal("invalid UTF-8 isn't taken for U+FFFD")
			}
			cut, truncated := tok.Append(nil, text, maxLen)
			if maxLen > 0 && len(cut) > maxLen || maxLen <= 0 && truncated {
				t.Fatalf("%d ids with a limit of %d", len(cut), maxLen)
			}
			if !truncated && (maxLen <= 0 || maxLen >= tok.Specials(false)) && !slices.Equal(cut, full) {
				t.Fatalf("not truncated, but %v is not %v", cut, full)
			}
		}
	})
}

// FuzzLoad: no tokenizer.json panics, nor does a text then.
func FuzzLoad(f *testing.F) {
	small, err := FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"}, VocabOptions{Lowercase: true})
	if err != nil {
		f.Fatal(err)
	}
	file := string(small.files[fileTokenizer])
	f.Add(file)
	f.Add(strings.Replace(file, `"BertPreTokenizer"`, `"Punctuation", "behavior": "Contiguous"`, 1))
	f.Add(strings.Replace(file, `"normalized": false`, `"normalized": true, "lstrip": true`, 2))
	f.Add(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3}, "merges": [["a", "b"]], "byte_fallback": true}}`)
	f.Add(`{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5e0], ["▁a", 2]], "byte_fallback": true},
		"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}}`)
	f.Add(`{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "` + charsmapOf(dartsOf([]string{"a", "b\u0301", "中"}), "xy\x00") + `"},
		"model": {"type": "BPE", "vocab": {"Ġ": 0, "x": 1}, "merges": ["Ġ x"]}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}`)
	for row := range familyRows(f, "random.jsonl.gz") {
		if len(row.File) < 3000 {
			f.Add(string(row.File))
		}
	}
	f.Fuzz(func(t *testing.T, file string) {
		harness.Bounded(t, func() {
			tok, err := parseTokenizerJSON([]byte(file), nil)
			if err != nil {
				return
			}
			for _, text := range []string{"", "ab [MASK] İ\x00", " [CLS]  [SEP] "} {
				for _, id := range tok.Encode(text, 0) {
					if id < 0 || int(id) >= tok.VocabSize() {
						t.Fatalf("id %d of %d", id, tok.VocabSize())
					}
				}
				tok.AppendPair(nil, nil, text, text, 4, OnlySecond)
			}
		})
	})
}
