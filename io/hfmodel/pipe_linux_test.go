package hfmodel

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"contraflow/io/safetensors"
	"contraflow/tokenize"
)

// What stands in a file's place and is none is an error that names it: a pipe, whose opener would wait for a writer, for ever; a link to nothing, which
// is not a file that the folder does not have; and a pointer of git-lfs.
func TestNoFiles(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"not a plain file": func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"nothing is there": func(path string) error { return os.Symlink("../blobs/0123", path) },
		"git lfs pull": func(path string) error {
			return os.WriteFile(path, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 133466304\n"), 0o666)
		},
	} {
		testNoFiles(t, what, put)
	}
}

func testNoFiles(t *testing.T, what string, put func(path string) error) {
	models := map[string]func() string{
		"model":        func() string { return copyGolden(t, "st6") },
		"Dense":        func() string { return denseFolderOf(t) },
		"shards":       func() string { return copyGolden(t, "sharded") },
		"static":       func() string { return staticFolder(t, "", floatsOf(t, staticTensor, []int{3, 2}, 1, 2, 3, 4, 5, 6)) },
		"adapter":      func() string { return copyAdapter(t, "bert-qv", nil) },
		"multi-vector": func() string { return multiVectorFolder(t, nil) },
		"M3":           func() string { return m3Folder(t) },
	}
	for kind, model := range models {
		first := model()
		for _, name := range tree(t, first) {
			name, _, _ = strings.Cut(name, " ") // its length follows
			folder := filepath.Dir(name)
			if listed, err := os.ReadFile(filepath.Join(first, "modules.json")); err == nil && folder != "." && !strings.Contains(string(listed), folder) || name == "README.md" {
				continue // not of the model
			}
			dir := model()
			path := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := put(path); err != nil {
				t.Skip(err)
			}
			end := make(chan error, 1)
			go func() {
				f, err := Open(dir)
				if err == nil {
					defer f.Close()
					if err = f.CopyTokenizer(t.TempDir()); err == nil {
						_, err = tokenize.Load(f.TokenizerDir)
					}
				}
				end <- err
			}()
			select {
			case err := <-end:
				if err == nil || !strings.Contains(err.Error(), filepath.Base(name)) || !strings.Contains(err.Error(), what) {
					t.Errorf("%s: %s: %v, want %q", kind, name, err, what)
				}
			case <-time.After(10 * time.Second):
				w, _ := os.OpenFile(path, os.O_RDWR, 0)
				w.Close()
				t.Errorf("%s: %s is waited for", kind, name)
			}
		}
	}
}

// Nor is a pipe among the files that are copied with a model left out, or waited for.
func TestRewritePipe(t *testing.T) {
	for _, name := range []string{"vocab.txt", "generation_config.json"} {
		dir := copyGolden(t, "sharded")
		f := open(t, dir)
		path := filepath.Join(dir, name)
		os.Remove(path)
		if err := syscall.Mkfifo(path, 0o666); err != nil {
			t.Skip(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		err := f.Rewrite(out, tensorsOf(t, f), nil, func(w io.Writer, x safetensors.Tensor) error {
			x, err := f.Tensor(x.Name)
			if err == nil {
				_, err = w.Write(x.Data)
			}
			return err
		})
		if _, there := os.Stat(out); err == nil || !strings.Contains(err.Error(), path+" is not a plain file") || there == nil {
			t.Errorf("%s: %v, %v", name, err, there)
		}
	}
}

// Who wants no weights reads a folder of which only they are elsewhere, and a cache whose blobs are gone is not all of a model.
func TestWeightsElsewhere(t *testing.T) {
	dir := copyGolden(t, "st6")
	weights := filepath.Join(dir, weightsFile)
	if err := os.Remove(weights); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../blobs/0123", weights); err != nil {
		t.Skip(err)
	}
	f, err := OpenSettings(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := complete(dir, false); err == nil || !strings.Contains(err.Error(), weightsFile) {
		t.Errorf("a snapshot without its weights: %v", err)
	}
}

// A pointer in the place of torch's weights is told as one, not as a pickle to convert.
func TestTorchWeightsElsewhere(t *testing.T) {
	for dir, at := range map[string]string{copyGolden(t, "st6"): "", denseFolderOf(t): "2_Dense"} {
		if err := os.Remove(filepath.Join(dir, at, weightsFile)); err != nil {
			t.Fatal(err)
		}
		put(t, dir, filepath.ToSlash(filepath.Join(at, torchWeightsFile)), "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
		if f, err := Open(dir); err == nil || !strings.Contains(err.Error(), "git lfs pull") || strings.Contains(err.Error(), "pickle") {
			t.Errorf("%s: %v, %v", at, f, err)
		}
	}
}
