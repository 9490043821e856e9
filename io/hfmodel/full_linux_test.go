package hfmodel

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// TestFullDisk saves and downloads a model larger than the disk: a real file system of one megabyte, mounted in a user
// namespace of the test's own.
func TestFullDisk(t *testing.T) {
	harness.SmallDisk(t, func(root string) {
		t.Run("save", func(t *testing.T) { saveOnFullDisk(t, root) })
		t.Run("download", func(t *testing.T) { downloadOnFullDisk(t, root) })
	})
}

func saveOnFullDisk(t *testing.T, root string) {
	f := open(t, golden+"st6")
	dir := filepath.Join(root, "model")
	if err := Save(dir, specOf(t, f)); err != nil {
		t.Fatal(err)
	}
	before := tree(t, root)
	err := Save(dir, big(t, f))
	if err == nil {
		t.Fatal("2 MB fit on a disk of 1 MB")
	}
	t.Log(err)
	for _, want := range []string{dir, "disk is full", "were written", "are free", "unchanged"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if after := tree(t, root); !slices.Equal(before, after) {
		t.Errorf("it held %q, now %q", before, after)
	}
	open(t, dir)
}

func downloadOnFullDisk(t *testing.T, root string) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files["model.safetensors"] = strings.Repeat("x", 2<<20)
	cache := filepath.Join(root, "cache")
	_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache})
	if err == nil {
		t.Fatal("2 MB fit on a disk of 1 MB")
	}
	t.Log(err)
	for _, want := range []string{"file model.safetensors", "it needs 2.1 MB in " + cache, "are free", "HF_HUB_CACHE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}
