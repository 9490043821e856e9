package recipe

import (
	"os"
	"path/filepath"
	"testing"
)

// A recipe that finds nothing in the working folder is told from which it would: from the nearest one around its file that has what is missing.
func TestRunFrom(t *testing.T) {
	top := t.TempDir()
	t.Chdir(t.TempDir())
	for _, path := range []string{"data/a.jsonl", "runs/data/b.jsonl", "runs/mine/c.jsonl"} {
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(top, "runs", "mine", "recipe.yaml")
	for _, c := range []struct{ data, queries, want string }{
		{"data/a.jsonl", "", top},
		{"data/b.jsonl", "", filepath.Join(top, "runs")},
		{"c.jsonl", "", filepath.Join(top, "runs", "mine")},
		{"data/*.jsonl", "", filepath.Join(top, "runs")},
		{"data/*.parquet", "", ""},
		{"nowhere.jsonl", "", ""},
		{"nowhere.jsonl", "data/a.jsonl", top}, // an evaluation's, deep in the recipe
		{filepath.Join(top, "data", "nowhere.jsonl"), "", ""},
		{"s3://bucket/data/a.jsonl", "", ""},
	} {
		r := Default()
		r.Model.Path, r.Save.Dir = "org/model", "data" // what is written is not looked for
		r.Data.Train = []Source{{Path: []string{c.data}}}
		if c.queries != "" {
			r.Eval.Retrieval = []Retrieval{{Queries: c.queries}}
		}
		if got, name := r.RunFrom(file); got != c.want || filepath.Join(got, name) != file && got != "" || got == "" && name != "" {
			t.Errorf("%s, %s: from %q the recipe is %q, want it from %q", c.data, c.queries, got, name, c.want)
		}
		if got := r.Data.Train[0].Path[0]; got != c.data || r.Save.Dir != "data" {
			t.Errorf("%s: the recipe has %s, and is to be saved in %q now", c.data, got, r.Save.Dir)
		}
	}
	t.Chdir(top) // where there is nothing to tell
	r := Default()
	r.Data.Train = []Source{{Path: []string{"data/a.jsonl"}}}
	if got, _ := r.RunFrom(filepath.Join("runs", "mine", "recipe.yaml")); got != "" {
		t.Errorf("from %q, where the working folder has all", got)
	}
	t.Chdir("runs")
	r.Data.Train[0].Path[0] = "mine/c.jsonl"
	if got, _ := r.RunFrom("recipe.yaml"); got != "" {
		t.Errorf("from %q, where the working folder has all", got)
	}
	r.Data.Train[0].Path[0] = "data/a.jsonl"
	if got, name := r.RunFrom(filepath.Join("mine", "recipe.yaml")); got != top || name != filepath.Join("runs", "mine", "recipe.yaml") {
		t.Errorf("from %q the recipe is %q, want it from %s", got, name, top)
	}
}
