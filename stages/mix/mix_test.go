package mix_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "contraflow/gpustage/cpu"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/stages/embedder"
	"contraflow/stages/mix"
	"contraflow/stages/reranker"
	"contraflow/testdata/goldens"
)

// f32 and bf16 are the distances to the next number above 1.
const f32Eps, bf16Eps = 0x1p-23, 0x1p-7

func mixed(t *testing.T, o mix.Options, models ...mix.Model) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mixed")
	if err := mix.Write(context.Background(), dir, models, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

func stored(t *testing.T, dir string) map[string]safetensors.Tensor {
	t.Helper()
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	list, err := f.Stored()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]safetensors.Tensor{}
	for _, x := range list {
		out[x.Name] = x
	}
	return out
}

func floats(t *testing.T, x safetensors.Tensor) []float32 {
	t.Helper()
	vs := make([]float32, x.Len())
	if err := x.Float32s(vs); err != nil {
		t.Fatal(err)
	}
	return vs
}

// typed are numbers as a tensor like x has them.
func typed(t *testing.T, x safetensors.Tensor, vs []float32) safetensors.Tensor {
	t.Helper()
	out, err := safetensors.FromFloat32s(x.Name, x.Shape, vs)
	if err == nil {
		out, err = out.As(x.DType)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// variant copies a model's folder, file by file, with other numbers: change gives those of each tensor of floats.
func variant(t *testing.T, from string, change func(name string, vs []float32)) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	changed := func(list []safetensors.Tensor) {
		for i, x := range list {
			if x.DType == safetensors.F32 || x.DType == safetensors.BF16 {
				vs := floats(t, x)
				change(x.Name, vs)
				list[i] = typed(t, x, vs)
			} else {
				list[i].Data = bytes.Clone(x.Data)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case strings.HasSuffix(path, ".safetensors"):
			f, err := safetensors.Open(path)
			if err != nil {
				return err
			}
			var list []safetensors.Tensor
			for _, name := range f.Names() {
				x, err := f.Tensor(name)
				if err != nil {
					return err
				}
				list = append(list, x)
			}
			changed(list)
			return errors.Join(f.Close(), write(path, list))
		case strings.HasSuffix(path, ".pt"):
			list, err := torchfile.Read(path)
			if err != nil {
				return err
			}
			changed(list)
			data, err := torchfile.Encode(strings.TrimSuffix(filepath.Base(path), ".pt"), list)
			if err != nil {
				return err
			}
			return os.WriteFile(path, data, 0o666)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// write writes a file of weights, without the syncing that safetensors.Write does.
func write(file string, list []safetensors.Tensor) error {
	var b bytes.Buffer
	if err := safetensors.Encode(&b, list, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

// put writes files into a folder.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
}

func putTensor(t *testing.T, file, name string, shape ...int) {
	t.Helper()
	n := 1
	for _, d := range shape {
		n *= d
	}
	vs := make([]float32, n)
	for i := range vs {
		vs[i] = float32(i%7) - 3
	}
	x, err := safetensors.FromFloat32s(name, shape, vs)
	if err == nil {
		err = write(file, []safetensors.Tensor{x})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// folderOf is a copy of a golden folder, with a tokenizer if it has none, or one of the kinds that there is no golden folder of.
func folderOf(t *testing.T, name string) string {
	t.Helper()
	tiny, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	made := map[string]bool{"static": true, "dense": true, "colbert": true}
	from := tiny
	if !made[name] {
		from = goldens.Path(t, name)
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if made[name] {
		for _, module := range []string{"1_Pooling", "2_Normalize"} {
			os.RemoveAll(filepath.Join(dir, module))
		}
	}
	transformer := `{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}`
	linear := `"bias": false, "activation_function": "torch.nn.modules.linear.Identity"`
	switch name {
	case "static":
		os.Remove(filepath.Join(dir, "config.json"))
		os.Remove(filepath.Join(dir, "sentence_bert_config.json"))
		put(t, dir, map[string]string{"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}]`})
		putTensor(t, filepath.Join(dir, "model.safetensors"), "embedding.weight", 300, 1000) // of more elements than are in memory at once
	case "dense":
		put(t, dir, map[string]string{
			"modules.json": "[" + transformer + `, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
				{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}, {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}]`,
			"1_Pooling/config.json":   `{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}`,
			"2_Dense/config.json":     `{"in_features": 32, "out_features": 3, ` + linear + `}`,
			"3_Normalize/config.json": `{}`,
		})
		putTensor(t, filepath.Join(dir, "2_Dense", "model.safetensors"), "linear.weight", 3, 32)
	case "colbert":
		put(t, dir, map[string]string{
			"modules.json": "[" + transformer + `, {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"},
				{"idx": 2, "name": "2", "path": "2_MultiVectorMask", "type": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"}]`,
			"config_sentence_transformers.json": `{"model_type": "MultiVectorEncoder", "prompts": {"query": "ask: ", "document": ""}, "similarity_fn_name": "maxsim"}`,
			"1_Dense/config.json":               `{"in_features": 32, "out_features": 3, "module_input_name": "token_embeddings", ` + linear + `}`,
			"2_MultiVectorMask/config.json":     `{}`,
		})
		putTensor(t, filepath.Join(dir, "1_Dense", "model.safetensors"), "linear.weight", 3, 32)
	}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil && name != "hfmodel/st2" {
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
			data, err := os.ReadFile(filepath.Join(tiny, file))
			if err != nil {
				t.Fatal(err)
			}
			put(t, dir, map[string]string{file: string(data)})
		}
	}
	switch name {
	case "rerank/minicpm-layers": // whose template takes more tokens of this tokenizer
		edit(t, dir, "config.json", `"max_position_embeddings": 20`, `"max_position_embeddings": 200`)
		edit(t, dir, "tokenizer_config.json", `"model_max_length": 32`, `"model_max_length": 200`)
	case "rerank/xlm-roberta": // which has no types of tokens
		edit(t, dir, "tokenizer_config.json", "{", `{"model_input_names": ["input_ids", "attention_mask"],`)
	}
	return dir
}

// edit replaces a text in a file once.
func edit(t *testing.T, dir, name, from, to string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || !strings.Contains(string(data), from) {
		t.Fatalf("%s: %v: no %s in %s", name, err, from, data)
	}
	put(t, dir, map[string]string{name: strings.Replace(string(data), from, to, 1)})
}

// sameFiles: what is not weights is the first model's, whole and unchanged, but for the card.
func sameFiles(t *testing.T, first, got string) {
	t.Helper()
	weights := func(name string) bool {
		return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".pt") || strings.HasSuffix(name, ".index.json") || name == "README.md"
	}
	err := filepath.WalkDir(first, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(first, path)
		if err != nil || d.IsDir() || weights(rel) {
			return err
		}
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		is, err := os.ReadFile(filepath.Join(got, rel))
		if err == nil && !bytes.Equal(want, is) {
			err = fmt.Errorf("%s is not the first model's", rel)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// tiny are the golden's models a, b and c.
func tiny(t *testing.T, g *goldens.Golden) (a, b, c string) {
	t.Helper()
	a = goldens.Path(t, "hfmodel/st6")
	of := func(letter string) string {
		return variant(t, a, func(name string, vs []float32) { copy(vs, g.F32(t, letter+"/"+name)) })
	}
	return a, of("b"), of("c")
}

// The means are torch's in double precision, rounded: to f32, half a unit in the last place, and from there to bf16. What is a zero in exact arithmetic may be
// anything of the rounding of the truth itself.
func TestGolden(t *testing.T) {
	g := goldens.Load(t, "mix/models")
	var meta struct {
		Weights []float64
		T       float64
		Texts   []string
		Angles  map[string]float64
	}
	g.Meta(t, &meta)
	a, b, c := tiny(t, g)
	three := []mix.Model{{Path: a, Weight: meta.Weights[0]}, {Path: b, Weight: meta.Weights[1]}, {Path: c, Weight: meta.Weights[2]}}
	two := []mix.Model{{Path: a, Weight: 1 - meta.T}, {Path: b, Weight: meta.T}}
	for _, x := range []struct {
		truth  string
		o      mix.Options
		models []mix.Model
		dtype  safetensors.DType
		eps    float64
	}{
		{"linear", mix.Options{}, three, safetensors.F32, f32Eps / 2},
		{"linear", mix.Options{Precision: "bf16"}, three, safetensors.BF16, bf16Eps/2 + f32Eps},
		{"slerp", mix.Options{Method: mix.SLERP}, two, safetensors.F32, f32Eps / 2},
	} {
		dir := mixed(t, x.o, x.models...)
		got := stored(t, dir)
		if names := g.Names(x.truth + "/"); len(names) != len(got) || len(names) < 30 {
			t.Errorf("%s: %d tensors, want %d", x.truth, len(got), len(names))
		}
		for name, y := range got {
			truth, vs := g.F64(t, x.truth+"/"+name), floats(t, y)
			if y.DType != x.dtype {
				t.Fatalf("%s: %v, want %s", x.truth, y, x.dtype)
			}
			for i, v := range vs {
				// 1e-13: the rounding of double precision, angles near 0 and 180 degrees included
				if e := math.Abs(float64(v) - truth[i]); e > x.eps*math.Abs(truth[i])*(1+1e-6)+1e-13 {
					t.Fatalf("%s in %s: %s[%d] is %v, want %v: off by %v", x.truth, x.dtype, name, i, v, truth[i], e)
				}
			}
		}
		if config, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || strings.Contains(string(config), "bfloat16") != (x.dtype == safetensors.BF16) {
			t.Errorf("config.json of %s: %v\n%s", x.dtype, err, config)
		}
	}
	for name := range meta.Angles { // the truth's cases are there
		if !g.Has("slerp/" + name) {
			t.Errorf("no %s", name)
		}
	}
	// sentence-transformers' embeddings of the mean, in double precision; ours are in f32 through two layers.
	e, err := embedder.Load(mixed(t, mix.Options{}, three...))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	vecs, err := e.Embed(context.Background(), meta.Texts)
	if err != nil {
		t.Fatal(err)
	}
	truth := g.F64(t, "embeddings")
	for i, vec := range vecs {
		for k, v := range vec {
			if e := math.Abs(float64(v) - truth[i*len(vec)+k]); !(e <= 32*f32Eps) {
				t.Fatalf("embedding %d[%d] is %v, want %v", i, k, v, truth[i*len(vec)+k])
			}
		}
	}
}

// Of whatever kind a model is, with a weight of 1 its numbers come out bit for bit, -0 among them, of a model with itself too, and halves of a and 2 a are
// 1.5 a, which is exact. The other files are the first's, and what is written loads as what it was.
func TestKinds(t *testing.T) {
	for _, name := range []string{
		"bert/minilm-tiny", "hfmodel/st2", "hfmodel/sharded", "splade/encoder", "splade/bert", "m3/model", "families/t5", "families/qwen3", "families/deberta-v2",
		"rerank/cross", "rerank/qwen3-yes-no", "rerank/minicpm-layers", "rerank/xlm-roberta", "static", "dense", "colbert",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			minusZero := math.Float32frombits(1 << 31)
			a := variant(t, folderOf(t, name), func(_ string, vs []float32) { vs[0] = minusZero })
			b := variant(t, a, func(_ string, vs []float32) {
				for i := range vs {
					vs[i] *= 2
				}
			})
			ones := variant(t, a, func(_ string, vs []float32) {
				for i := range vs {
					vs[i] = 1 // 0 times it added to -0 would be 0
				}
			})
			type case_ struct {
				method mix.Method
				models []mix.Model
				factor float32
			}
			cases := []case_{{mix.Linear, []mix.Model{{Path: a, Weight: 0.5}, {Path: b, Weight: 0.5}}, 1.5}}
			if name == "bert/minilm-tiny" {
				cases = append(cases,
					case_{mix.SLERP, []mix.Model{{Path: a}, {Path: b, Weight: 1}}, 2},
					case_{"", []mix.Model{{Path: a, Weight: 1}, {Path: ones}}, 1},
					case_{"", []mix.Model{{Path: ones}, {Path: a, Weight: 1}}, 1},
					case_{mix.SLERP, []mix.Model{{Path: a, Weight: 0.7}, {Path: a, Weight: 0.3}}, 1},
					case_{"", []mix.Model{{Path: a, Weight: 0.7}, {Path: a, Weight: 0.3}}, 1},
					case_{"", []mix.Model{{Path: a, Weight: 2}, {Path: b, Weight: -1}}, 0},
					case_{"", []mix.Model{{Path: a, Weight: 0.333}, {Path: a, Weight: 0.333}, {Path: a, Weight: 0.333}}, 1},
				)
			}
			dir := ""
			for _, c := range cases {
				dir = mixed(t, mix.Options{Method: c.method, Note: func(m string) { t.Error(m) }}, c.models...)
				was, is := stored(t, a), stored(t, dir)
				if len(was) != len(is) {
					t.Errorf("%d tensors became %d", len(was), len(is))
				}
				for n, w := range was {
					if is[n].DType != w.DType {
						t.Fatalf("%v became %v", w, is[n])
					}
					if w.DType != safetensors.F32 && w.DType != safetensors.BF16 {
						if !bytes.Equal(w.Data, is[n].Data) {
							t.Errorf("%v is not the first's", w)
						}
						continue
					}
					from, to := floats(t, w), floats(t, is[n])
					for i := range from {
						if from[i] *= c.factor; c.factor == 0 {
							from[i] = 0 // 2 a - 2 a
						}
					}
					from = floats(t, typed(t, w, from)) // of bf16, 1.5 a is rounded
					for i, want := range from {
						if math.Float32bits(to[i]) != math.Float32bits(want) {
							t.Fatalf("%s of %v: %s[%d] is %v, want %v", c.method, c.models, n, i, to[i], want)
						}
					}
				}
				sameFiles(t, a, dir)
			}
			loads(t, dir)
			if name == "m3/model" { // its heads are there in both forms
				was := stored(t, dir)
				for _, head := range []string{"colbert_linear", "sparse_linear"} {
					if err := os.Remove(filepath.Join(dir, head+".pt")); err != nil {
						t.Error(err)
					}
					if is := stored(t, dir); !bytes.Equal(was[head+".weight"].Data, is[head+".weight"].Data) || !bytes.Equal(was[head+".bias"].Data, is[head+".bias"].Data) {
						t.Errorf("%s.safetensors is not %[1]s.pt", head)
					}
				}
			}
		})
	}
}

// A large tensor is one vector, however it is read: of two at a right angle, the one with a number in its first row and the other in its last, the arc's third
// has cos(30°) of the first and sin(30°) of the second.
func TestLarge(t *testing.T) {
	a := variant(t, folderOf(t, "static"), func(_ string, vs []float32) { clear(vs); vs[1] = 2 })
	b := variant(t, a, func(_ string, vs []float32) { clear(vs); vs[len(vs)-1] = 4 })
	got := floats(t, stored(t, mixed(t, mix.Options{Method: mix.SLERP}, mix.Model{Path: a, Weight: 2. / 3}, mix.Model{Path: b, Weight: 1. / 3}))["embedding.weight"])
	for i, v := range got {
		want := map[int]float64{1: 2 * math.Sqrt(3) / 2, len(got) - 1: 4 * 0.5}[i]
		if !(math.Abs(float64(v)-want) <= f32Eps*want) {
			t.Fatalf("element %d is %v, want %v", i, v, want)
		}
	}
}

// loads loads a folder as what it is. Golden folders without a tokenizer of their own have one of more tokens here, which is all that may be wrong.
func loads(t *testing.T, dir string) {
	t.Helper()
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m io.Closer
	if f.Reranker != nil {
		m, err = reranker.Load(dir)
	} else {
		m, err = embedder.Load(dir)
	}
	if err == nil {
		err = m.Close()
	}
	if err != nil && !strings.Contains(err.Error(), "vocab") && !strings.Contains(err.Error(), "do_lower_case") {
		t.Error(err)
	}
}
