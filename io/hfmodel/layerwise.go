package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LayerWise tells that the model is one of FlagEmbedding's layer-wise rerankers, of which any layer but the lowest gives a score.
func (f *Folder) LayerWise() bool { return strings.HasPrefix(f.Architecture(), "LayerWise") }

// layerWise tells that it is a layer-wise reranker's folder that is written: what CrossEncoder reads has no place for its heads.
func (s RerankerSpec) layerWise() bool { return (&Folder{Config: s.Config}).LayerWise() }

// layerWiseFiles are a layer-wise reranker's but for tokenizer and weights: config.json as it was, and the code that its auto_map names, for those
// who load it by that. FlagEmbedding has the code itself.
func (s RerankerSpec) layerWiseFiles(dir string) (map[string][]byte, error) {
	config, err := parseObject(s.Config)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	files, err := s.autoMapped(config)
	if err != nil {
		return nil, err
	}
	files["config.json"] = Spec{Config: config.bytes(), Tensors: s.Tensors}.configBytes(config)
	if err := s.rerankerFiles(dir, files); err != nil {
		return nil, err
	}
	return files, nil
}

// autoMapped are the files of code in the base's folder that auto_map names. Where one is not there auto_map would lead nowhere, and goes.
func (s RerankerSpec) autoMapped(config *object) (map[string][]byte, error) {
	files := map[string][]byte{}
	var classes map[string]string
	if ok, err := config.get("auto_map", &classes); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	} else if !ok {
		return files, nil
	}
	for _, key := range sortedKeys(classes) {
		module, _, _ := strings.Cut(classes[key], ".")
		if strings.Contains(module, "--") { // another repository's
			continue
		}
		if module != filepath.Base(module) || s.Base == nil {
			config.remove("auto_map")
			return map[string][]byte{}, nil
		}
		data, err := os.ReadFile(filepath.Join(s.Base.Dir, module+".py"))
		if errors.Is(err, fs.ErrNotExist) {
			config.remove("auto_map")
			return map[string][]byte{}, nil
		}
		if err != nil {
			return nil, err
		}
		files[module+".py"] = data
	}
	return files, nil
}

// rerankerFiles adds reranker.json, where there is something to say in it, and the card.
func (s RerankerSpec) rerankerFiles(dir string, files map[string][]byte) error {
	data, err := json.MarshalIndent(s.Reranker, "", "  ")
	if err != nil {
		return err
	}
	if string(data) != "{}" {
		files[rerankerFile] = append(data, '\n')
	}
	files["README.md"] = s.card(folderName(dir))
	return nil
}
