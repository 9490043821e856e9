package embedder

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
)

// Merge writes the base model with an adapter added to its weights to a folder that needs neither: sentence-transformers and transformers
// load it without PEFT. base is the base model's folder; "": what the adapter says. A model in out is replaced, unless it is one of these two.
// The sums are made in f32, and written in a precision: see [Precisions].
// A reranker is an error: what is written has no head that scores.
//
// progress, if not nil, is told how many of the parameters are "merged", and how many bytes are "written".
func Merge(base, adapter, out, precision string, d gpustage.Device, progress func(what string, done, total int64)) (err error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	if _, ok := Precisions[precision]; !ok {
		return Round(nil, precision)
	}
	var f *hfmodel.Folder
	switch {
	case base != "":
		f, err = hfmodel.OpenOn(base, adapter)
	case hfmodel.IsAdapter(adapter):
		f, err = hfmodel.Open(adapter)
	default:
		err = fmt.Errorf("%s is not the folder of a LoRA adapter: it has no adapter_config.json. A reranker, sparse or multi_vector model that contraflow train has trained with LoRA "+
			"is merged as it is saved", adapter)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Base.Reranker != nil && f.Pooling == nil {
		return fmt.Errorf("%s is a reranker (its class is %s), and merging is for embedding models: PEFT's merge_and_unload merges this one, and "+
			"contraflow train saves rerankers with LoRA's factors merged", f.Base.Dir, f.Architecture())
	}
	for _, x := range []struct{ what, dir string }{{"adapter", f.Dir}, {"base model", f.Base.Dir}} {
		if same, err := Overlap(out, x.dir); err != nil {
			return err
		} else if same {
			return fmt.Errorf("%s would replace the %s in %s: choose another folder", out, x.what, x.dir)
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
	m, err := loadModel(f, d, s, head, transformer.Options{}, nil, func(done, total int) { progress("merged", int64(done), int64(total)) })
	if err != nil {
		return err
	}
	defer m.Free()
	tensors, err := Tensors(f, m, s)
	if err != nil {
		return err
	}
	if strings.HasSuffix(f.Architecture(), "ForCausalLM") { // it may be one after this as well
		if tensors, err = appendTensor(tensors, f, "lm_head.weight", "lm_head.weight"); err != nil {
			return err
		}
	}
	length, err := MaxLengthOf(f, m.Config, 0)
	if err != nil {
		return err
	}
	if err := Round(tensors, precision); err != nil {
		return err
	}
	spec := SpecOf(f, m, tensors)
	spec.MaxSeqLength, spec.Progress = length, func(done, total int64) { progress("written", done, total) }
	spec.Card = hfmodel.Card{BaseModel: f.Adapter.Base, Summary: "A LoRA adapter is merged into its weights."}
	return hfmodel.Save(out, spec)
}

// SpecOf is what is written of a model that a folder holds and whose parameters may have changed. The length and the card are the caller's.
func SpecOf(f *hfmodel.Folder, m *transformer.Model, tensors []safetensors.Tensor) hfmodel.Spec {
	h := m.Config.Tokens
	var splade *hfmodel.Splade
	if h := m.Config.MLMHead; !h.None() {
		splade = &hfmodel.Splade{Twice: h.Twice}
		tensors = hfmodel.Renamed(tensors, MaskedNames(m))
	}
	var queries *hfmodel.Queries
	if q := m.Config.Queries; q.There {
		queries = &hfmodel.Queries{Frozen: q.Frozen}
		if f.Queries != nil {
			queries.MaxLength = f.Queries.MaxLength
		}
	}
	spec := hfmodel.Spec{
		Splade: splade, Queries: queries, Config: f.Config, Tensors: tensors,
		Pooling: hfmodel.Pooling{Mode: PoolingModes[m.Head.Pooling], IncludePrompt: !m.Head.SkipPrompt}, Dense: f.Dense, M3: !h.None() && !h.Alone, Normalize: m.Head.Normalize, LowerCase: f.LowerCase,
		Prompts: f.Prompts, DefaultPromptName: f.DefaultPromptName, Similarity: similarityOf(f, m), Base: f, Tokenizer: f.CopyTokenizer,
	}
	if h.Alone {
		multiVectorSpec(&spec, f, m)
	}
	return spec
}

// similarityOf is the name of what embeddings are compared by: the folder's, unless the model is compared otherwise by now.
func similarityOf(f *hfmodel.Folder, m *transformer.Model) string {
	switch dot := m.Head.Dot; {
	case dot == (f.Similarity == dotSimilarity):
		return f.Similarity
	case dot:
		return dotSimilarity
	}
	return "cosine"
}

// multiVectorSpec completes that of a model that gives vectors of tokens alone.
func multiVectorSpec(spec *hfmodel.Spec, f *hfmodel.Folder, m *transformer.Model) {
	spec.MultiVector = &hfmodel.MultiVector{SkipTasks: []string{"document"}}
	if f.MultiVector != nil {
		own := *f.MultiVector
		spec.MultiVector = &own
	}
	if spec.Similarity = MaxSim; m.Config.Tokens.Mean {
		spec.Similarity = MeanMaxSim
	}
	in := m.Config.Hidden
	for i, d := range m.Config.Dense {
		if i >= len(f.Dense) { // new
			spec.Dense = append(slices.Clip(spec.Dense), hfmodel.Dense{Path: d.Name, In: in, Out: d.Out, Bias: d.Bias, Activation: activationNames[d.Activation]})
		}
		in = d.Out
	}
}

var activationNames = map[gpustage.Activation]string{gpustage.Identity: "identity", gpustage.Tanh: "tanh", gpustage.ReLU: "relu", gpustage.GELU: "gelu", gpustage.SiLU: "silu"}

// Overlap tells whether two paths lead to one folder, or one into the other. Neither need exist.
func Overlap(a, b string) (bool, error) {
	if in, err := Within(a, b); in || err != nil {
		return in, err
	}
	return Within(b, a)
}

// Within tells whether a path leads to a folder, or into it. Neither need exist.
func Within(path, folder string) (bool, error) {
	path, err := realPath(path)
	if err != nil {
		return false, err
	}
	if folder, err = realPath(folder); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel), nil
}

// realPath follows the links of as much of a path as there is.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if named := (*fs.PathError)(nil); err != nil && !errors.As(err, &named) {
		err = fmt.Errorf("%s: %w", path, err)
	}
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
	rest, err := Untrained(f, m, s)
	return append(out, rest...), err
}

// Untrained is what a folder has beside its model's parameters: BERT's pooler, which embeddings don't use, with an adapter's factors added.
func Untrained(f *hfmodel.Folder, m *transformer.Model, s gpustage.Stream) (out []safetensors.Tensor, err error) {
	for _, n := range f.Names() {
		name := n
		for _, prefix := range m.Config.Prefixes() {
			name = strings.TrimPrefix(name, prefix)
		}
		if _, ok := m.Layout.Find(name); ok || !strings.HasPrefix(name, "pooler.") || !m.Config.MLMHead.None() {
			continue
		}
		if out, err = appendTensor(out, f, n, name); err != nil {
			return nil, err
		}
	}
	if f.Adapter == nil {
		return out, nil
	}
	for _, x := range f.Adapter.Factors {
		i := slices.IndexFunc(out, func(t safetensors.Tensor) bool { return t.Name == x.Module+".weight" })
		if i < 0 {
			continue
		}
		t := out[i]
		w := make([]float32, t.Len())
		if err := t.Float32s(w); err != nil {
			return nil, err
		}
		if err := merge(m, s, transformer.Param{Name: t.Name, Rows: t.Shape[0], Cols: t.Shape[1]}, w, x); err != nil {
			return nil, err
		}
		if out[i], err = safetensors.FromFloat32s(t.Name, t.Shape, w); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// appendTensor appends one of a folder's tensors in f32, by another name. What the folder does not have is left out.
func appendTensor(to []safetensors.Tensor, f *hfmodel.Folder, name, as string) ([]safetensors.Tensor, error) {
	if !slices.Contains(f.Names(), name) {
		return to, nil
	}
	t, err := f.Tensor(name)
	if err != nil {
		return nil, err
	}
	if t, err = t.As(safetensors.F32); err != nil {
		return nil, err
	}
	t.Name = as
	return append(to, t), nil
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

// Precisions are the types that a saved model's numbers can have, by the names that recipes and options use. "": f32.
var Precisions = map[string]safetensors.DType{"": safetensors.F32, "f32": safetensors.F32, "bf16": safetensors.BF16, "f16": safetensors.F16}

// Round makes tensors ones of a precision, one after another in their place: there is not room for all of them in both. A number that
// it can't hold is an error that names the tensor.
func Round(tensors []safetensors.Tensor, precision string) (err error) {
	to, ok := Precisions[precision]
	if !ok {
		return fmt.Errorf("precision %q is not one of f32, bf16, f16", precision)
	}
	for i, t := range tensors {
		if tensors[i], err = t.As(to); err != nil {
			if to == safetensors.F16 {
				return fmt.Errorf("%w: bf16 has a wider range, with fewer digits", err)
			}
			return err
		}
	}
	return nil
}

// Tensor is a parameter as a file holds it. One that is not finite is an error.
func Tensor(p transformer.Param, vs []float32) (safetensors.Tensor, error) {
	t, err := safetensors.FromFloat32s(p.Name, p.Shape(), vs)
	return t, errors.Join(transformer.CheckFinite(p.Name, vs), err)
}
