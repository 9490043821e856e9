package tokenize

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A marker of the vocabulary is one token, wherever it stands, and nothing else changes; the files that are saved do not either.
func TestWhole(t *testing.T) {
	dir := t.TempDir()
	vocab := "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n[\n]\nunused\n##0\na\nb\n"
	if err := os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte(vocab), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := plain.Encode("[unused0] a", 0); !slices.Equal(got, []int32{2, 6, 8, 9, 7, 10, 3}) {
		t.Errorf("as it is: %v", got)
	}
	whole, err := plain.Whole("[unused0]")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{"[unused0] a": {2, 5, 10, 3}, "a[unused0]b [MASK]": {2, 10, 5, 11, 4, 3}, "[ unused": {2, 6, 8, 3}} {
		if got := whole.Encode(text, 0); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if whole.Hash() == plain.Hash() {
		t.Error("both have one hash")
	}
	if same, err := whole.Whole("[unused0]"); err != nil || same != whole {
		t.Errorf("what is one token already has become another tokenizer, %v", err)
	}
	if same, err := plain.Whole("a"); err != nil || same != plain {
		t.Errorf("a word: %v", err)
	}
	if _, err := plain.Whole("[nothing]"); err == nil {
		t.Error("a token that there is not")
	}
}
