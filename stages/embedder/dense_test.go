package embedder

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/io/dataset"
	"contraflow/io/safetensors"
	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
)

// A Dense module's folder embeds as its formula says, in more dimensions than the model has, and so do similarity and evaluation.
func TestDense(t *testing.T) {
	const from, to = 32, 40
	modules := func(more string) string {
		dir := filepath.Join(t.TempDir(), "m")
		if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
			t.Fatal(err)
		}
		text := `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}` + more + `]`
		if err := os.WriteFile(filepath.Join(dir, "modules.json"), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	weight, bias := make([]float32, to*from), make([]float32, to)
	for i := range weight {
		weight[i] = float32(math.Sin(float64(i*i))) / 4
	}
	for i := range bias {
		bias[i] = float32(i%7-3) / 8
	}
	dir := modules(`, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}, {"path": "3", "type": "sentence_transformers.models.Normalize"}`)
	w, err := safetensors.FromFloat32s("linear.weight", []int{to, from}, weight)
	if err != nil {
		t.Fatal(err)
	}
	b, err := safetensors.FromFloat32s("linear.bias", []int{to}, bias)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "2_Dense"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(dir, "2_Dense", "model.safetensors"), []safetensors.Tensor{w, b}, nil); err != nil {
		t.Fatal(err)
	}
	config := `{"in_features": 32, "out_features": 40, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh"}`
	if err := os.WriteFile(filepath.Join(dir, "2_Dense", "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}

	ctx := context.Background()
	texts := []string{"a gradient", "of the loss", "and then all ranks add what they have", "x"}
	embed := func(dir string) (*Embedder, [][]float32) {
		e, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		out, err := e.EmbedPrompt(ctx, "", texts)
		if err != nil {
			t.Fatal(err)
		}
		return e, out
	}
	_, pooled := embed(modules(""))
	var want []float64
	for _, x := range pooled {
		y, sum := make([]float64, to), 0.0
		for i := range y {
			y[i] = float64(bias[i])
			for j, v := range x {
				y[i] += float64(weight[i*from+j]) * float64(v)
			}
			y[i] = math.Tanh(y[i])
			sum += y[i] * y[i]
		}
		for _, v := range y {
			want = append(want, v/math.Sqrt(sum))
		}
	}
	e, got := embed(dir)
	if e.Size() != to {
		t.Fatalf("embeddings of %d", e.Size())
	}
	compare(t, "dense", got, want)

	ids := []string{"0", "1", "2", "3"}
	r := &dataset.Retrieval{QueryIDs: ids, Queries: texts, DocIDs: ids, Docs: texts}
	for i := range ids {
		r.Judgements = append(r.Judgements, dataset.Judgement{Query: i, Doc: i, Relevance: 1})
	}
	task, err := e.NewTask(ctx, r, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	task.Progress = func(what string, done, total int) { told = append(told, fmt.Sprint(what, done, total)) }
	mrr := evaluate.MRR(1)
	result, err := e.Evaluate(ctx, task, mrr)
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := result.Mean(mrr); m != 1 {
		t.Errorf("texts are found by themselves in %v of all cases", m)
	}
	if want := []string{"queries4 4", "documents4 4"}; !slices.Equal(told, want) {
		t.Errorf("progress %q, want %q", told, want)
	}
	// What is judged and not in the corpus is not found: of a query that has nothing else, too.
	r.Judgements = r.Judgements[:3]
	r.Missed = []dataset.MissedJudgement{{Query: 0, Doc: "away", Relevance: 1}, {Query: 3, Doc: "away", Relevance: 1}}
	if task, err = e.NewTask(ctx, r, "", ""); err != nil {
		t.Fatal(err)
	}
	recall := evaluate.Recall(1)
	if result, err = e.Evaluate(ctx, task, recall); err != nil {
		t.Fatal(err)
	}
	if m, _ := result.Mean(recall); m != (0.5+1+1+0)/4 {
		t.Errorf("recall of %v where documents are missing", m)
	}
	cos, err := only(Text{Tokenizer: e.tok, QueryLength: 64, DocumentLength: 64}.Similarity(ctx, &e.engine, texts[:3], texts[1:]))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cos {
		dot := 0.0
		for j := range to {
			dot += want[i*to+j] * want[(i+1)*to+j]
		}
		if !(math.Abs(c-dot) <= 1e-5) {
			t.Errorf("similarity %v, want %v", c, dot)
		}
	}
}
