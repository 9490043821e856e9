package transformer

import (
	"math/bits"
	"slices"
	"sync"

	"contraflow/gpustage"
)

// Where a device has use for the same work again (gpustage.Repeats), sub-batches have few shapes: the numbers of tokens and rows and the
// longest row are rounded up, and rows of padding fill what that makes room for. They are rows as any other, of a token that the
// sub-batch has, so everything that is computed of them is finite; nobody sees what they give, and their gradient begins as zero and stays
// it, so parameters' gradients get nothing from them. Row by row a sub-batch's results are what they are without, but for the rounding
// of products whose libraries choose by shape.
//
// All that a pass copies from the host comes before its ops, into places that depend on the shape and on where the arena stands; the ops are
// one piece of work for gpustage.Repeat, and so is a backward pass. Not the one that tells of complete gradients while it runs, the
// last of a step among replicas: events cut it into pieces. A model that is fed its parameters pads nothing: what it is fed, and where that
// lies, changes from layer to layer.

// shape is what a sub-batch's places in memory, and the launches of its passes, depend on.
type shape struct{ tokens, rows, longest int }

func (r Rows) shape() shape { return shape{len(r.IDs), r.Len(), r.MaxLen()} }

// Sizes are multiples of a step, a part of the power of two below. Rows of padding are short, and a grid for longer rows than there are has
// blocks that end at once, so those steps are wide. Tokens are what takes time: of long texts 3 % are padding on average; 1,024 texts of 16 tokens bring more rows of it, and 6 %. Sub-batches are cut
// at round numbers of tokens and end just below one; so that the padding's own tokens do not cost a whole step there, sizes are an
// eighth of a step above its multiples: 16,384 tokens become 16,512.
const (
	tokenSteps, leastTokens = 16, 64
	rowSteps, leastRows     = 4, 4
	longSteps, leastLongest = 4, 64
)

func grain(n, parts, least int) int { return max(least, 1<<(bits.Len(uint(max(1, n)))-1)/parts) }

func roundUp(n, step int) int { return (n + step - 1) / step * step }

// bucket is the shape that s is rounded up to, for rows of at most so many tokens, or of any number if that is 0. It always has a row of padding.
func (s shape) bucket(most int) shape {
	longest := roundUp(max(1, s.longest), grain(s.longest, longSteps, leastLongest))
	if most == 0 {
		most = longest
	}
	for rows := s.rows; ; {
		rows = roundUp(rows+1, grain(rows+1, rowSteps, leastRows))
		extra := rows - s.rows
		by := grain(s.tokens+extra, tokenSteps, leastTokens)
		tokens := roundUp(s.tokens+extra-by/8, by) + by/8
		if tokens-s.tokens <= extra*min(longest, most) {
			return shape{tokens, rows, longest}
		}
	}
}

// bucketing is what a model has that pads sub-batches.
type bucketing struct {
	mu       sync.Mutex
	memories map[shape]Memory
}

// newBucketing is nil for a model that doesn't.
func newBucketing(d gpustage.Device, c Config, o Options) *bucketing {
	if !gpustage.Repeats(d) || o.Own != nil || c.MaxPositions == 1 { // a row of one token has no room for padding
		return nil
	}
	return &bucketing{memories: map[shape]Memory{}}
}

// Buckets tells whether the model pads sub-batches. Kept passes should then lie in places of equal size, so that where one lies does not depend on the sizes of those before it.
func (m *Model) Buckets() bool { return m.buckets != nil }

// memory predicts for a shape: the passes of a sub-batch run dry once for all sub-batches of a shape. What a kept pass takes is rounded up, so
// that there are few sizes.
func (b *bucketing) memory(s shape, predict func() Memory) Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	mem, ok := b.memories[s]
	if !ok {
		mem = predict()
		up := func(bytes int) int { return roundUp(bytes, grain(bytes, tokenSteps, 64)) }
		mem = mem.Keeping(up(mem.Kept), up(mem.Lean))
		b.memories[s] = mem
	}
	return mem
}

// repeat issues a pass's ops.
func (p *Pass) repeat(ops func()) {
	if p.m.Feed != nil {
		ops()
		return
	}
	gpustage.Repeat(p.s, ops)
}

// pad adds rows of padding. Texts without tokens alone get one too: there is no tensor of no rows.
func (m *Model) pad(r Rows) Rows {
	if len(r.IDs) == 0 {
		r = Rows{IDs: []int32{0}, Cu: append(slices.Clone(r.Cu), 1), Keys: r.Keys, Shown: r.Shown, Seen: r.Seen, Prompt: r.Prompt}
		if r.Keys != nil {
			r.Keys = append(slices.Clone(r.Keys), 0)
		}
	}
	if !m.Buckets() {
		return r
	}
	to := r.shape().bucket(m.Config.MaxPositions)
	out := Rows{IDs: slices.Grow(slices.Clone(r.IDs), to.tokens-len(r.IDs)), Cu: slices.Clone(r.Cu), Kinds: slices.Clone(r.Kinds), Keys: slices.Clone(r.Keys), Shown: r.Shown, Seen: r.Seen, Prompt: r.Prompt, longest: to.longest}
	for left := to.rows - r.Len(); left > 0; left-- {
		for range (to.tokens - len(out.IDs) + left - 1) / left {
			out.IDs = append(out.IDs, r.IDs[0])
			if r.Kinds != nil {
				out.Kinds = append(out.Kinds, r.Kinds[0])
			}
		}
		out.Cu = append(out.Cu, int32(len(out.IDs)))
		if r.Keys != nil {
			out.Keys = append(out.Keys, 0)
		}
	}
	return out
}

// Padding is the number of tokens that are.
func (p *Pass) Padding() int { return p.in.seqs.Tokens - p.own.tokens }

// widen makes room for the padding in the gradients of parts, and for tokens that are not shown, and leaves it zero.
func (p *Pass) widen(dParts []gpustage.Tensor) []gpustage.Tensor {
	h := p.m.Config.Tokens
	if p.own.rows == p.in.seqs.Rows && !h.Alone {
		return dParts
	}
	out := make([]gpustage.Tensor, len(dParts))
	for i, d := range dParts {
		rows := p.in.seqs.Rows
		if i > 0 {
			rows = h.rows(p.in.seqs.Tokens, rows)
		} else {
			rows = h.outputs(p.in.seqs.Tokens, rows)
		}
		out[i] = p.keep(rows, d.Cols)
		if d.Rows > 0 {
			p.s.Copy(out[i].Span(0, d.Rows), d)
		}
		if d.Rows < rows {
			p.s.Fill(out[i].Span(d.Rows, rows), 0)
		}
	}
	return out
}
