package devicetest

import (
	"math"
	"testing"

	"contraflow/gpustage"
)

// testSplade compares what is made of texts' largest logits, and its way back, with and without a bias, in tensors that are columns of larger ones. A
// logarithm of 1 + x near 0 is wrong where it is not of that sum.
func testSplade(t *testing.T, dev gpustage.Device) {
	for _, sz := range [][2]int{{1, 1}, {33, 5}, {130, 40}, {7, 129}} {
		for _, twice := range []bool{false, true} {
			for _, biased := range []bool{false, true} {
				features, texts := sz[0], sz[1]
				f := newFixture(t, dev, 19, 3)
				special := []float64{0, -1, 1e-7, 3e-4, 80, 1e30, math.Inf(-1), math.Inf(1), math.NaN()}
				top := f.floats("top", features, texts, func(i, j int) float64 {
					if k := i*texts + j; k%3 == 0 {
						return special[k/3%len(special)]
					}
					return 2 * f.rng.NormFloat64()
				})
				at := f.places("at", features, texts)
				y, dy, g := f.floats("y", texts, features, nil), f.floats("dy", texts, features, nil), f.floats("g", features, texts, nil)
				active := f.vector("active", texts, nil)
				bias, dBias := f.vector("bias", features, nil), f.vector("dBias", features, nil)
				f.run(func(s gpustage.Stream, p picker) {
					b, db := p(bias), p(dBias)
					if !biased {
						b, db = gpustage.Tensor{}, gpustage.Tensor{}
					}
					s.Splade(p(y), p(at), p(top), b, twice)
					s.CountActive(p(active), p(y))
					s.SpladeBackward(p(g), db, p(dy), p(y), twice)
				})
				f.check(y, 8)
				f.check(at, 0)
				f.check(active, 0)
				f.check(g, 64)
				f.check(dBias, 64*math.Sqrt(float64(texts)))
				f.untouched(top, bias, dy)
			}
		}
	}
}
