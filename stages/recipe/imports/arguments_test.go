package imports_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// Every line of arguments.md is true, and every argument that settings.go sets a key for has one.
func TestArguments(t *testing.T) {
	text, err := os.ReadFile("arguments.md")
	if err != nil {
		t.Fatal(err)
	}
	from, told := imports.SentenceTransformers, map[string]bool{}
	row := regexp.MustCompile("^\\| `(.*)` \\| `([a-z_.0-9]+): (.*)` \\|$")
	for n, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "## FlagEmbedding") {
			from = imports.FlagEmbedding
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var s imports.Settings
		if err := yaml.Unmarshal([]byte(m[1]), &s); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		for name := range s {
			told[name] = true
		}
		if _, lora := s["target_modules"]; !lora && strings.HasPrefix(m[2], "model.lora") && m[2] != "model.lora.rank" {
			s["r"] = 8.0 // what else LoRA has says nothing alone
		}
		res, err := imports.Convert(from, s, 1)
		if err != nil {
			t.Errorf("line %d: %v", n+1, err)
			continue
		}
		var all map[string]any
		if err := yaml.Unmarshal([]byte(res.Recipe), &all); err != nil {
			t.Fatal(err)
		}
		var want any
		if err := yaml.Unmarshal([]byte(m[3]), &want); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		got := at(all, strings.Split(m[2], "."))
		if got == nil { // what a recipe doesn't say is its default
			got = at(defaults(t), strings.Split(m[2], "."))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("line %d: %s is %v, the table says %v\n%s", n+1, m[2], got, want, res.Recipe)
		}
	}
	var code []byte
	for _, file := range []string{"settings.go", "losses.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	notInTable := " model_name train_file dataset data_files optim use_rslora knowledge_distillation query_instruction_format passage_instruction_format negatives_cross_device "
	for _, m := range regexp.MustCompile(`r\.(?:word|number|whole|yes|list|has)\("(\w+)"\)`).FindAllStringSubmatch(string(code), -1) {
		if !told[m[1]] && !strings.Contains(notInTable, " "+m[1]+" ") {
			t.Errorf("%s is converted, and not in arguments.md", m[1])
		}
	}
}

// at is a value in nested mappings and lists.
func at(v any, keys []string) any {
	for _, k := range keys {
		switch x := v.(type) {
		case map[string]any:
			v = x[k]
		case []any:
			i, err := strconv.Atoi(k)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func defaults(t *testing.T) (all map[string]any) {
	t.Helper()
	r, err := recipe.Parse("defaults", []byte("model: {path: m}\ndata: {train: [{path: d, query: q, positive: p}]}\nsave: {dir: s}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}
