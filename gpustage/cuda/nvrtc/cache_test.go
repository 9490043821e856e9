//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What one process has compiled another one reads, without a compiler; what is damaged or missing is compiled again, and a folder that can't be
// written is only slower.
func TestCache(t *testing.T) {
	compiler(t)
	kernel := func(name string) Source {
		return Source{`extern "C" __global__ void ` + name + `(int *x) { *x = 1; }`, "sm_90"}
	}
	sources := map[string]Source{"a.cu": kernel("a"), "b.cu": kernel("b")}
	dir := filepath.Join(t.TempDir(), "kernels")
	open := func(dir string) *Cache { return &Cache{Dir: dir, Sources: sources} }
	code := func(c *Cache, name string) []byte {
		t.Helper()
		b, err := c.Code(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := code(open(dir), "a.cu")
	if !bytes.Contains(first, []byte(".text.a")) {
		t.Error("the code has no kernel a")
	}

	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != 2 {
		t.Fatalf("the folder has %v, want the code of both sources and nothing else", files)
	}
	lib := os.Getenv("CONTRAFLOW_NVRTC")
	t.Setenv("CONTRAFLOW_NVRTC", "/nowhere/libnvrtc.so.12")
	c := open(dir)
	if !bytes.Equal(code(c, "a.cu"), first) || !bytes.Contains(code(c, "b.cu"), []byte(".text.b")) {
		t.Error("what is read is not what was compiled")
	}
	c.Forget("b.cu")
	if _, err := c.Code("b.cu"); err == nil || !strings.Contains(err.Error(), "/nowhere/") {
		t.Errorf("forgotten code without a compiler: error %v", err)
	}
	t.Setenv("CONTRAFLOW_NVRTC", lib)
	if !bytes.Contains(code(c, "b.cu"), []byte(".text.b")) {
		t.Error("what is compiled again has no kernel b")
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file} {
		if !bytes.Equal(code(open(dir), "a.cu"), first) {
			t.Errorf("folder %q: other code", dir)
		}
	}

	sources["b.cu"] = Source{"wrong", "sm_90"}
	if _, err := open("").Code("a.cu"); err == nil || !strings.Contains(err.Error(), "b.cu(1)") {
		t.Errorf("a mistake in another source: error %v", err)
	}
}

// A folder that comes from elsewhere is used as far as it is what NVRTC here would make of these sources: whole, of their text and architecture, and of this
// version. Without NVRTC any version's serves. What there was to do is told.
func TestCarried(t *testing.T) {
	here := compiler(t).version()
	made := func(text, arch string) map[string]Source { return map[string]Source{"a.cu": {text, arch}} }
	const text = `extern "C" __global__ void a(int *x) { *x = 1; }`
	elsewhere := []byte("made elsewhere") // no compiler makes this
	carried := func(t *testing.T, version string) (dir, file string) {
		from := &Cache{Dir: t.TempDir(), Sources: made(text, "sm_90")}
		if err := from.Keep("a.cu", version, elsewhere); err != nil {
			t.Fatal(err)
		}
		return from.Dir, from.file("a.cu", version)
	}
	change := func(t *testing.T, file string, f func([]byte) []byte) {
		b, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, f(b), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name, version string
		sources       map[string]Source
		change        func([]byte) []byte
		used, usedBy0 bool // with NVRTC, and without
	}{
		{"as it was made", here, made(text, "sm_90"), nil, true, true},
		{"by another NVRTC", "99.0", made(text, "sm_90"), nil, false, true},
		{"of another text", here, made(text+"\n", "sm_90"), nil, false, false},
		{"for another architecture", here, made(text, "sm_80"), nil, false, false},
		{"cut off", here, made(text, "sm_90"), func(b []byte) []byte { return b[:len(b)-1] }, false, false},
		{"empty", here, made(text, "sm_90"), func([]byte) []byte { return nil }, false, false},
		{"without a seal", here, made(text, "sm_90"), func(b []byte) []byte { return b[:len(elsewhere)] }, false, false},
		{"with another byte", here, made(text, "sm_90"), func(b []byte) []byte { b[3]++; return b }, false, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir, file := carried(t, x.version)
			if x.change != nil {
				change(t, file, x.change)
			}
			t.Run("without NVRTC", func(t *testing.T) {
				t.Setenv("CONTRAFLOW_NVRTC", "/nowhere/libnvrtc.so.12")
				code, err := (&Cache{Dir: dir, Sources: x.sources}).Code("a.cu")
				if x.usedBy0 != (err == nil) || x.usedBy0 && !bytes.Equal(code, elsewhere) {
					t.Errorf("used: %q, error %v; want it used: %v", code, err, x.usedBy0)
				}
			})
			to := &Cache{Dir: dir, Sources: x.sources}
			said, unkept, err := to.Ready()
			if err != nil || unkept != nil {
				t.Fatal(err, unkept)
			}
			want := "compiled by NVRTC " + here + " in "
			if x.used {
				want = "compiled before, by NVRTC " + here + ", in " + dir
			}
			if !strings.HasPrefix(said, want) {
				t.Errorf("said %q, want %q", said, want)
			}
			if code, err := to.Code("a.cu"); err != nil || x.used != bytes.Equal(code, elsewhere) || !x.used && !bytes.Contains(code, []byte(".text.a")) {
				t.Errorf("%d bytes of code, error %v; want it used: %v", len(code), err, x.used)
			}
			if said, _, err := (&Cache{Dir: dir, Sources: x.sources}).Ready(); err != nil || !strings.HasPrefix(said, "compiled before, by NVRTC "+here) {
				t.Errorf("the next program: %q, error %v", said, err)
			}
		})
	}

	// Under another's name: code is of the file that it was made as.
	dir, file := carried(t, "99.0")
	if err := os.Rename(file, (&Cache{Dir: dir, Sources: made(text, "sm_90")}).file("a.cu", here)); err != nil {
		t.Fatal(err)
	}
	if said, _, err := (&Cache{Dir: dir, Sources: made(text, "sm_90")}).Ready(); err != nil || strings.HasPrefix(said, "compiled before") {
		t.Errorf("a renamed file: %q, error %v", said, err)
	}

	// Where nothing can be kept that is said, and no error.
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file} {
		said, unkept, err := (&Cache{Dir: dir, Sources: made(text, "sm_90")}).Ready()
		if err != nil || unkept == nil || !strings.HasSuffix(said, ", and again in each program: "+unkept.Error()) {
			t.Errorf("folder %q: %q, unkept %v, error %v", dir, said, unkept, err)
		}
	}
}

// A folder's name is no pattern, and beside a file there may be what only resembles it.
func TestFolderNames(t *testing.T) {
	t.Setenv("CONTRAFLOW_NVRTC", "/nowhere/libnvrtc.so.12")
	for _, name := range []string{"plain", "a[b", "a[b]", "a*", "a?"} {
		from := &Cache{Dir: filepath.Join(t.TempDir(), name), Sources: map[string]Source{"a.cu": {"text", "sm_90"}}}
		to := &Cache{Dir: from.Dir, Sources: from.Sources}
		if err := from.Keep("a.cu", "13.0", []byte("made elsewhere")); err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{from.file("a.cu", "12.9"), from.file("a.cu", "13.0") + ".123"} {
			if err := os.WriteFile(other, []byte("cut off"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if code, err := to.Code("a.cu"); err != nil || string(code) != "made elsewhere" {
			t.Errorf("folder %s: %q, error %v", name, code, err)
		}
	}
}

// Code of one CUDA, or of other options, is not that of another.
func TestVariant(t *testing.T) {
	a := Variant(12090)
	if a != Variant(12080) || a == Variant(13000) || !strings.HasPrefix(a, "cuda12-") {
		t.Errorf("%s, %s, %s", a, Variant(12080), Variant(13000))
	}
	defer func(was []string) { always = was }(always)
	always = append(slices.Clone(always), "-G")
	if Variant(12090) == a {
		t.Errorf("other options are %s too", a)
	}
}
