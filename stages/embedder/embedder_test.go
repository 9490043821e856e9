package embedder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/testdata/goldens"
)

// Against SentenceTransformer.encode, texts and all.
func TestGoldenEncode(t *testing.T) {
	for _, name := range []string{"minilm-tiny", "odd-sizes", "relu-one-head", "gelu-new"} {
		g := goldens.Load(t, "bert/"+name)
		var meta struct{ Texts []string }
		g.Meta(t, &meta)
		for _, opts := range [][]Option{nil, {OnDevice(ref.New())}} {
			e, err := Load(goldens.Path(t, "bert/"+name), opts...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.EmbedPrompt(context.Background(), "", meta.Texts)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name, got, g.F64(t, "encode/embedding"))
			if name == "minilm-tiny" { // the one with prompts
				if got, err = e.EmbedPrompt(context.Background(), "query", meta.Texts); err != nil {
					t.Fatal(err)
				}
				compare(t, name+" with prompt", got, g.F64(t, "encode_query/embedding"))
				e.prompt = "query" // as default_prompt_name has it
				if got, err = e.Embed(context.Background(), meta.Texts); err != nil {
					t.Fatal(err)
				}
				compare(t, name+" with the default prompt", got, g.F64(t, "encode_query/embedding"))
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// How many tokens go through the model at once changes nothing; bf16 changes the third digit, and no more.
func TestPassesAndPrecision(t *testing.T) {
	g := goldens.Load(t, "bert/minilm-tiny")
	var meta struct{ Texts []string }
	g.Meta(t, &meta)
	want := g.F64(t, "encode/embedding")
	embed := func(opts ...Option) [][]float32 {
		e, err := Load(goldens.Path(t, "bert/minilm-tiny"), opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		got, err := e.EmbedPrompt(context.Background(), "", meta.Texts)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	compare(t, "passes of 7 tokens", embed(PassTokens(7)), want)
	for i, vec := range embed(BF16()) {
		dot, a, b := 0.0, 0.0, 0.0
		differ := false
		for j, v := range vec {
			w := want[i*len(vec)+j]
			dot, a, b = dot+float64(v)*w, a+float64(v)*float64(v), b+w*w
			differ = differ || math.Abs(float64(v)-w) > 1e-5
		}
		if cos := dot / math.Sqrt(a*b); !(cos >= 0.9995) || !differ {
			t.Errorf("text %d in bf16: cosine %v, different: %t", i, cos, differ)
		}
	}
}

// alone is a sharing of one rank, which sees its passes.
type alone struct{ passes []int } // tokens

func (*alone) Rank() int { return 0 }
func (*alone) Size() int { return 1 }
func (a *alone) Begin(_ gpustage.Stream, passes [][]int32) error {
	a.passes = append(a.passes, len(passes[0]))
	return nil
}
func (*alone) Skip(gpustage.Stream)                                        {}
func (*alone) Gather(s gpustage.Stream, dst, src gpustage.Tensor, _ []int) { s.Copy(dst, src) }

// A pass has as many texts as fit into its tokens, and one that is longer goes alone.
func TestPassTokens(t *testing.T) {
	for limit, want := range map[int][]int{1: {9, 7, 7, 5, 4, 3}, 8: {9, 7, 7, 5, 7}, 9: {9, 7, 7, 9, 3}, 12: {9, 7, 12, 7}, 23: {23, 12}, 35: {35}} {
		e, err := Load(goldens.Path(t, "bert/minilm-tiny"), PassTokens(limit))
		if err != nil {
			t.Fatal(err)
		}
		a := &alone{}
		e.engine.Ranks = a
		texts, seen := [][]int32{}, 0
		for _, n := range []int{4, 7, 3, 9, 7, 5} {
			texts = append(texts, slices.Repeat([]int32{5}, n))
		}
		if err := e.engine.Embed(t.Context(), texts, func(int, []float32) { seen++ }); err != nil || seen != len(texts) {
			t.Errorf("%d tokens: %d embeddings, %v", limit, seen, err)
		}
		if !slices.Equal(a.passes, want) {
			t.Errorf("%d tokens: passes of %v, want %v", limit, a.passes, want)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A vector of zeros is like no other, not NaN.
func TestCosineOfZeros(t *testing.T) {
	zero, one := []float32{0, 0}, []float32{3, 4}
	for _, pair := range [][2][]float32{{zero, one}, {one, zero}, {zero, zero}} {
		if got := cosine(pair[0], pair[1]); got != 0 {
			t.Errorf("%v: %v", pair, got)
		}
	}
	if got := cosine(one, one); got != 1 {
		t.Error(got)
	}
}

func compare(t *testing.T, name string, got [][]float32, want []float64) {
	t.Helper()
	top, worst := 0.0, 0.0
	for i, vec := range got {
		for j, v := range vec {
			w := want[i*len(vec)+j]
			top, worst = max(top, math.Abs(w)), max(worst, math.Abs(float64(v)-w))
		}
	}
	if !(worst <= 1e-5*top) {
		t.Errorf("%s: error %.3g of a largest value %.3g", name, worst, top)
	}
}

// A text's embedding does not depend on what else is embedded with it, and calls may run at the same time.
func TestConcurrent(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.engine.Tokens = 50
	var meta struct{ Texts []string }
	goldens.Load(t, "bert/minilm-tiny").Meta(t, &meta)
	var texts []string
	for i := range 40 {
		texts = append(texts, meta.Texts[i%len(meta.Texts)])
	}
	want, err := e.Embed(context.Background(), texts)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, err := e.Embed(context.Background(), texts[k:k+3])
			if err != nil {
				t.Error(err)
				return
			}
			for i := range got {
				if fmt.Sprint(got[i]) != fmt.Sprint(want[k+i]) {
					t.Errorf("text %d differs when embedded with others", k+i)
				}
			}
		}()
	}
	wg.Wait()
}

func TestErrors(t *testing.T) {
	tiny := goldens.Path(t, "bert/minilm-tiny")
	if _, err := Load(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("a missing folder was loaded")
	}
	if _, err := Load(tiny, MaxLength(1000)); err == nil || !strings.Contains(err.Error(), "1000 tokens is beyond the model's 48 positions") {
		t.Errorf("error %v", err)
	}
	if _, err := Load(tiny, Pooling("max")); err == nil || !strings.Contains(err.Error(), `pooling "max" is not supported`) {
		t.Errorf("error %v", err)
	}
	e, err := Load(tiny)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if vecs, err := e.EmbedPrompt(context.Background(), "shopping", []string{"x"}); vecs != nil || !errors.Is(err, ErrNoPrompt) || !strings.HasSuffix(err.Error(), `"shopping"; the model has "document", "query"`) {
		t.Errorf("error %v", err)
	}
	if _, err := e.EmbedInto(context.Background(), "shopping", []string{"x"}, make([]float32, e.Size())); !errors.Is(err, ErrNoPrompt) {
		t.Errorf("error %v", err)
	}
	if _, _, err := e.EmbedParts(context.Background(), "shopping", []string{"x"}, nil); !errors.Is(err, ErrNoPrompt) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Embed(ctx, []string{"x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if vecs, err := e.Embed(context.Background(), nil); err != nil || len(vecs) != 0 {
		t.Errorf("no texts: %v, %v", vecs, err)
	}
}

// A tensor of the wrong shape, and one that is missing, are errors that name it.
func TestBrokenWeights(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{`"intermediate_size": 64`: `"intermediate_size": 65`, `"num_hidden_layers": 3`: `"num_hidden_layers": 4`} {
		changed := strings.Replace(string(raw), from, to, 1)
		if changed == string(raw) {
			t.Fatalf("config.json has no %s", from)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		if err == nil {
			t.Fatalf("loaded with %s", to)
		}
		want := `tensor "encoder.layer.0.intermediate.dense.weight" has shape [64 32], want [65 32]`
		if strings.Contains(from, "layers") {
			want = "encoder.layer.3."
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Of a folder that does not say how embeddings are made, what is assumed is said; of others nothing.
func TestHeadNote(t *testing.T) {
	for _, c := range []struct {
		folder string
		opts   []Option
		want   string
	}{
		{"bert/minilm-tiny", nil, ""},
		{"bert/gelu-new", nil, "has no modules.json, which would say how embeddings are made: mean pooling, not normalized"},
		{"bert/gelu-new", []Option{Pooling("cls")}, "how embeddings are made: not normalized"},
	} {
		var said []string
		e, err := Load(goldens.Path(t, c.folder), append(c.opts, OnDevice(ref.New()), Warn(func(m string) { said = append(said, m) }))...)
		if err != nil {
			t.Fatal(err)
		}
		e.Close()
		if c.want == "" && said != nil || c.want != "" && (len(said) != 1 || !strings.HasSuffix(said[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.folder, said, c.want)
		}
	}
	yes := true
	f, err := hfmodel.Open(goldens.Path(t, "bert/gelu-new"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if note := HeadNote(f, "mean", &yes); note != "" {
		t.Error(note)
	}
	for config, want := range map[string]gpustage.Pooling{ // sentence-transformers' SentenceTransformer._load_auto_model
		`{"architectures": ["Qwen3ForCausalLM"]}`:                     gpustage.LastPooling,
		`{"architectures": ["Qwen3ForCausalLM"], "is_causal": false}`: gpustage.MeanPooling,
		`{"architectures": ["Qwen3Model"]}`:                           gpustage.MeanPooling,
		`{}`:                                                          gpustage.MeanPooling,
	} {
		f := &hfmodel.Folder{Config: []byte(config)}
		if h, err := HeadOf(f, "", nil); err != nil || h.Pooling != want || want == gpustage.LastPooling != strings.Contains(HeadNote(f, "", nil), ": pooling of the last token, not normalized") {
			t.Errorf("%s: %+v, %v, %q", config, h, err, HeadNote(f, "", nil))
		}
	}
	f.TokenizerDir = t.TempDir()
	if err := os.WriteFile(filepath.Join(f.TokenizerDir, "chat_template.jinja"), []byte("{{ x }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if note := HeadNote(f, "mean", nil); !strings.HasSuffix(note, "texts as they are, not in the tokenizer's chat template, not normalized") {
		t.Error(note)
	}
}

// do_lower_case, as BGE v1.5 has it, asks for nothing where the tokenizer lower-cases, and is refused elsewhere.
func TestLowerCase(t *testing.T) {
	dir := copyFolder(t, goldens.Path(t, "bert/minilm-tiny"))
	edit := func(name, old, now string) {
		file := filepath.Join(dir, name)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(data), old, now, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("sentence_bert_config.json", "{", `{"do_lower_case": true,`)
	e, err := Load(dir, OnDevice(ref.New()))
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	edit("tokenizer.json", `"lowercase": true`, `"lowercase": false`)
	edit("tokenizer_config.json", `"do_lower_case": true`, `"do_lower_case": false`)
	if _, err := Load(dir, OnDevice(ref.New())); err == nil || !strings.Contains(err.Error(), "do_lower_case of sentence_bert_config.json is only supported") {
		t.Errorf("of a tokenizer that does not: %v", err)
	}
}

// Who computes on the processor beside a GPU that nobody has tried is told why.
func TestLoadSaysOnWhat(t *testing.T) {
	open := func(why error) func(gpustage.Share) (gpustage.Device, error) {
		return func(gpustage.Share) (gpustage.Device, error) { return nil, fmt.Errorf("a card: %w", why) }
	}
	gpustage.Register("card", 99, open(gpustage.ErrUntried))
	defer gpustage.Register("card", -1, open(gpustage.ErrAbsent))
	var told []string
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"), Warn(func(m string) { told = append(told, m) }))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got := strings.Join(told, "\n"); !strings.Contains(got, "computing on cpu: a card: has not been run") {
		t.Errorf("told %q", got)
	}
}

// "query" and "document" are prompts of every model, as [Embedder.RolePrompts] has them, and [Prompt] gives one of any name: each is text before a text.
func TestPromptNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config_sentence_transformers.json"), []byte(`{"prompts": {"passage": "the river "}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Load(dir, Prompt("mine", "a stone "))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, text := range map[string]string{"document": "the river ", "passage": "the river ", "query": "", "mine": "a stone "} {
		got, err := e.EmbedPrompt(t.Context(), name, []string{"cat"})
		if err != nil {
			t.Fatal(err)
		}
		want, err := e.EmbedPrompt(t.Context(), "", []string{text + "cat"})
		if err != nil || !slices.Equal(got[0], want[0]) || e.Prompt(name) != text {
			t.Errorf("%s: other than with %q before the text (%v)", name, text, err)
		}
	}
	for range 2 { // a copy, which a caller may change
		got := e.Prompts()
		if !maps.Equal(got, map[string]string{"passage": "the river ", "mine": "a stone "}) {
			t.Errorf("prompts %q", got)
		}
		clear(got)
	}
	for name, want := range map[string]bool{"": true, "query": true, "document": true, "mine": true, "corpus": false} {
		if err := e.CheckPrompt(name); (err == nil) != want || err != nil && !errors.Is(err, ErrNoPrompt) {
			t.Errorf("prompt %q: error %v", name, err)
		}
	}
}

// kept is a device that tells whether it has been closed.
type kept struct {
	gpustage.Device
	closed bool
}

func (d *kept) Close() error { d.closed = true; return d.Device.Close() }

// A device that the caller has given stays open behind the embedder.
func TestDeviceIsTheCallers(t *testing.T) {
	d := &kept{Device: ref.New()}
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"), OnDevice(d))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil || d.closed {
		t.Errorf("%v, or the caller's device has been closed: %t", err, d.closed)
	}
}

// With a text whose embedding is not finite come the embeddings of the others.
func TestNotFiniteAmongOthers(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	want, err := e.Embed(t.Context(), []string{"a cat"})
	if err != nil {
		t.Fatal(err)
	}
	s, word := e.engine.Stream, e.model.Layout.Word()
	vs, err := e.model.Read(s, e.model.Params, word)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := e.tok.ID("fish")
	vs[int(id)*word.Cols] = float32(math.Inf(1))
	e.model.Change(s, func() { s.CopyIn(e.model.Layout.View(e.model.Params, word), gpustage.Bytes(vs)) })
	vecs, err := e.Embed(t.Context(), []string{"a cat", "a fish"})
	var lost *NotFiniteError
	if !errors.As(err, &lost) || lost.Text != 1 || len(vecs) != 2 || !finite(vecs[0]) || vecs[0][0] != want[0][0] {
		t.Errorf("%v, %v, want an error of text 1 and %v", err, vecs, want[0])
	}
}
