package hfmodel

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
)

// Dense is a module between pooling and normalization: y = f(x Wᵀ + b). Its tensors are Path + ".linear.weight" and ".linear.bias" for
// Folder.Tensor and in Spec.Tensors; in its folder they are in a model.safetensors of its own (or a pytorch_model.bin), without Path.
type Dense struct {
	Path       string // "2_Dense"
	In, Out    int
	Bias       bool
	Activation string // f, in lower case: identity, tanh, relu, gelu, silu

	file   *safetensors.File
	inline *safetensors.Tensor // its weight, where it has no file of its own
	json   *object
}

// denseActivations are the classes of torch.nn, which sentence-transformers writes with their module.
var denseActivations = map[string]string{"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}

// Prefix is what the names of its tensors begin with.
func (d Dense) Prefix() string { return d.Path + "." }

// readDense reads the settings of Dense modules and opens their weights.
func (f *Folder) readDense() error {
	in := 0
	if f.Pooling != nil {
		in = f.Pooling.Dimension
	} else if f.MultiVector != nil {
		in = f.configInt("hidden_size")
	}
	for _, m := range f.Modules {
		if m.Kind() != "Dense" {
			continue
		}
		vectors := "sentence_embedding"
		if f.MultiVector != nil {
			vectors = tokenVectors
		}
		d, err := openDense(f.Dir, m.Path, vectors)
		if err != nil {
			return err
		}
		f.Dense = append(f.Dense, d)
		if in != 0 && d.In != in {
			return fmt.Errorf("%s: in_features %d, but what comes before it gives %d", filepath.Join(f.Dir, m.Path, "config.json"), d.In, in)
		}
		in = d.Out
	}
	return nil
}

func openDense(dir, path, own string) (Dense, error) {
	dir = filepath.Join(dir, filepath.FromSlash(path))
	file := filepath.Join(dir, "config.json")
	d := Dense{Path: path, Bias: true}
	o, err := readObject(file)
	if err != nil {
		return d, err
	}
	d.json = o
	activation, input, output, residual := "torch.nn.modules.activation.Tanh", own, "", false
	err = o.getAll(map[string]any{
		"in_features": &d.In, "out_features": &d.Out, "bias": &d.Bias, "activation_function": &activation,
		"module_input_name": &input, "module_output_name": &output, "use_residual": &residual,
	})
	if err != nil {
		return d, fmt.Errorf("%s: %w", file, err)
	}
	ok := false
	if strings.HasPrefix(activation, "torch.nn.") {
		d.Activation, ok = denseActivations[activation[strings.LastIndexByte(activation, '.')+1:]]
	}
	switch {
	case path == "":
		return d, fmt.Errorf("%s: a Dense module needs a folder of its own", file)
	case d.In <= 0 || d.Out <= 0:
		return d, fmt.Errorf("%s: in_features %d and out_features %d, want numbers above 0", file, d.In, d.Out)
	case !ok:
		return d, fmt.Errorf("%s: activation_function %q is not supported; Identity, Tanh, ReLU, GELU and SiLU of torch.nn are", file, activation)
	case residual:
		return d, fmt.Errorf("%s: use_residual is not supported", file)
	case input != own || output != "" && output != own:
		return d, fmt.Errorf("%s: module_input_name %q with module_output_name %q is not supported; %s is", file, input, output, own)
	}
	d.file, err = safetensors.Open(filepath.Join(dir, weightsFile))
	if errors.Is(err, fs.ErrNotExist) {
		d.file, err = torchfile.Open(filepath.Join(dir, torchWeightsFile))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return d, fmt.Errorf("%s has neither %s nor %s", dir, weightsFile, torchWeightsFile)
		case onlyPython(err):
			return d, fmt.Errorf("%w; this is a Python pickle that only Python reads; if you trust it, convert it with: "+
				`python -c "from sentence_transformers import SentenceTransformer as M; M(r'%s').save_pretrained('converted')"`, err, filepath.Dir(dir))
		}
	}
	if err != nil {
		return d, err
	}
	if got, want := slices.Sorted(slices.Values(d.file.Names())), d.names(); !slices.Equal(got, want) {
		d.file.Close()
		return d, fmt.Errorf("%s has the tensors %q, where config.json wants %q", d.file.Path(), got, want)
	}
	return d, nil
}

// names are those of the module's tensors in its file, sorted.
func (d Dense) names() []string {
	if d.Bias {
		return []string{"linear.bias", "linear.weight"}
	}
	return []string{"linear.weight"}
}

// tensor finds one of the module's.
func (d Dense) tensor(name string) (safetensors.Tensor, error) {
	if d.inline != nil {
		t := *d.inline
		t.Name = name
		return t, nil
	}
	t, err := d.file.Tensor(strings.TrimPrefix(name, d.Prefix()))
	t.Name = name
	return t, err
}

// tensors are all of the module's.
func (d Dense) tensors() (out []safetensors.Tensor, err error) {
	for _, name := range d.names() {
		t, err := d.file.Tensor(name)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// config is what sentence-transformers reads; keys that this package doesn't know stay.
func (d Dense) config(vectors string) []byte {
	o := d.json.clone()
	if vectors == tokenVectors { // what is not there is the other
		o.set("module_input_name", vectors)
		o.set("module_output_name", vectors)
	}
	o.set("in_features", d.In)
	o.set("out_features", d.Out)
	o.set("bias", d.Bias)
	class := map[string]string{"identity": "linear.Identity"}[d.Activation]
	for name, own := range denseActivations {
		if own == d.Activation && class == "" {
			class = "activation." + name
		}
	}
	o.set("activation_function", "torch.nn.modules."+class)
	return o.bytes()
}

// splitDense takes the tensors of Dense modules, by module and as their files name them, from the others. Those that are not there, as
// an adapter's are not, are the base's.
func (s Spec) splitDense() (rest []safetensors.Tensor, dense [][]safetensors.Tensor, err error) {
	dense = make([][]safetensors.Tensor, len(s.Dense))
	for _, t := range s.Tensors {
		i := slices.IndexFunc(s.Dense, func(d Dense) bool { return strings.HasPrefix(t.Name, d.Prefix()) })
		if i < 0 {
			rest = append(rest, t)
			continue
		}
		t.Name = strings.TrimPrefix(t.Name, s.Dense[i].Prefix())
		dense[i] = append(dense[i], t)
	}
	for i, d := range s.Dense {
		if len(dense[i]) > 0 {
			if err := d.fits(dense[i]); err != nil {
				return nil, nil, err
			}
			continue
		}
		if d.file == nil {
			return nil, nil, fmt.Errorf("no tensors of the module %s", d.Path)
		}
		if dense[i], err = d.tensors(); err != nil {
			return nil, nil, err
		}
	}
	return rest, dense, nil
}

// fits tells why tensors are not the module's, of whose settings they would be beside.
func (d Dense) fits(tensors []safetensors.Tensor) error {
	shapes := map[string][]int{"linear.weight": {d.Out, d.In}, "linear.bias": {d.Out}}
	var names []string
	for _, t := range tensors {
		names = append(names, t.Name)
		if want := shapes[t.Name]; want != nil && !slices.Equal(t.Shape, want) {
			return fmt.Errorf("tensor %s%s has shape %v, want %v", d.Prefix(), t.Name, t.Shape, want)
		}
	}
	if slices.Sort(names); !slices.Equal(names, d.names()) {
		return fmt.Errorf("the module %s has the tensors %q, where it should have %q", d.Path, names, d.names())
	}
	return nil
}

// denseFolder is where Save puts the i-th: behind a transformer and its pooling, or static embeddings, or a transformer that nothing pools.
func (s Spec) denseFolder(i int) string {
	first := 2
	if s.static() || s.MultiVector != nil {
		first = 1
	}
	return fmt.Sprintf("%d_Dense", first+i)
}

// dimension is an embedding's number of dimensions.
func (s Spec) dimension(p Pooling) int {
	if n := len(s.Dense); n > 0 {
		return s.Dense[n-1].Out
	}
	return p.Dimension
}
