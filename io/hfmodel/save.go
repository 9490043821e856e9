package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/atomicfile"
	"contraflow/io/safetensors"
)

// Spec is what Save writes.
type Spec struct {
	// Config is config.json, written as given. Only its dtype, if it names one, is made to agree with the tensors:
	// transformers loads in the type that config.json says. And T5's architectures are its encoder.
	Config  []byte
	Tensors []safetensors.Tensor // under the names that transformers' base model uses

	Pooling      Pooling      // Dimension 0: config.json's hidden_size, or what the family calls it
	MultiVector  *MultiVector // of a model that gives tokens' vectors alone, which nothing pools; nil for others
	Splade       *Splade      // makes it a SparseEncoder: tensors are then under the names of transformers' model for masked language modelling; Pooling is not looked at
	Queries      *Queries     // beside Splade: the weights of queries' tokens are among Tensors (QueryTensor), and get a folder of their own
	M3           bool         // tensors of M3's heads are among Tensors, and get files of their own
	Dense        []Dense      // modules behind the pooling, a Folder's or new ones; without tensors of theirs those of their folder are written
	Normalize    bool
	MaxSeqLength int // static embeddings may have 0: texts are read as a whole
	LowerCase    bool

	Prompts           map[string]string
	DefaultPromptName string
	Similarity        string // "": what Base says, otherwise cosine

	// Base is the model that training began with, or nil. Keys of its JSON files that this package doesn't know are
	// carried over.
	Base *Folder
	// Tokenizer writes the tokenizer's files into the folder that it is given; Base.CopyTokenizer is one.
	Tokenizer func(dir string) error
	Card      Card

	// Progress, if not nil, is told how many bytes of the tensors are written.
	Progress func(done, total int64)

	// Adapter, if not nil, makes it the folder of a LoRA adapter, which PEFT reads as well; Config is then the base's.
	Adapter *AdapterSpec
}

// Save writes a model folder that sentence-transformers, transformers and Open read. It appears as a whole or not at
// all: until everything is written and synced, a previous model in dir stays as it is; then it is replaced, with
// whatever else lay in its folder. To save somebody from a mistyped path, a folder that is no model is not replaced.
func Save(dir string, s Spec) error {
	if err := Replaceable(dir); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	files, err := s.files(dir)
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	tensors, dense, err := s.splitDense()
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	weights := map[string][]safetensors.Tensor{weightsFile: tensors}
	tokenizer := s.Tokenizer
	if s.Queries != nil {
		if weights[weightsFile], weights[queryFolder+"/"+weightsFile], err = s.splitQueries(tensors); err != nil {
			return fmt.Errorf("save model to %s: %w", dir, err)
		}
		tokenizer = s.withQueries
	}
	if s.M3 {
		if err := s.splitM3(files, weights); err != nil {
			return fmt.Errorf("save model to %s: %w", dir, err)
		}
	}
	if s.Adapter != nil {
		weights = map[string][]safetensors.Tensor{AdapterWeights: s.Adapter.named(tensors)}
	}
	for i := range s.Dense {
		weights[path.Join(s.denseFolder(i), weightsFile)] = dense[i]
	}
	if s.static() {
		return writeModel(dir, s.cuttingTokenizer, files, weights, s.Progress)
	}
	return writeModel(dir, tokenizer, files, weights, s.Progress)
}

// writeModel replaces a folder by the tokenizer's files, files by name (nil stands for an empty folder) and tensors by the name of their file.
func writeModel(dir string, tokenizer func(dir string) error, files map[string][]byte, weights map[string][]safetensors.Tensor, progress func(done, total int64)) error {
	told := writer{progress: progress}
	for _, tensors := range weights {
		for _, t := range tensors {
			told.total += int64(len(t.Data))
		}
	}
	err := atomicfile.WriteDir(dir, func(tmp string) error {
		if err := tokenizer(tmp); err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
		if !hasTokenizer(tmp) {
			return errors.New("the tokenizer wrote none of its files, such as tokenizer.json or vocab.txt")
		}
		for _, name := range sortedKeys(files) {
			data, path := files[name], filepath.Join(tmp, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				return err
			}
			if data == nil { // a module without settings: sentence-transformers wants its folder to be there
				if err := os.MkdirAll(path, 0o777); err != nil {
					return err
				}
				continue
			}
			if err := os.WriteFile(path, data, 0o666); err != nil {
				return err
			}
		}
		for _, name := range sortedKeys(weights) {
			if err := safetensors.WriteEach(filepath.Join(tmp, filepath.FromSlash(name)), weights[name], map[string]string{"format": "pt"}, told.write); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// writer writes tensors, and says how many of their bytes it has written.
type writer struct {
	progress    func(done, total int64) // nil: to nobody
	done, total int64
}

func (x *writer) write(w io.Writer, t safetensors.Tensor) error {
	for piece := range slices.Chunk(t.Data, 16<<20) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if x.done += int64(len(piece)); x.progress != nil {
			x.progress(x.done, x.total)
		}
	}
	return nil
}

// module is an entry of modules.json.
type module struct {
	Idx  int    `json:"idx"`
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
}

// moduleFile is modules.json.
func moduleFile(modules []module) ([]byte, error) {
	list, err := json.MarshalIndent(modules, "", "  ")
	return append(list, '\n'), err
}

// folderName is what a model that is saved to dir is called.
func folderName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Base(dir)
}

// Replaceable tells why Save and [Folder.Rewrite] would not write to dir: it is there and is neither empty nor a model, or is a link to nothing.
func Replaceable(dir string) error {
	if dir == "" { // which reads as a folder that is not there, and is written as the one at hand
		return errors.New("the folder's name is empty")
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return atomicfile.Dangling(dir)
	}
	if err != nil {
		return err
	}
	if len(entries) == 0 || IsModel(dir) {
		return nil
	}
	return fmt.Errorf("%s is not empty and holds no model: it would be replaced; choose another folder", dir)
}

// IsModel tells whether a folder holds a model: Save would replace it.
func IsModel(dir string) bool { return ModelFile(dir) != "" }

// ModelFile is the name of a file by which a folder holds a model; "" if it holds none.
func ModelFile(dir string) string {
	for _, name := range []string{"config.json", "modules.json", adapterConfigFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return name
		}
	}
	return ""
}

func hasTokenizer(dir string) bool {
	for _, name := range tokenizerFiles {
		if name == "tokenizer_config.json" || name == "special_tokens_map.json" || name == "added_tokens.json" {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// files renders everything but tokenizer and weights, by their names in the folder; nil stands for an empty folder.
func (s Spec) files(dir string) (map[string][]byte, error) {
	config, err := parseObject(s.Config)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	var modelType string
	var hidden int
	if _, err := config.get("model_type", &modelType); err != nil || modelType == "" {
		return nil, errors.New("config.json: no model_type")
	}
	for _, key := range []string{"hidden_size", "dim", "n_embd", "d_model"} { // DistilBERT has the second, what descends from GPT-2 the third, T5 the fourth
		if ok, err := config.get(key, &hidden); err != nil {
			return nil, fmt.Errorf("config.json: %w", err)
		} else if ok {
			break
		}
	}
	pooling := s.Pooling
	if s.Splade != nil {
		pooling.Mode = Mean
	}
	if pooling.Dimension == 0 {
		pooling.Dimension = hidden
	}
	static := s.static()
	_, defaultKnown := s.Prompts[s.DefaultPromptName]
	switch {
	case s.MultiVector == nil && pooling.Mode != CLS && pooling.Mode != Mean && pooling.Mode != Last:
		return nil, fmt.Errorf("pooling %q is not one of cls, mean, last", pooling.Mode)
	case pooling.Dimension <= 0:
		return nil, errors.New("the pooling's dimension is not given, and config.json has no hidden_size")
	case s.MaxSeqLength <= 0 && !static:
		return nil, fmt.Errorf("max_seq_length %d is not above 0", s.MaxSeqLength)
	case s.DefaultPromptName != "" && !defaultKnown:
		return nil, fmt.Errorf("default prompt %q is not among the prompts %q", s.DefaultPromptName, sortedKeys(s.Prompts))
	case len(s.Tensors) == 0:
		return nil, errors.New("no tensors")
	case s.Tokenizer == nil:
		return nil, errors.New("no tokenizer")
	}

	base := s.Base
	if base == nil {
		base = &Folder{}
	}
	modules := []module{{0, "0", "", "sentence_transformers.models.StaticEmbedding"}}
	files := map[string][]byte{"config_sentence_transformers.json": s.modelBytes(base.modelJSON)}
	if !static {
		modules = []module{
			{0, "0", "", "sentence_transformers.models.Transformer"},
			{1, "1", "1_Pooling", "sentence_transformers.models.Pooling"},
		}
		files["config.json"] = s.configBytes(config)
		files["1_Pooling/config.json"] = encodePooling(pooling, base.poolingJSON)
		files["sentence_bert_config.json"] = s.transformerBytes(base.transformerJSON)
	}
	vectors := "sentence_embedding"
	switch {
	case s.MultiVector != nil:
		modules, vectors = modules[:1], tokenVectors
		delete(files, "1_Pooling/config.json")
	case s.Splade != nil:
		delete(files, "1_Pooling/config.json")
		if modules, err = s.spladeFiles(config, base.poolingJSON, files); err != nil {
			return nil, err
		}
		if s.Queries != nil {
			modules = s.routerFiles(modules, files)
		}
	}
	if s.Adapter != nil {
		delete(files, "config.json")
		maps.Copy(files, s.Adapter.files(dir))
	}
	for i, d := range s.Dense {
		n := len(modules)
		modules = append(modules, module{n, fmt.Sprint(n), s.denseFolder(i), "sentence_transformers.models.Dense"})
		files[s.denseFolder(i)+"/config.json"] = d.config(vectors)
	}
	if s.MultiVector != nil {
		modules = s.MultiVector.modules(modules, files, s.Normalize)
	} else if s.Normalize {
		n := len(modules)
		folder := fmt.Sprintf("%d_Normalize", n)
		modules = append(modules, module{n, fmt.Sprint(n), folder, "sentence_transformers.models.Normalize"})
		files[folder] = nil
	}
	files["README.md"] = s.Card.render(folderName(dir), s, pooling)
	files["modules.json"], err = moduleFile(modules)
	return files, err
}

// torchDTypes are the names that config.json uses.
var torchDTypes = map[safetensors.DType]string{
	safetensors.F32: "float32", safetensors.F16: "float16", safetensors.BF16: "bfloat16", safetensors.F64: "float64",
}

// encoders are transformers' classes of encoders of families that have decoders as well, by model_type: what is saved is one, whatever it began as.
var encoders = map[string]string{"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}

// configBytes is config.json, unchanged unless it claims another dtype than the tensors', or a decoder.
func (s Spec) configBytes(config *object) []byte {
	changed := setDType(config, s.Tensors)
	var modelType string
	var classes []string
	config.get("model_type", &modelType) // a config.json without either has no such class
	config.get("architectures", &classes)
	if class := encoders[modelType]; class != "" && !slices.Equal(classes, []string{class}) {
		config.set("architectures", []string{class})
		changed = true
	}
	if changed {
		return config.bytes()
	}
	return s.Config
}

// setDType has config.json name the type that most of the tensors' floats have, the first of equals, if it names one. It tells whether that is a change.
func setDType(config *object, tensors []safetensors.Tensor) (changed bool) {
	counts, dtype := map[string]int{}, ""
	for _, t := range tensors {
		if name, ok := torchDTypes[t.DType]; ok {
			counts[name] += t.Len()
		}
	}
	for _, t := range tensors {
		if name, ok := torchDTypes[t.DType]; ok && (dtype == "" || counts[name] > counts[dtype]) {
			dtype = name
		}
	}
	for _, key := range []string{"dtype", "torch_dtype"} {
		var now string
		if ok, err := config.get(key, &now); ok && err == nil && dtype != "" && strings.TrimPrefix(now, "torch.") != dtype {
			config.set(key, dtype)
			changed = true
		}
	}
	return changed
}

func (s Spec) transformerBytes(base *object) []byte {
	o := base.clone()
	o.set("max_seq_length", s.MaxSeqLength)
	o.set("do_lower_case", s.LowerCase)
	if s.MultiVector != nil {
		s.MultiVector.setRoles(o)
	}
	return o.bytes()
}

func (s Spec) modelBytes(base *object) []byte {
	o := base.clone()
	o.set("model_type", "SentenceTransformer")
	if s.Splade != nil {
		o.set("model_type", "SparseEncoder")
		o.set("similarity_fn_name", s.similarity())
	}
	prompts := s.Prompts
	if prompts == nil {
		prompts = map[string]string{}
	}
	o.set("prompts", prompts)
	o.set("default_prompt_name", nil)
	if s.DefaultPromptName != "" {
		o.set("default_prompt_name", s.DefaultPromptName)
	}
	if _, ok := o.values["similarity_fn_name"]; s.Similarity != "" || !ok {
		o.set("similarity_fn_name", s.similarity())
	}
	if s.MultiVector != nil {
		s.MultiVector.setModel(o, prompts)
	}
	return o.bytes()
}

func (s Spec) similarity() string {
	if s.Similarity == "" && s.Base != nil && s.Base.Similarity != "" {
		return s.Base.Similarity
	}
	if s.Similarity == "" && s.Splade != nil {
		return "dot"
	}
	if s.Similarity == "" {
		return "cosine"
	}
	return s.Similarity
}
