package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// fixed is a dataset of so many rows in blocks of up to 50; every fortieth row has a text that all of those share.
func fixed(rows int) Layout {
	l := Layout{Fingerprint: Hash128{uint64(rows), 1}}
	for rows > 0 {
		n := min(50, rows)
		l.Rows, l.Bytes = append(l.Rows, n), append(l.Bytes, int64(1000*n))
		rows -= n
	}
	return l
}

type fortieth struct{}

func (fortieth) Hashes(dst []Hash128, _ uint64, _ int, row int64) []Hash128 {
	if row%40 == 0 {
		return append(dst, Hash128{1, 0}, Hash128{2, uint64(row)})
	}
	return append(dst, Hash128{0, uint64(row)}, Hash128{2, uint64(row)})
}

func (fortieth) Lengths(dst []uint32, _ uint64, _ int, row int64) []uint32 {
	return append(dst, uint32(mix(uint64(row))%500))
}

// mixed are the rows of three datasets.
var mixed = []int{437, 121, 250}

// mixers are every way of making batches, of 3 datasets.
func mixers(t *testing.T, each func(name string, open func() *Mixer)) {
	for _, mix := range []Mixing{{}, {Kind: RoundRobin}, {Kind: Weighted, Weights: []float64{1, 2, 0.5}}, {Kind: Tempered, Temperature: 3}} {
		for flags := range 16 {
			cfg := SamplerConfig{Seed: 5, GlobalSize: 16, Epochs: 3, Shuffle: true, Window: Window{Rows: 100}, NoDuplicates: flags&1 > 0, DropLast: flags&2 > 0}
			var parts []Part
			for _, rows := range mixed {
				p := Part{Layout: fixed(rows), Texts: fortieth{}}
				if flags&4 > 0 {
					p.Lengths = fortieth{}
				}
				if flags&8 > 0 {
					p.Skip = []int64{3, 40, 77, 120}
				}
				parts = append(parts, p)
			}
			name := fmt.Sprintf("%v, no duplicates %v, drop last %v, by length %v, skip %v", mix, cfg.NoDuplicates, cfg.DropLast, parts[0].Lengths != nil, parts[0].Skip)
			each(name, func() *Mixer {
				m, err := NewMixer(parts, cfg, mix)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return m
			})
		}
	}
}

func drainMixer(m *Mixer) (all []Batch) {
	for {
		b, ok := m.Next()
		if !ok {
			return all
		}
		all = append(all, b)
	}
}

// An epoch has the length that was stated, its batches what was promised, and any cursor goes on from its place.
func TestMixers(t *testing.T) {
	harness.Thorough(t)
	mixers(t, func(name string, open func() *Mixer) {
		all := drainMixer(open())
		m := open()
		for e := range 3 {
			n := int64(0)
			for _, b := range all {
				if b.Epoch == e {
					n++
				}
			}
			if n != m.Len(e) {
				t.Errorf("%s: epoch %d has %d batches, Len says %d", name, e, n, m.Len(e))
			}
		}
		checkRows(t, name, m, all)
		if taken := int64(0); !m.continues() { // a row is in a batch, or dropped
			m, usable := open(), int64(0)
			for _, b := range drainMixer(m) {
				taken += int64(len(b.Rows))
			}
			for _, p := range m.parts {
				usable += p.layout.total() - int64(len(p.cfg.Skip))
			}
			if dropped := m.Stats().Dropped; taken+dropped != 3*usable {
				t.Errorf("%s: %d rows in batches, %d dropped, of 3 x %d", name, taken, dropped, usable)
			}
		}

		for at := 0; at <= len(all); at += 1 + at/7 {
			m := open()
			for range at {
				m.Next()
			}
			raw, err := json.Marshal(m.Cursor())
			if err != nil {
				t.Fatal(err)
			}
			var c Cursor
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			n := open()
			if err := n.Restore(c); err != nil {
				t.Fatalf("%s: batch %d: %v", name, at, err)
			}
			if got := drainMixer(n); fmt.Sprint(got) != fmt.Sprint(all[at:]) {
				t.Fatalf("%s: from batch %d on the sequence differs", name, at)
			}
			drainMixer(m)
			if n.Stats() != m.Stats() {
				t.Errorf("%s: from batch %d on: %+v, want %+v", name, at, n.Stats(), m.Stats())
			}
		}
	})
}

// checkRows looks at what a sequence of batches consists of.
func checkRows(t *testing.T, name string, m *Mixer, all []Batch) {
	t.Helper()
	skip := m.parts[0].cfg.Skip
	type key struct{ source, pass int }
	seen := map[key]map[int64]int{}
	for _, b := range all {
		k := key{b.Source, b.Pass}
		if seen[k] == nil {
			seen[k] = map[int64]int{}
		}
		texts := map[Hash128]bool{}
		for _, r := range b.Rows {
			seen[k][r]++
			if slices.Contains(skip, r) {
				t.Errorf("%s: row %d is to be skipped", name, r)
			}
			for _, h := range (fortieth{}).Hashes(nil, 0, 0, r) {
				if m.cfg.NoDuplicates && texts[h] {
					t.Errorf("%s: a batch has a text twice", name)
				}
				texts[h] = true
			}
		}
	}
	for k, s := range seen {
		for r, n := range s {
			if n != 1 {
				t.Errorf("%s: dataset %d, pass %d: row %d comes %d times", name, k.source, k.pass, r, n)
			}
		}
		if m.mix.Kind == Proportional && !m.cfg.DropLast && len(s) != mixed[k.source]-len(skip) {
			t.Errorf("%s: dataset %d, pass %d: %d of its %d rows come", name, k.source, k.pass, len(s), mixed[k.source])
		}
	}
	if m.continues() { // the shares are those of the weights
		w, sum, n := m.weights(), 0.0, make([]float64, 3)
		for i := range w {
			sum += w[i]
		}
		for _, b := range all {
			n[b.Source]++
		}
		for i := range w {
			if want := float64(len(all)) * w[i] / sum; !(math.Abs(n[i]-want) <= 3) {
				t.Errorf("%s: dataset %d has %v batches, want about %v", name, i, n[i], want)
			}
		}
	}
}

// One dataset gives what its sampler does, cursors included.
func TestMixerOfOne(t *testing.T) {
	cfg := SamplerConfig{Seed: 5, GlobalSize: 16, Epochs: 3, Shuffle: true, NoDuplicates: true, DropLast: true}
	s, err := NewSampler(fixed(437), fortieth{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMixer([]Part{{Layout: fixed(437), Texts: fortieth{}}}, cfg, Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		a, more := s.Next()
		b, ok := m.Next()
		if more != ok || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("the sampler gives %v, the mixer %v", a, b)
		}
		if !ok {
			break
		}
		if fmt.Sprint(s.Cursor()) != fmt.Sprint(m.Cursor()) {
			t.Fatalf("cursors %v and %v", s.Cursor(), m.Cursor())
		}
	}
	if s.stats != m.Stats() {
		t.Errorf("stats %+v and %+v", s.stats, m.Stats())
	}
}

func TestMixerRefuses(t *testing.T) {
	cfg := SamplerConfig{GlobalSize: 16, Epochs: 1, Shuffle: true}
	two := []Part{{Layout: fixed(437)}, {Layout: fixed(121)}}
	for want, mix := range map[string]Mixing{
		"want a positive number for each":      {Kind: Weighted, Weights: []float64{1}},
		"the weights of 2 datasets are []":     {Kind: Weighted},
		"the weights of 2 datasets":            {Kind: Weighted, Weights: []float64{1, 0}},
		"are [+Inf +Inf]":                      {Kind: Tempered},
		"want a sum that is finite (number 1)": {Kind: Weighted, Weights: []float64{1e308, 1e308}},
	} {
		if _, err := NewMixer(two, cfg, mix); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", mix, err, want)
		}
	}
	of := (*PartError)(nil)
	if _, err := NewMixer([]Part{two[0], {}}, cfg, Mixing{}); !errors.As(err, &of) || of.Part != 1 || !errors.Is(err, ErrNoFiles) || err.Error() != "dataset 1: the data has no rows" {
		t.Errorf("no rows: %v", err)
	}
	if _, err := NewMixer([]Part{{Layout: fixed(2), Skip: []int64{0, 1}}}, cfg, Mixing{}); errors.As(err, &of) || !errors.Is(err, ErrBadRow) || err.Error() != "none of the 2 rows can be used" {
		t.Errorf("no row that can be used, of one dataset: %v", err)
	}
	if _, err := NewMixer(nil, cfg, Mixing{}); err == nil {
		t.Error("a mixer of nothing")
	}
	m, err := NewMixer(two, cfg, Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	for want, other := range map[string]func() (*Mixer, error){
		"the number of datasets was 2 and is 3":  func() (*Mixer, error) { return NewMixer(append(two, Part{Layout: fixed(70)}), cfg, Mixing{}) },
		"there were 2 datasets and there is one": func() (*Mixer, error) { return NewMixer(two[:1], cfg, Mixing{}) },
		"data.mixing was proportional and is round_robin": func() (*Mixer, error) {
			return NewMixer(two, cfg, Mixing{Kind: RoundRobin})
		},
		"dataset 1: the order of the data can't be continued: the data": func() (*Mixer, error) {
			return NewMixer([]Part{two[0], {Layout: fixed(122)}}, cfg, Mixing{})
		},
	} {
		n, err := other()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Restore(m.Cursor()); !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestMixerRefusesDamage(t *testing.T) {
	m, err := NewMixer([]Part{{Layout: fixed(437)}, {Layout: fixed(121)}}, SamplerConfig{GlobalSize: 16, Epochs: 1, Shuffle: true}, Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	batches, good := int(m.Len(0)), m.Cursor()
	for i, change := range []func(c *Cursor){func(c *Cursor) { c.Batch = -1 }, func(c *Cursor) { c.Epoch = -1 }, func(c *Cursor) { c.Batch = batches + 1 }} {
		c := good
		change(&c)
		if err := m.Restore(c); !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("cursor %d: %v", i, err)
		}
	}
	good.Batch = batches // the epoch's end
	if err := m.Restore(good); err != nil {
		t.Error(err)
	}
}

// A mixer of one dataset goes on from what one of the same kind has left, and from nothing else. Weighted ones go on from epoch to epoch, others don't.
func TestMixerOfOneRefuses(t *testing.T) {
	open := func(mix Mixing) *Mixer {
		m, err := NewMixer([]Part{{Layout: fixed(437)}}, SamplerConfig{GlobalSize: 16, Epochs: 2, Shuffle: true}, mix)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	plain, weighted := open(Mixing{}), open(Mixing{Kind: Weighted, Weights: []float64{1}})
	other, beyond, empty := plain.Cursor(), plain.Cursor(), weighted.Cursor()
	other.Seed, beyond.Batch, empty.Parts = 9, 29, nil
	for want, c := range map[string]struct {
		m    *Mixer
		from Cursor
	}{
		"data.mixing was weighted [1] and is round_robin now":                 {open(Mixing{Kind: RoundRobin}), weighted.Cursor()},
		"data.mixing was proportional and is weighted [1] now":                {weighted, plain.Cursor()},
		"train.seed was 9 and is 0 now":                                       {plain, other},
		"the cursor (epoch 0, batch 29) is damaged: the epoch has 28 batches": {plain, beyond},
		"the cursor (epoch 0, batch 0) is damaged: it has no dataset's place": {weighted, empty},
	} {
		if err := c.m.Restore(c.from); !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	beyond.Batch = 28
	if err := plain.Restore(beyond); err != nil {
		t.Error(err)
	}
}

// changing are rows of which in each epoch other numbers share a text, so that epochs have other numbers of batches.
type changing struct{}

func (changing) Hashes(dst []Hash128, _ uint64, epoch int, row int64) []Hash128 {
	if row%int64(2+epoch) == 0 {
		return append(dst, Hash128{1, 0})
	}
	return append(dst, Hash128{0, uint64(row)})
}

// An epoch has as many batches of each dataset as that has in it; a dataset that goes on from epoch to epoch, as many as in the first one.
func TestMixerEpochs(t *testing.T) {
	cfg := SamplerConfig{Seed: 5, GlobalSize: 16, Epochs: 3, Shuffle: true, NoDuplicates: true}
	for _, mix := range []Mixing{{}, {Kind: RoundRobin}, {Kind: Weighted, Weights: []float64{1, 1}}} {
		for n := 1; n <= 2; n++ {
			parts := []Part{{Layout: fixed(120), Texts: changing{}}, {Layout: fixed(60), Texts: changing{}}}[:n]
			if mix.Kind == Weighted {
				mix.Weights = mix.Weights[:n]
			}
			m, err := NewMixer(parts, cfg, mix)
			if err != nil {
				t.Fatal(err)
			}
			want := [][]int64{{60, 30}, {40, 20}, {30, 15}} // one of those that share a text in each batch
			switch mix.Kind {
			case RoundRobin:
				want = [][]int64{{30, 30}, {20, 20}, {15, 15}}
			case Weighted:
				want = [][]int64{{45, 45}, {45, 45}, {45, 45}}
			}
			if n == 1 && mix.Kind == Weighted {
				want = [][]int64{{60}, {60}, {60}}
			} else if n == 1 {
				want = [][]int64{{60}, {40}, {30}}
			}
			all := drainMixer(m.Restart())
			got := make([][]int64, 3)
			for e := range got {
				got[e] = make([]int64, n)
				for _, b := range all {
					if b.Epoch == e {
						got[e][b.Source]++
					}
				}
				sum := int64(0)
				for _, k := range got[e] {
					sum += k
				}
				if stated := m.Len(e); stated != sum || !slices.Equal(m.Shares(e), got[e]) {
					t.Errorf("%v of %d, epoch %d: %d batches, %v, are stated, and there are %v", mix, n, e, stated, m.Shares(e), got[e])
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%v of %d: batches %v, want %v", mix, n, got, want)
			}
			if before, after := m.Len(-1), m.Len(3); before != 0 || after != 0 {
				t.Errorf("%v of %d: epochs that are not have %d and %d batches", mix, n, before, after)
			}
			for range m.Len(0) + 5 {
				m.Next()
			}
			again := m.Restart()
			if err := again.Restore(m.Cursor()); err != nil {
				t.Fatal(err)
			}
			if got, want := drainMixer(again), all[m.Len(0)+5:]; !reflect.DeepEqual(got, want) {
				t.Errorf("%v of %d: in the second epoch it goes on with %v, want %v", mix, n, got, want)
			}
		}
	}
}

// Batches by length have rows of similar length, in random order, and are random batches still.
func TestByLength(t *testing.T) {
	spread := func(lengths TextLengths) (within, between float64) {
		cfg := SamplerConfig{Seed: 5, GlobalSize: 16, Epochs: 1, Shuffle: true, Lengths: lengths}
		s, err := NewSampler(fixed(4000), nil, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var means []float64
		for {
			b, ok := s.Next()
			if !ok {
				break
			}
			sum, squares := 0.0, 0.0
			for _, r := range b.Rows {
				l := float64((fortieth{}).Lengths(nil, 0, 0, r)[0])
				sum, squares = sum+l, squares+l*l
			}
			n := float64(len(b.Rows))
			means = append(means, sum/n)
			within += math.Sqrt(squares/n-sum/n*sum/n) / 250
		}
		ups := 0
		for i := 1; i < len(means); i++ {
			if means[i] > means[i-1] {
				ups++
			}
		}
		return within, float64(ups) / float64(len(means)-1)
	}
	plain, _ := spread(nil)
	sorted, ups := spread(fortieth{})
	if sorted > plain/20 {
		t.Errorf("batches by length spread over %.1f bytes, others over %.1f", sorted, plain)
	}
	if ups < 0.35 || ups > 0.65 {
		t.Errorf("%.0f %% of batches are longer than the one before: not a random order", 100*ups)
	}
}

// Rows that can't be used are listed with their place and reason, and all others come.
func TestSkipBad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	text := `{"q": "one", "p": "x"}
{"q": null, "p": "y"}
{"q": "three", "p": "z"}
{"q": "", "p": "w"}
{"q": "five", "p": 5}
{"q": "six", "p": "v"}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Index(t.Context(), IndexConfig{}); !errors.Is(err, ErrBadRow) {
		t.Fatalf("without SkipBad: %v", err)
	}
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(x.Skip()); got != "[1 3 4]" {
		t.Errorf("rows %s are skipped: %v", got, x.Bad())
	}
	for _, b := range x.Bad() {
		if !strings.Contains(b.Error(), fmt.Sprintf("a.jsonl:%d", b.Row+1)) || b.Reason == "" {
			t.Errorf("row %d: %v", b.Row, b)
		}
	}
	m, err := NewMixer([]Part{{Layout: d.Layout(), Texts: x, Skip: x.Skip()}}, SamplerConfig{GlobalSize: 2, Epochs: 1, NoDuplicates: true}, Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	if all := drainMixer(m); fmt.Sprint(all[0].Rows, all[1].Rows) != "[0 2] [5]" || len(all) != 2 {
		t.Errorf("batches %v", all)
	}
}

// Rows that a mixer skips after a place change nothing before it: from the place on its batches are those of one that has skipped them from the
// beginning. Where that isn't so, it is an error.
func TestRestoreSkipping(t *testing.T) {
	for _, drop := range []bool{false, true} {
		cfg := SamplerConfig{Seed: 3, GlobalSize: 10, Epochs: 3, Shuffle: true, DropLast: drop}
		for _, mix := range []Mixing{{}, {Kind: RoundRobin}, {Kind: Weighted, Weights: []float64{1, 2}}, {Kind: Tempered, Temperature: 2}} {
			for sources := 1; sources <= 2; sources++ {
				if mix.Kind == Weighted {
					mix.Weights = []float64{1, 2}[:sources]
				}
				mixer := func(skip []int64) *Mixer {
					m, err := NewMixer([]Part{{Layout: fixed(105), Skip: skip}, {Layout: fixed(43)}}[:sources], cfg, mix)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				m, place := mixer(nil), 3
				var later []int64 // the first dataset's rows, as they come
				for range place {
					if batch, _ := m.Next(); batch.Source == 0 {
						later = append(later, batch.Rows...)
					}
				}
				cursor, used := m.Cursor(), len(later)
				for row := range int64(105) {
					if !slices.Contains(later[:used], row) {
						later = append(later, row)
					}
				}
				name := fmt.Sprintf("%v of %d, drop last %t", mix, sources, drop)
				few, many := later[60:63], later[50:80]
				for _, skip := range [][]int64{few, many} {
					whole, got := mixer(skip), mixer(skip)
					err := got.RestoreSkipping(cursor)
					if sources > 1 && !slices.Equal(mixer(nil).Shares(0), whole.Shares(0)) {
						if !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), "by dataset") {
							t.Errorf("%s: other shares: %v", name, err)
						}
						continue
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					if a, b := drainMixer(whole)[place:], drainMixer(got); !reflect.DeepEqual(a, b) {
						t.Errorf("%s, %d skipped: batches %v, want %v", name, len(skip), b, a)
					}
				}
				if err := mixer(later[:1]).RestoreSkipping(cursor); !errors.Is(err, ErrCursor) {
					t.Errorf("%s: a row that has been used is skipped: %v", name, err)
				}
			}
		}
	}
}

// Of rows that were looked at before the first batch none is skipped that was not then.
func TestRestoreSkippingIndexed(t *testing.T) {
	for _, of := range []Part{{Texts: fortieth{}}, {Lengths: fortieth{}}} {
		open := func(skip []int64) *Mixer {
			m, err := NewMixer([]Part{{Layout: fixed(105), Texts: of.Texts, Lengths: of.Lengths, Skip: skip}}, SamplerConfig{GlobalSize: 10, Epochs: 1, Shuffle: true, NoDuplicates: of.Texts != nil}, Mixing{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		if err := open([]int64{7}).RestoreSkipping(open(nil).Cursor()); !errors.Is(err, ErrCursor) || !strings.Contains(err.Error(), "the number of rows that can't be used was 0 and is 1 now") {
			t.Errorf("%T: %v", of, err)
		}
	}
}

// Shares by hand: 900 and 100 rows are 90 and 10 batches, of which each dataset has rows^(1/temperature) / the sum.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		mix  Mixing
		want string
	}{
		{Mixing{Kind: Tempered, Temperature: 1}, "[90 10]"},
		{Mixing{Kind: Tempered, Temperature: 2}, "[75 25]"}, // 30 : 10
		{Mixing{Kind: Tempered, Temperature: 1e9}, "[50 50]"},
		{Mixing{Kind: Weighted, Weights: []float64{1, 4}}, "[20 80]"},
		{Mixing{Kind: Weighted, Weights: []float64{1, 1e-4}}, "[100 0]"},
		{Mixing{Kind: RoundRobin}, "[10 10]"},
		{Mixing{}, "[90 10]"},
	} {
		m, err := NewMixer([]Part{{Layout: fixed(900)}, {Layout: fixed(100)}}, SamplerConfig{GlobalSize: 10, Epochs: 1}, c.mix)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(m.Shares(0)); got != c.want {
			t.Errorf("%v: shares %s, want %s", c.mix, got, c.want)
		}
	}
}

// A mixer says what its configuration is, for who reads in its order.
func TestMixerSays(t *testing.T) {
	cfg := SamplerConfig{GlobalSize: 2, Epochs: 3, Window: Window{Rows: 100, Bytes: 1 << 20}}
	m, err := NewMixer([]Part{{Layout: Layout{Rows: []int{10}, Bytes: []int64{100}}}}, cfg, Mixing{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Epochs() != 3 || m.Window() != cfg.Window {
		t.Errorf("%d epochs, window %+v", m.Epochs(), m.Window())
	}
}
