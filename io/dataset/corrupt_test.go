package dataset

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"contraflow/testdata/harness"
)

// readAll opens a parquet file and reads everything a training run would.
func readAll(path string, src Source) (texts []string, err error) {
	ctx := context.Background()
	src.Paths = []string{path}
	d, err := open(ctx, src, blockLimit{16, 1 << 20})
	if err != nil {
		return nil, err
	}
	for i := range d.Blocks() {
		b, err := d.ReadBlock(ctx, i)
		if err != nil {
			return nil, err
		}
		for row := range b.Rows {
			if err := b.Check(row); err != nil {
				return nil, err
			}
			for k := range d.roles {
				texts = b.Texts(texts, row, k)
			}
		}
	}
	return texts, nil
}

// TestSkipDamagedPage: with SkipBad the rows of blocks whose page can't be decoded are bad, and no others; without it the page is the error.
func TestSkipDamagedPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.parquet")
	w, err := NewParquetWriter(path, OutColumn{"query", TextOut}, OutColumn{"positive", TextOut})
	if err != nil {
		t.Fatal(err)
	}
	const rows = 3 * sliceRows // a page each
	texts := make([]string, rows)
	for i := range texts {
		texts[i] = fmt.Sprintf("%300d", i)
	}
	if err := errors.Join(w.Write(texts, texts), w.Close()); err != nil {
		t.Fatal(err)
	}
	d, err := open(t.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive"}, blockLimit{512, 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadBlock(t.Context(), 0); err != nil { // it knows where pages are
		t.Fatal(err)
	}
	pages := d.files[0].groups[0][0].pages
	if len(pages) != 3 || pages[1].starts != sliceRows {
		t.Fatalf("%d pages, want one a slice", len(pages))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[pages[1].at+pages[1].compressed/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Index(t.Context(), IndexConfig{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want the damaged page", err)
	}
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	skip := x.Skip()
	if len(skip) != sliceRows || skip[0] != sliceRows || skip[sliceRows-1] != 2*sliceRows-1 {
		t.Fatalf("%d rows are left out, from %v", len(skip), skip[:min(1, len(skip))])
	}
	if bad := x.Bad()[7]; bad.Row != sliceRows+7 || bad.Location.Row != bad.Row || !strings.Contains(bad.Error(), "checksum") {
		t.Error(bad)
	}
	if got := x.Hashes(nil, 0, 0, 2*sliceRows); d.Rows() != rows || x.Longest() != len(texts[rows-1]) || !slices.Equal(got, []Hash128{HashText(texts[2*sliceRows]), HashText(texts[2*sliceRows])}) {
		t.Errorf("%v of %d rows, the longest of %d", got, d.Rows(), x.Longest())
	}
}

// TestDamagedParquet changes bytes at random. Whatever that does, it must not panic, hang or fail without naming the file;
// and in files with checksums a change in the pages can't go unnoticed.
func TestDamagedParquet(t *testing.T) {
	harness.Thorough(t)
	tries := 100
	if n, err := strconv.Atoi(os.Getenv("CONTRAFLOW_DAMAGE_TRIES")); err == nil {
		tries = n
	}
	folder := t.TempDir()
	for _, name := range []string{"v1_none", "v2_none", "tiny_pages_plain", "checksums", "checksums_dictionary", "v2_zstd", "gzip", "brotli", "lz4", "delta", "page_index", "split_rows", "hf", "shapes_f32", "ids_dictionary", "ids_zstd_v2"} {
		src := Source{Query: "query", Positive: "positive"}
		switch name {
		case "split_rows":
			src.Positive = "pos"
		case "shapes_f32":
			src.Positive, src.Negatives, src.NegativesPerQuery, src.Scores, src.Teacher = "pos", []string{"neg"}, AllNegatives, []string{"all_scores"}, "teacher"
		case "ids_dictionary", "ids_zstd_v2":
			src = idsSource
		case "checksums_dictionary":
		default:
			src.Negatives, src.NegativesPerQuery, src.Weight = []string{"pos", "neg"}, 2, "weight"
		}
		whole, err := os.ReadFile(golden(name + ".parquet"))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, "damaged.parquet")
		truth, err := readAll(golden(name+".parquet"), src)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(8, 8))
		errs, same, other := 0, 0, 0
		for i := range tries {
			b := slices.Clone(whole)
			pages := i%2 == 0 // half of the changes to pages, half to the end: the footer
			for range 1 + rng.IntN(3) {
				footer := min(4000, len(b)/2)
				at := rng.IntN(len(b) - footer)
				if !pages {
					at = len(b) - 1 - rng.IntN(footer)
				}
				b[at] ^= byte(1 << rng.IntN(8))
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			got, err := readAll(path, src)
			if took := time.Since(begin); took > 5*time.Second {
				t.Fatalf("%s, try %d: took %v", name, i, took)
			}
			switch {
			case err != nil:
				errs++
				if !strings.Contains(err.Error(), path) {
					t.Errorf("%s, try %d: the error doesn't name the file: %v", name, i, err)
				}
				if strings.Contains(err.Error(), "runtime error") {
					t.Errorf("%s, try %d: a panic was caught: %v", name, i, err)
				}
			case slices.Equal(got, truth):
				same++
			default:
				other++
				if pages && (strings.HasPrefix(name, "checksums") || strings.HasPrefix(name, "ids") || name == "v2_zstd") {
					t.Errorf("%s, try %d: other texts in spite of checksums", name, i)
				}
			}
		}
		t.Logf("%s: %d errors, %d unnoticed without effect, %d with other texts", name, errs, same, other)
		for cut := 0; cut < len(whole); cut += 1 + len(whole)/40 {
			if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := readAll(path, src); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s cut to %d bytes: %v", name, cut, err)
			}
		}
	}
}

// FuzzParquet looks for files that make the reader panic, hang or hold gigabytes.
func FuzzParquet(f *testing.F) {
	for _, name := range []string{"nulls", "nulls_v2", "two_levels", "one_level", "split_rows", "bag"} {
		b, err := os.ReadFile(golden(name + ".parquet"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "fuzz.parquet")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		var err error
		harness.Bounded(t, func() { _, err = readAll(path, Source{Query: "query", Positive: "pos"}) })
		if err != nil && strings.Contains(err.Error(), "runtime error") {
			t.Fatal(err)
		}
	})
}
