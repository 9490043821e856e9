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
	Labels    []float32   // [rows]; nil without labels
	Scores    [][]float32 // by row, document; nil without scores
	Teacher   []float32   // the rows' teacher embeddings, back to back; nil without
	Data      *dataset.Dataset
	Offset    int64
	IDs       [][][]int32     // by column, text: row by row
	Texts     [][]loss.TextID // by column, text
	Counts    [][]int32       // by column, row: how many of the column's texts are the row's; nil of columns that are not ragged
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
	out.IDs, out.Texts, out.Counts = make([][][]int32, len(columns)), make([][]loss.TextID, len(columns)), make([][]int32, len(columns))
	for _, e := range c.Examples {
		out.Rows, out.Weights = append(out.Rows, e.Row), append(out.Weights, e.Weight)
		out.Teacher = append(out.Teacher, e.Teacher...)
		if c.Data.HasLabels() {
			out.Labels = append(out.Labels, e.Label)
		}
		if c.Data.HasScores() {
			out.Scores = append(out.Scores, e.Scores)
		}
	}
	prompts := Prompts{x.QueryPrompt, x.DocumentPrompt}
	if x.Prompts != nil {
		prompts = x.Prompts[c.Source]
	}
	var flat []int32
	var ends []int // of each text of each column
	for col, column := range columns {
		prompt, limit := prompts.Document, x.DocumentLength
		if column.Role == dataset.Query {
			prompt, limit = prompts.Query, x.QueryLength
		}
		for i := range c.Examples {
			e := &c.Examples[i]
			lo, hi := e.Column(col)
			for k := lo; k < hi; k++ {
				ids, cut := x.Tokenizer.Append(flat, prompt+e.Texts[k], limit)
				if cut {
					out.Truncated++
				}
				flat = ids
				ends = append(ends, len(flat))
				h := e.Hashes[k]
				out.Texts[col] = append(out.Texts[col], loss.TextID{h.Hi, h.Lo})
			}
			if column.Ragged {
				out.Counts[col] = append(out.Counts[col], int32(hi-lo))
			}
		}
	}
	from, i := 0, 0
	for col := range columns {
		for range out.Texts[col] {
			out.IDs[col] = append(out.IDs[col], flat[from:ends[i]:ends[i]])
			from = ends[i]
			i++
		}
	}
	return out
}
