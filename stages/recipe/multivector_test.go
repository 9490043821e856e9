package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// What a recipe of a multi_vector says, and what it may not.
func TestMultiVectorKeys(t *testing.T) {
	parse := func(sets ...string) (Recipe, error) {
		return Parse("r.yaml", []byte(strings.Replace(minimal, "positive: p", "positive: p, negatives: n, scores: s", 1)), append([]string{"model.kind=multi_vector"}, sets...))
	}
	for _, c := range []struct {
		sets []string
		want loss.RowSplitter
	}{
		{nil, loss.LateInteraction{Scale: 1, Metric: loss.MaxSim, MaskDuplicates: true}},
		{[]string{"loss.similarity=mean_maxsim", "loss.temperature=0.1", "loss.mask_duplicates=false"}, loss.LateInteraction{Scale: 10, Metric: loss.MeanMaxSim}},
		{[]string{"loss={name: infonce, scale: 3}"}, loss.LateInteraction{Scale: 3, Metric: loss.MaxSim, MaskDuplicates: true}},
		{[]string{"loss={name: kl_div, temperature: 2, teacher_temperature: 3}"}, loss.DistillKL{Metric: loss.MaxSim, Temperature: 2, TeacherTemperature: 3}},
		{[]string{"loss={name: margin_mse, similarity: mean_maxsim}"}, loss.MarginMSE{Metric: loss.MeanMaxSim}},
		{[]string{"data.train.0.loss=margin_mse"}, loss.ByDataset{loss.MarginMSE{Metric: loss.MaxSim}}},
	} {
		r, err := parse(c.sets...)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.objective(driving{}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %#v, want %#v", c.sets, got, c.want)
		}
		again, err := r.Resolve()
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%v: resolved again it is\n%+v\n(%v), was\n%+v", c.sets, again, err, r)
		}
		text, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if read, err := Parse("again.yaml", text, nil); err != nil || !reflect.DeepEqual(read, r) {
			t.Errorf("%v: read from what it is written as it is\n%+v\n(%v), was\n%+v", c.sets, read, err, r)
		}
	}
	r, err := parse(`model.skiplist=[]`, "model.query_expansion=none")
	if err != nil || r.Model.Skiplist == nil || len(*r.Model.Skiplist) != 0 || !r.Model.QueryExpansion.None {
		t.Errorf("%+v, %v", r.Model, err)
	}
	if text, _ := r.YAML(); !bytes.Contains(text, []byte("skiplist: []")) || !bytes.Contains(text, []byte("query_expansion: none")) {
		t.Errorf("written as\n%s", text)
	}
	if r, err = parse("model.skiplist=punctuation", "model.query_expansion={length: 9}"); err != nil || len(*r.Model.Skiplist) != 32 || *r.Model.QueryExpansion != (QueryExpansion{Strategy: "fixed", Length: 9}) {
		t.Errorf("%+v, %v", r.Model, err)
	}
	if r, err = parse("model.query_expansion={length: 9, attend: true}"); err != nil || *r.Model.QueryExpansion != (QueryExpansion{Strategy: "fixed", Length: 9, Attend: true}) {
		t.Errorf("%+v, %v", r.Model, err)
	}
	for want, sets := range map[string][]string{
		"loss.name: is \"m3\", want one of":                                                                                {"loss=m3"},
		"loss.name: is \"cosent\", want one of distill_kl":                                                                 {"loss=cosent"},
		"loss.similarity: is \"xtr\", want one of maxsim, mean_maxsim":                                                     {"loss={similarity: xtr}"},
		"loss.directions: is not for model.kind: multi_vector; the options of mnrl are name, gather_across_devices, scale": {"loss={directions: [query_to_doc]}"},
		"loss: is a list: losses of vectors of tokens":                                                                     {"loss=[mnrl, margin_mse]"},
		"model.pooling: is not for model.kind: multi_vector":                                                               {"model.pooling=cls"},
		"eval.part: is for model.kind: m3":                                                                                 {"eval.part=dense"},
		"model.query_expansion: query_expansion has the length 0":                                                          {"model.query_expansion={strategy: min}"},
		"model.query_expansion: query_expansion has the strategy \"max\"":                                                  {"model.query_expansion={strategy: max, length: 3}"},
		"model.query_expansion: is \"some\", want one of none":                                                             {"model.query_expansion=some"},
		"model.skiplist: want punctuation, or a list of tokens":                                                            {"model.skiplist=dots"},
		"model.skiplist: is for model.kind: multi_vector":                                                                  {"model.kind=embedder", "model.skiplist=[x]"},
		"model.vector_dim: is for model.kind: m3 and multi_vector":                                                         {"model.kind=embedder", "model.vector_dim=3"},
		"data.train[0].scores: is missing: loss.name: distill_kl needs columns with a teacher's scores":                    {"loss=distill_kl", "data.train.0.scores=null"},
		"data.train[0].loss.gather_across_devices: is the same for all datasets":                                           {"data.train.0.loss={name: mnrl, gather_across_devices: false}"},
	} {
		if _, err := parse(sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", sets, err, want)
		}
	}
}

// A run that is stopped goes on with the same bits, on ranks with shards too, and saves a model that evaluates here as it did while it trained; it trains further by
// what its folder says, and as no embedder.
func TestMultiVectorRun(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	sets := []string{
		"model.kind=multi_vector", "model.vector_dim=8", "model.query_expansion={strategy: min, length: 28, attend: false}", `model.skiplist=["a", "##e"]`, "model.max_length={query: 30, document: 31}",
		"train.max_steps=5", "eval.retrieval=" + j.tasks(t)[0], fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", filepath.Join(j.dir, "data.jsonl")),
		`data.train.0.prompts={query: "ask ", document: "the "}`, "train.seed=3",
	}
	whole, err := j.run(t, "whole", nil, 0, false, sets...)
	said(t, whole, err, "has no projection of tokens' hidden states: a new one, to 8 features, begins at random")
	if strings.Contains(strings.Join(whole.notes, "\n"), "max_seq_length") {
		t.Errorf("of queries' length it says %q", whole.notes)
	}
	for _, mesh := range [][]string{nil, {"mesh.replicate=2", "mesh.shard=2", "model.lora={rank: 2, targets: [query, value]}"}} {
		all := append(append([]string(nil), sets...), mesh...)
		straight := whole
		if mesh != nil {
			if straight, err = j.run(t, "straight", nil, 0, false, all...); err != nil {
				t.Fatal(err)
			}
		}
		first, err := j.run(t, "run", checkpoint.Disk{}, 2, false, all...)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := j.run(t, "run", checkpoint.Disk{}, 0, true, all...)
		if err != nil {
			t.Fatal(err)
		}
		for step, l := range straight.losses {
			got, ok := rest.losses[step]
			if !ok {
				got = first.losses[step]
			}
			if got != l {
				t.Errorf("%v: step %d of the resumed run has the loss %v, want %v", mesh, step+1, got, l)
			}
		}
		if err := os.RemoveAll(filepath.Join(j.dir, "run")); err != nil {
			t.Fatal(err)
		}
	}
	model := filepath.Join(j.dir, "whole", "model")
	f, err := hfmodel.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	m := f.MultiVector
	f.Close()
	if m == nil || m.QueryLength != 30 || m.DocumentLength != 31 || m.Expansion == nil || *m.Expansion != (hfmodel.Expansion{Strategy: "min", Length: 28}) || len(m.Skiplist) != 2 || !reflect.DeepEqual(m.SkipTasks, []string{"document"}) || !f.Normalize || f.Similarity != embedder.MaxSim {
		t.Errorf("the folder says %+v, %q", m, f.Similarity)
	}
	e, err := embedder.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	evaluations := j.evaluations(t, "whole")
	last := evaluations[len(evaluations)-1]
	r, err := Parse("job", []byte(j.text), append(sets, "save.dir=x"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := dataset.LoadRetrieval(t.Context(), r.Eval.Retrieval[0].Queries, "", "")
	if err != nil {
		t.Fatal(err)
	}
	measure, err := evaluate.ParseMeasure(last.Metric)
	if err != nil {
		t.Fatal(err)
	}
	query, document := e.RolePrompts()
	task, err := e.NewTask(t.Context(), data, query, document)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Evaluate(t.Context(), task, measure)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := res.Mean(measure); !(math.Abs(got-last.Value) <= 1e-9) {
		t.Errorf("the saved model has %s %v, and had %v when it was trained", last.Metric, got, last.Value)
	}
	checkRanking(t, e, task, data)
	if _, err := e.Embed(t.Context(), []string{"x"}); err == nil || !strings.Contains(err.Error(), "vectors of tokens, and no embeddings") {
		t.Error(err)
	}
	on, err := j.run(t, "on", nil, 0, false, "model.kind=multi_vector", fmt.Sprintf("model.path=%q", model), "train.max_steps=1", "model.max_length=null")
	if err != nil || strings.Contains(strings.Join(on.notes, "\n"), "no projection") {
		t.Errorf("%v, notes %q", err, on.notes)
	}
	for want, sets := range map[string][]string{
		"gives a vector for each token: model.kind: multi_vector trains it":              nil,
		"model.vector_dim: is 9, and the projection that the model has gives 8":          {"model.kind=multi_vector", "model.vector_dim=9"},
		"queries: a maximum length of 5 tokens, and query_expansion fills them up to 28": {"model.kind=multi_vector", "model.max_length={query: 5, document: 20}"},
		"the tokenizer has no token [\"[NOTHING]\"]":                                     {"model.kind=multi_vector", `model.query_expansion={length: 28, token: "[NOTHING]"}`},
	} {
		if _, err := j.run(t, "on", nil, 0, false, append([]string{fmt.Sprintf("model.path=%q", model), "train.max_steps=1"}, sets...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", sets, err, want)
		}
	}
}

// A run expects as many sub-batches as a batch of the longest rows is cut into, whose queries and documents are apart where nobody attends to what fills
// queries up.
func TestMultiVectorSubs(t *testing.T) {
	j := newJob(t, 30)
	for _, expansion := range []string{"none", "{length: 20, attend: true}", "{length: 20, attend: false}"} {
		for _, sub := range []string{"{rows: 3}", "{rows: 6}", "{rows: 8}", "{rows: 16}", "{rows: 100}", "{tokens: 120}", "{tokens: 200}", "{tokens: 9}"} {
			r, err := Parse("job", []byte(j.text), []string{"model.kind=multi_vector", "model.query_expansion=" + expansion, "model.max_length={query: 20, document: 20}", "batch={global_size: 8, sub_batch: " + sub + "}", fmt.Sprintf("save.dir=%q", filepath.Join(j.dir, "subs"))})
			if err != nil {
				t.Fatal(err)
			}
			x, err := Open(t.Context(), r, Observer{})
			if err != nil {
				t.Fatal(err)
			}
			b := &stages.Batch{Rows: make([]int64, 8), Cu: []int32{0}}
			for n := range 16 {
				b.Cu = append(b.Cu, int32(20*(n+1)))
			}
			if strings.Contains(expansion, "false") {
				b.Seen = slices.Repeat([]int32{20}, 16)
			}
			subs, longest := x.size().Cut(b), 0
			for _, s := range subs {
				longest = max(longest, s.Len())
			}
			if lengths, n := x.longestSub(); int(n) != len(subs) || len(lengths) != longest {
				t.Errorf("%s, %s: %d sub-batches of up to %d texts are expected, %d of up to %d is what a batch is cut into", expansion, sub, n, len(lengths), len(subs), longest)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// What a model's family has no counterpart of is refused before anything trains.
func TestMultiVectorUnseenRefused(t *testing.T) {
	j := newJob(t, 10)
	model := filepath.Join(j.dir, "deberta")
	tokenizer, err := os.ReadFile(filepath.Join(j.dir, "model", "tokenizer.json"))
	if err == nil {
		err = os.CopyFS(model, os.DirFS(goldens.Path(t, "families/deberta-v2")))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(model, "tokenizer.json"), tokenizer, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = j.run(t, "run", nil, 0, false, fmt.Sprintf("model.path=%q", model), "model.kind=multi_vector", "model.query_expansion={length: 9, token: \"[MASK]\"}", "model.max_length={query: 9, document: 20}", "train.max_steps=1")
	if !errors.Is(err, transformer.ErrUnsupported) || !strings.Contains(err.Error(), "model.path: ") || !strings.Contains(err.Error(), "are not supported in a model of family deberta-v2") {
		t.Error(err)
	}
}

// A model whose folder says how its vectors are compared is trained, evaluated and saved so, unless the recipe says otherwise.
func TestMultiVectorSimilarity(t *testing.T) {
	j := newJob(t, 30)
	sets := []string{"model.kind=multi_vector", "train.max_steps=1"}
	if _, err := j.run(t, "mean", nil, 0, false, append(sets, "loss.similarity=mean_maxsim", "model.vector_dim=8")...); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("model.path=%q", filepath.Join(j.dir, "mean", "model"))
	losses := map[string]float64{}
	for _, c := range []struct{ set, want string }{{"", embedder.MeanMaxSim}, {"loss.similarity=mean_maxsim", embedder.MeanMaxSim}, {"loss.similarity=maxsim", embedder.MaxSim}} {
		all := append(append([]string(nil), sets...), path)
		if c.set != "" {
			all = append(all, c.set)
		}
		o, err := j.run(t, "on", nil, 0, false, all...)
		if err != nil {
			t.Fatal(err)
		}
		losses[c.set] = o.losses[0]
		f, err := hfmodel.Open(filepath.Join(j.dir, "on", "model"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Similarity != c.want {
			t.Errorf("%q: the folder says %q, want %q", c.set, f.Similarity, c.want)
		}
		f.Close()
		if err := os.RemoveAll(filepath.Join(j.dir, "on")); err != nil {
			t.Fatal(err)
		}
	}
	if mean := losses["loss.similarity=mean_maxsim"]; losses[""] != mean || losses["loss.similarity=maxsim"] == mean {
		t.Errorf("the first step's losses are %v", losses)
	}
}

// checkRanking compares a ranking's scores with sums of the largest products, of the vectors that EmbedParts gives of queries and of documents.
func checkRanking(t *testing.T, e *embedder.Embedder, task *embedder.Task, data *dataset.Retrieval) {
	t.Helper()
	run, err := e.Rank(t.Context(), task, 5)
	if err != nil {
		t.Fatal(err)
	}
	q, _, err := e.EmbedParts(t.Context(), "query", data.Queries, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := e.EmbedParts(t.Context(), "document", data.Docs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, hits := range run {
		for _, h := range hits {
			want, docs, n := 0.0, d.TokenVectors(int(h.Doc)), q.VectorSize
			for x := q.TokenVectors(i); len(x) > 0; x = x[n:] {
				best := math.Inf(-1)
				for y := docs; len(y) > 0; y = y[n:] {
					dot := 0.0
					for k := range n {
						dot += float64(x[k]) * float64(y[k])
					}
					best = max(best, dot)
				}
				want += best
			}
			if !(math.Abs(float64(h.Score)-want) <= 1e-5*max(1, math.Abs(want))) {
				t.Errorf("query %d scores document %d %v, want %v", i, h.Doc, h.Score, want)
			}
		}
	}
	if len(run) == 0 {
		t.Error("nothing was ranked")
	}
}

// Held-out rows are read as those that train: of the same rows, without dropout, the loss before the first step is that of the first step.
func TestMultiVectorHeldOut(t *testing.T) {
	j := newJob(t, 13)
	for _, more := range [][]string{nil, {"mesh.replicate=2"}} {
		o, err := j.run(t, "run", nil, 0, false, append(more, "model.kind=multi_vector", "model.vector_dim=8", "model.dropout=0", "model.query_expansion={strategy: fixed, length: 9, attend: true}",
			`model.skiplist=["##a", "##e", "##i", "##o", "##u", a, e, i, o, u]`, "data.shuffle=false", "batch={global_size: 13, no_duplicates: false}", "train.max_steps=1", "eval={every: 1, at_start: true}",
			fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", filepath.Join(j.dir, "data.jsonl")))...)
		if err != nil {
			t.Fatal(err)
		}
		evaluations := j.evaluations(t, "run")
		if got, want := evaluations[0].Value, o.losses[0]; evaluations[0].Step != 0 || !(math.Abs(got-want) <= 1e-6*want) {
			t.Errorf("%v: the loss on rows that train is %v before the first step, whose is %v", more, got, want)
		}
		if err := os.RemoveAll(filepath.Join(j.dir, "run")); err != nil {
			t.Fatal(err)
		}
	}
}
