package stages

import (
	"errors"
	"fmt"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/tokenize"
)

// CheckText is dataset.Source.CheckText for a dataset's rows: it finds texts that can be read and give nothing to train on, those of tokens that the model
// has no embeddings for, and queries that leave no
// room for their documents where these alone are cut. nil if no text is one.
func (x Text) CheckText(source int) func(role dataset.Role, text string, ids []int32) string {
	if x.Pairs != nil {
		pairs := x.Pairs[source]
		if !pairs.NeedsRoom() {
			return nil
		}
		return func(role dataset.Role, query string, _ []int32) string {
			if role != dataset.Query {
				return ""
			}
			return x.tooLong(pairs.HasRoom(query))
		}
	}
	bare, limited := x.bare(source), x.limited()
	if bare == [3]bool{} && !limited {
		return nil
	}
	return func(role dataset.Role, text string, ids []int32) string {
		if !bare[role] && !limited {
			return ""
		}
		if ids == nil {
			prompt, limit := x.reading(source, role)
			ids = x.Tokenizer.Encode(prompt+text, limit)
		}
		if reason := x.unknown(ids); reason != "" || !bare[role] {
			return reason
		}
		return x.vectorless(role, x.Heads.Reading(role == dataset.Query).Expand(ids[:len(ids):len(ids)], 0))
	}
}

// bare tells of each role whether a text of it may have no token with a vector: those that every text has, special ones and what fills a query up, have none.
func (x Text) bare(source int) (roles [3]bool) {
	if x.Pairs != nil || x.Heads.None() {
		return roles
	}
	for role := range roles {
		role := dataset.Role(role)
		_, limit := x.reading(source, role)
		always := x.Heads.Reading(role == dataset.Query).Expand(x.Tokenizer.Encode("", limit), 0)
		roles[role] = len(x.Heads.Shown(role == dataset.Query, always)) == 0
	}
	return roles
}

// limited tells whether there are tokens that the model has no embeddings for.
func (x Text) limited() bool {
	return x.Vocab > 0 && x.Tokenizer != nil && x.Tokenizer.VocabSize() > x.Vocab
}

// unknown is what is wrong with a text that has such a token; "" of one that has none.
func (x Text) unknown(ids []int32) string {
	if !x.limited() {
		return ""
	}
	return embedder.NoEmbedding(x.Tokenizer, ids, x.Vocab)
}

// vectorless is what is wrong with a text without a vector; "" of one that has some.
func (x Text) vectorless(role dataset.Role, ids []int32) string {
	switch {
	case len(x.Heads.Shown(role == dataset.Query, ids)) > 0:
		return ""
	case x.Heads.Alone:
		return "no token of the text has a vector: all of them are in model.skiplist (in Go transformer.Reading.Skip)"
	}
	return "the text has no token but the first, which has no vector"
}

// tooLong is what is wrong with a pair of texts, with the way out; "" of nil.
func (x Text) tooLong(err error) string {
	switch {
	case err == nil:
		return ""
	case x.TooLong != "" && errors.Is(err, tokenize.ErrTooShort):
		return fmt.Sprintf("%v; %s", err, x.TooLong)
	}
	return err.Error()
}

// refused is the error of a row that can't be used, for a column of it.
func (c *Chunk) refused(e *dataset.Example, column dataset.Column, reason string) error {
	row := e.Row - c.Offset
	return &dataset.RowError{Row: row, Location: c.Data.Locate(row), Column: column.Source, Reason: reason}
}
