package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// csvRows reads a file's content as rows of strings, nil for null. Of a row that is none there is what is wrong with it.
func csvRows(path, content string) (rows []map[string]*string, lines []int64, err error) {
	j := &jsonlFile{path: path}
	c, err := newCSVReader(path, strings.NewReader(content), &j.gaps, nil)
	if err != nil {
		return nil, nil, err
	}
	raw, err := io.ReadAll(c)
	if err != nil {
		return nil, nil, err
	}
	if !utf8.Valid(raw) {
		return nil, nil, fmt.Errorf("%q is not UTF-8", raw)
	}
	for l := range bytes.Lines(raw) {
		var row map[string]*string
		var wrong string
		if json.Unmarshal(l, &wrong) == nil {
			row = map[string]*string{"wrong": &wrong}
		} else if err := json.Unmarshal(l, &row); err != nil {
			return nil, nil, fmt.Errorf("%q: %w", l, err)
		}
		lines = append(lines, j.line(int64(len(rows))))
		rows = append(rows, row)
	}
	return rows, lines, nil
}

func TestCSVRows(t *testing.T) {
	for _, c := range []struct{ name, content, want, lines string }{
		{"a.csv", "q,p\na,b\n", `[{"p":"b","q":"a"}]`, "[2]"},
		{"a.csv", "\ufeffq,p\r\na,b\r\n\r\n,\"x, \"\"y\"\"\"", `[{"p":"b","q":"a"},{"p":"x, \"y\"","q":null}]`, "[2 4]"},
		{"a.csv", "\"q\ns\",p\n\"1\n\n2\",b\nc,d\n\"\\\t\x01<é\",\n", `[{"p":"b","q\ns":"1\n\n2"},{"p":"d","q\ns":"c"},{"p":null,"q\ns":"\\\t\u0001\u003cé"}]`, "[3 6 7]"},
		{"a.csv.gz", ",q\n0,a\n1,b\n", `[{"":"0","q":"a"},{"":"1","q":"b"}]`, "[2 3]"},  // as pandas writes an index
		{"a.csv", "q,p\n\"a\r\nb\nc\rd\",e\n", `[{"p":"e","q":"a\r\nb\nc\rd"}]`, "[2]"}, // as pandas, pyarrow and Python's csv have it
		{"a.csv", "\"q\r\ns\",p\r\n\"a\"\"\r\n\r\n\r\r\nb\",\"\r\n\"\r\nc,d\r\n", `[{"p":"\r\n","q\r\ns":"a\"\r\n\r\n\r\r\nb"},{"p":"d","q\r\ns":"c"}]`, "[3 8]"},
		{"a.tsv", "q\tp\r\nsay \"x\t\"y\r\n\r\n\r\na,b\t\n", `[{"p":"\"y","q":"say \"x"},{"p":null,"q":"a,b"}]`, "[2 5]"},
		{"a.tsv", "q\tp\n\t\n  \n\r\n \t\n", `[{"p":null,"q":null},{"p":null,"q":" "}]`, "[2 5]"},
		{"a.tsv.zst", "\ufeffq\na", `[{"q":"a"}]`, "[2]"},
		{"a.csv", "q,p\n", `null`, "[]"},
		{"a.csv", "q,p\na,b\n\n\"c\nc\",d,e\nf\ng,h\n", `[{"p":"b","q":"a"},{"wrong":"the row has 3 fields where the first line names 2 columns: one with a comma in it needs quotes"},` +
			`{"wrong":"the row has 1 field where the first line names 2 columns: one with a comma in it needs quotes"},{"p":"h","q":"g"}]`, "[2 4 6 7]"},
		{"a.csv", "q,\"é \"\"x\"\"\"\né,\"caf\xe9\nx\"\na,é\n", `[{"wrong":"column 2, \"é \\\"x\\\"\", is not UTF-8, which it has to be (iconv -f windows-1252 -t utf-8, if a program for Windows has written it)"},{"q":"a","é \"x\"":"é"}]`, "[2 4]"},
		{"a.tsv", "q\tp\nc\na\tb\n", `[{"wrong":"the row has 1 field where the first line names 2 columns"},{"p":"b","q":"a"}]`, "[2 3]"},
	} {
		rows, lines, err := csvRows(c.name, c.content)
		got, _ := json.Marshal(rows)
		if err != nil || string(got) != c.want || fmt.Sprint(lines) != c.lines {
			t.Errorf("%s %q: %s in lines %d, %v; want %s in %s", c.name, c.content, got, lines, err, c.want, c.lines)
		}
	}
	for _, c := range []struct{ name, content, want string }{
		{"a.csv", "", "a.csv is empty: its first line has to name the columns"},
		{"a.tsv", "\n \n", "a.tsv is empty"},
		{"a.csv", "q;p\na;b\n", "a.csv:1: the first line has semicolons between its columns"},
		{"a.csv", "q\tp\na\tb\n", "a.csv:1: the first line has tabs between its columns: they make it .tsv, by its name too"},
		{"a.csv", "q,p\ra,b\r", "a.csv: lines end with a carriage return alone"},
		{"a.tsv", "q\ra\rb\r\n", "a.tsv: lines end with a carriage return alone"},
		{"a.csv", "q,p,q\n", `a.csv:1: the first line names a column "q" twice`},
		{"a.csv", "q,p\na,b\nc,\"d\n\n", "a.csv:3: the row that begins here has a quote out of place (in line 4, byte 2)"},
		{"a.csv", "q,p\na \"b\",c\n", "a.csv:2: the row that begins here has a quote out of place (in line 2, byte 3): a field with quotes in it is in quotes itself, and has them twice"},
		{"a.csv", "\xff\xfeq\x00", "a.csv is UTF-16"},
		{"a.csv", "q,r\xe9ponse\na,b\n", "a.csv:1: the name of column 2 is not UTF-8, which it has to be (iconv -f windows-1252 -t utf-8,"},
		{"a.tsv", "\n\xe9\tp\n", "a.tsv:2: the name of column 1 is not UTF-8"},
	} {
		if _, _, err := csvRows(c.name, c.content); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: error %v, want %s", c.name, c.content, err, c.want)
		}
	}
	c, err := newCSVReader("a.csv", io.MultiReader(strings.NewReader("q,p\na,b\n\"c"), forever{}), &gaps{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.in.max = 4 << 20
	if _, err := io.ReadAll(c); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "a.csv: after 1 row: a row is too long, above 4 MiB: is a quote not closed?") {
		t.Errorf("a quote that nothing closes: %v", err)
	}
	// The limit is a row's: many rows may have more.
	if c, err = newCSVReader("a.csv", strings.NewReader("q,p\n"+strings.Repeat("a,"+strings.Repeat("b", 1<<20)+"\n", 12)), &gaps{}, nil); err != nil {
		t.Fatal(err)
	}
	c.in.max = 4 << 20
	if n, err := io.Copy(io.Discard, c); err != nil || n < 12<<20 {
		t.Errorf("rows of 1 MiB: %d bytes, %v", n, err)
	}
}

type forever struct{}

func (forever) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// Carriage returns between quotes are doubled wherever reads end.
func TestQuotedReturns(t *testing.T) {
	const text = "a,\"b\"\"\r\nc\r\r\n\"\r\n\"\rd\n\r\n\",e\r\nf\n"
	const want = "a,\"b\"\"\r\r\nc\r\r\r\n\"\r\n\"\rd\n\r\r\n\",e\r\nf\n"
	for first := range len(text) + 1 {
		in := io.MultiReader(strings.NewReader(text[:first]), iotest.OneByteReader(strings.NewReader(text[first:])))
		if got, err := io.ReadAll(quotedReturns(in)); err != nil || string(got) != want {
			t.Errorf("after %d bytes one by one: %q, %v, want %q", first, got, err, want)
		}
	}
}

// Random rows come back from .csv as encoding/csv writes them, which quotes, and from .tsv; also where reads are short.
func TestCSVRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for range 300 {
		columns := 1 + rng.IntN(4)
		var want [][]string
		tsv := rng.IntN(2) == 0
		for range rng.IntN(30) {
			var row []string
			for range columns {
				var f []byte
				for range rng.IntN(12) {
					f = append(f, `ab",;\é	`[rng.IntN(9)])
					if !tsv && rng.IntN(6) == 0 {
						f = append(f, "\n\r\n"[rng.IntN(3):]...)
					}
				}
				cell := strings.ToValidUTF8(string(f), "?")
				if tsv {
					cell = strings.ReplaceAll(cell, "\t", " ")
				}
				row = append(row, cell)
			}
			if len(row) > 1 || strings.TrimSpace(row[0]) != "" { // a blank line is no row
				want = append(want, row)
			}
		}
		header := []string{"a", "b", "c", "d"}[:columns]
		var file bytes.Buffer
		var at []int64 // the line of each row
		name := map[bool]string{false: "x.csv", true: "x.tsv"}[tsv]
		returns := rng.IntN(2) == 0
		for _, row := range append([][]string{header}, want...) {
			at = append(at, 1+int64(bytes.Count(file.Bytes(), []byte("\n"))))
			if tsv {
				file.WriteString(strings.Join(row, "\t") + "\n")
			} else if err := csv.NewWriter(&file).WriteAll([][]string{row}); err != nil {
				t.Fatal(err)
			}
			if returns {
				file.Truncate(file.Len() - 1)
				file.WriteString("\r\n")
			}
			if rng.IntN(5) == 0 {
				file.WriteString("\n")
			}
		}
		rows, lines, err := csvRows(name, file.String())
		if err != nil || len(rows) != len(want) {
			t.Fatalf("%d rows, want %d: %v\n%s", len(rows), len(want), err, &file)
		}
		for i, row := range rows {
			for k, cell := range want[i] {
				if got := row[header[k]]; got == nil && cell != "" || got != nil && *got != cell {
					t.Fatalf("row %d has %v, want %q", i, row, want[i])
				}
			}
			if lines[i] != at[i+1] {
				t.Fatalf("row %d in line %d, want %d:\n%s", i, lines[i], at[i+1], &file)
			}
		}
	}
}

// Training data of separated values are those of JSON lines with the same strings and numbers, and what is wrong with a row is told
// with its line.
func TestCSVSource(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		var file bytes.Buffer
		file.WriteString(content)
		if strings.HasSuffix(name, ".gz") {
			file.Reset()
			z := gzip.NewWriter(&file)
			io.WriteString(z, content)
			z.Close()
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	src := Source{Query: "q", Positive: "{t} {p}", Label: "label", Weight: "w"}
	read := func(path string) (got []string, bad []string, err error) {
		src.Paths = []string{path}
		d, err := Open(t.Context(), src)
		if err != nil {
			return nil, nil, err
		}
		defer d.Close()
		r := d.NewReader(ReaderConfig{})
		defer r.Close()
		for i := range d.Rows() {
			rows, err := r.Read(t.Context(), 0, []int64{i})
			if err != nil {
				bad = append(bad, err.Error())
				continue
			}
			got = append(got, fmt.Sprintf("%q %v %v", rows[0].Texts, rows[0].Label, rows[0].Weight))
		}
		return got, bad, nil
	}
	want, _, err := read(write("a.jsonl", `{"q":"one","t":"The","p":"first, \"1\"","label":1,"w":0.5}
{"q":"two\nlines","t":"","p":"second","label":-2e-3,"w":2}
`))
	if err != nil || len(want) != 2 {
		t.Fatal(want, err)
	}
	for name, content := range map[string]string{
		"a.csv":    "q,t,p,label,w\none,The,\"first, \"\"1\"\"\",1,.5\n\"two\nlines\",,second,-0.002, 2\n",
		"b.csv.gz": "w,q,p,t,label\n0.50,one,\"first, \"\"1\"\"\",The,1.0\n2,\"two\nlines\",second,,-2e-3\n",
	} {
		if got, bad, err := read(write(name, content)); err != nil || len(bad) > 0 || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %q, %v; want %q", name, got, bad, err, want)
		}
	}
	_, bad, err := read(write("bad.csv", "q,t,p,label,w\n\"o\nk\",t,p,1,1\na,t,p,much,1\n,t,p,1,1\nb,t,p,,1\nok,t,p,1,1\n"))
	text := strings.Join(bad, "\n")
	for _, want := range []string{`bad.csv:4, column "label": it is "much", want a number`, `bad.csv:5, column "q": the text is null`, `bad.csv:6, column "label": it is null, want a number`} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if err != nil || len(bad) != 3 {
		t.Errorf("%v, bad rows:\n%s", err, text)
	}
	if _, _, err := read(write("other.csv", "q,t,p,l,w\na,b,c,1,1\n")); !errors.Is(err, ErrMissingColumn) ||
		!strings.Contains(err.Error(), `its columns are "q", "t", "p", "l", "w" (the first line has to name the columns)`) {
		t.Errorf("%v", err)
	}
	noHeader := filepath.Join(dir, "other.csv")
	table, err := OpenTable(t.Context(), []string{noHeader})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for _, err := range table.Chunks(t.Context(), "text", 10) {
		if err == nil || !strings.HasSuffix(err.Error(), ` has no column "text"; its columns are "q", "t", "p", "l", "w" (the first line has to name the columns)`) {
			t.Errorf("a table: %v", err)
		}
	}
	if _, err := LoadRetrieval(t.Context(), noHeader, noHeader, noHeader); !errors.Is(err, ErrMissingColumn) || !strings.HasSuffix(err.Error(), "(the first line has to name the columns)") {
		t.Errorf("an evaluation set: %v", err)
	}
	// A row of another length is a bad row, whose neighbours keep their places; a table has no use for it.
	ragged := write("ragged.csv", "q,t,p,label,w\na,b\nok,t,p,1,1\nb,t,one, two,1,1\nok,t,p,1,1\n")
	got, bad, err := read(ragged)
	if tail := " where the first line names 5 columns: one with a comma in it needs quotes"; err != nil || len(got) != 2 || len(bad) != 2 || bad[0] != ragged+":2: the row has 2 fields"+tail || bad[1] != ragged+":4: the row has 6 fields"+tail {
		t.Errorf("%q, bad rows %q, %v", got, bad, err)
	}
	if _, err := OpenTable(t.Context(), []string{ragged}); !errors.Is(err, ErrBadRow) || err.Error() != bad[0] {
		t.Errorf("%v, want %s", err, bad[0])
	}
	if _, _, err := read(write("fields.tsv", "q\tt\tp\tlabel\tw\na\tb\n")); !errors.Is(err, ErrCorrupt) || !strings.HasSuffix(err.Error(), "fields.tsv:2: the row has 2 fields where the first line names 5 columns") {
		t.Errorf("%v", err)
	}
	if _, _, err := read(write("quote.csv", "q,t,p,label,w\n\"a,b,c,1,1\n")); !errors.Is(err, ErrCorrupt) || strings.Count(err.Error(), "quote.csv:2: the row") != 1 || strings.Count(err.Error(), "quote.csv") != 1 {
		t.Errorf("%v", err)
	}
}

// Lists in cells are the lists of JSON lines, in every way of using them.
func TestCSVLists(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 8))
	var lines, comma, tabs bytes.Buffer
	enc, w := json.NewEncoder(&lines), csv.NewWriter(&comma)
	w.Write([]string{"q", "n", "s", "e"})
	tabs.WriteString("q\tn\ts\te\n")
	for i := range 60 {
		q := fmt.Sprintf(`["query" %d`, i) // begins as a list, and is none
		n, s := []string{}, []float32{rng.Float32()}
		for range 3 {
			var text []byte
			for range 1 + rng.IntN(9) {
				text = append(text, `a",\/[]`[rng.IntN(7)])
			}
			n, s = append(n, string(text)+[]string{"", "é", "\n", "\t", "<"}[rng.IntN(5)]), append(s, -rng.Float32())
		}
		e := []float32{float32(i), 2e-9}
		enc.Encode(map[string]any{"q": q, "n": n, "s": s, "e": e})
		var cells []string
		for _, v := range []any{n, s, e} {
			cell, _ := json.Marshal(v)
			cells = append(cells, string(cell))
		}
		w.Write([]string{q, cells[0], " " + cells[1], cells[2]})
		tabs.WriteString(strings.Join(append([]string{q}, cells...), "\t") + "\n")
	}
	w.Flush()
	folder := write(t, map[string]string{"a.jsonl": lines.String(), "a.csv": comma.String(), "a.tsv": tabs.String()})
	for _, src := range []Source{
		{Positive: "n"}, {Positive: "q", Negatives: []string{"n"}, Scores: []string{"s"}}, {Positive: "q", Negatives: []string{"n"}, NegativesPerQuery: 2},
		{Positive: "q", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives, Teacher: "e"}, {Teacher: "e"},
	} {
		src.Query = "q"
		var want []Example
		for _, name := range []string{"a.jsonl", "a.csv", "a.tsv"} {
			src.Paths = []string{filepath.Join(folder, name)}
			d, err := Open(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			var rows []int64
			for i := range d.Rows() {
				rows = append(rows, i)
			}
			got, err := d.NewReader(ReaderConfig{Seed: 1}).Read(t.Context(), 1, rows)
			if err != nil {
				t.Fatal(err)
			}
			if d.Close(); want == nil {
				want = got
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v: rows are not those of JSON lines", src)
			}
		}
	}
}

// What most cells of a column are is what it is; the others are bad rows of it, or texts like any. Where one text is wanted, lists are refused.
func TestCSVListErrors(t *testing.T) {
	folder := write(t, map[string]string{
		"a.csv": `q,n,s,few,python,chat,broken` + "\n" +
			`a,"[""x"", ""y""]","[1, 2]","[""x""]","['x', 'y']","[{""role"": ""user""}]","[""x]"` + "\n" +
			`a,"[""x"", 5]",nothing,[1] is cited,"[""it's""]","[[1]]","[""x"", ]"` + "\n" +
			`a,"[""x"" ""y""]","[1, 2]",[x],"['x' 'y']","[true]","[""x"",y""]"` + "\n" +
			`a,"[""x""] or y","[1, 2]",[],"['x', ""y""]",[],[]` + "\n" +
			`a,,"[1, 2]",,,,` + "\n" +
			`a,"[""x"", ""y""]",nothing,,,,` + "\n" +
			`a,"[""x"", ""y""]","[1, ""2""]",,,,` + "\n" +
			`a,['x'],"[1, 2]",,,,` + "\n" +
			`a,"[ null , ""y"" ]","[1,2]","[""x""]",['x'],[],[]` + "\n" +
			strings.Repeat(`a,"[""x"", ""y""]","[1, 2]",[1] [2],['x'],[[1]],"[""x"" ""y""]"`+"\n", 6),
	})
	path := filepath.Join(folder, "a.csv")
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "n", Scores: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range x.Bad() {
		got = append(got, strings.TrimPrefix(b.Error(), path))
	}
	want := []string{
		`:3, column "n": it is a number, want a list of strings`,
		`:4, column "n": want a list of strings, such as ["a", "b"]: not JSON at byte 6: '"' where a comma or ] should be`,
		`:5, column "n": want a list of strings, such as ["a", "b"]: not JSON at byte 7: something after the list`,
		`:6, column "n": the list is null or empty`,
		`:7, column "s": want a list of numbers, such as [0.5, 2]: not JSON at byte 1: 'n' where a list [ ] should be`,
		`:8, column "s": it is a string, want a list of numbers`,
		`:9, column "n": want a list of strings, such as ["a", "b"]: not JSON at byte 2: '\'' where a value should be`,
		`:10, column "n": text 0 of the list is null`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("bad rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	texts, err := Open(t.Context(), Source{Paths: []string{path}, Query: "few", Positive: "chat", Raw: true})
	if err != nil {
		t.Fatal(err)
	}
	defer texts.Close()
	if b, err := texts.ReadBlock(t.Context(), 0); err != nil || !slices.Equal(b.Texts(b.Texts(nil, 0, 0), 0, 1), []string{`["x"]`, `[{"role": "user"}]`}) {
		t.Errorf("texts that may begin as lists: %q, %v", b.Texts(nil, 0, 0), err)
	}
	const more = "; texts that look like that have to come as JSON lines or parquet"
	const cells, lists = ` (in .csv and .tsv lists are cells of JSON, ["a", "b"])`, ` (in .csv and .tsv lists are cells of JSON, ["a", "b"]` + more + ")"
	for _, c := range []struct {
		src  Source
		want string
	}{
		{Source{Query: "n", Positive: "q"}, `column "n" is list<string>: a query is one string` + lists},
		{Source{Query: "q", Positive: "{q} {n}"}, `column "n" of the template "{q} {n}" is list<string>: a template takes strings` + lists},
		{Source{Query: "q", Positive: "q", Negatives: []string{"few"}, NegativesPerQuery: 2}, "negatives_per_query is 2, but no column of negatives is a list" + cells},
		{Source{Query: "q", Positive: "q", Negatives: []string{"few"}, NegativesPerQuery: AllNegatives}, "negatives_per_query is all, but no column of negatives is a list" + cells},
		{Source{Query: "q", Teacher: "few"}, `column "few" is no list, want a list of numbers: a teacher's embedding` + cells},
		{Source{Query: "q", Label: "s"}, `column "s" is a list, want a number`},
		{Source{Query: "q", Positive: "python"}, `a.csv:2: most cells of column "python" are lists, as this one is, but not of JSON: as Python prints them? Write ["a", "b"] (json.dumps)`},
		{Source{Query: "q", Positive: "broken"}, `a.csv:4: most cells of column "broken" are lists, as this one is, but not of JSON: as Python prints them? Write ["a", "b"] (json.dumps)`},
	} {
		c.src.Paths = []string{path}
		if _, err := Open(t.Context(), c.src); !errors.Is(err, ErrColumnType) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.src, err, c.want)
		}
	}
	table, err := OpenTable(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for column, want := range map[string]string{"n": `a.csv: the cells of column "n" are lists, such as ["a", "b"]: want one value in each` + more, "python": "not of JSON", "few": "null"} {
		for _, err := range table.Chunks(t.Context(), column, 100) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a table's %s: %v, want %s", column, err, want)
			}
		}
	}
	if _, err := LoadPairs(t.Context(), path, "q", "q", "s"); !errors.Is(err, ErrColumnType) {
		t.Errorf("pairs: %v", err)
	}
}

func FuzzCSV(f *testing.F) {
	f.Add("a,b\n1,\"x\ny\"\n", true)
	f.Add("a,b\n\xe9,b,c\n\xe9,é\n", true)
	f.Add("a\tb\n\"1\t\"\n", false)
	f.Fuzz(func(t *testing.T, content string, comma bool) {
		name := "a.tsv"
		if comma {
			name = "a.csv"
		}
		if _, _, err := csvRows(name, content); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNoFiles) {
			t.Errorf("%q: %v", content, err)
		}
	})
}

// The list that a cell holds is the one that encoding/json finds in it.
func FuzzCSVList(f *testing.F) {
	f.Add(`["a", null, "\"\u00e9\ud83d\ude00\\"]`)
	f.Add(` [ ] `)
	f.Add(`["a"] b`)
	f.Fuzz(func(t *testing.T, cell string) {
		if !utf8.ValidString(cell) || !strings.HasPrefix(strings.TrimLeft(cell, " \t\r\n"), "[") {
			return
		}
		line := append(appendJSONString([]byte(`{"a":`), cell), '}')
		p := jsonlParser{strings: true}
		p.want = []sourceColumn{{name: "a", list: true}}
		texts := []textColumn{{rowsOf: rowsOf[span]{list: true}, arena: line}}
		_, reason := p.parse(line, 0, len(line), texts, nil)
		texts[0].end(1)
		var want []*string
		if err := json.Unmarshal([]byte(cell), &want); err != nil || reason != "" {
			if err == nil || reason == "" {
				t.Errorf("%q: %q, want %v", cell, reason, err)
			}
			return
		}
		got := texts[0].row(0)
		if len(got) != len(want) {
			t.Fatalf("%q: %d texts, want %d", cell, len(got), len(want))
		}
		for i, s := range got {
			if (s.n == null) != (want[i] == nil) || s.n != null && string(texts[0].bytes(s)) != *want[i] {
				t.Errorf("%q: text %d differs", cell, i)
			}
		}
	})
}

// TestCSVMost: a column is one of lists if more than half of its cells are; half are not enough, and empty ones don't count.
func TestCSVMost(t *testing.T) {
	for cells, want := range map[string]byte{
		`["x"]|y`: '"', `["x"]|["y"]|z`: '[', `["x"]||y`: '"', `["x"]||`: '[',
		`['x']|y`: '"', `['x']|['y']|z`: listOfPython, `["x"]|['y']|z`: listOfPython, `["x"]|['y']`: listOfPython,
	} {
		var k cellKinds
		for i, cell := range strings.Split(cells, "|") {
			if cell != "" {
				k.add([]byte(cell), int64(i))
			}
		}
		if got := k.most(); got != want {
			t.Errorf("%s: %q, want %q", cells, got, want)
		}
	}
	path := filepath.Join(write(t, map[string]string{"a.csv": "q,p\na,\"[\"\"x\"\"]\"\nb,\n,y\n"}), "a.csv")
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p", Raw: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if b, err := d.ReadBlock(t.Context(), 0); err != nil || d.Lists()[1] || b.Texts(nil, 0, 1)[0] != `["x"]` {
		t.Errorf("half of the cells are lists: %v, %v", d.Lists(), err)
	}
}
