package imports_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// Held-out datasets have what those of their names have that train, or all; the recipe reads what was written.
func TestHeldOut(t *testing.T) {
	one := func(e recipe.HeldOut) string {
		loss := "the recipe's"
		if e.Loss != nil {
			loss = e.Loss.Name
		}
		return fmt.Sprint(e.Name, " ", e.Path, " ", e.Query, " ", e.Positive, " ", e.Negatives, " ", e.Label, " ", *e.Prompts, " ", loss)
	}
	for text, want := range map[string][]string{
		`{"train_dataset": "n", "eval_dataset": {"nli": "x"}}`:                                                              {"nli [x] anchor positive []  {   } the recipe's"},
		`{"train_dataset": ["n", "m"], "columns": ["a", "b", "c"], "prompts": "p: ", "eval_dataset": {"path": ["x", "y"]}}`: {" [x y] a b [c]  {p:  p:   } the recipe's"},
		`{"train_dataset": {"nli": "n", "sts": "s"}, "columns": {"nli": ["a", "b"]}, "loss": {"nli": "MultipleNegativesRankingLoss", "sts": "CoSENTLoss"}, "eval_dataset": {"sts": "x", "nli": "y"}}`: {
			"sts [x] sentence1 sentence2 [] label {   } cosent", "nli [y] a b []  {   } mnrl"},
		// Files in a list are one dataset; a list with mappings has several.
		`{"train_dataset": "n", "eval_dataset": ["x", "y"]}`:                                                                                                       {" [x y] anchor positive []  {   } the recipe's"},
		`{"train_dataset": "n", "eval_dataset": [{"name": "b", "path": "x"}, {"name": "a", "path": ["y", "z"]}]}`:                                                  {"b [x] anchor positive []  {   } the recipe's", "a [y z] anchor positive []  {   } the recipe's"},
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": {"name": "GISTEmbedLoss", "guide": "g"}, "sts": "CoSENTLoss"}, "eval_dataset": {"nli": "y"}}`: {"nli [y] anchor positive []  {   } the recipe's"},
	} {
		r, res := mapping(t, text)
		var got []string
		for _, e := range r.Eval.Loss {
			got = append(got, one(e))
		}
		if !slices.Equal(got, want) || len(res.Without)+len(res.Unknown) > 0 || strings.Count(res.Recipe, "columns are called") > 2 {
			t.Errorf("%s: %q, want %q\n%s", text, got, want, res.Recipe)
		}
	}
	for text, want := range map[string]string{
		`{"eval_dataset": "x", "load_best_model_at_end": true}`:                                                          "loss",
		`{"eval_dataset": "x", "save_strategy": "best"}`:                                                                 "loss",
		`{"eval_dataset": "x", "load_best_model_at_end": true, "metric_for_best_model": "eval_cosine_mrr@10"}`:           "mrr@10",
		`{"eval_dataset": {"a": "x", "b": "y"}, "load_best_model_at_end": true, "metric_for_best_model": "eval_a_loss"}`: "loss",
		`{"eval_dataset": "x"}`: "ndcg@10",
	} {
		r, res := mapping(t, text)
		if r.Eval.Metric != want || len(res.Without)+len(res.Unknown) > 0 || strings.Contains(text, "eval_a_loss") != strings.Contains(res.Recipe, "of all that eval.loss names, whose mean counts") {
			t.Errorf("%s: eval.metric is %s, want %s\n%s", text, r.Eval.Metric, want, res.Recipe)
		}
	}
	if _, res := mapping(t, `{"eval_dataset": "x", "per_device_eval_batch_size": 4}`); !strings.Contains(res.Recipe, "per_device_eval_batch_size is 4: the loss is measured in batches of batch.global_size, 8") {
		t.Error(res.Recipe)
	}
	for _, none := range []string{"null", "{}", "[]"} {
		if r, res := mapping(t, `{"eval_dataset": `+none+`}`); len(r.Eval.Loss) > 0 || len(res.Without)+len(res.Unknown) > 0 {
			t.Error(res.Recipe)
		}
	}
	// One without a name is no more like one of those without a name that train than like the others.
	const nameless = `{"train_dataset": [{"name": "nli", "path": "n"}, {"path": "m"}], "columns": {"nli": ["a", "b"]}, "eval_dataset": "x"}`
	if r, res := mapping(t, nameless); len(r.Eval.Loss) > 0 || len(res.Without) != 1 || !strings.HasPrefix(res.Without[0], "eval_dataset: x: datasets that train have different columns") {
		t.Error(res.Recipe)
	}
}

// Which way is better is fixed here: a setting that has it the other way is told of, and one that has it this way is not.
func TestGreaterIsBetter(t *testing.T) {
	for text, want := range map[string]string{
		`{"eval_dataset": "x", "metric_for_best_model": "eval_loss", "greater_is_better": true}`:  "greater_is_better: true, of eval_loss: the best is the evaluation with the lowest one here",
		`{"eval_dataset": "x", "metric_for_best_model": "eval_loss", "greater_is_better": false}`: "",
		`{"eval_dataset": "x", "greater_is_better": true}`:                                        "greater_is_better: true, of loss: the best is the evaluation with the lowest one here",
		`{"metric_for_best_model": "eval_cosine_ndcg@10", "greater_is_better": false}`:            "greater_is_better: false, of eval_cosine_ndcg@10: the best is the evaluation with the highest one here",
		`{"metric_for_best_model": "eval_cosine_ndcg@10", "greater_is_better": true}`:             "",
		`{"metric_for_best_model": "eval_cosine_ndcg@10", "greater_is_better": null}`:             "",
		`{"greater_is_better": true}`: "",
	} {
		if _, res := mapping(t, text); strings.Join(res.Without, "; ") != want {
			t.Errorf("%s: %q, want %q", text, res.Without, want)
		}
	}
}

// Held-out rows of several datasets and an evaluator's stand side by side.
func TestHeldOutBeside(t *testing.T) {
	entry := map[string]any{"path": "e", "query": "text", "teacher": "teacher", "loss": "mse"}
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"columns": []any{"a", "b"}, "eval_dataset": map[string]any{"x": "x", "y": "y"}, "evaluator": map[string]any{"loss": []any{entry}}}, 1)
	if len(r.Eval.Loss) != 3 || r.Eval.Loss[0].Name != "x" || r.Eval.Loss[2].Teacher != "teacher" {
		t.Error(res.Recipe)
	}
}
