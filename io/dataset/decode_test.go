package dataset

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

// The decoders against parquet-go's encoders, over all widths and sizes with odd tails.

// Indices into a dictionary of one value may have no bits (parquet-mr): all are 0, whatever was in the memory.
func TestHybridWithoutBits(t *testing.T) {
	got := []uint32{7, 7, 7}
	if err := decodeHybrid(got, nil, 0); err != nil || !slices.Equal(got, make([]uint32, 3)) {
		t.Errorf("%v, %v", got, err)
	}
	if err := decodeHybrid(got, []byte{6, 0, 0, 0, 0, 0}, 33); err == nil {
		t.Error("33 bits are more than an index has")
	}
}

func TestHybridAgainstParquetGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	for width := 1; width <= 32; width++ {
		for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 65, 100, 1001} {
			want := make([]int32, n)
			for i := range want {
				want[i] = int32(rng.Uint64() & (1<<width - 1))
				if i > 0 && rng.IntN(3) > 0 && n > 64 {
					want[i] = want[i-1] // runs
				}
			}
			b, err := (&rle.Encoding{BitWidth: width}).EncodeInt32(nil, want)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]uint32, n)
			if err := decodeHybrid(got, b, width); err != nil {
				t.Fatalf("width %d, %d values: %v", width, n, err)
			}
			for i := range want {
				if got[i] != uint32(want[i]) {
					t.Fatalf("width %d, value %d of %d: %d, want %d", width, i, n, got[i], uint32(want[i]))
				}
			}
			if n > 0 {
				long := make([]uint32, n+9)
				if err := decodeHybrid(long, b[:len(b)-1], width); err == nil {
					t.Fatalf("width %d: cut off, no error", width)
				}
			}
			if width > 8 {
				continue
			}
			levels := make([]uint8, n)
			for i, v := range want {
				levels[i] = uint8(v)
			}
			if b, err = (&rle.Encoding{BitWidth: width}).EncodeLevels(nil, levels); err != nil {
				t.Fatal(err)
			}
			back := make([]uint8, n)
			if err := decodeHybrid(back, b, width); err != nil || !slices.Equal(back, levels) {
				t.Fatalf("levels of width %d: %v, want %v (%v)", width, back, levels, err)
			}
		}
	}
}

// TestDecompressExactly: what a codec makes of a page is as long as the page's header says, or an error.
func TestDecompressExactly(t *testing.T) {
	text := []byte(strings.Repeat("a text of a page, ", 50))
	compress := func(w io.WriteCloser, b *bytes.Buffer) []byte {
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	var gz, br bytes.Buffer
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, lz4.CompressBlockBound(len(text)))
	n, err := lz4.CompressBlock(text, raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	for codec, src := range map[format.CompressionCodec][]byte{
		format.Snappy: snappy.Encode(nil, text), format.Zstd: z.EncodeAll(text, nil), format.Lz4Raw: raw[:n],
		format.Gzip: compress(gzip.NewWriter(&gz), &gz), format.Brotli: compress(brotli.NewWriter(&br), &br),
	} {
		for _, size := range []int{len(text) - 1, len(text), len(text) + 1} {
			dst := make([]byte, size, size+slack)
			if err := decompress(codec, dst, src); (err == nil) != (size == len(text)) || err == nil && !bytes.Equal(dst, text) {
				t.Errorf("%v, %d bytes where there are %d: %v", codec, size, len(text), err)
			}
		}
		if err := decompress(codec, make([]byte, len(text)), []byte("no such stream")); err == nil {
			t.Errorf("%v takes any bytes", codec)
		}
	}
	damaged := slices.Clone(gz.Bytes())
	damaged[len(damaged)-5] ^= 1 // of gzip's checksum, which is behind the text
	if err := decompress(format.Gzip, make([]byte, len(text)), damaged); err == nil {
		t.Error("gzip takes a text with another checksum")
	}
	if err := decompress(format.LZO, make([]byte, 1), []byte{0}); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("a codec that is not read: %v", err)
	}
}

func TestDeltaAgainstParquetGo(t *testing.T) {
	harness.Thorough(t)
	rng := rand.New(rand.NewPCG(2, 9))
	for _, n := range []int{0, 1, 2, 31, 32, 33, 128, 129, 1000} {
		for _, spread := range []int64{1, 2, 100, 1 << 31, 1 << 62} {
			want := make([]int64, n)
			for i := range want {
				want[i] = rng.Int64N(spread)*2 - spread
			}
			b, err := new(delta.BinaryPackedEncoding).EncodeInt64(nil, want)
			if err != nil {
				t.Fatal(err)
			}
			got, rest, err := deltaInts(append(b, "rest"...), n)
			if err != nil || !slices.Equal(got, want) || string(rest) != "rest" {
				t.Fatalf("%d integers up to %d: %v (%v), rest %q", n, spread, got, err, rest)
			}
		}
		var data []byte
		offsets := []uint32{0}
		for i := range n {
			data = append(data, "a common prefix"[:rng.IntN(15)]...)
			data = binary.AppendUvarint(data, rng.Uint64N(1<<20)*uint64(i%3))
			offsets = append(offsets, uint32(len(data)))
		}
		for name, enc := range map[string]struct {
			encode func(dst, src []byte, offsets []uint32) ([]byte, error)
			decode func(ends []uint32, src []byte, n int) ([]byte, []uint32, error)
		}{
			"DELTA_LENGTH_BYTE_ARRAY": {new(delta.LengthByteArrayEncoding).EncodeByteArray, deltaLengthText},
			"DELTA_BYTE_ARRAY":        {new(delta.ByteArrayEncoding).EncodeByteArray, deltaText},
		} {
			b, err := enc.encode(nil, data, offsets)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				continue // the encoder writes nothing, and readers never ask
			}
			got, ends, err := enc.decode(nil, b, n)
			if err != nil || !slices.Equal(ends, offsets[1:]) || string(got[:len(data)]) != string(data) {
				t.Fatalf("%s of %d texts: %v", name, n, err)
			}
			for i := range min(len(b), 1000) { // damage: an error or texts within the data, no panic
				b[i] ^= 1 << (i % 8)
				if got, ends, err := enc.decode(nil, b, n); err == nil && (len(ends) != n || int(ends[n-1]) > len(got) || !slices.IsSorted(ends)) {
					t.Fatalf("%s with a changed byte %d: a text beyond the data", name, i)
				}
				b[i] ^= 1 << (i % 8)
			}
			for cut := range min(len(b), 1000) {
				if got, ends, err := enc.decode(nil, b[:cut], n); err == nil && len(ends) == n && int(ends[n-1]) > len(got) {
					t.Fatalf("%s cut to %d bytes: a text beyond the data", name, cut)
				}
			}
		}
	}
}

// packDeltas is DELTA_BINARY_PACKED by the format's own words, a bit at a time.
func packDeltas(block, minis int, values []int64) (b []byte) {
	for _, n := range []int{block, minis, len(values)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendVarint(b, values[0])
	var deltas []int64
	for i, v := range values[1:] {
		deltas = append(deltas, v-values[i])
	}
	for part := range slices.Chunk(deltas, block) {
		least := slices.Min(part)
		b = binary.AppendVarint(b, least)
		widths, data := make([]byte, minis), []byte(nil)
		for m := 0; m*block/minis < len(part); m++ {
			mini := make([]uint64, block/minis)
			for i, d := range part[m*block/minis : min(len(part), (m+1)*block/minis)] {
				mini[i] = uint64(d - least)
				widths[m] = max(widths[m], byte(bits.Len64(mini[i])))
			}
			bytes, at := make([]byte, block/minis*int(widths[m])/8), 0
			for _, v := range mini {
				for k := range int(widths[m]) {
					bytes[at/8] |= byte(v>>k&1) << (at % 8)
					at++
				}
			}
			data = append(data, bytes...)
		}
		b = append(append(b, widths...), data...)
	}
	return b
}

// Integers of every width, in blocks of every form that the format allows, are read as they were; empty texts are texts; and of a header that says what
// can't be, or an end too early, an error tells.
func TestDeltaByHand(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, form := range [][2]int{{8, 1}, {128, 4}, {64, 8}, {4096, 512}, {1 << 16, 8}} {
		for width := range 65 {
			values := []int64{rng.Int64()}
			for range 150 {
				values = append(values, values[len(values)-1]+int64(rng.Uint64()>>(64-width))) // by 64 it is 0
			}
			b := packDeltas(form[0], form[1], values)
			if got, rest, err := deltaInts(append(b, "rest"...), len(values)); err != nil || !slices.Equal(got, values) || string(rest) != "rest" {
				t.Fatalf("blocks %v, width %d: %v (%v), want %v, rest %q", form, width, got, err, values, rest)
			}
			if form[0] > 128 || width%5 > 0 {
				continue // these end with bits that nothing is of
			}
			for cut := range b {
				if _, _, err := deltaInts(b[:cut], len(values)); err == nil {
					t.Fatalf("blocks %v, width %d: nothing is wrong with %d of %d bytes", form, width, cut, len(b))
				}
			}
		}
	}
	if data, ends, err := deltaLengthText(nil, append(packDeltas(8, 1, []int64{0, 3, 0}), "abc"...), 3); err != nil || string(data) != "abc" || !slices.Equal(ends, []uint32{0, 3, 3}) {
		t.Errorf("empty texts: %q, %v, %v", data, ends, err)
	}
	if _, _, err := deltaLengthText(nil, append(packDeltas(8, 1, []int64{1, -1}), "abc"...), 2); err == nil {
		t.Error("a text of less than no bytes")
	}
	header := func(numbers ...uint64) (b []byte) {
		for _, n := range numbers {
			b = binary.AppendUvarint(b, n)
		}
		return append(b, make([]byte, 1<<17)...)
	}
	long := bytes.Repeat([]byte{0xff}, 11) // no number has so many bytes
	for name, b := range map[string][]byte{
		"no parts": header(128, 0, 9, 0), "too many parts": header(8*513, 513, 9, 0), "no block": header(0, 4, 9, 0), "too large a block": header(1<<16+8, 1, 9, 0), "unequal parts": header(50, 3, 9, 0),
		"parts of no bytes": header(12, 3, 9, 0), "another number": header(128, 4, 8, 0), "a long number": long, "a long first": append(header(128, 4, 9)[:4], long...), "a long least": append(header(128, 4, 9, 0)[:5], long...),
		"too wide": append(header(8, 1, 9, 0)[:4], append([]byte{0, 65}, make([]byte, 999)...)...),
	} {
		if got, _, err := deltaInts(b, 9); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, err := joinBytes(nil, make([]byte, 11), 3, 4); err == nil {
		t.Error("3 values of 4 bytes in 11")
	}
	if got, err := joinBytes(nil, []byte("adbecf"), 3, 2); err != nil || string(got) != "aedcbf" {
		t.Errorf("%q, %v", got, err)
	}
}

// Of the parts of a block that hold no values the widths may be anything, by the format, and nothing follows of them.
func TestDeltaUnusedWidths(t *testing.T) {
	b := []byte("\x80\x01" + "\x04" + "\x03" + "\x0a" + "\x02" + "\x00\x07\x63\xff" + "rest") // blocks of 128 in 4 parts, 3 values from 5 on, each 1 more
	got, rest, err := deltaInts(b, 3)
	if err != nil || !slices.Equal(got, []int64{5, 6, 7}) || string(rest) != "rest" {
		t.Errorf("%v, rest %q (%v)", got, rest, err)
	}
	for _, count := range []byte{0, 2} { // of values, where a page has one
		if _, _, err := deltaInts([]byte{128, 1, 4, count, 6, 0, 0, 0, 0, 0}, 1); err == nil || !strings.Contains(err.Error(), "delta-encoded values, want 1") {
			t.Errorf("%d values: %v", count, err)
		}
	}
	if values, _, err := deltaInts([]byte{128, 1, 4, 1, 6}, 1); err != nil || !slices.Equal(values, []int64{3}) {
		t.Errorf("%v, %v", values, err)
	}
}

func TestJoinBytes(t *testing.T) {
	// The example of the format's documentation: AA BB CC DD, 00 11 22 33, A3 B4 C5 D6.
	got, err := joinBytes(nil, []byte{0xAA, 0x00, 0xA3, 0xBB, 0x11, 0xB4, 0xCC, 0x22, 0xC5, 0xDD, 0x33, 0xD6}, 3, 4)
	want := []byte{0xAA, 0xBB, 0xCC, 0xDD, 0x00, 0x11, 0x22, 0x33, 0xA3, 0xB4, 0xC5, 0xD6}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x, want %x (%v)", got, want, err)
	}
	if _, err := joinBytes(nil, make([]byte, 11), 3, 4); err == nil {
		t.Error("cut off, no error")
	}
}

// FuzzPageHeader looks for damage that the reader of page headers doesn't survive, or that makes it read beyond its bytes.
func FuzzPageHeader(f *testing.F) {
	f.Add([]byte{0x15, 0x00, 0x15, 0x20, 0x15, 0x20, 0x2c, 0x15, 0x08, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06, 0x00, 0x00})
	f.Add([]byte{0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07})
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parsePageHeader(b); err == nil && (h.headerBytes <= 0 || h.headerBytes > len(b)) {
			t.Errorf("a header of %d bytes in %d", h.headerBytes, len(b))
		}
		parseOffsetIndex(b)
		checkThrift(b)
	})
}

// What a header of a page leaves out has the format's default: values of the second version are compressed, and there is no checksum.
func TestPageHeaderDefaults(t *testing.T) {
	for fields, want := range map[string]pageHeader{
		"\x15\x06\x7c\x15\x02\x00\x00":         {kind: pageDataV2, values: 1},
		"\x15\x06\x7c\x15\x02\x61\x00\x00":     {kind: pageDataV2, values: 1},
		"\x15\x06\x7c\x15\x02\x62\x00\x00":     {kind: pageDataV2, values: 1, plain: true},
		"\x15\x06\x35\x00\x4c\x15\x02\x00\x00": {kind: pageDataV2, values: 1, hasCRC: true},
	} {
		want.headerBytes = len(fields)
		if got, err := parsePageHeader([]byte(fields)); err != nil || got != want {
			t.Errorf("%x: %+v, %v, want %+v", fields, got, err, want)
		}
	}
}
