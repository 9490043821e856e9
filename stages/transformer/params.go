package transformer

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"contraflow/gpustage"
)

// Outside stands, where layers are numbered, for what is outside of them.
const Outside = -1

// Param is one named tensor of a model.
type Param struct {
	Name       string // Hugging Face's, without the family's prefix ("bert.")
	Layer      int    // or Outside
	Rows, Cols int    // a vector has one row
	Off        int    // elements from the start of the flat vector
	Head       bool   // of the scorer
	Below      bool   // it comes before the first layer: embeddings, their norm and projection, the relative attention bias
	kind       paramKind
	part       int // of its layer
	slot       int // of a factor: its target's place among the layer's linear weights
}

type paramKind int8

const (
	weight paramKind = iota // of a linear layer
	embedding
	bias
	normWeight
	relativeBias
	tokenWeight // a number for each token
	loraA       // [r, in] of a LoRA factor pair
	loraB       // [out, r]
)

// Shape is the tensor's shape in a file: vectors have one dimension.
func (p Param) Shape() []int {
	if p.kind == bias || p.kind == normWeight || p.kind == tokenWeight {
		return []int{p.Cols}
	}
	return []int{p.Rows, p.Cols}
}

// Decay tells whether weight decay applies: not to biases and norm weights, as the field has it.
func (p Param) Decay() bool {
	return p.kind == weight || p.kind == embedding || p.kind == tokenWeight || p.Factor()
}

// Factor tells whether it is one of LoRA's.
func (p Param) Factor() bool { return p.kind == loraA || p.kind == loraB }

// Module is the name of what the parameter belongs to, as Hugging Face has it: "encoder.layer.0.output.dense".
func (p Param) Module() string {
	name := strings.TrimSuffix(strings.TrimSuffix(p.Name, ".weight"), ".bias")
	return strings.TrimSuffix(strings.TrimSuffix(name, loraASuffix), loraBSuffix)
}

// Len is the number of elements.
func (p Param) Len() int { return p.Rows * p.Cols }

// Layout is where a model's parameters lie in one flat vector: those that are frozen first, then those that train. Gradients and
// optimizer moments are like the second part alone, so that an optimizer, a norm or a reduction is one pass over one vector, and
// nothing is computed, kept or sent for what does not train.
type Layout struct {
	Params []Param
	Len    int // elements of the flat vector
	Frozen int // of them, those in front that don't train
	index  map[string]int
	word   int
	marks  []mark          // see Marks, in ascending order
	parts  map[int]*Layout // see Part
}

// newLayout places parameters, the first of which are the word embeddings.
func newLayout(ps []Param, frozen func(Param) bool) *Layout {
	l := &Layout{index: map[string]int{}}
	for _, first := range []bool{true, false} {
		for i, p := range ps {
			if frozen(p) != first {
				continue
			}
			if i == 0 {
				l.word = len(l.Params)
			}
			p.Off = l.Len
			l.Len += p.Len()
			l.index[p.Name] = len(l.Params)
			l.Params = append(l.Params, p)
		}
		if first {
			l.Frozen = l.Len
		}
	}
	l.mark()
	l.part()
	return l
}

// part lists each layer's parameters, and what is outside of layers, but for the word embeddings.
func (l *Layout) part() {
	l.parts = map[int]*Layout{Outside: {index: map[string]int{}}}
	for i, p := range l.Params {
		if i == l.word {
			continue
		}
		part := l.parts[p.Layer]
		if part == nil {
			part = &Layout{index: map[string]int{}}
			l.parts[p.Layer] = part
		}
		if !l.Trains(p) {
			part.Frozen += p.Len()
		}
		p.Off = part.Len
		part.Len += p.Len()
		part.index[p.Name] = len(part.Params)
		part.Params = append(part.Params, p)
	}
}

// Part is how a layer's parameters lie in a vector of their own, in the same order, or those Outside of layers, but for the word embeddings.
func (l *Layout) Part(layer int) *Layout { return l.parts[layer] }

// Trained is how many elements train: the length of gradients and moments.
func (l *Layout) Trained() int { return l.Len - l.Frozen }

// Training are the parameters that train.
func (l *Layout) Training() []Param {
	i := slices.IndexFunc(l.Params, l.Trains)
	return l.Params[i:]
}

// Trains tells whether a parameter does.
func (l *Layout) Trains(p Param) bool { return p.Off >= l.Frozen }

// At is where a parameter that trains lies in gradients and moments.
func (l *Layout) At(p Param) int { return p.Off - l.Frozen }

// The parts of a layer between its marks: each begins with a product's weight, or the norm before it.
const (
	partQKV = iota
	partOut
	partUp
	partDown
	parts
)

// mark is where a part of a layer begins in gradients.
type mark struct{ layer, part, at int }

func (l *Layout) mark() {
	factors := slices.ContainsFunc(l.Params, Param.Factor) // they lie behind all parts of their layer
	for _, p := range l.Params {
		if p.Layer < 0 || !l.Trains(p) {
			continue
		}
		if factors {
			p.part = partQKV
		}
		if n := len(l.marks); n == 0 || l.marks[n-1].layer != p.Layer || l.marks[n-1].part != p.part {
			l.marks = append(l.marks, mark{p.Layer, p.part, l.At(p)})
		}
	}
}

// Marks are the places in the flat gradient from which on a backward pass completes it (see Gradients.Done), in the order in which it
// does: the beginnings of each layer's four products (with LoRA of each layer), from the last layer down, and the end of the word
// embeddings, if anything else outside of layers trains.
func (l *Layout) Marks() (out []int) {
	for _, m := range slices.Backward(l.marks) {
		out = append(out, m.at)
	}
	if from, to := l.Span(Outside); from < to {
		out = append(out, from)
	}
	return out
}

// MarkName is a name for what lies between Marks()[i] and the mark before.
func (l *Layout) MarkName(i int) string {
	if i == len(l.marks) {
		return "embeddings"
	}
	m := l.marks[len(l.marks)-1-i]
	return fmt.Sprintf("%d.%s", m.layer, [parts]string{"qkv", "out", "up", "down"}[m.part])
}

// Find returns a parameter by name.
func (l *Layout) Find(name string) (Param, bool) {
	i, ok := l.index[name]
	if !ok {
		return Param{}, false
	}
	return l.Params[i], true
}

// Owner is the parameter that element i of gradients and moments belongs to.
func (l *Layout) Owner(i int) Param {
	k := sort.Search(len(l.Params), func(k int) bool { return l.At(l.Params[k]) > i })
	return l.Params[k-1]
}

// View is parameter p's part of a flat vector: of all parameters, or of one like those that train, where p may have none.
func (l *Layout) View(flat gpustage.Tensor, p Param) gpustage.Tensor {
	return l.view(flat, p, p, p.Cols)
}

// view is a flat vector's part from parameter p to q, in rows of so many elements.
func (l *Layout) view(flat gpustage.Tensor, p, q Param, cols int) gpustage.Tensor {
	from := 0
	if flat.Cols < l.Len {
		if from = l.Frozen; !l.Trains(p) {
			return gpustage.Tensor{}
		}
	}
	n := q.Off + q.Len() - p.Off
	return flat.Columns(p.Off-from, p.Off-from+n).Reshape(n/cols, cols)
}

// Word is the word embeddings.
func (l *Layout) Word() Param { return l.Params[l.word] }

// Span is where a layer's parameters that train lie in gradients and moments, from and up to which element, none if they are
// equal, or those Outside of layers, but for the word embeddings.
func (l *Layout) Span(layer int) (from, to int) {
	for i, p := range l.Params {
		if i == l.word || p.Layer != layer || !l.Trains(p) {
			continue
		}
		if to == 0 {
			from = l.At(p)
		}
		to = l.At(p) + p.Len()
	}
	return from, to
}

// SpanFrozen is Span for what is frozen: where it lies in the flat vector.
func (l *Layout) SpanFrozen(layer int) (from, to int) {
	n := 0
	for i, p := range l.Params {
		if i == l.word || p.Layer != layer || l.Trains(p) {
			continue
		}
		if n == 0 {
			from = p.Off
		}
		n += p.Len()
	}
	return from, from + n
}

// weights are views of a flat vector by their role: of the parameters, or of their gradients. What a family does not have is
// absent, and the gradient of what does not train.
type weights struct {
	word, position, kind gpustage.Tensor // [V, E0], [P, E0], [types, E0]
	task                 gpustage.Tensor // [tasks, E0]
	embedNorm, finalNorm norm
	project              linear          // [C, E0]
	relative             gpustage.Tensor // [buckets, H]
	distances            gpustage.Tensor // [2*Span, C]: embeddings of distances
	distancesNorm        norm
	dense                []linear // [out, in]
	score                scorerWeights
	tokens               tokenWeights
	mlm                  mlmWeights
	queries              gpustage.Tensor // [1, V]
	layers               []layerWeights
	later                func(l int) layerWeights // instead of layers
}

func (w *weights) layer(l int) layerWeights {
	if w.later != nil {
		return w.later(l)
	}
	return w.layers[l]
}

type layerWeights struct {
	attn               half
	qkv                linear // [(H+2*KVHeads)*D, C]: query, key, value
	distances          linear // [H*D or 2*H*D, C]: queries and keys of distances; part of qkv, or the layer's own
	queryNorm, keyNorm norm
	out                linear // [C, H*D]
	attnAgain          norm
	ffn                half
	up                 linear // [F, C], or [2F, C]: gate and up
	down               linear // [C, F]
}

// half is the norms of half a layer: y = sum(x + out(branch(in(x)))).
type half struct {
	in, out, sum norm
	alone        bool // the way back has its output, and not the sum that it is a norm of
}

// weights views a flat vector.
func (c Config) weights(l *Layout, flat gpustage.Tensor) weights {
	w := c.outside(l, flat)
	for i := range c.Layers {
		w.layers = append(w.layers, c.layer(l, flat, i))
	}
	return w
}

// outside views what is outside of layers.
func (c Config) outside(l *Layout, flat gpustage.Tensor) weights {
	n, v := c.names(), viewer{l, flat}
	w := weights{
		word: v.tensor(n.word + ".weight"), position: v.tensor(n.position + ".weight"), kind: v.tensor(n.kind + ".weight"), task: v.tensor(n.task + ".weight"),
		embedNorm: v.norm(n.embedNorm), finalNorm: v.norm(n.finalNorm), relative: v.tensor(n.relative + ".weight"),
		distances: v.tensor(n.distances + ".weight"), distancesNorm: v.norm(n.distancesNorm),
		score: c.Scorer.weights(v), tokens: c.Tokens.weights(v), mlm: c.MLMHead.weights(v),
		queries: v.tensor(QueryWeight),
	}
	if c.projects() {
		w.project = v.linear("", n.project)
	}
	for _, d := range c.Dense {
		w.dense = append(w.dense, v.linear("", d.Name+denseSuffix))
	}
	return w
}

// layer views one layer.
func (c Config) layer(l *Layout, flat gpustage.Tensor, i int) layerWeights {
	n, v := c.names(), viewer{l, flat}
	p := fmt.Sprintf(n.layer, i)
	qkv := v.linear(p, n.qkv...)
	return layerWeights{
		attn: half{in: v.norm(p + n.attnIn), out: v.norm(p + n.attnOut), sum: v.norm(p + n.attnSum)},
		qkv:  qkv, distances: c.ofDistances(v, p, n, qkv), queryNorm: v.norm(p + n.queryNorm), keyNorm: v.norm(p + n.keyNorm), out: v.linear(p, n.out), attnAgain: v.norm(p + n.attnAgain),
		ffn: half{in: v.norm(p + n.ffnIn), out: v.norm(p + n.ffnOut), sum: v.norm(p + n.ffnSum)},
		up:  v.linear(p, n.up...), down: v.linear(p, n.down),
	}
}

// viewer finds parameters in a flat vector.
type viewer struct {
	l    *Layout
	flat gpustage.Tensor
}

func (v viewer) tensor(name string) gpustage.Tensor {
	if p, ok := v.l.Find(name); ok {
		return v.l.View(v.flat, p)
	}
	return gpustage.Tensor{}
}

func (v viewer) norm(name string) norm {
	return norm{v.tensor(name + ".weight"), v.tensor(name + ".bias")}
}

func (v viewer) linear(prefix string, names ...string) linear {
	first, last := prefix+names[0], prefix+names[len(names)-1]
	a, _ := v.l.Find(first + ".weight")
	z, _ := v.l.Find(last + ".weight")
	w := linear{w: v.l.view(v.flat, a, z, a.Cols)}
	if a, ok := v.l.Find(first + ".bias"); ok {
		z, _ := v.l.Find(last + ".bias")
		w.b = v.l.view(v.flat, a, z, z.Off+z.Len()-a.Off)
	}
	w.factors = v.l.factors(v.flat, prefix, names)
	return w
}

// Load fills the parameters by name, and LoRA's factors with their first values. read gives a parameter's elements; shapes are its
// business. dst holds whatever was there before.
func (m *Model) Load(s gpustage.Stream, read func(p Param, dst []float32) error) error {
	return m.load(s, func(p Param, dst []float32) error {
		if p.Factor() {
			m.lora().first(p, dst)
			return nil
		}
		return read(p, dst)
	})
}

// LoadFactors fills LoRA's factors with other values than their first ones.
func (m *Model) LoadFactors(s gpustage.Stream, read func(p Param, dst []float32) error) error {
	return m.load(s, func(p Param, dst []float32) error {
		if !p.Factor() {
			return errLeave
		}
		return read(p, dst)
	})
}

// LoadTrained fills the parameters that train, LoRA's factors among them.
func (m *Model) LoadTrained(s gpustage.Stream, read func(p Param, dst []float32) error) error {
	return m.load(s, func(p Param, dst []float32) error {
		if !m.Layout.Trains(p) {
			return errLeave
		}
		return read(p, dst)
	})
}

// errLeave leaves a parameter as it is.
var errLeave = errors.New("leave it")

func (m *Model) load(s gpustage.Stream, read func(p Param, dst []float32) error) error {
	if err := s.Sync(); err != nil {
		return err
	}
	var buf []float32
	for _, p := range m.Layout.Params {
		var dst gpustage.Tensor
		if !m.Partial() {
			dst = m.Layout.View(m.Params, p)
		}
		vs := []float32(nil)
		inPlace := m.DType == gpustage.F32 && gpustage.InHost(dst) // a third of the time of loading 90 MB
		if inPlace {
			vs = gpustage.Slice[float32](dst)
		} else {
			buf = slices.Grow(buf[:0], p.Len())[:p.Len()]
			vs = buf
		}
		if err := read(p, vs); err == errLeave {
			continue
		} else if err != nil {
			return err
		}
		if m.Options.Loaded != nil {
			if err := m.Options.Loaded(p, vs); err != nil {
				return err
			}
		}
		if inPlace {
			continue
		}
		if m.Partial() {
			if err := m.keepOwn(s, p, vs); err != nil {
				return err
			}
			continue
		}
		m.write(s, dst, vs)
		if err := s.Sync(); err != nil {
			return err
		}
	}
	m.changedAll()
	return s.Sync()
}

// write copies to the device.
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
	return m.ReadVector(s, m.Layout.View(flat, p))
}

// ReadVector copies a contiguous tensor to the host.
func (m *Model) ReadVector(s gpustage.Stream, src gpustage.Tensor) ([]float32, error) {
	out := make([]float32, src.Len())
	if src.DType == gpustage.F64 {
		wide := make([]float64, src.Len())
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
		m.draw(p, dst, rng)
		if pad := m.Config.PadID; p.Name == m.Layout.Word().Name && pad >= 0 && pad < p.Rows {
			clear(dst[pad*p.Cols : (pad+1)*p.Cols])
		}
		return nil
	})
}

// InitParam draws a parameter as Init does; the draw depends on the seed and its name alone. It is for a head that a checkpoint
// does not have.
func (m *Model) InitParam(p Param, dst []float32, seed uint64) {
	rng := NamedRand(seed, p.Name)
	if m.Config.IsDense(p) { // as torch begins a linear layer: uniform up to 1 / sqrt(features that go in)
		bound := 1 / math.Sqrt(float64(m.denseIn(p)))
		for i := range dst {
			dst[i] = float32((2*rng.Float64() - 1) * bound)
		}
		return
	}
	m.draw(p, dst, rng)
}

// NamedRand is a stream of random numbers of what has a name, a tensor for example: no other's, nor one of those that Init numbers.
func NamedRand(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

func (m *Model) draw(p Param, dst []float32, rng *rand.Rand) {
	for i := range dst {
		switch p.kind {
		case weight, embedding, relativeBias:
			dst[i] = float32(rng.NormFloat64() * m.Config.InitRange)
		case normWeight:
			dst[i] = float32(1 - m.Config.normOffset())
		case tokenWeight:
			dst[i] = 1
		default:
			dst[i] = 0
		}
	}
}

func finite[T float32 | float64](v T) bool { return v-v == 0 }

// CheckFinite names a tensor that holds NaN or an infinity.
func CheckFinite(name string, vs []float32) error {
	for i, v := range vs {
		if !finite(v) {
			return fmt.Errorf("tensor %q: element %d is %v", name, i, v)
		}
	}
	return nil
}
