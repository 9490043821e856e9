package hfmodel

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/testdata/goldens"
)

func tensorsOf(t *testing.T, f *Folder) []safetensors.Tensor {
	t.Helper()
	list, err := f.Stored()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A folder with other weights has this one's files, those that only Python reads among them, and nothing that belongs to the old weights: other forms of
// them, shards, the card. config.json names the type that is written.
func TestRewrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "hfmodel/sharded"))); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "chat_template.jinja", "{{ messages }}")
	put(t, dir, "generation_config.json", "{}")
	put(t, dir, "modeling_x.py", "x = 1")
	put(t, dir, "README.md", "the old card")
	put(t, dir, "onnx/model.onnx", "the old weights")
	put(t, dir, "pytorch_model.bin", "the old weights")
	put(t, dir, "notes.txt", "mine")
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "config.json", strings.Replace(string(config), "{", `{"auto_map": {"AutoModel": "modeling_x.X", "AutoConfig": "gone.Y"},`, 1))
	f := open(t, dir)
	list := tensorsOf(t, f)
	if len(list) != len(f.Names()) {
		t.Fatalf("%d tensors of %d", len(list), len(f.Names()))
	}
	for i := range list {
		list[i] = safetensors.Tensor{Name: list[i].Name, DType: safetensors.BF16, Shape: list[i].Shape}
	}
	zeros := func(w io.Writer, x safetensors.Tensor) error {
		_, err := w.Write(make([]byte, 2*x.Len()))
		return err
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := f.Rewrite(out, list, []byte("the card"), zeros); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(out)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "modeling_x.py", "tokenizer.json", "tokenizer_config.json"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	for name, text := range map[string]string{"README.md": "the card", "config.json": `"dtype": "bfloat16"`, "modeling_x.py": "x = 1"} {
		if data, err := os.ReadFile(filepath.Join(out, name)); err != nil || !bytes.Contains(data, []byte(text)) {
			t.Errorf("%s: %v\n%s", name, err, data)
		}
	}
	g := open(t, out)
	for _, x := range list {
		if y, err := g.Tensor(x.Name); err != nil || y.DType != x.DType || !slices.Equal(x.Shape, y.Shape) {
			t.Errorf("%v became %v: %v", x, y, err)
		}
	}

	// Weights that torch.save wrote become safetensors, and are not there twice.
	data, err := torchfile.Encode("pytorch_model", tensorsOf(t, g))
	if err != nil {
		t.Fatal(err)
	}
	saved := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json"} {
		file, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		put(t, saved, name, string(file))
	}
	put(t, saved, "pytorch_model.bin", string(data))
	again := filepath.Join(t.TempDir(), "again")
	if err := open(t, saved).Rewrite(again, list, nil, zeros); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(again, "pytorch_model.bin")); err == nil || len(open(t, again).Names()) != len(list) {
		t.Error("the old weights are there")
	}

	// What fails leaves what was there.
	failed := errors.New("failed")
	fail := func(io.Writer, safetensors.Tensor) error { return failed }
	if err := f.Rewrite(out, list, nil, fail); !errors.Is(err, failed) {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(out, "README.md")); err != nil || string(data) != "the card" {
		t.Errorf("%v, %s", err, data)
	}
	if err := f.Rewrite(filepath.Join(dir, "onnx"), list, nil, zeros); err == nil || !strings.Contains(err.Error(), "is not empty and holds no model") {
		t.Error(err)
	}
	if err := f.Rewrite(out, nil, nil, zeros); err == nil || !strings.Contains(err.Error(), "no tensors") {
		t.Error(err)
	}
	a, err := OpenOn(goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "lora/bert-qv"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Stored(); err == nil || !strings.Contains(err.Error(), "is a LoRA adapter") {
		t.Error(err)
	}

	card := string(f.MixedCard("x/Mine", "How.", []MixedPart{{"org/a", 0.7}, {"runs/x/model", 0.2}, {"org/b@v1", 0.05}, {"org/a", 0.05}}))
	for _, w := range []string{"\n# Mine\n", "base_model:\n- \"org/a\"\n- \"org/b\"\nbase_model_relation: merge\n---", "| `runs/x/model` | 0.2 |", "How."} {
		if !strings.Contains(card, w) {
			t.Errorf("no %q in\n%s", w, card)
		}
	}
}

// TestRewriteBelow: where the transformer has a folder of its own, what only Python reads of it stays there.
func TestRewriteBelow(t *testing.T) {
	dir := copyGolden(t, "st2")
	put(t, dir, "0_Transformer/generation_config.json", "{}")
	put(t, dir, "0_Transformer/modeling_x.py", "x = 1")
	config, err := os.ReadFile(filepath.Join(dir, "0_Transformer/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "0_Transformer/config.json", strings.Replace(string(config), "{", `{"auto_map": {"AutoModel": "modeling_x.X"},`, 1))
	f := open(t, dir)
	out := filepath.Join(t.TempDir(), "out")
	same := func(w io.Writer, x safetensors.Tensor) error {
		_, err := w.Write(x.Data)
		return err
	}
	if err := f.Rewrite(out, tensorsOf(t, f), nil, same); err != nil {
		t.Fatal(err)
	}
	want := contents(t, dir)
	want["README.md"] = nil
	for name, data := range contents(t, out) {
		if old, ok := want[name]; !ok || !strings.HasSuffix(name, ".safetensors") && !bytes.Equal(data, old) {
			t.Errorf("%s is there: %t, with other bytes", name, ok)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}

// TestRewriteStatic: the table of static embeddings keeps the name that its file has for it, which is model2vec's in some.
func TestRewriteStatic(t *testing.T) {
	for _, path := range []string{".", "0_StaticEmbedding"} {
		for _, name := range []string{staticTensor, model2vecTable} {
			table := floatsOf(t, name, []int{3, 2}, 1, 2, 3, 4, 5, 6)
			f := open(t, staticFolder(t, path, table))
			out := filepath.Join(t.TempDir(), "out")
			if err := f.Rewrite(out, tensorsOf(t, f), nil, func(w io.Writer, x safetensors.Tensor) error { _, err := w.Write(x.Data); return err }); err != nil {
				t.Fatal(err)
			}
			file, err := safetensors.Open(filepath.Join(out, path, weightsFile))
			if err != nil {
				t.Fatal(err)
			}
			got, err := file.Tensor(name)
			if err != nil || !slices.Equal(got.Shape, table.Shape) || !bytes.Equal(got.Data, table.Data) {
				t.Errorf("%s in %s became %v: %v", name, path, file.Names(), err)
			}
			file.Close()
			open(t, out)
		}
	}
}
