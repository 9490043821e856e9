package bench

import (
	"contraflow/gpustage"
	"contraflow/stages/transformer"
)

// Work is the arithmetic that an encoder needs for real tokens: what its products and attention call for when it runs on a
// device that computes nothing, sequence by sequence and keeping everything. So padding, recomputation and replay count for
// nothing, and any family is counted as it is. For BERT, per sequence of n tokens, that is
//
//	linear layers  6 * P * n: 2 for y = x Wᵀ, 2 for dx = dy W, 2 for dW = dyᵀ x, of the P = L * (4 C² + 2 C F) weights in them
//	attention      12 * L * C * n²: 4 forward (q kᵀ and p v), 8 backward
//
// and a third of it for an embedding. Lookups, norms, activations, dropout, the loss and the optimizer are left out, as the field
// does (PaLM, arXiv 2204.02311, appendix B): they are a few per cent of the arithmetic.
type Work struct {
	model   *transformer.Model
	stream  *counter
	lengths map[int]passes // counted before
}

// passes is the floating-point operations of one sequence.
type passes struct{ forward, both float64 }

// NewWork counts for a configuration.
func NewWork(c transformer.Config) (*Work, error) {
	m, err := transformer.New(gpustage.Dry{}, c, transformer.Head{}, transformer.Options{})
	if err != nil {
		return nil, err
	}
	s, err := m.Device.OpenStream()
	if err != nil {
		return nil, err
	}
	return &Work{m, &counter{Stream: s}, map[int]passes{}}, nil
}

// Step is the floating-point operations of a training step on sequences of the given lengths.
func (w *Work) Step(lengths []int) float64 {
	sum := 0.0
	for _, n := range lengths {
		sum += w.count(n).both
	}
	return sum
}

// Forward is those of embedding them.
func (w *Work) Forward(lengths []int) float64 {
	sum := 0.0
	for _, n := range lengths {
		sum += w.count(n).forward
	}
	return sum
}

func (w *Work) count(n int) passes {
	if p, ok := w.lengths[n]; ok {
		return p
	}
	w.stream.flop = 0
	pass := w.model.Forward(w.stream, gpustage.DryArena(), transformer.Rows{IDs: make([]int32, n), Cu: []int32{0, int32(n)}, Keys: make([]uint64, 1)}, true, true)
	p := passes{forward: w.stream.flop}
	pass.Backward(pass.Embeddings(), w.model.Trained())
	p.both = w.stream.flop
	w.lengths[n] = p
	return p
}

// counter is a stream that counts.
type counter struct {
	gpustage.Stream
	flop float64
}

func (c *counter) MatMul(y, a, _ gpustage.Tensor, o gpustage.MatMul) {
	k := a.Cols
	if o.TransA {
		k = a.Rows
	}
	c.flop += 2 * float64(y.Len()) * float64(k)
}

func (c *counter) Attention(_, _, _, _, _ gpustage.Tensor, o gpustage.Attention) {
	c.flop += attention(o)
}

func (c *counter) AttentionBackward(_, _, _, _, _, _, _, _, _ gpustage.Tensor, o gpustage.Attention) {
	c.flop += 2 * attention(o)
}

// attention is the forward pass over one sequence: two products over the pairs of tokens that see each other.
func attention(o gpustage.Attention) float64 {
	n, pairs := o.Seqs.MaxLen, 0
	for q := range n {
		lo, hi := 0, n
		if o.Window > 0 {
			lo, hi = max(lo, q-o.Window), min(hi, q+o.Window+1)
		}
		if o.Causal {
			hi = min(hi, q+1)
		}
		pairs += hi - lo
	}
	return 4 * float64(pairs) * float64(o.Heads*o.HeadDim)
}
