package transformer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// Where operands of products and attention are of bf16 in memory, gradients are as near the truth as where products round what they read, in every
// family, with LoRA and activation checkpointing too: norms, gates, rotations, dropout, queries' norms and what attention has besides. Errors are those
// of whole vectors, and the geometric means of several sub-batches' are compared: some lie where rounding is magnified.
func TestOperandsInBF16(t *testing.T) {
	harness.Thorough(t)
	if !onhost.Here {
		t.Skip("no device here takes operands in bf16")
	}
	kernels, copies := onhost.Open(t, onhost.Plain), fastDevice(t)
	rows := Rows{IDs: make([]int32, 11), Cu: []int32{0, 3, 4, 11}, Keys: []uint64{1, 2, 3}}
	lora := Tuning{FreezeLayers: 1, LoRA: &LoRA{Rank: 2, Alpha: 3, Dropout: 0.2, Targets: []string{AllLinear}}}
	for _, name := range familyGoldens(t) {
		for i, o := range []Options{{}, {CheckpointEvery: 1}, {Tuning: lora}} {
			t.Run(fmt.Sprint(name, "/", i), func(t *testing.T) {
				// run is the gradients of sub-batches, one after the other.
				run := func(d gpustage.Device, dtype gpustage.DType) (gradients [][]float64) {
					o.DType, o.BF16 = dtype, dtype == gpustage.F32
					m, s := loadFamily(t, name, nil, d, o)
					m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.1
					anyFactors(t, m, s)
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					a, err := gpustage.NewArena(d, m.Memory([]int{3, 1, 7}).Backward)
					if err != nil {
						t.Fatal(err)
					}
					random := rand.New(rand.NewPCG(9, 9))
					r := make([]float64, 3*m.EmbeddingSize())
					for range 9 {
						for k := range rows.IDs {
							rows.IDs[k] = 5 + random.Int32N(int32(m.Config.Vocab-5))
						}
						for k := range r {
							r[k] = random.NormFloat64()
						}
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
				if !(here <= 1.5*there) {
					t.Errorf("error %.3g, with copies %.3g", here, there)
				}
			})
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

// Where operands are of bf16 no pass rounds them: a step's are what its kernels write. What is left are the biases of products whose result
// is an operand, and on the way back the first layer's input.
func TestPassesThatRound(t *testing.T) {
	if !onhost.Here {
		t.Skip("no device here takes operands in bf16")
	}
	d := onhost.Open(t, onhost.Plain)
	m, s := loadGolden(t, "minilm-tiny", d, Head{Normalize: true}, Options{BF16: true})
	grads, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(t, d)
	pass := func(dropout float64, backward bool) map[string]int {
		m.Config.HiddenDropout, m.Config.AttentionDropout = dropout, dropout
		d.Launched = map[string]int{}
		p := m.Forward(s, a, Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}, Keys: []uint64{1, 2}}, true, true)
		if backward {
			r := upload64(t, s, m.DType, 2, m.EmbeddingSize(), make([]float64, 2*m.EmbeddingSize()))
			d.Launched = map[string]int{}
			p.Backward(r, grads)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		p.Release()
		return d.Launched
	}
	pass(0.1, true) // what is kept of the parameters is made
	layers := m.Config.Layers
	for _, c := range []struct {
		dropout  float64
		backward bool
		rounded  int // and nothing else
		summed   int // rounded or not
	}{{0.1, false, 2 * layers, 0}, {0, false, 2 * layers, 0}, {0.1, true, 1, 4 * layers}, {0, true, 1, 4 * layers}} {
		ran := pass(c.dropout, c.backward)
		if ran["to_bf16"] != c.rounded || ran["convert"] != 0 || ran["column_sums"] != c.summed {
			t.Errorf("dropout %v, backward %v: %d passes round, %d convert, %d sum; want %d, 0, %d", c.dropout, c.backward, ran["to_bf16"], ran["convert"], ran["column_sums"], c.rounded, c.summed)
		}
	}
}
