package embedder

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// An adapter merged into its base's weights embeds as PEFT does: from the adapter's folder, and from the folder that Merge writes.
func TestMergeGolden(t *testing.T) {
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]gpustage.Pooling{"mean": gpustage.MeanPooling, "cls": gpustage.CLSPooling, "last": gpustage.LastPooling}
	for _, name := range []string{"bert-qv", "bert-all", "bert-save", "qwen3-qo", "qwen3-last-o", "qwen3-all", "modernbert-fused", "qwen3-head"} {
		g := goldens.Load(t, "lora/"+name)
		var meta struct{ Base, Pooling string }
		g.Meta(t, &meta)
		check := func(f *hfmodel.Folder, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			m, err := LoadModel(f, d, s, transformer.Head{Pooling: modes[meta.Pooling], Normalize: true}, transformer.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Free()
			r := transformer.Rows{Cu: []int32{0}}
			for _, id := range g.Ints(t, "ids") {
				r.IDs = append(r.IDs, int32(id))
			}
			for _, n := range g.Ints(t, "lengths") {
				r.Cu = append(r.Cu, r.Cu[len(r.Cu)-1]+int32(n))
			}
			a, err := gpustage.NewArena(d, 8<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Free()
			p := m.Forward(s, a, r, false, false)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			got := gpustage.Slice[float32](p.Embeddings())
			for i, want := range g.F64(t, "embedding") {
				if !(math.Abs(float64(got[i])-want) <= 2e-6) {
					t.Fatalf("%s: element %d is %v, want %v", name, i, got[i], want)
				}
			}
		}
		base, adapter := goldens.Path(t, meta.Base), goldens.Path(t, "lora/"+name)
		check(hfmodel.OpenOn(base, adapter))
		testMergedParts(t, s, base, adapter)
		if meta.Base != "bert/minilm-tiny" { // the others have no tokenizer to copy
			continue
		}
		out := filepath.Join(t.TempDir(), "merged", "model")
		told := map[string][2]int64{}
		if err := Merge(base, adapter, out, "", d, func(what string, done, total int64) {
			if was := told[what]; done <= was[0] || was[1] != 0 && total != was[1] {
				t.Errorf("%s: %d of %d after %v", what, done, total, was)
			}
			told[what] = [2]int64{done, total}
		}); err != nil {
			t.Fatal(err)
		}
		written := int64(0) // the pooler, which is no parameter, as well
		weights, err := safetensors.Open(filepath.Join(out, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range weights.Names() {
			if x, err := weights.Tensor(name); err == nil {
				written += int64(len(x.Data))
			}
		}
		weights.Close()
		if m, w := told["merged"], told["written"]; m[0] != m[1] || w[0] != w[1] || w[1] != written || m[0] == 0 || 4*m[0] > written {
			t.Errorf("told %v in the end, of %d bytes", told, written)
		}
		check(hfmodel.Open(out))
		testMergedPooler(t, base, adapter, out)
	}
	// The adapter is the only one of its kind, and its base is what the recipe names.
	base, adapter := copyFolder(t, goldens.Path(t, "bert/minilm-tiny")), copyFolder(t, goldens.Path(t, "lora/bert-qv"))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(adapter), link); err != nil {
		t.Skip(err) // Windows without the right to
	}
	for _, out := range []string{adapter, base, filepath.Join(link, filepath.Base(adapter)), filepath.Join(base, "new", "folder"), filepath.Dir(base)} {
		if err := Merge(base, adapter, out, "", d, nil); err == nil || !strings.Contains(err.Error(), "would replace the ") {
			t.Errorf("merged into %s: error %v", out, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Merge(base, adapter, filepath.Join(file, "out"), "", d, nil); err == nil || strings.Contains(err.Error(), "would replace") || !strings.Contains(err.Error(), file) {
		t.Errorf("merged into what is in a file: error %v", err)
	}
	if f, err := hfmodel.OpenOn(base, adapter); err != nil {
		t.Errorf("refused, and yet: %v", err)
	} else {
		f.Close()
	}
	if err := Merge("", goldens.Path(t, "bert/minilm-tiny"), t.TempDir(), "", d, nil); err == nil || !strings.Contains(err.Error(), "is not the folder of a LoRA adapter") {
		t.Errorf("error %v", err)
	}
}

// testMergedPooler compares BERT's pooler, which embeddings don't use, with W + scale B A.
func testMergedPooler(t *testing.T, base, adapter, merged string) {
	t.Helper()
	read := func(f *hfmodel.Folder, err error) []float64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		of := func(tensor safetensors.Tensor, err error) []float32 {
			t.Helper()
			vs := make([]float32, tensor.Len())
			if err := errors.Join(err, tensor.Float32s(vs)); err != nil {
				t.Fatal(err)
			}
			return vs
		}
		var out []float64
		for _, v := range of(f.Tensor("pooler.dense.weight")) {
			out = append(out, float64(v))
		}
		if f.Adapter == nil {
			return out
		}
		for _, x := range f.Adapter.Factors {
			if x.Module != "pooler.dense" {
				continue
			}
			a, b, n := of(x.A, nil), of(x.B, nil), x.A.Shape[1]
			for i := range out {
				for k := range x.A.Shape[0] {
					out[i] += x.Scale * float64(b[i/n*x.A.Shape[0]+k]) * float64(a[k*n+i%n])
				}
			}
		}
		return out
	}
	want := read(hfmodel.OpenOn(base, adapter))
	for i, got := range read(hfmodel.Open(merged)) {
		if !(math.Abs(got-want[i]) <= 1e-6) {
			t.Fatalf("%s: the merged pooler's element %d is %v, want %v", adapter, i, got, want[i])
		}
	}
}

// What merging would make worthless is refused, and a language model keeps its head.
func TestMergeHeads(t *testing.T) {
	d := ref.New()
	classifier := copyFolder(t, goldens.Path(t, "rerank/cross"))
	if err := Merge(classifier, goldens.Path(t, "lora/bert-qv"), filepath.Join(t.TempDir(), "x"), "", d, nil); err == nil || !strings.Contains(err.Error(), "is a reranker (its class is BertForSequenceClassification)") {
		t.Errorf("error %v", err)
	}
	base := copyFolder(t, goldens.Path(t, "lora/qwen3-tiny"))
	config, err := os.ReadFile(filepath.Join(base, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config = regexp.MustCompile(`"Qwen3\w*"`).ReplaceAll(config, []byte(`"Qwen3ForCausalLM"`))
	f, err := safetensors.Open(filepath.Join(base, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	var all []safetensors.Tensor
	for _, n := range f.Names() {
		tensor, err := f.Tensor(n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tensor)
	}
	head, err := safetensors.FromFloat32s("lm_head.weight", []int{2, 2}, []float32{1, 2, 3, 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(safetensors.Write(filepath.Join(base, "new"), append(all, head), nil), f.Close(), os.Rename(filepath.Join(base, "new"), filepath.Join(base, "model.safetensors")),
		os.WriteFile(filepath.Join(base, "config.json"), config, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json", "vocab.txt"} {
		if data, err := os.ReadFile(goldens.Path(t, "bert/minilm-tiny/"+file)); err == nil {
			os.WriteFile(filepath.Join(base, file), data, 0o600)
		}
	}
	out := filepath.Join(t.TempDir(), "merged")
	if err := Merge(base, goldens.Path(t, "lora/qwen3-qo"), out, "", d, nil); err != nil {
		t.Fatal(err)
	}
	merged, err := safetensors.Open(filepath.Join(out, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer merged.Close()
	got := make([]float32, 4)
	if tensor, err := merged.Tensor("lm_head.weight"); err != nil || tensor.Float32s(got) != nil || !slices.Equal(got, []float32{1, 2, 3, 4}) {
		t.Errorf("the language model's head is %v, error %v", got, err)
	}

	// In another precision it has the same numbers, rounded.
	halves := filepath.Join(t.TempDir(), "halves")
	if err := Merge(base, goldens.Path(t, "lora/qwen3-qo"), halves, "f16", d, nil); err != nil {
		t.Fatal(err)
	}
	rounded, err := safetensors.Open(filepath.Join(halves, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer rounded.Close()
	if !slices.Equal(rounded.Names(), merged.Names()) {
		t.Fatalf("%q, want %q", rounded.Names(), merged.Names())
	}
	for _, name := range merged.Names() {
		want, err := merged.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if want, err = want.As(safetensors.F16); err != nil {
			t.Fatal(err)
		}
		if tensor, err := rounded.Tensor(name); err != nil || tensor.DType != safetensors.F16 || !bytes.Equal(tensor.Data, want.Data) {
			t.Errorf("%v is not %v: %v", tensor, want, err)
		}
	}
	if err := Merge(base, goldens.Path(t, "lora/qwen3-qo"), halves, "half", d, nil); err == nil || !strings.Contains(err.Error(), `precision "half" is not one of f32, bf16, f16`) {
		t.Errorf("error %v", err)
	}
	copy(head.Data[3*4:], []byte{0, 0, 0x80, 0x47}) // 65536
	if err := Round([]safetensors.Tensor{head}, "f16"); err == nil || !strings.Contains(err.Error(), `tensor "lm_head.weight": number 3 of 4 is 65536, more than F16 holds (65504): bf16 has a wider range`) {
		t.Errorf("error %v", err)
	}
}

func copyFolder(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A scale of zero adds nothing; where the file says none, it is PEFT's.
func TestMergeAlpha(t *testing.T) {
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	base := goldens.Path(t, "bert/minilm-tiny")
	params := func(f *hfmodel.Folder, err error) []float32 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := LoadModel(f, d, s, transformer.Head{}, transformer.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return gpustage.Slice[float32](m.Params)
	}
	with := func(alpha string) []float32 {
		dir := copyFolder(t, goldens.Path(t, "lora/bert-qv"))
		path := filepath.Join(dir, "adapter_config.json")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(raw), `"lora_alpha": 8,`, alpha, 1)
		if changed == string(raw) && alpha != `"lora_alpha": 8,` {
			t.Fatal("the golden has another alpha")
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		return params(hfmodel.OpenOn(base, dir))
	}
	bare, eight := params(hfmodel.Open(base)), with(`"lora_alpha": 8,`)
	if slices.Equal(bare, eight) {
		t.Fatal("the adapter does nothing")
	}
	if !slices.Equal(with(`"lora_alpha": 0,`), bare) {
		t.Error("an alpha of 0 changes weights")
	}
	if !slices.Equal(with(""), eight) {
		t.Error("without lora_alpha, it is not PEFT's 8")
	}
}

// An adapter of another model is refused by name; a pooler's tensors, which embeddings don't use, are left out.
func TestMergeOfAnother(t *testing.T) {
	base := goldens.Path(t, "bert/minilm-tiny")
	const query, pooler = "encoder.layer.0.attention.self.query", "pooler.dense"
	zeros := func(name string, shape ...int) safetensors.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x, err := safetensors.FromFloat32s(hfmodel.AdapterPrefix+name, shape, make([]float32, n))
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	factors := func(module string, in int) []safetensors.Tensor {
		return []safetensors.Tensor{zeros(module+".lora_A.weight", 2, in), zeros(module+".lora_B.weight", 32, 2)}
	}
	for want, tensors := range map[string][]safetensors.Tensor{
		`the adapter is for a layer "layers.0.self_attn.o_proj", which the base model does not have`:        nil,
		"minilm-tiny: factors of 14 and 64 elements do not fit encoder.layer.0.attention.self.query.weight": factors(query, 7),
		`the adapter has a tensor "base_model.model.classifier.weight", which the base model does not have`: append(factors(query, 32), zeros("classifier.weight", 2, 32)),
		"the adapter has factors of " + query + ".weight twice":                                             append(factors(query, 32), factors("bert."+query, 32)...),
		"": append(append(factors(query, 32), factors(pooler, 32)...), zeros(pooler+".bias", 32)),
	} {
		dir := goldens.Path(t, "lora/qwen3-qo")
		if tensors != nil {
			config, err := os.ReadFile(filepath.Join(goldens.Path(t, "lora/bert-qv"), "adapter_config.json"))
			if err != nil {
				t.Fatal(err)
			}
			dir = t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "adapter_config.json"), config, 0o600), safetensors.Write(filepath.Join(dir, "adapter_model.safetensors"), tensors, nil)); err != nil {
				t.Fatal(err)
			}
		}
		err := Merge(base, dir, filepath.Join(t.TempDir(), "x"), "", ref.New(), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Training goes on with an adapter whose factors fit the weights, on both sides.
func TestCheckAdapterShapes(t *testing.T) {
	base := goldens.Path(t, "bert/minilm-tiny")
	d := ref.New()
	f, err := hfmodel.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := ConfigOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := transformer.New(d, c, transformer.Head{}, transformer.Options{Tuning: transformer.Tuning{LoRA: &transformer.LoRA{Rank: 2, Alpha: 8, Targets: []string{"query"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, shape := range [][2]int{{32, 32}, {31, 32}, {32, 31}} {
		var tensors []safetensors.Tensor
		for l := range c.Layers {
			for side, rows := range map[string][]int{"A": {2, shape[0]}, "B": {shape[1], 2}} {
				x, err := safetensors.FromFloat32s(fmt.Sprintf("%sencoder.layer.%d.attention.self.query.lora_%s.weight", hfmodel.AdapterPrefix, l, side), rows, make([]float32, rows[0]*rows[1]))
				if err != nil {
					t.Fatal(err)
				}
				tensors = append(tensors, x)
			}
		}
		dir := copyFolder(t, goldens.Path(t, "lora/bert-qv"))
		if err := safetensors.Write(filepath.Join(dir, "adapter_model.safetensors"), tensors, nil); err != nil {
			t.Fatal(err)
		}
		a, err := hfmodel.OpenOn(base, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckAdapter(a, m); (err == nil) != (shape == [2]int{32, 32}) || err != nil && !strings.Contains(err.Error(), "and the weight has [32 32]") {
			t.Errorf("%v: %v", shape, err)
		}
		a.Close()
	}
}

// A rank that holds a part of the model holds that part of the merged one.
func testMergedParts(t *testing.T, s gpustage.Stream, base, adapter string) {
	t.Helper()
	load := func(o transformer.Options) *transformer.Model {
		f, err := hfmodel.OpenOn(base, adapter)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := LoadModel(f, s.Device(), s, transformer.Head{}, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	whole := load(transformer.Options{})
	part := load(transformer.Options{Own: func(l *transformer.Layout) [][2]int { return [][2]int{{l.Len / 3, 2 * l.Len / 3}} }})
	if part.Params.Cols >= whole.Params.Cols || !slices.Equal(gpustage.Slice[float32](part.Params), gpustage.Slice[float32](whole.Params)[whole.Layout.Len/3:2*whole.Layout.Len/3]) {
		t.Errorf("%s: a rank's part of the merged model is not what it is in the whole", adapter)
	}
}
