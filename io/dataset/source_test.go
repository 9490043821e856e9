package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"contraflow/io/internal/plainfile"
)

// write puts files into a folder and returns it.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// A name that is there stands for itself, whatever is in it; another is a glob.
func TestNamesWithBrackets(t *testing.T) {
	pair := func(text string) string { return fmt.Sprintf(`{"id": %q, "text": %[1]q, "answer": "a"}`, text) }
	folder := write(t, map[string]string{
		"br[1].jsonl": pair("own"), "br1.jsonl": pair("other"), "q[1].tsv": "1\town\n", "q1.tsv": "1\tother\n", "r[1].tsv": "1\town\t1\n", "r1.tsv": "9\t9\t1\n",
	})
	at := func(name string) string { return filepath.Join(folder, name) }
	for pattern, want := range map[string]string{"br[1].jsonl": "own", "br[1]*.jsonl": "other", "br[[]1].jsonl": "own", "br?.jsonl": "other"} {
		d, err := Open(t.Context(), Source{Paths: []string{at(pattern)}, Query: "text", Positive: "answer"})
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		b, err := d.ReadBlock(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Texts(nil, 0, 0)[0]; d.Rows() != 1 || got != want {
			t.Errorf("%s: %d rows, first %q, want %q", pattern, d.Rows(), got, want)
		}
		d.Close()
	}
	r, err := LoadRetrieval(t.Context(), at("q[1].tsv"), at("br[1].jsonl"), at("r[1].tsv"))
	if err != nil || fmt.Sprint(r.Queries, r.Docs, r.Judgements) != "[own] [own] [{0 0 1}]" {
		t.Errorf("%+v, %v", r, err)
	}
	// A folder in MTEB's layout.
	task := filepath.Join(folder, "task[1]")
	if filepath.Separator != '\\' {
		task += `\b`
	}
	for name, text := range map[string]string{"queries/a.jsonl": pair("own"), "corpus/a.jsonl": pair("own"), "qrels/test.jsonl": `{"query-id": "own", "corpus-id": "own", "score": 1}`} {
		file := filepath.Join(task, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := LoadRetrieval(t.Context(), task, "", ""); err != nil || len(r.Judgements) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestOpenErrors: every mistake in naming data gives a message to act on.
func TestOpenErrors(t *testing.T) {
	folder := write(t, map[string]string{
		"a.jsonl":      `{"query": "q", "answer": "a", "score": 1, "neg": ["n"], "o": {"in": "x"}}`,
		"list.jsonl":   `{"query": "q", "answer": ["a"]}`,
		"empty.jsonl":  "\n \n",
		"array.json":   ` [{"query": "q"}]`,
		"utf16.jsonl":  "\xff\xfe{\x00\"\x00",
		"broken.jsonl": "\n{query: \"q\"}\n{query: \"r\"}\n",
		"notes.txt":    "x",
		"page.parquet": "PAR1 this is no parquet file PAR1",
		"cut.parquet":  "PAR1 cut off here",
		"text.parquet": "just text, of some length",
		"cut.jsonl.gz": "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab",
		"lfs.csv":      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
	})
	if err := os.Symlink("nowhere", filepath.Join(folder, "link.jsonl")); err != nil {
		t.Skip(err)
	}
	for name, want := range map[string]string{"lfs.csv": "is a pointer of git-lfs", "link.jsonl": "is a link to nowhere", "cut.parquet": ""} {
		if err := Missing(filepath.Join(folder, name)); want == "" && err != nil || want != "" && (!errors.Is(err, plainfile.ErrElsewhere) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	at := func(name string) []string { return []string{filepath.Join(folder, name)} }
	wide := `{"c0": 0`
	for i := 1; i < 23; i++ {
		wide += fmt.Sprintf(`, "c%d": 0`, i)
	}
	more := write(t, map[string]string{"wide.jsonl": wide + "}"})
	types := []string{golden("types.parquet")}
	for _, c := range []struct {
		src  Source
		is   error
		want string
	}{
		{Source{Query: "query", Positive: "answer"}, ErrNoFiles, "no path"},
		{Source{Paths: at("*.tsv"), Query: "query", Positive: "answer"}, ErrNoFiles, "*.tsv matches no file"},
		{Source{Paths: []string{"data/**/*.csv"}, Query: "query", Positive: "answer"}, ErrNoFiles, "data/**/*.csv: ** for folders in folders is not known: name them, or give a path for each depth, such as data/*.csv and data/*/*.csv"},
		{Source{Paths: []string{"hf://datasets/a/b/**/*.csv"}, Query: "query", Positive: "answer"}, ErrNoFiles, "such as hf://datasets/a/b/*.csv and hf://datasets/a/b/*/*.csv"},
		{Source{Paths: at("[.jsonl"), Query: "query", Positive: "answer"}, ErrNoFiles, "syntax error"},
		{Source{Paths: at("nowhere.jsonl"), Query: "query", Positive: "answer"}, os.ErrNotExist, "nowhere.jsonl"},
		{Source{Paths: []string{folder}, Query: "query", Positive: "answer"}, ErrNoFiles, "is a folder: name its files"},
		{Source{Paths: at("notes.txt"), Query: "query", Positive: "answer"}, ErrNoFiles, "known are .parquet, .jsonl, .ndjson, .json"},
		{Source{Paths: at("a.jsonl"), Query: "query"}, ErrMissingColumn, `positive: ""`},
		{Source{Paths: at("a.jsonl"), Query: "querry", Positive: "answer"}, ErrMissingColumn, `a.jsonl has no column "querry" (did you mean "query"?); its columns are "query", "answer", "score", "neg", "o.in"`},
		{Source{Paths: []string{filepath.Join(more, "wide.jsonl")}, Query: "query", Positive: "answer"}, ErrMissingColumn, `"c18", "c19" and 3 more`},
		{Source{Paths: at("a.jsonl"), Query: "query", Positive: "score"}, ErrColumnType, `column "score" is a number, want string or list<string>`},
		{Source{Paths: at("a.jsonl"), Query: "query", Positive: "answer", Weight: "answer"}, ErrColumnType, `column "answer" is a string, want a number: a number stands without quotes, 0.5 and not "0.5"`},
		{Source{Paths: at("a.jsonl"), Query: "neg", Positive: "answer"}, ErrColumnType, `column "neg" is list<string>: a query is one string`},
		{Source{Paths: at("a.jsonl"), Query: "query", Positive: "answer", NegativesPerQuery: 2}, ErrColumnType, "negatives_per_query is 2, but no column of negatives is a list"},
		{Source{Paths: []string{at("a.jsonl")[0], at("list.jsonl")[0]}, Query: "query", Positive: "answer"}, ErrColumnType, "all files of a dataset must agree"},
		{Source{Paths: at("empty.jsonl"), Query: "query", Positive: "answer"}, ErrNoFiles, "no rows"},
		{Source{Paths: at("array.json"), Query: "query", Positive: "answer"}, ErrMissingColumn, `array.json has no column "answer"`},
		{Source{Paths: at("utf16.jsonl"), Query: "query", Positive: "answer"}, ErrCorrupt, "utf16.jsonl is UTF-16, as its byte order mark says"},
		{Source{Paths: at("broken.jsonl"), Query: "query", Positive: "query"}, ErrCorrupt, "broken.jsonl:2: not JSON at byte 2: 'q' where a key in quotes should be"},
		{Source{Paths: at("cut.jsonl.gz"), Query: "query", Positive: "query"}, ErrCorrupt, "cut.jsonl.gz"},
		{Source{Paths: at("page.parquet"), Query: "query", Positive: "answer"}, ErrCorrupt, "page.parquet: "},
		{Source{Paths: at("lfs.csv"), Query: "query", Positive: "answer"}, plainfile.ErrElsewhere, "lfs.csv is a pointer of git-lfs"},
		{Source{Paths: at("link.*"), Query: "query", Positive: "answer"}, plainfile.ErrElsewhere, "link.jsonl is a link to nowhere, and nothing is there"},
		{Source{Paths: at("cut.parquet"), Query: "query", Positive: "answer"}, ErrCorrupt, "cut.parquet: the file is cut off"},
		{Source{Paths: at("text.parquet"), Query: "query", Positive: "answer"}, ErrCorrupt, "text.parquet: not a parquet file"},
		{Source{Paths: types, Query: "Text", Positive: "text"}, ErrMissingColumn, `types.parquet has no column "Text" (did you mean "text"?)`},
		{Source{Paths: types, Query: "text", Positive: "i64"}, ErrColumnType, `column "i64" is int64, want string or list<string>`},
		{Source{Paths: types, Query: "text", Positive: "u8"}, ErrColumnType, `column "u8" is uint8`},
		{Source{Paths: types, Query: "text", Positive: "ints"}, ErrColumnType, `column "ints" is list<int64>`},
		{Source{Paths: types, Query: "text", Positive: "nested"}, ErrColumnType, `column "nested" is list<list<int64>>`},
		{Source{Paths: types, Query: "text", Positive: "struct"}, ErrColumnType, `column "struct" is struct<a, b>`},
		{Source{Paths: types, Query: "text", Positive: "map"}, ErrColumnType, `column "map" is `},
		{Source{Paths: types, Query: "text", Positive: "fixed"}, ErrColumnType, `column "fixed" is fixed_len_byte_array(3)`},
		{Source{Paths: types, Query: "text", Positive: "decimal"}, ErrColumnType, `column "decimal" is decimal`},
		{Source{Paths: types, Query: "text", Positive: "text", Weight: "bool"}, ErrColumnType, `column "bool" is bool, want a number`},
		{Source{Paths: types, Query: "text", Positive: "struct.c"}, ErrMissingColumn, `(did you mean "struct.a"?)`},
		{Source{Paths: []string{golden("default.parquet"), golden("checksums_dictionary.parquet")}, Query: "query", Positive: "pos"}, ErrMissingColumn, `checksums_dictionary.parquet has no column "pos" (did you mean "positive"?)`},
	} {
		d, err := Open(context.Background(), c.src)
		if err == nil {
			d.Close()
			t.Errorf("%+v: no error", c.src)
			continue
		}
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v:\n got %v\nwant %q", c.src, err, c.want)
		}
	}
}

// TestManyFiles reads formats side by side, named twice and globbed, as one run of rows in the order of their names.
func TestManyFiles(t *testing.T) {
	g := goldens(t)
	folder := t.TempDir()
	for i, name := range []string{"gzip.parquet", "hf.jsonl", "many_groups.parquet"} {
		b, err := os.ReadFile(golden(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d-%s", i, name)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	src := Source{Paths: []string{filepath.Join(folder, "2*"), filepath.Join(folder, "*"), filepath.Join(folder, "0-gzip.parquet")}, Query: "query", Positive: "pos", Weight: "weight"}
	want := slices.Concat(g.Rows, g.Rows, g.Rows)
	compareRows(t, src, blockLimit{10, 1 << 20}, want, func(r goldenRow) [][]string { return [][]string{{r.Query}, r.Pos} }, func(r goldenRow) float32 { return r.Weight })
	d, err := Open(context.Background(), src)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(g.Rows))
	for row, want := range map[int64]string{
		0:          "0-gzip.parquet: row group 0, row 0",
		20:         "0-gzip.parquet: row group 1, row 20",
		n:          "1-hf.jsonl:1",
		n + 7:      "1-hf.jsonl:8",
		2*n + 1:    "2-many_groups.parquet: row group 0, row 1",
		3*n - 1:    fmt.Sprintf("2-many_groups.parquet: row group %d, row %d", (n-1)/11, n-1),
		3*n + 1000: "no such row",
	} {
		if got := d.Locate(row).String(); !strings.Contains(got, want) {
			t.Errorf("row %d is at %q, want %q", row, got, want)
		}
	}
	table, err := OpenTable(context.Background(), []string{filepath.Join(folder, "0*"), filepath.Join(folder, "2*")})
	if err != nil {
		t.Fatal(err)
	}
	for row := range 2 * n { // the first and the third file
		if got, want := table.Locate(row), d.Locate(row+row/n*n); got != want {
			t.Errorf("row %d of the table is at %v, want %v", row, got, want)
		}
	}
}

// TestEmptyFiles: files without rows among others have no say in what the columns are, and the others have.
func TestEmptyFiles(t *testing.T) {
	files := map[string]string{"a.jsonl": "", "b.jsonl": `{"q": "b", "p": ["x"]}`, "c.json": "[]", "d.csv": "z\n", "e.jsonl": "\n{\"q\": \"e\", \"p\": [\"y\"]}\n"}
	src := Source{Paths: []string{"*"}, Query: "q", Positive: "p"}
	src.Paths[0] = filepath.Join(write(t, files), "*")
	d, err := Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 1})
	if err != nil || d.Rows() != 2 || !slices.Equal(rows[0].Texts, []string{"b", "x"}) || !slices.Equal(rows[1].Texts, []string{"e", "y"}) {
		t.Errorf("%+v, %v", rows, err)
	}
	if at := d.Locate(1).String(); !strings.HasSuffix(at, "e.jsonl:2") {
		t.Errorf("row 1 is at %s", at)
	}
	files["e.jsonl"] = `{"q": "e", "p": "y"}`
	src.Paths[0] = filepath.Join(write(t, files), "*")
	if _, err := Open(t.Context(), src); !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), "all files of a dataset must agree") {
		t.Errorf("a text behind lists: %v", err)
	}
}

// TestFingerprint: the same data elsewhere is the same, other data or columns are not.
func TestFingerprint(t *testing.T) {
	print := func(src Source) Hash128 {
		d, err := Open(context.Background(), src)
		if err != nil {
			t.Fatal(err)
		}
		return d.Fingerprint()
	}
	b, _ := os.ReadFile(golden("default.parquet"))
	folder := write(t, map[string]string{"default.parquet": string(b), "a.jsonl": `{"query": "a", "positive": "b"}`})
	src := Source{Paths: []string{golden("default.parquet")}, Query: "query", Positive: "positive"}
	one := print(src)
	moved := src
	moved.Paths = []string{filepath.Join(folder, "*.parquet")}
	if print(moved) != one {
		t.Error("moving the data changes its fingerprint")
	}
	other := src
	other.Positive = "negative"
	form := src
	form.Paths = []string{golden("hf.parquet")}
	if print(other) == one || print(form) == one {
		t.Error("other data has the same fingerprint")
	}
	lines := Source{Paths: []string{filepath.Join(folder, "a.jsonl")}, Query: "query", Positive: "positive"}
	one = print(lines)
	if err := os.WriteFile(lines.Paths[0], []byte(`{"query": "a", "positive": "c"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if print(lines) == one {
		t.Error("another text in JSON lines has the same fingerprint")
	}
}

// TestFiles: each file is known by its name, rows and content.
func TestFiles(t *testing.T) {
	b, _ := os.ReadFile(golden("default.parquet"))
	page := bytes.Clone(b)
	page[len("PAR1")+40] ^= 1 // of the first column's data; nothing in the footer changes
	folder := write(t, map[string]string{"a.parquet": string(b), "b.parquet": string(b), "c.parquet": string(page)})
	d, err := Open(t.Context(), Source{Paths: []string{filepath.Join(folder, "*.parquet")}, Query: "query", Positive: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	f := d.Files()
	if len(f) != 3 || f[0].Name != "a.parquet" || f[2].Name != "c.parquet" || f[0].Rows*3 != d.Rows() || f[0].Content != f[1].Content || f[0].Content == f[2].Content {
		t.Errorf("%+v", f)
	}
	folder = write(t, map[string]string{"a.jsonl": `{"q": "a", "p": "b"}`, "b.jsonl": `{"q": "a", "p": "b"}`, "c.jsonl": `{"q": "a", "p": "c"}`})
	if d, err = Open(t.Context(), Source{Paths: []string{filepath.Join(folder, "*.jsonl")}, Query: "q", Positive: "p"}); err != nil {
		t.Fatal(err)
	}
	if f = d.Files(); len(f) != 3 || f[1].Rows != 1 || f[0].Content != f[1].Content || f[0].Content == f[2].Content {
		t.Errorf("%+v", f)
	}
}

// TestFilesByPlace: files are in the order of their places, and each is there once, however they are named.
func TestFilesByPlace(t *testing.T) {
	top := write(t, map[string]string{"a.jsonl": "{}", "b.jsonl": "{}", "m.jsonl": "{}", "z.jsonl": "{}"})
	here := filepath.Join(top, "k")
	if err := os.Mkdir(here, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(here, "x.jsonl"), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	got, err := Files(t.Context(), []string{"x.jsonl", filepath.Join(top, "z.jsonl"), "../[ab].jsonl", filepath.Join(top, "a.jsonl"), "../m.jsonl"}, Train)
	if want := []string{"../a.jsonl", "../b.jsonl", "x.jsonl", "../m.jsonl", filepath.Join(top, "z.jsonl")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	// A cache may be anywhere: its files' place among others says nothing.
	for _, cache := range []string{"b.jsonl", "z.jsonl"} {
		RegisterScheme("by-place", func(context.Context, string, Splits) ([]string, error) {
			return []string{filepath.Join(top, cache)}, nil
		})
		got, err := Files(t.Context(), []string{"../m.jsonl", "by-place://x", "../a.jsonl"}, Train)
		if want := []string{filepath.Join(top, cache), "../a.jsonl", "../m.jsonl"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("with a URL: %q, %v; want %q", got, err, want)
		}
	}
}

// TestFilesOfURL: the files that a URL stands for are in the order of their paths, whatever the order that they are found in.
func TestFilesOfURL(t *testing.T) {
	top := write(t, map[string]string{"a.jsonl": `{"t": "a"}`, "b.jsonl": `{"t": "b"}`})
	RegisterScheme("found", func(context.Context, string, Splits) ([]string, error) {
		return []string{filepath.Join(top, "b.jsonl"), filepath.Join(top, "a.jsonl")}, nil
	})
	table, err := OpenTable(t.Context(), []string{"found://x"})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var texts []string
	for c, err := range table.Chunks(t.Context(), "t", 9) {
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, c.Texts...)
	}
	if !slices.Equal(texts, []string{"a", "b"}) {
		t.Errorf("%q", texts)
	}
}

// TestFullPath: a path's full name is of the same file, also where the folder that the program runs in is named by a link.
func TestFullPath(t *testing.T) {
	top := write(t, map[string]string{"a.jsonl": "{}"})
	here, link := filepath.Join(top, "k"), filepath.Join(top, "of", "a", "link")
	if err := errors.Join(os.Mkdir(here, 0o777), os.MkdirAll(filepath.Dir(link), 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(here, link); err != nil {
		t.Skip(err) // Windows may refuse
	}
	for _, c := range []struct{ from, path, want string }{
		{here, "x.jsonl", filepath.Join(here, "x.jsonl")}, {link, "x.jsonl", filepath.Join(link, "x.jsonl")}, {here, "../a.jsonl", filepath.Join(top, "a.jsonl")},
		{here, "..", top}, {link, "..a.jsonl", filepath.Join(link, "..a.jsonl")}, {link, top + "//a.jsonl", filepath.Join(top, "a.jsonl")},
	} {
		t.Chdir(c.from)
		if got, err := FullPath(c.path); err != nil || got != c.want {
			t.Errorf("%s in %s: %s, %v, want %s", c.path, c.from, got, err, c.want)
		}
	}
	t.Chdir(link)
	full, err := FullPath("../a.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := os.Stat("../a.jsonl")
	if got, err := os.Stat(full); err != nil || !os.SameFile(got, want) {
		t.Errorf("%s: %v", full, err)
	}
}

// TestChangedFile: a file that is replaced under a run is an error, not other rows.
func TestChangedFile(t *testing.T) {
	for _, name := range []string{"default.parquet", "flag.jsonl"} {
		b, _ := os.ReadFile(golden(name))
		folder := write(t, map[string]string{name: string(b)})
		d, err := Open(context.Background(), Source{Paths: []string{filepath.Join(folder, name)}, Query: "query", Positive: "pos"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), append(b, ' '), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := d.ReadBlock(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "has changed while it was in use") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	src := Source{Paths: []string{golden("flag.jsonl")}, Query: "query", Positive: "pos"}
	d, err := Open(ctx, src)
	if err != nil {
		t.Fatal(err)
	}
	r := d.NewReader(ReaderConfig{})
	cancel()
	if _, err := Open(ctx, src); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
	if _, err := d.Index(ctx, IndexConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Index: %v", err)
	}
	if _, err := r.Read(ctx, 0, []int64{1}); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
}

// TestIndex compares hashes, lengths and the first pass's report with the rows.
func TestIndex(t *testing.T) {
	g := goldens(t)
	ctx := context.Background()
	d, err := open(ctx, Source{Paths: []string{golden("tiny_pages.parquet")}, Query: "query", Positive: "pos", Negatives: []string{"positive", "neg"}, NegativesPerQuery: 4}, blockLimit{9, 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, threads := range []int{1, 3} {
		last := int64(0)
		x, err := d.Index(ctx, IndexConfig{Threads: threads, Progress: func(done, total int64) {
			if done <= last || total != d.Rows() {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		}})
		if err != nil || last != d.Rows() {
			t.Fatal(err, last)
		}
		r := d.NewReader(ReaderConfig{Seed: 5})
		for epoch := range 3 {
			rows := []int64{0, 60, 17, 18, 3}
			examples, err := r.Read(ctx, epoch, rows)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range examples {
				if got := x.Hashes(nil, 5, epoch, rows[i]); !slices.Equal(got, e.Hashes) {
					t.Fatalf("row %d: the index and the reader choose different texts", rows[i])
				}
				lengths := x.Lengths(nil, 5, epoch, rows[i])
				if len(lengths) != len(e.Texts) {
					t.Fatalf("row %d: %d lengths of %d texts", rows[i], len(lengths), len(e.Texts))
				}
				for k, n := range lengths {
					if int(n) != len(e.Texts[k]) || HashText(e.Texts[k]) != e.Hashes[k] {
						t.Fatalf("row %d text %d: length %d or hash is not that of %q", rows[i], k, n, e.Texts[k])
					}
				}
				row := g.Rows[rows[i]]
				if e.Texts[0] != row.Query || !slices.Contains(row.Pos, e.Texts[1]) || e.Texts[2] != row.Positive || len(e.Texts) != 7 {
					t.Fatalf("row %d: %q", rows[i], e.Texts)
				}
			}
		}
	}
}

// TestNegativesPerQuery: unset, lists must be equally long, and the first that isn't is named.
func TestNegativesPerQuery(t *testing.T) {
	ctx := context.Background()
	src := Source{Paths: []string{golden("default.parquet")}, Query: "query", Positive: "positive", Negatives: []string{"three"}}
	d, err := Open(ctx, src)
	if err != nil {
		t.Fatal(err)
	}
	if cols := d.Columns(); len(cols) != 5 || cols[4] != (Column{Role: Negative, Source: "three"}) || cols[1] != (Column{Role: Positive, Source: "positive"}) {
		t.Errorf("columns %v", cols)
	}
	if _, err := d.Index(ctx, IndexConfig{}); err != nil {
		t.Error(err)
	}
	src.Negatives = []string{"neg"}
	if d, err = Open(ctx, src); err != nil {
		t.Fatal(err)
	}
	var bad *RowError
	if _, err := d.Index(ctx, IndexConfig{}); !errors.As(err, &bad) || !strings.Contains(err.Error(), "negatives_per_query takes so many of each") || bad.Column != "neg" || bad.Location.File != src.Paths[0] {
		t.Errorf("lists of several lengths: %v", err)
	}
	longer := write(t, map[string]string{"longer.jsonl": `{"q": "a", "p": "b", "n": ["c"]}` + "\n" + `{"q": "a", "p": "b", "n": ["c", "d"]}`})
	if d, err = Open(ctx, Source{Paths: []string{filepath.Join(longer, "longer.jsonl")}, Query: "q", Positive: "p", Negatives: []string{"n"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Index(ctx, IndexConfig{}); err == nil || !strings.Contains(err.Error(), `longer.jsonl:2, column "n": the list has 2 texts, the first one has 1`) {
		t.Errorf("a list that is longer than the first: %v", err)
	}
	// The first list that can be used says how long all are; a row before it is one bad row more.
	folder := write(t, map[string]string{
		"a.jsonl":   "no row\n" + `{"q": "a", "p": "b", "n": [], "e": []}` + "\n" + `{"q": "a", "p": "b", "n": ["c", "d", 5], "e": [1, 2, "3"]}` + "\n" + `{"q": "a", "p": "b", "n": ["c"], "e": [1]}`,
		"bad.jsonl": `{"q": "a", "p": "b", "n": [5], "e": [1]}` + "\n" + `{"q": "a", "p": "b", "n": [], "e": [1]}`,
	})
	for _, src := range []Source{{Query: "q", Positive: "p", Negatives: []string{"n"}}, {Query: "q", Teacher: "e"}} {
		src.Paths = []string{filepath.Join(folder, "a.jsonl")}
		if d, err = Open(ctx, src); err != nil {
			t.Fatal(err)
		}
		if x, err := d.Index(ctx, IndexConfig{SkipBad: true}); err != nil || !slices.Equal(x.Skip(), []int64{0, 1, 2}) {
			t.Errorf("%v: bad rows %v (%v), want all but the last", src, x.Skip(), err)
		}
	}
	// Of a list that is the positives, too, a row needs one.
	if d, err = Open(ctx, Source{Paths: []string{filepath.Join(folder, "a.jsonl")}, Query: "q", Positive: "n", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives}); err != nil {
		t.Fatal(err)
	}
	if x, err := d.Index(ctx, IndexConfig{SkipBad: true}); err != nil || !slices.Equal(x.Skip(), []int64{0, 1, 2}) {
		t.Errorf("a list for both: bad rows %v (%v), want all but the last", x.Skip(), err)
	}
	src = Source{Paths: []string{filepath.Join(folder, "bad.jsonl")}, Query: "q", Positive: "p", Negatives: []string{"n"}}
	if _, err := Open(ctx, src); !errors.As(err, &bad) || !strings.Contains(err.Error(), `bad.jsonl:1, column "n": it is a number, want a list of strings`) {
		t.Errorf("no list that can be used: %v", err)
	}
}

// A column whose texts are lists, as pandas prints them, is an error in parquet and JSON lines too, in any file and whatever it is used as: each would
// be one text. Where half of the texts or fewer are, of CSV too, that is a note. Texts that begin with a bracket are texts, and a template takes what
// looks like a list, as does a file that prep has made.
func TestListsAsStrings(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, texts ...string) string {
		path := filepath.Join(dir, name)
		if isParquet(path) {
			w, err := NewParquetWriter(path, OutColumn{"q", TextOut}, OutColumn{"p", TextOut}, OutColumn{"n", TextOut})
			if err != nil {
				t.Fatal(err)
			}
			same := make([]string, len(texts))
			for i := range same {
				same[i] = "text"
			}
			if err := errors.Join(w.Write(same, same, texts), w.Close()); err != nil {
				t.Fatal(err)
			}
			return path
		}
		var lines []byte
		if separated(path) != "" {
			lines = []byte("q,p,n\n")
		}
		for _, text := range texts {
			if separated(path) != "" {
				lines = append(lines, `a,b,"`+strings.ReplaceAll(text, `"`, `""`)+"\"\n"...)
			} else {
				lines = append(append(append(lines, `{"q": "a", "p": "b", "n": `...), appendJSONString(nil, text)...), "}\n"...)
			}
		}
		if err := os.WriteFile(path, lines, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	try := func(s Source) ([]string, error) {
		d, err := Open(t.Context(), s)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return d.Notes(), nil
	}
	where := func(path string, row int) string {
		switch filepath.Ext(path) {
		case ".parquet":
			return fmt.Sprintf("%s: row group 0, row %d", path, row)
		case ".csv":
			row++
		}
		return fmt.Sprintf("%s:%d", path, row+1)
	}
	for _, ext := range []string{".parquet", ".jsonl"} {
		for name, texts := range map[string][]string{
			"python": {"['n1', 'n2']", "plain", `["it's", 'n2', None, ]`}, "json": {`["n1", "n2"]`, `[]`, "plain"}, "numpy": {"['n1' 'n2'\n 'n3']"},
		} {
			path := save(name+ext, texts...)
			for as, s := range map[string]Source{
				"negatives": {Query: "q", Positive: "p", Negatives: []string{"n"}}, "raw": {Query: "q", Positive: "p", Negatives: []string{"n"}, Raw: true},
				"positive": {Query: "q", Positive: "n"}, "query": {Query: "n", Positive: "p"}, "second": {Query: "q", Positive: "n"}, "second raw": {Query: "q", Positive: "n", Raw: true},
			} {
				s.Paths = []string{path}
				if strings.HasPrefix(as, "second") {
					s.Paths = []string{save("a"+ext, "plain"), path}
				}
				want := where(path, 0) + `, column "n": the text is a list, [`
				if _, err := try(s); !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `as a template, "{n}"`) || strings.Contains(err.Error(), "\n") ||
					strings.Contains(err.Error(), "write a row for each") != (as == "query") {
					t.Errorf("%s as %s: %v", path, as, err)
				}
			}
			if notes, err := try(Source{Paths: []string{path}, Query: "q", Positive: "{n}"}); err != nil || len(notes) > 0 {
				t.Errorf("a template of %s: %v, %q", path, err, notes)
			}
		}
	}
	for _, ext := range []string{".parquet", ".jsonl", ".csv"} {
		for name, texts := range map[string][]string{
			"cited": {"[1] a text", "[2] another"}, "empty": {"[]", "[]", "text", "text"}, "two": {"['a'] and ['b']", `["a"b"]`, "['a' or 'b']", `["a", "b"`, `["a\"]`, "[a, 'b']", "['a']."},
		} {
			if ext == ".csv" {
				texts = append(texts, slices.Repeat([]string{"text"}, len(texts))...) // most are spoilt lists otherwise
			}
			if notes, err := try(Source{Paths: []string{save(name+ext, texts...)}, Query: "q", Positive: "n"}); err != nil || len(notes) > 0 {
				t.Errorf("%s%s: %v, %q", name, ext, err, notes)
			}
		}
		few, half := save("few"+ext, "a", "['a']", "", "b"), save("half"+ext, "['a', 'b']", "c", `["d", "e"]`, "f")
		s := Source{Paths: []string{few, half}, Query: "q", Positive: "n", Negatives: []string{"n"}}
		want := where(few, 1) + `, column "n": the text is a list, ['a'], as pandas prints them (3 of the first 7 texts are), and is one text, with brackets and quotes. ` +
			"Write lists in every row (ast.literal_eval or json.loads makes them of such texts)"
		if ext == ".csv" {
			want += ` (in .csv and .tsv lists are cells of JSON, ["a", "b"])`
		}
		if notes, err := try(s); err != nil || len(notes) != 1 || notes[0] != want+`; if texts really look like that, name the column as a template, "{n}"` {
			t.Errorf("%s: %v, %q, want %s", ext, err, notes, want)
		}
		s.Positive, s.Negatives = "{n}", nil
		if notes, err := try(s); err != nil || len(notes) > 0 {
			t.Errorf("a template of %s: %v, %q", ext, err, notes)
		}
	}
	path := filepath.Join(dir, "prepared.parquet")
	w, err := NewParquetWriter(path, OutColumn{"q", TextOut}, OutColumn{"p", TextOut}, OutColumn{"p" + HashSuffix, LongsOut})
	if err == nil {
		err = errors.Join(w.Write([]string{"a"}, []string{"['a']"}, [][]int64{{1, 2}}), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if notes, err := try(Source{Paths: []string{path}, Query: "q", Positive: "p"}); err != nil || len(notes) > 0 {
		t.Errorf("a file that prep has made: %v, %q", err, notes)
	}
}

// A name that two columns of a parquet file have is an error where it is named, with the file and the name: no one can tell which is meant. Other
// columns of the file can be used.
func TestColumnsOfOneName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "twice.parquet")
	w, err := NewParquetWriter(path, OutColumn{"q", TextOut}, OutColumn{"pos 1", TextOut}, OutColumn{"pos 2", TextOut}, OutColumn{"num 1", FloatOut}, OutColumn{"num 2", FloatOut})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write([]string{"a"}, []string{"b"}, []string{"c"}, []float64{1}, []float64{2}), w.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path) // the writer refuses such names
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pos", "num"} {
		content = bytes.ReplaceAll(content, []byte(name+" 2"), []byte(name+" 1"))
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Source{
		"pos 1": {Query: "q", Positive: "pos 1"}, "num 1": {Query: "q", Positive: "q", Weight: "num 1"},
	} {
		s.Paths = []string{path}
		if _, err := Open(t.Context(), s); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path+` has 2 columns "`+name+`", and which one is meant`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "q"})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	table, err := OpenTable(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for _, err := range table.Chunks(t.Context(), "pos 1", 10) {
		if err == nil || !strings.Contains(err.Error(), `2 columns "pos 1"`) {
			t.Error(err)
		}
	}
}

// The error of the lowest number is what counts, and after it no more is begun.
func TestForEachErrors(t *testing.T) {
	for _, threads := range []int{1, 3} {
		var calls atomic.Int64
		err := forEach(threads, 100, func(i int) error {
			calls.Add(1)
			if i < 10 {
				return nil
			}
			return fmt.Errorf("error of %d", i)
		})
		if err == nil || err.Error() != "error of 10" || calls.Load() > int64(10+threads) {
			t.Errorf("%d threads: %v after %d calls", threads, err, calls.Load())
		}
	}
}
