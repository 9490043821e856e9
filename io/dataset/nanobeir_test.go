package dataset

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// nanoHub has files stand for hf://datasets/org/nano?config=CONFIG&split=NanoNQ: CONFIG.jsonl each.
func nanoHub(t *testing.T, files map[string]string) {
	t.Helper()
	dir := write(t, files)
	schemes.Lock()
	before, was := schemes.fetch["hf"]
	schemes.Unlock()
	RegisterScheme("hf", func(_ context.Context, url string, _ Splits) ([]string, error) {
		config, ok := strings.CutPrefix(url, "hf://datasets/org/nano?config=")
		if config, ok = strings.CutSuffix(config, "&split=NanoNQ"); !ok {
			return nil, fail(ErrNoFiles, "%s is not there", url)
		}
		path := filepath.Join(dir, config+".jsonl")
		if _, err := os.Stat(path); err != nil {
			return nil, fail(ErrNoFiles, "%s is not there", url)
		}
		return []string{path}, nil
	})
	t.Cleanup(func() {
		schemes.Lock()
		defer schemes.Unlock()
		if delete(schemes.fetch, "hf"); was {
			schemes.fetch["hf"] = before
		}
	})
}

var nanoFiles = map[string]string{
	"queries.jsonl": `{"_id": "q1", "text": "one"}
{"_id": "q2", "text": "two", "title": "no title"}
{"_id": "q3", "text": ""}
{"_id": "d1", "text": "like a document"}
`,
	"corpus.jsonl": `{"_id": "d1", "text": "A", "title": "no title"}
{"_id": "d2", "text": ""}
{"_id": "d3", "text": "C"}
{"_id": "d4", "text": " "}
`,
	"qrels.jsonl": `{"query-id": "q1", "corpus-id": "d3"}
{"query-id": "q1", "corpus-id": "d2"}
{"query-id": "q1", "corpus-id": "d3"}
{"query-id": "q3", "corpus-id": "d1"}
{"query-id": "d1", "corpus-id": "d1"}
{"query-id": "q2", "corpus-id": "d4"}
`,
	"bm25.jsonl": `{"query-id": "q1", "corpus-ids": ["d1", "d3", "d4"]}
{"query-id": "q2", "corpus-ids": ["d1", "d3", "d4"]}
{"query-id": "d1", "corpus-ids": ["d1"]}
`,
}

// What NanoBEIREvaluator makes of the same rows (testdata/peers compares figures): no titles, nothing that is empty, all judged documents relevant.
func TestNanoRetrieval(t *testing.T) {
	want := &Retrieval{
		QueryIDs: []string{"q1", "q2", "d1"}, Queries: []string{"one", "two", "like a document"}, DocIDs: []string{"d1", "d3", "d4"}, Docs: []string{"A", "C", " "},
		Judgements: []Judgement{{0, 1, 1}, {2, 0, 1}, {1, 2, 1}}, Missed: []MissedJudgement{{0, "d2", 1}}, Unknown: 1, Repeated: 1, LeftOut: 2, Ascending: true,
	}
	files := nanoFiles
	for _, as := range []string{"ids", "lists of ids"} {
		nanoHub(t, files)
		got, err := LoadNanoRetrieval(t.Context(), "org/nano", "NanoNQ")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v (%v)\nwant %+v", as, got, err, want)
		}
		files = map[string]string{"queries.jsonl": files["queries.jsonl"], "corpus.jsonl": files["corpus.jsonl"], "qrels.jsonl": `{"query-id": "q1", "corpus-id": ["d3", "d2", "d3"]}
{"query-id": "q3", "corpus-id": ["d1"]}
{"query-id": "d1", "corpus-id": ["d1"]}
{"query-id": "q2", "corpus-id": ["d4"]}
`}
	}
	if note := want.Note(); !strings.HasSuffix(note, "; 2 queries and documents are empty, and left out, as sentence-transformers does") {
		t.Error(note)
	}
}

// What CrossEncoderNanoBEIREvaluator ranks: positives first, where they are not among BM25's; texts that are empty are there.
func TestNanoCandidates(t *testing.T) {
	nanoHub(t, nanoFiles)
	var notes []string
	ctx := WithNote(t.Context(), func(note string) { notes = append(notes, note) })
	got, err := LoadNanoCandidates(ctx, "org/nano", "NanoNQ", 2, false)
	want := &Candidates{
		Queries: []string{"one", "two"}, Texts: [][]string{{"C", "", "A"}, {" ", "A", "C"}},
		Relevant: [][]bool{{true, true, false}, {true, false, false}}, Given: [][]bool{{false, true, true}, {false, false}}, Alone: 1,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "of 3 queries 1 has no other candidate") {
		t.Errorf("notes %q", notes)
	}
	got, err = LoadNanoCandidates(ctx, "org/nano", "NanoNQ", 2, true)
	want = &Candidates{
		Queries: []string{"one", "two", "like a document"}, Texts: [][]string{{"A", "C"}, {"A", "C"}, {"A"}},
		Relevant: [][]bool{{false, true}, {false, false}, {true}}, Given: [][]bool{{false, true, true}, {false, false}, {true}}, Missed: []int{1, 1, 0},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("found: %+v (%v)\nwant %+v", got, err, want)
	}
	nothing := maps.Clone(nanoFiles)
	nothing["bm25.jsonl"] = `{"query-id": "q1", "corpus-ids": []}`
	nanoHub(t, nothing)
	if got, err := LoadNanoCandidates(ctx, "org/nano", "NanoNQ", 2, true); err != nil || !slices.Equal(got.Missed, []int{2}) {
		t.Errorf("of a query for which BM25 finds nothing: %+v (%v)", got, err)
	}
}

// A folder with the dataset's files is as good as the dataset.
func TestNanoFolder(t *testing.T) {
	nanoHub(t, nanoFiles)
	files := map[string]string{}
	for name, content := range nanoFiles {
		config := strings.TrimSuffix(name, ".jsonl")
		first, rest, _ := strings.Cut(content, "\n") // in two files, as large tables are
		files["a [b]/"+config+"/NanoNQ-00000-of-00002.jsonl"], files["a [b]/"+config+"/NanoNQ-00001-of-00002.jsonl"] = first+"\n", rest
		files["a [b]/"+config+"/NanoNQSecond-00000-of-00001.jsonl"] = content
	}
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	folder := filepath.Join(dir, "a [b]")
	want, err := LoadNanoRetrieval(t.Context(), "org/nano", "NanoNQ")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := LoadNanoRetrieval(t.Context(), folder, "NanoNQ"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	ranked, err := LoadNanoCandidates(t.Context(), "org/nano", "NanoNQ", 2, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := LoadNanoCandidates(t.Context(), folder, "NanoNQ", 2, true); err != nil || !reflect.DeepEqual(got, ranked) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, ranked)
	}
	if _, err := LoadNanoRetrieval(t.Context(), folder, "NanoFEVER"); err == nil || !strings.Contains(err.Error(), "NanoFEVER-*") {
		t.Errorf("a task that is not there: %v", err)
	}
}

func TestNanoErrors(t *testing.T) {
	with := func(name, more string) map[string]string {
		files := map[string]string{}
		for k, v := range nanoFiles {
			files[k] = v
		}
		if files[name] += more; more == "" {
			delete(files, name)
		}
		return files
	}
	for _, c := range []struct {
		files      map[string]string
		candidates bool
		want       string
	}{
		{with("corpus.jsonl", `{"_id": "d1", "text": "again"}`), false, `corpus.jsonl:5, column "_id": "d1" comes a second time`},
		{with("corpus.jsonl", `{"_id": "d9", "text": null}`), true, `corpus.jsonl:5, column "text": null; a model is measured on all rows`},
		{with("qrels.jsonl", `{"query-id": "q1", "corpus-id": null}`), false, `qrels.jsonl:7`},
		{with("qrels.jsonl", `{"query-id": "q1", "corpus-id": "gone"}`), true, `config=qrels&split=NanoNQ: document "gone" is not in hf://datasets/org/nano?config=corpus&split=NanoNQ`},
		{with("bm25.jsonl", `{"query-id": "q1", "corpus-ids": ["gone"]}`), true, `config=bm25&split=NanoNQ: document "gone" is not in`},
		{with("bm25.jsonl", `{"query-id": "q9", "corpus-ids": ["d1"]}`), true, `config=bm25&split=NanoNQ: query "q9" is not in hf://datasets/org/nano?config=queries`},
		{with("queries.jsonl", "{}"), false, `queries.jsonl:5, column "_id": null`},
		{with("queries.jsonl", "{}"), true, `queries.jsonl:5, column "_id": null`},
		{with("bm25.jsonl", ""), true, "what BM25 finds, which a reranker ranks anew: hf://datasets/org/nano?config=bm25&split=NanoNQ is not there"},
	} {
		nanoHub(t, c.files)
		_, err := LoadNanoRetrieval(t.Context(), "org/nano", "NanoNQ")
		if c.candidates {
			_, err = LoadNanoCandidates(t.Context(), "org/nano", "NanoNQ", 100, false)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	nanoHub(t, map[string]string{"queries.jsonl": nanoFiles["queries.jsonl"], "corpus.jsonl": nanoFiles["corpus.jsonl"], "qrels.jsonl": `{"query-id": "q7", "corpus-id": "d1"}`})
	if _, err := LoadNanoRetrieval(t.Context(), "org/nano", "NanoNQ"); err == nil || !strings.Contains(err.Error(), "none of its judgements is about a query and a document that exist") {
		t.Error(err)
	}
}

func TestNanoNames(t *testing.T) {
	all, some := NanoTasks(false), NanoTasks(true)
	if len(all) != 13 || len(some) != 11 || slices.Contains(some, "NanoArguAna") || slices.Contains(some, "NanoTouche2020") {
		t.Errorf("%q, %q", all, some)
	}
	for name, want := range map[string]string{"msmarco": "NanoMSMARCO", "MSMARCO": "NanoMSMARCO", "NanoMSMARCO": "NanoMSMARCO", "nanofiqa2018": "NanoFiQA2018", "SCIDOCS": "NanoSCIDOCS"} {
		if got, err := NanoTask(name); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	if _, err := NanoTask("scifakt"); err == nil || !strings.Contains(err.Error(), `NanoBEIR has no task "scifakt"; did you mean scifact? It has climatefever, dbpedia,`) {
		t.Error(err)
	}
	for id, good := range map[string]bool{t.TempDir(): true, NanoBEIR: true, "org/name@main": true, "name": false, "a/b/c": false, "/a": false, "a/": false, "a/b?split=x": false, "": false} {
		if err := CheckNano(id); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
}
