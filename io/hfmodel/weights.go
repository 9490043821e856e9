package hfmodel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
)

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"

	// As PyTorch keeps them: BAAI/bge-m3, for one, has no other.
	torchWeightsFile = "pytorch_model.bin"
	torchIndexFile   = "pytorch_model.bin.index.json"
)

// weightFiles are the files of weights, or of their shards' index, in the order in which they are looked for.
var weightFiles = []string{weightsFile, indexFile, torchWeightsFile, torchIndexFile}

// isIndex tells whether a file names the shards.
func isIndex(name string) bool { return name == indexFile || name == torchIndexFile }

// openTensors opens a file of weights; PyTorch's as data, of which nothing is run.
func openTensors(dir, name string) (*safetensors.File, error) {
	file := filepath.Join(dir, filepath.FromSlash(name))
	if strings.HasSuffix(name, ".safetensors") {
		return safetensors.Open(file)
	}
	f, err := torchfile.Open(file)
	if onlyPython(err) {
		err = fmt.Errorf("%w; this is a Python pickle that only Python reads; if you trust it, convert it with: %s", err, convertCommand(dir))
	}
	return f, err
}

// onlyPython tells of an error about a file of PyTorch's that Python would read it: it is there, whole as far as one sees (torch.load does not look),
// and runs no code.
func onlyPython(err error) bool {
	var file *fs.PathError
	return err != nil && !errors.As(err, &file) && !errors.Is(err, plainfile.ErrElsewhere) && !errors.Is(err, torchfile.ErrUnsafe) && !errors.Is(err, torchfile.ErrDamaged)
}

// weights are the tensors of one file or of several shards.
type weights struct {
	dir   string
	files []*safetensors.File
	names []string                     // per file in the order of the data
	index map[string]*safetensors.File // by tensor
}

func openWeights(dir string) (weights, error) {
	w := weights{dir: dir, index: map[string]*safetensors.File{}}
	var err error
	switch name := weightsIn(dir); {
	case name == "":
		return w, noWeights(dir)
	case isIndex(name):
		err = w.openShards(name)
	default:
		err = w.openFile(name)
	}
	if err != nil {
		return w, errors.Join(err, w.close())
	}
	return w, nil
}

// weightsIn is the first of weightFiles that a folder has, if only as a link; "" for none.
func weightsIn(dir string) string {
	for _, name := range weightFiles {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return name
		}
	}
	return ""
}

func noWeights(dir string) error {
	return &weightless{fmt.Sprintf("%s has neither %s nor %s", dir, weightsFile, indexFile)}
}

// weightless is an error about a folder without weights.
type weightless struct{ text string }

func (e *weightless) Error() string        { return e.text }
func (e *weightless) Is(target error) bool { return target == ErrNoWeights }

func (w *weights) openFile(name string) error {
	f, err := openTensors(w.dir, name)
	if err != nil {
		return err
	}
	w.files, w.names = []*safetensors.File{f}, f.Names()
	for _, name := range w.names {
		w.index[name] = f
	}
	return nil
}

// shardMap parses model.safetensors.index.json: tensor to file name.
func shardMap(index []byte) (map[string]string, error) {
	var v struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := unmarshal(index, &v); err != nil {
		return nil, err
	}
	if len(v.WeightMap) == 0 {
		return nil, errors.New("no weight_map, or an empty one")
	}
	for _, tensor := range sortedKeys(v.WeightMap) {
		if err := checkPath(v.WeightMap[tensor]); err != nil {
			return nil, fmt.Errorf("tensor %q: file %w", tensor, err)
		}
	}
	return v.WeightMap, nil
}

func (w *weights) openShards(name string) error {
	indexPath := filepath.Join(w.dir, name)
	index, err := plainfile.Read(indexPath)
	if err != nil {
		return err
	}
	byTensor, err := shardMap(index)
	if err != nil {
		return fmt.Errorf("%s: %w", indexPath, err)
	}
	shards := map[string]*safetensors.File{}
	for _, tensor := range sortedKeys(byTensor) {
		name := byTensor[tensor]
		f := shards[name]
		if f == nil {
			if f, err = openTensors(w.dir, name); err != nil {
				return fmt.Errorf("shard listed in %s: %w", indexPath, err)
			}
			shards[name] = f
			w.files = append(w.files, f)
		}
		if _, err := f.Tensor(tensor); err != nil {
			return fmt.Errorf("%s: %w", indexPath, err)
		}
		w.index[tensor] = f
	}
	for _, name := range sortedKeys(shards) {
		for _, tensor := range shards[name].Names() {
			// What a shard holds beyond the index is not part of the model, as for transformers.
			if w.index[tensor] == shards[name] {
				w.names = append(w.names, tensor)
			}
		}
	}
	return nil
}

func (w *weights) close() error {
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Forget gives the memory of weights that have been read back to the system; they can still be read.
func (f *Folder) Forget() {
	for _, file := range f.weights.files {
		file.Forget()
	}
}

func convertCommand(model string) string {
	return fmt.Sprintf(`python -c "from transformers import AutoModel as M, AutoTokenizer as T; m = r'%s'; `+
		`M.from_pretrained(m).save_pretrained('converted'); T.from_pretrained(m).save_pretrained('converted')"`, model)
}

// Names lists the tensors, file by file, in the order of their data.
func (f *Folder) Names() []string { return slices.Clone(f.weights.names) }

// Tensor finds a tensor, in whichever file it is. If it isn't there under this name, it is looked for
//
//   - behind each of the prefixes, in their order: a BertForMaskedLM keeps as "bert.encoder.x" what a BertModel keeps
//     as "encoder.x" ("bert." is the prefix here, with its dot);
//   - without each of the prefixes, if it begins with one;
//   - with the gamma and beta of the first BERT checkpoints for LayerNorm's weight and bias, and under the name that T5's word embeddings have within
//     the encoder;
//   - as the decoder's bias, if it is the bias of a head for masked language modelling: transformers ties the two, and a file has either or both.
//
// The Tensor that comes back carries the name it has in the file. The error for one that isn't there wraps
// safetensors.ErrNoTensor and lists near names.
func (f *Folder) Tensor(name string, prefixes ...string) (safetensors.Tensor, error) {
	for _, d := range f.Dense {
		if strings.HasPrefix(name, d.Prefix()) {
			return d.tensor(name)
		}
	}
	if f.M3 != nil {
		if t, ok := f.M3.tensors[name]; ok {
			return t, nil
		}
	}
	if f.Queries != nil && f.Queries.file != nil && name == QueryTensor {
		return f.Queries.tensor()
	}
	if f.table != nil && name == staticTensor {
		return *f.table, nil
	}
	candidates := []string{name}
	for _, p := range prefixes {
		candidates = append(candidates, p+name)
	}
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			candidates = append(candidates, rest)
		}
	}
	for _, legacy := range [][2]string{
		{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}, {"shared.weight", "encoder.embed_tokens.weight"},
		{"cls.predictions.bias", "cls.predictions.decoder.bias"}, {"lm_head.bias", "lm_head.decoder.bias"},
	} {
		if !strings.HasSuffix(name, legacy[0]) {
			continue
		}
		for _, c := range candidates {
			candidates = append(candidates, strings.TrimSuffix(c, legacy[0])+legacy[1])
		}
	}
	if f.Adapter != nil { // under any of its names: an adapter of a model with a head has the prefix, its base may not
		for _, c := range candidates {
			if t, ok := f.Adapter.wholeByName[c]; ok {
				return t, nil
			}
		}
	}
	for _, c := range candidates {
		if file := f.weights.index[c]; file != nil {
			return file.Tensor(c)
		}
	}
	return safetensors.Tensor{}, fmt.Errorf("%s: %w", f.weights.dir, safetensors.NoTensor(name, f.weights.names))
}
