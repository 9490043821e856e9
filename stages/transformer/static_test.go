package transformer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

const staticConfig = `{"model_type": "static_embedding", "vocab_size": 50, "hidden_size": 6}`

// staticRows are texts of so many tokens.
func staticRows(lengths ...int) Rows {
	r := Rows{Cu: []int32{0}}
	for b, n := range lengths {
		for t := range n {
			r.IDs = append(r.IDs, int32((b*7+t*t*5+3)%50))
		}
		r.Cu = append(r.Cu, int32(len(r.IDs)))
	}
	return r
}

func loadStatic(t testing.TB, d gpustage.Device, h Head, o Options, more func(*Config)) (*Model, gpustage.Stream) {
	t.Helper()
	c, err := ParseConfig([]byte(staticConfig))
	if err != nil {
		t.Fatal(err)
	}
	if more != nil {
		more(&c)
	}
	m, err := New(d, c, h, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	return m, s
}

// Against the definition, worked out here in double precision: an embedding is the mean of rows of the table, zero without any, and a
// token's gradient is what each text that has it gives, by the text's length. With and without normalization, texts without tokens among
// others and alone, on ref in double and on the processor in single precision.
func TestStatic(t *testing.T) {
	for _, d := range []struct {
		device gpustage.Device
		kind   gpustage.DType
		limit  float64
	}{{ref.New(), gpustage.F64, 1e-13}, {fastDevice(t), gpustage.F32, 2e-6}} {
		for _, normalize := range []bool{false, true} {
			for _, lengths := range [][]int{{3, 0, 1, 40, 0}, {0}, {0, 0}, {0, 2}, {5}} {
				name := fmt.Sprint(d.device.Name(), normalize, lengths)
				m, s := loadStatic(t, d.device, Head{Normalize: normalize}, Options{DType: d.kind}, nil)
				if err := m.Init(s, 5); err != nil {
					t.Fatal(err)
				}
				table := floats(t, s, m.Params)
				const c = 6
				rows := staticRows(lengths...)
				if err := m.Check(rows); err != nil {
					t.Fatal(err)
				}
				dy := make([]float64, len(lengths)*c)
				for i := range dy {
					dy[i] = math.Sin(float64(i + 1))
				}
				want, grad := make([]float64, len(dy)), make([]float64, len(table))
				for b := range lengths {
					ids := rows.IDs[rows.Cu[b]:rows.Cu[b+1]]
					mean, in := want[b*c:(b+1)*c], dy[b*c:(b+1)*c]
					for _, id := range ids {
						for j := range mean {
							mean[j] += table[int(id)*c+j] / float64(len(ids))
						}
					}
					norm, dot := 0.0, 0.0
					for _, v := range mean {
						norm += v * v
					}
					if norm = math.Sqrt(norm); !normalize {
						norm = 1
					}
					if normalize && len(ids) > 0 {
						for j := range mean {
							mean[j] /= norm
							dot += mean[j] * in[j]
						}
					}
					for _, id := range ids {
						for j := range mean {
							grad[int(id)*c+j] += (in[j] - mean[j]*dot) / norm / float64(len(ids))
						}
					}
				}
				a := newArena(t, d.device)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				pass := m.Forward(s, a, rows, true, true)
				got := floats(t, s, pass.Embeddings())
				pass.Backward(upload64(t, s, d.kind, len(lengths), c, dy), grads)
				if e := relative(got, want, d.limit); !(e <= d.limit) {
					t.Errorf("%s: embeddings are off by %.3g", name, e)
				}
				if e := relative(floats(t, s, grads), grad, d.limit); !(e <= d.limit) {
					t.Errorf("%s: gradients are off by %.3g", name, e)
				}
				pass.Release()
				plain := m.Forward(s, a, rows, false, false)
				if !bytes.Equal(gpustage.Bytes(floats(t, s, plain.Embeddings())), gpustage.Bytes(got)) {
					t.Errorf("%s: a pass that keeps nothing has other bits", name)
				}
				plain.Release()
				if a.Used() != 0 {
					t.Errorf("%s: %d bytes of the arena were not given back", name, a.Used())
				}
				if mem, peak := m.Memory(lengths), int(a.Peak()); peak > max(int(mem.Forward), int(mem.Backward)) {
					t.Errorf("%s: took %d bytes, predicted %+v", name, peak, mem)
				}
			}
		}
	}
}

// With the table frozen a dense layer behind it learns.
func TestStaticTuning(t *testing.T) {
	dense := func(c *Config) { c.Dense = []Dense{{Name: "1_Dense", Out: 4, Bias: true}} }
	m, _ := loadStatic(t, ref.New(), Head{}, Options{Tuning: Tuning{FreezeEmbeddings: true}}, dense)
	if n := m.Layout.Trained(); n != 4*6+4 {
		t.Errorf("%d parameters train", n)
	}
	if m, _ = loadStatic(t, ref.New(), Head{}, Options{}, dense); m.Layout.Trained() != 50*6+4*6+4 || m.EmbeddingSize() != 4 {
		t.Errorf("%d parameters train, for embeddings of %d", m.Layout.Trained(), m.EmbeddingSize())
	}
}

// What static embeddings do not have is an error that says so.
func TestStaticErrors(t *testing.T) {
	for want, try := range map[string]struct {
		change func(*Config)
		head   Head
		o      Options
	}{
		"pooled by their mean":              {head: Head{Pooling: gpustage.CLSPooling}},
		"have no layers":                    {o: Options{CheckpointEvery: AutoCheckpoint}},
		"1 layers are to be frozen":         {o: Options{Tuning: Tuning{FreezeLayers: 1}}},
		"everything is frozen":              {o: Options{Tuning: Tuning{FreezeEmbeddings: true}}},
		"leaves no linear layer":            {o: Options{Tuning: Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{AllLinear}}}}},
		"drop nothing":                      {change: func(c *Config) { c.HiddenDropout = 0.1 }},
		"of 0 tokens":                       {change: func(c *Config) { c.Vocab = 0 }},
		"a reranker, or a model of kind m3": {change: func(c *Config) { c.Tokens = TokenHeads{Sparse: "s", Vectors: "v", Dim: 2} }},
	} {
		c, err := ParseConfig([]byte(staticConfig))
		if err != nil {
			t.Fatal(err)
		}
		if try.change != nil {
			try.change(&c)
		}
		if _, err := New(ref.New(), c, try.head, try.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	m, _ := loadStatic(t, ref.New(), Head{}, Options{}, nil)
	if err := m.Check(Rows{IDs: []int32{50}, Cu: []int32{0, 1}}); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}
