package recipe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// nothing is a text without tokens.
const nothing = "\u200b"

// staticRecipe is a recipe for new static embeddings and rows of which some texts have no tokens: those that empty says, of 60 rows' 3 columns.
func staticRecipe(t *testing.T, hidden int, empty func(row, column int) bool, sets ...string) recipe.Recipe {
	t.Helper()
	r := freshRecipe(t, 1, append([]string{"model.max_length={}"}, sets...)...)
	path := r.Data.Train[0].Path[0]
	var texts []string
	var out []byte
	for i, row := range readRows(t, path) {
		for c, column := range []string{"q", "p", "n"} {
			if texts = append(texts, row[column].(string)); empty != nil && empty(i, c) {
				row[column] = nothing
			}
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, line...), '\n')
	}
	if err := os.WriteFile(path, out, 0o666); err != nil {
		t.Fatal(err)
	}
	r.Model.Path = filepath.Join(t.TempDir(), "static")
	if err := newmodel.Create(t.Context(), r.Model.Path, newmodel.Spec{Static: true, Hidden: hidden, Vocab: 300, Lowercase: true, Seed: 3}, newmodel.Texts(texts)); err != nil {
		t.Fatal(err)
	}
	return r
}

// readRows are the rows of a file of JSON lines.
func readRows(t *testing.T, path string) (rows []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// verified are the rows that Verify reports, whether all are right, and its error.
func verified(t *testing.T, r recipe.Recipe, change func(*recipe.VerifyOptions)) (rows []recipe.VerifyRow, ok bool, err error) {
	t.Helper()
	x, err := recipe.Open(t.Context(), r, recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	o := recipe.DefaultVerify()
	o.Accumulate, o.SubBatches, o.Rows = []int{1}, []int{3}, 5
	change(&o)
	o.Report = func(r recipe.VerifyRow) { rows = append(rows, r) }
	ok, err = x.Verify(t.Context(), o)
	return rows, ok, err
}

// All ways of training static embeddings have the gradient, with sub-batches of no token at all among others, on ranks whose parameters are streamed
// too; and what can be wrong with them is found.
func TestVerifyStatic(t *testing.T) {
	empty := func(row, column int) bool { return row == 2 && column > 0 || row == 4 }
	rows, ok, err := verified(t, staticRecipe(t, 16, empty), func(o *recipe.VerifyOptions) { o.SubBatches, o.Shards = []int{1}, []int{2} })
	if err != nil || !ok {
		t.Errorf("%t, %v: %+v", ok, err, rows)
	}
	if !slices.ContainsFunc(rows, func(r recipe.VerifyRow) bool { return strings.Contains(r.Config, "parameters streamed") }) {
		t.Errorf("no streamed parameters in %+v", rows)
	}
	for _, fault := range planted(recipe.Faults)[1:] {
		rows, ok, err := verified(t, staticRecipe(t, 16, nil), func(o *recipe.VerifyOptions) { o.Plant = fault })
		if fault == recipe.FaultDropout {
			if err == nil || !strings.Contains(err.Error(), `static embeddings drop nothing: the fault "dropout" can't be planted`) {
				t.Errorf("error %v", err)
			}
			continue
		}
		if err != nil || ok {
			t.Errorf("fault %q is not found, or %v: %+v", fault, err, rows)
		}
	}
}

// Where the gradient is zero, so have to be the finite difference, and what all ways have; nothing is in proportion to it. Faults would not show.
func TestVerifyNoGradient(t *testing.T) {
	for name, r := range map[string]recipe.Recipe{
		"signs of one number, which normalization leaves": staticRecipe(t, 1, nil),
		"texts without tokens":                            staticRecipe(t, 16, func(int, int) bool { return true }, "batch.no_duplicates=false"),
	} {
		rows, ok, err := verified(t, r, func(*recipe.VerifyOptions) {})
		if err != nil || !ok || len(rows) < 5 || !strings.HasSuffix(rows[0].Config, "whose gradient is zero") {
			t.Errorf("%s: %t, %v: %+v", name, ok, err, rows)
		}
		_, _, err = verified(t, r, func(o *recipe.VerifyOptions) { o.Plant = recipe.FaultFactor })
		if err == nil || !strings.Contains(err.Error(), `is zero: the fault "factor" can't be planted`) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Budgets are those of the sub-batches that there are: some are replayed beside lean ones, and some kept beside lean ones, whatever the texts'
// lengths. A model without dropout is verified with it besides.
func TestVerifyKept(t *testing.T) {
	r := freshRecipe(t, 1, "model.max_length=150")
	long := strings.Repeat("red green blue fish bird tree ", 20)
	var out []byte
	for i := range 60 {
		out = fmt.Appendf(out, `{"q": "q%d %s", "p": "p%d %s", "n": "n%d"}`+"\n", i, long[:1+i*17%len(long)], i, long, i)
	}
	if err := os.WriteFile(r.Data.Train[0].Path[0], out, 0o666); err != nil {
		t.Fatal(err)
	}
	r.Model.Path = filepath.Join(t.TempDir(), "long")
	if err := newmodel.Create(t.Context(), r.Model.Path, newmodel.Spec{Hidden: 32, Layers: 2, MaxLength: 150, Vocab: 200, Seed: 3}, newmodel.Texts([]string{long})); err != nil {
		t.Fatal(err)
	}
	rows, ok, err := verified(t, r, func(o *recipe.VerifyOptions) { o.Shards = []int{2} })
	if err != nil || !ok {
		t.Errorf("%t, %v: %+v", ok, err, rows)
	}
	for _, dropout := range []string{"", ", dropout 0.1"} {
		for _, want := range []string{
			"plain, f64", "sub-batches of 3, all kept", "sub-batches of 3, all replayed", "sub-batches of 3, some replayed, some lean, tiles 3x5",
			"sub-batches of 3, some lean, some kept", "sub-batches of 3, all replayed, activation checkpointing every 1",
			"mesh 1 x 2, sub-batches of 3, some lean, some kept, parameters resident, gradients late",
			"mesh 1 x 2, sub-batches of 3, some replayed, some lean, parameters resident, gradients early, tiles 3x5",
		} {
			if want = "accumulate 1: " + want + dropout; !slices.ContainsFunc(rows, func(r recipe.VerifyRow) bool { return r.Config == want }) {
				t.Errorf("no %q in %+v", want, rows)
			}
		}
	}
}
