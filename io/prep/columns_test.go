package prep

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// Labels, weights and sources stay with their rows, of which there are more than go to the writer at once, and some that are dropped between them.
func TestNumbersStayWithTheirRows(t *testing.T) {
	const n = 2*outRows + 77
	dir := t.TempDir()
	inputs := []string{filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")}
	for k, path := range inputs {
		var b bytes.Buffer
		for i := range n {
			text := fmt.Sprint("text ", k, " ", i)
			if i%3 == 1 {
				text = " "
			}
			fmt.Fprintf(&b, `{"query": "q", "positive": %q, "stars": %d, "w": %d.5}`+"\n", text, i%7-3, i)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := bare(t)
	c.Input = nil
	for k, path := range inputs {
		c.Input = append(c.Input, Input{Name: fmt.Sprint("input ", k), Path: []string{path}, Query: "query", Positive: "positive", Label: "stars", Weight: "w"})
	}
	c.Output.Shards = 1
	mustRun(t, c)
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{c.Output.Dir + "/train-*.parquet"}, Query: "source", Positive: "positive", Label: "stars", Weight: "w"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows := int64(0)
	for row, err := range d.Each(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		var k, i int
		if _, err := fmt.Sscanf(row.Block.Texts(nil, row.Place, 1)[0], "text %d %d", &k, &i); err != nil {
			t.Fatal(err)
		}
		if source := row.Block.Texts(nil, row.Place, 0)[0]; source != fmt.Sprint("input ", k) || row.Block.Label(row.Place) != float32(i%7-3) || row.Block.Weight(row.Place) != float32(i)+0.5 {
			t.Fatalf("row %d of input %d is of %q, has the label %v and the weight %v", i, k, source, row.Block.Label(row.Place), row.Block.Weight(row.Place))
		}
		rows++
	}
	if want := int64(2 * (n - n/3)); d.Rows() != want || rows != want {
		t.Errorf("%d rows, %d read, want %d", d.Rows(), rows, want)
	}
}

// Inputs of texts and of lists of texts don't go together.
func TestInputsOfOtherShapes(t *testing.T) {
	dir := t.TempDir()
	one, list := filepath.Join(dir, "one.jsonl"), filepath.Join(dir, "list.jsonl")
	if err := errors.Join(os.WriteFile(one, []byte(`{"query": "q", "positive": "p"}`), 0o600), os.WriteFile(list, []byte(`{"query": "q", "positive": ["p", "r"]}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	c := bare(t)
	c.Input = []Input{{Name: "a", Path: []string{one}, Query: "query", Positive: "positive"}, {Name: "b", Path: []string{list}, Query: "query", Positive: "positive"}}
	if _, err := Run(t.Context(), c, Options{}); err == nil || !strings.Contains(err.Error(), `input "b": column "positive" is a list of texts where "a" has one text`) {
		t.Error(err)
	}
}

// Sketches and keys that went to their files come back, also where more are added behind them.
func TestSpilled(t *testing.T) {
	dir := t.TempDir()
	f, err := newSketchFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	of := func(i int) Sketch {
		hashes := make([]uint32, 1+i%sketchSize)
		for k := range hashes {
			hashes[k] = uint32(i + k)
		}
		return Sketch{uint64(i), len(hashes), hashes}
	}
	var places []int64
	for i := range 5000 { // 2.6 MB: two buffers and a bit
		at, err := f.add(of(i))
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, at)
	}
	if f.at < 2<<20 {
		t.Error("no two buffers were full")
	}
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	for i, at := range places {
		got, err := f.read(at, nil)
		if want := of(i); err != nil || got.Text != want.Text || got.Size != want.Size || !slices.Equal(got.Hashes, want.Hashes) {
			t.Fatalf("sketch %d: %v, %v, want %v", i, got, err, want)
		}
	}
	full, err := newSketchFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	full.close() // as where there is no more room
	if _, err := full.add(of(1)); errors.Join(err, full.flush()) == nil {
		t.Error("a sketch that could not be written is not missed")
	}
	s, err := newSpill(dir, "x", bandRecord, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const records = 3*spillBuffer/bandRecord + 5
	for i := range records {
		if err := s.add(1<<61, fmt.Appendf(nil, "%016d", i)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := s.load(1)
	if err != nil || len(data) != records*bandRecord {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if info, err := s.parts[1].file.Stat(); err != nil || info.Size() > 0 {
		t.Errorf("what is loaded still takes %d bytes of disk, %v", info.Size(), err)
	}
	for records, want := range map[int64]int{0: 8, 8 * partBytes / bandRecord: 8, 8*partBytes/bandRecord + 1: 16, 1 << 40: mostParts} {
		s, err := newSpill(dir, "y", bandRecord, records)
		if err != nil {
			t.Fatal(err)
		}
		if s.close(); len(s.parts) != want || 1<<(64-s.shift) != want {
			t.Errorf("%d records go to %d files by %d bits, want %d", records, len(s.parts), 64-s.shift, want)
		}
		full := make([]byte, spillBuffer)
		if err := spilled(dir, s.add(1, full)); err == nil || !strings.Contains(err.Error(), "--temp DIR chooses another place") { // to a closed file, as to a full disk
			t.Errorf("a file that can't be written: %v", err)
		}
	}
	if other := errors.New("of an input"); spilled(dir, other) != other {
		t.Error("an input's error is said to be a spill's")
	}
	for i := range records {
		if got := string(data[i*bandRecord:][:bandRecord]); got != fmt.Sprintf("%016d", i) {
			t.Fatalf("record %d is %s", i, got)
		}
	}
}
