package reranker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// layerWiseFolder is one of the goldens of training with a tokenizer and a short template.
func layerWiseFolder(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	copyFiles(t, dir, goldens.Path(t, "rerank/"+name), "config.json", "model.safetensors")
	writeTokenizer(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "reranker.json"), []byte(`{"template":[{"text":"{query}:"},{"text":"{document}","cut":true}]}`), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// In training a model gives the scores of all layers, the last one's first; what Save writes scores the same by each of them, as it was loaded and
// when its parameters have changed, LoRA's factors among them, and has the tensors and the configuration of the folder that it came from.
func TestTrainableLayerWise(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"minicpm-train", "minicpm-shared"} {
		for tuned, o := range map[string]transformer.Options{
			"whole": {},
			"LoRA":  {Tuning: transformer.Tuning{LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, Targets: []string{transformer.AllLinear}, Save: []string{"linear_head"}, Seed: 1}}},
		} {
			folder, out := layerWiseFolder(t, name), filepath.Join(t.TempDir(), "out")
			m, err := LoadTrainable(folder, d, TextOptions{}, o)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			s, err := d.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			queries, documents := []string{"a", "b"}, []string{"b c", "a c c"}
			check := func(when string) (all []float32) {
				t.Helper()
				ids, kinds, _, err := m.Pairs.EncodeAll(t.Context(), queries, documents)
				if err != nil {
					t.Fatal(err)
				}
				e, rows := &embedder.Engine{Model: m.Model, Stream: s}, make([][]float32, 2)
				if err := e.EmbedTyped(t.Context(), ids, kinds, func(i int, v []float32) { rows[i] = slices.Clone(v) }); err != nil {
					t.Fatal(err)
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				if err := m.Save(out, "", ""); err != nil {
					t.Fatal(err)
				}
				for layer := 2; layer <= 4; layer++ {
					r, err := Load(out, OnDevice(d), CutoffLayer(layer))
					if err != nil {
						t.Fatal(err)
					}
					got, _, err := r.ScorePairs(t.Context(), queries, documents)
					if err = errors.Join(err, r.Close()); err != nil {
						t.Fatal(err)
					}
					for i, v := range got {
						if w := rows[i][4-layer]; !(math.Abs(float64(v-w)) <= 1e-5*(1+math.Abs(float64(w)))) {
							t.Errorf("%s, %s, %s: layer %d: score %d is %v, in training %v", name, tuned, when, layer, i, v, w)
						}
					}
					all = append(all, got...)
				}
				return all
			}
			before := check("as loaded")
			for _, p := range m.Model.Layout.Training() {
				if o.Tuning.LoRA == nil && p.Layer >= 0 && !strings.HasSuffix(p.Name, "mlp.up_proj.weight") || strings.HasPrefix(p.Name, "embed_tokens") {
					continue
				}
				vs := make([]float32, p.Len())
				for i := range vs {
					vs[i] = float32((i+len(p.Name)+10*strings.Count(p.Name, "1"))%11-5) / 10
				}
				m.Model.Change(s, func() { s.CopyIn(m.Model.Layout.View(m.Model.Params, p), gpustage.Bytes(vs)) })
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			for i, v := range check("changed") {
				if v == before[i] {
					t.Errorf("%s, %s: score %d has not changed", name, tuned, i)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if a, b := shapesOf(t, folder), shapesOf(t, out); a != b {
				t.Errorf("%s, %s: tensors %s, want %s", name, tuned, b, a)
			}
			if a, b := configOf(t, folder), configOf(t, out); fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("%s, %s: config.json %v, want %v", name, tuned, b, a)
			}
			card, err := os.ReadFile(filepath.Join(out, "README.md"))
			for _, has := range []string{"library_name: transformers\n", "- layer-wise\n", "LayerWiseFlagLLMReranker(\"out\"", "cutoff_layers=[4]"} {
				if err != nil || !bytes.Contains(card, []byte(has)) {
					t.Errorf("%v: the card has no %q: %s", err, has, card)
				}
			}
			for _, lacks := range []string{"CrossEncoder", "sentence-transformers", "cross-encoder"} {
				if bytes.Contains(card, []byte(lacks)) {
					t.Errorf("the card has %q: %s", lacks, card)
				}
			}
		}
	}
}

func shapesOf(t *testing.T, dir string) string {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []string
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(name, x.Shape))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func configOf(t *testing.T, dir string) (c map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// The code that auto_map names goes along; where some of it is not in the folder auto_map goes, and other repositories' stays.
func TestLayerWiseCode(t *testing.T) {
	for _, c := range []struct {
		files, autoMap, want string
	}{
		{"configuration_x.py modeling_x.py", `{"AutoConfig": "configuration_x.Config", "AutoModel": "modeling_x.Model"}`, "configuration_x.py modeling_x.py auto_map"},
		{"configuration_x.py", `{"AutoConfig": "configuration_x.Config", "AutoModel": "modeling_x.Model"}`, ""},
		{"", `{"AutoConfig": "someone/some--configuration_x.Config"}`, "auto_map"},
		{"configuration_x.py", `{"AutoConfig": "../out/configuration_x.Config"}`, ""}, {"configuration_x.py ../beside.py", `{"AutoConfig": "../beside.Config"}`, ""},
		{"configuration_x.py", `{"AutoConfig": "configuration_x.Config", "AutoTokenizer": ["configuration_x.T", null]}`, "configuration_x.py auto_map"},
	} {
		folder, out := layerWiseFolder(t, "minicpm-train"), filepath.Join(t.TempDir(), "out")
		raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		raw = bytes.Replace(raw, []byte("{"), []byte(`{"torch_dtype": "bfloat16", "auto_map": `+c.autoMap+","), 1)
		if err := os.WriteFile(filepath.Join(folder, "config.json"), raw, 0o666); err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(c.files) {
			if err := os.WriteFile(filepath.Join(folder, name), []byte("# "+name), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		d, err := cpu.New()
		if err != nil {
			t.Fatal(err)
		}
		m, err := LoadTrainable(folder, d, TextOptions{}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Save(out, "", ""), m.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
		var got []string
		files, err := filepath.Glob(filepath.Join(out, "*.py"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(file); err != nil || string(text) != "# "+filepath.Base(file) {
				t.Errorf("%s: %s, %v", file, text, err)
			}
			got = append(got, filepath.Base(file))
		}
		if dtype := configOf(t, out)["torch_dtype"]; dtype != "float32" {
			t.Errorf("torch_dtype is %v, and tensors are f32", dtype)
		}
		if configOf(t, out)["auto_map"] != nil {
			got = append(got, "auto_map")
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("of %q and auto_map %s it has %q, want %q", c.files, c.autoMap, s, c.want)
		}
	}
}

// A template's tokens are not a layer-wise reranker's, which has heads; for the same reason it gets no new one.
func TestLayerWiseHeads(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := layerWiseFolder(t, "minicpm-train")
	config, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte(`"max_position_embeddings": 20`), []byte(`"max_position_embeddings": 512`), 1) // templates are long
	if err := os.WriteFile(filepath.Join(folder, "config.json"), config, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, template := range []string{"bge", "qwen3"} {
		m, err := LoadTrainable(folder, d, TextOptions{Template: template}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if r := m.spec.Folder; r.True != "" || r.False != "" || r.TrueID != nil || r.FalseID != nil || r.Template == nil {
			t.Errorf("%s: the folder would have %+v", template, r)
		}
	}
	if _, err := LoadTrainable(folder, d, TextOptions{NewHead: true}, transformer.Options{}); err == nil || !strings.Contains(err.Error(), "is a layer-wise reranker, which has heads of its own") {
		t.Error(err)
	}
}

// An adapter of a layer-wise reranker scores by each layer as the model does that it is merged into, in f64 and outside of this program's merging; what it
// has of layers above and of other layers' heads changes nothing. Of a layer that the model does not have it is an error.
func TestLayerWiseAdapter(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder, merged, adapter := layerWiseFolder(t, "minicpm-train"), layerWiseFolder(t, "minicpm-train"), t.TempDir()
	f, err := safetensors.Open(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var tensors, factors []safetensors.Tensor
	const rank, scale = 2, 2.0
	draw := func(rows, cols, seed int) []float32 {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(math.Sin(float64(seed*131+i*7))) / 4
		}
		return x
	}
	tensor := func(name string, shape []int, v []float32) safetensors.Tensor {
		t.Helper()
		x, err := safetensors.FromFloat32s(name, shape, v)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	layers, last := 0, ""
	for i, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		w := make([]float32, x.Len())
		if err := x.Float32s(w); err != nil {
			t.Fatal(err)
		}
		module, linear := strings.CutSuffix(name, ".weight")
		switch {
		case strings.HasPrefix(name, "lm_head."): // as a whole
			for k, v := range draw(1, len(w), i) {
				w[k] += v
			}
			factors = append(factors, tensor("base_model.model."+name, x.Shape, w))
		case linear && strings.HasSuffix(module, "_proj"):
			rows, cols := x.Shape[0], x.Shape[1]
			a, b := draw(rank, cols, i), draw(rows, rank, 100+i)
			for r := range rows {
				for c := range cols {
					sum := 0.0
					for k := range rank {
						sum += float64(b[r*rank+k]) * float64(a[k*cols+c])
					}
					w[r*cols+c] = float32(float64(w[r*cols+c]) + scale*sum)
				}
			}
			factors = append(factors, tensor("base_model.model."+module+".lora_A.weight", []int{rank, cols}, a), tensor("base_model.model."+module+".lora_B.weight", []int{rows, rank}, b))
			layers, last = layers+1, module
		}
		tensors = append(tensors, tensor(name, x.Shape, w))
	}
	if layers < 4 || len(factors) == 2*layers {
		t.Fatalf("%d layers of %d tensors", layers, len(factors))
	}
	write := func(path string, all []safetensors.Tensor) {
		t.Helper()
		if err := safetensors.Write(path, all, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(merged, "model.safetensors"), tensors)
	write(filepath.Join(adapter, "adapter_model.safetensors"), factors)
	config := fmt.Sprintf(`{"peft_type": "LORA", "base_model_name_or_path": %q, "r": %d, "lora_alpha": %g, "target_modules": ["q_proj"]}`, folder, rank, scale*rank)
	if err := os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	scores := func(dir string, layer int) ([]float32, error) {
		r, err := Load(dir, OnDevice(d), CutoffLayer(layer))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return r.Score(t.Context(), "a b", []string{"c", "b c a"})
	}
	n := int(configOf(t, folder)["num_hidden_layers"].(float64))
	first := int(configOf(t, folder)["start_layer"].(float64))
	var before []float32
	for layer := first; layer <= n; layer++ {
		want, err := scores(merged, layer)
		if err != nil {
			t.Fatal(err)
		}
		got, err := scores(adapter, layer)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !(math.Abs(float64(got[i]-want[i])) <= 64*0x1p-24*max(1, math.Abs(float64(want[i])))) {
				t.Errorf("layer %d: %v, merged %v", layer, got, want)
			}
		}
		if slices.Equal(got, before) {
			t.Errorf("layer %d scores as the one before: %v", layer, got)
		}
		before = got
	}
	for i := range factors {
		factors[i].Name = strings.Replace(factors[i].Name, last, strings.Replace(last, fmt.Sprintf("layers.%d.", n-1), fmt.Sprintf("layers.%d.", n), 1), 1)
	}
	write(filepath.Join(adapter, "adapter_model.safetensors"), factors)
	if _, err := scores(adapter, first); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("layers.%d.", n)) || !strings.Contains(err.Error(), "which the base model does not have") {
		t.Errorf("of a layer beyond the last: %v", err)
	}
}
