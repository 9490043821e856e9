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

// A norm's way back in one kernel is that in two: of a layer norm the same bits, of an RMS norm the same numbers but for rounding. Which it is,
// its columns say, and where they lie.
func TestNormBackward(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
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
		kernel          string
	}{
		{300, 4, 0, "norm_backward_384"}, {129, 384, 0, "norm_backward_384"}, {3, 388, 4, "norm_backward_768"}, {257, 768, 8, "norm_backward_768"},
		{128, 772, 0, "norm_backward_1024"}, {130, 1024, 0, "norm_backward_1024"}, {130, 1028, 0, ""}, {130, 766, 0, ""}, {130, 768, 3, ""},
	} {
		x, gamma := made(c.rows, c.cols, c.gap), made(1, c.cols, 0)
		y, mean, rstd := made(c.rows, c.cols, c.gap), made(1, c.rows, 0), made(1, c.rows, 0)
		for _, layer := range []bool{true, false} {
			if layer {
				s.LayerNorm(y, mean, rstd, x, gamma, gpustage.Tensor{}, 1e-5)
			} else {
				s.RMSNorm(y, rstd, x, gamma, 1e-5, 1)
			}
			dy, start := made(c.rows, c.cols, c.gap), made(1, c.cols, 0)
			var got [2][3][]float32
			for i := range got {
				s.(*onhost.Stream).Separate = i == 0
				d.Launched = map[string]int{}
				dx, dGamma, dBeta := made(c.rows, c.cols, c.gap), made(1, c.cols, 0), made(1, c.cols, 0)
				s.Copy(dx, dy)
				s.Copy(dGamma, start)
				s.Copy(dBeta, start)
				if layer {
					s.LayerNormBackward(dx, dGamma, dBeta, dx, x, mean, rstd, gamma) // in place
				} else {
					s.RMSNormBackward(dx, dGamma, dx, x, rstd, gamma, 1)
				}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				got[i] = [3][]float32{values(dx), values(dGamma), values(dBeta)}
				if ran := d.Launched[c.kernel]; i == 1 && c.kernel != "" && ran != 1 || i == 0 && ran != 0 {
					t.Errorf("%+v: separate %v: %s has run %d times", c, i == 0, c.kernel, ran)
				}
				if i == 1 && (d.Launched["column_parts"] > 0) != (c.kernel == "") {
					t.Errorf("%+v: sums in a pass of their own: %v", c, c.kernel != "")
				}
			}
			for k, what := range []string{"dx", "dGamma", "dBeta"} {
				for j, want := range got[0][k] {
					limit := 0.0
					if !layer {
						limit = 8 * eps * math.Sqrt(float64(c.rows+c.cols)) * (1 + math.Abs(float64(want)))
					}
					if g := got[1][k][j]; !(math.Abs(float64(g-want)) <= limit) {
						t.Fatalf("%s: %s[%d] is %v in one kernel, %v in two", fmt.Sprintf("%+v, layer norm %v", c, layer), what, j, g, want)
					}
				}
			}
		}
	}
}
