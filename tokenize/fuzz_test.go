package tokenize

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzEncode: no text panics, ids are in the vocabulary, and a limit is kept.
func FuzzEncode(f *testing.F) {
	tokenizers := []*Tokenizer{load(f, "uncased"), load(f, "cased"), load(f, "vocabtxt")}
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
			if !truncated && (maxLen <= 0 || maxLen >= 2) && !slices.Equal(cut, full) {
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
	f.Fuzz(func(t *testing.T, file string) {
		tok, err := parseTokenizerJSON([]byte(file))
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
}
