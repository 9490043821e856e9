package imports_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/recipe/imports"
)

// Of a folder FlagEmbedding takes .json and .jsonl (AbsDataset.py), and so does the recipe, all rows of it; of one that isn't there that is said.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	for name, rows := range map[string]int{"both/a.jsonl": 2, "both/b.json": 3, "both/notes.txt": 0, "lines/a.jsonl": 1, "v1.5/a.json": 2, "w[1]/a.jsonl": 4, "w1/a.jsonl": 1, "none/a.parquet": 0} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat(`{"query": "q", "pos": ["p"], "neg": ["n"]}`+"\n", rows)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		folder string
		globs  []string
		rows   int64
		said   string
	}{
		{"both", []string{"/*.jsonl", "/*.json"}, 5, ""},
		{"both/", []string{"/*.jsonl", "/*.json"}, 5, ""},
		{"lines", []string{"/*.jsonl"}, 1, ""},
		{"v1.5", []string{"/*.json"}, 2, ""},
		{"w[1]", []string{"/*.jsonl"}, 4, ""},
		{"none", []string{"/*.json*"}, 0, "has no .json and no .jsonl files"},
		{"nowhere", []string{"/*.json*"}, 0, "nowhere is not there, seen from the folder that import runs in"},
		{"nowhere.jsonl", []string{""}, 0, ""},
		{"none/a.parquet", []string{""}, 0, ""},
	} {
		folder := filepath.ToSlash(dir) + "/" + c.folder
		r, res := convert(t, imports.FlagEmbedding, imports.Settings{"model_name_or_path": "m", "train_data": folder, "train_group_size": 2.0}, 1)
		var want []string
		for _, g := range c.globs {
			want = append(want, strings.Replace(strings.TrimSuffix(folder, "/"), "w[1]", "w[[]1]", 1)+g)
		}
		if got := r.Data.Train[0].Path; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.folder, got, want)
		}
		if said := strings.Contains(res.Recipe, dir) && strings.Contains(strings.Join(res.Assumed, "\n"), c.folder); said != (c.said != "") || !strings.Contains(res.Recipe, c.said) {
			t.Errorf("%s: %q", c.folder, res.Assumed)
		}
		if c.rows == 0 {
			continue
		}
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: r.Data.Train[0].Path, Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: 1})
		if err != nil {
			t.Fatal(err)
		}
		if d.Rows() != c.rows {
			t.Errorf("%s: %d rows, want %d", c.folder, d.Rows(), c.rows)
		}
		d.Close()
	}
}

// FlagEmbedding mixes files in batches, unless it is told not to; then each is a dataset, those of a folder as well, and it drops what fills no batch.
func TestMixedFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("f", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f/a.jsonl", "f/b.json", "f/c.txt"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const apart = "a is one dataset"
	for _, c := range []struct {
		files any
		same  any
		small float64
		want  string
		said  string
	}{
		{"a.jsonl", nil, 0, "[[a.jsonl]]", ""}, {[]any{"a"}, nil, 0, "[[a/*.json*]]", ""}, {[]any{"a.jsonl", "b.jsonl"}, nil, 0, "[[a.jsonl b.jsonl]]", ""},
		{[]any{"f", "b.jsonl"}, "False", 0, "[[f/*.jsonl f/*.json b.jsonl]]", ""}, {[]any{"a.jsonl", "b.jsonl"}, "True", 0, "[[a.jsonl] [b.jsonl]]", ""},
		{"f", "True", 0, "[[f/a.jsonl] [f/b.json]]", ""}, {[]any{"f/", "b.jsonl"}, "True", 0, "[[f/a.jsonl] [f/b.json] [b.jsonl]]", ""},
		{"f", "True", 9, "[[f/*.jsonl f/*.json]]", "f is one dataset"}, {[]any{"a"}, "True", 0, "[[a/*.json*]]", apart},
	} {
		r, res := convert(t, imports.FlagEmbedding, imports.Settings{"train_data": c.files, "same_dataset_within_batch": c.same, "small_threshold": c.small}, 1)
		var got [][]string
		for _, s := range r.Data.Train {
			got = append(got, s.Path)
		}
		if fmt.Sprint(got) != c.want || strings.Contains(res.Recipe, "is one dataset") != (c.said != "") || !strings.Contains(res.Recipe, c.said) || r.Batch.DropLast != (c.same == "True") || !r.Batch.OneDataset {
			t.Errorf("%v, %v: %v\n%s", c.files, c.same, got, res.Recipe)
		}
	}
}

// A name on the hub is one that contraflow reads, and that it is taken for one is said; what is a file, or is there, is not.
func TestHubData(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("org/here", 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"sentence-transformers/all-nli": "hf://datasets/sentence-transformers/all-nli", "org/here": "org/here", "data/nli.parquet": "data/nli.parquet", "data/*": "data/*", "data/nli": "data/nli", "nli": "nli", "org/mined": "org/mined", "other/x.tar": "other/x.tar", "other/x.TGZ": "other/x.TGZ", "other/x.v1": "hf://datasets/other/x.v1", "./a/b": "./a/b", "hf://datasets/a/b": "hf://datasets/a/b",
	} {
		for _, data := range []any{path, map[string]any{"path": path}, map[string]any{"nli": path}} {
			r, res := convert(t, imports.SentenceTransformers, imports.Settings{"model": "m", "train_dataset": data, "eval_dataset": path, "columns": []any{"a", "b"}}, 1)
			said := strings.Contains(res.Recipe, "# assumed: "+path+" is not here, and is taken for a dataset's name on the Hugging Face hub: "+want+" is its split train, of its default configuration. Others: "+want+"?config=NAME&split=NAME")
			said = said && strings.Contains(res.Recipe, "# assumed: "+path+" is not here, and is taken for a dataset's name on the Hugging Face hub: of "+want+" eval.loss takes its split test, else validation, else the only one that it has")
			if r.Data.Train[0].Path[0] != want || r.Eval.Loss[0].Path[0] != want || said != (path != want) || len(res.Unknown) > 0 {
				t.Errorf("%v:\n%s", data, res.Recipe)
			}
		}
	}
}

// M3's trainer has the pooling and the length that FlagEmbedding's arguments have where nothing says them, whether it trains one part or three
// (abc/finetune/embedder/AbsArguments.py).
func TestM3Defaults(t *testing.T) {
	for _, unified := range []string{"False", "True"} {
		s, _, err := imports.ReadCommand("python -m FlagEmbedding.finetune.embedder.encoder_only.m3 --model_name_or_path m --train_data d.jsonl --unified_finetuning " + unified)
		if err != nil {
			t.Fatal(err)
		}
		r, res := convert(t, imports.FlagEmbedding, s, 1)
		if m := r.Model; m.Pooling != "cls" || m.Normalize == nil || !*m.Normalize || m.MaxLength.Query != 32 || m.MaxLength.Document != 128 || r.Loss.Scale != 50 || r.Data.Train[0].NegativesPerQuery != 7 {
			t.Errorf("unified_finetuning %s:\n%s", unified, res.Recipe)
		}
	}
}
