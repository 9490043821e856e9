package prep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestStripHTML(t *testing.T) {
	for _, c := range [][2]string{
		{"plain", "plain"},
		{"a < b && c > d", "a < b && c > d"},
		{"<p>one</p><p>two</p>", "\none\n\ntwo\n"},
		{"<b>bold</b>ly &amp; <i class='x>y'>so</i>", "boldly & so"},
		{"x<!-- a > b -->y", "xy"},
		{"x<!-- open", "x"},
		{"<script>if (a<b) {}</script>after", "after"},
		{"<STYLE>p{}</Style >after", "after"},
		{"<script>never closed", ""},
		{"&lt;b&gt; stays a text", "<b> stays a text"},
		{"<user@host> <3 <-- i<n; n>0", "<user@host> <3 <-- i<n; n>0"},
		{"<!DOCTYPE html><br/>x", "\n\nx"}, {"<br\r\n/>x<b\r>y", "\nxy"},
		{"<a href=\"u\"", "<a href=\"u\""},
		{"<h1>t</h1>", "\nt\n"}, {"<quiz>x</quiz>", "\nx\n"},
		{"&#x41;&eacute;&nosuch;", "Aé&nosuch;"},
		{"", ""}, {"<", "<"}, {"</", "</"}, {"<b", "<b"}, {"&", "&"},
	} {
		if got := StripHTML(c[0]); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}

func TestSqueeze(t *testing.T) {
	for _, c := range [][2]string{
		{"", ""}, {" ", ""}, {"a", "a"}, {" a ", "a"}, {"a  b", "a b"}, {"a\tb", "a b"}, {"a \n b", "a\nb"}, {"a\r\nb", "a\nb"}, {"a\n\n\nb", "a\nb"},
		{"a\u00a0\u3000b", "a b"}, {"\ufeffa\u200bb\x00c\x7f", "abc"}, {"é  é", "é é"}, {"a\u2028b", "a\nb"}, {"\xff", "\ufffd"}, {"a\x7fb", "ab"}, {"a\x1fb", "ab"},
	} {
		if got := Squeeze(c[0]); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
		if again := Squeeze(c[1]); again != c[1] {
			t.Errorf("%q changes again, to %q", c[1], again)
		}
	}
}

func TestClean(t *testing.T) {
	n := Normalize{Unicode: "nfkc", Whitespace: true, HTML: true}
	if got, want := n.Clean("  <p>ﬁne\u00a0cafe\u0301 &amp; ①</p>\n"), "fine café & 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Normalize{Unicode: "nfc", HTML: true}).Clean("cafe&#x301; cafe<b>\u0301</b>"); got != "café café" {
		t.Errorf("of entities and tags: %q", got)
	}
	if got := (Normalize{Unicode: "nfd"}).Clean("é"); got != "e\u0301" {
		t.Errorf("nfd: %q", got)
	}
	if got := (Normalize{}).Clean(" as it is "); got != " as it is " {
		t.Errorf("nothing: %q", got)
	}
	marks := "a" + strings.Repeat("\u0301\u0316", 20) // x/text's normal forms would put U+034F between them
	if got := (Normalize{Unicode: "nfc"}).Clean(marks); strings.ContainsRune(got, '\u034f') {
		t.Errorf("a joiner came in: %q", got)
	}
}

func TestScriptShare(t *testing.T) {
	for _, c := range []struct {
		text, script string
		want         float64
	}{{"abc", "Latin", 1}, {"абв", "Latin", 0}, {"ab, 12 вг!", "Latin", 0.5}, {"123", "Latin", 1}, {"", "Han", 1}, {"漢字 and かな", "Han", 2. / 7}} {
		if got := ScriptShare(c.text, unicode.Scripts[c.script]); !(math.Abs(got-c.want) <= 1e-12) {
			t.Errorf("%q in %s: %v, want %v", c.text, c.script, got, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil}, {"--- !", nil}, {"Hello, World2", []string{"hello", "world2"}}, {"snake_case x.y", []string{"snake", "case", "x", "y"}},
		{"ÄÖ straße", []string{"äö", "straße"}}, {"漢字kana", []string{"漢", "字", "kana"}}, {"ab漢", []string{"ab", "漢"}}, {"नमस्ते", []string{"नमस्ते"}},
	} {
		var got []string
		Words(c.text, func(w []byte) { got = append(got, string(w)) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// naiveJaccard is the definition, on strings.
func naiveJaccard(a, b string, n int) float64 {
	set := func(s string) map[string]bool {
		var w []string
		Words(s, func(b []byte) { w = append(w, string(b)) })
		m := map[string]bool{}
		for i := 0; i+n <= len(w); i++ {
			m[strings.Join(w[i:i+n], " ")] = true
		}
		if len(w) < n {
			m[strings.Join(w, " ")] = true
		}
		return m
	}
	x, y := set(a), set(b)
	common := 0
	for k := range x {
		if y[k] {
			common++
		}
	}
	return float64(common) / float64(len(x)+len(y)-common)
}

func randomText(r *rand.Rand, words int) []string {
	w := make([]string, words)
	for i := range w {
		w[i] = string([]byte{'a' + byte(r.IntN(26)), 'a' + byte(r.IntN(26)), 'a' + byte(r.IntN(26))})
	}
	return w
}

func TestJaccard(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		n := 1 + r.IntN(5)
		a := randomText(r, r.IntN(200))
		b := slices.Clone(a)
		for range r.IntN(1 + len(a)/4) {
			b[r.IntN(len(b))] = "edit"
		}
		x, y := strings.Join(a, " "), strings.Join(b, " ")
		if len(a) == 0 {
			continue
		}
		got := Jaccard(NewSketch(x, Shingles(nil, x, n)), NewSketch(y, Shingles(nil, y, n)))
		if want := naiveJaccard(x, y, n); !(math.Abs(got-want) <= 1e-12) {
			t.Fatalf("text %d, shingles of %d words: %v, want %v", i, n, got, want)
		}
	}
	// Long texts are estimated: a standard deviation of sqrt(J(1-J)/256), so five of them.
	for range 20 {
		a := randomText(r, 3000)
		b := slices.Clone(a)
		for range 150 {
			b[r.IntN(len(b))] = "edit"
		}
		x, y := strings.Join(a, " "), strings.Join(b, " ")
		got, want := Jaccard(NewSketch(x, Shingles(nil, x, 3)), NewSketch(y, Shingles(nil, y, 3))), naiveJaccard(x, y, 3)
		if !(math.Abs(got-want) <= 5*math.Sqrt(want*(1-want)/sketchSize)) {
			t.Errorf("estimate %v, want %v", got, want)
		}
	}
}

// TestNearRecall plants near-duplicates at Jaccard similarities around 0.8 and compares what is dropped with the definition.
func TestNearRecall(t *testing.T) {
	near := Default().Dedupe.Near
	near.Column = "query"
	f := newHashFamily(near, 42)
	r := rand.New(rand.NewPCG(3, 4))
	var texts []string
	for range 400 {
		a := randomText(r, 40+r.IntN(100))
		texts = append(texts, strings.Join(a, " "))
		for range 3 {
			b := slices.Clone(a)
			for range 1 + r.IntN(len(a)/15) { // an edit breaks three shingles of either text: similarities from 0.65 to 0.98
				b[r.IntN(len(b))] = "edit"
			}
			texts = append(texts, strings.Join(b, " "))
		}
	}
	sketches := make([]Sketch, len(texts))
	buckets := map[uint64]*Bucket{}
	dropped := map[int64]int64{}
	for id, text := range texts {
		shingles := Shingles(nil, text, near.Shingle)
		sketches[id] = NewSketch(text, shingles)
		keys, _ := f.bands(nil, shingles, nil)
		for _, k := range keys {
			if buckets[k] == nil {
				buckets[k] = &Bucket{Threshold: near.Threshold}
			}
			if of, similar := buckets[k].Add(int64(id), sketches[id]); similar {
				dropped[int64(id)] = of
			}
		}
	}
	var found, missed, right, wrong int
	for id, text := range texts {
		group := id / 4 * 4 // rows of other groups share no shingle
		similar := false
		for before := group; before < id; before++ {
			similar = similar || naiveJaccard(texts[before], text, near.Shingle) >= near.Threshold
		}
		of, is := dropped[int64(id)]
		switch {
		case similar && is:
			found++
		case similar:
			missed++
		}
		if is && naiveJaccard(texts[of], text, near.Shingle) >= near.Threshold {
			right++
		} else if is {
			wrong++
		}
	}
	recall, precision := float64(found)/float64(found+missed), float64(right)/float64(right+wrong)
	t.Logf("%d bands of %d rows: recall %.4f of %d, precision %.4f of %d", near.Bands, near.Rows, recall, found+missed, precision, right+wrong)
	if found+missed < 300 || !(recall >= 0.95) || !(precision >= 0.95) {
		t.Errorf("recall %.4f of %d, precision %.4f of %d: want 0.95 of at least 300", recall, found+missed, precision, right+wrong)
	}
}

// TestBands compares how often two sets agree in a band with the probability that the theory gives.
func TestBands(t *testing.T) {
	f := newHashFamily(Near{Bands: 20, Rows: 6}, 42)
	r := rand.New(rand.NewPCG(5, 6))
	for _, j := range []float64{0.5, 0.65, 0.8} {
		met := 0
		const pairs = 1500
		for range pairs {
			const union = 100
			common := int(math.Round(j * union))
			var a, b []uint32
			for i := range union {
				x := r.Uint32()
				if i < common || i%2 == 0 {
					a = append(a, x)
				}
				if i < common || i%2 == 1 {
					b = append(b, x)
				}
			}
			x, _ := f.bands(nil, a, nil)
			y, _ := f.bands(nil, b, nil)
			for i := range x {
				if x[i] == y[i] {
					met++
					break
				}
			}
		}
		want := 1 - math.Pow(1-math.Pow(j, 6), 20)
		got := float64(met) / pairs
		if sd := math.Sqrt(want*(1-want)/pairs) + 1.0/pairs; !(math.Abs(got-want) <= 4*sd) {
			t.Errorf("Jaccard %v: %.4f meet, want %.4f", j, got, want)
		}
	}
}

func TestBucketIsTransitiveInIDs(t *testing.T) {
	same := func(text string) Sketch { return NewSketch(text, []uint32{1, 2, 3}) }
	other := func(text string) Sketch { return NewSketch(text, []uint32{7, 8, 9}) }
	var got [][2]int64
	b := Bucket{Threshold: 0.8}
	// c and d are dropped for a and b each time, and the rows of a and b stay.
	for _, m := range []Member{{2, same("a")}, {4, other("b")}, {5, same("c")}, {6, same("a")}, {8, other("d")}, {9, same("c")}, {10, other("b")}} {
		if of, similar := b.Add(m.ID, m.Sketch); similar {
			got = append(got, [2]int64{m.ID, of})
		}
	}
	b.Reset()
	for id := range int64(1000) {
		if _, similar := b.Add(id, same("a")); similar || len(b.kept) != 1 {
			t.Fatalf("row %d: the bucket holds %d rows of one text", id, len(b.kept))
		}
	}
	if want := [][2]int64{{5, 2}, {8, 4}, {9, 2}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBucketIsBounded: of ever so many different texts in a bucket the first ones are compared with, which bounds its time and memory.
func TestBucketIsBounded(t *testing.T) {
	of := func(i uint32) Sketch { return NewSketch(fmt.Sprint(i), []uint32{i}) }
	near := func(i uint32) Sketch { return NewSketch(fmt.Sprint("near ", i), []uint32{i}) }
	b := Bucket{Threshold: 0.8}
	for i := range uint32(1000) {
		b.Add(int64(i), of(i))
	}
	first, similar := b.Add(1000, near(mostRepresentatives-1))
	if _, beyond := b.Add(1001, near(mostRepresentatives)); first != mostRepresentatives-1 || !similar || beyond || len(b.kept) != mostRepresentatives {
		t.Errorf("%d rows are kept; the last is found as %d (%t), and one beyond it: %t", len(b.kept), first, similar, beyond)
	}
}

func TestHistogram(t *testing.T) {
	for n := range 5000 {
		if b := bin(n); binStart(b) > n || binStart(b+1) <= n {
			t.Fatalf("%d is in bin %d, from %d to %d", n, b, binStart(b), binStart(b+1)-1)
		}
	}
	var a, b, all Histogram
	for i := range 1000 {
		all.add(i)
		if i%3 == 0 {
			a.add(i)
		} else {
			b.add(i)
		}
	}
	a.merge(&b)
	if a.Count != all.Count || a.Sum != all.Sum || a.Max != all.Max || !slices.Equal(a.Bins, all.Bins) {
		t.Errorf("parts merge to %+v, want %+v", a, all)
	}
	if q := all.Quantile(0.5); q < 499 || q > 562 {
		t.Errorf("half of 0..999 is %d", q)
	}
	if q := all.Quantile(1); q != 999 {
		t.Errorf("the largest is %d", q)
	}
	var few, hundred Histogram
	for _, n := range []int{1, 2, 15} {
		few.add(n)
	}
	for i := range 100 {
		hundred.add(i / 10)
	}
	for _, c := range []struct {
		of   *Histogram
		q    float64
		want int
	}{{&few, 0.3, 1}, {&few, 0.5, 2}, {&few, 0.9, 15}, {&hundred, 0.07, 0}, {&hundred, 0.1, 0}, {&hundred, 0.5, 4}, {&hundred, 0.901, 9}} {
		if got := c.of.Quantile(c.q); got != c.want {
			t.Errorf("a share of %v of %d lengths is at most %d, want %d", c.q, c.of.Count, got, c.want)
		}
	}
}

// A card shows lengths by doublings, the longest bar of fifty.
func TestChart(t *testing.T) {
	var h Histogram
	for _, n := range []int{0, 1, 2, 3, 3, 20} {
		h.add(n)
	}
	bar := func(lengths string, n, width int) string {
		return fmt.Sprintf("%s %10d %s\n", lengths, n, strings.Repeat("#", width))
	}
	want := bar("     0-0     ", 1, 17) + bar("     1-1     ", 1, 17) + bar("     2-3     ", 3, 50) + bar("     4-7     ", 0, 0) + bar("     8-15    ", 0, 0) + bar("    16-31    ", 1, 17)
	if got := h.chart(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestJaccardOfPartialSketch: where one set is complete in its sketch and the other is not, both are compared as far as the shorter one goes.
func TestJaccardOfPartialSketch(t *testing.T) {
	var a, b []uint32 // of 250 and 300 shingles, all of a's in b
	for i := range uint32(300) {
		if b = append(b, 1000*i); i%6 != 5 {
			a = append(a, 1000*i)
		}
	}
	x, y := NewSketch("a", a), NewSketch("b", b)
	want := float64(len(a)) / float64(len(b))
	for _, got := range []float64{Jaccard(x, y), Jaccard(y, x)} {
		if !(math.Abs(got-want) <= 1.0/sketchSize) { // shingles are missing in even steps: the sample is as good as it gets
			t.Errorf("sets of %d and %d: %v, want %v", len(a), len(b), got, want)
		}
	}
}

// TestBucketThreshold: a similarity of just the threshold is enough, whatever numbers it is the quotient of, and one below is not.
func TestBucketThreshold(t *testing.T) {
	var all []uint32
	for i := range uint32(100) {
		all = append(all, i)
	}
	for n := 1; n <= len(all); n++ {
		for k := 1; k <= n; k++ {
			a, b, similarity := NewSketch("a", all[:k]), NewSketch("b", all[:n]), float64(k)/float64(n)
			for threshold, want := range map[float64]bool{similarity: true, math.Nextafter(similarity, 2): false} {
				bucket := Bucket{Threshold: threshold}
				bucket.Add(1, a)
				if _, got := bucket.Add(2, b); got != want {
					t.Errorf("%d of %d shingles with a threshold of %v: similar is %v", k, n, threshold, got)
				}
			}
		}
	}
}
