package imports_test

import (
	"os"
	"path/filepath"
	"reflect"
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

// Columns have the prompts that are said, and no others; those that find no column are named.
func TestPrompts(t *testing.T) {
	for _, c := range []struct {
		columns []any
		prompts any
		want    recipe.Prompts
		without string // "": nothing
	}{
		{[]any{"q", "p"}, nil, recipe.Prompts{}, ""},
		{[]any{"q", "p"}, map[string]any{}, recipe.Prompts{}, ""},
		{[]any{"q", "p", "n"}, "x: ", recipe.Prompts{Query: "x: ", Document: "x: "}, ""},
		{[]any{"q", "p", "n"}, map[string]any{"q": "Q: ", "p": "D: ", "n": "D: "}, recipe.Prompts{Query: "Q: ", Document: "D: "}, ""},
		{[]any{"q", "p", "n"}, map[string]any{"p": "P: ", "n": "N: "}, recipe.Prompts{Positive: "P: ", Negative: "N: "}, ""},
		{[]any{"q", "p", "n"}, map[string]any{"n": "N: "}, recipe.Prompts{Negative: "N: "}, ""},
		{[]any{"q", "p", "n"}, map[string]any{"query": "Q: ", "document": "D: "}, recipe.Prompts{}, "prompts: document, query: no columns are called so"}, // as there
		{nil, map[string]any{"query": "Q: ", "document": "D: "}, recipe.Prompts{Query: "Q: ", Document: "D: "}, ""},                                       // nobody says what they are called
		{[]any{"q", "p", "n1", "n2"}, map[string]any{"p": "D: ", "n1": "D: "}, recipe.Prompts{Document: "D: "}, `prompts: n1 has "D: " and n2 ""`},
		{[]any{"q", "p", "n1", "n2"}, map[string]any{"n1": "A: ", "n2": "B: "}, recipe.Prompts{Negative: "A: "}, `prompts: n1 has "A: " and n2 "B: "`},
		{[]any{"q", "p"}, map[string]any{"trivia": map[string]any{"q": "Q: "}, "nq": "Q: ", "none": nil}, recipe.Prompts{}, "prompts: nq, trivia: no columns are called so, but q, p;"},
	} {
		s := imports.Settings{"prompts": c.prompts}
		if c.columns != nil {
			s["columns"] = c.columns
		}
		r, res := convert(t, imports.SentenceTransformers, s, 1)
		if p := r.Data.Train[0].Prompts; p == nil || *p != c.want || len(res.Without) > 1 || (len(res.Without) == 1) != (c.without != "") || !strings.HasPrefix(strings.Join(res.Without, ""), c.without) {
			t.Errorf("%v: %v, %q\n%s", c.prompts, p, res.Without, res.Recipe)
		}
	}
	for _, module := range []string{"embedder", "reranker"} {
		r, res := convert(t, imports.FlagEmbedding, imports.Settings{"module": "FlagEmbedding.finetune." + module + ".encoder_only.base", "train_data": []any{"a.jsonl", "b.jsonl"}}, 1)
		for _, d := range r.Data.Train {
			if d.Prompts == nil || *d.Prompts != (recipe.Prompts{}) {
				t.Errorf("%s", res.Recipe)
			}
		}
	}
}

// A guide may be a mapping, whose length is its own and not the model's. Prompts are those that train: none, whatever the guide's folder has.
func TestGuideMapping(t *testing.T) {
	of := func(guide string) (*recipe.Recipe, error) {
		s, err := imports.ReadMapping("args.json", []byte(`{"model": {"name": "m", "max_seq_length": 64}, "train_dataset": "d.parquet", "loss": {"name": "GISTEmbedLoss", "guide": `+guide+`}}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err != nil {
			return nil, err
		}
		r, res := convert(t, imports.SentenceTransformers, s, 1)
		if len(res.Unknown)+len(res.Without)+len(res.Open) > 0 || r.Model.MaxLength != (recipe.Lengths{Query: 64, Document: 64}) {
			t.Errorf("%s: %+v", guide, res)
		}
		return &r, nil
	}
	none := new(recipe.Prompts)
	for guide, want := range map[string]recipe.Guide{
		`"g"`: {Path: "g", Prompts: none}, `{"path": "g"}`: {Path: "g", Prompts: none}, `{"name": "g", "max_seq_length": 256}`: {Path: "g", MaxLength: recipe.Lengths{Query: 256, Document: 256}, Prompts: none},
	} {
		if r, err := of(guide); err != nil || !reflect.DeepEqual(*r.Loss.Guide, want) {
			t.Errorf("%s: %+v, %v", guide, r, err)
		}
	}
	for guide, want := range map[string]string{
		`{"path": "g", "max_seq_length": 0.5}`: "guide.max_seq_length: is 0.5", `{"path": 7}`: "guide.path: is 7", `{"path": "g", "pool": "cls"}`: "guide.pool: is \"cls\"", `{"max_length": 8}`: "has no path",
		`{"path": "g", "name": "h"}`: "guide.path: is \"g\"", `["g"]`: "guide: want a text",
	} {
		if _, err := of(guide); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", guide, err, want)
		}
	}
}
