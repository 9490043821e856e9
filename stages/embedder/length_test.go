package embedder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Texts of a model without positions are cut where its folder says, or where config.json says that it was trained, and may be longer if asked.
func TestLengthWithoutPositions(t *testing.T) {
	for _, config := range []string{`{"model_type":"t5","n_positions":300}`, `{"model_type":"deberta-v2","max_position_embeddings":300,"position_biased_input":false}`} {
		c, err := transformer.ParseConfig([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct{ folder, asked, want int }{{0, 0, 300}, {77, 0, 77}, {900, 0, 900}, {77, 1000, 1000}} {
			if got, err := MaxLengthOf(&hfmodel.Folder{MaxSeqLength: x.folder}, c, x.asked); err != nil || got != x.want {
				t.Errorf("%s, %+v: %d, %v", config, x, got, err)
			}
		}
	}
}

// Where a model has positions no text is longer than those, whatever its folder says, and more than those is not asked for.
func TestLengthWithPositions(t *testing.T) {
	c := transformer.Config{MaxPositions: 300}
	for _, x := range []struct{ folder, asked, want int }{{0, 0, 300}, {77, 0, 77}, {300, 0, 300}, {900, 0, 300}, {77, 300, 300}, {77, 301, 0}} {
		f := &hfmodel.Folder{MaxSeqLength: x.folder, LengthGiven: x.folder > 0}
		got, err := MaxLengthOf(f, c, x.asked)
		if got != x.want || (err == nil) != (x.want > 0) {
			t.Errorf("%+v: %d, %v", x, got, err)
		}
		if note := LengthNote(f, c, x.asked); (note != "") != (x.folder == 900) {
			t.Errorf("%+v: the note is %q", x, note)
		}
	}
}

// A model whose every text has a token that it has no embedding for can't be used; one that has none for another added token says so.
func TestVocabulary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	file := `{"added_tokens": [{"id": 2, "content": "[S]"}, {"id": 3, "content": "[1]"}, {"id": 4, "content": "[2]"}, {"id": 5, "content": "[3]"}, {"id": 6, "content": "[4]"}],
		"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
		"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[S]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"[S]": {"id": "[S]", "ids": [2], "tokens": ["[S]"]}}}}`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenize.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &hfmodel.Folder{Dir: "m"}
	for vocab, want := range map[int][2]string{
		1: {"the tokenizer has 2 tokens, the model's vocabulary 1", `["[S]" "[1]" "[2]" "[3]" "[4]"];`},
		2: {`puts special tokens around every text: the token "[S]" has id 2, and the model embeddings for 2 tokens`, `["[S]" "[1]" "[2]" "[3]" "[4]"];`},
		3: {"", `m: its tokenizer adds tokens that the model, with embeddings for 3, has none for: ["[1]" "[2]" "[3]" "[4]"]; a text`}, 7: {"", ""}, 9: {"", ""},
	} {
		c := transformer.Config{Vocab: vocab}
		if err := CheckVocabulary(tok, c); (err != nil) != (want[0] != "") || err != nil && !strings.Contains(err.Error(), want[0]) {
			t.Errorf("vocabulary of %d: %v", vocab, err)
		}
		if note := VocabularyNote(f, tok, c); (note == "") != (want[1] == "") || vocab > 1 && !strings.Contains(note, want[1]) {
			t.Errorf("vocabulary of %d: %s", vocab, note)
		}
	}
}
