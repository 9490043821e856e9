package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
)

// withPrompts is a copy of the small model with other sentence-transformers' settings.
func withPrompts(t *testing.T, config string) string {
	t.Helper()
	model := copyModel(t, filepath.Join(t.TempDir(), "model"))
	if err := os.WriteFile(filepath.Join(model, "config_sentence_transformers.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return model
}

// The first page's line embeds documents as eval and mine do, whatever the model calls their prompt; as sentence-transformers' encode does, embed
// alone puts none before them, and says so. A text may be given instead of a name.
func TestEmbedPrompts(t *testing.T) {
	dir := t.TempDir()
	docs := filepath.Join(dir, "docs.parquet")
	texts := []string{"the river", "a stone"}
	write(t, docs, []string{"text"}, texts)
	var line []string
	for l := range strings.Lines(mustRead(t, filepath.Join("..", "..", "README.md"))) {
		if args := commandLine(l); args != nil && args[0] == "embed" {
			line = args
		}
	}
	const plain = `{"prompts": {}}`
	for _, c := range []struct {
		config, prompt, note string
		args                 []string // instead of the page's --prompt document
	}{
		{`{"prompts": {"query": "query: ", "document": "passage: "}}`, "passage: ", "", nil},
		{`{"prompts": {"query": "query: ", "passage": "passage: "}}`, "passage: ", "", nil},
		{`{"prompts": {"query": "", "document": ""}}`, "", "", nil},
		{plain, "", `has no prompt "document": texts are embedded as they are; --prompt-text`, nil},
		{plain, "", "", []string{}},
		{plain, "query: ", "", []string{"--prompt-text", "query: "}},
		{`{"prompts": {"query": "query: ", "document": "passage: "}}`, "x", "", []string{"--prompt-text", "x"}},
		{`{"prompts": {"query": "query: ", "document": "passage: "}}`, "", "", []string{"--prompt", ""}},
		{`{"prompts": {"query": "query: ", "document": "passage: "}}`, "", `has prompts, and none is put before texts: document ("passage: "), query ("query: "); eval and mine put "query: " before queries and "passage: " before documents; --prompt NAME chooses one, --prompt "" none` + "\n", []string{}},
		{`{"prompts": {"p0": "x "}}`, "", `none is put before texts: p0 ("x "); eval and mine put "" before queries and "" before documents; --prompt`, []string{}},
		{`{"prompts": {"passage": "passage: "}}`, "passage", `--prompt-text "passage" is a text, and put before texts as it stands; the model's prompt of that name is "passage: "`, []string{"--prompt-text", "passage"}},
		{`{"prompts": {"document": "passage: "}}`, "document", `--prompt-text "document" is a text`, []string{"--prompt-text", "document"}},
		{`{"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}`, "query: ", `"query: " is put before texts, the default of the prompts`, []string{}},
	} {
		model := withPrompts(t, c.config)
		args := slices.Clone(line)
		args[slices.Index(args, "--model")+1] = model
		args[slices.Index(args, "--input")+1] = docs
		args[slices.Index(args, "--output")+1] = filepath.Join(dir, "out.parquet")
		if c.args != nil {
			at := slices.Index(args, "--prompt")
			args = slices.Replace(args, at, at+2, c.args...)
		}
		said := succeed(t, args...).stderr
		if strings.Contains(said, "note: ") != (c.note != "") || !strings.Contains(said, c.note) {
			t.Errorf("%s, %v: says %q, want %q", c.config, c.args, said, c.note)
		}
		e, err := embedder.Load(model)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		want, err := e.EmbedPrompt(t.Context(), "", []string{c.prompt + texts[0], c.prompt + texts[1]})
		if err != nil {
			t.Fatal(err)
		}
		if c.args == nil { // what eval puts
			if _, document := e.RolePrompts(); document != c.prompt {
				t.Fatalf("%s: eval puts %q before documents", c.config, document)
			}
		}
		if got := vectorsOf(t, filepath.Join(dir, "out.parquet")); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s, %v: other embeddings than with %q before texts", c.config, c.args, c.prompt)
		}
	}
	model := withPrompts(t, plain)
	write(t, filepath.Join(dir, "none.parquet"), []string{"text"}, []string{}) // without rows too
	for _, args := range [][]string{
		{"--text", "a", "--prompt", "query: "}, {"--text", "a", "--prompt", "query", "--prompt-text", "query: "},
		{"--prompt", "nope", "--input", filepath.Join(dir, "none.parquet"), "--output", filepath.Join(dir, "none-out.parquet")},
	} {
		r := contraflow(t, "", append([]string{"embed", "--model", model}, args...)...)
		if r.code != 2 || !strings.Contains(r.stderr, "--prompt-text") || strings.Contains(r.stderr, "Next:") {
			t.Errorf("%v: exit code %d\n%s", args, r.code, r.stderr)
		}
	}
}

// vectorsOf reads the column of embeddings that embed writes.
func vectorsOf(t *testing.T, path string) (out [][]float32) {
	t.Helper()
	for _, r := range rowsOf(t, dataset.Source{Paths: []string{path}, Query: "text", Teacher: "embedding"}) {
		out = append(out, r.Teacher)
	}
	return out
}

// --query-prompt and --document-prompt are texts: what is the name of one of the model's prompts is put before texts too, and told.
func TestTextPromptNamed(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	model := withPrompts(t, `{"prompts": {"query": "find : ", "document": ""}}`)
	for _, args := range [][]string{
		{"eval", "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")},
		{"mine", "--input", at("train.parquet"), "--num-negatives", "1", "--output", at("mined.parquet")},
		{"distill", "--input", at("train.parquet"), "--output", at("scored.parquet")},
	} {
		for text, told := range map[string]bool{"query": true, "find : ": false, "document": false} {
			r := succeed(t, append(args, "--model", model, "--query-prompt", text)...)
			const note = `note: --query-prompt "query" is a text, and put before texts as it stands; the model's prompt of that name is "find : "`
			if strings.Contains(r.stderr, "as it stands") != told || told && !strings.Contains(r.stderr, note) {
				t.Errorf("%s --query-prompt %q says\n%s", args[0], text, r.stderr)
			}
		}
	}
}

// A multi_vector's texts are read as what --prompt says, with the text of --prompt-text before them.
func TestEmbedPromptTextOfVectors(t *testing.T) {
	model := filledUp(t, filepath.Join(t.TempDir(), "model"))
	embed := func(text string, args ...string) (x struct {
		Vectors [][]float32 `json:"token_vectors"`
	}) {
		t.Helper()
		r := succeed(t, append([]string{"embed", "--model", model, "--parts", "--text", text}, args...)...)
		if err := json.Unmarshal([]byte(r.stdout), &x); err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, role := range []string{"query", "document"} {
		with, want := embed("stone", "--prompt", role, "--prompt-text", "the river "), embed("the river stone", "--prompt", role, "--prompt-text", "")
		if len(with.Vectors) == 0 || !slices.EqualFunc(with.Vectors, want.Vectors, slices.Equal) {
			t.Errorf("%s: %d vectors, want those of the whole text, %d", role, len(with.Vectors), len(want.Vectors))
		}
	}
	if q, d := embed("stone", "--prompt", "query", "--prompt-text", ""), embed("stone", "--prompt-text", ""); len(q.Vectors) == len(d.Vectors) {
		t.Error("texts of --prompt-text are read as queries, want documents")
	}
}

// What a multi_vector's default prompt puts before texts is told, and as what they are read. One that is of queries is cut as queries are, of which
// --max-length has no say; and an .npy has no room for vectors of tokens.
func TestEmbedDefaultOfVectors(t *testing.T) {
	model := filledUp(t, t.TempDir())
	for _, c := range []struct {
		config string
		args   []string
		code   int
		said   string // "": nothing of the prompt
	}{
		{`"prompts": {"query": "query: ", "document": "passage: "}`, nil, 0, `note: "passage: " is put before texts, and they are read as documents; --prompt query reads them as queries, --prompt-text "" puts nothing before them`},
		{`"prompts": {"query": "query: "}`, nil, 0, ""},
		{`"prompts": {"query": "query: ", "document": "passage: "}`, []string{"--prompt-text", ""}, 0, ""},
		{`"prompts": {"query": "query: "}, "default_prompt_name": "query"`, nil, 0, `note: "query: " is put before texts, and they are read as queries; --prompt document reads`},
		{`"prompts": {"query": "query: "}, "default_prompt_name": "query"`, []string{"--max-length", "9"}, 2, "--max-length: by its default prompt"},
		{`"prompts": {"document": "x"}`, []string{"--max-length", "9", "--prompt", "document"}, 0, ""},
		{`"prompts": {"document": "x"}`, []string{"--parts=false", "--output", "x.npy"}, 2, "Give --parts and --output x.parquet"},
	} {
		if err := os.WriteFile(filepath.Join(model, "config_sentence_transformers.json"), []byte(`{"model_type": "MultiVectorEncoder", `+c.config+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"embed", "--model", model, "--parts"}, c.args...)
		if c.said == "" || !strings.Contains(c.said, "--output") {
			args = append(args, "--text", "stone")
		} else {
			args = append(args, "--input", "a.jsonl")
		}
		r := contraflow(t, "", args...)
		if r.code != c.code || !strings.Contains(r.stderr, c.said) || c.said == "" && strings.Contains(r.stderr, "before texts") {
			t.Errorf("%s, %v: exit code %d, want %d and %q in\n%s", c.config, c.args, r.code, c.code, c.said, r.stderr)
		}
	}
}

// rowsOf reads all rows of a source.
func rowsOf(t *testing.T, source dataset.Source) []dataset.Example {
	t.Helper()
	d, err := dataset.Open(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ids := make([]int64, d.Rows())
	for i := range ids {
		ids[i] = int64(i)
	}
	rows, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, ids)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}
