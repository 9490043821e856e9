package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
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

// codeModules are the modules of the repository itself that config.json's auto_map names, by their files' names without ".py": each class is
// "module.Class", or several of them in a list; "owner/name--module.Class" is of another repository. ok is false where one is no such name.
func codeModules(config *object) (modules []string, ok bool, err error) {
	var classes map[string]any
	if has, err := config.get("auto_map", &classes); err != nil {
		return nil, false, fmt.Errorf("config.json: %w", err)
	} else if !has {
		return nil, true, nil
	}
	for _, key := range sortedKeys(classes) {
		all, list := classes[key].([]any)
		if !list {
			all = []any{classes[key]}
		}
		for _, c := range all {
			class, _ := c.(string) // null: there is none
			module, _, _ := strings.Cut(class, ".")
			switch {
			case class == "" || strings.Contains(class, "--"):
			case checkPath(module) != nil || strings.Contains(module, "/"):
				return nil, false, nil
			default:
				modules = append(modules, module)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), true, nil
}

// layerWiseCode are the listed files of code that belong to the layer-wise reranker in a folder, which what is trained of it takes along; none of any
// other model.
func layerWiseCode(dir string, listed []string) (files []string, err error) {
	raw, err := plainfile.Read(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if !(RerankerSpec{Config: raw}).layerWise() {
		return nil, nil
	}
	config, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	modules, _, err := codeModules(config)
	for _, m := range modules {
		if slices.Contains(listed, m+".py") {
			files = append(files, m+".py")
		}
	}
	return files, err
}

// autoMapped are the files of code in the base's folder that auto_map names. Where one is not there auto_map would lead nowhere, and goes.
func (s RerankerSpec) autoMapped(config *object) (map[string][]byte, error) {
	modules, ok, err := codeModules(config)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, module := range modules {
		if s.Base == nil {
			ok = false
			break
		}
		data, err := plainfile.Read(filepath.Join(s.Base.Dir, module+".py"))
		if errors.Is(err, fs.ErrNotExist) {
			ok = false
			break
		}
		if err != nil {
			return nil, err
		}
		files[module+".py"] = data
	}
	if !ok {
		config.remove("auto_map")
		return map[string][]byte{}, nil
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
