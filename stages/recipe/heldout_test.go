package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/testdata/harness"
)

// heldRow is a row with something for every loss.
type heldRow struct {
	Q       string    `json:"q"`
	P       string    `json:"p"`
	N       []string  `json:"n"`
	W       float64   `json:"w"`
	Grade   float64   `json:"grade"`
	Class   int       `json:"class"`
	Scores  []float64 `json:"scores"`
	Teacher []float64 `json:"teacher"`
}

// heldRows writes rows, of which some share a positive.
func (j *job) heldRows(t *testing.T, name string, n int) (path string, rows []heldRow) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(n), 5))
	text := func() string { return sentence(rng, j.words, 1+rng.IntN(9)) }
	var b bytes.Buffer
	for i := range n {
		r := heldRow{Q: text() + fmt.Sprint(" ", i), P: text(), N: []string{text(), text(), text()}, W: 0.5 + float64(i%3), Grade: float64(i*7%10) / 10, Class: i % 4}
		for range 4 {
			r.Scores = append(r.Scores, rng.NormFloat64())
		}
		for range 32 {
			r.Teacher = append(r.Teacher, rng.NormFloat64())
		}
		if i%6 == 5 {
			r.P = rows[i-2].P
		}
		rows = append(rows, r)
		if err := json.NewEncoder(&b).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(j.dir, name)
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, rows
}

// heldOutLosses are a run's evaluations' losses on held-out rows, by step.
func (j *job) heldOutLosses(t *testing.T, out string) map[int]float64 {
	t.Helper()
	all := map[int]float64{}
	for _, m := range j.lines(t, out) {
		if v, ok := m["loss"].(float64); ok && m["metric"] != nil {
			all[int(m["step"].(float64))] = v
		}
	}
	return all
}

func relative(got, want float64) float64 { return math.Abs(got-want) / math.Abs(want) }

// The loss on held-out rows is what plain loops in f64 make of the embeddings that a program gets of the model: before the first step and after the
// last, with weights, whole lists of negatives, prompts, a text that comes twice, a last batch that is not full, and whatever the model drops while it
// trains; on one rank, on two, and where each holds a part of the model.
func TestHeldOutLoss(t *testing.T) {
	j := newJob(t, 40)
	path, rows := j.heldRows(t, "dev.jsonl", 31)
	naive := func(model string) float64 {
		e, err := embedder.Load(model)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		units := func(texts ...string) (all [][]float64) {
			vecs, err := e.Embed(t.Context(), texts)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range vecs {
				norm, unit := 0.0, make([]float64, len(v))
				for _, x := range v {
					norm += float64(x) * float64(x)
				}
				for i, x := range v {
					unit[i] = float64(x) / math.Sqrt(norm)
				}
				all = append(all, unit)
			}
			return all
		}
		sum, weight := 0.0, 0.0
		for batch := range slices.Chunk(rows, 13) {
			var texts []string
			for _, r := range batch {
				texts = append(texts, "d: "+r.P)
			}
			for _, r := range batch {
				for _, n := range r.N {
					texts = append(texts, "d: "+n)
				}
			}
			docs := units(texts...)
			for i, r := range batch {
				q, scores, all := units("q: " + r.Q)[0], make([]float64, len(docs)), 0.0
				for d := range docs {
					for k := range q {
						scores[d] += 20 * q[k] * docs[d][k]
					}
					if d == i || texts[d] != texts[i] { // a text is no negative of itself
						all += math.Exp(scores[d])
					}
				}
				sum, weight = sum+r.W*(math.Log(all)-scores[i]), weight+r.W
			}
		}
		return sum / weight
	}
	first := naive(filepath.Join(j.dir, "model"))
	for _, mesh := range []string{"{replicate: 1}", "{replicate: 2}", "{shard: 2, parameters: streamed}"} {
		out := strings.NewReplacer(":", "", "{", "", "}", "").Replace(mesh)
		_, err := j.run(t, out, nil, 0, false, "train.max_steps=3", "optimizer.lr=1e-2", "eval.at_start=true", "eval.every=2", "mesh="+mesh,
			fmt.Sprintf(`eval.loss={path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all, weight: w, prompts: {query: "q: ", document: "d: "}}`, path))
		if err != nil {
			t.Fatal(err)
		}
		got := j.heldOutLosses(t, out)
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, []int{0, 2, 3}) {
			t.Fatalf("%s: evaluations after steps %v", mesh, keys)
		}
		last := naive(filepath.Join(j.dir, out, "model"))
		// Cosines are some eps off, 6e-8 each, and the loss multiplies them by 20.
		if !(relative(got[0], first) <= 2e-6) || !(relative(got[3], last) <= 2e-6) || !(relative(first, last) >= 0.01) {
			t.Errorf("%s: %v, want %v before the first step and %v at the end", mesh, got, first, last)
		}
		for _, m := range j.lines(t, out) {
			if m["metric"] != nil && (m["metric"] != "loss" || m["value"] != m["loss"]) {
				t.Errorf("%s: %v", mesh, m)
			}
		}
	}
}

// On rows that are also trained on, the loss before the first step is that of the first step: for every loss, of three batches of which the last is
// not full, on one rank, on two, and where each holds a part of the model.
func TestHeldOutLosses(t *testing.T) {
	t.Parallel()
	j := newJob(t, 10)
	path, _ := j.heldRows(t, "rows.jsonl", 30)
	other, layered := newJobModel(t, j), strings.Join(j.layerWise(t)[:3], ", ")
	meshes := []string{"{replicate: 1}", "{shard: 2, parameters: streamed}"}
	for i, c := range []struct{ loss, columns, more string }{
		{"mnrl", "positive: p, negatives: [n], negatives_per_query: all, weight: w", ""},
		{"{name: mnrl, directions: [query_to_doc, doc_to_query], partition_mode: per_direction, hardness_mode: in_batch_negatives, hardness_strength: 3}", "positive: p", ""},
		{"{name: mnrl, matryoshka: {dims: [32, 8], weights: [1, 0.5]}}", "positive: p, negatives: [n], negatives_per_query: all", ""},
		{fmt.Sprintf("{name: gist, guide: {path: %q, prompts: {query: \"x: \"}}}", other), "positive: p, negatives: [n], negatives_per_query: all, weight: w", ""},
		{"cosent", "positive: p, label: grade", ""},
		{"cosine_similarity", "positive: p, label: grade, weight: w", ""},
		{"triplet", "positive: p, negatives: [n], negatives_per_query: all", ""},
		{"distill_kl", "positive: p, negatives: [n], negatives_per_query: all, scores: [scores]", ""},
		{"batch_hard_triplet", "label: class", ""},
		{"[mega_batch_margin, {name: gor, weight: 2}]", "positive: p, weight: w", ""},
		{"batch_all_triplet", "label: class", ""},
		{"mse", "teacher: teacher", ""},
		{"{name: m3, self_distill: true}", "positive: p, negatives: [n], negatives_per_query: all", "model.kind=m3"},
		{"mnrl", "positive: p, negatives: [n], negatives_per_query: all, weight: w", "model.kind=multi_vector, model.query_expansion={length: 20,attend: false}"},
		{"cross_entropy", "positive: p, negatives: [n], negatives_per_query: all, weight: w", "model.kind=reranker"},
		{"{name: mnrl, num_negatives: 3}", "positive: p, negatives: [n], negatives_per_query: all, weight: w", "model.kind=reranker"},
		{"{name: mnrl, num_negatives: all, activation: identity, scale: 2}", "positive: p", "model.kind=reranker"},
		{"{name: lambda, weighting: ndcg_loss1}", "positive: p, negatives: [n], negatives_per_query: all, scores: [scores]", "model.kind=reranker"},
		{"bce", "positive: p, label: grade", "model.kind=reranker"},
		{
			fmt.Sprintf("[{name: gist, guide: %q}, {name: distill_kl, weight: 3, similarity: cosine, matryoshka: {dims: [32, 8]}}]", other),
			"positive: p, negatives: [n], negatives_per_query: all, scores: [scores], weight: w", "",
		},
		{"[{name: cross_entropy, self_distill: true}, {name: kl, weight: 0.5}]", "positive: p, negatives: [n], negatives_per_query: all, scores: [scores]", layered},
	} {
		if testing.Short() && i%4 != 3 { // a guide's device and ranks meet in these as in the others
			continue
		}
		for _, mesh := range []string{"{replicate: 2}", meshes[i%2]} { // of the others each loss has one
			if testing.Short() && mesh != "{replicate: 2}" {
				break
			}
			source := fmt.Sprintf("{path: %q, query: q, %s}", path, c.columns)
			sets := []string{"data={shuffle: false, train: [" + source + "]}", "batch={global_size: 13, accumulate: 3, drop_last: false, no_duplicates: false, sub_batch: {rows: 5}}",
				"loss=" + c.loss, "model.dropout=0", "train={max_steps: 1, device: cpu}", "mesh=" + mesh, "eval={at_start: true, every: 0, loss: " + source + "}"}
			if c.more != "" {
				sets = append(sets, strings.Split(c.more, ", ")...)
			}
			o, err := j.run(t, "run", nil, 0, false, sets...)
			if err != nil {
				t.Errorf("%s: %v", c.loss, err)
				continue
			}
			if got, want := j.heldOutLosses(t, "run")[0], o.losses[0]; !(relative(got, want) < 5e-6) {
				t.Errorf("%s, %s: %v, the first step's is %v", c.loss, mesh, got, want)
			}
		}
	}
}

// A loss that draws takes all dimensions when it is measured, and what is chosen from lists stays.
func TestHeldOutDrawsNothing(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 20)
	path, _ := j.heldRows(t, "dev.jsonl", 20)
	measure := func(dims string) map[int]float64 {
		_, err := j.run(t, "run", nil, 0, false, "train.max_steps=2", "optimizer.lr=1e-30", "eval.at_start=true", "eval.every=1",
			"loss.matryoshka={dims: [32, 16, 8]"+dims+"}", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p, negatives: [n]}", path))
		if err != nil {
			t.Fatal(err)
		}
		return j.heldOutLosses(t, "run")
	}
	all, drawn := measure(""), measure(", dims_per_step: 1")
	if len(all) != 3 || all[0] != all[1] || all[1] != all[2] || !maps.Equal(all, drawn) {
		t.Errorf("all dimensions: %v, one a step: %v", all, drawn)
	}
	own := func(dims string, seed int) float64 {
		must(j.run(t, "run", nil, 0, false, "train.max_steps=1", "eval.at_start=true", fmt.Sprint("train.seed=", seed),
			fmt.Sprintf("eval.loss={path: %q, query: q, positive: p, negatives: [n], loss: {name: mnrl, matryoshka: {dims: [32, 16, 8]%s}}}", path, dims)))(t)
		return j.heldOutLosses(t, "run")[0]
	}
	if all, drawn := own("", 1), own(", dims_per_step: 1", 1); all != drawn {
		t.Errorf("a loss of its own: %v, one dimension a step: %v", all, drawn)
	}
	if one, other := own("", 1), own("", 2); one == other {
		t.Errorf("with another seed the negatives that lists give are the same: %v", one)
	}
}

// Prompts of held-out groups are their own, and those of data.train[0] where they have none.
func TestHeldOutGroupPrompts(t *testing.T) {
	j := newJob(t, 20)
	path, _ := j.heldRows(t, "dev.jsonl", 12)
	measure := func(train, held string) float64 {
		source := fmt.Sprintf("path: %q, query: q, positive: p, negatives: [n]", path)
		must(j.run(t, "run", nil, 0, false, "model.kind=reranker", "train.max_steps=1", "eval.at_start=true", "data.train=[{"+source+train+"}]", "eval.loss={"+source+held+"}"))(t)
		return j.heldOutLosses(t, "run")[0]
	}
	ours, own := `, prompts: {query: "stone: "}`, `, prompts: {query: "house: "}`
	if none, trained, both, other := measure("", ""), measure(ours, ""), measure(own, ours), measure(ours, own); trained == none || trained != both || other == trained {
		t.Errorf("without prompts %v, as in training %v, given %v, others %v", none, trained, both, other)
	}
}

// What a dataset has to say is said of held-out rows too, by their key.
func TestHeldOutNotes(t *testing.T) {
	j := newJob(t, 20)
	_, rows := j.heldRows(t, "dev.jsonl", 12)
	rows[3].P = "['a stone', 'a house']"
	var b bytes.Buffer
	for _, r := range rows {
		if err := json.NewEncoder(&b).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(j.dir, "lists.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := must(j.run(t, "run", nil, 0, false, "train.max_steps=1", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", path)))(t)
	if n := strings.Join(o.notes, "\n"); strings.Count(n, "eval.loss: "+path) != 1 {
		t.Errorf("notes %q", o.notes)
	}
}

// What has no loss of its own has the one that the run trains with, be it the recipe's or a program's, and m3's is measured as it ends.
func TestHeldOutWhichLoss(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 20)
	path, _ := j.heldRows(t, "dev.jsonl", 20)
	measure := func(own string, opts []TrainOption, sets ...string) float64 {
		j.opts = opts
		must(j.run(t, "run", nil, 0, false, append(sets, "train.max_steps=1", "eval.at_start=true", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p%s}", path, own))...))(t)
		return j.heldOutLosses(t, "run")[0]
	}
	want := measure("", nil, "loss.scale=5")
	program := []TrainOption{WithLoss(loss.InfoNCE{Scale: 5, MaskDuplicates: true})}
	for what, got := range map[string]float64{
		"its own":               measure(", loss: {name: mnrl, scale: 5}", nil),
		"a program's":           measure("", program),
		"its own, in a program": measure(", loss: {name: mnrl, scale: 5}", []TrainOption{WithLoss(loss.InfoNCE{Scale: 7})}),
	} {
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if got := measure("", nil); got == want {
		t.Errorf("with another scale %v too", got)
	}
	m3 := func(more string) float64 { return measure("", nil, "model.kind=m3", "loss={name: m3"+more+"}") }
	if plain, now, later := m3(""), m3(", self_distill: true"), m3(", self_distill: true, self_distill_from: 9"); now != later || now == plain {
		t.Errorf("with self-distillation from the first step %v, from the ninth %v; without %v", now, later, plain)
	}
}

// With nothing else to go by, the best model is that of the lowest loss on held-out rows, and what rises ends a run early; beside tasks the loss
// decides where eval.metric says so, and is shown in any case.
func TestHeldOutBest(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	dev, _ := j.heldRows(t, "dev.jsonl", 30)
	more, _ := j.heldRows(t, "more.jsonl", 17)
	source := func(path string) string { return fmt.Sprintf("{path: %q, query: q, positive: p}", path) }
	common := []string{"eval.every=1", "eval.at_start=true", "eval.early_stopping={patience: 3, min_delta: 0.001}", "save.best=true", "save.every=2", "optimizer.lr=2e-2", "optimizer.schedule=constant", "train.epochs=40", "train.max_steps=60", "log.tensorboard=true"}
	for _, c := range []struct {
		out, metric string
		sets        []string
	}{
		{"alone", "loss", []string{"eval.loss=" + source(dev)}},
		{"two ranks", "loss", []string{"eval.loss=" + source(dev), "mesh.replicate=2"}},
		{"several", "loss", []string{"eval.loss=[" + source(dev) + ", " + source(more) + "]"}},
		{"decides", "loss", []string{"eval.loss=" + source(dev), "eval.metric=loss", j.sts(t)}},
		{"beside", "spearman", []string{"eval.loss=[" + source(dev) + ", " + source(more) + "]", j.sts(t)}},
	} {
		o, err := j.run(t, c.out, nil, 0, false, append(common, c.sets...)...)
		if err != nil {
			t.Fatalf("%s: %v", c.out, err)
		}
		sign := 1.0 // higher is better
		if c.metric == "loss" {
			sign = -1
		}
		best, at, mark, worse := math.Inf(-1), 0, math.Inf(-1), 0
		for _, m := range j.lines(t, c.out) {
			if m["metric"] == nil {
				continue
			}
			value, step := m["value"].(float64), int(m["step"].(float64))
			loss, ok := m["loss"].(float64)
			if !ok || m["metric"] != c.metric || c.metric == "loss" && value != loss {
				t.Fatalf("%s: %v", c.out, m)
			}
			if each, ok := m["losses"].(map[string]any); ok != (len(c.sets[0]) > 150) || ok && !(relative((each["dev"].(float64)+each["more"].(float64))/2, loss) <= 1e-12) {
				t.Errorf("%s: losses %v, their mean %v", c.out, each, loss)
			}
			if tasks, ok := m["tasks"].([]any); ok != (c.out == "decides") || ok && tasks[0].(map[string]any)["metric"] != "spearman" {
				t.Errorf("%s: %v", c.out, m)
			}
			if step == 0 {
				continue // is of no model of this run
			}
			if worse == 3 && step < o.summary.Steps {
				t.Errorf("%s: step %d comes after three evaluations that were no better", c.out, step)
			}
			if worse++; sign*value > mark+0.001 {
				mark, worse = sign*value, 0
			}
			if sign*value > best {
				best, at = sign*value, step
			}
		}
		s := o.summary
		if s.Best != sign*best || s.BestStep != at || !s.Early || at == s.Steps {
			t.Errorf("%s: best %v at step %d, want %v at step %d; %d steps", c.out, s.Best, s.BestStep, sign*best, at, s.Steps)
		}
		if kept, err := os.ReadFile(filepath.Join(j.dir, c.out, "best", "model.safetensors")); err != nil || !bytes.Equal(kept, j.model(t, c.out)) {
			t.Errorf("%s: the model is not the best one (%v)", c.out, err)
		}
		events, err := filepath.Glob(filepath.Join(j.dir, c.out, "tensorboard", "*"))
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %v, event files %v", c.out, err, events)
		}
		if raw, err := os.ReadFile(events[0]); err != nil || !bytes.Contains(raw, []byte("eval/loss")) {
			t.Errorf("%s: %v: TensorBoard's file has no eval/loss", c.out, err)
		}
		card, err := os.ReadFile(filepath.Join(j.dir, c.out, "model", "README.md"))
		if err != nil || !strings.Contains(string(card), "loss") {
			t.Errorf("%s: %v: the card has no loss:\n%s", c.out, err, card)
		}
		want := map[string]string{"loss": "held-out loss ", "spearman": ", held-out loss "}[c.metric]
		if !strings.Contains(s.Eval.String(), want) || c.metric == "loss" && !strings.Contains(s.String(), fmt.Sprintf("held-out loss %.4f at step %d, whose model is saved", s.Best, at)) {
			t.Errorf("%s: %v\n%v", c.out, s.Eval, s)
		}
	}
	// On the rows that it learns the loss falls, and with each query before the next row's positive it rises.
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var shifted bytes.Buffer
	before := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		var row map[string]string
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if before["q"] != "" {
			fmt.Fprintf(&shifted, `{"q": %q, "p": %q}`+"\n", before["q"], row["p"])
		}
		before = row
	}
	wrong := filepath.Join(j.dir, "wrong.jsonl")
	if err := os.WriteFile(wrong, shifted.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, rises := range map[string]bool{wrong: true, filepath.Join(j.dir, "data.jsonl"): false} {
		o := must(j.run(t, fmt.Sprint("rises ", rises), nil, 0, false, "eval.at_start=true", "eval.loss="+source(path), "optimizer.lr=1e-2", "train.epochs=20", "train.max_steps=40"))(t)
		if said := strings.Contains(strings.Join(o.notes, "\n"), "the model is no better than before its training: held-out loss "); said != rises {
			t.Errorf("%s: notes %q", path, o.notes)
		}
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A run goes on by the loss that it went by; with other held-out rows best and patience begin anew.
func TestHeldOutResumed(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	dev, _ := j.heldRows(t, "dev.jsonl", 30)
	sets := []string{fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", dev), "eval.every=1", "save.best=true", "save.every=1", "optimizer.lr=2e-2", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "train.epochs=9", "train.max_steps=8"}
	whole := must(j.run(t, "whole", nil, 0, false, sets...))(t)
	must(j.run(t, "run", nil, 4, false, sets...))(t)
	again := must(j.run(t, "run", nil, 0, true, sets...))(t)
	if again.summary.Best != whole.summary.Best || again.summary.BestStep != whole.summary.BestStep || !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Errorf("best %v at step %d, in one go %v at step %d", again.summary.Best, again.summary.BestStep, whole.summary.Best, whole.summary.BestStep)
	}
	for i, other := range []string{"eval.loss.weight=w", "eval.loss.loss={name: mnrl, scale: 10}"} {
		out := fmt.Sprint("other ", i)
		must(j.run(t, out, nil, 4, false, sets...))(t)
		o, err := j.run(t, out, nil, 0, true, append(sets, other)...)
		said(t, o, err, "what eval measures has changed: the best evaluation")
	}
}

// A loss that is not finite is no figure, and the run goes on.
func TestHeldOutNotFinite(t *testing.T) {
	j := newJob(t, 60)
	dev, _ := j.heldRows(t, "dev.jsonl", 30)
	for _, replicate := range []int{1, 2} {
		o, err := j.run(t, "run", nil, 0, false, fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", dev), "eval.every=1", "train.max_steps=3", "train.on_nan=skip", "optimizer={lr: 1e38, warmup_ratio: 0}", fmt.Sprint("mesh.replicate=", replicate))
		if want := "eval.loss has no figure this time: the loss is not finite: that of " + dev + ":1 is NaN"; !slices.Contains(o.notes, want) || len(o.losses) < 2 {
			t.Errorf("%v, %d steps, notes %q, want %q", err, len(o.losses), o.notes, want) // and no model can be saved of it
		}
	}
}

// Of several datasets the mean is no figure where one has none.
func TestHeldOutPartly(t *testing.T) {
	j := newJob(t, 20)
	dev, _ := j.heldRows(t, "dev.jsonl", 30)
	_, rows := j.heldRows(t, "far.jsonl", 4)
	var far bytes.Buffer
	for _, r := range rows {
		r.Teacher[5] = 1e30 // whose square is no float32
		if err := json.NewEncoder(&far).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(j.dir, "far.jsonl"), far.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := must(j.run(t, "run", nil, 0, false, "eval.at_start=true", "train.max_steps=1",
		fmt.Sprintf("eval.loss=[{path: %q, query: q, positive: p}, {path: %q, query: q, teacher: teacher, loss: mse}]", dev, filepath.Join(j.dir, "far.jsonl"))))(t)
	if got := j.heldOutLosses(t, "run"); len(got) != 0 || !strings.Contains(strings.Join(o.notes, "\n"), "eval.loss[1] has no figure this time: ") {
		t.Errorf("losses %v, notes %q", got, o.notes)
	}
}

// Columns that the loss has no use for are told, and a metric that nothing has.
func TestHeldOutUnread(t *testing.T) {
	j := newJob(t, 60)
	dev, _ := j.heldRows(t, "dev.jsonl", 30)
	for loss, want := range map[string]string{"": "eval.loss.label is not read: loss.name: mnrl has no use for it", ", loss: cosent": ""} {
		o, err := j.run(t, fmt.Sprint("run ", want != ""), nil, 0, false, fmt.Sprintf("eval.loss={path: %q, query: q, positive: p, label: grade%s}", dev, loss), "train.max_steps=1")
		if err != nil || slices.ContainsFunc(o.notes, func(n string) bool { return strings.Contains(n, "is not read") }) != (want != "") || want != "" && !slices.Contains(o.notes, want) {
			t.Errorf("%v, notes %q, want %q", err, o.notes, want)
		}
	}
	entry := fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", dev)
	for sets, want := range map[string]bool{"eval.metric=mrr@10": true, "eval.metric=loss": false, "eval.metric=ndcg@10": false} {
		o := must(j.run(t, "run "+sets, nil, 0, false, entry, sets, "train.max_steps=1"))(t)
		if got := slices.Contains(o.notes, "eval.metric: mrr@10 is of ranking documents, and nothing has them ranked: the loss on held-out rows decides"); got != want {
			t.Errorf("%s: notes %q", sets, o.notes)
		}
	}
}

// What is wrong with held-out rows is known before the first step, by its key, file and row.
func TestHeldOutWrong(t *testing.T) {
	j := newJob(t, 30)
	dev, _ := j.heldRows(t, "dev.jsonl", 20)
	bad := filepath.Join(j.dir, "bad.jsonl")
	if err := os.WriteFile(bad, []byte(`{"q": "a", "p": "b", "l": 0.5}`+"\n"+`{"q": "a", "p": null, "l": 7}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(j.dir, "empty.jsonl")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	entry := func(rest string) string { return fmt.Sprintf("eval.loss={path: %q, query: q%s}", dev, rest) }
	own := "data.train.0.loss={name: mnrl, scale: 3}"
	for want, sets := range map[string][]string{
		"eval.loss.path: is missing":                                              {"eval.loss={query: q, positive: p}"},
		"eval.loss.query: is missing":                                             {"eval.loss={path: x, positive: p}"},
		"eval.loss.positive: is missing: the column with the positives":           {entry("")},
		"eval.loss.negatives_per_query: needs negatives":                          {entry(", positive: p, negatives_per_query: 2")},
		"eval.loss.label: is missing: loss.name: cosent needs a column":           {entry(", positive: p"), "loss.name=cosent", "data.train.0.label=l"},
		"eval.loss.label: is missing: eval.loss.loss.name: cosent needs a column": {entry(", positive: p, loss: cosent")},
		"eval.loss.weight: loss.name: cosent is of the batch as a whole":          {entry(", positive: p, label: grade, weight: w"), "loss.name=cosent", "data.train.0.label=l"},
		"eval.loss.loss.scale: is -1, want a positive number":                     {entry(", positive: p, loss: {name: mnrl, scale: -1}")},
		"eval.loss.negatives: are missing: eval.loss.loss[1].name: triplet":       {entry(", positive: p, loss: [mnrl, triplet]")},
		"eval.loss.loss[1].self_distill is for a layer-wise reranker":             {entry(", positive: p, negatives: [n], loss: [cross_entropy, {name: cross_entropy, self_distill: true}]"), "model.kind=reranker", "model.max_length=32", "data.train.0.negatives=[p]"},
		"eval.loss.loss: gist's guide reads all datasets":                         {entry(", positive: p, loss: {name: gist, guide: g}")},
		"eval.loss.loss: is missing: no dataset trains with the recipe's loss":    {entry(", positive: p"), own},
		"eval.loss.loss: is not for model.kind: m3":                               {entry(", positive: p, loss: mnrl"), "model.kind=m3"},
		"eval.loss.scores: is missing: loss.distillation: kl_div":                 {entry(", positive: p"), "model.kind=m3", "loss={name: m3, distillation: kl_div}", "data.train.0.negatives=[p]", "data.train.0.scores=[s]"},
		"eval.loss.negatives: are missing: loss.name: cross_entropy":              {entry(", positive: p"), "model.kind=reranker", "data.train.0.negatives=[p]"},
		"eval.loss.prompts: positive and negative are for embedders":              {entry(", positive: p, negatives: [n], prompts: {positive: x}"), "model.kind=reranker", "data.train.0.negatives=[p]"},
		"eval.loss[1].name: \"dev\" is that of eval.loss[0] too":                  {fmt.Sprintf("eval.loss=[{path: %q, query: q, positive: p}, {path: %[1]q, query: q, positive: p}]", dev)},
		"eval.loss[0].sampling_weight: unknown key":                               {entry(", positive: p, sampling_weight: 2")},
		"or loss, of the rows of eval.loss":                                       {"eval.metric=eval_loss", "eval.retrieval={queries: q, corpus: c, qrels: r}"},
		"eval.metric: loss needs eval.loss":                                       {"eval.metric=loss"},
		"save.best: needs eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or eval.loss": {"save.best=true"},
		"eval.dataset: unknown key":                                                         {"eval.dataset=x"},
		"eval.eval_dataset: unknown key; here it is eval.loss":                              {"eval.eval_dataset=x"},
		"eval.loss: open " + filepath.Join(j.dir, "none.jsonl"):                             {strings.Replace(entry(", positive: p"), "dev", "none", 1)},
		"eval.loss: " + bad + ":2":                                                          {strings.Replace(entry(", positive: p"), "dev", "bad", 1)},
		"eval.loss: " + empty:                                                               {strings.Replace(entry(", positive: p"), "dev", "empty", 1)},
		"none of the rows that a loss is measured on is left out":                           {strings.Replace(entry(", positive: p"), "dev", "bad", 1), "data.on_error=skip"},
		`eval.loss: ` + dev + ` has no column "other"`:                                      {entry(", positive: other")},
		"eval.loss.loss.matryoshka.dims: are [64], and the model's embeddings have 32":      {entry(", positive: p, loss: {name: mnrl, matryoshka: {dims: [64]}}")},
		"eval.loss: teacher: its embeddings have 4 dimensions, and the loss compares them ": {entry(", teacher: scores, loss: mse")},
		"eval.loss: " + dev + ":3, column \"class\": the label is 2":                        {entry(", positive: p, label: class, loss: {name: online_contrastive}")},
	} {
		r, err := Parse("r.yaml", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, "run")))
		if err == nil {
			var x *Run
			if x, err = Open(t.Context(), r, Observer{}); err == nil {
				x.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sets, err, want)
		}
	}
}

// Rows that have no others to be told from are an error, or are told of: a loss of 0 would look like a perfect one.
func TestHeldOutLonely(t *testing.T) {
	j := newJob(t, 20)
	for _, c := range []struct {
		rows                  int
		columns, loss, expect string
	}{
		{1, "", "mnrl", "error: eval.loss: there is one row, and loss.name: mnrl compares a row with others"},
		{1, "", "[cosine_similarity, mnrl]", "error: eval.loss: there is one row, and loss[1].name: mnrl compares"},
		{14, "", "mnrl", "note: eval.loss: the last of 14 rows is alone in its batch (batch.global_size is 13), where loss.name: mnrl finds nothing"},
		{5, "", "mnrl", "note: eval.loss: there are 5 rows, fewer than batch.global_size, 13"},
		{14, ", negatives: [n], negatives_per_query: all", "mnrl", ""}, {1, ", negatives: [n], negatives_per_query: all", "mnrl", "note: eval.loss: there is 1 row, fewer"},
		{13, "", "mnrl", ""}, {1, "", "cosine_similarity", ""},
	} {
		path, _ := j.heldRows(t, "dev.jsonl", c.rows)
		train, _ := j.heldRows(t, "train.jsonl", 30)
		label := ""
		if strings.Contains(c.loss, "cosine") {
			label = ", label: grade"
		}
		got := ""
		r, err := Parse("r.yaml", []byte(j.text), []string{
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p%s}]", train, label), fmt.Sprintf("eval.loss={path: %q, query: q, positive: p%s%s}", path, label, c.columns),
			"loss=" + c.loss, "batch.global_size=13", "save.dir=" + filepath.Join(j.dir, "run"),
		})
		if err == nil {
			var x *Run
			if x, err = Open(t.Context(), r, Observer{Note: func(n string) {
				if strings.HasPrefix(n, "eval.loss") {
					got += "note: " + n
				}
			}}); err == nil {
				x.Close()
			}
		}
		if err != nil {
			got = "error: " + err.Error()
		}
		if !strings.HasPrefix(got, c.expect) || (got == "") != (c.expect == "") {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
