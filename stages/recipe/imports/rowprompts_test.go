package imports_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// What is said of rows' own prompts is a way to read them: FlagEmbedding's texts come of it, format.format(row["prompt"], row["query"])
// (AbsDataset.py).
func TestRowsPromptsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.jsonl")
	if err := os.WriteFile(path, []byte(`{"query": "x?", "prompt": "Own: ", "query_prompt": "Theirs: ", "pos": ["p"], "neg": ["n"]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings       imports.Settings
		template, text string
	}{
		{imports.Settings{"query_instruction_for_retrieval": "Q: "}, `"{prompt}{query}"`, "Own: x?"},
		{imports.Settings{"query_instruction_for_retrieval": "Q: ", "query_instruction_format": `Instruct: {}\nQuery: {}`}, `"Instruct: {prompt}\nQuery: {query}"`, "Instruct: Own: \nQuery: x?"},
		{imports.Settings{"module": "FlagEmbedding.finetune.reranker.encoder_only.base", "query_instruction_for_rerank": "Q: "}, `"{query_prompt}{query}"`, "Theirs: x?"},
	} {
		c.settings["train_data"], c.settings["train_group_size"] = path, 2.0
		_, res := convert(t, imports.FlagEmbedding, c.settings, 1)
		if !strings.Contains(res.Recipe, "Where rows have one, query: "+c.template+" reads it, without a query in prompts ({} is none)") {
			t.Fatalf("%v:\n%s", c.settings, res.Recipe)
		}
		r, err := recipe.Parse("imported", []byte(res.Recipe), []string{"data.train.0.query=" + c.template, "data.train.0.prompts={}"})
		if err != nil {
			t.Fatal(err)
		}
		s := r.Data.Train[0]
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: s.Path, Query: s.Query, Positive: s.Positive, Negatives: s.Negatives, NegativesPerQuery: int(s.NegativesPerQuery)})
		if err != nil {
			t.Fatal(err)
		}
		e, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, []int64{0})
		if err != nil || e[0].Texts[0] != c.text || s.Prompts.Query != "" {
			t.Errorf("%v: %+v, %v, want %q", c.settings, e, err, c.text)
		}
	}
}
