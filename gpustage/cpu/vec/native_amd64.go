package vec

import (
	"contraflow/gpustage"

	"golang.org/x/sys/cpu"
)

func native() []*Kernels {
	var all []*Kernels
	x := &cpu.X86
	if x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VL && x.HasBMI2 {
		all = append(all, &avx512)
	}
	if x.HasAVX2 && x.HasFMA {
		all = append(all, &avx2)
	}
	return all
}

var avx512 = Kernels{
	name: "avx512",
	add:  addAVX512, mul: mulAVX512, mulAdd: mulAddAVX512, rotate: rotateAVX512,
	axpy: axpyAVX512, scale: scaleAVX512, axpby: axpbyAVX512,
	softmaxBackward: softmaxBackwardAVX512, addRows: addRowsAVX512, maskRow: maskRowAVX512,
	dot: dotAVX512, sumSquares: sumSquaresAVX512, largest: largestAVX512,
	expScale: expScaleAVX512, expSum: expSumAVX512, sumExp: sumExpAVX512,
	act: [activations]func(y, x []float32){
		gpustage.GELU: geluAVX512, gpustage.GELUTanh: geluTanhAVX512, gpustage.ReLU: reluAVX512,
		gpustage.SiLU: siluAVX512, gpustage.Tanh: tanhAVX512,
	},
	actBackward: [activations]func(dx, dy, x []float32){
		gpustage.GELU: geluBackwardAVX512, gpustage.GELUTanh: geluTanhBackwardAVX512, gpustage.ReLU: reluBackwardAVX512,
		gpustage.SiLU: siluBackwardAVX512, gpustage.Tanh: tanhBackwardAVX512,
	},
	layerNorm: layerNormAVX512, layerNormBackward: layerNormBackwardAVX512,
	dropout: dropoutAVX512,
	adamW:   adamWAVX512, sgd: sgdAVX512,
	toBF16: toBF16AVX512, fromBF16: fromBF16AVX512,
}

var avx2 = Kernels{
	name: "avx2",
	add:  addAVX2, mul: mulAVX2, mulAdd: mulAddAVX2, rotate: rotateAVX2,
	axpy: axpyAVX2, scale: scaleAVX2, axpby: axpbyAVX2,
	softmaxBackward: softmaxBackwardAVX2, addRows: addRowsAVX2, maskRow: maskRowAVX2,
	dot: dotAVX2, sumSquares: sumSquaresAVX2, largest: largestAVX2,
	expScale: expScaleAVX2, expSum: expSumAVX2, sumExp: sumExpAVX2,
	act: [activations]func(y, x []float32){
		gpustage.GELU: geluAVX2, gpustage.GELUTanh: geluTanhAVX2, gpustage.ReLU: reluAVX2,
		gpustage.SiLU: siluAVX2, gpustage.Tanh: tanhAVX2,
	},
	actBackward: [activations]func(dx, dy, x []float32){
		gpustage.GELU: geluBackwardAVX2, gpustage.GELUTanh: geluTanhBackwardAVX2, gpustage.ReLU: reluBackwardAVX2,
		gpustage.SiLU: siluBackwardAVX2, gpustage.Tanh: tanhBackwardAVX2,
	},
	layerNorm: layerNormAVX2, layerNormBackward: layerNormBackwardAVX2,
	dropout: dropoutAVX2,
	adamW:   adamWAVX2, sgd: sgdAVX2,
	toBF16: toBF16AVX2, fromBF16: fromBF16AVX2,
}
