package recipe

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTemplates: each is a recipe, with its options and without.
func TestTemplates(t *testing.T) {
	for _, name := range Templates() {
		text, ok := Template(name)
		if !ok {
			t.Fatal(name)
		}
		if _, err := Parse(name, []byte(text), nil); err != nil {
			t.Error(err)
		}
		for _, m := range option.FindAllStringSubmatchIndex(text, -1) { // one at a time: some exclude each other
			with := text[:m[0]] + text[m[2]:m[3]] + text[m[4]:m[5]] + text[m[1]:]
			if _, err := Parse(name, []byte(with), nil); err != nil && !regexp.MustCompile(`needs|is (not )?for|give one of them`).MatchString(err.Error()) {
				t.Errorf("with %s: %v", text[m[4]:m[5]], err)
			}
		}
	}
	if _, ok := Template("../recipe"); ok {
		t.Error("there is a template outside of the folder")
	}
}

// TestTemplateSaysDefaults: a line that is not commented out, and not the user's to say, has the default's value.
func TestTemplateSaysDefaults(t *testing.T) {
	text, _ := Template("embedder")
	got, err := Parse("embedder", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Parse("minimal", []byte(`{model: {path: sentence-transformers/all-MiniLM-L6-v2}, data: {train: [{path: "data/*.parquet", query: query, positive: positive}]}, save: {dir: runs/mine}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := got.YAML()
	if err != nil {
		t.Fatal(err)
	}
	b, err := want.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Errorf("the template resolves to\n%s\nthe defaults are\n%s", a, b)
	}
}

// TestTemplatesHaveEveryKey: what a recipe may say, a template shows.
func TestTemplatesHaveEveryKey(t *testing.T) {
	shows := func(name, section, rest string) bool {
		text, _ := Template(name)
		_, part, found := strings.Cut("\n"+text, "\n"+section+":\n")
		if next := regexp.MustCompile(`(?m)^[a-z]`).FindStringIndex(part); next != nil {
			part = part[:next[0]]
		}
		for _, word := range strings.Split(rest, ".") {
			found = found && regexp.MustCompile(`\b`+word+`:`).MatchString(part)
		}
		return found
	}
	for _, k := range Keys() {
		section, rest, ok := strings.Cut(k, ".")
		if ok && !slices.ContainsFunc(Templates(), func(name string) bool { return shows(name, section, rest) }) {
			t.Errorf("no template has %s", k)
		}
	}
}

func TestExample(t *testing.T) {
	for key, want := range map[string]string{
		"optimizer.lr": "lr: 2e-5", "data.train[3].negatives": "negatives: [negative]", "batch.sub_batch": "sub_batch: {tokens: 16384}", "train.seed": "seed: 42", "model.lora.rank": "rank: 16", "eval.retrieval.queries": "", "data": "", "no.thing": "",
	} {
		if got := example(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
