package tokenize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

func goldenTexts(t testing.TB) []string {
	var texts []string
	for row := range rows[struct{ Text string }](t, "lines.jsonl") {
		texts = append(texts, row.Text)
	}
	return texts
}

// TestTruncation compares truncated ids with the untruncated ones' beginning, over texts longer than a chunk too.
func TestTruncation(t *testing.T) {
	tokenizers := []*Tokenizer{load(t, "uncased")}
	for row := range familyRows(t, "families.jsonl.gz") {
		tok, err := parseTokenizerJSON(row.File, nil)
		if err != nil {
			t.Fatal(err)
		}
		if single := tok.template.single; len(single) == 3 && len(single[0].ids) == 1 && len(single[2].ids) == 1 { // [CLS] A [SEP]
			tokenizers = append(tokenizers, tok)
		}
	}
	if len(tokenizers) < 8 {
		t.Errorf("only %d tokenizers", len(tokenizers))
	}
	texts := goldenTexts(t)
	for i := 0; i+40 <= len(texts); i += 40 {
		texts = append(texts, strings.Join(texts[i:i+40], " "))
	}
	for i, tok := range tokenizers {
		texts := texts[2500:]
		if i > 0 {
			texts = texts[len(texts)-100:]
		}
		for _, text := range texts {
			full := tok.Encode(text, 0)
			for _, maxLen := range []int{1, 2, 3, 7, 128, len(full) - 1, len(full), len(full) + 1} {
				want := full
				if len(full) > maxLen {
					want = append(slices.Clone(full[:max(maxLen-1, 1)]), full[len(full)-1])[:max(maxLen, 1)]
				}
				got, truncated := tok.Append(nil, text, maxLen)
				checkIDs(t, tok, text, got, want)
				if truncated != (len(full) > maxLen && len(full) > 2) {
					t.Errorf("%+q to %d of %d: truncated is %v", text, maxLen, len(full), truncated)
				}
			}
		}
	}
}

func TestAppend(t *testing.T) {
	tok := load(t, "uncased")
	text := strings.Repeat("The Übermaß of [MASK] 中文 말 re-use; ", 200)
	alone := tok.Encode(text, 0)
	if ids, _ := tok.Append([]int32{8, 9}, text, 0); !slices.Equal(ids, append([]int32{8, 9}, alone...)) {
		t.Error("Append doesn't append")
	}
	checkNoAllocations(t, "uncased", tok, text)
	if ids := tok.Encode("", 0); len(ids) != 2 {
		t.Errorf("the empty text has ids %v", ids)
	}
}

// checkNoAllocations tokenizes a text into a slice that is large enough.
func checkNoAllocations(t *testing.T, name string, tok *Tokenizer, text string) {
	t.Helper()
	dst := tok.Encode(text, 0)
	fewest := 1.0 // a sync.Pool may forget at any time, and does so often under the race detector
	for range 20 {
		fewest = min(fewest, testing.AllocsPerRun(1, func() { tok.Append(dst[:0], text, 0) }))
	}
	if fewest > 0 {
		t.Errorf("%s: allocations for a text of %d ids", name, len(dst))
	}
}

func TestInvalidUTF8(t *testing.T) {
	for _, name := range []string{"uncased", "cased"} {
		tok := load(t, name)
		for _, text := range []string{"a\xffb", "\xc3\x28", "x\xed\xa0\x80y", "\xf0\x9f\x98", "the \xe4\xb8 end [MASK\xff]"} {
			var valid strings.Builder
			for _, r := range text {
				valid.WriteRune(r)
			}
			checkIDs(t, tok, text, tok.Encode(text, 0), tok.Encode(valid.String(), 0))
		}
	}
}

func TestEncodeAll(t *testing.T) {
	tok := load(t, "uncased")
	texts := goldenTexts(t)
	long := 0
	for _, text := range texts {
		if len(tok.Encode(text, 0)) > 16 {
			long++
		}
	}
	for _, threads := range []int{0, 1, 2, 7} {
		all, cut, err := tok.EncodeCut(context.Background(), texts, 16, threads)
		if err != nil {
			t.Fatal(err)
		}
		if cut != long || cut == 0 {
			t.Errorf("%d texts were cut, want %d", cut, long)
		}
		for i, text := range texts {
			checkIDs(t, tok, text, all[i], tok.Encode(text, 16))
		}
		if extended := append(all[0], 99); len(all[1]) > 0 && &extended[0] == &all[0][0] {
			t.Error("appending to one result writes into the next")
		}
	}
	if all, err := tok.EncodeAll(context.Background(), nil, 16, 4); err != nil || len(all) != 0 {
		t.Errorf("no texts: %v, %v", all, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tok.EncodeAll(ctx, texts, 16, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	texts := goldenTexts(t)[:300]
	tokenizers := []*Tokenizer{load(t, "uncased")}
	for row := range familyRows(t, "families.jsonl.gz") {
		if row.Name == "llama3" || row.Name == "gemma" || row.Name == "bge-m3" { // words are remembered
			tok, err := parseTokenizerJSON(row.File, nil)
			if err != nil {
				t.Fatal(err)
			}
			tokenizers = append(tokenizers, tok)
		}
	}
	for _, tok := range tokenizers {
		all := make([][][]int32, 4)
		var group sync.WaitGroup
		for g := range all {
			group.Go(func() {
				for _, text := range texts {
					ids, _ := tok.Append(nil, text, 20)
					all[g] = append(all[g], ids)
				}
			})
		}
		group.Wait()
		for i, text := range texts {
			for g := range all {
				checkIDs(t, tok, text, all[g][i], tok.Encode(text, 20))
			}
		}
	}
}

func TestAccessors(t *testing.T) {
	tok := load(t, "uncased")
	if n := tok.VocabSize(); n != 4000 {
		t.Errorf("vocabulary of %d", n)
	}
	for id := range int32(tok.VocabSize()) {
		if back, ok := tok.ID(tok.Token(id)); !ok || back != id {
			t.Errorf("id %d is %q, which is %d", id, tok.Token(id), back)
		}
	}
	if id, ok := tok.ID("no such token"); ok {
		t.Errorf("a token that isn't there has id %d", id)
	}
	if tok.Token(4000) != "" || tok.Token(-1) != "" {
		t.Error("ids that aren't there have tokens")
	}
	if tok.Specials(false) != 2 || tok.Specials(true) != 3 {
		t.Errorf("%d and %d special tokens", tok.Specials(false), tok.Specials(true))
	}
	if cased := load(t, "cased"); cased.Hash() == tok.Hash() || tok.Hash() != load(t, "uncased").Hash() {
		t.Error("hashes don't tell tokenizers apart")
	}
}

// TestSaveLoaded: files come back byte for byte, and others' files don't stay.
func TestSaveLoaded(t *testing.T) {
	for _, name := range []string{"uncased", "vocabtxt"} {
		tok := load(t, name)
		dir := filepath.Join(t.TempDir(), "new", "folder")
		for _, other := range []string{"cased", "vocabtxt", name} {
			if err := load(t, other).Save(dir); err != nil {
				t.Fatal(err)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != len(tok.files) {
			t.Errorf("%s: %d files saved, %d loaded", name, len(entries), len(tok.files))
		}
		for _, entry := range entries {
			got, _ := os.ReadFile(filepath.Join(dir, entry.Name()))
			want, err := os.ReadFile(filepath.Join(golden, name, entry.Name()))
			if err != nil || string(got) != string(want) {
				t.Errorf("%s: %s differs (%v)", name, entry.Name(), err)
			}
		}
		again, err := Load(dir)
		if err != nil || again.Hash() != tok.Hash() {
			t.Errorf("%s: loaded again: %v", name, err)
		}
	}
}

// Bare has the ids between the special tokens, whatever is cut, and saves the same files under another hash.
func TestBare(t *testing.T) {
	tok := load(t, "uncased")
	bare := tok.Bare()
	if bare.Specials(false) != 0 || bare.Specials(true) != 0 || bare.Hash() == tok.Hash() || tok.Specials(false) != 2 {
		t.Errorf("%d and %d special tokens", bare.Specials(false), bare.Specials(true))
	}
	for _, text := range []string{"", "reads a file", "[MASK] of [CLS] tokens"} {
		for _, cut := range []int{0, 2} {
			with := cut
			if cut > 0 {
				with += 2
			}
			if want := tok.Encode(text, with); !slices.Equal(bare.Encode(text, cut), want[1:len(want)-1]) {
				t.Errorf("%q: %v, want %v without the first and last", text, bare.Encode(text, cut), want)
			}
		}
	}
	dir := t.TempDir()
	if err := bare.Save(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := Load(dir); err != nil || again.Hash() != tok.Hash() {
		t.Errorf("saved and loaded again: %v", err)
	}
}

// TestSaveFails: what was there stays.
func TestSaveFails(t *testing.T) {
	tok := load(t, "uncased")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := tok.Save(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("saving into a file: %v", err)
	}
	dir := t.TempDir() // a folder in the place of tokenizer.json can't be replaced
	if err := os.MkdirAll(filepath.Join(dir, fileTokenizer, "x"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := tok.Save(dir); err == nil {
		t.Error("saved over a folder")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestTrainedTokenizer(t *testing.T) {
	texts := goldenTexts(t)
	for _, opts := range []TrainOptions{{VocabSize: 3000, Lowercase: true, MaxLength: 77}, {VocabSize: 3000, MinFrequency: 1}} {
		tok, err := TrainWordPiece(t.Context(), slices.Values(texts), opts)
		if err != nil {
			t.Fatal(err)
		}
		if tok.VocabSize() != 3000 {
			t.Errorf("vocabulary of %d", tok.VocabSize())
		}
		for id, token := range []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} {
			if tok.Token(int32(id)) != token {
				t.Errorf("token %d is %q", id, tok.Token(int32(id)))
			}
		}
		if id, ok := tok.PadID(); !ok || id != 0 {
			t.Errorf("padding token: %d, %v", id, ok)
		}
		if n, ok := tok.ModelMaxLength(); n != opts.MaxLength || ok != (opts.MaxLength > 0) {
			t.Errorf("model max length %d, %v", n, ok)
		}
		dir := t.TempDir()
		if err := tok.Save(dir); err != nil {
			t.Fatal(err)
		}
		again, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, fileTokenizer)); err != nil {
			t.Fatal(err)
		}
		fromVocab, err := Load(dir) // vocab.txt and tokenizer_config.json say the same
		if err != nil {
			t.Fatal(err)
		}
		same, err := TrainWordPiece(t.Context(), slices.Values(texts), opts)
		if err != nil || same.Hash() != tok.Hash() || again.Hash() != tok.Hash() {
			t.Errorf("hashes: %s, trained again %s, loaded %s (%v)", tok.Hash(), same.Hash(), again.Hash(), err)
		}
		for _, text := range texts {
			want := tok.Encode(text, 0)
			checkIDs(t, tok, text, again.Encode(text, 0), want)
			checkIDs(t, tok, text, fromVocab.Encode(text, 0), want)
		}
	}
}

// What is made of a vocabulary is what Hugging Face has saved with the same one.
func TestFromVocab(t *testing.T) {
	for name, lower := range map[string]bool{"uncased": true, "cased": false} {
		saved := load(t, name)
		var tokens []string
		for id := range saved.VocabSize() {
			tokens = append(tokens, saved.Token(int32(id)))
		}
		tok, err := FromVocab(tokens, VocabOptions{Lowercase: lower})
		if err != nil {
			t.Fatal(err)
		}
		var got, want map[string]any
		if err := errors.Join(json.Unmarshal(tok.files[fileTokenizer], &got), json.Unmarshal(saved.files[fileTokenizer], &want)); err != nil {
			t.Fatal(err)
		}
		delete(want, "decoder") // which those were given none of
		delete(got, "decoder")
		for key := range want {
			if !reflect.DeepEqual(got[key], want[key]) || len(got) != len(want) {
				t.Errorf("%s: %s is %.300v, want %.300v", name, key, got[key], want[key])
			}
		}
	}
}

func TestTrainErrors(t *testing.T) {
	some := slices.Values([]string{"some text here"})
	for _, c := range []struct {
		texts func(func(string) bool)
		opts  TrainOptions
		want  string
	}{
		{slices.Values([]string{}), TrainOptions{}, "no words"},
		{slices.Values([]string{" \t", "\x00"}), TrainOptions{}, "no words"},
		{some, TrainOptions{VocabSize: 10}, "10 tokens are too few"},
		{some, TrainOptions{VocabSize: -1}, "negative"},
	} {
		if _, err := TrainWordPiece(t.Context(), c.texts, c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.opts, err, c.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the texts ended early")
	_, err := TrainWordPiece(ctx, func(yield func(string) bool) {
		yield("some text")
		cancel(reason)
		for range 3 {
			if !yield("more text") {
				return
			}
		}
		t.Error("texts are read on")
	}, TrainOptions{})
	if !errors.Is(err, reason) {
		t.Errorf("cancelled: %v", err)
	}
	specials := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
	for want, tokens := range map[string][]string{
		"[MASK] is missing": specials[:4],
		`"a" has two ids`:   append(slices.Clone(specials), "a", "b", "a"),
		"white space":       append(slices.Clone(specials), "a b"),
		"want UTF-8":        append(slices.Clone(specials), "\xff"),
	} {
		if _, err := FromVocab(tokens, VocabOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", tokens, err, want)
		}
	}
	if _, err := FromVocab(specials, VocabOptions{MaxLength: -1}); err == nil || !strings.Contains(err.Error(), "MaxLength -1") {
		t.Error(err)
	}
}

// Files that can't be used: the message names the file and the component or place.
func TestLoadErrors(t *testing.T) {
	const model = `"model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": {"u": 0}}`
	for _, c := range []struct {
		file, content, want string
		unsupported         bool
	}{
		{fileTokenizer, `{"model": {"type": "WordLevel", "vocab": {}}}`, `model: type "WordLevel" is not supported yet (BPE, `, true},
		{fileTokenizer, `{"model": {"vocab": {}}}`, `model: type "" is not supported yet`, true},
		{fileTokenizer, `{"normalizer": {"type": "Nmt"}, ` + model + `}`, `normalizer type "Nmt"`, true},
		{fileTokenizer, `{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "ByteLevel"}]}, ` + model + `}`, `normalizer type "ByteLevel"`, true},
		{fileTokenizer, `{"pre_tokenizer": {"type": "UnicodeScripts"}, ` + model + `}`, `pre_tokenizer type "UnicodeScripts"`, true},
		{fileTokenizer, `{"pre_tokenizer": {"type": "Punctuation", "behavior": "Sideways"}, ` + model + `}`, `behavior "Sideways"`, true},
		{fileTokenizer, `{"post_processor": {"type": "GPT"}, ` + model + `}`, `post_processor type "GPT"`, true},
		{fileTokenizer, `{"truncation": {"direction": "Left"}, ` + model + `}`, `truncation direction "Left"`, true},
		{fileTokenizer, `{"version": "2.0", ` + model + `}`, `version "2.0"`, true},
		{fileTokenizer, "{\"version\": \"1.0\",\n \"model\": }", "tokenizer.json: line 2, column 11", false},
		{fileTokenizer, `{"version": "1.0", "model"`, "tokenizer.json: line 1, column 26: unexpected end", false},
		{fileTokenizer, ``, "tokenizer.json: line 1", false},
		{fileTokenizer, "\ufeff{" + model + "}", "tokenizer.json: it begins with a byte order mark", false},
		{fileTokenizer, `{}`, `key "model" is missing`, false},
		{fileTokenizer, `{"added_tokens": 5, ` + model + `}`, `key "added_tokens": want`, false},
		{fileTokenizer, `{"model": {"type": "WordPiece"}}`, "WordPiece needs unk_token", false},
		{fileTokenizer, strings.Replace(`{`+model+`}`, `{"u": 0}`, `{"a": 0}`, 1), `the unknown token "u" is not in the vocabulary`, false},
		{fileTokenizer, strings.Replace(`{`+model+`}`, `{"u": 0}`, `{"u": -1}`, 1), `token "u": id -1 is not in`, false},
		{fileTokenizer, strings.Replace(`{`+model+`}`, `{"u": 0}`, `{"u": 1.5}`, 1), `vocab: token "u": id 1.5 is not in 0 to`, false},
		{fileTokenizer, `{"normalizer": {"type": "BertNormalizer"}, ` + model + `}`, "BertNormalizer needs clean_text", false},
		{fileTokenizer, `{"normalizer": {}, ` + model + `}`, `normalizer: key "type" is missing`, false},
		{fileTokenizer, `{"post_processor": {"type": "BertProcessing", "sep": ["s", 1]}, ` + model + `}`, "BertProcessing needs sep and cls", false},
		{fileTokenizer, `{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "X", "type_id": 0}}], "pair": [], "special_tokens": {}}, ` + model + `}`, `single uses "X", which special_tokens lacks`, false},
		{fileTokenizer, `{"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [], "special_tokens": {}}, ` + model + `}`, `single uses sequence "B"`, false},
		{fileTokenizer, `{"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [{"Sequence": {"id": "C", "type_id": 0}}], "special_tokens": {}}, ` + model + `}`, `pair uses sequence "C"`, false},
		{fileTokenizer, `{"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [{}], "special_tokens": {}}, ` + model + `}`, `pair has a piece that is neither`, false},
		{fileVocab, "a\nb\n", `vocab.txt: the unknown token "[UNK]"`, false},
		{fileVocab, "a\n\xff\n", "vocab.txt: line 2 is not UTF-8", false},
		{fileVocab, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n[UNK]\n", "git lfs pull", false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), filepath.Join(dir, c.file)) {
			t.Errorf("%s: %v\nwant %s", c.content, err, c.want)
		}
		if errors.Is(err, ErrUnsupported) != c.unsupported {
			t.Errorf("%s: is ErrUnsupported: %v", c.content, !c.unsupported)
		}
	}
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "neither tokenizer.json nor vocab.txt") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := LoadFile(filepath.Join(dir, "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for name, content := range map[string]string{fileVocab: "[UNK]\n", fileConfig: `{"do_lower_case": "yes"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), `tokenizer_config.json: key "do_lower_case": want bool, got string`) {
		t.Errorf("a bad tokenizer_config.json: %v", err)
	}
	link := filepath.Join(dir, fileTokenizer) // without it, vocab.txt would be another tokenizer
	if err := errors.Join(os.WriteFile(filepath.Join(dir, fileConfig), []byte("{}"), 0o666), os.Symlink("../../blobs/0123", link)); err != nil {
		t.Skip(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), link+" is a link to ../../blobs/0123, and nothing is there") {
		t.Errorf("a link to nothing: %v", err)
	}
}

func TestLoadFile(t *testing.T) {
	tok, err := LoadFile(filepath.Join(golden, "uncased", fileTokenizer))
	if err != nil {
		t.Fatal(err)
	}
	if tok.Hash() != load(t, "uncased").Hash() {
		t.Error("the file alone has another hash than the folder")
	}
	path := filepath.Join(t.TempDir(), "other.json") // is what an error names
	if err := os.WriteFile(path, []byte(`{"version": "2.0"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFile(path); !errors.Is(err, ErrUnsupported) || !strings.HasPrefix(err.Error(), "tokenizer: "+path+`: version "2.0"`) {
		t.Error(err)
	}
}

// What stands for text that a vocabulary has no tokens for: of each kind of model, or none.
func TestUnknownID(t *testing.T) {
	for text, want := range map[string]int32{
		`{"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": {"a": 0, "u": 1}}`: 1,
		`{"type": "Unigram", "unk_id": 2, "vocab": [["a", -1], ["b", -2], ["u", 0]]}`:                                                          2,
		`{"type": "BPE", "unk_token": "u", "vocab": {"a": 0, "u": 3}, "merges": []}`:                                                           3,
		`{"type": "BPE", "vocab": {"a": 0, "u": 3}, "merges": []}`:                                                                             -1,
	} {
		tok, err := parseTokenizerJSON([]byte(`{"model": `+text+`}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := tok.UnknownID(); id != want || ok != (want >= 0) {
			t.Errorf("%s: %d, %v", text, id, ok)
		}
		if ids := tok.Encode("ж", 0); want >= 0 && !slices.Equal(ids, []int32{want}) {
			t.Errorf("%s: %v", text, ids)
		}
	}
}

// Files of early versions don't say that their model is WordPiece. Ids are those of Hugging Face's tokenizers.
func TestWordPieceWithoutType(t *testing.T) {
	tok, err := parseTokenizerJSON([]byte(`{"pre_tokenizer": {"type": "BertPreTokenizer"}, "model": {"unk_token": "u", "continuing_subword_prefix": "##",
		"max_input_chars_per_word": 9, "vocab": {"u": 0, "ab": 1, "b": 2, "##x": 3}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode("ab b abx", 0); !slices.Equal(ids, []int32{1, 2, 1, 3}) {
		t.Error(ids)
	}
}

// A pair that occurs as often as it has to is joined, as by Hugging Face's trainer, and one that occurs once less is not.
func TestMinFrequency(t *testing.T) {
	for least, want := range map[int]bool{1: true, 2: true, 3: false} {
		tok, err := TrainWordPiece(t.Context(), slices.Values([]string{"ab ab"}), TrainOptions{MinFrequency: least})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := tok.ID("ab"); ok != want {
			t.Errorf("at least %d times: joined %v", least, ok)
		}
	}
}

// An unknown character scores 10 less than the least token. Ids are those of Hugging Face's tokenizers.
func TestUnknownPenalty(t *testing.T) {
	for b, want := range map[string][]int32{"9.5": {2}, "10.5": {0, 1}} {
		tok, err := parseTokenizerJSON([]byte(`{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["u", 0], ["b", `+b+`], ["ab", 0]]}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if ids := tok.Encode("ab", 0); !slices.Equal(ids, want) {
			t.Errorf("b scores %s: %v, want %v", b, ids, want)
		}
	}
}

// Of two tokens with one id it is always the same that the id is called by.
func TestTokenOfOneID(t *testing.T) {
	tok, err := parseTokenizerJSON([]byte(`{"model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
		"vocab": {"u": 0, "d": 1, "b": 1, "a": 1, "c": 1}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := tok.Token(1); text != "a" {
		t.Error(text)
	}
}

// A split cuts what the normalizer has left of its pattern: nothing, if that is replaced as a whole. Ids are those of Hugging Face's tokenizers.
func TestIdleSplit(t *testing.T) {
	const model = `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "-": 2, "_": 3, "a-": 4, "a_": 5, "bb": 6}, "merges": ["a -", "a _", "b b"]}`
	for _, c := range []struct {
		text, split, old, new string
		inverted              bool // what is not the pattern is removed
		want                  []int32
	}{
		{"a-b", "-", "-", "_", false, []int32{5, 1}},
		{"a-b", "-", " ", "_", false, []int32{0, 2, 1}},
		{"a-b", "-", "-", "--", false, []int32{0, 2, 2, 1}},
		{"a-b", "a-", "-", "_", false, []int32{5, 1}},
		{"aabb", "ab", "ab", "b", false, []int32{0, 1, 1}},
		{"a-b", "-", "-", "_", true, nil},
		{"a-b", "-", " ", "_", true, []int32{2}},
	} {
		behavior := "Isolated"
		if c.inverted {
			behavior = "Removed"
		}
		tok, err := parseTokenizerJSON(fmt.Appendf(nil, `{"normalizer": {"type": "Replace", "pattern": {"String": %q}, "content": %q},
			"pre_tokenizer": {"type": "Split", "pattern": {"String": %q}, "behavior": %q, "invert": %t}, %s}`, c.old, c.new, c.split, behavior, c.inverted, model), nil)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if got := tok.Encode(c.text, 0); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// WordPiece without one of the keys that it needs is an error that lists them.
func TestWordPieceNeeds(t *testing.T) {
	all := map[string]any{"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": map[string]int{"u": 0}}
	for key := range all {
		model := maps.Clone(all)
		if delete(model, key); key == "type" {
			model["vocab"], key = []any{[]any{"u", 0}}, "vocab" // Unigram's
			model["type"] = "WordPiece"
		}
		data, err := json.Marshal(map[string]any{"model": model})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseTokenizerJSON(data, nil); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: %v", key, err)
		}
	}
}
