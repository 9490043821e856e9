package transformer

import "math"

// GradientFloor is what part of the largest value of a model's gradient GradientError takes for each tensor's at least: some are zero but for
// rounding (those of the biases of BERT's attention keys), and nothing can be in proportion to that.
const GradientFloor = 1e-4

// GradientError is the measure that gradients are verified by, of one tensor: its largest difference from what it should be, over that one's largest
// value, or floor if that is more. Where there is a NaN it is one.
func GradientError(got, want []float64, floor float64) float64 {
	diff, top := 0.0, floor
	for i, w := range want {
		diff, top = max(diff, math.Abs(got[i]-w)), max(top, math.Abs(w)) // a NaN stays
	}
	return diff / top
}
