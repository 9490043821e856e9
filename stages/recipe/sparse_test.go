package recipe

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/newmodel"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

func parseSparse(t *testing.T, lossText string, sets ...string) (Recipe, error) {
	t.Helper()
	text := fmt.Sprintf(`{model: {path: m, kind: sparse}, data: {train: [{path: d.jsonl, query: q, positive: p, negatives: [n], scores: [a, b]}]}, loss: %s, save: {dir: r}}`, lossText)
	return Parse("r.yaml", []byte(text), sets)
}

// Losses have the defaults of sentence-transformers' sparse ones, and what is added to them is what the recipe says, also after it has been resolved again.
func TestSparseDefaults(t *testing.T) {
	flops := "{query: 5e-5, document: 3e-5}"
	want := loss.Flops{Query: 5e-5, Document: 3e-5, Warmup: 33}
	with := func(l loss.RowMean) loss.Flops { f := want; f.Loss = l; return f }
	for text, want := range map[string]loss.RowSplitter{
		"{name: mnrl, flops: " + flops + "}":       with(loss.InfoNCE{Scale: 1, Directions: []loss.Direction{loss.QueryToDoc}, Dot: true, MaskDuplicates: true}),
		"{name: margin_mse, flops: " + flops + "}": with(loss.MarginMSE{Metric: loss.Dot}),
		"{name: distill_kl, flops: " + flops + "}": with(loss.DistillKL{Metric: loss.Dot, Temperature: 2}),
		"{name: triplet, flops: " + flops + "}":    with(loss.Triplet{Metric: loss.Euclidean}),
		"{name: mnrl, scale: 3, similarity: cosine, mask_duplicates: false, flops: {document: 1, document_only: true, document_threshold: 4, schedule: linear, warmup_ratio: 0.5}}": loss.Flops{
			Loss: loss.InfoNCE{Scale: 3, Directions: []loss.Direction{loss.QueryToDoc}}, Document: 1, Together: true, DocumentAbove: 4, Warmup: 50, Linear: true},
		"{name: mnrl, temperature: 0.5, mask_duplicates: false}": loss.InfoNCE{Scale: 2, Directions: []loss.Direction{loss.QueryToDoc}, Dot: true},
	} {
		r, err := parseSparse(t, text)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := r.objective(driving{steps: 100}); fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
				t.Errorf("%s is\n%#v, want\n%#v", text, got, want)
			}
			if r, err = r.Resolve(); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := defaultFlops()
	for all, want := range map[int]int{0: 0, 1: 1, 2: 1, 3: 1, 100: 33, 3000: 1000} {
		if got := f.steps(all); got != want {
			t.Errorf("of %d steps the weights grow in %d, want %d", all, got, want)
		}
	}
	if f.WarmupRatio = 0; f.steps(100) != 0 {
		t.Error("without a warm-up the weights grow")
	}
}

func TestSparseKeys(t *testing.T) {
	for text, want := range map[string]string{
		"{name: mnrl, matryoshka: {dims: [4]}}":                             "loss.matryoshka: is not for model.kind: sparse",
		"{name: mnrl, flops: {query: -1}}":                                  "loss.flops.query: is -1",
		"{name: mnrl, flops: {document: .inf}}":                             "loss.flops.document: want a number",
		"{name: mnrl, flops: {schedule: cubic}}":                            "loss.flops.schedule",
		"{name: mnrl, flops: {warmup_ratio: 2}}":                            "loss.flops.warmup_ratio: is 2",
		"{name: mnrl, flops: {document_threshold: -4}}":                     "loss.flops.document_threshold: is negative",
		"{name: mnrl, flops: {query: 1, document: 1, document_only: true}}": "loss.flops.document_only: makes all texts documents, and needs",
		"{name: mnrl, query_regularizer_weight: 1}":                         "loss.flops: {query: ...}",
		"{name: m3}": "m3 is not for model.kind: sparse",
		"[{name: mnrl}, {name: margin_mse, flops: {document: 1, queri: 3}}]": "query",
	} {
		if _, err := parseSparse(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for set, want := range map[string]string{
		"model.pooling=cls": "model.pooling: is not for model.kind: sparse", "model.activation_function=gelu": "log1p_relu, relu",
	} {
		if _, err := parseSparse(t, "mnrl", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	for text, want := range map[string]string{
		`{model: {path: m}, data: {train: [{path: d, query: q, positive: p}]}, loss: {flops: {query: 1}}, save: {dir: r}}`:                                         "loss.flops: is for model.kind: sparse",
		`{model: {path: m, activation_function: relu}, data: {train: [{path: d, query: q, positive: p}]}, save: {dir: r}}`:                                         "model.activation_function: is for model.kind: sparse",
		`{model: {path: m, kind: sparse}, data: {train: [{path: d, query: q, label: l}]}, loss: {name: batch_hard_triplet, flops: {document: 1}}, save: {dir: r}}`: "loss.flops.document_only: true they are documents",
		`{model: {path: m, kind: reranker}, data: {train: [{path: d, query: q, positive: p, label: l}]}, loss: {name: bce, flops: {document: 1}}, save: {dir: r}}`: "loss.flops",
	} {
		if _, err := Parse("r.yaml", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// sparseJob is a job that trains testdata/golden/splade/encoder.
func sparseJob(t *testing.T, rows int) *job {
	j := newJob(t, rows)
	j.text += "loss: {name: mnrl, flops: {query: 0.02, document: 0.01}}\n"
	j.opts = nil
	return j
}

func sparseSets(t *testing.T, more ...string) []string {
	return append([]string{"model.kind=sparse", "model.path=" + goldens.Path(t, "splade/encoder")}, more...)
}

// A run trains sparse embeddings, says how sparse they are, is measured, ends and goes on with the same weights, on two ranks as on one but for rounding,
// and leaves a folder that embeds; the regularizer makes them sparser.
func TestTrainSparse(t *testing.T) {
	j := sparseJob(t, 60)
	sets := sparseSets(t, "train.epochs=2", "save.every=2")
	want, err := j.run(t, "whole", checkpoint.Disk{}, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = j.run(t, "parts", checkpoint.Disk{}, 2, false, sets...); err != nil {
		t.Fatal(err)
	}
	got, err := j.run(t, "parts", checkpoint.Disk{}, 0, true, sets...)
	if err != nil {
		t.Fatal(err)
	}
	for step, l := range got.losses {
		if l != want.losses[step] {
			t.Errorf("resumed, step %d has the loss %v, not %v", step, l, want.losses[step])
		}
	}
	read := func(out string) (lines []Metrics) {
		data, err := os.ReadFile(filepath.Join(j.dir, out, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var m Metrics
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			if m.PairsPerS > 0 {
				lines = append(lines, m)
			}
		}
		return lines
	}
	whole := read("whole")
	for i, m := range whole {
		if m.QueryActive == nil || m.DocumentActive == nil || m.QueryFlops == nil || m.DocumentFlops == nil || m.Regularizer == nil {
			t.Fatalf("step %d has not all figures: %+v", m.Step, m)
		}
		if !(*m.QueryActive >= 1) || !(*m.DocumentActive >= 1) || !(*m.QueryFlops > 0) || !(*m.DocumentFlops > 0) || (i > 0) != (*m.Regularizer > 0) || !(*m.Regularizer <= m.Loss) {
			t.Errorf("step %d: %+v", m.Step, m)
		}
	}
	if _, err := j.run(t, "ranks", checkpoint.Disk{}, 0, false, append(sets, "mesh.replicate=2", "mesh.overlap=false")...); err != nil {
		t.Fatal(err)
	}
	for i, m := range read("ranks") {
		for _, x := range [][2]float64{{m.Loss, whole[i].Loss}, {*m.DocumentFlops, *whole[i].DocumentFlops}, {*m.Regularizer, *whole[i].Regularizer}} {
			if d := x[0] - x[1]; !(math.Abs(d) <= 1e-4*x[1]) {
				t.Errorf("on two ranks step %d has %v, alone %v", m.Step, x[0], x[1])
			}
		}
	}
	active := func(out string) (n int) {
		e, err := embedder.Load(filepath.Join(j.dir, out, "model"))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		all, err := e.Embed(t.Context(), j.words[:20])
		if err != nil {
			t.Fatal(err)
		}
		for _, vec := range all {
			ids, _ := embedder.Active(vec)
			n += len(ids)
		}
		return n
	}
	if _, err := j.run(t, "sparser", checkpoint.Disk{}, 0, false, append(sets, "loss.flops={query: 3, document: 3, warmup_ratio: 0}")...); err != nil {
		t.Fatal(err)
	}
	if usual, few := active("whole"), active("sparser"); few >= usual || few == 0 {
		t.Errorf("with a regularizer of 3 texts have %d active features, else %d", few, usual)
	}
	o, err := j.run(t, "plain", checkpoint.Disk{}, 0, false, append(sets, "loss.flops=null", "train.max_steps=1", "model.lora={rank: 2, alpha: 4, targets: [query]}")...)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(o.notes, func(n string) bool { return strings.Contains(n, "loss.flops: {query: 5e-5, document: 3e-5}") }) {
		t.Errorf("without a regularizer: notes %q", o.notes)
	}
	if active("plain") == 0 {
		t.Error("what LoRA is merged into embeds nothing")
	}
}

func TestSparseModels(t *testing.T) {
	j := sparseJob(t, 30)
	for want, sets := range map[string][]string{
		"is a sparse encoder: model.kind: sparse": {"model.path=" + goldens.Path(t, "splade/encoder"), "loss.flops=null"},
		"head for masked language modelling":      {"model.kind=sparse"},
		"predictions.bias), which ":               {"model.kind=sparse", "model.queries=ones", "data.train.0.path=none.jsonl"}, // what the model lacks, without the queries' weights and before data is looked for
		"the model was trained with another":      sparseSets(t, "model.activation_function=log1p_relu"),
		"mesh.parameters: streamed":               sparseSets(t, "mesh.replicate=1", "mesh.shard=2", "mesh.parameters=streamed"),
		"mesh.gradients: early":                   sparseSets(t, "mesh.replicate=1", "mesh.shard=2", "mesh.gradients=early"),
	} {
		if _, err := j.run(t, "r", checkpoint.Disk{}, 0, false, sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", sets, err, want)
		}
	}
}

// All ways of training sparse embeddings have the gradient, on meshes too, and what can be wrong with them is found.
func TestVerifySparse(t *testing.T) {
	harness.Thorough(t)
	for _, fault := range []Fault{"", FaultFactor, FaultRemote} {
		rows := verifySparse(t, fault)
		if slices.ContainsFunc(rows, func(r VerifyRow) bool {
			return strings.Contains(r.Config, "streamed") || strings.Contains(r.Config, "early")
		}) {
			t.Errorf("ways that are not for a tied decoder: %+v", rows)
		}
	}
}

// verifySparse verifies sparse embeddings' gradients, alone and on meshes, and wants a planted fault, and no other, to be found.
func verifySparse(t *testing.T, fault Fault, sets ...string) (rows []VerifyRow) {
	t.Helper()
	j := sparseJob(t, 30)
	x := j.opened(t, slices.Concat(sparseSets(t), sets, []string{"save.dir=" + filepath.Join(j.dir, "r")}))
	o := DefaultVerify()
	o.Accumulate, o.SubBatches, o.Rows, o.Replicas, o.Shards, o.Plant = []int{1}, []int{3}, 6, []int{2}, []int{1, 2}, fault
	o.Report = func(r VerifyRow) { rows = append(rows, r) }
	ok, err := x.Verify(t.Context(), o)
	if err != nil || ok != (fault == "") {
		t.Errorf("fault %q: %t, %v: %+v", fault, ok, err, rows)
	}
	return rows
}

// A new sparse encoder trains, and of all its parameters.
func TestNewSparse(t *testing.T) {
	j := sparseJob(t, 24)
	start := filepath.Join(j.dir, "sparse")
	if err := newmodel.Create(t.Context(), start, newmodel.Spec{Sparse: true, Hidden: 32, Layers: 1, Vocab: 300, MaxLength: 32}, newmodel.Texts(j.words)); err != nil {
		t.Fatal(err)
	}
	f, err := hfmodel.Open(start)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Splade == nil || f.Normalize {
		t.Errorf("modules %+v", f.Modules)
	}
	for _, name := range []string{"bert.embeddings.word_embeddings.weight", "cls.predictions.transform.dense.weight", "cls.predictions.transform.LayerNorm.bias", "cls.predictions.bias"} {
		if x, err := f.Tensor(name); err != nil || x.Name != name {
			t.Errorf("%s: %q, %v", name, x.Name, err)
		}
	}
	o, err := j.run(t, "run", nil, 0, false, "model.kind=sparse", "model.path="+start, "model.dropout=0", "optimizer.lr=1e-2", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "train.max_steps=6", "train.epochs=6")
	if err != nil || !(o.losses[5] < o.losses[0]) {
		t.Errorf("losses %v (%v)", o.losses, err)
	}
	for _, n := range o.notes {
		if strings.Contains(n, "begins at random") {
			t.Errorf("the head is there, and %q", n)
		}
	}
}
