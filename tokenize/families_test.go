package tokenize

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// familiesFolder has what make_families.py writes: the committed files, or fresh ones of another seed.
var familiesFolder = cmp.Or(os.Getenv("CONTRAFLOW_TOKENIZE_GOLDEN"), golden)

// familyRow is a tokenizer.json with what Hugging Face makes of texts.
type familyRow struct {
	Name  string
	File  json.RawMessage
	Cases [][2]json.RawMessage // a text and its ids
	Pairs []pairRow
}

// texts yields the cases.
func (r familyRow) texts(t testing.TB) iter.Seq2[string, []int32] {
	return func(yield func(string, []int32) bool) {
		for _, c := range r.Cases {
			var text string
			var ids []int32
			if err := errors.Join(json.Unmarshal(c[0], &text), json.Unmarshal(c[1], &ids)); err != nil {
				t.Fatal(err)
			}
			if !yield(text, ids) {
				return
			}
		}
	}
}

// familyRows yields the rows of a file; normalization maps, which are large, are given once.
func familyRows(t testing.TB, name string) iter.Seq[familyRow] {
	return func(yield func(familyRow) bool) {
		f, err := os.Open(filepath.Join(familiesFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		unzipped, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var charsmap []byte
		d := json.NewDecoder(bufio.NewReader(unzipped))
		for d.More() {
			var row familyRow
			if err := d.Decode(&row); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			const key = `"precompiled_charsmap":"`
			if _, after, ok := bytes.Cut(row.File, []byte(key)); ok && !bytes.HasPrefix(after, []byte("as before")) {
				charsmap, _, _ = bytes.Cut(after, []byte(`"`))
			}
			row.File = bytes.ReplaceAll(row.File, []byte(key+"as before"), append([]byte(key), charsmap...))
			if !yield(row) {
				return
			}
		}
	}
}

func checkRow(t *testing.T, tok *Tokenizer, row familyRow) {
	t.Helper()
	for text, ids := range row.texts(t) {
		checkIDs(t, tok, text, tok.Encode(text, 0), ids)
	}
	for _, pair := range row.Pairs {
		pair.check(t, tok)
	}
}

// TestFamilies loads the tokenizers of the model families and compares with Hugging Face.
func TestFamilies(t *testing.T) {
	count := 0
	for row := range familyRows(t, "families.jsonl.gz") {
		count++
		t.Run(row.Name, func(t *testing.T) {
			tok, err := parseTokenizerJSON(row.File, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(row.Cases) < 70 || len(row.Pairs) < 8 && len(row.Cases) < 250 {
				t.Errorf("only %d texts and %d pairs", len(row.Cases), len(row.Pairs))
			}
			checkRow(t, tok, row)
			checkNoAllocations(t, row.Name, tok, strings.Repeat("The Übermaß of [MASK] 中文 말 re-use; a\u0301 İ "+strings.Repeat("long", 99), 20))
			if tok.chunk == 0 && row.Name != "roberta-prefix" && row.Name != "unigram-bytes" && row.Name != "clusters" && row.Name != "deberta-punct" && !strings.HasPrefix(row.Name, "Digits") {
				t.Error("long texts don't go through in chunks")
			}
		})
	}
	if count < 28 {
		t.Errorf("only %d families", count)
	}
}

// T5's tokenizer ends texts, and does not begin them; its sentinels are tokens in texts.
func TestFamiliesT5(t *testing.T) {
	for row := range familyRows(t, "t5.jsonl.gz") {
		tok, err := parseTokenizerJSON(row.File, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(row.Cases) < 70 || len(row.Pairs) < 8 {
			t.Errorf("only %d texts and %d pairs", len(row.Cases), len(row.Pairs))
		}
		checkRow(t, tok, row)
	}
}

// TestRandomPipelines compares small random models in random pipelines.
func TestRandomPipelines(t *testing.T) {
	count, refused := 0, 0
	for row := range familyRows(t, "random.jsonl.gz") {
		count++
		tok, err := parseTokenizerJSON(row.File, nil)
		if errors.Is(err, ErrUnsupported) && (strings.Contains(err.Error(), `prepend_scheme "first"`) || strings.Contains(err.Error(), "after \"ByteLevel\"")) {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, row.File)
		}
		checkRow(t, tok, row)
		if t.Failed() {
			t.Fatalf("%s", row.File)
		}
	}
	if count < 120 || refused > count/6 {
		t.Errorf("of %d random pipelines %d were refused", count, refused)
	}
}

// TestScores reads numbers as Hugging Face does.
func TestScores(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(familiesFolder, "scores.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all [][2]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	nearest := 0
	for _, row := range all {
		var number string
		var want, plain float64
		if err := errors.Join(json.Unmarshal(row[0], &number), json.Unmarshal(row[1], &want)); err != nil {
			t.Fatal(err)
		}
		got, err := jsonFloat(number)
		if err != nil || math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s is %v (%v), want %v", number, got, err, want)
		}
		if json.Unmarshal([]byte(number), &plain) == nil && plain == want {
			nearest++
		}
	}
	if len(all) < 200 || nearest == len(all) {
		t.Errorf("of %d numbers all are the nearest ones: this tests nothing", len(all))
	}
}

// Exponents beyond any integer: tokenizers 0.23.3 reads these so.
func TestScoresFarOut(t *testing.T) {
	for number, want := range map[string]float64{"1e-99999999999999999999": 0, "-1e-99999999999": math.Copysign(0, -1), "0e99999999999": 0, "0.0e+99999999999999999999": 0, "1e-2147483648": 0} {
		if got, err := jsonFloat(number); err != nil || math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s is %v (%v), want %v", number, got, err, want)
		}
	}
	for _, number := range []string{"1e99999999999999999999", "-1e2147483648", "1e309"} {
		if got, err := jsonFloat(number); err == nil || !strings.Contains(err.Error(), number+" is out of range") {
			t.Errorf("%s is %v (%v)", number, got, err)
		}
	}
}

// TestSaveFamily: the file comes back byte for byte.
func TestSaveFamily(t *testing.T) {
	for row := range familyRows(t, "families.jsonl.gz") {
		from, to := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(from, fileTokenizer), row.File, 0o666); err != nil {
			t.Fatal(err)
		}
		tok, err := Load(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := tok.Save(to); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(to, fileTokenizer))
		if err != nil || !bytes.Equal(got, row.File) {
			t.Errorf("%s: saved %d bytes of %d (%v)", row.Name, len(got), len(row.File), err)
		}
		if again, err := Load(to); err != nil || again.Hash() != tok.Hash() {
			t.Errorf("%s: loaded again: %v", row.Name, err)
		}
	}
}

// joinExamples are a byte-level model's merges, and the symbols of a text that they join much of.
func joinExamples(t testing.TB) (*mergeTable, []int32) {
	for row := range familyRows(t, "families.jsonl.gz") {
		if row.Name != "llama3" {
			continue
		}
		tok, err := parseTokenizerJSON(row.File, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := tok.model.(*bpe)
		return &m.merges, m.symbols(nil, []byte(strings.Repeat("thereturnerroronfunctionsandstrings", 20)))
	}
	t.Fatal("no llama3 in families.jsonl.gz")
	return nil, nil
}

// TestJoin: the heap joins what looking at all pairs does.
func TestJoin(t *testing.T) {
	merges, symbols := joinExamples(t)
	rng := rand.New(rand.NewPCG(3, 3))
	var short, long merging
	joined := 0
	for range 3000 {
		from := rng.IntN(len(symbols))
		word := slices.Clone(symbols[from:min(len(symbols), from+1+rng.IntN(120))])
		for range rng.IntN(4) {
			word[rng.IntN(len(word))] = symbols[rng.IntN(len(symbols))]
		}
		short.ids, long.ids = append(short.ids[:0], word...), append(long.ids[:0], word...)
		want, got := merges.joinShort(&short), merges.joinLong(&long)
		if !slices.Equal(got, want) {
			t.Fatalf("%v become %v, with a heap %v", word, want, got)
		}
		joined += len(word) - len(want)
	}
	if joined < 1000 {
		t.Errorf("only %d symbols were joined", joined)
	}
}

// Added tokens that the vocabulary lacks get the ids from its size on, whatever the file says; ids of Hugging Face 0.23.3.
func TestAddedIDs(t *testing.T) {
	for _, c := range []struct{ vocab, added, text, want string }{
		{`"a": 0, "b": 1, "x": 9`, "Q x R", "aQbxR", "[0 3 1 9 4]"},
		{`"a": 0, "b": 3, "x": 9`, "Q R S", "aQbxRS", "[0 3 3 9 4 5]"}, // of one id are two tokens then
		{``, "Q R", "QR", "[0 1]"},
		{`"a": 0, "b": 1`, " R", "aR", "[0 2]"}, // the first one is the empty text, which is none
		{`"a": 0, "b": 1`, "Q R Q", "aQR", "[0 2 3]"},
	} {
		var added []addedToken
		for _, text := range strings.Split(c.added, " ") {
			added = append(added, addedToken{Content: text})
		}
		tokens, err := json.Marshal(added)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := parseTokenizerJSON([]byte(`{"added_tokens": `+string(tokens)+`, "model": {"type": "BPE", "vocab": {`+c.vocab+`}, "merges": []}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(tok.Encode(c.text, 0)); got != c.want {
			t.Errorf("%q added to {%s}: %q is %s, want %s", c.added, c.vocab, c.text, got, c.want)
		}
	}
}

// Of a merge that is listed twice the later rank counts, as Hugging Face 0.23.3 has it (which gives these ids).
func TestMergeTwice(t *testing.T) {
	tok, err := parseTokenizerJSON([]byte(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": [["a", "b"], ["b", "c"], ["a", "b"]]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abc", 0); !slices.Equal(got, []int32{0, 4}) {
		t.Errorf("ids %v, want [0 4]", got)
	}
}

// Metaspace's "first" means the text that the input begins with, not what follows an added token: ids of Hugging Face 0.23.3.
func TestFirst(t *testing.T) {
	const raw = `{"id": 4, "content": "<r>", "normalized": false}`
	for tokens, want := range map[string]map[string][]int32{
		raw: {"a": {1}, "<r>a": {4, 2}, "a<r>a": {1, 4, 2}},
		raw + `, {"id": 5, "content": "<n>", "normalized": true}`: {
			"a": {1}, "<r>a": {4, 2}, "<n>a": {5, 2}, "a<r>a<n>a": {1, 4, 2, 5, 2}, "<r><n>a": {4, 5, 2},
		},
	} {
		tok, err := parseTokenizerJSON([]byte(`{"added_tokens": [`+tokens+`],
			"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
			"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["▁a", -1], ["a", -2], ["▁", -3]]}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		for text, ids := range want {
			if got := tok.Encode(text, 0); !slices.Equal(got, ids) {
				t.Errorf("%s has the ids %v, want %v", text, got, ids)
			}
		}
	}
	tok, err := parseTokenizerJSON([]byte(`{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
			{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]},
		"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["▁a", -1], ["a", -2], ["▁", -3]]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, ids := range map[string][]int32{"a a": {1, 2}, " a a": {2, 2}} { // that begins with a space, which is cut off
		if got := tok.Encode(text, 0); !slices.Equal(got, ids) {
			t.Errorf("%q has the ids %v, want %v", text, got, ids)
		}
	}
}

// Merges of a byte's token reach into what begins as a character; tokenizers 0.23.3 gives these ids.
func TestMergesOfBytes(t *testing.T) {
	for merge, want := range map[string]string{`["a", "<0xC3>"]`: "[3 6 5 2 3 4 5 2]", `["<0xA9>", "b"]`: "[3 1 4 7 3 4 7]"} {
		tok, err := parseTokenizerJSON([]byte(`{"model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "merges": [`+merge+`],
			"vocab": {"<unk>": 0, "a": 1, "b": 2, "▁": 3, "<0xC3>": 4, "<0xA9>": 5, "a<0xC3>": 6, "<0xA9>b": 7}}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(tok.Encode("▁aéb▁éb", 0)); got != want {
			t.Errorf("%s: %s, want %s", merge, got, want)
		}
	}
}

// What is beyond the Hangul syllables does not compose with their last letters, though the arithmetic would have it.
func TestBeyondHangul(t *testing.T) {
	for _, text := range []string{"\U0001F5FC\u11A8", "\uD7A4\u11A8", "\uABE4\u11A8"} {
		for _, form := range []string{"nfc", "nfkc"} {
			if got := NormalForm(form, text); got != text {
				t.Errorf("%s of %+q is %+q", form, text, got)
			}
		}
	}
	if got := NormalForm("nfc", "\uD788\u11C2 \xff\u11A8"); got != "\uD7A3 \uFFFD\u11A8" {
		t.Errorf("%+q", got)
	}
}

// A mark between a joiner and the next picture keeps them apart, or before the joiner if it takes room, and Hangul's vowels join syllables without a last letter: ends of first clusters,
// as Hugging Face's normalization maps have them.
func TestClusterEnds(t *testing.T) {
	for text, want := range map[string]string{
		"\u00A9\u200D\u0301\u00A9\u0301": "\u00A9\u200D\u0301", "\u00A9\u200D\u00A9\u0301": "\u00A9\u200D\u00A9\u0301",
		"\u00A9\u0300\u200D\u00A9\u0301": "\u00A9\u0300\u200D\u00A9\u0301", "\u00A9\u0903\u200D\u00A9\u0301": "\u00A9\u0903\u200D", // a mark that takes room
		"\uAC00\u1161\u0301": "\uAC00\u1161\u0301", "\uAC1C\u1161\u0301": "\uAC1C\u1161\u0301",
		"\uAC01\u1161\u0301": "\uAC01", "\uAC1B\u1161\u0301": "\uAC1B", "\uAC01\u11A8\u0301": "\uAC01\u11A8\u0301",
	} {
		if got := text[:ucd().clusterEnd([]byte(text))]; got != want {
			t.Errorf("%+q: %+q, want %+q", text, got, want)
		}
	}
}

// The padding token is that of tokenizer_config.json, or else of tokenizer.json's padding, or else of its name.
func TestPadding(t *testing.T) {
	const model = `"model": {"type": "BPE", "vocab": {"<pad>": 3, "a": 1, "b": 2}, "merges": []}`
	for _, c := range []struct {
		padding, config string
		want            int32
	}{{"null", `{}`, 3}, {`{"pad_id": 2, "direction": "Right"}`, `{}`, 2}, {`{"pad_id": 2}`, `{"pad_token": "a"}`, 1}, {`{"pad_id": 2}`, `{"pad_token": "nowhere"}`, 3}} {
		tok, err := fromFiles(map[string][]byte{fileTokenizer: []byte(`{"padding": ` + c.padding + `, ` + model + `}`), fileConfig: []byte(c.config)})
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := tok.PadID(); !ok || id != c.want {
			t.Errorf("%s, %s: %d, want %d", c.padding, c.config, id, c.want)
		}
	}
	for config, want := range map[string]int{`{"max_len": 77}`: 77, `{"max_len": 77, "model_max_length": 33}`: 33, `{"model_max_length": 1e12}`: 0} { // the older name; no limit
		tok, err := fromFiles(map[string][]byte{fileTokenizer: []byte(`{` + model + `}`), fileConfig: []byte(config)})
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := tok.ModelMaxLength(); n != want || ok != (want > 0) {
			t.Errorf("%s: %d, want %d", config, n, want)
		}
	}
	if _, err := parseTokenizerJSON([]byte(`{"padding": {"pad_id": -1}, `+model+`}`), nil); err == nil || !strings.Contains(err.Error(), "padding: pad_id: id -1 is not in") {
		t.Error(err)
	}
}

// Of tokens beyond BERT's five the hash of a vocab.txt tells: token ids that a version without them has prepared are not taken for these.
func TestHashOfVocabTxt(t *testing.T) {
	vocab := []byte("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n</s>\n")
	for config, more := range map[string]bool{`{}`: false, `{"mask_token": "[M]"}`: false, `{"eos_token": "</s>"}`: true, `{"z_token": "[z]"}`: true} {
		tok, err := fromFiles(map[string][]byte{fileVocab: vocab, fileConfig: []byte(config)})
		if err != nil {
			t.Fatal(err)
		}
		if files := hashFiles(vocab, []byte(config), nil, nil); (tok.Hash() != files) != more {
			t.Errorf("%s: %s, the files' is %s", config, tok.Hash(), files)
		}
	}
}

// Special and added tokens that the files beside a tokenizer.json or vocab.txt name are found in texts, with new ids behind the vocabulary in
// the order of transformers 5.23, which gives these ids.
func TestConfiguredTokens(t *testing.T) {
	const file = `{"added_tokens": [{"id": 4, "content": "[M]", "lstrip": true}], "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 1, "q": 2, "Q": 3}, "merges": []}}`
	const alone, plain = `"lstrip": false, "rstrip": false, "normalized": false, "single_word": true`, `"lstrip": false, "rstrip": false, "normalized": false, "single_word": false`
	const vocab, inVocab = "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n", "a[x]</s><s>[w][z][M][y][MASK][m]"
	const older = `{"additional_special_tokens": ["[Q]"], "eos_token": "</s>"}`
	for _, c := range []struct{ vocab, config, specials, added, want string }{
		{"", `{}`, `{}`, `{}`, "[0 4 2 3 3 4 3]"},
		{"", `{"mask_token": "[M]", "extra_special_tokens": ["[Q]"]}`, `{}`, `{}`, "[0 4 2 5 3 4 3]"},
		{"", `{"mask_token": {` + alone + `, "__type": "AddedToken", "content": "[M]"}}`, `{}`, `{}`, "[0 4 2 3 3 4 3]"},
		{"", `{"added_tokens_decoder": {"4": {"content": "[M]", ` + alone + `}, "10": {"content": "[I]", ` + plain + `}, "9": {"content": "[Q]", ` + plain + `}}}`, `{}`, `{}`, "[0 2 5 6 3 3]"},
		{"", `{"added_tokens_decoder": {"4": {"content": "[M]", "lstrip": true, "special": true}}}`, `{}`, `{}`, "[0 4 2 3 3 4 3]"}, // special: no other ids
		{"", `{"sep_token": "[I]", "bos_token": "[Q]", "z_token": "</s>", "use_x_token": true, "extra_special_tokens": {"y": "Q"}}`, `{}`, `{}`, "[0 4 2 5 1 6 3 4 3]"},
		{"", `{"extra_special_tokens": [], "additional_special_tokens": ["[I]"]}`, `{"extra_special_tokens": ["[Q]"]}`, `{}`, "[0 4 2 6 5 3 4 3]"},
		{"", `{"z_token": {` + plain + `, "__type": "AddedToken", "content": "[I]"}, "extra_special_tokens": {"y": "[Q]"}}`, `{}`, `{}`, "[0 4 2 6 5 3 4 3]"},
		{"", `{"additional_special_tokens": ["[I]"], "extra_special_tokens": {}}`, older, `{}`, "[0 4 2 3 1 5 3 4 3]"},
		{"", `{}`, older, `{}`, "[0 4 2 5 1 3 4 3]"},
		{"", `{"extra_special_tokens": []}`, older, `{}`, "[0 4 2 3 1 3 4 3]"},
		{"", `{"added_tokens_decoder": {}}`, older, `{}`, "[0 4 2 3 3 4 3]"},
		{"", `{}`, `{}`, `{"[Q]": 6, "[M]": 4, "[I]": 5}`, "[0 4 2 6 5 3 4 3]"},
		{vocab, `{"extra_special_tokens": ["[x]"], "eos_token": "</s>", "bos_token": "<s>"}`, `{}`, `{}`, "[1 5 8 7 6 0 0 0 0 0 0 0 0 0 0 0 0 4 0 0 0 2]"},
		{vocab, `{"extra_special_tokens": {"k": "[x]", "j": "[w]"}, "z_token": "[z]"}`, `{}`, `{}`, "[1 5 7 0 0 0 0 0 0 0 8 6 0 0 0 0 0 0 4 0 0 0 2]"},
		{vocab, `{"mask_token": "[M]", "added_tokens_decoder": {"4": {"content": "[MASK]", ` + plain + `}, "10": {"content": "[y]", ` + plain + `}, "9": {"content": "[x]", ` + plain + `}}}`, `{}`, `{}`,
			"[1 5 6 0 0 0 0 0 0 0 0 0 0 0 0 0 8 7 4 0 0 0 2]"},
		{"", `{}`, `{}`, `{"[M]": 4}`, "[0 4 2 3 3 4 3]"},
		{"", `{"z_token": "[I]", "eos_token": "[Q]"}`, `{}`, `{}`, "[0 4 2 5 6 3 4 3]"},
		{vocab, `{"added_tokens_decoder": {"9": {"content": "[M]", "lstrip": false, "rstrip": false, "normalized": true, "single_word": false}}, "eos_token": "[M]"}`, `{}`, `{}`,
			"[1 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 6 0 0 0 4 6 2]"},
		{vocab, `{"mask_token": "[m]", "cls_token": "<s>", "pad_token": "[y]", "sep_token": "[z]", "eos_token": "[w]", "bos_token": "[x]"}`, `{}`, `{}`,
			"[10 5 6 0 0 0 0 10 7 8 0 0 0 9 0 0 0 11 8]"},
		{vocab, `{"mask_token": "[M]"}`, `{}`, `{"[M]": 6}`, "[1 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0 0 0 2]"},
		{vocab, `{"extra_special_tokens": ["[M]"]}`, `{}`, `{"[M]": 6}`, "[1 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 6 0 0 0 4 0 0 0 2]"},
		{vocab, `{}`, `{}`, `{"[M]": 6}`, "[1 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 6 0 0 0 4 6 2]"}, // which is looked for in lower case
	} {
		files, text := map[string][]byte{fileTokenizer: []byte(file), fileConfig: []byte(c.config), fileSpecials: []byte(c.specials), fileAdded: []byte(c.added)}, "a [M]q[Q]</s>[I] Q[M]Q"
		if c.vocab != "" {
			files[fileVocab], text = []byte(c.vocab), inVocab
			delete(files, fileTokenizer)
		}
		tok, err := fromFiles(files)
		if err != nil {
			t.Fatalf("%s: %v", c.config, err)
		}
		if got := fmt.Sprint(tok.Encode(text, 0)); got != c.want {
			t.Errorf("%s, %s, %s: %s, want %s", c.config, c.specials, c.added, got, c.want)
		}
		if got := fmt.Sprint(tok.Beyond(tok.VocabSize()-2), tok.Beyond(tok.VocabSize())); got != fmt.Sprintf("[%s %s] []", tok.Token(int32(tok.VocabSize()-2)), tok.Token(int32(tok.VocabSize()-1))) {
			t.Errorf("%s: tokens beyond: %s", c.config, got)
		}
		// Static embeddings have what tokenizer.json says, and a hash tells other ids.
		alone, err := build(files, true)
		if err != nil {
			t.Fatal(err)
		}
		const itself = "[0 4 2 3 3 4 3]"
		if got := fmt.Sprint(alone.Encode(text, 0)); c.vocab == "" && (got != itself || alone.Hash() != hashFiles([]byte(file)) || (alone.Hash() == tok.Hash()) != (c.want == itself)) {
			t.Errorf("%s: %s alone, hashes %s and %s", c.config, got, tok.Hash(), alone.Hash())
		}
	}
}

// Of special tokens that are one text the last one counts, in BERT's order; BertTokenizer of transformers 5.23 gives these ids.
func TestSpecialTokenTwice(t *testing.T) {
	const alone = `{"content": "<s>", "single_word": true, "lstrip": false, "rstrip": false, "normalized": false}`
	for config, want := range map[string]string{
		`{"pad_token": ` + alone + `, "mask_token": "<s>"}`: "[2 4 7 5 3]",
		`{"pad_token": "<s>", "mask_token": ` + alone + `}`: "[2 4 1 1 1 5 3]",
	} {
		tok, err := fromFiles(map[string][]byte{fileVocab: []byte("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n##b\n"), fileConfig: []byte(config)})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(tok.Encode("a<s>b", 0)); got != want {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Nothing is put in front of what another normalizer has left nothing of, as in tokenizers 0.23.3.
func TestPrependToNothing(t *testing.T) {
	tok, err := parseTokenizerJSON([]byte(`{"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Prepend", "prepend": "_"}]},
		"model": {"type": "BPE", "vocab": {"_": 0, "a": 1}, "merges": []}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "[]", "  ": "[]", " a ": "[0 1]"} {
		if got := fmt.Sprint(tok.Encode(text, 0)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// An empty token of a vocabulary stands for no character, nor for U+FFFD; tokenizers 0.23.3 gives these ids.
func TestEmptyToken(t *testing.T) {
	tok, err := parseTokenizerJSON([]byte(`{"model": {"type": "BPE", "unk_token": "u", "vocab": {"": 0, "a": 1, "u": 2}, "merges": []}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(tok.Encode("a\uFFFDa", 0)); got != "[1 2 1]" {
		t.Error(got)
	}
}
