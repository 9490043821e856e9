package tokenize

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// patternJSON is what Replace and Split look for.
type patternJSON struct{ String, Regex *string }

// maxNesting is how deep sequences may be nested; each level is read anew.
const maxNesting = 8

// parseNormalizer reads a normalizer in so many sequences.
func parseNormalizer(u *unicodeData, raw json.RawMessage, nesting int) (normalizer, error) {
	kind, err := componentType(raw)
	if err != nil || kind == "" {
		return nil, in("normalizer", err)
	}
	if nesting > maxNesting {
		return nil, fmt.Errorf("normalizer: more than %d sequences in one another", maxNesting)
	}
	// The fields of all of them.
	var c struct {
		CleanText          *bool `json:"clean_text"`
		HandleChineseChars *bool `json:"handle_chinese_chars"`
		StripAccents       *bool `json:"strip_accents"` // null: as lowercase
		Lowercase          *bool `json:"lowercase"`

		Charsmap    *string           `json:"precompiled_charsmap"`
		Prepend     *string           `json:"prepend"`
		StripLeft   *bool             `json:"strip_left"`
		StripRight  *bool             `json:"strip_right"`
		Pattern     *patternJSON      `json:"pattern"`
		Content     *string           `json:"content"`
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := decodeJSON(raw, &c); err != nil {
		return nil, in("normalizer", err)
	}
	switch kind {
	case "BertNormalizer":
		if c.CleanText == nil || c.HandleChineseChars == nil || c.Lowercase == nil {
			return nil, errors.New("normalizer: BertNormalizer needs clean_text, handle_chinese_chars and lowercase")
		}
		if c.StripAccents == nil {
			c.StripAccents = c.Lowercase
		}
		return newBertNormalizer(u, *c.CleanText, *c.HandleChineseChars, *c.StripAccents, *c.Lowercase), nil
	case "Lowercase":
		return lowercase{u}, nil
	case "StripAccents":
		return stripAccents{u}, nil
	case "NFD":
		return newNormalForm(u, false, false), nil
	case "NFC":
		return newNormalForm(u, false, true), nil
	case "NFKD":
		return newNormalForm(u, true, false), nil
	case "NFKC":
		return newNormalForm(u, true, true), nil
	case "Precompiled":
		if c.Charsmap == nil {
			return nil, errors.New("normalizer: Precompiled needs precompiled_charsmap")
		}
		data, err := base64.StdEncoding.DecodeString(*c.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("normalizer: precompiled_charsmap: %w", err)
		}
		n, err := newPrecompiled(u, data)
		if err != nil {
			return nil, in("normalizer", err)
		}
		return n, nil
	case "Prepend":
		if c.Prepend == nil {
			return nil, errors.New("normalizer: Prepend needs prepend")
		}
		if *c.Prepend == "" { // with which Hugging Face loses what the first character came from, and may panic
			return nil, unsupported("normalizer: Prepend's prepend", "", "texts that aren't empty are")
		}
		return prepend(*c.Prepend), nil
	case "Strip":
		if c.StripLeft == nil || c.StripRight == nil {
			return nil, errors.New("normalizer: Strip needs strip_left and strip_right")
		}
		return strip{u, *c.StripLeft, *c.StripRight}, nil
	case "Replace":
		return parseReplace(u, c.Pattern, c.Content)
	case "Sequence":
		if c.Normalizers == nil {
			return nil, errors.New("normalizer: Sequence needs normalizers")
		}
		var all normalizerSequence
		for _, part := range c.Normalizers {
			n, err := parseNormalizer(u, part, nesting+1)
			if err != nil {
				return nil, err
			}
			if n != nil {
				all = append(all, n)
			}
		}
		return all, nil
	}
	return nil, unsupported("normalizer type", kind,
		"BertNormalizer, Lowercase, StripAccents, NFC, NFD, NFKC, NFKD, Precompiled, Prepend, Replace, Strip and Sequence are")
}

func parseReplace(u *unicodeData, pattern *patternJSON, content *string) (normalizer, error) {
	switch {
	case pattern == nil || content == nil || (pattern.String == nil) == (pattern.Regex == nil):
		return nil, errors.New("normalizer: Replace needs content and pattern, a String or a Regex")
	case pattern.String != nil && *pattern.String != "":
		return replaceText{*pattern.String, *content}, nil
	case pattern.String != nil:
		return nil, unsupported("normalizer: Replace pattern", "", "texts that aren't empty are")
	case *pattern.Regex == regexSpaces:
		return replaceSpaces(*content), nil
	case *pattern.Regex == regexBlanks:
		return replaceBlanks{u, *content}, nil
	}
	return nil, unsupported("normalizer: Replace regular expression", *pattern.Regex, fmt.Sprintf("%q and %q are", regexSpaces, regexBlanks))
}

// What DeBERTa's tokenizers have: those made of SentencePiece's files, as XLM-RoBERTa's are, and those that its class in transformers 5 makes.
const regexSpaces, regexBlanks = " {2,}", `\s{2,}|[\n\r\t]`

// maxGrowth is how many bytes a normalizer may make of one; a sequence of replacements could make any number.
const maxGrowth = 1 << 16

// growth is an upper bound for that.
func growth(n normalizer) float64 {
	switch n := n.(type) {
	case nil, strip, stripAccents:
		return 1
	case lowercase:
		return 1.5 // İ
	case *bertNormalizer:
		return 6 // spaces around, or a decomposition in lower case
	case normalForm:
		return 11 // U+FDFA, compatibly
	case *precompiled:
		return float64(n.longest)
	case replaceText:
		return max(1, float64(len(n.new))/float64(len(n.old)))
	case replaceSpaces:
		return max(1, float64(len(n))/2)
	case replaceBlanks:
		return max(1, float64(len(n.new)))
	case prepend:
		return 1 + float64(len(n))
	case normalizerSequence:
		product := 1.0
		for _, part := range n {
			product *= growth(part)
		}
		return product
	}
	panic(fmt.Sprintf("tokenize: growth of %T", n)) // parseNormalizer makes no other
}

// parsePreTokenizer reads a pre-tokenizer in so many sequences.
func parsePreTokenizer(u *unicodeData, raw json.RawMessage, nesting int) (preTokenizer, error) {
	kind, err := componentType(raw)
	if err != nil || kind == "" {
		return nil, in("pre_tokenizer", err)
	}
	if nesting > maxNesting {
		return nil, fmt.Errorf("pre_tokenizer: more than %d sequences in one another", maxNesting)
	}
	// The fields of all of them.
	var c struct {
		Behavior         *string           `json:"behavior"`
		Pattern          *patternJSON      `json:"pattern"`
		Invert           *bool             `json:"invert"`
		AddPrefixSpace   *bool             `json:"add_prefix_space"`
		UseRegex         *bool             `json:"use_regex"`
		Replacement      *string           `json:"replacement"`
		PrependScheme    *string           `json:"prepend_scheme"`
		Split            *bool             `json:"split"`
		IndividualDigits *bool             `json:"individual_digits"`
		PreTokenizers    []json.RawMessage `json:"pretokenizers"`
	}
	if err := decodeJSON(raw, &c); err != nil {
		return nil, in("pre_tokenizer", err)
	}
	behaviors := []string{behaviorIsolated, behaviorRemoved, behaviorContiguous, behaviorMergedWithPrevious, behaviorMergedWithNext}
	if c.Behavior != nil && !slices.Contains(behaviors, *c.Behavior) {
		return nil, unsupported("pre_tokenizer: "+kind+" behavior", *c.Behavior, strings.Join(behaviors, ", ")+" are")
	}
	switch kind {
	case "BertPreTokenizer":
		return newRunSplitter(u, bertKind), nil
	case "WhitespaceSplit":
		return newRunSplitter(u, whitespaceSplitKind), nil
	case "Whitespace":
		return newRunSplitter(u, whitespaceKind), nil
	case "Punctuation":
		p := delimiterSplitter{pattern: character{u, classPunctuation}, behavior: behaviorIsolated}
		if c.Behavior != nil {
			p.behavior = *c.Behavior
		}
		return p, nil
	case "Digits":
		p := delimiterSplitter{pattern: character{u, classNumeric}, behavior: behaviorContiguous}
		if c.IndividualDigits != nil && *c.IndividualDigits {
			p.behavior = behaviorIsolated
		}
		return p, nil
	case "ByteLevel":
		if c.AddPrefixSpace == nil {
			return nil, errors.New("pre_tokenizer: ByteLevel needs add_prefix_space")
		}
		p := byteLevel{prefix: *c.AddPrefixSpace}
		if c.UseRegex == nil || *c.UseRegex {
			p.words, _ = newRegexSplitter(u, regexGPT2)
		}
		return p, nil
	case "Metaspace":
		if c.Replacement == nil || utf8.RuneCountInString(*c.Replacement) != 1 {
			return nil, errors.New("pre_tokenizer: Metaspace needs replacement, one character")
		}
		scheme := "always"
		if c.PrependScheme != nil {
			scheme = *c.PrependScheme
		}
		if known := []string{"always", "first", "never"}; !slices.Contains(known, scheme) {
			return nil, unsupported("pre_tokenizer: Metaspace prepend_scheme", scheme, strings.Join(known, ", ")+" are")
		}
		if c.AddPrefixSpace != nil && !*c.AddPrefixSpace && scheme != "never" {
			return nil, fmt.Errorf("pre_tokenizer: Metaspace's add_prefix_space, false, and prepend_scheme, %q, contradict each other", scheme)
		}
		return metaspace{replacement: *c.Replacement, prepend: scheme == "always", prependFirst: scheme == "first",
			splits: c.Split == nil || *c.Split}, nil
	case "Split":
		if c.Behavior == nil || c.Invert == nil {
			return nil, errors.New("pre_tokenizer: Split needs behavior and invert")
		}
		return parseSplit(u, c.Pattern, *c.Behavior, *c.Invert)
	case "Sequence":
		if c.PreTokenizers == nil {
			return nil, errors.New("pre_tokenizer: Sequence needs pretokenizers")
		}
		var all preTokenizerSequence
		for _, part := range c.PreTokenizers {
			p, err := parsePreTokenizer(u, part, nesting+1)
			if err != nil {
				return nil, err
			}
			if p != nil {
				all = append(all, p)
			}
		}
		return all, nil
	}
	return nil, unsupported("pre_tokenizer type", kind,
		"BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit and Sequence are")
}

func parseSplit(u *unicodeData, pattern *patternJSON, behavior string, invert bool) (preTokenizer, error) {
	switch {
	case pattern == nil || (pattern.String == nil) == (pattern.Regex == nil):
		return nil, errors.New("pre_tokenizer: Split needs pattern, a String or a Regex")
	case pattern.String != nil && *pattern.String != "":
		return delimiterSplitter{literal(*pattern.String), behavior, invert}, nil
	case pattern.String != nil:
		return nil, unsupported("pre_tokenizer: Split pattern", "", "texts that aren't empty are")
	}
	p, ok := newRegexSplitter(u, *pattern.Regex)
	if !ok {
		return nil, unsupported("pre_tokenizer: Split regular expression", *pattern.Regex, "those of GPT-2, Llama 3, Qwen 2 and 3, Qwen 3.5, Mistral's Tekken and GPT-4o's o200k are")
	}
	// Nothing lies between the matches of these.
	if behavior != behaviorIsolated && (behavior != behaviorRemoved || !invert) {
		return nil, unsupported("pre_tokenizer: Split with a regular expression and behavior", behavior, behaviorIsolated+" is")
	}
	return p, nil
}

// isIdle says whether a pre-tokenizer cuts at a character that the normalizer replaces by others: Gemma's files do that.
func isIdle(n normalizer, p preTokenizer) bool {
	if sequence, ok := n.(normalizerSequence); ok && len(sequence) > 0 {
		n = sequence[len(sequence)-1]
	}
	replaced, ok := n.(replaceText)
	split, is := p.(delimiterSplitter)
	return ok && is && !split.invert && split.pattern == literal(replaced.old) && utf8.RuneCountInString(replaced.old) == 1 &&
		!strings.Contains(replaced.new, replaced.old)
}

// endsInBytes says whether a pre-tokenizer hands bytes to the model: ByteLevel does. It must be the last one.
func endsInBytes(p preTokenizer) (bool, error) {
	switch p := p.(type) {
	case byteLevel:
		return true, nil
	case preTokenizerSequence:
		for i, part := range p {
			if is, err := endsInBytes(part); err != nil || is && i == len(p)-1 {
				return is, err
			} else if is {
				return false, unsupported("pre_tokenizer: Sequence with something after", "ByteLevel", "ByteLevel at its end is")
			}
		}
	}
	return false, nil
}

// checkPrependFirst refuses Metaspace's prepend_scheme "first" where it depends on what each character came from: Hugging
// Face prepends to every piece that comes from the input's first character, as what was prepended to that character does.
func checkPrependFirst(n normalizer, p preTokenizer, normalizedTokens bool) error {
	prepended := false
	for i, part := range flatten(p) {
		m, ok := part.(metaspace)
		if !ok {
			continue
		}
		if m.prependFirst && (prepended || n != nil && (i > 0 || normalizedTokens || !keepsBeginning(n))) {
			return unsupported("pre_tokenizer: Metaspace prepend_scheme", "first", "always and never are; first is if no Metaspace "+
				"before it prepends, without a normalizer, or if nothing else cuts the text and the normalizer removes nothing at its beginning")
		}
		prepended = prepended || m.prepend || m.prependFirst
	}
	return nil
}

// flatten returns what sequences within sequences are made of, in order.
func flatten(p preTokenizer) (all []preTokenizer) {
	sequence, ok := p.(preTokenizerSequence)
	if !ok {
		return []preTokenizer{p}
	}
	for _, part := range sequence {
		all = append(all, flatten(part)...)
	}
	return all
}

// keepsBeginning says whether what a normalized text begins with comes from the character that the text began with, or
// is a space.
func keepsBeginning(n normalizer) bool {
	switch n := n.(type) {
	case normalizerSequence:
		return !slices.ContainsFunc(n, func(part normalizer) bool { return !keepsBeginning(part) })
	case normalForm, lowercase, *precompiled, prepend:
		return true
	case strip:
		return !n.left
	case replaceText:
		return strings.HasPrefix(n.new, metaSpace) || utf8.RuneCountInString(n.old) == 1 && n.new != ""
	case replaceSpaces:
		return strings.HasPrefix(string(n), metaSpace)
	case replaceBlanks:
		return strings.HasPrefix(n.new, metaSpace)
	}
	return false
}
