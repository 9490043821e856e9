package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/stages/reranker"
	"contraflow/testdata/harness"
)

// pairFiles are pairs with labels, and triplets of which half have a query's own words in the negative; some of both come twice.
func (j *job) pairFiles(t *testing.T) (labelled, triplets []string, sets []string) {
	t.Helper()
	var rows, three strings.Builder
	line := func(b *strings.Builder, v any) {
		js, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(js, '\n'))
	}
	for i := range 16 {
		a, b := j.words[i%12]+" "+j.words[2*i%12], j.words[(3*i+1)%12]
		line(&rows, map[string]any{"a": a, "b": b, "y": (i*i)%3 == 1, "s": i % 5})
		labelled = append(labelled, a, b)
		line(&three, map[string]any{"q": a, "p": b, "n": j.words[(5*i+i%2)%12]})
		triplets = append(triplets, a, b, j.words[(5*i+i%2)%12])
	}
	for name, text := range map[string]string{"labelled.jsonl": rows.String(), "triplets.jsonl": three.String()} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return labelled, triplets, []string{
		fmt.Sprintf("eval.sts={path: %q, a: a, b: b, score: s}", filepath.Join(j.dir, "labelled.jsonl")),
		fmt.Sprintf("eval.pair_classification={name: labels, path: %q, a: a, b: b, label: y}", filepath.Join(j.dir, "labelled.jsonl")),
		fmt.Sprintf("eval.triplets=[{path: %q, query: q, positive: p, negative: n}, {name: by far, path: %[1]q, query: q, positive: p, negative: n, margin: 0.1}]", filepath.Join(j.dir, "triplets.jsonl")),
	}
}

// candidates are queries with lists to rank, of which some texts are in many.
func (j *job) candidates(t *testing.T) (queries, texts []string, relevant [][]bool, set string) {
	t.Helper()
	var lines []byte
	for i := range 10 {
		positives, negatives := []string{j.words[(3*i+1)%12], j.words[5*i%12]}[:1+i%2], []string{j.words[2*i%12], j.words[(i+5)%12], j.words[7]}
		js, err := json.Marshal(map[string]any{"q": j.words[i], "p": positives, "n": negatives})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, js...), '\n')
		row := make([]bool, len(positives)+len(negatives))
		for k, x := range append(positives, negatives...) {
			row[k] = k < len(positives)
			queries, texts = append(queries, j.words[i]), append(texts, x)
		}
		relevant = append(relevant, row)
	}
	path := filepath.Join(j.dir, "candidates.jsonl")
	if err := os.WriteFile(path, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	return queries, texts, relevant, fmt.Sprintf("eval.candidates={path: %q, query: q, positive: p, negative: n}", path)
}

// Pairs, triplets and candidates have the figures of the saved model's scores, of embedders, of models with parts and of rerankers, alone and on two ranks. What is read as a query is,
// and what as a document.
func TestScoredTasks(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 40)
	labelled, triplets, tasks := j.pairFiles(t)
	queries, candidates, relevant, set := j.candidates(t)
	tasks = append(tasks, set, "eval.metric=mrr@3")
	split := func(texts []string, n int) (columns [][]string) {
		columns = make([][]string, n)
		for i, x := range texts {
			columns[i%n] = append(columns[i%n], x)
		}
		return columns
	}
	pairs, three := split(labelled, 2), split(triplets, 3)
	var gold []float64
	var together []bool
	for i := range pairs[0] {
		gold, together = append(gold, float64(i%5)), append(together, (i*i)%3 == 1)
	}
	const query, document = "ask: ", "doc: "
	prompts := fmt.Sprintf("data.train.0.prompts={query: %q, document: %q}", query, document)
	// embedding scores by weighted parts; a multi_vector has queries and documents alone.
	embedding := func(weights map[string]float64) func(dir string, asked bool, a, b []string) ([]float64, error) {
		return func(dir string, asked bool, a, b []string) ([]float64, error) {
			e, err := embedder.Load(dir)
			if err != nil {
				return nil, err
			}
			defer e.Close()
			if asked || e.VectorsAlone() {
				return e.PartRelevance(t.Context(), weights, query, document, a, b)
			}
			return e.PartSimilarity(t.Context(), weights, query, a, b)
		}
	}
	m3 := []string{prompts, "model.kind=m3", "model.vector_dim=8"}
	for kind, c := range map[string]struct {
		sets   []string
		scores func(dir string, asked bool, a, b []string) ([]float64, error)
	}{
		"embedder":     {[]string{prompts}, embedding(nil)},
		"m3":           {m3, embedding(loss.Fusion)},
		"m3, parts":    {append(m3, "loss.parts=[sparse, dense]"), embedding(map[string]float64{loss.DensePart: 1, loss.SparsePart: 0.3})},
		"m3, weighted": {append(m3, "eval.weights=[1, 0, 2]"), embedding(map[string]float64{loss.DensePart: 1, loss.VectorsPart: 2})},
		"multi_vector": {[]string{prompts, "model.kind=multi_vector", "model.vector_dim=8", "model.query_expansion={length: 12}"}, embedding(nil)},
		"reranker": {
			[]string{"model.kind=reranker", "model.max_length=32", "data.train.0.negatives=[p]", "loss.name=cross_entropy"},
			func(dir string, _ bool, a, b []string) ([]float64, error) {
				r, err := reranker.Load(dir)
				if err != nil {
					return nil, err
				}
				defer r.Close()
				scores, _, err := r.ScorePairs(t.Context(), a, b)
				out := make([]float64, len(scores))
				for i, s := range scores {
					out[i] = float64(s)
				}
				return out, err
			},
		},
	} {
		for _, mesh := range []string{"mesh.replicate=1", "mesh.replicate=2"} {
			out := kind + mesh
			if _, err := j.run(t, out, nil, 0, false, append(append([]string{mesh, "eval.every=0", "train.max_steps=2", "optimizer.lr=1e-2"}, tasks...), c.sets...)...); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			scores := func(asked bool, a, b []string) []float64 {
				s, err := c.scores(filepath.Join(j.dir, out, "model"), asked, a, b)
				if err != nil {
					t.Fatalf("%s: %v", out, err)
				}
				return s
			}
			all := j.evaluations(t, out)
			got := all[len(all)-1]
			sims, near, far := scores(false, pairs[0], pairs[1]), scores(true, three[0], three[1]), scores(true, three[0], three[2])
			sts, err1 := evaluate.EvaluateSTS(sims, gold)
			classes, err2 := evaluate.ClassifyPairs(sims, together)
			plain, err3 := evaluate.CompareTriplets(near, far, 0)
			margin, err4 := evaluate.CompareTriplets(near, far, 0.1)
			flat := scores(true, queries, candidates)
			of := make([][]float64, len(relevant))
			for q := range of {
				of[q], flat = flat[:len(relevant[q])], flat[len(relevant[q]):]
			}
			ranked, err5 := evaluate.RankCandidates(of, relevant, nil, evaluate.MRR(3), evaluate.NDCG(10))
			if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || len(got.Tasks) != 5 || got.Metric != "mean" {
				t.Fatalf("%s: %v, %v, %v, %v, %v: %+v", out, err1, err2, err3, err4, err5, got)
			}
			for i, want := range []struct {
				name, metric string
				value        float64
			}{{"labelled", "spearman", sts.Spearman}, {"labels", "ap", classes.AP}, {"triplets", "accuracy", plain.Accuracy}, {"by far", "accuracy", margin.Accuracy}, {"candidates", "mrr@3", ranked.Means[0]}} {
				if v := got.Tasks[i]; v.Name != want.name || v.Metric != want.metric || !(math.Abs(v.Value-want.value) <= 1e-12) {
					t.Errorf("%s: %+v, want %+v", out, v, want)
				}
			}
			var told evaluate.PairClassification
			if err := json.Unmarshal(got.Tasks[1].Eval, &told); err != nil || told.Pairs != 16 || !(math.Abs(told.F1Threshold-classes.F1Threshold) <= 1e-5) {
				t.Errorf("%s: %s, want %+v", out, got.Tasks[1].Eval, classes)
			}
			var figures map[string]float64
			if err := json.Unmarshal(got.Tasks[4].Eval, &figures); err != nil || figures["queries"] != 10 || len(figures) != 5 || !(math.Abs(figures["ndcg@10"]-ranked.Means[1]) <= 1e-12) {
				t.Errorf("%s: %s, want %v", out, got.Tasks[4].Eval, ranked)
			}
			if plain.Accuracy == margin.Accuracy || plain.Accuracy == 0 || classes.AP == 1 {
				t.Errorf("%s: %+v, %+v, %+v: mistakes would not show", out, plain, margin, classes)
			}
			card, err := os.ReadFile(filepath.Join(j.dir, out, "model", "README.md"))
			if err != nil || !strings.Contains(string(card), "mcc") || !strings.Contains(string(card), "mrr@3") || !strings.Contains(string(card), "type: reranking") {
				t.Errorf("%s: %v: the card has no mcc, or no mrr@3 of reranking:\n%s", out, err, card)
			}
			for what, n := range map[string]int{"type: semantic-similarity": 1, "type: binary-classification": 1, "type: triplet": 2} {
				if strings.Count(string(card), what+"\n") != n {
					t.Errorf("%s: the card does not say %q of %d tasks:\n%s", out, what, n, card)
				}
			}
		}
	}
}

func TestScoredMistakes(t *testing.T) {
	j := newJob(t, 40)
	_, _, tasks := j.pairFiles(t)
	for name, text := range map[string]string{
		"odd.jsonl":   `{"a": "x", "b": "y", "y": 1}` + "\n" + `{"a": "x", "b": "y", "y": 2}` + "\n",
		"same.jsonl":  `{"a": "x", "b": "y", "y": 1, "one": 1}` + "\n" + `{"a": "x", "b": "z", "y": true, "one": 1}` + "\n",
		"null.jsonl":  `{"a": "x", "b": "y", "y": null}` + "\n" + `{"a": "x", "b": "y", "y": 0}` + "\n",
		"none.jsonl":  `{"q": "x", "p": ["y"], "n": []}` + "\n",
		"empty.jsonl": `{"q": "x", "p": "y", "n": "z"}` + "\n" + `{"q": "x", "p": "", "n": "z"}` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return fmt.Sprintf("%q", filepath.Join(j.dir, name)) }
	for want, sets := range map[string][]string{
		`null.jsonl:1, column "y": null`:                          {"eval.pair_classification={path: " + path("null.jsonl") + ", a: a, b: b, label: y}"},
		`odd.jsonl:2, column "y": a label of "2": want 1 or true`: {"eval.pair_classification={path: " + path("odd.jsonl") + ", a: a, b: b, label: y}"},
		`same.jsonl, column "y": 2 of 2 labels are 1: there is nothing to tell apart; it takes another file (eval.pair_classification.path) or column (eval.pair_classification.label), or no eval.pair_classification`: {"eval.pair_classification={path: " + path("same.jsonl") + ", a: a, b: b, label: y}"},
		`empty.jsonl:2, column "p": the text is null or`: {"eval.triplets={path: " + path("empty.jsonl") + ", query: q, positive: p, negative: n}"},
		`has no column "m"`: {"eval.triplets={path: " + path("empty.jsonl") + ", query: q, positive: p, negative: m}"},
		"eval.triplets.margin: is -1, want a number of at least 0":                                                             {"eval.triplets={path: x, query: q, positive: p, negative: n, margin: -1}"},
		"eval.triplets: needs path and the columns query, positive and negative":                                               {"eval.triplets={path: x, query: q, positive: p}"},
		"eval.pair_classification: needs path and the columns a, b and label":                                                  {"eval.pair_classification={path: x, a: a, b: b}"},
		"eval.pair_classification[0].score: unknown key":                                                                       {"eval.pair_classification={path: x, a: a, b: b, score: y}"},
		`eval.metric: measure "f1" is not known: `:                                                                             {tasks[1], "eval.metric=f1"},
		"it is of retrieval, rerank, candidates and nanobeir, and what else is measured here goes by spearman and ap; or loss": {tasks[0], tasks[1], "eval.metric=accuracy"},
		"another file (eval.sts.path) or column (eval.sts.score), or no eval.sts":                                              {"eval.sts={path: " + path("same.jsonl") + ", a: a, b: b, score: one}"},
		"save.best: needs eval.retrieval, eval.nanobeir, eval.sts, ":                                                           {"model.kind=m3", "save.best=true"},
		"eval.candidates: needs path and the columns query, positive and one of negative and documents":                        {"eval.candidates={path: x, query: q, positive: p}"},
		"eval.candidates[1]: needs path and the columns":                                                                       {"eval.candidates=[{path: x, query: q, positive: p, negative: n}, {path: y, query: q, positive: p, negative: n, documents: d}]"},
		"eval.candidates.found: is of documents":                                                                               {"eval.candidates={path: x, query: q, positive: p, negative: n, found: true}"},
		"eval.metric: map@5: average precision of given candidates has no cut-off":                                             {"eval.candidates={path: x, query: q, positive: p, negative: n}", "eval.metric=map@5"},
		"eval.metric: recall: of all the candidates it is the same for every model":                                            {"eval.candidates={path: x, query: q, positive: p, negative: n}", "eval.metric=recall"},
		"another file (eval.candidates[1].path) or column (eval.candidates[1].documents), or no eval.candidates": {
			"eval.candidates=[{name: a, path: " + path("empty.jsonl") + ", query: q, positive: q, negative: n}, {name: b, path: " + path("none.jsonl") + ", query: q, positive: p, documents: q, found: true}]",
		},
		`column "n": no query has a positive; it takes another file (eval.candidates.path) or column (eval.candidates.positive), or no`: {"eval.candidates={path: " + path("none.jsonl") + ", query: q, positive: n, documents: p}"},
		`eval.metric: measure "ap" is not known`:                         {"eval.candidates={path: x, query: q, positive: p, negative: n}", tasks[1], "eval.metric=ap"},
		"eval.reranking: unknown key; here it is eval.candidates: {path": {"eval.reranking={path: x, query: q, positive: p, negative: n}"},
		`empty.jsonl:2, column "p": the text is empty`:                   {"eval.candidates={path: " + path("empty.jsonl") + ", query: q, positive: p, negative: n}"},
		`none.jsonl, column "n": no query with a positive (column "p") has another candidate: there is nothing to rank; it takes another file (eval.candidates.path) or column (eval.candidates.negative), or no eval.candidates`: {"eval.candidates={path: " + path("none.jsonl") + ", query: q, positive: p, negative: n}"},
		"eval.retrieval: embeds documents: a reranker is measured by eval.rerank": {"eval.retrieval={queries: beir/a}", "model.kind=reranker", "data.train.0.negatives=[p]"},
	} {
		_, err := Parse("job", []byte(j.text), append([]string{"save.dir=" + filepath.Join(j.dir, "bad")}, sets...))
		if err == nil {
			_, err = j.run(t, "bad", nil, 0, false, sets...)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", sets, err, want)
		}
	}
}

// What evaluations measure is another thing with other pairs, labels or margin, and what stands where there is no figure is of the same form.
func TestScoredIdentity(t *testing.T) {
	j := newJob(t, 40)
	_, _, tasks := j.pairFiles(t)
	file := filepath.Join(j.dir, "labelled.jsonl")
	open := func(sets ...string) []task {
		return j.opened(t, append([]string{"save.dir=" + filepath.Join(j.dir, "run")}, sets...)).tasks
	}
	content := func(x task) any {
		_, content := x.identity("ndcg@10", nil)
		return content
	}
	one := open(append(tasks, "eval.metric=ap", "save.best=true")...)
	other := open(fmt.Sprintf("eval.pair_classification={name: labels, path: %q, a: b, b: a, label: y}", file))
	if len(one) != 4 || reflect.DeepEqual(content(one[2]), content(one[3])) || reflect.DeepEqual(content(one[1]), content(other[0])) {
		t.Errorf("%d tasks; contents of other tasks are the same", len(one))
	}
	_, _, _, set := j.candidates(t)
	ranked, other := open(set, "eval.metric=map", "save.best=true"), open(set, "eval.metric=ndcg@3")
	for i, x := range append(ranked, other...) {
		if name, c := x.identity("x", nil); name != []string{"map", "ndcg@3"}[i] || !reflect.DeepEqual(c, content(ranked[0])) {
			t.Errorf("candidates are measured by %s", name)
		}
	}
	again := open(tasks...)
	scores := make([]float64, 64)
	for i := range scores {
		scores[i] = float64(i * i % 7)
	}
	for i, x := range one {
		if !reflect.DeepEqual(content(x), content(again[i])) || content(x) == nil {
			t.Errorf("%s: the same task is another: %v", x.key, content(x))
		}
		result, all, err := x.scored.Measure(scores[:len(x.scored.A)])
		if err != nil || all[0].Name != x.scored.Counts() || reflect.TypeOf(result) != reflect.TypeOf(x.scored.None) {
			t.Errorf("%s: %v, %v, %v; without a figure %v", x.key, err, all, result, x.scored.None)
		}
	}
	for _, set := range tasks { // where one of them is measured, the loss on held-out rows decides only where it is asked to
		r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), set, "save.best=true", "eval.loss={path: dev.jsonl, query: q, positive: p}"})
		if err != nil || r.Eval.byLoss() {
			t.Errorf("%s: %v, by the loss: %t", set, err, r.Eval.byLoss())
		}
	}
}

// What a recipe says of candidates is what is measured.
func TestScoredDocuments(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "ranked.jsonl")
	if err := os.WriteFile(file, []byte(`{"q": "x", "p": ["a", "lost"], "n": ["b"], "d": ["c", "a", "b"]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	entry := fmt.Sprintf("{name: NAME, path: %q, query: q, positive: p, ", file)
	var entries []string
	for name, rest := range []string{"negative: n}", "documents: d}", "documents: d, found: true}"} {
		entries = append(entries, strings.Replace(entry, "NAME", fmt.Sprint("t", name), 1)+rest)
	}
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "run"), "eval.candidates=[" + strings.Join(entries, ", ") + "]", "eval.metric=mrr@10"})
	for i, want := range []struct{ texts, figures string }{
		{"a lost b", "mrr@10 1.0000, ndcg@10 1.0000, map 1.0000, 1 query"},
		{"a lost c b", "mrr@10 1.0000, ndcg@10 1.0000, map 1.0000, 1 query; in the order of the file mrr@10 0.5000, ndcg@10 0.6509, map 0.5000"}, // there at 2 and 4 of 4
		{"c a b", "mrr@10 0.5000, ndcg@10 0.6309, map 0.5000, 1 query; in the order of the file mrr@10 0.5000, ndcg@10 0.6509, map 0.5000"},
	} {
		task := x.tasks[i].scored
		scores := make([]float64, len(task.B))
		for k := range scores {
			scores[k] = float64(-k)
		}
		result, _, err := task.Measure(scores)
		if err != nil || strings.Join(task.B, " ") != want.texts || result.String() != want.figures {
			t.Errorf("%d: %v, %q\n%s, want %q\n%s", i, err, task.B, result, want.texts, want.figures)
		}
	}
}

// Runs know the tasks that earlier versions of contraflow have measured them on: these names are those of commit 728b39a.
func TestScoredNames(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "tiny.jsonl")
	if err := os.WriteFile(file, []byte(`{"a": "x", "b": "y", "c": "z", "s": 0.5, "l": true}`+"\n"+`{"a": "u", "b": "v", "c": "w", "s": 2, "l": 0}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		"eval.sts={path: %q, a: a, b: b, score: s}":                                  "spearman on 13b35d91e9010b6d",
		"eval.pair_classification={path: %q, a: a, b: b, label: l}":                  "ap on 47b5f993fcb5c9b1",
		"eval.triplets={path: %q, query: a, positive: b, negative: c, margin: 0.25}": "accuracy on 2d7f232f265a3966",
	} {
		x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "run"), "save.best=true", fmt.Sprintf(set, file)})
		if got, err := x.judge(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", set, got, err, want)
		}
	}
}

// pairsTask writes a retrieval task, in which each first text is to find its second.
func (j *job) pairsTask(t *testing.T, p *dataset.Pairs) string {
	t.Helper()
	texts := map[string]string{}
	for i := range p.A {
		texts["queries.jsonl"] += fmt.Sprintf("{\"_id\": \"q%d\", \"text\": %q}\n", i, p.A[i])
		texts["corpus.jsonl"] += fmt.Sprintf("{\"_id\": \"d%d\", \"text\": %q}\n", i, p.B[i])
		texts["qrels.jsonl"] += fmt.Sprintf("{\"query_id\": \"q%d\", \"doc_id\": \"d%[1]d\", \"relevance\": 1}\n", i)
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("queries: %q, corpus: %q, qrels: %q", filepath.Join(j.dir, "queries.jsonl"), filepath.Join(j.dir, "corpus.jsonl"), filepath.Join(j.dir, "qrels.jsonl"))
}

// Paraphrases are found among the texts as pair_classification of all pairs has them.
func TestParaphrases(t *testing.T) {
	j := newJob(t, 20)
	var texts, pairs, all strings.Builder
	for i := range 12 {
		fmt.Fprintf(&texts, "{\"id\": %d, \"text\": \"%s %s\"}\n", i, j.words[i], j.words[2*i+1])
		for k := range i {
			together := 0
			if (i+k)%5 == 0 {
				together = 1
				fmt.Fprintf(&pairs, "{\"query_id\": %d, \"doc_id\": %d, \"relevance\": 1}\n", k, i)
			}
			fmt.Fprintf(&all, "{\"a\": \"%s %s\", \"b\": \"%s %s\", \"label\": %d}\n", j.words[i], j.words[2*i+1], j.words[k], j.words[2*k+1], together)
		}
	}
	at := func(name string) string { return filepath.Join(j.dir, name) }
	for name, text := range map[string]string{"texts.jsonl": texts.String(), "pairs.jsonl": pairs.String(), "all.jsonl": all.String(), "none.jsonl": strings.ReplaceAll(pairs.String(), "1}", "0}"),
		"stranger.jsonl": pairs.String() + `{"query_id": 3, "doc_id": 99, "relevance": 1}`} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := fmt.Sprintf("{name: same, texts: %q, pairs: %q", at("texts.jsonl"), at("pairs.jsonl"))
	prompts := "data.train.0.prompts={query: " + j.words[3] + "}"
	for out, more := range map[string][]string{"one": nil, "two": {"mesh.replicate=2"}} {
		sets := append(more, prompts, "eval.paraphrases=["+set+"}, "+strings.Replace(set, "same", "short", 1)+", dimensions: 3}]", "eval.metric=ap", "train.max_steps=1", "save.best=true",
			fmt.Sprintf("eval.pair_classification=[{name: all, path: %q, a: a, b: b, label: label}, {name: all short, path: %[1]q, a: a, b: b, label: label, dimensions: 3}]", at("all.jsonl")))
		if _, err := j.run(t, out, nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		got := j.evaluations(t, out)[0]
		for i, name := range []string{"same", "short"} {
			if found, want := got.Tasks[i], got.Tasks[2+i]; found.Name != name || found.Metric != "ap" || got.Metric != "mean ap" || !(math.Abs(found.Value-want.Value) <= 1e-6) || found.Value == 0 {
				t.Errorf("%s: %+v, want the figure of %+v", out, found, want)
			}
		}
	}
	if card := j.card(t, "one"); strings.Count(card, "type: paraphrase-mining") != 2 {
		t.Errorf("the card does not say what the two tasks are:\n%s", card)
	}
	if same, short := j.evaluations(t, "one")[0].Tasks[0].Value, j.evaluations(t, "one")[0].Tasks[1].Value; same == short {
		t.Errorf("both are %v", same)
	}
	set = strings.ReplaceAll(set, "pairs.jsonl", "stranger.jsonl")
	l, notes := j.lookOver(t, "eval.paraphrases="+set+"}")
	if p := l.Parts[len(l.Parts)-1]; p.Said != "12 texts, 13 pairs of them" || len(notes) != 1 || !strings.Contains(notes[0], "eval.paraphrases: 1 judgement names a query that is not there, and is left out") {
		t.Errorf("%+v, %q", p, notes)
	}
	if l, _ = j.lookOver(t, fmt.Sprintf("eval.paraphrases={texts: %q, pairs: %q}", at("texts.jsonl"), at("none.jsonl"))); l.Err() == nil || !strings.Contains(l.Err().Error(), "no two texts are paraphrases") {
		t.Errorf("%v", l.Err())
	}
	for want, sets := range map[string][]string{
		"eval.paraphrases: no two texts are paraphrases":                      {fmt.Sprintf("eval.paraphrases={texts: %q, pairs: %q}", at("texts.jsonl"), at("none.jsonl"))},
		"eval.paraphrases: needs texts, a file of ids and texts, and pairs":   {fmt.Sprintf("eval.paraphrases={texts: %q}", at("texts.jsonl"))},
		"eval.paraphrases: is for a model.kind: embedder":                     {"model.kind=multi_vector", "eval.paraphrases=" + set + "}"},
		`what else is measured here goes by ap;`:                              {"eval.metric=nonsense", "eval.paraphrases=" + set + "}"},
		"the recipe has no eval.retrieval, eval.nanobeir of an embedder, or ": {"eval.paraphrases=" + set + "}"},
	} {
		r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+at("wrong")))
		if err == nil {
			var x *Run
			if x, err = Open(t.Context(), r, Observer{}); err == nil {
				_, err = x.Evaluate(t.Context())
				x.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A retrieval task's own prompts are in place of those that train, all of them.
func TestRetrievalPrompts(t *testing.T) {
	j := newJob(t, 20)
	p, err := dataset.LoadPairs(t.Context(), j.stsFile(t), "a", "b", "s")
	if err != nil {
		t.Fatal(err)
	}
	prompt := j.words[7] + " " + j.words[8] + " "
	begun := dataset.Pairs{B: p.B}
	for _, a := range p.A {
		begun.A = append(begun.A, prompt+a)
	}
	measured := func(p *dataset.Pairs, more string) string {
		return first(t, j.opened(t, []string{"save.dir=" + j.dir, "data.train.0.prompts={document: no}", "eval.retrieval={" + j.pairsTask(t, p) + more + "}"}))
	}
	if got, want, others := measured(p, fmt.Sprintf(", prompts: {query: %q}", prompt)), measured(&begun, ", prompts: {}"), measured(&begun, ""); got != want || got == others {
		t.Errorf("%s, texts that begin so have %s, and with the prompts that train %s", got, want, others)
	}
	if _, err := Parse("job", []byte(j.text), []string{"save.dir=x", "eval.retrieval={queries: q, prompts: {positive: p}}"}); err == nil || !strings.Contains(err.Error(), "eval.retrieval.prompts: positive and negative are for training") {
		t.Error(err)
	}
}

// Those of any other task are too, of an embedder that reads some texts as documents and of a model of vectors.
func TestTaskPrompts(t *testing.T) {
	j := newJob(t, 20)
	_, _, sets := j.pairFiles(t)
	_, _, _, candidates := j.candidates(t)
	var texts, pairs strings.Builder
	for i, w := range j.words[:9] {
		fmt.Fprintf(&texts, "{\"id\": %d, \"text\": %q}\n", i, w)
		fmt.Fprintf(&pairs, "{\"query_id\": %d, \"doc_id\": %d, \"relevance\": 1}\n", i, (i+4)%9)
	}
	for name, text := range map[string]string{"texts.jsonl": texts.String(), "pairs.jsonl": pairs.String()} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mined := fmt.Sprintf("eval.paraphrases={texts: %q, pairs: %q}", filepath.Join(j.dir, "texts.jsonl"), filepath.Join(j.dir, "pairs.jsonl"))
	query, document := fmt.Sprintf("query: %q", j.words[9]+" "), fmt.Sprintf("document: %q", j.words[3]+" ")
	for kind, sets := range map[string][]string{"embedder": append(sets, candidates, mined), "multi_vector": append(sets, candidates)} {
		measured := func(training, own string) (all []string) {
			more := []string{"save.dir=" + j.dir, "model.kind=" + kind, "data.train.0.prompts={" + training + "}"}
			for _, set := range sets {
				said := own
				if kind == "embedder" && (set == mined || strings.Contains(set, "a: a")) {
					said = strings.Replace(own, ", "+document, "", 1)
				}
				more = append(more, strings.ReplaceAll(set, "{", "{"+said))
			}
			x := j.opened(t, more)
			ev, err := x.evaluate(t.Context(), &embedder.Engine{Model: x.model, Stream: x.stream})
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range ev.Tasks {
				js, _ := json.Marshal(task)
				all = append(all, string(js))
			}
			return all
		}
		both := query + ", " + document
		others := measured("document: no", "")
		want, got := measured(both, ""), measured("document: no", "prompts: {"+both+"}, ")
		same := 0
		for i := range others {
			if got[i] != want[i] {
				t.Errorf("%s: %s, where these prompts train %s", kind, got[i], want[i])
			}
			if got[i] == others[i] {
				same++
			}
		}
		if same > 1 { // how many triplets are right is a coarse measure
			t.Errorf("%s: %v, and with other prompts %v", kind, got, others)
		}
	}
	for set, want := range map[string]string{
		"eval.sts={path: p, a: a, b: b, score: s, prompts: {document: d}}":                    "eval.sts.prompts: document stands before none of its texts",
		"eval.paraphrases={texts: t, pairs: p, prompts: {document: d}}":                       "eval.paraphrases.prompts: document stands before none of its texts",
		"eval.triplets={path: p, query: q, positive: p, negative: n, prompts: {positive: x}}": "eval.triplets.prompts: positive and negative are for training",
	} {
		if _, err := Parse("job", []byte(j.text), []string{"save.dir=x", set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", set, err)
		}
	}
	set := "eval.candidates={path: p, query: q, positive: p, negative: n, prompts: {query: q}}"
	if _, err := Parse("job", []byte(j.text), []string{"save.dir=x", "model.kind=reranker", "data.train.0.negatives=[p]", set}); err == nil || !strings.Contains(err.Error(), "eval.candidates.prompts: are for embedders") {
		t.Error(err)
	}
}

// Pairs are compared by the first dimensions of their embeddings where a task says so, and by all in the next one.
func TestDimensions(t *testing.T) {
	j := newJob(t, 20)
	sts := fmt.Sprintf("path: %q, a: a, b: b, score: s", j.stsFile(t))
	p, err := dataset.LoadPairs(t.Context(), j.stsFile(t), "a", "b", "s")
	if err != nil {
		t.Fatal(err)
	}
	found := j.pairsTask(t, p)
	if _, err := j.run(t, "run", nil, 0, false, fmt.Sprintf("eval.sts={dimensions: [4, 0], %s}", sts), fmt.Sprintf("eval.retrieval=[{dimensions: 4, %s}, {%[1]s}]", found), "eval.metric=mrr", "train.max_steps=1"); err != nil {
		t.Fatal(err)
	}
	e, err := embedder.Load(filepath.Join(j.dir, "run", "model"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	a, errA := e.Embed(t.Context(), p.A)
	b, errB := e.Embed(t.Context(), p.B)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	got := j.evaluations(t, "run")[0].Tasks
	for k, size := range []int{4, 32} {
		cosine := func(a, b []float32) float64 {
			var dot, aa, bb float64
			for d := range size {
				x, y := float64(a[d]), float64(b[d])
				dot, aa, bb = dot+x*y, aa+x*x, bb+y*y
			}
			return dot / math.Sqrt(aa*bb)
		}
		var sims []float64
		mrr := 0.0
		for i := range a {
			sims = append(sims, cosine(a[i], b[i]))
			rank := 0.0
			for _, other := range b {
				if cosine(a[i], other) >= sims[i] {
					rank++
				}
			}
			mrr += 1 / rank / float64(len(a))
		}
		want, err := evaluate.EvaluateSTS(sims, p.Scores)
		if err != nil || len(got) != 4 || !(math.Abs(got[k].Value-mrr) <= 1e-6) || !(math.Abs(got[2+k].Value-want.Spearman) <= 1e-6) {
			t.Errorf("%d dimensions: %+v, want %v and %+v (%v)", size, got, mrr, want, err)
		}
		if name := []string{"sts-4", "sts"}[k]; got[2+k].Name != name {
			t.Errorf("%d dimensions: %s, want %s", size, got[2+k].Name, name)
		}
	}
	r, err := Parse("job", []byte(j.text), []string{"save.dir=x", "eval.nanobeir=[{dataset: org/name, tasks: nq}, {dataset: org/name, tasks: nq, dimensions: 4}]", "eval.pair_classification={path: p, a: a, b: b, label: l, dimensions: 5}",
		"eval.triplets={path: t, query: q, positive: p, negative: n, dimensions: 6}", "eval.candidates={path: t, query: q, positive: p, negative: n, dimensions: 7}"})
	if err != nil {
		t.Fatal(err)
	}
	both, err := Parse("job", []byte(j.text), []string{"save.dir=x", "eval.nanobeir={dataset: org/name, tasks: nq, dimensions: [0, 4]}", "eval.triplets={name: mine, path: t, query: q, positive: p, negative: n, dimensions: [6, 0]}"})
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, t := range both.Eval.tasks() {
		named = append(named, fmt.Sprintf("%s of %s by %d from %s", t.name, t.of, t.cut, t.from))
	}
	if want := []string{"name/NanoNQ of name by 0 from NanoNQ of org/name", "name-4/NanoNQ of name-4 by 4 from NanoNQ of org/name, 4 dimensions", "mine-6 of  by 6 from mine: t, 6 dimensions", "mine of  by 0 from mine: t"}; !slices.Equal(named, want) {
		t.Errorf("%q, want %q", named, want)
	}
	if text, err := both.YAML(); err != nil || !strings.Contains(string(text), "dimensions:") {
		t.Errorf("%s: %v", text, err)
	} else if again, err := Parse("again", text, nil); err != nil || len(again.Eval.tasks()) != 4 {
		t.Errorf("%v: %s", err, text)
	}
	// What is read otherwise is embedded by itself, however alike its files are.
	apart, err := Parse("job", []byte(j.text), []string{"save.dir=x", "eval.retrieval=[{name: a, queries: t, corpus: t, qrels: p}, {name: b, queries: t, corpus: t, qrels: p, dimensions: 4}, {name: c, queries: t, corpus: t, qrels: p, prompts: {query: q}}]", "eval.paraphrases={name: d, texts: t, pairs: p}",
		"eval.sts=[{name: e, path: p, a: a, b: b, score: s}, {name: f, path: p, a: b, b: a, score: s}]", "eval.pair_classification={name: g, path: p, a: a, b: b, label: s}"})
	if err != nil {
		t.Fatal(err)
	}
	tasks := apart.Eval.tasks()
	for i := range tasks {
		for k := range i {
			if alike := tasks[i].alike(&tasks[k]); alike != (i == 1) {
				t.Errorf("%s and %s are alike: %t", tasks[k].name, tasks[i].name, alike)
			}
		}
	}
	// What decides which evaluation is the best goes by eval.metric where documents are ranked, and where paraphrases are found by their own.
	for i, want := range map[int]string{0: "mrr@5", 1: "mrr@5 of 4 dimensions", 5: "ap"} {
		if name, _ := tasks[i].identity("mrr@5", nil); name != want {
			t.Errorf("%s goes by %s, want %s", tasks[i].name, name, want)
		}
	}
	all := r.Eval.tasks()
	if n := all[:2]; n[0].of != "name" || n[0].name != "name/NanoNQ" || n[0].cut != 0 || n[1].of != "name-4" || n[1].name != "name-4/NanoNQ" {
		t.Errorf("%+v", n)
	}
	for i, of := range all[1:] {
		of.of = ""
		if name, _ := of.identity("ap", nil); of.cut != 4+i || of.kind != nil && name != fmt.Sprintf("ap of %d dimensions", 4+i) {
			t.Errorf("%s: %d dimensions, and what decides which evaluation is the best is %s", of.key, of.cut, name)
		}
	}
	whole, short := j.opened(t, []string{"save.dir=" + j.dir, "eval.retrieval={" + found + "}"}), j.opened(t, []string{"save.dir=" + j.dir, "eval.retrieval={dimensions: 4, " + found + "}"})
	if less := whole.Memory.Evaluation - short.Memory.Evaluation; less != 4*2*12*(32-4) {
		t.Errorf("shorter embeddings of 12 queries and 12 documents take %d bytes less", less)
	}
	// The card tells them apart, and texts go through the model once.
	card := j.card(t, "run")
	for _, k := range []int{0, 2} {
		from := map[int]string{0: filepath.Base(j.dir) + "/queries.jsonl", 2: filepath.Base(j.stsFile(t))}[k]
		metric := map[int]string{0: "mrr", 2: "spearman"}[k]
		for i, name := range []string{from + ", 4 dimensions", from} {
			if row := fmt.Sprintf("| %s | %s | %.4f |", name, metric, got[k+i].Value); !strings.Contains(card, row) {
				t.Errorf("the card has no %q:\n%s", row, card)
			}
		}
	}
	embedded := func(cuts string) [2]int {
		passed := 0
		x := j.opened(t, []string{"save.dir=" + j.dir, "eval.sts={dimensions: " + cuts + ", " + sts + "}", "eval.retrieval={dimensions: " + cuts + ", " + found + "}"})
		engine := &embedder.Engine{Model: x.model, Stream: x.stream, Told: func(done, total int) { passed += total }}
		defer engine.Close()
		ev, err := x.evaluate(t.Context(), engine)
		if err != nil {
			t.Fatal(err)
		}
		return [2]int{passed, len(ev.Tasks)}
	}
	one, two := embedded("8"), embedded("[8, 4, 3]")
	if one[0] == 0 || one[0] != two[0] || one[1] != 2 || two[1] != 6 {
		t.Errorf("by one number of dimensions so many texts are embedded for so many tasks: %v; by three: %v", one, two)
	}
	if f := first(t, whole); f == first(t, short) {
		t.Errorf("measured alone, 4 dimensions have the figures that all have: %s", f)
	}
	for want, sets := range map[string][]string{
		"eval.sts: dimensions: is 33, and the model's embeddings have 32":      {"eval.sts={dimensions: 33, " + sts + "}"},
		"eval.sts.dimensions: is 4, want at least 1, of the embeddings of a ":  {"model.kind=multi_vector", "eval.sts={dimensions: 4, " + sts + "}"},
		"eval.sts.dimensions: is -1, want at least 1, of the embeddings of a ": {"eval.sts={dimensions: -1, " + sts + "}"},
		"eval.sts.dimensions: has 4 twice":                                     {"eval.sts={name: x, dimensions: [4, 5, 4], " + sts + "}"},
		"is that of eval.sts[0] too":                                           {"eval.sts=[{" + sts + "}, {dimensions: [4, 0], " + sts + "}]"},
		"names NanoNQ twice":                                                   {"eval.nanobeir={tasks: nq, dimensions: [4, 4]}"},
	} {
		r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, "wrong")))
		if err == nil {
			_, err = Open(t.Context(), r, Observer{})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
