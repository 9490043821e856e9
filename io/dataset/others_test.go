package dataset

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// rowOf is an example with such texts: a query, the positive, then negatives.
func rowOf(id int, texts ...string) Example {
	e := Example{Row: int64(id), Texts: texts, Weight: 1}
	for _, text := range texts {
		e.Hashes = append(e.Hashes, HashText(text))
	}
	return e
}

// sharing is a batch whose rows have queries and documents in common, and queries that are documents.
func sharing(rows int) (batch []Example) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() string { return fmt.Sprint("text ", rng.IntN(3*rows/2)) }
	for i := range rows {
		e := []string{text(), text()}
		for range rng.IntN(3) {
			e = append(e, text())
		}
		batch = append(batch, rowOf(100+i, e...))
	}
	return batch
}

// candidates are a row's as Others' comment says it, text by text.
func candidates(batch []Example, row int) map[string]bool {
	out, own := map[string]bool{}, batch[row]
	for _, e := range batch {
		for _, d := range e.Texts[1:] {
			out[d] = true
		}
	}
	for _, text := range own.Texts {
		delete(out, text)
	}
	for _, e := range batch {
		if e.Texts[0] == own.Texts[0] {
			delete(out, e.Texts[1])
		}
	}
	return out
}

func othersOf(t *testing.T, batch []Example) *Others {
	t.Helper()
	o, err := NewOthers(batch)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Rows without a document, or without a hash of each text, have no others.
func TestOthersErrors(t *testing.T) {
	alone, unhashed := rowOf(1, "query"), rowOf(2, "query", "positive")
	unhashed.Hashes = unhashed.Hashes[:1]
	for want, row := range map[string]Example{"1 texts and 1 hashes": alone, "2 texts and 1 hashes": unhashed} {
		if _, err := NewOthers([]Example{rowOf(0, "q", "p"), row}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A row gets n of its candidates, each once, behind its own texts, or all of them in the order of the batch; never its positive, another one of its query, its own
// negatives or its query.
func TestOthersCandidates(t *testing.T) {
	batch := sharing(40)
	before := fmt.Sprint(batch)
	o := othersOf(t, batch)
	few := 0
	for i, own := range batch {
		want := candidates(batch, i)
		for _, n := range []int{1, 4, len(want) - 1, len(want), len(want) + 3, AllNegatives} {
			e := o.With(i, n, 7, 0)
			k := len(own.Texts)
			if !slices.Equal(e.Texts[:k], own.Texts) || e.Row != own.Row {
				t.Fatalf("row %d has become %+v", i, e)
			}
			drawn := e.Texts[k:]
			if some := min(n, len(want)); n >= 0 && len(drawn) != some || n < 0 && len(drawn) != len(want) {
				t.Fatalf("row %d: %d drawn of %d, want %d", i, len(drawn), len(want), n)
			}
			seen := map[string]bool{}
			for j, text := range drawn {
				if !want[text] || seen[text] || e.Hashes[k+j] != HashText(text) {
					t.Fatalf("row %d %q has drawn %q", i, own.Texts, drawn)
				}
				seen[text] = true
			}
			if from, to := e.Column(k); from != k || to != len(e.Texts) || len(e.Starts) != k+2 {
				t.Fatalf("row %d: texts %d to %d of %d are drawn: %v", i, from, to, len(e.Texts), e.Starts)
			}
		}
		if len(want) < 50 {
			few++
		}
	}
	if fmt.Sprint(batch) != before || few == 0 {
		t.Errorf("%d rows are not candidates of all, and the batch has changed: %t", few, fmt.Sprint(batch) != before)
	}

	alike := []Example{rowOf(1, "q", "a", "n"), rowOf(2, "q", "b", "m"), rowOf(3, "r", "a", "q"), rowOf(4, "s", "b", "m")}
	for i, want := range []string{"m", "n", "n b m", "a n q"} { // b is q's as well, a has both queries, and q is a query
		if got := strings.Join(othersOf(t, alike).With(i, AllNegatives, 1, 0).Texts[3:], " "); got != want {
			t.Errorf("row %d gets %q, want %q", i, got, want)
		}
	}
	if e := othersOf(t, alike[:1]).With(0, 3, 1, 0); len(e.Texts) != 3 || !slices.Equal(e.Starts, []int32{0, 1, 2, 3, 3}) {
		t.Errorf("a row alone: %+v", e)
	}
}

// Ragged columns and what else a row has stay, but for scores and token ids, which are of its own texts.
func TestOthersRagged(t *testing.T) {
	e := rowOf(1, "q", "p", "n1", "n2", "m")
	e.Starts, e.Scores, e.Label, e.Weight = []int32{0, 1, 2, 4, 5}, []float32{1, 2, 3, 4}, 0.5, 2
	e.IDs = make([][]int32, 5)
	got := othersOf(t, []Example{e, rowOf(2, "r", "x", "y")}).With(0, AllNegatives, 1, 0)
	want := rowOf(1, "q", "p", "n1", "n2", "m", "x", "y")
	want.Starts, want.Label, want.Weight = []int32{0, 1, 2, 4, 5, 7}, 0.5, 2
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if _, err := NewOthers([]Example{rowOf(1, "q", "p"), rowOf(2, "q")}); err == nil || !strings.Contains(err.Error(), "a row has 1 texts and 1 hashes") {
		t.Error(err)
	}
}

// Every candidate is as likely as every other, in every place, and so is every pair of them; rows and epochs draw anew; and the same is drawn whatever else was.
func TestOthersUniform(t *testing.T) {
	const rows, n, draws = 12, 3, 20000
	var batch []Example
	for i := range rows {
		batch = append(batch, rowOf(i, fmt.Sprint("q", i), fmt.Sprint("p", i)))
	}
	batch[3].Texts[1], batch[3].Hashes[1] = batch[8].Texts[1], batch[8].Hashes[1] // so that places are not texts
	const row, texts = 5, 10
	o := othersOf(t, batch)
	at, pairs := map[string]int{}, map[string]int{}
	for epoch := range draws {
		drawn := o.With(row, n, 3, epoch).Texts[2:]
		for k, text := range drawn {
			at[fmt.Sprint(text, " in place ", k)]++
		}
		slices.Sort(drawn)
		for a := range drawn {
			for b := range a {
				pairs[drawn[b]+" "+drawn[a]]++
			}
		}
	}
	// Counts are binomial; with 5 standard deviations and 75 of them a right one fails once in 20,000 seeds.
	check := func(counts map[string]int, kinds int, p float64) {
		t.Helper()
		if len(counts) != kinds {
			t.Errorf("%d of %d are drawn: %v", len(counts), kinds, slices.Sorted(maps.Keys(counts)))
		}
		for what, k := range counts {
			if d := math.Abs(float64(k) - draws*p); !(d <= 5*math.Sqrt(draws*p*(1-p))) {
				t.Errorf("%s: %d times of %d, want %.0f", what, k, draws, draws*p)
			}
		}
	}
	check(at, texts*n, 1.0/texts)
	check(pairs, texts*(texts-1)/2, float64(n*(n-1))/(texts*(texts-1)))

	again := othersOf(t, slices.Clone(batch))
	differ := 0
	for i := range batch {
		k := rows - 1 - i
		if got, want := again.With(k, n, 3, 1), o.With(k, n, 3, 1); !slices.Equal(got.Texts, want.Texts) {
			t.Errorf("row %d: %q and %q", k, got.Texts, want.Texts)
		}
		for _, other := range []Example{o.With(i, n, 3, 2), o.With(i, n, 4, 1)} {
			if !slices.Equal(other.Texts, o.With(i, n, 3, 1).Texts) {
				differ++
			}
		}
	}
	if differ < 2*rows-2 {
		t.Errorf("%d rows of %d draw otherwise in another epoch or with another seed", differ, 2*rows)
	}
}
