package dataset

import (
	"encoding/binary"
	"fmt"
)

// The delta encodings, written here because parquet-go's are assembly that trusts the lengths it finds in a file.
// https://parquet.apache.org/docs/file-format/data-pages/encodings/

// maxPage bounds what a page may decode to. The format's own limit is 2 GiB, writers aim at 1 MiB.
const maxPage = 1 << 30

// deltaInts decodes n DELTA_BINARY_PACKED integers and returns what follows them in src.
func deltaInts(src []byte, n int) (values []int64, rest []byte, err error) {
	var header [3]uint64 // values in a block, miniblocks in a block, values in all
	for i := range header {
		v, k := binary.Uvarint(src)
		if k <= 0 {
			return nil, nil, errShort
		}
		header[i], src = v, src[k:]
	}
	first, k := binary.Varint(src)
	if k <= 0 {
		return nil, nil, errShort
	}
	src = src[k:]
	block, minis := header[0], header[1]
	if header[2] != uint64(n) {
		return nil, nil, fmt.Errorf("%d delta-encoded values, want %d", header[2], n)
	}
	if minis == 0 || minis > 512 || block == 0 || block > 1<<16 || block%minis != 0 || block/minis%8 != 0 {
		return nil, nil, fmt.Errorf("delta blocks of %d values in %d parts", block, minis)
	}
	if n == 0 {
		return nil, src, nil
	}
	per := int(block / minis)
	last := first
	values = append(values, first)
	for left := n - 1; left > 0; {
		least, k := binary.Varint(src)
		if k <= 0 || len(src) < k+int(minis) {
			return nil, nil, errShort
		}
		widths := src[k : k+int(minis)]
		src = src[k+int(minis):]
		for _, width := range widths {
			if left == 0 {
				break
			}
			size := per * int(width) / 8
			if width > 64 || len(src) < size {
				return nil, nil, errShort
			}
			for i := range min(per, left) {
				last += least + int64(bitsAt(src[:size], i*int(width), int(width)))
				values = append(values, last)
			}
			left -= min(per, left)
			src = src[size:]
		}
	}
	return values, src, nil
}

// bitsAt returns width bits of b from the given bit on, the lowest first.
func bitsAt(b []byte, bit, width int) uint64 {
	if width == 0 {
		return 0
	}
	var le [16]byte
	copy(le[:], b[bit>>3:])
	shift := bit & 7
	v := binary.LittleEndian.Uint64(le[:]) >> shift
	if shift > 0 {
		v |= binary.LittleEndian.Uint64(le[8:]) << (64 - shift)
	}
	if width < 64 {
		v &= 1<<width - 1
	}
	return v
}

// deltaLengthText decodes n DELTA_LENGTH_BYTE_ARRAY values: all lengths, then all bytes. Value i is data[ends[i-1]:ends[i]].
func deltaLengthText(ends []uint32, src []byte, n int) (data []byte, _ []uint32, err error) {
	lengths, data, err := deltaInts(src, n)
	if err != nil {
		return nil, nil, err
	}
	end := int64(0)
	for _, l := range lengths {
		if l < 0 || l > int64(len(data))-end {
			return nil, nil, errShort
		}
		end += l
		ends = append(ends, uint32(end))
	}
	return data, ends, nil
}

// deltaText decodes n DELTA_BYTE_ARRAY values: each shares a prefix with the one before.
func deltaText(ends []uint32, src []byte, n int) (data []byte, _ []uint32, err error) {
	prefixes, src, err := deltaInts(src, n)
	if err != nil {
		return nil, nil, err
	}
	suffixes, src, err := deltaInts(src, n)
	if err != nil {
		return nil, nil, err
	}
	start, end := 0, 0 // of the value before
	for i := range prefixes {
		p, s := prefixes[i], suffixes[i]
		if p < 0 || p > int64(end-start) || s < 0 || s > int64(len(src)) {
			return nil, nil, errShort
		}
		if int64(len(data))+p+s > maxPage {
			return nil, nil, fmt.Errorf("its texts take more than %d bytes", maxPage)
		}
		data = append(data, data[start:start+int(p)]...)
		data = append(data, src[:s]...)
		src = src[s:]
		start, end = end, len(data)
		ends = append(ends, uint32(end))
	}
	return data, ends, nil
}

// joinBytes undoes BYTE_STREAM_SPLIT: byte k of every value stands in the k-th of width streams.
func joinBytes(dst, src []byte, n, width int) ([]byte, error) {
	if n > len(src)/width {
		return nil, errShort
	}
	for i := range n {
		for k := range width {
			dst = append(dst, src[k*n+i])
		}
	}
	return dst, nil
}
