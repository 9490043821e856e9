package transformer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
)

// What is pooled without prompts is of the vectors that tokens have alone, of those behind the prompt: their mean, the first or the last of them; and so are
// the gradients. A row that is nothing but its prompt has a mean of zero, or its own first or last token.
func TestSkipPrompt(t *testing.T) {
	prompts := [][]int32{nil, {0, 0, 0, 0, 0}, {1, 3, 0, 1000, 2}, {2, 1, 1000, 0, 3}}
	for _, mode := range []gpustage.Pooling{gpustage.MeanPooling, gpustage.CLSPooling, gpustage.LastPooling} {
		for i, prompt := range prompts {
			for _, every := range []int{0, 1} {
				how := fmt.Sprintf("%v pooling, prompts %d, activation checkpointing every %d", mode, i, every)
				d := ref.New()
				m, s, rows := loadTokens(t, d, Options{DType: gpustage.F64, CheckpointEvery: every}, Head{Pooling: mode, SkipPrompt: true}, false)
				tokens, _, _ := loadTokens(t, d, Options{DType: gpustage.F64, CheckpointEvery: every}, Head{}, true)
				rows.Prompt = prompt
				pass := func(m *Model, gradient func(x gpustage.Tensor) []float64) (values, grads []float64) {
					if err := m.Check(rows); err != nil {
						t.Fatal(err)
					}
					flat, _ := m.NewGradients()
					p := m.Forward(s, newArena(t, d), rows, true, true)
					x := p.Parts()[0]
					p.BackwardTo([]gpustage.Tensor{upload64(t, s, gpustage.F64, x.Rows, x.Cols, gradient(x))}, Gradients{Flat: flat})
					return floats(t, s, x), floats(t, s, flat)
				}
				rng := rand.New(rand.NewPCG(3, 4))
				c := m.EmbeddingSize()
				dy := make([]float64, rows.Len()*c)
				for i := range dy {
					dy[i] = rng.NormFloat64()
				}
				got, grads := pass(m, func(gpustage.Tensor) []float64 { return dy })

				weight := make([]float64, len(rows.IDs)) // of each token in its row's embedding
				for b := range rows.Len() {
					lo, hi := rows.Cu[b], rows.Cu[b+1]
					from := lo
					if prompt != nil {
						from = min(lo+prompt[b], hi)
					}
					switch {
					case mode == gpustage.MeanPooling:
						for t := from; t < hi; t++ {
							weight[t] = 1 / float64(hi-from)
						}
					case mode == gpustage.LastPooling:
						weight[hi-1] = 1
					case from == hi:
						weight[lo] = 1
					default:
						weight[from] = 1
					}
				}
				row := func(t int) int {
					b, _ := slices.BinarySearch(rows.Cu, int32(t)+1)
					return b - 1
				}
				vectors, want := pass(tokens, func(x gpustage.Tensor) []float64 {
					dx := make([]float64, x.Len())
					for i := range dx {
						dx[i] = weight[i/c] * dy[row(i/c)*c+i%c]
					}
					return dx
				})
				pooled := make([]float64, len(got))
				for i, v := range vectors {
					pooled[row(i/c)*c+i%c] += weight[i/c] * v
				}
				if e := relative(got, pooled, 0); !(e <= 1e-14) {
					t.Errorf("%s: embeddings differ by %.3g", how, e)
				}
				if e := relative(grads, want, 0); !(e <= 1e-13) {
					t.Errorf("%s: gradients differ by %.3g", how, e)
				}
			}
		}
	}
}

// Other devices have the reference's numbers, padded ones too, and a model that does not skip prompts doesn't look at them.
func TestSkipPromptDevices(t *testing.T) {
	processor, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	devices := map[string]gpustage.Device{"processor": processor}
	if onhost.Here && !testing.Short() {
		devices["kernels"] = onhost.OpenUnchecked(t, onhost.Padded)
	}
	prompt := []int32{2, 1, 3, 1, 2}
	run := func(d gpustage.Device, h Head, prompt []int32) (embeddings, grads []float64) {
		m, s, rows := loadTokens(t, d, Options{}, h, false)
		rows.Prompt = prompt
		flat, _ := m.NewGradients()
		p := m.Forward(s, newArena(t, d), rows, true, true)
		x := p.Embeddings()
		p.BackwardTo([]gpustage.Tensor{x}, Gradients{Flat: flat})
		return floats(t, s, x), floats(t, s, flat)
	}
	for _, mode := range []gpustage.Pooling{gpustage.MeanPooling, gpustage.CLSPooling} {
		h := Head{Pooling: mode, SkipPrompt: true}
		want, grads := run(ref.New(), h, prompt)
		for name, d := range devices {
			got, g := run(d, h, prompt)
			if e := relative(got, want, 0); !(e <= 1e-5) {
				t.Errorf("%s, %v pooling: embeddings differ by %.3g", name, mode, e)
			}
			if e := relative(g, grads, 0); !(e <= 1e-4) {
				t.Errorf("%s, %v pooling: gradients differ by %.3g", name, mode, e)
			}
		}
		none, _ := run(ref.New(), h, nil)
		if all, _ := run(ref.New(), Head{Pooling: mode}, prompt); !slices.Equal(all, none) || slices.Equal(all, want) {
			t.Errorf("%v pooling: a prompt that is not skipped, and none, give different embeddings, or one that is makes no difference", mode)
		}
	}
}

func TestSkipPromptRefused(t *testing.T) {
	m, _, rows := loadTokens(t, ref.New(), Options{}, Head{SkipPrompt: true}, false)
	for _, wrong := range [][]int32{{1}, {-1, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}} {
		rows.Prompt = wrong
		if err := m.Check(rows); err == nil {
			t.Errorf("prompts %v of %d rows are taken", wrong, rows.Len())
		}
	}
	c := m.Config
	c.Tokens = c.ColBERT(true, 1)
	if _, err := New(ref.New(), c, Head{SkipPrompt: true}, Options{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("vectors of tokens without prompts: %v", err)
	}
}
