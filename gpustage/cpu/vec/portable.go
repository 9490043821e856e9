package vec

import (
	"math"

	"contraflow/gpustage"
)

// portable runs on any processor.
var portable = Kernels{
	name: "portable",
	add:  addPortable, mul: mulPortable, mulAdd: mulAddPortable, rotate: rotatePortable,
	axpy: axpyPortable, scale: scalePortable, axpby: axpbyPortable,
	softmaxBackward: softmaxBackwardPortable, addRows: addRowsPortable, maskRow: maskRowPortable,
	dot: dotPortable, sumSquares: sumSquaresPortable, largest: largestPortable,
	expScale: expScalePortable, expSum: expSumPortable, sumExp: sumExpPortable,
	act: [activations]func(y, x []float32){
		gpustage.GELU: pointwise(gelu), gpustage.GELUTanh: pointwise(geluTanh), gpustage.ReLU: reluPortable,
		gpustage.SiLU: pointwise(silu), gpustage.Tanh: pointwise(math.Tanh),
	},
	actBackward: [activations]func(dx, dy, x []float32){
		gpustage.GELU: pointwiseBackward(geluGrad), gpustage.GELUTanh: pointwiseBackward(geluTanhGrad), gpustage.ReLU: reluBackwardPortable,
		gpustage.SiLU: pointwiseBackward(siluGrad), gpustage.Tanh: pointwiseBackward(tanhGrad),
	},
	layerNorm: layerNormPortable, layerNormBackward: layerNormBackwardPortable,
	dropout: dropoutPortable,
	adamW:   adamWPortable, sgd: sgdPortable,
	toBF16: toBF16Portable, fromBF16: fromBF16Portable,
}
