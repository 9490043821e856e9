package dataset

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

func TestRetrieval(t *testing.T) {
	ctx := context.Background()
	beir := golden("beir")
	want := &Retrieval{
		QueryIDs: []string{"q0", "q1", "q2"}, Queries: []string{"query 0", "query 1", "query 2"},
		DocIDs:     []string{"d0", "d1", "d2", "d3", "d4", "empty"},
		Docs:       []string{"Title 0 document 0", "Title 1 document 1", "Title 2 document 2", "document 3", "Title 4", ""},
		Judgements: []Judgement{{0, 1, 1}, {0, 3, 2}, {2, 4, 1}}, Unknown: 1, EmptyDocs: 1,
	}
	got, err := LoadRetrieval(ctx, beir, "", "")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	want.Judgements, want.Unknown = []Judgement{{1, 0, 1}}, 0
	got, err = LoadRetrieval(ctx, filepath.Join(beir, "queries.jsonl"), filepath.Join(beir, "corpus.jsonl"), filepath.Join(beir, "qrels", "dev.tsv"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	got, err = LoadRetrieval(ctx, beir, "", filepath.Join(beir, "qrels", "dev.tsv"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	other := write(t, map[string]string{"other.jsonl": `{"_id": "d0", "text": "other"}`, "queries.jsonl": `{"_id": "q1", "text": "query 1"}`})
	want.DocIDs, want.Docs, want.EmptyDocs = []string{"d0"}, []string{"other"}, 0
	got, err = LoadRetrieval(ctx, beir, filepath.Join(other, "other.jsonl"), filepath.Join(beir, "qrels", "dev.tsv"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
	if _, err := LoadRetrieval(ctx, other, "", ""); err == nil || !strings.Contains(err.Error(), "has no corpus.jsonl or corpus.parquet") {
		t.Error(err)
	}
	want = &Retrieval{
		QueryIDs: []string{"0", "1", "2"}, Queries: []string{"query 0", "query 1", "query 2"}, DocIDs: []string{"10", "11"}, Docs: []string{"document 0", "document 1"},
		Judgements: []Judgement{{0, 1, 1}, {2, 0, 3}}, Missed: []MissedJudgement{{2, "99", 1}},
	}
	got, err = LoadRetrieval(ctx, filepath.Join(beir, "q.parquet"), filepath.Join(beir, "c.parquet"), filepath.Join(beir, "r.parquet"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v)\nwant %+v", got, err, want)
	}
}

// Who asks is told how many texts of each file have been read.
func TestReading(t *testing.T) {
	usual := tellEvery
	tellEvery = 2
	t.Cleanup(func() { tellEvery = usual })
	var told []string
	ctx := WithReading(t.Context(), func(what string, texts int) { told = append(told, fmt.Sprint(what, " ", texts)) })
	if _, err := LoadRetrieval(ctx, golden("beir"), "", ""); err != nil {
		t.Fatal(err)
	}
	if want := []string{"reading queries.jsonl 2", "reading corpus.jsonl 2", "reading corpus.jsonl 4", "reading corpus.jsonl 6"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestRetrievalNote(t *testing.T) {
	for want, r := range map[string]Retrieval{
		"": {},
		"3 documents are empty, and ranked as such":                      {EmptyDocs: 3},
		"2 judgements name queries that are not there, and are left out": {Unknown: 2},
		"4 judgements say again what others said, and count once":        {Repeated: 4},
		`1 judgement names a query that is not there, and is left out; 1 judgement names a document that is not in the corpus, such as "d": counted as not found`: {Unknown: 1, Missed: []MissedJudgement{{0, "d", 1}}},
	} {
		if got := r.Note(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A cell without anything is an empty text: separated values have no other.
func TestRetrievalEmptyCells(t *testing.T) {
	folder := write(t, map[string]string{"q.csv": "id,text\n1,a\n", "c.csv": "id,text\n1,b\n2,\n", "r.csv": "query_id,doc_id,relevance\n1,1,1\n"})
	at := func(name string) string { return filepath.Join(folder, name) }
	r, err := LoadRetrieval(t.Context(), at("q.csv"), at("c.csv"), at("r.csv"))
	if err != nil || r.EmptyDocs != 1 || len(r.Docs) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Columns without any value, of Arrow's type for that, are what they would be if they had some: titles, lists of negatives, weights
// (testdata/golden/dataset/judged.py).
func TestNothing(t *testing.T) {
	path := golden("nothing.parquet")
	folder := write(t, map[string]string{"q.csv": "id,text\n1,a\n", "r.qrels": "1 0 b 1\n"})
	r, err := LoadRetrieval(t.Context(), filepath.Join(folder, "q.csv"), path, filepath.Join(folder, "r.qrels"))
	if err != nil || !reflect.DeepEqual(r.Docs, []string{"one", "two"}) {
		t.Errorf("%+v, %v", r, err)
	}
	src := Source{Paths: []string{path}, Query: "_id", Positive: "{title} {text}", Negatives: []string{"neg"}, NegativesPerQuery: AllNegatives}
	d, err := Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 1})
	if err != nil || !reflect.DeepEqual(rows[0].Texts, []string{"a", "one"}) || !reflect.DeepEqual(rows[1].Texts, []string{"b", "two"}) {
		t.Errorf("%+v, %v", rows, err)
	}
	for column, change := range map[string]func(s *Source){"title": func(s *Source) { s.Positive = "title" }, "weight": func(s *Source) { s.Weight = "weight" }} {
		src := src
		change(&src)
		d, err := Open(t.Context(), src)
		if err == nil {
			_, err = d.Index(t.Context(), IndexConfig{})
		}
		if want := `nothing.parquet: row group 0, row 0, column "` + column + `": the `; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	lying := filepath.Join(folder, "lying.parquet")
	none := namedType{parquet.Int32Type, format.LogicalType{Value: &format.NullType{}}}
	writeParquet(t, lying, parquet.NewSchema("schema", parquet.Group{"p": parquet.Optional(parquet.Leaf(none)), "q": parquet.String()}),
		parquet.Row{parquet.Int32Value(7).Level(0, 1, 0), parquet.ByteArrayValue([]byte("a")).Level(0, 0, 1)})
	if _, err := readAll(lying, Source{Query: "q", Positive: "p"}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "a value, of a type that has none") {
		t.Errorf("a value where there is none: %v", err)
	}
	table, err := OpenTable(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range table.Chunks(t.Context(), "{title} {text}", 2) {
		if err != nil || !reflect.DeepEqual(c.Texts, []string{"one", "two"}) {
			t.Errorf("%+v, %v", c, err)
		}
	}
}

// Ids of 64 bits are what they are, whatever else a column has.
func TestRetrievalLargeIDs(t *testing.T) {
	folder := write(t, map[string]string{
		"q.jsonl": `{"_id": 7, "text": "a"}`, "r.tsv": "query-id\tcorpus-id\tscore\n7\t18446744073709551614\t1\n",
		"c.jsonl": `{"_id": 18446744073709551615, "text": "b"}` + "\n" + `{"_id": 18446744073709551614, "text": "c"}` + "\n" + `{"_id": 9007199254740993, "text": "d"}`,
	})
	at := func(name string) string { return filepath.Join(folder, name) }
	r, err := LoadRetrieval(t.Context(), at("q.jsonl"), at("c.jsonl"), at("r.tsv"))
	if err != nil || !reflect.DeepEqual(r.DocIDs, []string{"18446744073709551615", "18446744073709551614", "9007199254740993"}) || !reflect.DeepEqual(r.Judgements, []Judgement{{0, 1, 1}}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// A judgement that is there twice, with the same grade, counts once.
func TestRetrievalRepeated(t *testing.T) {
	folder := write(t, map[string]string{"q.tsv": "1\ta\n", "c.tsv": "2\tb\n", "r.qrels": "1 0 2 1\n1 0 9 1\n1 0 2 1\n1 0 9 1\n1 0 2 1\n"})
	at := func(name string) string { return filepath.Join(folder, name) }
	r, err := LoadRetrieval(t.Context(), at("q.tsv"), at("c.tsv"), at("r.qrels"))
	if err != nil || len(r.Judgements) != 1 || len(r.Missed) != 1 || r.Repeated != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Ids are the same whether they are text, integers or what pandas makes of these; what is stored as another number than it says is refused
// (testdata/golden/dataset/judged.py).
func TestRetrievalTypes(t *testing.T) {
	folder := write(t, map[string]string{"t.jsonl": `{"id": 1234567, "text": "a"}` + "\n" + `{"id": 10000000, "text": "b"}`, "t.csv": "id,text\n1234567,a\n10000000,b\n"})
	texts := func(ending string) string { return filepath.Join(folder, "t."+ending) }
	r, err := LoadRetrieval(t.Context(), texts("jsonl"), texts("csv"), golden("judged_float.parquet"))
	if want := []Judgement{{0, 0, 1}, {1, 1, 2}}; err != nil || !reflect.DeepEqual(r.Judgements, want) {
		t.Errorf("%+v, %v, want %v", r, err, want)
	}
	large := write(t, map[string]string{"q.csv": "id,text\n9223372036854775813,a\n", "c.csv": "id,text\n2147483655,b\n"})
	r, err = LoadRetrieval(t.Context(), filepath.Join(large, "q.csv"), filepath.Join(large, "c.csv"), golden("judged_unsigned.parquet"))
	if want := []Judgement{{0, 0, -1}}; err != nil || !reflect.DeepEqual(r.Judgements, want) {
		t.Errorf("%+v, %v, want %v", r, err, want)
	}
	_, err = LoadRetrieval(t.Context(), texts("jsonl"), texts("csv"), golden("judged_decimal.parquet"))
	if want := `judged_decimal.parquet: column "relevance" is decimal(2,1), want string, or a number`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestRetrievalErrors(t *testing.T) {
	ctx := context.Background()
	folder := write(t, map[string]string{
		"q.jsonl":     `{"id": 1, "text": "a"}` + "\n" + `{"id": 2, "text": "b"}`,
		"twice.jsonl": `{"id": 1, "text": "a"}` + "\n\n" + `{"id": 1, "text": "b"}`,
		"empty.jsonl": `{"id": 1, "text": "a"}` + "\n" + `{"id": 2, "text": null}`,
		"title.jsonl": `{"id": 1, "title": "a", "text": null}` + "\n" + `{"id": 2, "title": "", "text": ""}` + "\n" + `{"id": 3, "title": null, "text": null}`,
		"noid.jsonl":  `{"key": 1, "text": "a"}`,
		"_id.jsonl":   `{"_id": 1, "text": "a"}` + "\n" + `{"_id": null, "text": "b"}`,
		"r.tsv":       "query-id\tcorpus-id\tscore\n1\t2\t1\n",
		"other.tsv":   "query-id\tcorpus-id\tscore\n7\t2\t1\n",
		"none.tsv":    "query-id\tcorpus-id\tscore\n",
		"short.tsv":   "query-id\tcorpus-id\tscore\n1\t2\n",
		"word.tsv":    "query-id\tcorpus-id\tscore\n1\t2\tyes\n",
		"half.tsv":    "query-id\tcorpus-id\tscore\n1\t2\t0.5\n",
		"twice.tsv":   "query-id\tcorpus-id\tscore\tscore\n1\t2\t1\t1\n",
		"again.tsv":   "query-id\tcorpus-id\tscore\n1\t2\t1\n1\t2\t2\n",
		"again.qrels": "1 0 2 1\n1 0 9 1\n1 0 9 2\n",
		"none2.tsv":   "qid\tdid\trel\n",
		"short2.tsv":  "qid\tdid\trel\n\n1\t2\n",
		"word2.tsv":   "1\t2\t1\n1\t2\tyes\n",
		"half2.tsv":   "1\t2\t0.5\n",
		"far.tsv":     "1\t2\t2147483648\n",
		"far.qrels":   "1 0 2 inf\n",
		"utf16.tsv":   "\xff\xfe1\x00",
		"latin.tsv":   "1\t2\t1\n\xe9\t2\t1\n",
		"mixed.tsv":   "1\t2\t1\n1\t0\t3\t1\n",
		"run.txt":     "1 Q0 2 1 0.5 mine\n",
		"word.qrels":  "1 0 2 1\n1 0 2 yes\n",
		"twice2.tsv":  "1\ta\n2\tb\n1\tc\n",
		"three.tsv":   "1\ta\n2\tb\tc\n",
		"words.tsv":   "qid\tquery\n1\ta\n",
		"latin2.tsv":  "1\ta\n2\t\xe9\n",
		"latin3.tsv":  "1\ta\n\xe9\tb\n",
		"blank.tsv":   "1\ta\n2\t \n",
		"half.jsonl":  `{"query_id": 1, "doc_id": 2, "relevance": 1.0}` + "\n" + `{"query_id": 2, "doc_id": 2, "relevance": 0.5}`,
	})
	at := func(name string) string { return filepath.Join(folder, name) }
	for _, c := range []struct{ queries, corpus, qrels, want string }{
		{"q.jsonl", "q.jsonl", "other.tsv", `none of its 1 judgement is about a query and a document that exist; for one, query "7" is not in`},
		{"q.jsonl", "q.jsonl", "none.tsv", "none.tsv: no rows"},
		{"q.jsonl", "q.jsonl", "short.tsv", "short.tsv:2: the row has 2 fields where the first line names 3 columns"},
		{"q.jsonl", "q.jsonl", "word.tsv", `word.tsv:2: query "1", document "2", relevance "yes": want two ids and a whole number`},
		{"q.jsonl", "q.jsonl", "half.tsv", `half.tsv:2: query "1", document "2": the relevance is 0.5, want a whole number`},
		{"q.jsonl", "q.jsonl", "twice.tsv", `twice.tsv:1: the first line names a column "score" twice`},
		{"q.jsonl", "q.jsonl", "none2.tsv", "none2.tsv: no judgements"},
		{"q.jsonl", "q.jsonl", "short2.tsv", "short2.tsv:3: 2 fields, want query-id, corpus-id and score, or TREC's"},
		{"q.jsonl", "q.jsonl", "word2.tsv", `word2.tsv:2: the score is "yes", want a whole number`},
		{"q.jsonl", "q.jsonl", "far.tsv", `far.tsv:1: the score is "2147483648", want a whole number`},
		{"q.jsonl", "q.jsonl", "far.qrels", `far.qrels:1: the score is "inf", want a whole number`},
		{"q.jsonl", "q.jsonl", "half2.tsv", `half2.tsv:1: the score is "0.5", want a whole number`},
		{"q.jsonl", "q.jsonl", "utf16.tsv", "utf16.tsv is UTF-16"},
		{"q.jsonl", "q.jsonl", "latin.tsv", "latin.tsv:2: the line is not UTF-8, which it has to be (iconv"},
		{"q.jsonl", "q.jsonl", "half.jsonl", `half.jsonl:2: query "2", document "2": the relevance is 0.5, want a whole number`},
		{"q.jsonl", "q.jsonl", "mixed.tsv", "mixed.tsv:2: 4 fields, the lines before it have 3"},
		{"q.jsonl", "q.jsonl", "run.txt", "run.txt:1: 6 fields, want query-id, corpus-id and score, or TREC's query, iteration, document and relevance"},
		{"q.jsonl", "q.jsonl", "word.qrels", `word.qrels:2: the score is "yes", want a whole number`},
		{"q.jsonl", "q.jsonl", "nofile.qrels", "nofile.qrels: no such file"},
		{"q.jsonl", "q.jsonl", "again.tsv", `again.tsv:3: query "1": document "2" is judged a second time, with 1 and 2: keep one of them`},
		{"q.jsonl", "q.jsonl", "again.qrels", `again.qrels:3: query "1": document "9" is judged a second time, with 1 and 2: keep one of them`},
		{"twice2.tsv", "q.jsonl", "r.tsv", `twice2.tsv:3, column "id": "1" comes a second time`},
		{"three.tsv", "q.jsonl", "r.tsv", "three.tsv:2: 3 fields between tabs, want an id and a text"},
		{"words.tsv", "q.jsonl", "r.tsv", `words.tsv has no column "id"`},
		{"latin2.tsv", "q.jsonl", "r.tsv", `latin2.tsv:2, column "text": the text is not UTF-8`},
		{"latin3.tsv", "q.jsonl", "r.tsv", `latin3.tsv:2, column "id": the id is not UTF-8`},
		{"blank.tsv", "q.jsonl", "r.tsv", `blank.tsv:2, column "text": the query is null or empty`},
		{"twice.jsonl", "q.jsonl", "r.tsv", `twice.jsonl:3, column "id": "1" comes a second time`},
		{"empty.jsonl", "q.jsonl", "r.tsv", `empty.jsonl:2, column "text": the text is null`},
		{"q.jsonl", "empty.jsonl", "r.tsv", `empty.jsonl:2, column "text": the text is null`},
		{"q.jsonl", "title.jsonl", "r.tsv", `title.jsonl:3, column "text": the text is null`},
		{"_id.jsonl", "q.jsonl", "r.tsv", `_id.jsonl:2, column "_id": null`},
		{"noid.jsonl", "q.jsonl", "r.tsv", `noid.jsonl has no column "id"`},
		{"q.jsonl", "nowhere.jsonl", "r.tsv", "nowhere.jsonl"},
	} {
		if _, err := LoadRetrieval(ctx, at(c.queries), at(c.corpus), at(c.qrels)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if _, err := LoadRetrieval(ctx, at("q.jsonl"), "", ""); err == nil || !strings.Contains(err.Error(), "retrieval needs queries, corpus and qrels") {
		t.Error(err)
	}
	if _, err := LoadRetrieval(ctx, folder, "", ""); err == nil || !strings.Contains(err.Error(), "has no queries.jsonl") {
		t.Error(err)
	}
}

func TestPairs(t *testing.T) {
	ctx := context.Background()
	folder := write(t, map[string]string{
		"sts.jsonl":  `{"sentence1": "a", "sentence2": "b", "score": 4.5}` + "\n" + `{"sentence1": "c", "sentence2": "d", "score": 0}`,
		"null.jsonl": `{"sentence1": "a", "sentence2": "b", "score": 4.5}` + "\n" + `{"sentence1": "c", "sentence2": "d", "score": null}`,
	})
	got, err := LoadPairs(ctx, filepath.Join(folder, "sts.jsonl"), "sentence1", "sentence2", "score")
	if want := (&Pairs{A: []string{"a", "c"}, B: []string{"b", "d"}, Scores: []float64{4.5, 0}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = LoadPairs(ctx, filepath.Join(folder, "null.jsonl"), "sentence1", "sentence2", "score"); err == nil || !strings.Contains(err.Error(), `null.jsonl:2, column "score"`) {
		t.Error(err)
	}
	separated := write(t, map[string]string{"sts.csv": "sentence1,score,sentence2\n\"a, b\", 4.5,b\nc,0 ,d\n", "null.tsv": "sentence1\tsentence2\tscore\na\tb\t\n", "inf.tsv": "sentence1\tsentence2\tscore\na\tb\tinf\n"})
	got, err = LoadPairs(ctx, filepath.Join(separated, "sts.csv"), "sentence1", "sentence2", "score")
	if want := (&Pairs{A: []string{"a, b", "c"}, B: []string{"b", "d"}, Scores: []float64{4.5, 0}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"null.tsv", "inf.tsv"} {
		if _, err = LoadPairs(ctx, filepath.Join(separated, name), "sentence1", "sentence2", "score"); err == nil || !strings.Contains(err.Error(), name+`:2, column "score"`) {
			t.Error(err)
		}
	}
	if _, err = LoadPairs(ctx, filepath.Join(folder, "sts.jsonl"), "sentence1", "{sentence2", "score"); err == nil || !strings.Contains(err.Error(), "a { without a column") {
		t.Error(err)
	}
	g := goldens(t)
	got, err = LoadPairs(ctx, golden("default.parquet"), "query", "doc.body.text", "weight")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range g.Rows {
		if got.A[i] != r.Query || got.B[i] != r.Doc.Body.Text || got.Scores[i] != float64(r.Weight) {
			t.Fatalf("row %d: %q %q %v", i, got.A[i], got.B[i], got.Scores[i])
		}
	}
}
