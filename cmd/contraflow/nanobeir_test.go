package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// writeNano has a dataset in NanoBEIR's layout be in the hub's cache, which is then offline: NanoMSMARCO and NanoNQ; and it writes the same tasks as files, in
// BEIR's layout and as candidates, into folders.
func writeNano(t *testing.T, dir string) {
	t.Helper()
	words := strings.Fields("cat dog bird fish tree river road house city stone bread water")
	put := func(name string, lines ...string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const commit = "0123456789012345678901234567890123456789"
	repository := filepath.Join(dir, "hub", "datasets--sentence-transformers--NanoBEIR-en")
	put(filepath.Join(repository, "refs", "main"), commit)
	card := []string{"---", "configs:"}
	for _, config := range []string{"bm25", "corpus", "qrels", "queries"} {
		card = append(card, "- config_name: "+config, "  data_files:")
		for k, name := range []string{"NanoMSMARCO", "NanoNQ"} {
			card = append(card, fmt.Sprintf("  - {split: %s, path: %s/%[1]s-*}", name, config))
			var rows, files []string
			for i, w := range words {
				text, query, positive := fmt.Sprintf("a %s of the %s", w, words[(i*5+k)%12]), fmt.Sprintf("find the %s", w), (i+k*7)%12
				ranked := []int{(i + 3) % 12, (i + 7*k) % 12, (i + 5) % 12, (i + 8) % 12}
				switch {
				case config == "corpus":
					rows = append(rows, fmt.Sprintf(`{"_id": "d%d", "text": %q}`, i, text))
				case i%2 > 0:
				case config == "queries":
					rows = append(rows, fmt.Sprintf(`{"_id": "q%d", "text": %q}`, i, query))
				case config == "qrels":
					rows, files = append(rows, fmt.Sprintf(`{"query-id": "q%d", "corpus-id": "d%d"}`, i, positive)), append(files, fmt.Sprintf("q%d\td%d\t1", i, positive))
				default:
					rows = append(rows, fmt.Sprintf(`{"query-id": "q%d", "corpus-ids": ["d%d", "d%d", "d%d", "d%d"]}`, i, ranked[0], ranked[1], ranked[2], ranked[3]))
					var texts []string
					for _, d := range ranked[:3] {
						texts = append(texts, fmt.Sprintf("a %s of the %s", words[d], words[(d*5+k)%12]))
					}
					line, err := json.Marshal(map[string]any{"query": query, "positive": fmt.Sprintf("a %s of the %s", words[positive], words[(positive*5+k)%12]), "documents": texts})
					if err != nil {
						t.Fatal(err)
					}
					files = append(files, string(line))
				}
			}
			put(filepath.Join(repository, "snapshots", commit, config, name+"-00000-of-00001.jsonl"), rows...)
			switch config {
			case "bm25":
				put(filepath.Join(dir, name+".jsonl"), files...)
			case "qrels":
				put(filepath.Join(dir, name, "qrels", "test.tsv"), append([]string{"query-id\tcorpus-id\tscore"}, files...)...)
			default:
				put(filepath.Join(dir, name, config+".jsonl"), rows...)
			}
		}
	}
	put(filepath.Join(repository, "snapshots", commit, "README.md"), append(card, "---")...)
	t.Setenv("HF_HUB_CACHE", filepath.Join(dir, "hub"))
	t.Setenv("HF_HUB_OFFLINE", "1")
}

// Tasks of NanoBEIR have the figures that they have as files.
func TestEvalNanoBEIR(t *testing.T) {
	dir, model := t.TempDir(), goldens.Path(t, "bert/minilm-tiny")
	writeNano(t, dir)
	got := succeed(t, "eval", "--model", model, "--nanobeir=msmarco,NanoNQ", "--json").stdout
	want := succeed(t, "eval", "--model", model, "--queries", filepath.Join(dir, "NanoMSMARCO"), "--queries", filepath.Join(dir, "NanoNQ"), "--json").stdout
	if got != want || !strings.Contains(got, `"mean":{`) {
		t.Errorf("%s\nas files %s", got, want)
	}
	folder := filepath.Join(dir, "hub", "datasets--sentence-transformers--NanoBEIR-en", "snapshots", "0123456789012345678901234567890123456789")
	if here := succeed(t, "eval", "--model", model, "--nanobeir=msmarco,NanoNQ", "--nanobeir-dataset", folder, "--json").stdout; here != got {
		t.Errorf("%s\nof a folder %s", got, here)
	}
	r := succeed(t, "eval", "--model", model, "--nanobeir=nq,msmarco", "--query-prompt", "")
	lines := strings.Split(r.stdout, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[1], "NanoNQ ") || !strings.HasPrefix(lines[2], "NanoMSMARCO ") || !strings.HasPrefix(lines[3], "mean ") || !strings.Contains(r.stderr, "NanoNQ: 12 of 12 documents embedded") {
		t.Errorf("%q\n%q", r.stdout, r.stderr)
	}
	if one := succeed(t, "eval", "--model", model, "--nanobeir=nq", "--json").stdout; strings.Contains(one, "mean") || !strings.Contains(want, strings.TrimSpace(one)) {
		t.Errorf("one task: %s, of %s", one, want)
	}

	for want, args := range map[string][]string{
		`NanoBEIR has no task "msmarko"; did you mean msmarco?`:                                 {"--nanobeir=msmarko"},
		"NanoNQ is given twice: it would count twice in the mean":                               {"--nanobeir=nq,NQ"},
		`unexpected argument "nq"; NanoBEIR's tasks stand behind an equals sign: --nanobeir=nq`: {"--nanobeir", "nq"},
		"--nanobeir and --queries: give one at a time":                                          {"--nanobeir", "--queries", "x"},
		"--nanobeir and --sts: give one at a time":                                              {"--nanobeir", "--sts", "x"},
		"--nanobeir-dataset goes with --nanobeir":                                               {"--queries", "x", "--nanobeir-dataset", "a/b"},
		`--nanobeir-dataset: "de" is no id of a dataset`:                                        {"--nanobeir", "--nanobeir-dataset", "de"},
		"--metric is for --candidates":                                                          {"--nanobeir", "--metric", "mrr@5"},
		"--nanobeir= names no task; --nanobeir alone is all":                                    {"--nanobeir="},
	} {
		if r := contraflow(t, "", append([]string{"eval", "--model", model}, args...)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
	for command, model := range map[string]string{"eval": model, "rerank": goldens.Path(t, "rerank/cross")} {
		if r := contraflow(t, "", command, "--model", model, "--nanobeir=nq", "--nanobeir-dataset", "o/other"); r.code != 1 || !strings.Contains(r.stderr, "hf://datasets/o/other?config=queries&split=NanoNQ") {
			t.Errorf("%s of another dataset: exit code %d, %q", command, r.code, r.stderr)
		}
	}
	if r := contraflow(t, "", "eval", "--model", model, "--nanobeir=nq,fever"); r.code != 1 || !strings.Contains(r.stderr, `it has no split "NanoFEVER"`) || strings.Contains(r.stderr, "embedded") {
		t.Errorf("the second is not there: exit code %d, %q", r.code, r.stderr)
	}
	if r := contraflow(t, "", "eval", "--model", model, "--nanobeir"); r.code != 1 || !strings.Contains(r.stderr, `it has no split "NanoClimateFEVER", but NanoMSMARCO, NanoNQ`) {
		t.Errorf("all of a dataset that has two: exit code %d, %q", r.code, r.stderr)
	}
}

// A reranker ranks what BM25 has found, with the figures that the same has as files of candidates.
func TestRerankNanoBEIR(t *testing.T) {
	dir, model := t.TempDir(), goldens.Path(t, "rerank/cross")
	writeNano(t, dir)
	for _, more := range [][]string{nil, {"--found", "--metric", "recall@2"}} {
		var all map[string]map[string]float64
		got := succeed(t, append([]string{"rerank", "--model", model, "--nanobeir=msmarco,nq", "--top", "3", "--json"}, more...)...).stdout
		if err := json.Unmarshal([]byte(got), &all); err != nil {
			t.Fatal(err)
		}
		left := all["mean"]
		for _, name := range []string{"NanoMSMARCO", "NanoNQ"} {
			var one map[string]float64
			want := succeed(t, append([]string{"rerank", "--model", model, "--candidates", filepath.Join(dir, name+".jsonl"), "--documents", "documents", "--columns", "query,positive", "--json"}, more...)...).stdout
			if err := json.Unmarshal([]byte(want), &one); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(all[name]) != fmt.Sprint(one) || len(one) < 7 {
				t.Errorf("%s: %v, as a file %v", name, all[name], one)
			}
			for measure, v := range one {
				if left[measure] -= v / 2; measure == "queries" {
					left[measure] -= v / 2
				}
			}
		}
		for measure, v := range left {
			if !(math.Abs(v) <= 1e-12) {
				t.Errorf("the mean of %s is off by %v", measure, v)
			}
		}
	}
	lines := strings.Split(succeed(t, "rerank", "--model", model, "--nanobeir=nq").stdout, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "NanoNQ ") || !strings.HasPrefix(lines[2], "NanoNQ, BM25 ") {
		t.Errorf("%q", lines)
	}
	if r := contraflow(t, "", "rerank", "--model", model, "--nanobeir"); r.code != 1 || !strings.Contains(r.stderr, `it has no split "NanoClimateFEVER"`) {
		t.Errorf("all of a dataset that has two: exit code %d, %q", r.code, r.stderr)
	}
	if r := contraflow(t, "", "rerank", "--model", model, "--nanobeir=nq,fever"); r.code != 1 || !strings.Contains(r.stderr, `it has no split "NanoFEVER"`) || strings.Contains(r.stderr, "pairs") {
		t.Errorf("the second is not there: exit code %d, %q", r.code, r.stderr)
	}
	for want, args := range map[string][]string{
		"--nanobeir and --first: give one at a time": {"--nanobeir", "--first", "x"},
		"--nanobeir and --input: give one at a time": {"--nanobeir", "--input", "x", "--output", "y"},
		"--sigmoid goes with --input":                {"--nanobeir", "--sigmoid"},
		"--documents is for --candidates":            {"--nanobeir", "--documents", "x"},
		"map@5: average precision":                   {"--nanobeir=nq", "--metric", "map@5"},
	} {
		if r := contraflow(t, "", append([]string{"rerank", "--model", model}, args...)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
}

// check counts what they have, and lists rows that can't be used.
func TestCheckNanoBEIR(t *testing.T) {
	dir := t.TempDir()
	writeNano(t, dir)
	recipe := filepath.Join(dir, "recipe.yaml")
	rows := make([]string, 9)
	for i := range rows {
		rows[i] = fmt.Sprintf(`{"q": "query %d", "p": "text %d"}`, i, i)
	}
	for kind, want := range map[string]string{"embedder": "6 queries, 12 documents, 6 judgements", "reranker": "pairs of a query and a candidate"} {
		text := fmt.Sprintf("model: {path: %q, kind: %s}\ndata: {train: [{path: %q, query: q, positive: p, negatives: [p]}]}\nbatch: {global_size: 3}\neval: {nanobeir: [msmarco, nq]}\nsave: {dir: %q}\n",
			goldens.Path(t, "bert/minilm-tiny"), kind, filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "run"))
		for file, text := range map[string]string{recipe: text, filepath.Join(dir, "rows.jsonl"): strings.Join(rows, "\n")} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := succeed(t, "check", "-c", recipe)
		for _, name := range []string{"NanoMSMARCO", "NanoNQ"} {
			if out := r.stdout + r.stderr; !strings.Contains(out, "eval.nanobeir, "+name) || !strings.Contains(out, want) {
				t.Errorf("%s: %s, want %s of %s", kind, out, want, name)
			}
		}
	}
}
