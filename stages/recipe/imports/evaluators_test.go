package imports_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/recipe/imports"
)

// What trainer_settings.py writes of evaluators is the recipe's eval section, and what there is none for is said.
func TestEvaluators(t *testing.T) {
	nano := func(tasks int) string {
		return `{"nanobeir": [{"dataset": "sentence-transformers/NanoBEIR-en", "tasks": [` + strings.Repeat(`"nq", `, tasks-1) + `"msmarco"], "top": 100, "found": false}]}`
	}
	for evaluator, want := range map[string]string{
		`{"sts": [{"name": "sts-dev", "path": "d/0.parquet", "a": "a", "b": "b", "score": "score"}]}`: "  sts: {name: sts-dev, path: d/0.parquet, a: a, b: b, score: score}\n",
		`{"retrieval": [{"queries": "q", "corpus": "c", "qrels": "r"}], "other": ["MSEEvaluator"]}`:   "  retrieval: {queries: q, corpus: c, qrels: r}\n",
		`{"other": ["MSEEvaluator"]}`: "# without counterpart: evaluator: MSEEvaluator: there is eval.retrieval",
		`{"candidates": [{"path": "a", "query": "q", "positive": "p", "documents": "d", "found": true}, {"path": "b", "query": "q", "positive": "p", "negative": "n"}]}`: `  candidates:
    - {path: a, documents: d, found: true, positive: p, query: q}
    - {path: b, negative: "n", positive: p, query: q}
`,
		`{"sts": [{"path": "a", "a": "a", "b": "b", "score": "s"}], "triplets": [{"path": "t", "query": "q", "positive": "p", "negative": "n"}]}`:                       "# assumed: of 2 evaluators the mean counts",
		`{"sts": [{"name": "sts-64", "path": "a", "a": "a", "b": "b", "score": "s", "dimensions": 64}]}`:                                                                `  sts: {name: sts-64, path: a, a: a, b: b, dimensions: 64, score: s}`,
		`{"retrieval": [{"name": "t-src2trg", "queries": "q", "corpus": "c", "qrels": "r"}], "metric": ["precision@1"]}`:                                                `  metric: "precision@1"` + "\n",
		`{"sts": [{"path": "a", "a": "a", "b": "b", "score": "s", "prompts": {"query": "q: "}}]}`:                                                                       `  sts: {path: a, a: a, b: b, prompts: {query: "q: "}, score: s}`,
		`{"candidates": [{"path": "a", "query": "q", "positive": "p", "negative": "n"}], "compared": ["RerankingEvaluator compares by cos_sim, and the model by dot"]}`: "# assumed: RerankingEvaluator compares by cos_sim, and the model by dot: all tasks here compare as the model does",
		nano(13): "  nanobeir: true\n",
		`{"nanobeir": [{"tasks": ["` + strings.Join(dataset.NanoTasks(false)[:12], `", "`) + `"]}]}`: "  nanobeir: {tasks: [" + strings.Join(dataset.NanoTasks(false)[:12], ", ") + "]}\n", // all but one
		nano(2):          "  nanobeir: {tasks: [nq, msmarco]}\n",
		`"MSEEvaluator"`: "# without counterpart: evaluator: eval.retrieval",
	} {
		s := imports.Settings{"model": "m", "train_dataset": "d.parquet", "columns": []any{"a", "b"}}
		var of any
		if err := json.Unmarshal([]byte(evaluator), &of); err != nil {
			t.Fatal(err)
		}
		if s["evaluator"] = of; strings.Contains(evaluator, "nanobeir") {
			s["metric_for_best_model"] = "eval_NanoBEIR_mean_cosine_ndcg@10"
		}
		if _, res := convert(t, imports.SentenceTransformers, s, 1); !strings.Contains(res.Recipe, want) || len(res.Unknown) > 0 {
			t.Errorf("%s:\n%s", evaluator, res.Recipe)
		}
	}
}

// What evaluators measure is what a metric is of, and no setting of theirs is left over.
func TestEvaluatorsMetric(t *testing.T) {
	s := imports.Settings{"model": "m", "metric_for_best_model": "eval_dev_spearman_cosine", "evaluator": map[string]any{"sts": []any{map[string]any{"path": "a", "a": "a", "b": "b", "score": "s"}}}}
	if _, res := convert(t, imports.SentenceTransformers, s, 1); len(res.Without)+len(res.Unknown) > 0 {
		t.Errorf("%s", res.Recipe)
	}
	of := func(metric string) string {
		s["metric_for_best_model"], s["evaluator"] = metric, map[string]any{
			"loss":      []any{map[string]any{"name": "taught", "path": "m", "query": "text", "teacher": "teacher", "loss": "mse", "prompts": map[string]any{}}},
			"retrieval": []any{map[string]any{"queries": "q", "corpus": "c", "qrels": "r"}}, "metric": []any{"precision@1"},
		}
		_, res := convert(t, imports.SentenceTransformers, s, 1)
		return res.Recipe
	}
	if got := of("eval_taught_negative_mse"); !strings.Contains(got, "\n  metric: loss\n") || !strings.Contains(got, "\n  loss: {name: taught, path: m, loss: mse, prompts: {}, query: text, teacher: teacher}\n") {
		t.Errorf("%s", got)
	}
	if got := of("eval_dev_cosine_ndcg@10"); !strings.Contains(got, "\n  metric: \"ndcg@10\"\n") {
		t.Errorf("%s", got)
	}
	s["eval_dataset"] = "e.parquet"
	if got := of(""); !strings.Contains(got, "\n  loss:\n    - {path: \"e.parquet\", query: anchor, positive: positive, prompts: {}}\n    - {name: taught,") {
		t.Errorf("%s", got)
	}
	delete(s, "eval_dataset")
	s["metric_for_best_model"], s["evaluator"] = "eval_dev_cosine_ndcg@10", map[string]any{"retrieval": []any{map[string]any{"queries": "q", "corpus": "c", "qrels": "r"}}}
	if _, res := convert(t, imports.SentenceTransformers, s, 1); strings.Contains(res.Recipe, "is one evaluator's") {
		t.Errorf("%s", res.Recipe)
	}
}

// A CrossEncoder's evaluators see its scores behind activation_fn.
func TestEvaluatorsOfScores(t *testing.T) {
	s := imports.Settings{
		"model": "m", "arguments": "CrossEncoderTrainingArguments", "loss": "MSELoss", "columns": []any{"a", "b", "label"}, "train_dataset": "d.parquet",
		"evaluator": map[string]any{"sts": []any{map[string]any{"path": "a", "a": "a", "b": "b", "score": "s"}}, "prompted": []any{"X has the prompt Y"}},
	}
	if _, res := convert(t, imports.SentenceTransformers, s, 1); !strings.Contains(res.Recipe, "# assumed: eval.sts is of the model's scores before activation_fn") || !strings.Contains(res.Recipe, "# assumed: X has the prompt Y: a reranker's tasks have the prompt that trains\n") || len(res.Unknown)+len(res.Without) > 0 {
		t.Errorf("%s", res.Recipe)
	}
}

// A label that is as long as there are documents has a score of each, and one that is shorter has margins: both are scores.
func TestLabelLength(t *testing.T) {
	for _, length := range []float64{1, 2} {
		s := imports.Settings{"model": "m", "loss": "MarginMSELoss", "columns": []any{"q", "p", "n", "score"}, "label_length": length}
		if r, res := convert(t, imports.SentenceTransformers, s, 1); len(res.Without) > 0 || r.Data.Train[0].Scores == nil {
			t.Errorf("%v:\n%s", length, res.Recipe)
		}
	}
}

// With split_batches a batch size is that of all devices, as accelerate has it.
func TestSplitBatches(t *testing.T) {
	for split, want := range map[bool]string{true: "global_size: 64", false: "global_size: 256"} {
		s := imports.Settings{"model": "m", "per_device_train_batch_size": 64.0, "gather_across_devices": true, "accelerator_config": map[string]any{"split_batches": split}}
		if _, res := convert(t, imports.SentenceTransformers, s, 4); !strings.Contains(res.Recipe, want) {
			t.Errorf("%t:\n%s", split, res.Recipe)
		}
	}
	s := imports.Settings{"model": "m", "per_device_train_batch_size": 64.0, "gather_across_devices": true, "devices": 4.0} // as trainer_settings.py has it
	for devices, want := range map[int]string{0: "global_size: 256", 2: "global_size: 128"} {
		if _, res := convert(t, imports.SentenceTransformers, s, devices); !strings.Contains(res.Recipe, want) || len(res.Unknown) > 0 {
			t.Errorf("%d:\n%s", devices, res.Recipe)
		}
	}
	s = imports.Settings{"model": "m", "per_device_train_batch_size": 6.0, "accelerator_config": map[string]any{"split_batches": true}}
	if _, err := imports.Convert(imports.SentenceTransformers, s, 4); err == nil || !strings.Contains(fmt.Sprint(err), "split_batches") {
		t.Error(err)
	}
}
