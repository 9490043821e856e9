package tokenize

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// A template is its segments' ids, one after the other; the one that may be cut loses what is too much, at its end.
func TestPairTemplate(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) []int32 {
		ids := tok.Encode(text, 0)
		return ids[1 : len(ids)-1]
	}
	template := Template{{Text: "the cat"}, {Text: "{instruction}: {query}"}, {Text: "{document} file", Cut: true}, {Text: "{bos}"}, {Text: "open"}}
	p, err := tok.NewPairs(PairOptions{Template: template, Instruction: "see", QueryPrompt: "a ", MaxLength: 20})
	if err != nil {
		t.Fatal(err)
	}
	want := append(append(append(plain("the cat"), plain("see: a {document}")...), plain("small {query} bird file")...), plain("open")...)
	ids, kinds, cut, err := p.Append(nil, nil, "{document}", "small {query} bird") // what texts hold is not replaced
	if err != nil || len(kinds) != len(ids) {
		t.Fatal(err)
	}
	if len(want) > 20 {
		body := len(want) - 20
		end := len(want) - len(plain("open"))
		want = append(want[:end-body:end-body], want[end:]...)
		if !cut {
			t.Error("a pair that was cut is not said to be")
		}
	}
	if fmt.Sprint(ids) != fmt.Sprint(want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
	// A query that leaves no room for the document is cut as well; what is fixed never is.
	ids, _, cut, err = p.Append(nil, nil, strings.Repeat("cat ", 30), "x")
	end := plain("open")
	if err != nil || !cut || len(ids) != 20 || fmt.Sprint(ids[20-len(end):]) != fmt.Sprint(end) || ids[19-len(end)] != plain("cat")[0] {
		t.Errorf("a long query: %v, %v, %v", ids, cut, err)
	}
	if _, err := tok.NewPairs(PairOptions{Template: template, Instruction: strings.Repeat("see ", 30), MaxLength: len(plain("the cat")) + len(end)}); !errors.Is(err, ErrTooShort) {
		t.Errorf("no room: %v", err)
	}
	whole, err := tok.NewPairs(PairOptions{MaxLength: 8, Truncation: OnlySecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := whole.Append(nil, nil, strings.Repeat("cat ", 9), "x"); !errors.Is(err, ErrTooShort) || !strings.Contains(err.Error(), "has 9 ids, of 5 for both; truncation longest_first") {
		t.Errorf("a query that may not be cut: %v", err)
	}
	for _, bad := range []Template{{}, {{Text: "{query}"}}, {{Text: "{document}"}}, {{Text: "{query}", Cut: true}, {Text: "{document}", Cut: true}}} {
		if bad.Check() == nil {
			t.Errorf("%v passed", bad)
		}
	}
	for name, known := range Templates {
		if err := known.Template.Check(); err != nil || known.TrueToken == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A pair loses the ids of padding at its end, and their types with them, but not its first id, nor what is before it.
func TestPairPadding(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	cat := tok.Encode("cat", 0)[1]
	p, err := tok.NewPairs(PairOptions{Template: Template{{Text: "{query}"}, {Text: "{document}", Cut: true}}, MaxLength: 4, Pad: &cat})
	if err != nil {
		t.Fatal(err)
	}
	the := tok.Encode("the", 0)[1]
	for _, c := range []struct {
		query, document string
		want            []int32
		cut             bool
	}{{"the", "cat the cat cat cat cat", []int32{the, cat, the}, true}, {"the", "cat cat", []int32{the}, false}, {"cat", "cat", []int32{cat}, false}} {
		ids, kinds, cut, err := p.Append([]int32{cat, cat}, []int32{7, 7}, c.query, c.document)
		if want := append([]int32{cat, cat}, c.want...); err != nil || !slices.Equal(ids, want) || len(kinds) != len(want) || cut != c.cut {
			t.Errorf("%+v: %v, %v, %v, %v", c, ids, kinds, cut, err)
		}
	}
}

// Where no segment is to be cut the query is, and a document that leaves no room is an error.
func TestPairUncut(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := tok.NewPairs(PairOptions{Template: Template{{Text: "the"}, {Text: "{document}"}, {Text: "{query}"}}, MaxLength: 4})
	if err != nil {
		t.Fatal(err)
	}
	ids, _, cut, err := p.Append([]int32{7}, nil, "cat bird cat", "file open")
	if want := append([]int32{7}, tok.bare(nil, "the file open cat")...); err != nil || !cut || !slices.Equal(ids, want) {
		t.Errorf("%v, %t, %v, want %v", ids, cut, err, want)
	}
	ids, _, cut, err = p.Append([]int32{7}, nil, "cat", "file open small") // of which the whole query is cut
	if want := append([]int32{7}, tok.bare(nil, "the file open small")...); err != nil || !cut || !slices.Equal(ids, want) {
		t.Errorf("%v, %t, %v, want %v", ids, cut, err, want)
	}
	ids, kinds, _, err := p.Append([]int32{7}, nil, "cat", "file open small bird")
	if !errors.Is(err, ErrTooShort) || !strings.Contains(err.Error(), "a pair of 6 tokens does not fit 4") || len(ids) != 1 || len(kinds) > 0 {
		t.Errorf("%v, %v, %v", ids, kinds, err)
	}
}

// A truncation that there is not is told, and so is a length below none.
func TestPairOptions(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []Truncation{-1, OnlySecond + 1} {
		ids, _, _, err := tok.AppendPair(nil, nil, "cat bird cat", "file", 5, how)
		if want := fmt.Sprintf("truncation %d: want LongestFirst", how); err == nil || !strings.Contains(err.Error(), want) || ids != nil {
			t.Errorf("%v, %v, want %s", ids, err, want)
		}
		if _, err := tok.NewPairs(PairOptions{Truncation: how}); err == nil {
			t.Errorf("pairs of truncation %d", how)
		}
	}
	if _, err := tok.NewPairs(PairOptions{MaxLength: -1}); err == nil {
		t.Error("pairs of at most -1 tokens")
	}
	ids, _, cut, err := tok.AppendPair(nil, nil, "cat bird cat", "file", 3, OnlySecond) // special tokens alone, as Hugging Face has it
	if err != nil || !cut || len(ids) != 3 {
		t.Errorf("%v, %t, %v", ids, cut, err)
	}
}

// What looks like a query or document in the instruction is text as it is written, and is not cut for the query.
func TestPairInstruction(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) []int32 { return tok.bare(nil, text) }
	const instruction = "see {query} {document} {bos}"
	template := Template{{Text: "{query}"}, {Text: "{instruction}: {document}", Cut: true}, {Text: "{instruction}"}}
	fixed := plain(instruction)
	want := slices.Concat(plain("cat bird"), plain(instruction+": file"), fixed)
	for most, want := range map[int][]int32{0: want, 1 + len(fixed): slices.Concat(plain("cat"), fixed)} {
		p, err := tok.NewPairs(PairOptions{Template: template, Instruction: instruction, MaxLength: most})
		if err != nil {
			t.Fatal(err)
		}
		if ids, _, _, err := p.Append(nil, nil, "cat bird", "file"); err != nil || !slices.Equal(ids, want) {
			t.Errorf("at most %d: %v, %v, want %v", most, ids, err, want)
		}
	}
}

// A document that stands before the query is cut first, and then the query at its own end. Many pairs are what each is alone.
func TestPairsCutInFront(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) []int32 {
		ids := tok.Encode(text, 0)
		return ids[1 : len(ids)-1]
	}
	template := Template{{Text: "the cat"}, {Text: "{document}", Cut: true}, {Text: "file"}, {Text: "{query}"}, {Text: "open"}}
	const most = 12
	p, err := tok.NewPairs(PairOptions{Template: template, MaxLength: most})
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields("small bird cat file open see")
	var queries, documents []string
	cuts := 0
	for i := range 200 { // more than a block
		queries, documents = append(queries, strings.Join(words[:1+i%3], " ")+strings.Repeat(" cat", i%13)), append(documents, words[i%6]+strings.Repeat(" bird see", i%5))
	}
	ids, kinds, cut, err := p.EncodeAll(t.Context(), queries, documents)
	if err != nil || p.MaxLength() != most {
		t.Fatal(err)
	}
	for i := range queries {
		fixed, document, query := [3][]int32{plain("the cat"), plain("file"), plain("open")}, plain(documents[i]), plain(queries[i])
		room := most - len(fixed[0]) - len(fixed[1]) - len(fixed[2])
		if len(document)+len(query) > room {
			cuts++
		}
		query = query[:min(len(query), room)]
		document = document[:min(len(document), room-len(query))]
		want := slices.Concat(fixed[0], document, fixed[1], query, fixed[2])
		if !slices.Equal(ids[i], want) || !slices.Equal(kinds[i], make([]int32, len(want))) {
			t.Fatalf("%q and %q: %v and %v, want %v", queries[i], documents[i], ids[i], kinds[i], want)
		}
	}
	if cut != cuts || cuts == 0 || cuts == len(queries) {
		t.Errorf("%d were cut, want %d", cut, cuts)
	}
	if _, _, _, err := p.EncodeAll(t.Context(), queries, documents[1:]); err == nil || !strings.Contains(err.Error(), "200 queries and 199 documents are no pairs") {
		t.Error(err)
	}
	whole, err := tok.NewPairs(PairOptions{MaxLength: 8, Truncation: OnlySecond})
	if err != nil {
		t.Fatal(err)
	}
	queries[70], queries[190] = strings.Repeat("cat ", 9), strings.Repeat("cat ", 9)
	if _, _, _, err := whole.EncodeAll(t.Context(), append(make([]string, 70), queries[70:]...), documents); !errors.Is(err, ErrTooShort) || !strings.HasPrefix(err.Error(), "pair 70: ") {
		t.Errorf("%v, want the first pair that does not fit", err)
	}
	if err := whole.HasRoom(queries[70]); !errors.Is(err, ErrTooShort) || whole.HasRoom("small cat") != nil {
		t.Errorf("%v", err)
	}
}

// The token that texts begin with is an id, and no text: Llama 2's tokenizer puts a space in front of texts, that one as well, and a tokenizer.json may
// not have it among the tokens to look for in texts.
func TestPairBegin(t *testing.T) {
	const added = `{"id": 1, "content": "<s>", "special": true, "normalized": true, "single_word": false, "lstrip": false, "rstrip": false}`
	for _, tokens := range []string{added, ""} {
		tok, err := fromFiles(map[string][]byte{
			fileTokenizer: []byte(`{"version": "1.0", "added_tokens": [` + tokens + `],
"normalizer": {"type": "Prepend", "prepend": "_"}, "model": {"type": "BPE", "vocab": {"<unk>": 0, "<s>": 1, "_": 2, "a": 3, "b": 4}, "merges": [], "unk_token": "<unk>"}}`),
			fileConfig: []byte(`{"bos_token": "<s>", "pad_token": "<unk>"}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := tok.NewPairs(PairOptions{Template: Template{{Text: "{bos}"}, {Text: "{query}"}, {Text: "{document}", Cut: true}}, MaxLength: 4})
		if err != nil {
			t.Fatal(err)
		}
		ids, _, cut, err := p.Append(nil, nil, "a", "b")
		if err != nil || !cut || fmt.Sprint(ids) != "[1 2 3 2]" {
			t.Errorf("%v, %t, %v", ids, cut, err)
		}
		if id, ok := tok.First("a"); id != 2 || !ok {
			t.Errorf("a text begins with %d", id)
		}
		if id, ok := tok.First(""); ok || len(tok.Encode("", 0)) > 0 { // nothing is put in front of nothing
			t.Errorf("no text begins with %d", id)
		}
	}
}

// Models that are given no types of tokens get none of a pair, whatever the tokenizer's template has: as transformers 5.23 goes by model_input_names, which
// each class has of its own.
func TestPairTypes(t *testing.T) {
	tok, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	const given, none = "[7 0 0 0 1 1]", "[7 0 0 0 0 0]"
	for config, want := range map[string]string{
		`"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]`: given,
		`"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]`:                   none,
		`"tokenizer_class": "MPNetTokenizer", "model_input_names": ["input_ids", "token_type_ids"]`:                  given,
		`"do_lower_case": true`:                        given,
		`"tokenizer_class": "BertTokenizerFast"`:       given,
		`"tokenizer_class": "ElectraTokenizer"`:        given,
		`"tokenizer_class": "ElectraTokenizerFast"`:    given,
		`"tokenizer_class": "DebertaV2Tokenizer"`:      given,
		`"tokenizer_class": "DebertaTokenizerFast"`:    given,
		`"tokenizer_class": "DistilBertTokenizer"`:     none,
		`"tokenizer_class": "MPNetTokenizer"`:          none,
		`"tokenizer_class": "ErnieTokenizer"`:          none, // which transformers has no more
		`"tokenizer_class": "PreTrainedTokenizerFast"`: none,
	} {
		files := maps.Clone(tok.files)
		files[fileConfig] = []byte("{" + config + "}")
		of, err := fromFiles(files)
		if err != nil {
			t.Fatal(err)
		}
		p, err := of.NewPairs(PairOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, kinds, _, err := p.Append(nil, []int32{7}, "cat", "bird"); err != nil || fmt.Sprint(kinds) != want {
			t.Errorf("%s: %v, %v, want %s", config, kinds, err, want)
		}
	}
}
