package mix_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/mix"
	"contraflow/testdata/goldens"
)

// retyped writes a file of weights anew, with tensors as change has them; those without a name are left out.
func retyped(t *testing.T, file string, change func(x safetensors.Tensor) safetensors.Tensor) {
	t.Helper()
	f, err := safetensors.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Tensor
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if x = change(x); x.Name != "" {
			x.Data = append([]byte(nil), x.Data...)
			list = append(list, x)
		}
	}
	if err := errors.Join(f.Close(), write(file, list)); err != nil {
		t.Fatal(err)
	}
}

func same(string, []float32) {}

// What can't be mixed is an error that says what differs and where, and nothing is written.
func TestRefused(t *testing.T) {
	tiny := goldens.Path(t, "bert/minilm-tiny")
	other := func(change func(dir string)) string {
		dir := variant(t, tiny, same)
		change(dir)
		return dir
	}
	routed := variantOf(t, goldens.Path(t, "splade/encoder"), func(dir string) { // its queries are weights of tokens
		const query, sparse = "query_0_SparseStaticEmbedding", "sentence_transformers.sparse_encoder.models."
		tokenizer, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		put(t, dir, map[string]string{
			"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]`,
			"router_config.json": `{"types": {"` + query + `": "` + sparse + `SparseStaticEmbedding", "": "` + sparse + `MLMTransformer", "1_SpladePooling": "` + sparse + `SpladePooling"},
				"structure": {"query": ["` + query + `"], "document": ["", "1_SpladePooling"]}, "parameters": {"default_route": "document", "allow_empty_key": true}}`,
			query + "/config.json": `{"path": "idf.json"}`, query + "/tokenizer.json": string(tokenizer), "idf.json": `{"the": 2}`,
		})
	})
	half := []float64{0.5, 0.5}
	const query = "encoder.layer.0.attention.self.query.weight"
	huge := variant(t, tiny, func(name string, vs []float32) {
		if name == query {
			vs[3] = 3e38
		}
	})
	for name, c := range map[string]struct {
		first, second string
		weights       []float64
		o             mix.Options
		want          []string
	}{
		"one model":          {tiny, "", []float64{1}, mix.Options{}, []string{"1 models, want at least 2"}},
		"sum":                {tiny, tiny, []float64{0.5, 0.3}, mix.Options{}, []string{"the weights sum to 0.8, want 1; in the same ratio they are 0.625,0.375"}},
		"barely off":         {tiny, tiny, []float64{0.5, 0.5011}, mix.Options{}, []string{"the weights sum to 1.0011, want 1"}},
		"not a number":       {tiny, tiny, []float64{0.5, math.NaN()}, mix.Options{}, []string{"the weight of ", "is NaN, want a finite number"}},
		"infinite":           {tiny, tiny, []float64{math.Inf(1), 0.5}, mix.Options{}, []string{"is +Inf, want a finite number"}},
		"method":             {tiny, tiny, half, mix.Options{Method: "cubic"}, []string{`method "cubic" is not linear or slerp`}},
		"precision":          {tiny, tiny, half, mix.Options{Precision: "fp8"}, []string{`precision "fp8" is not one of f32, bf16, f16`}},
		"slerp beyond":       {tiny, tiny, []float64{1.5, -0.5}, mix.Options{Method: mix.SLERP}, []string{"slerp goes from one model to the other: the weight of ", "is -0.5, want 0 to 1"}},
		"another size":       {tiny, goldens.Path(t, "bert/odd-sizes"), half, mix.Options{}, []string{"they pool otherwise: mean and last"}},
		"queries of weights": {routed, routed, half, mix.Options{}, []string{routed + " makes queries of weights of their tokens, without its transformer (a Router): such models are not mixed"}},
		"another kind":       {tiny, folderOf(t, "rerank/cross"), half, mix.Options{}, []string{"can't be mixed: the one is an embedding model, the other a reranker"}},
		"heads":              {folderOf(t, "m3/model"), folderOf(t, "splade/encoder"), half, mix.Options{}, []string{"the one is a model with M3's heads, the other a sparse encoder"}},
		"another family":     {folderOf(t, "families/t5"), folderOf(t, "families/qwen3"), half, mix.Options{}, []string{"config.json's model_type is t5 and qwen3"}},
		"an adapter":         {tiny, goldens.Path(t, "lora/bert-qv"), half, mix.Options{}, []string{"bert-qv is a LoRA adapter: contraflow merge --adapter "}},
		"no model":           {tiny, t.TempDir(), half, mix.Options{}, []string{"it has no config.json"}},
		"nothing on pooling": {goldens.Path(t, "hfmodel/sharded"), goldens.Path(t, "hfmodel/st6"), half, mix.Options{}, []string{"the first says nothing of how embeddings are made", "give that one first"}},
		"normalization": {tiny, other(func(dir string) {
			put(t, dir, map[string]string{"modules.json": `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]`})
		}), half, mix.Options{}, []string{"one of them normalizes embeddings, the other does not"}},
		"include_prompt": {tiny, other(func(dir string) {
			edit(t, dir, "1_Pooling/config.json", `"include_prompt": true`, `"include_prompt": false`)
		}), half, mix.Options{}, []string{"one of them pools the tokens of a prompt too, the other does not", "true and false"}},
		"pairs": {folderOf(t, "rerank/cross"), variantOf(t, folderOf(t, "rerank/cross"), func(dir string) {
			changePair(t, dir, func(pair []any) []any { return pair[:len(pair)-1] })
		}), half, mix.Options{}, []string{"their tokenizers differ in pairs of texts: one has the ids "}},
		"types": {folderOf(t, "rerank/cross"), variantOf(t, folderOf(t, "rerank/cross"), func(dir string) {
			changePair(t, dir, func(pair []any) []any {
				for _, x := range pair {
					for _, part := range x.(map[string]any) {
						part.(map[string]any)["type_id"] = 0
					}
				}
				return pair
			})
		}), half, mix.Options{}, []string{"their tokenizers differ in pairs of texts, whose tokens have the types "}},
		"configuration":       {tiny, other(func(dir string) { edit(t, dir, "config.json", `"layer_norm_eps": 1e-12`, `"layer_norm_eps": 1e-5`) }), half, mix.Options{}, []string{"in config.json layer_norm_eps is 1e-12 and 1e-5"}},
		"dense":               {folderOf(t, "dense"), tiny, half, mix.Options{}, []string{"can't be mixed: their Dense modules differ: 2_Dense of 32 features to 3, without bias, identity and none"}},
		"dense beside a base": {folderOf(t, "dense"), bare(t, tiny), half, mix.Options{}, []string{"their Dense modules differ: 2_Dense", "and none"}},
		"sparse": {folderOf(t, "splade/encoder"), variantOf(t, folderOf(t, "splade/encoder"), func(dir string) {
			edit(t, dir, "modules.json", "\n]", `, {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]`)
		}), half, mix.Options{}, []string{"one of them normalizes embeddings"}},
		"vocabulary": {tiny, other(func(dir string) { addToken(t, dir) }), half, mix.Options{}, []string{"their vocabularies have ", " tokens"}},
		"token":      {tiny, other(func(dir string) { edit(t, dir, "tokenizer.json", `"the"`, `"teh"`) }), half, mix.Options{}, []string{"their vocabularies differ: token ", `is "the" and "teh"`}},
		"case": {tiny, other(func(dir string) {
			edit(t, dir, "tokenizer.json", `"lowercase": true`, `"lowercase": false`)
			edit(t, dir, "tokenizer_config.json", `"do_lower_case": true`, `"do_lower_case": false`)
		}), half, mix.Options{}, []string{`their tokenizers differ: "The Quick brown FOX`}},
		"shape": {folderOf(t, "rerank/cross"), variantOf(t, folderOf(t, "rerank/cross"), func(dir string) {
			retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
				if strings.HasSuffix(x.Name, "query.bias") {
					x.Shape = []int{1, x.Len()}
				}
				return x
			})
		}), half, mix.Options{}, []string{"query.bias", "has shape [1 "}},
		"missing": {tiny, other(func(dir string) {
			retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
				if x.Name == query {
					x.Name = ""
				}
				return x
			})
		}), half, mix.Options{}, []string{query}},
		"not finite": {tiny, variant(t, tiny, func(name string, vs []float32) {
			if name == query {
				vs[7] = float32(math.NaN())
			}
		}), half, mix.Options{}, []string{"variant", `tensor "` + query + `": element 7 is NaN`}},
		"beyond f16": {tiny, huge, half, mix.Options{Precision: "f16"}, []string{query, "more than F16 holds", "bf16 and f32 have a wider range"}},
		"beyond f32": {huge, variant(t, tiny, same), []float64{2, -1}, mix.Options{}, []string{`tensor "` + query + `": element 3 becomes 6.0000`}},
		"doubles": {other(func(dir string) {
			retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
				if x.Name == query {
					x.DType, x.Data = safetensors.F64, make([]byte, 8*x.Len())
				}
				return x
			})
		}), tiny, half, mix.Options{}, []string{query, "has the type F64", "give a precision, f32, bf16 or f16"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			var models []mix.Model
			for i, path := range []string{c.first, c.second} {
				if i < len(c.weights) {
					models = append(models, mix.Model{Path: path, Weight: c.weights[i]})
				}
			}
			if name == "not finite" {
				models[1].Name = "the variant"
			}
			err := mix.Write(context.Background(), dir, models, c.o)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error lacks %q: %v", w, err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*")); len(left) > 0 {
				t.Errorf("there is %v", left)
			}
		})
	}
	three := []mix.Model{{Path: tiny, Weight: 0.2}, {Path: tiny, Weight: 0.3}, {Path: tiny, Weight: 0.5}}
	if err := mix.Check(three, mix.Options{Method: mix.SLERP}); err == nil || !strings.Contains(err.Error(), "slerp is of 2 models, and there are 3") {
		t.Error(err)
	}
	// What is mixed is not replaced, nor is a folder that holds no model, and a model is, when the new one is whole.
	a := variant(t, tiny, same)
	beside := func(first string) []mix.Model {
		return []mix.Model{{Path: first, Weight: 0.5}, {Path: huge, Weight: 0.5}}
	}
	if err := mix.Write(context.Background(), filepath.Join(a, "mixed"), beside(a), mix.Options{}); err == nil || !strings.Contains(err.Error(), "would replace "+a) {
		t.Error(err)
	}
	if err := mix.Write(context.Background(), a, beside(tiny), mix.Options{Precision: "f16"}); err == nil || math.IsNaN(float64(floats(t, stored(t, a)[query])[0])) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := mix.Write(ctx, a, beside(tiny), mix.Options{}); !errors.Is(err, context.Canceled) || !hfmodel.IsModel(a) {
		t.Errorf("%v", err)
	}
	broken := variant(t, tiny, func(name string, vs []float32) {
		if name == query {
			vs[5] = float32(math.NaN())
		}
	})
	for _, models := range [][]mix.Model{beside(broken), {beside(broken)[1], beside(broken)[0]}} {
		if err := mix.Write(context.Background(), a, models, mix.Options{Method: mix.SLERP}); err == nil || !strings.Contains(err.Error(), "element 5 is NaN") {
			t.Errorf("%v", err)
		}
	}
	before := floats(t, stored(t, a)[query])
	if err := mix.Write(context.Background(), a, beside(tiny), mix.Options{}); err != nil {
		t.Error(err)
	}
	if after := floats(t, stored(t, a)[query]); after[3] != 1.5e38+before[3]/2 || len(glob(t, filepath.Dir(a), ".*")) > 0 {
		t.Errorf("%v became %v, and there is %v", before[3], after[3], glob(t, filepath.Dir(a), ".*"))
	}
	put(t, a, map[string]string{"x/mine.txt": "mine"})
	if err := mix.Write(context.Background(), filepath.Join(a, "x"), []mix.Model{{Path: tiny, Weight: 0.5}, {Path: huge, Weight: 0.5}}, mix.Options{}); err == nil || !strings.Contains(err.Error(), "is not empty and holds no model") {
		t.Error(err)
	}
}

// addToken gives a tokenizer one token more.
func addToken(t *testing.T, dir string) {
	t.Helper()
	edit(t, dir, "tokenizer.json", `"added_tokens": [`, `"added_tokens": [{"id": 9999, "content": "[MORE]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},`)
}

// changePair changes what a tokenizer makes of two texts.
func changePair(t *testing.T, dir string, change func(pair []any) []any) {
	t.Helper()
	path := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(path)
	var o map[string]any
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	post := o["post_processor"].(map[string]any)
	post["pair"] = change(post["pair"].([]any))
	if data, err = json.Marshal(o); err != nil {
		t.Fatal(err)
	}
	put(t, dir, map[string]string{"tokenizer.json": string(data)})
}

func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func variantOf(t *testing.T, from string, change func(dir string)) string {
	t.Helper()
	dir := variant(t, from, same)
	change(dir)
	return dir
}

// A base that transformers saved as a model for masked language modelling calls its tensors otherwise and has more of them; another has no pooler. What embeddings
// depend on is mixed, and of the rest a note says that it is left out. The type that is written is the first model's.
func TestOtherNames(t *testing.T) {
	tuned := goldens.Path(t, "bert/minilm-tiny")
	base := variantOf(t, tuned, func(dir string) {
		edit(t, dir, "config.json", `"BertModel"`, `"BertForMaskedLM"`)
		for _, name := range []string{"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			switch name := x.Name; {
			case name == "pooler.dense.bias":
				x.Name = "cls.predictions.bias"
			case strings.HasPrefix(name, "pooler."):
				x.Name = ""
			default:
				x.Name = "bert." + name
			}
			x, err := x.As(safetensors.BF16)
			if err != nil {
				t.Fatal(err)
			}
			return x
		})
	})
	var notes []string
	note := func(m string) { notes = append(notes, m) }
	dir := mixed(t, mix.Options{Note: note}, mix.Model{Path: tuned, Weight: 0.5, Name: "tuned"}, mix.Model{Path: base, Weight: 0.5, Name: "base"})
	want := []string{"pooler.dense.bias is not in base: it is left out", "pooler.dense.weight is not in base: it is left out", "cls.predictions.bias of base is not in tuned: left out", "different prompts"}
	if all := strings.Join(notes, "\n"); len(notes) != len(want) {
		t.Errorf("notes:\n%s", all)
	} else {
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("no note says %q:\n%s", w, all)
			}
		}
	}
	was, is := stored(t, tuned), stored(t, dir)
	if len(is) != len(was)-2 {
		t.Errorf("%d tensors of %d", len(is), len(was))
	}
	for name, x := range is {
		a, m := floats(t, was[name]), floats(t, x)
		for i := range a {
			bits := math.Float32bits(a[i])
			b := math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff) // to bf16, ties to even
			if x.DType != safetensors.F32 || m[i] != float32((float64(a[i])+float64(b))/2) {
				t.Fatalf("%v[%d] is %v, want the mean of %v and %v", x, i, m[i], a[i], b)
			}
		}
	}
	loads(t, dir)
	// The first BERT checkpoints call LayerNorm's weight gamma; whichever is first, the mixed model's names are its.
	old := variantOf(t, tuned, func(dir string) {
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			x.Name = strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta").Replace("bert." + x.Name)
			return x
		})
	})
	for _, order := range [][2]string{{old, tuned}, {tuned, old}} {
		is, was := stored(t, mixed(t, mix.Options{Note: func(m string) { t.Error(m) }}, mix.Model{Path: order[0], Weight: 0.5}, mix.Model{Path: order[1], Weight: 0.5})), stored(t, order[0])
		for name, x := range was {
			if y, ok := is[name]; !ok || len(is) != len(was) || !bytes.Equal(x.Data, y.Data) {
				t.Fatalf("%v became %v", x, y)
			}
		}
	}

	card, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil || !strings.Contains(string(card), "| `tuned` | 0.5 |\n| `base` | 0.5 |") {
		t.Errorf("%v\n%s", err, card)
	}
}

// The truth is torch.softmax(-torch.tensor([0.2, 1.2, 3.0], dtype=torch.float64) / t, -1) for t of 5 and of 0.1; exponents of 30 are off by 30 roundings.
func TestByLoss(t *testing.T) {
	for _, c := range []struct {
		temperature float64
		want        []float64
	}{
		{mix.Temperature, []float64{0.4184205781741782, 0.3425737950718695, 0.23900562675395223}},
		{0.1, []float64{0.9999546021306062, 4.539786870240308e-05, 6.914086207907211e-13}},
	} {
		got, err := mix.ByLoss([]float64{0.2, 1.2, 3.0}, c.temperature)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range c.want {
			if !(math.Abs(got[i]-w) <= 0x1p-46*w) {
				t.Errorf("%v, want %v", got, c.want)
			}
		}
	}
	if got, err := mix.ByLoss([]float64{1000, 2000}, 1e-3); err != nil || got[0] != 1 || got[1] != 0 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := mix.ByLoss(nil, bad); err == nil {
			t.Errorf("a temperature of %v is none", bad)
		}
	}
	if _, err := mix.ByLoss([]float64{1, math.NaN()}, 1); err == nil {
		t.Error("NaN is no loss")
	}
}
