package tokenize

import (
	"fmt"
	"maps"
	"slices"
)

// Whole is a tokenizer that finds a token of its vocabulary in texts as they are written and makes it one id, as Hugging Face does of an added
// token that is special and not normalized: a marker such as ColBERT's "[unused0]" or "[Q] ", which would be cut into pieces otherwise. It
// saves the files of the one that it is made of. A token that is one id already changes nothing.
func (t *Tokenizer) Whole(token string) (*Tokenizer, error) {
	id, ok := t.ids[token]
	if !ok {
		return nil, fmt.Errorf("the tokenizer has no token %q", token)
	}
	if slices.Equal(t.bare(nil, token), []int32{id}) {
		return t, nil
	}
	whole := *t
	of := func(m *addedMatcher, but int32) (all []addedToken) {
		for _, id := range slices.Sorted(maps.Keys(m.tokens)) {
			if id != but {
				all = append(all, m.tokens[id])
			}
		}
		return all
	}
	u := t.rawTokens.u
	var err error
	if whole.rawTokens, err = newAddedMatcher(u, append(of(t.rawTokens, id), addedToken{Content: token, Special: true, id: id, normal: token})); err != nil {
		return nil, err
	}
	if whole.normalizedTokens, err = newAddedMatcher(u, of(t.normalizedTokens, id)); err != nil {
		return nil, err
	}
	whole.hash = hashFiles([]byte(t.hash), []byte("whole"), []byte(token))
	return &whole, nil
}
