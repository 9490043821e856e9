package dataset

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A row that a model is to be measured on and that can't be used is an error with its place and the way out, in whichever file it is; none is left out.
func TestMeasuredOnAllRows(t *testing.T) {
	good := map[string]string{
		"queries.jsonl": `{"id": "q1", "text": "one"}` + "\n", "corpus.jsonl": `{"id": "d1", "text": "two"}` + "\n", "qrels.jsonl": `{"query_id": "q1", "doc_id": "d1", "relevance": 1}` + "\n",
		"sts.jsonl": `{"a": "one", "b": "two", "s": 1}` + "\n",
	}
	for _, c := range []struct{ file, line, want string }{
		{"queries.jsonl", `{"id": "q2", "text": " "}`, `column "text": the query is null or empty`},
		{"queries.jsonl", `{"id": "q2", "text": null}`, `column "text": the text is null`},
		{"queries.jsonl", `{"id": null, "text": "x"}`, `column "id": null`},
		{"queries.jsonl", `{"id": "q1", "text": "x"}`, `column "id": "q1" comes a second time`},
		{"corpus.jsonl", `{"id": "d2", "text": null}`, `column "text": the text is null`},
		{"corpus.jsonl", "{\"id\": \"d2\", \"text\": \"\xff\"}", `the line is not UTF-8`},
		{"corpus.jsonl", `{"id": "d2", "text": "x"`, ``},
		{"qrels.jsonl", `{"query_id": "q1", "doc_id": "d1", "relevance": "high"}`, `relevance "high": want two ids and a whole number`},
		{"qrels.jsonl", `{"query_id": "q1", "doc_id": "d1", "relevance": 2}`, `is judged a second time, with 1 and 2`},
		{"sts.jsonl", `{"a": "one", "b": "", "s": 1}`, `column "b": the text is null or empty`},
		{"sts.jsonl", `{"a": "one", "b": "two", "s": "x"}`, `column "s": a score of "x": want a number`},
		{"sts.jsonl", `{"a": "one", "b": "two"`, ``},
	} {
		files := map[string]string{}
		for name, text := range good {
			files[name] = text
		}
		files[c.file] += c.line + "\n"
		dir := write(t, files)
		at := func(name string) string { return filepath.Join(dir, name) }
		_, err := LoadRetrieval(t.Context(), at("queries.jsonl"), at("corpus.jsonl"), at("qrels.jsonl"))
		if c.file == "sts.jsonl" {
			_, err = LoadPairs(t.Context(), at(c.file), "a", "b", "s")
		}
		if !errors.Is(err, ErrBadRow) || !strings.HasPrefix(err.Error(), at(c.file)+":2") || !strings.Contains(err.Error(), c.want) ||
			!strings.HasSuffix(err.Error(), "; a model is measured on all rows, so it takes a file without this one, or with it put right") {
			t.Errorf("%s %s: %v, want %s", c.file, c.line, err, c.want)
		}
	}
}
