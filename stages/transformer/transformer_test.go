package transformer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// loadGolden makes the model of a golden folder.
func loadGolden(t testing.TB, name string, d gpustage.Device, h Head, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	return loadAt(t, "bert/"+name, d, h, o)
}

// loadAt makes the model of a golden folder.
func loadAt(t testing.TB, folder string, d gpustage.Device, h Head, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	return loadModel(t, configAt(t, folder), d, h, o, weightsOf(t, goldens.Load(t, folder+"/model")))
}

func configAt(t testing.TB, folder string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, folder), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// weightsOf fills parameters with a golden's.
func weightsOf(t testing.TB, w *goldens.Golden) func(p Param, dst []float32) error {
	return func(p Param, dst []float32) error {
		if got, want := fmt.Sprint(w.Shape(t, p.Name)), fmt.Sprint(p.Shape()); got != want {
			t.Errorf("%s has shape %s, want %s", p.Name, got, want)
		}
		copy(dst, w.F32(t, p.Name))
		return nil
	}
}

// loadModel makes the model of a configuration and fills its parameters.
func loadModel(t testing.TB, config []byte, d gpustage.Device, h Head, o Options, fill func(p Param, dst []float32) error) (*Model, gpustage.Stream) {
	t.Helper()
	c, err := ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(d, c, h, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(s, fill); err != nil {
		t.Fatal(err)
	}
	return m, s
}

func goldenRows(t testing.TB, g *goldens.Golden, prefix string) Rows {
	r := Rows{Cu: []int32{0}}
	for _, id := range g.Ints(t, prefix+"ids") {
		r.IDs = append(r.IDs, int32(id))
	}
	for _, n := range g.Ints(t, prefix+"lengths") {
		r.Cu = append(r.Cu, r.Cu[len(r.Cu)-1]+int32(n))
	}
	return r
}

func newArena(t testing.TB, d gpustage.Device) *gpustage.Arena {
	t.Helper()
	a, err := gpustage.NewArena(d, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Free() })
	return a
}

// floats reads a tensor as f64.
func floats(t testing.TB, s gpustage.Stream, x gpustage.Tensor) []float64 {
	t.Helper()
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, x.Rows, x.Cols)
	if err != nil {
		t.Fatal(err)
	}
	s.Copy(wide, x)
	out := make([]float64, x.Len())
	s.CopyOut(gpustage.Bytes(out), wide)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	return out
}

func upload64(t testing.TB, s gpustage.Stream, d gpustage.DType, rows, cols int, vs []float64) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(s.Device(), d, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	s.CopyIn(wide, gpustage.Bytes(vs))
	s.Copy(x, wide)
	return x
}

// relative is GradientError, where largest is the largest value of the whole gradient. With 0 it measures other tensors too.
func relative(got, want []float64, largest float64) float64 {
	return GradientError(got, want, GradientFloor*largest)
}

var poolings = map[string]gpustage.Pooling{"mean": gpustage.MeanPooling, "cls": gpustage.CLSPooling, "last": gpustage.LastPooling}

// Against transformers and PyTorch: embeddings and every parameter's gradient, in f64 and in f32, with and without activation
// checkpointing.
func TestGolden(t *testing.T) {
	harness.Thorough(t)
	for _, name := range []string{"minilm-tiny", "gelu-new", "relu-one-head", "odd-sizes"} {
		g := goldens.Load(t, "bert/"+name)
		var meta struct{ Outputs []string }
		g.Meta(t, &meta)
		for i, output := range meta.Outputs {
			for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
				for _, every := range []int{0, 1, 2} {
					t.Run(fmt.Sprint(name, "/", output, "/", dtype, "/every", every), func(t *testing.T) {
						pool, normalized := strings.CutSuffix(output, "_normalized")
						d := ref.New()
						m, s := loadGolden(t, name, d, Head{Pooling: poolings[pool], Normalize: normalized}, Options{DType: dtype, CheckpointEvery: every})
						a := newArena(t, d)
						rows := goldenRows(t, g, "")
						grads, err := m.NewGradients()
						if err != nil {
							t.Fatal(err)
						}
						p := m.Forward(s, a, rows, true, true)
						r := upload64(t, s, dtype, rows.Len(), m.Config.Hidden, g.F64(t, "r"))
						p.Backward(r, grads)
						emb := floats(t, s, p.Embeddings())
						limit := 1e-5
						if dtype == gpustage.F64 {
							limit = 1e-11
							if i > 0 {
								limit = 2e-7 // these gradients are stored in f32
							}
						}
						if e := relative(emb, g.F64(t, output+"/embedding"), 0); !(e <= min(limit, 1e-5)) {
							t.Errorf("embeddings: error %.3g", e)
						}
						largest := 0.0
						for _, p := range m.Layout.Params {
							for _, v := range g.F64(t, output+"/grad/"+p.Name) {
								largest = max(largest, math.Abs(v))
							}
						}
						for _, p := range m.Layout.Params {
							got := floats(t, s, m.Layout.View(grads, p))
							if e := relative(got, g.F64(t, output+"/grad/"+p.Name), largest); !(e <= limit) {
								t.Errorf("gradient of %s: error %.3g", p.Name, e)
							}
						}
					})
				}
			}
		}
	}
}

// A pass that keeps nothing, a kept one and a replayed one give the same bits, and so do gradients with and without
// activation checkpointing, dropout included.
func TestBitEqual(t *testing.T) {
	d := ref.New()
	rows := goldenRows(t, goldens.Load(t, "bert/minilm-tiny"), "")
	for b := range rows.Len() {
		rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
	}
	run := func(every int, bf16 bool) (emb, grad []byte) {
		m, s := loadGolden(t, "minilm-tiny", d, Head{Normalize: true}, Options{CheckpointEvery: every, BF16: bf16})
		m.Config.HiddenDropout, m.Config.AttentionDropout = 0.2, 0.1
		a := newArena(t, d)
		first := m.Forward(s, a, rows, true, false)
		emb = gpustage.Bytes(floats(t, s, first.Embeddings()))
		r := upload64(t, s, gpustage.F32, rows.Len(), m.Config.Hidden, goldens.Load(t, "bert/minilm-tiny").F64(t, "r"))
		first.Release()
		again := m.Forward(s, a, rows, true, true)
		if !bytes.Equal(emb, gpustage.Bytes(floats(t, s, again.Embeddings()))) {
			t.Error("a replayed forward pass gave other bits")
		}
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		again.Backward(r, grads)
		again.Release()
		soon := m.Replay(s, a, rows)
		others, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		soon.Backward(r, others)
		if !bytes.Equal(gpustage.Bytes(floats(t, s, grads)), gpustage.Bytes(floats(t, s, others))) || !bytes.Equal(emb, gpustage.Bytes(floats(t, s, soon.Embeddings()))) {
			t.Errorf("every %d: a pass that goes backward at once has other bits", every)
		}
		soon.Release()
		if a.Used() != 0 {
			t.Errorf("%d bytes of the arena were not given back", a.Used())
		}
		return emb, gpustage.Bytes(floats(t, s, grads))
	}
	for _, bf16 := range []bool{false, true} {
		emb, grad := run(0, bf16)
		for _, every := range []int{1, 2, 3} {
			e, g := run(every, bf16)
			if !bytes.Equal(e, emb) || !bytes.Equal(g, grad) {
				t.Errorf("checkpointing every %d layers changes bits, bf16 %t", every, bf16)
			}
		}
	}
}

// Dropout's masks depend on the rows, not on how they are packed: a batch and its parts give the same embeddings and
// the same gradient.
func TestDropoutFollowsRows(t *testing.T) {
	d := ref.New()
	g := goldens.Load(t, "bert/minilm-tiny")
	all := goldenRows(t, g, "")
	for b := range all.Len() {
		all.Keys = append(all.Keys, gpustage.RowKey(9, 0, int64(b), 1))
	}
	m, s := loadGolden(t, "minilm-tiny", d, Head{Normalize: true}, Options{DType: gpustage.F64})
	m.Config.HiddenDropout, m.Config.AttentionDropout = 0.3, 0.2
	a := newArena(t, d)
	r := g.F64(t, "r")
	c := m.Config.Hidden
	run := func(cuts ...int) (emb, grad []float64) {
		grads, _ := m.NewGradients()
		for i := range len(cuts) - 1 {
			lo, hi := cuts[i], cuts[i+1]
			part := Rows{IDs: all.IDs[all.Cu[lo]:all.Cu[hi]], Keys: all.Keys[lo:hi]}
			for b := lo; b <= hi; b++ {
				part.Cu = append(part.Cu, all.Cu[b]-all.Cu[lo])
			}
			p := m.Forward(s, a, part, true, true)
			emb = append(emb, floats(t, s, p.Embeddings())...)
			p.Backward(upload64(t, s, gpustage.F64, hi-lo, c, r[lo*c:hi*c]), grads)
			p.Release()
		}
		return emb, floats(t, s, grads)
	}
	emb, grad := run(0, all.Len())
	for _, cuts := range [][]int{{0, 1, 2, 3, 4, 5, 6, 7}, {0, 3, 7}, {0, 6, 7}} {
		e, gr := run(cuts...)
		if x := relative(e, emb, 0); !(x <= 1e-12) {
			t.Errorf("cut at %v: embeddings differ by %.3g", cuts, x)
		}
		if x := relative(gr, grad, 0); !(x <= 1e-12) {
			t.Errorf("cut at %v: gradients differ by %.3g", cuts, x)
		}
	}
	m.Config.HiddenDropout, m.Config.AttentionDropout = 0, 0
	without, _ := run(0, all.Len())
	for _, rates := range [][2]float64{{0.3, 0.2}, {0.3, 0}, {0, 0.2}} { // each works alone
		m.Config.HiddenDropout, m.Config.AttentionDropout = rates[0], rates[1]
		if e, _ := run(0, all.Len()); !(relative(e, without, 0) >= 0.01) {
			t.Errorf("dropout of %v did nothing", rates)
		}
	}
}

// The gradient with dropout is that of the masked function: central differences in a random direction.
func TestDirectionalDerivative(t *testing.T) {
	d := ref.New()
	g := goldens.Load(t, "bert/odd-sizes")
	rows := goldenRows(t, g, "")
	for b := range rows.Len() {
		rows.Keys = append(rows.Keys, uint64(b)*77)
	}
	m, s := loadGolden(t, "odd-sizes", d, Head{Pooling: gpustage.LastPooling, Normalize: true}, Options{DType: gpustage.F64})
	m.Config.HiddenDropout, m.Config.AttentionDropout = 0.2, 0.2
	testDerivative(t, m, s, rows, g.F64(t, "r"))
}

// testDerivative compares the gradient of sum(embedding * r) with a central difference.
func testDerivative(t *testing.T, m *Model, s gpustage.Stream, rows Rows, r []float64) {
	t.Helper()
	a := newArena(t, s.Device())
	loss := func() (sum float64) {
		p := m.Forward(s, a, rows, true, false)
		defer p.Release()
		for i, v := range floats(t, s, p.Embeddings()) {
			sum += v * r[i]
		}
		return sum
	}
	grads, _ := m.NewGradients()
	p := m.Forward(s, a, rows, true, true)
	p.Backward(upload64(t, s, gpustage.F64, rows.Len(), m.EmbeddingSize(), r), grads)
	p.Release()
	w, dw := gpustage.Slice[float64](m.Trained()), gpustage.Slice[float64](grads)
	rng := rand.New(rand.NewPCG(5, 6))
	dir, want := make([]float64, len(w)), 0.0
	for i := range dir {
		dir[i] = rng.NormFloat64()
		want += dir[i] * dw[i]
	}
	const h = 2e-7
	move := func(by float64) {
		m.Change(s, func() {
			for i := range w {
				w[i] += by * dir[i]
			}
		})
	}
	move(h)
	up := loss()
	move(-2 * h)
	down := loss()
	if got := (up - down) / (2 * h); !(math.Abs(got-want) <= 1e-6*math.Abs(want)) {
		t.Errorf("derivative %v, gradient says %v", got, want)
	}
}

// The square root is that of the layers that go backward.
func TestAutoCheckpoint(t *testing.T) {
	for frozen, want := range []int{3, 3, 3, 2, 2, 2, 2, 1, 1} {
		m, _ := layersOf(t, "bert", 9, 1, 2, ref.New(), Options{CheckpointEvery: AutoCheckpoint, Tuning: Tuning{FreezeEmbeddings: true, FreezeLayers: frozen}})
		if got := m.Options.CheckpointEvery; got != want {
			t.Errorf("%d of 9 layers are frozen: every %d, want %d", frozen, got, want)
		}
	}
}

// Predicted memory is what a pass takes.
func TestMemory(t *testing.T) {
	d := ref.New()
	rows := goldenRows(t, goldens.Load(t, "bert/minilm-tiny"), "")
	rows.Keys = make([]uint64, rows.Len())
	var lengths []int
	for b := range rows.Len() {
		lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
	}
	for _, bf16 := range []bool{false, true} {
		kept := map[int]int{}
		for _, every := range []int{0, 1, 2, 3} {
			m, s := loadGolden(t, "minilm-tiny", d, Head{Normalize: true}, Options{CheckpointEvery: every, BF16: bf16})
			m.Config.HiddenDropout = 0.1
			want := m.Memory(lengths)
			kept[every] = want.Kept
			a := newArena(t, d)
			p := m.Forward(s, a, rows, true, false)
			if a.Peak() != want.Forward {
				t.Errorf("every %d: forward took %d bytes, predicted %d", every, a.Peak(), want.Forward)
			}
			p.Release()
			a = newArena(t, d)
			p = m.Forward(s, a, rows, true, true)
			if a.Used() != want.Kept {
				t.Errorf("every %d: %d bytes kept, predicted %d", every, a.Used(), want.Kept)
			}
			grads, _ := m.NewGradients()
			p.Backward(p.Embeddings(), grads)
			if a.Peak() != want.Backward {
				t.Errorf("every %d: backward took %d bytes, predicted %d", every, a.Peak(), want.Backward)
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		if kept[1] > kept[0]/2 {
			t.Errorf("activation checkpointing keeps %d bytes, all activations take %d", kept[1], kept[0])
		}
	}
	// One byte less is an error that says so.
	m, s := loadGolden(t, "minilm-tiny", d, Head{}, Options{})
	a, _ := gpustage.NewArena(d, m.Memory(lengths).Kept-64)
	m.Forward(s, a, rows, true, true)
	if err := s.Sync(); !errors.Is(err, gpustage.ErrOutOfMemory) {
		t.Errorf("error %v", err)
	}
}

func TestParseConfigErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`{`:                                      "config.json: unexpected end of JSON input",
		`{"model_type":"xlnet"}`:                 `model_type "xlnet" is not supported (supported: bert`,
		`{"model_type":"bert","hidden_size":-3}`: "hidden_size is -3, want a positive number",
		`{"model_type":"bert","hidden_size":1000000000000}`:              "hidden_size is 1000000000000, want at most 1073741824",
		`{"model_type":"bert","num_hidden_layers":1000000000}`:           "num_hidden_layers is 1000000000, want at most 10000",
		`{"model_type":"bert","hidden_size":30,"num_attention_heads":4}`: "hidden_size 30 is not a multiple of num_attention_heads 4",
		`{"model_type":"bert","hidden_act":"mish"}`:                      `hidden_act "mish" is not supported`,
		`{"model_type":"bert","position_embedding_type":"relative_key"}`: `position_embedding_type "relative_key" is not supported`,
		`{"model_type":"bert","hidden_dropout_prob":1.5}`:                "hidden_dropout_prob is 1.5",
		`{"model_type":"bert","is_decoder":true}`:                        "a BERT decoder is not supported",
		`{"model_type":"bert","hidden_size":"x"}`:                        "hidden_size",
	} {
		if _, err := ParseConfig([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", raw, err, want)
		}
	}
	for raw, want := range map[string]string{ // of several mistakes it is always the same that is told
		`{"model_type":"bert","hidden_dropout_prob":1.5,"attention_probs_dropout_prob":-1}`:                              "hidden_dropout_prob is 1.5",
		`{"model_type":"gemma2","rms_norm_eps":-1,"query_pre_attn_scalar":256,"attn_logit_softcapping":-1,"head_dim":4}`: "layer_norm_eps gives -1",
	} {
		for range 20 {
			if _, err := ParseConfig([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%s: error %v, want %q", raw, err, want)
			}
		}
	}
}

func TestInit(t *testing.T) {
	d := ref.New()
	m, err := New(d, Config{Family: "bert", Vocab: 50, Hidden: 16, Layers: 1, Heads: 2, FeedForward: 32, MaxPositions: 8, TypeVocab: 2, InitRange: 0.02}, Head{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := d.OpenStream()
	if err := m.Init(s, 1); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Layout.Params {
		vs, err := m.Read(s, m.Params, p)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, v := range vs {
			sum += float64(v) * float64(v)
		}
		rms := math.Sqrt(sum / float64(len(vs)))
		want := map[paramKind]float64{weight: 0.02, embedding: 0.02, bias: 0, normWeight: 1}[p.kind]
		if !(math.Abs(rms-want) <= 0.3*want) {
			t.Errorf("%s: root mean square %v, want %v", p.Name, rms, want)
		}
		if p.Name == "embeddings.word_embeddings.weight" && vs[0] != 0 {
			t.Error("the padding row is not zero")
		}
	}
}
