package recipe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/prep"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

// nothing is a text without tokens.
const nothing = "\u200b"

// staticRecipe is a recipe for new static embeddings and rows of which some texts have no tokens: those that empty says, of 60 rows' 3 columns.
func staticRecipe(t *testing.T, hidden int, empty func(row, column int) bool, sets ...string) recipe.Recipe {
	t.Helper()
	r := freshRecipe(t, 1, append([]string{"model.max_length={}"}, sets...)...)
	path := r.Data.Train[0].Path[0]
	var texts []string
	rows := readRows(t, path)
	for i, row := range rows {
		for c, column := range []string{"q", "p", "n"} {
			if texts = append(texts, row[column].(string)); empty != nil && empty(i, c) {
				row[column] = nothing
			}
		}
	}
	writeRows(t, path, rows)
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

// writeRows makes a file of them.
func writeRows(t *testing.T, path string, rows []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	for e, i := json.NewEncoder(&out), 0; i < len(rows); i++ {
		if err := e.Encode(rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, out.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// verified are the rows that Verify reports, whether all are right, and its error.
func verified(t *testing.T, r recipe.Recipe, change func(*recipe.VerifyOptions)) (rows []recipe.VerifyRow, ok bool, err error) {
	t.Helper()
	return verifiedNoting(t, r, change, nil)
}

func verifiedNoting(t *testing.T, r recipe.Recipe, change func(*recipe.VerifyOptions), note func(string)) (rows []recipe.VerifyRow, ok bool, err error) {
	t.Helper()
	x, err := recipe.Open(t.Context(), r, recipe.Observer{Note: note})
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
		var notes []string
		rows, ok, err := verifiedNoting(t, r, func(*recipe.VerifyOptions) {}, func(m string) { notes = append(notes, m) })
		if err != nil || !ok || len(rows) < 5 || !strings.HasSuffix(rows[0].Config, "whose gradient is zero") || strings.Count(strings.Join(notes, "\n"), "is zero, so that nothing is proved") != 1 {
			t.Errorf("%s: %t, %v: %+v, notes %q", name, ok, err, rows, notes)
		}
		_, _, err = verified(t, r, func(o *recipe.VerifyOptions) { o.Plant = recipe.FaultFactor })
		if err == nil || !strings.Contains(err.Error(), `is zero: the fault "factor" can't be planted`) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Of a file that is sorted by query, as judgements give it, rows of more than one query are verified, in each of a step's batches.
func TestVerifySorted(t *testing.T) {
	r := staticRecipe(t, 16, nil, "batch.no_duplicates=false")
	r.Data.Train[0].Negatives = nil
	path := r.Data.Train[0].Path[0]
	given := readRows(t, path)
	for i, row := range given {
		row["q"] = fmt.Sprint("which stone is number ", 3*i/len(given))
	}
	writeRows(t, path, given)
	for _, accumulate := range []int{1, 3} {
		rows, ok, err := verified(t, r, func(o *recipe.VerifyOptions) { o.Accumulate = []int{accumulate} })
		if err != nil || !ok || len(rows) < 5 || strings.Contains(rows[0].Config, "zero") {
			t.Errorf("%t, %v: %+v", ok, err, rows)
		}
		for i, r := range rows {
			if r.Number != i+1 || r.Of != len(rows) {
				t.Errorf("row %d is said to be %d of %d, and there are %d", i+1, r.Number, r.Of, len(rows))
			}
		}
	}
}

// Budgets are those of the sub-batches that there are: some are replayed beside lean ones, and some kept beside lean ones, whatever the texts'
// lengths. A model without dropout is verified with it besides.
func TestVerifyKept(t *testing.T) {
	harness.Thorough(t)
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

// Texts are cut where the recipe says, or the folder, or nowhere; what is saved cuts them where training did.
func TestStaticLength(t *testing.T) {
	start := staticRecipe(t, 16, nil, "eval.every=0", "train.max_steps=1")
	cut := filepath.Join(t.TempDir(), "cut")
	if err := newmodel.Create(t.Context(), cut, newmodel.Spec{Static: true, Hidden: 16, MaxLength: 9, Seed: 3}, newmodel.Texts([]string{"red green blue"})); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		model     string
		length    recipe.Lengths
		describes string
		saved     int
	}{
		{start.Model.Path, recipe.Lengths{}, "3 texts each, read as a whole\n", 0},
		{start.Model.Path, recipe.Lengths{Query: 5, Document: 5}, "cut at 5 (queries) and 5 tokens\n", 5},
		{start.Model.Path, recipe.Lengths{Query: 5, Document: 12}, "cut at 5 (queries) and 12 tokens\n", 12},
		{start.Model.Path, recipe.Lengths{Query: 5}, "read to 5 tokens (queries) and all\n", 0},
		{cut, recipe.Lengths{}, "cut at 9 (queries) and 9 tokens\n", 9},
		{cut, recipe.Lengths{Query: 600, Document: 600}, "cut at 600 (queries) and 600 tokens\n", 600},
	} {
		r := start
		r.Model.Path, r.Model.MaxLength = x.model, x.length
		run, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if text := run.Describe(); !strings.Contains(text, x.describes) {
			t.Errorf("%+v: no %q in %s", x.length, x.describes, text)
		}
		s, err := run.Train(t.Context())
		if err = errors.Join(err, run.Close()); err != nil {
			t.Fatal(err)
		}
		e, err := embedder.Load(s.Model)
		if err != nil {
			t.Fatal(err)
		}
		if n := e.MaxLength(); n != x.saved {
			t.Errorf("%+v: the saved model cuts at %d tokens, want %d", x.length, n, x.saved)
		}
		if cut, err := e.EmbedInto(t.Context(), "", []string{strings.Repeat("red ", 700)}, make([]float32, 16)); err != nil || (cut > 0) != (x.saved > 0) {
			t.Errorf("%+v: %d texts cut, %v", x.length, cut, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A length that leaves no room for a text beside the special tokens is refused, whichever of the two it is.
func TestLengthWithoutRoom(t *testing.T) {
	for _, lengths := range []string{"{query: 2, document: 9}", "{query: 9, document: 2}"} {
		x, err := recipe.Open(t.Context(), freshRecipe(t, 1, "model.max_length="+lengths), recipe.Observer{})
		if want := "model.max_length: a maximum length of 2 tokens leaves no room for text beside 2 special tokens"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", lengths, err, want)
		}
		if err == nil {
			x.Close()
		}
	}
}

// Where nothing cuts texts, memory is predicted of the longest, or if nobody has counted it of a usual length, and not of texts that nobody has.
func TestStaticMemory(t *testing.T) {
	for set, most := range map[string]int64{"batch.no_duplicates=true": 200 << 10, "batch.no_duplicates=false": 800 << 10} {
		x, err := recipe.Open(t.Context(), staticRecipe(t, 16, nil, set), recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if kept := x.Memory.Activations + x.Memory.Working; kept < most/4 || kept > most {
			t.Errorf("%s: %s of passes are predicted, want at most %s", set, recipe.Size(kept), recipe.Size(most))
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The longest text of all is what counts, wherever it is, and its prompt with it.
func TestStaticLongest(t *testing.T) {
	var kept []int64
	r := staticRecipe(t, 16, nil)
	rows, err := os.ReadFile(r.Data.Train[0].Path[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ row, prompt int }{{0, 0}, {2000, 0}, {0, 2000}} {
		if err := os.WriteFile(r.Data.Train[0].Path[0], append(fmt.Appendf(nil, `{"q": "%s", "p": "a b", "n": "c"}`+"\n", strings.Repeat("red ", 1+x.row)), rows...), 0o666); err != nil {
			t.Fatal(err)
		}
		r.Data.Train[0].Prompts = &recipe.Prompts{Query: strings.Repeat("red ", x.prompt)}
		run, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, run.Memory.Activations+run.Memory.Working)
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	if kept[1] < 4*kept[0] || kept[2] < 4*kept[0] {
		t.Errorf("bytes of passes: %d, with a long text %d, with a long prompt %d", kept[0], kept[1], kept[2])
	}
}

// Ids that prep has written of whole texts, without special tokens, are those that training makes of them.
func TestStaticPrepared(t *testing.T) {
	r := staticRecipe(t, 16, nil, "eval.every=0", "train.max_steps=2")
	c := prep.Default()
	c.Normalize, c.Dedupe.Exact = prep.Normalize{}, "none"
	c.Input = []prep.Input{{Path: r.Data.Train[0].Path, Query: "q", Positive: "p", Negatives: []string{"n"}}}
	c.Output.Dir = filepath.Join(t.TempDir(), "prepared")
	c.Tokenize = prep.Tokenize{Model: r.Model.Path, Bare: true}
	if problems := c.Check(); len(problems) > 0 {
		t.Fatal(problems)
	}
	if _, err := prep.Run(t.Context(), c, prep.Options{}); err != nil {
		t.Fatal(err)
	}
	r.Data.Train[0].Path = []string{filepath.Join(c.Output.Dir, "train-*.parquet")}
	var losses [2]float64
	for i, ids := range []bool{true, false} {
		r.Data.Train[0].IDs = &ids
		r.Save.Dir = t.TempDir()
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := x.Train(t.Context())
		if err = errors.Join(err, x.Close()); err != nil {
			t.Fatal(err)
		}
		losses[i] = s.Loss
	}
	if losses[0] != losses[1] {
		t.Errorf("the loss is %v with ids, %v with texts", losses[0], losses[1])
	}
	c.Tokenize.MaxLength.Query = -1
	if problems := c.Check(); len(problems) != 1 {
		t.Errorf("%v", problems)
	}
}

// A guide of static embeddings reads texts without special tokens: one token of a text is one of its own.
func TestStaticGuide(t *testing.T) {
	guide := staticRecipe(t, 16, nil).Model.Path
	notes := ""
	x, err := recipe.Open(t.Context(), freshRecipe(t, 1, "loss.name=gist", fmt.Sprintf("loss.guide={path: %q, max_length: {query: 1}}", guide)),
		recipe.Observer{Note: func(n string) { notes += n }})
	if err != nil {
		t.Fatal(err)
	}
	if want := "the guide reads at most 1 tokens of a query and all of a document, the model 16 and 32"; !strings.Contains(notes, want) {
		t.Errorf("no note that %q in %q", want, notes)
	}
	if x.Memory.Guide == 0 || x.Memory.Guide > 1<<20 {
		t.Errorf("%s for the guide", recipe.Size(x.Memory.Guide))
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	// A guide that cuts texts reads less than a model that reads all of them.
	notes = ""
	if x, err = recipe.Open(t.Context(), staticRecipe(t, 16, nil, "loss.name=gist", fmt.Sprintf("loss.guide={path: %q, max_length: 9}", guide)),
		recipe.Observer{Note: func(n string) { notes += n }}); err != nil {
		t.Fatal(err)
	}
	if want := "the guide reads at most 9 tokens of a query and 9 of a document, the model all and all"; !strings.Contains(notes, want) {
		t.Errorf("no note that %q in %q", want, notes)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// A learning rate that static embeddings would not move with is noted, with one that they would; an encoder's is none.
func TestStaticRate(t *testing.T) {
	static := staticRecipe(t, 16, nil).Model.Path
	for _, x := range []struct {
		model string
		sets  []string
		want  string
	}{
		{static, nil, "optimizer.lr: 2e-05"}, {static, []string{"optimizer.lr=1e-4"}, "optimizer.lr: 0.0001"}, {static, []string{"optimizer.lr=0.2"}, ""},
		{static, []string{"optimizer.lr=0.2", "optimizer.groups=[{params: [embedding.], lr: 1e-5}]"}, "optimizer.groups[0].lr: 1e-05"},
		{static, []string{"optimizer.groups=[{params: [embedding.], lr: 0.1}]"}, ""},
		{static, []string{"optimizer.name=sgd"}, ""}, {"", nil, ""},
	} {
		r := freshRecipe(t, 1, x.sets...)
		if x.model != "" {
			r.Model.Path = x.model
		}
		notes := ""
		run, err := recipe.Open(t.Context(), r, recipe.Observer{Note: func(n string) { notes += n }})
		if err != nil {
			t.Fatal(err)
		}
		if want := "with " + x.want + " static embeddings end"; strings.Contains(notes, "such as 0.2 with batches of 512 rows") != (x.want != "") || x.want != "" && !strings.Contains(notes, want) {
			t.Errorf("%q, %v: notes %q", x.model, x.sets, notes)
		}
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
}
