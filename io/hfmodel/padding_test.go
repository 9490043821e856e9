package hfmodel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// A chat template is a file of its own, or in the tokenizer's configuration.
func TestChatTemplateThere(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       bool
	}{{"tokenizer_config.json", `{}`, false}, {"tokenizer_config.json", `{"chat_template": null}`, false}, {"tokenizer_config.json", `{"chat_template": "{{ x }}"}`, true}, {"chat_template.jinja", "{{ x }}", true}, {"x", "", false}} {
		dir := t.TempDir()
		put(t, dir, c.file, c.text)
		if got, err := (&Folder{TokenizerDir: dir}).ChatTemplate(); err != nil || got != c.want {
			t.Errorf("%s %s: %v, %v", c.file, c.text, got, err)
		}
	}
}

// Tokenizers pad on the side on which transformers' do, whether or not a file says so. The goldens are padding.py's.
func TestPadsLeft(t *testing.T) {
	var cases []struct {
		Model, Class, Side, Direction string
		Config                        string `json:"config_class"`
		Byte, Left                    bool
	}
	readJSON(t, golden+"padding.json", &cases)
	if len(cases) < 200 {
		t.Fatalf("%d folders", len(cases))
	}
	dir := t.TempDir()
	for _, x := range cases {
		f := &Folder{Dir: dir, TransformerDir: dir, TokenizerDir: dir, ModelType: x.Model}
		config, tokenizer, model := map[string]any{}, map[string]any{"padding": nil, "pre_tokenizer": map[string]string{"type": "Metaspace"}}, map[string]string{}
		for key, value := range map[string]string{"tokenizer_class": x.Class, "padding_side": x.Side} {
			if value != "" {
				config[key] = value
			}
		}
		if x.Direction != "" {
			tokenizer["padding"] = map[string]string{"direction": map[string]string{"left": "Left", "right": "Right"}[x.Direction]}
		}
		if x.Byte {
			tokenizer["pre_tokenizer"] = map[string]string{"type": "ByteLevel"}
		}
		if x.Config != "" {
			model["tokenizer_class"] = x.Config
		}
		for name, v := range map[string]any{"tokenizer_config.json": config, "tokenizer.json": tokenizer, "config.json": model} {
			data, err := json.Marshal(v)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "config.json" {
				f.Config = data
			}
		}
		if left, err := f.PadsLeft(); err != nil || left != x.Left {
			t.Errorf("%+v: left is %v, %v", x, left, err)
		}
	}
}
