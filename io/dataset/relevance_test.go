package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// judged is a folder of queries and documents 0 to 9, "query 0" and "text 0".
func judged(t *testing.T, files map[string]string) (at func(name string) string, queries, corpus *Texts) {
	t.Helper()
	for i := range 10 {
		files["c.jsonl"] += fmt.Sprintf(`{"_id": "d%d", "title": "", "text": "text %[1]d"}`+"\n", i)
		files["q.jsonl"] += fmt.Sprintf(`{"_id": "%d", "text": "query %[1]d"}`+"\n", i)
	}
	folder := write(t, files)
	at = func(name string) string { return filepath.Join(folder, name) }
	return at, openTexts(t, TextSource{Paths: []string{at("q.jsonl")}}), openTexts(t, TextSource{Paths: []string{at("c.jsonl")}})
}

// Rows that are not relevant are none, in files of every kind and blocks of any size, lists and numbers with them; how many they are is told.
func TestLeaveOut(t *testing.T) {
	// Of 9 rows these remain: 1, 2, 5, 8. Row 3 would be bad, and so would row 6.
	scores := []string{"0", "1", "2", "-1", "0", "0.5", "0", "-0.0", "1"}
	lines, cells := "", "q,p,n,w,s\n"
	for i, s := range scores {
		q, p, w := fmt.Sprint(i), fmt.Sprintf("d%d", i), i
		if i == 3 {
			q, p = "none", ""
		}
		if i == 6 {
			w = -1
		}
		lines += fmt.Sprintf(`{"q": %q, "p": %q, "n": [%s], "w": %d, "s": %s}`+"\n", q, p, strings.Repeat(`"d9", `, i%3)+`"d0"`, w, s)
		cells += fmt.Sprintf("%s,%s,\"[%s]\",%d,%s\n", q, p, strings.ReplaceAll(strings.Repeat(`"d9", `, i%3)+`"d0"`, `"`, `""`), w, s)
	}
	at, queries, corpus := judged(t, map[string]string{"a.jsonl": lines, "a.csv": cells, "b.jsonl": lines[:strings.Index(lines, "\n")+1] + lines})
	w, err := NewParquetWriter(at("a.parquet"), OutColumn{"q", TextOut}, OutColumn{"p", TextOut}, OutColumn{"n", TextListOut}, OutColumn{"w", IntOut}, OutColumn{"s", FloatOut})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), Source{Paths: []string{at("a.jsonl")}, Query: "q", Positive: "p", Negatives: []string{"n"}, Raw: true, Weight: "w", Scores: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	for r := range d.Each(t.Context()) {
		if err := w.Write(r.Column(nil, 0), r.Column(nil, 1), [][]string{r.Column(nil, 2)}, []int64{int64(r.Weight(r.Place))}, []float64{float64(r.Scores(nil, r.Place)[0])}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d.Close()
	want := [][]string{{"query 1", "text 1", "text 9", "text 0"}, {"query 2", "text 2", "text 9", "text 9", "text 0"}, {"query 5", "text 5", "text 9", "text 9", "text 0"}, {"query 8", "text 8", "text 9", "text 9", "text 0"}}
	for _, c := range []struct {
		name  string
		rows  []int64 // in the file, of the last one
		lines []int64
		out   int
	}{
		{"a.jsonl", []int64{1, 2, 5, 8}, []int64{2, 3, 6, 9}, 5}, {"a.csv", []int64{1, 2, 5, 8}, []int64{3, 4, 7, 10}, 5}, {"a.parquet", []int64{1, 2, 5, 8}, []int64{0, 0, 0, 0}, 5},
		{"[ab].jsonl", []int64{2, 3, 6, 9}, []int64{3, 4, 7, 10}, 11}, // row 0 is there once more
	} {
		for _, size := range []int64{1, 2, 3, 4096} {
			d, err := open(t.Context(), Source{Paths: []string{at(c.name)}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives, Weight: "w", Queries: queries, Corpus: corpus, Relevance: "s"}, blockLimit{size, 2 << 20})
			if err != nil {
				t.Fatal(err)
			}
			wants := want
			if c.name[0] == '[' {
				wants = slices.Concat(want, want)
			}
			if got := readRows(t, d); !reflect.DeepEqual(got, wants) {
				t.Errorf("%s in blocks of %d: %q, want %q", c.name, size, got, wants)
			}
			if d.Layout().total() != d.Rows() || slices.Contains(d.Layout().Rows, 0) {
				t.Errorf("%s: blocks of %v", c.name, d.Layout().Rows)
			}
			r := d.NewReader(ReaderConfig{})
			for i, row := range c.rows {
				k := d.Rows() - 4 + int64(i)
				if at := d.Locate(k); at.Row != row || at.Line != c.lines[i] {
					t.Errorf("%s in blocks of %d: row %d is %v, want row %d, line %d", c.name, size, k, at, row, c.lines[i])
				}
				e, err := r.Read(t.Context(), 0, []int64{k})
				if err != nil {
					t.Fatal(err)
				}
				if w := []float32{1, 2, 5, 8}[i]; e[0].Weight != w {
					t.Errorf("%s: row %d weighs %v, want %v", c.name, k, e[0].Weight, w)
				}
			}
			r.Close()
			told := fmt.Sprintf(`%d rows are left out, whose "s" is 0 or less; %d remain`, c.out, len(wants))
			if !slices.Equal(d.Notes(), []string{told}) {
				t.Errorf("%s: notes %q, want %q", c.name, d.Notes(), told)
			}
			d.Close()
		}
	}
}

// Rows that can't be used keep their places among those that are left out; of one whose relevance nobody knows it is told.
func TestLeaveOutBadRows(t *testing.T) {
	at, queries, corpus := judged(t, map[string]string{
		"rows.jsonl": `{"q": 0, "p": "d0", "s": 0}
{"q": 1, "p": "d1", "s": 1}
{"q": 2, "p": "x", "s": 0}
{"q": 3, "p": "x", "s": 1}

{"q": 4, "p": "d4", "s": null}
{"q": 5 "p": "d5", "s": 0}
{"q": true, "p": "d6", "s": -2}
{"q": null, "p": "d7", "s": 1}
{"q": 8, "p": "d8", "s": "1"}
{"q": 9, "p": [], "s": 0}
{"q": 9, "p": "d9", "s": 3}
`, "none.jsonl": `{"q": 0, "p": "d0", "s": 0}` + "\n" + `{"q": 0, "p": "d0", "s": -1}` + "\n"})
	for _, size := range []int64{1, 2, 3, 4096} {
		d, err := open(t.Context(), Source{Paths: []string{at("rows.jsonl")}, Query: "q", Positive: "p", Queries: queries, Corpus: corpus, Relevance: "s"}, blockLimit{size, 2 << 20})
		if err != nil {
			t.Fatal(err)
		}
		x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range x.Bad() {
			got = append(got, fmt.Sprintf("%d %s", b.Row, strings.TrimPrefix(b.Error(), at("rows.jsonl")+":")))
		}
		want := []string{
			`1 4, column "p": no text has the id "x", of 10 texts in c.jsonl`, `2 6, column "s": it is null, want a number`, `3 7: not JSON at byte 9: '"' where a comma or a brace } should be`,
			`4 9, column "q": it is null`, `5 10, column "s": it is a string, want a number`,
		}
		if d.Rows() != 7 || len(got) != len(want) {
			t.Fatalf("blocks of %d: %d rows, %q", size, d.Rows(), got)
		}
		for i := range want {
			if head, _, _ := strings.Cut(want[i], ": not JSON"); !strings.HasPrefix(got[i], head) {
				t.Errorf("blocks of %d: %q, want %q", size, got[i], want[i])
			}
		}
		d.Close()
	}
	_, err := Open(t.Context(), Source{Paths: []string{at("none.jsonl")}, Query: "q", Positive: "p", Queries: queries, Corpus: corpus, Relevance: "s"})
	if want := `none.jsonl: 2 rows are left out, whose "s" is 0 or less: none remains`; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// A block that can't be read keeps all its rows, which are told of where they are asked for; and an end of the run is no block that can't be read.
func TestLeaveOutUnreadable(t *testing.T) {
	at, queries, corpus := judged(t, map[string]string{})
	w, err := NewParquetWriter(at("a.parquet"), OutColumn{"q", TextOut}, OutColumn{"p", TextOut}, OutColumn{"s", IntOut})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write([]string{"1", "2", "3"}, []string{"d1", "d2", "d3"}, []int64{0, 1, 1}), w.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(at("a.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	src := Source{Paths: []string{at("a.parquet")}, Query: "q", Positive: "p", Queries: queries, Corpus: corpus, Relevance: "s"}
	read := func() (rows int64, err error) {
		d, err := Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.leaveOut(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the run ends: %v", err)
		}
		_, err = d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0})
		return d.Rows(), err
	}
	if rows, err := read(); rows != 2 || err != nil {
		t.Errorf("%d rows, %v", rows, err)
	}
	damaged := slices.Clone(whole)
	damaged[bytes.Index(damaged, []byte("d1"))]++
	if err := os.WriteFile(at("a.parquet"), damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	if rows, err := read(); rows != 3 || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `a.parquet: row group 0, column "p"`) {
		t.Errorf("%d rows of a damaged file, %v", rows, err)
	}
}

// Judgements are known by the names of their columns, or in .tsv files without such by how many there are, unless their score is something else.
func TestRecogniseJudgements(t *testing.T) {
	at, queries, corpus := judged(t, map[string]string{
		"beir.tsv": "query-id\tcorpus-id\tscore\n0\td0\t0\n1\td1\t2\n", "ours.csv": "query_id,doc_id,relevance\n0,d0,0\n1,d1,2\n", "bare.tsv": "0\td0\t0\n1\td1\t2\n", "trec.tsv": "0\t0\td0\t0\n1\t0\td1\t2\n",
		"two.tsv": "0\td0\n1\td1\n", "triples.tsv": "0\td0\td5\n1\td1\td0\n", "marco.tsv": "0\t1\t600\n1\t1\t0\n",
		"pairs.tsv": "query-id\tcorpus-id\n0\td0\n1\td1\n", "others.csv": "q,p,score\n0,d0,0\n1,d1,2\n",
		"both.csv": "query-id,corpus-id,x,score\n0,d0,0,1\n1,d1,1,0\n", "half.csv": "query-id,p,score\n0,d0,0\n1,d1,2\n", "other half.csv": "q,corpus-id,score\n0,d0,0\n1,d1,2\n", "all.csv": "query-id,corpus-id,score\n0,d0,1\n1,d1,2\n",
		"hundred.tsv": "1\td1\t100\n0\td0\t0\n", "names.tsv": "q\titer\tp\ts\n0\t0\td0\t0\n1\t0\td1\t1\n", "far.tsv": "0\t1\td0\t600\n1\t1\td1\t0\n", "five.tsv": "0\t1\td0\t2\t3\n1\t1\td1\t0\t1\n",
	})
	both := [][]string{{"query 0", "text 0"}, {"query 1", "text 1"}}
	for _, c := range []struct {
		name string
		src  Source
		want [][]string
		note string
	}{
		{"beir.tsv", Source{Query: "query-id", Positive: "corpus-id"}, both[1:], `beir.tsv: by the names of its columns its rows are judgements, and "score" says`},
		{"beir.tsv", Source{Query: "query-id", Positive: "corpus-id", Relevance: "score"}, both[1:], `1 row is left out, whose "score" is 0 or less; 1 remains`},
		{"beir.tsv", Source{Query: "query-id", Positive: "corpus-id", Label: "score"}, both, ""},
		{"beir.tsv", Source{Query: "query-id", Positive: "corpus-id", Weight: "score"}, both, ""},
		{"ours.csv", Source{Query: "query_id", Positive: "doc_id"}, both[1:], `and "relevance" says`},
		{"bare.tsv", Source{Query: "query-id", Positive: "corpus-id"}, both[1:], `and "relevance" says`},
		{"trec.tsv", Source{Query: "query-id", Positive: "corpus-id"}, both[1:], `and "relevance" says`},
		{"trec.tsv", Source{Query: "q", Positive: "p", Relevance: "s"}, both[1:], `whose "s" is 0 or less`},
		{"pairs.tsv", Source{Query: "query-id", Positive: "corpus-id"}, both, ""},
		{"others.csv", Source{Query: "q", Positive: "p"}, both, ""},
		{"two.tsv", Source{Query: "q", Positive: "p"}, both, ""},
		{"both.csv", Source{Query: "query-id", Positive: "corpus-id", Relevance: "x"}, both[1:], `whose "x" is 0 or less`},
		{"half.csv", Source{Query: "query-id", Positive: "p"}, both, ""},
		{"other half.csv", Source{Query: "q", Positive: "corpus-id"}, both, ""},
		{"all.csv", Source{Query: "query-id", Positive: "corpus-id"}, both, `and "score" says`},
		{"bare.tsv", Source{Query: "query-id", Positive: "corpus-id", Relevance: "s"}, both[1:], `whose "s" is 0 or less`},
		{"hundred.tsv", Source{Query: "query-id", Positive: "corpus-id"}, both[1:], `whose "relevance" is 0 or less`},
		{"names.tsv", Source{Query: "q", Positive: "p", Relevance: "s"}, both[1:], `whose "s" is 0 or less`},
		{"triples.tsv", Source{Query: "q", Positive: "p", Negatives: []string{"n"}}, [][]string{{"query 0", "text 0", "text 5"}, {"query 1", "text 1", "text 0"}}, ""},
		{"triples.tsv", Source{Query: "query_id", Positive: "doc_id", Negatives: []string{"n"}}, [][]string{{"query 0", "text 0", "text 5"}, {"query 1", "text 1", "text 0"}}, ""},
	} {
		c.src.Paths, c.src.Queries, c.src.Corpus = []string{at(c.name)}, queries, corpus
		d, err := Open(t.Context(), c.src)
		if err != nil {
			t.Fatal(err)
		}
		if got := readRows(t, d); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %+v: %q, want %q", c.name, c.src, got, c.want)
		}
		if notes := strings.Join(d.Notes(), "\n"); !strings.Contains(notes, c.note) || c.note == "" && notes != "" || strings.HasPrefix(notes, "0 rows") || strings.Contains(notes, "\n0 rows") {
			t.Errorf("%s %+v: notes %q, want %q", c.name, c.src, notes, c.note)
		}
		d.Close()
	}
	// What is so called in rows of texts says nothing.
	for _, c := range []struct {
		src  Source
		want [][]string
	}{
		{Source{Corpus: corpus}, [][]string{{"0", "text 0"}, {"1", "text 1"}}},
		{Source{Queries: queries}, [][]string{{"query 0", "d0"}, {"query 1", "d1"}}},
	} {
		c.src.Paths, c.src.Query, c.src.Positive = []string{at("beir.tsv")}, "query-id", "corpus-id"
		d, err := Open(t.Context(), c.src)
		if err != nil {
			t.Fatal(err)
		}
		if got := readRows(t, d); !reflect.DeepEqual(got, c.want) {
			t.Errorf("of texts: %q, want %q", got, c.want)
		}
		d.Close()
	}
	// Negatives' ids are no relevance, and ids that nothing has are no row: the first line is taken for names.
	for _, c := range []struct {
		name string
		src  Source
		have string
	}{
		{"marco.tsv", Source{Query: "query-id", Positive: "corpus-id"}, `"0", "1", "600"`},
		{"marco.tsv", Source{Query: "q", Positive: "p", Negatives: []string{"n"}}, `"0", "1", "600"`},
		{"hundred.tsv", Source{Query: "q", Positive: "p"}, `"1", "d1", "100"`},
		{"triples.tsv", Source{Query: "q", Positive: "p"}, `"0", "d0", "d5"`},
		{"far.tsv", Source{Query: "query-id", Positive: "corpus-id"}, `"0", "1", "d0", "600"`},
		{"five.tsv", Source{Query: "q", Positive: "p", Relevance: "s"}, `"0", "1", "d0", "2", "3"`},
	} {
		c.src.Paths, c.src.Queries, c.src.Corpus = []string{at(c.name)}, queries, corpus
		if _, err := Open(t.Context(), c.src); err == nil || !strings.HasSuffix(err.Error(), "; its columns are "+c.have+" (the first line has to name the columns)") {
			t.Errorf("%s %+v: %v", c.name, c.src, err)
		}
	}
	_, err := Open(t.Context(), Source{Paths: []string{at("two.tsv")}, Query: "q", Positive: "p", Corpus: corpus}) // ids of documents, but a text of a query
	if err == nil || !strings.HasSuffix(err.Error(), `; its columns are "0", "d0" (the first line has to name the columns)`) {
		t.Errorf("without queries: %v", err)
	}
}

// Rows that are not relevant are none where the token ids of files that prep has written are read, either: those that stay have their own ids.
func TestLeaveOutTokens(t *testing.T) {
	const n = 10
	path := filepath.Join(t.TempDir(), "ids.parquet")
	w, err := NewParquetWriter(path, OutColumn{"query", TextOut}, OutColumn{"query_hash", LongsOut}, OutColumn{"query_ids", IDsOut},
		OutColumn{"pos", TextListOut}, OutColumn{"pos_hash", LongsOut}, OutColumn{"pos_ids", IDsOut}, OutColumn{"pos_id_counts", IDsOut}, OutColumn{"score", IntOut})
	if err != nil {
		t.Fatal(err)
	}
	w.SetMetadata(TokenKey, `{"tokenizer": "t"}`)
	texts, lists, hashes, ids, counts, scores := make([]string, n), make([][]string, n), make([][]int64, n), make([][]int32, n), make([][]int32, n), make([]int64, n)
	want := []int32{}
	for i := range n {
		texts[i], lists[i], hashes[i], ids[i], counts[i], scores[i] = "a", []string{"b"}, []int64{int64(i), 1}, []int32{int32(i)}, []int32{1}, int64(i%3-1)
		if scores[i] > 0 {
			want = append(want, int32(i))
		}
	}
	if err := errors.Join(w.Write(texts, hashes, ids, lists, hashes, ids, counts, scores), w.Close()); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1, 3, 4, 4096} {
		src := idsSource
		src.Paths, src.Relevance = []string{path}, "score"
		d, err := open(t.Context(), src, blockLimit{size, 2 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r := d.NewReader(ReaderConfig{})
		var got []int32
		for row := range d.Rows() {
			e, err := r.Read(t.Context(), 0, []int64{row})
			if err != nil {
				t.Fatal(err)
			}
			if query, pos := e[0].IDs[0], e[0].IDs[1]; !slices.Equal(query, pos) || e[0].Hashes[0].Hi != uint64(query[0]) {
				t.Errorf("row %d: ids %v and %v, hash %v", row, query, pos, e[0].Hashes[0])
			}
			got = append(got, e[0].IDs[0]...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("blocks of %d: rows %v, want %v", size, got, want)
		}
		r.Close()
		d.Close()
	}
	src := idsSource
	src.Paths, src.Corpus = []string{path}, new(Texts)
	if _, err := Open(t.Context(), src); err == nil || !strings.HasSuffix(err.Error(), "have no token ids beside them") {
		t.Errorf("ids of texts and of tokens: %v", err)
	}
}
