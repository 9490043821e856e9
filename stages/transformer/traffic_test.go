package transformer

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// A training step's kernels ask for memory as a GPU serves it: what a warp wants at once of shared memory lies in different banks, and sectors of
// global memory are wanted as a whole, but where the limit below is more than 1.
func TestKernelTraffic(t *testing.T) {
	limits := map[string]float64{
		"attention_delta": 1.1, // writes a number a head, beside which are other tokens'
		"scatter_add":     1.1, // reads the ids that some lanes have to look at
		"flash_dbias_sum": 1.6, // adds to a column, a head's biases
	}
	for _, kernel := range []string{
		"flash_64_bias", "flash_backward_q_64_bias", "flash_backward_kv_64_bias", "flash_dbias_64",
		"flash_group_64_bias", "flash_group_backward_q_64_bias", "flash_group_backward_kv_64_bias",
	} {
		limits[kernel] = 1.05 // reads such a column
	}
	d := onhost.Open(t, onhost.Plain)
	for _, c := range []struct {
		family     string
		dim        int
		warpgroups bool
	}{
		{"bert", 32, false}, {"bert", 64, false}, {"bert", 128, false}, {"bert", 256, false}, {"mpnet", 64, false},
		{"bert", 64, true}, {"bert", 128, true}, {"mpnet", 64, true},
	} {
		t.Run(fmt.Sprintf("%s, heads of %d, warpgroups %v", c.family, c.dim, c.warpgroups), func(t *testing.T) {
			d.Warpgroups = c.warpgroups
			traffic := d.Traffic(func() {
				m, s := headsOf(t, c.family, max(1, 128/c.dim), c.dim, d, Options{DType: gpustage.F32, BF16: true})
				m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.1
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				p := m.Forward(s, newArena(t, d), Rows{IDs: make([]int32, 152), Cu: []int32{0, 80, 152}, Keys: []uint64{1, 2}}, true, true)
				p.Backward(upload64(t, s, gpustage.F32, 2, m.EmbeddingSize(), make([]float64, 2*m.EmbeddingSize())), grads)
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
			})
			if len(traffic) < 15 {
				t.Errorf("only %d kernels ran", len(traffic))
			}
			for _, kernel := range slices.Sorted(maps.Keys(traffic)) {
				k, limit := traffic[kernel], max(1, limits[kernel])
				t.Logf("%-24s %6d sectors, %.2f times the least; %6d wavefronts", kernel, k.Sectors, float64(k.Sectors)/float64(k.LeastSectors), k.Wavefronts)
				if float64(k.Sectors) > limit*float64(k.LeastSectors) {
					t.Errorf("%s: %d sectors of global memory, %d would do", kernel, k.Sectors, k.LeastSectors)
				}
				if k.Wavefronts != k.LeastWavefronts {
					t.Errorf("%s: %d wavefronts of shared memory, %d would do", kernel, k.Wavefronts, k.LeastWavefronts)
				}
			}
		})
	}
}
