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
	Layer      int    // -1 for what is outside of layers
	Rows, Cols int    // a vector has one row
	Off        int    // elements from the start of the flat vector
	kind       paramKind
}

type paramKind int8

const (
	weight paramKind = iota // of a linear layer
	embedding
	bias
	normWeight
	relativeBias
)

// Shape is the tensor's shape in a file: vectors have one dimension.
func (p Param) Shape() []int {
	if p.kind == bias || p.kind == normWeight {
		return []int{p.Cols}
	}
	return []int{p.Rows, p.Cols}
}

// Decay tells whether weight decay applies: not to biases and norm weights, as the field has it.
func (p Param) Decay() bool { return p.kind == weight || p.kind == embedding }

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

// Span is where a layer's parameters lie in the flat vector, from and up to which element; layer -1 is what is outside of
// layers, but for the word embeddings.
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

// weights are views of a flat vector by their role: of the parameters, or of their gradients. What a family does not have is
// absent.
type weights struct {
	word, position, kind gpustage.Tensor // [V, C], [P, C], [types, C]
	embedNorm, finalNorm norm
	relative             gpustage.Tensor // [buckets, H]
	layers               []layerWeights
}

type layerWeights struct {
	attn               half
	qkv                linear // [(H+2*KVHeads)*D, C]: query, key, value
	queryNorm, keyNorm norm
	out                linear // [C, H*D]
	ffn                half
	up                 linear // [F, C], or [2F, C]: gate and up
	down               linear // [C, F]
}

// half is the norms of half a layer: y = sum(x + out(branch(in(x)))).
type half struct{ in, out, sum norm }

// weights views a flat vector.
func (c Config) weights(l *Layout, flat gpustage.Tensor) weights {
	n := families[c.Family].names
	tensor := func(name string) gpustage.Tensor {
		if p, ok := l.Find(name); ok {
			return l.View(flat, p)
		}
		return gpustage.Tensor{}
	}
	norm := func(name string) norm { return norm{tensor(name + ".weight"), tensor(name + ".bias")} }
	linear := func(prefix string, names ...string) linear {
		first, last := prefix+names[0], prefix+names[len(names)-1]
		a, _ := l.Find(first + ".weight")
		z, _ := l.Find(last + ".weight")
		w := linear{w: flat.Columns(a.Off, z.Off+z.Len()).Reshape((z.Off+z.Len()-a.Off)/a.Cols, a.Cols)}
		if a, ok := l.Find(first + ".bias"); ok {
			z, _ := l.Find(last + ".bias")
			w.b = flat.Columns(a.Off, z.Off+z.Len())
		}
		return w
	}
	w := weights{
		word: tensor(n.word + ".weight"), position: tensor(n.position + ".weight"), kind: tensor(n.kind + ".weight"),
		embedNorm: norm(n.embedNorm), finalNorm: norm(n.finalNorm), relative: tensor(n.relative + ".weight"),
	}
	for i := range c.Layers {
		p := fmt.Sprintf(n.layer, i)
		w.layers = append(w.layers, layerWeights{
			attn: half{norm(p + n.attnIn), norm(p + n.attnOut), norm(p + n.attnSum)},
			qkv:  linear(p, n.qkv...), queryNorm: norm(p + n.queryNorm), keyNorm: norm(p + n.keyNorm), out: linear(p, n.out),
			ffn: half{norm(p + n.ffnIn), norm(p + n.ffnOut), norm(p + n.ffnSum)},
			up:  linear(p, n.up...), down: linear(p, n.down),
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
// such that they multiply by 1, the padding token's row 0. The draw depends on the seed and the parameter's position alone.
func (m *Model) Init(s gpustage.Stream, seed uint64) error {
	n := 0
	return m.Load(s, func(p Param, dst []float32) error {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		n++
		for i := range dst {
			switch p.kind {
			case weight, embedding, relativeBias:
				dst[i] = float32(rng.NormFloat64() * m.Config.InitRange)
			case normWeight:
				dst[i] = float32(1 - m.Config.normOffset())
			default:
				dst[i] = 0
			}
		}
		if pad := m.Config.PadID; p.Name == m.Layout.Word().Name && pad >= 0 && pad < p.Rows {
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
