package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// What ranks say of their rows comes into the global order, column by column: weights, which a rank does not tell where all of its own are 1, labels, a
// teacher's scores, and which row a negative belongs to. A rank without rows says nothing, and nothing is missed of it.
func TestPeersJoined(t *testing.T) {
	text := func(ids ...uint64) (out []loss.TextID) {
		for _, id := range ids {
			out = append(out, loss.TextID{id})
		}
		return out
	}
	peers := []Peer{
		{Total: 3, First: 0, Rows: 1, Counts: []int{1, 1, 2}, Texts: text(10, 11, 12, 13), Owner: []int32{0, 0}, Labels: []float64{7}, Scores: []float64{1, 2, 3}},
		{Total: 3, First: 1, Rows: 0, Counts: []int{0, 0, 0}},
		{Total: 3, First: 1, Rows: 2, Counts: []int{2, 2, 1}, Texts: text(20, 21, 22, 23, 24), Owner: []int32{1}, Weights: []float64{0.5, 4}, Labels: []float64{8, 9}, Scores: []float64{4, 5, 6}},
	}
	g, err := joinPeers(peers, 3)
	if err != nil {
		t.Fatal(err)
	}
	var ids []uint64
	for _, x := range g.Texts {
		ids = append(ids, x[0])
	}
	got := fmt.Sprint(g.Rows, g.Starts, ids, g.Owner, g.Weights, g.Labels, g.Scores)
	if want := "3 [0 3 6 9] [10 20 21 11 22 23 12 13 24] [0 0 2] [1 0.5 4] [7 8 9] [1 4 5 2 3 6]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for i := range peers {
		peers[i].Weights = nil
	}
	if g, err = joinPeers(peers, 3); err != nil || g.Weights != nil {
		t.Errorf("without weights: %v, %v", g.Weights, err)
	}
	for what, change := range map[string]func(p *Peer){
		"labels":            func(p *Peer) { p.Labels = nil },
		"scores":            func(p *Peer) { p.Scores = nil },
		"rows 0 to":         func(p *Peer) { p.First = 0 },
		"of 4 rows":         func(p *Peer) { p.Total = 4 },
		"another on rank 2": func(p *Peer) { p.Order = "another" },
		"5 texts in 2":      func(p *Peer) { p.Counts = []int{2, 3} },
		"have 2 of the": func(p *Peer) {
			p.Rows, p.Counts, p.Texts, p.Labels, p.Scores = 1, []int{1, 1, 1}, p.Texts[:3], p.Labels[:1], p.Scores[:2]
		},
	} {
		changed := append([]Peer(nil), peers...)
		change(&changed[2])
		if _, err := joinPeers(changed, 3); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Ranks' parts of a batch make it up, and none is larger than another by more than a row.
func TestSlice(t *testing.T) {
	for ranks := 1; ranks < 9; ranks++ {
		for n := range 30 {
			at, least, most := 0, n, 0
			for rank := range ranks {
				lo, hi := Slice(n, rank, ranks)
				if lo != at {
					t.Errorf("%d rows: rank %d of %d begins at %d, want %d", n, rank, ranks, lo, at)
				}
				at, least, most = hi, min(least, hi-lo), max(most, hi-lo)
			}
			if at != n || most > least+1 {
				t.Errorf("%d rows on %d ranks: parts of %d to %d rows, up to %d", n, ranks, least, most, at)
			}
		}
	}
}

// Who waits for a buffer that nobody passes on ends with the run, with the reason for which that does.
func TestHandoverEnds(t *testing.T) {
	g, waits, full := pipeline.New("handover"), make(chan struct{}), errors.New("the disk is full")
	items := pipeline.Source(g, "items", func(context.Context) (int, error) { return 0, nil })
	pipeline.Sink(g, "computes", items, func(t *pipeline.Task, _ int) error {
		close(waits)
		_, err := take(t, nil, newHandover(&slot{}).full, true)
		return err
	})
	pipeline.Sink(g, "fails", items, func(*pipeline.Task, int) error {
		<-waits
		return full
	})
	p, err := g.Build(pipeline.Workers(3))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context()) }()
	select {
	case err := <-done:
		if !errors.Is(err, full) || !strings.Contains(err.Error(), `"fails"`) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for ever")
	}
}

// A bucket of gradients ends with the first mark at which it is large enough, the last ones with a quarter of that; together they are all that trains
// but the word embeddings, from the top down; what is outside of layers is one of its own.
func TestBuckets(t *testing.T) {
	config, err := transformer.NewBERT(transformer.Config{Vocab: 100, Hidden: 32, Layers: 6, Heads: 2, FeedForward: 96, MaxPositions: 20, TypeVocab: 2, NormEps: 1e-12})
	if err != nil {
		t.Fatal(err)
	}
	c, err := transformer.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	m, err := transformer.New(gpustage.Dry{Like: ref.New()}, c, transformer.Head{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := m.Layout
	marks := l.Marks()
	within := len(marks) - 1                // marks in layers; the one behind them is of the embeddings
	largest := (l.Trained() - marks[0]) * 4 // that of the first product, with its norm
	for _, size := range []int{1, largest, 3 * largest, 9 * largest, 1 << 30} {
		r := &Replicas{Comm: &collective.Comm{Mesh: collective.Mesh{Replicate: 2, Shard: 1}}, Exchanging: Exchanging{BucketBytes: size}}
		enough := func(i int) int {
			if i >= within-4 {
				return size / 4
			}
			return size
		}
		to := l.Trained()
		buckets := r.cut(l, gpustage.F32)
		for k, b := range buckets {
			i := slices.Index(marks, b.from)
			if b.to != to || i < 0 {
				t.Fatalf("size %d: bucket %d is %d to %d, after %d", size, k, b.from, b.to, to)
			}
			if i < within-1 && (b.to-b.from)*4 < enough(i) {
				t.Errorf("size %d: bucket %d has %d bytes, of %d", size, k, (b.to-b.from)*4, enough(i))
			}
			for above := i - 1; above >= 0 && marks[above] < b.to; above-- {
				if had := (b.to - marks[above]) * 4; had >= enough(above) {
					t.Errorf("size %d: bucket %d goes on to %d, and had %d bytes at %d", size, k, b.from, had, marks[above])
				}
			}
			to = b.from
		}
		if _, table := tableOf(l); to != table {
			t.Errorf("size %d: the last bucket ends at %d, the word embeddings at %d", size, to, table)
		}
		if last := buckets[len(buckets)-1]; last.name != "embeddings" || last.to != marks[within-1] {
			t.Errorf("size %d: the last bucket is %s, from %d to %d", size, last.name, last.from, last.to)
		}
	}
	for total, want := range map[int]int{1 << 20: 256 << 10, 24 << 20: 1 << 20, 48 << 20: 2 << 20, 1 << 30: 4 << 20} {
		if got := defaultBucket(total); got != want {
			t.Errorf("of %d bytes a bucket has %d, want %d", total, got, want)
		}
	}
}

// at is one rank of a group on paper.
type at struct {
	paper
	rank int
}

func (a at) Rank() int { return a.rank }

// The shares of a shard axis tile what they are of, in the order of ranks, all ranks know of the same parts, and no row of word embeddings lies on two.
func TestSharesTile(t *testing.T) {
	const from = 7
	for shards := 2; shards <= 7; shards++ {
		for _, rows := range []int{0, 1, 5, 30, 101} {
			for _, unit := range []int{1, 3, 20} {
				to, end := from+rows*unit, from
				var parts []int
				for rank := range shards {
					r := &Replicas{Comm: &collective.Comm{Mesh: collective.Mesh{Replicate: 1, Shard: shards}, Shard: at{paper(shards), rank}}}
					x := r.share("table", from, to, unit)
					if x.lo != end || x.hi-x.lo != x.parts[rank] || x.len()%unit != 0 || parts != nil && !slices.Equal(parts, x.parts) {
						t.Errorf("%d rows of %d on rank %d of %d: from %d to %d of %v, want it to begin at %d with whole rows", rows, unit, rank, shards, x.lo, x.hi, x.parts, end)
					}
					end, parts = x.hi, x.parts
				}
				if end != to {
					t.Errorf("%d rows of %d on %d ranks end at %d, want %d", rows, unit, shards, end, to)
				}
			}
		}
	}
}
