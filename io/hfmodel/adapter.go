package hfmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"contraflow/io/safetensors"
)

// A LoRA adapter in PEFT's format is a folder without a model:
//
//	adapter_config.json        the base model's id or folder, rank, alpha, which layers
//	adapter_model.safetensors  base_model.model.LAYER.lora_A.weight [r, in] and .lora_B.weight [out, r]; what trained as a
//	                           whole (modules_to_save) under the names of the base model
//
// and as sentence-transformers saves it, tokenizer, pooling and prompts beside them. Open reads both forms as the base model with the
// adapter: what a folder of an adapter does not say, the base's does.
//
// PEFT takes the base for a hub id, or for a folder from where a program runs. So a folder is named in full, or, if it is of the hub's cache, by the
// hub's name; and for adapters that move together with their base, base_model.json, which PEFT does not read, has the way to it from theirs.
const (
	adapterConfigFile = "adapter_config.json"
	AdapterWeights    = "adapter_model.safetensors" // the file's name
	adapterBaseFile   = "base_model.json"
)

// AdapterPrefix is what PEFT puts before the base model's names.
const AdapterPrefix = "base_model.model."

// Adapter is what a LoRA run has trained: what its folder says of it.
type Adapter struct {
	Base        string   // base_model_name_or_path: a hub id or a folder; where there is no such folder, one that lies as it did from the adapter's
	Revision    string   // of the base; "": the usual one
	Rank        int      // r
	Alpha       float64  // lora_alpha
	Dropout     float64  // lora_dropout
	RSLoRA      bool     // use_rslora: what is added is multiplied with Alpha/sqrt(r), not Alpha/r
	Targets     []string // target_modules
	Save        []string // modules_to_save
	Factors     []Factor
	Whole       []safetensors.Tensor // what replaces the base's tensors, under their names
	alphas      []ownAlpha
	file        *safetensors.File
	wholeByName map[string]safetensors.Tensor
	tried       []string // where else the base was looked for
}

// Factor is what is added to a linear layer's weight [out, in]: Scale * B A.
type Factor struct {
	Module string             // "encoder.layer.0.attention.self.query"
	A, B   safetensors.Tensor // [r, in], [out, r]
	Scale  float64
}

// ownAlpha is an alpha in the place of Adapter.Alpha for the modules of a name.
type ownAlpha struct {
	modules *regexp.Regexp
	alpha   float64
}

// IsAdapter tells whether a folder holds an adapter in a model's place.
func IsAdapter(dir string) bool {
	has := func(name string) bool { // a link to nothing too, which is an error where it is read
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	return has(adapterConfigFile) && !has(weightsFile) && !has(indexFile)
}

// adaptedInPlace refuses a folder that has an adapter beside a whole model: transformers adds it to that model where PEFT is installed, and leaves it out elsewhere.
func adaptedInPlace(dir string) error {
	weights := weightsIn(dir)
	for _, name := range []string{"config.json", adapterConfigFile, AdapterWeights} {
		if weights == "" || !there(filepath.Join(dir, name)) {
			return nil
		}
	}
	return fmt.Errorf("%s has the LoRA adapter %s beside the model %s, and transformers adds it to that only where PEFT is installed: put it into a folder of its own, or remove it and %s if the model has it already",
		dir, AdapterWeights, weights, adapterConfigFile)
}

// loraKeys are the keys of adapter_config.json which this package reads, or which do not change what an adapter's tensors mean: how they
// were chosen (their names and shapes say it) and how they began. Any other key, a later PEFT's too, must be empty: it may stand for
// another function than LoRA's.
var loraKeys = []string{
	"peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "modules_to_save", "bias",
	"init_lora_weights", "auto_mapping", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform",
	"megatron_core", "peft_version", "qalora_group_size", "rank_pattern", "alpha_pattern", "task_type",
}

// plainStarts are the values of init_lora_weights, but for those that stand for none, with which PEFT leaves the base's weights alone. With others (pissa, olora, loftq and
// more) it subtracts the factors' first values from them, again each time it loads the adapter (peft/tuners/lora/layer.py, update_layer).
var plainStarts = []string{"true", `"gaussian"`, `"eva"`}

const mergeInPEFT = "merge the adapter into its model with PEFT (merge_and_unload)"

// readAdapter reads an adapter's two files.
func readAdapter(dir string) (*Adapter, error) {
	path := filepath.Join(dir, adapterConfigFile)
	o, err := readObject(path)
	if err != nil {
		return nil, err
	}
	a := &Adapter{wholeByName: map[string]safetensors.Tensor{}}
	if err := a.readConfig(o); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := a.findBase(dir); err != nil {
		return nil, err
	}
	path = filepath.Join(dir, AdapterWeights)
	if a.file, err = safetensors.Open(path); err != nil {
		if _, binErr := os.Stat(filepath.Join(dir, "adapter_model.bin")); binErr == nil && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s has its weights only as adapter_model.bin, a Python pickle, which can run code when it is loaded; "+
				"if you trust it, load it in PEFT and save it again", dir)
		}
		return nil, err
	}
	if err := a.readTensors(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), a.file.Close())
	}
	return a, nil
}

func (a *Adapter) readConfig(o *object) error {
	a.Alpha = 8 // PEFT's, where the file does not say
	var kind, bias string
	var targets, alphas json.RawMessage
	err := o.getAll(map[string]any{
		"peft_type": &kind, "base_model_name_or_path": &a.Base, "revision": &a.Revision, "r": &a.Rank, "lora_alpha": &a.Alpha,
		"lora_dropout": &a.Dropout, "use_rslora": &a.RSLoRA, "target_modules": &targets, "modules_to_save": &a.Save, "bias": &bias,
		"alpha_pattern": &alphas,
	})
	if err != nil {
		return err
	}
	if kind != "LORA" {
		return fmt.Errorf("peft_type %q is not supported; LORA is", kind)
	}
	for _, key := range sortedKeys(o.values) {
		switch raw := string(o.values[key]); {
		case raw == "null" || raw == "false" || raw == "{}" || raw == "[]":
		case !slices.Contains(loraKeys, key), key == "bias" && bias != "none",
			key == "init_lora_weights" && !slices.Contains(plainStarts, strings.ToLower(raw)):
			return fmt.Errorf("%s %s is not supported; %s", key, short(o.values[key]), mergeInPEFT)
		}
	}
	if targets != nil && json.Unmarshal(targets, &a.Targets) != nil { // one name, or a regular expression
		var one string
		if err := json.Unmarshal(targets, &one); err != nil {
			return fmt.Errorf("target_modules: got %s, want names", short(targets))
		}
		a.Targets = []string{one}
	}
	if alphas != nil {
		return a.readAlphas(alphas)
	}
	return nil
}

// readAlphas reads alpha_pattern: alphas by the ends of modules' names, which may be regular expressions. As in PEFT (get_pattern_key) the first one that
// fits a name counts.
func (a *Adapter) readAlphas(raw json.RawMessage) error {
	o, err := parseObject(raw)
	if err != nil {
		return fmt.Errorf("alpha_pattern: %w", err)
	}
	for _, name := range o.keys {
		own := ownAlpha{}
		if own.modules, err = regexp.Compile(`^(.*\.)?(` + name + `)$`); err != nil {
			return fmt.Errorf("alpha_pattern: %q is not supported: %w; %s", name, err, mergeInPEFT)
		}
		if ok, err := o.get(name, &own.alpha); err != nil {
			return fmt.Errorf("alpha_pattern: %w", err)
		} else if !ok { // 0 would leave the factors out
			return fmt.Errorf("alpha_pattern: %s: got null, want a number", name)
		}
		a.alphas = append(a.alphas, own)
	}
	return nil
}

// alpha is that of a module.
func (a *Adapter) alpha(module string) float64 {
	for _, own := range a.alphas {
		if own.modules.MatchString(module) {
			return own.alpha
		}
	}
	return a.Alpha
}

// findBase looks for a base that is not where the configuration says: from the adapter's folder.
func (a *Adapter) findBase(dir string) error {
	if isDir(a.Base) {
		return nil
	}
	var ways []string
	if !filepath.IsAbs(a.Base) && looksLikePath(a.Base) {
		ways = append(ways, a.Base)
	}
	o, err := readObject(filepath.Join(dir, adapterBaseFile))
	if err == nil {
		var way string
		if _, err = o.get("path", &way); err == nil && way != "" {
			ways = append(ways, way)
		}
	}
	for _, way := range ways {
		place := filepath.Join(dir, filepath.FromSlash(way))
		if isDir(place) {
			a.Base, a.Revision = place, ""
			return nil
		}
		a.tried = append(a.tried, place)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// readTensors sorts the tensors into factors and what replaces the base's. Ranks are the tensors': PEFT may have given layers
// ranks of their own (rank_pattern).
func (a *Adapter) readTensors() error {
	pairs := map[string]*Factor{}
	for _, name := range a.file.Names() {
		t, err := a.file.Tensor(name)
		if err != nil {
			return err
		}
		own, ok := strings.CutPrefix(name, AdapterPrefix)
		if !ok {
			return fmt.Errorf("tensor %q does not begin with %s", name, AdapterPrefix)
		}
		side := ""
		for _, s := range []string{".lora_A.weight", ".lora_B.weight"} {
			if strings.HasSuffix(own, s) {
				side, own = s, strings.TrimSuffix(own, s)
			}
		}
		switch {
		case side != "" && len(t.Shape) == 2:
			if pairs[own] == nil {
				pairs[own] = &Factor{Module: own}
			}
			if side == ".lora_A.weight" {
				pairs[own].A = t
			} else {
				pairs[own].B = t
			}
		case strings.HasSuffix(own, ".default.weight"):
			return fmt.Errorf("tensor %q has its adapter's name in it, as PEFT's state_dict does: save it with save_pretrained", name)
		case strings.Contains(own, "lora_"):
			return fmt.Errorf("tensor %q is not supported: only factors of linear layers are; %s", name, mergeInPEFT)
		default:
			a.Whole = append(a.Whole, t)
			a.wholeByName[own] = t
		}
	}
	for _, module := range sortedKeys(pairs) {
		f := *pairs[module]
		switch {
		case f.A.Name == "" || f.B.Name == "":
			return fmt.Errorf("%s has one of lora_A and lora_B, want both", module)
		case f.A.Shape[0] != f.B.Shape[1] || f.A.Shape[0] == 0:
			return fmt.Errorf("%s: lora_A has shape %v, lora_B %v: their ranks differ", module, f.A.Shape, f.B.Shape)
		}
		r := float64(f.A.Shape[0])
		if f.Scale = a.alpha(module) / r; a.RSLoRA {
			f.Scale = a.alpha(module) / math.Sqrt(r)
		}
		if math.Abs(f.Scale) > math.MaxFloat32 {
			return fmt.Errorf("%s: lora_alpha of %s is %v, which float32 does not have", module, adapterConfigFile, a.alpha(module))
		}
		a.Factors = append(a.Factors, f)
	}
	if len(pairs) == 0 && len(a.Whole) == 0 {
		return errors.New("no tensors")
	}
	return nil
}

// OpenOn opens an adapter's folder with the base model in the given folder, whatever adapter_config.json says.
func OpenOn(base, dir string) (*Folder, error) {
	if !IsAdapter(dir) {
		return nil, fmt.Errorf("%s is not the folder of a LoRA adapter: want %s and %s", dir, adapterConfigFile, AdapterWeights)
	}
	return openOn(dir, base, false)
}

// adapt makes f, the folder of an adapter, that of its base model with the adapter. base is the base's folder; "": what
// the adapter says. bare: its weights need not be there.
func (f *Folder) adapt(base string, bare bool) (err error) {
	if f.Adapter, err = readAdapter(f.TransformerDir); err != nil {
		return err
	}
	if base == "" {
		if base, err = f.Adapter.resolve(context.Background(), Options{Offline: true, NoWeights: bare}); err != nil {
			return fmt.Errorf("%s: %w", f.TransformerDir, err)
		}
	}
	if IsAdapter(base) {
		return fmt.Errorf("%s: %w", f.Dir, errBase(base))
	}
	b, err := openOn(base, "", bare)
	if err != nil {
		return fmt.Errorf("the base model of the adapter %s: %w", f.Dir, err)
	}
	f.Base, f.Config, f.ModelType, f.weights, f.M3 = b, b.Config, b.ModelType, b.weights, b.M3
	if !hasTokenizer(f.TransformerDir) {
		f.TokenizerDir = b.TokenizerDir
	}
	if f.Modules == nil { // as PEFT saves it
		if b.Queries != nil {
			return errRouted(f.Dir)
		}
		f.Splade, f.MaxActive = b.Splade, b.MaxActive
		f.Modules, f.Pooling, f.Dense, f.Normalize, f.MaxSeqLength, f.LengthGiven, f.LowerCase = b.Modules, b.Pooling, b.Dense, b.Normalize, b.MaxSeqLength, b.LengthGiven, b.LowerCase
		f.MultiVector, f.Reranker = b.MultiVector, b.Reranker
		f.Prompts, f.DefaultPromptName, f.Similarity, f.TruncateDim = b.Prompts, b.DefaultPromptName, b.Similarity, b.TruncateDim
		f.poolingJSON, f.transformerJSON, f.modelJSON = b.poolingJSON, b.transformerJSON, b.modelJSON
	}
	return nil
}

// BaseID is the base model as Resolve takes it: a folder, a hub id or id@revision.
func (a *Adapter) BaseID() string {
	if _, err := os.Stat(a.Base); err != nil && a.Base != "" && a.Revision != "" {
		return a.Base + "@" + a.Revision
	}
	return a.Base
}

// resolve finds the base model's folder.
func (a *Adapter) resolve(ctx context.Context, o Options) (string, error) {
	id := a.BaseID()
	if id == "" {
		return "", errors.New("adapter_config.json does not name the base model; give it: contraflow merge --model DIR --adapter DIR --out DIR")
	}
	if IsAdapter(a.Base) {
		return "", errBase(a.Base)
	}
	dir, err := Resolve(ctx, id, o)
	if err != nil {
		nor := ""
		if len(a.tried) > 0 {
			nor = ", nor is it at " + strings.Join(a.tried, " or ")
		}
		return "", fmt.Errorf("the adapter's base model: %w%s; base_model_name_or_path in %s names it: put it there, edit that, or give the model: "+
			"contraflow merge --model MODEL --adapter DIR --out DIR", err, nor, adapterConfigFile)
	}
	return dir, nil
}

func errRouted(dir string) error {
	return fmt.Errorf("%s: a LoRA adapter behind a Router is not supported: merge it", dir)
}

func errBase(dir string) error {
	return fmt.Errorf("the adapter's base model %s is an adapter itself: merge that into its model first", dir)
}

// AdapterSpec is what Save writes in place of a model's weights: Spec.Tensors are then the factors, under the names MODULE.lora_A.weight
// and MODULE.lora_B.weight, and what else has trained, under the base's names.
type AdapterSpec struct {
	Base    string // a hub id, id@revision or folder
	Rank    int
	Alpha   float64
	Dropout float64
	RSLoRA  bool
	Targets []string // modules by name, as PEFT finds them: it has no word for all linear layers
	Save    []string
}

// files are those of an adapter, but for its weights, in a folder.
func (a AdapterSpec) files(dir string) map[string][]byte {
	base, revision := a.Base, any(nil)
	out := map[string][]byte{}
	if isDir(base) {
		if abs, err := filepath.Abs(base); err == nil { // wherever it is loaded from
			base = abs
		}
		if way, err := wayTo(base, dir); err == nil {
			o := newObject()
			o.set("path", way)
			out[adapterBaseFile] = o.bytes()
		}
		if id, commit, ok := cached(base); ok {
			base, revision = id, commit
		}
	} else if id, rev, ok := strings.Cut(base, "@"); ok {
		base, revision = id, rev
	}
	o := newObject()
	for _, e := range []struct {
		key   string
		value any
	}{
		{"base_model_name_or_path", base}, {"bias", "none"}, {"fan_in_fan_out", false}, {"inference_mode", true}, {"init_lora_weights", true},
		{"lora_alpha", a.Alpha}, {"lora_dropout", a.Dropout}, {"modules_to_save", a.Save}, {"peft_type", "LORA"}, {"r", a.Rank},
		{"revision", revision}, {"target_modules", a.Targets}, {"task_type", "FEATURE_EXTRACTION"}, {"use_dora", false}, {"use_rslora", a.RSLoRA},
	} {
		o.set(e.key, e.value)
	}
	out[adapterConfigFile] = o.bytes()
	return out
}

// wayTo is a folder's path from another one, with slashes.
func wayTo(folder, from string) (string, error) {
	from, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	way, err := filepath.Rel(from, folder)
	return filepath.ToSlash(way), err
}

// cached is what the hub calls a folder of its cache.
func cached(folder string) (id, commit string, ok bool) {
	m := snapshot.FindStringSubmatch(filepath.ToSlash(folder))
	if m == nil {
		return "", "", false
	}
	id = strings.ReplaceAll(m[1], "--", "/")
	_, _, err := parseID(id)
	return id, m[2], err == nil
}

var snapshot = regexp.MustCompile(`/models--([^/]+)/snapshots/([0-9a-f]{40})$`)

// named gives tensors the names that they have in an adapter's file.
func (a AdapterSpec) named(tensors []safetensors.Tensor) []safetensors.Tensor {
	out := slices.Clone(tensors)
	for i := range out {
		out[i].Name = AdapterPrefix + out[i].Name
	}
	return out
}
