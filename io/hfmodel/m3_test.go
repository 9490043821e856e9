package hfmodel

import (
	"bytes"
	"errors"
	"fmt"
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
func m3Folder(t testing.TB) string {
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

// A repository as BAAI/bge-m3's, without safetensors: its weights and heads are downloaded, and read as data.
func TestM3Hub(t *testing.T) {
	noEnvironment(t)
	dir := m3Folder(t)
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []safetensors.Tensor
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, x)
	}
	positions := safetensors.Tensor{Name: "embeddings.position_ids", DType: safetensors.I64, Shape: []int{1, 2}, Data: make([]byte, 16)}
	weights, err := torchfile.Encode("archive", append(tensors, positions))
	if err != nil {
		t.Fatal(err)
	}
	h := newFakeHub(t)
	h.files = map[string]string{"pytorch_model.bin": string(weights), "onnx/model.onnx": "not needed"}
	h.lfs = map[string]bool{"pytorch_model.bin": true, "colbert_linear.pt": true}
	for _, name := range []string{"config.json", "vocab.txt", "tokenizer_config.json", "colbert_linear.pt", "sparse_linear.pt"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		h.files[name] = string(data)
	}
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	got := open(t, mustResolve(t, "org/name", o))
	if got.M3 == nil || got.M3.Dim != 12 {
		t.Errorf("heads %+v", got.M3)
	}
	for _, want := range tensors {
		x, err := got.Tensor(want.Name)
		if err != nil || x.String() != want.String() || !bytes.Equal(x.Data, want.Data) {
			t.Errorf("%v, %v, want %v", x, err, want)
		}
	}
	h.Close() // what is there is enough
	o.Offline = true
	open(t, mustResolve(t, "org/name", o))

	// Shards likewise, and code in one is refused.
	evil, err := os.ReadFile(filepath.Join(goldens.Path(t, "m3/files"), "module.pt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"part.bin": weights, "pytorch_model.bin.index.json": []byte(`{"weight_map": {"` + tensors[0].Name + `": "part.bin"}}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	if f := open(t, dir); len(f.Names()) != 1 {
		t.Errorf("tensors %q, want the one of the index", f.Names())
	}
	if err := os.WriteFile(filepath.Join(dir, "part.bin"), evil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, torchfile.ErrUnsafe) || !strings.Contains(err.Error(), "part.bin") {
		t.Error(err)
	}

	// Python would read what has other bytes than were written, so that is not advised; of the form before 2020 it is.
	bits := bytes.Clone(weights)
	bits[bytes.Index(bits, tensors[0].Data)] ^= 1
	for data, convert := range map[string]bool{string(weights[:len(weights)/2]): false, string(bits): false, "\x80\x02\x8a\x0a": true} {
		put(t, dir, "part.bin", data)
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "part.bin") || errors.Is(err, torchfile.ErrDamaged) == convert || strings.Contains(err.Error(), "python -c") != convert {
			t.Error(err)
		}
	}
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

	pooled := m3Folder(t) // modules count before what FlagEmbedding leaves out
	put(t, pooled, "modules.json", `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]`)
	put(t, pooled, "1_Pooling/config.json", fmt.Sprintf(`{"word_embedding_dimension": %d, "pooling_mode": "mean"}`, f.configInt("hidden_size")))
	if p := open(t, pooled); p.M3 == nil || p.Pooling.Mode != Mean || p.Normalize {
		t.Errorf("with modules: %+v, %v", p.Pooling, p.Normalize)
	}
	for _, c := range []struct {
		name, want string
		tensors    []safetensors.Tensor
	}{
		{"colbert_linear", "want those of a linear layer", []safetensors.Tensor{floatsOf(t, "weight", []int{2, 3}, 1, 2, 3, 4, 5, 6)}},
		{"colbert_linear", "want those of a linear layer", []safetensors.Tensor{floatsOf(t, "weight", []int{2, 1}, 1, 2), floatsOf(t, "bias", []int{1}, 3)}},
		{"colbert_linear", "want those of a linear layer", []safetensors.Tensor{floatsOf(t, "weight", []int{1}, 1), floatsOf(t, "bias", []int{1}, 3)}},
		{"colbert_linear", "want those of a linear layer", []safetensors.Tensor{floatsOf(t, "weight", []int{1, 2}, 1, 2), floatsOf(t, "bias", []int{1, 1}, 3)}},
		{"sparse_linear", "gives 2 numbers a token", []safetensors.Tensor{floatsOf(t, "weight", []int{2, 1}, 1, 2), floatsOf(t, "bias", []int{2}, 3, 4)}},
	} {
		data, err := torchfile.Encode(c.name, c.tensors)
		if err != nil {
			t.Fatal(err)
		}
		spoilt := m3Folder(t)
		put(t, spoilt, c.name+".pt", string(data))
		if _, err := Open(spoilt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: %v, want %q", c.name, c.tensors, err, c.want)
		}
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
	for want, data := range map[string][]byte{"which no dictionary of tensors needs": evil, "the file is damaged": good[:100], "": bytes.Clone(good)} {
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
