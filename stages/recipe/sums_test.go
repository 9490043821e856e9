package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/stages/loss"
	"contraflow/testdata/harness"
)

// of is a sum as a recipe's objective.
func of(t *testing.T, terms ...loss.Term) loss.RowSplitter {
	t.Helper()
	l, err := loss.Sum(terms...)
	if err != nil {
		t.Fatal(err)
	}
	return l.(loss.RowSplitter)
}

// sumColumns is a recipe whose dataset has these columns beside the query.
func sumColumns(columns, rest string) []byte {
	return []byte(strings.Replace(minimal, "positive: p", columns, 1) + rest)
}

const taughtColumns = "positive: p, negatives: ns, scores: [ps, ns]"

// A list of losses is their sum, of a recipe and of a dataset, by which each term has its options, as --set and a recipe that is written have them.
func TestSums(t *testing.T) {
	mnrl := loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}, MaskDuplicates: true}
	sharp := mnrl
	sharp.Scale = 50
	guided := loss.InfoNCE{Scale: 100, Directions: []loss.Direction{loss.QueryToDoc, loss.QueryToQuery, loss.PositiveToPositive}, MaskDuplicates: true, Guide: &loss.Guide{}}
	kl := loss.DistillKL{Metric: loss.Cosine, StudentTemperature: 0.02}
	nested, _ := loss.Matryoshka(mnrl, []int{8, 4}, nil, 0)
	for _, c := range []struct {
		columns, text string
		sets          []string
		want          loss.RowSplitter
	}{
		{taughtColumns, "loss: [mnrl, distill_kl]", nil, of(t, loss.Term{Loss: mnrl, Factor: 1}, loss.Term{Loss: loss.DistillKL{Metric: loss.Dot}, Factor: 1})},
		{
			taughtColumns, "loss:\n  - {name: mnrl, temperature: 0.02}\n  - {name: distill_kl, weight: 2500, similarity: cosine, student_temperature: 0.02}", nil,
			of(t, loss.Term{Loss: sharp, Factor: 1}, loss.Term{Loss: kl, Factor: 2500}),
		},
		{
			taughtColumns, "loss: [{scale: 20, weight: 0.5}, {name: kl_div}, {name: margin_mse}]", []string{"loss.0.weight=2", "loss[0].scale=50", "loss.1={name: kl_div, similarity: cosine, student_temperature: 0.02}"},
			of(t, loss.Term{Loss: sharp, Factor: 2}, loss.Term{Loss: kl, Factor: 1}, loss.Term{Loss: loss.MarginMSE{Metric: loss.Dot}, Factor: 1}),
		},
		{"positive: p", "loss: [{weight: 3, matryoshka: {dims: [8, 4]}}]", nil, of(t, loss.Term{Loss: nested, Factor: 3})},
		{"positive: p", "loss: [{weight: 3}]", []string{"loss.matryoshka={dims: [8, 4]}"}, of(t, loss.Term{Loss: nested, Factor: 3})}, // of an only one
		{"positive: p", "loss: mnrl", []string{"loss=[mnrl, {scale: 50, weight: 4}]"}, of(t, loss.Term{Loss: mnrl, Factor: 1}, loss.Term{Loss: sharp, Factor: 4})},
		{"positive: p", "loss: [mnrl, {name: gist, guide: g}]", nil, of(t, loss.Term{Loss: mnrl, Factor: 1}, loss.Term{Loss: guided, Factor: 1})},
		{"label: l", "loss: [batch_hard_triplet, {name: gor, mean_weight: 0, weight: 0.5}]", nil, of(t, loss.Term{Loss: loss.BatchTriplet{Mode: loss.Hard, Metric: loss.Euclidean}, Factor: 1}, loss.Term{Loss: loss.GlobalOrthogonal{Metric: loss.Cosine, SecondMoment: 1}, Factor: 0.5})},
		{"label: l, teacher: e", "loss: [batch_all_triplet, mse]", nil, of(t, loss.Term{Loss: loss.BatchTriplet{Mode: loss.All, Metric: loss.Euclidean}, Factor: 1}, loss.Term{Loss: loss.TeacherEmbedding{}, Factor: 1})},
		{
			taughtColumns, "loss: [cross_entropy, {name: kl, weight: 3}]", []string{"model.kind=reranker"},
			of(t, loss.Term{Loss: loss.Groups{Name: loss.GroupCrossEntropy}, Factor: 1}, loss.Term{Loss: loss.Groups{Name: loss.GroupKL}, Factor: 3}),
		},
		{"positive: p, label: l, loss: [{scale: 50}, {name: cosent, weight: 2}]", "", nil, loss.ByDataset{of(t, loss.Term{Loss: sharp, Factor: 1}, loss.Term{Loss: loss.CoSENT{Scale: 20, Metric: loss.Cosine}, Factor: 2})}},
	} {
		r, err := Parse("r.yaml", sumColumns(c.columns, c.text), c.sets)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := r.objective(driving{}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.text, got, c.want)
		}
		again, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Parse("again.yaml", again, nil); err != nil || !reflect.DeepEqual(s.objective(driving{}), c.want) {
			t.Errorf("%s, written and read again: %v\n%s", c.text, err, again)
		}
		if s, err := r.Resolve(); err != nil || !reflect.DeepEqual(s, r) {
			t.Errorf("%s, resolved again: %v\n%+v\n%+v", c.text, err, s, r)
		}
	}

	r := Default()
	r.Model.Path, r.Save.Dir = "m", "runs/x"
	r.Data.Train = []Source{{Path: []string{"d.parquet"}, Query: "q", Positive: "p", Negatives: []string{"ns"}, Scores: []string{"ps", "ns"}}}
	second := Loss{Name: "distill_kl", Weight: 2, Similarity: "dot", GatherAcrossDevices: true}
	r.Loss = Loss{Terms: []Loss{defaultLoss(), second}}
	if text, err := r.YAML(); err != nil || !strings.Contains(string(text), "weight: 2") {
		t.Errorf("written as a program made it: %v\n%s", err, text)
	}
	s, err := r.Resolve()
	want := of(t, loss.Term{Loss: mnrl, Factor: 1}, loss.Term{Loss: loss.DistillKL{Metric: loss.Dot}, Factor: 2})
	if err != nil || !reflect.DeepEqual(s.objective(driving{}), want) {
		t.Errorf("a program's: %v %+v", err, s.Loss)
	}
	r.Model.Kind, r.Loss = "reranker", Loss{Terms: []Loss{{Name: "cross_entropy", Weight: 1}, {Name: "kl", Weight: 2}}}
	s, err = r.Resolve()
	want = of(t, loss.Term{Loss: loss.Groups{Name: loss.GroupCrossEntropy}, Factor: 1}, loss.Term{Loss: loss.Groups{Name: loss.GroupKL}, Factor: 2})
	if err != nil || !reflect.DeepEqual(s.objective(driving{}), want) {
		t.Errorf("a program's reranker: %v %+v", err, s.Loss)
	}
	if r, err = Parse("r.yaml", sumColumns("positive: p, loss: [mnrl]", ""), nil); err != nil {
		t.Fatal(err)
	}
	r.Data.Train[0].Loss.Terms = append(r.Data.Train[0].Loss.Terms, defaultLoss())
	r.Data.Train[0].Loss.Terms[1].Weight = 2
	s, err = r.Resolve()
	if want := (loss.ByDataset{of(t, loss.Term{Loss: mnrl, Factor: 1}, loss.Term{Loss: mnrl, Factor: 2})}); err != nil || !reflect.DeepEqual(s.objective(driving{}), want) {
		t.Errorf("a program's of a dataset: %v %+v", err, s.Data.Train[0].Loss)
	}
}

// Labels are what every term takes.
func TestSumLabels(t *testing.T) {
	for text, c := range map[string]struct {
		label float64
		want  string
	}{
		"loss: [contrastive, cosine_similarity]":  {-0.5, "contrastive takes 1 (alike)"},
		"loss: [cosine_similarity, contrastive]":  {-0.5, "contrastive takes 1 (alike)"}, // a cosine
		"loss: [contrastive, online_contrastive]": {0.5, "online contrastive takes 1 (alike)"},
		"loss: [cosent, mnrl, cosine_similarity]": {2, "cosine_similarity takes cosines"},
	} {
		r, err := Parse("r.yaml", sumColumns("positive: p, label: l", text), nil)
		if err != nil {
			t.Fatal(err)
		}
		check := asking(r.Loss, loss.CheckLabel)
		if err := check(1); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if err := check(c.label); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the label %v: %v", text, c.label, err)
		}
	}
}

// Whether the negatives of all devices count is the same for all terms: one says it, or all of them do alike.
func TestSumGathers(t *testing.T) {
	for text, want := range map[string]bool{
		"loss: [mnrl, cosent]": true, "loss: [mnrl, {name: cosent, gather_across_devices: false}]": false,
		"loss: [{gather_across_devices: false}, {name: cosent, gather_across_devices: false}]": false,
	} {
		r, err := Parse("r.yaml", sumColumns("positive: p, label: l", text), nil)
		if err != nil || r.Loss.GatherAcrossDevices != want || r.Loss.Terms[0].GatherAcrossDevices != want || r.Loss.Terms[1].GatherAcrossDevices != want {
			t.Errorf("%s: %v %+v", text, err, r.Loss)
		}
	}
}

func TestSumErrors(t *testing.T) {
	const pairs = "positive: p"
	for _, c := range []struct{ columns, text, want string }{
		{pairs, "loss: []", "r.yaml:7: loss: is a list of no losses"},
		{pairs, "loss: [mnrl, [cosent]]", "loss[1]: is a list in a list"},
		{pairs, "loss:\n  - mnrl\n  -", "loss[1]: has no value"},
		{pairs, "loss: {name: mnrl, weight: 2}", "loss.weight: is for a loss in a list, which is a sum"},
		{pairs, "loss: [mnrl, {name: mnrl, weight: 0}]", "loss[1].weight: is 0, want a positive number"},
		{pairs, "loss: [mnrl, {name: mnrl, weight: -1}]", "loss[1].weight: is -1, want a positive number"},
		{pairs, "loss: [mnrl, {name: mnrl, weight: Inf}]", "loss[1].weight: is +Inf, want a finite number; as in weight: "},
		{pairs, "loss: [mnrl, {name: mnrl, weight: much}]", "loss[1].weight: want a number"},
		{pairs, "loss: [mnrl, cosnet]", "loss[1].name: is \"cosnet\", want one of"},
		{pairs, "loss: [mnrl, {name: mnrl, sclae: 3}]", "loss[1].sclae: unknown key"},
		{pairs, "loss: [mnrl, {name: mnrl, margin: 3}]", "loss[1].margin: is for "},
		{pairs, "loss: [mnrl, {scale: 20, temperature: 0.1}]", "loss[1].temperature: and loss[1].scale are one thing"},
		{pairs, "loss: [mnrl, {matryoshka: {dims: [0]}}]", "loss[1].matryoshka: 0 dimensions"},
		{pairs, "loss: [mnrl, cosent]", "data.train[0].label: is missing: loss[1].name: cosent needs"},
		{pairs + ", negatives: n", "loss: [mnrl, distill_kl]", "data.train[0].scores: is missing: loss[1].name: distill_kl needs"},
		{pairs + ", scores: s", "loss: [mnrl, distill_kl]", "data.train[0].negatives: are missing: loss[1].name: distill_kl compares"},
		{pairs + ", negatives: n", "batch: {global_size: 1}\nloss: [triplet, mnrl]", "batch.global_size: is 1"},
		{pairs, "loss: [mnrl, mse]", "data.train[0].teacher: is missing: loss[1].name: mse needs"},
		{pairs + ", label: l, weight: w", "loss: [mnrl, cosent]", "data.train[0].weight: loss[1].name: cosent is of the batch as a whole"},
		{pairs + ", label: l", "loss: [mnrl, batch_all_triplet]", "loss[1].name: a sum's losses have the same rows, and loss[1].name: batch_all_triplet takes single texts, while loss[0].name: mnrl takes pairs"},
		{pairs + ", label: l, negatives: n", "loss: [triplet, cosent]", "loss[1].name: a sum's losses have the same rows, and loss[1].name: cosent takes no negatives, while loss[0].name: triplet takes negatives"},
		{pairs, "loss: [{gather_across_devices: true}, {gather_across_devices: false}]", "loss[1].gather_across_devices: is false, and loss[0].gather_across_devices is true"},
		{pairs, "loss: [{name: gist, guide: g}, {name: gist, guide: h}]", "loss[1].guide: is a second guide: a run has one, and that is loss[0].guide"},
		{pairs, "loss: [mnrl, {name: gist}]", "loss[1].guide: is missing"},
		{pairs, "loss: [mnrl, {name: gist, guide: {path: g, max_length: -1}}]", "loss[1].guide.max_length: is negative"},
		{pairs, "loss: [mnrl, m3]", "loss[1].name: m3 is not for model.kind: embedder"},
		{pairs, "model: {path: m, kind: m3}\nloss: [m3, m3]", "loss: is a list: model.kind: m3 has one loss"},
		{pairs + ", loss: [mnrl, {name: gist, guide: g}]", "", "data.train[0].loss: gist's guide reads all datasets"},
		{pairs + ", loss: [mnrl, {scale: -1}]", "", "data.train[0].loss[1].scale: is -1"},
		{pairs + ", loss: [mnrl, {gather_across_devices: false}]", "", "data.train[0].loss[1].gather_across_devices: is the same for all datasets"},
		{pairs + ", loss: [mnrl, cosent]", "", "data.train[0].label: is missing: data.train[0].loss[1].name: cosent needs"},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: [cross_entropy, lambda]", "loss[1].name: lambda is a mean over a batch's documents, or pairs of them"},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: [cross_entropy, adr_mse]", "loss[1].name: adr_mse is a mean over a batch's documents"},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: [cross_entropy, {name: kl, weight: -2}]", "loss[1].weight: is -2"},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: [cross_entropy, {name: kl, k: 3}]", "loss[1].k: is for "},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: [cross_entropy, {name: kl, gather_across_devices: true}]", "loss[1].gather_across_devices: is for "},
		{pairs + ", negatives: n", "model: {path: m, kind: reranker}\nloss: [cross_entropy, kl]", "data.train[0].scores: are missing: loss[1].name: kl learns"},
		{taughtColumns, "model: {path: m, kind: reranker}\nloss: {name: kl, weight: 2}", "loss.weight: is for a loss in a list"},
	} {
		text := string(sumColumns(c.columns, c.text))
		if strings.Contains(c.text, "model:") {
			text = strings.Replace(text, "model: {path: m}\n", "", 1)
		}
		_, err := Parse("r.yaml", []byte(text), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v\nwant %s alone", c.text, err, c.want)
		}
	}
	for set, want := range map[string]string{
		"loss.2.weight=2": `"2" is not an element of a list of 2`, "loss.weight=2": `"weight" is not an element of a list of 2`,
	} {
		if _, err := Parse("r.yaml", sumColumns(pairs, "loss: [{name: mnrl}, {name: mnrl}]"), []string{set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// A run goes on with a guide that lies elsewhere, and not with another weight.
func TestSumChanged(t *testing.T) {
	parse := func(sets ...string) Recipe {
		r, err := Parse("r.yaml", sumColumns("positive: p", "loss: [{name: mnrl}, {name: gist, guide: {path: g}}]"), sets)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	was, err := parse().YAML()
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := compareRecipes(string(was), parse("loss[1].guide.path=h", "loss[1].guide.device=cpu")); err != nil || len(changed) != 2 || changed[1] != "loss[1].guide.path was g and is h" {
		t.Errorf("%q, %v", changed, err)
	}
	if _, err := compareRecipes(string(was), parse("loss[0].weight=2")); !errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), "loss[0].weight was 1.0 and is 2.0") {
		t.Error(err)
	}
}

// A model is saved as one of dot products if all of a sum's losses are of those, unless the recipe says what it is of.
func TestSumSaved(t *testing.T) {
	j := newJob(t, 30)
	for _, c := range [][4]string{{"dot", "cosine", "cosine"}, {"cosine", "dot", "cosine"}, {"dot", "dot", "dot"}, {"dot", "dot", "cosine", "cosine"}, {"cosine", "cosine", "dot", "dot"}} {
		sets := []string{fmt.Sprintf("loss=[{name: mnrl, similarity: %s}, {name: mnrl, similarity: %s}]", c[0], c[1]), "train.max_steps=1", "eval.every=0"}
		if c[3] != "" {
			sets = append(sets, "model.similarity="+c[3])
		}
		o, err := j.run(t, strings.Join(c[:], ""), nil, 0, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(o.summary.Model, "config_sentence_transformers.json"))
		if err != nil || !strings.Contains(string(text), fmt.Sprintf("\"similarity_fn_name\": %q", c[2])) {
			t.Errorf("%v: %s %v", c, text, err)
		}
	}
}

// The guide of a sum's term is one for all ranks: each keeps where its own lies, and on which device it is, and a run does not go on with another.
func TestSumGuide(t *testing.T) {
	j := newJob(t, 30)
	guide := Guide{Path: filepath.Join(j.dir, "model"), Device: "cpu"}
	r, err := Parse("job", []byte(j.text), []string{
		fmt.Sprintf("loss=[mnrl, {name: gist, guide: {path: %q, device: cpu}}]", guide.Path), "mesh.replicate=2", "save.dir=" + filepath.Join(j.dir, "run"),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = OnRanks(t.Context(), r, Place{}, Observer{}, func(x *Run) error {
		if key, said := x.Recipe.guide(); said == nil || key != "loss[1].guide" || *said != guide {
			t.Errorf("rank %d: %s is not %+v: %+v", x.ranks.Rank(), key, guide, x.Recipe.Loss)
		}
		text, err := x.Recipe.YAML()
		if err != nil {
			return err
		}
		if x.content, err = x.contents(); err != nil {
			return err
		}
		c := &checkpoint.Checkpoint{State: checkpoint.State{Recipe: string(text), Contents: map[string]string{theGuide: "of another"}}}
		if err := x.goOn(c); !errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), ": loss[1].guide: changed: the guide; ") {
			t.Errorf("another guide: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// taught writes rows with negatives, a teacher's scores, labels and weights.
func (j *job) taught(t *testing.T, rows int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 8))
	text := func() string { return sentence(rng, j.words, 1+rng.IntN(12)) }
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for range rows {
		ns, scores := []string{}, []float64{rng.NormFloat64()}
		for range 1 + rng.IntN(3) {
			ns, scores = append(ns, text()), append(scores, rng.NormFloat64())
		}
		if err := enc.Encode(map[string]any{"q": text(), "p": text(), "ns": ns, "s": scores, "w": float64(rng.IntN(4)) / 2}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(j.dir, "taught.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [ns], negatives_per_query: all, scores: s, weight: w}]", path)
}

// A step's sum is that of the same steps with each loss alone, and its gradient's norm the same, on one rank and on several: with steps of
// several batches, one of them small, weights of rows, sub-batches, and a guide of one term.
func TestSumTrains(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 5)
	data := j.taught(t, 30)
	still := []string{
		data, "optimizer.lr=1e-30", "data.shuffle=false", "model.dropout=0", "batch.no_duplicates=false", "train.epochs=1", "batch.accumulate=2", "log.every=1",
	}
	lines := func(out, loss string, sets ...string) (all []map[string]any) {
		t.Helper()
		if _, err := j.run(t, out, nil, 0, false, append(append([]string{"loss=" + loss}, still...), sets...)...); err != nil {
			t.Fatal(err)
		}
		return j.lines(t, out)
	}
	guide := fmt.Sprintf("{name: gist, guide: %q, scale: 20}", filepath.Join(j.dir, "model"))
	for k, c := range []struct {
		kind  []string
		terms []string
		sum   string
	}{
		{nil, []string{"{name: mnrl, temperature: 0.1}", "{name: distill_kl, similarity: cosine, student_temperature: 0.1}", "{name: margin_mse, matryoshka: {dims: [16, 4]}}"},
			"[{name: mnrl, temperature: 0.1}, {name: distill_kl, similarity: cosine, student_temperature: 0.1, weight: 100}, {name: margin_mse, matryoshka: {dims: [16, 4]}, weight: 0.5}]"},
		{nil, []string{"{name: triplet, margin: 3}", guide}, "[{name: triplet, margin: 3, weight: 3}, " + guide + "]"},
		{[]string{"model.kind=reranker"}, []string{"cross_entropy", "kl"}, "[{name: cross_entropy, weight: 0.25}, {name: kl, weight: 2}]"},
	} {
		weights := [][]float64{{1, 100, 0.5}, {3, 1}, {0.25, 2}}[k]
		alone := make([][]map[string]any, len(c.terms))
		for i, term := range c.terms {
			alone[i] = lines(fmt.Sprint(k, "alone", i), term, append(c.kind, "mesh.replicate=1")...)
		}
		if k == 0 { // negatives that stay on their ranks
			local := []string{"mesh.replicate=2", "batch.sub_batch={rows: 4}"}
			sums := make([]float64, len(alone[0]))
			for i, term := range c.terms {
				for step, line := range lines(fmt.Sprint("local alone", i), strings.TrimSuffix(term, "}")+", gather_across_devices: false}", local...) {
					sums[step] += weights[i] * line["loss"].(float64)
				}
			}
			for step, line := range lines("local", strings.Replace(c.sum, "0.1}", "0.1, gather_across_devices: false}", 1), local...) {
				v, gathered := line["loss"].(float64), 0.0
				for i, w := range weights {
					gathered += w * alone[i][step]["loss"].(float64)
				}
				if !(math.Abs(v-sums[step]) <= 1e-6*sums[step]) || math.Abs(v-gathered) < 1e-3*gathered {
					t.Errorf("negatives of one rank, step %d: loss %v, the losses alone sum to %v; with all negatives it is %v", step, v, sums[step], gathered)
				}
			}
		}
		var first []map[string]any
		for ranks := 1; ranks <= 3; ranks++ {
			got := lines(fmt.Sprint(k, "ranks", ranks), c.sum, append(c.kind, fmt.Sprintf("mesh.replicate=%d", ranks), fmt.Sprintf("batch.sub_batch={rows: %d}", 2+ranks))...)
			if ranks == 1 {
				first = got
			}
			if len(got) != len(alone[0]) || len(got) < 2 {
				t.Fatalf("%s: %d steps, alone %d", c.sum, len(got), len(alone[0]))
			}
			for step, line := range got {
				want := 0.0
				for i, w := range weights {
					want += w * alone[i][step]["loss"].(float64)
				}
				if v := line["loss"].(float64); !(math.Abs(v-want) <= 1e-6*want) {
					t.Errorf("%s on %d ranks, step %d: loss %v, the losses alone sum to %v", c.sum, ranks, step, v, want)
				}
				if v, w := line["grad_norm"].(float64), first[step]["grad_norm"].(float64); !(math.Abs(v-w) <= 1e-5*w) {
					t.Errorf("%s on %d ranks, step %d: gradient's norm %v, on one %v", c.sum, ranks, step, v, w)
				}
			}
		}
	}
}

// FlagEmbedding's distillation, with a guided term besides, is verified: its gradient against differences of the loss, and that of every way to
// compute it, on a mesh too, against the plain one; and faults are found.
func TestSumVerifies(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 5)
	x := j.opened(t, []string{
		j.taught(t, 30), "model.dropout=0", "save.dir=" + filepath.Join(j.dir, "run"),
		fmt.Sprintf("loss=[{name: mnrl, temperature: 0.05}, {name: distill_kl, similarity: cosine, student_temperature: 0.05, weight: 400}, {name: gist, guide: %q, weight: 0.5, margin: 0.01, scale: 20}]", filepath.Join(j.dir, "model")),
	})
	for _, fault := range []Fault{"", FaultFactor, FaultRemote, FaultGather} {
		o := DefaultVerify()
		o.Rows, o.SubBatches, o.Accumulate, o.Plant = 6, []int{4}, []int{1}, fault
		if fault == "" {
			o.Accumulate = []int{1, 2}
		}
		if fault == "" || fault == FaultGather {
			o.Replicas, o.Shards = []int{2}, []int{1}
		}
		rows := ""
		o.Report = func(row VerifyRow) { rows += fmt.Sprintf("%+v\n", row) }
		ok, err := x.Verify(t.Context(), o)
		if err != nil || ok != (fault == "") || fault == "" && !strings.Contains(rows, "mesh 2 x 1") {
			t.Errorf("fault %q: ok is %t, %v\n%s", fault, ok, err, rows)
		}
	}
}

// What none of a sum's losses reads is told, and what one of them reads is not.
func TestSumUnread(t *testing.T) {
	j := newJob(t, 5)
	data := strings.Replace(j.taught(t, 30), "scores: s", "scores: s, label: w", 1)
	for loss, want := range map[string]string{
		"[mnrl, {name: triplet}]": "data.train[0].scores is not read: loss[0].name: mnrl and loss[1].name: triplet have no use for it",
		"[mnrl, distill_kl]":      "data.train[0].label is not read: loss[0].name: mnrl and loss[1].name: distill_kl have no use for it",
	} {
		r, err := Parse("job", []byte(j.text), []string{data, "loss=" + loss, "save.dir=" + filepath.Join(j.dir, "run"), "train.max_steps=1"})
		if err != nil {
			t.Fatal(err)
		}
		notes := ""
		x, err := Open(t.Context(), r, Observer{Note: func(n string) { notes += n + "\n" }})
		if err != nil {
			t.Fatal(err)
		}
		x.noteUnread()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		x.noteUnreadOf(Source{Label: "w"}, "it.", Loss{Terms: []Loss{{Name: "mnrl"}, {Name: "cosine_similarity"}}}, "loss")
		if !strings.Contains(notes, "loss[0].name: mnrl takes the texts of every row to belong together, whatever it.label says") || strings.Contains(notes, "loss[1].name: cosine_similarity takes") {
			t.Errorf("%q", notes)
		}
		if n := strings.Count(notes, "is not read"); !strings.Contains(notes, want) || n != 1+strings.Count(loss, "triplet") {
			t.Errorf("%s: %q", loss, notes)
		}
	}
}

// A later term that weighs rows' own negatives is told of rows without.
func TestSumHardness(t *testing.T) {
	j := newJob(t, 30)
	r, err := Parse("job", []byte(j.text), []string{"loss=[mnrl, {name: mnrl, hardness_mode: hard_negatives, hardness_strength: 2}]", "save.dir=" + filepath.Join(j.dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	notes := ""
	x, err := Open(t.Context(), r, Observer{Note: func(n string) { notes += n + "\n" }})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if want := "loss[1].hardness_mode: hard_negatives is of rows' own negatives, and there are none: data.train[0].negatives"; !strings.Contains(notes, want) || strings.Contains(notes, "loss[0].hardness") {
		t.Errorf("no note that %q in %q", want, notes)
	}
}
