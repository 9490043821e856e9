package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/prep"
	"contraflow/io/prep/template"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
)

func decoded(t *testing.T, text string, sets ...string) (prep.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "PREP.yaml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	c := prep.Default()
	err := decode(path, sets, &c)
	return c, err
}

// TestReadme decodes the example of package prep's README.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "io", "prep", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "```yaml\ninput:")
	text, _, _ = strings.Cut(text, "```")
	if !ok {
		t.Fatal("README.md has no PREP.yaml")
	}
	c, err := decoded(t, "input:"+text)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Input) != 2 || c.Input[0].Path[0] != "raw/forum-*.jsonl" || c.Dedupe.Near.Column != "positive" || !c.Split.BEIR || c.Filter.Document.Min != 10 {
		t.Errorf("%+v", c)
	}
}

func TestMistakes(t *testing.T) {
	const good = "input: [{path: a.jsonl, query: q, positive: p}]\noutput: {dir: out}\n"
	for _, c := range []struct{ text, want string }{
		{good + "dedup: {exact: row}\n", "PREP.yaml:3: dedup: unknown key; did you mean dedupe?"},
		{good + "filter:\n  query: {mni: 3}\n", "PREP.yaml:4: filter.query.mni: unknown key; did you mean filter.query.min?"},
		{good + "split: {dev: 2}\n", "PREP.yaml:3: split.dev: is 2, want a share"},
		{good + "filter: {unit: tokens}\n", "PREP.yaml:3: filter.unit: is tokens, which takes tokenize.model"},
		{good + "dedupe: {near: {column: positives}}\n", `PREP.yaml:3: dedupe.near.column: is "positives", want one of row, query, positive`},
		{good + "dedupe: {near: {threshold: 1.8}}\n", `PREP.yaml:3: dedupe.near.column: is missing: which texts are compared, one of row, query, positive; without it none are`},
		{good + "dedupe: {near: {threshold: 0.8}}\n", `PREP.yaml:3: dedupe.near.column: is missing`},
		{good + "mix: {kind: proportional, repeat: 3}\n", "PREP.yaml:3: mix.repeat: is 3, and mix.kind: proportional leaves inputs as they are: balanced and weighted repeat rows"},
		{good + "filter: {query: {min: -1}}\n", "PREP.yaml:3: filter.query: min is -1, want at least 0"},
		{good + "filter: {document: {max: -2}}\n", "PREP.yaml:3: filter.document: max is -2, want at least 0, which is no limit"},
		{good + "filter: {document: {min: 5, max: 2}}\n", "PREP.yaml:3: filter.document: min is 5, and max is less, 2"},
		{"input: [{path: a.jsonl, query: q, positive: p, label: l}, {path: b.jsonl, query: q, positive: p, negatives: [n, m], scores: [s]}]\noutput: {dir: out}\n",
			"input[1]: has other roles than input[0]: negatives (2 columns, there none), label (none, there 1 column), scores (1 column, there none); all inputs"},
		{good + "learning_rate: 3\n", "PREP.yaml:3: learning_rate: unknown key; the keys are input, output"},
		{good + "tokenize: {\"-\": /x}\n", "tokenize.-: unknown key; the keys are model, max_length, prompts"},
		{"output: {dir: out}\n", "input: is missing"},
	} {
		if _, err := decoded(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	for _, near := range []string{"{}", `{column: ""}`, `{column: "", threshold: 0.8}`, "{column: row, threshold: 0.7}"} {
		if _, err := decoded(t, good+"dedupe: {near: "+near+"}\n"); err != nil {
			t.Errorf("near: %s: %v", near, err)
		}
	}
	if _, err := decoded(t, good+"dedupe: {near: {column: query, threshold: 0.7}}\n", "dedupe.near={}"); err != nil {
		t.Errorf("without near again: %v", err)
	}
	if c, err := decoded(t, good, "output.shards=4", "input.0.query=other"); err != nil || c.Output.Shards != 4 || c.Input[0].Query != "other" {
		t.Errorf("--set: %+v, %v", c, err)
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("a.jsonl"), []byte("{\"q\": \"one\", \"p\": \"two\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path("PREP.yaml"), []byte("input: [{path: "+path("a.jsonl")+", query: q, positive: p}]\noutput: {dir: "+path("x")+"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want int
	}{{"-c PREP.yaml --out out -q", 0}, {"-c PREP.yaml --out out -q", 1}, {"-c PREP.yaml --out out -q --overwrite", 0}, {"-c none.yaml", 1}, {"", 2}, {"-c PREP.yaml --runner spark", 2}, {"-c PREP.yaml extra", 2}, {"-c PREP.yaml --out out -q --overwrite --threads -1", 2}, {"-c PREP.yaml --out out -q --overwrite --threads 0", 2},
		{"-c PREP.yaml -- --endpoint=x", 2}, {"--nonsense", 2}} {
		args := strings.Fields(c.args)
		for i, a := range args {
			if a == "PREP.yaml" || a == "out" {
				args[i] = path(a)
			}
		}
		if got := run(args); got != c.want {
			t.Errorf("%q: exit code %d, want %d", c.args, got, c.want)
		}
	}
	if _, err := os.Stat(path("out/" + prep.Success)); err != nil {
		t.Error(err)
	}
}

// With static embeddings ids have no special tokens, and texts may be left whole; with other models they can't.
func TestStatic(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("a.jsonl"), []byte("{\"q\": \"a river\", \"p\": \"the stone of the stone of the stone\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, static := range []bool{true, false} {
		model := path(map[bool]string{true: "static", false: "bert"}[static])
		spec := newmodel.Spec{Static: static, Hidden: 8, Layers: 1, Heads: 1}
		if err := newmodel.Create(t.Context(), model, spec, newmodel.Texts([]string{"a river", "the stone"})); err != nil {
			t.Fatal(err)
		}
		for _, length := range []int{0, 7} {
			config := fmt.Sprintf("input: [{path: %s, query: q, positive: p}]\noutput: {dir: %s}\ntokenize: {model: %s, max_length: {query: %d, document: 5}}\n",
				path("a.jsonl"), path("out"), model, length)
			if err := os.WriteFile(path("PREP.yaml"), []byte(config), 0o666); err != nil {
				t.Fatal(err)
			}
			want := 0
			if !static && length == 0 {
				want = 1
			}
			got, text := said(t, "-c", path("PREP.yaml"), "--overwrite")
			if got != want {
				t.Errorf("static %t, %d tokens: exit code %d, want %d", static, length, got, want)
			}
			if want > 0 {
				continue
			}
			cut := 1
			if !static { // the query has special tokens too
				cut = 2
			}
			if line := fmt.Sprintf("%12d texts were longer than tokenize.max_length and cut\n", cut); !strings.Contains(text, line) {
				t.Errorf("static %t, %d tokens: no %q in %s", static, length, line, text)
			}
			f, err := hfmodel.Open(model)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := embedder.LoadTokenizer(f)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			info, err := dataset.PreparedTokens(t.Context(), []string{path("out/train-*.parquet")})
			if err != nil {
				t.Fatal(err)
			}
			if want := (dataset.TokenInfo{Tokenizer: tok.Hash(), Query: dataset.TokenRole{MaxLength: length}, Document: dataset.TokenRole{MaxLength: 5}}); info == nil || *info != want {
				t.Errorf("%+v, want %+v", info, want)
			}
			if n := len(tok.Encode("", 0)); static != (n == 0) {
				t.Errorf("static %t: %d special tokens", static, n)
			}
		}
	}
}

// Lengths that training refuses are refused before anything is read; a tokenizer may be that of any model.
func TestLengths(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	spec := newmodel.Spec{Hidden: 8, Layers: 1, Heads: 1, MaxLength: 64}
	if err := newmodel.Create(t.Context(), path("model"), spec, newmodel.Texts([]string{"a river", "the stone"})); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(path("strange"), os.DirFS(path("model"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path("strange/config.json"), []byte(`{"model_type": "strange", "max_position_embeddings": 64}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model     string
		query, to int
		want      string
	}{
		{"model", 64, 64, "a.jsonl"},
		{"model", 65, 64, "tokenize.max_length.query: a maximum length of 65 tokens is beyond the model's 64 positions\n"},
		{"model", 64, 2000, "tokenize.max_length.document: a maximum length of 2000 tokens is beyond the model's 64 positions\n"},
		{"model", 2, 64, "tokenize.max_length.query: a maximum length of 2 tokens leaves no room for text beside 2 special tokens\n"},
		{"strange", 65, 65, "a.jsonl"},
		{"strange", 2, 65, "tokenize.max_length.query: a maximum length of 2 tokens leaves"},
	} {
		config := fmt.Sprintf("input: [{path: %s, query: q, positive: p}]\noutput: {dir: %s}\ntokenize: {model: %s, max_length: {query: %d, document: %d}}\n",
			path("a.jsonl"), path("out"), path(c.model), c.query, c.to) // there is no a.jsonl to read
		if err := os.WriteFile(path("PREP.yaml"), []byte(config), 0o666); err != nil {
			t.Fatal(err)
		}
		if code, text := said(t, "-c", path("PREP.yaml")); code != 1 || !strings.Contains(text, c.want) {
			t.Errorf("%+v: exit code %d, %s", c, code, text)
		}
	}
}

// Its help shows how people start it, as its examples do.
func TestUsageLine(t *testing.T) {
	if text := newCommand().UsageString(); !strings.Contains(text, "  contraflow prep -c PREP.yaml [flags]") {
		t.Error(text)
	}
}

// An input of which nothing is left is named beside the counts, as are the first rows that are dropped for a reason, and a run that has dropped every row fails.
func TestInputLost(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{
		"a.jsonl": "{\"q\": \"one\", \"p\": \"two\"}\n{\"q\": \"three\", \"p\": \"four\"}\n{\"q\": \"three\"}\nno\n{\"p\": \"four\"}\n{\"q\": \"two\"}\n", "b.jsonl": "{\"q\": \"a short one\", \"p\": \"a longer document\"}\n",
		"PREP.yaml": fmt.Sprintf("input: [{name: a, path: %s, query: q, positive: p}, {name: b, path: %s, query: q, positive: p}]\noutput: {dir: %s}\nfilter: {document: {min: 2}}\n", path("a.jsonl"), path("b.jsonl"), path("out")),
	} {
		if err := os.WriteFile(path(name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	code, text := said(t, "-c", path("PREP.yaml"))
	for _, want := range []string{
		"no row of input \"a\" is left of 6\n", "           2 length (a.jsonl:1 and 1 more)\n", "           4 unusable\n",
		"               2 column \"p\": the text is missing: the row has no such key (a.jsonl:3, a.jsonl:6)\n", "               1 column \"q\": the text is missing: the row has no such key (a.jsonl:5)\n",
	} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("exit code %d, want %q in\n%s", code, want, text)
		}
	}
	if code, text := said(t, "-c", path("PREP.yaml"), "--set", "filter.document.min=4", "--overwrite"); code != 1 || !strings.Contains(text, "contraflow prep: no row is left of 7 rows, and nothing is written: unusable has dropped 4, ") {
		t.Errorf("exit code %d,\n%s", code, text)
	}
}

// What is of the local runner alone is not asked of another in vain.
func TestOfLocalRunner(t *testing.T) {
	runners["other"] = func(context.Context, job) (*prep.Stats, error) { return nil, errors.New("it runs") }
	defer delete(runners, "other")
	path := filepath.Join(t.TempDir(), "PREP.yaml")
	if err := os.WriteFile(path, []byte("input: [{path: a.jsonl, query: q, positive: p}]\noutput: {dir: out}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"--threads=2", "--temp=x"} {
		name, _, _ := strings.Cut(flags, "=")
		if code, text := said(t, "-c", path, "--runner=other", flags); code != 2 || !strings.Contains(text, name+" is of the local runner; --runner is other") {
			t.Errorf("%s: exit code %d, %s", flags, code, text)
		}
	}
	if code, text := said(t, "-c", path, "--runner=other"); code != 1 || text != "contraflow prep: it runs\n" {
		t.Errorf("exit code %d, %s", code, text)
	}
}

// What is given as nothing, or twice, is not taken for what the file says.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-c", "a.yaml", "--out", ""}, "--out is empty"},
		{[]string{"-c", "a.yaml", "--temp="}, "--temp is empty"},
		{[]string{"-c", ""}, "--config is empty"},
		{[]string{"-c", "a.yaml", "--config", "b.yaml"}, `--config is given twice, as "a.yaml" and as "b.yaml": want one`},
		{[]string{"-c", "a.yaml", "--threads", "many"}, `--threads is "many", want a whole number`},
		{[]string{"-c", "a.yaml", "more", "--", "--endpoint=x"}, `unexpected argument "more"`},
		{[]string{"-c", "a.yaml", "--", "--endpoint=x"}, "--endpoint=x is for Beam: it needs --runner prism or universal"},
		{[]string{}, "-c PREP.yaml is missing; contraflow recipe prep prints one to begin with"},
	} {
		if code, text := said(t, c.args...); code != 2 || text != "contraflow prep: "+c.want+"\nSee 'contraflow prep --help'.\n" {
			t.Errorf("%q: exit code %d, %s", c.args, code, text)
		}
	}
}

// What a runner gets is what was asked for: the folder of --out, whatever the file and --set say and whatever its name has in it, and Beam's flags. With
// --quiet nothing is said but errors.
func TestJob(t *testing.T) {
	dir := t.TempDir()
	path, rows := filepath.Join(dir, "PREP.yaml"), filepath.Join(dir, "a.jsonl")
	if err := os.WriteFile(rows, []byte("{\"q\": \"one\", \"p\": \"two\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("input: [{path: "+rows+", query: q, positive: p}]\noutput: {dir: out}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	var got job
	runners["other"] = func(_ context.Context, j job) (*prep.Stats, error) {
		got = j
		return prep.NewStats(j.config.Input), nil
	}
	defer delete(runners, "other")
	out := `a "b": #c {d}`
	for _, quiet := range []bool{false, true} {
		code, text := said(t, "-c", path, "--runner=other", "--out", out, "--set", "output.dir=set", fmt.Sprint("--quiet=", quiet), "--", "--endpoint=x", "-y")
		if code != 0 || got.runner != "other" || got.config.Output.Dir != out || !slices.Equal(got.flags, []string{"--endpoint=x", "-y"}) || got.options.Overwrite {
			t.Errorf("exit code %d, %+v\n%s", code, got, text)
		}
		if said := text != ""; said == quiet || (got.options.Note == nil) != quiet || (got.options.Progress == nil) != quiet {
			t.Errorf("quiet %t: %+v\n%s", quiet, got.options, text)
		}
	}
	if code, text := said(t, "-c", path, "--out", filepath.Join(dir, "out"), "--set", "dedupe.exact=query", "--temp", filepath.Join(dir, "nowhere")); code != 1 || !strings.Contains(text, "contraflow prep --temp DIR chooses another place): stat "+filepath.Join(dir, "nowhere")) {
		t.Errorf("--temp: exit code %d, %s", code, text)
	}
	runners["other"] = func(context.Context, job) (*prep.Stats, error) {
		return nil, &prep.PanicError{Value: "no", Stack: []byte("where it was\n")}
	}
	for debug, want := range map[string]bool{"": false, "1": true} {
		t.Setenv("CONTRAFLOW_DEBUG", debug)
		if code, text := said(t, "-c", path, "--runner=other"); code != 1 || strings.Contains(text, "where it was\n") != want {
			t.Errorf("a panic, CONTRAFLOW_DEBUG=%s: exit code %d, %s", debug, code, text)
		}
	}
}

// The retrieval task that is written is named, and rows that are dropped for rarer reasons than the first few are counted.
func TestReportOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "PREP.yaml")
	if err := os.WriteFile(path, []byte("input: [{path: a.jsonl, query: q, positive: p}]\noutput: {dir: out}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	runners["other"] = func(_ context.Context, j job) (*prep.Stats, error) {
		s := prep.NewStats(j.config.Input)
		r := &prep.RuleStats{Reasons: map[string]int64{}}
		for i := range mostReasons + 2 {
			r.Dropped += int64(20 - i)
			r.Reasons[fmt.Sprint("reason ", i)] = int64(20 - i)
		}
		s.Rules[prep.RuleNames[0]], s.BEIR = r, &prep.BEIRStats{Queries: 5, Documents: 7, DevDocuments: 6, Judgements: 8}
		return s, nil
	}
	defer delete(runners, "other")
	code, text := said(t, "-c", path, "--runner=other")
	for _, want := range []string{"              20 reason 0 (", "               9 reason 11 (", "              15 for other reasons: out/README.md\n", "out/beir: 5 queries of the development part, 7 documents"} { // 8 + 7 rows
		if code != 0 || !strings.Contains(text, want) || strings.Contains(text, "reason 12") {
			t.Errorf("exit code %d, want %q in\n%s", code, want, text)
		}
	}
}

// said is the exit code of a command, and what it prints.
func said(t *testing.T, args ...string) (code int, text string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stderr := os.Stderr
	os.Stderr = f
	code = run(args)
	os.Stderr = stderr
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(b)
}

// Rows that are repeated stand beside those that are dropped.
func TestRepeatsAreSaid(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{
		"a.jsonl": "{\"q\": \"one\", \"p\": \"two\"}\n", "b.jsonl": "{\"q\": \"three\", \"p\": \"four\"}\n{\"q\": \"five\", \"p\": \"six\"}\n",
		"PREP.yaml": fmt.Sprintf("input: [{name: a, path: %s, query: q, positive: p}, {name: b, path: %s, query: q, positive: p}]\noutput: {dir: %s}\nmix: {kind: balanced, repeat: 2}\n", path("a.jsonl"), path("b.jsonl"), path("out")),
	} {
		if err := os.WriteFile(path(name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if code, text := said(t, "-c", path("PREP.yaml")); code != 0 || !strings.Contains(text, "           1 of the rows for training are repeats of others (mix)\n") {
		t.Errorf("exit code %d,\n%s", code, text)
	}
}

// The template is a configuration, with each of its options and without; it has every key there is, and the values of those that nobody need say.
func TestTemplate(t *testing.T) {
	c, err := decoded(t, template.Prep)
	if err != nil {
		t.Fatal(err)
	}
	want := prep.Default()
	want.Input = []prep.Input{{Name: "input", Path: []string{"raw/*.parquet"}, Query: "query", Positive: "positive"}}
	want.Output.Dir = "prepared"
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the template is\n%+v, the defaults are\n%+v", c, want)
	}
	option := regexp.MustCompile(`(?m)^( *)# ([a-z_]+: .*)$`)
	options := option.FindAllStringSubmatchIndex(template.Prep, -1)
	for _, m := range options { // one at a time: they may be added as they are
		name := template.Prep[m[4]:m[5]]
		text := template.Prep[:m[0]] + template.Prep[m[2]:m[3]] + name + template.Prep[m[1]:]
		if strings.HasPrefix(name, "beir:") { // which says what it needs
			text = strings.Replace(text, "dev: 0 ", "dev: 0.1 ", 1)
		}
		if strings.HasPrefix(name, "documents:") { // in the place of the positive
			text = regexp.MustCompile(`(?m)^ *positive: .*\n`).ReplaceAllString(text, "")
		}
		c, err := decoded(t, text)
		if err != nil {
			t.Errorf("with %s: %v", name, err)
		}
		if strings.HasPrefix(name, "near:") { // of which a column is enough
			near := want.Dedupe.Near
			if near.Column = "positive"; c.Dedupe.Near != near {
				t.Errorf("the template's %+v are not the defaults, %+v", c.Dedupe.Near, near)
			}
		}
	}
	if len(options) == 0 {
		t.Error("no options")
	}
	var keys func(section string, of reflect.Type)
	keys = func(section string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if key == "-" {
				continue
			}
			top := section
			if section == "" {
				top = key
			}
			_, part, _ := strings.Cut("\n"+template.Prep, "\n"+top+":")
			if next := regexp.MustCompile(`(?m)^[a-z]`).FindStringIndex(part); next != nil {
				part = part[:next[0]]
			}
			if part == "" || section != "" && !regexp.MustCompile(`\b`+key+`:`).MatchString(part) {
				t.Errorf("the template has no %s in %s", key, top)
			}
			for f.Type.Kind() == reflect.Slice {
				f.Type = f.Type.Elem()
			}
			if f.Type.Kind() == reflect.Struct {
				keys(top, f.Type)
			}
		}
	}
	keys("", reflect.TypeFor[prep.Config]())
}
