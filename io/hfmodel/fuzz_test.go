package hfmodel

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
	"contraflow/tokenize"
)

// FuzzOpen: a model's folder of which a file is a stranger's is read, all its tensors too, or refused.
func FuzzOpen(f *testing.F) {
	golden := func(name string) string { return goldens.Path(f, name) }
	var folders []string
	for _, dir := range []string{
		copyGolden(f, "st6"), denseFolderOf(f), copyGolden(f, "sharded"), copyGolden(f, "st2"), m3Folder(f), multiVectorFolder(f, nil), copyAdapter(f, "bert-qv", nil),
		staticFolder(f, "", floatsOf(f, staticTensor, []int{3, 2}, 1, 2, 3, 4, 5, 6)), golden("splade/encoder"), golden("rerank/cross"), golden("rerank/minicpm-layer"), golden("rerank/llama-yes-no"),
	} {
		own := f.TempDir() // which files are changed in
		if err := os.CopyFS(own, os.DirFS(dir)); err != nil {
			f.Fatal(err)
		}
		folders = append(folders, own)
	}
	type file struct{ dir, name string }
	var files []file
	for _, dir := range folders {
		for _, name := range slices.Sorted(maps.Keys(contents(f, dir))) {
			data := contents(f, dir)[name]
			if strings.HasSuffix(name, ".md") || len(data) > 64<<10 {
				continue
			}
			f.Add(uint8(len(files)), data)
			files = append(files, file{dir, name})
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		changed := files[int(at)%len(files)]
		path := filepath.Join(changed.dir, filepath.FromSlash(changed.name))
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(path, was, 0o666)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		harness.Bounded(t, func() {
			m, err := Open(changed.dir)
			if err != nil {
				return
			}
			for _, name := range m.Names() {
				if x, err := m.Tensor(name); err != nil || len(x.Data) != x.Len()*x.DType.Bits()/8 {
					t.Errorf("%s: %v", name, err)
				}
			}
			m.Settings()
			tokenize.Load(m.TokenizerDir)
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// contents are a folder's files by their names, with slashes.
func contents(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, line := range tree(t, dir) {
		name, _, _ := strings.Cut(line, " ")
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = data
	}
	return all
}
