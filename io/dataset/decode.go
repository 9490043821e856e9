package dataset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

var errShort = errors.New("the page ends too early")

// decodeHybrid fills dst from parquet's mix of run lengths and bit-packed groups of eight, width bits a value.
// https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE
func decodeHybrid[T uint8 | uint32](dst []T, src []byte, width int) error {
	if width == 0 {
		clear(dst)
		return nil
	}
	if width > 32 {
		return fmt.Errorf("a bit width of %d", width)
	}
	for len(dst) > 0 {
		r, rest, err := nextRun(src, width, len(dst))
		if err != nil {
			return err
		}
		run := dst[:r.n]
		if r.packed != nil {
			unpack(run, r.packed, width)
		} else {
			for i := range run {
				run[i] = T(r.value)
			}
		}
		dst, src = dst[r.n:], rest
	}
	return nil
}

// hybridRun is n times one value, or n values of width bits each, packed.
type hybridRun struct {
	n      int
	value  uint64
	packed []byte
}

// nextRun reads what the next run is, of which most values are wanted, and returns what follows it.
func nextRun(src []byte, width, most int) (r hybridRun, rest []byte, err error) {
	header, k := uint64(0), 1
	if len(src) > 0 && src[0] < 1<<7 { // most runs are short
		header = uint64(src[0])
	} else if header, k = binary.Uvarint(src); k <= 0 {
		return r, nil, errShort
	}
	src = src[k:]
	if header&1 == 0 {
		size := (width + 7) / 8
		if len(src) < size || header == 0 {
			return r, nil, errShort
		}
		for i, b := range src[:size] {
			r.value |= uint64(b) << (8 * i)
		}
		r.n = int(min(uint64(most), header>>1))
		return r, src[size:], nil
	}
	r.n = most
	if groups := header >> 1; groups < uint64(most+7)/8 {
		r.n = int(groups) * 8
	}
	need := (r.n*width + 7) / 8
	if len(src) < need {
		return r, nil, errShort
	}
	r.packed = src[:need:need]
	return r, src[min((r.n+7)/8*width, len(src)):], nil
}

// unpack reads len(dst) values of width bits, the lowest bit first. A value spans at most five bytes.
func unpack[T uint8 | uint32](dst []T, src []byte, width int) {
	mask := uint64(1)<<width - 1
	i := 0
	if width <= 16 { // eight values begin at a byte, the last four of them at a byte or its middle: two words hold them
		half, shift, w := width/2, width&1*4, uint(width)&63
		for s := src; len(dst)-i >= 8 && len(s) >= half+8; i += 8 {
			a, b, d := binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint64(s[half:])>>shift, dst[i:i+8:i+8]
			d[0], d[4] = T(a&mask), T(b&mask)
			a, b = a>>w, b>>w
			d[1], d[5] = T(a&mask), T(b&mask)
			a, b = a>>w, b>>w
			d[2], d[6] = T(a&mask), T(b&mask)
			a, b = a>>w, b>>w
			d[3], d[7] = T(a&mask), T(b&mask)
			s = s[width:]
		}
	}
	bit := i * width
	for ; i < len(dst) && bit>>3+8 <= len(src); i++ {
		dst[i] = T(binary.LittleEndian.Uint64(src[bit>>3:]) >> (bit & 7) & mask)
		bit += width
	}
	var tail [16]byte
	from := min(bit>>3, len(src))
	copy(tail[:], src[from:])
	for bit -= from * 8; i < len(dst); i++ {
		dst[i] = T(binary.LittleEndian.Uint64(tail[bit>>3:]) >> (bit & 7) & mask)
		bit += width
	}
}

// constantRuns reports whether n levels are all v and said in runs: how every writer says "no nulls here", parquet-go's in one of whole
// groups of eight and one of the rest.
func constantRuns(src []byte, width, n int, v uint8) bool {
	for n > 0 {
		r, rest, err := nextRun(src, width, n)
		if err != nil || r.packed != nil || r.value != uint64(v) {
			return false
		}
		n, src = n-r.n, rest
	}
	return true
}

var (
	zstdReader, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(1<<31))
	gzipReaders   sync.Pool
)

// slack is room behind a page: with it zstd's last block, an eighth of a page or all of it, is copied in steps of 16 bytes.
const slack = 16

// decompress writes src's content to dst, which has the size that the page's header promised. No codec makes it larger, but for slack:
// parquet-go's would go by the length in a damaged stream, or (LZ4) double the buffer until the memory is gone.
func decompress(codec format.CompressionCodec, dst, src []byte) error {
	switch codec {
	case format.Snappy:
		if n, err := snappy.DecodedLen(src); err != nil || n != len(dst) {
			return fmt.Errorf("snappy data of another length than the page's %d bytes", len(dst))
		}
		_, err := snappy.Decode(dst, src)
		return err
	case format.Zstd:
		out, err := zstdReader.DecodeAll(src, dst[:0:min(cap(dst), len(dst)+slack)])
		if err == nil && len(out) != len(dst) {
			err = fmt.Errorf("%d bytes of zstd data, the page's header says %d", len(out), len(dst))
		}
		return err
	case format.Lz4Raw:
		n, err := lz4.UncompressBlock(src, dst)
		if err == nil && n != len(dst) {
			err = fmt.Errorf("%d bytes of lz4 data, the page's header says %d", n, len(dst))
		}
		return err
	case format.Gzip:
		r, _ := gzipReaders.Get().(*gzip.Reader)
		if r == nil {
			r = new(gzip.Reader)
		}
		defer gzipReaders.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return err
		}
		return exactly(r, dst) // also checks gzip's own checksum
	case format.Brotli:
		return exactly(brotli.NewReader(bytes.NewReader(src)), dst)
	}
	return fmt.Errorf("the codec %v is not known", codec)
}

// exactly reads dst from r, which must then be at its end.
func exactly(r io.Reader, dst []byte) error {
	if _, err := io.ReadFull(r, dst); err != nil {
		return err
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 || err != io.EOF {
		return fmt.Errorf("data longer than the page's %d bytes, or damaged", len(dst))
	}
	return nil
}

// plainText walks one value of PLAIN byte arrays: a length of four bytes, then the bytes.
func plainText(data []byte, off int) (from, to int, err error) {
	if len(data)-off < 4 {
		return 0, 0, errShort
	}
	n := int64(binary.LittleEndian.Uint32(data[off:]))
	if n > int64(len(data)-off-4) {
		return 0, 0, errShort
	}
	return off + 4, off + 4 + int(n), nil
}
