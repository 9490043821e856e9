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
		tok, err := parseTokenizerJSON(file)
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
