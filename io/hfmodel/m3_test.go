package hfmodel

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/testdata/goldens"
)

// m3Folder is testdata/golden/m3/model, as FlagEmbedding saves it, with a tokenizer's files.
func m3Folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "m3/model"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"vocab.txt": "<s>\n<pad>\n</s>\n<unk>\n", "tokenizer_config.json": `{"cls_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "unk_token": "<unk>"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Heads are read from .pt files, saved in both forms, and read from either; a folder with one of them, or with code in one, is refused.
func TestM3(t *testing.T) {
	dir := m3Folder(t)
	g := goldens.Load(t, "m3/model")
	check := func(dir string) *Folder {
		t.Helper()
		f, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if f.M3 == nil || f.M3.Dim != 12 || f.Pooling == nil || f.Pooling.Mode != CLS || !f.Normalize {
			t.Fatalf("%s: %+v, pooling %+v", dir, f.M3, f.Pooling)
		}
		for _, name := range []string{"colbert_linear.weight", "colbert_linear.bias", "sparse_linear.weight", "sparse_linear.bias"} {
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, x.Len())
			if err := x.Float32s(got); err != nil || !slices.Equal(got, g.F32(t, "head/"+name)) {
				t.Errorf("%s: %s is %v (%v)", dir, name, got, err)
			}
		}
		return f
	}
	f := check(dir)
	if tokens, err := f.SpecialTokens(); err != nil || !slices.Equal(tokens, []string{"<s>", "</s>", "<unk>"}) {
		t.Errorf("special tokens %q, %v", tokens, err)
	}
	var tensors []safetensors.Tensor
	for _, name := range append(f.Names(), "colbert_linear.weight", "colbert_linear.bias", "sparse_linear.weight", "sparse_linear.bias") {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, x)
	}
	out := filepath.Join(t.TempDir(), "saved")
	spec := Spec{Config: f.Config, Tensors: tensors, M3: true, Pooling: *f.Pooling, Normalize: true, MaxSeqLength: 18, Base: f, Tokenizer: f.CopyTokenizer}
	if err := Save(out, spec); err != nil {
		t.Fatal(err)
	}
	if saved := check(out); slices.ContainsFunc(saved.Names(), func(n string) bool { return strings.Contains(n, "linear.") }) {
		t.Errorf("the heads are in model.safetensors too: %q", saved.Names())
	}
	for _, name := range []string{"colbert_linear", "sparse_linear"} { // what is left are the safetensors beside
		if err := os.Remove(filepath.Join(out, name+".pt")); err != nil {
			t.Fatal(err)
		}
	}
	check(out)
	if err := os.Remove(filepath.Join(out, "sparse_linear.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(out); err == nil || !strings.Contains(err.Error(), "but not sparse_linear.pt") {
		t.Error(err)
	}
	spec.Tensors = tensors[:len(tensors)-1]
	if err := Save(filepath.Join(t.TempDir(), "short"), spec); err == nil || !strings.Contains(err.Error(), "M3 has 1 tensors of sparse_linear") {
		t.Error(err)
	}

	file := filepath.Join(dir, "sparse_linear.pt")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// What torch.save makes of a module is a call of its class.
	evil, err := os.ReadFile(filepath.Join(goldens.Path(t, "m3/files"), "module.pt"))
	if err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string][]byte{"which no dictionary of tensors needs": evil, "not a zip archive": good[:100], "": bytes.Clone(good)} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(dir)
		switch {
		case want == "" && err == nil:
			f.Close()
		case want == "" || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sparse_linear.pt") || bytes.Equal(data, evil) != errors.Is(err, torchfile.ErrUnsafe):
			t.Errorf("%v, want %q", err, want)
		}
	}
}
