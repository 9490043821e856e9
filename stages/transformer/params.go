package transformer

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"contraflow/gpustage"
)

// Param is one named tensor of a model.
type Param struct {
	Name       string // Hugging Face's, without the family's prefix ("bert.")
	Layer      int    // -1 for the embeddings
	Rows, Cols int    // a vector has one row
	Off        int    // elements from the start of the flat vector
	kind       paramKind
}

type paramKind int8

const (
	weight paramKind = iota // of a linear layer
	table
	bias
	normWeight
)

// Shape is the tensor's shape in a file: vectors have one dimension.
func (p Param) Shape() []int {
	if p.kind == bias || p.kind == normWeight {
		return []int{p.Cols}
	}
	return []int{p.Rows, p.Cols}
}

// Decay tells whether weight decay applies: not to biases and norm weights, as the field has it.
func (p Param) Decay() bool { return p.kind == weight || p.kind == table }

// Len is the number of elements.
func (p Param) Len() int { return p.Rows * p.Cols }

// Layout is where a model's parameters lie in one flat vector. Gradients and optimizer moments have the same layout, so
// that an optimizer, a norm or a reduction is one pass over one vector.
type Layout struct {
	Params []Param
	Len    int // elements of the flat vector
	index  map[string]int
}

func newLayout(ps []Param) *Layout {
	l := &Layout{Params: ps, index: map[string]int{}}
	for i := range l.Params {
		p := &l.Params[i]
		p.Off = l.Len
		l.Len += p.Len()
		l.index[p.Name] = i
	}
	return l
}

// Find returns a parameter by name.
func (l *Layout) Find(name string) (Param, bool) {
	i, ok := l.index[name]
	if !ok {
		return Param{}, false
	}
	return l.Params[i], true
}

// View is parameter p's part of a flat vector.
func (l *Layout) View(flat gpustage.Tensor, p Param) gpustage.Tensor {
	return flat.Columns(p.Off, p.Off+p.Len()).Reshape(p.Rows, p.Cols)
}

// Word is the word embeddings' place in the flat vector, which begins with it.
func (l *Layout) Word() Param { return l.Params[0] }

// Span is where a layer's parameters lie in the flat vector, from and up to which element; layer -1 is the embeddings but
// for the word embeddings.
func (l *Layout) Span(layer int) (from, to int) {
	from = -1
	for _, p := range l.Params[1:] {
		if p.Layer == layer {
			if from < 0 {
				from = p.Off
			}
			to = p.Off + p.Len()
		}
	}
	return from, to
}

func (l *Layout) named(flat gpustage.Tensor, name string) gpustage.Tensor {
	p, ok := l.Find(name)
	if !ok {
		panic("transformer: no parameter " + name)
	}
	return l.View(flat, p)
}

// weights are views of a flat vector by their role: of the parameters, or of their gradients.
type weights struct {
	word, position, kind gpustage.Tensor // [V, C], [P, C], [types, C]
	norm                 normWeights
	layers               []layerWeights
}

type normWeights struct{ gamma, beta gpustage.Tensor } // [1, C]

type layerWeights struct {
	qkv   linear // [3C, C]: query, key, value
	out   linear // [C, C]
	norm1 normWeights
	up    linear // [F, C]
	down  linear // [C, F]
	norm2 normWeights
}

// bertWeights views a flat vector in bertNames' layout.
func (l *Layout) bertWeights(c Config, flat gpustage.Tensor) weights {
	norm := func(name string) normWeights {
		return normWeights{l.named(flat, name+".weight"), l.named(flat, name+".bias")}
	}
	w := weights{
		word:     l.named(flat, "embeddings.word_embeddings.weight"),
		position: l.named(flat, "embeddings.position_embeddings.weight"),
		kind:     l.named(flat, "embeddings.token_type_embeddings.weight"),
		norm:     norm("embeddings.LayerNorm"),
	}
	for i := range c.Layers {
		p := fmt.Sprintf("encoder.layer.%d.", i)
		q, _ := l.Find(p + "attention.self.query.weight")
		qb, _ := l.Find(p + "attention.self.query.bias")
		w.layers = append(w.layers, layerWeights{
			qkv: linear{
				w: flat.Columns(q.Off, q.Off+3*q.Len()).Reshape(3*c.Hidden, c.Hidden),
				b: flat.Columns(qb.Off, qb.Off+3*c.Hidden),
			},
			out:   l.linear(flat, p+"attention.output.dense"),
			norm1: norm(p + "attention.output.LayerNorm"),
			up:    l.linear(flat, p+"intermediate.dense"),
			down:  l.linear(flat, p+"output.dense"),
			norm2: norm(p + "output.LayerNorm"),
		})
	}
	return w
}

// Load fills the parameters by name. read gives a parameter's elements; shapes are its business. dst holds whatever was there
// before.
func (m *Model) Load(s gpustage.Stream, read func(p Param, dst []float32) error) error {
	if err := s.Sync(); err != nil {
		return err
	}
	var buf []float32
	for _, p := range m.Layout.Params {
		dst := m.Layout.View(m.Params, p)
		if m.DType == gpustage.F32 && gpustage.InHost(dst) { // in place: a third of the time of loading 90 MB
			if err := read(p, gpustage.Slice[float32](dst)); err != nil {
				return err
			}
			continue
		}
		buf = slices.Grow(buf[:0], p.Len())[:p.Len()]
		if err := read(p, buf); err != nil {
			return err
		}
		m.write(s, dst, buf)
		if err := s.Sync(); err != nil {
			return err
		}
	}
	m.Changed()
	return s.Sync()
}

func (m *Model) write(s gpustage.Stream, dst gpustage.Tensor, vs []float32) {
	if m.DType == gpustage.F64 {
		wide := make([]float64, len(vs))
		for i, v := range vs {
			wide[i] = float64(v)
		}
		s.CopyIn(dst, gpustage.Bytes(wide))
		return
	}
	s.CopyIn(dst, gpustage.Bytes(vs))
}

// Read copies a parameter, or the same part of another flat vector (gradients, moments), to the host.
func (m *Model) Read(s gpustage.Stream, flat gpustage.Tensor, p Param) ([]float32, error) {
	out := make([]float32, p.Len())
	src := m.Layout.View(flat, p)
	if flat.DType == gpustage.F64 {
		wide := make([]float64, p.Len())
		s.CopyOut(gpustage.Bytes(wide), src)
		if err := s.Sync(); err != nil {
			return nil, err
		}
		for i, v := range wide {
			out[i] = float32(v)
		}
		return out, nil
	}
	s.CopyOut(gpustage.Bytes(out), src)
	return out, s.Sync()
}

// Init draws new weights as transformers does for BERT: linear and embedding weights from N(0, InitRange), biases 0, norm weights
// 1, the padding token's row 0. The draw depends on the seed and the parameter's position alone.
func (m *Model) Init(s gpustage.Stream, seed uint64) error {
	n := 0
	return m.Load(s, func(p Param, dst []float32) error {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		n++
		for i := range dst {
			switch p.kind {
			case weight, table:
				dst[i] = float32(rng.NormFloat64() * m.Config.InitRange)
			case normWeight:
				dst[i] = 1
			default:
				dst[i] = 0
			}
		}
		if pad := m.Config.PadID; p.Name == "embeddings.word_embeddings.weight" && pad >= 0 && pad < p.Rows {
			clear(dst[pad*p.Cols : (pad+1)*p.Cols])
		}
		return nil
	})
}

// CheckFinite names a parameter that holds NaN or an infinity.
func CheckFinite(p Param, vs []float32) error {
	for i, v := range vs {
		if v-v != 0 {
			return fmt.Errorf("tensor %q: element %d is %v", p.Name, i, v)
		}
	}
	return nil
}
