package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// probeAVX512 measures what the processor can do at best: 28 independent accumulators, no memory.
func probeAVX512(name string, m multiplier) {
	probe(name, "28 multiply-adds on registers of 512 bits", func() {
		for i := range zmm {
			VPXORD(zmm[i], zmm[i], zmm[i])
		}
	}, func() {
		for i := range 28 {
			m.mul(28+i%2, 30+i/2%2, i)
		}
	})
}

func probeAVX2() {
	probe("probeAVX2", "12 multiply-adds on registers of 256 bits", func() {
		for i := range ymm {
			VXORPS(ymm[i], ymm[i], ymm[i])
		}
	}, func() {
		for i := range 12 {
			VFMADD231PS(ymm[12+i%2], ymm[14+i/2%2], ymm[i])
		}
	})
}

func probe(name, what string, clear, body func()) {
	TEXT(name, NOSPLIT|NOFRAME, "func(n int)")
	Doc(fmt.Sprintf("%s does n times %s.", name, what))
	Load(Param("n"), RCX)
	clear()
	pcalign(64)
	Label("loop")
	body()
	DECQ(RCX)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
