package transformer

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
)

// headsOf is a small model of BERT's shape and of any weights, with so many heads of so many features: "bert", or "mpnet", whose attention has
// biases of positions.
func headsOf(t *testing.T, family string, heads, dim int, d gpustage.Device, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	return layersOf(t, family, 2, heads, dim, d, o)
}

func layersOf(t *testing.T, family string, layers, heads, dim int, d gpustage.Device, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	config := fmt.Appendf(nil, `{"model_type": %q, "hidden_size": %d, "num_attention_heads": %d, "num_hidden_layers": %d, "intermediate_size": 72,
		"vocab_size": 40, "max_position_embeddings": 82, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-5}`, family, heads*dim, heads, layers)
	random := rand.New(rand.NewPCG(6, 6))
	return loadModel(t, config, d, Head{Pooling: gpustage.MeanPooling, Normalize: true}, o, func(p Param, dst []float32) error {
		for i := range dst {
			dst[i] = float32(random.NormFloat64() / 8)
			if strings.HasSuffix(p.Name, "LayerNorm.weight") {
				dst[i]++
			}
		}
		return nil
	})
}

// Where operands of products and attention are of bf16 in memory, gradients are as near the truth as where products round what they read, in every
// family, with LoRA and activation checkpointing too: norms, gates, rotations, dropout, queries' norms and what attention has besides. Errors are those
// of whole vectors, and the geometric means of several sub-batches' are compared: some lie where rounding is magnified. Memory begins as NaNs.
func TestOperandsInBF16(t *testing.T) {
	type loader func(d gpustage.Device, o Options) (*Model, gpustage.Stream)
	models := map[string]loader{}
	for _, name := range familyGoldens(t) {
		switch name {
		case "gemma", "jina", "ernie", "deberta-v2-plain": // have nothing that others don't
			continue
		}
		models[name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream) { return loadFamily(t, name, nil, d, o) }
	}
	for _, dim := range []int{32, 64, 128} { // for kernels with tensor cores
		models[fmt.Sprint("heads of ", dim)] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream) {
			return headsOf(t, "bert", 1+64/dim, dim, d, o)
		}
	}
	models["mpnet, heads of 64"] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream) { return headsOf(t, "mpnet", 2, 64, d, o) }
	fused, copies := onhost.OpenUnchecked(t, onhost.Plain), fastDevice(t)
	separate := fused.As(onhost.Plain)
	separate.Separate = true
	rows := Rows{IDs: make([]int32, 75), Cu: []int32{0, 3, 4, 75}, Keys: []uint64{1, 2, 3}}
	lora := Tuning{FreezeLayers: 1, LoRA: &LoRA{Rank: 2, Alpha: 3, Dropout: 0.2, Targets: []string{AllLinear}}}
	gaps := Tuning{LoRA: &LoRA{Rank: 8, Alpha: 3, Targets: []string{"query", "value"}}}
	for name, load := range models {
		for i, o := range []Options{{}, {CheckpointEvery: 1}, {Tuning: lora}, {Tuning: gaps}} {
			kernels, times, limit := fused, 6, 1.5
			if i == 1 {
				kernels = separate
			}
			if strings.Contains(name, "heads") {
				times = 3 // and much longer
			}
			if o.Tuning.LoRA == gaps.LoRA && !strings.HasPrefix(name, "heads") {
				continue // names of BERT's
			}
			if o.Tuning.LoRA == lora.LoRA {
				limit = 2 // queries' and keys' factors feel most that the attention's output has been rounded, as FlashAttention's is
			}
			if name == "t5" {
				limit = 2 // a ReLU's slope jumps where rounding changes its input's sign
			}
			t.Run(fmt.Sprint(name, "/", i), func(t *testing.T) {
				// run is the gradients of sub-batches, one after the other.
				run := func(d gpustage.Device, dtype gpustage.DType) (gradients [][]float64) {
					o.DType, o.BF16 = dtype, dtype == gpustage.F32
					m, s := load(d, o)
					m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.1
					anyFactors(t, m, s)
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					rows := rows
					if m.Config.MaxPositions < 75 {
						rows.IDs, rows.Cu = rows.IDs[:11], []int32{0, 3, 4, 11}
					}
					bytes := m.Memory([]int{3, 1, int(rows.Cu[3]) - 4}).Backward
					a, err := gpustage.NewArena(d, bytes)
					if err != nil {
						t.Fatal(err)
					}
					random := rand.New(rand.NewPCG(9, 9))
					r := make([]float64, 3*m.EmbeddingSize())
					for range times {
						for k := range rows.IDs {
							rows.IDs[k] = 5 + random.Int32N(int32(m.Config.Vocab-5))
						}
						for k := range r {
							r[k] = random.NormFloat64()
						}
						before := a.Mark()
						s.Fill(a.Keep(s, gpustage.F32, 1, bytes/4), math.NaN())
						a.Release(before)
						s.Fill(grads, 0)
						p := m.Forward(s, a, rows, true, true)
						p.Backward(upload64(t, s, dtype, 3, m.EmbeddingSize(), r), grads)
						gradients = append(gradients, floats(t, s, grads))
						p.Release()
					}
					return gradients
				}
				want := run(ref.New(), gpustage.F64)
				mean := func(got [][]float64) float64 {
					sum := 0.0
					for i := range got {
						sum += math.Log(distance(got[i], want[i]))
					}
					return math.Exp(sum / float64(len(got)))
				}
				here, there := mean(run(kernels, gpustage.F32)), mean(run(copies, gpustage.F32))
				t.Logf("error %.3g, with copies %.3g", here, there)
				if !(here <= limit*there) {
					t.Errorf("error %.3g, with copies %.3g: want at most %.1f times as much", here, there, limit)
				}
			})
		}
	}
}

// Where one of a layer's projections has LoRA's factors and another has none, only some halves of layers keep a copy of their output; what the others
// write is not in its place.
func TestSomeFactors(t *testing.T) {
	kernels, copies := onhost.OpenUnchecked(t, onhost.Plain), fastDevice(t)
	rows, random := Rows{IDs: make([]int32, 37), Cu: []int32{0, 3, 4, 37}, Keys: []uint64{1, 2, 3}}, rand.New(rand.NewPCG(8, 8))
	for i := range rows.IDs {
		rows.IDs[i] = 5 + random.Int32N(30)
	}
	r := make([]float64, 3*128)
	for i := range r {
		r[i] = random.NormFloat64()
	}
	for _, lora := range []LoRA{
		{Targets: []string{"query", "attention.output.dense"}}, {Targets: []string{"query", "intermediate.dense", "0.output.dense"}},
		{Targets: []string{"output.dense"}, Save: []string{"intermediate.dense"}}, // its bias's gradient is a sum of what comes through factors
	} {
		lora.Rank, lora.Alpha = 2, 3
		for _, every := range []int{0, 2} {
			run := func(d gpustage.Device, dtype gpustage.DType) []float64 {
				o := Options{DType: dtype, BF16: dtype == gpustage.F32, CheckpointEvery: every, Tuning: Tuning{LoRA: &lora}}
				m, s := headsOf(t, "bert", 2, 64, d, o)
				anyFactors(t, m, s)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				m.Forward(s, newArena(t, d), rows, true, true).Backward(upload64(t, s, dtype, 3, 128, r), grads)
				return floats(t, s, grads)
			}
			want := run(ref.New(), gpustage.F64)
			if here, there := distance(run(kernels, gpustage.F32), want), distance(run(copies, gpustage.F32), want); !(here <= 3*there) {
				t.Errorf("%v, every %d: error %.3g, with products that round what they read %.3g", lora, every, here, there)
			}
		}
	}
}

// withOperands loads models that differ in what their kernels leave as operands.
func withOperands(t *testing.T, d gpustage.Device) map[string]func(Options) (*Model, gpustage.Stream) {
	golden := func(name string) func(Options) (*Model, gpustage.Stream) {
		return func(o Options) (*Model, gpustage.Stream) { return loadGolden(t, name, d, Head{Normalize: true}, o) }
	}
	family := func(name string) func(Options) (*Model, gpustage.Stream) {
		return func(o Options) (*Model, gpustage.Stream) { return loadFamily(t, name, nil, d, o) }
	}
	return map[string]func(Options) (*Model, gpustage.Stream){
		"bert": golden("minilm-tiny"), "gelu_new": golden("gelu-new"), "modernbert": family("modernbert"), "qwen3": family("qwen3"),
	}
}

// Where operands are of bf16, kept, lean and replayed passes and those that keep nothing give the same bits, embeddings and gradients, in the memory
// that is predicted: of all families, with layers frozen, checkpointed or with LoRA. In these, what a layer takes is made in several ways.
func TestLeanOperands(t *testing.T) {
	d := onhost.OpenUnchecked(t, onhost.Plain)
	models := withOperands(t, d)
	models["bert, heads of 64"] = func(o Options) (*Model, gpustage.Stream) { return headsOf(t, "bert", 2, 64, d, o) }
	models["mpnet, 3 heads of 7"] = func(o Options) (*Model, gpustage.Stream) { return headsOf(t, "mpnet", 3, 7, d, o) }
	for _, name := range []string{"nomic-bert", "roberta", "gemma2"} {
		models[name] = func(o Options) (*Model, gpustage.Stream) { return loadFamily(t, name, nil, d, o) }
	}
	lora := func(frozen int, dropout float64, targets ...string) Tuning {
		return Tuning{FreezeLayers: frozen, LoRA: &LoRA{Rank: 2, Alpha: 3, Dropout: dropout, Targets: targets}}
	}
	for name, load := range models {
		for what, o := range map[string]Options{
			"all":                      {},
			"checkpoints":              {CheckpointEvery: 1},
			"checkpoints of 2":         {CheckpointEvery: 2},
			"a frozen layer":           {Tuning: Tuning{FreezeEmbeddings: true, FreezeLayers: 1}},
			"frozen embeddings":        {Tuning: Tuning{FreezeEmbeddings: true}},
			"frozen, checkpoints":      {CheckpointEvery: 1, Tuning: Tuning{FreezeLayers: 1}},
			"LoRA":                     {Tuning: lora(0, 0.2, AllLinear)},
			"LoRA, checkpoints":        {CheckpointEvery: 1, Tuning: lora(0, 0.2, AllLinear)},
			"LoRA above a frozen one":  {Tuning: lora(1, 0.2, AllLinear)},
			"LoRA of the first inputs": {Tuning: lora(0, 0.2, "query")},
			"LoRA of some":             {Tuning: lora(0, 0, "query", "attention.output.dense")},
		} {
			if strings.HasPrefix(what, "LoRA of") && name != "bert" && name != "bert, heads of 64" {
				continue // names of BERT's
			}
			t.Run(name+"/"+what, func(t *testing.T) {
				o.BF16 = true
				m, s := load(o)
				testLean(t, d, m, s)
			})
		}
	}
	t.Run("segments that begin at odd layers", func(t *testing.T) {
		m, s := layersOf(t, "bert", 4, 3, 7, d, Options{BF16: true, CheckpointEvery: 2, Tuning: Tuning{FreezeLayers: 1, FreezeEmbeddings: true}})
		testLean(t, d, m, s)
	})
}

func testLean(t *testing.T, d *onhost.Device, m *Model, s gpustage.Stream) {
	m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.1
	anyFactors(t, m, s)
	lengths := []int{3, 1, min(33, m.Config.MaxPositions-4)}
	rows, random := Rows{Cu: []int32{0}, Keys: []uint64{1, 2, 3}}, rand.New(rand.NewPCG(8, 8))
	for _, n := range lengths {
		for range n {
			rows.IDs = append(rows.IDs, int32(random.IntN(m.Config.Vocab)))
		}
		rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
	}
	r := make([]float64, 3*m.EmbeddingSize())
	for i := range r {
		r[i] = random.NormFloat64()
	}
	grads, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	mem := m.Memory(lengths)
	var embeddings, gradients []byte
	for i, way := range []struct {
		name       string
		pass       func(a *gpustage.Arena) *Pass
		kept, peak int
	}{
		{"kept", func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, true) }, mem.Kept, mem.Backward},
		{"lean", func(a *gpustage.Arena) *Pass { return m.Lean(s, a, rows) }, mem.Lean, mem.LeanBackward},
		{"replayed", func(a *gpustage.Arena) *Pass { return m.Replay(s, a, rows) }, -1, mem.Backward},
		{"embedding", func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, false) }, -1, mem.Forward},
	} {
		a, err := gpustage.NewArena(d, way.peak)
		if err != nil {
			t.Fatal(err)
		}
		before := a.Mark()
		s.Fill(a.Keep(s, gpustage.F32, 1, way.peak/4), math.NaN())
		a.Release(before)
		s.Fill(grads, 0)
		p := way.pass(a)
		if way.kept >= 0 && a.Used() != way.kept {
			t.Errorf("a %s pass: %d bytes are kept, predicted %d", way.name, a.Used(), way.kept)
		}
		if got := gpustage.Bytes(floats(t, s, p.Embeddings())); i == 0 {
			embeddings = got
		} else if !bytes.Equal(got, embeddings) {
			t.Errorf("the embeddings of a %s pass have other bits", way.name)
		}
		if way.name != "embedding" {
			p.Backward(upload64(t, s, gpustage.F32, 3, m.EmbeddingSize(), r), grads)
			if got := gpustage.Bytes(floats(t, s, grads)); i == 0 {
				gradients = got
			} else if !bytes.Equal(got, gradients) {
				t.Errorf("the gradients of a %s pass have other bits", way.name)
			}
		}
		if err := a.Free(); err != nil {
			t.Error(err)
		}
	}
	c, left := m.Config, 0 // features of a layer and token that a lean pass leaves, 2 bytes each
	if left = c.queries() + 2*c.keys() + c.FeedForward; c.Gated {
		left += c.FeedForward
	}
	if c.Norm == LayerNorm && !m.w.layers[0].ffn.sum.absent() && m.lora() == nil { // what products take of both norms
		left += 2 * c.Hidden
	}
	if least := 2 * left * len(rows.IDs) * (c.Layers - m.Lowest()); m.Leans() && mem.Kept-mem.Lean < least {
		t.Errorf("a lean pass keeps %d bytes, another one %d: want at least %d less", mem.Lean, mem.Kept, least)
	}
}

// A pass that keeps nothing asks the library for the products of one that goes backward: where they were others, as those that add a residual are, a
// GPU may round them otherwise, which the products here do not.
func TestSameProducts(t *testing.T) {
	d := onhost.OpenUnchecked(t, onhost.Plain)
	for name, load := range withOperands(t, d) {
		for _, bf16 := range []bool{false, true} {
			m, s := load(Options{BF16: bf16})
			for _, dropout := range []float64{0, 0.1} {
				m.Config.HiddenDropout, m.Config.AttentionDropout = dropout, dropout
				asked := func(keep bool) (products []onhost.Product) {
					d.Asked = func(p onhost.Product) { // wherever it is
						for _, at := range []*uintptr{&p.A.At, &p.B.At, &p.C.At, &p.D.At, &p.Aux.At, &p.Bias} {
							*at = min(*at, 1)
						}
						products = append(products, p)
					}
					m.Forward(s, newArena(t, d), Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}, Keys: []uint64{1, 2}}, true, keep)
					d.Asked = nil
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					return products
				}
				if got, want := asked(false), asked(true); !slices.Equal(got, want) {
					t.Errorf("%s, bf16 %v, dropout %v: products %+v, of a kept pass %+v", name, bf16, dropout, got, want)
				}
			}
		}
	}
}

// What a device keeps of parameters in a form of its own, weights and biases, is made anew when they have been updated or loaded.
func TestFormsAfterChange(t *testing.T) {
	processor, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer processor.Close()
	changes := map[string]func(m *Model, s gpustage.Stream) error{
		"an update": func(m *Model, s gpustage.Stream) error {
			m.Change(s, func() { s.Scale(m.Trained(), m.Trained(), -1.25) })
			return nil
		},
		"a load": func(m *Model, s gpustage.Stream) error {
			return m.Load(s, func(p Param, dst []float32) error {
				for i := range dst {
					dst[i] = float32(math.Sin(float64(i + p.Off)))
				}
				return nil
			})
		},
	}
	for _, d := range []gpustage.Device{onhost.OpenUnchecked(t, onhost.Plain), processor} {
		for name, tuning := range map[string]Tuning{"all": {}, "biases beside LoRA": {LoRA: &LoRA{Rank: 2, Alpha: 3, Targets: []string{"output.dense"}, Save: []string{"intermediate.dense"}}}} {
			for after, change := range changes {
				embed := func(before bool) []float64 { // by parameters that change after a pass, or before any
					m, s := headsOf(t, "bert", 1, 32, d, Options{BF16: true, Tuning: tuning})
					pass := func() []float64 {
						p := m.Forward(s, newArena(t, d), Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}}, false, false)
						return floats(t, s, p.Embeddings())
					}
					if !before {
						pass()
					}
					if err := change(m, s); err != nil {
						t.Fatal(err)
					}
					return pass()
				}
				if got, want := embed(false), embed(true); !slices.Equal(got, want) {
					t.Errorf("%s, %s: embeddings %v after %s, want %v", d.Name(), name, got, after, want)
				}
			}
		}
	}
}

// distance is |got - want| / |want|.
func distance(got, want []float64) float64 {
	d, n := 0.0, 0.0
	for i, w := range want {
		d, n = d+(got[i]-w)*(got[i]-w), n+w*w
	}
	return math.Sqrt(d / n)
}

// Where operands are of bf16 no pass rounds them: a step's are what its kernels write. What is left is the first layer's input, on the way
// back; biases of products whose result is an operand are rounded once after each update. Norms' backward passes leave what products read, and its sums, with dropout or
// without. Other gradients are summed beside products, by a library that may.
func TestPassesThatRound(t *testing.T) {
	d := onhost.OpenUnchecked(t, onhost.Plain)
	m, s := loadGolden(t, "minilm-tiny", d, Head{Normalize: true}, Options{BF16: true})
	grads, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(t, d)
	spy := &operandSpy{Stream: s}
	pass := func(dropout float64, backward bool) map[string]int {
		m.Config.HiddenDropout, m.Config.AttentionDropout = dropout, dropout
		d.Launched = map[string]int{}
		spy.f32 = 0
		p := m.Forward(spy, a, Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}, Keys: []uint64{1, 2}}, true, true)
		if backward {
			r := upload64(t, s, m.DType, 2, m.EmbeddingSize(), make([]float64, 2*m.EmbeddingSize()))
			d.Launched, spy.f32 = map[string]int{}, 0
			p.Backward(r, grads)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		p.Release()
		return d.Launched
	}
	pass(0.1, true) // what is kept of the parameters is made
	for _, c := range []struct {
		dropout  float64
		backward bool
		rounded  int // and nothing else
		summed   int // by a pass, rounded or not
	}{{0.1, false, 0, 0}, {0, false, 0, 0}, {0.1, true, 1, 0}, {0, true, 1, 0}} {
		ran := pass(c.dropout, c.backward)
		if ran["to_bf16"] != c.rounded || ran["convert"] != 0 || ran["column_sums"] != c.summed || spy.f32 != 0 {
			t.Errorf("dropout %v, backward %v: %d passes round, %d convert, %d sum, %d products read f32; want %d, 0, %d, 0", c.dropout, c.backward, ran["to_bf16"],
				ran["convert"], ran["column_sums"], spy.f32, c.rounded, c.summed)
		}
	}
}

// operandSpy counts products that read something of f32 and no parameter.
type operandSpy struct {
	gpustage.Stream
	f32 int
}

func (s *operandSpy) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	if a.DType == gpustage.F32 || b.DType == gpustage.F32 && o.Forms == nil {
		s.f32++
	}
	s.Stream.MatMul(c, a, b, o)
}
