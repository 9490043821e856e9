// Package tokenize turns text into token ids, exactly as Hugging Face tokenizers does, and trains new vocabularies.
//
// A tokenizer is loaded from a model folder's tokenizer.json (or from vocab.txt) and is a pipeline of five stages, each
// behind a small interface or type:
//
//		text -> added tokens -> normalizer -> pre-tokenizer -> model -> template
//
//	  - Added tokens ("[MASK]") are found in the raw text, or, if they ask for it, in the normalized text (added.go).
//	  - The normalizer rewrites what is between them: cleaning, lower case, accents (normalizers.go), Unicode's normal forms
//	    (normalform.go), SentencePiece's normalization map (precompiled.go, clusters.go).
//	  - The pre-tokenizer cuts it into words: at white space and punctuation, at spaces that become "▁" (pretokenizers.go),
//	    or by GPT-2's regular expression and its successors, over bytes (bytelevel.go, regexes.go).
//	  - The model cuts each word into tokens of the vocabulary: the longest ones (wordpiece.go), the likeliest ones
//	    (unigram.go), or what merges lead to (bpe.go, for bytes and for characters).
//	  - The template puts the special tokens around the ids ([CLS] ... [SEP]; template.go).
//
// That covers BERT, DistilBERT, MPNet, NomicBERT; RoBERTa; ModernBERT; XLM-RoBERTa (BGE-M3, multilingual E5), T5; Qwen 2, 3 and
// 3.5; Llama 2 and 3; Mistral with and without Tekken; Gemma. Which parts a tokenizer.json may name is listed in the json
// files; any other is an error that wraps ErrUnsupported, never a guess.
//
// # Exactness
//
// Ids must be those the model was trained with, so Hugging Face's `tokenizers` 0.23.3 is the definition, down to the
// Unicode version of each of its tables (see unicode.go), to its way of reading scores and to its handling of overlapping
// added tokens. The golden tests hold thousands of hostile lines and random pipelines. Two choices are ours, where it has
// none: invalid UTF-8, which it can't be given, counts as U+FFFD per byte; and of two added tokens that normalize to one text the
// lower id wins, where it picks by chance.
//
// # Speed
//
// Text moves through the stages in chunks that stay in the first-level cache (cut.go says which pipelines allow that).
// WordPiece looks words up in one trie; the other models remember what they made of short words (wordcache.go). So a text
// costs 10 to 25 ns per byte and no allocation per token. A truncated text costs what is kept of it.
package tokenize

import (
	"crypto/sha256"
	"encoding/hex"
)

// Tokenizer turns text into ids. It doesn't change after loading and may be used from any number of goroutines.
type Tokenizer struct {
	rawTokens        *addedMatcher
	normalizer       normalizer // nil: none
	normalizedTokens *addedMatcher
	preTokenizer     preTokenizer // nil: none
	model            model
	template         template

	singleSpecials, pairSpecials int
	chunk                        int // chunkSize, or 0 if texts must not be cut

	ids       map[string]int32
	texts     map[int32]string
	vocabSize int
	modelSize int     // vocabSize without added tokens
	pad       int32   // -1: none
	maxLength int     // 0: not given
	bos       string  // the token's text; "" if there is none, or if it pads
	eos       string  // the token's text; "" if the files name none
	named     []int32 // special tokens that the configuration names, in no order
	class     string  // of transformers, without "Fast"; "": none is given
	typed     bool    // models are given the types of its ids
	hash      string
	files     map[string][]byte // as loaded, or as Save writes them
}

// VocabSize returns the number of rows that an embedding table needs: the largest id + 1, added tokens included.
func (t *Tokenizer) VocabSize() int { return t.vocabSize }

// ModelVocabSize is VocabSize without the added tokens: the largest id of the model's own vocabulary + 1.
func (t *Tokenizer) ModelVocabSize() int { return t.modelSize }

// Beyond returns the tokens with the ids from size on, in their order: those that an embedding table of size rows has none for.
func (t *Tokenizer) Beyond(size int) (tokens []string) {
	for id := int32(size); int(id) < t.vocabSize; id++ {
		if token, ok := t.texts[id]; ok {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// ID returns the id of a token of the vocabulary, as it is written there ("##ing").
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// Token returns the token that has the id, or "" if there is none.
func (t *Tokenizer) Token(id int32) string { return t.texts[id] }

// UnknownID returns the id of the token that stands for what the vocabulary has no tokens for; false if there is none, as for most models of bytes.
func (t *Tokenizer) UnknownID() (id int32, ok bool) {
	id = -1
	switch m := t.model.(type) {
	case *wordPiece:
		id = m.unknown
	case *unigram:
		id = m.unknown
	case *bpe:
		id = m.unknown
	}
	return id, id >= 0
}

// PadID returns the padding token's id: that of tokenizer_config.json's pad_token, else that of tokenizer.json's padding
// section, else that of [PAD] or <pad>.
func (t *Tokenizer) PadID() (id int32, ok bool) { return t.pad, t.pad >= 0 }

// Specials returns how many special tokens are put around a text (2 for BERT), or around a pair (3).
func (t *Tokenizer) Specials(pair bool) int {
	if pair {
		return t.pairSpecials
	}
	return t.singleSpecials
}

// ModelMaxLength returns tokenizer_config.json's model_max_length in tokens, special tokens included. It is advice:
// Encode doesn't apply it. Files without it, or with the 1e30 that says "no limit", give false.
func (t *Tokenizer) ModelMaxLength() (n int, ok bool) { return t.maxLength, t.maxLength > 0 }

// Hash identifies the tokenizer's behaviour: a SHA-256, in hexadecimal, of the contents of the files that decide about
// ids. Equal hashes give equal ids; a file that was only formatted anew has another hash.
func (t *Tokenizer) Hash() string { return t.hash }

func hashFiles(contents ...[]byte) string {
	h := sha256.New()
	for _, c := range contents {
		sum := sha256.Sum256(c) // so that the boundaries between files count
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
