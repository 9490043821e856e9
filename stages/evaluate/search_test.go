package evaluate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/cpu"
)

// unit gives vectors length 1.
func unit(xs []float32, dim int) {
	for x := range slices.Chunk(xs, dim) {
		sum := 0.0
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		for i := range x {
			x[i] = float32(float64(x[i]) / math.Sqrt(sum))
		}
	}
}

func product(queries, corpus []float32, dim, query, doc int) float32 {
	sum := 0.0
	for i, v := range queries[query*dim : (query+1)*dim] {
		sum += float64(v) * float64(corpus[doc*dim+i])
	}
	return float32(sum)
}

// As torch.nn.functional.normalize has it: what is shorter than 1e-12 is divided by that, and nothing stays nothing.
func TestNormalize(t *testing.T) {
	x := []float32{0, 0, 3, 4, -3e-13, 4e-13, 3e30, 4e30}
	Normalize(x, 2)
	for i, want := range []float64{0, 0, 0.6, 0.8, -0.3, 0.4, 0.6, 0.8} {
		if !(math.Abs(float64(x[i])-want) <= 1e-7) {
			t.Errorf("place %d: %v, want %v", i, x[i], want)
		}
	}
}

// Numbers that are no whole embeddings are a mistake of who calls, which once was a loop without an end.
func TestNormalizeParts(t *testing.T) {
	for _, dim := range []int{0, -1, 3} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("4 numbers are embeddings of %d dimensions", dim)
				}
			}()
			Normalize(make([]float32, 4), dim)
		}()
	}
}

// Queries and documents have lists of their own, or a judged id of either would be one of the other.
func TestQrelsOneList(t *testing.T) {
	ids, err := NewIDs([]string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := NewQrels(ids, ids).Add("a", "b", 1); err == nil || !strings.Contains(err.Error(), "each needs its own") {
		t.Error(err)
	}
}

// Blocks cut the search nowhere: it finds what sorting all scores finds.
func TestSearch(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	const dim = 5
	random := func(n int) []float32 {
		x := make([]float32, n*dim)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		unit(x, dim)
		return x
	}
	for _, size := range [][3]int{{3, 4, 2}, {queryBlock + 3, 40, 7}, {5, corpusBlock + 11, 20}, {2, 3, 9}, {0, 3, 2}, {2, 0, 1}} {
		queries, corpus := random(size[0]), random(size[1])
		done := int64(0)
		run, err := Search(t.Context(), s, queries, corpus, dim, size[2], nil, func(n, _ int64) { done = n })
		if err != nil {
			t.Fatal(err)
		}
		if done != int64(size[0]*size[1]) {
			t.Errorf("%v: progress ends at %d", size, done)
		}
		for q := 0; q < size[0]; q += 1 + size[0]/20 {
			var all []float64
			for doc := range size[1] {
				all = append(all, -float64(product(queries, corpus, dim, q, doc)))
			}
			slices.Sort(all)
			if len(run[q]) != min(size[1], size[2]) {
				t.Fatalf("%v: query %d has %d hits", size, q, len(run[q]))
			}
			for i, h := range run[q] {
				if !(math.Abs(float64(h.Score)+all[i]) <= 1e-6) || !(math.Abs(float64(h.Score-product(queries, corpus, dim, q, int(h.Doc)))) <= 1e-6) {
					t.Fatalf("%v: query %d, hit %d: %v, want %v", size, q, i, h, -all[i])
				}
			}
		}
	}
	if _, err := Search(t.Context(), s, make([]float32, 7), make([]float32, 10), dim, 3, nil, nil); err == nil {
		t.Error("7 numbers are taken for embeddings of 5 dimensions")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Search(ctx, s, random(2), random(2), dim, 1, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Products are float64's: in float32 these squares are off, and their sum is 0.
func TestProduct(t *testing.T) {
	x := []float32{1 + 0x1p-20, 1, 1}
	if got, want := Product(x, []float32{1 + 0x1p-20, -1, -0x1p-19}), 0x1p-40; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// By the first dimensions of embeddings a search finds what it finds of copies of these alone, to the bit, in blocks of documents too, and leaves the embeddings as they are.
func TestSearchCut(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	const dim = 7
	queries, corpus := make([]float32, 3*dim), make([]float32, (2*corpusBlock+9)*dim)
	for _, x := range [][]float32{queries, corpus} {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	short := func(x []float32, cut int, as bool) (out []float32) {
		for v := range slices.Chunk(x, dim) {
			out = append(out, v[:cut]...)
		}
		if as {
			Normalize(out, cut)
		}
		return out
	}
	before := slices.Clone(corpus)
	for _, cut := range []int{1, 4, dim} {
		for _, as := range []bool{false, true} {
			want, err := Search(t.Context(), s, short(queries, cut, as), short(corpus, cut, as), cut, 30, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := SearchCut(t.Context(), s, queries, corpus, dim, cut, 30, as, nil)
			if err != nil || !reflect.DeepEqual(got, want) || !slices.Equal(corpus, before) {
				t.Errorf("%d dimensions, of length 1: %t: %v (%v), want %v", cut, as, got[0][:2], err, want[0][:2])
			}
		}
	}
	for _, cut := range []int{-1, 0, dim + 1} {
		if _, err := SearchCut(t.Context(), s, queries, corpus, dim, cut, 3, true, nil); err == nil || !strings.Contains(err.Error(), "dimensions") {
			t.Errorf("the first %d of %d dimensions: %v", cut, dim, err)
		}
	}
	if _, err := SearchCut(t.Context(), s, queries[1:], corpus, dim, 2, 3, true, nil); err == nil {
		t.Error("what are no embeddings of 7 dimensions are searched")
	}
}
