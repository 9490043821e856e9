package transformer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// padding is a device that models pad for, and that has no use for it.
type padding struct{ gpustage.Device }

func (padding) Repeats() bool { return true }

// A bucket has room for the rows and for padding whose rows are no longer than may be, is little larger, and there are few of them.
func TestBucket(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		s := shape{rows: 1 + rng.IntN(1<<rng.IntN(9))}
		s.longest = 1 + rng.IntN(1<<rng.IntN(11))
		s.tokens = s.longest + (s.rows-1)*(1+rng.IntN(s.longest))
		most := max(2, s.longest+rng.IntN(3)*rng.IntN(100))
		b := s.bucket(most)
		extra, tokens := b.rows-s.rows, b.tokens-s.tokens
		if extra < 1 || tokens < extra || tokens > extra*min(b.longest, most) || b.longest < s.longest {
			t.Fatalf("%+v, rows of at most %d tokens: %+v", s, most, b)
		}
		if limit := max(64+extra, s.tokens/7+extra); tokens > limit && most > 8 {
			t.Fatalf("%+v, rows of at most %d tokens: %d tokens of padding in %+v", s, most, tokens, b)
		}
	}
	// Sub-batches as they are cut by tokens, of texts of 5 to 128.
	shapes := map[shape]int{}
	for range 1000 {
		var s shape
		for {
			n := 5 + rng.IntN(124)
			if s.tokens+n > 16384 {
				break
			}
			s.tokens, s.rows, s.longest = s.tokens+n, s.rows+1, max(s.longest, n)
		}
		shapes[s.bucket(512)]++
	}
	if len(shapes) > 6 {
		t.Errorf("1,000 sub-batches of nearly 16,384 tokens have %d shapes: %v", len(shapes), shapes)
	}
	if b := (shape{rows: 3}).bucket(512); b.rows < 4 || b.tokens < b.rows-3 {
		t.Errorf("three empty texts: %+v", b)
	}
}

// Padded or not, a model gives the same numbers, in f64 all but the last bits of sums: every part of every row, and every parameter's gradient.
// Every family, heads of all kinds, with dropout, and with activation checkpointing.
func TestPadding(t *testing.T) {
	harness.Thorough(t)
	type load func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows)
	models := map[string]load{}
	for _, name := range []string{"bert", "xlm-roberta", "qwen3-yes-no", "gemma2-yes", "minicpm-train", "minicpm-shared"} {
		models["rerank/"+name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
			m, s, _, rows := loadHead(t, name, d, o, func(c *Config) { c.Scorer.DropoutIn, c.Scorer.DropoutOut = 0.2, 0.2 })
			return m, s, rows
		}
	}
	models["m3"] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
		m, s, _, rows := loadM3(t, d, o)
		return m, s, rows
	}
	models["colbert"] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
		m, s, rows := loadColBERT(t, d, o, Head{Normalize: true}, true)
		for i := range rows.IDs {
			if i%5 != 2 {
				rows.Shown = append(rows.Shown, int32(i))
			}
		}
		return unseen(m), s, halfSeen(rows)
	}
	for _, pooling := range []gpustage.Pooling{gpustage.MeanPooling, gpustage.CLSPooling, gpustage.LastPooling} {
		models[fmt.Sprintf("without prompts, %v", pooling)] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
			m, s, rows := loadColBERT(t, d, o, Head{Pooling: pooling, SkipPrompt: true, Normalize: true}, false)
			rows.Prompt = halfSeen(rows).Seen
			return m, s, rows
		}
	}
	for _, name := range []string{"bert", "modernbert"} {
		models["splade/"+name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
			m, s, _, rows := loadSparse(t, name, d, o, nil)
			return m, s, rows
		}
	}
	for _, name := range familyGoldens(t) {
		models["families/"+name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream, Rows) {
			m, s := loadFamily(t, name, nil, d, o)
			return m, s, goldenRows(t, goldens.Load(t, "families/"+name), "")
		}
	}
	for name, open := range models {
		for _, every := range []int{0, 2} {
			if every > 0 && strings.HasPrefix(name, "families") {
				continue
			}
			t.Run(fmt.Sprint(name, "/every", every), func(t *testing.T) {
				run := func(d gpustage.Device) (m *Model, parts [][]float64, grads []float64) {
					m, s, rows := open(d, Options{DType: gpustage.F64, CheckpointEvery: every})
					m.Config.HiddenDropout, m.Config.AttentionDropout = 0.2, 0.2
					var lengths []int
					for b := range rows.Len() {
						rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
						lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
					}
					mem := m.Memory(lengths)
					a, err := gpustage.NewArena(ref.New(), mem.Backward)
					if err != nil {
						t.Fatal(err)
					}
					flat, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					p := m.Forward(s, a, rows, true, true)
					if a.Used() > mem.Kept {
						t.Errorf("%d bytes are kept, %d were predicted", a.Used(), mem.Kept)
					}
					rng := rand.New(rand.NewPCG(1, 2))
					var d2 []gpustage.Tensor
					for _, x := range p.Parts() {
						parts = append(parts, floats(t, s, x))
						r := make([]float64, x.Len())
						for i := range r {
							r[i] = rng.NormFloat64()
						}
						d2 = append(d2, upload64(t, s, gpustage.F64, x.Rows, x.Cols, r))
					}
					p.BackwardTo(d2, Gradients{Flat: flat})
					p.Release()
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					return m, parts, floats(t, s, flat)
				}
				plain, want, wantGrads := run(ref.New())
				padded, got, grads := run(padding{ref.New()})
				if plain.Buckets() || !padded.Buckets() {
					t.Fatalf("the plain model pads: %v, the other: %v", plain.Buckets(), padded.Buckets())
				}
				for i := range want {
					if len(got[i]) != len(want[i]) {
						t.Fatalf("part %d has %d numbers, want %d", i, len(got[i]), len(want[i]))
					}
					if e := relative(got[i], want[i], 0); !(e <= 1e-13) {
						t.Errorf("part %d is off by %.3g", i, e)
					}
				}
				largest := 0.0
				for _, v := range wantGrads {
					largest = max(largest, math.Abs(v))
				}
				for _, p := range plain.Layout.Params {
					from, to := plain.Layout.At(p), plain.Layout.At(p)+p.Len()
					if e := relative(grads[from:to], wantGrads[from:to], largest); !(e <= 1e-12) {
						t.Errorf("the gradient of %s is off by %.3g", p.Name, e)
					}
				}
			})
		}
	}
}

// countingDevice counts what it is given.
type countingDevice interface {
	gpustage.Device
	Counts() onhost.Counts
}

// passes is n rows' forward and backward pass on a model whose parameters do not change, and what the second such pass gives the device.
func passes(t testing.TB, d countingDevice, c Config, n int) (pass func(), launches int64) {
	rows := Rows{Cu: []int32{0}}
	for i := range n {
		for range 40 + i {
			rows.IDs = append(rows.IDs, 7)
		}
		rows.Cu, rows.Keys = append(rows.Cu, int32(len(rows.IDs))), append(rows.Keys, uint64(i))
	}
	m, err := New(d, c, Head{Normalize: true}, Options{BF16: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	flat, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	a, err := gpustage.NewArena(d, n<<25)
	if err != nil {
		t.Fatal(err)
	}
	pass = func() {
		p := m.Forward(s, a, rows, true, true)
		p.Backward(p.Embeddings(), flat)
		p.Release()
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	pass() // rounds parameters besides
	before := d.Counts()
	pass()
	after := d.Counts()
	return pass, after.Started + after.Products - before.Started - before.Products
}

// bertShape is BERT with dropout, of a size.
func bertShape(hidden, layers int) Config {
	return Config{
		Family: "bert", Vocab: 30522, Hidden: hidden, Layers: layers, Heads: 12, FeedForward: 4 * hidden, MaxPositions: 512, TypeVocab: 2, NormEps: 1e-12,
		HiddenDropout: 0.1, AttentionDropout: 0.1, Activation: gpustage.GELU,
	}
}

// The device whose launches do nothing is given what the kernels' device is given: what BenchmarkIssue counts and times is a GPU's.
func TestIdle(t *testing.T) {
	kernels, c := onhost.OpenUnchecked(t, onhost.Padded), bertShape(96, 2)
	kernels.NoSums, c.Vocab = true, 11
	_, want := passes(t, kernels, c, 2)
	if _, got := passes(t, onhost.Idle(onhost.Padded), c, 2); got != want {
		t.Errorf("%d launches, want %d", got, want)
	}
}

// What the host does for a sub-batch of a model's shape, forward and backward, beside the driver's own work, which starting a launch is
// most of: on a device whose launches do nothing.
func BenchmarkIssue(b *testing.B) {
	for _, model := range []struct {
		name           string
		hidden, layers int
	}{{"MiniLM-L6", 384, 6}, {"BERT-base", 768, 12}} {
		for name, mode := range map[string]onhost.Mode{"each": onhost.Padded, "recorded": onhost.Recorded} {
			b.Run(model.name+"/"+name, func(b *testing.B) {
				pass, launches := passes(b, onhost.Idle(mode), bertShape(model.hidden, model.layers), 32)
				pass()
				b.ReportAllocs()
				for b.Loop() {
					pass()
				}
				b.ReportMetric(float64(launches), "launches")
			})
		}
	}
}
