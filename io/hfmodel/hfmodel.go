// Package hfmodel reads and writes model folders of Hugging Face transformers and of sentence-transformers, and finds
// or downloads them by their hub id.
//
// A model folder is a handful of JSON files around one safetensors file:
//
//	config.json                        the architecture, for transformers
//	model.safetensors                  the weights, or model.safetensors.index.json and several shards, or pytorch_model.bin likewise
//	tokenizer.json, vocab.txt, ...     the tokenizer
//	modules.json                       sentence-transformers: which modules, in which order, in which subfolder
//	sentence_bert_config.json          its first module: max_seq_length, do_lower_case
//	1_Pooling/config.json              its second: how token vectors become one
//	colbert_linear.pt, ...             BGE-M3's heads of tokens, as torch.save keeps them: see package torchfile
//	1_SpladePooling/config.json        in the place of 1_Pooling: embeddings are sparse (splade.go)
//	router_config.json                 of a Router: queries without a model, see Queries (router.go)
//	2_Dense/                           perhaps, with weights of its own: a linear layer and an activation behind it
//	config_sentence_transformers.json  prompts, similarity function; the kind of model, of which MultiVectorEncoder pools nothing: see MultiVector
//
// Folders of static embeddings (static.go) have modules.json, the weights, tokenizer.json, and little else.
//
// Open reads every form of this that sentence-transformers has written, from 2.0 (the transformer in its own
// subfolder, pooling as one boolean per mode) to 6.2, and plain transformers folders, which say nothing about pooling.
// What it does not understand (a Router of other modules than those of Queries, a combination of pooling modes) is an error that names it: a model that
// silently embeds differently is worse than one that doesn't load.
//
// Save writes the folder as a whole: a temporary sibling, synced, then exchanged with the previous one, so that a full
// disk or a kill leaves the previous model. Keys of JSON files that nobody here knows are carried over from the model
// that training began with. It writes the older forms where there are several, which every version can load.
//
// Resolve turns what a user calls a model into a folder: a local one, or a hub id, looked up in and downloaded into the
// cache that the Python libraries use. See Resolve for what it does and does not trust.
//
// # Why not a library for the hub
//
// github.com/gomlx/go-huggingface v0.3.1 does not hold up, by its source: the etag and the commit that a server sends
// become file names unchecked; redirects are followed before the etag is read, so that large files get the content
// server's for a name, where Python does not look; it resumes and verifies nothing, retries nothing, takes no context
// for a download, knows no HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_HUB_OFFLINE or refs/, and prints to standard output. What
// is needed is small enough to be written with net/http (hub*.go).
package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
)

// Folder is an open model folder. Its fields are for reading. Close it when the weights are loaded.
type Folder struct {
	Dir string // as given to Open
	// TransformerDir holds config.json, the weights and the tokenizer's files: Dir, or a subfolder of it in folders
	// that sentence-transformers wrote years ago.
	TransformerDir string
	TokenizerDir   string // where the tokenizer's files are: TransformerDir, or the base's of an adapter

	Adapter *Adapter // what is to be added to the weights; nil if the folder holds a model of its own
	Base    *Folder  // the adapter's base model

	Config    []byte // config.json as it is on disk; of static embeddings StaticConfig
	ModelType string // its model_type: "bert", "roberta", ...

	Modules   []Module // modules.json; nil for a plain transformers folder
	Pooling   *Pooling // nil if the folder doesn't say: the caller decides; of static embeddings the mean
	Dense     []Dense  // modules between pooling and normalization, in their order
	Normalize bool     // whether embeddings are scaled to length 1

	// MaxSeqLength is the number of tokens, special ones included, at which sentence-transformers cuts texts: what
	// sentence_bert_config.json says, otherwise the tokenizer's model_max_length, at most as many as there are
	// positions. Of static embeddings it is what tokenizer.json says. 0: no limit is given anywhere.
	MaxSeqLength int
	LengthGiven  bool // it is what sentence_bert_config.json says, or of static embeddings tokenizer.json
	// LowerCase asks for lower-casing before the tokenizer's own normalizer (do_lower_case of sentence_bert_config.json).
	LowerCase bool

	Prompts           map[string]string // by name, put before a text: {"query": "query: "}
	DefaultPromptName string            // the prompt to use when none is named; "": none
	Similarity        string            // "cosine", "dot", "euclidean", "manhattan"; "": not given
	TruncateDim       int               // embeddings are cut to so many dimensions; 0: not at all
	MaxActive         int               // sparse embeddings have no more than so many features, those with the largest weights; 0: all

	table *safetensors.Tensor // static embeddings; nil for other models

	Reranker *Reranker // how pairs of texts are scored; nil if the folder does not say
	M3       *M3       // heads of tokens; nil if there are none
	Splade   *Splade   // how sparse embeddings are made; nil of other models, whose Pooling says how theirs are
	Queries  *Queries  // weights that queries' are made of; nil: they are made as documents' are

	MultiVector *MultiVector // of a model that gives tokens' vectors alone; nil for others

	weights weights
	// The JSON files as read, for Save to carry over what it doesn't know.
	poolingJSON, transformerJSON, modelJSON *object
}

// Module is an entry of modules.json.
type Module struct {
	Name string // "0"
	Path string // its subfolder, with slashes; "": the folder itself
	Type string // the Python class, "sentence_transformers.models.Pooling"
}

// Kind is the class without its package: "Transformer", "Pooling", "Normalize".
func (m Module) Kind() string { return m.Type[strings.LastIndexByte(m.Type, '.')+1:] }

// Open reads the model folder dir. Every error names the file at fault, and what to do where there is something.
//
// The folder of a LoRA adapter is opened with its base model, which must be a folder here or in the hub's cache, where Resolve puts it.
func Open(dir string) (*Folder, error) { return openOn(dir, "", false) }

// OpenSettings is Open for who wants no weights: a transformer's need not be there, or not all of them, and what tensors there are is then not known;
// nor need what a link or a pointer of git-lfs stands for. Weights are an error that are there and can't be read.
func OpenSettings(dir string) (*Folder, error) { return openOn(dir, "", true) }

func openOn(dir, base string, bare bool) (_ *Folder, err error) {
	if dir == "" {
		return nil, errors.New("open model: no folder is named")
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) && !looksLikePath(dir) && repoID.MatchString(dir) {
		return nil, fmt.Errorf("open model: %w (if it is a model of the hub, hfmodel.Resolve finds its folder)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open model: %s is a file; give the folder that holds config.json", dir)
	}
	f := &Folder{Dir: dir, TransformerDir: dir}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.readModules(); err != nil {
		return nil, err
	}
	f.TokenizerDir = f.TransformerDir
	if f.Static() {
		if err := f.readStatic(); err != nil {
			return nil, err
		}
		if err := f.readDense(); err != nil {
			return nil, err
		}
		return f, f.readModelJSON()
	}
	if err := adaptedInPlace(f.TransformerDir); err != nil {
		return nil, err
	}
	if IsAdapter(f.TransformerDir) {
		plain := f.Modules == nil
		if err := f.adapt(base, bare); err != nil {
			return nil, err
		}
		if plain { // as PEFT saves it: the base says the rest
			return f, nil
		}
	} else if err := f.readConfig(); err != nil {
		return nil, err
	}
	if err := f.readPooling(); err != nil {
		return nil, err
	}
	if err := f.readSplade(); err != nil {
		return nil, err
	}
	if err := f.readDense(); err != nil {
		return nil, err
	}
	if err := f.readTransformerJSON(); err != nil {
		return nil, err
	}
	if err := f.readModelJSON(); err != nil {
		return nil, err
	}
	if err := f.readReranker(); err != nil {
		return nil, err
	}
	if err := f.readM3(); err != nil {
		return nil, err
	}
	if err := f.readMultiVector(); err != nil {
		return nil, err
	}
	if f.Adapter == nil {
		f.weights, err = openWeights(f.TransformerDir)
		if bare && (errors.Is(err, ErrNoWeights) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, plainfile.ErrElsewhere)) { // all, or a shard
			f.weights, err = weights{dir: f.TransformerDir}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	if err := f.readQueries(); err != nil {
		return nil, err
	}
	return f, f.readStanfordHead()
}

// Close closes the weights: tensors and their Data must not be used any more. A second Close does nothing.
func (f *Folder) Close() error {
	var errs []error
	for _, d := range f.Dense {
		if d.file != nil {
			errs = append(errs, d.file.Close())
		}
	}
	if f.Queries != nil && f.Queries.file != nil {
		errs = append(errs, f.Queries.file.Close())
	}
	if f.Adapter == nil {
		return errors.Join(append(errs, f.weights.close())...)
	}
	errs = append(errs, f.Adapter.file.Close())
	if f.Base != nil {
		errs = append(errs, f.Base.Close())
	}
	return errors.Join(errs...)
}

// readModules reads modules.json, if there is one, and refuses modules that this package would have to ignore.
func (f *Folder) readModules() error {
	file := filepath.Join(f.Dir, "modules.json")
	data, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return f.readModel2vec()
	}
	if err != nil {
		return err
	}
	if f.Modules, err = parseModules(data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(f.Modules) > 0 && f.Modules[0].Kind() == "Router" && strings.HasPrefix(f.Modules[0].Type, "sentence_transformers.") {
		if err := f.readRouter(); err != nil {
			return err
		}
	}
	if err := f.findMultiVector(); err != nil {
		return err
	}
	vectors := "sentence_embedding"
	counts := map[string]int{}
	if f.MultiVector != nil {
		vectors, counts["Pooling"] = tokenVectors, 1 // nothing is pooled
	}
	for i, m := range f.Modules {
		kind := m.Kind()
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%s: module %d (%s): %s", file, i, m.Type, fmt.Sprintf(format, args...))
		}
		if !strings.HasPrefix(m.Type, "sentence_transformers.") && m.Type != pylateDense {
			return bad("it is code of its own, which only Python can run")
		}
		switch kind {
		case "Transformer", "MLMTransformer":
			if i != 0 {
				return bad("a transformer that is not the first module is not supported")
			}
			f.TransformerDir = filepath.Join(f.Dir, filepath.FromSlash(m.Path))
		case "StaticEmbedding": // a transformer and its pooling
			if i != 0 {
				return bad("static embeddings that are not the first module are not supported")
			}
			f.TransformerDir, f.ModelType = filepath.Join(f.Dir, filepath.FromSlash(m.Path)), StaticType
			counts["Transformer"]++
			counts["Pooling"]++
		case "SpladePooling":
			if i != 1 {
				return bad("SpladePooling that is not right behind the transformer is not supported")
			}
			counts["Pooling"]++
		case "Pooling":
			switch {
			case f.Static():
				return bad("static embeddings are pooled already")
			case f.MultiVector != nil:
				return bad("a MultiVectorEncoder pools nothing")
			}
			if counts["Normalize"] > 0 {
				return bad("normalization before pooling is not supported")
			}
		case "Dense":
			if counts["Pooling"] == 0 || counts["Normalize"] > 0 {
				return bad("a Dense module that is not between pooling and normalization is not supported")
			}
		case "Normalize":
			if i == 0 {
				return bad("there is nothing before it that it could normalize")
			}
			if counts["Pooling"] == 0 {
				return bad("normalization before pooling is not supported")
			}
			if err := checkNormalize(filepath.Join(f.Dir, filepath.FromSlash(m.Path), "config.json"), vectors); err != nil {
				return err
			}
			f.Normalize = true
		case "LogitScore":
			if err := f.readLogitScore(filepath.Join(f.Dir, filepath.FromSlash(m.Path), "config.json")); err != nil {
				return err
			}
		case "MultiVectorMask":
			if f.MultiVector == nil {
				return bad("it is of a MultiVectorEncoder, which %s does not say that this is (model_type)", modelFile)
			}
		default:
			if f.MultiVector != nil {
				return bad("%s modules are not supported yet; Transformer, Dense, MultiVectorMask and Normalize are in a MultiVectorEncoder", kind)
			}
			return bad("%s modules are not supported yet; Transformer, StaticEmbedding, Pooling, SpladePooling, Dense, Normalize and LogitScore are", kind)
		}
		if kind == "MLMTransformer" {
			counts["Transformer"]++
		}
		if counts[kind]++; counts[kind] > 1 && kind != "Normalize" && kind != "Dense" {
			return bad("a second %s is not supported", kind)
		}
	}
	if counts["Transformer"] == 0 {
		return fmt.Errorf("%s: no Transformer among %d modules", file, len(f.Modules))
	}
	return nil
}

func parseModules(data []byte) ([]Module, error) {
	var list []struct {
		Name *string
		Path *string
		Type string
	}
	if err := unmarshal(data, &list); err != nil {
		return nil, err
	}
	modules := make([]Module, 0, len(list))
	for i, m := range list {
		if m.Path == nil || m.Type == "" {
			return nil, fmt.Errorf("module %d has no path or no type", i)
		}
		p := path.Clean(*m.Path)
		if p == "." {
			p = ""
		} else if err := checkPath(p); err != nil {
			return nil, fmt.Errorf("module %d: path %w", i, err)
		}
		name := fmt.Sprint(i)
		if m.Name != nil {
			name = *m.Name
		}
		modules = append(modules, Module{Name: name, Path: p, Type: m.Type})
	}
	return modules, nil
}

// checkNormalize refuses a Normalize that works on something else than the embedding. Before 6 it had no file.
func checkNormalize(file, vectors string) error {
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range []string{"module_input_name", "module_output_name"} {
		var name string
		if ok, err := o.get(key, &name); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		} else if ok && name != "" && name != vectors {
			return fmt.Errorf("%s: %s %q is not supported; %s is", file, key, name, vectors)
		}
	}
	return nil
}

func (f *Folder) readConfig() error {
	file := filepath.Join(f.TransformerDir, "config.json")
	data, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		// A run's folder has the model beside its metrics. Static models have no config.json, adapters their own.
		if model := filepath.Join(f.TransformerDir, "model"); IsModel(model) {
			return fmt.Errorf("%s has no config.json: the model is in %s, give that", f.TransformerDir, model)
		}
		return fmt.Errorf("%s is %w: it has no config.json", f.TransformerDir, ErrNoModel)
	}
	if err != nil {
		return err
	}
	f.Config = data
	o, err := parseObject(data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if _, err := o.get("model_type", &f.ModelType); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if f.ModelType == "" {
		return fmt.Errorf(`%s: no model_type; add the architecture, such as "model_type": "bert"`, file)
	}
	return nil
}

// configInt is a whole number of config.json, 0 if it is missing, null, or something else.
func (f *Folder) configInt(key string) int {
	var all map[string]json.RawMessage
	var n int
	if json.Unmarshal(f.Config, &all) != nil || json.Unmarshal(all[key], &n) != nil {
		return 0
	}
	return n
}

// transformerFiles are where sentence-transformers looks for the first module's settings, in its order.
var transformerFiles = []string{
	"sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
	"sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json",
	"sentence_xlnet_config.json",
}

// readTransformerJSON finds MaxSeqLength and LowerCase.
func (f *Folder) readTransformerJSON() error {
	for _, name := range transformerFiles {
		if f.Modules == nil {
			break // sentence-transformers reads none without modules.json
		}
		file := filepath.Join(f.TransformerDir, name)
		o, err := readObject(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if f.transformerJSON == nil {
			f.transformerJSON = o
		}
		if o.len() == 0 {
			continue // sentence-transformers goes on to the next as well
		}
		f.transformerJSON = o
		_, err = o.get("max_seq_length", &f.MaxSeqLength)
		if err == nil {
			_, err = o.get("do_lower_case", &f.LowerCase)
		}
		var task string
		if err == nil {
			_, err = o.get("transformer_task", &task)
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", file, err)
		case f.MaxSeqLength < 0:
			return fmt.Errorf("%s: max_seq_length %d is negative", file, f.MaxSeqLength)
		case task == "sequence-classification" || task == "text-generation":
			f.reranks()
		case task == fillMask && f.Splade != nil || len(f.Modules) > 0 && f.Modules[0].Kind() == "MLMTransformer":
		case f.Splade != nil:
			return fmt.Errorf("%s: transformer_task %q, and SpladePooling takes the logits of %s", file, task, fillMask)
		case task != "" && task != "feature-extraction":
			return fmt.Errorf("%s: transformer_task %q is not supported yet; feature-extraction, sequence-classification and text-generation are", file, task)
		}
		if err := f.asRead(o, task); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		break
	}
	if f.LengthGiven = f.MaxSeqLength > 0; f.LengthGiven {
		return nil
	}
	f.MaxSeqLength = f.configInt("max_position_embeddings")
	limit, err := modelMaxLength(f.TransformerDir)
	if err != nil {
		return err
	}
	if limit > 0 && (f.MaxSeqLength <= 0 || limit < f.MaxSeqLength) {
		f.MaxSeqLength = limit
	}
	f.MaxSeqLength = max(f.MaxSeqLength, 0) // XLNet writes -1 for no limit
	return nil
}

const tokenizerConfig = "tokenizer_config.json"

// modelMaxLength is what the tokenizer in a folder says of its model; 0: nothing.
func modelMaxLength(dir string) (int, error) {
	file := filepath.Join(dir, tokenizerConfig)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// A float, because tokenizers without a limit write 1000000000000000019884624838656.
	var limit float64
	if _, err := o.get("model_max_length", &limit); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if limit >= 1 && limit < math.MaxInt32 {
		return int(limit), nil
	}
	return 0, nil
}

// readModelJSON reads config_sentence_transformers.json, if there is one.
func (f *Folder) readModelJSON() error {
	if f.Modules == nil {
		return nil // sentence-transformers reads it beside a modules.json alone
	}
	file := filepath.Join(f.Dir, modelFile)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f.modelJSON = o
	var prompts map[string]*string
	var kind string
	err = o.getAll(map[string]any{
		"prompts": &prompts, "default_prompt_name": &f.DefaultPromptName, "similarity_fn_name": &f.Similarity,
		"truncate_dim": &f.TruncateDim, "model_type": &kind, "max_active_dims": &f.MaxActive,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if kind == "CrossEncoder" { // whatever its modules are
		f.reranks()
	}
	for name, text := range prompts {
		if text == nil {
			continue
		}
		if f.Prompts == nil {
			f.Prompts = map[string]string{}
		}
		f.Prompts[name] = *text
	}
	if _, ok := prompts[f.DefaultPromptName]; f.DefaultPromptName != "" && !ok {
		return fmt.Errorf("%s: default_prompt_name %q is not among the prompts %q", file, f.DefaultPromptName, sortedKeys(prompts))
	}
	if f.TruncateDim < 0 {
		return fmt.Errorf("%s: truncate_dim %d is negative", file, f.TruncateDim)
	}
	if f.MaxActive < 0 {
		return fmt.Errorf("%s: max_active_dims %d is negative", file, f.MaxActive)
	}
	return nil
}

// RolePrompts are what sentence-transformers documents for encode_query and encode_document: the prompt "query"; and "document", or if
// there is none "passage" or "corpus". (6.2.0 itself gives every model an empty "document" first and never comes to the others.)
func (f *Folder) RolePrompts() (query, document string) {
	for _, name := range []string{"document", "passage", "corpus"} {
		if p, ok := f.Prompts[name]; ok {
			document = p
			break
		}
	}
	return f.Prompts["query"], document
}

// tokenizerFiles are all the names under which tokenizers keep what they need.
var tokenizerFiles = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model",
}

// Settings are the files, by their names in the folder, that decide what the model computes beside the weights of its transformer: of its
// configuration, modules, lengths, prompts and tokenizer. Not all of them need be there.
func (f *Folder) Settings() map[string]string {
	files := map[string]string{}
	add := func(dir string, names ...string) {
		for _, name := range names {
			path := filepath.Join(dir, name)
			short, err := filepath.Rel(f.Dir, path)
			if err != nil || strings.HasPrefix(short, "..") {
				short = name // of an adapter's base
			}
			files[filepath.ToSlash(short)] = path
		}
	}
	add(f.TokenizerDir, tokenizerFiles...)
	add(f.Dir, "modules.json", "config_sentence_transformers.json", rerankerFile)
	add(f.TransformerDir, transformerFiles...)
	add(f.TransformerDir, "config.json", adapterConfigFile)
	if f.MultiVector != nil && f.Modules == nil {
		add(f.TransformerDir, metadataFile)
	}
	for _, m := range f.Modules {
		if dir := filepath.Join(f.Dir, filepath.FromSlash(m.Path)); m.Path != "" && dir != f.TransformerDir {
			add(dir, "config.json")
			if m.Kind() == "Dense" {
				add(dir, weightsFile, torchWeightsFile)
			}
		}
	}
	if q := f.Queries; q != nil {
		dir := filepath.Join(f.Dir, filepath.FromSlash(q.path))
		add(f.Dir, filepath.FromSlash(q.router))
		add(dir, append([]string{"config.json", weightsFile, torchWeightsFile}, tokenizerFiles...)...)
		if q.idf != "" {
			add(filepath.Dir(q.idf), filepath.Base(q.idf))
		}
	}
	if f.Base != nil {
		for name, path := range f.Base.Settings() {
			files["the base model's "+name] = path
		}
	}
	return files
}

// CopyTokenizer copies the tokenizer's files as they are into dir. It has the form that Spec.Tokenizer wants.
func (f *Folder) CopyTokenizer(dir string) error {
	found := false
	for _, name := range tokenizerFiles {
		data, err := plainfile.Read(filepath.Join(f.TokenizerDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found = true
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s has no tokenizer files, such as tokenizer.json or vocab.txt", f.TokenizerDir)
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
