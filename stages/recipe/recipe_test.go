package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

const minimal = `
model: {path: m}
data:
  train:
    - {path: d.parquet, query: q, positive: p}
save: {dir: runs/x}
`

func TestDefaults(t *testing.T) {
	r, err := Parse("r.yaml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Model.Path, want.Save.Dir = "m", "runs/x"
	want.Data.Train = []Source{{Path: []string{"d.parquet"}, Query: "q", Positive: "p"}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v\nwant %+v", r, want)
	}
}

const full = `
model:
  path: sentence-transformers/all-MiniLM-L6-v2
  kind: embedder
  pooling: mean
  normalize: true
  max_length: {query: 64, document: 256}
  dropout: 0.1
  lora: {rank: 8, alpha: 4, dropout: 0.05, targets: [query, value], rslora: true, modules_to_save: [LayerNorm]}
  freeze: {layers: 2, embeddings: true}
  activation_checkpointing: {every: 2}
data:
  train:
    - path: ["a.parquet", "b*.parquet"]
      query: query
      positive: positive
      negatives: [n1, n2]
      negatives_per_query: all
      weight: w
      label: l
      scores: [pos_scores, neg_scores]
      teacher: e
      prompts: {query: "query: ", document: "passage: "}
  shuffle: true
  mixing: {temperature: 2}
  on_error: skip
batch:
  by_length: true
  global_size: 16384
  accumulate: 2
  sub_batch: {rows: 32}
  cache: always
  replay_budget: 1.5GiB
  no_duplicates: false
  drop_last: false
loss: {name: mnrl, temperature: 0.05, directions: [query_to_doc, doc_to_query], partition_mode: per_direction, mask_duplicates: false}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0, schedule: cosine, warmup_steps: 7, groups: [{params: [lora_B], lr: 0.2}]}
train: {epochs: 3, max_steps: 100, precision: f32, device: cpu, seed: 7, sync: last}
mesh: {replicate: auto, shard: 1}
eval: {every: 100, retrieval: {queries: q.parquet, corpus: c.parquet, qrels: r.parquet}, metric: mrr@10}
save: {dir: "runs/x y", every: 10m, keep: 3}
log: {every: 0.05}
`

// The resolved recipe that a run leaves can be run again.
func TestRoundTrip(t *testing.T) {
	for _, text := range []string{minimal, full, strings.Replace(full, "{every: 2}", "true", 1), strings.Replace(full, `{query: "query: ", document: "passage: "}`, "{}", 1)} {
		r, err := Parse("r.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("resolved.yaml", out, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !reflect.DeepEqual(r, again) {
			t.Errorf("got %+v\nwant %+v\n%s", again, r, out)
		}
	}
	r, _ := Parse("r.yaml", []byte(full), nil)
	if *r.Batch.ReplayBudget != 3<<29 || r.Loss.Scale != 20 || r.Model.MaxLength != (Lengths{64, 256}) || *r.Optimizer.WarmupSteps != 7 {
		t.Errorf("%+v", r)
	}
	if _, err := yaml.Marshal(r); err != nil {
		t.Error(err)
	}
}

// LoRA's keys have defaults, and a recipe's own values stay.
func TestLoRADefaults(t *testing.T) {
	r, err := Parse("r.yaml", []byte(minimal), []string{"model.lora={targets: query, rank: 4}"})
	if want := (LoRA{Rank: 4, Alpha: 32, Targets: []string{"query"}}); err != nil || !reflect.DeepEqual(*r.Model.LoRA, want) {
		t.Errorf("%+v, %v", r.Model.LoRA, err)
	}
	if l := r.tuning().LoRA; l.Rank != 4 || l.Alpha != 32 || l.Seed != 42 || l.Targets[0] != "query" {
		t.Errorf("%+v", l)
	}
}

// Losses of each row by itself take batches of one row.
func TestRowAlone(t *testing.T) {
	for name, columns := range map[string]string{"cosine_similarity": "label: l", "contrastive": "label: l", "mse": "teacher: e", "triplet": "negatives: n", "margin_mse": "negatives: n, scores: s"} {
		text := strings.Replace(minimal, "positive: p", "positive: p, "+columns, 1) + "loss: " + name
		if _, err := Parse("r.yaml", []byte(text), []string{"batch.global_size=1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// negatives_per_query is a number or all.
func TestNegativesPerQuery(t *testing.T) {
	for value, want := range map[string]Count{"3": 3, "all": dataset.AllNegatives} {
		r, err := Parse("r.yaml", []byte(strings.Replace(minimal, "positive: p", "positive: p, negatives: n, negatives_per_query: "+value, 1)), nil)
		if err != nil || r.Data.Train[0].NegativesPerQuery != want {
			t.Errorf("%s: %d, %v", value, r.Data.Train[0].NegativesPerQuery, err)
		}
	}
	for value, want := range map[string]string{"-1": "is -1, want a number of negatives, or all", "0": "is 0, want a number of negatives, or all", "some": "want a whole number"} {
		if _, err := Parse("r.yaml", []byte(strings.Replace(minimal, "positive: p", "positive: p, negatives: n, negatives_per_query: "+value, 1)), nil); err == nil || !strings.Contains(err.Error(), "r.yaml:5: data.train[0].negatives_per_query: "+want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestSet(t *testing.T) {
	r, err := Parse("r.yaml", []byte(minimal), []string{
		"train.max_steps=8", "data.train.0.path=[x.jsonl, y.jsonl]", "data.train[0].query=other", "batch.replay_budget=0", "model.max_length=32", "model.activation_checkpointing=true", "batch.sub_batch.rows=4", "optimizer.betas=[0, 0.999]",
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Train.MaxSteps != 8 || len(r.Data.Train[0].Path) != 2 || r.Model.MaxLength.Document != 32 || r.Model.ActivationCheckpointing.Every != transformer.AutoCheckpoint || r.Batch.SubBatch != (SubBatch{Rows: 4}) || *r.Batch.ReplayBudget != 0 || r.Data.Train[0].Query != "other" {
		t.Errorf("%+v", r)
	}
}

// What a recipe says is what the optimizer and the loss are told.
func TestWiring(t *testing.T) {
	type told struct {
		Update stages.Update
		Loss   loss.InfoNCE
	}
	adam := func(w *told, f func(*optim.AdamW)) {
		o := w.Update.Optimizer.(optim.AdamW)
		f(&o)
		w.Update.Optimizer = o
	}
	for _, c := range []struct {
		sets   string
		steps  int
		change func(*told)
	}{
		{"", 25, func(*told) {}},
		{"", 30, func(w *told) { w.Update.WarmupSteps = 3 }}, // a tenth, rounded up as transformers does
		{"", 31, func(w *told) { w.Update.WarmupSteps = 4 }},
		{"optimizer.warmup_ratio=0.07", 100, func(w *told) { w.Update.WarmupSteps = 8 }}, // math.ceil(0.07 * 100)
		{"optimizer.warmup_ratio=0", 25, func(w *told) { w.Update.WarmupSteps = 0 }},
		{"optimizer.warmup_steps=7", 25, func(w *told) { w.Update.WarmupSteps = 7 }},
		{"optimizer.lr=3", 25, func(w *told) { w.Update.LR = 3 }},
		{"optimizer.schedule=cosine", 25, func(w *told) { w.Update.Schedule = optim.Cosine }},
		{"optimizer.schedule={name: cosine}", 25, func(w *told) { w.Update.Schedule = optim.Cosine }},
		{"optimizer.schedule.min_ratio=0.1", 25, func(w *told) { w.Update.Schedule = optim.Curve{Shape: optim.Linear, MinRatio: 0.1} }},
		{"optimizer.schedule={name: cosine, cycles: 2, waves: 1.5, min_ratio: 0.1, warmup: 1-sqrt, warmup_from: 0.2, ahead: true}", 25, func(w *told) {
			w.Update.Schedule = optim.Curve{Shape: optim.Cosine, Cycles: 2, Waves: 1.5, MinRatio: 0.1, Warmup: optim.OneMinusSqrt, WarmupFrom: 0.2, Ahead: true}
		}},
		{"optimizer.schedule={name: polynomial, power: 2}", 25, func(w *told) { w.Update.Schedule = optim.Curve{Shape: optim.Polynomial, Power: 2} }},
		{"optimizer.schedule={name: inverse_sqrt, timescale: 100}", 25, func(w *told) { w.Update.Schedule = optim.Curve{Shape: optim.InverseSqrt, Timescale: 100} }},
		{"optimizer.schedule={name: 1-sqrt, decay_steps: 9, stable_steps: 0}", 25, func(w *told) {
			w.Update.Schedule = optim.Curve{Shape: optim.OneMinusSqrt, DecaySteps: 9, StableSteps: -1}
		}},
		{"optimizer.schedule={decay_ratio: 0.07, stable_steps: 4}", 100, func(w *told) {
			w.Update.Schedule, w.Update.WarmupSteps = optim.Curve{Shape: optim.Linear, DecaySteps: 8, StableSteps: 4}, 10
		}},
		{"optimizer.max_grad_norm=0.5", 25, func(w *told) { w.Update.MaxGradNorm = 0.5 }},
		{"optimizer.betas=[0, 0.98]", 25, func(w *told) { adam(w, func(o *optim.AdamW) { o.Betas = []float64{0, 0.98} }) }},
		{"optimizer.eps=1e-6", 25, func(w *told) { adam(w, func(o *optim.AdamW) { o.Eps = 1e-6 }) }},
		{"optimizer.weight_decay=0.3", 25, func(w *told) { adam(w, func(o *optim.AdamW) { o.WeightDecay = 0.3 }) }},
		{"optimizer={name: sgd, momentum: 0.8, weight_decay: 0.3}", 25, func(w *told) { w.Update.Optimizer = optim.SGD{Momentum: 0.8, WeightDecay: 0.3} }},
		{"loss.scale=50", 25, func(w *told) { w.Loss.Scale = 50 }},
		{"loss.temperature=0.01", 25, func(w *told) { w.Loss.Scale = 100 }},
		{"loss.similarity=dot", 25, func(w *told) { w.Loss.Dot = true }},
		{"loss.mask_duplicates=false", 25, func(w *told) { w.Loss.MaskDuplicates = false }},
		{"loss.directions=[query_to_doc, doc_to_query]", 25, func(w *told) { w.Loss.Directions = []loss.Direction{loss.QueryToDoc, loss.DocToQuery} }},
		{"loss.partition_mode=per_direction", 25, func(w *told) { w.Loss.PerDirection = true }},
	} {
		var sets []string
		if c.sets != "" {
			sets = append(sets, c.sets)
		}
		r, err := Parse("r.yaml", []byte(minimal), sets)
		if err != nil {
			t.Fatal(err)
		}
		want := told{
			stages.Update{Optimizer: optim.AdamW{Betas: []float64{0.9, 0.999}, Eps: 1e-8, WeightDecay: 0.01}, LR: 2e-5, Schedule: optim.Linear, WarmupSteps: 3, TotalSteps: c.steps, MaxGradNorm: 1, OnNaN: stages.StopOnNaN, Help: r.lowerRate()},
			loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}, MaskDuplicates: true},
		}
		c.change(&want)
		if got := (told{r.update(c.steps), r.objective(driving{}).(loss.InfoNCE)}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s, %d steps: %+v, want %+v", c.sets, c.steps, got, want)
		}
	}
}

// Each loss has its name and its options, and no others; a resolved recipe says the same again.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		loss, columns string
		want          loss.RowSplitter
	}{
		{"{name: mnrl, hardness_mode: hard_negatives, hardness_strength: 5}", "", loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}, MaskDuplicates: true, Hardness: loss.HardNegatives, HardnessStrength: 5}},
		{"{name: mnrl, mask_duplicates: false}", "", loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}}},
		{"{name: gist, guide: other}", "", loss.InfoNCE{Scale: 100, Directions: []loss.Direction{loss.QueryToDoc, loss.QueryToQuery, loss.PositiveToPositive}, MaskDuplicates: true, Guide: &loss.Guide{}}},
		{"{name: gist_embed, guide: {path: other, max_length: 64}, margin: 0.05, margin_strategy: relative, temperature: 0.05, contrast_positives: false, mask_duplicates: false}", "", loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc, loss.QueryToQuery}, Guide: &loss.Guide{Margin: 0.05, Relative: true}}},
		{"{name: cosent, temperature: 0.1}", "label: l", loss.CoSENT{Scale: 10, Metric: loss.Cosine}},
		{"{name: angle}", "negatives: n", loss.CoSENT{Scale: 20, Metric: loss.Angle}},
		{"{name: cosine_similarity}", "label: l", loss.CosineSimilarity{}},
		{"{name: contrastive}", "label: l", loss.Contrastive{Metric: loss.Cosine}},
		{"{name: online_contrastive, distance: euclidean, margin: 2}", "label: l", loss.Contrastive{Metric: loss.Euclidean, Margin: 2, Online: true}},
		{"{name: triplet}", "negatives: n", loss.Triplet{Metric: loss.Euclidean}},
		{"{name: margin_mse}", "negatives: n, scores: s", loss.MarginMSE{Metric: loss.Dot}},
		{"{name: cross_entropy, temperature: 0.02}", "negatives: n", loss.CrossEntropy{Scale: 50, Metric: loss.Cosine}},
		{"{name: distill_kl, temperature: 2, teacher_temperature: 3, similarity: cosine}", "negatives: n, scores: s", loss.DistillKL{Metric: loss.Cosine, Temperature: 2, TeacherTemperature: 3}},
		{"{name: mse}", "teacher: e", loss.TeacherEmbedding{}},
		{"{name: teacher_embedding, distance: cosine}", "teacher: e", loss.TeacherEmbedding{Metric: loss.Cosine}},
		{"mega_batch_margin", "", loss.MegaBatchMargin{PositiveMargin: 0.8, NegativeMargin: 0.3, MaskDuplicates: true}},
		{"{name: mega_batch_margin, negative_margin: 0, positive_margin: 1, mask_duplicates: false}", "weight: w", loss.MegaBatchMargin{PositiveMargin: 1}},
		{"gor", "negatives: n, weight: w", loss.GlobalOrthogonal{Metric: loss.Cosine, Mean: 1, SecondMoment: 1}},
		{"{name: global_orthogonal_regularization, mean_weight: 0, second_moment_weight: 0.5, aggregation: sum, similarity: dot}", "", loss.GlobalOrthogonal{Metric: loss.Dot, SecondMoment: 0.5, AddColumns: true}},
		{"{name: gor, mean_weight: 0}", "positive: null, teacher: e", loss.GlobalOrthogonal{Metric: loss.Cosine, SecondMoment: 1}},
		{"{name: gor, second_moment_weight: 0}", "positive: null, label: l", loss.GlobalOrthogonal{Metric: loss.Cosine, Mean: 1}},
		{"{name: cosent, matryoshka: {dims: [32, 8], weights: [1, 0.5]}}", "label: l", func() loss.RowSplitter {
			m, _ := loss.Matryoshka(loss.CoSENT{Scale: 20, Metric: loss.Cosine}, []int{32, 8}, []float64{1, 0.5}, 0)
			return m.(loss.RowSplitter)
		}()},
	} {
		text := strings.Replace(minimal, "positive: p", "positive: p, "+c.columns, 1) + "loss: " + c.loss
		text = strings.Replace(text, "positive: p, positive: null", "prompts: {}", 1)
		r, err := Parse("r.yaml", []byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", c.loss, err)
			continue
		}
		if got := r.objective(driving{}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.loss, got, c.want)
		}
		again, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Parse("again.yaml", again, nil); err != nil || !reflect.DeepEqual(s.objective(driving{}), c.want) {
			t.Errorf("%s, written and read again: %v\n%s", c.loss, err, again)
		}
	}
	for _, c := range []struct{ loss, columns, want string }{
		{"{name: cosnet}", "", "r.yaml:7: loss.name: is \"cosnet\", want one of"},
		{"{name: cosent, margin: 2}", "label: l", "loss.margin: is for gist, contrastive, online_contrastive, triplet, batch_hard_triplet, batch_semi_hard_triplet, batch_all_triplet; the options of cosent are name, matryoshka, flops, gather_across_devices, scale, temperature, similarity"},
		{"{name: triplet, mask_duplicates: true}", "negatives: n", "loss.mask_duplicates: is for mnrl, gist, mega_batch_margin, m3; the options of triplet are"},
		{"{name: mnrl, distance: cosine}", "", "loss.distance: is for contrastive,"},
		{"{name: triplet, margin: -1}", "negatives: n", "loss.margin: is -1, want a positive number"},
		{"{name: triplet, distance: angle}", "negatives: n", "loss.distance: is \"angle\", want one of cosine, euclidean, manhattan"},
		{"{name: triplet}", "", "data.train[0].negatives: are missing: loss.name: triplet"},
		{"{name: cosent}", "", "data.train[0].label: is missing: loss.name: cosent needs"},
		{"{name: cosent}", "label: l, negatives: n", "data.train[0].negatives: loss.name: cosent takes pairs"},
		{"{name: cosent}", "label: l, weight: w", "data.train[0].weight: loss.name: cosent is of the batch as a whole"},
		{"{name: distill_kl}", "negatives: n", "data.train[0].scores: is missing"},
		{"{name: margin_mse}", "negatives: n", "data.train[0].scores: is missing: loss.name: margin_mse"},
		{"{name: batch_all_triplet}", "label: l", "data.train[0].positive: loss.name: batch_all_triplet takes single texts"},
		{"{name: mse}", "", "data.train[0].teacher: is missing"},
		{"{name: mega_batch_margin}", "negatives: n", "data.train[0].negatives: loss.name: mega_batch_margin finds its negatives among the positives of other rows"},
		{"{name: mega_batch_margin, positive_margin: .inf}", "", "loss.positive_margin: want a number, got"},
		{"{name: gor, mean_weight: 0, second_moment_weight: 0}", "", "loss: mean_weight and second_moment_weight are both 0"},
		{"{name: gor, second_moment_weight: -1}", "", "loss: second_moment_weight is -1, want 0 or more"},
		{"{name: gor, aggregation: all}", "", "loss.aggregation: is \"all\", want one of mean, sum"},
		{"{name: gor}", "positive: null", "data.train[0].positive: is missing: the column with the positives; of single texts loss.name: gor takes those with a label or a teacher's embedding"},
		{"{name: gor, margin: 1}", "", "loss.margin: is for gist,"},
		{"{name: gist}", "", "loss.guide: is missing: the model that says which candidates are no negatives"},
		{"{name: gist, guide: g, margin: -0.1}", "", "loss.margin: is -0.1, want a number of at least 0"},
		{"{name: gist, guide: g, margin_strategy: both}", "", "loss.margin_strategy: is \"both\", want one of absolute, relative"},
		{"{name: gist, guide: {pth: g}}", "", "loss.guide.pth: unknown key; did you mean loss.guide.path?"},
		{"{name: mnrl, guide: g}", "", "loss.guide: is for gist; the options of mnrl are"},
		{"{name: mnrl, hardness_mode: hard}", "", "loss.hardness_mode: is \"hard\", want one of all_negatives"},
		{"{name: mnrl, hardness_mode: hard_negatives}", "", "loss.hardness_mode: needs loss.hardness_strength"},
		{"{name: mnrl, matryoshka: {dims: [0]}}", "", "loss.matryoshka: 0 dimensions"},
	} {
		text := strings.Replace(minimal, "positive: p", "positive: p, "+c.columns, 1) + "loss: " + c.loss
		text = strings.Replace(text, "positive: p, positive: null", "prompts: {}", 1)
		if _, err := Parse("r.yaml", []byte(text), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.loss, err, c.want)
		}
	}
}

// A reranker's evaluation is one to begin with and to save the best model by.
// Every option of every loss reaches what is computed.
func TestLossOptions(t *testing.T) {
	parse := func(k lossKind, columns, loss string, sets ...string) Recipe {
		t.Helper()
		switch {
		case k.m3:
			sets = append(sets, "model.kind=m3")
		case k.vectors:
			sets = append(sets, "model.kind=multi_vector")
		case k.reranker:
			sets = append(sets, "model.kind=reranker")
		}
		r, err := Parse("r.yaml", []byte(strings.Replace(minimal, "positive: p", columns, 1)+"loss: "+loss), sets)
		if err != nil {
			t.Fatalf("%s %v: %v", loss, sets, err)
		}
		return r
	}
	others := map[string]string{
		"scale": "7", "temperature": "0.3", "student_temperature": "3", "teacher_temperature": "4", "directions": "[query_to_doc]", "partition_mode": "per_direction",
		"mask_duplicates": "false", "hardness_mode": "hard_negatives", "hardness_strength": "9", "margin": "0.3", "margin_strategy": "relative", "contrast_anchors": "false",
		"contrast_positives": "false", "parts": "[dense, sparse]", "self_distill": "false", "self_distill_from": "3", "distillation": "kl_div", "matryoshka": "{dims: [8]}",
		"weighting": "lambda_rank", "k": "2", "sigma": "2", "alpha": "2", "mu": "3", "pos_weight": "2", "by_label": "true", "activation": "identity",
		"positive_margin": "0.5", "negative_margin": "0", "mean_weight": "0", "second_moment_weight": "0", "aggregation": "sum",
	}
	needs := map[string]string{ // so that an option can be another
		"mnrl": ", directions: [query_to_doc, doc_to_query], hardness_mode: all_negatives, hardness_strength: 5", "gist": ", guide: g", "m3": ", self_distill: true",
	}
	for _, k := range slices.Concat(lossKinds, vectorKinds, groupKinds) {
		columns := "positive: p, negatives: n, scores: s"
		switch {
		case k.single:
			columns = "label: l"
		case k.pairs:
			columns = "positive: p, label: l"
		case k.teacher:
			columns = "positive: p, teacher: e"
		}
		text := "{name: " + k.names[0] + needs[k.names[0]] + "}"
		if k.vectors || k.reranker {
			text = "{name: " + k.names[0] + "}"
		}
		usual := parse(k, columns, text).objective(driving{})
		for _, option := range k.all(false, false) {
			value := others[option]
			switch option {
			case "name", "guide", "gather_across_devices", "num_negatives": // not the objective's
				continue
			case "flops": // of sparse embeddings; see TestSparseDefaults
				continue
			case "similarity":
				value = map[string]string{"cosine": "dot", "dot": "cosine", "maxsim": "mean_maxsim"}[k.similarity]
			case "distance":
				value = k.distances[1]
			case "activation":
				if k.names[0] != "mnrl" {
					value = "sigmoid"
				}
			case "self_distill":
				value = fmt.Sprint(!k.m3)
			}
			if got := parse(k, columns, text, "loss."+option+"="+value).objective(driving{}); reflect.DeepEqual(got, usual) {
				t.Errorf("%s is the same with %s: %s: %+v", k.names[0], option, value, got)
			}
		}
	}
	for from, want := range []int{0, 0, 1, 2} { // the recipe's steps count from 1
		r := parse(lossKind{m3: true}, "positive: p", fmt.Sprintf("{name: m3, self_distill: true, self_distill_from: %d}", from))
		if got := r.objective(driving{}).(loss.M3).DistillFrom; got != want {
			t.Errorf("self_distill_from: %d is step %d from 0, want %d", from, got, want)
		}
	}
}

func TestRerankerMeasured(t *testing.T) {
	text := strings.Replace(minimal, "positive: p", "positive: p, negatives: [n]", 1)
	for _, task := range []string{"rerank", "retrieval"} {
		_, err := Parse("r.yaml", []byte(text), []string{"model.kind=reranker", "loss.name=cross_entropy", "eval={every: 5, at_start: true, early_stopping: {patience: 3}, " + task + ": {queries: q, corpus: c, qrels: r}}", "save.best=true"})
		if (err == nil) != (task == "rerank") {
			t.Errorf("eval.%s: %v", task, err)
		}
	}
}

// A key without a value is as if it were not there, in a file and by --set, which so takes back what the file says.
func TestNothing(t *testing.T) {
	const said = minimal + `
eval: {retrieval: {queries: q, corpus: c, qrels: r}, early_stopping: {patience: 3}}
loss: {name: mnrl, scale: 30, matryoshka: {dims: [8, 4]}}
optimizer: {warmup_ratio: 0.3, betas: [0.5, 0.6]}
`
	var sets []string
	for _, key := range []string{"eval.early_stopping", "eval.retrieval", "loss.matryoshka", "loss.scale", "optimizer.warmup_ratio", "optimizer.betas", "model.lora"} {
		sets = append(sets, key+"=null")
	}
	text := strings.Replace(said, "{path: m}", "{path: m, lora: {rank: 4}}", 1)
	with, err := Parse("r.yaml", []byte(text), nil)
	if err != nil || with.Eval.EarlyStopping == nil || with.Model.LoRA == nil || with.Loss.Scale != 30 {
		t.Fatalf("%+v, %v", with, err)
	}
	want, err := Parse("r.yaml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		sets []string
	}{
		"null":      {text, sets},
		"tildes":    {text, strings.Split(strings.ReplaceAll(strings.Join(sets, " "), "null", "~"), " ")},
		"whole":     {text, []string{"eval=null", "loss=~", "optimizer=null", "model.lora=null"}},
		"commented": {minimal + "loss:\n  # name: gist\n  # scale: 30\neval:\n  every:\n  # early_stopping: {patience: 3}\noptimizer:\n", nil},
		"last":      {minimal + "loss:\n  # name: gist\n", nil},
		"both":      {text, append(sets, "loss.scale=~", "optimizer.warmup_ratio=null")},
	} {
		got, err := Parse("r.yaml", []byte(c.text), c.sets)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, want)
		}
	}
	// What is checked by who says it: warmup_steps stands against a ratio that is said, and gist has no options of mnrl.
	got, err := Parse("r.yaml", []byte(text), []string{"optimizer.warmup_ratio=null", "optimizer.warmup_steps=7", "loss.name=gist", "loss.guide=g", "loss.scale=null", "loss.directions=null"})
	if err != nil || *got.Optimizer.WarmupSteps != 7 || got.Loss.Name != "gist" {
		t.Errorf("%+v, %v", got, err)
	}
	// Set again after it was taken back.
	got, err = Parse("r.yaml", []byte(text), []string{"eval.early_stopping=null", "eval.early_stopping.patience=5"})
	if err != nil || got.Eval.EarlyStopping.Patience != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A glob that begins with * is a text after --set; elsewhere in YAML it would be an alias, and wants quotes.
func TestGlob(t *testing.T) {
	for text, want := range map[string]string{"*.parquet": "*.parquet", "**/a b.jsonl ": "**/a b.jsonl", `"*.csv"`: "*.csv"} {
		r, err := Parse("r.yaml", []byte(minimal), []string{"data.train.0.path=" + text})
		if err != nil || len(r.Data.Train[0].Path) != 1 || r.Data.Train[0].Path[0] != want {
			t.Errorf("%s: %v, %v", text, r.Data.Train, err)
		}
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"save.keep=*"}); err == nil || !strings.Contains(err.Error(), `save.keep: want a whole number, got "*"`) {
		t.Error(err)
	}
	for text, sets := range map[string][]string{strings.Replace(minimal, "d.parquet", "*.parquet", 1): nil, minimal: {"data.train.0.path=[a.parquet, *.parquet]"}} {
		if _, err := Parse("r.yaml", []byte(text), sets); err == nil || !strings.Contains(err.Error(), `a text that begins with * wants quotes, as in path: "*.parquet"`) {
			t.Errorf("%s %v: %v", text, sets, err)
		}
	}
}

// What Windows editors put before a text is no part of the first key.
func TestByteOrderMark(t *testing.T) {
	r, err := Parse("r.yaml", []byte("\ufeff"+minimal), nil)
	if err != nil || r.Model.Path == "" {
		t.Errorf("%+v, %v", r.Model, err)
	}
	path := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(path, []byte("\ufeffmodle: {path: m}\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), "r.yaml:1: modle: unknown key; did you mean model?") {
		t.Error(err)
	}
}

// A slip in each section gets the line, the full key, and what was meant.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"model: {pth: m}", "r.yaml:1: model.pth: unknown key; did you mean model.path?"},
		{"modle: {path: m}", "r.yaml:1: modle: unknown key; did you mean model?"},
		{"\n\ndata:\n  shufle: true", "r.yaml:4: data.shufle: unknown key; did you mean data.shuffle?"},
		{"data:\n  train:\n    - {path: x, query: q, positives: p}", "r.yaml:3: data.train[0].positives: unknown key; did you mean data.train[0].positive?"},
		{"batch: {mini_batch_size: 32}", "r.yaml:1: batch.mini_batch_size: unknown key; here it is batch.sub_batch: {rows: N}"},
		{"train: {per_device_train_batch_size: 32}", "here it is batch.global_size"},
		{"negatives_cross_device: true", "here it is loss.gather_across_devices"},
		{"train: {train_group_size: 8}", "negatives_per_query (train_group_size - 1)"},
		{"optimizer: {learning_rate: 1e-5}", "here it is optimizer.lr; as in lr: 2e-5"},
		{"train: {lr: 1e-5}", "r.yaml:1: train.lr: unknown key; did you mean optimizer.lr"},
		{"model: {maxlenght: 4}", "did you mean model.max_length?"},
		{"global_size: 4", "did you mean batch.global_size?"},
		{"loss: {scael: 3}", "did you mean loss.scale?"},
		{"optimizer: {lr: fast}", `r.yaml:1: optimizer.lr: want a number, got "fast"; as in lr: 2e-5`},
		{"optimizer: {lr: -1}", "r.yaml:1: optimizer.lr: is -1, want a positive number"},
		{"optimizer: {max_grad_norm: inf}", "r.yaml:1: optimizer.max_grad_norm: is +Inf, want a finite number; as in max_grad_norm: 1"},
		{"eval: {every: 1, early_stopping: {patience: 1, min_delta: inf}}", "eval.early_stopping.min_delta: is +Inf, want a finite number"},
		{"optimizer: {name: adam}", "optimizer.name: is \"adam\", want one of adamw, sgd; did you mean adamw?"},
		{"optimizer: {name: sgd, betas: [0.9, 0.99]}", "optimizer.betas: is for adamw"},
		{"optimizer: {name: sgd, eps: 1}", "optimizer.eps: is for adamw"},
		{"model: {template: qwen3}", "model.template: is for model.kind: reranker"},
		{"model: {kind: m3, head: classifier}", "model.head: is for model.kind: reranker"},
		{"model: {truncation: only_second}", "model.truncation: is for model.kind: reranker"},
		{"model: {instruction: judge}", "model.instruction: is for model.kind: reranker; an embedder's goes in front of its texts: data.train[].prompts"},
		{"optimizer: {betas: [0.9]}", "optimizer.betas: are [0.9], want two numbers"},
		{"train: {epochs: \"3\"}", `train.epochs: want a number, got "3"`},
		{"train: {epochs: 0}", "train.epochs: is 0, want a positive number"},
		{"\xff\xfem\x00o\x00", "r.yaml is UTF-16, as Windows PowerShell's > writes files: it has to be UTF-8"},
		{"train: {epochs: 2e9}", "train.epochs: is 2e+09, want a positive number of at most 1073741824"},
		{"batch: {accumulate: 9223372036854775807}", "batch.accumulate: is 9223372036854775807, want at most 1073741824"},
		{"mesh: {replicate: 9007199254740993}", "mesh.replicate: is 9007199254740993, want at most 65536"},
		{"mesh: {shard: 65537}", "mesh.shard: is 65537, want at most 65536"},
		{"mesh: {replicate: 257, shard: 256}", "mesh: 257 x 256 (replicate x shard) is 65792 ranks, want at most 65536"},
		{"model: {lora: {alpha: 1e39}}", "model.lora.alpha: is 1e+39, want a positive number that float32 has"},
		{"train: {epochs: nan}", "train.epochs: is NaN, want a finite number"},
		{"train: {epochs: 1e300}", "train.epochs: is 1e+300, want a positive number"},
		{"train: {seed: -1}", "train.seed: want a whole number of at least 0"},
		{"train: {precision: fp8}", "train.precision: is \"fp8\", want one of auto, bf16, f32, tf32"},
		{"data: {shuffle: maybe}", `data.shuffle: want true or false, got "maybe"`},
		{"optimizer: {betas: [0.9, null]}", "r.yaml:1: optimizer.betas[1]: has no value"},
		{"data: {shufle: }", "r.yaml:1: data.shufle: unknown key; did you mean data.shuffle?"},
		{"data: {train: }", "data.train: is missing"},
		{"mesh: {replicate: 0}", "mesh.replicate: is 0, want 1 or more, or auto"},
		{"model: {kind: reranker}\nloss: {name: lambda, weighting: ndcg_loss1, mu: 5}", "mu is of the weighting ndcg_loss2pp, and not of ndcg_loss1"},
		{"batch: {replay_budget: lots}", "want an amount of memory such as 8GiB"},
		{"batch: {sub_batch: 32}", "want {tokens: N} or {rows: N}"},
		{"batch: {sub_batch: {rows: 3, tokens: 4}}", "want a positive number for one of tokens and rows"},
		{"batch: {global_size: 1}", "a row alone has no negatives"},
		{"batch: {global_size: 1}\nloss: cosent", "a row alone has no negatives"},
		{"batch: {global_size: 1}\nloss: batch_all_triplet", "a row alone has no negatives"},
		{"batch: {cache: never, replay_budget: 1GiB}", "makes no sense with batch.cache: never"},
		{"loss: {scale: 20, temperature: 0.05}", "loss.temperature: and loss.scale are one thing"},
		{"loss: {directions: [query_to_dog]}", `direction "query_to_dog" is unknown`},
		{"loss: {directions: [query_to_doc, doc_to_doc], partition_mode: per_direction}", "one softmax per direction needs the positive pair"},
		{"model: {kind: embeder}", "did you mean embedder?"},
		{"eval: {at_start: true}", "eval.at_start: needs eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or eval.loss"},
		{"model: {kind: reranker}\neval: {at_start: true}", "r.yaml:2: eval.at_start: needs eval.rerank"},
		{"model: {kind: reranker}\nsave: {best: true}", "save.best: needs eval.rerank"},
		{"model: {lora: {r: 8}}", "model.lora.r: unknown key; here it is model.lora.rank"},
		{"data: {train: [{path: a, anchor: q, positive: p}]}", "data.train[0].anchor: unknown key; here it is data.train[].query"},
		{"data: {train: [{path: a, query: q, passage: p}]}", "data.train[0].passage: unknown key; here it is data.train[].positive"},
		{"data: {train: [{path: a, query: q, positive: p, neg: [n]}]}", "data.train[0].neg: unknown key; here it is data.train[].negatives"},
		{"eval: {triplets: [{path: a, anchor: q, positive: p, negative: n}]}", "eval.triplets[0].anchor: unknown key; here it is eval.triplets[0].query"},
		{"eval: {triplets: {path: a, query: q, positive: p, neg: n}}", "eval.triplets[0].neg: unknown key; here it is eval.triplets[0].negative"},
		{"eval: {loss: {path: a, query: q, pos: p}}", "eval.loss[0].pos: unknown key; here it is eval.loss[0].positive"},
		{"data: {train: [{path: a, query: q, pos: p}]}", "data.train[0].pos: unknown key; here it is data.train[].positive"},
		{"model: {lora: {rank: 0}}", "model.lora.rank: is 0, want at least 1"},
		{"model: {similarity: euclidean}", "model.similarity: is \"euclidean\", want one of cosine, dot"},
		{"model: {kind: sparse, similarity: dot}", "model.similarity: is for model.kind: embedder"},
		{"model: {lora: {alpha: -1}}", "model.lora.alpha: is -1, want a positive number"},
		{"model: {lora: {dropout: 1}}", "model.lora.dropout: is 1"},
		{"model: {lora: {targets: []}}", "model.lora.targets: are missing: names of linear layers such as query, or all-linear"},
		{"model: {lora: {target_modules: query}}", "here it is model.lora.targets"},
		{"model: {freeze: {layers: -1}}", "model.freeze.layers: is negative"},
		{"model: {activation_checkpointing: {every: 0}}", "every is 0, want at least 1"},
		{"optimizer: {groups: [{params: lora_B}]}", "optimizer.groups[0].lr: is 0, want a positive number"},
		{"optimizer: {layer_decay: 1.1}", "optimizer.layer_decay: is 1.1, want at most 1, which is none, such as 0.9"},
		{"optimizer: {groups: [{lr: 1}]}", "optimizer.groups[0].params: are missing"},
		{"model: {max_length: -4}", "model.max_length: is negative"},
		{"model: [1, 2]", "model: want a mapping with the keys path, kind"},
		{"model: {path: [a, b]}", "model.path: want a text, got a list"},
		{"model: {path: {a: b}}", `model.path: want a text, got a mapping: one with a colon before a space, or at its end, wants quotes, as in model.path: "query: "`},
		{"mesh: {shard: 2}\ntrain: {sync: every}", "train.sync: every needs mesh.shard: 1"},
		{"mesh: {link: fast}", "mesh.link: "},
		{"eval: {metric: accuracy}", "eval.metric"},
		{"eval: {retrieval: {corpus: c, qrels: r}}", "eval.retrieval: needs queries, corpus and qrels"},
		{"eval: {retrieval: [{queries: beir/a}, {queries: q, corpus: c}]}", "eval.retrieval[1]: needs queries, corpus and qrels, or as queries a folder"},
		{"eval: {retrieval: [{queries: beir/a}, {queries: other/a/}]}", `eval.retrieval[1].name: "a" is that of eval.retrieval[0] too`},
		{"eval: {retrieval: {queries: beir/a}, sts: {name: a, path: p, a: x, b: y, score: s}}", `eval.sts.name: "a" is that of eval.retrieval too`},
		{"eval: {retrieval: {queries: beir/a}, sts: {path: p, a: x, b: y, score: s}, metric: x}", "eval.metric: "},
		{"log: {every: soon}", "log.every: want a number of steps, a share of the run such as 0.1, or epoch, got \"soon\""},
		{"save: {every: soon}", "save.every: want a number of steps, a share of the run such as 0.1, epoch, or a time such as 10m, got \"soon\""},
		{"save: {every: 1.5}", "save.every: want a number of steps, a share of the run"},
		{"eval: {every: -1}", "eval.every: want a number of steps, a share of the run"},
		{"eval: {every: 10m}", "eval.every: is a time, which only save.every may be"},
		{"log: {every: 10m}", "log.every: is a time, which only save.every may be"},
		{"eval: {every: 0, early_stopping: {patience: 1}, retrieval: {queries: q}}", "eval.early_stopping: needs eval.every"},
		{"optimizer: {schedule: cosin}", "optimizer.schedule: is \"cosin\", want one of 1-sqrt, constant, cosine, inverse_sqrt, linear, polynomial; did you mean cosine?"},
		{"optimizer: {schedule: {name: cosin}}", "optimizer.schedule.name: is \"cosin\", want one of"},
		{"optimizer: {schedule: warmup_stable_decay}", "optimizer.schedule: warmup_stable_decay is another program's name: here it is {name: linear, decay_ratio: 0.1}"},
		{"optimizer: {schedule: {name: cosine_with_restarts, cycles: 3}}", "optimizer.schedule.name: cosine_with_restarts is another program's name: here it is {name: cosine, cycles: 2}"},
		{"optimizer: {schedule: {min_rate: 0.1}}", "optimizer.schedule.min_rate: unknown key; did you mean optimizer.schedule.min_ratio?"},
		{"optimizer: {schedule: {cycles: 3}}", "optimizer.schedule.cycles: is of cosine, not of linear"},
		{"optimizer: {schedule: {name: constant, min_ratio: 0.1}}", "optimizer.schedule.min_ratio: is of linear, cosine, polynomial, 1-sqrt, not of constant"},
		{"optimizer: {schedule: {min_ratio: 2}}", "optimizer.schedule.min_ratio: is 2, want a part, 0 to 1"},
		{"optimizer: {schedule: {decay_steps: 0}}", "optimizer.schedule.decay_steps: is 0, want a positive number"},
		{"optimizer: {schedule: {decay_steps: 5, decay_ratio: 0.1}}", "optimizer.schedule.decay_steps: and optimizer.schedule.decay_ratio say the same"},
		{"optimizer: {schedule: {stable_steps: -1}}", "optimizer.schedule.stable_steps: is negative"},
		{"optimizer: {schedule: {warmup: polynomial}}", "optimizer.schedule.warmup: is \"polynomial\", want one of 1-sqrt, cosine, linear"},
		{"optimizer: {schedule: {name: cosine, min_lr: 1e-6}}", "optimizer.schedule.min_lr: unknown key; here it is optimizer.schedule: {min_ratio: ...}, a part of optimizer.lr"},
		{"eval_strategy: epoch", "here it is eval.every: epoch, or a number of steps"},
		{"data:\n  train:\n    - {path: x, query: q, positive: p, sampling_weight: 2}", "data.mixing: sampling_weight is for data.mixing: weighted, not proportional"},
		{"model: {path: a}\nmodel: {path: b}", "r.yaml"},
		{"model: {path: a", "r.yaml"},
		{"a: &x 1\nb: *x", "r.yaml:1: anchors are not used in recipes"},
		{"b: *x", "r.yaml:1: aliases are not used in recipes"},
		{"model:\n  path: a\n  path: b\n", "r.yaml:3: "},
		{"model: {path: m}\n\nbatch: {global_size: 4\n", "r.yaml:3: "},
		{"", "model.path: is missing"},
		{"", "data.train: is missing"},
		{"", "save.dir: is missing: the folder for the run (--out sets it)"},
	} {
		_, err := Parse("r.yaml", []byte(c.text), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error\n%v\nwant %q", c.text, err, c.want)
		}
	}
	for set, want := range map[string]string{
		"model.path=q: ":      `--set model.path=q: : model.path: want a text, got a mapping: one with a colon before a space, or at its end, wants quotes, as in --set 'model.path="query: "'`,
		"train.max_stps=8":    "--set train.max_stps=8: train.max_stps: unknown key; did you mean train.max_steps?",
		"train.max_steps":     "want KEY=VALUE",
		"train.max_steps=":    "no value; train.max_steps=null takes back",
		"train.max_steps=x":   `--set train.max_steps=x: train.max_steps: want a whole number, got "x"`,
		"data.train.7.path=x": `"7" is not an element of a list of 1`,
		"model.path.x=y":      `model.path is m (r.yaml:2), a value, which has no key "x"; --set 'model.path={x: ...}' makes it a mapping`,
	} {
		_, err := Parse("r.yaml", []byte(minimal), []string{set})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want %q", set, err, want)
		}
	}
	for text, want := range map[string]string{ // one mistake, one error
		"train: {epochs: many}":     "train.epochs: want a number",
		"train: {epochs: \"3\"}":    "train.epochs: want a number",
		"batch: {global_size: 1.5}": "batch.global_size: want a whole number",
		"optimizer: 3":              "optimizer: want a mapping",
		"model: 3":                  "model: want a mapping",
		"loss: {scale: big}":        "loss.scale: want a number",
	} {
		_, err := Parse("r.yaml", []byte(text+"\n"), []string{"model.path=m", "save.dir=x", "data.train=[{path: d, query: q, positive: p}]"})
		if strings.HasPrefix(text, "model") {
			_, err = Parse("r.yaml", []byte(text+"\n"), []string{"save.dir=x", "data.train=[{path: d, query: q, positive: p}]"})
		}
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error\n%v\nwant %q alone", text, err, want)
		}
	}
	// Everything wrong is reported at once.
	_, err := Parse("r.yaml", []byte("model: {pth: m}\ntrain: {epochs: x}"), nil)
	if err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("one error of several: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(full))
	f.Add([]byte("a: [b: {c, d}\n- e"))
	f.Fuzz(func(t *testing.T, data []byte) {
		harness.Bounded(t, func() {
			if r, err := Parse("r.yaml", data, nil); err == nil {
				if _, err := r.YAML(); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// A leading ~ of a path is the user's folder, which no shell has put in its place in a file; elsewhere, and in a glob, it is a character.
func TestHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	r, err := Parse("r.yaml", []byte(`
model: {path: ~/models/start}
data: {train: [{path: ["~/a/*.parquet", "b~/~"], query: "~/q", positive: p}]}
loss: {name: gist, guide: ~/guide}
eval: {retrieval: [{queries: ~/beir/a}, {name: b, queries: ~/q, corpus: ~/c, qrels: ~/r}], sts: {path: ~/s, a: a, b: b, score: s}}
save: {dir: ~/runs/mine}
`), []string{"save.dir=~/runs/other"})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(r.Model.Path, r.Data.Train[0].Path, r.Data.Train[0].Query, r.Loss.Guide.Path, r.Eval.Retrieval, r.Eval.STS, r.Save.Dir)
	want := strings.ReplaceAll("H/models/start[H/a/*.parquet b~/~]~/qH/guide[{ H/beir/a   <nil> []} {b H/q H/c H/r <nil> []}] [{ H/s a b s <nil> []}] H/runs/other", "H", home)
	if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("%s, want %s", got, want)
	}
	if r, err = Parse("r.yaml", []byte(minimal), []string{"model.kind=reranker", "data.train.0.negatives=[n]", "eval.rerank={queries: ~/q, corpus: ~/c, qrels: ~/r}"}); err != nil {
		t.Fatal(err)
	}
	if got := r.Eval.Rerank[0]; got.Queries != filepath.Join(home, "q") || got.Corpus != filepath.Join(home, "c") || got.Qrels != filepath.Join(home, "r") {
		t.Errorf("%+v", got)
	}
}

// A recipe that a program has made or changed is checked, and filled in, as one that is read; one that was read stays as it is.
func TestResolve(t *testing.T) {
	good, err := Parse("r.yaml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	recipes := []Recipe{good}
	for _, name := range Templates() {
		text, _ := Template(name)
		r, err := Parse(name, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		recipes = append(recipes, r)
	}
	for _, r := range recipes {
		again, err := r.Resolve()
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%v: %+v\nresolved anew %+v", err, r, again)
		}
	}
	for want, change := range map[string]func(*Recipe){
		`loss.name: is "nope"`:       func(r *Recipe) { r.Loss.Name = "nope" },
		`save.precision: is "nope"`:  func(r *Recipe) { r.Save.Precision = "nope" },
		`train.precision: is "nope"`: func(r *Recipe) { r.Train.Precision = "nope" },
		"optimizer.lr: ":             func(r *Recipe) { r.Optimizer.LR = -1 },
		"batch.accumulate: ":         func(r *Recipe) { r.Batch.Accumulate = 0 },
		"data.train: is missing":     func(r *Recipe) { r.Data.Train = nil },
		"save.dir: is missing":       func(r *Recipe) { r.Save.Dir = "" },
		"model.path: is missing":     func(r *Recipe) { *r = Recipe{} },
	} {
		r := good
		change(&r)
		x, err := Open(t.Context(), r, Observer{})
		if err == nil || x != nil || !strings.Contains("\n"+err.Error(), "\n"+want) {
			t.Errorf("%v (%v), want %q", err, x != nil, want)
		}
	}
}

// Resolving keeps every text as it is, and so does what is written, whatever YAML would make of it; and it takes what a program makes of another kind than the default.
func TestResolveTexts(t *testing.T) {
	r, err := Parse("r.yaml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a\tb", "\n", "x\r\ny", "query:\t", "\t", "a\r", "a\n\tb\n\n", "? a", "- b", " c ", "#", "null", "~", "true", "1.0", "'", "\"", "ä\u00a0"} {
		r.Data.Train[0].Prompts = &Prompts{Query: text}
		r.Data.Train[0].Query = "q" + text
		got, err := r.Resolve()
		if err != nil || got.Data.Train[0].Prompts.Query != text || got.Data.Train[0].Query != "q"+text {
			t.Errorf("%q has become %+v: %v", text, got.Data.Train, err)
		}
		written, err := got.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("r.yaml", written, nil)
		if err != nil || !reflect.DeepEqual(again.Data, got.Data) {
			t.Errorf("%q: %v\n%s is another recipe: %+v", text, err, written, again.Data.Train)
		}
	}
	r = Default()
	r.Model = Model{Path: "m", Kind: "reranker", MaxLength: Lengths{32, 32}}
	r.Loss = Loss{Name: "cross_entropy"}
	r.Data.Train = []Source{{Path: []string{"d"}, Query: "q", Positive: "p", Negatives: []string{"n"}}}
	r.Save.Dir = "x"
	if got, err := r.Resolve(); err != nil || got.Loss.Name != "cross_entropy" || got.Batch.NoDuplicates != r.Batch.NoDuplicates {
		t.Errorf("%v: %+v", err, got.Loss)
	}
}

// A list of one, which is written without brackets, is addressed with its number and without, and so is one that has them.
func TestSetOnlyElement(t *testing.T) {
	for _, written := range []string{"{queries: q, corpus: c, qrels: r}", "[{queries: q, corpus: c, qrels: r}]"} {
		for _, set := range []string{"eval.retrieval.queries=x", "eval.retrieval[0].queries=x", "eval.retrieval.0.queries=x", "eval.retrieval.0={queries: x, corpus: c, qrels: r}"} {
			r, err := Parse("r.yaml", []byte(minimal+"\neval: {retrieval: "+written+"}\n"), []string{set})
			if err != nil || len(r.Eval.Retrieval) != 1 || !reflect.DeepEqual(r.Eval.Retrieval[0], Retrieval{Queries: "x", Corpus: "c", Qrels: "r"}) {
				t.Errorf("%s, %s: %+v, %v", written, set, r.Eval.Retrieval, err)
			}
			text, err := r.YAML()
			if err != nil || !strings.Contains(string(text), "retrieval:\n    queries: x\n") {
				t.Errorf("%v: %s", err, text)
			}
		}
	}
	r, err := Parse("r.yaml", []byte(minimal), []string{"eval.retrieval=[]", "eval.sts=[]"})
	if err != nil {
		t.Error(err)
	}
	if _, err := r.Resolve(); err != nil {
		t.Error(err)
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"eval.retrieval=[]", "save.best=true"}); err == nil || !strings.Contains(err.Error(), "save.best: needs eval.retrieval") {
		t.Error(err)
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"model.kind=reranker", "data.train.0.negatives=[n]", "eval.sts=[]"}); err != nil {
		t.Error(err)
	}
}
