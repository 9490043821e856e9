package tokenize

import "testing"

// A prompt's tokens are counted with the special tokens in front and without one behind, of tokenizers that put special tokens around texts, in front of them,
// behind them and nowhere, and where the prompt itself ends in one.
func TestPromptTokens(t *testing.T) {
	bert := load(t, "uncased")
	file := func(template string) *Tokenizer {
		tok, err := parseTokenizerJSON([]byte(`{"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": `+template+`, "model": {"type": "WordPiece", "unk_token": "u",
			"continuing_subword_prefix": "##", "max_input_chars_per_word": 99, "vocab": {"river": 0, "a": 1, "u": 2, "<s>": 3, "</s>": 4}}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	template := func(single string) string {
		return `{"type": "TemplateProcessing", "single": [` + single + `], "pair": [` + single + `, {"Sequence": {"id": "B", "type_id": 1}}],
			"special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [4], "tokens": ["</s>"]}}}`
	}
	const text, bos, eos = `{"Sequence": {"id": "A", "type_id": 0}}`, `{"SpecialToken": {"id": "<s>", "type_id": 0}}`, `{"SpecialToken": {"id": "</s>", "type_id": 0}}`
	before, behind, none := file(template(bos+", "+text)), file(template(text+", "+eos)), file("null")
	for i, c := range []struct {
		tok    *Tokenizer
		prompt string
		maxLen int
		want   int
	}{
		{bert, "", 0, 0},
		{bert, "the a ", 0, 3},
		{bert, "the a ", 4, 3},
		{bert, "the a ", 3, 2},
		{bert, " ", 0, 1},
		{bert.Bare(), "the a ", 0, 2},
		{bert.Bare(), "", 0, 0},
		{bert.Bare(), " ", 0, 0},
		{before, "a river ", 0, 3},
		{behind, "a river ", 0, 2},
		{none, "a river ", 0, 2},
		{none, "a river ", 1, 1},
		{none, "a strange ", 0, 1},
		{behind, "a strange ", 0, 2},
	} {
		if got := c.tok.PromptTokens(c.prompt, c.maxLen); got != c.want {
			t.Errorf("%d: %q cut to %d has %d tokens, want %d", i, c.prompt, c.maxLen, got, c.want)
		}
	}

	// Special tokens are also those that stand nowhere around texts.
	tok, err := fromFiles(map[string][]byte{
		fileTokenizer: []byte(`{"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 99,
			"vocab": {"a": 0, "u": 1, "<m>": 2, "<q>": 3, "<i>": 4, "<other>": 5}}}`),
		fileConfig: []byte(`{"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<m>", "image_token": "<i>", "additional_special_tokens": ["<q>"]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	for prompt, want := range map[string]int{"a <m>": 1, "a <q>": 1, "<i>": 0, "a <other>": 2, "<q> a": 2, "a": 1} {
		if got := tok.PromptTokens(prompt, 0); got != want {
			t.Errorf("%q has %d tokens, want %d", prompt, got, want)
		}
	}
}
