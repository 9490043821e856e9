package embedder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// What Save writes has the parameters as they are now, whatever else the folder had, and what the caller says of it.
func TestTrainableSave(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	texts := []string{"a cat on a mat", "the dog"}
	embed := func(folder string) (*Embedder, [][]float32) {
		t.Helper()
		e, err := Load(folder)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		vecs, err := e.EmbedPrompt(t.Context(), "", texts)
		if err != nil {
			t.Fatal(err)
		}
		return e, vecs
	}
	adapter := copyFolder(t, goldens.Path(t, "lora/bert-qv"))
	file := filepath.Join(adapter, "adapter_config.json")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte("testdata/golden/bert/minilm-tiny"), []byte(filepath.ToSlash(goldens.Path(t, "bert/minilm-tiny"))), 1)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{goldens.Path(t, "bert/minilm-tiny"), adapter} {
		start := copyFolder(t, folder)
		was, before := embed(start)
		m, err := LoadTrainable(start, d)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		out := filepath.Join(t.TempDir(), "runs", "mine")
		if err := m.Save(out, Saving{Summary: "By hand."}); err != nil {
			t.Fatal(err)
		}
		same, after := embed(out)
		for i := range texts {
			if !slices.Equal(before[i], after[i]) {
				t.Errorf("%s: saved as it was, text %d has another embedding", folder, i)
			}
		}
		if same.MaxLength() != was.MaxLength() || len(same.prompts) != len(was.prompts) {
			t.Errorf("saved as it was, %d tokens and prompts %v have become %d and %v", was.MaxLength(), was.prompts, same.MaxLength(), same.prompts)
		}
		if card, err := os.ReadFile(filepath.Join(out, "README.md")); err != nil || !strings.Contains(string(card), "By hand.") {
			t.Errorf("%v: the card is %s", err, card)
		}

		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		p := m.Model.Layout.Params[0]
		vs, err := m.Model.Read(s, m.Model.Params, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range vs {
			vs[i] = float32(i%7) / 8 // what bf16 can hold
		}
		s.CopyIn(m.Model.Layout.View(m.Model.Params, p), gpustage.Bytes(vs))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		for i, dir := range []string{out, start} { // over a model, and over the one that it came from
			if err := m.Save(dir, Saving{MaxLength: 9 + i, Prompts: map[string]string{"query": "ask: "}, Precision: "bf16"}); err != nil {
				t.Fatal(err)
			}
			e, changed := embed(dir)
			if slices.Equal(changed[0], before[0]) || e.MaxLength() != 9+i || e.Prompt("query") != "ask: " || e.DefaultPrompt() != "" {
				t.Errorf("%s: embedding %v, %d tokens, prompts %v", dir, changed[0][:3], e.MaxLength(), e.prompts)
			}
			f, err := hfmodel.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w, err := f.Tensor(p.Name)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, w.Len())
			if err := w.Float32s(got); err != nil || !slices.Equal(got, vs) || w.DType != safetensors.BF16 {
				t.Errorf("%s has another %s (%v)", dir, p.Name, err)
			}
			if _, err := f.Tensor("pooler.dense.weight"); err != nil {
				t.Errorf("BERT's pooler: %v", err)
			}
		}
	}
}

func TestTrainableSaveErrors(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	note := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Saving{
		"a maximum length of -1": {MaxLength: -1}, "holds no model": {}, `precision "f8"`: {Precision: "f8"}, "leaves no room for text": {MaxLength: 2}, "beyond the model's": {MaxLength: 1 << 20},
	} {
		if err := m.Save(dir, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	t.Chdir(dir)
	closed, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Error(err)
	}
	if err := closed.Save("new", Saving{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := m.Save("", Saving{}); err == nil || !strings.Contains(err.Error(), "name is empty") {
		t.Error(err)
	}
	if _, err := os.Stat(note); err != nil {
		t.Error(err)
	}
}

// A model with LoRA is saved as an adapter, which embeds as the model with its factors does, and goes on from there; never over its base.
func TestTrainableLoRA(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	base := copyFolder(t, goldens.Path(t, "bert/minilm-tiny"))
	texts := []string{"a cat on a mat", "the dog"}
	embed := func(m *transformer.Model, tok *tokenize.Tokenizer) (vecs [][]float32) {
		t.Helper()
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		e := &Engine{Model: m, Stream: s}
		ids, err := tok.EncodeAll(t.Context(), texts, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		vecs = make([][]float32, len(texts))
		if err := e.Embed(t.Context(), ids, func(i int, v []float32) { vecs[i] = slices.Clone(v) }); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Close(), e.CloseStream()); err != nil {
			t.Fatal(err)
		}
		return vecs
	}
	near := func(what string, got, want [][]float32) {
		t.Helper()
		for i := range want {
			for k, v := range want[i] {
				if !(math.Abs(float64(got[i][k]-v)) <= 2e-6) {
					t.Fatalf("%s: number %d of text %d is %v, want %v", what, k, i, got[i][k], v)
				}
			}
		}
	}
	for name, tuning := range map[string]transformer.Tuning{
		"by names":   {LoRA: &transformer.LoRA{Rank: 3, Alpha: 8, Dropout: 0.25, Targets: []string{"query", "value"}, Seed: 1}},
		"all linear": {LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, RSLoRA: true, Targets: []string{transformer.AllLinear}, Seed: 1}},
		"upper":      {FreezeLayers: 1, LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}, Seed: 1}},
	} {
		options := ModelOptions(transformer.Options{Tuning: tuning})
		m, err := LoadTrainable(base, d, options, Dropout(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		start := embed(m.Model, m.Tokenizer)
		for _, p := range m.Model.Layout.Training() {
			vs := make([]float32, p.Len())
			for i := range vs {
				vs[i] = float32(i%11-5) / 40
			}
			m.Model.Change(s, func() { s.CopyIn(m.Model.Layout.View(m.Model.Params, p), gpustage.Bytes(vs)) })
		}
		if err := errors.Join(s.Sync(), s.Close()); err != nil {
			t.Fatal(err)
		}
		want := embed(m.Model, m.Tokenizer)
		if slices.Equal(want[0], start[0]) {
			t.Fatalf("%s: the factors change nothing", name)
		}
		out := filepath.Join(t.TempDir(), "adapter")
		if err := m.Save(out, Saving{}); err != nil {
			t.Fatal(err)
		}
		e, err := Load(out)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		got, err := e.EmbedPrompt(t.Context(), "", texts)
		if err != nil {
			t.Fatal(err)
		}
		near(name, got, want)
		var config struct {
			Base    string   `json:"base_model_name_or_path"`
			Targets []string `json:"target_modules"`
			Dropout float64  `json:"lora_dropout"`
		}
		says := func(dir string) {
			t.Helper()
			raw, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
			if err == nil {
				err = json.Unmarshal(raw, &config)
			}
			if err != nil || config.Base != base || config.Dropout != tuning.LoRA.Dropout {
				t.Errorf("%s: %v, %s", name, err, raw)
			}
		}
		says(out)
		layers := m.Model.Config.Layers // each of which has six linear modules
		targets := map[string]int{"by names": 2, "all linear": 6 * layers, "upper": layers - 1}[name]
		if distinct := slices.Compact(slices.Sorted(slices.Values(config.Targets))); len(distinct) != targets || len(config.Targets) != targets || slices.Contains(config.Targets, transformer.AllLinear) {
			t.Errorf("%s: targets %q, want %d", name, config.Targets, targets)
		}
		on, err := LoadTrainable(out, d, options)
		if err != nil {
			t.Fatal(err)
		}
		defer on.Close()
		near(name+", going on", embed(on.Model, on.Tokenizer), want)
		further := filepath.Join(t.TempDir(), "further")
		if err := on.Save(further, Saving{}); err != nil {
			t.Fatal(err)
		}
		says(further) // the base, not the adapter that it went on from
		merged, err := LoadTrainable(out, d)
		if err != nil {
			t.Fatal(err)
		}
		defer merged.Close()
		for _, over := range []string{base, filepath.Dir(base)} {
			for _, x := range []*Trainable{m, merged} {
				if err := x.Save(over, Saving{}); err == nil || over == base && !strings.Contains(err.Error(), "it would replace the base model") {
					t.Errorf("%s: over its base: %v", name, err)
				}
			}
		}
		if err := merged.Save(filepath.Join(base, "below"), Saving{}); err != nil {
			t.Errorf("%s: below its base: %v", name, err)
		}
	}
	if m, err := LoadTrainable(base, d, Dropout(0.2)); err != nil || m.Model.Config.HiddenDropout != 0.2 || m.Model.Config.AttentionDropout != 0.2 {
		t.Errorf("%v: dropout %v and %v", err, m.Model.Config.HiddenDropout, m.Model.Config.AttentionDropout)
	} else {
		m.Close()
	}
	if _, err := LoadTrainable(base, d, Dropout(1)); err == nil || !strings.Contains(err.Error(), "a dropout of 1") {
		t.Error(err)
	}
}

// What a trainable model says of texts is what its folder says, and it is measured as the folder is.
func TestTrainableEvaluates(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := goldens.Path(t, "bert/minilm-tiny")
	m, err := LoadTrainable(folder, d)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	query, document := m.RolePrompts()
	if q, d := e.RolePrompts(); q != query || d != document || query == "" || m.MaxLength() != e.MaxLength() {
		t.Errorf("prompts %q and %q, %d tokens; want %q and %q, %d", query, document, m.MaxLength(), q, d, e.MaxLength())
	}
	r := &dataset.Retrieval{}
	for i := range 20 {
		r.QueryIDs, r.Queries = append(r.QueryIDs, fmt.Sprint("q", i)), append(r.Queries, fmt.Sprint("which stone is ", i))
		r.DocIDs, r.Docs = append(r.DocIDs, fmt.Sprint("d", i)), append(r.Docs, fmt.Sprint("stone ", i, " of house ", i*i%7))
		r.Judgements = append(r.Judgements, dataset.Judgement{Query: i, Doc: (i + i/7) % 20, Relevance: 1})
	}
	task, err := m.NewTask(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	other, err := e.NewTask(t.Context(), r, query, document)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(task.queries, other.queries) || !reflect.DeepEqual(task.docs, other.docs) || reflect.DeepEqual(task.queries[0], task.docs[0]) {
		t.Errorf("the texts become other tokens: %v, want %v", task.queries[0], other.queries[0])
	}
	got, err := m.Evaluate(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.Evaluate(t.Context(), other)
	if err != nil || !slices.Equal(got.Means, want.Means) || got.Means[0] == 0 {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
	m.Close()
	if _, err := m.Evaluate(t.Context(), task); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// tensorsOf are all of a folder's.
func tensorsOf(t *testing.T, f *hfmodel.Folder) (all []safetensors.Tensor) {
	t.Helper()
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

// m3Folder is a small model with heads of tokens.
func m3Folder(t *testing.T) string {
	base, err := hfmodel.Open(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	spec := hfmodel.Spec{Config: base.Config, Pooling: *base.Pooling, M3: true, Normalize: true, MaxSeqLength: 40, Base: base, Tokenizer: base.CopyTokenizer}
	spec.Tensors = tensorsOf(t, base)
	for name, shape := range map[string][]int{"colbert_linear.weight": {32, 32}, "colbert_linear.bias": {32}, "sparse_linear.weight": {1, 32}, "sparse_linear.bias": {1}} {
		n := shape[0]
		if len(shape) > 1 {
			n *= shape[1]
		}
		vs := make([]float32, n)
		for i := range vs {
			vs[i] = float32(i%7-3) / 8
		}
		x, err := safetensors.FromFloat32s(name, shape, vs)
		if err != nil {
			t.Fatal(err)
		}
		spec.Tensors = append(spec.Tensors, x)
	}
	folder := filepath.Join(t.TempDir(), "m3")
	if err := hfmodel.Save(folder, spec); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Of a model with heads of tokens, training needs the tokens that have no weight. One of which this rank holds a part is saved by nobody alone.
func TestTrainableHeads(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := m3Folder(t)
	m, err := LoadTrainable(folder, d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	e, err := Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got, want := m.Model.Config.Tokens.Special, e.model.Config.Tokens.Special; len(got) == 0 || !slices.Equal(got, want) {
		t.Errorf("special tokens %v, want %v", got, want)
	}
	out := filepath.Join(t.TempDir(), "saved")
	if err := m.Save(out, Saving{}); err != nil {
		t.Fatal(err)
	}
	again, err := Load(out)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	parts := func(e *Embedder) *Parts {
		p, _, err := e.EmbedParts(t.Context(), "", []string{"a cat on a mat", "the dog"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if a, b := parts(e), parts(again); !reflect.DeepEqual(a, b) {
		t.Errorf("saved as it was, the parts are %+v, want %+v", b, a)
	}

	lora := ModelOptions(transformer.Options{Tuning: transformer.Tuning{LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}, Seed: 1}}})
	factors, err := LoadTrainable(folder, d, lora)
	if err != nil {
		t.Fatal(err)
	}
	defer factors.Close()
	out = filepath.Join(t.TempDir(), "merged")
	if err := factors.Save(out, Saving{}); err != nil {
		t.Fatal(err)
	}
	merged, err := Load(out)
	if err != nil || hfmodel.IsAdapter(out) || !merged.HasParts() {
		t.Fatalf("LoRA with heads of tokens: %v, an adapter: %t", err, hfmodel.IsAdapter(out))
	}
	defer merged.Close()

	part, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d, ModelOptions(transformer.Options{Own: func(l *transformer.Layout) [][2]int { return [][2]int{{0, l.Len / 2}} }}))
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := part.Save(filepath.Join(t.TempDir(), "part"), Saving{}); !errors.Is(err, ErrPart) {
		t.Error(err)
	}
}

// Whatever the folder says of pooling, lengths of vectors, modules behind them and prompts, what is saved says too.
func TestTrainableKeeps(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	base, err := hfmodel.Open(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	spec := hfmodel.Spec{
		Config: base.Config, Pooling: hfmodel.Pooling{Mode: hfmodel.CLS, IncludePrompt: true}, Similarity: "dot", MaxSeqLength: 20, Base: base, Tokenizer: base.CopyTokenizer,
		Prompts: map[string]string{"query": "ask: ", "other": "say: "}, DefaultPromptName: "other",
	}
	spec.Tensors = tensorsOf(t, base)
	start := filepath.Join(t.TempDir(), "start")
	if err := hfmodel.Save(start, spec); err != nil {
		t.Fatal(err)
	}
	m, err := LoadTrainable(start, d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	saved := func(o Saving) (*hfmodel.Folder, *Embedder) {
		t.Helper()
		out := filepath.Join(t.TempDir(), "out")
		if err := m.Save(out, o); err != nil {
			t.Fatal(err)
		}
		f, err := hfmodel.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		e, err := Load(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return f, e
	}
	f, e := saved(Saving{})
	if f.Pooling.Mode != hfmodel.CLS || f.Normalize || f.Similarity != "dot" || f.MaxSeqLength != 20 || f.DefaultPromptName != "other" || !reflect.DeepEqual(f.Prompts, spec.Prompts) {
		t.Errorf("%+v", f)
	}
	was, err := Load(start)
	if err != nil {
		t.Fatal(err)
	}
	defer was.Close()
	want, err := was.Embed(t.Context(), []string{"the river"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.Embed(t.Context(), []string{"the river"}); err != nil || !slices.Equal(got[0], want[0]) {
		t.Errorf("%v: %v, want %v", err, got, want)
	}
	if f, _ := saved(Saving{Prompts: map[string]string{"query": "find: "}}); f.DefaultPromptName != "" || f.Prompts["query"] != "find: " || len(f.Prompts) != 1 {
		t.Errorf("a default prompt %q of %v", f.DefaultPromptName, f.Prompts)
	}
}

// trainable loads a folder to train, on the processor.
func trainable(t *testing.T, dir string) *Trainable {
	t.Helper()
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	m, err := LoadTrainable(dir, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Without a device it is the program's, which Close closes, and once.
func TestTrainableWithoutDevice(t *testing.T) {
	before := runtime.NumGoroutine()
	m, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if kind := m.Model.Device.Info().Kind; kind != "cpu" {
		t.Errorf("it is a %s", kind)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines before, %d after: the device's threads", before, runtime.NumGoroutine())
		}
	}
}
