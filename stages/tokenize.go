package stages

import (
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/tokenize"
)

// Text says how the texts of each role become tokens.
type Text struct {
	Tokenizer      *tokenize.Tokenizer
	QueryLength    int // tokens, special ones included; what is longer is cut and counted
	DocumentLength int
	QueryPrompt    string    // put before every query
	DocumentPrompt string    // put before every positive and negative
	Prompts        []Prompts // of each dataset, instead; may be nil
	Threads        int       // that tokenize at once; 0 means 1
}

// Prompts are put before a dataset's texts.
type Prompts struct{ Query, Document string }

// TokenChunk is a Chunk after tokenization.
type TokenChunk struct {
	Epoch     int
	Rows      []int64
	Weights   []float32
	Data      *dataset.Dataset
	Offset    int64
	IDs       [][][]int32     // by column, row
	Texts     [][]loss.TextID // by column, row
	Truncated int
	EndsBatch bool
	EndsStep  bool
	First     int
	Total     int
	Next      *dataset.Cursor
}

// Tokenize adds the stage that turns texts into token ids.
func Tokenize(g *pipeline.Graph, chunks pipeline.Port[*Chunk], x Text) pipeline.Port[*TokenChunk] {
	threads := max(1, x.Threads)
	return pipeline.Map(g, "tokenize", chunks, func(_ *pipeline.Task, c *Chunk) (*TokenChunk, error) {
		return x.tokenize(c), nil
	}, pipeline.Parallel(threads))
}

func (x Text) tokenize(c *Chunk) *TokenChunk {
	out := &TokenChunk{Epoch: c.Epoch, Data: c.Data, Offset: c.Offset, EndsBatch: c.EndsBatch, EndsStep: c.EndsStep, First: c.First, Total: c.Total, Next: c.Next}
	columns := c.Data.Columns()
	out.IDs, out.Texts = make([][][]int32, len(columns)), make([][]loss.TextID, len(columns))
	for _, e := range c.Examples {
		out.Rows, out.Weights = append(out.Rows, e.Row), append(out.Weights, e.Weight)
	}
	prompts := Prompts{x.QueryPrompt, x.DocumentPrompt}
	if x.Prompts != nil {
		prompts = x.Prompts[c.Source]
	}
	var flat []int32
	var ends []int
	for col, column := range columns {
		prompt, limit := prompts.Document, x.DocumentLength
		if column.Role == dataset.Query {
			prompt, limit = prompts.Query, x.QueryLength
		}
		for _, e := range c.Examples {
			ids, cut := x.Tokenizer.Append(flat, prompt+e.Texts[col], limit)
			if cut {
				out.Truncated++
			}
			flat = ids
			ends = append(ends, len(flat))
			h := e.Hashes[col]
			out.Texts[col] = append(out.Texts[col], loss.TextID{h.Hi, h.Lo})
		}
	}
	from := 0
	for i, end := range ends {
		col := i / len(c.Examples)
		out.IDs[col] = append(out.IDs[col], flat[from:end:end])
		from = end
	}
	return out
}
