package dataset

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// A header of qrels says where their columns are, also in a file of tabs; without one they are in BEIR's order. Spaces around a number are
// nothing.
func TestJudgementsHeader(t *testing.T) {
	for name, text := range map[string]string{
		"BEIR's.tsv":         "query-id\tcorpus-id\tscore\n1\t2\t 3\n",
		"another order.tsv":  "corpus-id\tscore\tquery-id\n2\t3 \t1\n",
		"one more.tsv":       "query_id\tsplit\tdoc_id\trelevance\n1\ttest\t2\t3\n",
		"blank.tsv":          "\ufeff\n\ncorpus-id\tscore\tquery-id\n\n2\t3\t1\n",
		"none.tsv":           "1\t2\t3 \n",
		"a mark.tsv":         "\ufeff1\t2\t3\r\n",
		"other names.tsv":    "qid\tdid\trel\n1\t2\t3\n",
		"TREC's.qrels":       "1 0 2 3\n",
		"TREC's.txt":         "\n1\t Q0  2 3 \r\n",
		"qrels.dl19-passage": "1 0 2 3",
		"MS MARCO's.tsv":     "1\t0\t2\t3\n",
		"spaces.tsv":         "1 0 2 3\n",
		"header.tsv":         "qid\titer\tdid\trel\n1\t0\t2\t3\n",
		"commas.csv":         "query_id,relevance,doc_id\n1, 3,2\n",
		"lines.jsonl":        `{"query_id": "1", "doc_id": 2, "relevance": "3 "}`,
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		err := loadJudgements(t.Context(), path, func(query, doc string, relevance float64, _ Location) error {
			got += fmt.Sprint(query, " ", doc, " ", relevance, ";")
			return nil
		})
		if err != nil || got != "1 2 3;" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Several files without a header are read as one, and a file of lines has none.
func TestBareFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"q1.tsv": "1\ta\n", "q2.tsv": "2\tb\n", "c1.tsv": "1\tx\n", "c2.tsv": "id\ttext\n2\ty\n", "r1.trec": "1 0 2 1\n", "r2.trec": "2 0 1 1\n", "twice1.tsv": "1\ta\n", "twice2.tsv": "1\tb\n",
		"named.txt": "corpus-id query-id score\n1 2 1\n", "bad.txt": "1 0 2 yes\n",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	got, err := LoadRetrieval(t.Context(), at("q*.tsv"), at("c?.tsv"), at("r[12].trec"))
	want := &Retrieval{QueryIDs: []string{"1", "2"}, Queries: []string{"a", "b"}, DocIDs: []string{"1", "2"}, Docs: []string{"x", "y"}, Judgements: []Judgement{{0, 1, 1}, {1, 0, 1}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	for _, c := range [][4]string{
		{"twice*.tsv", "c1.tsv", "r1.trec", `twice2.tsv:1, column "id": "1" comes a second time`},
		{"q*.tsv", "c*.tsv", "named.txt", "named.txt:1: the first line names columns"},
		{"q*.tsv", "c*.tsv", "bad.txt", `bad.txt:1: the score is "yes"`},
		{"z*.tsv", "c*.tsv", "r1.trec", "z*.tsv matches no file"},
		{"q*.tsv", "c*.tsv", "z*.trec", "z*.trec matches no file"},
	} {
		if _, err := LoadRetrieval(t.Context(), at(c[0]), at(c[1]), at(c[2])); err == nil || !strings.Contains(err.Error(), c[3]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// Queries, texts and judgements at a URL that stands for several files are those of all of them, in the order of their names.
func TestJudgementsByURL(t *testing.T) {
	dir := write(t, map[string]string{
		"q1.tsv": "1\ta\n", "q2.tsv": "2\tb\n", "c1.tsv": "1\tx\n", "c2.tsv": "id\ttext\n2\ty\n", "r1.tsv": "1\t2\t1\n", "r2.tsv": "query-id\tcorpus-id\tscore\n2\t1\t1\n",
		"r1.csv": "query_id,doc_id,relevance\n1,2,1\n", "r2.csv": "query_id,doc_id,relevance\n2,1,1\n", "r1.trec": "1 0 2 1\n", "r2.trec": "2 0 1 1\n",
	})
	RegisterScheme("judged", func(_ context.Context, url string, _ Splits) ([]string, error) {
		found, err := filepath.Glob(filepath.Join(dir, strings.TrimPrefix(url, "judged://")))
		slices.Reverse(found)
		return found, err
	})
	want := &Retrieval{QueryIDs: []string{"1", "2"}, Queries: []string{"a", "b"}, DocIDs: []string{"1", "2"}, Docs: []string{"x", "y"}, Judgements: []Judgement{{0, 1, 1}, {1, 0, 1}}}
	for _, qrels := range []string{"r*.tsv", "r?.trec"} {
		if got, err := LoadRetrieval(t.Context(), "judged://q*.tsv", "judged://c?.tsv", "judged://"+qrels); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v (%v)\nwant %+v", qrels, got, err, want)
		}
	}
	if got, err := LoadRetrieval(t.Context(), "judged://q*.tsv", "judged://c1.tsv", "judged://r*.csv"); err != nil || len(got.Judgements)+len(got.Missed) != 2 { // as the scheme has them
		t.Errorf("%+v (%v)", got, err)
	}
	if _, err := LoadRetrieval(t.Context(), "judged://q*.tsv", "judged://c1.tsv", "judged://z*"); err == nil || !strings.Contains(err.Error(), "judged://z* matches no file") {
		t.Errorf("no file: %v", err)
	}
}

// Lines may be compressed, as tables may.
func TestJudgementsCompressed(t *testing.T) {
	var gz, z bytes.Buffer
	text := []byte("1 0 2 3\n")
	g := gzip.NewWriter(&gz)
	g.Write(text)
	g.Close()
	w, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(text)
	w.Close()
	for name, content := range map[string][]byte{"qrels.tsv.gz": gz.Bytes(), "qrels.gz": gz.Bytes(), "qrels.trec.zst": z.Bytes()} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		err := loadJudgements(t.Context(), path, func(query, doc string, relevance float64, _ Location) error {
			got += fmt.Sprint(query, " ", doc, " ", relevance, ";")
			return nil
		})
		if err != nil || got != "1 2 3;" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Queries and a collection as MS MARCO has them: an id, a tab, a text, and no header. A quote is a character as any other.
func TestBareTexts(t *testing.T) {
	dir := write(t, map[string]string{
		"queries.tsv": "12\twhat is \"a\n\n7\twho\n", "collection.tsv": "0\tthis \"is\r\n1\t \n2\tlast", "qrels.tsv": "12\t0\t2\t1\n7\t0\t9\t1\n",
	})
	got, err := LoadRetrieval(t.Context(), filepath.Join(dir, "queries.tsv"), filepath.Join(dir, "collection.tsv"), filepath.Join(dir, "qrels.tsv"))
	want := &Retrieval{
		QueryIDs: []string{"12", "7"}, Queries: []string{`what is "a`, "who"}, DocIDs: []string{"0", "1", "2"}, Docs: []string{`this "is`, " ", "last"},
		Judgements: []Judgement{{0, 2, 1}}, Missed: []MissedJudgement{{1, "9", 1}}, EmptyDocs: 1,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
}

// A glob of tables is read as tables; a name is the last part of a path; a file may be longer than a row may.
func TestTaskFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"q1.tsv": "id\ttext\n1\ta\n", "q2.tsv": "id\ttext\n2\tb\n", "c.jsonl": `{"id": 1, "text": "a"}`,
		"r1.tsv": "query-id\tcorpus-id\tscore\n1\t1\t1\n", "r2.tsv": "query-id\tcorpus-id\tscore\n2\t1\t2\n",
	})
	r, err := LoadRetrieval(t.Context(), filepath.Join(dir, "q*.tsv"), filepath.Join(dir, "c.jsonl"), filepath.Join(dir, "r*.tsv"))
	if err != nil || len(r.Queries) != 2 || len(r.Judgements) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for path, want := range map[string]string{"beir/scifact": "scifact", "beir/scifact/": "scifact", "hf://datasets/mteb/nfcorpus": "nfcorpus", "dev/queries.jsonl": "queries", "q.v2.tsv": "q.v2", "q.jsonl.gz": "q", "beir/v1.1": "v1.1", dir + "/.": filepath.Base(dir), dir + "/x/..": filepath.Base(dir)} {
		if got := TaskName(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	long := filepath.Join(dir, "long.tsv")
	f, err := os.Create(long)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("x"), 1<<20)
	for i := range maxRow>>20 + 2 {
		fmt.Fprintf(f, "%d\t%s\n", i, text)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := loadTexts(t.Context(), long, func(string, string, bool, Location) error { n++; return nil }); err != nil || n != maxRow>>20+2 {
		t.Errorf("%d texts, %v", n, err)
	}
}

// What is no judgement, or no text with an id, is told with its place, and so is a file that ends too early or is not there. What was opened is closed.
func TestJudgementsRefused(t *testing.T) {
	cut := func(text string) string {
		var b bytes.Buffer
		g := gzip.NewWriter(&b)
		fmt.Fprint(g, text)
		g.Flush() // and no end
		return b.String()
	}
	dir := write(t, map[string]string{
		"query.jsonl": `{"query_id": null, "doc_id": 2, "relevance": 3}`, "doc.jsonl": `{"query_id": 1, "doc_id": null, "relevance": 3}`, "word.csv": "query_id,doc_id,relevance\n1,2,yes\n",
		"half.csv": "query_id,doc_id,relevance\n1,2,0.5\n", "half.tsv": "1\t2\t0.5\n", "again.tsv": "1\t2\t3\nquery-id\tcorpus-id\tscore\n", "later.txt": "1 2 3\nquery-id corpus-id score\n",
		"cut.tsv.gz": cut("1\t0\t2\t3\n"), "cut.gz": cut("1 0 2 3\n"), "binary.txt": "1 2 3\n1 \xff 3\n", "three.tsv": "1\ta\n\n2\tb\tc\n", "binary.tsv": "1\ta\n\xff\tb\n",
		"empty.tsv": "", "wide.tsv": "1\ta\tb\n2\tb\tc\n", "named.tsv": "1a\ttext\n2\tb\n", "texts.tsv.gz": cut("1\ta\n"), "no.tsv.gz": "1\ta\n", "no.tsv.zst": "1\ta\n",
	})
	descriptors := func() int {
		open, _ := os.ReadDir("/proc/self/fd") // none on other systems
		return len(open)
	}
	before := descriptors()
	judged := func(path string) error {
		return loadJudgements(t.Context(), path, func(string, string, float64, Location) error { return nil })
	}
	text := func(path string) error {
		_, err := loadTexts(t.Context(), path, func(string, string, bool, Location) error { return nil })
		return err
	}
	byID := func(path string) error {
		_, err := OpenTexts(t.Context(), TextSource{Paths: []string{path}}, nil)
		return err
	}
	for _, c := range []struct {
		load       func(path string) error
		name, want string
	}{
		{judged, "query.jsonl", `query.jsonl:1: query "", document "2", relevance "3": want two ids and a whole number`},
		{judged, "doc.jsonl", `doc.jsonl:1: query "1", document "", relevance "3": want two ids and a whole number`},
		{judged, "word.csv", `word.csv:2: query "1", document "2", relevance "yes": want two ids and a whole number`},
		{judged, "half.csv", `half.csv:2: query "1", document "2": the relevance is 0.5, want a whole number`},
		{judged, "half.tsv", `half.tsv:1: the score is "0.5", want a whole number`},
		{judged, "again.tsv", `again.tsv:2: the score is "score", want a whole number`},
		{judged, "later.txt", `later.txt:2: the score is "score", want a whole number`},
		{judged, "cut.tsv.gz", "cut.tsv.gz: unexpected EOF"},
		{judged, "cut.gz", "cut.gz: unexpected EOF"},
		{judged, "binary.txt", "binary.txt:2: the line " + notUTF8},
		{judged, "none.tsv", "none.tsv"},
		{text, "three.tsv", "three.tsv:3: 3 fields between tabs, want an id and a text"},
		{text, "binary.tsv", `binary.tsv:2, column "id": the id ` + notUTF8},
		{text, "empty.tsv", "empty.tsv"},
		{text, "wide.tsv", `wide.tsv has no column "id"`},
		{text, "named.tsv", `named.tsv has no column "id"`},
		{byID, "wide.tsv", `wide.tsv has no column "id"; its columns are "1", "a", "b"`},
		{text, "texts.tsv.gz", "texts.tsv.gz: unexpected EOF"},
		{text, "no.tsv.gz", "no.tsv.gz: "},
		{text, "no.tsv.zst", "no.tsv.zst: "},
		{text, "none.tsv", "none.tsv"},
	} {
		err := c.load(filepath.Join(dir, c.name))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if after := descriptors(); after != before {
		t.Errorf("%d files are open, and were %d", after, before)
	}
}
