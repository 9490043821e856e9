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
	if err := os.WriteFile(c.file("b.cu"), []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code(c, "b.cu"); !bytes.Equal(code(open(dir), "b.cu"), code(c, "b.cu")) {
		t.Error("the folder still has the damaged code")
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
