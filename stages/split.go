package stages

import (
	"fmt"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// SubBatch is what goes through the model at once: some consecutive sequences of a batch.
type SubBatch struct {
	Batch  *Batch
	Lo, Hi int // sequences
}

// Len is the number of sequences. It is 0 only for sub-batches that other ranks have and this one does not.
func (s SubBatch) Len() int { return s.Hi - s.Lo }

// Tokens is the number of tokens.
func (s SubBatch) Tokens() int { return int(s.Batch.Cu[s.Hi] - s.Batch.Cu[s.Lo]) }

// weighed tells whether it is of queries that are weights of tokens, and so goes through no transformer.
func (s SubBatch) weighed() bool { return s.Batch.Weighed && s.Hi <= len(s.Batch.Rows) && s.Len() > 0 }

// padding is how many tokens it would have more if each sequence were as long as its longest.
func (s SubBatch) padding() int {
	longest := 0
	for n := s.Lo; n < s.Hi; n++ {
		longest = max(longest, s.Batch.Length(n))
	}
	return longest*s.Len() - s.Tokens()
}

// lengths is each sequence's number of tokens.
func (s SubBatch) lengths() []int {
	out := make([]int, 0, s.Hi-s.Lo)
	for n := s.Lo; n < s.Hi; n++ {
		out = append(out, s.Batch.Length(n))
	}
	return out
}

// rows is the sub-batch as the model takes it. Dropout keys follow from the seed, the step and each sequence's origin.
func (s SubBatch) rows(seed uint64, step int) transformer.Rows {
	r := transformer.Rows{IDs: s.Batch.IDs[s.Batch.Cu[s.Lo]:s.Batch.Cu[s.Hi]], Shown: s.shown(), Prompt: s.Batch.prompts(s.Batch.Prompt, s.Lo, s.Hi), Weighed: s.weighed()}
	if s.Batch.Kinds != nil {
		r.Kinds = s.Batch.Kinds[s.Batch.Cu[s.Lo]:s.Batch.Cu[s.Hi]]
	}
	if s.Batch.Seen != nil {
		r.Seen = s.Batch.Seen[s.Lo:s.Hi]
	}
	for n := s.Lo; n <= s.Hi; n++ {
		r.Cu = append(r.Cu, s.Batch.Cu[n]-s.Batch.Cu[s.Lo])
	}
	for n := s.Lo; n < s.Hi; n++ {
		row, place := s.Batch.Origin(n)
		r.Keys = append(r.Keys, gpustage.RowKey(seed, step, row, place))
	}
	return r
}

// Size bounds sub-batches: by tokens or by sequences. A sequence longer than Tokens is a sub-batch of its own. One without tokens, whose embedding takes memory
// too, counts as one.
type Size struct {
	Tokens int // 0: no bound
	Rows   int // 0: no bound
}

// check finds a bound that would be taken for none.
func (z Size) check() error {
	if z.Tokens < 0 || z.Rows < 0 {
		return fmt.Errorf("the sub-batches' Size has Tokens %d and Rows %d: none can be negative, and 0 is no bound", z.Tokens, z.Rows)
	}
	return nil
}

// Cut divides a batch. It is a function of the sequences' lengths and the size alone; and where queries have tokens that nobody attends to (Seen), they
// and documents are in no sub-batch together, as on a GPU what has such tokens goes through slower kernels; nor where queries are weights of tokens (Weighed).
func (z Size) Cut(b *Batch) []SubBatch {
	var subs []SubBatch
	lo := b.first()
	for n := lo; n < b.N(); n++ {
		full := z.Rows > 0 && n-lo == z.Rows || z.Tokens > 0 && max(int(b.Cu[n+1]-b.Cu[lo]), n+1-lo) > z.Tokens || (b.Seen != nil || b.Weighed) && n == len(b.Rows)
		if full && n > lo {
			subs = append(subs, SubBatch{b, lo, n})
			lo = n
		}
	}
	return append(subs, SubBatch{b, lo, b.N()})
}

// Split adds the stage that divides batches into sub-batches, as Header has done if there are replicas.
func Split(g *pipeline.Graph, batches pipeline.Port[*Batch], size Size) pipeline.Port[SubBatch] {
	s := g.Stage("split")
	in := pipeline.In(s, "batches", batches, pipeline.Capacity(1))
	out := pipeline.Fan[SubBatch](s, "sub-batches")
	wrong := size.check()
	s.Do(func(t *pipeline.Task) error {
		if wrong != nil {
			return wrong
		}
		b := in.Get(t)
		if err := b.check(); err != nil {
			return err
		}
		if err := b.checkStep(t.Index.Step); err != nil {
			return err
		}
		if b.Subs == nil {
			b.Subs = size.Cut(b)
		}
		for _, sub := range b.Subs {
			out.Put(t, sub)
		}
		return nil
	})
	return out.Port
}
