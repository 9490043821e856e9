package newmodel_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// rowsOf is the table of a folder of static embeddings.
func rowsOf(t *testing.T, dir string) (rows [][]float64) {
	t.Helper()
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := f.Tensor("embedding.weight")
	if err != nil {
		t.Fatal(err)
	}
	vs := make([]float32, table.Len())
	if err := table.Float32s(vs); err != nil {
		t.Fatal(err)
	}
	for i := range table.Shape[0] {
		rows = append(rows, nil)
		for _, v := range vs[i*table.Shape[1]:][:table.Shape[1]] {
			rows[i] = append(rows[i], float64(v))
		}
	}
	return rows
}

// What a distilled table has to be, whoever makes it: without their weights the rows of ordinary tokens have a mean of zero and components that are
// not correlated, the first of which vary most; and fewer components are the first of more. Markers are zero. testdata/peers/static.py compares it
// with torch.
func TestDistill(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := goldens.Path(t, "bert/minilm-tiny")
	tok, err := tokenize.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[int][][]float64{}
	defer newmodel.SetDistillPart(37)() // the table is put together of several parts
	for _, hidden := range []int{0, 9} {
		dir, last := filepath.Join(t.TempDir(), "static"), -1
		var told []int
		err := newmodel.Distill(t.Context(), dir, newmodel.Spec{Hidden: hidden}, folder, "tiny", d, func(done, total int) {
			if told = append(told, done); total-done < 37 {
				last = total - done
			}
		})
		if err != nil || last != 0 || len(told) < 3 || !slices.IsSorted(told) || told[0] != 37 {
			t.Fatal(err, last, told)
		}
		tables[hidden] = rowsOf(t, dir)
	}
	var ordinary [][]float64
	var ids []int32
	for id, row := range tables[0] {
		if len(row) != 32 || len(tables[9][id]) != 9 {
			t.Fatalf("rows of %d and %d numbers", len(row), len(tables[9][id]))
		}
		zero := true
		for j, v := range row {
			zero = zero && v == 0
			if j < 9 && !(math.Abs(v-tables[9][id][j]) <= 1e-6) {
				t.Errorf("token %d, component %d: %v, of nine %v", id, j, v, tables[9][id][j])
			}
		}
		name := tok.Token(int32(id))
		if marker := strings.HasPrefix(name, "[") && len(name) > 1; marker != zero {
			t.Errorf("%s: zero %t", name, zero)
		} else if !marker {
			ordinary, ids = append(ordinary, row), append(ids, int32(id))
		}
	}
	n, zipf := float64(len(ordinary)), 0.0
	for i := range ordinary {
		zipf += 1 / float64(i+2)
	}
	var mean [32]float64
	var square [32][32]float64
	for i, row := range ordinary {
		weight := 1e-4 / (1e-4 + 1/float64(i+2)/zipf)
		for j := range row {
			row[j] /= weight
			mean[j] += row[j] / n
		}
		for j := range row {
			for k := range row {
				square[j][k] += row[j] * row[k] / n
			}
		}
	}
	for j := range mean {
		for k := range mean {
			if c := math.Abs(square[j][k]); j != k && !(c <= 1e-5*square[0][0]) {
				t.Errorf("components %d and %d have a covariance of %v, of %v at most", j, k, c, square[0][0])
			}
		}
		if !(math.Abs(mean[j]) <= 1e-5*math.Sqrt(square[0][0])) {
			t.Errorf("component %d has a mean of %v", j, mean[j])
		}
		if j > 0 && !(square[j][j] <= square[j-1][j-1]*(1+1e-5)) {
			t.Errorf("component %d varies by %v, the one before by %v", j, square[j][j], square[j-1][j-1])
		}
	}

	// Each is what the tokens' embeddings, not normalized, have in a direction of length 1, whose largest element is positive.
	x, around := embeddingsOf(t, folder, d, tok, ids), math.Sqrt(square[0][0])
	for j := range 9 {
		var direction [32]float64
		length, largest := 0.0, 0.0
		for i, row := range ordinary {
			for k, v := range x[i] {
				direction[k] += v * row[j]
			}
		}
		for _, v := range direction {
			if length += v * v; math.Abs(v) > math.Abs(largest) {
				largest = v
			}
		}
		for i, row := range ordinary {
			sum, all := 0.0, 0.0
			for k, v := range direction {
				sum += (x[i][k] - x[0][k]) * v / math.Sqrt(length) // whatever their mean is
				all += math.Abs(v) / math.Sqrt(length)
			}
			if off := math.Abs(sum - (row[j] - ordinary[0][j])); largest < 0 || !(off <= 1e-4*around*all) {
				t.Fatalf("component %d of token %d: off by %v, in a direction whose largest element is %v", j, ids[i], off, largest)
			}
		}
	}
}

// embeddingsOf are those of texts of one token each, as a model gives them that does not normalize.
func embeddingsOf(t *testing.T, folder string, d gpustage.Device, tok *tokenize.Tokenizer, ids []int32) [][]float64 {
	t.Helper()
	m, err := embedder.LoadTrainable(folder, d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Model.Head.Normalize = false
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := embedder.Engine{Model: m.Model, Stream: s}
	defer e.Close()
	around := tok.Encode("", 0)
	texts, out := make([][]int32, len(ids)), make([][]float64, len(ids))
	for i, id := range ids {
		texts[i] = []int32{around[0], id, around[1]}
	}
	if err := e.Embed(t.Context(), texts, func(i int, vec []float32) {
		for _, v := range vec {
			out[i] = append(out[i], float64(v))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDistillErrors(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := goldens.Path(t, "bert/minilm-tiny")
	for want, spec := range map[string]newmodel.Spec{
		"its embeddings have 32 dimensions, and the new ones can't have 33": {Hidden: 33},
		"embeddings of -1 dimensions":                                       {Hidden: -1},
	} {
		if err := newmodel.Distill(t.Context(), filepath.Join(t.TempDir(), "x"), spec, folder, "tiny", d, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := newmodel.Distill(t.Context(), filepath.Join(t.TempDir(), "x"), newmodel.Spec{}, filepath.Join(folder, "nowhere"), "tiny", d, nil); err == nil {
		t.Error("a folder that is not there")
	}
}

func TestDistillSparse(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	err = newmodel.Distill(t.Context(), filepath.Join(t.TempDir(), "m"), newmodel.Spec{}, goldens.Path(t, "splade/encoder"), "m", d, nil)
	if err == nil || !strings.Contains(err.Error(), "sparse encoder") {
		t.Errorf("error %v", err)
	}
}

// A static model's embedding of a text without tokens is zero, as that of torch's EmbeddingBag is: there is nothing to sum.
func TestDistilledNoTokens(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	dir := filepath.Join(t.TempDir(), "static")
	if err := newmodel.Distill(t.Context(), dir, newmodel.Spec{Hidden: 4}, goldens.Path(t, "bert/minilm-tiny"), "tiny", d, nil); err != nil {
		t.Fatal(err)
	}
	m, err := embedder.LoadTrainable(dir, d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := embedder.Engine{Model: m.Model, Stream: s}
	defer e.Close()
	if err := e.Embed(t.Context(), [][]int32{{60}, nil}, func(i int, vec []float32) {
		if zero := !slices.ContainsFunc(vec, func(v float32) bool { return v != 0 }); zero != (i == 1) {
			t.Errorf("text %d: %v", i, vec)
		}
	}); err != nil {
		t.Error(err)
	}
}

// Markers have a bracket on both sides with something between: other tokens with brackets are ordinary.
func TestOrdinary(t *testing.T) {
	dir := t.TempDir()
	tokens := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "[unused7]", "a", "<", "<a", "a>", "[a", "a]", "<a]", "[a>", "<>", "[]", "##a"}
	if err := os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte(strings.Join(tokens, "\n")+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenize.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range newmodel.Ordinary(tok) {
		got = append(got, tok.Token(id))
	}
	if !slices.Equal(got, tokens[7:]) {
		t.Errorf("%q, want %q", got, tokens[7:])
	}
}
