package main

import (
	"bufio"
	"bytes"
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/testdata/goldens"
)

// The tests below run the program as a user does: built, with exit codes.
var binary string

// built is the folder of it, and of what else is built for tests.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "contraflow"); err != nil {
		panic(err)
	}
	binary = filepath.Join(built, "contraflow.exe")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

type result struct {
	code           int
	stdout, stderr string
}

func contraflow(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
	if strings.Contains(r.stderr, "goroutine ") {
		t.Errorf("%v printed a stack trace:\n%s", args, r.stderr)
	}
	return r
}

func succeed(t *testing.T, args ...string) result {
	t.Helper()
	r := contraflow(t, "", args...)
	if r.code != 0 {
		t.Fatalf("%v: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r
}

// workspace is a folder with training data, a retrieval task and a recipe for testdata/golden/bert/minilm-tiny.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var meta struct{ Steps [][][3]string }
	goldens.Load(t, "steps/texts").Meta(t, &meta)
	var q, p, n, ids []string
	for _, step := range meta.Steps {
		for _, row := range step {
			ids = append(ids, fmt.Sprint("d", len(ids)))
			q, p, n = append(q, row[0]), append(p, row[1]), append(n, row[2])
		}
	}
	write(t, filepath.Join(dir, "train.parquet"), []string{"query", "positive", "negative"}, q, p, n)
	write(t, filepath.Join(dir, "queries.parquet"), []string{"id", "text"}, ids[:40], q[:40])
	write(t, filepath.Join(dir, "corpus.parquet"), []string{"id", "text"}, ids, p)
	qrels := "query_id\tdoc_id\trelevance\n"
	for _, id := range ids[:40] {
		qrels += id + "\t" + id + "\t1\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "qrels.tsv"), []byte(qrels), 0o600); err != nil {
		t.Fatal(err)
	}
	recipe := fmt.Sprintf(`model: {path: %q, dropout: 0.1}
data:
  train:
    - {path: %q, query: query, positive: positive, negatives: [negative]}
batch: {global_size: 16, sub_batch: {rows: 10}}
optimizer: {lr: 1e-3}
train: {epochs: 1, device: cpu}
eval:
  every: 4
  retrieval: {queries: %q, corpus: %q, qrels: %q}
save: {dir: %q}
log: {every: 2}
`, goldens.Path(t, "bert/minilm-tiny"), filepath.Join(dir, "*.parquet"), filepath.Join(dir, "queries.parquet"), filepath.Join(dir, "corpus.parquet"), filepath.Join(dir, "qrels.tsv"), filepath.Join(dir, "run"))
	recipe = strings.Replace(recipe, "*.parquet", "train.parquet", 1)
	if err := os.WriteFile(filepath.Join(dir, "recipe.yaml"), []byte(recipe), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path string, names []string, columns ...[]string) {
	t.Helper()
	var out []dataset.OutColumn
	var values []any
	for i, n := range names {
		out = append(out, dataset.OutColumn{Name: n, Type: dataset.TextOut})
		values = append(values, columns[i])
	}
	w, err := dataset.NewParquetWriter(path, out...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(values...); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// embed puts the model's default prompt before texts, as sentence-transformers does, unless told otherwise.
func TestDefaultPrompt(t *testing.T) {
	model := copyModel(t, filepath.Join(t.TempDir(), "model"))
	path := filepath.Join(model, "config_sentence_transformers.json")
	if err := os.WriteFile(path, []byte(`{"prompts": {"q": "the river ", "empty": ""}, "default_prompt_name": "q"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	embed := func(args ...string) string {
		return succeed(t, append([]string{"embed", "--model", model}, args...)...).stdout
	}
	want := embed("--text", "the river stone", "--prompt", "")
	if embed("--text", "stone") != want || embed("--text", "stone", "--prompt", "q") != want {
		t.Error("the default prompt is not put before texts")
	}
	if embed("--text", "stone", "--prompt", "empty") == want || embed("--text", "stone", "--prompt", "empty") != embed("--text", "stone", "--prompt", "") {
		t.Error("--prompt does not override it")
	}
}

// A max_seq_length beyond the trained positions is not kept, and embed says so; a tokenizer may have an added token that the model has no
// embedding for, until a text has it.
func TestLoadNotes(t *testing.T) {
	model := copyModel(t, filepath.Join(t.TempDir(), "model"))
	edit := func(name, old, new string) {
		t.Helper()
		path := filepath.Join(model, name)
		data, err := os.ReadFile(path)
		if err != nil || strings.Count(string(data), old) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(data), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if note := succeed(t, "embed", "--model", model, "--text", "stone", "--prompt", "").stderr; note != "" {
		t.Errorf("says %q", note)
	}
	edit("sentence_bert_config.json", `"transformer_task"`, `"max_seq_length": 500, "transformer_task"`)
	if note := succeed(t, "embed", "--model", model, "--text", "stone").stderr; !strings.Contains(note, "max_seq_length is 500, but the model was trained with 48 positions: texts are cut to these") {
		t.Errorf("says %q", note)
	}
	edit("tokenizer.json", `"added_tokens": [`, `"added_tokens": [{"id": 9999, "content": "<new>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},`)
	if note := succeed(t, "embed", "--model", model, "--text", "stone").stderr; !strings.Contains(note, `has none for: ["<new>"]; a text that contains one is an error`) {
		t.Errorf("says %q", note)
	}
	if r := contraflow(t, "", "embed", "--model", model, "--text", "a <new> stone"); r.code == 0 || !strings.Contains(r.stderr, "the vocabulary has") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

// A signal ends tokenize though standard input is open.
func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows can't send an interrupt to a process")
	}
	cmd := exec.Command(binary, "tokenize", "--model", goldens.Path(t, "bert/minilm-tiny"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dead := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer dead.Stop()
	fmt.Fprintln(in, "the river")
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "[") {
		t.Errorf("no answer to a line while the input is open: %q %v", line, err)
	}
	cmd.Process.Signal(os.Interrupt)
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("%v: %s", cmd.ProcessState, errs.String())
	}
}

// From parquet to a model folder, and what can be done with it.
func TestTrainEmbedEval(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	r := succeed(t, "train", "--log", "human", "-c", at("recipe.yaml"), "--trace", "--set", "train.max_steps=8", "--out", at("out"))
	for _, want := range []string{"step 8/8", "steps   8, of 1 x 16 rows", "model saved in", "step 4: ndcg@10"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("train did not say %q:\n%s", want, r.stderr)
		}
	}
	checkMetrics(t, at("out/metrics.jsonl"))
	var trace []map[string]any
	readJSON(t, at("out/trace.json"), &trace)
	stages := map[any]bool{}
	for _, e := range trace {
		stages[e["name"]] = true
	}
	for _, s := range []string{"ingest", "tokenize", "embed", "loss", "backward", "update", "evaluate", "save"} {
		if !stages[s] {
			t.Errorf("the trace lacks stage %s", s)
		}
	}
	// The model's card has what the last evaluation found.
	card := mustRead(t, at("out/model/README.md"))
	var last float64
	for _, line := range strings.Split(mustRead(t, at("out/metrics.jsonl")), "\n") {
		var e struct {
			Metric string
			Value  float64
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Metric == "ndcg@10" {
			last = e.Value
		}
	}
	if want := fmt.Sprintf("ndcg@10 | %.4f |", last); last == 0 || !strings.Contains(card, want) || !strings.Contains(card, "\nmodel-index:\n") {
		t.Errorf("the card lacks %q:\n%s", want, card)
	}
	// The recipe as resolved can be run again, to the same losses.
	succeed(t, "train", "-c", at("out/recipe.yaml"), "--out", at("again"), "--quiet")
	if a, b := losses(t, at("out/metrics.jsonl")), losses(t, at("again/metrics.jsonl")); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("a rerun has losses %v, the first %v", b, a)
	}

	model := at("out/model")
	succeed(t, "embed", "--model", model, "--input", at("train.parquet"), "--column", "query", "--output", at("emb.parquet"))
	tab, err := dataset.OpenTable(t.Context(), []string{at("emb.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if got := fmt.Sprint(tab.Columns()); tab.Rows() != 160 || got != "[query positive negative embedding]" {
		t.Errorf("%d rows with columns %s", tab.Rows(), got)
	}
	r = contraflow(t, "", "embed", "--model", model, "--input", at("emb.parquet"), "--column", "query", "--output", at("emb2.parquet"))
	if r.code != 1 || !strings.Contains(r.stderr, `already has a column "embedding"`) {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	for output, want := range map[string]string{
		at("emb.npz"): "what is written is parquet, and nothing reads it as that by this name: give " + at("emb.parquet"),
		at("emb"):     "give " + at("emb.parquet"),
		at("out"):     "is a folder: give a file in it, such as " + at("out/out.parquet"),
	} {
		r := contraflow(t, "", "embed", "--model", model, "--input", at("train.parquet"), "--column", "query", "--output", output)
		if r.code != 2 || !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "of 160 texts") {
			t.Errorf("exit code %d, want %q in\n%s", r.code, want, r.stderr)
		}
	}
	succeed(t, "embed", "--model", model, "--input", at("train.parquet"), "--column", "query", "--output", at("emb.npy"))
	npy, err := os.ReadFile(at("emb.npy"))
	if err != nil || len(npy) != 128+160*32*4 || !bytes.Contains(npy[:128], []byte("(160, 32)")) {
		t.Fatalf("%v: %d bytes, %q", err, len(npy), npy[:min(128, len(npy))])
	}
	for c, err := range tab.Chunks(t.Context(), "query", 160) {
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []int{0, 77, 159} {
			var want []float32
			if err := json.Unmarshal([]byte(succeed(t, "embed", "--model", model, "--text", c.Texts[row]).stdout), &want); err != nil {
				t.Fatal(err)
			}
			for i, w := range want {
				if got := math.Float32frombits(endian.LittleEndian.Uint32(npy[128+4*(row*32+i):])); !(math.Abs(float64(got-w)) <= 1e-6) {
					t.Fatalf("row %d of emb.npy has %v in place %d, its text %v", row, got, i, w)
				}
			}
		}
	}
	for _, more := range [][]string{{"--parts"}, {"--output-column", "x"}} {
		r := contraflow(t, "", append([]string{"embed", "--model", model, "--input", at("train.parquet"), "--column", "query", "--output", at("emb.npy")}, more...)...)
		if r.code != 2 || !strings.Contains(r.stderr, "has the embeddings alone") {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
	}
	succeed(t, "embed", "--model", model, "--input", at("emb.parquet"), "--column", "query", "--output", at("emb.parquet"), "--output-column", "again")
	r = succeed(t, "embed", "--model", model, "--text", "the river", "--text", "a stone")
	var vec []float64
	if err := json.NewDecoder(strings.NewReader(r.stdout)).Decode(&vec); err != nil || len(vec) != 32 {
		t.Errorf("%v: %q", err, r.stdout)
	}
	var cut []float64
	if err := json.Unmarshal([]byte(succeed(t, "embed", "--model", model, "--text", "the river", "--dimensions", "5").stdout), &cut); err != nil || !slices.Equal(cut, vec[:5]) {
		t.Errorf("%v: %v of %v", err, cut, vec)
	}
	for n, code := range map[string]int{"0": 2, "33": 1} {
		if r := contraflow(t, "", "embed", "--model", model, "--text", "the river", "--dimensions", n); r.code != code || !strings.Contains(r.stderr, n) {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
	}

	args := []string{"eval", "--model", model, "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")}
	var scores map[string]float64
	if err := json.Unmarshal([]byte(succeed(t, append(args, "--json")...).stdout), &scores); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"ndcg@10", "mrr@10", "recall@100", "map"} {
		if v, ok := scores[k]; !ok || v <= 0 || v > 1 {
			t.Errorf("%s is %v", k, v)
		}
	}
	var short map[string]float64
	if err := json.Unmarshal([]byte(succeed(t, append(args, "--json", "--dimensions", "2")...).stdout), &short); err != nil || short["map"] <= 0 || short["map"] == scores["map"] {
		t.Errorf("%v: %v of two dimensions, %v of all", err, short, scores)
	}
	var each map[string]map[string]float64
	if err := json.Unmarshal([]byte(succeed(t, append(args, "--json", "--dimensions", "32,2")...).stdout), &each); err != nil || len(each) != 2 || !maps.Equal(each["2"], short) || !maps.Equal(each["32"], scores) {
		t.Errorf("%v: %v of 32 and 2 dimensions, want %v and %v", err, each, scores, short)
	}
	if out := succeed(t, append(args, "--bm25", "--dimensions", "3,1")...).stdout; !strings.Contains(out, "/model, 3 dimensions ") || !strings.Contains(out, "/model, 1 dimension ") || strings.Count(out, "BM25") != 1 {
		t.Errorf("of 3 dimensions and 1:\n%s", out)
	}
	for want, more := range map[string][]string{"--dimensions has 0, want at least 1": {"3,0"}, "--dimensions has 3 twice": {"3,2,3"}, "--run is of one ranking": {"3,2", "--run", at("x.run")}} {
		if r := contraflow(t, "", append(append(args, "--dimensions"), more...)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, %s; want %q", more, r.code, r.stderr, want)
		}
	}
	if out := succeed(t, append(args, "--bm25")...).stdout; !strings.Contains(out, "BM25") {
		t.Errorf("no BM25 in\n%s", out)
	}
	var both map[string]map[string]float64
	if err := json.Unmarshal([]byte(succeed(t, append(args, "--bm25", "--json")...).stdout), &both); err != nil || both["model"]["map"] != scores["map"] || both["bm25"]["map"] <= 0 {
		t.Errorf("%v: %v", err, both)
	}

	r = contraflow(t, "the river\n\nstone stone stone\r\n", "tokenize", "--model", model, "--max-length", "4")
	if lines := strings.Split(r.stdout, "\n"); r.code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[0], "[") {
		t.Errorf("tokenize: %d, %q %s", r.code, r.stdout, r.stderr)
	}
	j := contraflow(t, "\"the river\"\n\"\"\n\"stone stone stone\"\n", "tokenize", "--model", model, "--max-length", "4", "--json")
	if j.stdout != r.stdout {
		t.Errorf("with --json %q, without %q", j.stdout, r.stdout)
	}
	if r := contraflow(t, "the river\n\xff\n", "tokenize", "--model", model); r.code != 1 || !strings.Contains(r.stderr, "standard input, line 2: not valid UTF-8") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func metricLines(t *testing.T, path string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	for l := range strings.Lines(string(data)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		lines = append(lines, m)
	}
	return lines
}

func checkMetrics(t *testing.T, path string) {
	t.Helper()
	steps := 0
	for _, m := range metricLines(t, path) {
		if _, ok := m["loss"]; !ok {
			if _, ok := m["eval"]; !ok {
				t.Errorf("line %v is neither a step nor an evaluation", m)
			}
			continue
		}
		steps++
		for _, k := range []string{"step", "epoch", "loss", "grad_norm", "lr", "pairs", "tokens", "pairs_per_s", "tokens_per_s", "peak_mem_bytes"} {
			if v, ok := m[k].(float64); !ok || math.IsNaN(v) {
				t.Errorf("step %v: %s is %v", m["step"], k, m[k])
			}
		}
		if m["step"] != float64(steps) || m["pairs"] != 16.0 {
			t.Errorf("line %d: %v", steps, m)
		}
	}
	if steps != 8 {
		t.Errorf("%d steps", steps)
	}
}

func losses(t *testing.T, path string) (out []any) {
	t.Helper()
	for _, m := range metricLines(t, path) {
		if l, ok := m["loss"]; ok {
			out = append(out, l)
		}
	}
	return out
}

// sameLosses compares a run's losses, step by step, with those of one rank that was not stopped: within 1e-4 of them. worst is the largest part
// that they differ by.
func sameLosses(t *testing.T, run string, one, many []any) (worst float64) {
	t.Helper()
	if len(many) != len(one) {
		t.Fatalf("%s: %d steps, want %d", run, len(many), len(one))
	}
	for step, l := range many {
		a, b := one[step].(float64), l.(float64)
		if worst = max(worst, math.Abs(a-b)/a); !(math.Abs(a-b) <= 1e-4*a) {
			t.Errorf("%s: step %d: loss %v, want %v", run, step, b, a)
		}
	}
	return worst
}

// verify-grads finds nothing in right gradients, and each planted fault.
func TestVerifyGrads(t *testing.T) {
	recipe := filepath.Join(workspace(t), "recipe.yaml")
	r := succeed(t, "verify-grads", "-c", recipe, "--sub-batch", "4,9", "--accumulate", "1,3", "--rows", "9")
	n := strings.Count(r.stdout, "ok ")
	if n < 16 || !strings.HasPrefix(r.stdout, fmt.Sprintf("ok     1 of %d ", n)) || !strings.Contains(r.stdout, fmt.Sprintf("\nok     %d of %d ", n, n)) || !strings.Contains(r.stdout, "all gradients agree") {
		t.Errorf("%d rows:\n%s", n, r.stdout)
	}
	for _, fault := range []string{"factor", "mask", "remote", "dropout"} {
		r := contraflow(t, "", "verify-grads", "-c", recipe, "--sub-batch", "4", "--accumulate", "1", "--plant", fault)
		if r.code != 1 || !strings.Contains(r.stdout, "WRONG") || !strings.Contains(r.stderr, "gradients are wrong") {
			t.Errorf("--plant %s: exit code %d\n%s%s", fault, r.code, r.stdout, r.stderr)
		}
	}
	rows := filepath.Join(filepath.Dir(recipe), "rows.jsonl")
	if err := os.WriteFile(rows, []byte(`{"query": "one", "positive": "two"}`+"\n"+`{"query": "three", "positive": null}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := contraflow(t, "", "verify-grads", "-c", recipe, "--accumulate", "1", "--set", "batch.no_duplicates=false", "--set", "batch.global_size=2", "--set", fmt.Sprintf("data.train=[{path: %q, query: query, positive: positive}]", rows))
	if want := `rows.jsonl:2, column "positive": the text is null; data.on_error: skip verifies`; bad.code != 1 || !strings.Contains(bad.stderr, want) {
		t.Errorf("a row that can't be used: exit code %d, want %q\n%s", bad.code, want, bad.stderr)
	}
	for option, want := range map[string]string{"plant=gremlin": `--plant is "gremlin", want factor, mask,`, "accumulate=0": "accumulate is 0", "sub-batch=5,0": "sub-batch is 0", "rows=-3": "rows is -3", "shards=-1": "shards is -1"} {
		if r := contraflow(t, "", "verify-grads", "-c", recipe, "--"+option); r.code != 2 || !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("--%s: exit code %d: %s%s", option, r.code, r.stdout, r.stderr)
		}
	}
}

// A panic is an error that says whose mistake it is.
func TestProtect(t *testing.T) {
	var bug *pipeline.PanicError
	if err := protect(func() error { panic("no") }); !errors.As(err, &bug) || !strings.Contains(string(bug.Stack), "TestProtect") {
		t.Errorf("%v", err)
	}
}

// What to type after an error is another thing where a run goes on, or can.
func TestNextOfARun(t *testing.T) {
	for _, c := range []struct {
		err    error
		resume string
		want   string
	}{
		{dataset.ErrNoFiles, "", "contraflow quickstart"},
		{dataset.ErrNoFiles, "false", "contraflow quickstart"},
		{dataset.ErrNoFiles, "true", "a run goes on with the files that it began with"},
		{syscall.ENOSPC, "", "--resume goes on from the newest checkpoint"},
	} {
		cmd := newTrain()
		if c.resume != "" {
			cmd.Flags().Set("resume", c.resume)
		}
		if got := next(cmd, c.err); !strings.Contains(got, c.want) {
			t.Errorf("%v, --resume=%s: %q, want %q", c.err, c.resume, got, c.want)
		}
	}
}

// init, and training what it made.
func TestInit(t *testing.T) {
	dir := workspace(t)
	start := filepath.Join(dir, "start")
	succeed(t, "init", "--out", start, "--input", filepath.Join(dir, "train.parquet"), "--column", "query", "--column", "positive",
		"--hidden", "32", "--layers", "1", "--vocab", "300", "--max-length", "24")
	succeed(t, "train", "-c", filepath.Join(dir, "recipe.yaml"), "--set", "model.path="+start, "--set", "train.max_steps=2", "--quiet")

	if r := contraflow(t, "The CAT\nthe cat\n", "tokenize", "--model", start); r.code != 0 || strings.Count(r.stdout, r.stdout[:len(r.stdout)/2]) != 2 {
		t.Errorf("texts are not lower-cased: %s%s", r.stdout, r.stderr)
	}

	// What can't be made leaves what is there, and nothing new.
	weights := filepath.Join(start, "model.safetensors")
	before, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.jsonl")
	if err := os.WriteFile(bad, []byte(`{"text": "a text"}`+"\n"+`{"text": null}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(`{"model_type": "distilbert", "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40, "sep_token_id": 102}`), 0o600); err != nil {
		t.Fatal(err)
	}
	qwen2 := filepath.Join(dir, "qwen2.json")
	if err := os.WriteFile(qwen2, []byte(`{"model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "queries.parquet")
	beside := filepath.Join(start, "texts.jsonl")
	if err := os.WriteFile(beside, []byte(`{"text": "a text"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--out", start, "--input", good}, 1, "holds a model already: --force replaces it"},
		{[]string{"--out", start, "--input", bad, "--force"}, 1, "bad.jsonl:2"},
		{[]string{"--out", start, "--input", good, "--force", "--vocab", "3"}, 1, "training a vocabulary: 3 tokens are too few: special tokens"},
		{[]string{"--out", start, "--input", good, "--force", "--max-length", "2"}, 1, "no room for text"},
		{[]string{"--out", start, "--input", good, "--force", "--config", config, "--max-length", "50"}, 1, "beyond config.json's 40 positions"},
		{[]string{"--out", filepath.Join(dir, "new"), "--input", good, "--config", qwen2}, 1, qwen2 + ": a new model of type qwen2 would embed other tokens in Python"},
		{[]string{"--out", filepath.Join(dir, "new"), "--input", bad}, 1, "bad.jsonl:2"},
		{[]string{"--out", start, "--input", good, "--input", beside, "--force"}, 2, "start would replace " + beside + ", which is read (--input): choose another folder"},
		{[]string{"--out", start, "--input", filepath.Join(dir, "*", "*.jsonl"), "--force"}, 2, "start would replace " + beside + ", which is read (--input)"},
		{[]string{"--out", start, "--static", "--hidden", "8", "--distill", start, "--force"}, 2, "which is read (--distill)"},
		{[]string{"--out", start, "--static", "--hidden", "8", "--tokenizer", start, "--force"}, 2, "which is read (--tokenizer)"},
		{[]string{"--out", start, "--input", good, "--dropout", "1"}, 2, "--dropout is 1, want at least 0 and less than 1"},
		{[]string{"--out", start, "--input", good, "--layers", "0"}, 2, "--layers is 0, want at least 1"},
		{[]string{"--out", start, "--input", good, "--config", good}, 1, "--config " + good + ": "},
		{[]string{"--out", start, "--input", good, "--layers", "2", "--config", config}, 2, "--layers and --config"},
	} {
		r := contraflow(t, "", append([]string{"init"}, c.args...)...)
		if r.code != c.code || strings.Count(r.stderr, c.want) != 1 {
			t.Errorf("%v: exit code %d, want %d and %q once in\n%s", c.args, r.code, c.code, c.want, r.stderr)
		}
	}
	if after, err := os.ReadFile(weights); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the model is gone or changed: %v", err)
	}
	if _, err := os.Stat(beside); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a folder is left of an init that failed")
	}
	succeed(t, "init", "--out", filepath.Join(start, "inner"), "--static", "--hidden", "8", "--tokenizer", start) // which replaces nothing
	succeed(t, "init", "--out", start, "--input", good, "--config", config, "--force")
	succeed(t, "train", "-c", filepath.Join(dir, "recipe.yaml"), "--set", "model.path="+start, "--set", "train.max_steps=2", "--quiet")
}

// Static embeddings, made of texts and with another model's tokenizer, trained on one rank and on meshes to the same losses, saved,
// embedded with, and evaluated; a text without tokens is zero.
func TestStatic(t *testing.T) {
	dir := workspace(t)
	train, first, start := filepath.Join(dir, "train.parquet"), filepath.Join(dir, "first"), filepath.Join(dir, "start")
	succeed(t, "init", "--out", first, "--static", "--hidden", "24", "--vocab", "300", "--input", train, "--column", "query", "--column", "positive")
	succeed(t, "init", "--out", start, "--static", "--hidden", "40", "--tokenizer", first)
	run := func(out string, set ...string) []any {
		t.Helper()
		args := []string{"train", "-c", filepath.Join(dir, "recipe.yaml"), "--quiet", "--set", "model.path=" + start, "--set", "model.max_length={}", "--set", "model.dropout=0",
			"--set", "optimizer.lr=0.05", "--set", "train.max_steps=6", "--set", "save.dir=" + filepath.Join(dir, out)}
		for _, s := range set {
			args = append(args, "--set", s)
		}
		succeed(t, args...)
		return losses(t, filepath.Join(dir, out, "metrics.jsonl"))
	}
	one := run("one")
	if len(one) != 6 || !(one[5].(float64) < one[0].(float64)) {
		t.Errorf("losses %v", one)
	}
	for i, mesh := range []string{"{replicate: 2}", "{replicate: 1, shard: 2}", "{replicate: 1, shard: 2, gradients: early}", "{replicate: 2, shard: 2, parameters: streamed}"} {
		out := fmt.Sprint("mesh", i)
		sameLosses(t, mesh, one, run(out, "mesh="+mesh, "batch.sub_batch={rows: 3}"))
	}
	model := filepath.Join(dir, "one", "model")
	r := succeed(t, "embed", "--model", model, "--text", "", "--text", "a fox")
	var rows [2][]float64
	for i, line := range strings.Split(strings.TrimSpace(r.stdout), "\n") {
		if err := json.Unmarshal([]byte(line), &rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	if sum := func(vs []float64) (n float64) {
		for _, v := range vs {
			n += v * v
		}
		return n
	}; len(rows[0]) != 40 || sum(rows[0]) != 0 || !(math.Abs(sum(rows[1])-1) < 1e-5) {
		t.Errorf("embeddings %v", rows)
	}
	succeed(t, "verify-grads", "-c", filepath.Join(dir, "recipe.yaml"), "--set", "model.path="+start, "--set", "model.dropout=0", "--accumulate", "1", "--sub-batch", "3", "--replicas", "2", "--shards", "1,2")
	// Of what a model knows of its tokens, of the workspace's encoder and of static embeddings.
	for hidden, model := range map[string]string{"8": goldens.Path(t, "bert/minilm-tiny"), "12": model} {
		out := filepath.Join(dir, "distilled"+hidden)
		if r := succeed(t, "init", "--out", out, "--static", "--distill", model, "--hidden", hidden); !strings.Contains(r.stderr, "train it with model.path: "+out) {
			t.Errorf("%s", r.stderr)
		}
		r := succeed(t, "embed", "--model", out, "--text", "a fox")
		var row []float64
		if err := json.Unmarshal([]byte(r.stdout), &row); err != nil || fmt.Sprint(len(row)) != hidden {
			t.Errorf("%v, %v", row, err)
		}
		if r := contraflow(t, "", "init", "--out", filepath.Join(dir, "none"), "--static", "--distill", model, "--hidden", "50"); r.code != 1 || !strings.Contains(r.stderr, "and the new ones can't have 50") {
			t.Errorf("%+v", r)
		}
	}
	for want, args := range map[string][]string{
		"--layers and --static":                                  {"--static", "--layers", "2", "--input", train},
		"--sparse and --static":                                  {"--static", "--sparse", "--input", train},
		"--pooling and --sparse":                                 {"--sparse", "--pooling", "cls", "--input", train},
		"--input is missing":                                     {"--static"},
		"--tokenizer and --distill are for --static":             {"--tokenizer", first},
		"--tokenizer and --distill have their vocabulary: leave": {"--static", "--distill", first, "--vocab", "300"},
		"--tokenizer and --distill: a distilled model":           {"--static", "--distill", first, "--tokenizer", first},
		"--seed and --distill":                                   {"--static", "--distill", first, "--seed", "3"},
	} {
		if r := contraflow(t, "", append([]string{"init", "--out", filepath.Join(dir, "none")}, args...)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, want %q in\n%s", args, r.code, want, r.stderr)
		}
	}
}

func copyModel(t *testing.T, dir string) string {
	t.Helper()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
