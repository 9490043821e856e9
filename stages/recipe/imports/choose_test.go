package imports_test

import (
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// A loss that there isn't here leaves a recipe that is not trained until somebody chooses: the check names the key, a comment says why and what there
// is, and of a slip what was meant. With a loss in its place it is a recipe.
func TestNoSuchLoss(t *testing.T) {
	for _, c := range []struct {
		s    imports.Settings
		said string
	}{
		{imports.Settings{"loss": "SoftmaxLoss", "num_labels": 3.0, "columns": []any{"premise", "hypothesis"}}, "SoftmaxLoss is not converted: it trains a classifier of pairs"},
		{imports.Settings{"loss": "losses.ContrastiveTensionLoss()"}, "two encoders"},
		{imports.Settings{"loss": "DenoisingAutoEncoderLoss"}, "a decoder besides"},
		{imports.Settings{"loss": map[string]any{"name": "AdaptiveLayerLoss", "loss": "CoSENTLoss"}}, "lower layers have no loss"},
		{imports.Settings{"loss": "ContrastiveTensionLossInBatchNegatives", "columns": []any{"text"}}, "it trains two encoders"},
		{imports.Settings{"loss": map[string]any{"name": "Matryoshka2dLoss", "kl_weight": 2.0, "loss": map[string]any{"name": "MatryoshkaLoss", "loss": "CoSENTLoss"}}}, "with matryoshka for the shorter"},
		{imports.Settings{"loss": "Matryoshka2dLoss", "inner_loss": "CoSENTLoss"}, "with matryoshka"},
		{imports.Settings{"loss": "MultipleNegativesRankingLos"}, "no such loss is known; did you mean MultipleNegativesRankingLoss?"},
		{imports.Settings{"loss": "MatryoshkaLoss", "inner_loss": "CosentLoss"}, "did you mean CoSENTLoss?"},
		{imports.Settings{"loss": "MyOwn"}, "MyOwn is not converted: no such loss is known. "},
		{imports.Settings{"arguments": "MultiVectorEncoderTrainingArguments", "loss": "MultipleNegativesRankingLoss"}, "it is not one of a MultiVectorEncoder"},
		{imports.Settings{"loss": map[string]any{"a": "TripletLoss", "b": "SoftmaxLoss"}, "train_dataset": map[string]any{"a": "a.parquet", "b": "b.parquet"}, "columns": []any{"x", "y", "z"}}, "b: loss: SoftmaxLoss"},
	} {
		res, err := imports.Convert(imports.SentenceTransformers, c.s, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Without) != 1 || len(res.Unknown) > 0 || !strings.Contains(res.Without[0], c.said) || !strings.Contains(res.Recipe, "LOSS in its place") {
			t.Errorf("%v: %q, %q", c.s, res.Without, res.Unknown)
		}
		at := "loss.name"
		if c.s["train_dataset"] != nil {
			at = "data.train[1].loss.name"
		}
		if _, err := recipe.Parse("imported", []byte(res.Recipe), nil); err == nil || !strings.Contains(err.Error(), at+`: is "LOSS"`) {
			t.Errorf("%v: the recipe's check says %v of\n%s", c.s, err, res.Recipe)
		}
		if c.s["arguments"] == nil {
			if _, err := recipe.Parse("imported", []byte(res.Recipe), []string{at + "=mnrl"}); err != nil {
				t.Errorf("%v: %v", c.s, err)
			}
		}
	}
}
