package reranker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

func goldenPairs(t *testing.T) (queries, docs []string, scores []float64) {
	g := goldens.Load(t, "rerank/cross")
	var meta struct{ Pairs [][2]string }
	g.Meta(t, &meta)
	for _, p := range meta.Pairs {
		queries, docs = append(queries, p[0]), append(docs, p[1])
	}
	return queries, docs, g.F64(t, "scores")
}

func compare(t *testing.T, got []float32, want []float64) {
	t.Helper()
	worst, top := 0.0, 0.0
	for i, w := range want {
		worst, top = max(worst, math.Abs(float64(got[i])-w)), max(top, math.Abs(w))
	}
	if !(worst <= 1e-5*top) {
		t.Errorf("error %.3g of a largest score %.3g", worst, top)
	}
}

// Against CrossEncoder.predict, texts and all, pairs that are cut among them; whatever is computed at once.
func TestGoldenScores(t *testing.T) {
	queries, docs, want := goldenPairs(t)
	for i, opts := range [][]Option{nil, {OnDevice(ref.New())}, {PassTokens(30)}} {
		r, err := Load(goldens.Path(t, "rerank/cross"), opts...)
		if err != nil {
			t.Fatal(err)
		}
		got, cut, err := r.ScorePairs(context.Background(), queries, docs)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, got, want)
		if n := r.engine.Tokens; (n == 30) != (i == 2) || n == 0 {
			t.Errorf("passes of %d tokens", n)
		}
		if cut == 0 || cut == len(docs) {
			t.Errorf("%d of %d pairs were cut", cut, len(docs))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Rounded inputs of products give other scores, by less than a few of bf16's 8 bits.
func TestBF16(t *testing.T) {
	queries, docs, want := goldenPairs(t)
	r, err := Load(goldens.Path(t, "rerank/cross"), OnDevice(ref.New()), BF16())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, _, err := r.ScorePairs(t.Context(), queries, docs)
	if err != nil {
		t.Fatal(err)
	}
	worst, top := 0.0, 0.0
	for i, w := range want {
		worst, top = max(worst, math.Abs(float64(got[i])-w)), max(top, math.Abs(w))
	}
	if !(worst > 1e-4*top && worst < 0.03*top) {
		t.Errorf("error %.3g of a largest score %.3g", worst, top)
	}
}

func TestSigmoid(t *testing.T) {
	scores := []float32{0, float32(math.Log(3)), -float32(math.Log(3))}
	Sigmoid(scores)
	for i, want := range []float64{0.5, 0.75, 0.25} {
		if !(math.Abs(float64(scores[i])-want) <= 1e-7) {
			t.Errorf("%v, want %v", scores[i], want)
		}
	}
}

func TestConcurrent(t *testing.T) {
	queries, docs, want := goldenPairs(t)
	r, err := Load(goldens.Path(t, "rerank/cross"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var group sync.WaitGroup
	for k := range 6 {
		group.Go(func() {
			got, err := r.Score(context.Background(), queries[k], docs[k:k+1])
			if err != nil {
				t.Error(err)
				return
			}
			compare(t, got, want[k:k+1])
		})
	}
	group.Wait()
}

// open opens a folder, and a stream of the reference device.
func open(t *testing.T, dir string) (*hfmodel.Folder, gpustage.Device, gpustage.Stream) {
	t.Helper()
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	return f, d, s
}

// Where config.json does not say how many labels there are, the head does: one is a score, two are none.
func TestLabelsOfHead(t *testing.T) {
	queries, docs, want := goldenPairs(t)
	for labels := 1; labels < 3; labels++ {
		dir := t.TempDir()
		copyFiles(t, dir, goldens.Path(t, "rerank/cross"), "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
		f, _, _ := open(t, dir)
		var all []safetensors.Tensor
		for _, name := range f.Names() {
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			if name == "classifier.weight" {
				x.Shape, x.Data = []int{labels, x.Shape[1]}, bytes.Repeat(x.Data, labels)
			}
			all = append(all, x)
		}
		var config map[string]any
		if err := json.Unmarshal(f.Config, &config); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"id2label", "label2id", "num_labels"} {
			delete(config, key)
		}
		data, err := json.Marshal(config)
		if err := errors.Join(err, safetensors.Write(filepath.Join(dir, "new"), all, nil), os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "model.safetensors")),
			os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)); err != nil {
			t.Fatal(err)
		}
		r, err := Load(dir)
		if labels == 2 {
			if !errors.Is(err, transformer.ErrUnsupported) || !strings.Contains(err.Error(), "classifier.weight is of 2 labels") {
				t.Errorf("2 labels: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := r.ScorePairs(t.Context(), queries[:1], docs[:1])
		if err = errors.Join(err, r.Close()); err != nil || math.Abs(float64(got[0])-want[0]) > 1e-4 {
			t.Errorf("a score of %v, want %v: %v", got, want[0], err)
		}
	}
}

// What SaveReranker writes is read as what was saved.
func TestSaved(t *testing.T) {
	queries, docs, want := goldenPairs(t)
	from := goldens.Path(t, "rerank/cross")
	f, d, s := open(t, from)
	tok, err := tokenize.Load(from)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := Describe(f, tok, c, TextOptions{Truncation: "only_second", MaxLength: 20})
	if err != nil {
		t.Fatal(err)
	}
	m, err := embedder.LoadModel(f, d, s, transformer.Head{}, transformer.Options{}, spec.Configure)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "saved")
	tensors, err := embedder.Read(m, s, m.Layout.Params)
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, f, m, tensors, spec, hfmodel.Card{}); err != nil {
		t.Fatal(err)
	}
	saved, _, _ := open(t, dir)
	for asked, want := range map[string]string{"": "only_second", "longest_first": "longest_first"} {
		if got, err := Describe(saved, tok, c, TextOptions{Truncation: asked}); err != nil || got.MaxLength != 20 || got.Folder.Truncation != want {
			t.Errorf("truncation %q: %+v, %v", asked, got, err)
		}
	}
	r, err := Load(dir, OnDevice(d), MaxLength(24))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := r.ScorePairs(context.Background(), []string{strings.Repeat("cat ", 30)}, []string{"a"}); err == nil || !strings.Contains(err.Error(), "pair 0") {
		t.Errorf("a query that fills the pair with only_second: %v", err)
	}
	whole := 0
	for i := range queries {
		got, cut, err := r.ScorePairs(context.Background(), queries[i:i+1], docs[i:i+1])
		if err == nil && cut == 0 {
			whole++
			compare(t, got, want[i:i+1])
		}
	}
	if whole < 3 {
		t.Errorf("only %d pairs were compared", whole)
	}
}

// A decoder's folder: LogitScore's tokens, a template's, and those that CrossEncoder takes if nothing is said.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	copyFiles(t, dir, goldens.Path(t, "rerank/qwen3-yes-no"), "config.json", "model.safetensors")
	writeTokenizer(t, dir)
	score := func() float32 {
		t.Helper()
		r, err := Load(dir, OnDevice(ref.New()))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s, err := r.Score(context.Background(), "a", []string{"b c"})
		if err != nil {
			t.Fatal(err)
		}
		return s[0]
	}
	want := func(ids ...int32) float32 {
		t.Helper()
		return direct(t, dir, ids)
	}
	if got := score(); got != want(11, 12, 13) {
		t.Errorf("yes and no: %v, want %v", got, want(11, 12, 13))
	}
	spec := `{"template":[{"text":"judge:"},{"text":"a {query}: {document}","cut":true},{"text":"{instruction}"}],"instruction":"judge"}`
	if err := os.WriteFile(filepath.Join(dir, "reranker.json"), []byte(spec), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, w := score(), want(10, 14, 11, 11, 14, 12, 13, 10); got != w {
		t.Errorf("template: %v, want %v", got, w)
	}
	r, err := Load(dir, OnDevice(ref.New()), MaxLength(7))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if s, err := r.Score(context.Background(), "a", []string{"b c"}); err != nil || s[0] != want(10, 14, 11, 11, 14, 12, 10) {
		t.Errorf("cut: %v, %v", s, err)
	}
	// FlagEmbedding's Yes is a text: whatever the tokenizer begins it with.
	f, _, _ := open(t, dir)
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenize.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxPositions = 512
	if spec, err := Describe(f, tok, c, TextOptions{Template: "bge", MaxLength: 512}); err != nil || fmt.Sprint(spec.Scorer.Tokens) != "[7]" {
		t.Errorf("%+v, %v", spec, err)
	}
	// A template has its own tokens, in the place of the folder's, and no others beside them; an instruction is the caller's first.
	var no, other int32 = 9, 12
	f.Reranker = &hfmodel.Reranker{True: "no", TrueID: &no, FalseID: &other, Instruction: "judge"}
	for _, x := range []struct{ template, instruction, tokens, says, instructs string }{
		{"bge", "", "[7]", "", tokenize.Templates["bge"].Instruction}, {"qwen3", "c", "[7 9]", "yes", "c"}, {"", "", "[9 12]", "no", "judge"},
	} {
		spec, err := Describe(f, tok, c, TextOptions{Template: x.template, Instruction: x.instruction, MaxLength: 512})
		if err != nil || fmt.Sprint(spec.Scorer.Tokens) != x.tokens || spec.Folder.True != x.says || spec.Folder.Instruction != x.instructs {
			t.Errorf("%+v: %+v, %v", x, spec, err)
		}
	}
	r, err = Load(dir, OnDevice(ref.New()), Instruction("c"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if s, err := r.Score(context.Background(), "a", []string{"b c"}); err != nil || s[0] != want(10, 14, 11, 11, 14, 12, 13, 13) {
		t.Errorf("another instruction: %v, %v", s, err)
	}
	if _, err := Load(dir, OnDevice(ref.New()), MaxLength(3)); err == nil || !strings.Contains(err.Error(), "3 tokens leave no room beside the 3") {
		t.Errorf("%v", err)
	}
}

func copyFiles(t *testing.T, dir, from string, names ...string) {
	t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// writeTokenizer writes one that knows some words.
func writeTokenizer(t *testing.T, dir string) {
	t.Helper()
	vocabulary := map[string]int{"[UNK]": 0, "yes": 7, "no": 9, "judge": 10, "a": 11, "b": 12, "c": 13, ":": 14}
	data, _ := json.Marshal(map[string]any{
		"version": "1.0", "model": map[string]any{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary},
		"normalizer": map[string]any{"type": "Lowercase"}, "pre_tokenizer": map[string]any{"type": "BertPreTokenizer"},
	})
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// direct scores token ids with the folder's model.
func direct(t *testing.T, dir string, ids []int32) float32 {
	t.Helper()
	return scoreIDs(t, dir, ids, func(f *hfmodel.Folder, c *transformer.Config) (err error) {
		c.Scorer, err = c.TokenScorer(f.Config, 7, 9)
		return err
	})
}

// scoreIDs scores token ids with the folder's model and a head.
func scoreIDs(t *testing.T, dir string, ids []int32, head func(*hfmodel.Folder, *transformer.Config) error) float32 {
	t.Helper()
	f, d, s := open(t, dir)
	m, err := embedder.LoadModel(f, d, s, transformer.Head{}, transformer.Options{}, func(c *transformer.Config) {
		if err := head(f, c); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := gpustage.NewArena(d, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	p := m.Forward(s, a, transformer.Rows{IDs: ids, Cu: []int32{0, int32(len(ids))}}, false, false)
	v, err := m.ReadVector(s, p.Embeddings())
	if err != nil {
		t.Fatal(err)
	}
	return v[0]
}

// A layer-wise reranker scores by its last layer, or by the one that is asked for, and reads pairs as FlagEmbedding writes them.
func TestCutoffLayer(t *testing.T) {
	dir := t.TempDir()
	from := goldens.Path(t, "rerank/minicpm-layers")
	copyFiles(t, dir, from, "config.json", "model.safetensors")
	writeTokenizer(t, dir)
	f, _, _ := open(t, dir)
	tok, err := tokenize.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	if spec, err := Describe(f, tok, c, TextOptions{MaxLength: 512}); err == nil || !strings.Contains(err.Error(), "beyond the model's 20 positions") {
		t.Errorf("%v, %v", spec, err)
	}
	wide := c
	wide.MaxPositions = 512
	if spec, err := Describe(f, tok, wide, TextOptions{MaxLength: 512}); err != nil || len(spec.Folder.Template) != len(tokenize.Templates["bge"].Template) || spec.Layers != 3 {
		t.Errorf("%+v, %v", spec, err)
	}
	if spec, err := Describe(f, tok, wide, TextOptions{MaxLength: 512, Template: "qwen3"}); err != nil || len(spec.Folder.Template) != len(tokenize.Templates["qwen3"].Template) {
		t.Errorf("another template: %+v, %v", spec, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "reranker.json"), []byte(`{"template":[{"text":"{query}:"},{"text":"{document}","cut":true}]}`), 0o666); err != nil {
		t.Fatal(err)
	}
	seen := map[float32]bool{}
	for _, layer := range []int{0, 2, 3} {
		r, err := Load(dir, OnDevice(ref.New()), CutoffLayer(layer))
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Score(context.Background(), "a", []string{"b c"})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		want := scoreIDs(t, dir, []int32{11, 14, 12, 13}, func(f *hfmodel.Folder, c *transformer.Config) (err error) {
			var at int
			c.Scorer, at, err = c.LayerScorer(f.Config, layer)
			c.CutOff(at)
			return err
		})
		if s[0] != want {
			t.Errorf("layer %d: %v, want %v", layer, s[0], want)
		}
		seen[s[0]] = true
	}
	if len(seen) != 2 { // 0 is 3
		t.Errorf("scores %v", seen)
	}
	for layer, want := range map[int]string{1: "layer 1 has no score: those of layers 2 to 3 have", 4: "layer 4 has no score"} {
		if _, err := Load(dir, OnDevice(ref.New()), CutoffLayer(layer)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("layer %d: %v", layer, err)
		}
	}
	if _, err := embedder.Load(dir); err == nil || !strings.Contains(err.Error(), "is a reranker") {
		t.Errorf("as an embedder: %v", err)
	}
}

// A decoder that classifies scores by the last token that is not padding, as transformers' classes do, whatever a pair ends with; a new head is trained and
// saved with the tokenizer's padding, with which CrossEncoder fills pairs up, unless the model has no embedding for that.
func TestPadding(t *testing.T) {
	all := [3][]int32{{11, 12, 13, 13}, {13, 13, 13}, {11, 0}}
	for pad, want := range map[string][3][]int32{"13": {{11, 12}, {13}, all[2]}, "0": {all[0], all[1], {11}}, "null": all, "-1": all} {
		dir := t.TempDir()
		copyFiles(t, dir, goldens.Path(t, "rerank/qwen3-score"), "config.json", "model.safetensors")
		writeTokenizer(t, dir)
		config := filepath.Join(dir, "config.json")
		data, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(config, bytes.Replace(data, []byte(`"pad_token_id": 1`), []byte(`"pad_token_id": `+pad), 1), 0o666),
			os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"pad_token": "c"}`), 0o666)); err != nil { // by which transformers' class does not go
			t.Fatal(err)
		}
		r, err := Load(dir, OnDevice(ref.New()))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got, _, err := r.ScorePairs(t.Context(), []string{"a", "c", "a"}, []string{"b c c", "c c", "unknown"})
		if err != nil {
			t.Fatal(err)
		}
		for i, ids := range want {
			if score := scoreIDs(t, dir, ids, func(f *hfmodel.Folder, c *transformer.Config) (err error) {
				c.Scorer, err = c.Classifier(f.Config, false)
				return err
			}); got[i] != score {
				t.Errorf("padding %s, pair %d: %v, want %v", pad, i, got[i], score)
			}
		}
	}

	for _, c := range []struct {
		config, tokenizer, want string
		ids                     int // of "a" and "b c"
	}{{"1", "c", "13", 2}, {"null", "c", "13", 2}, {"13", "", "13", 2}, {"1", "beyond", "1", 3}, {"null", "beyond", "null", 3}} {
		from, dir := t.TempDir(), filepath.Join(t.TempDir(), "saved")
		copyFiles(t, from, goldens.Path(t, "rerank/qwen3-yes-no"), "config.json", "model.safetensors")
		writeTokenizer(t, from)
		f, _, _ := open(t, from)
		tokenizer, err := os.ReadFile(filepath.Join(from, "tokenizer.json"))
		added := ""
		for id := 8; id < 40; id++ { // which the model has embeddings for
			added += fmt.Sprintf(`{"id": %d, "content": "<%d>"}, `, id, id)
		}
		if err := errors.Join(err,
			os.WriteFile(filepath.Join(from, "tokenizer.json"), bytes.Replace(tokenizer, []byte("{"), []byte(`{"added_tokens": [`+added+`{"id": 40, "content": "beyond"}], `), 1), 0o666),
			os.WriteFile(filepath.Join(from, "tokenizer_config.json"), []byte(strings.Replace(`{"pad_token": "`+c.tokenizer+`"}`, `{"pad_token": ""}`, `{}`, 1)), 0o666),
			os.WriteFile(filepath.Join(from, "config.json"), bytes.Replace(f.Config, []byte(`"pad_token_id": 1`), []byte(`"pad_token_id": `+c.config), 1), 0o666)); err != nil {
			t.Fatal(err)
		}
		m, err := LoadTrainable(from, ref.New(), TextOptions{NewHead: true}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if ids, _, _, err := m.Pairs.Append(nil, nil, "a", "b c"); err != nil || len(ids) != c.ids {
			t.Errorf("%+v: trained on %v, %v", c, ids, err)
		}
		if err := m.Save(dir, "", ""); err != nil {
			t.Fatal(err)
		}
		saved, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil || !strings.Contains(string(saved), `"pad_token_id": `+c.want+",") {
			t.Errorf("%+v: saved as %s, %v", c, saved, err)
		}
	}
}

// Candidates are scored in their places, pairs that are cut are counted, and a closed reranker says so.
func TestRerank(t *testing.T) {
	var told []string
	r, err := Load(goldens.Path(t, "rerank/cross"), Progress(func(done, total int) { told = append(told, fmt.Sprint(done, "/", total)) }))
	if err != nil {
		t.Fatal(err)
	}
	queries, docs, want := goldenPairs(t)
	data := &dataset.Retrieval{Queries: queries[:3], Docs: docs}
	data.Queries[1] = queries[len(queries)-2] // the one that is cut
	run := evaluate.Run{{{Doc: 0}}, {{Doc: int32(len(docs) - 2)}, {Doc: 1}}, {}}
	got, cut, err := r.Rerank(context.Background(), data, run)
	if err != nil || cut == 0 || len(got) != 3 || len(got[2]) != 0 {
		t.Fatalf("%v, %d cut, %v", got, cut, err)
	}
	compare(t, []float32{got[0][0].Score, got[1][0].Score}, []float64{want[0], want[len(docs)-2]})
	rerankPairs = 2 // of two parts, all is together
	defer func(n int) { rerankPairs = n }(16384)
	scores, err := ScorePairs(t.Context(), &r.engine, r.pairs, queries, docs)
	if err != nil || len(scores) != len(docs) {
		t.Fatalf("%v, %v", scores, err)
	}
	narrow := make([]float32, len(scores))
	for i, s := range scores {
		narrow[i] = float32(s)
	}
	again, _, err := r.ScorePairs(t.Context(), queries, docs)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range again {
		if !(math.Abs(float64(narrow[i]-s)) <= 1e-5) {
			t.Errorf("pair %d: %v in parts, %v at once", i, narrow[i], s)
		}
	}
	slices.Reverse(run)
	slices.Reverse(data.Queries)
	run[0] = evaluate.Run{{{Doc: int32(len(docs) - 2)}, {Doc: 2}}}[0]
	data.Queries[0] = data.Queries[1]
	parts, cuts, err := r.Rerank(context.Background(), data, run)
	if err != nil || cuts != 2*cut || len(parts) != 3 || len(parts[0]) != 2 || len(parts[1]) != 2 || len(parts[2]) != 1 {
		t.Fatalf("%v, %d cut of %d, %v", parts, cuts, 2*cut, err)
	}
	compare(t, []float32{parts[0][0].Score, parts[1][0].Score, parts[1][1].Score, parts[2][0].Score}, []float64{float64(got[1][0].Score), float64(got[1][0].Score), float64(got[1][1].Score), float64(got[0][0].Score)})
	slices.Reverse(run)
	slices.Reverse(data.Queries)
	run[2] = nil
	rerankPairs, told = 16384, told[:1]
	for range 30 {
		run[2] = append(run[2], evaluate.Hit{})
	}
	if _, _, err := r.Rerank(context.Background(), data, run); err != nil || !slices.Equal(told, []string{"3/3", "16/33", "32/33", "33/33"}) {
		t.Errorf("progress %v, %v", told, err)
	}
	if got[1][0].Doc != run[1][0].Doc || run[1][0].Score != 0 {
		t.Errorf("%v of %v", got, run)
	}
	if _, _, err := r.Rerank(context.Background(), data, run[:2]); err == nil || !strings.Contains(err.Error(), "for 2 queries, and the task has 3") {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Rerank(context.Background(), data, run); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("%v", err)
	}
}

// A head that is no part of the model's body is saved under its own name, as transformers has it.
func TestSavedNames(t *testing.T) {
	for _, golden := range []string{"llama-yes-no", "qwen3-score", "bert", "xlm-roberta", "mpnet", "deberta-v2", "distilbert", "electra", "ernie", "jina", "modernbert-mean"} {
		from, dir := t.TempDir(), filepath.Join(t.TempDir(), "saved")
		copyFiles(t, from, goldens.Path(t, "rerank/"+golden), "config.json", "model.safetensors")
		writeTokenizer(t, from)
		if err := os.WriteFile(filepath.Join(from, "tokenizer_config.json"), []byte(`{"model_input_names": ["input_ids", "attention_mask"]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := LoadTrainable(from, ref.New(), TextOptions{}, transformer.Options{})
		if err != nil {
			t.Fatalf("%s: %v", golden, err)
		}
		defer m.Close()
		if err := m.Save(dir, "", ""); err != nil {
			t.Fatalf("%s: %v", golden, err)
		}
		names := map[string][]string{}
		for _, folder := range []string{from, dir} {
			f, err := hfmodel.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			names[folder] = slices.Sorted(slices.Values(f.Names()))
			f.Close()
		}
		if !slices.Equal(names[from], names[dir]) || golden == "llama-yes-no" && !slices.Contains(names[dir], "lm_head.weight") {
			t.Errorf("%s: saved %v, of %v", golden, names[dir], names[from])
		}
	}
}

func TestErrors(t *testing.T) {
	f, _, _ := open(t, goldens.Path(t, "rerank/cross"))
	tok, err := tokenize.Load(f.Dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	for types, wrong := range map[int]bool{0: false, 1: true, 2: false} {
		c.TypeVocab = types
		if _, err := Describe(f, tok, c, TextOptions{}); (err != nil) != wrong || wrong && !strings.Contains(err.Error(), "a document's tokens type 1, and the model has 1") {
			t.Errorf("a model of %d types of tokens: %v", types, err)
		}
	}
	if _, err := Load(goldens.Path(t, "bert/minilm-tiny")); err == nil || !strings.Contains(err.Error(), "no reranker") {
		t.Errorf("an embedder: %v", err)
	}
	if _, err := embedder.Load(goldens.Path(t, "rerank/cross")); err == nil || !strings.Contains(err.Error(), "is a reranker") {
		t.Errorf("a reranker as an embedder: %v", err)
	}
	for want, o := range map[string]Option{"an instruction has its place in a template": Instruction("judge"), "a cutoff layer is for layer-wise rerankers": CutoffLayer(1)} {
		if _, err := Load(goldens.Path(t, "rerank/cross"), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Load(goldens.Path(t, "rerank/cross"), Template("x")); err == nil || !strings.Contains(err.Error(), "no template") {
		t.Errorf("%v", err)
	}
	if _, err := Describe(f, tok, c, TextOptions{Template: "bge", Truncation: "only_second"}); err == nil || !strings.Contains(err.Error(), "a template says what is cut") {
		t.Errorf("a truncation of pairs in a template: %v", err)
	}
	// A folder that has lost its head is not given a new one.
	headless := t.TempDir()
	if err := os.CopyFS(headless, os.DirFS(f.Dir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(headless, "model.safetensors")
	weights, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(weights, []byte(`"classifier.weight"`), []byte(`"classifiers.weigh"`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(headless); err == nil || !strings.Contains(err.Error(), `"classifier.weight"`) {
		t.Errorf("without its head: %v", err)
	}
	// A tokenizer of another model, and what an embedder has behind its pooling.
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(f.Dir)); err != nil {
		t.Fatal(err)
	}
	words, err := os.ReadFile(filepath.Join(other, "tokenizer.json"))
	if err == nil {
		more := regexp.MustCompile(`"vocab": ?\{`).ReplaceAll(words, fmt.Appendf(nil, `"vocab": {"too much": %d, `, c.Vocab))
		err = os.WriteFile(filepath.Join(other, "tokenizer.json"), more, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(other); err == nil || !strings.Contains(err.Error(), "they do not belong together") {
		t.Errorf("another model's tokenizer: %v", err)
	}
	dense := c
	dense.Dense = []transformer.Dense{{Name: "2_Dense", Out: 3}}
	if (&Spec{Scorer: transformer.Scorer{Out: "classifier"}}).Configure(&dense); len(dense.Dense) > 0 || dense.Scorer.None() {
		t.Errorf("a reranker made of an embedder has %+v and %+v", dense.Dense, dense.Scorer)
	}
	// A chat template is not read: where a folder says that pairs go through it that is an error, and else it is said.
	c.TypeVocab = 2
	f.Reranker.Chat = true
	for name, wrong := range map[string]bool{"": true, "bge": false} {
		if _, err := Describe(f, tok, c, TextOptions{Template: name}); (err != nil && strings.Contains(err.Error(), "name the template: bge or qwen3")) != wrong {
			t.Errorf("in a chat template, named %q: %v", name, err)
		}
	}
	f.Reranker.Template = tokenize.Templates["bge"].Template // as Save writes it besides
	if _, err := Describe(f, tok, c, TextOptions{}); err != nil {
		t.Errorf("with a template of its own: %v", err)
	}
	chatty := t.TempDir()
	if err := os.CopyFS(chatty, os.DirFS(f.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(chatty, "chat_template.jinja"), []byte("{{ x }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(chatty, "modules.json")); err != nil {
		t.Fatal(err)
	}
	moduled, plain := t.TempDir(), t.TempDir()
	for _, dir := range []string{moduled, plain} {
		if err := os.CopyFS(dir, os.DirFS(f.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(moduled, "chat_template.jinja"), []byte("{{ x }}"), 0o600), os.Remove(filepath.Join(plain, "modules.json"))); err != nil {
		t.Fatal(err)
	}
	bare, told := t.TempDir(), t.TempDir() // a language model alone, and one that says how it scores
	for _, dir := range []string{bare, told} {
		copyFiles(t, dir, goldens.Path(t, "rerank/qwen3-yes-no"), "config.json", "model.safetensors")
		writeTokenizer(t, dir)
	}
	if err := os.WriteFile(filepath.Join(told, "reranker.json"), []byte(`{"true_token": "yes"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{f.Dir: "", chatty: "not in the tokenizer's chat template", moduled: "", plain: "", bare: `the logit of "yes" less that of "no" behind them`, told: ""} {
		var said []string
		r, err := Load(dir, OnDevice(ref.New()), Warn(func(m string) { said = append(said, m) }))
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if (len(said) > 0) != (want != "") || !strings.Contains(strings.Join(said, ""), want) {
			t.Errorf("%s: %q", dir, said)
		}
	}
	adapter := t.TempDir()
	copyFiles(t, adapter, goldens.Path(t, "lora/bert-qv"), "adapter_config.json", "adapter_model.safetensors")
	config, err := os.ReadFile(filepath.Join(adapter, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	base := goldens.Path(t, "bert/minilm-tiny")
	if err := os.WriteFile(filepath.Join(adapter, "adapter_config.json"), bytes.Replace(config, []byte("testdata/golden/bert/minilm-tiny"), []byte(base), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTrainable(adapter, ref.New(), TextOptions{}, transformer.Options{}); err == nil || !strings.Contains(err.Error(), adapter+" is an adapter") || !strings.Contains(err.Error(), "PEFT's merge_and_unload") {
		t.Errorf("an adapter: %v", err)
	}
}
