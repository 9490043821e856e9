package main

import "fmt"

// The AVX512-BF16 instructions, in 512-bit register form, as bytes. Intel's manual (volume 2) gives
//
//	VDPBF16PS      zmm1, zmm2, zmm3   EVEX.512.F3.0F38.W0 52 /r   zmm1[i] += zmm2[2i]*zmm3[2i] + zmm2[2i+1]*zmm3[2i+1]
//	VCVTNE2PS2BF16 zmm1, zmm2, zmm3   EVEX.512.F2.0F38.W0 72 /r   low half of zmm1 = zmm3 rounded, high half = zmm2
//
// and an EVEX instruction (section 2.7) is six bytes. Register numbers have five bits, spread over the prefix, where they
// are stored inverted, and the ModRM byte, where they are not. With r the destination, v the first source and m the second:
//
//	62                            escape
//	~r3 ~m4 ~m3 ~r4 0 0 1 0       m4 takes the place of X, as m is a register; 010 is the opcode map 0F38
//	W=0 ~v3 ~v2 ~v1 ~v0 1 pp      pp: 10 is F3, 11 is F2
//	z=0 10 b=0 ~v4 000            10 is a vector of 512 bits; no mask
//	opcode
//	11 r2 r1 r0 m2 m1 m0          ModRM, register form
const (
	opVDPBF16PS      = 0x52
	opVCVTNE2PS2BF16 = 0x72
	ppF3             = 2
	ppF2             = 3
)

func evex512(op, pp, r, v, m int) [6]byte {
	not := func(x, bit int) int { return ^x >> bit & 1 }
	return [6]byte{
		0x62,
		byte(not(r, 3)<<7 | not(m, 4)<<6 | not(m, 3)<<5 | not(r, 4)<<4 | 2),
		byte(^v&15<<3 | 1<<2 | pp),
		byte(2<<5 | not(v, 4)<<3),
		byte(op),
		byte(3<<6 | r&7<<3 | m&7),
	}
}

// encodeVDPBF16PS is zmm r += the pairwise dot products of zmm v and zmm m.
func encodeVDPBF16PS(r, v, m int) [6]byte { return evex512(opVDPBF16PS, ppF3, r, v, m) }

// encodeVCVTNE2PS2BF16 is zmm r = [lo, hi] rounded to bf16.
func encodeVCVTNE2PS2BF16(r, hi, lo int) [6]byte { return evex512(opVCVTNE2PS2BF16, ppF2, r, hi, lo) }

func vdpbf16ps(m, v, r int) {
	code := encodeVDPBF16PS(r, v, m)
	emit(code[:], fmt.Sprintf("VDPBF16PS Z%d, Z%d, Z%d", m, v, r))
}

func vcvtne2ps2bf16(lo, hi, r int) {
	code := encodeVCVTNE2PS2BF16(r, hi, lo)
	emit(code[:], fmt.Sprintf("VCVTNE2PS2BF16 Z%d, Z%d, Z%d", lo, hi, r))
}
