package hfmodel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/atomicfile"
	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
)

// Stored are all tensors of a folder's model, whether anything here computes with them or not, each under a name by which [Folder.Tensor] finds it: those of
// the transformer as their files name them, those of Dense modules and of M3's heads with their module's prefix, and of static embeddings the table. An
// adapter's folder has none of its own.
func (f *Folder) Stored() (tensors []safetensors.Tensor, err error) {
	if f.Adapter != nil {
		return nil, fmt.Errorf("%s is a LoRA adapter, which holds no model", f.Dir)
	}
	var names []string
	own := f.weights.names
	if f.table != nil {
		own = []string{staticTensor}
	}
	for _, name := range own {
		if !slices.ContainsFunc(f.Dense, func(d Dense) bool { return d.inline != nil && d.inline.Name == name }) {
			names = append(names, name)
		}
	}
	for _, d := range f.Dense {
		for _, name := range d.names() {
			names = append(names, d.Prefix()+name)
		}
	}
	if f.M3 != nil {
		names = append(names, sortedKeys(f.M3.tensors)...)
	}
	for _, name := range names {
		t, err := f.Tensor(name)
		if err != nil {
			return nil, err
		}
		t.Name = name
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// besides are files, of the folder or of its transformer, that Open does not read and those who load a model in Python do.
var besides = []string{"chat_template.jinja", "generation_config.json"}

// Rewrite writes a model folder with this one's files and other weights: configuration, modules and tokenizer are copied as they are, but for the dtype that
// config.json may name, which is made that of the tensors. Of tensors, whose names are among [Folder.Stored]'s, Data is not looked at: write gives
// each one's bytes when it is its turn, so that no more of them need be in memory than the tensor at hand. Those of the transformer come into one file, whatever
// files they were in. card is README.md. As with [Save] the folder appears as a whole or not at all, and one that holds no model is not replaced.
func (f *Folder) Rewrite(dir string, tensors []safetensors.Tensor, card []byte, write func(w io.Writer, t safetensors.Tensor) error) error {
	if err := Replaceable(dir); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	files, err := f.others()
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	transformer := ""
	if len(f.Modules) > 0 {
		transformer = f.Modules[0].Path
	}
	config := path.Join(transformer, "config.json")
	err = atomicfile.WriteDir(dir, func(tmp string) error {
		at := func(name string) string { return filepath.Join(tmp, filepath.FromSlash(name)) }
		for _, m := range f.Modules { // of some only the folder is wanted
			if err := os.MkdirAll(at(m.Path), 0o777); err != nil {
				return err
			}
		}
		for _, name := range files {
			data, err := plainfile.Read(filepath.Join(f.Dir, filepath.FromSlash(name)))
			if err != nil {
				return err
			}
			if name == config && !f.Static() {
				if data, err = typed(data, tensors); err != nil {
					return fmt.Errorf("%s: %w", filepath.Join(f.Dir, filepath.FromSlash(name)), err)
				}
			}
			if err := os.WriteFile(at(name), data, 0o666); err != nil {
				return err
			}
		}
		if err := os.WriteFile(at("README.md"), card, 0o666); err != nil {
			return err
		}
		return f.rewriteWeights(at, path.Join(transformer, weightsFile), tensors, write)
	})
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// typed is config.json with the dtype of tensors, where it names one.
func typed(data []byte, tensors []safetensors.Tensor) ([]byte, error) {
	config, err := parseObject(data)
	if err == nil && setDType(config, tensors) {
		data = config.bytes()
	}
	return data, err
}

// others are the folder's files that belong to its model, but for weights and card.
func (f *Folder) others() (files []string, err error) {
	has := func(name string) bool {
		info, err := os.Stat(filepath.Join(f.Dir, filepath.FromSlash(name)))
		return err == nil && !info.IsDir() // what is neither is an error when it is read
	}
	all, err := f.needed(has, false)
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		base := path.Base(name)
		head := strings.TrimSuffix(strings.TrimSuffix(base, ".pt"), ".safetensors")
		if !slices.Contains(weightFiles, base) && (head == base || !slices.Contains(m3Files, head)) {
			files = append(files, name)
		}
	}
	for _, name := range besides {
		for _, dir := range []string{f.Dir, f.TransformerDir} {
			short, err := filepath.Rel(f.Dir, filepath.Join(dir, name))
			if short = filepath.ToSlash(short); err == nil && has(short) && !slices.Contains(files, short) {
				files = append(files, short)
			}
		}
	}
	if f.Static() {
		return files, nil
	}
	config, err := parseObject(f.Config)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	modules, ok, err := codeModules(config)
	if err != nil || !ok {
		return files, err
	}
	for _, m := range modules { // not there: transformers says so of this folder too
		if short, err := filepath.Rel(f.Dir, filepath.Join(f.TransformerDir, m+".py")); err == nil && has(filepath.ToSlash(short)) {
			files = append(files, filepath.ToSlash(short))
		}
	}
	return files, nil
}

// rewriteWeights writes the files of weights.
func (f *Folder) rewriteWeights(at func(name string) string, transformer string, tensors []safetensors.Tensor, write func(w io.Writer, t safetensors.Tensor) error) error {
	asked := map[string]map[string]safetensors.Tensor{} // by file, and there by the name that it has in it: as they are asked for
	files := map[string][]safetensors.Tensor{}
	add := func(file, name string, t safetensors.Tensor) {
		if asked[file] == nil {
			asked[file] = map[string]safetensors.Tensor{}
		}
		asked[file][name] = t
		t.Name, t.Data = name, nil
		files[file] = append(files[file], t)
	}
	for _, t := range tensors {
		file, name := transformer, t.Name
		for _, d := range f.Dense {
			if rest, ok := strings.CutPrefix(t.Name, d.Prefix()); ok && d.inline != nil {
				name = d.inline.Name
			} else if ok {
				file, name = path.Join(d.Path, weightsFile), rest
			}
		}
		if f.M3 != nil {
			if head, rest, _ := strings.Cut(t.Name, "."); slices.Contains(m3Files, head) {
				file, name = path.Join(path.Dir(transformer), head+".safetensors"), rest
			}
		}
		if f.table != nil && t.Name == staticTensor {
			name = f.table.Name
		}
		add(file, name, t)
	}
	for _, file := range sortedKeys(files) {
		list := files[file]
		give := func(w io.Writer, t safetensors.Tensor) error { return write(w, asked[file][t.Name]) }
		if head := strings.TrimSuffix(path.Base(file), ".safetensors"); f.M3 != nil && slices.Contains(m3Files, head) {
			// Small, and written twice: FlagEmbedding reads the one and sentence-transformers the other.
			for i := range list {
				var b bytes.Buffer
				if err := give(&b, list[i]); err != nil {
					return err
				}
				list[i].Data = b.Bytes()
			}
			data, err := torchfile.Encode(head, list)
			if err == nil {
				err = os.WriteFile(at(strings.TrimSuffix(file, ".safetensors")+".pt"), data, 0o666)
			}
			if err != nil {
				return err
			}
			give = func(w io.Writer, t safetensors.Tensor) error { _, err := w.Write(t.Data); return err }
		}
		if err := safetensors.WriteEach(at(file), list, map[string]string{"format": "pt"}, give); err != nil {
			return err
		}
	}
	if len(files) == 0 {
		return errors.New("no tensors")
	}
	return nil
}

// MixedPart is a model that a mixed one is of.
type MixedPart struct {
	Name   string // a hub id or a path
	Weight float64
}

// MixedCard is the README.md of a model that is a mean of others, for the hub's front matter and for people. how is a sentence on the mean.
func (f *Folder) MixedCard(dir, how string, parts []MixedPart) []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	library := "sentence-transformers"
	if f.LayerWise() {
		library = "transformers"
	}
	line("---\nlibrary_name: %s\ntags:\n- merge\n- contraflow", library)
	var bases []string
	for _, p := range parts {
		if id, ok := hubID(p.Name); ok && !slices.Contains(bases, id) {
			bases = append(bases, id)
		}
	}
	if len(bases) > 0 {
		line("base_model:")
		for _, id := range bases {
			line("- %s", yamlString(id))
		}
		line("base_model_relation: merge")
	}
	line("---\n\n# %s\n", oneLine(folderName(dir)))
	line("%s\n", how)
	line("| model | weight |\n|---|---|")
	for _, p := range parts {
		line("| %s | %.6g |", Code(p.Name), p.Weight)
	}
	line("\nConfiguration, tokenizer and prompts are the first one's. It was made with contraflow mix.")
	return b.Bytes()
}
