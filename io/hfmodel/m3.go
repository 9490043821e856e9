package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
)

// M3 is the heads of tokens that BGE-M3's folders have in colbert_linear.pt and sparse_linear.pt, or, where these are not there, in
// safetensors of the same names, which Save writes beside them. For Folder.Tensor and in Spec.Tensors they are colbert_linear.weight and so on.
type M3 struct {
	Dim     int // features of a token's vector
	tensors map[string]safetensors.Tensor
}

var m3Files = []string{"colbert_linear", "sparse_linear"}

func (f *Folder) readM3() error {
	m := &M3{tensors: map[string]safetensors.Tensor{}}
	var missing []string
	for _, name := range m3Files {
		tensors, file, err := readHead(filepath.Join(f.TransformerDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name+".pt")
			continue
		}
		if err != nil {
			return err
		}
		for _, t := range tensors {
			t.Name = name + "." + t.Name
			m.tensors[t.Name] = t
		}
		w, b := m.tensors[name+".weight"], m.tensors[name+".bias"]
		if len(tensors) != 2 || len(w.Shape) != 2 || len(b.Shape) != 1 || w.Shape[0] != b.Shape[0] || w.Shape[0] < 1 {
			return fmt.Errorf("%s: has the tensors %v, want those of a linear layer: weight and bias", file, tensors)
		}
	}
	switch len(missing) {
	case len(m3Files):
		return nil
	case 0:
	default:
		return fmt.Errorf("%s has one of M3's heads, but not %s", f.TransformerDir, missing[0])
	}
	if n := m.tensors["sparse_linear.weight"].Shape[0]; n != 1 {
		return fmt.Errorf("%s: sparse_linear gives %d numbers a token, want one", f.TransformerDir, n)
	}
	m.Dim = m.tensors["colbert_linear.weight"].Shape[0]
	f.M3 = m
	if f.Modules == nil { // as FlagEmbedding saves it
		f.Pooling, f.Normalize = &Pooling{Mode: CLS, IncludePrompt: true}, true
	}
	return nil
}

// readHead reads base.pt, or else base.safetensors, into memory of its own.
func readHead(base string) (tensors []safetensors.Tensor, file string, err error) {
	file = base + ".pt"
	if tensors, err = torchfile.Read(file); !errors.Is(err, fs.ErrNotExist) {
		return tensors, file, err
	}
	file = base + ".safetensors"
	f, err := safetensors.Open(file)
	if err != nil {
		return nil, file, err
	}
	defer f.Close()
	for _, name := range f.Names() {
		t, err := f.Tensor(name)
		if err != nil {
			return nil, file, err
		}
		tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: append([]byte(nil), t.Data...)})
	}
	return tensors, file, nil
}

// splitM3 takes the heads' tensors from the model's into files of their own, in both forms.
func (s Spec) splitM3(files map[string][]byte, weights map[string][]safetensors.Tensor) error {
	var rest []safetensors.Tensor
	for _, t := range weights[weightsFile] {
		file, name, _ := strings.Cut(t.Name, ".")
		if file != m3Files[0] && file != m3Files[1] {
			rest = append(rest, t)
			continue
		}
		t.Name = name
		weights[file+".safetensors"] = append(weights[file+".safetensors"], t)
	}
	weights[weightsFile] = rest
	for _, name := range m3Files {
		tensors := weights[name+".safetensors"]
		if len(tensors) != 2 {
			return fmt.Errorf("M3 has %d tensors of %s, want weight and bias", len(tensors), name)
		}
		var err error
		if files[name+".pt"], err = torchfile.Encode(name, tensors); err != nil {
			return err
		}
	}
	return nil
}

// SpecialTokens are the tokens that the tokenizer's files name as cls, eos, pad and unk: those that have no lexical weight.
func (f *Folder) SpecialTokens() (tokens []string, err error) {
	tokens, err = f.tokensOf("cls_token", "eos_token", "pad_token", "unk_token")
	if err == nil && len(tokens) == 0 {
		err = fmt.Errorf("%s: neither special_tokens_map.json nor tokenizer_config.json names a cls_token, eos_token, pad_token or unk_token: lexical weights leave these out", f.TokenizerDir)
	}
	return tokens, err
}

// FillTokens are the tokens that fill queries up where nothing names one, the first one that there is: the tokenizer's mask, or else its end of text.
func (f *Folder) FillTokens() (tokens []string, err error) {
	for _, role := range []string{"mask_token", "eos_token"} {
		some, err := f.tokensOf(role)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, some...)
	}
	return append(tokens, "[MASK]"), nil // BERT's, which need not be named
}

// tokensOf are the tokens that the tokenizer's files name for some roles.
func (f *Folder) tokensOf(roles ...string) (tokens []string, err error) {
	for _, name := range []string{"special_tokens_map.json", "tokenizer_config.json"} {
		file := filepath.Join(f.TokenizerDir, name)
		data, err := plainfile.Read(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var all map[string]json.RawMessage
		if err := unmarshal(data, &all); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, role := range roles {
			var token string
			var added struct{ Content string }
			if raw := all[role]; raw == nil {
				continue
			} else if json.Unmarshal(raw, &token) != nil && json.Unmarshal(raw, &added) == nil {
				token = added.Content
			}
			if token != "" {
				tokens = append(tokens, token)
			}
		}
		if len(tokens) > 0 {
			return tokens, nil
		}
	}
	return nil, nil
}
