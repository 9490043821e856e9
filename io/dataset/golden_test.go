package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// What pyarrow reads from each golden file is the truth (testdata/golden/dataset/make.py).

const goldenFolder = "../../testdata/golden/dataset"

func golden(name string) string { return filepath.Join(goldenFolder, name) }

type goldenRow struct {
	Query, Positive, Negative string
	Pos, Neg, Three           []string
	Weight                    float32
	Count                     int64
	Doc                       struct {
		Title string
		Body  struct{ Text string }
		Parts []string
	}
}

type goldenFile struct {
	Rows   []goldenRow
	Hashes [][2]string
	Nulls  struct {
		Query, Positive []*string
		Pos             [][]*string
	}
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func goldens(t testing.TB) (g goldenFile) {
	t.Helper()
	readJSON(t, golden("expected.json"), &g)
	return g
}

// forms are the files that hold the rows' query, positive, pos, neg, three and weight.
var forms = strings.Fields(`v1_none v2_zstd v2_none gzip brotli lz4 item tiny_pages tiny_pages_plain page_index checksums
	many_groups no_arrow_schema delta large dictionary_type required binary default hf`)

// TestGoldenForms reads every form, whole, in blocks of every size, and in random order.
func TestGoldenForms(t *testing.T) {
	harness.Thorough(t)
	g := goldens(t)
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			for _, limit := range []blockLimit{defaultLimit, {1, 1 << 20}, {7, 1 << 20}, {1000, 300}} {
				src := Source{Paths: []string{golden(form + ".parquet")}, Query: "query", Positive: "positive", Negatives: []string{"pos", "neg", "three"}, NegativesPerQuery: 2, Weight: "weight"}
				compareRows(t, src, limit, g.Rows, func(r goldenRow) [][]string {
					return [][]string{{r.Query}, {r.Positive}, r.Pos, r.Neg, r.Three}
				}, func(r goldenRow) float32 { return r.Weight })
			}
		})
	}
}

func TestGoldenNestedNames(t *testing.T) {
	g := goldens(t)
	for _, file := range []string{"default.parquet", "hf.parquet"} {
		src := Source{Paths: []string{golden(file)}, Query: "doc.title", Positive: "doc.body.text", Negatives: []string{"doc.parts"}, NegativesPerQuery: 1, Weight: "count"}
		g := slices.Clone(g.Rows)
		compare := func(limit blockLimit) {
			compareRows(t, src, limit, g, func(r goldenRow) [][]string {
				return [][]string{{r.Doc.Title}, {r.Doc.Body.Text}, r.Doc.Parts}
			}, nil)
		}
		compare(defaultLimit)
		compare(blockLimit{5, 1 << 20})
	}
	src := Source{Paths: []string{golden("flag.jsonl")}, Query: "doc.title", Positive: "doc.body.text", Negatives: []string{"doc.parts"}, NegativesPerQuery: 1}
	compareRows(t, src, defaultLimit, g.Rows, func(r goldenRow) [][]string {
		return [][]string{{r.Doc.Title}, {r.Doc.Body.Text}, r.Doc.Parts}
	}, nil)
}

func TestGoldenJSONL(t *testing.T) {
	g := goldens(t)
	for _, file := range []string{"flag.jsonl", "flag.jsonl.gz", "flag.jsonl.zst", "hf.jsonl"} {
		for _, limit := range []blockLimit{defaultLimit, {7, 1 << 20}, {1, 1}} {
			src := Source{Paths: []string{golden(file)}, Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: 1}
			var weight func(r goldenRow) float32
			if file == "hf.jsonl" {
				src.Weight = "weight"
				weight = func(r goldenRow) float32 { return r.Weight }
			}
			compareRows(t, src, limit, g.Rows, func(r goldenRow) [][]string { return [][]string{{r.Query}, r.Pos, r.Neg} }, weight)
		}
	}
}

// compareRows reads all blocks, in order and shuffled, and compares every text.
func compareRows(t *testing.T, src Source, limit blockLimit, want []goldenRow, columns func(goldenRow) [][]string, weight func(goldenRow) float32) {
	t.Helper()
	d, err := open(context.Background(), src, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Rows() != int64(len(want)) {
		t.Fatalf("%d rows, want %d", d.Rows(), len(want))
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(d.Blocks())
	forward := d.NewScanner()
	defer forward.Close()
	seen := 0
	for i, random := range order {
		var a, b Block
		if err := forward.Read(context.Background(), i, &a); err != nil {
			t.Fatal(err)
		}
		if err := forward.Read(context.Background(), random, &b); err != nil {
			t.Fatal(err)
		}
		c, err := d.ReadBlock(context.Background(), random)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range []*Block{&a, &b, c} {
			seen += block.Rows
			for row := range block.Rows {
				if err := block.Check(row); err != nil {
					t.Fatal(err)
				}
				r := want[block.First+int64(row)]
				for k, w := range columns(r) {
					if got := block.Texts(nil, row, k); !slices.Equal(got, w) {
						t.Fatalf("row %d, column %d: %q, want %q", block.First+int64(row), k, got, w)
					}
				}
				if weight != nil && block.Weight(row) != weight(r) {
					t.Fatalf("row %d: weight %v, want %v", row, block.Weight(row), weight(r))
				}
			}
		}
	}
	if seen != 3*len(want) {
		t.Fatalf("%d rows in all blocks, want %d", seen/3, len(want))
	}
}

// TestOldForms reads what pyarrow reads but doesn't write: lists of two levels and of one, pages that end in a row.
func TestOldForms(t *testing.T) {
	var want map[string][]goldenRow
	readJSON(t, golden("old_forms.json"), &want)
	for name, rows := range want {
		for _, limit := range []blockLimit{defaultLimit, {1, 1 << 20}, {3, 1 << 20}} {
			src := Source{Paths: []string{golden(name + ".parquet")}, Query: "query", Positive: "pos"}
			compareRows(t, src, limit, rows, func(r goldenRow) [][]string { return [][]string{{r.Query}, r.Pos} }, nil)
		}
	}
}

// TestRandomRanges reads ranges of rows in random order through one reader: forwards, backwards, across pages.
func TestRandomRanges(t *testing.T) {
	g := goldens(t)
	for _, form := range forms {
		randomRanges(t, form, g.Rows, "positive", "pos", "neg", "three")
	}
	var old map[string][]goldenRow
	readJSON(t, golden("old_forms.json"), &old)
	for name, rows := range old {
		middle := randomRanges(t, name, rows, "query", "pos")
		if strings.HasPrefix(name, "split_rows") && middle == 0 {
			t.Errorf("%s has no page that begins in the middle of a row", name)
		}
	}
}

// randomRanges returns how many pages begin in the middle of a row.
func randomRanges(t *testing.T, form string, rows []goldenRow, columns ...string) (middle int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	p, err := openParquet(golden(form + ".parquet"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range columns {
		col, _, err := p.column(name)
		if err != nil {
			t.Fatal(err)
		}
		first := int64(0)
		for group, rg := range p.meta.RowGroups {
			ch, err := p.chunk(group, col)
			if err != nil {
				t.Fatal(err)
			}
			var r columnReader
			r.reset(f, ch)
			for range 60 {
				from := rng.Int64N(rg.NumRows)
				to := from + 1 + rng.Int64N(rg.NumRows-from)
				if rng.IntN(2) == 0 {
					to = min(to, from+2)
				}
				var texts textColumn
				texts.reset(col.list)
				if err := r.readTexts(&texts, from, to); err != nil {
					t.Fatalf("%s %s [%d, %d): %v", form, name, from, to, err)
				}
				if texts.list {
					texts.begin()
				}
				for i := from; i < to; i++ {
					row := rows[first+i]
					want := map[string][]string{"query": {row.Query}, "positive": {row.Positive}, "pos": row.Pos, "neg": row.Neg, "three": row.Three}[name]
					var got []string
					for _, s := range texts.row(int(i - from)) {
						got = append(got, string(texts.bytes(s)))
					}
					if !slices.Equal(got, want) {
						t.Fatalf("%s %s row %d: %q, want %q", form, name, first+i, got, want)
					}
				}
			}
			for _, page := range ch.pages {
				if page.mid {
					middle++
				}
			}
			first += rg.NumRows
		}
	}
	return middle
}

// TestLyingIndex: an offset index (or a V2 header) that is wrong about rows is an error, not other rows.
func TestLyingIndex(t *testing.T) {
	for _, form := range []string{"page_index", "v2_none"} {
		p, err := openParquet(golden(form + ".parquet"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(p.path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		col, _, err := p.column("neg")
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.chunk(0, col)
		if err == nil {
			err = c.open(f)
		}
		if err != nil || c.counted != len(c.pages) || len(c.pages) < 3 {
			t.Fatalf("%s: %v, %d of %d pages known", form, err, c.counted, len(c.pages))
		}
		c.pages[1].starts++ // as if page 2 began a row later
		for i := 2; i < len(c.pages); i++ {
			c.pages[i].firstRow++
		}
		var r columnReader
		r.reset(f, c)
		var texts textColumn
		texts.reset(true)
		if err := r.readTexts(&texts, 0, c.rows); err == nil || !strings.Contains(err.Error(), "its header or the index says") {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// TestDictionaryShared: a text that repeats in a block is held once.
func TestDictionaryShared(t *testing.T) {
	d, err := Open(context.Background(), Source{Paths: []string{golden("nulls.parquet")}, Query: "positive", Positive: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.ReadBlock(context.Background(), 0)
	if err != nil || b.Rows != 8 || string(b.texts[0].arena) != "p" {
		t.Errorf("%d rows of one text take %q (%v)", b.Rows, b.texts[0].arena, err)
	}
}

func TestHash(t *testing.T) {
	for _, h := range goldens(t).Hashes {
		if got := HashText(h[0]).String(); got != h[1] {
			t.Errorf("hash of %q: %s, want %s", h[0], got, h[1])
		}
		if hashBytes([]byte(h[0])) != HashText(h[0]) {
			t.Errorf("hash of bytes and string differ for %q", h[0])
		}
	}
}

// TestNulls finds null, empty and blank texts, in scalars and lists, and says where.
// Labels that are true and false, in pages of both versions (testdata/golden/dataset/judged.py).
func TestTruthPages(t *testing.T) {
	for _, name := range []string{"judged_truth.parquet", "judged_truth_v2.parquet"} {
		d, err := Open(t.Context(), Source{Paths: []string{golden(name)}, Query: "query", Positive: "positive", Label: "label"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.ReadBlock(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := []float32{b.Label(0), b.Label(1), b.Label(2), b.Label(3)}; b.Rows != 4 || !slices.Equal(got, []float32{1, 0, 1, 1}) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNulls(t *testing.T) {
	ctx := context.Background()
	want := []string{
		"", `column "query": the text is null`, `column "query": the text is empty`, `column "query": the text is blank`,
		`column "pos": the list is null or empty`, `column "pos": the list is null or empty`, `column "pos": text 1 of the list is null`, `column "pos": text 1 of the list is empty`,
	}
	jsonl := filepath.Join(t.TempDir(), "nulls.jsonl")
	var lines []string
	g := goldens(t)
	for i := range want {
		b, _ := json.Marshal(map[string]any{"query": g.Nulls.Query[i], "pos": g.Nulls.Pos[i]})
		lines = append(lines, string(b))
	}
	if err := os.WriteFile(jsonl, []byte(strings.Join(lines, "\n\n")), 0o644); err != nil { // a blank line after each
		t.Fatal(err)
	}
	for _, path := range []string{golden("nulls.parquet"), golden("nulls_v2.parquet"), jsonl} {
		d, err := Open(ctx, Source{Paths: []string{path}, Query: "query", Positive: "pos"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.ReadBlock(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		for row, w := range want {
			if w != "" {
				w = fmt.Sprintf("%s: row group 0, row %d, %s", path, row, w)
				if path == jsonl {
					w = strings.Replace(w, fmt.Sprintf(": row group 0, row %d", row), fmt.Sprintf(":%d", 2*row+1), 1)
				}
			}
			got := ""
			if err := b.Check(row); err != nil {
				got = err.Error()
			}
			if got != w {
				t.Errorf("row %d: %q, want %q", row, got, w)
			}
		}
		// The first pass stops at the first of them.
		if _, err := d.Index(ctx, IndexConfig{}); err == nil || !strings.Contains(err.Error(), "the text is null") {
			t.Errorf("index: %v", err)
		}
	}
}
