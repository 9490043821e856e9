package recipe_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// freshRecipe is a recipe for a new model of the given seed and some rows.
func freshRecipe(t *testing.T, seed uint64, sets ...string) recipe.Recipe {
	t.Helper()
	dir := t.TempDir()
	words := strings.Fields("red green blue fish bird tree river stone cloud night day song mountain road house garden winter summer")
	rng := rand.New(rand.NewPCG(3, 3))
	text := func(n int) string {
		var out []string
		for range 1 + rng.IntN(n) {
			out = append(out, words[rng.IntN(len(words))])
		}
		return strings.Join(out, " ")
	}
	f, err := os.Create(filepath.Join(dir, "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(f)
	var texts []string
	for i := range 60 {
		row := map[string]string{"q": fmt.Sprint(text(9), " q", i), "p": fmt.Sprint(text(40), " p", i), "n": fmt.Sprint(text(40), " n", i)}
		enc.Encode(row)
		texts = append(texts, row["q"], row["p"])
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(dir, "model")
	err = newmodel.Create(model, newmodel.Spec{Hidden: 64, Layers: 3, MaxLength: 32, Vocab: 300, Dropout: 0.1, Lowercase: true, Seed: seed}, func(yield func(string) bool) {
		for _, s := range texts {
			if !yield(s) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	yaml := fmt.Sprintf(`
model: {path: %q, max_length: {query: 16, document: 32}}
data: {train: [{path: %q, query: q, positive: p, negatives: [n]}]}
batch: {global_size: 16}
train: {seed: %d, device: cpu}
save: {dir: %q}
`, model, f.Name(), seed, filepath.Join(dir, "run"))
	r, err := recipe.Parse("fresh.yaml", []byte(yaml), sets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The embeddings of a fresh model are nearly the same, so that rounding shows: seed 6's gradients differ from the truth by more
// than 1e-5, and are right. Faults are found all the same.
func TestVerifyFresh(t *testing.T) {
	x, err := recipe.Open(t.Context(), freshRecipe(t, 6), recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, fault := range append([]recipe.Fault{""}, recipe.Faults...) {
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Plant = []int{1}, []int{5}, fault
		if fault != "" {
			o.Rows = 4
		}
		rows, noise := "", false
		o.Report = func(r recipe.VerifyRow) {
			rows += fmt.Sprintf("%+v\n", r)
			noise = noise || strings.HasSuffix(r.Config, "on ref, dropout 0.1")
		}
		ok, err := x.Verify(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if ok != (fault == "") || fault == "" && !noise {
			t.Errorf("fault %q: ok is %t, held against noise %t\n%s", fault, ok, noise, rows)
		}
	}
}
