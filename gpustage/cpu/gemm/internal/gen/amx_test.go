package main

import (
	"bytes"
	"testing"

	. "github.com/mmcloughlin/avo/reg"
)

// The expected bytes are GNU as 2.40's.
func TestTileEncodings(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want []byte
	}{
		{"tdpbf16ps %tmm6,%tmm4,%tmm0", encodeTileDot(0, 4, 6), []byte{0xc4, 0xe2, 0x4a, 0x5c, 0xc4}},
		{"tdpbf16ps %tmm7,%tmm5,%tmm3", encodeTileDot(3, 5, 7), []byte{0xc4, 0xe2, 0x42, 0x5c, 0xdd}},
		{"tileloadd 64(%rbx,%r10,1),%tmm7", encodeTileLoad(7, RBX, R10, 64), []byte{0xc4, 0xa2, 0x7b, 0x4b, 0x7c, 0x13, 0x40}},
		{"tileloadd 64(%rsi,%r9,1),%tmm4", encodeTileLoad(4, RSI, R9, 64), []byte{0xc4, 0xa2, 0x7b, 0x4b, 0x64, 0x0e, 0x40}},
		{"tileloadd 64(%r13,%r10,1),%tmm1", encodeTileLoad(1, R13, R10, 64), []byte{0xc4, 0x82, 0x7b, 0x4b, 0x4c, 0x15, 0x40}},
		{"tileloadd 128(%rsi,%r9,1),%tmm4", encodeTileLoad(4, RSI, R9, 128), []byte{0xc4, 0xa2, 0x7b, 0x4b, 0xa4, 0x0e, 0x80, 0, 0, 0}},
		{"tileloadd 4160(%rbx,%r10,1),%tmm7", encodeTileLoad(7, RBX, R10, 4160), []byte{0xc4, 0xa2, 0x7b, 0x4b, 0xbc, 0x13, 0x40, 0x10, 0, 0}},
		{"tilestored %tmm3,64(%r15,%r11,1)", encodeTileStore(3, R15, R11, 64), []byte{0xc4, 0x82, 0x7a, 0x4b, 0x5c, 0x1f, 0x40}},
		{"tilestored %tmm0,64(%r12,%rdi,1)", encodeTileStore(0, R12, RDI, 64), []byte{0xc4, 0xc2, 0x7a, 0x4b, 0x44, 0x3c, 0x40}},
		{"tilezero %tmm3", encodeTileZero(3), []byte{0xc4, 0xe2, 0x7b, 0x49, 0xd8}},
		{"ldtilecfg 64(%r15)", encodeTileConfig(R15, 64), []byte{0xc4, 0xc2, 0x78, 0x49, 0x47, 0x40}},
		{"ldtilecfg 64(%rax)", encodeTileConfig(RAX, 64), []byte{0xc4, 0xe2, 0x78, 0x49, 0x40, 0x40}},
		{"tilerelease", encodeTileRelease(), []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: % x, want % x", c.what, c.got, c.want)
		}
	}
}
