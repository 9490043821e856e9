package hfmodel

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"contraflow/io/safetensors"
)

// Splade is how a SparseEncoder of sentence-transformers makes sparse embeddings of the logits of a masked-language model: its module SpladePooling,
// behind a Transformer whose task is fill-mask (or a MLMTransformer, as it was called before 5.4). Of each text it takes the largest logits.
type Splade struct {
	Twice bool // activation_function log1p_relu: log(1 + log(1 + max(x, 0))); otherwise relu: log(1 + max(x, 0))
}

const (
	spladeFolder = "1_SpladePooling"
	fillMask     = "fill-mask"
)

// readSplade reads the SpladePooling module's config.json, if there is such a module.
func (f *Folder) readSplade() error {
	at := slices.IndexFunc(f.Modules, func(m Module) bool { return m.Kind() == "SpladePooling" })
	if at < 0 {
		if len(f.Modules) > 0 && f.Modules[0].Kind() == "MLMTransformer" {
			return fmt.Errorf("%s: a MLMTransformer without SpladePooling behind it is not supported", filepath.Join(f.Dir, "modules.json"))
		}
		return nil
	}
	file := filepath.Join(f.Dir, filepath.FromSlash(f.Modules[at].Path), "config.json")
	o, err := readObject(file)
	if err != nil {
		return err
	}
	strategy, activation, size := "max", "relu", 0
	err = o.getAll(map[string]any{"pooling_strategy": &strategy, "activation_function": &activation})
	for _, key := range []string{"embedding_dimension", "word_embedding_dimension"} {
		if err == nil && size == 0 {
			_, err = o.get(key, &size)
		}
	}
	switch vocab := f.configInt("vocab_size"); {
	case err != nil:
	case strategy != "max":
		err = fmt.Errorf("pooling_strategy %q is not supported; max is", strategy)
	case activation != "relu" && activation != "log1p_relu":
		err = fmt.Errorf("activation_function %q is not supported; relu and log1p_relu are", activation)
	case size > 0 && vocab > 0 && size != vocab:
		err = fmt.Errorf("embedding_dimension %d, but config.json has vocab_size %d", size, vocab)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	f.Splade, f.poolingJSON = &Splade{Twice: activation == "log1p_relu"}, o
	return nil
}

// CheckSparse finds a model that Save can't write as a sparse encoder: there is no class for masked language modelling with its model_type.
func (f *Folder) CheckSparse() error {
	config, err := parseObject(f.Config)
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	_, err = maskedClass(config)
	return err
}

func maskedClass(config *object) (string, error) {
	modelType, class, err := classOf(config)
	if err != nil {
		return "", err
	}
	if modelType == "nomic_bert" { // of which there are no rerankers
		class = "NomicBert"
	}
	if _, decoder := causalClasses[modelType]; class == "" || decoder {
		return "", fmt.Errorf("sparse embeddings of model_type %q are not supported", modelType)
	}
	return class, nil
}

// spladeFiles are those of a SparseEncoder that an embedder's folder does not have, in the forms before 5.4, which every version reads.
func (s Spec) spladeFiles(config, pooling *object, files map[string][]byte) ([]module, error) {
	class, err := maskedClass(config)
	if err != nil {
		return nil, err
	}
	if s.Adapter != nil {
		return nil, errors.New("a LoRA adapter of a sparse encoder is not supported: merge it")
	}
	vocab := 0
	if _, err := config.get("vocab_size", &vocab); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	setClass(config, class, "ForMaskedLM", "AutoModelForMaskedLM")
	files["config.json"] = Spec{Config: config.bytes(), Tensors: s.Tensors}.configBytes(config)
	o := pooling.clone()
	o.set("pooling_strategy", "max")
	o.set("activation_function", map[bool]string{false: "relu", true: "log1p_relu"}[s.Splade.Twice])
	if vocab > 0 {
		o.remove("embedding_dimension")
		o.set("word_embedding_dimension", vocab)
	}
	files[spladeFolder+"/config.json"] = o.bytes()
	return []module{
		{0, "0", "", "sentence_transformers.sparse_encoder.models.MLMTransformer"},
		{1, "1", spladeFolder, "sentence_transformers.sparse_encoder.models.SpladePooling"},
	}, nil
}

// Renamed are tensors under other names.
func Renamed(tensors []safetensors.Tensor, name func(string) string) []safetensors.Tensor {
	out := slices.Clone(tensors)
	for i := range out {
		out[i].Name = name(out[i].Name)
	}
	return out
}
