package imports_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// mapping reads settings and makes a recipe of them.
func mapping(t *testing.T, text string) (recipe.Recipe, *imports.Result) {
	t.Helper()
	s, err := imports.ReadMapping("args.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return convert(t, imports.SentenceTransformers, s, 1)
}

// A trainer's datasets, losses, columns and prompts by name become entries of data.train, each with its own.
func TestDatasets(t *testing.T) {
	r, res := mapping(t, `{"model": "m", "train_dataset": {"nli": "nli.parquet", "sts": ["a.parquet", "b.parquet"]},
		"loss": {"nli": {"name": "CachedMultipleNegativesRankingLoss", "mini_batch_size": 32, "scale": 30}, "sts": {"name": "MatryoshkaLoss", "loss": "losses.CoSENTLoss", "matryoshka_dims": [64, 32]}},
		"columns": {"nli": ["anchor", "positive", "negative"], "sts": ["s1", "s2", "score"]},
		"args": {"arguments": "SentenceTransformerTrainingArguments", "prompts": {"nli": {"anchor": "q: "}, "sts": "x: "}, "multi_dataset_batch_sampler": "round_robin"}}`)
	nli, sts := r.Data.Train[0], r.Data.Train[1]
	if len(res.Without)+len(res.Unknown) > 0 || strings.Contains(res.Recipe, "no data is named") || strings.Contains(res.Recipe, "no setting called loss") || strings.Contains(res.Recipe, "columns are called") {
		t.Errorf("%s", res.Recipe)
	}
	if len(r.Data.Train) != 2 || !slices.Equal(nli.Path, []string{"nli.parquet"}) || nli.Query != "anchor" || nli.Positive != "positive" || !slices.Equal(nli.Negatives, []string{"negative"}) ||
		*nli.Prompts != (recipe.Prompts{Query: "q: "}) || nli.Loss == nil || nli.Loss.Name != "mnrl" || nli.Loss.Scale != 30 || r.Batch.SubBatch.Rows != 32 {
		t.Errorf("%+v in\n%s", nli, res.Recipe)
	}
	if !slices.Equal(sts.Path, []string{"a.parquet", "b.parquet"}) || sts.Query != "s1" || sts.Positive != "s2" || sts.Negatives != nil || sts.Label != "score" || sts.Loss == nil || sts.Loss.Name != "cosent" ||
		sts.Loss.Scale != 20 || !slices.Equal(sts.Loss.Matryoshka.Dims, []int{64, 32}) || *sts.Prompts != (recipe.Prompts{Query: "x: ", Document: "x: "}) {
		t.Errorf("%+v in\n%s", sts, res.Recipe)
	}
	// One loss of all is the recipe's, in whatever way it is said.
	for _, loss := range []string{`"CoSENTLoss"`, `{"nli": "CoSENTLoss", "sts": "CoSENTLoss"}`} {
		r, res := mapping(t, `{"train_dataset": {"nli": "n", "sts": {"path": "s"}}, "columns": ["a", "b", "c"], "loss": `+loss+`}`)
		if r.Loss.Name != "cosent" || len(r.Data.Train) != 2 || r.Data.Train[0].Loss != nil || r.Data.Train[1].Label != "c" || len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%s:\n%s", loss, res.Recipe)
		}
	}
	// What of it goes through the model at once is one for all, the least.
	for range 10 { // the order of a map is another each time
		if r, res := mapping(t, `{"train_dataset": {"a": "n", "b": "s"}, "loss": {"a": {"name": "CoSENTLoss", "mini_batch_size": 5}, "b": {"name": "AnglELoss", "mini_batch_size": 3}}}`); r.Batch.SubBatch.Rows != 3 {
			t.Fatal(res.Recipe)
		}
	}
	r, res = mapping(t, `{"train_dataset": {"a": "n", "b": "s", "c": "u"}, "loss": {"a": {"name": "CoSENTLoss", "mini_batch_size": 5}, "b": {"name": "AnglELoss", "mini_batch_size": 3}, "c": {"name": "CoSENTLoss", "mini_batch_size": null}}}`)
	if r.Batch.SubBatch.Rows != 3 || len(r.Data.Train) != 3 || !strings.Contains(fmt.Sprint(res.Assumed), "mini_batch_size: is 5 for a, 3 for b, null for c, and one for all datasets here: 3") {
		t.Errorf("%s", res.Recipe)
	}
	// Prompts by columns are of any dataset that has one called so.
	_, res = mapping(t, `{"train_dataset": {"a": "n", "b": "s"}, "columns": {"a": ["q", "p"], "b": ["x", "y"]}, "prompts": {"q": "ask: ", "y": "say: ", "z": "none: "}}`)
	if got, want := res.Without, []string{"prompts: z: no columns are called so, but q, p; a dataset's own prompts are data.train[].prompts", "prompts: z: no columns are called so, but x, y; a dataset's own prompts are data.train[].prompts"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A guide reads all datasets, with the prompts of those whose loss has it.
	for prompts, want := range map[string]string{
		`{"nli": "one: ", "sts": "two: "}`: "prompts: b: has {query: \"two: \", document: \"two: \"}; the guide reads all texts with those of nli: {query: \"one: \", document: \"one: \"}",
		`{"nli": "one: ", "sts": "one: "}`: "",
	} {
		for name, want := range map[string]string{"GISTEmbedLoss": strings.ReplaceAll(want, "b:", "sts:"), "CoSENTLoss": ""} {
			r, res := mapping(t, `{"train_dataset": {"nli": "n", "sts": "s"}, "prompts": `+prompts+`, "loss": {"nli": {"name": "GISTEmbedLoss", "guide": "g"}, "sts": {"name": "`+name+`", "guide": "g"}}}`)
			if got := strings.Join(slices.DeleteFunc(res.Without, func(s string) bool { return !strings.HasPrefix(s, "prompts") }), " "); got != want || *r.Loss.Guide.Prompts != (recipe.Prompts{Query: "one: ", Document: "one: "}) {
				t.Errorf("%s, %s: %q, want %q, %+v", prompts, name, got, want, r.Loss.Guide.Prompts)
			}
		}
	}
	r, res = mapping(t, `{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": {"name": "GISTEmbedLoss", "guide": "g"}, "sts": "CoSENTLoss"}}`)
	if r.Loss.Name != "gist" || r.Loss.Guide.Path != "g" || r.Data.Train[0].Loss != nil || r.Data.Train[1].Loss.Name != "cosent" || r.Data.Train[1].Label != "label" {
		t.Errorf("%s", res.Recipe)
	}
	// A dataset of its own may have a name, and a list may have datasets.
	for _, data := range []string{`{"name": "all-nli", "path": "nli.parquet"}`, `[{"name": "all-nli", "path": "nli.parquet"}]`, `{"all-nli": {"path": "nli.parquet"}}`, `["nli.parquet"]`} {
		if r, res := mapping(t, `{"train_dataset": `+data+`}`); len(r.Data.Train) != 1 || r.Data.Train[0].Path[0] != "nli.parquet" || len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%s:\n%s", data, res.Recipe)
		}
	}
}

// Datasets stand as a mapping has them, in JSON and in YAML, wherever in a file it stands; a list of files is one dataset, and one of the hub's names several.
func TestDatasetsOrder(t *testing.T) {
	for text, want := range map[string]string{
		`{"train_dataset": {"sts": "s", "nli": ["n", "m"], "a": "b"}}`:                        "[s] [n m] [b]",
		`{"x": [1, {"train_dataset": 2}], "args": {"train_dataset": {"sts": "s", "a": "b"}}}`: "[s] [b]",
		"train_dataset:\n  sts: s\n  nli: [n, m]\n  a: b\n":                                   "[s] [n m] [b]",
		"args: {deep: {train_dataset: {sts: s, a: b}}}":                                       "[s] [b]",
		`{"train_dataset": ["n.parquet", "m.parquet"]}`:                                       "[n.parquet m.parquet]",
		`{"train_dataset": ["org/a", "org/b"]}`:                                               "[hf://datasets/org/a] [hf://datasets/org/b]",
		`{"train_dataset": [{"path": "n"}, "m"]}`:                                             "[n] [m]",
	} {
		s, err := imports.ReadMapping("args", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, res := convert(t, imports.SentenceTransformers, s, 1)
		var got []string
		for _, d := range r.Data.Train {
			got = append(got, fmt.Sprint(d.Path))
		}
		if strings.Join(got, " ") != want || strings.Contains(text, "n.parquet") != strings.Contains(res.Recipe, "the files of train_dataset are one dataset") {
			t.Errorf("%s: %s, want %s\n%s", text, got, want, res.Recipe)
		}
	}
}

// What can't be taken of datasets and losses is named.
func TestDatasetsNamed(t *testing.T) {
	for text, want := range map[string]string{
		`{"train_dataset": {"nli": "n", "sts": {"path": "s", "name": "pair"}}}`:                                                                                      "train_dataset: sts: name: \"pair\"",
		`{"train_dataset": {"path": "s", "split": "train[:10]"}}`:                                                                                                    "train_dataset: split: \"train[:10]\"",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "prompts": {"nli": "x", "qa": "y"}}`:                                                                            "prompts: qa: no dataset is called so, but nli, sts",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": "CoSENTLoss", "sts": "AnglELoss"}, "scale": 3}`:                                                 "scale: is said beside losses of datasets",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": "CoSENTLoss", "sts": {"name": "AnglELoss", "odd": 3}}}`:                                         "sts: odd",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "columns": {"nli": ["a", "b"], "sts": ["c", "d"]}, "eval_dataset": "x"}`:                                        "eval_dataset: x: datasets that train have different columns, prompts or losses",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": "MultipleNegativesRankingLoss", "sts": "CoSENTLoss"}, "eval_dataset": {"qa": "x", "sts": "y"}}`: "eval_dataset: qa: x: datasets that train have",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": "CoSENTLoss", "sts": {"name": "ContrastiveLoss", "margin": 0}}}`:                                "sts: margin: a margin of 0",
		`{"train_dataset": {"nli": "n"}, "loss": {"name": "AnglELoss", "similarity_fct": "cos_sim", "odd": {"deep": 1}}}`:                                            "odd",
	} {
		s, err := imports.ReadMapping("args.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		res, err := imports.Convert(imports.SentenceTransformers, s, 1)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if said := slices.Concat(res.Without, res.Unknown); len(said) != 1 || !strings.HasPrefix(said[0], want) {
			t.Errorf("%s: %q, want %q", text, said, want)
		}
	}
	for text, want := range map[string]string{
		`{"train_dataset": "n", "loss": {"nli": "BinaryCrossEntropyLoss"}}`:                                 "loss: is a mapping, with nli: want datasets' names",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": "CoSENTLoss"}}`:                        "loss: has none for the dataset sts",
		`{"train_dataset": {"nli": "n"}, "loss": {"nli": "CoSENTLoss", "stz": "CoSENTLoss"}}`:               "loss: stz: no dataset is called so, but nli",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "loss": {"nli": ["CoSENTLoss"], "sts": "CoSENTLoss"}}`: "loss: nli: want the name of its class",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "columns": {"nlj": ["a", "b"]}}`:                       "columns: nlj: no dataset is called so",
		`{"train_dataset": {"nli": "n", "sts": "s"}, "columns": {"nli": ["a"]}}`:                            "columns: nli: want a list of two names or more",
		`{"columns": {"query": "a", "positive": "b"}}`:                                                      "columns: is a mapping, with positive: want datasets' names",
		`{"columns": "a"}`:                                                            "columns: want a list of two names or more",
		`{"train_dataset": {}}`:                                                       "the mapping of datasets is empty",
		`{"train_dataset": {"nli": null}}`:                                            "train_dataset: nli: want files, got null",
		`{"train_dataset": {"nli": {"split": "train"}}}`:                              "train_dataset: nli: want files, or a mapping with their path",
		`{"train_dataset": {"nli": {"path": "n", "loss": "CoSENTLoss"}}}`:             "train_dataset: nli: loss: is said beside the datasets: loss: {nli: ...}",
		`{"train_dataset": [{"path": "n", "name": "a"}, {"path": "m", "name": "a"}]}`: "two datasets are called a",
		`{"loss": ["CoSENTLoss"]}`:                                                    "loss: want a text, got [\"CoSENTLoss\"]",
		`{"loss": {"name": "MatryoshkaLoss", "inner_loss": {"scale": 3}}}`:            "loss: inner_loss: want the name of its class",
		`{"loss": {"name": "MatryoshkaLoss", "inner_loss": {"name": "MatryoshkaLoss", "loss": "CoSENTLoss"}}}`:                                                                                                                      "loss: inner_loss: MatryoshkaLoss has a loss in it",
		`{"loss": {"name": "CoSENTLoss", "scale": 3}, "scale": 4}`:                                                                                                                                                                  "scale is 4, and in loss 3: leave one of them",
		`{"loss": {"name": "MatryoshkaLoss", "scale": 3, "inner_loss": {"name": "CoSENTLoss", "scale": 4}}}`:                                                                                                                        "leave one of them",
		`{"train_dataset": {"a": "n", "b": "s"}, "loss": {"a": {"name": "GISTEmbedLoss", "guide": "g"}, "b": {"name": "GISTEmbedLoss", "guide": "h"}}}`:                                                                             "loss: a and b have guides",
		`{"train_dataset": {"a": "n", "b": "s"}, "mini_batch_size": 2, "loss": {"a": {"name": "CoSENTLoss", "mini_batch_size": 3}, "b": {"name": "AnglELoss", "mini_batch_size": 4}}}`:                                              "mini_batch_size: is 3 for a, 4 for b, 2 beside them, and is one for all datasets here",
		`{"train_dataset": {"a": "n", "b": "s"}, "loss": {"a": {"name": "CachedMultipleNegativesRankingLoss", "gather_across_devices": true}, "b": {"name": "CachedGISTEmbedLoss", "guide": "g", "gather_across_devices": false}}}`: "gather_across_devices: is true for a, false for b, and is one for all datasets here",
	} {
		s, err := imports.ReadMapping("args.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if res, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q\n%+v", text, err, want, res)
		}
	}
}

// The loss inside of another has its name and its options in the same way.
func TestWrappedLoss(t *testing.T) {
	for _, text := range []string{
		`{"loss": {"name": "MatryoshkaLoss", "inner_loss": {"name": "CoSENTLoss", "scale": 30}, "matryoshka_dims": [64, 32]}}`,
		`{"loss": {"name": "MatryoshkaLoss", "loss": {"name": "CoSENTLoss", "scale": 30}, "matryoshka_dims": [64, 32]}}`,
		`{"loss": "MatryoshkaLoss", "inner_loss": {"name": "CoSENTLoss", "scale": 30}, "matryoshka_dims": [64, 32]}`,
		`{"loss": {"name": "MatryoshkaLoss", "inner_loss": "CoSENTLoss", "matryoshka_dims": [64, 32]}, "scale": 30}`,
	} {
		r, res := mapping(t, text)
		if r.Loss.Name != "cosent" || r.Loss.Scale != 30 || !slices.Equal(r.Loss.Matryoshka.Dims, []int{64, 32}) || r.Data.Train[0].Label != "label" || len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%s:\n%s", text, res.Recipe)
		}
	}
}

// A name that two mappings have with different values is an error, whatever order they are read in.
func TestTwice(t *testing.T) {
	for text, want := range map[string]string{
		`{"args": {"learning_rate": 1e-4}, "other": {"learning_rate": 3e-4}}`: "args.json: learning_rate is 0.0001 in args and 0.0003 in other: leave one of them",
		`{"args": {"seed": 1}, "seed": 2}`:                                    "args.json: seed is 1 in args and 2: leave one of them",
		`{"a": {"b": {"seed": 1}, "seed": 2}}`:                                "args.json: seed is 1 in b and 2 in a: leave one of them",
	} {
		for range 20 {
			if _, err := imports.ReadMapping("args.json", []byte(text)); err == nil || err.Error() != want {
				t.Fatalf("%s: %v", text, err)
			}
		}
	}
	s, err := imports.ReadMapping("args.json", []byte(`{"args": {"output_dir": "x", "deep": {"seed": 1}}, "more": {"output_dir": "x"}}`))
	if want := (imports.Settings{"output_dir": "x", "seed": 1.0}); err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%v, %v", s, err)
	}
}
