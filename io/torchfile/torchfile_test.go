package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldens.Path(t, "m3/files"), name+".pt"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// What torch.save writes: of a module's state, of halves and doubles, of parameters, of views of one storage.
func TestTorchSaved(t *testing.T) {
	linear := map[string][]float32{"weight": {0, .25, .5, .75, 1, 1.25}, "bias": {-1.5, 2}}
	for name, want := range map[string]map[string][]float32{
		"state_dict": linear, "half": linear, "bfloat16": linear, "double": linear,
		"parameters": {"weight": {1, 1, 1, 1}, "bias": {0, 0}},
		"views":      {"weight": {4, 5, 6, 7, 8, 9}, "bias": {10, 11}},
		"unusual":    {"row": {0, 1, 2, 3}, "column": {0, 1, 2}, "scalar": {2.5}, "none": {}},
	} {
		tensors, err := Parse(read(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(tensors) != len(want) {
			t.Errorf("%s: %v", name, tensors)
		}
		for _, x := range tensors {
			got := make([]float32, x.Len())
			if err := x.Float32s(got); err != nil || !slices.Equal(got, want[x.Name]) {
				t.Errorf("%s: %v is %v, want %v (%v)", name, x, got, want[x.Name], err)
			}
		}
	}
}

// What is not tensors by name says so, and what would run code is told apart.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		want   string
		unsafe bool
	}{
		"transposed": {want: "not those of a contiguous tensor"},
		"nested":     {want: "the dictionary has a dictionary for the string \"state_dict\""},
		"module":     {want: `it calls "torch.nn.modules.linear.Linear"`, unsafe: true},
		"legacy":     {want: "not a zip archive"},
		"negative":   {want: "a tensor that is not what its storage holds"},
	} {
		_, err := Parse(read(t, name))
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrUnsafe) != c.unsafe {
			t.Errorf("%s: %v, want %q, unsafe %v", name, err, c.want, c.unsafe)
		}
	}
}

// entry is one of a zip archive's; size overrules what the archive says of it.
type entry struct {
	name   string
	data   []byte
	size   uint64
	method uint16
}

func archived(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, e := range entries {
		size := e.size
		if size == 0 {
			size = uint64(len(e.data))
		}
		w, err := z.CreateRaw(&zip.FileHeader{Name: e.name, Method: e.method, CRC32: crc32.ChecksumIEEE(e.data), CompressedSize64: size, UncompressedSize64: size})
		if err == nil {
			_, err = w.Write(e.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// pickled is the dictionary of one tensor of n elements along one dimension, in a storage of so many at a key.
func pickled(n, elements uint64, key string) []byte {
	number := func(v uint64) string { return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, v)) }
	text := func(s string) string {
		return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
	}
	return []byte("\x80\x02}" + text("weight") + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(elements) +
		"tQ" + number(0) + "(" + number(n) + "t(" + number(1) + "t\x89ccollections\nOrderedDict\n)RtRs.")
}

// spoiled has a byte changed where a text is.
func spoiled(file []byte, text string) []byte {
	file[bytes.Index(file, []byte(text))] ^= 1
	return file
}

func TestHostile(t *testing.T) {
	code := []byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")
	stack := []byte("\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.")
	good := pickled(2, 2, "0")
	two := make([]byte, 8)
	for name, c := range map[string]struct {
		data   []byte
		want   string
		unsafe bool
	}{
		"good":                {data: archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/data/0", data: two})},
		"os.system":           {archived(t, entry{name: "a/data.pkl", data: code}), `it calls "os.system"`, true},
		"eval":                {archived(t, entry{name: "a/data.pkl", data: stack}), `it calls "builtins.eval"`, true},
		"an instance":         {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02(ios\nsystem\n.")}), "don't need that instruction", true},
		"a new object":        {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02ccollections\nOrderedDict\n)\x81.")}), "don't need that instruction", true},
		"an extension":        {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02\x82\x01.")}), "don't need that instruction", true},
		"a call of a tensor":  {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02K\x01)R.")}), "a call of 1", true},
		"attributes":          {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02K\x01}b.")}), "attributes of something", true},
		"parent":              {archived(t, entry{name: "../data.pkl", data: good}), "leaves its folder", true},
		"absolute":            {archived(t, entry{name: "/etc/data.pkl", data: good}), "leaves its folder", true},
		"dots inside":         {archived(t, entry{name: "a/../../data.pkl", data: good}), "leaves its folder", true},
		"backslashes":         {archived(t, entry{name: `..\a/data.pkl`, data: good}), "leaves its folder", true},
		"a storage outside":   {archived(t, entry{name: "a/data.pkl", data: pickled(2, 2, "../../passwd")}), "a storage is called", true},
		"twice":               {archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/data.pkl", data: good}), "two entries", false},
		"two dictionaries":    {archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "b/data.pkl", data: good}), "two dictionaries", false},
		"compressed":          {archived(t, entry{name: "a/data.pkl", data: good, method: zip.Deflate}), "is compressed", false},
		"a size that lies":    {archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/data/0", data: two, size: 1 << 40}), "says that it has 1099511627776 bytes", false},
		"a size a bit off":    {archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/data/0", data: two, size: 16}), "has 16 bytes, want 8", false},
		"a huge shape":        {archived(t, entry{name: "a/data.pkl", data: pickled(1<<30, 2, "0")}, entry{name: "a/data/0", data: two}), "needs more than the file's", false},
		"a negative shape":    {archived(t, entry{name: "a/data.pkl", data: pickled(1<<63, 2, "0")}, entry{name: "a/data/0", data: two}), "along one dimension", false},
		"a huge storage":      {archived(t, entry{name: "a/data.pkl", data: pickled(2, 1<<62, "0")}, entry{name: "a/data/0", data: two}), "is not within the storage", false},
		"a short storage":     {archived(t, entry{name: "a/data.pkl", data: pickled(3, 2, "0")}, entry{name: "a/data/0", data: two}), "is not within the storage", false},
		"no storage":          {archived(t, entry{name: "a/data.pkl", data: good}), "has no a/data/0", false},
		"no pickle":           {archived(t, entry{name: "a/version", data: []byte("3")}), "no data.pkl", false},
		"a byte that changed": {spoiled(archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/data/0", data: []byte("\x01\x02\x03\x04\x05\x06\x07\x08")}), "\x05\x06\x07"), "a/data/0: zip: checksum error", false},
		"big-endian":          {archived(t, entry{name: "a/data.pkl", data: good}, entry{name: "a/byteorder", data: []byte("big")}), "big-endian", false},
		"a long text":         {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02X\xff\xff\xff\xff")}), "it wants 4294967295 bytes", false},
		"cut":                 {archived(t, entry{name: "a/data.pkl", data: good[:40]}), "data.pkl", false},
		"nothing":             {archived(t, entry{name: "a/data.pkl", data: []byte(".")}), "values are left", false},
		"a name twice":        {archived(t, entry{name: "a/data.pkl", data: append(good[:len(good)-1:len(good)-1], good[3:]...)}, entry{name: "a/data/0", data: two}), `the tensor "weight" is there twice`, false},
		"a nameless storage":  {archived(t, entry{name: "a/data.pkl", data: pickled(2, 2, "")}), "a storage is called", true},
		"an unclean name":     {archived(t, entry{name: "a//data.pkl", data: good}), "leaves its folder", true},
		"nameless":            {archived(t, entry{name: "", data: good}), "leaves its folder", true},
		"a negative offset":   {archived(t, entry{name: "a/data.pkl", data: bytes.Replace(good, []byte("\x8a\x08"+strings.Repeat("\x00", 8)), []byte("\x8a\x08"+strings.Repeat("\xff", 8)), 1)}, entry{name: "a/data/0", data: two}), "from element -1 is not within", false},
		"two sizes":           {archived(t, entry{name: "a/data.pkl", data: append(good[:len(good)-1:len(good)-1], bytes.Replace(pickled(4, 4, "0"), []byte("weight"), []byte("height"), 1)[3:]...)}, entry{name: "a/data/0", data: two}), "a/data/0 has 8 bytes, want 16", false},
		"past the end":        {archived(t, entry{name: "a/data.pkl", data: good, size: uint64(len(good)) + 100}), "are not within the file's", false},
		"a long pickle":       {archived(t, entry{name: "a/data.pkl", data: make([]byte, maxPickle+1)}), "has 1048577 bytes, want at most 1048576", false},
		"cut off":             {archived(t, entry{name: "a/data.pkl", data: good})[:60], "does not end as one, zip: not a valid zip file: the file is damaged", false},
		"empty":               {[]byte{}, "it is empty: the file is damaged", false},
		"a sparse tensor":     {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02ctorch._utils\n_rebuild_sparse_tensor\n.")}), "torch._utils._rebuild_sparse_tensor makes, of a type or a kind", false},
		"a complex tensor":    {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02ctorch\nComplexFloatStorage\n.")}), "torch.ComplexFloatStorage makes", false},
		"torch's load":        {archived(t, entry{name: "a/data.pkl", data: []byte("\x80\x02ctorch.serialization\nload\n.")}), `it calls "torch.serialization.load"`, true},
		"a list of tensors":   {archived(t, entry{name: "a/data.pkl", data: []byte("].")}), "holds a list", false},
	} {
		_, err := Parse(c.data)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrUnsafe) != c.unsafe):
			t.Errorf("%s: %v, want %q, unsafe %v", name, err, c.want, c.unsafe)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.TotalAlloc > 1<<30 {
		t.Errorf("%d bytes were taken for files of some hundred", m.TotalAlloc)
	}
}

// A file may have no checksums; where there are any, all count.
func TestNoChecksums(t *testing.T) {
	file := archived(t, entry{name: "a/data.pkl", data: pickled(2, 2, "0")}, entry{name: "a/data/0", data: []byte("\x01\x02\x03\x04\x05\x06\x07\x08")})
	sum := func(data []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(data)) }
	of0 := bytes.ReplaceAll(file, sum([]byte("\x01\x02\x03\x04\x05\x06\x07\x08")), make([]byte, 4))
	if _, err := Parse(of0); !errors.Is(err, zip.ErrChecksum) || !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	if got, err := Parse(bytes.ReplaceAll(of0, sum(pickled(2, 2, "0")), make([]byte, 4))); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// Instructions by themselves, and what Python's pickletools says that they do.
func TestInstructions(t *testing.T) {
	storage := "(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x08tQ"
	rebuild := func(shape, stride string) string {
		return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\x00" + shape + stride + "\x89ccollections\nOrderedDict\n)RtR"
	}
	for pickle, want := range map[string]any{
		"J\xff\xff\xff\xff":           int64(-1),
		"J\x70\x11\x01\x00":           int64(70000),
		"M\xff\xff":                   int64(65535),
		"\x8a\x00":                    int64(0),
		"\x8a\x01\xff":                int64(-1),
		"\x8a\x02\xff\x00":            int64(255),
		"\x80\x05N":                   nil,
		rebuild("(K\x08t", "(K\x01t"): tensor{storage: storageOf(8), shape: []int{8}, stride: []int64{1}},

		"\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00K\x01": int64(1),
		"]K\x01a":                     &sequence{},
		"](K\x01K\x02e":               &sequence{},
		"K\x05\x94h\x00\x86":          tuple{int64(5), int64(5)},
		"K\x05\x94K\x06\x94h\x01\x87": tuple{int64(5), int64(6), int64(6)},
		"(K\x01\x86":                  "a value is missing",
		"K\x05r\x07\x00\x00\x00j\x07\x00\x00\x00\x86": tuple{int64(5), int64(5)},

		"\x80\x06N":                      "protocol 6",
		"K\x01K\x02":                     "1 values are left",
		"K\x01K\x02s":                    "a value is missing",
		"q\x00":                          "a value is missing",
		"h\x00":                          "nothing was kept as number 0",
		"]K\x01K\x02s":                   "can't be added to a list",
		"}K\x01a":                        "can't be added to a dictionary",
		"}(K\x01u":                       "can't be added to a dictionary",
		"}(K\x01K\x02e":                  "can't be added to a dictionary",
		"](K\x01K\x02u":                  "can't be added to a list",
		"K\x01K\x02\x93":                 "a name that is 2",
		"e":                              "a mark is missing",
		storage[:len(storage)-4] + "NtQ": "a storage of", // of None elements
		strings.Replace(storage, "ctorch\nByteStorage\n", "ccollections\nOrderedDict\n", 1): "a storage of",
		strings.Replace(storage, "X\x01\x00\x00\x000", "K\x00", 1):                          "a storage of", // its key is a number
		strings.Replace(storage, "K\x08", "", 1):                                            "is no storage",
		"NQ":                                                                                "is no storage",
		"ctorch._utils\n_rebuild_tensor_v2\n(tR":                                            "a call of",
		"ctorch._utils\n_rebuild_parameter\n(K\x01\x88NtR":                                  "a call of",
		"ccollections\nOrderedDict\nNR":                                                     "a call of",
		"ccollections\nOrderedDict\n(NtR":                                                   "a call of",
		"b":                                                                                 "a value is missing",
		"K\x01b":                                                                            "attributes of something that is no dictionary",
		"\x8a\x09123456789":                                                                 "a number of 9 bytes",
		"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80":                                          int64(math.MinInt64),
		"\x8a\x04\x00\x00\x00\x80":                                                          int64(math.MinInt32),
		"\x88":                                                                              true,
		"\x89":                                                                              false,
		"G?\xf8\x00\x00\x00\x00\x00\x00":                                                    1.5,
		rebuild("(J\xff\xff\xff\x7ft", "(K\x01t"):                                           tensor{storage: storageOf(8), shape: []int{math.MaxInt32}, stride: []int64{1}},
		rebuild("(\x8a\x05\x00\x00\x00\x80\x00t", "(K\x01t"):                                "along one dimension",
		rebuild("("+strings.Repeat("K\x01", maxDims)+"t", "("+strings.Repeat("K\x01", maxDims)+"t"):     tensor{storage: storageOf(8), shape: slices.Repeat([]int{1}, maxDims), stride: slices.Repeat([]int64{1}, maxDims)},
		rebuild("("+strings.Repeat("K\x01", maxDims+1)+"t", "("+strings.Repeat("K\x01", maxDims+1)+"t"): "a tensor of",
		strings.Replace(rebuild("(K\x08t", "(K\x01t"), ")RtR", ")R}tR", 1):                              tensor{storage: storageOf(8), shape: []int{8}, stride: []int64{1}},
		strings.Replace(rebuild("(K\x08t", "(K\x01t"), ")RtR", ")R]tR", 1):                              "not what its storage holds",
		"ctorch._utils\n_rebuild_parameter\n(" + rebuild("(K\x08t", "(K\x01t") + "\x88tR":               "a call of",
		"ctorch._utils\n_rebuild_tensor_v2\n(" + rebuild("(K\x08t", "(K\x01t") + "NNtR":                 "a call of",
		"(X\x05\x00\x00\x00otherNNNNtQ": "is no storage",
		rebuild("(K\x08t", ")"):         "a tensor of",
		rebuild("(Nt", "(K\x01t"):       "a tensor of None along one dimension",
		rebuild("(K\x08t", "(Nt"):       "along one dimension",
	} {
		got, err := run([]byte(pickle + "."))
		if wrong, ok := want.(string); ok {
			if err == nil || !strings.Contains(err.Error(), wrong) {
				t.Errorf("%q: %v, %v, want %q", pickle, got, err, wrong)
			}
		} else if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v, want %v", pickle, got, err, want)
		}
	}
}

// A storage's class is what torch's page on its storages says that it holds: so many bytes an element, and what they are.
func TestStorages(t *testing.T) {
	for class, want := range map[string]safetensors.DType{
		"Double": safetensors.F64, "Float": safetensors.F32, "Half": safetensors.F16, "BFloat16": safetensors.BF16, "Long": safetensors.I64, "Int": safetensors.I32,
		"Short": safetensors.I16, "Char": safetensors.I8, "Byte": safetensors.U8, "Bool": safetensors.Bool,
	} {
		pickle := bytes.Replace(pickled(2, 2, "0"), []byte("FloatStorage"), []byte(class+"Storage"), 1)
		got, err := Parse(archived(t, entry{name: "a/data.pkl", data: pickle}, entry{name: "a/data/0", data: make([]byte, 2*want.Bits()/8)}))
		if err != nil || got[0].DType != want {
			t.Errorf("%s: %v, %v, want %s", class, got, err, want)
		}
	}
}

func storageOf(n int64) storage { return storage{safetensors.U8, "0", n} }

func TestEncode(t *testing.T) {
	var want []safetensors.Tensor
	for name, shape := range map[string][]int{"weight": {2, 3}, "bias": {2}, "kernel": {2, 3, 4}, "scale": {}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		vs := make([]float32, n)
		for i := range vs {
			vs[i] = float32(i) - 0.5
		}
		x, err := safetensors.FromFloat32s(name, shape, vs)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, x)
	}
	data, err := Encode("colbert_linear", want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range got {
		if x.String() != want[i].String() || !bytes.Equal(x.Data, want[i].Data) {
			t.Errorf("%v, want %v", x, want[i])
		}
	}
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File { // of none it would be 0, which nobody compares
		if f.CRC32 == 0 {
			t.Errorf("%s has no checksum", f.Name)
		}
	}
	if _, err := Encode("x", []safetensors.Tensor{{Name: "ids", DType: safetensors.U16, Shape: []int{1}, Data: make([]byte, 2)}}); err == nil || !strings.Contains(err.Error(), `tensor "ids"`) {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"state_dict", "half", "parameters", "views", "module"} {
		f.Add(read(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := Parse(data)
		if err != nil {
			return
		}
		for _, x := range tensors {
			if len(x.Data) != x.Len()*x.DType.Bits()/8 || len(x.Data) > len(data) {
				t.Fatalf("%v has %d bytes of a file of %d", x, len(x.Data), len(data))
			}
		}
	})
}

// FuzzPickle reaches the interpreter behind the archive's checksums.
func FuzzPickle(f *testing.F) {
	f.Add(pickled(2, 2, "0"))
	f.Add([]byte("\x80\x02]q\x00(K\x01M\x02\x01J\xff\xff\xff\xffN\x88\x89G?\xf0\x00\x00\x00\x00\x00\x00e."))
	f.Add([]byte("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s."))
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := run(data); err == nil {
			_ = describe(v)
		}
	})
}

// A tensor goes to a file that torch.load reads, and back.
func Example() {
	bias, _ := safetensors.FromFloat32s("bias", []int{2}, []float32{0.5, -1})
	file, err := Encode("sparse_linear", []safetensors.Tensor{bias})
	if err != nil {
		fmt.Println(err)
		return
	}
	tensors, err := Parse(file)
	fmt.Println(tensors, err)
	// Output: [bias F32 [2]] <nil>
}
