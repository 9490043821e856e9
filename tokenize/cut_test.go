package tokenize

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// uncut is a tokenizer that doesn't cut texts, nor words, nor remember them.
func uncut(tok *Tokenizer) *Tokenizer {
	whole := *tok
	whole.chunk = 0
	switch m := tok.model.(type) {
	case *bpe:
		slow := *m
		slow.cuts, slow.cache = nil, newWordCache(1)
		whole.model = &slow
	case *unigram:
		slow := *m
		slow.cache = newWordCache(1)
		whole.model = &slow
	}
	return &whole
}

// TestCuts sees that it changes nothing to work on long texts in chunks, to cut words where no merge reaches across, and
// to remember words: in each tokenizer, on texts that are cut at each place where they may be.
func TestCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	cut := 0
	check := func(name string, file []byte, snippets []string) {
		tok, err := parseTokenizerJSON(file, nil)
		if errors.Is(err, ErrUnsupported) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*addedMatcher{tok.rawTokens, tok.normalizedTokens} {
			for _, token := range m.tokens {
				snippets = append(snippets, token.Content, token.normal)
			}
		}
		if tok.chunk > 0 {
			cut++
			tok.chunk = 1
		}
		whole := uncut(tok)
		for range 60 {
			var text strings.Builder
			for range rng.IntN(40) {
				text.WriteString(snippets[rng.IntN(len(snippets))])
				text.WriteString([]string{"", "", " ", " ", "  ", ".", "▁", "\n", "a "}[rng.IntN(9)])
			}
			checkIDs(t, tok, text.String(), tok.Encode(text.String(), 0), whole.Encode(text.String(), 0))
			if t.Failed() {
				t.Fatalf("%s %.3000s", name, file)
			}
		}
	}
	for _, name := range []string{"families.jsonl.gz", "random.jsonl.gz"} {
		for row := range familyRows(t, name) {
			snippets := []string{"a", "b", "ab", "1", "'s", "é", "中", "\u0301", "\u200d", "\u0600", "<unk>", "   "}
			for text := range row.texts(t) {
				snippets = append(snippets, text[:min(len(text), 1+rng.IntN(9))])
			}
			check(row.Name, row.File, snippets)
		}
	}
	for _, name := range []string{"uncased", "cased"} {
		file, err := os.ReadFile(filepath.Join(golden, name, fileTokenizer))
		if err != nil {
			t.Fatal(err)
		}
		check(name, file, goldenTexts(t)[:300])
	}
	if cut < 30 {
		t.Errorf("only %d tokenizers work in chunks", cut)
	}
}

// TestCuttable: of pipelines that work in chunks, what makes one that mustn't.
func TestCuttable(t *testing.T) {
	token := func(content, flags string) string {
		return `"added_tokens": [{"content": "` + content + `", "normalized": true` + flags + `}]`
	}
	keys := func(keys ...string) string {
		return `"normalizer": {"type": "Precompiled", "precompiled_charsmap": "` + charsmapOf(dartsOf(keys), "x") + `"}`
	}
	for _, c := range []struct {
		part string
		want bool
	}{
		{`"version": "1.0"`, true},
		{token("a", `, "lstrip": true`), true},
		{token(" a", ``), true},
		{token(" a", `, "single_word": true`), false}, // what is before it is in another chunk
		{token("a", `, "rstrip": true`), false},       // the spaces are
		{token("a b", ``), false},
		{token("a▁b", ``), false},
		{token("中 b", ``), true}, // no cut is there
		{keys("é", "e\u0301"), true},
		{keys("a"), false}, // what is before a cut, or after it, isn't visible, or a space, any more
		{keys(" "), false},
		{keys(" \u0301"), false},
		{keys("\u0600a"), false},
		{keys("\xD8"), false},
		{`"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}`, false}, // no white space to split at
		{`"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
			{"type": "Replace", "pattern": {"String": " "}, "content": " "}]}`, false},
		{`"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": " "}`, false},
		{`"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}`, true},
		{`"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}`, false},
		{`"normalizer": {"type": "Replace", "pattern": {"Regex": "\\s{2,}|[\\n\\r\\t]"}, "content": " "}`, true},
		{`"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}`, true},
	} {
		tok, err := parseTokenizerJSON([]byte(`{`+c.part+`, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model":
			{"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1]]}}`), nil)
		if err != nil {
			t.Errorf("%.200s: %v", c.part, err)
		} else if cuts := tok.chunk > 0; cuts != c.want {
			t.Errorf("%.200s: texts are cut: %v", c.part, cuts)
		}
	}
}

// dartsOf is a double array that maps each of some keys to 0. Each node has a block of its own for its children.
func dartsOf(keys []string) []uint32 {
	const block = 256
	units := make([]uint32, 2*block)
	units[0] = block << 10
	blocks := map[string]uint32{"": block} // by prefix
	for _, key := range keys {
		for i := range len(key) {
			if _, ok := blocks[key[:i+1]]; ok {
				continue
			}
			children := uint32(len(units))
			blocks[key[:i+1]] = children
			units = append(units, make([]uint32, block)...)
			at := blocks[key[:i]] + uint32(key[i])
			units[at] = (at^children)<<10 | uint32(key[i])
		}
		last := blocks[key[:len(key)-1]] + uint32(key[len(key)-1])
		units[last] |= 1 << 8
		units[blocks[key]] = 1 << 31
	}
	return units
}
