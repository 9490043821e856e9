package reranker

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// What Save writes scores as the model that was loaded, and as the one whose parameters have changed, LoRA's factors among them.
func TestTrainable(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := goldens.Path(t, "rerank/cross")
	query, documents := "a small bird", []string{"The cat sees a bird.", "open the file"}
	score := func(folder string) []float32 {
		t.Helper()
		r, err := Load(folder, OnDevice(d))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		scores, err := r.Score(t.Context(), query, documents)
		if err != nil {
			t.Fatal(err)
		}
		return scores
	}
	want := score(folder)
	for name, o := range map[string]transformer.Options{
		"whole": {},
		"LoRA":  {Tuning: transformer.Tuning{LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, Targets: []string{transformer.AllLinear}, Seed: 1}}},
	} {
		m, err := LoadTrainable(folder, d, TextOptions{}, o)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		out := filepath.Join(t.TempDir(), "runs", "out")
		if err := m.Save(out, "", ""); err != nil {
			t.Fatal(err)
		}
		for i, v := range score(out) {
			if !(math.Abs(float64(v-want[i])) <= 1e-5) {
				t.Errorf("%s: saved as it was, score %d is %v, want %v", name, i, v, want[i])
			}
		}
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Model.Layout.Training() {
			if o.Tuning.LoRA != nil && !p.Factor() || o.Tuning.LoRA == nil && !strings.HasSuffix(p.Name, "dense.weight") {
				continue
			}
			vs := make([]float32, p.Len())
			for i := range vs {
				vs[i] = float32(i%11-5) / 40
			}
			m.Model.Change(s, func() { s.CopyIn(m.Model.Layout.View(m.Model.Params, p), gpustage.Bytes(vs)) })
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		ids, kinds, _, err := m.Pairs.EncodeAll(t.Context(), []string{query, query}, documents)
		if err != nil {
			t.Fatal(err)
		}
		e, changed := &embedder.Engine{Model: m.Model, Stream: s}, make([]float32, 2)
		if err := e.EmbedTyped(t.Context(), ids, kinds, func(i int, v []float32) { changed[i] = v[0] }); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Close(), e.CloseStream()); err != nil {
			t.Fatal(err)
		}
		if err := m.Save(out, "", "Changed."); err != nil {
			t.Fatal(err)
		}
		got := score(out)
		for i, v := range got {
			if !(math.Abs(float64(v-changed[i])) <= 1e-5*(1+math.Abs(float64(v)))) {
				t.Errorf("%s: saved, score %d is %v, the model's is %v", name, i, v, changed[i])
			}
		}
		if slices.Equal(got, want) {
			t.Errorf("%s: nothing has changed", name)
		}
	}

	small, err := LoadTrainable(folder, d, TextOptions{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	out := filepath.Join(t.TempDir(), "half")
	if err := small.Save(out, "bf16", "By hand."); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(filepath.Join(out, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if x, err := f.Tensor("classifier.weight"); err != nil || x.DType != safetensors.BF16 {
		t.Errorf("%v: %v", err, x.DType)
	}
	if card, err := os.ReadFile(filepath.Join(out, "README.md")); err != nil || !strings.Contains(string(card), "By hand.") {
		t.Errorf("%v: the card is %s", err, card)
	}
	if err := small.Save(out, "f8", ""); err == nil || !strings.Contains(err.Error(), `precision "f8"`) {
		t.Error(err)
	}

	closed, err := LoadTrainable(folder, d, TextOptions{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Error(err)
	}
	if err := closed.Save(filepath.Join(t.TempDir(), "x"), "", ""); !errors.Is(err, embedder.ErrClosed) {
		t.Error(err)
	}
	judged := &dataset.Retrieval{QueryIDs: []string{"1"}, Queries: []string{"a query"}, DocIDs: []string{"a", "b"}, Docs: []string{"one document", "another"}, Judgements: []dataset.Judgement{{Query: 0, Doc: 1, Relevance: 1}}}
	task, err := embedder.NewTask(t.Context(), judged, embedder.Text{})
	if err != nil {
		t.Fatal(err)
	}
	first := evaluate.Run{{{Doc: 0, Score: 3}, {Doc: 1, Score: 2}}}
	if _, err := closed.Evaluate(t.Context(), task, first); !errors.Is(err, embedder.ErrClosed) {
		t.Error(err)
	}
	r, err := Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	scores, err := r.Score(t.Context(), "a query", judged.Docs)
	if err != nil {
		t.Fatal(err)
	}
	rank := 0.5
	if scores[1] > scores[0] {
		rank = 1
	}
	if got, err := small.Evaluate(t.Context(), task, first, evaluate.MRR(10)); err != nil || got.Means[0] != rank {
		t.Errorf("%v, %v, want %v by scores %v", got, err, rank, scores)
	}
	if _, err := small.Evaluate(t.Context(), task, nil); err == nil || !strings.Contains(err.Error(), "for 0 queries") {
		t.Error(err)
	}
	if err := small.Model.Claim(t.Context(), `graph "x"`); err != nil {
		t.Fatal(err)
	}
	if _, err := small.Evaluate(t.Context(), task, first); err == nil || !strings.Contains(err.Error(), `in training by graph "x": within a graph stages.EvaluateReranker measures it`) {
		t.Error(err)
	}
	for want, text := range map[string]TextOptions{"a cutoff layer is for scoring": {CutoffLayer: 2}, "no such file": {}} {
		dir := folder
		if text.CutoffLayer == 0 {
			dir = filepath.Join(t.TempDir(), "nowhere")
		}
		if _, err := LoadTrainable(dir, d, text, transformer.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
}

// A model whose score is a token's logit says which, and calls after Close say that it is closed, of no documents too.
func TestHeadAndClosed(t *testing.T) {
	r, err := Load(goldens.Path(t, "rerank/cross"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	for _, documents := range [][]string{nil, {"a"}} {
		if _, err := r.Score(t.Context(), "q", documents); !errors.Is(err, embedder.ErrClosed) {
			t.Errorf("%d documents: %v", len(documents), err)
		}
	}
	for _, head := range []transformer.Scorer{{Tokens: []int32{3, 4}, LMHead: "lm_head"}, {}} {
		m := &Trainable{spec: &Spec{Scorer: head}}
		if !slices.Equal(m.Head(), head.Tied()) {
			t.Errorf("%v, want %v", m.Head(), head.Tied())
		}
	}
}

func TestTrainableWithoutDevice(t *testing.T) {
	before := runtime.NumGoroutine()
	m, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), nil, TextOptions{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
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

// A new head is the seed's. A model that no folder of a reranker can be written of is refused before anything trains.
func TestNewHead(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var heads [3][]float32
	for i, seed := range []uint64{1, 2, 1} {
		m, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d, TextOptions{Seed: seed}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p, _ := m.Model.Layout.Find("classifier.weight")
		if heads[i], err = m.Model.Read(s, m.Model.Params, p); err != nil || len(heads[i]) == 0 {
			t.Fatal(err)
		}
		heads[i] = slices.Clone(heads[i])
	}
	if slices.Equal(heads[0], heads[1]) || !slices.Equal(heads[0], heads[2]) {
		t.Errorf("with seeds 1, 2, 1 new heads begin with %v, %v, %v", heads[0][:2], heads[1][:2], heads[2][:2])
	}
	if _, err := LoadTrainable(goldens.Path(t, "families/nomic-bert"), d, TextOptions{}, transformer.Options{}); err == nil || !strings.Contains(err.Error(), `a reranker of model_type "nomic_bert" is not supported`) {
		t.Error(err)
	}
}

// A new head of a language model is saved as what scores, whatever tokens the folder or a template has for that.
func TestHeadReplaced(t *testing.T) {
	base, d := t.TempDir(), ref.New()
	copyFiles(t, base, goldens.Path(t, "rerank/qwen3-yes-no"), "config.json", "model.safetensors")
	writeTokenizer(t, base)
	config := filepath.Join(base, "config.json")
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	positions := regexp.MustCompile(`"max_position_embeddings": \d+`) // a template is long
	if err := os.WriteFile(config, positions.ReplaceAll(data, []byte(`"max_position_embeddings": 256`)), 0o666); err != nil {
		t.Fatal(err)
	}
	// A folder that has tokens, as CrossEncoder has them.
	had := filepath.Join(t.TempDir(), "had")
	words, err := LoadTrainable(base, d, TextOptions{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(words.Save(had, "", ""), words.Close()); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		from string
		text TextOptions
	}{"tokens of the folder": {had, TextOptions{NewHead: true, Seed: 1}}, "tokens of a template": {base, TextOptions{NewHead: true, Seed: 1, Template: "bge"}}} {
		m, err := LoadTrainable(x.from, d, x.text, transformer.Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer m.Close()
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		e := &embedder.Engine{Model: m.Model, Stream: s}
		want, err := ScorePairs(t.Context(), e, m.Pairs, []string{"a"}, []string{"b c"})
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		if err := errors.Join(e.Close(), e.CloseStream(), m.Save(out, "", "")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r, err := Load(out, OnDevice(d))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer r.Close()
		if got, err := r.Score(t.Context(), "a", []string{"b c"}); err != nil || !(math.Abs(float64(got[0])-want[0]) <= 1e-6*math.Abs(want[0])) {
			t.Errorf("%s: what is saved scores %v, %v; the model %v", name, got, err, want)
		}
	}
}
