package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/encoding/rle"

	"contraflow/testdata/harness"
)

// idsRow is what pyarrow reads of testdata/golden/dataset/ids_*.parquet.
type idsRow struct {
	QueryHash []int64 `json:"query_hash"`
	QueryIDs  []int32 `json:"query_ids"`
	PosHash   []int64 `json:"pos_hash"`
	PosIDs    []int32 `json:"pos_ids"`
	PosCounts []int32 `json:"pos_id_counts"`
}

var idsSource = Source{Query: "query", Positive: "pos", Negatives: []string{"pos"}, NegativesPerQuery: AllNegatives, Tokens: true}

// TestGoldenIDs reads the ids of every form in blocks of every size, in a random order, and in the order of the file.
func TestGoldenIDs(t *testing.T) {
	var want struct {
		Rows  []idsRow
		Empty [][]int32
	}
	readJSON(t, golden("ids.json"), &want)
	for _, form := range strings.Fields("snappy plain dictionary zstd_v2 delta split required empty") {
		for _, limit := range []blockLimit{defaultLimit, {7, 1 << 20}, {1, 1}} {
			src := idsSource
			src.Paths = []string{golden("ids_" + form + ".parquet")}
			d, err := open(t.Context(), src, limit)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(4, 4))
			r := d.NewReader(ReaderConfig{CacheBytes: 1, Threads: 2})
			for range 4 {
				order := rng.Perm(len(want.Rows))
				rows := make([]int64, len(order))
				for i, o := range order {
					rows[i] = int64(o)
				}
				examples, err := r.Read(t.Context(), 0, rows)
				if err != nil {
					t.Fatalf("%s: %v", form, err)
				}
				for i, e := range examples {
					w := want.Rows[order[i]]
					query := w.QueryIDs
					if form == "empty" {
						query = want.Empty[order[i]]
					}
					where := fmt.Sprintf("%s, blocks %v, row %d", form, limit, order[i])
					from, to := e.Column(2) // all texts of pos
					if to-from != len(w.PosCounts) {
						t.Fatalf("%s: %d texts, want %d", where, to-from, len(w.PosCounts))
					}
					if !slices.Equal(e.IDs[0], query) || e.Hashes[0] != (Hash128{uint64(w.QueryHash[0]), uint64(w.QueryHash[1])}) {
						t.Fatalf("%s: query %v %v, want %v %v", where, e.IDs[0], e.Hashes[0], query, w.QueryHash)
					}
					if got := slices.Concat(e.IDs[from:to]...); !slices.Equal(got, w.PosIDs) {
						t.Fatalf("%s: %v, want %v", where, got, w.PosIDs)
					}
					for k, n := range w.PosCounts {
						if len(e.IDs[from+k]) != int(n) || e.Hashes[from+k] != (Hash128{uint64(w.PosHash[2*k]), uint64(w.PosHash[2*k+1])}) {
							t.Fatalf("%s: text %d has %d ids and the hash %v, want %d and %v", where, k, len(e.IDs[from+k]), e.Hashes[from+k], n, w.PosHash[2*k:2*k+2])
						}
					}
				}
			}
			r.Close()
			d.Close()
		}
	}
	for form, what := range map[string]string{"null": "a null in the list", "null_list": "the list is null"} {
		path := golden("ids_" + form + ".parquet")
		_, err := readAll(path, idsSource)
		if err == nil || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `row group 1, column "query"`) || !strings.Contains(err.Error(), "row 5 of the row group: "+what) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// TestIDsThatDoNotFit: ids, their counts and the hashes beside them have to be of the same texts.
func TestIDsThatDoNotFit(t *testing.T) {
	type row struct {
		queryHash, posHash []int64
		posCounts          []int32
	}
	good := row{[]int64{1, 2}, []int64{3, 4, 5, 6}, []int32{1, 2}}
	for want, bad := range map[string]row{
		"": good,
		"column \"query\": row 1 of the row group: 3 halves of hashes for one text":    {[]int64{1, 2, 3}, good.posHash, good.posCounts},
		"column \"query\": row 1 of the row group: 4 halves of hashes for one text":    {[]int64{1, 2, 3, 4}, good.posHash, good.posCounts},
		"column \"pos\": row 1 of the row group: 2 halves of hashes for 2 texts":       {good.queryHash, []int64{3, 4}, good.posCounts},
		"column \"pos\": row 1 of the row group: more ids are counted than there are":  {good.queryHash, good.posHash, []int32{1, 3}},
		"column \"pos\": row 1 of the row group: fewer ids are counted than there are": {good.queryHash, good.posHash, []int32{1, 1}},
		"row 1 of the row group: more ids are counted than there are":                  {good.queryHash, good.posHash, []int32{-1, 4}},
	} {
		path := filepath.Join(t.TempDir(), "ids.parquet")
		w, err := NewParquetWriter(path, OutColumn{"query", TextOut}, OutColumn{"query_hash", LongsOut}, OutColumn{"query_ids", IDsOut},
			OutColumn{"pos", TextListOut}, OutColumn{"pos_hash", LongsOut}, OutColumn{"pos_ids", IDsOut}, OutColumn{"pos_id_counts", IDsOut})
		if err != nil {
			t.Fatal(err)
		}
		w.SetMetadata(TokenKey, `{"tokenizer": "t"}`)
		ids, pos := [][]int32{{7}, {7}}, [][]string{{"b", "c"}, {"b", "c"}}
		err = w.Write([]string{"a", "a"}, [][]int64{good.queryHash, bad.queryHash}, ids, pos, [][]int64{good.posHash, bad.posHash}, [][]int32{{8, 9, 9}, {8, 9, 9}}, [][]int32{good.posCounts, bad.posCounts})
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = readAll(path, idsSource)
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", bad, err, want)
		}
	}
}

// TestSparseLists: pages read sparsely hold what they hold read slot by slot, and what was written, in every form that parquet-go writes
// and of rows in any order.
func TestSparseLists(t *testing.T) {
	harness.Thorough(t)
	rng := rand.New(rand.NewPCG(2, 13))
	tried := map[bool]int{} // pages, by whether they were sparse
	for _, empties := range []bool{false, true} {
		var rows [][]int32
		for i := range 150 {
			row := make([]int32, 1+rng.IntN(40)*rng.IntN(2))
			if i == 70 {
				row = make([]int32, 700) // more than a page
			}
			if empties && i%50 == 3 {
				row = nil
			}
			for k := range row {
				if row[k] = int32(min(rng.IntN(1<<16), rng.IntN(1<<16))); rng.IntN(4) == 0 && k > 0 {
					row[k] = row[k-1]
				}
			}
			rows = append(rows, row)
		}
		for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Zstd, &parquet.Gzip, &parquet.Lz4Raw} {
			for _, enc := range []encoding.Encoding{&parquet.Plain, &parquet.RLEDictionary, &parquet.DeltaBinaryPacked, &parquet.ByteStreamSplit} {
				for version := 1; version <= 2; version++ {
					for _, optional := range []bool{true, false} {
						leaf := parquet.Encoded(parquet.Int(32), enc)
						node := parquet.List(leaf)
						if optional {
							node = parquet.Optional(parquet.List(parquet.Optional(leaf)))
						}
						name := fmt.Sprintf("%v, %v, V%d, optional %v, empty lists %v", codec, enc, version, optional, empties)
						var file bytes.Buffer
						w := parquet.NewWriter(&file, parquet.NewSchema("schema", parquet.Group{"l": node}), parquet.Compression(codec), parquet.DataPageVersion(version), parquet.PageBufferSize(2000))
						for _, row := range rows {
							var values []parquet.Value
							def := 1
							if optional {
								def = 3
							}
							for k, v := range row {
								values = append(values, parquet.Int32Value(v).Level(min(k, 1), def, 0))
							}
							if len(row) == 0 {
								values = append(values, parquet.NullValue().Level(0, def/2, 0))
							}
							if _, err := w.ColumnWriters()[0].WriteRowValues(values); err != nil {
								t.Fatal(err)
							}
						}
						if err := w.Close(); err != nil {
							t.Fatal(err)
						}
						path := filepath.Join(t.TempDir(), "lists.parquet")
						if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
							t.Fatal(err)
						}
						checkLists(t, name, path, "l", rows, tried)
					}
				}
			}
		}
	}
	if tried[true] < 1000 || tried[false] < 50 {
		t.Errorf("%d reads ended in a sparse page, %d in another: the test does not try both", tried[true], tried[false])
	}
}

// checkLists reads ranges of rows of a file's only row group in both ways.
func checkLists(t *testing.T, name, path, col string, rows [][]int32, tried map[bool]int) {
	t.Helper()
	p, err := openParquet(path)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := p.column(col)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var readers [2]columnReader
	for i := range readers {
		chunk, err := p.chunk(0, c)
		if err != nil {
			t.Fatal(err)
		}
		readers[i].reset(io.NewSectionReader(f, 0, p.size), chunk)
		readers[i].sparse = i == 1
	}
	rng := rand.New(rand.NewPCG(5, uint64(len(rows))))
	for try := range 12 {
		from := rng.IntN(len(rows))
		to := from + 1 + rng.IntN(len(rows)-from)
		if try == 0 {
			from, to = 0, len(rows)
		}
		for i := range readers {
			got := fixedLists{}
			if err := readers[i].readFixed(&got, int64(from), int64(to)); err != nil {
				t.Fatalf("%s: rows %d to %d: %v", name, from, to, err)
			}
			for k, want := range rows[from:to] {
				if have := idsOf(got.data[4*got.starts[k] : 4*got.starts[k+1]]); !slices.Equal(have, want) {
					t.Fatalf("%s, sparse %v: row %d of %d to %d: %v, want %v", name, i == 1, from+k, from, to, have, want)
				}
			}
			if i == 1 {
				tried[readers[i].page.sparse]++
			}
		}
	}
}

// TestPackedRowStarts: of a packed run's last group what is beyond the levels is none, whatever it is.
func TestPackedRowStarts(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for n := range 140 {
		src := []byte{byte((n+7)/8<<1 | 1)}
		var want []uint32
		for i := range (n + 7) / 8 {
			b := byte(rng.Uint32())
			src = append(src, b)
			for k := range min(8, n-8*i) {
				if b>>k&1 == 0 {
					want = append(want, uint32(8*i+k))
				}
			}
		}
		if n%8 != 0 {
			src[len(src)-1] &= 1<<(n%8) - 1
		}
		if got, err := rowStarts(nil, src, n); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d levels in % x: %v (%v), want %v", n, src, got, err, want)
		}
	}
}

// TestRowStarts: rows' starts found in runs are those of unpacked levels, and damage is an error in both.
func TestRowStarts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, src := range [][]byte{{2}, {0, 1, 16, 1}} { // a run without a value, and one of nothing
		if got, err := rowStarts(nil, src, 8); err == nil {
			t.Errorf("8 levels in % x: %v", src, got)
		}
	}
	for try := range 2000 {
		bits := make([]uint8, rng.IntN(300))
		for i := range bits {
			if bits[i] = uint8(rng.IntN(2)); i > 0 && rng.IntN(1+try%40) > 0 {
				bits[i] = bits[i-1]
			}
		}
		src, err := (&rle.Encoding{BitWidth: 1}).EncodeLevels(nil, slices.Clone(bits))
		if err != nil {
			t.Fatal(err)
		}
		if try%3 == 2 && len(src) > 0 {
			src[rng.IntN(len(src))] ^= 1 << rng.IntN(8)
		}
		unpacked := make([]uint8, len(bits))
		general := levels(unpacked, src, 1)
		var want []uint32
		for i, l := range unpacked {
			if l == 0 {
				want = append(want, uint32(i))
			}
		}
		got, err := rowStarts(nil, src, len(bits))
		if (err == nil) != (general == nil) || err == nil && !slices.Equal(got, want) {
			t.Fatalf("%d levels in % x: %v (%v), want %v (%v)", len(bits), src, got, err, want, general)
		}
	}
}
