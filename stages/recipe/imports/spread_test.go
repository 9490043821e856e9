package imports_test

import (
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe/imports"
)

// What is otherwise with MegaBatchMarginLoss and GlobalOrthogonalRegularizationLoss is said, and settings that another loss has are named.
func TestSpread(t *testing.T) {
	const mega, gor, mnrl = "MegaBatchMarginLoss", "GlobalOrthogonalRegularizationLoss", "MultipleNegativesRankingLoss"
	for _, c := range []struct {
		loss, option string
		value        any
		assumed      string
		without      string // "": nothing
	}{
		{mega, "", nil, "a text that occurs twice in a batch is a negative of itself, as it is there; loss.mask_duplicates: true is mostly better", ""},
		{gor, "", nil, "GlobalOrthogonalRegularizationLoss alone spreads embeddings and teaches nothing else", ""},
		{mega, "mean_weight", 2.0, "", "mean_weight: 2; MegaBatchMarginLoss has no such setting"},
		{mega, "aggregation", "sum", "", "aggregation: sum; MegaBatchMarginLoss has no such setting"},
		{gor, "negative_margin", 0.5, "", "negative_margin: 0.5; GlobalOrthogonalRegularizationLoss has no such setting"},
		{mnrl, "positive_margin", 0.5, "", "positive_margin: 0.5; MultipleNegativesRankingLoss has no such setting"},
		{mega, "similarity_fct", "util.dot_score", "", "similarity_fct: util.dot_score; MegaBatchMarginLoss has cosine there and here"},
		{mega, "similarity_fct", "cos_sim", "", ""},
	} {
		s := imports.Settings{"loss": c.loss}
		if c.option != "" {
			s[c.option] = c.value
		}
		_, res := convert(t, imports.SentenceTransformers, s, 1)
		if !slices.ContainsFunc(res.Assumed, func(s string) bool { return strings.Contains(s, c.assumed) }) || strings.Join(res.Without, "\n") != c.without {
			t.Errorf("%s with %s %v: assumed %q, without %q", c.loss, c.option, c.value, res.Assumed, res.Without)
		}
	}
	s := imports.Settings{"loss": mega, "columns": []any{"a", "b", "c"}}
	if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), "columns: [a, b, c] are 3: MegaBatchMarginLoss takes two, there as here") {
		t.Error(err)
	}
	s = imports.Settings{"loss": gor, "columns": []any{"a"}}
	if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), "single texts have a label or a teacher's embedding beside them") {
		t.Error(err)
	}
}
