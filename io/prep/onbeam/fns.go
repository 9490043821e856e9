//go:build beam

package onbeam

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"slices"
	"sort"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"contraflow/io/prep"
)

func init() {
	register.DoFn4x1[context.Context, int, func(string, []byte), func(int, int64), error](&keysFn{})
	register.DoFn4x0[string, func(*[]byte) bool, func([]byte), func(int, []byte)](&exactFn{})
	register.DoFn2x0[[]byte, func(string, []byte)](&bandsFn{})
	register.DoFn3x0[string, func(*[]byte) bool, func(int, []byte)](&nearFn{})
	register.DoFn4x1[context.Context, int, func(*[]byte) bool, func([]byte), error](&writeFn{})
	register.DoFn5x1[context.Context, int, func(*[]byte) bool, func(*int, *int64) bool, func([]byte), error](&writeMixedFn{})
	register.DoFn4x1[context.Context, int, func(*[]byte) bool, func(int, int64), error](&lostFn{})
	register.DoFn2x1[int, func(*[]byte) bool, error](&mergeFn{})
	register.DoFn1x2[int, int, []byte](&markFn{})
	register.Emitter1[[]byte]()
	register.Emitter2[string, []byte]()
	register.Emitter2[int, []byte]()
	register.Emitter2[int, int64]()
	register.Iter1[[]byte]()
	register.Iter2[int, int64]()
}

// Records are bytes: id, then for keys the number of bands, the bands and the sketch. Beam would spend more on struct's fields than on them.

// keysFn is the first pass over a shard: what each of its rows is compared by, under its text's hash, and how many rows of each input there are.
type keysFn struct{ Config string }

func (f *keysFn) ProcessElement(ctx context.Context, shard int, emit func(string, []byte), count func(int, int64)) error {
	x, err := open(ctx, f.Config)
	if err != nil {
		return err
	}
	rows := map[int]int64{}
	err = x.Keys(ctx, shard, func(k *prep.Keyed) error {
		rows[k.Input]++
		var key [16]byte
		binary.BigEndian.PutUint64(key[:], k.Exact.Hi)
		binary.BigEndian.PutUint64(key[8:], k.Exact.Lo)
		rec := binary.BigEndian.AppendUint64(nil, uint64(k.ID))
		rec = binary.BigEndian.AppendUint32(rec, uint32(len(k.Bands)))
		for _, b := range k.Bands {
			rec = binary.BigEndian.AppendUint64(rec, b)
		}
		if len(k.Bands) > 0 {
			rec = k.Sketch.Append(rec)
		}
		emit(string(key[:]), rec)
		return nil
	})
	for input, n := range rows {
		count(input, n)
	}
	return err
}

func idOf(rec []byte) int64 { return int64(binary.BigEndian.Uint64(rec)) }

// dropRecord is an id, the rule and the row that it repeats.
func dropRecord(id int64, rule byte, of int64) []byte {
	rec := binary.BigEndian.AppendUint64(nil, uint64(id))
	return binary.BigEndian.AppendUint64(append(rec, rule), uint64(of))
}

const (
	isDuplicate byte = iota
	isNear
)

// shardOf finds the shard of a row by the shards' first rows.
func shardOf(first []int64, id int64) int {
	return sort.Search(len(first), func(i int) bool { return first[i] > id }) - 1
}

// exactFn keeps the first of rows with equal texts.
type exactFn struct{ First []int64 }

func (f *exactFn) ProcessElement(_ string, rows func(*[]byte) bool, keep func([]byte), drop func(int, []byte)) {
	var rec, first []byte
	var others []int64
	for rows(&rec) {
		if first == nil || idOf(rec) < idOf(first) {
			if first != nil {
				others = append(others, idOf(first))
			}
			first = append([]byte(nil), rec...)
		} else {
			others = append(others, idOf(rec))
		}
	}
	keep(first)
	for _, id := range others {
		drop(shardOf(f.First, id), dropRecord(id, isDuplicate, idOf(first)))
	}
}

// bandsFn sends a row's sketch to each of its buckets.
type bandsFn struct{}

func (f *bandsFn) ProcessElement(rec []byte, emit func(string, []byte)) {
	n := int(binary.BigEndian.Uint32(rec[8:]))
	bands, sketch := rec[12:12+8*n], rec[12+8*n:]
	member := append(append([]byte(nil), rec[:8]...), sketch...)
	for ; len(bands) > 0; bands = bands[8:] {
		emit(string(bands[:8]), member)
	}
}

// nearFn compares the rows of a bucket.
type nearFn struct {
	First     []int64
	Threshold float64
}

func (f *nearFn) ProcessElement(_ string, rows func(*[]byte) bool, drop func(int, []byte)) {
	var members []prep.Member
	var rec []byte
	texts := map[string]prep.Sketch{} // the same text often comes in many rows
	for rows(&rec) {
		sketch, ok := texts[string(rec[8:])]
		if !ok {
			sketch = prep.ParseSketch(rec[8:], nil)
			texts[string(rec[8:])] = sketch
		}
		members = append(members, prep.Member{ID: idOf(rec), Sketch: sketch})
	}
	slices.SortFunc(members, func(a, b prep.Member) int { return cmp.Compare(a.ID, b.ID) })
	bucket := prep.Bucket{Threshold: f.Threshold}
	for _, m := range members {
		if of, similar := bucket.Add(m.ID, m.Sketch); similar {
			drop(shardOf(f.First, m.ID), dropRecord(m.ID, isNear, of))
		}
	}
}

// gather collects a shard's drops: a row may come from several buckets, and the first row that it repeats counts.
func gather(drops func(*[]byte) bool) map[int64]prep.Verdict {
	all := map[int64]prep.Verdict{}
	var rec []byte
	for drops(&rec) {
		if len(rec) == 0 {
			continue // markFn's
		}
		v := prep.Verdict{Rule: prep.Duplicate, Of: int64(binary.BigEndian.Uint64(rec[9:])), Pass: true}
		if rec[8] == isNear {
			v.Rule = prep.NearDuplicate
		}
		if old, ok := all[idOf(rec)]; ok {
			v.Of = min(v.Of, old.Of)
		}
		all[idOf(rec)] = v
	}
	return all
}

// markFn sends every shard an empty record, so that shards without drops are written too.
type markFn struct{}

func (f *markFn) ProcessElement(shard int) (int, []byte) { return shard, nil }

// lostFn counts the distinct dropped rows of a shard by input, below 0.
type lostFn struct{ Config string }

func (f *lostFn) ProcessElement(ctx context.Context, shard int, drops func(*[]byte) bool, count func(int, int64)) error {
	x, err := open(ctx, f.Config)
	if err != nil {
		return err
	}
	lost := map[int]int64{}
	for id := range gather(drops) {
		lost[x.InputOf(id)]--
	}
	for input, n := range lost {
		count(input, n)
	}
	return nil
}

// writeFn is the second pass over a shard.
type writeFn struct{ Config string }

func (f *writeFn) ProcessElement(ctx context.Context, shard int, drops func(*[]byte) bool, emit func([]byte)) error {
	return write(ctx, f.Config, shard, drops, nil, emit)
}

// writeMixedFn is writeFn with the number of rows that remain of each input.
type writeMixedFn struct{ Config string }

func (f *writeMixedFn) ProcessElement(ctx context.Context, shard int, drops func(*[]byte) bool, remain func(*int, *int64) bool, emit func([]byte)) error {
	rows := map[int]int64{}
	var input int
	var n int64
	for remain(&input, &n) {
		rows[input] = n
	}
	return write(ctx, f.Config, shard, drops, rows, emit)
}

func write(ctx context.Context, config string, shard int, drops func(*[]byte) bool, remain map[int]int64, emit func([]byte)) error {
	x, err := open(ctx, config)
	if err != nil {
		return err
	}
	all := gather(drops)
	var rates []float64
	if c := &x.Rules.Config; remain != nil {
		rows := make([]int64, len(c.Input))
		for input, n := range remain {
			rows[input] = n
		}
		rates = c.Mix.Rates(c.Input, rows)
	}
	s, err := x.WriteShard(ctx, shard, func(id int64) prep.Verdict {
		if v, ok := all[id]; ok {
			return v
		}
		return prep.Verdict{Of: -1}
	}, rates)
	if err != nil {
		return err
	}
	for name, r := range s.Rules {
		beam.NewCounter("prep", name).Inc(ctx, r.Dropped)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	emit(b)
	return nil
}

// mergeFn merges the shards' statistics into a file.
type mergeFn struct{ Config string }

func (f *mergeFn) ProcessElement(_ int, parts func(*[]byte) bool) error {
	c, err := prep.ParseJSON(f.Config)
	if err != nil {
		return err
	}
	total := prep.NewStats(c.Input)
	var b []byte
	for parts(&b) {
		s := new(prep.Stats)
		if err := json.Unmarshal(b, s); err != nil {
			return err
		}
		total.Merge(s, c.Samples)
	}
	if b, err = json.Marshal(total); err != nil {
		return err
	}
	tmp := c.Output.StatsFile() + ".partial"
	if err := os.WriteFile(tmp, b, 0o666); err != nil {
		return err
	}
	return os.Rename(tmp, c.Output.StatsFile())
}
