package hfmodel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// Card is what the model card says beyond what the model itself tells. Empty fields are left out.
type Card struct {
	Name         string // the heading; default: the folder's name
	Summary      string // Markdown, after the first paragraph
	BaseModel    string // the hub id or folder that training began with
	TrainingData []Dataset
	Recipe       string // the recipe as resolved, in YAML
	Metrics      []Metric
}

// Dataset is a row of the card's table of training data.
type Dataset struct {
	Name    string   // file, glob or hub id
	Columns []string // the columns trained on
	Rows    int64
}

// Metric is a row of the card's table of results.
type Metric struct {
	Dataset string
	Task    string // as sentence-transformers names it, such as triplet; "": what the model is for, information-retrieval or text-ranking
	Name    string // "nDCG@10"
	Value   float64
}

// render writes README.md: a YAML front matter that the hub reads, and Markdown. Strings in the front matter are
// double-quoted JSON, which is YAML too.
func (c Card) render(folder string, s Spec, p Pooling) []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	name := c.Name
	if name == "" {
		name = folder
	}

	line("---")
	line("library_name: sentence-transformers")
	task, tags, class := "sentence-similarity", []string{"sentence-transformers", "sentence-similarity", "feature-extraction", "contraflow"}, "SentenceTransformer"
	if s.Splade != nil {
		task, tags, class = "feature-extraction", []string{"sentence-transformers", "sparse-encoder", "sparse", "splade", "contraflow"}, "SparseEncoder"
	}
	line("pipeline_tag: %s", task)
	line("tags:")
	if s.MultiVector != nil {
		tags, class = append(tags, "multi-vector", "late-interaction"), multiVector
	}
	for _, tag := range tags {
		line("- %s", tag)
	}
	if id, ok := hubID(c.BaseModel); ok {
		line("base_model: %s", yamlString(id))
	}
	c.modelIndex(line, "information-retrieval", name)
	line("---")
	line("")
	line("# %s", oneLine(name))
	line("")
	maps := fmt.Sprintf("maps a text to a vector of %d dimensions, for semantic search, clustering and similar tasks", s.dimension(p))
	switch {
	case s.MultiVector != nil:
		maps = fmt.Sprintf("maps each token of a text to a vector of %d dimensions, for semantic search by late interaction (MaxSim)", s.dimension(p))
	case s.Splade != nil:
		maps = "maps a text to weights of tokens of its vocabulary, few of which are not zero, for search with an inverted index"
	}
	line("This text-embedding model %s. "+
		"It was trained with contraflow and loads in [sentence-transformers](https://www.sbert.net).", maps)
	if c.Summary != "" {
		line("")
		line("%s", strings.TrimSpace(c.Summary))
	}

	line("")
	line("## The model")
	line("")
	if c.BaseModel != "" {
		line("- Trained from: %s", Code(c.BaseModel))
	}
	length := map[bool]string{true: ", normalized to length 1"}[s.Normalize]
	switch m := s.MultiVector; {
	case s.Splade != nil:
		line("- Sparse embeddings: SPLADE, the largest logits of a text's tokens%s", length)
		if s.Queries != nil {
			line("- A query's embedding: weights of its tokens, without the model (inference-free)")
		}
	case s.static():
		line("- Static embeddings: a text is the mean of its tokens' vectors%s", length)
	case m != nil:
		line("- A vector for each token%s", length)
		if e := m.Expansion; e != nil {
			line("- Queries: filled up to %d tokens", e.Length)
		}
		if len(m.Skiplist) > 0 {
			line("- Without a vector in a %s: %s", strings.Join(m.SkipTasks, " and a "), Code(strings.Join(m.Skiplist, " ")))
		}
	default:
		line("- Pooling: %s%s", p.Mode, length)
	}
	if s.MaxSeqLength > 0 {
		line("- Maximum length: %d tokens%s", s.MaxSeqLength, map[bool]string{true: " of a document"}[s.Queries != nil])
	}
	if s.Queries != nil && s.Queries.MaxLength > 0 {
		line("- Maximum length of a query: %d tokens", s.Queries.MaxLength)
	}
	line("- Similarity: %s", s.similarity())
	for _, key := range sortedKeys(s.Prompts) {
		if s.Prompts[key] != "" {
			line("- Prompt %s: %s", Code(key), Code(s.Prompts[key]))
		}
	}

	line("")
	line("## Usage")
	line("")
	line("```python")
	line("from sentence_transformers import %s", class)
	line("")
	line("model = %s(%s)", class, yamlString(name))
	query, document, queryFlags, documentFlags := "", "", "", ""
	named := func(key string) bool { // what is empty is named where the default is another
		text, ok := s.Prompts[key]
		return ok && (text != "" || s.DefaultPromptName != "")
	}
	if s.Queries != nil {
		queryFlags, documentFlags = " --prompt query", " --prompt document"
	}
	if named("query") {
		query, queryFlags = `, prompt_name="query"`, " --prompt query"
	}
	for _, key := range []string{"document", "passage"} {
		if named(key) {
			document, documentFlags = fmt.Sprintf(`, prompt_name="%s"`, key), " --prompt "+key
			break
		}
	}
	if s.MultiVector != nil || s.Queries != nil {
		line(`query = model.encode_query("how are gradients accumulated?")`)
		line(`documents = model.encode_document(["a first text", "a second text"])`)
	} else {
		line(`query = model.encode("how are gradients accumulated?"%s)`, query)
		line(`documents = model.encode(["a first text", "a second text"]%s)`, document)
	}
	line("print(model.similarity(query, documents))")
	line("```")
	line("")
	line("or without Python, with contraflow's binary and this folder:")
	line("")
	line("```sh")
	if s.MultiVector != nil {
		queryFlags, documentFlags = " --prompt query --parts", " --prompt document --parts"
	}
	line("contraflow embed --model . --text 'how are gradients accumulated?'%s", queryFlags)
	line("contraflow embed --model . --input docs.parquet --column text%s --output docs.emb.parquet", documentFlags)
	line("```")

	c.rest(line)
	return b.Bytes()
}

// rest is what cards of all models end with: training data, results, recipe.
func (c Card) rest(line func(string, ...any)) {
	if len(c.TrainingData) > 0 {
		line("")
		line("## Training data")
		line("")
		line("| data | columns | rows |")
		line("|---|---|---:|")
		for _, d := range c.TrainingData {
			line("| %s | %s | %d |", cell(d.Name), cell(strings.Join(d.Columns, ", ")), d.Rows)
		}
	}
	if len(c.Metrics) > 0 {
		line("")
		line("## Results")
		line("")
		line("| data | metric | value |")
		line("|---|---|---:|")
		for _, m := range c.Metrics {
			line("| %s | %s | %.4f |", cell(m.Dataset), cell(m.Name), m.Value)
		}
	}
	if c.Recipe != "" {
		fence := fence(c.Recipe, 3)
		line("")
		line("## Recipe")
		line("")
		line("%syaml", fence)
		line("%s", strings.TrimRight(c.Recipe, "\n"))
		line("%s", fence)
	}
}

// hubID is the id of a model's repository, for links to it. A folder that is here has none, though out/model reads as one.
func hubID(pathOrID string) (id string, ok bool) {
	id, _, err := parseID(pathOrID)
	return id, err == nil && strings.Contains(id, "/") && !isDir(pathOrID)
}

// modelIndex gives the results to the hub, which shows them beside the card: see "model-index" in its documentation of model cards.
func (c Card) modelIndex(line func(string, ...any), task, name string) {
	if len(c.Metrics) == 0 {
		return
	}
	line("model-index:")
	line("- name: %s", yamlString(oneLine(name)))
	line("  results:")
	for i, m := range c.Metrics {
		if i == 0 || m.Dataset != c.Metrics[i-1].Dataset || m.Task != c.Metrics[i-1].Task {
			line("  - task:")
			line("      type: %s", cmp.Or(m.Task, task))
			line("    dataset:")
			line("      name: %s", yamlString(oneLine(m.Dataset)))
			line("      type: unknown")
			line("    metrics:")
		}
		line("    - type: %s", yamlString(strings.ToLower(strings.ReplaceAll(m.Name, "@", "_at_"))))
		line("      value: %g", m.Value)
		line("      name: %s", yamlString(m.Name))
	}
}

func yamlString(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // a string can't fail
	return strings.TrimSpace(b.String())
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell keeps a value inside of its table cell.
func cell(s string) string { return strings.ReplaceAll(oneLine(s), "|", `\|`) }

// Code sets s in Markdown as code, whatever backticks and spaces at its ends it has: a prompt's last space counts.
func Code(s string) string {
	s = strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(s)
	fence := fence(s, 1)
	if strings.ContainsAny(s, "`") {
		s = " " + s + " "
	}
	return fence + s + fence
}

// fence is so many backticks, or more, that s has no such run of them.
func fence(s string, least int) string {
	longest, run := 0, 0
	for i := range len(s) {
		if run++; s[i] != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	return strings.Repeat("`", max(least, longest+1))
}
