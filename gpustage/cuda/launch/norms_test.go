//go:build linux && amd64

package launch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// A norm's way back in one kernel, with what follows it, is that in several, but for rounding. Which it is, its columns say, and where they lie.
func TestNormBackward(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	const eps = 1.0 / (1 << 23)
	r := rand.New(rand.NewPCG(5, 5))
	made := func(rows, cols, gap int) gpustage.Tensor { return random(t, d, r, rows, cols, gap) }
	values := func(x gpustage.Tensor) (out []float32) {
		for i := range x.Rows {
			out = append(out, gpustage.Slice[float32](x.Span(i, i+1))...)
		}
		return out
	}
	for _, c := range []struct {
		rows, cols, gap int
		one             bool
	}{
		{300, 4, 0, true}, {129, 384, 0, true}, {3, 388, 4, true}, {257, 768, 8, true}, {128, 772, 0, true}, {130, 1024, 0, true}, {33, 2048, 0, true},
		{33, 2052, 0, false}, {130, 766, 0, false}, {130, 766, 2, false}, {130, 768, 3, false},
	} {
		x, gamma := made(c.rows, c.cols, c.gap), made(1, c.cols, 0)
		y, mean, rstd := made(c.rows, c.cols, c.gap), made(1, c.rows, 0), made(1, c.rows, 0)
		drop := gpustage.Dropout{P: 0.2, Seqs: lines(t, d, r, c.rows), Layer: 1, Site: gpustage.SiteFeedForward}
		for _, layer := range []bool{true, false} {
			if layer {
				s.LayerNorm(y, mean, rstd, x, gamma, gpustage.Tensor{}, 1e-5)
			} else {
				s.RMSNorm(y, rstd, x, gamma, 1e-5, 1)
			}
			dy, start := made(c.rows, c.cols, c.gap), made(1, c.cols, 0)
			var got [2][5][]float32
			for i := range got {
				s.(*onhost.Stream).Separate = i == 0
				d.Launched = map[string]int{}
				dx, dGamma, dBeta := made(c.rows, c.cols, c.gap), made(1, c.cols, 0), made(1, c.cols, 0)
				z, sum := made(c.rows, c.cols, c.gap), made(1, c.cols, 0)
				s.Copy(dx, dy)
				s.Copy(sum, start)
				s.Copy(dGamma, start)
				s.Copy(dBeta, start)
				if layer {
					s.LayerNormBackward(dx, dGamma, dBeta, dx, x, mean, rstd, gamma, gpustage.Dropped{Y: z, Dropout: drop, Sum: sum}) // in place
				} else {
					s.RMSNormBackward(dx, dGamma, dx, x, rstd, gamma, 1)
				}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				got[i] = [5][]float32{values(dx), values(dGamma), values(dBeta), values(z), values(sum)}
				if ran := d.Launched["norm_backward"]; ran != int(map[bool]int{true: 1}[c.one && i == 1]) {
					t.Errorf("%+v: separate %v: norm_backward has run %d times", c, i == 0, ran)
				}
				if i == 1 && (d.Launched["column_parts"]+d.Launched["column_sums"]+d.Launched["dropout"] > 0) == c.one {
					t.Errorf("%+v: in passes of their own: %v", c, d.Launched)
				}
				if i == 1 && c.one && d.Launched["column_finish"] != 1 {
					t.Errorf("%+v: %v", c, d.Launched)
				}
			}
			for k, what := range []string{"dx", "dGamma", "dBeta", "what is dropped", "its sum"}[:map[bool]int{true: 5, false: 2}[layer]] {
				for j, want := range got[0][k] {
					limit := 8 * eps * math.Sqrt(float64(c.rows+c.cols)) * (1 + math.Abs(float64(want)))
					if g := got[1][k][j]; !(math.Abs(float64(g-want)) <= limit) {
						t.Fatalf("%s: %s[%d] is %v in one kernel, %v in two", fmt.Sprintf("%+v, layer norm %v", c, layer), what, j, g, want)
					}
				}
			}
		}
	}
}
