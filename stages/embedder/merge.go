package embedder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
)

// Merge writes the base model with an adapter added to its weights to a folder that needs neither: sentence-transformers and transformers
// load it without PEFT. base is the base model's folder; "": what the adapter says. A model in out is replaced, unless it is one of these two.
func Merge(base, adapter, out string, d gpustage.Device) (err error) {
	var f *hfmodel.Folder
	switch {
	case base != "":
		f, err = hfmodel.OpenOn(base, adapter)
	case hfmodel.IsAdapter(adapter):
		f, err = hfmodel.Open(adapter)
	default:
		err = fmt.Errorf("%s is not the folder of a LoRA adapter", adapter)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for what, dir := range map[string]string{"adapter": f.Dir, "base model": f.Base.Dir} {
		if same, err := overlap(out, dir); err != nil || same {
			return errors.Join(err, fmt.Errorf("%s would replace the %s in %s: choose another folder", out, what, dir))
		}
	}
	head, err := TrainableHead(f, "", nil)
	if err != nil {
		return err
	}
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := LoadModel(f, d, s, head, transformer.Options{}, nil)
	if err != nil {
		return err
	}
	defer m.Free()
	tensors, err := Tensors(f, m, s)
	if err != nil {
		return err
	}
	length, err := MaxLengthOf(f, m.Config, 0)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(out)), 0o777); err != nil {
		return err
	}
	pooling := hfmodel.Pooling{Mode: hfmodel.Mean, IncludePrompt: true}
	if f.Pooling != nil {
		pooling = *f.Pooling
	}
	return hfmodel.Save(out, hfmodel.Spec{
		Config: f.Config, Tensors: tensors, Pooling: pooling, Dense: f.Dense, M3: f.M3 != nil, Normalize: f.Normalize, MaxSeqLength: length, LowerCase: f.LowerCase,
		Prompts: f.Prompts, DefaultPromptName: f.DefaultPromptName, Similarity: f.Similarity, Base: f, Tokenizer: f.CopyTokenizer,
		Card: hfmodel.Card{BaseModel: f.Adapter.Base, Summary: "A LoRA adapter is merged into its weights."},
	})
}

// overlap tells whether two paths, of which the first need not exist, lead to one folder, or one into the other.
func overlap(a, b string) (bool, error) {
	a, err := realPath(a)
	if err != nil {
		return false, err
	}
	if b, err = realPath(b); err != nil {
		return false, err
	}
	in := func(a, b string) bool {
		rel, err := filepath.Rel(b, a)
		return err == nil && filepath.IsLocal(rel)
	}
	return in(a, b) || in(b, a), nil
}

// realPath follows the links of as much of a path as there is.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return real, err
	}
	parent, err := realPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// Tensors are a model's parameters, and what its folder has beside them that it does not train: BERT's pooler.
func Tensors(f *hfmodel.Folder, m *transformer.Model, s gpustage.Stream) ([]safetensors.Tensor, error) {
	out, err := Read(m, s, m.Layout.Params)
	if err != nil {
		return nil, err
	}
	rest, err := Untrained(f, m)
	return append(out, rest...), err
}

// Untrained is what a folder has beside its model's parameters: BERT's pooler.
func Untrained(f *hfmodel.Folder, m *transformer.Model) (out []safetensors.Tensor, err error) {
	for _, n := range f.Names() {
		name := n
		for _, prefix := range m.Config.Prefixes() {
			name = strings.TrimPrefix(name, prefix)
		}
		if _, ok := m.Layout.Find(name); ok || !strings.HasPrefix(name, "pooler.") {
			continue
		}
		t, err := f.Tensor(n)
		if err != nil {
			return nil, err
		}
		vs := make([]float32, t.Len())
		if err := t.Float32s(vs); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", n, err)
		}
		if t, err = safetensors.FromFloat32s(name, t.Shape, vs); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// Read copies parameters as a file holds them. One that is not finite is an error.
func Read(m *transformer.Model, s gpustage.Stream, ps []transformer.Param) ([]safetensors.Tensor, error) {
	var out []safetensors.Tensor
	for _, p := range ps {
		vs, err := m.Read(s, m.Params, p)
		if err != nil {
			return nil, err
		}
		t, err := Tensor(p, vs)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// Tensor is a parameter as a file holds it. One that is not finite is an error.
func Tensor(p transformer.Param, vs []float32) (safetensors.Tensor, error) {
	t, err := safetensors.FromFloat32s(p.Name, p.Shape(), vs)
	return t, errors.Join(transformer.CheckFinite(p, vs), err)
}
