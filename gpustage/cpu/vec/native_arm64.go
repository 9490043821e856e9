package vec

import "contraflow/gpustage"

// native is NEON, which every processor of 64 bits of Arm's has.
func native() []*Kernels { return []*Kernels{&neon} }

var neon = Kernels{
	name: "neon",
	add:  addNEON, mul: mulNEON, mulAdd: mulAddNEON, rotate: rotateNEON,
	axpy: axpyNEON, scale: scaleNEON, axpby: axpbyNEON,
	softmaxBackward: softmaxBackwardNEON, addRows: addRowsNEON, maskRow: maskRowNEON,
	dot: dotNEON, sumSquares: sumSquaresNEON, largest: largestNEON,
	expScale: expScaleNEON, expSum: expSumNEON, sumExp: sumExpNEON,
	act: [activations]func(y, x []float32){
		gpustage.GELU: geluNEON, gpustage.GELUTanh: geluTanhNEON, gpustage.ReLU: reluNEON,
		gpustage.SiLU: siluNEON, gpustage.Tanh: tanhNEON,
	},
	actBackward: [activations]func(dx, dy, x []float32){
		gpustage.GELU: geluBackwardNEON, gpustage.GELUTanh: geluTanhBackwardNEON, gpustage.ReLU: reluBackwardNEON,
		gpustage.SiLU: siluBackwardNEON, gpustage.Tanh: tanhBackwardNEON,
	},
	layerNorm: layerNormNEON, layerNormBackward: layerNormBackwardNEON,
	dropout: dropoutNEON,
	adamW:   adamWNEON, sgd: sgdNEON,
	toBF16: toBF16NEON, fromBF16: fromBF16NEON,
}

// dropoutNEON makes the last elements, less than four of Philox's counters, 64 in a place of their own.
func dropoutNEON(y, x, residual []float32, group, keyLo, keyHi, pos, head, place, threshold uint32, scale float32) {
	whole := len(y) &^ 63
	dropout64NEON(y[:whole], x, residual, group, keyLo, keyHi, pos, head, place, threshold, scale)
	if whole == len(y) {
		return
	}
	var last, more [64]float32
	copy(last[:], x[whole:])
	var r []float32
	if residual != nil {
		copy(more[:], residual[whole:])
		r = more[:]
	}
	dropout64NEON(last[:], last[:], r, group+uint32(whole/16), keyLo, keyHi, pos, head, place, threshold, scale)
	copy(y[whole:], last[:])
}
