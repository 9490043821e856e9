package hfmodel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
)

// leftClasses are the classes of tokenizers that in transformers 5 pad on the left where no file says on which side: they don't save it.
var leftClasses = []string{"CodeLlamaTokenizer", "CohereTokenizer", "GemmaTokenizer", "LlamaTokenizer", "Siglip2Tokenizer", "XLNetTokenizer"}

// ownClasses are the model types whose tokenizers have a class of transformers' choice, which pads on the right, whatever the files name.
var ownClasses = []string{"ministral", "mistral", "modernbert", "qwen2"}

// ChatTemplate tells whether the tokenizer has a chat template, into which sentence-transformers puts the texts of a folder without modules.json.
func (f *Folder) ChatTemplate() (bool, error) {
	if there(filepath.Join(f.TokenizerDir, "chat_template.jinja")) {
		return true, nil
	}
	file := filepath.Join(f.TokenizerDir, tokenizerConfig)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var template any
	return o.get("chat_template", &template)
}

// PadsLeft tells whether transformers' AutoTokenizer has short texts filled up in front: by what the tokenizer's files say, or else by its class.
func (f *Folder) PadsLeft() (bool, error) {
	var config struct {
		Side  string `json:"padding_side"`
		Class string `json:"tokenizer_class"`
	}
	var tokenizer struct{ Padding struct{ Direction string } }
	var model struct {
		Class string `json:"tokenizer_class"`
	}
	read := func(name string, into any) (data []byte, err error) {
		path := filepath.Join(f.TokenizerDir, name)
		if data, err = plainfile.Read(path); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if err = unmarshal(data, into); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return data, nil
	}
	if _, err := read("tokenizer_config.json", &config); err != nil {
		return false, err
	}
	data, err := read("tokenizer.json", &tokenizer)
	if err != nil {
		return false, err
	}
	if side := cmp.Or(config.Side, tokenizer.Padding.Direction); side != "" {
		return strings.EqualFold(side, "left"), nil
	}
	if f.Config != nil {
		if err := unmarshal(f.Config, &model); err != nil {
			return false, fmt.Errorf("%s: %w", filepath.Join(f.TransformerDir, "config.json"), err)
		}
	}
	class := cmp.Or(config.Class, model.Class)
	if class == "" && strings.HasPrefix(f.ModelType, "gemma") {
		class = "GemmaTokenizer"
	}
	class = strings.TrimSuffix(class, "Fast")
	if class == "LlamaTokenizer" && bytes.Contains(data, []byte(`"ByteLevel"`)) { // which that class would not read: transformers takes another
		return false, nil
	}
	return slices.Contains(leftClasses, class) && !slices.Contains(ownClasses, f.ModelType), nil
}
