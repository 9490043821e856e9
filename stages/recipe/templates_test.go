package recipe

import (
	"fmt"
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
		"optimizer.lr": "lr: 2e-5", "data.train[3].negatives": "negatives: [negative]", "batch.sub_batch": "sub_batch: {tokens: 16384}", "train.seed": "seed: 42", "model.lora.rank": "rank: 16", "eval.retrieval.queries": "", "no.thing": "", "nothing": "",
		"data": `data: {train: [{path: "data/*.parquet", query: query, positive: positive, negatives: [negative]}]}`, "data.train": `train: [{path: "data/*.parquet", query: query, positive: positive, negatives: [negative]}]`, "log": "log: {every: 10}",
	} {
		if got := example(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestTypos: a slip in any section's name, and in a key of any section, is answered with the line, the right name, an example that is right, and
// nothing else.
func TestTypos(t *testing.T) {
	text, _ := Template("lora")
	for _, line := range []string{"loss:", "  scale: 20", "mesh:", "  shard: 1", "eval:", "  every: 500", "log:", "  every: 10"} {
		text += line + "\n"
	}
	lines := strings.Split(text, "\n")
	section, sections := "", map[string]int{}
	for i, line := range lines {
		m := regexp.MustCompile(`^( *)([a-z_]{2,}):`).FindStringSubmatch(line)
		if m == nil || len(m[1]) > 2 {
			continue
		}
		if m[1] == "" {
			section = m[2]
		}
		sections[section]++
		key := m[2]
		slip := key + "r"
		if len(key) > 2 && key[1] != key[2] {
			slip = key[:1] + key[2:3] + key[1:2] + key[3:] // two letters have changed places
		}
		full := key
		if m[1] != "" {
			full = section + "." + key
		}
		wrong := slices.Clone(lines)
		wrong[i] = strings.Replace(line, key, slip, 1)
		_, err := Parse("r.yaml", []byte(strings.Join(wrong, "\n")), nil)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: not one error: %v", slip, err)
			continue
		}
		answer, example, ok := strings.Cut(err.Error(), " As in ")
		if want := fmt.Sprintf("r.yaml:%d: %s: unknown key; did you mean %s?", i+1, strings.TrimSuffix(full, key)+slip, full); answer != want || !ok {
			t.Errorf("%q, want %q and an example", err, want)
			continue
		}
		if m[1] != "" {
			example = section + ": {" + example + "}"
		}
		if _, err := Parse("r.yaml", []byte(example), nil); err == nil || strings.Contains(err.Error(), "unknown key") || strings.Contains(err.Error(), ": want ") { // only what it leaves out is missing
			t.Errorf("%s: the example %q: %v", slip, example, err)
		}
	}
	for _, s := range []string{"model", "data", "batch", "loss", "optimizer", "train", "mesh", "eval", "save", "log"} {
		if sections[s] < 2 {
			t.Errorf("%s: %d slips", s, sections[s])
		}
	}
}
