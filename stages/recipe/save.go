package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
)

var poolingModes = map[gpustage.Pooling]hfmodel.PoolingMode{
	gpustage.MeanPooling: hfmodel.Mean, gpustage.CLSPooling: hfmodel.CLS, gpustage.LastPooling: hfmodel.Last,
}

// Save writes the model with its present parameters to a folder that sentence-transformers loads.
func (x *Run) Save(s gpustage.Stream, dir string) error {
	tensors, err := x.tensors(s)
	if err != nil {
		return err
	}
	text, err := x.Recipe.YAML()
	if err != nil {
		return err
	}
	prompts := map[string]string{}
	for k, v := range x.folder.Prompts {
		prompts[k] = v
	}
	if x.text.QueryPrompt != "" || x.text.DocumentPrompt != "" {
		prompts["query"], prompts["document"] = x.text.QueryPrompt, x.text.DocumentPrompt
	}
	similarity := "cosine"
	if x.Recipe.Loss.Similarity == "dot" {
		similarity = "dot"
	}
	src := x.Recipe.Data.Train[0]
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	return hfmodel.Save(dir, hfmodel.Spec{
		Config: x.folder.Config, Tensors: tensors,
		Pooling:   hfmodel.Pooling{Mode: poolingModes[x.model.Head.Pooling], IncludePrompt: true},
		Normalize: x.model.Head.Normalize, MaxSeqLength: max(x.text.QueryLength, x.text.DocumentLength),
		Prompts: prompts, DefaultPromptName: x.folder.DefaultPromptName, Similarity: similarity,
		Base: x.folder, Tokenizer: x.folder.CopyTokenizer,
		Card: hfmodel.Card{
			BaseModel: x.Recipe.Model.Path, Recipe: string(text),
			TrainingData: []hfmodel.Dataset{{Name: strings.Join(src.Path, ", "), Columns: append([]string{src.Query, src.Positive}, src.Negatives...), Rows: x.data.Rows()}},
		},
	})
}

// tensors are the model's parameters, and what the folder has beside them that this model does not train: BERT's pooler.
func (x *Run) tensors(s gpustage.Stream) ([]safetensors.Tensor, error) {
	m := x.model
	var out []safetensors.Tensor
	for _, p := range m.Layout.Params {
		vs, err := m.Read(s, m.Params, p)
		if err != nil {
			return nil, err
		}
		if err := transformer.CheckFinite(p, vs); err != nil {
			return nil, err
		}
		t, err := safetensors.FromFloat32s(p.Name, p.Shape(), vs)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	for _, n := range x.folder.Names() {
		name := n
		for _, prefix := range m.Config.Prefixes() {
			name = strings.TrimPrefix(name, prefix)
		}
		if _, ok := m.Layout.Find(name); ok || !strings.HasPrefix(name, "pooler.") {
			continue
		}
		t, err := x.folder.Tensor(n)
		if err != nil {
			return nil, err
		}
		vs := make([]float32, t.Len())
		if err := t.Float32s(vs); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", n, err)
		}
		if t, err = safetensors.FromFloat32s(name, t.Shape, vs); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}
