package embedder

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/hfmodel"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Models that give a vector for each token and nothing else, ColBERT's: see transformer.TokenHeads.

// MaxSim and MeanMaxSim are what folders call the similarities of vectors of tokens.
const (
	MaxSim     = "maxsim"
	MeanMaxSim = "meanmaxsim"
)

// errVectorsAlone is of whatever wants embeddings.
var errVectorsAlone = errors.New("the model gives vectors of tokens, and no embeddings: contraflow embed --parts writes them, and eval and mine compare them by MaxSim (in Go EmbedParts, Relevance, NewTask and Mine)")

// vectorsOnly tells that the model gives vectors of tokens and nothing else.
func vectorsOnly(m *transformer.Model) bool { return m.Config.Tokens.Alone }

// VectorsAlone tells whether the model gives vectors of tokens and no embeddings.
func (e *Embedder) VectorsAlone() bool { return vectorsOnly(e.model) }

// Completed are the heads of tokens of a folder's model, by its config, with what their tokenizer says: the special tokens of M3, or how ColBERT reads texts.
func Completed(c transformer.Config, f *hfmodel.Folder, tok *tokenize.Tokenizer) (_ transformer.TokenHeads, err error) {
	h := c.Tokens
	switch {
	case h.None():
	case !h.Alone:
		h.Special, err = SpecialIDs(f, tok)
	default:
		h.Mean = f.Similarity == MeanMaxSim
		h.Query, h.Document, err = Readings(f, f.MultiVector, c, tok)
	}
	return h, err
}

// Readings are how texts of each role are read with a folder's tokenizer, by what the folder says or somebody else in its place; m may be nil, which
// says nothing. A word of the skiplist that is no token is left out, as sentence-transformers leaves it out: SkipNote names it.
func Readings(f *hfmodel.Folder, m *hfmodel.MultiVector, c transformer.Config, tok *tokenize.Tokenizer) (query, document transformer.Reading, err error) {
	if m == nil {
		return query, document, nil
	}
	var skip []int32
	for _, word := range m.Skiplist {
		if id, ok := tok.ID(word); ok {
			skip = append(skip, id)
		}
	}
	if slices.Contains(m.SkipTasks, "query") {
		query.Skip = skip
	}
	if slices.Contains(m.SkipTasks, "document") {
		document.Skip = skip
	}
	e := m.Expansion
	if e == nil {
		return query, document, nil
	}
	if left, err := f.PadsLeft(); err != nil {
		return query, document, err
	} else if left {
		return query, document, fmt.Errorf("%s: query_expansion: the tokenizer pads on the left, so sentence-transformers has what fills a query up before the query's own tokens, which is not supported. "+
			"Train the model with \"padding_side\": \"right\" in tokenizer_config.json, which has it behind them, or with model.query_expansion: none", f.TokenizerDir)
	}
	tokens := []string{e.Token}
	if e.Token == "" {
		if tokens, err = f.FillTokens(); err != nil {
			return query, document, err
		}
	}
	for _, t := range tokens {
		if id, ok := tok.ID(t); ok {
			query.Fill, query.Length, query.Unseen = id, e.Length, !e.Attend
			if err := c.Sees(query); err != nil {
				return query, document, fmt.Errorf("%s: query_expansion has attend: false (PyLate's attend_to_expansion_tokens, Stanford's attend_to_mask_tokens), and %w. "+
					"Train the model with model.query_expansion: {length: N, attend: true}, or with model.query_expansion: none", f.Dir, err)
			}
			return query, document, nil
		}
	}
	return query, document, fmt.Errorf("%s: query_expansion: the tokenizer has no token %q: model.query_expansion: {length: N, token: ...} names one", f.Dir, tokens)
}

// SkipNote names words of a skiplist that are no token of the vocabulary, and so leave nothing out; "": there are none.
func SkipNote(m *hfmodel.MultiVector, tok *tokenize.Tokenizer) string {
	if m == nil {
		return ""
	}
	var unknown []string
	for _, word := range m.Skiplist {
		if _, ok := tok.ID(word); !ok {
			unknown = append(unknown, word)
		}
	}
	if unknown == nil {
		return ""
	}
	return fmt.Sprintf("the skiplist has %q, which the vocabulary does not have as tokens: they leave nothing out", unknown)
}

// ExpansionNote says that a length asked for of queries is not kept, because all are filled up or cut to another one; "": it is.
func ExpansionNote(m *hfmodel.MultiVector, asked int) string {
	if m == nil || m.Expansion == nil || m.Expansion.Strategy != "fixed" || asked == 0 || asked == m.Expansion.Length {
		return ""
	}
	return fmt.Sprintf("queries: a maximum length of %d tokens is asked for, but query_expansion, whose length is fixed, makes all of them %d", asked, m.Expansion.Length)
}

// LengthsOf are [MaxLengthOf] of queries and of documents, by what is asked for, or else by what a folder says of each role. Of queries that are
// all filled up to one length, that is it. Of queries that are weights of tokens it is what their own tokenizer says.
func LengthsOf(f *hfmodel.Folder, m *hfmodel.MultiVector, c transformer.Config, query, document int) (int, int, error) {
	if m != nil {
		document = cmp.Or(document, m.DocumentLength)
		query = cmp.Or(query, m.QueryLength)
		switch e := m.Expansion; {
		case e == nil:
		case query > 0 && query < e.Length:
			return 0, 0, fmt.Errorf("queries: a maximum length of %d tokens, and query_expansion fills them up to %d", query, e.Length)
		case e.Strategy == "fixed":
			query = e.Length
		}
	}
	if c.Queries.There { // which no positions bound
		if f.Queries != nil {
			query = cmp.Or(query, f.Queries.MaxLength)
		} else if query == 0 {
			query, _ = MaxLengthOf(f, c, 0)
		}
		document, err := MaxLengthOf(f, c, document)
		return query, document, err
	}
	query, err := MaxLengthOf(f, c, query)
	if err != nil {
		return 0, 0, fmt.Errorf("queries: %w", err)
	}
	if m != nil && m.Expansion != nil && m.Expansion.Length > query && query > 0 {
		return 0, 0, fmt.Errorf("queries: query_expansion has %d tokens, and at most %d can be read", m.Expansion.Length, query)
	}
	document, err = MaxLengthOf(f, c, document)
	return query, document, err
}

// wholePrefixes has a tokenizer make one token of each prefix of older folders that it has as one.
func wholePrefixes(f *hfmodel.Folder, tok *tokenize.Tokenizer) (*tokenize.Tokenizer, error) {
	if f.MultiVector == nil {
		return tok, nil
	}
	for _, role := range []string{"query", "document"} {
		tokens := []string{f.MultiVector.Prefixes[role]} // or else its first word
		if words := strings.Fields(tokens[0]); len(words) > 0 {
			tokens = append(tokens, words[0])
		}
		for _, token := range tokens {
			if _, ok := tok.ID(token); !ok {
				continue
			}
			var err error
			if tok, err = tok.Whole(token); err != nil {
				return nil, fmt.Errorf("%s: %w", f.TokenizerDir, err)
			}
			break
		}
	}
	return tok, nil
}

// onlyVectors are the weights of parts of a model that gives vectors of tokens alone.
var onlyVectors = map[string]float64{loss.VectorsPart: 1}
