package transformer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
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
// token's gradient is what each text that has it gives, by the text's length. With and without normalization and a dense layer, texts without
// tokens among others and alone, on ref in double and on the processor in single precision.
func TestStatic(t *testing.T) {
	for _, d := range []struct {
		device gpustage.Device
		kind   gpustage.DType
		limit  float64
	}{{ref.New(), gpustage.F64, 1e-13}, {fastDevice(t), gpustage.F32, 2e-6}} {
		for i, lengths := range [][]int{{3, 0, 1, 40, 0}, {0}, {0, 0}, {0, 2}, {5}, {3, 0, 1, 40, 0}, {0}, {0, 0}, {0, 2}, {5}, {7, 0, 1}} {
			for _, normalize := range []bool{false, true} {
				name := fmt.Sprint(d.device.Name(), normalize, lengths)
				const c = 6
				e := c
				dense := func(*Config) {}
				if i >= 5 {
					e, dense = 4, func(c *Config) { c.Dense = []Dense{{Name: "1_Dense", Out: 4, Bias: true}} }
				}
				m, s := loadStatic(t, d.device, Head{Normalize: normalize}, Options{DType: d.kind}, dense)
				if err := m.Init(s, 5); err != nil {
					t.Fatal(err)
				}
				params := floats(t, s, m.Params)
				if i >= 5 { // its bias begins as zero
					for j := range 4 {
						params[50*c+4*c+j] = float64(j + 1)
					}
					m.Change(s, func() { s.Copy(m.Params, upload64(t, s, d.kind, 1, len(params), params)) })
				}
				rows := staticRows(lengths...)
				if err := m.Check(rows); err != nil {
					t.Fatal(err)
				}
				dy := make([]float64, len(lengths)*e)
				for i := range dy {
					dy[i] = math.Sin(float64(i + 1))
				}
				want, grad := make([]float64, len(dy)), make([]float64, len(params))
				weight, bias := params[50*c:], params[len(params)-4:]
				dWeight, dBias := grad[50*c:], grad[len(grad)-4:]
				for b := range lengths {
					ids := rows.IDs[rows.Cu[b]:rows.Cu[b+1]]
					mean, dMean := make([]float64, c), make([]float64, c)
					y, in := want[b*e:(b+1)*e], dy[b*e:(b+1)*e]
					for _, id := range ids {
						for j := range mean {
							mean[j] += params[int(id)*c+j] / float64(len(ids))
						}
					}
					copy(y, mean)
					if e < c {
						for k := range y {
							y[k] = bias[k]
							for j := range mean {
								y[k] += weight[k*c+j] * mean[j]
							}
						}
					}
					norm, dot := 0.0, 0.0
					for _, v := range y {
						norm += v * v
					}
					if norm = math.Sqrt(norm); !normalize {
						norm = 1
					}
					if normalize && norm > 0 {
						for j := range y {
							y[j] /= norm
							dot += y[j] * in[j]
						}
					}
					for k := range y {
						d := (in[k] - y[k]*dot) / norm
						if e == c {
							dMean[k] = d
							continue
						}
						dBias[k] += d
						for j := range mean {
							dWeight[k*c+j] += d * mean[j]
							dMean[j] += d * weight[k*c+j]
						}
					}
					for _, id := range ids {
						for j := range mean {
							grad[int(id)*c+j] += dMean[j] / float64(len(ids))
						}
					}
				}
				a := newArena(t, d.device)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				pass := m.Forward(s, a, rows, true, true)
				kept := a.Used()
				got := floats(t, s, pass.Embeddings())
				pass.Backward(upload64(t, s, d.kind, len(lengths), e, dy), grads)
				if e := relative(got, want, d.limit); !(e <= d.limit) {
					t.Errorf("%s: embeddings are off by %.3g", name, e)
				}
				for _, p := range m.Layout.Params {
					at, to := p.Off, p.Off+p.Len()
					if e := relative(floats(t, s, grads.Columns(at, to)), grad[at:to], 1); !(e <= d.limit) {
						t.Errorf("%s: gradients of %s are off by %.3g", name, p.Name, e)
					}
				}
				pass.Release()
				// Places of kept passes are a bit larger where they are to be of equal size.
				mem := m.Memory(lengths)
				if took := mem.Keeping(kept, kept); a.Peak() != took.Backward || kept > mem.Kept || kept < mem.Kept && !m.Buckets() {
					t.Errorf("%s: took %d bytes and kept %d of them, predicted %+v", name, a.Peak(), kept, mem)
				}
				plain := m.Forward(s, a, rows, false, false)
				if !bytes.Equal(gpustage.Bytes(floats(t, s, plain.Embeddings())), gpustage.Bytes(got)) {
					t.Errorf("%s: a pass that keeps nothing has other bits", name)
				}
				plain.Release()
				if a.Used() != 0 {
					t.Errorf("%s: %d bytes of the arena were not given back", name, a.Used())
				}
			}
		}
	}
}

// Where the table's rows are pooled where they lie, a token takes three numbers that say which and where it is, and no row of its own.
func TestStaticMemory(t *testing.T) {
	for _, d := range []gpustage.Device{ref.New(), fastDevice(t), gathers{ref.New()}} {
		m, _ := loadStatic(t, d, Head{}, Options{}, nil)
		few, many := m.Memory([]int{1000}), m.Memory([]int{9000})
		got := [3]int{(many.Forward - few.Forward) / 8000, (many.Kept - few.Kept) / 8000, (many.Backward - few.Backward) / 8000}
		want := [3]int{3 * 4, 3 * 4, 3 * 4}
		if !gpustage.Bags(d) {
			want = [3]int{(3 + 6) * 4, (3 + 6) * 4, (3 + 2*6) * 4}
		}
		if got != want {
			t.Errorf("%s: passes take, and keep, %d bytes a token, want %d", d.Name(), got, want)
		}
	}
}

// gathers is a device that pools what Gather has put together, as GPUs do.
type gathers struct{ *ref.Device }

func (gathers) Bags() bool { return false }

// A model that is fed the rows of its table computes what the whole one does, to the bit, of sub-batches without any token too: whoever feeds it
// has no row for padding.
func TestStaticPartial(t *testing.T) {
	for _, d := range []gpustage.Device{ref.New(), fastDevice(t), gathers{ref.New()}} {
		for _, lengths := range [][]int{{3, 0, 1}, {0}, {0, 0}} {
			name := fmt.Sprint(d.Name(), gpustage.Bags(d), lengths)
			dense := func(c *Config) { c.Dense = []Dense{{Name: "1_Dense", Out: 4, Bias: true}} }
			whole, s := loadStatic(t, d, Head{Normalize: true}, Options{}, dense)
			part, _ := loadStatic(t, d, Head{Normalize: true}, Options{Own: func(l *Layout) [][2]int { return [][2]int{{0, 100}} }}, dense)
			for _, m := range []*Model{whole, part} {
				if err := m.Init(s, 5); err != nil {
					t.Fatal(err)
				}
			}
			rows := staticRows(lengths...)
			f := &feed{from: whole, ids: rows.IDs}
			part.Feed = f
			dy := make([]float64, 4*len(lengths))
			for i := range dy {
				dy[i] = math.Sin(float64(i + 1))
			}
			flat, _ := whole.NewGradients()
			apart, _ := whole.NewGradients()
			index, _ := gpustage.NewTensor(d, gpustage.I32, 1, len(rows.IDs))
			s.CopyIn(index, gpustage.Bytes(rows.IDs))
			from, to := whole.Layout.Span(Outside)
			run := func(m *Model, to Gradients) []float64 {
				a := newArena(t, d)
				pass := m.Forward(s, a, rows, true, true)
				got := floats(t, s, pass.Embeddings())
				pass.BackwardTo([]gpustage.Tensor{upload64(t, s, gpustage.F32, len(lengths), 4, dy)}, to)
				pass.Release()
				if err := s.Sync(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return got
			}
			var marks []int
			want := run(whole, Gradients{Flat: flat})
			got := run(part, Gradients{
				Layer: func(int) gpustage.Tensor { t.Error("there are no layers"); return gpustage.Tensor{} }, Rest: apart.Columns(from, to),
				WordRows: whole.Layout.View(apart, whole.Layout.Word()), WordIndex: index, Done: func(mark int) { marks = append(marks, mark) },
			})
			if !slices.Equal(got, want) || !slices.Equal(floats(t, s, apart), floats(t, s, flat)) {
				t.Errorf("%s: other bits", name)
			}
			if want := part.Visits(true, false); !slices.Equal(f.asked, want) {
				t.Errorf("%s: asks for %v, Visits says %v", name, f.asked, want)
			}
			if want := part.Layout.Marks(); len(want) != 1 || !slices.Equal(marks, want) {
				t.Errorf("%s: tells that gradients are complete from %v on, want %v", name, marks, want)
			}
		}
	}
}

// With the table frozen a dense layer behind it learns as it does otherwise.
func TestStaticTuning(t *testing.T) {
	dense := func(c *Config) { c.Dense = []Dense{{Name: "1_Dense", Out: 4, Bias: true}} }
	for _, d := range []gpustage.Device{ref.New(), fastDevice(t), gathers{ref.New()}} {
		var all []float64
		for _, freeze := range []bool{false, true} {
			m, s := loadStatic(t, d, Head{}, Options{Tuning: Tuning{FreezeEmbeddings: freeze}}, dense)
			if err := m.Init(s, 5); err != nil {
				t.Fatal(err)
			}
			want := 4*6 + 4
			if !freeze {
				want += 50 * 6
			}
			if n := m.Layout.Trained(); n != want || m.EmbeddingSize() != 4 {
				t.Fatalf("%d parameters train, for embeddings of %d", n, m.EmbeddingSize())
			}
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			a := newArena(t, d)
			pass := m.Forward(s, a, staticRows(3, 0, 2), true, true)
			pass.Backward(upload64(t, s, gpustage.F32, 3, 4, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), grads)
			got := floats(t, s, grads)
			if !freeze {
				all = got[50*6:]
			} else if !slices.Equal(got, all) {
				t.Errorf("%s: with the table frozen, the dense layer's gradient is %v, otherwise %v", d.Name(), got, all)
			}
		}
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
		"no layers for LoRA":                {o: Options{Tuning: Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{AllLinear}}}}},
		"last is not supported":             {head: Head{Pooling: gpustage.LastPooling}},
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
	if err := m.Check(staticRows(1<<20 + 1)); err != nil { // of any length
		t.Error(err)
	}
	if err := m.Check(Rows{IDs: []int32{50}, Cu: []int32{0, 1}}); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}
