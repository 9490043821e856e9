package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The golden files hold what Hugging Face says; make_golden.py beside them makes them.
const golden = "../testdata/golden/tokenize"

// rows yields a golden file's JSON lines.
func rows[T any](t testing.TB, name string) iter.Seq[T] {
	data, err := os.ReadFile(filepath.Join(golden, name))
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(T) bool) {
		count := 0
		for line := range bytes.Lines(data) {
			var row T
			if err := json.Unmarshal(line, &row); err != nil {
				t.Fatalf("%s, line %d: %v", name, count+1, err)
			}
			count++
			if !yield(row) {
				return
			}
		}
		if count == 0 {
			t.Fatalf("%s is empty", name)
		}
	}
}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join(golden, name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// checkIDs reports a difference where it begins.
func checkIDs(t *testing.T, tok *Tokenizer, text string, got, want []int32) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	show := func(ids []int32) (tokens []string) {
		for _, id := range ids[i:min(len(ids), i+5)] {
			tokens = append(tokens, tok.Token(id))
		}
		return tokens
	}
	t.Errorf("%+q: from id %d of %d on, got %q, want %q", text, i, len(want), show(got), show(want))
}

func TestLines(t *testing.T) {
	uncased, cased := load(t, "uncased"), load(t, "cased")
	count := 0
	for row := range rows[struct {
		Text           string
		Uncased, Cased []int32
	}](t, "lines.jsonl") {
		checkIDs(t, uncased, row.Text, uncased.Encode(row.Text, 0), row.Uncased)
		checkIDs(t, cased, row.Text, cased.Encode(row.Text, 0), row.Cased)
		count++
	}
	if count < 3000 {
		t.Errorf("only %d lines", count)
	}
}

// TestVariants sees that every part behaves in every company: normalizers, pre-tokenizers, added tokens with all flags,
// post-processors, truncation.
func TestVariants(t *testing.T) {
	var base map[string]json.RawMessage
	data, err := os.ReadFile(filepath.Join(golden, "uncased", fileTokenizer))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &base); err != nil {
		t.Fatal(err)
	}
	var model map[string]json.RawMessage
	if err := json.Unmarshal(base["model"], &model); err != nil {
		t.Fatal(err)
	}
	for row := range rows[map[string]json.RawMessage](t, "variants.jsonl") {
		config := map[string]json.RawMessage{}
		for _, key := range []string{"normalizer", "pre_tokenizer", "post_processor", "added_tokens"} {
			config[key] = row[key]
		}
		changed := map[string]json.RawMessage{"vocab": model["vocab"], "type": model["type"]}
		if err := json.Unmarshal(row["model"], &changed); err != nil {
			t.Fatal(err)
		}
		config["model"], _ = json.Marshal(changed)
		file, _ := json.Marshal(config)
		tok, err := parseTokenizerJSON(file, nil)
		if err != nil {
			t.Fatalf("%s: %v", row["normalizer"], err)
		}
		var maxLength int
		var cases [][2]json.RawMessage
		if err := errors.Join(json.Unmarshal(row["max_length"], &maxLength), json.Unmarshal(row["cases"], &cases)); err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			var text string
			var want []int32
			if err := errors.Join(json.Unmarshal(c[0], &text), json.Unmarshal(c[1], &want)); err != nil {
				t.Fatal(err)
			}
			checkIDs(t, tok, text, tok.Encode(text, maxLength), want)
		}
		if t.Failed() {
			t.Fatalf("normalizer %s\npre_tokenizer %s\npost_processor %s\nadded_tokens %s\nmodel %s", row["normalizer"],
				row["pre_tokenizer"], row["post_processor"], row["added_tokens"], row["model"])
		}
	}
}

func TestNormalizers(t *testing.T) {
	u := ucd()
	normalizers := map[string]normalizer{
		"NFD": newNormalForm(u, false, false), "NFC": newNormalForm(u, false, true),
		"NFKD": newNormalForm(u, true, false), "NFKC": newNormalForm(u, true, true),
		"Lowercase": lowercase{u}, "StripAccents": stripAccents{u},
		"Bert": newBertNormalizer(u, true, true, true, true), "BertCased": newBertNormalizer(u, true, true, false, false),
		"BertAccents": newBertNormalizer(u, false, true, true, false),
	}
	for row := range rows[map[string]string](t, "normalizers.jsonl") {
		if len(row) != len(normalizers)+1 {
			t.Fatalf("%d normalizers in the golden file, %d here", len(row)-1, len(normalizers))
		}
		for name, n := range normalizers {
			s := &scratch{text: []byte(row["text"])}
			n.normalize(s)
			if got, want := string(s.text), row[name]; got != want {
				t.Errorf("%s of %+q:\n got %+q\nwant %+q", name, row["text"], got, want)
			}
		}
	}
}

// pairRow is a pair of texts, truncated, as Hugging Face does it.
type pairRow struct {
	A, B, How  string
	MaxLength  int `json:"max_length"`
	IDs, Types []int32
	Error      bool
}

func (row pairRow) check(t *testing.T, tok *Tokenizer) {
	t.Helper()
	how := map[string]Truncation{"longest_first": LongestFirst, "only_first": OnlyFirst, "only_second": OnlySecond}[row.How]
	ids, types, truncated, err := tok.AppendPair(nil, nil, row.A, row.B, row.MaxLength, how)
	if row.Error {
		if !errors.Is(err, ErrTooShort) {
			t.Errorf("%+q, %+q, %s %d: error %v, want ErrTooShort", row.A, row.B, row.How, row.MaxLength, err)
		}
		return
	}
	if err != nil {
		t.Errorf("%+q, %+q, %s %d: %v", row.A, row.B, row.How, row.MaxLength, err)
		return
	}
	checkIDs(t, tok, row.A+" | "+row.B, ids, row.IDs)
	if !slices.Equal(types, row.Types) {
		t.Errorf("%+q, %+q: types %v, want %v", row.A, row.B, types, row.Types)
	}
	whole, _, _, _ := tok.AppendPair(nil, nil, row.A, row.B, 0, LongestFirst)
	if truncated != (len(whole) > len(ids)) {
		t.Errorf("%+q, %+q: truncated is %v: %d of %d ids", row.A, row.B, truncated, len(ids), len(whole))
	}
}

func TestPairs(t *testing.T) {
	tok := load(t, "uncased")
	failed := 0
	for row := range rows[pairRow](t, "pairs.jsonl") {
		row.check(t, tok)
		if row.Error {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no row of the golden file is too long for its way of truncation")
	}
	if ids, types, _, err := tok.AppendPair([]int32{7}, nil, "a", "b", 2, LongestFirst); !errors.Is(err, ErrTooShort) || !strings.Contains(err.Error(), "2 is less than the 3 special tokens") || len(ids) != 1 || len(types) > 0 {
		t.Errorf("a pair cut to 2: %v, %v, %v", ids, types, err)
	}
	for how, texts := range map[Truncation][2]string{OnlyFirst: {"a a a", "a a"}, OnlySecond: {"a a", "a a a"}} { // one id is enough, none is not
		if ids, _, cut, err := tok.AppendPair(nil, nil, texts[0], texts[1], 6, how); err != nil || len(ids) != 6 || !cut {
			t.Errorf("%v cut to an id: %v, %t, %v", how, ids, cut, err)
		}
		if ids, _, _, err := tok.AppendPair(nil, nil, texts[0], texts[1], 5, how); !errors.Is(err, ErrTooShort) {
			t.Errorf("%v cut to nothing: %v, %v", how, ids, err)
		}
	}
}

// TestVocabTxt loads a folder without tokenizer.json: odd line ends, spaces at line ends, a token twice, a [CLS] that
// the vocabulary lacks, added tokens in tokenizer_config.json.
func TestVocabTxt(t *testing.T) {
	tok := load(t, "vocabtxt")
	for row := range rows[struct {
		Text string
		IDs  []int32
	}](t, "vocabtxt/lines.jsonl") {
		checkIDs(t, tok, row.Text, tok.Encode(row.Text, 0), row.IDs)
	}
	if n, ok := tok.ModelMaxLength(); ok {
		t.Errorf("model_max_length 1e30 was taken for %d", n)
	}
	if id, ok := tok.PadID(); !ok || id != 0 {
		t.Errorf("padding token: %d, %v", id, ok)
	}
}

// TestTrain compares vocabularies with Hugging Face's, on texts where no tie of frequencies matters.
func TestTrain(t *testing.T) {
	for row := range rows[struct {
		Words         [][2]any
		MinFrequency  int `json:"min_frequency"`
		AlphabetLimit int `json:"alphabet_limit"`
		Vocabularies  []struct {
			VocabSize int `json:"vocab_size"`
			Tokens    []string
		}
	}](t, "train.json") {
		texts := func(yield func(string) bool) {
			for _, w := range row.Words {
				if !yield(strings.Repeat(w[0].(string)+" ", int(w[1].(float64)))) {
					return
				}
			}
		}
		for _, want := range row.Vocabularies {
			tok, err := TrainWordPiece(t.Context(), texts, TrainOptions{VocabSize: want.VocabSize, MinFrequency: row.MinFrequency, AlphabetLimit: row.AlphabetLimit})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for id := range tok.VocabSize() {
				got = append(got, tok.Token(int32(id)))
			}
			slices.Sort(got)
			slices.Sort(want.Tokens)
			if !slices.Equal(got, want.Tokens) {
				t.Errorf("size %d: %d tokens, want %d\n got %q\nwant %q", want.VocabSize, len(got), len(want.Tokens), got, want.Tokens)
			}
		}
	}
}
