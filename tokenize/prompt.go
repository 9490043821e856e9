package tokenize

import "slices"

// PromptTokens is how many tokens of a text are those of a prompt in front of it, as sentence-transformers counts them: as many as the prompt alone has,
// cut to maxLen (0: it is not) and with the special tokens in front, but for a special one at its end. Where the prompt's end and the text's
// beginning make a token together it is a guess, there as here.
func (t *Tokenizer) PromptTokens(prompt string, maxLen int) int {
	if prompt == "" {
		return 0
	}
	ids := t.Encode(prompt, maxLen)
	n := len(ids)
	if n > 0 && t.special(ids[n-1]) {
		n--
	}
	return n
}

// special tells whether an id is of a special token that the files name, for whatever use, or that is put around texts.
func (t *Tokenizer) special(id int32) bool {
	for _, p := range t.template.single {
		if slices.Contains(p.ids, id) {
			return true
		}
	}
	unknown, ok := t.UnknownID()
	return id == t.pad || ok && id == unknown || slices.Contains(t.named, id)
}
