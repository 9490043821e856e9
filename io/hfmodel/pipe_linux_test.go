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

// A pipe among a model's files is an error that names it. Who opened it would wait for a writer, for ever.
func TestPipes(t *testing.T) {
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
			if err := syscall.Mkfifo(path, 0o666); err != nil {
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
				if err == nil || !strings.Contains(err.Error(), filepath.Base(name)) {
					t.Errorf("%s: %s is a pipe: %v", kind, name, err)
				}
			case <-time.After(10 * time.Second):
				w, _ := os.OpenFile(path, os.O_RDWR, 0)
				w.Close()
				t.Errorf("%s: %s is a pipe: it is waited for", kind, name)
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
