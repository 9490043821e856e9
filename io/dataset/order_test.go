package dataset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The order has a second definition in Python: testdata/golden/dataset/order.py.

type orderGolden struct {
	Stream []uint64
	Below  []uint64
	Orders []struct {
		Rows        []int
		Bytes       []int64
		Seed        uint64
		Epoch       int
		WindowRows  int   `json:"window_rows"`
		WindowBytes int64 `json:"window_bytes"`
		IDs         []int64
	}
	Choices []struct {
		Args  []int64
		Picks []int
	}
	Others []struct {
		Seed  uint64
		Epoch int
		First int
		Texts [][]int
		N     int
		Drawn [][]int
	}
	Samplers []struct {
		Texts    [][]uint64
		Size     int
		DropLast bool `json:"drop_last"`
		Batches  [][]int64
		Dropped  int64
	}
	Lengths []struct {
		Size       int
		WindowRows int `json:"window_rows"`
		IDs        []int64
	}
	Mixtures []struct {
		Kind     string
		Weights  []float64
		DropLast bool    `json:"drop_last"`
		Batches  [][]any // epoch, dataset, pass over it, rows
	}
}

func orderGoldens(t *testing.T) (g orderGolden) {
	readJSON(t, golden("order.json"), &g)
	return g
}

func TestRandomAgainstPython(t *testing.T) {
	// Rosetta Code's example of splitmix64: seed 1234567.
	s := stream(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := s.next(); got != want {
			t.Errorf("splitmix64 number %d: %d, want %d", i, got, want)
		}
	}
	g := orderGoldens(t)
	s = keyed(1, 2, 3)
	for i, want := range g.Stream {
		if got := s.next(); got != want {
			t.Errorf("keyed number %d: %d, want %d", i, got, want)
		}
	}
	s = keyed(7)
	for i, n := range []uint64{1, 2, 3, 10, 1000, 1 << 40} {
		if got := s.below(n); got != g.Below[i] {
			t.Errorf("below(%d): %d, want %d", n, got, g.Below[i])
		}
	}
	for _, c := range g.Choices {
		a := c.Args
		got := choose(nil, uint64(a[0]), int(a[1]), a[2], int(a[3]), int(a[4]), int(a[5]))
		if !slices.Equal(got, c.Picks) {
			t.Errorf("choose%v: %v, want %v", a, got, c.Picks)
		}
	}
	for n, c := range g.Others {
		var batch []Example
		for i, texts := range c.Texts {
			var e []string
			for _, text := range texts {
				e = append(e, fmt.Sprint(text))
			}
			batch = append(batch, rowOf(c.First+i, e...))
		}
		for i, want := range c.Drawn {
			got := othersOf(t, batch).With(i, c.N, c.Seed, c.Epoch).Texts[len(c.Texts[i]):]
			if strings.Join(got, " ") != strings.Trim(fmt.Sprint(want), "[]") {
				t.Errorf("others %d, row %d: %v, want %v", n, i, got, want)
			}
		}
	}
}

func TestOrderAgainstPython(t *testing.T) {
	for i, c := range orderGoldens(t).Orders {
		o := NewOrder(Layout{Rows: c.Rows, Bytes: c.Bytes}, c.Seed, c.Epoch, true, Window{c.WindowRows, c.WindowBytes})
		if got := all(o); !slices.Equal(got, c.IDs) {
			t.Errorf("order %d: %v, want %v", i, got, c.IDs)
		}
	}
}

func TestOrderByLengthAgainstPython(t *testing.T) {
	for _, c := range orderGoldens(t).Lengths {
		o := NewOrder(evenLayout(480, 12), 5, 1, true, Window{Rows: c.WindowRows})
		o.byLength(c.Size, func(row int64) uint32 { return uint32(mix(uint64(row)) % 7) })
		if got := all(o); !slices.Equal(got, c.IDs) {
			t.Errorf("batches of %d: %v, want %v", c.Size, got, c.IDs)
		}
	}
}

// TestMixerAgainstPython: which dataset each batch is of, and which rows it has, is what every checkpoint counts on.
func TestMixerAgainstPython(t *testing.T) {
	var parts []Part
	for _, rows := range []int{90, 20, 50} {
		parts = append(parts, Part{Layout: evenLayout(rows, 10)})
	}
	for kind, c := range orderGoldens(t).Mixtures {
		mix := Mixing{Kind: MixKind(kind), Weights: c.Weights, Temperature: 2}
		if mix.Kind.String() != c.Kind {
			t.Fatalf("kind %d is %v, want %s", kind, mix.Kind, c.Kind)
		}
		m, err := NewMixer(parts, SamplerConfig{Seed: 5, GlobalSize: 7, Epochs: 2, Shuffle: true, Window: Window{Rows: 20}, DropLast: c.DropLast}, mix)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.Batches {
			b, ok := m.Next()
			if got := fmt.Sprint(b.Epoch, b.Source, b.Pass, b.Rows); !ok || got != strings.Trim(fmt.Sprint(want), "[]")+"]" {
				t.Fatalf("%s, batch %d: %s, want %v", c.Kind, i, got, want)
			}
		}
		if b, ok := m.Next(); ok {
			t.Errorf("%s: a batch more, %v", c.Kind, b)
		}
	}
}

func all(o *Order) []int64 {
	var ids []int64
	for pos := range o.Len() {
		ids = append(ids, o.At(pos))
	}
	return ids
}

// evenLayout has n rows in blocks of size rows, of 100 bytes a row.
func evenLayout(n, size int) (l Layout) {
	for ; n > 0; n -= size {
		l.Rows = append(l.Rows, min(n, size))
		l.Bytes = append(l.Bytes, int64(100*min(n, size)))
	}
	return l
}

func TestOrderEveryRowOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		l := Layout{}
		for range 1 + rng.IntN(20) {
			l.Rows = append(l.Rows, 1+rng.IntN(50))
			l.Bytes = append(l.Bytes, rng.Int64N(1000))
		}
		w := Window{1 + rng.IntN(200), 1 + rng.Int64N(3000)}
		o := NewOrder(l, rng.Uint64(), rng.IntN(5), rng.IntN(10) > 0, w)
		ids := all(o)
		entered := make([]int64, len(ids)) // at random positions: the same
		for _, pos := range rng.Perm(len(ids)) {
			entered[pos] = o.At(int64(pos))
		}
		if !slices.Equal(ids, entered) {
			t.Fatal("the order depends on where it is entered")
		}
		slices.Sort(entered)
		for i, id := range entered {
			if id != int64(i) {
				t.Fatalf("%+v %+v: row %d is missing or twice", l, w, i)
			}
		}
	}
}

func TestOrderIsFunctionOfSeedAndEpoch(t *testing.T) {
	l := evenLayout(20000, 512)
	one := all(NewOrder(l, 1, 0, true, Window{Rows: 4096}))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if !slices.Equal(one, all(NewOrder(l, 1, 0, true, Window{Rows: 4096}))) {
		t.Error("two orders of one seed and epoch differ")
	}
	for _, other := range []*Order{NewOrder(l, 2, 0, true, Window{Rows: 4096}), NewOrder(l, 1, 1, true, Window{Rows: 4096})} {
		same := 0
		for i, id := range all(other) {
			if id == one[i] {
				same++
			}
		}
		if same > 20 { // one is expected by chance
			t.Errorf("%d of %d rows are where another seed or epoch has them", same, len(one))
		}
	}
	for pos := range int64(100) {
		if got := NewOrder(l, 1, 0, false, Window{}).At(pos); got != pos {
			t.Errorf("not shuffled, position %d has row %d", pos, got)
		}
	}
}

// TestOrderMixes measures what a shuffle promises: positions that don't predict rows, neighbours that aren't, windows
// that draw from all over the data.
func TestOrderMixes(t *testing.T) {
	const n = 1 << 18
	o := NewOrder(evenLayout(n, 1024), 9, 0, true, Window{Rows: 16384})
	ids := all(o)
	var sumX, sumY, sumXX, sumYY, sumXY float64
	adjacent, near := 0, 0
	for i, id := range ids {
		x, y := float64(i), float64(id)
		sumX, sumY, sumXX, sumYY, sumXY = sumX+x, sumY+y, sumXX+x*x, sumYY+y*y, sumXY+x*y
		if i > 0 {
			switch d := id - ids[i-1]; {
			case d == 1 || d == -1:
				adjacent++
			case d > -1024 && d < 1024:
				near++
			}
		}
	}
	r := (n*sumXY - sumX*sumY) / math.Sqrt((n*sumXX-sumX*sumX)*(n*sumYY-sumY*sumY))
	// 256 blocks in random order: the coefficient's deviation is 1/sqrt(256).
	if !(math.Abs(r) <= 4.0/16) {
		t.Errorf("positions and rows correlate: %.3f", r)
	}
	// Of 16 blocks in a window, a neighbour is from the same block one time in 16, and the next row one time in 8192.
	if adjacent > n/8192+100 {
		t.Errorf("%d rows stand next to their neighbour in the file", adjacent)
	}
	if f := float64(near) / n; f < 0.9/16 || f > 3.0/16 {
		t.Errorf("%.4f of neighbours are from one block or the next, want about 1/16 to 3/16", f)
	}
	for begin := 0; begin < n; begin += 16384 {
		blocks := map[int64]int{}
		for _, id := range ids[begin : begin+1024] { // one batch
			blocks[id/1024]++
		}
		if len(blocks) != 16 {
			t.Fatalf("a batch draws from %d blocks, want 16", len(blocks))
		}
		for b, count := range blocks { // 64 each; deviation 7.6
			if count < 25 || count > 110 {
				t.Fatalf("a batch has %d rows of block %d", count, b)
			}
		}
	}
}

// TestPermutationUniform counts all orders of four rows: none is preferred (chi-square, 23 degrees of freedom).
func TestPermutationUniform(t *testing.T) {
	const draws = 24000
	counts := map[string]int{}
	for seed := range uint64(draws) {
		s := keyed(seed, forWindow, 0, 0)
		counts[fmt.Sprint(s.permutation(nil, 4))]++
	}
	chi := 0.0
	for _, c := range counts {
		chi += (float64(c) - draws/24.0) * (float64(c) - draws/24.0) / (draws / 24.0)
	}
	if len(counts) != 24 || !(chi <= 49.7) { // one in a thousand
		t.Errorf("%d orders, chi-square %.1f", len(counts), chi)
	}
}

func TestChoose(t *testing.T) {
	for k := range 12 {
		for row := range int64(50) {
			p := choose(nil, 1, 2, row, 3, 5, k)
			if len(p) != k {
				t.Fatalf("%d of 5: %v", k, p)
			}
			seen := map[int]int{}
			for i, v := range p {
				if seen[v]++; v < 0 || v >= 5 || seen[v] > i/5+1 {
					t.Fatalf("%d of 5: %v", k, p)
				}
			}
		}
	}
	counts := make([]int, 5)
	for row := range int64(10000) {
		counts[choose(nil, 1, 2, row, 3, 5, 1)[0]]++
	}
	for v, c := range counts { // deviation 40
		if c < 1800 || c > 2200 {
			t.Errorf("text %d is chosen %d times in 10,000", v, c)
		}
	}
}

// TestOrderByLengthBuckets: each bucket of a window is shuffled in its own way. Rows of one length stay in the window's order as they are sorted,
// so what a bucket did to their places can be seen.
func TestOrderByLengthBuckets(t *testing.T) {
	const size, bucket = 4, bucketBatches * 4
	l, w := evenLayout(3*bucket, 100), Window{Rows: 3 * bucket}
	before := map[int64]int{}
	for i, row := range all(NewOrder(l, 1, 0, true, w)) {
		before[row] = i
	}
	o := NewOrder(l, 1, 0, true, w)
	o.byLength(size, func(int64) uint32 { return 7 })
	var moves [3][]int
	for i, row := range all(o) {
		at := before[row] - i/bucket*bucket
		if at < 0 || at >= bucket {
			t.Fatalf("position %d has a row of another bucket", i)
		}
		moves[i/bucket] = append(moves[i/bucket], at)
	}
	if slices.Equal(moves[0], moves[1]) || slices.Equal(moves[1], moves[2]) || slices.Equal(moves[0], moves[2]) {
		t.Error("two buckets are shuffled in one way")
	}
}
