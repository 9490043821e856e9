package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// openTexts opens texts that are closed when the test ends.
func openTexts(t *testing.T, src TextSource) *Texts {
	t.Helper()
	texts, err := OpenTexts(t.Context(), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(texts.Close)
	return texts
}

// readRows are the texts of all rows, as a reader gives them, whose hashes are checked.
func readRows(t *testing.T, d *Dataset) (rows [][]string) {
	t.Helper()
	r := d.NewReader(ReaderConfig{})
	defer r.Close()
	for row := range d.Rows() {
		examples, err := r.Read(t.Context(), 0, []int64{row})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, examples[0].Texts)
		for i, text := range examples[0].Texts {
			if examples[0].Hashes[i] != HashText(text) {
				t.Errorf("row %d: the hash of %q is another text's", row, text)
			}
		}
	}
	return rows
}

// Ids find their texts in files of every kind, be they strings, integers or floats there and here, whatever the blocks.
func TestTextsByID(t *testing.T) {
	folder := write(t, map[string]string{
		"q.jsonl":       `{"_id": "q1", "text": "who"}` + "\n" + `{"_id": 2, "text": "why"}` + "\n" + `{"_id": 3.0, "text": "what"}` + "\n",
		"c.csv":         "id,title,text\n10,A,one\n11,,\"two, three\"\n12,C,\n",
		"bare.tsv":      "10\tA one\n11\ttwo, three\n12\tC\n",
		"array.json":    `[{"_id": "10", "title": "A", "text": "one"}, {"_id": "11", "title": null, "text": "two, three"}, {"_id": "12", "title": "C", "text": ""}]`,
		"rows.jsonl":    `{"q": "q1", "p": 10, "n": ["11", 12.0]}` + "\n" + `{"q": "2", "p": "11", "n": [10]}` + "\n" + `{"q": 3, "p": 12, "n": []}` + "\n",
		"pairs.csv":     "q,p\nq1,10\n2,11\n3,12\n",
		"a.parts.jsonl": `{"id": 12, "text": "C", "title": ""}` + "\n",
		"b.parts.jsonl": `{"id": 11, "text": "two, three", "title": ""}` + "\n" + `{"id": 10, "title": "A", "text": "one"}` + "\n" + `{"id": 12, "text": "", "title": "C"}` + "\n",
	})
	at := func(name string) string { return filepath.Join(folder, name) }
	w, err := NewParquetWriter(at("c.parquet"), OutColumn{"doc", FloatOut}, OutColumn{"body", TextOut})
	if err == nil {
		err = errors.Join(w.Write([]float64{10, 11, 12}, []string{"A one", "two, three", "C"}), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err = NewParquetWriter(at("rows.parquet"), OutColumn{"q", TextOut}, OutColumn{"p", IntOut}, OutColumn{"n", LongsOut})
	if err == nil {
		err = errors.Join(w.Write([]string{"q1", "2", "3"}, []int64{10, 11, 12}, [][]int64{{11, 12}, {10}, {}}), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	queries := openTexts(t, TextSource{Paths: []string{at("q.jsonl")}})
	want := [][]string{{"who", "A one", "two, three", "C"}, {"why", "two, three", "A one"}, {"what", "C"}}
	for _, src := range []TextSource{{Paths: []string{at("c.csv")}}, {Paths: []string{at("bare.tsv")}}, {Paths: []string{at("array.json")}}, {Paths: []string{at("c.parquet")}, ID: "doc", Text: "body"}, {Paths: []string{at("*.parts.jsonl")}}} {
		corpus := openTexts(t, src)
		for _, rows := range []string{"rows.jsonl", "rows.parquet", "pairs.csv"} {
			for _, limit := range []blockLimit{defaultLimit, {2, 2 << 20}} {
				src := Source{Paths: []string{at(rows)}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives, Queries: queries, Corpus: corpus}
				want := slices.Clone(want)
				if rows == "pairs.csv" {
					src.Negatives, src.NegativesPerQuery = nil, 0
					for i := range want {
						want[i] = want[i][:2]
					}
				}
				d, err := open(t.Context(), src, limit)
				if err != nil {
					t.Fatal(err)
				}
				if got := readRows(t, d); !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %s: %q, want %q", src.Paths, rows, got, want)
				}
				x, err := d.Index(t.Context(), IndexConfig{})
				if err != nil {
					t.Fatal(err)
				}
				for row, texts := range want {
					hashes, lengths := x.Hashes(nil, 0, 0, int64(row)), x.Lengths(nil, 0, 0, int64(row))
					for i, text := range texts {
						if hashes[i] != HashText(text) || lengths[i] != uint32(len(text)) {
							t.Errorf("%s, %s: the index has another text than %q in row %d", src.Paths, rows, text, row)
						}
					}
				}
				d.Close()
			}
		}
	}
}

// Integers are the ids that they are, however large, and floats as far as no other integer is the same one.
func TestExactIDs(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	const large = 1 << 53
	if err := os.WriteFile(at("c.jsonl"), []byte(fmt.Sprintf(`{"id": %d, "text": "even"}`+"\n"+`{"id": "%d", "text": "odd"}`+"\n"+`{"id": 18446744073709551615, "text": "most"}`+"\n"+`{"id": -7, "text": "less"}`+"\n"+
		`{"id": %d, "text": "last"}`+"\n"+`{"id": 16777215, "text": "small"}`+"\n"+`{"id": 0, "text": "nought"}`+"\n", large, large+1, large-1)), 0o600); err != nil {
		t.Fatal(err)
	}
	corpus := openTexts(t, TextSource{Paths: []string{at("c.jsonl")}})
	check := func(name string, want ...string) { // a text, or after an exclamation mark what is wrong
		t.Helper()
		d, err := Open(t.Context(), Source{Paths: []string{at(name)}, Query: "q", Positive: "p", Corpus: corpus})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		row := 0
		for r, err := range d.Each(t.Context()) {
			got := ""
			if err != nil {
				got = "!" + err.Error()
			} else {
				got = r.Column(nil, 1)[0]
			}
			if wrong, is := strings.CutPrefix(want[row], "!"); got != want[row] && !(is && strings.HasPrefix(got, "!") && strings.Contains(got, wrong) && strings.Contains(got, `column "p"`)) {
				t.Errorf("%s, row %d: %q, want %q", name, row, got, want[row])
			}
			row++
		}
		if row != len(want) {
			t.Errorf("%s: %d rows", name, row)
		}
	}
	var lines strings.Builder
	for _, id := range []string{"9007199254740992", "9007199254740993", `"9007199254740993"`, "18446744073709551615", "-7.0", "9007199254740991.00", "9007199254740992.0", "10000000000000000.0", "16777215.0", "1.5", "1e3", "7.0", "true", "null", `""`, "[7]", `"0.0"`, "0.0"} {
		fmt.Fprintf(&lines, `{"q": "a", "p": %s}`+"\n", id)
	}
	if err := os.WriteFile(at("rows.jsonl"), []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	check("rows.jsonl", "even", "odd", "odd", "most", "less", "last", "!it is 9007199254740992.0 as a float, which may be another", "!as a float", "small", "!it is 1.5, want an id", "!it is 1e3, want an id", `!no text has the id "7", of 7 texts in c.jsonl`,
		"!it is true or false, want a string or integer", "!it is null", `!no text has the id ""`, "!it is a list, want a string or integer", `!no text has the id "0.0", of 7 texts in c.jsonl; "0" has one`, "nought")

	column := func(name string, node parquet.Node, values ...parquet.Value) {
		schema := parquet.NewSchema("rows", parquet.Group{"p": parquet.Optional(node), "q": parquet.String()})
		var rows []parquet.Row
		for _, v := range values {
			definition := 1
			if v.IsNull() {
				definition = 0
			}
			rows = append(rows, parquet.Row{v.Level(0, definition, 0), parquet.ByteArrayValue([]byte("a")).Level(0, 0, 1)})
		}
		writeParquet(t, at(name), schema, rows...)
	}
	column("double.parquet", parquet.Leaf(parquet.DoubleType), parquet.DoubleValue(large-1), parquet.DoubleValue(large), parquet.DoubleValue(-7), parquet.DoubleValue(0.5), parquet.DoubleValue(math.NaN()), parquet.DoubleValue(math.Inf(1)), parquet.NullValue())
	check("double.parquet", "last", "!as a float, which may be another", "less", "!it is 0.5, want an id", "!it is NaN, want an id", "!it is +Inf, want an id", "!it is null")
	column("float.parquet", parquet.Leaf(parquet.FloatType), parquet.FloatValue(16777215), parquet.FloatValue(16777216), parquet.FloatValue(-7))
	check("float.parquet", "small", "!as a float, which may be another", "less")
	column("unsigned.parquet", parquet.Uint(64), parquet.Int64Value(-1), parquet.Int64Value(large+1))
	check("unsigned.parquet", "most", "odd")
	column("signed.parquet", parquet.Int(32), parquet.Int32Value(-7), parquet.Int32Value(16777215))
	check("signed.parquet", "less", "small")
}

// What is wrong with texts, or with what names them, is said with file, row and column, and so is what helps.
func TestTextsErrors(t *testing.T) {
	const rows = `{"q": "a", "p": "x", "n": ["y"], "same": "a"}` + "\n"
	for _, c := range []struct{ corpus, columns, want string }{
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "x", "text": "one"}`, "", ""},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "x", "text": "two"}`, "", `c.jsonl:2, column "id": the id "x" comes a second time, with another text than in FOLDER/c.jsonl:1`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": null, "text": "two"}`, "", `c.jsonl:2, column "id": the id is null or missing`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "", "text": "two"}`, "", `c.jsonl:2, column "id": the id is empty`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": 1.5, "text": "two"}`, "", `c.jsonl:2, column "id": it is 1.5, want an id: a string or an integer`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "z" "text": "two"}`, "", `c.jsonl:2: not JSON at byte 12`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "z", "text": ["two"]}`, "", `c.jsonl:2, column "text": it is a list, want a string`},
		{`{"id": ["x"], "text": "one"}`, "", `c.jsonl:1: column "id" is a list: want one id and one text in a row`},
		{`{"docid": "x", "text": "one"}`, "", `c.jsonl has no column "id"; its columns are "docid", "text"; {path: FILES, id: COLUMN, text: COLUMN} says`},
		{`{"_id": "x", "body": "one"}`, "", `c.jsonl has no column "text"; its columns are "_id", "body"; {path: FILES`},
		{"\n", "", "no rows"},
		{`{"id": "x", "text": ""}`, "", `rows.jsonl:1, column "p": it is an id, "x", of a text that is empty`},
		{`{"id": "x", "text": null}`, "", `rows.jsonl:1, column "p": it is an id, "x", of a text that is empty`},
		{`{"id": "x"}` + "\n" + `{"id": "z", "text": "one"}`, "", `rows.jsonl:1, column "p": it is an id, "x", of a text that is empty`},
		{`{"id": "y", "text": "one"}`, "", `rows.jsonl:1, column "p": no text has the id "x", of 1 text in c.jsonl`},
		{`{"id": "x", "text": "one"}`, "n", `rows.jsonl:1, column "n": no text has the id "y", of 1 text in c.jsonl`},
		{`{"id": "x", "text": "one"}` + "\n" + `{"id": "y", "text": " "}`, "n", `rows.jsonl:1, column "n": text 0 of the list is an id, "y", of a text that is blank`},
		{`{"id": "x", "text": "one"}`, "{p}", `the template "{p}" would be an id: documents are named by those of one column`},
		{`{"id": "a", "text": "one"}`, "same", `column "same" is that of queries and of documents`},
	} {
		folder := write(t, map[string]string{"c.jsonl": c.corpus + "\n", "rows.jsonl": rows})
		err := func() error {
			corpus, err := OpenTexts(t.Context(), TextSource{Paths: []string{folder + "/c.jsonl"}}, nil)
			if err != nil {
				return err
			}
			defer corpus.Close()
			src := Source{Paths: []string{folder + "/rows.jsonl"}, Query: "q", Positive: "p", Corpus: corpus}
			switch c.columns {
			case "n":
				src.Negatives, src.NegativesPerQuery = []string{"n"}, 1
			case "same":
				src.Query, src.Positive = "same", "same"
			case "{p}":
				src.Positive = c.columns
			}
			d, err := Open(t.Context(), src)
			if err != nil {
				return err
			}
			defer d.Close()
			_, err = d.Index(t.Context(), IndexConfig{})
			return err
		}()
		want := strings.ReplaceAll(c.want, "FOLDER", folder)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", c.corpus, err, want)
		}
	}
	if said := openTexts(t, TextSource{Paths: []string{write(t, map[string]string{"c.jsonl": `{"id": "x", "text": "one"}` + "\n"}) + "/c.jsonl"}}).none(bytes.Repeat([]byte("é"), 1000)); !strings.Contains(said, strings.Repeat("é", 100)+`", of 1 text`) || len(said) > 300 {
		t.Errorf("an id of no end: %s", said)
	}
	folder := write(t, map[string]string{"c.tsv": "x\tone\ny\ttwo\n"}) // a first line of which nobody knows what it is
	_, err := OpenTexts(t.Context(), TextSource{Paths: []string{folder + "/c.tsv"}}, nil)
	if want := `c.tsv has no column "id"; its columns are "x", "one" (the first line has to name the columns); {path: FILES`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// A dataset's fingerprint is of its texts too, and not of how their files are called or cut.
func TestTextsFingerprint(t *testing.T) {
	folder := write(t, map[string]string{
		"rows.jsonl": `{"q": "a", "p": "x"}` + "\n",
		"c.jsonl":    `{"id": "x", "text": "one"}` + "\n" + `{"id": "y", "text": "two"}` + "\n", "d.jsonl": `{"id": "y", "text": "two"}` + "\n" + `{"id": "x", "text": "one"}` + "\n",
		"text.jsonl": `{"id": "x", "text": "one"}` + "\n" + `{"id": "y", "text": "too"}` + "\n", "id.jsonl": `{"id": "y", "text": "one"}` + "\n" + `{"id": "x", "text": "two"}` + "\n",
		"ids.jsonl": `{"id": "xo", "text": "ne"}` + "\n" + `{"id": "y", "text": "two"}` + "\n", "moved.jsonl": `{"id": "x", "text": "onet"}` + "\n" + `{"id": "y", "text": "wo"}` + "\n",
	})
	of := func(query, corpus string) (Hash128, []File) {
		src := Source{Paths: []string{folder + "/rows.jsonl"}, Query: "q", Positive: "p", Corpus: openTexts(t, TextSource{Paths: []string{filepath.Join(folder, corpus)}})}
		if query != "" {
			src.Queries = openTexts(t, TextSource{Paths: []string{filepath.Join(folder, query)}})
		}
		d, err := Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return d.Fingerprint(), d.Files()
	}
	want, files := of("", "c.jsonl")
	if len(files) != 2 || files[1].Name != "corpus" || files[1].Rows != 2 {
		t.Errorf("files %v", files)
	}
	if got, also := of("", "d.jsonl"); got != want || !slices.Equal(also, files) {
		t.Error("it is another of the same texts in another file")
	}
	seen := map[Hash128]string{want: "c.jsonl"}
	for _, c := range [][2]string{{"", "text.jsonl"}, {"", "id.jsonl"}, {"", "moved.jsonl"}, {"", "ids.jsonl"}, {"c.jsonl", "c.jsonl"}, {"text.jsonl", "c.jsonl"}, {"c.jsonl", "text.jsonl"}} {
		got, _ := of(c[0], c[1])
		if seen[got] != "" {
			t.Errorf("%s has that of %s", c, seen[got])
		}
		seen[got] = fmt.Sprint(c)
	}
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `{"id": %d, "text": "%[1]d"}`+"\n", i)
	}
	folder = write(t, map[string]string{"c.jsonl": many.String()})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	alone := openTexts(t, TextSource{Paths: []string{folder + "/c.jsonl"}}).Fingerprint()
	runtime.GOMAXPROCS(3)
	if openTexts(t, TextSource{Paths: []string{folder + "/c.jsonl"}}).Fingerprint() != alone {
		t.Error("it is another on another number of processors")
	}
}

// Texts and what finds them are outside the heap, take what they are said to, and are given back.
func TestTextsMemory(t *testing.T) {
	const n = 100_000
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"id": "%d", "text": "text %[1]d, with some more words that make it as long as a short passage may be"}`+"\n", i)
	}
	folder := write(t, map[string]string{"c.jsonl": lines.String()})
	t.Setenv("TMPDIR", folder)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var told []int64
	c, err := OpenTexts(t.Context(), TextSource{Paths: []string{folder + "/c.jsonl"}}, func(done, total int64) {
		if told = append(told, done); total != n {
			t.Errorf("of %d rows", total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	procs := runtime.GOMAXPROCS(0) // so many blocks of 4096 rows are read at a time
	if want := (n/4096 + procs) / procs; len(told) != want || !slices.IsSorted(told) || told[len(told)-1] != n {
		t.Errorf("progress: %v, want %d times", told, want)
	}
	after := heap()
	if slab := runtime.GOOS != "windows"; slab && after > before+1_000_000 {
		t.Errorf("the heap has grown by %d bytes", after-before)
	}
	if each := (8*len(c.begins) + 16*len(c.hashes) + 4*len(c.slots)) / n; each < 29 || each > 35 {
		t.Errorf("%d bytes a text", each)
	}
	for _, i := range []int{0, 1, 4095, 4096, n - 1} {
		slot := *c.slot(fmt.Append(nil, i))
		if slot == 0 || !strings.HasPrefix(string(c.text(slot-1)), fmt.Sprintf("text %d,", i)) {
			t.Errorf("id %d finds slot %d", i, slot)
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, "contraflow-*")); err != nil || len(left) > 0 {
		t.Errorf("%s are left: %v", left, err)
	}
	c.Close()
	c.Close()
	if c.bytes != nil || c.memory.pieces != nil {
		t.Error("memory is not given back")
	}
}
