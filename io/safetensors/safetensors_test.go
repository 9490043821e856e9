package safetensors

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"contraflow/testdata/harness"
)

const golden = "../../testdata/golden/safetensors/"

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestGoldenValues compares names, shapes and every value with what torch sees.
func TestGoldenValues(t *testing.T) {
	var want struct {
		Names  []string
		Shapes map[string][]int
		Bits   map[string][]uint32
	}
	readJSON(t, golden+"values.json", &want)
	f := open(t, golden+"tensors.safetensors")
	if !reflect.DeepEqual(f.Names(), want.Names) {
		t.Errorf("names %q, want %q", f.Names(), want.Names)
	}
	if got := f.Metadata(); !reflect.DeepEqual(got, map[string]string{"format": "pt"}) {
		t.Errorf("metadata %v", got)
	}
	for _, name := range want.Names {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x.Shape, want.Shapes[name]) {
			t.Errorf("%s: shape %v, want %v", name, x.Shape, want.Shapes[name])
		}
		got := make([]float32, x.Len())
		err = x.Float32s(got)
		bits, floating := want.Bits[name]
		if !floating {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %s read as floats: error %v", name, x.DType, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range got {
			w := math.Float32frombits(bits[i])
			if g != g && w != w {
				continue // which NaN it is depends on who widens it
			}
			if math.Float32bits(g) != bits[i] {
				t.Errorf("%s[%d] = %g (%#x), want %g (%#x)", name, i, g, math.Float32bits(g), w, bits[i])
			}
		}
	}
}

// TestGoldenBytes: the same tensors written again give the reference's bytes.
func TestGoldenBytes(t *testing.T) {
	want, err := os.ReadFile(golden + "tensors.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, golden+"tensors.safetensors")
	tensors := slices.Clone(f.tensors)
	slices.Reverse(tensors)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := Write(path, tensors, f.Metadata()); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); !bytes.Equal(got, want) {
		t.Errorf("%d bytes differ from the reference's %d", len(got), len(want))
	}
}

// TestBareBytes: without metadata, and of a scalar whose shape is nil, the bytes are those of safetensors.numpy.save (0.8.0) too.
func TestBareBytes(t *testing.T) {
	const want = "\xa0\x00\x00\x00\x00\x00\x00\x00" + `{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"b":{"dtype":"U8","shape":[1,1],"data_offsets":[6,7]}} ` +
		"\x00\x00 @\x01\x02\x03"
	scalar, err := FromFloat32s("s", nil, []float32{2.5})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := Encode(&got, []Tensor{{Name: "b", DType: U8, Shape: []int{1, 1}, Data: []byte{3}}, {Name: "a", DType: U8, Shape: []int{2}, Data: []byte{1, 2}}, scalar}, nil); err != nil || got.String() != want {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// TestGoldenVerdicts: what the reference refuses is refused, what it reads is read alike. Files that only the format's
// description forbids are named "strict: ".
func TestGoldenVerdicts(t *testing.T) {
	var verdicts []struct {
		Name, File, Error string
		OK                bool
		Tensors           [][]any
	}
	readJSON(t, golden+"verdicts.json", &verdicts)
	good := 0
	for _, v := range verdicts {
		b, err := base64.StdEncoding.DecodeString(v.File)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := parse(b)
		if want := v.OK && !strings.HasPrefix(v.Name, "strict: "); (err == nil) != want {
			t.Errorf("%s: error %v, the reference says ok=%v %s", v.Name, err, v.OK, v.Error)
			continue
		}
		if err != nil {
			continue
		}
		good++
		slices.SortFunc(got, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
		var seen [][]any
		for _, x := range got {
			shape := []any{}
			for _, d := range x.Shape {
				shape = append(shape, float64(d))
			}
			seen = append(seen, []any{x.Name, string(x.DType), shape, base64.StdEncoding.EncodeToString(x.Data)})
		}
		if len(seen) != len(v.Tensors) || len(seen) > 0 && !reflect.DeepEqual(seen, v.Tensors) {
			t.Errorf("%s: %v, want %v", v.Name, seen, v.Tensors)
		}
	}
	if len(verdicts) < 500 || good < 40 {
		t.Errorf("only %d verdicts, %d good", len(verdicts), good)
	}
}

// TestMessages: errors name the file, the tensor, and what is wrong.
func TestMessages(t *testing.T) {
	info := func(rest string) string { return `{"enc.w":{"dtype":"F32","shape":[2],` + rest + `}}` }
	for _, c := range []struct{ header, data, want string }{
		{info(`"data_offsets":[0,8]`), "1234567", `tensor "enc.w": data_offsets [0, 8] reach beyond the file's 7 bytes of data`},
		{info(`"data_offsets":[0,4]`), "1234", `tensor "enc.w": data_offsets [0, 4] hold 4 bytes, but shape [2] of F32 takes 8`},
		{info(`"data_offsets":[4,12]`), "123412341234", `tensor "enc.w": data_offsets [4, 12] leave a hole of 4 bytes after the start`},
		{info(`"data_offsets":[0,8]`), "12345678zz", `2 bytes after tensor "enc.w" belong to no tensor`},
		{info(`"data_offsets":[0,8]`) + "x", "12345678", "something follows the JSON object"},
		{`{"enc.w":1}`, "", `tensor "enc.w": got 1, want an object`},
		{`{"enc.w":{"dtype":"F33"}}`, "", `tensor "enc.w": dtype "F33" is unknown; known are BOOL`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, "123456",
			`tensor "b": data_offsets [2, 6] overlap tensor "a", which ends at 4`},
		{`{"a":{"dtype":"U8","shape":[0]}}`, "", `tensor "a": no data_offsets`},
		{`{"a":{},"a":{}}`, "", `tensor "a": no dtype`},
		{`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}`, "", `"a" occurs twice`},
	} {
		path := filepath.Join(t.TempDir(), "m.safetensors")
		head := []byte{byte(len(c.header)), 0, 0, 0, 0, 0, 0, 0}
		if err := os.WriteFile(path, slices.Concat(head, []byte(c.header), []byte(c.data)), 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s %s:\n got %v\nwant %s: ... %s", c.header, c.data, err, path, c.want)
		}
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one that names %s", err, path)
		}
	}
}

func TestNearNames(t *testing.T) {
	f := open(t, golden+"tensors.safetensors")
	for name, want := range map[string]string{
		"encoder.wieght":      `no such tensor: "encoder.wieght"; near it are encoder.weight`,
		"bert.encoder.weight": `near it are encoder.weight`,
		"weight":              `near it are encoder.weight`,
		"something.else.here": `among 15, such as "position_ids"`,
	} {
		_, err := f.Tensor(name)
		if !errors.Is(err, ErrNoTensor) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), golden) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestFloat32sErrors(t *testing.T) {
	f := open(t, golden+"tensors.safetensors")
	x, _ := f.Tensor("encoder.weight")
	err := x.Float32s(make([]float32, 34))
	if err == nil || !strings.Contains(err.Error(), `tensors.safetensors: tensor "encoder.weight": shape [5 7] has 35 elements, but there is room for 34`) {
		t.Error(err)
	}
	f.Close()
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := x.Float32s(make([]float32, 35)); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
	x = Tensor{Name: "own", DType: F32, Shape: []int{2}, Data: []byte("1234")}
	if err := x.Float32s(make([]float32, 2)); err == nil {
		t.Error("too little data was read")
	}
}

func TestWriteErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	a := Tensor{Name: "a", DType: U8, Shape: []int{2}, Data: []byte("12")}
	for want, tensors := range map[string][]Tensor{
		`tensor "a" occurs twice`:                     {a, a},
		`can't be named __metadata__`:                 {{Name: "__metadata__", DType: U8, Shape: []int{2}, Data: []byte("12")}},
		`tensor "b": 3 bytes of data, but shape [2]`:  {{Name: "b", DType: U8, Shape: []int{2}, Data: []byte("123")}},
		`tensor "b": dtype "u8" is unknown`:           {{Name: "b", DType: "u8", Shape: []int{2}, Data: []byte("12")}},
		`tensor "b": shape [-2] has a negative`:       {{Name: "b", DType: U8, Shape: []int{-2}, Data: []byte("12")}},
		`tensor "\xff": the name is not valid UTF-8`:  {{Name: "\xff", DType: U8, Shape: []int{2}, Data: []byte("12")}},
		`tensor "b": shape [3] of F4 (4 bits each)`:   {{Name: "b", DType: F4, Shape: []int{3}, Data: []byte("12")}},
		`more bytes than an address can hold`:         {{Name: "b", DType: F64, Shape: []int{1 << 30, 1 << 30, 1 << 30}}},
		`tensor "b": 0 bytes of data, but shape [2] `: {a, {Name: "b", DType: U8, Shape: []int{2}}},
	} {
		err := Write(path, tensors, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("a failed Write left %q", got)
	}
	if _, err := FromFloat32s("a", []int{3}, make([]float32, 2)); err == nil {
		t.Error("2 values were taken for shape [3]")
	}
}

// limited fails like a full disk after n bytes.
type limited struct{ n int }

func (l *limited) Write(p []byte) (int, error) {
	if l.n -= len(p); l.n < 0 {
		return len(p) + l.n, syscall.ENOSPC
	}
	return len(p), nil
}

// TestFullDisk stops the disk at every byte: no write may pass for a success.
func TestFullDisk(t *testing.T) {
	f := open(t, golden+"tensors.safetensors")
	var whole bytes.Buffer
	if err := Encode(&whole, f.tensors, f.Metadata()); err != nil {
		t.Fatal(err)
	}
	for n := range whole.Len() {
		if err := Encode(&limited{n}, f.tensors, f.Metadata()); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("a disk of %d of %d bytes: %v", n, whole.Len(), err)
		}
	}
	if err := Encode(&limited{whole.Len()}, f.tensors, f.Metadata()); err != nil {
		t.Error(err)
	}
}

func BenchmarkFloat32s(b *testing.B) {
	const n = 1 << 20
	for _, d := range []DType{F32, BF16, F16, F64} {
		b.Run(string(d), func(b *testing.B) {
			data := make([]byte, n*d.Bits()/8)
			for i := range data {
				data[i] = byte(i*i>>3) & 0x3f
			}
			x, dst := Tensor{Name: "x", DType: d, Shape: []int{n}, Data: data}, make([]float32, n)
			b.SetBytes(4 * n)
			for b.Loop() {
				if err := x.Float32s(dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzParse: nothing that a file may hold panics, and what is accepted survives a round trip.
func FuzzParse(f *testing.F) {
	b, err := os.ReadFile(golden + "tensors.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add([]byte("\x3c\x00\x00\x00\x00\x00\x00\x00" + `{"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}   ` + "1234"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var tensors []Tensor
		var metadata map[string]string
		var err error
		harness.Bounded(t, func() { tensors, metadata, err = parse(b) })
		if err != nil {
			return
		}
		total := 0
		for _, x := range tensors {
			total += len(x.Data)
			// An empty tensor may have dimensions whose product without the zero is huge.
			if n := x.Len(); n*x.DType.Bits() != 8*len(x.Data) {
				t.Fatalf("%v: %d elements in %d bytes", x, n, len(x.Data))
			}
		}
		if n := int(b[0]) | int(b[1])<<8 | int(b[2])<<16 | int(b[3])<<24; 8+n+total != len(b) {
			t.Fatalf("%d bytes of header and %d of tensors in a file of %d", n, total, len(b))
		}
		var again bytes.Buffer
		if err := Encode(&again, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		tensors2, metadata2, err := parse(again.Bytes())
		if err != nil {
			t.Fatalf("reading what Encode wrote: %v", err)
		}
		if len(tensors) != len(tensors2) || len(metadata) != len(metadata2) {
			t.Fatal("a round trip changed the file")
		}
		byName := func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) }
		slices.SortFunc(tensors, byName)
		slices.SortFunc(tensors2, byName)
		for i, x := range tensors {
			y := tensors2[i]
			if x.Name != y.Name || x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) || !bytes.Equal(x.Data, y.Data) {
				t.Fatalf("%v became %v", x, y)
			}
		}
	})
}

// TestAs rounds to every half, to the middle between it and the next, and to what lies just beside that, against a search for the
// nearest one in float64.
func TestAs(t *testing.T) {
	for _, d := range []DType{F16, BF16} {
		var vs []float32 // all finite values that are not negative, in their order
		for h := range 0x8000 {
			v := make([]float32, 1)
			if err := (Tensor{DType: d, Data: []byte{byte(h), byte(h >> 8)}}).Float32s(v); err != nil {
				t.Fatal(err)
			}
			if v[0]-v[0] == 0 {
				vs = append(vs, v[0])
			}
		}
		var in []float32
		var want []int // indexes in vs
		for i := range vs[:len(vs)-1] {
			low, high := float64(vs[i]), float64(vs[i+1])
			middle := float32((low + high) / 2) // exact: halves have fewer digits
			even := i + i&1
			for _, x := range []struct {
				v    float32
				want int
			}{{vs[i], i}, {middle, even}, {math.Nextafter32(middle, -1), i}, {math.Nextafter32(middle, math.MaxFloat32), i + 1}} {
				if float64(x.v) < low || float64(x.v) > high { // the smallest ones of BF16 have nothing between them
					continue
				}
				in, want = append(in, x.v, -x.v), append(want, x.want, x.want)
			}
		}
		src, err := FromFloat32s("w", []int{len(in)}, in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := src.As(d)
		if err != nil {
			t.Fatal(err)
		}
		back := make([]float32, len(in))
		if err := got.Float32s(back); err != nil {
			t.Fatal(err)
		}
		for i, v := range in {
			w := vs[want[i]]
			if v < 0 || 1/v < 0 {
				w = -w
			}
			if math.Float32bits(back[i]) != math.Float32bits(w) {
				t.Fatalf("%v in %s is %v, want %v", v, d, back[i], w)
			}
		}
		if again, err := got.As(F32); err != nil || !slices.Equal(again.Data, bytesOf(back)) {
			t.Errorf("%s as F32: %v", d, err)
		}
		low, full := math.Float32frombits(0x7f800001), math.Float32frombits(0xffffffff) // NaNs that rounding would make infinite, or 0
		for _, v := range []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), low, full} {
			one, _ := FromFloat32s("w", []int{1}, []float32{v})
			h, err := one.As(d)
			if err == nil {
				err = h.Float32s(back[:1])
			}
			if err != nil || math.IsNaN(float64(back[0])) != math.IsNaN(float64(v)) || back[0] != v && v == v {
				t.Errorf("%v in %s is %v: %v", v, d, back[0], err)
			}
		}
	}
	for d, v := range map[DType]float32{F16: -65520, BF16: math.MaxFloat32} {
		large, _ := FromFloat32s("encoder.weight", []int{1, 3}, []float32{1, 2, v})
		_, err := large.As(d)
		if err == nil || !strings.Contains(err.Error(), `"encoder.weight": number 2 of 3 is`) {
			t.Errorf("%v in %s: %v", v, d, err)
		}
	}
	large, _ := FromFloat32s("w", []int{1}, []float32{math.Nextafter32(65520, 0)})
	if h, err := large.As(F16); err != nil || h.Data[0] != 0xff || h.Data[1] != 0x7b {
		t.Errorf("what is just below 65520 is not 65504: %v, %v", h.Data, err)
	}
	if _, err := large.As(I8); err == nil {
		t.Error("I8 was written")
	}
}

// Tensors that are written one by one make the same file as those in memory, in the order of the file, and one that is not as long as its shape says is an error.
func TestEncodeEach(t *testing.T) {
	a, err := FromFloat32s("a", []int{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	if err != nil {
		t.Fatal(err)
	}
	b := Tensor{Name: "b", DType: I64, Shape: []int{1}, Data: []byte("12345678")}
	var whole, each bytes.Buffer
	if err := Encode(&whole, []Tensor{a, b}, nil); err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{"a": a.Data, "b": b.Data}
	order := ""
	write := func(w io.Writer, x Tensor) error {
		order += x.Name
		for _, c := range data[x.Name] { // in pieces
			if _, err := w.Write([]byte{c}); err != nil {
				return err
			}
		}
		return nil
	}
	bare := []Tensor{{Name: "a", DType: F32, Shape: []int{2, 3}}, {Name: "b", DType: I64, Shape: []int{1}}}
	if err := EncodeEach(&each, bare, nil, write); err != nil || !bytes.Equal(whole.Bytes(), each.Bytes()) || order != "ba" {
		t.Errorf("%v, order %q\n%q\n%q", err, order, each.Bytes(), whole.Bytes())
	}
	for _, wrong := range []string{"1234567", "123456789"} {
		data["b"] = []byte(wrong)
		if err := EncodeEach(io.Discard, bare, nil, write); err == nil || !strings.Contains(err.Error(), `tensor "b": `+strconv.Itoa(len(wrong))+` bytes were written, but shape [1] of I64 takes 8`) {
			t.Error(err)
		}
	}

	part, err := a.Elements(2, 3)
	vs := make([]float32, 3)
	if err != nil || part.Float32s(vs) != nil || vs[0] != 3 || vs[2] != 5 {
		t.Errorf("%v, %v, %v", part, vs, err)
	}
	for _, x := range [][2]int{{-1, 2}, {0, -1}, {4, 3}, {7, 0}, {1, math.MaxInt}} {
		if _, err := a.Elements(x[0], x[1]); err == nil {
			t.Errorf("there are no elements %v", x)
		}
	}
	if _, err := (Tensor{Name: "f", DType: F4, Shape: []int{2}, Data: []byte{1}}).Elements(0, 1); err == nil {
		t.Error("half a byte")
	}
}

// A part of a tensor is what its elements are, to the last one and no further; of elements smaller than a byte there is none.
func TestElements(t *testing.T) {
	x := Tensor{Name: "x", DType: BF16, Shape: []int{2, 3}, Data: []byte("aabbccddeeff")}
	for from := -1; from <= 7; from++ {
		for n := -1; n <= 7; n++ {
			got, err := x.Elements(from, n)
			if good := from >= 0 && n >= 0 && from+n <= 6; !good {
				if err == nil || !strings.Contains(err.Error(), "x BF16 [2 3]") {
					t.Errorf("%d from %d: %v, %v", n, from, got, err)
				}
			} else if err != nil || string(got.Data) != "aabbccddeeff"[2*from:2*(from+n)] || len(got.Shape) != 1 || got.Shape[0] != n || got.Name != "x" || got.DType != BF16 {
				t.Errorf("%d from %d: %v, %q, %v", n, from, got, got.Data, err)
			}
		}
	}
	for _, bad := range []Tensor{
		{Name: "half bytes", DType: F4, Shape: []int{4}, Data: make([]byte, 2)}, {Name: "12 bits of two", DType: F6E2M3, Shape: []int{4}, Data: make([]byte, 3)},
		{Name: "unknown", DType: "X", Shape: []int{4}, Data: make([]byte, 4)}, {Name: "cut", DType: F32, Shape: []int{2}, Data: make([]byte, 7)},
	} {
		if got, err := bad.Elements(0, 1); err == nil {
			t.Errorf("%v: %v", bad, got)
		}
	}
}

// Memory that is given back can still be read, and after Close there is none to give back.
func TestForget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	x, err := FromFloat32s("x", []int{2}, []float32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []Tensor{x}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Forget()
	y, err := f.Tensor("x")
	got := make([]float32, 2)
	if err := errors.Join(err, y.Float32s(got)); err != nil || got[1] != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	f.Forget()
}

// WriteEach writes what Write does, and nothing if a tensor's bytes are not as many as they should be, or can't be had.
func TestWriteEach(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	tensors := []Tensor{{Name: "x", DType: U8, Shape: []int{3}, Data: []byte("abc")}, {Name: "y", DType: F32, Shape: []int{1}, Data: []byte("defg")}}
	boom := errors.New("boom")
	each := func(cut int, fail error) error {
		return WriteEach(b, tensors, map[string]string{"format": "pt"}, func(w io.Writer, t Tensor) error {
			if t.Name == "x" && fail != nil {
				return fail
			}
			_, err := w.Write(t.Data[:len(t.Data)-cut])
			return err
		})
	}
	if err := errors.Join(Write(a, tensors, map[string]string{"format": "pt"}), each(0, nil)); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(a)
	if err := each(1, nil); err == nil || !strings.Contains(err.Error(), `tensor "y": 3 bytes were written, but shape [1] of F32 takes 4`) {
		t.Error(err)
	}
	if err := each(0, boom); !errors.Is(err, boom) || !strings.Contains(err.Error(), b) {
		t.Error(err)
	}
	if got, err := os.ReadFile(b); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
